//! The tool `task_stop`.
