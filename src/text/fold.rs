//! Head and tail of a long output; control characters made harmless.
