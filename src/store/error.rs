//! What can go wrong with the database, told so that a person knows which file it is and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::ErrorCode;

use crate::files::FileError;
use crate::ids::SessionId;

/// Cheap to clone: one failed transaction is told to each write that was part of it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Folder(Arc<FileError>),
    #[error("cannot create database {path}: {source}", path = path.display())]
    Create { path: PathBuf, source: Arc<io::Error> },
    #[error("cannot open database {path}: {source}", path = path.display())]
    Open { path: PathBuf, source: Arc<rusqlite::Error> },
    #[error("cannot write database {path}: {source}", path = path.display())]
    NotWritable { path: PathBuf, source: Arc<rusqlite::Error> },
    #[error("no space left for database {path}: {source}", path = path.display())]
    Full { path: PathBuf, source: Arc<rusqlite::Error> },
    #[error("database {path} is damaged: {source}", path = path.display())]
    Damaged { path: PathBuf, source: Arc<rusqlite::Error> },
    #[error("database {path} has version {found}, this program knows versions up to {known}", path = path.display())]
    NewerVersion { path: PathBuf, found: i64, known: i64 },
    #[error("database {path} was held by other processes for {waited:?}", path = path.display())]
    Busy { path: PathBuf, waited: Duration, source: Arc<rusqlite::Error> },
    #[error("{what} {id} already exists in database {path}", path = path.display())]
    Taken { path: PathBuf, what: &'static str, id: String },
    #[error("there is no session {id} in database {path}", path = path.display())]
    UnknownSession { path: PathBuf, id: SessionId },
    #[error("a row of table {table} in database {path} cannot be read: {source}", path = path.display())]
    BadRow { path: PathBuf, table: &'static str, source: Arc<rusqlite::Error> },
    #[error("cannot start the writer of database {path}: {source}", path = path.display())]
    Thread { path: PathBuf, source: Arc<io::Error> },
    #[error("the writer of database {path} has ended", path = path.display())]
    Closed { path: PathBuf },
    #[error("database {path}: {source}", path = path.display())]
    Failed { path: PathBuf, source: Arc<rusqlite::Error> },
}

impl StoreError {
    /// What a person can do about it; nothing for what only a program can cause.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Folder(_) | Self::Create { .. } | Self::Open { .. } | Self::NotWritable { .. } => {
                Some("set ZAPMYCO_HOME to a folder that can be written".into())
            }
            Self::Full { .. } => Some("free some space, or set ZAPMYCO_HOME to a folder on another disk".into()),
            Self::Damaged { path, .. } | Self::BadRow { path, .. } => Some(format!(
                "move {} (and the files beside it that end in -wal and -shm) away; job folders are not lost with it",
                path.display()
            )),
            Self::NewerVersion { .. } => Some("use the newer zapmyco that wrote it, or set ZAPMYCO_HOME to another folder".into()),
            Self::Busy { .. } => Some("end the process that holds the database, or try again".into()),
            Self::Thread { .. } => Some("raise the limit of processes (ulimit -u), or try again".into()),
            Self::Taken { .. } | Self::UnknownSession { .. } | Self::Closed { .. } | Self::Failed { .. } => None,
        }
    }

    /// The storage root cannot be written at all, as opposed to what stands in it being wrong.
    pub fn is_not_writable(&self) -> bool {
        matches!(self, Self::Folder(_) | Self::Create { .. } | Self::Open { .. } | Self::NotWritable { .. } | Self::Full { .. })
    }

    /// A disk that takes nothing more, though it did before: full, over its quota, failing or made read-only.
    pub fn has_no_room(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::NotWritable { .. })
    }

    /// Tells apart what SQLite reports by one code each.
    pub(super) fn of(path: &Path, waited: Duration, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        let code = source.sqlite_error_code();
        // The shared index of the log cannot be made longer: SQLite's one I/O error that says no more than "full".
        let is_full = source.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
        let source = Arc::new(source);
        match code {
            _ if is_full => Self::Full { path, source },
            Some(ErrorCode::DiskFull) => Self::Full { path, source },
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Self::Damaged { path, source },
            Some(ErrorCode::CannotOpen) => Self::Open { path, source },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::SystemIoFailure) => Self::NotWritable { path, source },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path, waited, source },
            _ => Self::Failed { path, source },
        }
    }
}
