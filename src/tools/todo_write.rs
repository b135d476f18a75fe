//! The tool `todo_write`.
