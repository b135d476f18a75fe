//! Spawn, poll, list and kill process subagents from a script.
