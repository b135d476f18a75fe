//! Flow: cli.
