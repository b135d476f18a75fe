//! Flow: output.
