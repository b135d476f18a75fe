//! Which events a hook is for: a list of exact names or an expression (R155).

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// A `matcher`, compiled.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Option<String>", into = "Option<String>")]
pub struct Matcher {
    text: Option<String>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    All,
    Names(Vec<String>),
    Expression(Regex),
}

/// Bytes an expression may take when compiled.
const EXPRESSION_MAX: usize = 1 << 20;

impl Matcher {
    /// Absent, empty or `*`: everything. Only letters, digits, `_`, `-`, blanks, `,` and `|`: exact names. Anything else: an
    /// expression that may match anywhere in the name.
    pub fn parse(text: Option<&str>) -> Result<Self, regex::Error> {
        let kind = Kind::parse(text.map(str::trim).unwrap_or_default())?;
        Ok(Self { text: text.map(str::to_owned), kind })
    }

    /// `names`: what the subject is called, aliases included (R32, R33).
    pub fn matches(&self, names: &[&str]) -> bool {
        match &self.kind {
            Kind::All => true,
            Kind::Names(wanted) => names.iter().any(|name| wanted.iter().any(|wanted| wanted == name)),
            Kind::Expression(expression) => names.iter().any(|name| expression.is_match(name)),
        }
    }

    /// As it was written.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    pub fn is_all(&self) -> bool {
        matches!(self.kind, Kind::All)
    }
}

impl Kind {
    fn parse(text: &str) -> Result<Self, regex::Error> {
        if text.is_empty() || text == "*" {
            return Ok(Self::All);
        }
        let is_of_names = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ',' | '|') || c.is_whitespace();
        if !text.chars().all(is_of_names) {
            return RegexBuilder::new(text).size_limit(EXPRESSION_MAX).build().map(Self::Expression);
        }
        let mut names = Vec::new();
        for piece in text.split([',', '|']).map(str::trim).filter(|piece| !piece.is_empty()) {
            names.push(piece.to_owned());
            if piece.contains(char::is_whitespace) {
                // A name with blanks in it, or names with blanks between them: a guard must not miss either.
                names.extend(piece.split_whitespace().map(str::to_owned));
            }
        }
        Ok(Self::Names(names))
    }
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Default for Matcher {
    fn default() -> Self {
        Self { text: None, kind: Kind::All }
    }
}

impl TryFrom<Option<String>> for Matcher {
    type Error = regex::Error;
    fn try_from(text: Option<String>) -> Result<Self, regex::Error> {
        Self::parse(text.as_deref())
    }
}

impl From<Matcher> for Option<String> {
    fn from(matcher: Matcher) -> Self {
        matcher.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(matcher: &str, name: &str) -> bool {
        Matcher::parse(Some(matcher)).unwrap().matches(&[name])
    }

    /// R155
    #[test]
    fn names_are_exact_and_expressions_match_anywhere() {
        for all in [None, Some(""), Some("  "), Some("*")] {
            assert!(Matcher::parse(all).unwrap().matches(&["Bash"]), "{all:?}");
        }
        for (matcher, name, expected) in [
            ("Bash", "Bash", true),
            ("Bash", "BashOutput", false),
            ("Bash", "bash", false),
            ("Write|Edit", "Edit", true),
            ("Write, Edit", "Edit", true),
            ("Write | Edit", "Write", true),
            ("Write Edit", "Edit", true),
            ("code-reviewer", "code-reviewer", true),
            ("code-reviewer", "my-code-reviewer", false),
            ("my agent", "my agent", true),
            ("mcp__memory__.*", "mcp__memory__read", true),
            ("^Edit", "MultiEdit", false),
            ("Edit.?", "MultiEdits", true),
            ("Notebook.*", "NotebookEdit", true),
            (".*", "anything", true),
        ] {
            assert_eq!(matches(matcher, name), expected, "{matcher} on {name}");
        }
        assert!(Matcher::parse(Some("Bash(")).is_err());
        assert!(Matcher::parse(Some("(a{1000}){1000}")).is_err(), "an expression has a bound");
    }

    /// R32, R33
    #[test]
    fn an_alias_is_the_same_tool() {
        for matcher in ["Task", "Agent", "^Task$"] {
            assert!(Matcher::parse(Some(matcher)).unwrap().matches(&["Agent", "Task"]), "{matcher}");
        }
    }
}
