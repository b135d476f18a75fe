//! Hooks: programs of the user's that are asked or told at fixed points of a session.
//!
//! Settings to hooks (`settings.rs`), which of them an event concerns (`matcher.rs`), one process each (`run.rs`), what
//! they answered (`answer.rs`) and what it amounts to together (`merge.rs`). `session.rs` is what a conversation calls.

pub mod answer;
pub mod event;
mod folders;
pub mod matcher;
pub mod merge;
pub mod run;
pub mod scripts;
pub mod session;
pub mod settings;

pub use event::HookEvent;
pub use folders::clear_left_over;
pub use merge::{Decision, Outcome};
pub use session::{Agent, SessionHooks};
pub use settings::{HookSet, Problem};
