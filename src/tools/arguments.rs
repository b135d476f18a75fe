//! Tool input to typed arguments, the same way for every tool.
//!
//! The tool's own JSON schema says what is known, required and of which type; so an error always names the argument, the
//! value it had and what to write instead. Unknown keys never fail a call: they are dropped and named in the reply. A
//! property whose schema has no `type` is left to the tool to judge.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::agent::tool::{ToolFailure, ToolReply};
use crate::models::ToolDeclaration;
use crate::spelling::distance;

/// Checked arguments, and what the model should hear about keys that were ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed<T> {
    pub value: T,
    /// One line per ignored key, e.g. "ignored unknown argument `lines`; known: file_path, offset, limit".
    pub notes: Vec<String>,
}

impl<T> Parsed<T> {
    /// The reply with the notes as its first lines.
    pub fn annotate(&self, reply: ToolReply) -> ToolReply {
        annotated(&self.notes, reply)
    }
}

/// As [`Parsed::annotate`], for a tool that has taken the value apart.
pub fn annotated(notes: &[String], reply: ToolReply) -> ToolReply {
    if notes.is_empty() {
        return reply;
    }
    ToolReply { text: format!("({})\n{}", notes.join(")\n("), reply.text), structured: reply.structured }
}

/// Checks `input` against the declared schema and gives the typed arguments.
///
/// `null` counts as absent. Whole numbers written as `10.0` or `"10"` and booleans written as strings are taken.
pub fn parse<T: DeserializeOwned>(declaration: &ToolDeclaration, input: &Value) -> Result<Parsed<T>, ToolFailure> {
    let mut notes = Vec::new();
    let empty = Value::Object(Map::new());
    let input = if input.is_null() { &empty } else { input };
    if !input.is_object() {
        return Err(ToolFailure::invalid(format!("the arguments of {} must be a JSON object, got {}", declaration.name, shown(input)))
            .with_hint(format!("send {}", outline(&declaration.input_schema))));
    }
    let checked = check("", input, &declaration.input_schema, &mut notes).map_err(|message| {
        ToolFailure::invalid(format!("{}: {message}", declaration.name))
            .with_hint(format!("expected arguments: {}", outline(&declaration.input_schema)))
    })?;
    let value = serde_json::from_value(checked).map_err(|error| {
        ToolFailure::invalid(format!("{}: the arguments do not fit: {error}", declaration.name))
            .with_hint(format!("expected arguments: {}", outline(&declaration.input_schema)))
    })?;
    Ok(Parsed { value, notes })
}

/// The name in `known` that was most likely meant, if one is near enough.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = folded(name);
    known
        .into_iter()
        .map(|candidate| (distance(&wanted, &folded(candidate)), candidate))
        .filter(|(steps, candidate)| *steps <= (candidate.chars().count().max(wanted.len()) / 3).max(1))
        .min_by_key(|(steps, _)| *steps)
        .map(|(_, candidate)| candidate)
}

const SHOWN_VALUE_MAX: usize = 80;
/// Longer names are never a slip of the finger, and the comparison costs length times length.
const COMPARED_NAME_MAX: usize = 64;

/// Gives the value as the schema wants it, or a sentence that names the argument.
fn check(name: &str, value: &Value, schema: &Value, notes: &mut Vec<String>) -> Result<Value, String> {
    let value = fitted(name, value, schema)?;
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(&value)
    {
        let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
        return Err(format!("`{name}` must be one of {}, got {}", list.join(", "), shown(&value)));
    }
    if let Some(minimum) = schema.get("minimum").and_then(Value::as_f64)
        && value.as_f64().is_some_and(|number| number < minimum)
    {
        return Err(format!("`{name}` must be at least {minimum}, got {}", shown(&value)));
    }
    match value {
        Value::Object(map) => check_object(name, map, schema, notes).map(Value::Object),
        Value::Array(items) => check_array(name, items, schema, notes).map(Value::Array),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => Ok(scalar),
    }
}

