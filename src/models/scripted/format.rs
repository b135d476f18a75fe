//! The script format, version 1: reading, and every check that can be made before the first turn.
//!
//! A file is YAML, or JSON when its first character is `{`. Whatever is wrong is told with file, line where the parser
//! knows it, and the nearest key that exists.

use std::path::{Path, PathBuf};

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::template::Templates;
use crate::files;
use crate::models::Usage;
use crate::spelling::distance;

/// Bytes of a script file; a larger one is refused.
const FILE_MAX: u64 = 4 * 1024 * 1024;
const VERSION: u64 = 1;

/// A checked script file.
pub struct Script {
    name: String,
    text: String,
    pub(super) scripts: Vec<Conduct>,
    pub(super) templates: Templates,
}

/// How one kind of session behaves: chosen by its task, then played turn by turn.
#[derive(Debug)]
pub(super) struct Conduct {
    /// `None` fits every task.
    pub pattern: Option<Regex>,
    pub turns: Vec<Turn>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    pub text: Option<String>,
    pub thinking: Option<String>,
    #[serde(default)]
    pub calls: Vec<ScriptedCall>,
    pub fault: Option<Fault>,
    #[serde(default)]
    pub delay_ms: u64,
    pub usage: Option<ScriptedUsage>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScriptedCall {
    pub name: String,
    #[serde(default)]
    pub input: Value,
    /// A template that gives a list or lines: the call is made once for each `item` of them.
    pub each: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ScriptedUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
    reasoning_tokens: u64,
}

/// What a turn does instead of answering; each is the error that a real provider's behaviour would become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The stream breaks in the middle of the text.
    Cut,
    /// The stream falls silent in the middle of the text.
    Stall,
    /// 200 without content.
    Empty,
    /// An answer that is not of the wire format.
    Garbled,
    /// 429 that outlasts all retries.
    RateLimited,
    /// 529 that outlasts all retries.
    Overloaded,
    ServerError,
    Unauthorized,
    InvalidRequest,
    ContextTooLong,
    NotFound,
    QuotaExhausted,
    /// Nobody listens.
    Connect,
}

/// Why a script file cannot be played. All of them are mistakes in the file, or the file is not there.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("cannot read script {path}: {source}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("script {path} is larger than {max} bytes", path = path.display())]
    TooLarge { path: PathBuf, max: u64 },
    #[error("script {name}{}: {message}", at_line(*line))]
    Syntax { name: String, line: Option<u64>, message: String },
    #[error("script {name}{}: unknown key `{key}`; the nearest known key is `{nearest}`", at_line(*line))]
    UnknownKey { name: String, line: Option<u64>, key: String, nearest: String },
    #[error("script {name}: version {found} is not known; this program plays version {VERSION}")]
    Version { name: String, found: String },
    #[error("script {name}: `scripts` is empty; give at least one with `turns`")]
    NoScripts { name: String },
    #[error("script {name}: script {script} has no turns")]
    NoTurns { name: String, script: usize },
    #[error("script {name}: script {script}: `match` is not a regular expression: {source}")]
    Pattern {
        name: String,
        script: usize,
        #[source]
        source: Box<regex::Error>,
    },
    #[error("script {name}: script {script}, turn {turn}: give at least one of `text`, `thinking`, `calls`, `fault`")]
    EmptyTurn { name: String, script: usize, turn: usize },
    #[error("script {name}: script {script}, turn {turn}: `input` of call {call} is not an object")]
    Input { name: String, script: usize, turn: usize, call: usize },
    #[error("script {name}: script {script}, turn {turn}, {place}: {message}")]
    Template { name: String, script: usize, turn: usize, place: String, message: String },
}

fn at_line(line: Option<u64>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

#[derive(Deserialize)]
struct Head {
    version: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "version")]
    _version: Value,
    scripts: Vec<ConductText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConductText {
    #[serde(rename = "match")]
    pattern: Option<String>,
    #[serde(default)]
    turns: Vec<Turn>,
}

impl Script {
    /// Reads and checks a file. Its name in messages is the path as given.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let text = files::read_text_bounded(path, FILE_MAX).map_err(|source| match source.kind() {
            std::io::ErrorKind::FileTooLarge => ScriptError::TooLarge { path: path.to_owned(), max: FILE_MAX },
            _ => ScriptError::Read { path: path.to_owned(), source },
        })?;
        Self::parse(&path.display().to_string(), text)
    }

    /// Checks a text; `name` stands for the file in messages.
    pub fn parse(name: &str, text: impl Into<String>) -> Result<Self, ScriptError> {
        let text = text.into();
        let head: Head = decode(name, &text)?;
        match head.version {
            Some(version) if version.as_u64() == Some(VERSION) => {}
            Some(version) => return Err(ScriptError::Version { name: name.to_owned(), found: version.to_string() }),
            None => {
                let message = format!("`version` is missing; write `version: {VERSION}` first");
                return Err(ScriptError::Syntax { name: name.to_owned(), line: None, message });
            }
        }
        let file: File = decode(name, &text)?;
        if file.scripts.is_empty() {
            return Err(ScriptError::NoScripts { name: name.to_owned() });
        }
        let templates = Templates::new();
        let mut scripts = Vec::with_capacity(file.scripts.len());
        for (index, conduct) in file.scripts.into_iter().enumerate() {
            scripts.push(check_conduct(name, index + 1, conduct, &templates)?);
        }
        Ok(Self { name: name.to_owned(), text, scripts, templates })
    }

    /// The name used in messages: the path as given, or what the caller of `parse` chose.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text as read: what a process child gets, so that it plays the same script whatever happens to the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first script that fits the task, with its number as people count.
    pub(super) fn conduct_for(&self, task: &str) -> Option<(usize, &Conduct)> {
        let fits = |conduct: &Conduct| conduct.pattern.as_ref().is_none_or(|pattern| pattern.is_match(task));
        self.scripts.iter().enumerate().find(|(_, conduct)| fits(conduct)).map(|(index, conduct)| (index + 1, conduct))
    }
}

