//! A model played from a script file: tests, examples, the demo, and agents tested without a key.
//!
//! `format` reads and checks a file, `template` fills in its strings, `player` plays it as a [`Model`](super::Model),
//! `conversation` reads a request. `examples/README.md` describes the file for its users.

mod conversation;
mod format;
mod player;
mod template;

pub use format::{Fault, Script, ScriptError};
pub use player::{ScriptContext, scripted};
