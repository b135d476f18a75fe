//! What models and people read; pure functions.

pub mod agent_replies;
pub mod fold;
pub mod hooks;
pub mod imitation;
pub mod incoming;
pub mod subagent_replies;
pub mod units;
