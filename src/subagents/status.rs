//! End causes and status words: the one table every surface looks in.
