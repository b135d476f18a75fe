//! Looks for a shell line that runs a command although its parts are denied, not allowed, or called read-only.
//!
//! Bytes become a line (`tests/support/lines.rs`), the line is decided about and, unless it is refused everywhere, run by
//! bash in a folder of its own with a few harmless tools; a program `mark` tells what ran.
//!
//! With cargo-fuzz and a nightly compiler, guided by coverage:
//!     cargo +nightly fuzz run command -- -max_total_time=600
//! With a stable compiler, at random (from the folder `fuzz`):
//!     cargo build --release && target/release/command -max_total_time=600
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/support/lines.rs"]
mod lines;

static GROUND: LazyLock<lines::Ground> = LazyLock::new(lines::Ground::new);

fuzz_target!(|bytes: &[u8]| {
    if let Some(mistake) = lines::mistake(&GROUND, &lines::line(bytes)) {
        panic!("{mistake}");
    }
});
