//! Flow: agent.
