//! Delegation: process subagents and shells as jobs of a session.

pub mod delegation;
pub mod handover;
pub mod job;
pub mod notices;
pub mod poll;
pub mod process;
pub mod registry;
pub mod status;
pub mod tend;
