//! Language models: wire formats, retries, the shared rate gate, scripted and recorded models.

pub mod model;
pub mod one_off;
pub mod prices;

pub use model::{
    Block, CONTEXT_TAG, Message, Model, ModelError, ModelErrorKind, ModelEvent, Prefix, Reply, Request, Role, StopReason, ToolDeclaration,
    ToolUse, Usage, WireFormat,
};

pub mod catalog;
pub mod gate;
pub mod local;
pub mod record;
pub mod remote;
pub mod scripted;
pub mod search;
pub mod sse;

mod anthropic;
mod emit;
mod http;
mod openai;
mod providers;
mod retry;
mod wire;

pub use catalog::{Choice, ModelChoiceError, ProviderSettings, ResolvedModel, Selection, Why, select};
pub use gate::Gate;
pub use remote::open;
