//! Keys of providers: where the system keeps them, and how their values are kept out of everything that is stored.

pub mod key_store;
mod masker;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

pub use key_store::{KeyStore, KeyStoreError};
pub use masker::Masker;

/// The values of all configured keys. A text that holds one is stored and shown without it.
#[derive(Clone, Default)]
pub struct Secrets {
    known: Arc<Vec<Known>>,
}

struct Known {
    /// Whose key it is; stands in the key's place.
    name: String,
    /// The value as it is, then as JSON and URLs write it where that differs.
    forms: Vec<SecretString>,
}

/// A shorter value is no secret, and hiding it would garble ordinary words.
pub const SECRET_MIN: usize = 8;

/// What people write where a program wants a key and a server wants none.
const PLACEHOLDERS: &[&str] = &[
    "changeme",
    "dummy-key",
    "lm-studio",
    "no-key-needed",
    "no-key-required",
    "not-needed",
    "placeholder",
    "sk-no-key-required",
    "test-key",
    "undefined",
];

impl Secrets {
    /// Name and value of each key. Values that are no secret are left out.
    pub fn new(keys: impl IntoIterator<Item = (String, SecretString)>) -> Self {
        let mut known: Vec<Known> = Vec::new();
        for (name, value) in keys {
            let text = value.expose_secret().trim();
            let is_new = !known.iter().any(|known| known.forms.iter().any(|form| form.expose_secret() == text));
            if is_secret(text) && is_new {
                known.push(Known { name, forms: forms(text) });
            }
        }
        // A key that is part of another one would leave the rest of it behind.
        known.sort_by_key(|known| std::cmp::Reverse(known.forms.iter().map(|form| form.expose_secret().len()).max()));
        Self { known: Arc::new(known) }
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The text with every key replaced by whose it is. Borrowed when there is none.
    pub fn redacted<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut result = Cow::Borrowed(text);
        for known in self.known.iter() {
            for form in &known.forms {
                if memchr::memmem::find(result.as_bytes(), form.expose_secret().as_bytes()).is_some() {
                    result = Cow::Owned(result.replace(form.expose_secret(), &format!("[key of {} hidden]", known.name)));
                }
            }
        }
        result
    }

    /// As [`Secrets::redacted`], for every text inside.
    pub fn redacted_value(&self, value: serde_json::Value) -> serde_json::Value {
        use serde_json::Value;
        if self.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.redacted(&text).into_owned()),
            Value::Array(items) => items.into_iter().map(|item| self.redacted_value(item)).collect(),
            Value::Object(fields) => {
                fields.into_iter().map(|(key, field)| (self.redacted(&key).into_owned(), self.redacted_value(field))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    /// The values themselves, for whoever masks bytes.
    pub fn values(&self) -> Vec<SecretString> {
        self.known.iter().flat_map(|known| known.forms.iter().cloned()).collect()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.known.iter().map(|known| &known.name)).finish()
    }
}

fn is_secret(text: &str) -> bool {
    text.len() >= SECRET_MIN && !PLACEHOLDERS.contains(&text.to_ascii_lowercase().as_str())
}

fn forms(text: &str) -> Vec<SecretString> {
    let json = serde_json::Value::from(text).to_string();
    let json = json.trim_matches('"').to_owned();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let percent: String =
        text.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect();
    let mut forms = vec![text.to_owned()];
    for form in [json, percent] {
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms.into_iter().map(SecretString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(keys: &[(&str, &str)]) -> Secrets {
        Secrets::new(keys.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())))
    }

    #[test]
    fn a_key_is_replaced_by_whose_it_is() {
        let secrets = secrets(&[("openai", "sk-abc/123+x"), ("other", "sk-abc/123+x-longer"), ("again", "sk-abc/123+x")]);
        for (text, expected) in [
            ("no key", "no key"),
            ("a sk-abc/123+x b", "a [key of openai hidden] b"),
            ("sk-abc/123+x-longer", "[key of other hidden]"),
            ("?key=sk-abc%2F123%2Bx", "?key=[key of openai hidden]"),
            ("sk-abc/123+xsk-abc/123+x", "[key of openai hidden][key of openai hidden]"),
        ] {
            assert_eq!(secrets.redacted(text), expected);
        }
        let value = serde_json::json!({"a": ["sk-abc/123+x", 1], "sk-abc/123+x": null});
        assert_eq!(secrets.redacted_value(value), serde_json::json!({"a": ["[key of openai hidden]", 1], "[key of openai hidden]": null}));
        assert_eq!(format!("{secrets:?}"), "[\"other\", \"openai\"]");
    }

    #[test]
    fn what_is_no_secret_stays() {
        let secrets = secrets(&[("a", "short"), ("b", "lm-studio"), ("c", "  ")]);
        assert!(secrets.is_empty());
        assert!(matches!(secrets.redacted("short lm-studio"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_key_with_odd_characters_is_found_in_json_too() {
        let secrets = secrets(&[("a", "quote\"back\\slash")]);
        let stored = serde_json::json!({"text": "x quote\"back\\slash y"}).to_string();
        assert_eq!(secrets.redacted(&stored), "{\"text\":\"x [key of a hidden] y\"}");
    }
}
