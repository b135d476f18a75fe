//! Append, pair calls with results, restore.
