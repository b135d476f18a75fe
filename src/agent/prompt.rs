//! The system prompt, part by part; frozen per session.
