//! What stands in a job's folder: `spec.json`, `status.json`, `stop.json`, `end.json`. Shapes and versions.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::plan::AnyPath;
use super::platform;
use crate::config::layout::JobFolder;
use crate::files::{self, FileError, any_path_option};

pub const RECORD_VERSION: u32 = 1;
/// Bytes of one file of a job's folder; the largest, a specification, holds a task and an environment.
const RECORD_MAX: u64 = 16 * 1024 * 1024;

/// `spec.json`: written by the launcher before the keeper exists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub version: u32,
    pub created_at: DateTime<Local>,
    /// `<id>.<nonce>`: the component of the environment marker that is this job's.
    pub marker: String,
    /// The payload's private temporary folder, for whoever settles for a dead keeper.
    #[serde(default, with = "any_path_option", skip_serializing_if = "Option::is_none")]
    pub temporary: Option<PathBuf>,
    /// What a confined payload must not have made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<AnyPath>,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

impl Requester {
    const ALL: [Self; 4] = [Self::Model, Self::Person, Self::RunEnd, Self::Limit];

    /// One byte on the lifeline.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|requester| requester.code() == code)
    }
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

impl LeftOver {
    /// State of something whose end could not be proved.
    pub const NOT_PROVABLE: &str = "not provable";

    /// Something that may be left, with nothing known of it but this.
    pub(crate) fn not_provable(what: impl Into<String>) -> Self {
        Self { pid: 0, state: Self::NOT_PROVABLE.to_owned(), command: what.into() }
    }

    /// What every record of this system leaves open. Nothing where the end of a tree can be proved.
    pub(crate) fn of_system() -> Option<Self> {
        platform::UNPROVED.map(Self::not_provable)
    }

    /// Says something of the system and nothing of the job.
    pub fn is_of_system(&self) -> bool {
        self.pid == 0 && platform::UNPROVED.is_some_and(|unproved| unproved == self.command)
    }
}

/// Why a job's files do not tell what they should.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not readable as {what}: {source}", path = path.display())]
    Malformed { path: PathBuf, what: &'static str, source: serde_json::Error },
    #[error("{path} has version {found}, this program knows version {RECORD_VERSION}", path = path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("there is no job in {path}", path = path.display())]
    NoJob { path: PathBuf },
    #[error("the start of {path} was never completed; its folder was removed", path = path.display())]
    NeverStarted { path: PathBuf },
    #[error("the keeper of {path} cannot be reached: {source}", path = path.display())]
    Keeper { path: PathBuf, source: io::Error },
    #[error("only the process that started {path} can detach it", path = path.display())]
    NotOwner { path: PathBuf },
    #[error("{path} is still running", path = path.display())]
    StillRunning { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
}

impl RecordError {
    /// This process was out of descriptors or memory, or interrupted: the same may be read a moment later.
    pub fn is_shortage(&self) -> bool {
        let source = match self {
            Self::Read { source, .. } | Self::Keeper { source, .. } => source,
            Self::File(error) => &error.source,
            _ => return false,
        };
        let number = source.raw_os_error().map(Errno::from_raw_os_error);
        matches!(number, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR))
    }
}

/// Size of `end.json`: reserved at the start, so that a full disk cannot prevent the record.
pub(crate) const END_BYTES: usize = 4096;

/// The record with a checksum over its exact text: half a record counts as none.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    #[serde(borrow)]
    record: &'a RawValue,
    checksum: String,
}

/// Takes the space of `end.json`.
pub(crate) fn reserve_end(folder: &JobFolder) -> Result<(), FileError> {
    let path = folder.end();
    let file = files::create_new(&path)?;
    file.write_all_at(&[b' '; END_BYTES], 0).map_err(|source| FileError { action: "cannot reserve", path, source })
}

/// The whole content of `end.json`: one line of JSON, blanks, a line feed as the very last byte. Left-overs and texts are
/// shortened until it fits.
pub(crate) fn encode_end(record: &EndRecord) -> Result<Vec<u8>, serde_json::Error> {
    let mut record = record.clone();
    loop {
        let text = serde_json::value::to_raw_value(&record)?;
        let checksum = checksum(text.get());
        let mut bytes = serde_json::to_vec(&Sealed { record: &text, checksum })?;
        if bytes.len() < END_BYTES {
            bytes.resize(END_BYTES - 1, b' ');
            bytes.push(b'\n');
            return Ok(bytes);
        }
        shorten(&mut record);
    }
}

