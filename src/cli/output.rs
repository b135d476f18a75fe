//! A run as text, json or stream-json: the one place of those formats.
