//! One SQLite file for all processes of a user: opening, WAL, migrations by version, one writer thread per process.
//!
//! Every request goes through a bounded queue to one thread that owns the only connection. Writes that wait there
//! together become one transaction; each is answered when that transaction is committed, never before. Synchronous
//! NORMAL: what was answered survives the death of the process, not always that of the machine.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::error::StoreError;
use super::held::{Held, Saving};
use crate::files;
use crate::secrets::Secrets;

/// A handle of the database; clones share one writer thread. The last one to go waits until everything is written.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    /// What is not written down.
    secrets: Secrets,
}

/// Version of the tables; a file with a higher one is refused.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// How long one transaction waits for those of other processes. One lasts about a millisecond, so this is only
/// reached when somebody holds the file on purpose.
const BUSY_WAIT: Duration = Duration::from_secs(30);
/// Requests that wait for the writer; beyond that the caller waits.
const QUEUE_CAPACITY: usize = 256;
/// Size of the page cache of one process, in KiB: up to 64 children share a machine.
const CACHE_KIB: i64 = 1024;
/// The log file is cut back to this size after a checkpoint.
const LOG_SIZE_LIMIT: i64 = 16 << 20;
const IN_MEMORY: &str = ":memory:";

/// Step n brings version n to n + 1. A step that was released is never changed.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, parent TEXT, task_type TEXT NOT NULL, cwd BLOB NOT NULL, model TEXT NOT NULL, mode TEXT NOT NULL,
        title TEXT NOT NULL, state TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL
    );
    CREATE INDEX sessions_by_cwd ON sessions (cwd, task_type, updated_at, created_at, id);
    CREATE INDEX sessions_by_parent ON sessions (parent, updated_at, created_at, id) WHERE parent IS NOT NULL;
    CREATE INDEX sessions_by_time ON sessions (updated_at, created_at, id);
    CREATE TABLE messages (
        session TEXT NOT NULL, seq INTEGER NOT NULL, source TEXT NOT NULL, message TEXT NOT NULL, at INTEGER NOT NULL,
        PRIMARY KEY (session, seq)
    );
    CREATE TABLE events (seq INTEGER PRIMARY KEY, session TEXT NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL, at INTEGER NOT NULL);
    CREATE INDEX events_by_session ON events (session, seq);
    CREATE TABLE jobs (
        session TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, title TEXT NOT NULL, status TEXT NOT NULL,
        created_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER, end_record TEXT, notified INTEGER NOT NULL, folder BLOB NOT NULL,
        PRIMARY KEY (session, id)
    );
    CREATE INDEX jobs_by_session ON jobs (session, created_at, id);
    CREATE INDEX jobs_by_time ON jobs (created_at, id);
    CREATE INDEX jobs_not_ended ON jobs (created_at, id) WHERE ended_at IS NULL;
"];

/// May run several times: alone, after a transaction it shared with others has failed, and when there is room again.
pub(super) type Write = Box<dyn Fn(&Connection) -> rusqlite::Result<i64> + Send>;
type Read = Box<dyn FnOnce(&Connection) + Send>;

enum Request {
    Write { write: Write, reply: oneshot::Sender<Result<i64, StoreError>> },
    Read(Read),
    Flush(oneshot::Sender<Result<(), StoreError>>),
}

struct Inner {
    path: PathBuf,
    /// `None` only while the last handle is being dropped.
    queue: Option<mpsc::Sender<Request>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    saving: Arc<Saving>,
}