/// One step towards a record that fits; the rest of the record is bounded, so this ends.
fn shorten(record: &mut EndRecord) {
    const TEXT_MAX: usize = 200;
    if let Some(error) = record.output_error.as_mut().filter(|error| error.chars().count() > TEXT_MAX) {
        *error = error.chars().take(TEXT_MAX).collect();
    } else if record.left_over.iter().any(|left| left.command.chars().count() > 16) {
        for left in &mut record.left_over {
            left.command = left.command.chars().take(16).collect();
        }
    } else if record.left_over.len() > 1 {
        let keep = record.left_over.len() / 2;
        record.left_over.truncate(keep);
    } else {
        record.signals.truncate(record.signals.len() / 2);
        record.output_error = None;
    }
}

fn checksum(text: &str) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(32);
    for byte in &Sha256::digest(text.as_bytes())[..16] {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The end record, when there is a valid one.
pub fn read_end(folder: &JobFolder) -> Result<Option<EndRecord>, RecordError> {
    let path = folder.end();
    let bytes = match files::read_bounded(&path, RECORD_MAX) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RecordError::Read { path, source }),
    };
    decode_end(&path, &bytes)
}

fn decode_end(path: &Path, bytes: &[u8]) -> Result<Option<EndRecord>, RecordError> {
    if bytes.last() != Some(&b'\n') {
        return Ok(None);
    }
    let Ok(sealed) = serde_json::from_slice::<Sealed>(bytes) else { return Ok(None) };
    if checksum(sealed.record.get()) != sealed.checksum {
        return Ok(None);
    }
    check_version(path, sealed.record.get().as_bytes(), "end record")?;
    let malformed = |source| RecordError::Malformed { path: path.to_owned(), what: "end record", source };
    serde_json::from_str(sealed.record.get()).map(Some).map_err(malformed)
}

/// Writes the end record in place; the caller holds the lock and has seen that there is none. Not synced.
pub(crate) fn write_end(folder: &JobFolder, record: &EndRecord) -> Result<File, FileError> {
    let path = folder.end();
    let write = || -> io::Result<File> {
        let bytes = encode_end(record)?;
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        file.write_all_at(&bytes, 0)?;
        Ok(file)
    };
    write().map_err(|source| FileError { action: "cannot write", path: path.clone(), source })
}

/// `None` before the keeper wrote its first status.
pub fn read_status(folder: &JobFolder) -> Result<Option<Status>, RecordError> {
    read_json(&folder.status(), "status")
}

/// `None` where there is no job, or its start was never completed.
pub fn read_spec(folder: &JobFolder) -> Result<Option<Spec>, RecordError> {
    read_json(&folder.spec(), "specification")
}

/// `None` when nobody asked to stop.
pub(crate) fn read_stop(folder: &JobFolder) -> Option<StopRequest> {
    read_json(&folder.stop(), "stop request").ok().flatten()
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path, what: &'static str) -> Result<Option<T>, RecordError> {
    let bytes = match files::read_bounded(path, RECORD_MAX) {
        Ok(bytes) => bytes,
        Err(source) if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(source) => return Err(RecordError::Read { path: path.to_owned(), source }),
    };
    check_version(path, &bytes, what)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|source| RecordError::Malformed { path: path.to_owned(), what, source })
}

