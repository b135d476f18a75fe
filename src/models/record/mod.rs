//! A conversation with a real model, written to a file and played back without it, children included.
//!
//! `transcript` reads a request, `placeholders` makes two runs comparable, `file` is the format on disk, `recorder`
//! writes it, `replay` plays it, `comparison` says whether a request is the recorded one. `examples/README.md` describes recordings for their users.

mod comparison;
mod file;
mod placeholders;
mod recorder;
mod replay;
mod transcript;

use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde_json::Value;

use crate::models::{Block, Message};

pub use file::RecordingError;
pub use recorder::{Recorder, recording};
pub use replay::replaying;

/// What differs from run to run by its place, and what must never be written down.
#[derive(Clone, Debug)]
pub struct RecordContext {
    root: PathBuf,
    workspace: PathBuf,
    secrets: Vec<SecretString>,
}

impl RecordContext {
    /// `root` is the storage root, `workspace` the working directory of the main session; both absolute.
    pub fn new(root: impl Into<PathBuf>, workspace: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), workspace: workspace.into(), secrets: Vec::new() }
    }

    /// A text that is left out wherever it shows up, for example the provider's key printed by a tool.
    pub fn hiding(mut self, secret: SecretString) -> Self {
        self.secrets.push(secret);
        self
    }

    fn places(&self) -> [(&Path, &'static str); 2] {
        [(&self.root, "root"), (&self.workspace, "workspace")]
    }
}

/// The message with every text a model wrote replaced; what belongs to one wire format stays as it is.
fn with_texts(message: &Message, replace: &dyn Fn(&str) -> String) -> Message {
    let block = |block: &Block| match block {
        Block::Text { text } => Block::Text { text: replace(text) },
        Block::Thinking { text, signature } => Block::Thinking { text: replace(text), signature: signature.clone() },
        Block::ToolUse { id, name, input } => Block::ToolUse { id: id.clone(), name: name.clone(), input: with_texts_of(input, replace) },
        Block::ToolResult { tool_use_id, text, is_error } => {
            Block::ToolResult { tool_use_id: tool_use_id.clone(), text: replace(text), is_error: *is_error }
        }
        Block::Other { wire, raw } => Block::Other { wire: *wire, raw: raw.clone() },
    };
    Message { role: message.role, blocks: message.blocks.iter().map(block).collect() }
}

fn with_texts_of(value: &Value, replace: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(replace(text)),
        Value::Array(items) => items.iter().map(|item| with_texts_of(item, replace)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, field)| (key.clone(), with_texts_of(field, replace))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