impl From<ScriptedUsage> for Usage {
    fn from(usage: ScriptedUsage) -> Self {
        Self {
            input: usage.input_tokens,
            output: usage.output_tokens,
            cache_read: usage.cache_read_input_tokens,
            cache_write: usage.cache_creation_input_tokens,
            reasoning: usage.reasoning_tokens,
        }
    }
}

fn check_conduct(name: &str, script: usize, conduct: ConductText, templates: &Templates) -> Result<Conduct, ScriptError> {
    let name_owned = || name.to_owned();
    let pattern = conduct.pattern.map(|pattern| Regex::new(&pattern)).transpose().map_err(|source| ScriptError::Pattern {
        name: name_owned(),
        script,
        source: Box::new(source),
    })?;
    if conduct.turns.is_empty() {
        return Err(ScriptError::NoTurns { name: name_owned(), script });
    }
    let mut turns = conduct.turns;
    for (index, turn) in turns.iter_mut().enumerate() {
        check_turn(name, script, index, turn, templates)?;
    }
    Ok(Conduct { pattern, turns })
}

fn check_turn(name: &str, script: usize, turn: usize, content: &mut Turn, templates: &Templates) -> Result<(), ScriptError> {
    if content.text.is_none() && content.thinking.is_none() && content.calls.is_empty() && content.fault.is_none() {
        return Err(ScriptError::EmptyTurn { name: name.to_owned(), script, turn });
    }
    let check = |place: String, text: &str| {
        templates.check(text).map_err(|message| ScriptError::Template { name: name.to_owned(), script, turn, place, message })
    };
    check("text".to_owned(), content.text.as_deref().unwrap_or_default())?;
    check("thinking".to_owned(), content.thinking.as_deref().unwrap_or_default())?;
    for (index, call) in content.calls.iter_mut().enumerate() {
        let number = index + 1;
        if call.input.is_null() {
            call.input = Value::Object(serde_json::Map::new());
        }
        if !call.input.is_object() {
            return Err(ScriptError::Input { name: name.to_owned(), script, turn, call: number });
        }
        check(format!("`each` of call {number}"), call.each.as_deref().unwrap_or_default())?;
        check_value(&call.input, &|text| check(format!("input of call {number}"), text))?;
    }
    Ok(())
}

fn check_value(value: &Value, check: &impl Fn(&str) -> Result<(), ScriptError>) -> Result<(), ScriptError> {
    match value {
        Value::String(text) => check(text),
        Value::Array(items) => items.iter().try_for_each(|item| check_value(item, check)),
        Value::Object(fields) => fields.values().try_for_each(|field| check_value(field, check)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn decode<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, ScriptError> {
    if text.trim_start().starts_with('{') { decode_json(name, text) } else { decode_yaml(name, text) }
}

fn decode_json<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, ScriptError> {
    serde_json::from_str(text).map_err(|error| {
        let line = (error.line() > 0).then_some(error.line() as u64);
        let full = error.to_string();
        let message = full.split(" at line ").next().unwrap_or(&full).to_owned();
        told(name, line, message)
    })
}

fn decode_yaml<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, ScriptError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map(|location| location.line()).filter(|line| *line > 0);
        let message = match error.without_snippet() {
            serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => unknown_field_words(field, expected),
            plain => {
                let full = plain.to_string();
                full.split(" at line ").next().unwrap_or(&full).to_owned()
            }
        };
        told(name, line, message)
    })
}

/// In the words of serde, so that both parsers are understood in one place.
fn unknown_field_words(field: &str, expected: &[&str]) -> String {
    let expected: Vec<String> = expected.iter().map(|key| format!("`{key}`")).collect();
    format!("unknown field `{field}`, expected one of {}", expected.join(", "))
}

fn told(name: &str, line: Option<u64>, message: String) -> ScriptError {
    let name = name.to_owned();
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return ScriptError::Syntax { name, line, message };
    };
    let mut quoted = rest.split('`');
    let key = quoted.next().unwrap_or_default().to_owned();
    let known = quoted.skip(1).step_by(2);
    match known.min_by_key(|candidate| distance(&key, candidate)) {
        Some(nearest) => ScriptError::UnknownKey { name, line, nearest: nearest.to_owned(), key },
        None => ScriptError::Syntax { name, line, message },
    }
}
