//! Head and tail of a long output, cut at character borders; bytes that are no text marked and counted; control
//! characters and escape sequences made harmless. Pure: the caller reads the bytes.

use super::units::is_hidden;

/// The bytes of one output stream as far as they are needed to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Excerpt {
    /// Everything the process wrote.
    Whole(Vec<u8>),
    /// The first and the last bytes, without overlap.
    Ends { head: Vec<u8>, tail: Vec<u8> },
}

/// One stream with its full counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub excerpt: Excerpt,
    /// Bytes written by the process.
    pub bytes: u64,
    /// Of those, on disk.
    pub kept: u64,
    /// Whether writing failed, so that more is missing than the caps leave out.
    pub write_failed: bool,
    /// Line feeds among `bytes`.
    pub lines: u64,
    /// Where the raw bytes are.
    pub path: String,
}

/// Text that may be shown anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub text: String,
    /// Bytes that were not UTF-8, each shown as part of a `U+FFFD`.
    pub bad_bytes: u64,
}

/// An output ready to be worded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Folded {
    /// Short enough to be shown without a word.
    Short(Shown),
    /// Longer than one end, but head and tail hold all of it.
    Large(Shown),
    Cut {
        head: Shown,
        tail: Shown,
        /// Line feeds before the tail.
        lines_before_tail: u64,
        omitted_bytes: u64,
    },
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether the disk does not hold everything.
    pub fn is_incomplete(&self) -> bool {
        self.kept < self.bytes
    }

    /// `each_end`: bytes shown of each end (R361).
    pub fn fold(&self, each_end: usize) -> Folded {
        match &self.excerpt {
            Excerpt::Whole(bytes) if bytes.len() <= each_end => Folded::Short(harmless(bytes)),
            Excerpt::Whole(bytes) if bytes.len() <= 2 * each_end => Folded::Large(harmless(bytes)),
            Excerpt::Whole(bytes) => self.cut(bytes, bytes, each_end),
            Excerpt::Ends { head, tail } => self.cut(head, tail, each_end),
        }
    }

    fn cut(&self, head: &[u8], tail: &[u8], each_end: usize) -> Folded {
        let head = head_within(head, each_end);
        let tail = tail_within(tail, each_end);
        let line_feeds = tail.iter().filter(|byte| **byte == b'\n').count() as u64;
        Folded::Cut {
            head: harmless(head),
            tail: harmless(tail),
            lines_before_tail: self.lines.saturating_sub(line_feeds),
            omitted_bytes: self.bytes.saturating_sub((head.len() + tail.len()) as u64),
        }
    }
}

/// The first at most `max` bytes, not ending inside a character.
pub fn head_within(bytes: &[u8], max: usize) -> &[u8] {
    if bytes.len() <= max {
        return trim_cut_character(bytes);
    }
    let mut end = max;
    // A character has at most three continuation bytes; more of them in a row are no text and may be cut anywhere.
    for _ in 0..3 {
        if end == 0 || !is_continuation(bytes[end]) {
            break;
        }
        end -= 1;
    }
    if is_continuation(bytes[end]) { &bytes[..max] } else { &bytes[..end] }
}

/// Leaves out a character at the very end whose last bytes are missing: the head was read up to a limit.
fn trim_cut_character(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => {
            // Bad bytes further ahead hide the end from the check above; look at the last bytes alone.
            for back in 1..=bytes.len().min(3) {
                let start = bytes.len() - back;
                if is_continuation(bytes[start]) {
                    continue;
                }
                let cut = matches!(std::str::from_utf8(&bytes[start..]), Err(error) if error.error_len().is_none());
                return if cut { &bytes[..start] } else { bytes };
            }
            bytes
        }
    }
}

/// The last at most `max` bytes, not beginning inside a character.
pub fn tail_within(bytes: &[u8], max: usize) -> &[u8] {
    let start = bytes.len().saturating_sub(max);
    let tail = &bytes[start..];
    let lead = tail.iter().take(4).take_while(|byte| is_continuation(**byte)).count();
    if lead < 4 { &tail[lead..] } else { tail }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Decodes with marks for bad bytes and makes everything harmless that a terminal would obey.
///
/// Line feeds and tabs stay. `\r\n` becomes `\n`, a lone `\r` a line feed. Escape sequences (colours, links, cursor
/// movement) are left out as a whole; other control characters are shown as `\x07`, direction marks as `\u{202e}`.
pub fn harmless(bytes: &[u8]) -> Shown {
    let mut shown = Shown::default();
    let mut decoded = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        decoded.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            decoded.push('\u{fffd}');
            shown.bad_bytes += chunk.invalid().len() as u64;
        }
    }
    shown.text = harmless_text(&decoded);
    shown
}

