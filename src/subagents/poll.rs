//! How long a poll waits, what wakes it, when it ends early.
