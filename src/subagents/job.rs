//! A job: record, owner, title, duration.
