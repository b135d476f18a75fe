//! Flags exactly as typed; help texts with examples.
