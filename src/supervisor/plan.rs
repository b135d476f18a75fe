//! What the agent tells a keeper, and what the keeper answers: the wire between the two.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::ProcessIdentity;
use crate::files::{any_path, any_path_option};
use crate::secrets::Masker;

/// Which program file to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// This very binary, also after its file was replaced or removed (`/proc/self/exe`).
    Own,
    /// A program file. A name without a slash is looked up in `PATH` of the payload's environment.
    At(#[serde(with = "any_path")] PathBuf),
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
    #[serde(with = "any_path")]
    pub cwd: PathBuf,
    pub output: OutputCaps,
    /// From the payload's start; on the monotonic clock.
    pub time_limit: Option<Duration>,
    /// Between TERM and KILL.
    pub grace: Duration,
    /// How long output is still read after the payload has ended.
    pub drain: Duration,
    pub on_owner_death: OnOwnerDeath,
    /// Below this folder the payload gets a private one, named by `TMPDIR`; it is removed when the payload's tree has ended.
    #[serde(with = "any_path_option")]
    pub temporary_below: Option<PathBuf>,
    /// What the payload may do less than its user may; `None`: nothing is taken away.
    pub confinement: Option<Confinement>,
}

pub const PLAN_VERSION: u32 = 2;

/// What a payload may do less than its user may. All of it holds, or the start fails with [`StartStage::Confinement`].
/// Everything may be read and run; writing is refused everywhere but in the private temporary folder, to the null-like
/// devices and in `writable`. The keeper itself is not confined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Existing files and folders that may be changed, with everything below.
    pub writable: Vec<AnyPath>,
    /// System calls that are refused.
    pub calls: RefusedCalls,
    /// Sockets that reach other machines or this one's loopback.
    pub network: bool,
    /// Where given, the payload sees the file system through mounts of its own.
    pub mounts: Option<OwnMounts>,
}

/// A path in a form that survives JSON.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AnyPath(#[serde(with = "any_path")] pub PathBuf);

/// Which system calls a confined payload is refused (with EPERM).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedCalls {
    /// What changes the system, or leads around the confinement.
    System,
    /// As well: modes, owners, times and attributes of files, sockets of every kind, objects that outlive a process.
    Everything,
}

/// Mounts of the payload's own: nothing outside `writable` can be changed in any way, modes and times included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnMounts {
    /// Existing files and folders below `writable` that stay as they are.
    pub fixed: Vec<AnyPath>,
    /// Existing files and folders that cannot be moved away, so that nothing else takes their place.
    pub pinned: Vec<AnyPath>,
    /// What is not there and must not be: a mount needs something to cover. Found at the payload's end, it is renamed
    /// and named in the record.
    pub absent: Vec<AnyPath>,
}

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

/// What the launcher sends over the lifeline; descriptors go along: the held lock, one per `handover`, stdin.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeeperOrder {
    pub plan: LaunchPlan,
    #[serde(with = "any_path")]
    pub folder: PathBuf,
    /// `<id>.<nonce>`
    pub marker: String,
    /// Names of the variables that tell the payload the numbers of the descriptors passed on.
    pub handover: Vec<String>,
    /// The last of the descriptors is the payload's stdin.
    #[serde(default)]
    pub has_stdin: bool,
    /// Further tries when the system is out of processes.
    pub retries: u32,
    /// What must not be written down when the payload prints it.
    pub hidden: Hidden,
}

/// Values of keys on their way to the keeper; no debug output shows them.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Hidden(pub Vec<String>);

impl Hidden {
    /// One for each stream.
    pub(crate) fn masker(&self) -> Masker {
        Masker::new(&self.0.iter().map(|value| value.as_str().into()).collect::<Vec<_>>())
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.0.len())
    }
}

/// The keeper's one answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Acknowledgement {
    Started { keeper: ProcessIdentity, payload: ProcessIdentity },
    Failed { stage: StartStage, errno: Option<i32>, text: String },
}

/// What was being done when a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStage {
    /// Making descriptors or the keeper process.
    Keeper,
    /// The keeper's own preparation: session, signals, subreaper.
    KeeperSetup,
    /// Opening the output files and pipes.
    Output,
    /// Entering the working directory.
    WorkingDirectory,
    /// Taking away what the payload must not do.
    Confinement,
    /// Starting the payload's program.
    Program,
    /// Writing the first status.
    Status,
}

impl StartStage {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keeper => "start of the keeper",
            Self::KeeperSetup => "preparation of the keeper",
            Self::Output => "output files",
            Self::WorkingDirectory => "working directory",
            Self::Confinement => "confinement of the program",
            Self::Program => "start of the program",
            Self::Status => "status file",
        }
    }
}

/// Messages of the owner on the lifeline after the start, one byte each.
pub(crate) mod lifeline {
    /// From now on the payload outlives its owner.
    pub const DETACH: u8 = b'D';
    /// Stop; the requester could not leave a `stop.json`. A digit follows: the index of the requester.
    pub const STOP: u8 = b'S';
    /// From the keeper: the end record can be read.
    pub const RECORDED: u8 = b'E';
}

/// Longest order or acknowledgement in bytes: arguments and environment are at most some 2 MiB, encoded five-fold.
pub(crate) const MESSAGE_MAX: usize = 16 * 1024 * 1024;

/// Length prefix of a message on the lifeline.
pub(crate) const LENGTH_BYTES: usize = 8;

/// A message with its length in front.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - LENGTH_BYTES;
    if length > MESSAGE_MAX {
        return Err(io::Error::from_raw_os_error(nix::libc::E2BIG));
    }
    bytes[..LENGTH_BYTES].copy_from_slice(&(length as u64).to_le_bytes());
    Ok(bytes)
}

/// The length announced by a message's first bytes.
pub(crate) fn decode_length(prefix: [u8; LENGTH_BYTES]) -> io::Result<usize> {
    usize::try_from(u64::from_le_bytes(prefix))
        .ok()
        .filter(|length| *length <= MESSAGE_MAX)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message of impossible length"))
}
