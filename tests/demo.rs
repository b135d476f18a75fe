//! `zapmyco demo` on generated folders: every number of the report against an independent count.

use zapmyco::models::scripted::Script;

#[test]
fn the_script_in_examples_is_well_formed() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo.yaml");
    if let Err(error) = Script::load(&path) {
        panic!("{error}");
    }
}
