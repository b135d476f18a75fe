//! Flow: config.
