//! Whether a shell line is proved to be read-only.
