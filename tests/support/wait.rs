//! Waiting on conditions, never for a time.

use std::time::{Duration, Instant};

/// Longest wait for a condition; only a failing test reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until `condition` gives a value; panics with `what` after [`PATIENCE`].
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As [`until`], for a plain yes or no.
pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}
