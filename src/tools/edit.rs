//! The tool `edit`.
