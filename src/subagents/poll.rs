//! How long a poll waits: a pure rule about `wait_secs`, and the time it gives.

use std::time::Duration;

use serde_json::Value;

use crate::config::Limits;
use crate::text::subagent_replies::bad_wait;

/// A valid `wait_secs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraWait {
    pub wait: Duration,
    /// More was asked for than there is (R340).
    pub clamped: bool,
}

/// A `wait_secs` that is none; its text is the fixed one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", bad_wait(.value))]
pub struct BadWait {
    /// As JSON, or the bare text of a string.
    pub value: String,
}

/// R340: absent is 0, fractions are taken as they are, more than the maximum counts as the maximum; negative or not a
/// number is an error.
pub fn extra_wait(value: Option<&Value>, limits: &Limits) -> Result<ExtraWait, BadWait> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(ExtraWait { wait: Duration::ZERO, clamped: false });
    };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let number = value.as_f64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
    let Some(seconds) = number.filter(|seconds| seconds.is_finite() && *seconds >= 0.0) else { return Err(BadWait { value: text }) };
    let max = limits.poll_extra_wait_max;
    if seconds > max.as_secs_f64() {
        return Ok(ExtraWait { wait: max, clamped: true });
    }
    Ok(ExtraWait { wait: Duration::from_secs_f64(seconds), clamped: false })
}

/// How long a poll waits in all for what still runs (R355).
pub fn longest_wait(extra: Duration, limits: &Limits) -> Duration {
    limits.poll_base_wait + extra
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// R340, R355
    #[test]
    fn wait_secs_as_documented() {
        let limits = Limits::default();
        let ok = |value: Value| extra_wait(Some(&value), &limits).map(|extra| (extra.wait.as_millis(), extra.clamped));
        assert_eq!(extra_wait(None, &limits).unwrap(), ExtraWait { wait: Duration::ZERO, clamped: false });
        assert_eq!(ok(json!(null)), Ok((0, false)));
        assert_eq!(ok(json!(0)), Ok((0, false)));
        assert_eq!(ok(json!(10.0)), Ok((10_000, false)));
        assert_eq!(ok(json!("10.0")), Ok((10_000, false)));
        assert_eq!(ok(json!(1.5)), Ok((1500, false)));
        assert_eq!(ok(json!(30)), Ok((30_000, false)));
        assert_eq!(ok(json!(31)), Ok((30_000, true)));
        assert_eq!(ok(json!(1e300)), Ok((30_000, true)));
        assert_eq!(longest_wait(Duration::from_secs(30), &limits), Duration::from_secs(35));
        for (value, shown) in [
            (json!(-5), "-5"),
            (json!("x"), "x"),
            (json!(true), "true"),
            (json!([1]), "[1]"),
            (json!({}), "{}"),
            (json!("NaN"), "NaN"),
            (json!("inf"), "inf"),
            (json!(""), ""),
            (json!(-0.5), "-0.5"),
        ] {
            let error = extra_wait(Some(&value), &limits).unwrap_err();
            assert_eq!(error.to_string(), format!("wait_secs 必须是 0 到 30 之间的数字，收到: {shown}"), "{value}");
        }
    }
}
