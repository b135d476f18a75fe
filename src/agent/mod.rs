//! The conversation engine: sessions, turns, tool batches, the inbox. It starts no process and prints nothing.

mod announcer;
pub mod budget;
mod call;
mod call_hooks;
pub mod event;
mod hooks;
pub mod inbox;
mod malformed_input;
mod places;
mod shorten;
pub mod state;
pub mod tool;

pub use call::ANSWERS;
pub use event::{Event, EventKind, EventSink, InputSource, TurnCause, TurnEnd};
pub use inbox::{Delivery, Inbox, InboxRefusal, Input, Receipt, Urgency};

pub mod history;
pub mod instructions;
pub mod prompt;
pub mod session;
pub mod tool_batch;
pub mod turn;
pub use prompt::Role;
