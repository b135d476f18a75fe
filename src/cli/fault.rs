//! A fault of the program itself: one clear line on stderr, and exit code 70 where it ends the program.
//!
//! A tool that panics is a failed call that the model reads (`agent/tool_batch.rs`); the run goes on.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use super::report::{self, CommandError, Exit};

/// Runs the command line; a panic that reaches its end is the exit code for faults.
pub(super) fn guarded(run: impl FnOnce() -> Exit) -> Exit {
    std::panic::set_hook(Box::new(|info| {
        report::print_error(&CommandError::new(Exit::Fault, line(info.payload(), info.location())));
        // Only where RUST_BACKTRACE asks for it.
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            report::print_plain(&trace.to_string());
        }
    }));
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Exit::Fault)
}

fn line(payload: &(dyn Any + Send), place: Option<&Location<'_>>) -> String {
    let said = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let said = said.unwrap_or("without a word").lines().next().unwrap_or_default();
    let place = place.map(|place| format!(" at {}:{}", place.file(), place.line())).unwrap_or_default();
    format!("a fault of zapmyco itself{place}: {said} (please report it)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line() {
        let told = |payload: Box<dyn Any + Send>| line(payload.as_ref(), None);
        assert_eq!(told(Box::new("index out of bounds")), "a fault of zapmyco itself: index out of bounds (please report it)");
        assert_eq!(told(Box::new("left\n right".to_owned())), "a fault of zapmyco itself: left (please report it)");
        assert_eq!(told(Box::new(5)), "a fault of zapmyco itself: without a word (please report it)");
        let here = Location::caller();
        assert!(line(&"x", Some(here)).contains(&format!(" at {}:{}: x", here.file(), here.line())));
    }
}
