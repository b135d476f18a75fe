//! What the agent tells a keeper, and what the keeper answers: the wire between the two.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which program file to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// This very binary, also after its file was replaced or removed (`/proc/self/exe`).
    Own,
    /// A program file. A name without a slash is looked up in `PATH` of the payload's environment.
    At(PathBuf),
}

/// Everything a keeper needs to run one payload. Plain data, one version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    pub version: u32,
    /// What the payload runs.
    pub program: Program,
    /// The payload's arguments, `argv[0]` included.
    pub argv: Vec<OsString>,
    /// The payload's complete environment, without the marker, which the keeper adds.
    pub environment: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub output: OutputCaps,
    /// From the payload's start; on the monotonic clock.
    pub time_limit: Option<Duration>,
    /// Between TERM and KILL.
    pub grace: Duration,
    /// How long output is still read after the payload has ended.
    pub drain: Duration,
    pub on_owner_death: OnOwnerDeath,
}

pub const PLAN_VERSION: u32 = 1;

/// How much of each output stream is kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputCaps {
    /// Bytes in all, tail included.
    pub kept_max: u64,
    /// Of those, bytes of the end.
    pub tail_max: u64,
}

/// What happens to the payload when the agent is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOwnerDeath {
    /// Attached: the keeper stops the tree.
    Stop,
    /// Detached: the payload goes on under the same limits.
    Finish,
}
