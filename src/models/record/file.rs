//! The recording on disk: one JSON object per line, the first of them says which version this is.
//!
//! Children in other processes append to the same file. Each record is one write under the file's lock, so lines never
//! mix; a conversation gets its number when its first record is written.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::models::{Message, ModelErrorKind, StopReason, Usage};

const VERSION: u32 = 1;
/// Bytes of a recording that is played: it is held in memory.
const PLAYED_MAX: u64 = 256 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    zapmyco_recording: u32,
    /// `provider/model-id`; the system prompt of a session names it.
    pub model: String,
}

/// One request with what came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub conversation: u32,
    /// Number of answers before this one.
    pub turn: usize,
    /// The first text of the conversation, by which a replay finds it.
    pub task: String,
    pub tools: Vec<String>,
    /// A closing report was asked for: no tools allowed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closing: bool,
    /// What was heard before answer `first_part`, `first_part + 1`, ..., `turn`.
    pub first_part: usize,
    pub heard: Vec<Vec<HeardText>>,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HeardText {
    Text(String),
    /// The end of a job; a replay accepts it at another moment.
    Notice {
        job: String,
        text: String,
    },
    Result(String),
    FailedResult(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Reply { message: Message, stop: StopReason, usage: Usage },
    Error { kind: ModelErrorKind, message: String, partial: Option<Message>, status: Option<u16>, usage: Usage },
}

/// Why a recording cannot be written or played.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("cannot {action} recording {path}: {source}", path = path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} exists and is not a recording; it is not overwritten", path = path.display())]
    NotOurs { path: PathBuf },
    #[error("{path} is the recording that is played; record into another file", path = path.display())]
    Played { path: PathBuf },
    #[error("{path} is not a recording: its first line does not say `zapmyco_recording`", path = path.display())]
    NoHead { path: PathBuf },
    #[error("recording {path} has version {found}; this program plays version {VERSION}", path = path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("recording {path}, line {line}: {source}", path = path.display())]
    Line {
        path: PathBuf,
        line: usize,
        #[source]
        source: serde_json::Error,
    },
    #[error("recording {path} is larger than {PLAYED_MAX} bytes", path = path.display())]
    TooLarge { path: PathBuf },
    #[error("recording {path} has no conversation", path = path.display())]
    Empty { path: PathBuf },
    #[error("recording {path} begins in turn {turn} of a conversation: it was made of a continued session and cannot be played", path = path.display())]
    Headless { path: PathBuf, turn: usize },
}

impl RecordingError {
    fn at(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }
}

/// Bytes of the first line; one of another file is not read further.
const HEAD_MAX: u64 = 64 * 1024;

/// Makes the file, or empties it when it is an older recording.
pub(super) fn create(path: &Path, model: &str) -> Result<(), RecordingError> {
    let mut file = open(path, true)?;
    let old = BufReader::new((&file).take(HEAD_MAX)).lines().next().transpose().ok().flatten().unwrap_or_default();
    let is_empty = file.metadata().map_err(RecordingError::at("read", path))?.len() == 0;
    if !is_empty && serde_json::from_str::<Head>(&old).is_err() {
        return Err(RecordingError::NotOurs { path: path.to_owned() });
    }
    let head = Head { zapmyco_recording: VERSION, model: model.to_owned() };
    let text = line_of(&head, path)?;
    let write = |file: &mut File| -> std::io::Result<()> {
        file.set_len(0)?;
        file.write_all(text.as_bytes())
    };
    write(&mut file).map_err(RecordingError::at("write", path))
}

/// Appends a record. `conversation` 0 stands for a new one; its number is returned.
pub(super) fn append(path: &Path, mut line: Line) -> Result<u32, RecordingError> {
    let mut file = open(path, false)?;
    file.lock().map_err(RecordingError::at("lock", path))?;
    if line.conversation == 0 {
        line.conversation = last_conversation(&mut file).map_err(RecordingError::at("read", path))? + 1;
    }
    let text = line_of(&line, path)?;
    // The lock is given back when the file is closed.
    file.write_all(text.as_bytes()).map_err(RecordingError::at("append to", path))?;
    Ok(line.conversation)
}

pub(super) fn read(path: &Path) -> Result<(Head, Vec<Line>), RecordingError> {
    let file = File::open(path).map_err(RecordingError::at("read", path))?;
    if file.metadata().map_err(RecordingError::at("read", path))?.len() > PLAYED_MAX {
        return Err(RecordingError::TooLarge { path: path.to_owned() });
    }
    let mut lines = BufReader::new(file.take(PLAYED_MAX)).lines();
    let no_head = || RecordingError::NoHead { path: path.to_owned() };
    let first = lines.next().ok_or_else(no_head)?.map_err(RecordingError::at("read", path))?;
    let head: Head = serde_json::from_str(&first).map_err(|_| no_head())?;
    if head.zapmyco_recording != VERSION {
        return Err(RecordingError::Version { path: path.to_owned(), found: head.zapmyco_recording });
    }
    let mut records = Vec::new();
    for (index, text) in lines.enumerate() {
        let text = text.map_err(RecordingError::at("read", path))?;
        let line = index + 2;
        records.push(serde_json::from_str(&text).map_err(|source| RecordingError::Line { path: path.to_owned(), line, source })?);
    }
    if records.is_empty() {
        return Err(RecordingError::Empty { path: path.to_owned() });
    }
    Ok((head, records))
}

/// Only the owner may read it: it holds what the tools have read.
const OWNER_ONLY: u32 = 0o600;

fn open(path: &Path, create: bool) -> Result<File, RecordingError> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(create).mode(OWNER_ONLY);
    options.open(path).map_err(RecordingError::at("open", path))
}

fn line_of(value: &impl Serialize, path: &Path) -> Result<String, RecordingError> {
    let mut text = serde_json::to_string(value).map_err(|error| RecordingError::at("write", path)(error.into()))?;
    text.push('\n');
    Ok(text)
}

fn last_conversation(file: &mut File) -> std::io::Result<u32> {
    #[derive(Deserialize)]
    struct Number {
        #[serde(default)]
        conversation: u32,
    }
    file.seek(SeekFrom::Start(0))?;
    let mut last = 0;
    for text in BufReader::new(file).lines() {
        let number = serde_json::from_str::<Number>(&text?).map(|number| number.conversation).unwrap_or_default();
        last = last.max(number);
    }
    Ok(last)
}
