//! Refuses to start agents inside a subagent.
