//! Settings as a tree in which every value knows where it was written: made from TOML, merged layer by layer, and
//! shown without secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Compiled in.
    Default,
    File {
        path: PathBuf,
        /// From 1.
        line: usize,
    },
    /// The name of the variable.
    Environment(String),
    /// The name without dashes, as in the settings (`base_url` for `--base-url`).
    Flag(String),
    /// Handed down by the parent of a process child.
    Handover,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag --{}", name.replace(['_', '.'], "-")),
            Self::Handover => f.write_str("parent session"),
        }
    }
}

/// One value or table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub source: Source,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Table(BTreeMap<String, Node>),
    List(Vec<Node>),
    /// A string, number, truth value or date.
    Value(toml::Value),
}

/// A file that is no TOML. Line and column from 1; the column counts characters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub line: usize,
    pub column: usize,
    pub message: String,
}

impl Node {
    pub fn parse_file(path: &Path, text: &str) -> Result<Self, SyntaxError> {
        let lines = Lines::of(text);
        let at = |offset: usize| Source::File { path: path.to_owned(), line: lines.place(offset).0 };
        Self::parse(text, &lines, &at)
    }

    /// The defaults: as a file, but each value counts as compiled in.
    pub fn parse_default(text: &str) -> Result<Self, SyntaxError> {
        Self::parse(text, &Lines::of(text), &|_| Source::Default)
    }

    fn parse(text: &str, lines: &Lines<'_>, at: &dyn Fn(usize) -> Source) -> Result<Self, SyntaxError> {
        let table = DeTable::parse(text).map_err(|error| {
            let (line, column) = lines.place(error.span().map_or(0, |span| span.start));
            // Only the sentence: the error's own display quotes the line, which may hold a key.
            SyntaxError { line, column, message: error.message().to_owned() }
        })?;
        Ok(Self::of_table(table.get_ref(), at(0), at))
    }

    fn of_table(table: &DeTable<'_>, source: Source, at: &dyn Fn(usize) -> Source) -> Self {
        let fields =
            table.iter().map(|(key, value)| (key.get_ref().to_string(), Self::of_value(value, at(key.span().start), at))).collect();
        Self { source, content: Content::Table(fields) }
    }

    fn of_value(value: &Spanned<DeValue<'_>>, source: Source, at: &dyn Fn(usize) -> Source) -> Self {
        let content = match value.get_ref() {
            DeValue::Table(table) => return Self::of_table(table, source, at),
            DeValue::Array(items) => Content::List(items.iter().map(|item| Self::of_value(item, at(item.span().start), at)).collect()),
            DeValue::String(text) => Content::Value(toml::Value::String(text.to_string())),
            DeValue::Boolean(value) => Content::Value(toml::Value::Boolean(*value)),
            DeValue::Datetime(value) => Content::Value(toml::Value::Datetime(*value)),
            DeValue::Integer(number) => Content::Value(match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => toml::Value::Integer(number),
                // Too large for any setting; as a text it is refused with its digits in the message.
                Err(_) => toml::Value::String(number.to_string()),
            }),
            DeValue::Float(number) => Content::Value(match number.as_str().parse() {
                Ok(number) => toml::Value::Float(number),
                Err(_) => toml::Value::String(number.to_string()),
            }),
        };
        Self { source, content }
    }

    /// A value that did not come from a file.
    pub fn of_toml(value: toml::Value, source: &Source) -> Self {
        let content = match value {
            toml::Value::Table(table) => {
                Content::Table(table.into_iter().map(|(key, value)| (key, Self::of_toml(value, source))).collect())
            }
            toml::Value::Array(items) => Content::List(items.into_iter().map(|item| Self::of_toml(item, source)).collect()),
            value => Content::Value(value),
        };
        Self { source: source.clone(), content }
    }

    /// `value` at a dotted key below a table of the same source.
    pub fn at_key(key: &str, value: Node) -> Self {
        let source = value.source.clone();
        key.rsplit('.')
            .fold(value, |node, part| Self { source: source.clone(), content: Content::Table(BTreeMap::from([(part.to_owned(), node)])) })
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        key.split('.').try_fold(self, |node, part| match &node.content {
            Content::Table(fields) => fields.get(part),
            Content::List(_) | Content::Value(_) => None,
        })
    }

    /// Takes a key out, wherever it stands in the tree.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let Content::Table(fields) = &mut self.content else { return None };
        match key.split_once('.') {
            None => fields.remove(key),
            Some((first, rest)) => fields.get_mut(first)?.remove(rest),
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Value(toml::Value::String(text)) => Some(text),
            Content::Value(_) | Content::List(_) | Content::Table(_) => None,
        }
    }

    pub fn is_empty_table(&self) -> bool {
        matches!(&self.content, Content::Table(fields) if fields.is_empty())
    }

    /// Lays `stronger` over this: tables are joined, lists at a key for which `adds` holds are appended, all else is replaced.
    pub fn merge(&mut self, stronger: Node, adds: &dyn Fn(&str) -> bool) {
        self.merge_below("", stronger, adds);
    }

    fn merge_below(&mut self, key: &str, stronger: Node, adds: &dyn Fn(&str) -> bool) {
        match (&mut self.content, stronger) {
            (Content::Table(fields), Node { content: Content::Table(others), .. }) => {
                for (name, other) in others {
                    let below = joined(key, &name);
                    match fields.get_mut(&name) {
                        Some(field) => field.merge_below(&below, other, adds),
                        None => {
                            fields.insert(name, other);
                        }
                    }
                }
            }
            (Content::List(items), Node { source, content: Content::List(others) }) if adds(key) => {
                items.extend(others);
                self.source = source;
            }
            (_, stronger) => *self = stronger,
        }
    }

    /// The value as one line of TOML, secrets hidden.
    pub fn shown(&self, key: &str) -> String {
        if is_secret(key) {
            return "\"***\"".to_owned();
        }
        match &self.content {
            Content::Value(toml::Value::String(text)) => toml::Value::String(without_user(text)).to_string(),
            Content::Value(value) => value.to_string(),
            Content::List(items) => format!("[{}]", items.iter().map(|item| item.shown(key)).collect::<Vec<_>>().join(", ")),
            Content::Table(fields) => {
                let fields = fields.iter().map(|(name, node)| format!("{} = {}", quoted(name), node.shown(&joined(key, name))));
                format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

pub(crate) fn joined(key: &str, name: &str) -> String {
    if key.is_empty() { quoted(name) } else { format!("{key}.{}", quoted(name)) }
}

/// A key as it is written in TOML.
fn quoted(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if bare { name.to_owned() } else { toml::Value::String(name.to_owned()).to_string() }
}

/// Values whose text must not be shown: keys themselves, not the names of variables and files that hold them.
pub(super) fn is_secret(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    let name = name.trim_matches(['"', '\'']).to_ascii_lowercase().replace('-', "_");
    let holds = ["key", "token", "secret", "password"].iter().any(|word| name == *word || name.ends_with(&format!("_{word}")));
    holds || name == "apikey"
}

/// A URL without the user and password some people put into it.
fn without_user(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => text.to_owned(),
    }
}

/// Byte offsets to lines and columns.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(offset, _)| offset + 1)).collect();
        Self { text, starts }
    }

    fn place(&self, offset: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or_default();
        let column = self.text.get(start..offset.min(self.text.len())).map_or(1, |before| before.chars().count() + 1);
        (line, column)
    }
}
