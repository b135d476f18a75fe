//! Flow: jobs.
