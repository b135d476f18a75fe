//! Flow: a session's turns against a scripted model, small real tools and SQLite.

mod bench;

mod approvals;
mod ends;
mod messages;
mod restore;
mod steps;
