//! The templates in a script's strings: minijinja, strict about undefined values and bounded in work and memory.

use std::path::Path;
use std::sync::Arc;

use minijinja::value::{Rest, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, context};
use regex::Regex;

use super::conversation::Conversation;

/// Work of one string: about one unit per instruction and per 64 bytes made, so some 64 MB at most.
const FUEL: u64 = 1_000_000;

/// The template engine of a script. Errors are texts for the author of the script, without its place.
pub(super) struct Templates {
    environment: Environment<'static>,
}

/// What the strings of one turn may use.
#[derive(Clone)]
pub(super) struct Variables {
    root: Value,
}

impl Variables {
    pub fn of(conversation: &Conversation<'_>, cwd: &Path) -> Self {
        let texts = |index: usize| -> Vec<Value> {
            conversation.batches.get(index).into_iter().flatten().map(|result| Value::from(result.text)).collect()
        };
        let n_batches = conversation.batches.len();
        let history: Vec<Value> = (0..n_batches).map(|index| Value::from(texts(index))).collect();
        let latest = n_batches.checked_sub(1);
        let failed: Vec<bool> = conversation.batches.last().into_iter().flatten().map(|result| result.is_error).collect();
        let call = |(name, input): &(&str, &serde_json::Value)| context! { name => *name, input => Value::from(Serde(*input)) };
        let calls: Vec<Value> = conversation.calls.iter().map(call).collect();
        let root = context! {
            calls => calls,
            results => latest.map(texts).unwrap_or_default(),
            failed => failed,
            history => history,
            task => conversation.task,
            input => conversation.input,
            turn => conversation.turn,
            cwd => cwd.display().to_string(),
        };
        Self { root }
    }

    /// The same with `item` and `index` of a repeated call.
    pub fn with_item(&self, item: Value, index: usize) -> Self {
        let outer = self.root.clone();
        Self { root: context! { item, index, ..outer } }
    }
}

impl Templates {
    pub fn new() -> Self {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        let syntax = environment.syntax().to_builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
        if let Ok(syntax) = syntax {
            environment.set_syntax(syntax);
        }
        environment.add_filter("regex_find", regex_find);
        environment.add_filter("regex_find_all", regex_find_all);
        environment.add_filter("regex_replace", regex_replace);
        environment.add_filter("json", to_json);
        environment.add_filter("from_json", from_json);
        environment.add_filter("truncate", truncate);
        Self { environment }
    }

    /// Whether the text is a template that can be compiled.
    pub fn check(&self, text: &str) -> Result<(), String> {
        if self.expression(text).is_some() {
            return Ok(());
        }
        self.environment.template_from_str(text).map(drop).map_err(|error| tell(&error))
    }

    pub fn text(&self, text: &str, variables: &Variables) -> Result<String, String> {
        if !is_template(text) {
            return Ok(text.to_owned());
        }
        self.environment.render_str(text, &variables.root).map_err(|error| tell(&error))
    }

    /// A string of an input: one that is a single expression keeps the type of its value, any other gives a text.
    pub fn json(&self, text: &str, variables: &Variables) -> Result<serde_json::Value, String> {
        if self.expression(text).is_none() {
            return self.text(text, variables).map(serde_json::Value::String);
        }
        serde_json::to_value(self.value(text, variables)?).map_err(|error| error.to_string())
    }

    /// The items of `each`: of a list, each one; of a text, every line that is not empty.
    pub fn list(&self, text: &str, variables: &Variables) -> Result<Vec<Value>, String> {
        let value = self.value(text, variables)?;
        if let Some(text) = value.as_str() {
            return Ok(text.lines().filter(|line| !line.trim().is_empty()).map(Value::from).collect());
        }
        let kind = value.kind();
        match kind {
            ValueKind::Seq | ValueKind::Iterable => value.try_iter().map(Iterator::collect).map_err(|error| tell(&error)),
            _ => Err(format!("`each` must give a list or lines, not a {kind}")),
        }
    }

    fn value(&self, text: &str, variables: &Variables) -> Result<Value, String> {
        let Some(expression) = self.expression(text) else {
            return self.text(text, variables).map(Value::from);
        };
        let value = expression.eval(&variables.root).map_err(|error| tell(&error))?;
        if value.is_undefined() {
            return Err("the value is undefined".to_owned());
        }
        Ok(value)
    }

    /// The text as one expression: `{{ ... }}` and nothing around it.
    fn expression(&self, text: &str) -> Option<minijinja::Expression<'_, 'static>> {
        let inner = text.strip_prefix("{{")?.strip_suffix("}}")?;
        if inner.starts_with(['-', '+']) || inner.ends_with(['-', '+']) {
            return None;
        }
        self.environment.compile_expression_owned(inner.to_owned()).ok()
    }
}

fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|mark| text.contains(mark))
}

fn tell(error: &Error) -> String {
    let mut message = error.kind().to_string();
    if let Some(detail) = error.detail() {
        message.push_str(": ");
        message.push_str(detail);
    }
    match error.line() {
        Some(line) if line > 1 => format!("{message} (line {line} of this text)"),
        _ => message,
    }
}

fn pattern(text: &str) -> Result<Regex, Error> {
    Regex::new(text).map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("`{text}` is not a regular expression: {error}")))
}

/// The first match: its first group when the pattern has one, else the whole. Without a match the second argument, and
/// without that an error, since an id that is not there must not become an empty text.
fn regex_find(text: &str, expression: &str, fallback: Option<Value>) -> Result<Value, Error> {
    let found = pattern(expression)?.captures(text).map(|captures| Value::from(shown(&captures)));
    found.or(fallback).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("regex_find: nothing matches `{expression}`")))
}

fn shown(captures: &regex::Captures<'_>) -> String {
    let group = captures.get(1).or_else(|| captures.get(0));
    group.map(|group| group.as_str().to_owned()).unwrap_or_default()
}

/// Every match: as in `regex_find`, or a list of all groups when the pattern has more than one.
fn regex_find_all(text: &str, expression: &str) -> Result<Vec<Value>, Error> {
    let pattern = pattern(expression)?;
    let several = pattern.captures_len() > 2;
    let groups = |captures: regex::Captures<'_>| -> Value {
        let texts = captures.iter().skip(1).map(|group| group.map(|group| group.as_str()).unwrap_or_default());
        Value::from(texts.map(Value::from).collect::<Vec<_>>())
    };
    let give = |captures: regex::Captures<'_>| if several { groups(captures) } else { Value::from(shown(&captures)) };
    Ok(pattern.captures_iter(text).map(give).collect())
}

fn regex_replace(text: &str, expression: &str, replacement: &str) -> Result<String, Error> {
    Ok(pattern(expression)?.replace_all(text, replacement).into_owned())
}

fn to_json(value: &Value) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

fn from_json(text: &str) -> Result<Value, Error> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("from_json: {error}")))?;
    Ok(Value::from(Serde(&value)))
}

/// At most so many characters; a cut text ends in the mark, `…` when none is given.
fn truncate(text: &str, n_characters: usize, mark: Rest<Arc<str>>) -> String {
    match text.char_indices().nth(n_characters) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}{}", &text[..end], mark.first().map_or("…", |mark| mark)),
    }
}