/// An unknown version is refused by name, before the rest is understood.
fn check_version(path: &Path, json: &[u8], what: &'static str) -> Result<(), RecordError> {
    #[derive(Deserialize)]
    struct Versioned {
        #[serde(default = "first")]
        version: u32,
    }
    fn first() -> u32 {
        RECORD_VERSION
    }
    let versioned: Versioned =
        serde_json::from_slice(json).map_err(|source| RecordError::Malformed { path: path.to_owned(), what, source })?;
    if versioned.version == RECORD_VERSION {
        return Ok(());
    }
    Err(RecordError::Version { path: path.to_owned(), found: versioned.version })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> EndRecord {
        let at = DateTime::parse_from_rfc3339("2026-06-06T15:30:00.123456+02:00").unwrap().with_timezone(&Local);
        EndRecord {
            version: RECORD_VERSION,
            cause: EndedBy::Stop { request: StopRequest { requester: Requester::Model, at } },
            wait: Some(WaitStatus { code: None, signal: Some(15), core_dumped: false }),
            started_at: at,
            ended_at: at,
            duration_ms: 5,
            stdout: StreamCount { bytes: 7, kept: 7, lines: 1 },
            stderr: StreamCount::default(),
            signals: vec!["SIGTERM".into()],
            swept: 0,
            left_over: Vec::new(),
            output_error: None,
        }
    }

    #[test]
    fn a_record_survives_and_any_changed_byte_makes_it_none() {
        let bytes = encode_end(&sample()).unwrap();
        assert_eq!(bytes.len(), END_BYTES);
        let path = Path::new("end.json");
        assert_eq!(decode_end(path, &bytes).unwrap(), Some(sample()));
        let text = bytes.iter().position(|b| *b == b'7').unwrap();
        for at in [text, END_BYTES - 1] {
            let mut torn = bytes.clone();
            torn[at] = b'8';
            assert_eq!(decode_end(path, &torn).unwrap(), None);
        }
        assert_eq!(decode_end(path, &[b' '; END_BYTES]).unwrap(), None);
        assert_eq!(decode_end(path, &bytes[..END_BYTES / 2]).unwrap(), None);
    }

    /// Rule 15: what stands in folders today must be readable tomorrow.
    #[test]
    fn stored_samples_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobFolder::new(folder.path().to_owned());
        let put = |path: PathBuf, text: &str| std::fs::write(path, text).unwrap();
        put(
            job.spec(),
            r#"{"version":1,"created_at":"2026-06-06T15:30:00.123456+02:00","marker":"sa_1.0123abcd","owner":{"kind":"shell"}}"#,
        );
        let spec = read_spec(&job).unwrap().unwrap();
        assert_eq!((spec.marker.as_str(), &spec.owner["kind"]), ("sa_1.0123abcd", &Value::from("shell")));
        put(
            job.status(),
            r#"{"version":1,"keeper":{"boot_id":"b","pid":10,"start_ticks":7},"payload":{"boot_id":"b","pid":11,"start_ticks":8},
                "started_at":"2026-06-06T15:30:00.123456+02:00","stopping":true,
                "stdout":{"bytes":5,"kept":4,"lines":1},"stderr":{"bytes":0,"kept":0,"lines":0}}"#,
        );
        let status = read_status(&job).unwrap().unwrap();
        assert_eq!((status.payload.pid, status.stopping, status.stdout.kept), (11, true, 4));
        put(job.stop(), r#"{"requester":"run_end","at":"2026-06-06T15:30:00.123456+02:00"}"#);
        assert_eq!(read_stop(&job).unwrap().requester, Requester::RunEnd);
        let record = r#"{"version":1,"cause":{"by":"stop","request":{"requester":"model","at":"2026-06-06T15:30:00.123456+02:00"}},"wait":{"code":null,"signal":15,"core_dumped":false},"started_at":"2026-06-06T15:30:00.123456+02:00","ended_at":"2026-06-06T15:30:00.123456+02:00","duration_ms":5,"stdout":{"bytes":7,"kept":7,"lines":1},"stderr":{"bytes":0,"kept":0,"lines":0},"signals":["SIGTERM"],"swept":0,"left_over":[],"output_error":null}"#;
        put(job.end(), &format!("{{\"record\":{record},\"checksum\":\"{}\"}}   \n", "7aee75cef77fca08040d47f4052b9fbe"));
        assert_eq!(read_end(&job).unwrap(), Some(sample()));
    }

    #[test]
    fn left_overs_are_cut_until_the_record_fits() {
        let mut record = sample();
        record.output_error = Some("x".repeat(9000));
        record.left_over = (2..500).map(|pid| LeftOver { pid, state: "D".into(), command: "c".repeat(50) }).collect();
        let bytes = encode_end(&record).unwrap();
        assert_eq!(bytes.len(), END_BYTES);
        let read = decode_end(Path::new("end.json"), &bytes).unwrap().unwrap();
        assert!(!read.left_over.is_empty() && read.left_over[0].pid == 2);
    }

    #[test]
    fn an_unknown_version_is_refused_by_name() {
        let mut record = sample();
        record.version = 99;
        let error = decode_end(Path::new("/j/end.json"), &encode_end(&record).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "/j/end.json has version 99, this program knows version 1");
    }
}
