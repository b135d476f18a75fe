//! Flow: supervisor. Keepers and payloads for real: shell scripts as payloads, the built binary as keeper.

mod kit;
mod output;
mod tree;
