//! Sizes, durations and times as people read them.
