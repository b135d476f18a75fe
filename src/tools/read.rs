//! The tool `read`.
