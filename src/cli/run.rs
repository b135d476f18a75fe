//! The headless run and its end; also the payload of a process subagent.