/// [`harmless`] for what is text already.
pub fn harmless_text(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if character == '\u{1b}' {
            rest = after_escape(rest);
            continue;
        }
        rest = &rest[character.len_utf8()..];
        match character {
            '\n' | '\t' => result.push(character),
            '\r' => {
                if !rest.starts_with('\n') {
                    result.push('\n');
                }
            }
            _ if !is_hidden(character) => result.push(character),
            _ if (character as u32) < 0x100 => result.push_str(&format!("\\x{:02x}", character as u32)),
            _ => result.push_str(&format!("\\u{{{:x}}}", character as u32)),
        }
    }
    result
}

/// For what a person decides on: nothing is left out, whatever would act on the terminal or not be seen is written down.
pub fn escaped_text(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => result.push(character),
            '\r' => result.push_str("\\r"),
            _ if character.is_control() => result.push_str(&format!("\\x{:02x}", character as u32)),
            _ if is_hidden(character) || has_no_width(character) => result.push_str(&format!("\\u{{{:x}}}", character as u32)),
            _ => result.push(character),
        }
    }
    result
}

/// Characters that take no place of their own, so that a text with them looks like one without.
fn has_no_width(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Longest escape sequence that is left out; a longer one is taken for text, so that nothing can hide an output.
const ESCAPE_MAX: usize = 2048;

/// What follows the escape sequence at the start of `text`.
fn after_escape(text: &str) -> &str {
    let after = &text[1..];
    let sequence = match after.chars().next() {
        // CSI: parameters, intermediates, one final character.
        Some('[') => after[1..].find(|c: char| !matches!(c, '\u{20}'..='\u{3f}')).map(|end| {
            let end = end + 1;
            // A broken sequence ends before the character that breaks it.
            if matches!(after.as_bytes()[end], 0x40..=0x7e) { end + 1 } else { end }
        }),
        // OSC, DCS, SOS, PM, APC: up to BEL or ST.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            let bell = after.find('\u{7}').map(|at| at + 1);
            let terminator = after.find("\u{1b}\\").map(|at| at + 2);
            bell.into_iter().chain(terminator).min()
        }
        // Character sets and the like: one more character.
        Some('(' | ')' | '*' | '+' | '#' | '%') => after[1..].chars().next().map(|next| 1 + next.len_utf8()),
        Some(next @ '\u{30}'..='\u{7e}') => Some(next.len_utf8()),
        _ => Some(0),
    };
    match sequence {
        Some(length) if length <= ESCAPE_MAX => &after[length..],
        _ => after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(bytes: &[u8]) -> Output {
        Output {
            excerpt: Excerpt::Whole(bytes.to_vec()),
            bytes: bytes.len() as u64,
            kept: bytes.len() as u64,
            write_failed: false,
            lines: bytes.iter().filter(|b| **b == b'\n').count() as u64,
            path: "/p".into(),
        }
    }

    /// R361, fault M19
    #[test]
    fn ends_are_cut_at_characters_and_never_overlap() {
        let text = "中".repeat(10_000);
        let Folded::Cut { head, tail, omitted_bytes, .. } = whole(text.as_bytes()).fold(2048) else { panic!() };
        assert_eq!(head.text, "中".repeat(682));
        assert_eq!(tail.text, "中".repeat(682));
        assert_eq!(omitted_bytes, 30_000 - 2 * 2046);
        for lead in ["", "a", "ab"] {
            let text = format!("{lead}{}", "中".repeat(40_000));
            let Folded::Cut { head, tail, omitted_bytes, .. } = whole(text.as_bytes()).fold(2048) else { panic!() };
            assert_eq!((head.bad_bytes, tail.bad_bytes), (0, 0));
            assert_eq!(omitted_bytes as usize + head.text.len() + tail.text.len(), text.len());
        }
    }

    /// R361
    #[test]
    fn what_fits_into_head_and_tail_is_shown_whole() {
        assert!(matches!(whole(&[b'x'; 2048]).fold(2048), Folded::Short(_)));
        for length in [2049, 4096] {
            let Folded::Large(shown) = whole(&vec![b'x'; length]).fold(2048) else { panic!("{length}") };
            assert_eq!(shown.text.len(), length);
        }
        let Folded::Cut { omitted_bytes, .. } = whole(&[b'x'; 4097]).fold(2048) else { panic!() };
        assert_eq!(omitted_bytes, 1);
    }

    #[test]
    fn the_line_before_the_tail_is_counted_from_the_whole() {
        let text = "line\n".repeat(10_000);
        let Folded::Cut { lines_before_tail, tail, .. } = whole(text.as_bytes()).fold(2048) else { panic!() };
        assert_eq!(lines_before_tail as usize, 10_000 - tail.text.matches('\n').count());
        assert_eq!(tail.text.len(), 2048);
    }

    /// fault B7, M8
    #[test]
    fn bad_bytes_are_marked_and_counted() {
        assert_eq!(harmless(b"start\xffend\n"), Shown { text: "start\u{fffd}end\n".into(), bad_bytes: 1 });
        assert_eq!(harmless(b"a\0b"), Shown { text: "a\\x00b".into(), bad_bytes: 0 });
        assert_eq!(harmless(b"\xe4\xb8x").bad_bytes, 2);
    }

    /// fault B11
    #[test]
    fn nothing_is_left_for_a_terminal_to_obey() {
        assert_eq!(harmless_text("\u{1b}[31mred\u{1b}[0m"), "red");
        assert_eq!(harmless_text("a\r\nb\rc"), "a\nb\nc");
        assert_eq!(harmless_text("\u{7}"), "\\x07");
        assert_eq!(harmless_text("\u{1b}]8;;http://x\u{1b}\\link\u{1b}]8;;\u{7}"), "link");
        assert_eq!(harmless_text("\u{1b}(Bx\u{1b}=y\u{1b}"), "xy");
        assert_eq!(harmless_text("\u{9b}31m"), "\\x9b31m");
        assert_eq!(harmless_text("\u{202e}x"), "\\u{202e}x");
        assert_eq!(harmless_text("\u{1b}]never ended"), "]never ended");
        assert_eq!(harmless_text("\u{1b}[31\nx"), "\nx");
        assert_eq!(harmless_text("\u{1b}[31é"), "é");
    }

    /// R241: what a person decides on is shown whole.
    #[test]
    fn nothing_is_left_out_of_what_a_person_decides_on() {
        assert_eq!(escaped_text("a; \u{1b}[2J b\u{1b}Pq; c; #\u{1b}\\"), "a; \\x1b[2J b\\x1bPq; c; #\\x1b\\");
        assert_eq!(escaped_text("\u{1b}]0;; c; #\u{7}\r\n"), "\\x1b]0;; c; #\\x07\\r\n");
        assert_eq!(escaped_text("a\u{200b}b\u{202e}c\u{9b}d\te"), "a\\u{200b}b\\u{202e}c\\x9bd\te");
    }

    #[test]
    fn texts_of_any_kind_stay_readable() {
        assert_eq!(escaped_text("中文 é ✓"), "中文 é ✓");
    }

    proptest! {
        #[test]
        fn folding_keeps_its_bound_for_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400), each_end in 4usize..64) {
            let head = head_within(&bytes, each_end);
            let tail = tail_within(&bytes, each_end);
            prop_assert!(head.len() <= each_end && tail.len() <= each_end);
            prop_assert!(bytes.starts_with(head) && bytes.ends_with(tail));
            let shown = harmless(&bytes);
            prop_assert!(shown.text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
        }

        #[test]
        fn folding_text_never_splits_a_character(text in "\\PC{0,300}", each_end in 4usize..64) {
            prop_assert!(std::str::from_utf8(head_within(text.as_bytes(), each_end)).is_ok());
            prop_assert!(std::str::from_utf8(tail_within(text.as_bytes(), each_end)).is_ok());
        }
    }
}
