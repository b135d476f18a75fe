//! Shows settings and where each value came from.