fn check_object(name: &str, map: Map<String, Value>, schema: &Value, notes: &mut Vec<String>) -> Result<Map<String, Value>, String> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Ok(map) };
    let mut checked = Map::new();
    for (key, value) in map {
        let Some(property) = properties.get(&key) else {
            notes.push(ignored(name, &key, properties));
            continue;
        };
        if !value.is_null() {
            let value = check(&joined(name, &key), &value, property, notes)?;
            checked.insert(key, value);
        }
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let missing: Vec<String> = required.filter(|key| !checked.contains_key(*key)).map(|key| format!("`{}`", joined(name, key))).collect();
    if missing.is_empty() {
        return Ok(checked);
    }
    let noun = if missing.len() == 1 { "argument" } else { "arguments" };
    let ignored = if notes.is_empty() { String::new() } else { format!("; {}", notes.join("; ")) };
    Err(format!("missing required {noun} {}{ignored}", missing.join(", ")))
}

fn check_array(name: &str, items: Vec<Value>, schema: &Value, notes: &mut Vec<String>) -> Result<Vec<Value>, String> {
    let Some(item_schema) = schema.get("items") else { return Ok(items) };
    items.into_iter().enumerate().map(|(index, item)| check(&format!("{name}[{index}]"), &item, item_schema, notes)).collect()
}

/// The value in the type that the schema names; only lossless changes.
fn fitted(name: &str, value: &Value, schema: &Value) -> Result<Value, String> {
    let Some(kind) = schema.get("type").and_then(Value::as_str) else { return Ok(value.clone()) };
    let fits = match kind {
        "string" => value.is_string().then(|| value.clone()),
        "boolean" => match value {
            Value::String(text) if text.eq_ignore_ascii_case("true") => Some(Value::Bool(true)),
            Value::String(text) if text.eq_ignore_ascii_case("false") => Some(Value::Bool(false)),
            other => other.is_boolean().then(|| other.clone()),
        },
        "integer" => whole_number(value),
        "number" => match value {
            Value::String(text) => {
                text.trim().parse().ok().filter(|n: &f64| n.is_finite()).and_then(serde_json::Number::from_f64).map(Value::Number)
            }
            other => other.is_number().then(|| other.clone()),
        },
        "array" => decoded(value, Value::is_array),
        "object" => decoded(value, Value::is_object),
        _ => Some(value.clone()),
    };
    fits.ok_or_else(|| format!("`{name}` must be {}, got {}", with_article(kind), shown(value)))
}

fn whole_number(value: &Value) -> Option<Value> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(value.clone()),
        Value::Number(number) => number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= EXACT_MAX).map(|n| Value::from(n as i64)),
        Value::String(text) => text.trim().parse::<i64>().ok().map(Value::from),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Some models send a list or an object as a string that holds its JSON.
fn decoded(value: &Value, is_wanted: fn(&Value) -> bool) -> Option<Value> {
    match value {
        Value::String(text) => serde_json::from_str(text).ok().filter(is_wanted),
        other => is_wanted(other).then(|| other.clone()),
    }
}

fn ignored(name: &str, key: &str, properties: &Map<String, Value>) -> String {
    let known: Vec<&str> = properties.keys().map(String::as_str).collect();
    let meant = nearest(key, known.iter().copied()).map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    format!("ignored unknown argument `{}`{meant}; known: {}", joined(name, &cut(key, COMPARED_NAME_MAX)), known.join(", "))
}

