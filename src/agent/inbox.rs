//! A bounded priority queue with wake-up.
