//! Which process is meant: boot id, pid and start time; pidfd where there is one.
