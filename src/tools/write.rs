//! The tool `write`.
