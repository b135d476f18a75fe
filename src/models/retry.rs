//! Which failures are tried again, when, how often.
