//! What tokens cost: public list prices, and what settings say instead. Amounts are whole billionths of a
//! dollar, so that sums are exact. A model that is not listed has no price; nothing is ever guessed.
//!
//! The table holds public price lists as of November 2026; not every row was checked against the provider's own page, and
//! settings `[prices]` override them. Standard tier, cache writes for five minutes. Discounts of batches, regions and
//! contracts are not in it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Usage;

/// An amount of money; never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Usd {
    billionths: u64,
}

/// A number that is no amount of money.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an amount is a number of dollars from 0 to 1000000000, such as 2.50")]
pub struct AmountError;

/// Dollars per million tokens, as settings write them (`[prices."PROVIDER/MODEL"]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    pub input: Usd,
    pub output: Usd,
    /// Absent: as `input`.
    pub cache_read: Option<Usd>,
    /// Absent: as `input`.
    pub cache_write: Option<Usd>,
}

/// The prices that hold in this process.
#[derive(Clone, Debug, Default)]
pub struct Prices {
    own: BTreeMap<String, Rates>,
}

/// What requests have cost, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    sum: Usd,
    /// A request without a known price was among them.
    incomplete: bool,
}

const BILLIONTHS: f64 = 1e9;
const DOLLARS_MAX: f64 = 1e9;

impl Usd {
    pub const ZERO: Self = Self { billionths: 0 };

    pub fn dollars(self) -> f64 {
        self.billionths as f64 / BILLIONTHS
    }

    pub fn billionths(self) -> u64 {
        self.billionths
    }

    pub fn of_billionths(billionths: u64) -> Self {
        Self { billionths }
    }

    pub fn plus(self, other: Self) -> Self {
        Self { billionths: self.billionths.saturating_add(other.billionths) }
    }
}

impl TryFrom<f64> for Usd {
    type Error = AmountError;

    fn try_from(dollars: f64) -> Result<Self, AmountError> {
        if !(0.0..=DOLLARS_MAX).contains(&dollars) {
            return Err(AmountError);
        }
        Ok(Self { billionths: (dollars * BILLIONTHS).round() as u64 })
    }
}

impl From<Usd> for f64 {
    fn from(amount: Usd) -> Self {
        amount.dollars()
    }
}

impl FromStr for Usd {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let number = text.strip_prefix('$').unwrap_or(text);
        number.parse::<f64>().map_err(|_| AmountError).and_then(Self::try_from)
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:.6}", self.dollars());
        // Two places at least; more where they say something.
        let short = digits.trim_end_matches('0');
        let places = short.len() - short.find('.').map_or(short.len(), |point| point + 1);
        write!(f, "${:.*}", places.max(2), self.dollars())
    }
}

impl Prices {
    /// `own`: by `provider/model`; they stand before the table.
    pub fn new(own: BTreeMap<String, Rates>) -> Self {
        Self { own }
    }

    /// What one request has cost; `None` when no price is known for it.
    pub fn cost(&self, model: &str, usage: &Usage) -> Option<Usd> {
        match self.own.get(model) {
            Some(rates) => Some(rates.cost(usage)),
            None => bands_of(model)?.iter().find(|band| prompt_of(usage) <= band.up_to).map(|band| band.rates.cost(usage)),
        }
    }

    /// Whether a request to this model has a price.
    pub fn knows(&self, model: &str) -> bool {
        self.own.contains_key(model) || bands_of(model).is_some()
    }
}

impl Rates {
    fn cost(&self, usage: &Usage) -> Usd {
        let parts = [
            (usage.input, self.input),
            (usage.output, self.output),
            (usage.cache_read, self.cache_read.unwrap_or(self.input)),
            (usage.cache_write, self.cache_write.unwrap_or(self.input)),
        ];
        let sum: u128 = parts.iter().map(|(tokens, rate)| u128::from(*tokens) * u128::from(rate.billionths)).sum();
        // Rounded up: a budget is never overstepped by rounding.
        Usd { billionths: u64::try_from(sum.div_ceil(MILLION)).unwrap_or(u64::MAX) }
    }
}

