//! Local agents as their folders tell them, for one session or for all, to whoever is not the process that runs them.

use crate::config::Layout;
use crate::files;
use crate::ids::{JobId, JobKind, SessionId};

use super::agent_entries::{job_of, lost, revived, seen_running};
use super::folders::{JobError, agent_ids_of, names_in};
use super::job::Job;
use super::metadata::{Metadata, MetadataError};

/// Local agents found, and folders that could not be understood.
#[derive(Default)]
pub struct AgentScan {
    pub jobs: Vec<Job>,
    pub problems: Vec<JobError>,
}

/// The local agents of one session, or of all.
pub fn scan(layout: &Layout, only: Option<&SessionId>) -> Result<AgentScan, JobError> {
    let mut scan = AgentScan::default();
    for (session, id) in all_ids(layout, only)? {
        match read(layout, &session, &id) {
            Ok(Some(job)) => scan.jobs.push(job),
            Ok(None) => {}
            Err(error) => scan.problems.push(error),
        }
    }
    Ok(scan)
}

/// Finds a local agent by id, in one session or among all. Ids are random, so at most one fits.
pub fn find(layout: &Layout, only: Option<&SessionId>, id: &JobId) -> Result<Option<Job>, JobError> {
    let of = all_ids(layout, only)?.into_iter().find(|(_, other)| other == id);
    of.map_or(Ok(None), |(session, id)| read(layout, &session, &id))
}

/// Records as lost what a dead process had been running, so that it is announced once when its session is taken up again.
/// `true` when this call did it.
pub(super) fn settle(layout: &Layout, session: &SessionId, id: &JobId) -> Result<bool, JobError> {
    let folder = layout.job(session, id);
    let Some(mut metadata) = Metadata::read(&folder, id, session)?.filter(|metadata| metadata.end_cause.is_none()) else {
        return Ok(false);
    };
    if is_held(layout, session) {
        return Ok(false);
    }
    // Nobody waits for it any more, so that it is announced also when it ran in the foreground.
    metadata.background = true;
    let end = lost(&metadata);
    metadata.with_end(&end).write(&folder).map_err(MetadataError::File)?;
    Ok(true)
}

pub(super) fn all_ids(layout: &Layout, only: Option<&SessionId>) -> Result<Vec<(SessionId, JobId)>, JobError> {
    let sessions: Vec<SessionId> = match only {
        Some(session) => vec![session.clone()],
        None => names_in(&layout.agents_root())?.iter().filter_map(|name| SessionId::parse(name).ok()).collect(),
    };
    let mut all = Vec::new();
    for session in sessions {
        all.extend(agent_ids_of(layout, &session)?.into_iter().map(|id| (session.clone(), id)));
    }
    Ok(all)
}

/// A running one whose process is gone is lost, whether or not that is recorded yet.
fn read(layout: &Layout, session: &SessionId, id: &JobId) -> Result<Option<Job>, JobError> {
    debug_assert_eq!(id.kind(), JobKind::LocalAgent);
    let folder = layout.job(session, id);
    let Some(metadata) = Metadata::read(&folder, id, session)? else { return Ok(None) };
    let agent = match metadata.end_cause {
        None if is_held(layout, session) => seen_running(metadata, folder),
        None => {
            let end = lost(&metadata);
            revived(metadata.with_end(&end), folder)
        }
        Some(_) => revived(metadata, folder),
    };
    Ok(Some(job_of(&agent)))
}

/// Whether a process works on the session now.
pub(super) fn is_held(layout: &Layout, session: &SessionId) -> bool {
    let lock = layout.session_lock(session);
    lock.exists() && matches!(files::try_lock(&lock), Ok(None))
}