impl Store {
    /// Opens the database, making it and its folder (owner-only) when missing. Blocking, about a millisecond.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        create_if_missing(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|source| StoreError::of(path, BUSY_WAIT, source))?;
        Self::start(path.to_owned(), connection)
    }

    /// A database of its own that is gone with the last handle.
    pub fn in_memory() -> Result<Self, StoreError> {
        let path = PathBuf::from(IN_MEMORY);
        let connection = Connection::open_in_memory().map_err(|source| StoreError::of(&path, BUSY_WAIT, source))?;
        Self::start(path, connection)
    }

    fn start(path: PathBuf, mut connection: Connection) -> Result<Self, StoreError> {
        prepare(&path, &mut connection)?;
        let (queue, requests) = mpsc::channel(QUEUE_CAPACITY);
        let saving = Arc::new(Saving::default());
        let writer = Writer { path: path.clone(), connection, requests, held: Held::default(), saving: Arc::clone(&saving) };
        let thread = std::thread::Builder::new()
            .name("zapmyco-store".into())
            .spawn(move || writer.run())
            .map_err(|source| StoreError::Thread { path: path.clone(), source: Arc::new(source) })?;
        let inner = Inner { path, queue: Some(queue), writer: Mutex::new(Some(thread)), saving };
        Ok(Self { inner: Arc::new(inner), secrets: Secrets::default() })
    }

    /// The same database; what is written through this handle and its clones is freed of these values.
    pub fn hiding(mut self, secrets: &Secrets) -> Self {
        self.secrets = secrets.clone();
        self
    }

    /// A text on its way to the disk.
    pub(super) fn redacted(&self, text: String) -> String {
        match self.secrets.redacted(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => redacted,
        }
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    pub(super) fn saving(&self) -> &Saving {
        &self.inner.saving
    }

    /// Everything sent before this call is on disk, or its sender has been told why not. An error: something is kept in
    /// memory only, since there is no room for it.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Flush(reply)).await?;
        answer.await.map_err(|_| self.closed())?
    }

    /// Runs one write; returns when it is committed. Once sent it happens even if this future is dropped.
    pub(super) async fn write(&self, write: impl Fn(&Connection) -> rusqlite::Result<i64> + Send + 'static) -> Result<i64, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Write { write: Box::new(write), reply }).await?;
        answer.await.map_err(|_| self.closed())?
    }

    /// Runs one read, after all writes sent before it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        table: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let read = move |connection: &Connection| {
            // The one who asked may have gone; then nobody misses the answer.
            let _ = reply.send(read(connection));
        };
        self.send(Request::Read(Box::new(read))).await?;
        let result = answer.await.map_err(|_| self.closed())?;
        result.map_err(|source| match source {
            rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => {
                StoreError::BadRow { path: self.inner.path.clone(), table, source: Arc::new(source) }
            }
            source => StoreError::of(&self.inner.path, BUSY_WAIT, source),
        })
    }

    async fn send(&self, request: Request) -> Result<(), StoreError> {
        let queue = self.inner.queue.as_ref().ok_or_else(|| self.closed())?;
        queue.send(request).await.map_err(|_| self.closed())
    }

    fn closed(&self) -> StoreError {
        StoreError::Closed { path: self.inner.path.clone() }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A closed queue is worked off to its end; then the thread ends.
        self.queue = None;
        if let Some(writer) = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // A writer that panicked has told each sender by dropping the replies.
            let _ = writer.join();
        }
    }
}

struct Writer {
    path: PathBuf,
    connection: Connection,
    requests: mpsc::Receiver<Request>,
    held: Held,
    saving: Arc<Saving>,
}

/// What a write that is kept gives: each changes one row, or its number is of no interest.
const ONE_ROW: i64 = 1;

struct Waiting {
    write: Write,
    reply: oneshot::Sender<Result<i64, StoreError>>,
}

impl Writer {
    fn run(mut self) {
        let mut waiting = Vec::new();
        let mut next = self.requests.blocking_recv();
        while let Some(request) = next {
            match request {
                Request::Write { write, reply } => waiting.push(Waiting { write, reply }),
                Request::Read(read) => {
                    self.commit(&mut waiting);
                    read(&self.connection);
                }
                Request::Flush(reply) => {
                    self.commit(&mut waiting);
                    let _ = reply.send(self.save_held());
                }
            }
            next = match self.requests.try_recv() {
                Ok(request) if waiting.len() < QUEUE_CAPACITY => Some(request),
                Ok(request) => {
                    self.commit(&mut waiting);
                    Some(request)
                }
                Err(_) => {
                    self.commit(&mut waiting);
                    self.requests.blocking_recv()
                }
            };
        }
        self.commit(&mut waiting);
        // Nobody is there any more to be told; whoever cared has asked by `flush`.
        let _ = self.save_held();
    }

