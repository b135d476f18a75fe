//! Second looks at what the grammar is known to read otherwise than bash. Each answers "no" when in doubt. Pure text.

use super::plain;
use super::words::{ANY, Word};

/// Stands for an expansion while a test is split by the narrow reading; a line that holds it is unusual.
pub(super) const PLACE: char = '\u{E000}';

/// Characters that end words for one reader and not for another, or that nobody types.
pub(super) fn is_unusual(c: char) -> bool {
    c == PLACE || (c.is_control() && !matches!(c, '\t' | '\n')) || (c.is_whitespace() && !c.is_ascii())
}

/// Whether nothing but blanks stands there. `\` and a newline count only beside a blank: without one they join two pieces
/// to one word.
pub(super) fn is_blank(gap: &str, newlines: bool, source: &str, from: usize) -> bool {
    let mut chars = gap.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            ' ' | '\t' => {}
            '\n' if newlines => {}
            '\\' => {
                if chars.next().is_none_or(|(_, next)| next != '\n') {
                    return false;
                }
                let blank = |c: Option<char>| c.is_none_or(|c| matches!(c, ' ' | '\t' | '\n'));
                let before = source[..from + at].chars().next_back();
                let after = source[from + at + 2..].chars().next();
                if !blank(before) && !blank(after) {
                    return false;
                }
            }
            _ => return false,
        }
    }
    true
}

/// The target of `>&` and `<&`: another descriptor, or none.
pub(super) fn is_descriptor(target: &str) -> bool {
    let digits = target.strip_suffix('-').unwrap_or(target);
    digits.chars().all(|c| c.is_ascii_digit()) && !target.is_empty()
}

/// Whether a token that should be one word holds something that ends words or starts commands.
pub(super) fn holds_operator(raw: &str) -> bool {
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            ';' | '|' | '&' | '<' | '>' | '(' | ')' | '\n' | '`' | '"' | '\'' => return true,
            _ => {}
        }
    }
    raw.contains("${")
}

/// Whether text from which all known substitutions are taken out still has the look of one.
pub(super) fn hides_substitution(rest: &str) -> bool {
    rest.contains("$(") && !rest.starts_with("$((") || rest.contains('`') || rest.contains("<(") || rest.contains(">(")
}

/// The inside of `((...))`, `$((...))`, `$[...]` or a subscript, or the head of `for ((...))`, substitutions taken out. bash
/// reads `((a) && (b))` as two subshells, so no bracket may close more than was opened.
pub(super) fn is_plain_arithmetic(text: &str) -> bool {
    let text = text.strip_prefix('$').unwrap_or(text);
    let inner = match (text.strip_prefix("(("), text.strip_prefix('[')) {
        (Some(inner), _) => match inner.strip_suffix("))") {
            Some(inner) => inner,
            None => return false,
        },
        (None, Some(inner)) => inner.strip_suffix(']').unwrap_or(inner),
        (None, None) => text,
    };
    let mut depth = 0_i32;
    for c in inner.chars() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return false,
            ')' => depth -= 1,
            '"' | '\'' | '\\' | '`' | '\n' => return false,
            _ => {}
        }
    }
    depth == 0 && !inner.contains("$(") && !(assigns(inner) && may_steer(inner))
}

/// Whether a variable of this name may be one that shells and programs obey: `PATH`, `LD_PRELOAD`, `BASH_ENV`, `IFS`. Their
/// names are never all in small letters.
pub(super) fn may_steer(name: &str) -> bool {
    name.chars().any(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || "_ +-*/%<>=!&|^~?:;,()[]$#@{}.".contains(c)))
}

/// Whether an arithmetic expression changes a variable: `=` beyond a comparison, `++` or `--`.
fn assigns(inner: &str) -> bool {
    let bytes = inner.as_bytes();
    let sets = |at: usize| {
        let before = at.checked_sub(1).map(|before| bytes[before]);
        let before_that = at.checked_sub(2).map(|before| bytes[before]);
        let is_shift = matches!((before_that, before), (Some(b'<'), Some(b'<')) | (Some(b'>'), Some(b'>')));
        let is_comparison = matches!(before, Some(b'=' | b'!' | b'<' | b'>')) && !is_shift || bytes.get(at + 1) == Some(&b'=');
        bytes[at] == b'=' && !is_comparison
    };
    inner.contains("++") || inner.contains("--") || (0..bytes.len()).any(sets)
}

/// Whether `[[ ... ]]` ends where the grammar thinks, and holds no command.
pub(super) fn is_plain_condition(text: &str) -> bool {
    let Some(inner) = text.strip_prefix("[[").and_then(|inner| inner.strip_suffix("]]")) else { return false };
    let mut quote: Option<char> = None;
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => {
                chars.next();
            }
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, ';' | '\n' | '`' | '#') => return false,
            (None, ']') if chars.peek() == Some(&']') => return false,
            (None, _) => {}
        }
    }
    quote.is_none()
}

