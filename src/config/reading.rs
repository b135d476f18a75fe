//! Reads a type out of the settings tree with serde; errors name the innermost value concerned and where it was set.

use std::collections::btree_map;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::tree::{Content, Node, Source, is_secret, joined};

/// A value that does not fit its type.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ReadError {
    pub message: String,
    /// The innermost value concerned: its key, text and source.
    pub place: Option<(String, String, Source)>,
}

impl Node {
    /// Reads a type out of this part of the tree.
    pub fn read<T: DeserializeOwned>(&self, key: &str) -> Result<T, ReadError> {
        T::deserialize(Reader { node: self, key: key.to_owned() })
    }
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
    fields: btree_map::Iter<'n, String, Node>,
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
