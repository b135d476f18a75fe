//! Which failures are tried again, when, how often; decided apart from doing it. Only a request that has given no output
//! yet is ever tried again: the caller sees to that.

use std::time::Duration;

use super::ModelErrorKind;
use super::wire::Fault;
use crate::config::Limits;

/// What follows a failed try.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// After this wait. Where the provider named a time, the gate gives the exact moment.
    Again(Duration),
    GiveUp,
    /// The provider asks for more patience than we have.
    TooLong(Duration),
}

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LARGEST_OWN_WAIT: Duration = Duration::from_secs(30);
/// Failures that more often mean a wrong address or a broken server than a passing trouble.
const FEW_TRIES: u32 = 3;

/// `failures`: tries that have failed so far, at least 1. `jitter` is within 0 and 1.
pub(crate) fn next(fault: &Fault, failures: u32, limits: &Limits, jitter: f64) -> Next {
    let allowed = match fault.kind {
        ModelErrorKind::RateLimited | ModelErrorKind::Overloaded | ModelErrorKind::ServerError => limits.request_retries,
        ModelErrorKind::Connect | ModelErrorKind::Interrupted | ModelErrorKind::Empty => limits.request_retries.min(FEW_TRIES),
        // A silence has already cost the whole limit; what is not of the wire format comes again.
        ModelErrorKind::TimedOut | ModelErrorKind::Garbled => 0,
        ModelErrorKind::Unauthorized
        | ModelErrorKind::InvalidRequest
        | ModelErrorKind::ContextTooLong
        | ModelErrorKind::NotFound
        | ModelErrorKind::QuotaExhausted
        | ModelErrorKind::ScriptMismatch => 0,
    };
    if allowed == 0 {
        return Next::GiveUp;
    }
    if let Some(wait) = fault.retry_after.filter(|wait| *wait > limits.retry_wait_max) {
        return Next::TooLong(wait);
    }
    if failures > allowed {
        return Next::GiveUp;
    }
    let own = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(failures - 1)).min(LARGEST_OWN_WAIT).min(limits.retry_wait_max);
    // Between half and all of it, so that those who failed together do not come back together.
    let own = own.mul_f64(0.5 + jitter / 2.0);
    Next::Again(fault.retry_after.filter(|wait| !wait.is_zero()).unwrap_or(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: ModelErrorKind, retry_after: Option<u64>) -> Fault {
        Fault { retry_after: retry_after.map(Duration::from_secs), ..Fault::new(kind, "m") }
    }

    #[test]
    fn what_passes_is_tried_again_and_what_stays_is_not() {
        let limits = Limits { request_retries: 8, ..Limits::default() };
        let tries = |kind| (1..20).take_while(|failures| next(&fault(kind, None), *failures, &limits, 0.5) != Next::GiveUp).count();
        assert_eq!(tries(ModelErrorKind::RateLimited), 8);
        assert_eq!(tries(ModelErrorKind::ServerError), 8);
        assert_eq!(tries(ModelErrorKind::Connect), 3);
        assert_eq!(tries(ModelErrorKind::Unauthorized), 0);
        assert_eq!(tries(ModelErrorKind::TimedOut), 0);
        let none = Limits { request_retries: 0, ..Limits::default() };
        assert_eq!(next(&fault(ModelErrorKind::RateLimited, Some(1)), 1, &none, 0.5), Next::GiveUp);
    }

    #[test]
    fn waits_double_within_bounds_and_obey_the_provider() {
        let limits = Limits::default();
        let wait = |failures, jitter| match next(&fault(ModelErrorKind::ServerError, None), failures, &limits, jitter) {
            Next::Again(wait) => wait,
            other => panic!("{other:?}"),
        };
        assert_eq!(wait(1, 1.0), Duration::from_millis(500));
        assert_eq!(wait(3, 0.0), Duration::from_secs(1));
        assert_eq!(wait(8, 1.0), Duration::from_secs(30));
        let named = |seconds| next(&fault(ModelErrorKind::RateLimited, Some(seconds)), 1, &limits, 0.3);
        assert_eq!(named(7), Next::Again(Duration::from_secs(7)));
        assert_eq!(named(121), Next::TooLong(Duration::from_secs(121)));
    }
}
