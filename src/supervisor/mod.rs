//! Operating-system processes: start, bound, end and record them. Knows nothing of agents.

pub mod plan;
pub mod record;

pub mod capture;
pub mod confine;
pub mod handle;
pub mod identity;
pub mod keeper;
pub mod launch;
pub mod recovery;
pub mod tree;

mod payload;
mod platform;
mod reaper;
mod wire;
