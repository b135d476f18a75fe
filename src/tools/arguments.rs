//! Tool input to typed arguments; unknown keys are named.
