//! Flow: store.
