//! Keeper side: one thread, one poll loop, from setsid to the end record.
