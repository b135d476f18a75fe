//! Words of a shell line: what the shell makes of quotes and escapes, and what only it can know.

use std::borrow::Cow;

/// Stands in a [`Word`]'s text for what is decided when the line runs: any text. No shell line can hold it.
pub const ANY: char = '\0';

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Quotes and escapes removed; [`ANY`] for each expansion or substitution.
    pub text: String,
    /// As written.
    pub raw: String,
    /// The shell will replace it by other words: unquoted `*`, `?`, `[`, `{` or a leading `~`.
    pub expands: bool,
    /// Holds [`ANY`].
    pub dynamic: bool,
}

impl Word {
    /// A word without quotes, escapes and expansions.
    pub(crate) fn literal(text: &str) -> Self {
        Self { text: text.to_owned(), raw: text.to_owned(), expands: false, dynamic: false }
    }

    /// A word of which nothing is known.
    pub(crate) fn unknown(raw: &str) -> Self {
        Self { text: ANY.to_string(), raw: raw.to_owned(), expands: false, dynamic: true }
    }

    /// Whether the text is all that the shell will see.
    pub(crate) fn is_fixed(&self) -> bool {
        !self.expands && !self.dynamic
    }

    /// The text with [`ANY`] for whatever may be replaced.
    fn loose(&self) -> Cow<'_, str> {
        if !self.expands {
            return Cow::Borrowed(&self.text);
        }
        // braces make several words of everything around them
        if self.text.contains('{') {
            return Cow::Owned(ANY.to_string());
        }
        let mut loose = String::with_capacity(self.text.len());
        let mut rest = self.text.as_str();
        if rest.starts_with('~') {
            loose.push(ANY);
            rest = rest.find('/').map_or("", |at| &rest[at..]);
        }
        loose.extend(rest.chars().map(|c| if matches!(c, '*' | '?' | '[' | ']') { ANY } else { c }));
        if loose.contains('[') || self.text.contains('[') {
            return Cow::Owned(ANY.to_string());
        }
        Cow::Owned(loose)
    }

    /// Whether it may become no word at all, or several.
    fn may_vanish(&self) -> bool {
        (self.dynamic || self.expands) && self.loose().chars().all(|c| c == ANY) && (!self.raw.starts_with('"') || self.raw.contains('@'))
    }
}

/// Words as one text with a space between; where a word may vanish or multiply, [`ANY`] stands for the spaces too.
pub(crate) fn joined_loosely(words: &[Word]) -> String {
    let mut text = String::new();
    let mut separated = true;
    for word in words {
        let vanishes = word.may_vanish();
        if !separated && !vanishes {
            text.push(' ');
        }
        text.push_str(&word.loose());
        separated = vanishes;
    }
    text
}

/// Words as they were written.
pub(crate) fn joined_raw(words: &[Word]) -> String {
    words.iter().map(|word| word.raw.as_str()).collect::<Vec<_>>().join(" ")
}

/// A program by its last name, without the folder.
pub(crate) fn program_name(word: &str) -> &str {
    word.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(word)
}

/// The unquoted text behind its escapes, and whether the shell would look for files or more words by it.
pub(super) fn unescaped(raw: &str, at_start: bool) -> (String, bool) {
    let mut text = String::with_capacity(raw.len());
    let mut expands = at_start && raw.starts_with('~');
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next().filter(|c| *c != '\n')),
            '*' | '?' | '[' | '{' => {
                expands = true;
                text.push(c);
            }
            c => text.push(c),
        }
    }
    (text, expands)
}

/// Text inside double quotes. `None` when something in it still has a meaning for the shell.
pub(super) fn unescaped_in_quotes(raw: &str) -> Option<String> {
    let mut text = String::with_capacity(raw.len());
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '`' | '"' => return None,
            '$' if chars.peek().is_some_and(|next| is_after_dollar(*next)) => return None,
            '\\' => match chars.peek() {
                Some('$' | '`' | '"' | '\\') => text.extend(chars.next()),
                Some('\n') => {
                    chars.next();
                }
                Some(_) => text.push('\\'),
                None => return None,
            },
            c => text.push(c),
        }
    }
    Some(text)
}

fn is_after_dollar(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '(' | '{' | '[' | '_' | '@' | '*' | '#' | '?' | '-' | '$' | '!')
}

/// The text of `$'...'`. `None` when the quote does not end where the token does, or an escape is none that is known.
pub(super) fn ansi_c(raw: &str) -> Option<String> {
    let inner = raw.strip_prefix("$'")?.strip_suffix('\'')?;
    let mut bytes: Vec<u8> = Vec::with_capacity(inner.len());
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\'' {
            return None;
        }
        if c != '\\' {
            bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let plain = match chars.next()? {
            'a' => 7,
            'b' => 8,
            'e' | 'E' => 27,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            c @ ('\\' | '\'' | '"' | '?') => c as u8,
            'x' => number(&mut chars, 16, 2, None)? as u8,
            c @ '0'..='7' => number(&mut chars, 8, 2, c.to_digit(8))? as u8,
            length @ ('u' | 'U') => {
                let digits = if length == 'u' { 4 } else { 8 };
                let character = char::from_u32(number(&mut chars, 16, digits, None)?)?;
                bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => return None,
        };
        // a zero ends the text for the shell
        if plain == 0 {
            return None;
        }
        bytes.push(plain);
    }
    String::from_utf8(bytes).ok()
}

fn number(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, radix: u32, digits: usize, first: Option<u32>) -> Option<u32> {
    let mut value = first;
    for _ in 0..digits {
        let Some(digit) = chars.peek().and_then(|c| c.to_digit(radix)) else { break };
        value = Some(value.unwrap_or(0) * radix + digit);
        chars.next();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_join_with_room_for_what_may_vanish() {
        let word = |text: &str, raw: &str| Word {
            text: text.into(),
            raw: raw.into(),
            expands: raw.contains(['*', '{', '~']),
            dynamic: text.contains(ANY),
        };
        assert_eq!(joined_loosely(&[word("git", "git"), word("\0", "$X"), word("push", "push")]), "git\0push");
        assert_eq!(joined_loosely(&[word("git", "git"), word("\0", "\"$X\""), word("push", "push")]), "git \0 push");
        assert_eq!(joined_loosely(&[word("\0", "$X"), word("rm", "rm")]), "\0rm");
        assert_eq!(joined_loosely(&[word("a", "a"), word("~/x", "~/x"), word("b*", "b*"), word("{c,d}", "{c,d}")]), "a \0/x b\0\0");
    }

    #[test]
    fn ansi_c_quotes_end_where_the_shell_ends_them() {
        assert_eq!(ansi_c(r"$'\x72\155 \u0078\'\\'").as_deref(), Some(r"rm x'\"));
        assert_eq!(ansi_c(r"$'a\\' ; rm x; echo 'b'"), None);
        assert_eq!(ansi_c(r"$'a\0b'"), None);
        assert_eq!(ansi_c(r"$'\cA'"), None);
    }
}
