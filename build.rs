//! Links the program at a fixed address on Linux.
//!
//! A position-independent program of this size rewrites half a megabyte of pointer tables at every start, in memory that
//! no two processes share; with 64 subagents and their keepers that is 64 MB. Stack, heap and libraries keep their random
//! addresses.

#[allow(clippy::disallowed_methods)]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
