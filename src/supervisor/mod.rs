//! Operating-system processes: start, bound, end and record them. Knows nothing of agents.

#[cfg(not(target_os = "linux"))]
compile_error!("supervision stands on pidfd, subreaper and signalfd so far: there is no keeper for this system yet");

pub mod plan;
pub mod record;

pub mod capture;
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
