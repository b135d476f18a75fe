//! Durations and sizes as people write them in settings: a number and a unit, `"5m"` or `"64MB"`.
//!
//! A number without unit is refused: the reader of a file should not have to know which unit was meant.

use std::time::Duration;

use super::limits::KIB;

/// A text that is not a duration or a size. The message says what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("a duration has a unit: \"300s\", \"5m\", \"500ms\" (ms, s, m, h, d)")]
    NoTimeUnit,
    #[error("`{0}` is no unit of time; write a duration as \"300s\", \"5m\" or \"500ms\" (ms, s, m, h, d)")]
    TimeUnit(String),
    #[error("a size has a unit: \"64MB\", \"2KB\", \"120000B\" (B, KB, MB, GB; 1 KB is 1024 bytes)")]
    NoSizeUnit,
    #[error("`{0}` is no unit of size; write a size as \"64MB\", \"2KB\" or \"120000B\" (B, KB, MB, GB; 1 KB is 1024 bytes)")]
    SizeUnit(String),
    #[error("it cannot be negative")]
    Negative,
    #[error("it has to start with a whole number, without sign, point or blank")]
    Number,
    #[error("it is too large")]
    TooLarge,
}

/// No limit is longer than this (100 years): far enough, and any point in time plus it can be represented.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// No size is larger than this (1 PiB), so that sums of sizes cannot overflow.
pub const SIZE_MAX: u64 = 1 << 50;

const TIME_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 4] = [("GB", KIB * KIB * KIB), ("MB", KIB * KIB), ("KB", KIB), ("B", 1)];

pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Err(UnitError::NoTimeUnit);
    }
    let (_, factor) = TIME_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| UnitError::TimeUnit(unit.to_owned()))?;
    let duration = Duration::from_millis(number.checked_mul(*factor).ok_or(UnitError::TooLarge)?);
    if duration > DURATION_MAX { Err(UnitError::TooLarge) } else { Ok(duration) }
}

/// In bytes.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text)?;
    if unit.is_empty() {
        return Err(UnitError::NoSizeUnit);
    }
    let known = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let (_, factor) = known.ok_or_else(|| UnitError::SizeUnit(unit.to_owned()))?;
    let size = number.checked_mul(*factor).ok_or(UnitError::TooLarge)?;
    if size > SIZE_MAX { Err(UnitError::TooLarge) } else { Ok(size) }
}

fn split(text: &str) -> Result<(u64, &str), UnitError> {
    if text.starts_with('-') {
        return Err(UnitError::Negative);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() || unit.starts_with(['.', ' ']) {
        return Err(UnitError::Number);
    }
    Ok((digits.parse().map_err(|_| UnitError::TooLarge)?, unit))
}

/// In seconds where that is exact, else in milliseconds; what [`parse_duration`] reads back.
pub fn format_duration(duration: Duration) -> String {
    if duration.subsec_millis() == 0 { format!("{}s", duration.as_secs()) } else { format!("{}ms", duration.as_millis()) }
}

/// In the largest unit that is exact; what [`parse_size`] reads back.
pub fn format_size(bytes: u64) -> String {
    let exact = SIZE_UNITS.iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    let (unit, factor) = exact.copied().unwrap_or(("B", 1));
    format!("{}{unit}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_known_unit() {
        for (text, milliseconds) in
            [("300s", 300_000), ("5m", 300_000), ("500ms", 500), ("2h", 7_200_000), ("30d", 2_592_000_000), ("0s", 0)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(parse_duration("300"), Err(UnitError::NoTimeUnit));
        assert_eq!(parse_duration("5 parsecs"), Err(UnitError::Number));
        assert_eq!(parse_duration("5parsecs"), Err(UnitError::TimeUnit("parsecs".into())));
        assert_eq!(parse_duration("-5s"), Err(UnitError::Negative));
        for text in ["", "s", "1.5s", "+5s", " 5s", "٣s"] {
            assert_eq!(parse_duration(text), Err(UnitError::Number), "{text:?}");
        }
        for text in ["99999999999999999999s", "18446744073709551615d", "40000d"] {
            assert_eq!(parse_duration(text), Err(UnitError::TooLarge), "{text}");
        }
    }

    #[test]
    fn sizes_need_a_known_unit() {
        for (text, bytes) in [("64MB", 64 << 20), ("2kb", 2048), ("120000B", 120_000), ("1GB", 1 << 30), ("0B", 0)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("64"), Err(UnitError::NoSizeUnit));
        assert_eq!(parse_size("64MiBs"), Err(UnitError::SizeUnit("MiBs".into())));
        assert_eq!(parse_size("-1B"), Err(UnitError::Negative));
        assert_eq!(parse_size("17179869184GB"), Err(UnitError::TooLarge));
        assert_eq!(parse_size("2000000GB"), Err(UnitError::TooLarge));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for milliseconds in [0, 1, 500, 1000, 1500, 300_000, 2_592_000_000] {
            let duration = Duration::from_millis(milliseconds);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for bytes in [0, 1, 1023, 1024, 120_000, 64 << 20, (1 << 30) + 1, 4 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }
}
