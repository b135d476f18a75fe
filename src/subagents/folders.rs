//! Jobs as the folders tell them, for one session or for all.
//!
//! The folders are the truth: everything here works from them alone, without a database and without a runtime.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::job::{Job, JobOwner, JobState, OWNER_VERSION};
use super::metadata::MetadataError;
use super::status::EndCause;
use crate::config::Layout;
use crate::config::layout::JobFolder;
use crate::ids::{JobId, JobKind, SessionId};
use crate::supervisor::handle::{Kept, Look};
use crate::supervisor::record::{EndRecord, RecordError, Spec, Status, StreamCount, read_spec, read_status};

/// Why a job cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the owner's part of {path} is not readable: {source}", path = path.display())]
    Owner { path: std::path::PathBuf, source: serde_json::Error },
    #[error("the owner's part of {path} has version {found}, this program knows version {OWNER_VERSION}", path = path.display())]
    OwnerVersion { path: std::path::PathBuf, found: u32 },
    /// The folder says that it is another job's (R330).
    #[error("{path} holds the record of {found}", path = path.display())]
    Foreign { path: std::path::PathBuf, found: JobId },
    #[error(transparent)]
    Agent(#[from] MetadataError),
    #[error("cannot list {path}: {source}", path = path.display())]
    List { path: std::path::PathBuf, source: std::io::Error },
}

impl JobError {
    /// There is no such job (any more): not a fault.
    pub fn is_absent(&self) -> bool {
        matches!(self, JobError::Record(RecordError::NoJob { .. } | RecordError::NeverStarted { .. }))
    }
}

/// A job with the handle to reach it.
#[derive(Clone)]
pub struct Found {
    pub job: Job,
    pub kept: Kept,
}

/// Reads one job. A keeper that died without a record is settled by looking.
pub fn read_job(layout: &Layout, session: &SessionId, id: &JobId) -> Result<Found, JobError> {
    let folder = layout.job(session, id);
    let owner = read_owner(&folder, id, session)?;
    let kept = Kept::open(folder.clone());
    let state = look(&folder, &owner.0, &kept)?;
    Ok(Found { job: Job { owner: Arc::new(owner.0), created_at: owner.1, folder, state, agent: None }, kept })
}

/// A job that this process has just started. Nothing is opened, since descriptors may be short, and a job that runs must
/// not be told as one that could not be started.
pub(crate) fn just_started(layout: &Layout, session: &SessionId, id: &JobId, kept: Kept) -> Result<Found, JobError> {
    let Some((spec, payload)) = kept.started() else { return read_job(layout, session, id) };
    let folder = kept.folder().clone();
    let (owner, created_at) = owner_of(spec.clone(), &folder, id, session)?;
    let none = StreamCount::default();
    let state = JobState::Running { pid: Some(payload.pid), started_at: created_at, stdout: none, stderr: none };
    Ok(Found { job: Job { owner: Arc::new(owner), created_at, folder, state, agent: None }, kept })
}

fn read_owner(folder: &JobFolder, id: &JobId, session: &SessionId) -> Result<(JobOwner, chrono::DateTime<chrono::Local>), JobError> {
    let spec = read_spec(folder)?.ok_or_else(|| RecordError::NoJob { path: folder.path().to_owned() })?;
    owner_of(spec, folder, id, session)
}

fn owner_of(
    spec: Spec,
    folder: &JobFolder,
    id: &JobId,
    session: &SessionId,
) -> Result<(JobOwner, chrono::DateTime<chrono::Local>), JobError> {
    let path = folder.spec();
    let version = spec.owner.get("version").and_then(serde_json::Value::as_u64).and_then(|found| u32::try_from(found).ok());
    if let Some(found) = version.filter(|found| *found != OWNER_VERSION) {
        return Err(JobError::OwnerVersion { path, found });
    }
    let owner: JobOwner = serde_json::from_value(spec.owner).map_err(|source| JobError::Owner { path: path.clone(), source })?;
    if owner.id != *id || owner.session != *session {
        return Err(JobError::Foreign { path, found: owner.id });
    }
    Ok((owner, spec.created_at))
}

/// What the folder says now.
pub(crate) fn look(folder: &JobFolder, owner: &JobOwner, kept: &Kept) -> Result<JobState, JobError> {
    Ok(match kept.look()? {
        Look::Running(status) => running(&status),
        Look::Ended(record) => ended(folder, owner, record),
    })
}

