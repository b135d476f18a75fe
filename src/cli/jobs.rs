//! List, show, output, kill and sweep jobs from a shell.
