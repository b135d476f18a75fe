//! Flow: run.