fn joined(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

/// `{file_path: string, offset?: integer}`
fn outline(schema: &Value) -> String {
    let required: Vec<&str> = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    let parts: Vec<String> = properties
        .into_iter()
        .flatten()
        .map(|(key, property)| {
            let mark = if required.contains(&key.as_str()) { "" } else { "?" };
            format!("{key}{mark}: {}", property.get("type").and_then(Value::as_str).unwrap_or("any"))
        })
        .collect();
    format!("{{{}}}", parts.join(", "))
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn shown(value: &Value) -> String {
    cut(&value.to_string(), SHOWN_VALUE_MAX)
}

fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

fn folded(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).take(COMPARED_NAME_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Clone, Debug, PartialEq, Deserialize)]
    struct Sample {
        file_path: String,
        limit: Option<u64>,
        #[serde(default)]
        deep: bool,
        tags: Option<Vec<String>>,
    }

    fn declaration() -> ToolDeclaration {
        ToolDeclaration {
            name: "Sample".into(),
            description: String::new(),
            input_schema: json!({"type": "object", "required": ["file_path"], "properties": {
                "file_path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}, "deep": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}}}),
        }
    }

    fn parsed(input: Value) -> Result<Parsed<Sample>, String> {
        parse(&declaration(), &input).map_err(|failure| failure.message)
    }

    #[test]
    fn good_input_and_lossless_spellings_are_taken() {
        let expected = Sample { file_path: "a".into(), limit: Some(10), deep: true, tags: None };
        for limit in [json!(10), json!(10.0), json!("10"), json!(" 10 ")] {
            let got = parsed(json!({"file_path": "a", "limit": limit, "deep": "True", "tags": null})).unwrap();
            assert_eq!(got, Parsed { value: expected.clone(), notes: vec![] });
        }
        let got = parsed(json!({"file_path": "a", "tags": "[\"a\"]"})).unwrap();
        assert_eq!(got.value.tags, Some(vec!["a".into()]));
    }

    /// R334
    #[test]
    fn errors_name_argument_value_and_remedy() {
        for (input, message) in [
            (json!({}), "Sample: missing required argument `file_path`"),
            (json!(null), "Sample: missing required argument `file_path`"),
            (json!([1]), "the arguments of Sample must be a JSON object, got [1]"),
            (json!({"file_path": 3}), "Sample: `file_path` must be a string, got 3"),
            (json!({"file_path": null}), "Sample: missing required argument `file_path`"),
            (json!({"file_path": "a", "limit": "x"}), "Sample: `limit` must be an integer, got \"x\""),
            (json!({"file_path": "a", "limit": 1.5}), "Sample: `limit` must be an integer, got 1.5"),
            (json!({"file_path": "a", "limit": 0}), "Sample: `limit` must be at least 1, got 0"),
            (json!({"file_path": "a", "deep": 1}), "Sample: `deep` must be a boolean, got 1"),
            (json!({"file_path": "a", "tags": ["a", "c"]}), "Sample: `tags[1]` must be one of \"a\", \"b\", got \"c\""),
            (
                json!({"path": "a"}),
                "Sample: missing required argument `file_path`; ignored unknown argument `path`; known: file_path, limit, deep, tags",
            ),
        ] {
            assert_eq!(parsed(input).unwrap_err(), message);
        }
        let failure = parse::<Sample>(&declaration(), &json!({})).unwrap_err();
        assert_eq!(failure.hint.as_deref(), Some("expected arguments: {file_path: string, limit?: integer, deep?: boolean, tags?: array}"));
    }

    #[test]
    fn unknown_keys_are_named_and_do_not_fail() {
        let got = parsed(json!({"file_path": "a", "limmit": 3, "model": "x"})).unwrap();
        assert_eq!(
            got.notes,
            [
                "ignored unknown argument `limmit` (did you mean `limit`?); known: file_path, limit, deep, tags",
                "ignored unknown argument `model`; known: file_path, limit, deep, tags",
            ]
        );
        assert_eq!(annotated(&got.notes[1..], ToolReply::text("done")).text, format!("({})\ndone", got.notes[1]));
    }

    #[test]
    fn long_values_are_cut() {
        let message = parsed(json!({"file_path": ["x".repeat(10_000)]})).unwrap_err();
        assert!(message.len() < 200, "{}", message.len());
        let got = parsed(json!({"file_path": "a", "y".repeat(10_000): 1})).unwrap();
        assert!(got.notes[0].len() < 200);
    }
}
