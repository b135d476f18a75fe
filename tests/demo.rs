//! Flow: demo.