impl Bill {
    /// `cost`: of one request, where it is known.
    pub fn add(&mut self, cost: Option<Usd>) {
        match cost {
            Some(cost) => self.sum = self.sum.plus(cost),
            None => self.incomplete = true,
        }
    }

    /// The whole cost; `None` when a part of it is not known.
    pub fn total(&self) -> Option<Usd> {
        (!self.incomplete).then_some(self.sum)
    }

    /// What is known of it.
    pub fn known(&self) -> Usd {
        self.sum
    }
}

/// Rates for requests with prompts up to a length; a longer one than the last band says has no known price.
struct Band {
    /// Tokens of the prompt, cached ones included.
    up_to: u64,
    rates: Rates,
}

const MILLION: u128 = 1_000_000;
const ANY: u64 = u64::MAX;

/// In thousandths of a dollar per million tokens.
const fn band(up_to: u64, input: u64, output: u64, cache_read: u64, cache_write: u64) -> Band {
    const fn usd(thousandths: u64) -> Usd {
        Usd { billionths: thousandths * 1_000_000 }
    }
    let rates = Rates { input: usd(input), output: usd(output), cache_read: Some(usd(cache_read)), cache_write: Some(usd(cache_write)) };
    Band { up_to, rates }
}

type Listed = (&'static str, &'static [Band]);

const ANTHROPIC: &[Listed] = &[
    ("claude-fable-5-1", &[band(ANY, 10_000, 50_000, 250, 12_500)]),
    ("claude-fable-5", &[band(ANY, 10_000, 50_000, 1_000, 12_500)]),
    ("claude-opus-5-5", &[band(ANY, 4_000, 20_000, 200, 5_000)]),
    ("claude-opus-5", &[band(ANY, 5_000, 25_000, 500, 6_250)]),
    ("claude-opus-4-8", &[band(ANY, 5_000, 25_000, 500, 6_250)]),
    ("claude-opus-4-7", &[band(ANY, 5_000, 25_000, 500, 6_250)]),
    ("claude-opus-4-6", &[band(ANY, 5_000, 25_000, 500, 6_250)]),
    ("claude-opus-4-5", &[band(ANY, 5_000, 25_000, 500, 6_250)]),
    ("claude-opus-4-1", &[band(ANY, 15_000, 75_000, 1_500, 18_750)]),
    ("claude-sonnet-5-5", &[band(ANY, 2_000, 10_000, 100, 2_500)]),
    ("claude-sonnet-5", &[band(ANY, 2_000, 10_000, 200, 2_500)]),
    ("claude-sonnet-4-6", &[band(200_000, 3_000, 15_000, 300, 3_750)]),
    ("claude-sonnet-4-5", &[band(200_000, 3_000, 15_000, 300, 3_750)]),
    ("claude-haiku-5-5", &[band(100_000, 100, 500, 10, 125), band(ANY, 500, 2_500, 50, 625)]),
    ("claude-haiku-4-5", &[band(ANY, 1_000, 5_000, 100, 1_250)]),
];

const OPENAI: &[Listed] = &[
    ("gpt-6-sol", &[band(272_000, 2_000, 10_000, 200, 2_500)]),
    ("gpt-6-luna", &[band(272_000, 100, 500, 10, 125)]),
    ("gpt-5.4", &[band(272_000, 2_500, 15_000, 250, 2_500)]),
    ("gpt-5.4-mini", &[band(ANY, 750, 4_500, 75, 750)]),
    ("gpt-5", &[band(ANY, 1_250, 10_000, 125, 1_250)]),
    ("gpt-5-mini", &[band(ANY, 250, 2_000, 25, 250)]),
    ("gpt-5-nano", &[band(ANY, 50, 400, 5, 50)]),
    ("gpt-4.1", &[band(ANY, 2_000, 8_000, 500, 2_000)]),
    ("gpt-4.1-mini", &[band(ANY, 400, 1_600, 100, 400)]),
    ("gpt-4.1-nano", &[band(ANY, 100, 400, 25, 100)]),
];

fn prompt_of(usage: &Usage) -> u64 {
    usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write)
}

