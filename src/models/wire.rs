//! What both wire formats share: the shape of a decoder, the reading of tool arguments and of error bodies.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Map, Value};

use super::sse::Frame;
use super::{Block, Message, ModelErrorKind, ModelEvent, Reply, Role, Usage};

/// One try of a request that failed. `retry.rs` decides what follows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    pub(crate) kind: ModelErrorKind,
    /// What happened, without the provider's name.
    pub(crate) message: String,
    pub(crate) status: Option<u16>,
    /// How long the provider asks to wait.
    pub(crate) retry_after: Option<Duration>,
    /// Nothing was sent: the gate closed while the connection was made.
    pub(crate) held_back: bool,
}

impl Fault {
    pub(crate) fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), status: None, retry_after: None, held_back: false }
    }
}

/// Whether more of the stream is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    /// The end mark was read.
    Ended,
}

/// Builds one answer from the frames of a stream or from one JSON object.
pub(crate) trait Decoder: Send {
    fn frame(&mut self, frame: &Frame, events: &mut VecDeque<ModelEvent>) -> Result<Progress, Fault>;

    /// A server that was asked for a stream and sent one object.
    fn whole(&mut self, answer: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), Fault>;

    /// The provider has said why the answer ends; at most an end mark and counts are missing.
    fn has_stop_reason(&self) -> bool;

    /// The answer, after its end.
    fn finish(&mut self) -> Result<Reply, Fault>;

    /// Text and thinking so far; calls are left out, since nobody will answer them. `None` when there is none.
    fn partial(&self) -> Option<Message>;

    fn usage(&self) -> Usage;
}

/// The blocks of a partial answer as a message.
pub(crate) fn partial_message(blocks: Vec<Block>) -> Option<Message> {
    let blocks: Vec<Block> = blocks
        .into_iter()
        .filter(|block| match block {
            Block::Text { text } | Block::Thinking { text, .. } => !text.is_empty(),
            Block::ToolUse { .. } | Block::ToolResult { .. } | Block::Other { .. } => false,
        })
        .collect();
    (!blocks.is_empty()).then_some(Message { role: Role::Assistant, blocks })
}

/// The arguments of a call as an object. Nothing, blanks and `null` mean none. What is no object stays as the text that
/// the model wrote: a complete answer may hold a call that cannot be run, and only the model can write it again.
pub(crate) fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Null) => Value::Object(Map::new()),
        Ok(object @ Value::Object(_)) => object,
        // Some servers encode the object twice.
        Ok(Value::String(inner)) if inner.trim_start().starts_with('{') => arguments(&inner),
        Ok(_) | Err(_) => Value::String(text.to_owned()),
    }
}

/// An object that carries an error in the place of an answer.
pub(crate) fn refuse_error(answer: &Value) -> Result<(), Fault> {
    match answer.get("error") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => Err(ErrorBody::from_value(answer).into_fault()),
    }
}

pub(crate) fn value_of(frame: &Frame) -> Result<Value, Fault> {
    serde_json::from_str(&frame.data).map_err(|error| {
        Fault::new(ModelErrorKind::Garbled, format!("an event of the stream is not valid JSON ({error}): {}", excerpt(&frame.data)))
    })
}

/// Longest piece of a provider's own words shown to people, in characters.
const EXCERPT_MAX: usize = 300;

/// One bounded line of a text from outside.
pub(crate) fn excerpt(text: &str) -> String {
    let mut line = String::new();
    for (count, word) in text.split_whitespace().enumerate() {
        if count > 0 {
            line.push(' ');
        }
        line.extend(word.chars().filter(|character| !character.is_control()).take(EXCERPT_MAX + 1));
        if line.chars().count() > EXCERPT_MAX {
            let mut cut: String = line.chars().take(EXCERPT_MAX).collect();
            cut.push('…');
            return cut;
        }
    }
    line
}

/// The provider's own words and codes in an error body of either wire format.
#[derive(Debug, Default)]
pub(crate) struct ErrorBody {
    pub(crate) message: String,
    /// `type` and `code` joined by a blank, in lower case.
    pub(crate) codes: String,
}

impl ErrorBody {
    pub(crate) fn read(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        match serde_json::from_str::<Value>(&text) {
            Ok(value) => Self::from_value(&value),
            Err(_) if text.trim_start().starts_with('<') => {
                Self { message: "a web page instead of an answer".to_owned(), ..Self::default() }
            }
            Err(_) => Self { message: excerpt(&text), ..Self::default() },
        }
    }

