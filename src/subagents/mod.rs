//! Delegation: process subagents and shells as jobs of a session.

pub mod answers;
pub mod delegation;
pub mod detached;
pub mod folders;
pub mod handover;
pub mod job;
pub mod memory;
mod memory_guard;
pub mod notices;
pub mod output;
pub mod poll;
pub mod process;
pub mod profiles;
pub mod registry;
pub mod retention;
pub mod shell;
pub mod status;
pub mod sweep;
pub mod tend;
mod turns;

pub use crate::supervisor::record::Requester;
