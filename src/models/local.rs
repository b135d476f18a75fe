//! Finds a model server on loopback and lists what it has.
