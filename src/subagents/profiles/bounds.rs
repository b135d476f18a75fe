//! What a profile lets one run of its agent use, beside the number of turns: tokens, money, minutes; and when a run in the
//! foreground goes on in the background. Settings bound the same; the narrower of two holds.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::models::prices::Usd;

/// `None`: the profile does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bounds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<NonZeroU64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<Usd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_minutes: Option<NonZeroU32>,
    /// 0: never, whatever the settings say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_background_ms: Option<u64>,
}

impl Bounds {
    /// The narrower of the profile's time and that of the settings, where zero means none.
    pub fn time_limit(&self, setting: Duration) -> Option<Duration> {
        let own = self.max_minutes.map(|minutes| Duration::from_secs(u64::from(minutes.get()) * 60));
        narrower(own, (!setting.is_zero()).then_some(setting))
    }

    /// The same of tokens.
    pub fn tokens(&self, setting: u64) -> Option<u64> {
        narrower(self.max_tokens.map(NonZeroU64::get), (setting > 0).then_some(setting))
    }

    /// The same of money.
    pub fn money(&self, setting: Option<Usd>) -> Option<Usd> {
        narrower(self.max_budget_usd, setting)
    }

    /// After which time a run goes to the background: the profile's word, else the settings' (R186).
    pub fn auto_background(&self, setting: Duration) -> Option<Duration> {
        let time = self.auto_background_ms.map_or(setting, Duration::from_millis);
        (!time.is_zero()).then_some(time)
    }
}

fn narrower<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A whole number, written as one or as digits in quotes.
pub(super) fn whole(value: Option<&Value>, word: Option<&str>) -> Option<u64> {
    match value {
        Some(Value::Number(number)) => number.as_u64(),
        _ => word?.parse().ok(),
    }
}

/// An amount of dollars above nothing.
pub(super) fn amount(value: Option<&Value>, word: Option<&str>) -> Option<Usd> {
    let read = match value {
        Some(Value::Number(number)) => number.as_f64().and_then(|dollars| Usd::try_from(dollars).ok()),
        _ => word?.parse().ok(),
    };
    read.filter(|amount| *amount > Usd::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R173, R179
    #[test]
    fn the_narrower_bound_holds() {
        let bounds = Bounds { max_tokens: NonZeroU64::new(5), max_minutes: NonZeroU32::new(2), ..Bounds::default() };
        assert_eq!((bounds.tokens(0), bounds.tokens(4), bounds.tokens(6)), (Some(5), Some(4), Some(5)));
        assert_eq!(Bounds::default().tokens(0), None);
        assert_eq!(bounds.time_limit(Duration::ZERO), Some(Duration::from_secs(120)));
        assert_eq!(bounds.time_limit(Duration::from_secs(60)), Some(Duration::from_secs(60)));
    }

    /// R186
    #[test]
    fn the_profile_decides_about_the_background() {
        let ms = |ms| Bounds { auto_background_ms: ms, ..Bounds::default() };
        let setting = Duration::from_secs(9);
        assert_eq!(ms(Some(20)).auto_background(setting), Some(Duration::from_millis(20)));
        assert_eq!(ms(Some(0)).auto_background(setting), None);
        assert_eq!(ms(None).auto_background(setting), Some(setting));
        assert_eq!(ms(None).auto_background(Duration::ZERO), None);
    }
}
