//! Pipes to files: head and tail up to a cap; keeps draining, counts everything.
