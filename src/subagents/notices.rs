//! The end of a background job becomes at most one notice.
