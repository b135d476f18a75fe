//! The binary: hands over to the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A keeper is small and has one thread: nothing else is set up before it.
    if std::env::args_os().nth(1).is_some_and(|first| first == zapmyco::supervisor::launch::KEEP_ARGUMENT) {
        return zapmyco::supervisor::keeper::main();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == zapmyco::supervisor::confine::TRY_ARGUMENT) {
        return zapmyco::supervisor::confine::try_main();
    }
    zapmyco::supervisor::launch::name_own_process();
    zapmyco::cli::main(std::env::args_os().collect())
}
