//! Flow: supervisor.
