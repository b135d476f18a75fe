//! The tool `bash`.
