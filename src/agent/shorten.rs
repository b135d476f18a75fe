//! Cuts a text that is too long for the model: beginning and end stay, a note says how much is missing.

use std::fmt::Write;

/// Room the note itself may need, in bytes.
const NOTE_MAX: usize = 160;

/// `text` as it is when it has at most `max` bytes; else its beginning and its end with a note between them, together
/// at most `max` bytes (more only when `max` is too small for the note). Never cuts inside a character.
pub(crate) fn shortened(text: String, max: u64) -> String {
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    if text.len() <= max {
        return text;
    }
    let each = max.saturating_sub(NOTE_MAX) / 2;
    let head = &text[..text.floor_char_boundary(each)];
    let tail = &text[text.ceil_char_boundary(text.len() - each)..];
    let mut cut = String::with_capacity(head.len() + tail.len() + NOTE_MAX);
    cut.push_str(head);
    // Writing into a string cannot fail.
    let _ = write!(
        cut,
        "\n\n[... {left_out} of {all} bytes left out here; ask for less at once, or for a part ...]\n\n",
        left_out = text.len() - head.len() - tail.len(),
        all = text.len()
    );
    cut.push_str(tail);
    cut
}

/// How many bytes each text may keep so that all together have at most `total`: short ones stay whole, the long ones
/// share what is left evenly.
pub(crate) fn fair_share(lengths: impl IntoIterator<Item = u64>, total: u64) -> u64 {
    let mut lengths: Vec<u64> = lengths.into_iter().collect();
    lengths.sort_unstable();
    let mut left = total;
    let mut waiting = lengths.len() as u64;
    for length in lengths {
        let share = left / waiting;
        if length > share {
            return share;
        }
        left -= length;
        waiting -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_ends_stay_and_the_note_counts_what_is_missing() {
        let text = format!("START{}END", "x".repeat(10_000));
        let cut = shortened(text.clone(), 1000);
        assert!(cut.starts_with("STARTxxx") && cut.ends_with("xxxEND"), "{cut}");
        assert!(cut.len() <= 1000);
        let kept = cut.matches('x').count();
        assert!(cut.contains(&format!("{} of 10008 bytes left out", 10_000 - kept)), "{cut}");
        assert_eq!(shortened("short".into(), 5), "short");
    }

    #[test]
    fn long_texts_share_what_short_ones_leave() {
        assert_eq!(fair_share([10, 10], 100), u64::MAX);
        assert_eq!(fair_share([100; 20], 1000), 50);
        assert_eq!(fair_share([10, 500, 500], 210), 100);
        assert_eq!(fair_share([], 0), u64::MAX);
    }

    proptest! {
        #[test]
        fn no_character_is_split_and_no_bound_is_passed(text in "(a|ß|界|😀){0,400}", max in 160u64..600) {
            let cut = shortened(text.clone(), max);
            prop_assert!(cut.len() as u64 <= max.max(text.len() as u64).min(max));
            if text.len() as u64 <= max { prop_assert_eq!(cut, text) }
        }

        #[test]
        fn shares_keep_the_total(lengths in proptest::collection::vec(0u64..1000, 0..30), total in 0u64..5000) {
            let share = fair_share(lengths.iter().copied(), total);
            prop_assert!(lengths.iter().map(|length| (*length).min(share)).sum::<u64>() <= total);
        }
    }
}
