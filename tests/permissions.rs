//! Flow: permissions.
