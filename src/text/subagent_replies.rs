//! The `[SubAgent]` replies of spawn, poll, list, kill (F1 to F5).