    pub(crate) fn from_value(value: &Value) -> Self {
        // Some servers wrap the object into a list of one.
        let value = value.get(0).unwrap_or(value);
        let error = value.get("error").unwrap_or(value);
        let words = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let message = words(error)
            .or_else(|| ["message", "detail", "msg"].iter().find_map(|key| error.get(key).or(value.get(key)).and_then(words)))
            .unwrap_or_else(|| value.to_string());
        let codes: Vec<String> = ["type", "code"].iter().filter_map(|key| error.get(key).and_then(words)).collect();
        Self { message: excerpt(&message), codes: codes.join(" ").to_lowercase() }
    }

    /// What kind of failure a status with this body is.
    pub(crate) fn kind(&self, status: u16) -> ModelErrorKind {
        let text = self.message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word) || self.codes.contains(word));
        let too_long = || {
            says(&[
                "context_length",
                "prompt is too long",
                "maximum context",
                "context window",
                "exceeds the available context",
                "too many tokens",
            ])
        };
        let no_money = || says(&["insufficient_quota", "insufficient balance", "credit balance", "billing", "exceeded your current quota"]);
        match status {
            402 => ModelErrorKind::QuotaExhausted,
            400 | 403 | 429 if no_money() => ModelErrorKind::QuotaExhausted,
            401 | 403 => ModelErrorKind::Unauthorized,
            400 | 413 | 422 if too_long() => ModelErrorKind::ContextTooLong,
            400 if says(&["model_not_found", "model not found"]) => ModelErrorKind::NotFound,
            404 => ModelErrorKind::NotFound,
            408 | 409 | 425 => ModelErrorKind::ServerError,
            429 => ModelErrorKind::RateLimited,
            503 | 529 => ModelErrorKind::Overloaded,
            500.. => ModelErrorKind::ServerError,
            _ => ModelErrorKind::InvalidRequest,
        }
    }

    /// An error that came inside an answer.
    pub(crate) fn into_fault(self) -> Fault {
        Fault::new(self.kind_in_stream(), format!("error inside the answer: {}", self.message))
    }

    /// Such an error has no status, only words.
    fn kind_in_stream(&self) -> ModelErrorKind {
        let code = |word: &str| self.codes.contains(word);
        let status = if code("overloaded") {
            529
        } else if code("rate_limit") || code("429") {
            429
        } else if code("authentication") || code("401") {
            401
        } else if code("permission") {
            403
        } else if code("not_found") {
            404
        } else if code("invalid_request") || code("400") {
            400
        } else {
            500
        };
        self.kind(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_an_object_or_the_text_that_was_written() {
        assert_eq!(arguments(""), json!({}));
        assert_eq!(arguments(" null "), json!({}));
        assert_eq!(arguments(r#"{"a":1}"#), json!({"a": 1}));
        assert_eq!(arguments(r#""{\"a\":1}""#), json!({"a": 1}));
        for bad in ["[1]", "3", r#"{"a":"#, "\"text\"", "{\"a\": \"line\nbreak\"}", "{} {}"] {
            assert_eq!(arguments(bad), json!(bad));
        }
        assert_eq!(arguments(r#""{\"a\":""#), json!("{\"a\":"), "what was encoded twice and is broken inside");
    }

    #[test]
    fn an_error_body_of_any_shape_is_read() {
        let read = |body: &str| ErrorBody::read(body.as_bytes());
        assert_eq!(read(r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#).message, "busy");
        assert_eq!(read(r#"[{"error":{"message":"m","code":429}}]"#).codes, "429");
        assert_eq!(read(r#"{"error":"model 'x' not found"}"#).message, "model 'x' not found");
        assert_eq!(read("<html>").message, "a web page instead of an answer");
        assert_eq!(read(&"word ".repeat(10_000)).message.chars().count(), EXCERPT_MAX + 1);
        assert_eq!(read(r#"{"error":{"code":"insufficient_quota","message":"m"}}"#).kind(429), ModelErrorKind::QuotaExhausted);
        assert_eq!(read(r#"{"error":{"message":"prompt is too long: 2 > 1"}}"#).kind(400), ModelErrorKind::ContextTooLong);
        assert_eq!(read("").kind(529), ModelErrorKind::Overloaded);
    }
}