    /// Writes what there was no room for.
    fn save_held(&mut self) -> Result<(), StoreError> {
        if self.held.is_empty() {
            return Ok(());
        }
        match transaction(&mut self.connection, self.held.writes()) {
            Ok(_) => {
                self.held.saved(&self.saving);
                Ok(())
            }
            Err(source) => {
                self.held.refused();
                Err(StoreError::of(&self.path, BUSY_WAIT, source))
            }
        }
    }

    /// Answers a write that has failed, or that may not overtake one that is kept.
    fn keep_or_tell(&mut self, Waiting { write, reply }: Waiting, error: StoreError) {
        let answer = match self.held.keep(write, &error, &self.saving) {
            Ok(()) => Ok(ONE_ROW),
            Err(_) => Err(error),
        };
        let _ = reply.send(answer);
    }

    /// All in one transaction; when that fails, one by one, so that each learns its own fate.
    fn commit(&mut self, waiting: &mut Vec<Waiting>) {
        if !self.held.is_empty() && !waiting.is_empty() {
            let refused = if self.held.is_due() { self.save_held().err() } else { self.saving.failing() };
            if let Some(error) = refused {
                waiting.drain(..).for_each(|waiting| self.keep_or_tell(waiting, error.clone()));
                return;
            }
        }
        if waiting.len() > 1
            && let Ok(values) = transaction(&mut self.connection, waiting.iter().map(|waiting| &waiting.write))
        {
            for (waiting, value) in waiting.drain(..).zip(values) {
                let _ = waiting.reply.send(Ok(value));
            }
            return;
        }
        for Waiting { write, reply } in waiting.drain(..) {
            if let Some(error) = self.saving.failing() {
                self.keep_or_tell(Waiting { write, reply }, error);
                continue;
            }
            match transaction(&mut self.connection, [&write]) {
                Ok(values) => _ = reply.send(Ok(values.first().copied().unwrap_or_default())),
                Err(source) => {
                    let error = StoreError::of(&self.path, BUSY_WAIT, source);
                    self.keep_or_tell(Waiting { write, reply }, error);
                }
            }
        }
    }
}

fn transaction<'w>(connection: &mut Connection, writes: impl IntoIterator<Item = &'w Write>) -> rusqlite::Result<Vec<i64>> {
    // Immediate: a transaction that begins by reading cannot wait for its turn to write, it would fail at once.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let values = writes.into_iter().map(|write| write(&transaction)).collect::<rusqlite::Result<_>>()?;
    transaction.commit()?;
    Ok(values)
}

/// An empty file is an empty database. It is put in place by a link, never opened here: closing a descriptor of the
/// file would release the locks that another connection of this process holds on it.
fn create_if_missing(path: &Path) -> Result<(), StoreError> {
    if path.exists() {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    files::create_private_folder(folder).map_err(|error| StoreError::Folder(Arc::new(error)))?;
    let create = || match tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?.into_temp_path().persist_noclobber(path) {
        Err(error) if error.error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.error),
        Ok(()) | Err(_) => Ok(()),
    };
    create().map_err(|source: std::io::Error| StoreError::Create { path: path.to_owned(), source: Arc::new(source) })
}

fn prepare(path: &Path, connection: &mut Connection) -> Result<(), StoreError> {
    let deadline = Instant::now() + BUSY_WAIT;
    loop {
        match set_up(connection) {
            Ok(version) if version > SCHEMA_VERSION => {
                return Err(StoreError::NewerVersion { path: path.to_owned(), found: version, known: SCHEMA_VERSION });
            }
            Ok(_) => return Ok(()),
            // The change to WAL does not wait for others by itself.
            Err(error) if is_busy(&error) && Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Err(source) => return Err(StoreError::of(path, BUSY_WAIT, source)),
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked))
}

/// Gives the version found; one that is too high is left untouched.
fn set_up(connection: &mut Connection) -> rusqlite::Result<i64> {
    connection.busy_timeout(BUSY_WAIT)?;
    let found = version(connection)?;
    if found > SCHEMA_VERSION {
        return Ok(found);
    }
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_SIZE_LIMIT, |_| Ok(()))?;
    if found == SCHEMA_VERSION {
        return Ok(found);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    let found = version(&transaction)?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default()) {
        transaction.execute_batch(migration)?;
    }
    if found < SCHEMA_VERSION {
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    transaction.commit()?;
    Ok(found)
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
