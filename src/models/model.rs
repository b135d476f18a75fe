//! The one shape of a conversation for history, store and every wire format, and the `Model` trait.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::SessionId;

/// A language model: one request in, a stream of events out. Dropping the stream cancels the request.
///
/// The stream ends with exactly one `Ok(ModelEvent::Finished(..))` or one `Err(..)`. A stream that broke is always an
/// error with the partial message kept, never a finished reply.
pub trait Model: Send + Sync {
    /// `provider/model-id`, as shown to people.
    fn name(&self) -> &str;

    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ModelError>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

/// One message. Tool results are blocks of a user message, in the order of the calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub blocks: Vec<Block>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text {
        text: String,
    },
    /// Reasoning, given back to the provider unchanged. `signature` is the provider's proof of origin.
    Thinking {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    ToolUse {
        id: String,
        name: String,
        /// An object in a well-formed call; else what the model wrote, as text (`wire::arguments`).
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        text: String,
        is_error: bool,
    },
    /// A block of one provider that we do not interpret (for example redacted thinking): kept and sent back verbatim
    /// to the same wire format, left out for others.
    Other {
        wire: WireFormat,
        raw: Value,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireFormat {
    Anthropic,
    Openai,
}

impl Message {
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, blocks: vec![Block::Text { text: text.into() }] }
    }

    /// The text blocks joined by one blank line (R8). Empty when there are none.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self
            .blocks
            .iter()
            .filter_map(|block| match block {
                Block::Text { text } if !text.is_empty() => Some(text.as_str()),
                _ => None,
            })
            .collect();
        texts.join("\n\n")
    }

    /// The tool calls in order: id, name, input.
    pub fn tool_uses(&self) -> impl Iterator<Item = (&str, &str, &Value)> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolUse { id, name, input } => Some((id.as_str(), name.as_str(), input)),
            _ => None,
        })
    }
}

/// How a user message begins that carries context (instructions, date, git state) instead of a task. Whoever looks for
/// the first thing a person said leaves such messages out.
pub const CONTEXT_TAG: &str = "<context name=";

/// What stands first in every request of a session and never changes within it: tools, then system prompt.
#[derive(Debug, PartialEq)]
pub struct Prefix {
    /// Sorted by name.
    pub tools: Vec<ToolDeclaration>,
    pub system: String,
}

/// A tool as the model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDeclaration {
    pub name: String,
    pub description: String,
    /// JSON schema of an object.
    pub input_schema: Value,
}

#[derive(Clone, Debug)]
pub struct Request {
    /// Which session asks; scripted and recorded models tell conversations apart by it.
    pub session: SessionId,
    pub prefix: Arc<Prefix>,
    /// Begins with a user message; roles alternate after the wire format has joined neighbours.
    pub messages: Vec<Arc<Message>>,
    /// `Forbidden` for the closing request after a turn limit: the tools stay declared, so that the prefix bytes stay
    /// equal, but the model is told to call none.
    pub tool_use: ToolUse,
    /// Largest answer in tokens; `None`: the model's own limit.
    pub max_tokens: Option<u32>,
    /// Reasoning level, one of the model's own names.
    pub reasoning: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolUse {
    Allowed,
    Forbidden,
}

#[derive(Clone, Debug)]
pub enum ModelEvent {
    TextDelta(String),
    ThinkingDelta(String),
    /// The model has begun to write a call; its input follows with `Finished`.
    ToolUseStarted {
        id: String,
        name: String,
    },
    /// The request failed before its first output and is tried again after `wait`.
    Retrying {
        attempt: u32,
        wait: Duration,
        reason: String,
    },
    /// Another process or session closed the rate gate; the request goes out after `wait`.
    Waiting {
        wait: Duration,
        reason: String,
    },
    /// Always the last event of a success.
    Finished(Reply),
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Role `Assistant`; has at least one block.
    pub message: Message,
    pub usage: Usage,
    pub stop: StopReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    ToolUse,
    /// The answer was cut by the token limit.
    MaxTokens,
    /// The provider's safety system ended the answer.
    Refusal,
}

/// Tokens of one or more requests. `input` excludes what was read from or written to the prompt cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    #[serde(rename = "input_tokens")]
    pub input: u64,
    #[serde(rename = "output_tokens")]
    pub output: u64,
    #[serde(rename = "cache_read_input_tokens", default)]
    pub cache_read: u64,
    #[serde(rename = "cache_creation_input_tokens", default)]
    pub cache_write: u64,
    /// Part of `output`, where the provider tells it.
    #[serde(rename = "reasoning_tokens", default)]
    pub reasoning: u64,
}

impl Usage {
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output).saturating_add(self.cache_read).saturating_add(self.cache_write)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }
}

/// A request that did not give a complete answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    pub kind: ModelErrorKind,
    /// One sentence for people: which provider, what happened, the provider's own words where it sent some. No key.
    pub message: String,
    /// What had arrived before the failure; role `Assistant`.
    pub partial: Option<Message>,
    /// HTTP status, where there was one.
    pub status: Option<u16>,
    pub usage: Usage,
}

/// Told apart because each has another remedy. The exit codes are in `cli/report.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorKind {
    /// 401, 403: the key is missing, wrong or not allowed.
    Unauthorized,
    /// 400, 413, 422 and the like: the provider does not accept this request.
    InvalidRequest,
    /// The conversation is longer than the model can read.
    ContextTooLong,
    /// 404: no such model or path.
    NotFound,
    /// 402 or a message about money.
    QuotaExhausted,
    /// 429 that lasted longer than all retries.
    RateLimited,
    /// 529, 503 that lasted longer than all retries.
    Overloaded,
    /// Other 5xx.
    ServerError,
    /// No connection: refused, unreachable, name not found, TLS.
    Connect,
    /// No first byte, or silence inside the answer, beyond the limit.
    TimedOut,
    /// The stream ended or was reset before its end mark, or carried an error event.
    Interrupted,
    /// An answer that is not of the wire format.
    Garbled,
    /// 200 without any content.
    Empty,
    /// A scripted or recorded model was asked for what its file does not have.
    ScriptMismatch,
}
