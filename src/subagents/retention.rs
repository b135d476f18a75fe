//! Old jobs go, by age, count and bytes, once a day; never a running one, never one whose end waits to be announced.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use super::agent_folders;
use super::folders::{self, JobError};
use super::job::{Job, JobState};
use crate::clock;
use crate::config::{Layout, Limits};
use crate::files::{self, FileError, Sync};
use crate::ids::{JobId, JobKind, SessionId};
use crate::store::job_index::JobFilter;
use crate::store::{Store, StoreError};
use crate::supervisor::record::RecordError;
use crate::supervisor::recovery::{self, EndedJob, RetentionRules};

/// Why old jobs were not cleared away.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    #[error(transparent)]
    Jobs(#[from] JobError),
    #[error(transparent)]
    Index(#[from] StoreError),
    #[error(transparent)]
    Remove(#[from] RecordError),
    #[error(transparent)]
    Mark(#[from] FileError),
    #[error("the clearing away was interrupted")]
    Interrupted,
}

const ONCE_PER: Duration = Duration::from_secs(24 * 3600);

/// Whether the last clearing away is a day old. A mark from the future counts as none: the clock was set back.
pub fn is_due(layout: &Layout) -> bool {
    let changed = std::fs::metadata(layout.retention_mark()).and_then(|metadata| metadata.modified());
    changed.map_or(true, |changed| SystemTime::now().duration_since(changed).map_or(true, |age| age >= ONCE_PER))
}

/// Removes what the limits no longer keep, folders first, then their rows; gives the removed ids. Without a store every
/// end counts as announced.
pub async fn apply(layout: &Layout, limits: &Limits, store: Option<&Store>) -> Result<Vec<JobId>, RetentionError> {
    let waiting: BTreeSet<(SessionId, JobId)> = match store {
        Some(store) => {
            let rows = store.all_jobs(JobFilter { ended: Some(true), ..JobFilter::default() }).await?;
            rows.into_iter().filter(|row| !row.notified).map(|row| (row.session, row.id)).collect()
        }
        None => BTreeSet::new(),
    };
    let rules = RetentionRules { age: limits.retention_age, count: limits.retention_count, bytes: limits.retention_bytes };
    let own_layout = layout.clone();
    let removed = tokio::task::spawn_blocking(move || remove_old(&own_layout, &waiting, rules));
    let removed = removed.await.map_err(|_| RetentionError::Interrupted)??;
    if let Some(store) = store {
        for (session, id) in &removed {
            store.remove_job(session, id).await?;
        }
    }
    Ok(removed.into_iter().map(|(_, id)| id).collect())
}

fn remove_old(
    layout: &Layout,
    waiting: &BTreeSet<(SessionId, JobId)>,
    rules: RetentionRules,
) -> Result<Vec<(SessionId, JobId)>, RetentionError> {
    // First the mark: two processes that start at once do it once.
    files::replace(&layout.retention_mark(), b"", Sync::Process)?;
    let processes = folders::scan_all(layout)?.found.into_iter().map(|found| found.job);
    let ended: Vec<Job> = processes.chain(agent_folders::scan(layout, None)?.jobs).filter(|job| !job.is_running()).collect();
    let facts: Vec<EndedJob> = ended.iter().filter_map(|job| fact(job, waiting)).collect();
    let mut removed = Vec::new();
    for index in recovery::choose(&facts, clock::now(), rules) {
        let Some(job) = ended.get(index) else { continue };
        match job.owner.kind {
            JobKind::LocalAgent => remove_agent(job)?,
            JobKind::ProcessAgent | JobKind::Shell => recovery::remove(&job.folder)?,
        }
        removed.push((job.owner.session.clone(), job.id().clone()));
        if let Some(session_folder) = job.folder.path().parent() {
            // Goes when it is empty, and only then.
            let _ = std::fs::remove_dir(session_folder);
        }
    }
    Ok(removed)
}

/// The folder of an ended local agent; its conversation stays in the store.
fn remove_agent(job: &Job) -> Result<(), FileError> {
    std::fs::remove_dir_all(job.folder.path()).map_err(FileError::at("cannot remove", job.folder.path()))
}

fn fact(job: &Job, waiting: &BTreeSet<(SessionId, JobId)>) -> Option<EndedJob> {
    let JobState::Ended { record, .. } = &job.state else { return None };
    let size = |path: std::path::PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let task = match job.owner.kind {
        JobKind::LocalAgent => size(job.folder.agent_metadata()) + size(job.folder.agent_task_output()),
        JobKind::ProcessAgent | JobKind::Shell => size(job.folder.task()),
    };
    Some(EndedJob {
        ended_at: record.ended_at,
        bytes: record.stdout.kept + record.stderr.kept + task,
        unannounced: waiting.contains(&(job.owner.session.clone(), job.id().clone())),
    })
}
