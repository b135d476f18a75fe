//! Language models: wire formats, retries, the shared rate gate, scripted and recorded models.

pub mod model;

pub use model::{
    Block, CONTEXT_TAG, Message, Model, ModelError, ModelErrorKind, ModelEvent, Prefix, Reply, Request, Role, StopReason, ToolDeclaration,
    ToolUse, Usage, WireFormat,
};

pub mod anthropic;
pub mod catalog;
pub mod gate;
pub mod http;
pub mod local;
pub mod openai;
pub mod record;
pub mod retry;
pub mod scripted;
pub mod sse;
