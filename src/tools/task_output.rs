//! The tool `task_output`.
