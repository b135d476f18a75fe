//! Flow: supervisor. Keepers and payloads for real: shell scripts as payloads, the built binary as keeper.

mod attempts;
mod confine;
mod interleavings;
mod kit;
mod output;
mod recovery;
mod roles;
mod start;
mod tree;
