//! Sessions, messages, events and the job index in one SQLite file.

pub mod database;
pub mod events;
pub mod job_index;
pub mod sessions;
