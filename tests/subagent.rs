//! Flow: subagent.
