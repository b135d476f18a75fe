//! Server-sent events to frames.
