//! The narrow reading of a shell line, which a proof of reading only rests on.
//!
//! Lists and pipelines of plain or quoted words are understood; expansion, substitution, redirection to files,
//! here-documents, groups and background jobs are not. It is written without the grammar, so that each is a check of the
//! other: where they differ, the line counts as unreadable. Pure text, no I/O.

use super::net::is_assignment;
use super::words::Word;

/// One simple command, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainCommand {
    /// As written, without harmless redirections.
    pub text: String,
    /// Never empty.
    pub words: Vec<Word>,
}

/// What stopped the reading of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPlain {
    #[error("it is empty")]
    Empty,
    #[error("it has an expansion or substitution")]
    Expansion,
    #[error("it sets a variable")]
    Assignment,
    #[error("it redirects to or from a file")]
    Redirection,
    #[error("it has a group, subshell, background job or keyword")]
    Group,
    #[error("a quote or escape is not closed")]
    Unclosed,
    #[error("it has a comment or control character")]
    Unusual,
    #[error("an operator has no command beside it")]
    Dangling,
}

/// Splits a line at `;`, `&&`, `||`, `|` and newlines, with quotes and escapes honoured.
pub fn split(line: &str) -> Result<Vec<PlainCommand>, NotPlain> {
    Splitter::new(line).run()
}

/// Words that open, continue or close a construct of several commands.
const KEYWORDS: &[&str] = &[
    "!", "[[", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "select", "then", "time", "until",
    "while", "{", "}",
];

struct Splitter<'a> {
    line: &'a str,
    at: usize,
    parts: Vec<PlainCommand>,
    words: Vec<Word>,
    /// Of the part so far, harmless redirections left out.
    text: String,
}

/// What ends a simple command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joint {
    /// `;` or a newline: nothing need follow.
    End,
    /// `&&`, `||`, `|`: a command must follow.
    Chain,
}

impl<'a> Splitter<'a> {
    fn new(line: &'a str) -> Self {
        Self { line, at: 0, parts: Vec::new(), words: Vec::new(), text: String::new() }
    }

