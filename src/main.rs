//! The binary: hands over to the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    zapmyco::cli::main(std::env::args_os().collect())
}
