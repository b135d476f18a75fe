//! Delegation: subagents in processes of their own and in this one, and shells, as jobs of a session.

mod agent_entries;
pub mod agent_folders;
pub mod answers;
pub mod asking;
pub mod child;
pub mod delegation;
pub mod detached;
pub mod folders;
pub mod handover;
pub mod in_process;
pub mod job;
pub mod local;
pub mod memory;
mod memory_guard;
pub mod metadata;
pub mod notices;
pub mod output;
pub mod poll;
pub mod process;
pub mod profiles;
pub mod registry;
pub mod replies;
pub mod requests;
pub mod retention;
pub mod shell;
pub mod status;
pub mod steering;
pub mod sweep;
pub mod tend;
mod turns;
pub mod uplink;
pub mod worktree;

pub use crate::supervisor::launch::KEEP_ARGUMENT;
pub use crate::supervisor::record::Requester;
