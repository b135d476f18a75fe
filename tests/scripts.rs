//! Flow: scripts.