fn running(status: &Status) -> JobState {
    JobState::Running {
        pid: (status.payload.pid != 0).then_some(status.payload.pid),
        started_at: status.started_at,
        stdout: status.stdout,
        stderr: status.stderr,
    }
}

pub(crate) fn ended(folder: &JobFolder, owner: &JobOwner, record: EndRecord) -> JobState {
    let pid = read_status(folder).ok().flatten().map(|status| status.payload.pid).filter(|pid| *pid != 0);
    JobState::Ended { pid, cause: EndCause::from_record(owner.kind, &record), record: Arc::new(record) }
}

/// The ids that have a folder in this session, of both kinds.
pub(crate) fn ids_of(layout: &Layout, session: &SessionId) -> Result<Vec<JobId>, JobError> {
    let mut ids = Vec::new();
    for kind in [JobKind::ProcessAgent, JobKind::Shell] {
        let path = layout.session_jobs(kind, session);
        for name in names_in(&path)? {
            ids.extend(JobId::parse(&name).ok().filter(|id| id.kind() == kind));
        }
    }
    Ok(ids)
}

/// The local agents that have a folder in this session.
pub(crate) fn agent_ids_of(layout: &Layout, session: &SessionId) -> Result<Vec<JobId>, JobError> {
    let names = names_in(&layout.session_jobs(JobKind::LocalAgent, session))?;
    Ok(names.iter().filter_map(|name| JobId::parse(name).ok()).filter(|id| id.kind() == JobKind::LocalAgent).collect())
}

/// Empty where there is no such folder.
pub(super) fn names_in(path: &Path) -> Result<Vec<String>, JobError> {
    let list = |source| JobError::List { path: path.to_owned(), source };
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(list(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(list)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// Jobs found, and folders that could not be understood: one bad folder never spoils the list.
#[derive(Default)]
pub struct Scan {
    pub found: Vec<Found>,
    pub problems: Vec<JobError>,
}

impl Scan {
    fn add(&mut self, layout: &Layout, session: &SessionId, id: &JobId) {
        match read_job(layout, session, id) {
            Ok(found) => self.found.push(found),
            Err(error) if error.is_absent() => {}
            Err(error) => self.problems.push(error),
        }
    }

    /// By start time (R372).
    fn sorted(mut self) -> Self {
        self.found.sort_by(|a, b| (a.job.created_at, a.job.id()).cmp(&(b.job.created_at, b.job.id())));
        self
    }
}

/// All jobs of one session, by start time.
pub fn scan_session(layout: &Layout, session: &SessionId) -> Result<Scan, JobError> {
    let mut scan = Scan::default();
    for id in ids_of(layout, session)? {
        scan.add(layout, session, &id);
    }
    Ok(scan.sorted())
}

/// All jobs of all sessions, by start time.
pub fn scan_all(layout: &Layout) -> Result<Scan, JobError> {
    let mut scan = Scan::default();
    for (session, id) in all_ids(layout)? {
        scan.add(layout, &session, &id);
    }
    Ok(scan.sorted())
}

pub(crate) fn all_ids(layout: &Layout) -> Result<Vec<(SessionId, JobId)>, JobError> {
    let mut all = Vec::new();
    for (kind, root) in layout.job_roots() {
        for session in names_in(&root)? {
            let Ok(session) = SessionId::parse(&session) else { continue };
            for name in names_in(&layout.session_jobs(kind, &session))? {
                all.extend(JobId::parse(&name).ok().filter(|id| id.kind() == kind).map(|id| (session.clone(), id)));
            }
        }
    }
    Ok(all)
}

/// Finds a job of one session.
pub(crate) fn find(layout: &Layout, session: &SessionId, id: &JobId) -> Result<Option<Found>, JobError> {
    match read_job(layout, session, id) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds a job by id among all sessions. Ids are random, so at most one fits.
pub(crate) fn find_anywhere(layout: &Layout, id: &JobId) -> Result<Option<Found>, JobError> {
    let of = all_ids(layout)?.into_iter().find(|(_, other)| other == id);
    of.map_or(Ok(None), |(session, id)| find(layout, &session, &id))
}

/// Between two looks of a command that has no runtime.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Waits for the end without a runtime.
pub(crate) fn wait_blocking(found: &Found) -> Result<Job, JobError> {
    loop {
        let state = look(&found.job.folder, &found.job.owner, &found.kept)?;
        if matches!(state, JobState::Ended { .. }) {
            return Ok(Job { state, ..found.job.clone() });
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}