    fn run(mut self) -> Result<Vec<PlainCommand>, NotPlain> {
        let mut must_follow = false;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                ';' | '\n' | '|' | '&' => {
                    if let Some(length) = self.harmless_redirection() {
                        self.at += length;
                        continue;
                    }
                    let joint = self.joint()?;
                    must_follow = self.close_part(joint, must_follow)?;
                }
                '(' | ')' => return Err(NotPlain::Group),
                '<' | '>' | '0'..='9' if self.redirects() => {
                    let length = self.harmless_redirection().ok_or(NotPlain::Redirection)?;
                    self.at += length;
                }
                '#' => return Err(NotPlain::Unusual),
                _ => {
                    let start = self.at;
                    let word = self.word()?;
                    if !self.text.is_empty() {
                        self.text.push(' ');
                    }
                    self.text.push_str(&self.line[start..self.at]);
                    self.words.push(word);
                    must_follow = false;
                }
            }
        }
        if must_follow {
            return Err(NotPlain::Dangling);
        }
        self.push_part()?;
        if self.parts.is_empty() { Err(NotPlain::Empty) } else { Ok(self.parts) }
    }

    fn peek(&self) -> Option<char> {
        self.line[self.at..].chars().next()
    }

    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    fn joint(&mut self) -> Result<Joint, NotPlain> {
        let rest = self.rest();
        let (length, joint) = if rest.starts_with("&&") || rest.starts_with("||") {
            (2, Joint::Chain)
        } else if rest.starts_with("|&") || rest.starts_with('&') || rest.starts_with(";;") {
            return Err(NotPlain::Group);
        } else if rest.starts_with('|') {
            (1, Joint::Chain)
        } else {
            (1, Joint::End)
        };
        self.at += length;
        Ok(joint)
    }

    /// Gives whether a command must follow.
    fn close_part(&mut self, joint: Joint, must_follow: bool) -> Result<bool, NotPlain> {
        if self.words.is_empty() {
            // an empty line between commands, or the line break after `&&`
            return if joint == Joint::End && self.line[..self.at].ends_with('\n') { Ok(must_follow) } else { Err(NotPlain::Dangling) };
        }
        self.push_part()?;
        Ok(joint == Joint::Chain)
    }

    fn push_part(&mut self) -> Result<(), NotPlain> {
        if self.words.is_empty() {
            return Ok(());
        }
        // a quoted keyword is an ordinary word, but nobody names a program so
        if self.words.first().is_some_and(|word| KEYWORDS.contains(&word.text.as_str())) {
            return Err(NotPlain::Group);
        }
        if self.words.first().is_some_and(|word| is_assignment(&word.raw)) {
            return Err(NotPlain::Assignment);
        }
        self.parts.push(PlainCommand { text: std::mem::take(&mut self.text), words: std::mem::take(&mut self.words) });
        Ok(())
    }

    /// Whether a redirection begins here: `<`, `>`, or digits right before one.
    fn redirects(&self) -> bool {
        self.rest().trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(['<', '>'])
    }

    /// Length of a redirection here that touches no file: between descriptors, or to and from `/dev/null`.
    fn harmless_redirection(&self) -> Option<usize> {
        let rest = self.rest();
        let operator = rest.trim_start_matches(|c: char| matches!(c, '0'..='2'));
        let after = [">>", "&>>", "&>", ">", "<"].iter().find_map(|sign| operator.strip_prefix(sign))?;
        let target = if let Some(number) = operator.strip_prefix(">&").and_then(|number| number.strip_prefix(['1', '2'])) {
            number
        } else {
            after.trim_start_matches([' ', '\t']).strip_prefix("/dev/null")?
        };
        let ends = target.is_empty() || target.starts_with([' ', '\t', '\n', ';', '|', '&']);
        ends.then(|| rest.len() - target.len())
    }

    fn word(&mut self) -> Result<Word, NotPlain> {
        let start = self.at;
        let mut text = String::new();
        let mut expands = self.peek() == Some('~');
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '|' | '&' | '<' | '>' => break,
                '(' | ')' => return Err(NotPlain::Group),
                '$' | '`' => return Err(NotPlain::Expansion),
                '\'' => self.single_quoted(&mut text)?,
                '"' => self.double_quoted(&mut text)?,
                '\\' => {
                    self.at += 1;
                    let escaped = self.peek().filter(|c| *c != '\n').ok_or(NotPlain::Unclosed)?;
                    text.push(escaped);
                    self.at += escaped.len_utf8();
                }
                c if c.is_control() => return Err(NotPlain::Unusual),
                c => {
                    expands |= matches!(c, '*' | '?' | '[' | '{');
                    text.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        // the test program is no pattern
        expands &= text != "[";
        Ok(Word { raw: self.line[start..self.at].to_owned(), text, expands, dynamic: false })
    }

    fn single_quoted(&mut self, text: &mut String) -> Result<(), NotPlain> {
        let inner = &self.rest()[1..];
        let end = inner.find('\'').ok_or(NotPlain::Unclosed)?;
        text.push_str(&inner[..end]);
        self.at += end + 2;
        Ok(())
    }

    fn double_quoted(&mut self, text: &mut String) -> Result<(), NotPlain> {
        self.at += 1;
        while let Some(c) = self.peek() {
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(()),
                '$' | '`' => return Err(NotPlain::Expansion),
                '\\' => match self.peek() {
                    Some(escaped @ ('$' | '`' | '"' | '\\')) => {
                        text.push(escaped);
                        self.at += 1;
                    }
                    Some('\n') | None => return Err(NotPlain::Unclosed),
                    Some(_) => text.push('\\'),
                },
                c => text.push(c),
            }
        }
        Err(NotPlain::Unclosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Result<Vec<String>, NotPlain> {
        split(line).map(|parts| parts.into_iter().map(|part| part.text).collect())
    }

    fn words(line: &str) -> Vec<String> {
        split(line).unwrap().into_iter().flat_map(|part| part.words).map(|word| word.text).collect()
    }

    /// R282
    #[test]
    fn lines_are_split_with_quotes() {
        assert_eq!(texts("a b; c && d || e | f\ng").unwrap(), ["a b", "c", "d", "e", "f", "g"]);
        assert_eq!(texts("echo 'a; b' \"c | d\" e\\;f").unwrap(), ["echo 'a; b' \"c | d\" e\\;f"]);
        assert_eq!(words("echo 'a; b' \"c \\\"d\\.\" e\\;f ''"), ["echo", "a; b", "c \"d\\.", "e;f", ""]);
        assert_eq!(texts("npm test 2>&1 | tail -5 >/dev/null 2> /dev/null; x &>/dev/null").unwrap(), ["npm test", "tail -5", "x"]);
        assert_eq!(texts("a &&\n b;\n\n c;").unwrap(), ["a", "b", "c"]);
        assert_eq!(texts("head -n 5 file2 3").unwrap(), ["head -n 5 file2 3"]);
    }

    /// R282
    #[test]
    fn what_is_not_plain_is_said() {
        for (line, reason) in [
            ("", NotPlain::Empty),
            ("  \n ", NotPlain::Empty),
            ("echo $HOME", NotPlain::Expansion),
            ("echo \"$(id)\"", NotPlain::Expansion),
            ("echo `id`", NotPlain::Expansion),
            ("a > b", NotPlain::Redirection),
            ("a 2>b", NotPlain::Redirection),
            ("a >> b", NotPlain::Redirection),
            ("a < b", NotPlain::Redirection),
            ("a <<EOF\nx\nEOF", NotPlain::Redirection),
            ("a > /dev/nullx", NotPlain::Redirection),
            ("a >&3", NotPlain::Redirection),
            ("a>b", NotPlain::Redirection),
            ("(a)", NotPlain::Group),
            ("a & b", NotPlain::Group),
            ("a &", NotPlain::Group),
            ("a |& b", NotPlain::Group),
            ("for i in a; do b; done", NotPlain::Group),
            ("! a", NotPlain::Group),
            ("f() { a; }", NotPlain::Group),
            ("a 'b", NotPlain::Unclosed),
            ("a \"b", NotPlain::Unclosed),
            ("a \\", NotPlain::Unclosed),
            ("a \\\nb", NotPlain::Unclosed),
            ("a # b", NotPlain::Unusual),
            ("a \u{1} b", NotPlain::Unusual),
            ("a &&", NotPlain::Dangling),
            ("| a", NotPlain::Dangling),
            ("a | | b", NotPlain::Dangling),
            ("; a", NotPlain::Dangling),
        ] {
            assert_eq!(split(line), Err(reason), "{line}");
        }
    }
}
