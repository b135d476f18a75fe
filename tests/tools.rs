//! Flow: tools.
