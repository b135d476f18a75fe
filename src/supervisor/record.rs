//! What stands in a job's folder: `spec.json`, `status.json`, `stop.json`, `end.json`. Shapes and versions.

use chrono::{DateTime, Local};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub const RECORD_VERSION: u32 = 1;

/// `spec.json`: written by the launcher before the keeper exists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub version: u32,
    pub created_at: DateTime<Local>,
    /// `<id>.<nonce>`: the component of the environment marker that is this job's.
    pub marker: String,
    /// What the owner wants to find again (kind, task, title, ...); the supervisor does not read it.
    pub owner: Value,
}

/// Which process is meant: a number alone is nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub boot_id: String,
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: start time in clock ticks since boot. 0 where the system does not tell.
    pub start_ticks: u64,
}

/// `status.json`: written by the keeper alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub version: u32,
    pub keeper: ProcessIdentity,
    pub payload: ProcessIdentity,
    pub started_at: DateTime<Local>,
    /// A stop is under way.
    pub stopping: bool,
    pub stdout: StreamCount,
    pub stderr: StreamCount,
}

/// Bytes of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCount {
    /// Written by the payload.
    pub bytes: u64,
    /// Of those, on disk.
    pub kept: u64,
    /// Line feeds among `bytes`.
    pub lines: u64,
}

/// `end.json`: the one final statement. Written once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndRecord {
    pub version: u32,
    pub cause: EndedBy,
    /// How the payload itself ended; `None` when nobody saw it.
    pub wait: Option<WaitStatus>,
    pub started_at: DateTime<Local>,
    pub ended_at: DateTime<Local>,
    /// On the monotonic clock where the keeper saw both ends.
    pub duration_ms: u64,
    pub stdout: StreamCount,
    pub stderr: StreamCount,
    /// Signals sent to the tree, in order, by name (`SIGTERM`, `SIGKILL`).
    #[serde(default)]
    pub signals: Vec<String>,
    /// Processes of the tree that were still there when the payload had ended, and were ended with it.
    #[serde(default)]
    pub swept: u32,
    /// What could not be ended, or could not be proved to be gone.
    #[serde(default)]
    pub left_over: Vec<LeftOver>,
    /// Why the output on disk is not what the payload wrote (beyond the caps), for example a full disk.
    #[serde(default)]
    pub output_error: Option<String>,
}

/// Why the payload ended. A limit or a stop is a fact of whoever asked and stands beside the wait status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum EndedBy {
    /// The payload ended by itself, or by a signal that was not ours.
    Itself,
    /// The time limit of the plan.
    TimeLimit,
    /// A stop request.
    Stop { request: StopRequest },
    /// The agent is gone and the job was attached.
    OwnerGone,
    /// The keeper was told to end by a signal from outside.
    KeeperSignal { signal: i32 },
    /// The keeper vanished without a record; written by whoever found out.
    KeeperLost,
}

/// `stop.json`: the cause of the first stop request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// Who asked.
    pub requester: Requester,
    pub at: DateTime<Local>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requester {
    /// A model through a tool.
    Model,
    /// A person, at the terminal or through a command.
    Person,
    /// The end of the run that owns the job.
    RunEnd,
    /// A limit of the owner other than the plan's time limit (a shell's own time-out).
    Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitStatus {
    /// Exit code, when the payload exited.
    pub code: Option<i32>,
    /// Signal number, when a signal ended it.
    pub signal: Option<i32>,
    pub core_dumped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOver {
    pub pid: u32,
    /// State letter of the kernel (`D`, `Z`, ...) or `not provable`.
    pub state: String,
    pub command: String,
}
