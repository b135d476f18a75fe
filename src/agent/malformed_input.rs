//! A call whose input is no JSON object: what the model is told, so that it can write the call again.
//!
//! Such an input is the text as the model wrote it (`models/wire.rs`); it is never run and never repaired by guessing.

use serde_json::Value;
use serde_json::error::Category;

/// Characters shown on either side of the place where the text stops being JSON.
const EXCERPT: usize = 60;

/// What is wrong with `input`, where, and what to do.
pub(crate) fn described(tool: &str, input: &Value) -> String {
    let parsed = match input {
        Value::String(text) => serde_json::from_str::<Value>(text).map_err(|error| (text, error)),
        other => Ok(other.clone()),
    };
    let what = match parsed {
        Ok(value) => format!("the input of {tool} must be a JSON object, got {}", kind_of(&value)),
        Err((text, error)) => broken(tool, text, &error),
    };
    format!("{what}\nThe call was not run. Call {tool} again with one JSON object that fits its schema.")
}

fn broken(tool: &str, text: &str, error: &serde_json::Error) -> String {
    let place = offset(text, error.line(), error.column());
    let (before, after) = (last_part(&text[..place]), first_part(&text[place..]));
    let hint = match error.classify() {
        Category::Eof => "; it breaks off too early",
        Category::Syntax | Category::Data | Category::Io => "",
    };
    format!("the input of {tool} is not valid JSON: {error}{hint}\nup to there: `{before}`\nfrom there:  `{after}`")
}

/// The byte behind the last character that was read; the parser counts lines from 1 and bytes of a line from 1.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let mut place = (before + column).min(text.len());
    while !text.is_char_boundary(place) {
        place += 1;
    }
    place
}

fn last_part(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(EXCERPT);
    let mark = if skipped > 0 { "…" } else { "" };
    format!("{mark}{}", harmless(text.chars().skip(skipped)))
}

fn first_part(text: &str) -> String {
    let mark = if text.chars().nth(EXCERPT).is_some() { "…" } else { "" };
    format!("{}{mark}", harmless(text.chars().take(EXCERPT)))
}

/// Line breaks and other control characters are often what is wrong: shown as they would be escaped.
fn harmless(text: impl Iterator<Item = char>) -> String {
    text.flat_map(|character| if character.is_control() { character.escape_default().collect() } else { vec![character] }).collect()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn place_and_surroundings_are_named() {
        let told = |text: &str| described("Read", &json!(text));
        assert_eq!(
            told("{\"path\": \"a\nb\"}"),
            "the input of Read is not valid JSON: control character (\\u0000-\\u001F) found while parsing a string at line 2 column 0\n\
             up to there: `{\"path\": \"a\\n`\nfrom there:  `b\"}`\n\
             The call was not run. Call Read again with one JSON object that fits its schema."
        );
        assert!(told("{\"path\":").contains("EOF while parsing a value at line 1 column 8; it breaks off too early"));
        assert!(told("{} {}").contains("trailing characters at line 1 column 4"));
        let long = format!("{{\"text\": \"{}\", oops}}", "你".repeat(10_000));
        let shown = told(&long);
        assert!(shown.contains("up to there: `…你") && shown.contains("\", o`") && shown.contains("from there:  `ops}`"), "{shown}");
        assert!(shown.len() < 700, "{shown}");
    }

    #[test]
    fn valid_json_that_is_no_object_is_named_by_its_kind() {
        for (text, kind) in [("[1]", "an array"), ("3", "a number"), ("\"x\"", "a string"), ("true", "a boolean")] {
            assert!(described("Read", &json!(text)).starts_with(&format!("the input of Read must be a JSON object, got {kind}\n")));
        }
        assert!(described("Read", &json!([1])).contains("got an array"));
    }

    #[test]
    fn no_text_makes_it_fail() {
        for text in ["", "\n\n", "é", "{\"é", "\u{1F468}\u{200D}\u{1F469}", "{\n\n\n\"a\": é}", "}", "{\"a\":\"\\ud800\"}"] {
            assert!(described("T", &json!(text)).contains("not valid JSON"), "{text:?}");
        }
    }
}