fn bands_of(model: &str) -> Option<&'static [Band]> {
    let (provider, id) = model.split_once('/')?;
    let list = match provider {
        "anthropic" => ANTHROPIC,
        "openai" => OPENAI,
        _ => return None,
    };
    list.iter().find(|(listed, _)| is_version_of(id, listed)).map(|(_, bands)| *bands)
}

/// The id itself, or a dated version of it: `claude-haiku-4-5-20251001`, `gpt-5-2025-08-07`.
fn is_version_of(id: &str, listed: &str) -> bool {
    let Some(rest) = id.strip_prefix(listed) else { return false };
    let Some(date) = rest.strip_prefix('-') else { return rest.is_empty() };
    let digits = date.bytes().filter(u8::is_ascii_digit).count();
    digits == 8 && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, output: u64, cache_read: u64, cache_write: u64) -> Usage {
        Usage { input, output, cache_read, cache_write, reasoning: 0 }
    }

    fn cost(model: &str, usage: Usage) -> Option<f64> {
        Prices::default().cost(model, &usage).map(Usd::dollars)
    }

    /// R319
    #[test]
    fn listed_models_have_a_price_and_others_none() {
        assert_eq!(cost("anthropic/claude-sonnet-5", usage(1_000_000, 100_000, 2_000_000, 400_000)), Some(2.0 + 1.0 + 0.4 + 1.0));
        assert_eq!(cost("anthropic/claude-haiku-4-5-20251001", usage(1000, 100, 0, 0)), Some(0.0015));
        assert_eq!(cost("openai/gpt-5-2025-08-07", usage(0, 1_000_000, 0, 0)), Some(10.0));
        for unknown in ["anthropic/claude-sonnet-9", "openrouter/anthropic/claude-sonnet-5", "ollama/x", "script", "openai/gpt-5-x"] {
            assert_eq!(cost(unknown, usage(1, 1, 0, 0)), None, "{unknown}");
        }
    }

    /// R319
    #[test]
    fn a_long_prompt_has_the_rates_of_its_length_or_none() {
        assert_eq!(cost("anthropic/claude-haiku-5-5", usage(60_000, 0, 40_000, 0)), Some(0.006 + 0.0004));
        assert_eq!(cost("anthropic/claude-haiku-5-5", usage(60_001, 0, 40_000, 0)).map(|usd| (usd * 1e7).round()), Some(320_005.0));
        assert_eq!(cost("openai/gpt-6-sol", usage(272_001, 0, 0, 0)), None);
    }

    /// R319
    #[test]
    fn settings_stand_before_the_table() {
        let rates: Rates = toml::from_str("input = 1\noutput = 2.5\ncache_read = 0.1").unwrap();
        let prices = Prices::new([("anthropic/claude-sonnet-5".to_owned(), rates)].into());
        let cost = prices.cost("anthropic/claude-sonnet-5", &usage(1_000_000, 1_000_000, 1_000_000, 1_000_000));
        assert_eq!(cost.map(Usd::dollars), Some(1.0 + 2.5 + 0.1 + 1.0));
        assert!(toml::from_str::<Rates>("input = -1\noutput = 2").is_err());
        assert!(toml::from_str::<Rates>("input = 1\noutput = 2\ninptu = 3").is_err());
    }

    #[test]
    fn amounts_are_read_and_shown() {
        for (text, shown) in [("2.5", "$2.50"), ("$0.0042", "$0.0042"), ("0", "$0.00"), ("12", "$12.00")] {
            assert_eq!(text.parse::<Usd>().unwrap().to_string(), shown);
        }
        for wrong in ["-1", "x", "", "NaN", "inf", "1e30"] {
            assert_eq!(wrong.parse::<Usd>(), Err(AmountError), "{wrong}");
        }
    }

    #[test]
    fn one_unknown_part_makes_the_whole_unknown() {
        let mut bill = Bill::default();
        assert_eq!(bill.total(), Some(Usd::ZERO));
        bill.add("1".parse().ok());
        assert_eq!(bill.total().map(Usd::dollars), Some(1.0));
        bill.add(None);
        assert_eq!((bill.total(), bill.known().dollars()), (None, 1.0));
    }
}
