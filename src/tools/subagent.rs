//! The tool `subagent`.
