//! What a session remembers beside its history: files the model has read, and its todo list. Restored by `--resume`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize, Serializer};

/// Shared by all calls of one session. The lock is never held across an await.
#[derive(Debug, Default)]
pub struct SessionState {
    inner: Mutex<StateRecord>,
}

/// The stored form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StateRecord {
    /// Content digest of each file as the model last saw it, by canonical path. Stored only for paths that are text, as
    /// JSON keys must be; any other file is read anew after a resume.
    #[serde(default, serialize_with = "only_text_paths")]
    pub files_seen: BTreeMap<PathBuf, FileMark>,
    #[serde(default)]
    pub todos: Vec<Todo>,
}

fn only_text_paths<S: Serializer>(files: &BTreeMap<PathBuf, FileMark>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(files.iter().filter(|(path, _)| path.to_str().is_some()))
}

/// How a file looked when the model read or wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMark {
    /// SHA-256 of the whole content, in hex.
    pub digest: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Todo {
    pub content: String,
    pub status: TodoStatus,
    #[serde(default, rename = "activeForm")]
    pub active_form: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TodoStatus {
    Pending,
    InProgress,
    Completed,
}

impl SessionState {
    pub fn restored(record: StateRecord) -> Self {
        Self { inner: Mutex::new(record) }
    }

    pub fn record(&self) -> StateRecord {
        self.locked().clone()
    }

    pub fn mark_seen(&self, path: PathBuf, mark: FileMark) {
        self.locked().files_seen.insert(path, mark);
    }

    pub fn seen(&self, path: &Path) -> Option<FileMark> {
        self.locked().files_seen.get(path).cloned()
    }

    pub fn set_todos(&self, todos: Vec<Todo>) {
        self.locked().todos = todos;
    }

    pub fn todos(&self) -> Vec<Todo> {
        self.locked().todos.clone()
    }

    /// Plain data that no panic can leave half-changed, so a poisoned lock is still good.
    fn locked(&self) -> MutexGuard<'_, StateRecord> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
