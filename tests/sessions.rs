//! Flow: sessions.
