//! The tool `glob`.