/// The words of `[ ... ]`, expansions given as [`ANY`]. `None` when it is not one plain command that ends with `]`.
pub(super) fn test_words(rest: &str) -> Option<Vec<Word>> {
    let commands = plain::split(&rest.replace(ANY, PLACE.encode_utf8(&mut [0; 4]))).ok()?;
    let [command] = <[plain::PlainCommand; 1]>::try_from(commands).ok()?;
    let is_whole = command.words.first()?.raw == "[" && command.words.last()?.raw == "]";
    let words = command.words.into_iter().map(|word| {
        let dynamic = word.text.contains(PLACE);
        Word { text: word.text.replace(PLACE, "\0"), dynamic, ..word }
    });
    is_whole.then(|| words.collect())
}

/// The text of a here-document, when it is plain: nothing else on the line of its operator, the body ends where the shell
/// ends it, and nothing in it runs. `head_end` is where the operator, its delimiter and its redirections end.
pub(super) fn here_document(source: &str, delimiter: &str, strips: bool, head_end: usize, end: std::ops::Range<usize>) -> Option<Word> {
    let name = delimiter.trim_matches(|c| matches!(c, '\'' | '"' | '\\'));
    let is_quoted = name.len() != delimiter.len();
    let known = [format!("'{name}'"), format!("\"{name}\""), format!("\\{name}"), name.to_owned()];
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if !is_name || !known.iter().any(|form| form == delimiter) {
        return None;
    }
    let head_rest = source[head_end..].split('\n').next()?;
    if !head_rest.trim_matches([' ', '\t']).is_empty() {
        return None;
    }
    let body_start = head_end + head_rest.len() + 1;
    let mut at = body_start;
    for line in source.get(body_start..)?.split('\n') {
        let shown = if strips { line.trim_start_matches('\t') } else { line };
        if shown == name {
            let line_end = at + line.len();
            let name_start = line_end - name.len();
            if end.start > name_start || end.start < at || end.end != line_end {
                return None;
            }
            return here_text(&source[body_start..at], is_quoted);
        }
        at += line.len() + 1;
    }
    None
}

fn here_text(body: &str, is_quoted: bool) -> Option<Word> {
    if is_quoted {
        return Some(Word::literal(body));
    }
    if body.contains('`') || body.contains("$(") || body.contains("${") || body.contains("$[") || body.contains("\\\n") {
        return None;
    }
    if body.contains(['$', '\\']) {
        return Some(Word { text: format!("{ANY}{body}"), raw: body.to_owned(), expands: false, dynamic: true });
    }
    Some(Word::literal(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_programs_is_not_set_in_passing() {
        for text in ["((PATH=1))", "((a, PATH=1))", "((PATH++))", "((LD_X<<=1))", "((a[PATH=1]))"] {
            assert!(!is_plain_arithmetic(text), "{text}");
        }
        for text in ["((i++))", "((i = j + 1))", "((A == B))", "((A <= 1))", "$((A + B))", "((i <<= 1))"] {
            assert!(is_plain_arithmetic(text), "{text}");
        }
        assert!(may_steer("PATH") && may_steer("IFS") && !may_steer("i") && !may_steer("file_2"));
    }

    #[test]
    fn arithmetic_is_told_from_subshells() {
        for text in ["((i++))", "$((a + b * (c - 1)))", "$[a+1]", "i=0;i<n;i++", "[1]"] {
            assert!(is_plain_arithmetic(text), "{text}");
        }
        for text in ["((ls) && (rm))", "$((ls) ; (rm))", "((`x`))", "((ls)"] {
            assert!(!is_plain_arithmetic(text), "{text}");
        }
    }

    #[test]
    fn conditions_end_where_they_seem_to() {
        assert!(is_plain_condition("[[ $a == 'b ]]; c' && -f \"x\" ]]"));
        for text in ["[[ a ]]; rm x; [[ b ]]", "[[ a ]] && rm [[ b ]]", "[[ a\nrm ]]", "[[ 'a ]]"] {
            assert!(!is_plain_condition(text), "{text}");
        }
    }

    #[test]
    fn tests_are_one_command() {
        let texts = |text| test_words(text).map(|words| words.into_iter().map(|word| word.text).collect::<Vec<_>>());
        assert_eq!(texts("[ -f 'a b' ]").unwrap(), ["[", "-f", "a b", "]"]);
        assert_eq!(texts("[ \"\0\" = x ]").unwrap(), ["[", "\0", "=", "x", "]"]);
        for text in ["[ a && rm ]", "[ a > b ]", "[ a\nrm ]", "[ a"] {
            assert_eq!(texts(text), None, "{text}");
        }
    }
}
