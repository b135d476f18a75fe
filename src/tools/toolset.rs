//! Which tools exist for a main session and for a process child.
