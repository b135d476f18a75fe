//! Settings as a tree in which every value knows where it was written: made from TOML, merged layer by layer, and read
//! by serde with errors that name the place.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
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

    /// Reads a type out of this part of the tree.
    pub fn read<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<T, ReadError> {
        T::deserialize(Reader { node: self, key: key.to_owned() })
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
fn is_secret(key: &str) -> bool {
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

/// A value that does not fit its type.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ReadError {
    pub message: String,
    /// The innermost value concerned: its key, text and source.
    pub place: Option<(String, String, Source)>,
}

impl ReadError {
    fn placed(mut self, key: &str, node: &Node) -> Self {
        if self.place.is_none() {
            if is_secret(key) {
                // What serde says quotes the value.
                self.message = "expected a text".to_owned();
            }
            self.place = Some((key.to_owned(), node.shown(key), node.source.clone()));
        }
        self
    }
}

impl serde::de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), place: None }
    }
}

struct Reader<'n> {
    node: &'n Node,
    key: String,
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let result = match &self.node.content {
            Content::Table(fields) => visitor.visit_map(Fields { key: &self.key, fields: fields.iter(), value: None }),
            Content::List(items) => visitor.visit_seq(Items { key: &self.key, items: items.iter() }),
            Content::Value(toml::Value::String(text)) => visitor.visit_str(text),
            Content::Value(toml::Value::Integer(number)) => visitor.visit_i64(*number),
            Content::Value(toml::Value::Float(number)) => visitor.visit_f64(*number),
            Content::Value(toml::Value::Boolean(value)) => visitor.visit_bool(*value),
            Content::Value(value) => visitor.visit_string(value.to_string()),
        };
        result.map_err(|error: ReadError| error.placed(&self.key, self.node))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, ReadError> {
        let (key, node) = (self.key.clone(), self.node);
        visitor.visit_newtype_struct(self).map_err(|error| error.placed(&key, node))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let result = match &self.node.content {
            Content::Value(toml::Value::String(text)) => visitor.visit_enum(text.as_str().into_deserializer()),
            Content::Table(fields) => {
                visitor.visit_enum(MapAccessDeserializer::new(Fields { key: &self.key, fields: fields.iter(), value: None }))
            }
            Content::List(_) | Content::Value(_) => Err(serde::de::Error::custom("expected a word")),
        };
        result.map_err(|error: ReadError| error.placed(&self.key, self.node))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct Fields<'n> {
    key: &'n str,
    fields: std::collections::btree_map::Iter<'n, String, Node>,
    value: Option<(&'n String, &'n Node)>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        self.value = self.fields.next();
        let Some((name, node)) = self.value else { return Ok(None) };
        seed.deserialize(name.as_str().into_deserializer())
            .map(Some)
            .map_err(|error: ReadError| error.placed(&joined(self.key, name), node))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        match self.value.take() {
            Some((name, node)) => {
                let key = joined(self.key, name);
                seed.deserialize(Reader { node, key: key.clone() }).map_err(|error| error.placed(&key, node))
            }
            None => Err(serde::de::Error::custom("a value was asked for before its key")),
        }
    }
}

struct Items<'n> {
    key: &'n str,
    items: std::slice::Iter<'n, Node>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ReadError> {
        let Some(node) = self.items.next() else { return Ok(None) };
        let item = seed.deserialize(Reader { node, key: self.key.to_owned() });
        item.map(Some).map_err(|error| error.placed(self.key, node))
    }
}
