//! Flow: imports.
