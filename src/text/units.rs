//! Sizes, durations, times and signals as people and models read them.

use std::time::Duration;

use chrono::{DateTime, Local};

/// Whole seconds, as in `23s`.
pub fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

/// Local time with exactly six sub-second digits (R347).
pub fn local_micros(time: DateTime<Local>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.6f").to_string()
}

/// Whole kibibytes, rounded down.
pub fn kib(bytes: u64) -> u64 {
    bytes / 1024
}

/// `512 B`, `3.4 KB`, `1.0 MB`: powers of two.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `SIGKILL`; `signal 35` where the number has no fixed name.
pub fn signal_name(signal: i32) -> String {
    nix::sys::signal::Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |known| known.as_str().to_owned())
}

/// `0`, `137 (SIGKILL)`, or `-` when nobody saw how the process ended.
pub fn exit_status(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (_, Some(signal)) => format!("{} ({})", 128 + signal, signal_name(signal)),
        (Some(code), None) => code.to_string(),
        (None, None) => "-".to_owned(),
    }
}

/// One line: white space folded, control characters dropped, at most `max` characters, the last one `…` when cut.
pub fn one_line(text: &str, max: usize) -> String {
    let mut line = String::new();
    let mut count = 0;
    let mut gap = false;
    for character in text.chars() {
        if character.is_whitespace() {
            gap = !line.is_empty();
            continue;
        }
        if is_hidden(character) {
            continue;
        }
        let needed = 1 + usize::from(gap);
        if count + needed > max {
            // The mark takes the place of the last character, so that the bound holds.
            if count >= max {
                line.pop();
            }
            line.push('…');
            return line;
        }
        if gap {
            line.push(' ');
            gap = false;
        }
        line.push(character);
        count += needed;
    }
    line
}

/// Characters that change how a terminal shows what follows, and have no shape of their own.
pub(crate) fn is_hidden(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone;

    /// R347
    #[test]
    fn times_have_six_digits() {
        let whole = Local.with_ymd_and_hms(2026, 6, 6, 15, 30, 0).unwrap();
        assert_eq!(local_micros(whole), "2026-06-06T15:30:00.000000");
        assert_eq!(local_micros(whole + Duration::from_nanos(123_456_789)), "2026-06-06T15:30:00.123456");
    }

    /// R359, R360
    #[test]
    fn exits_name_the_signal() {
        assert_eq!(exit_status(Some(0), None), "0");
        assert_eq!(exit_status(None, Some(9)), "137 (SIGKILL)");
        assert_eq!(exit_status(None, Some(11)), "139 (SIGSEGV)");
        assert_eq!(exit_status(None, Some(40)), "168 (signal 40)");
        assert_eq!(exit_status(None, None), "-");
    }

    #[test]
    fn a_task_becomes_one_bounded_line() {
        assert_eq!(one_line("  a\n\n b\tc  ", 200), "a b c");
        assert_eq!(one_line("a\u{1b}[31mb\u{202e}c", 200), "a[31mbc");
        assert_eq!(one_line(&"x".repeat(200), 200), "x".repeat(200));
        let cut = one_line(&"字".repeat(300), 200);
        assert_eq!(cut.chars().count(), 200);
        assert!(cut.ends_with("字…"));
        assert_eq!(one_line("abc d", 4), "abc…");
        assert_eq!(one_line("abc de", 5), "abc …");
        assert_eq!(one_line("", 5), "");
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KB");
        assert_eq!(size(64 * 1024 * 1024), "64.0 MB");
        assert_eq!(kib(2049), 2);
        assert_eq!(seconds(Duration::from_millis(23_999)), "23s");
    }
}
