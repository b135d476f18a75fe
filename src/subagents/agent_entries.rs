//! Local agents in the registry: the same entries, events and notices as every other job; what differs is that their end
//! comes from their run in this process and not from a keeper.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::folders::{self, JobError};
use super::job::{Job, JobOwner, JobState, OWNER_VERSION};
use super::local::{AgentRecord, AgentStatus, LocalAgent, LocalEnd};
use super::metadata::{self, Metadata};
use super::notices::NoticeState;
use super::registry::Registry;
use super::status::EndCause;
use crate::agent::event::{EventKind, SubagentTotals};
use crate::clock;
use crate::ids::{JobId, JobKind};
use crate::store::job_index::JobRow;
use crate::supervisor::record::{EndRecord, EndedBy, RECORD_VERSION, Requester, StopRequest, StreamCount};

impl Registry {
    /// A local agent of this session, whose id is checked by being found (R330).
    pub(crate) fn agent(&self, id: &JobId) -> Option<Arc<LocalAgent>> {
        self.entries().get(id).and_then(|entry| entry.job.agent.clone())
    }

    pub(crate) fn agents(&self) -> Vec<Arc<LocalAgent>> {
        let mut agents: Vec<Arc<LocalAgent>> = self.entries().values().filter_map(|entry| entry.job.agent.clone()).collect();
        agents.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        agents
    }

    /// Registered before anything is written, so that it can be seen and stopped while it starts (R163).
    pub(crate) fn add_agent(&self, agent: &Arc<LocalAgent>) {
        let mut entries = self.entries();
        // A further run has an end of its own to tell.
        entries.remove(&agent.id);
        drop(entries);
        self.insert(job_of(agent), None, agent.is_background(), NoticeState::Open, false);
    }

    /// Its session is stored: a background run is told like every other job.
    pub(crate) async fn agent_ready(&self, agent: &Arc<LocalAgent>) {
        self.agent_changed(agent);
        if agent.is_background() {
            self.started(&job_of(agent)).await;
        }
    }

    /// Its state has changed; whoever waits looks again.
    pub(crate) fn agent_changed(&self, agent: &Arc<LocalAgent>) {
        if let Some(entry) = self.entries().get_mut(&agent.id).filter(|entry| entry.job.is_running()) {
            entry.job.state = state_of(agent);
        }
        self.announce_change();
    }

    pub(crate) fn is_concluded(&self, id: &JobId) -> bool {
        self.entries().get(id).is_none_or(|entry| entry.told)
    }

    /// A run that never began: its end is no news.
    pub(crate) fn forget_run(&self, agent: &Arc<LocalAgent>) {
        if let Some(entry) = self.entries().get_mut(&agent.id) {
            entry.job.state = state_of(agent);
            entry.concluded = true;
            entry.told = true;
            entry.notice = NoticeState::Settled;
        }
        self.announce_change();
    }

    /// The end of a run, its files written: index, events, notice. Whoever comes second changes nothing (R329).
    pub(crate) async fn conclude_agent(self: &Arc<Self>, agent: &Arc<LocalAgent>, end: &LocalEnd) {
        let (job, background, notified, first) = {
            let mut entries = self.entries();
            let Some(entry) = entries.get_mut(&agent.id).filter(|entry| !entry.concluded) else { return };
            let first = entry.job.is_running();
            entry.concluded = true;
            entry.tended = true;
            entry.job.state = state_of(agent);
            // A move right now is either seen here or finds the run concluded.
            entry.background = agent.is_background();
            (entry.job.clone(), entry.background, entry.notice == NoticeState::Settled, first)
        };
        self.announce_change();
        if first {
            self.tell(stopped_event(agent, end)).await;
        }
        if background {
            self.tell(completed_event(agent, end)).await;
            self.tell_end(&job, notified).await;
        }
        if let Some(entry) = self.entries().get_mut(&agent.id) {
            entry.told = true;
        }
        self.announce_change();
        agent.wake();
    }

    /// Takes over what a finished child left running (R123). Its own registry forgets these jobs.
    pub(crate) async fn adopt(self: &Arc<Self>, child: &Arc<Registry>) -> Vec<Job> {
        let moved: Vec<(Job, super::registry::Entry)> = {
            let mut entries = child.entries();
            let ids: Vec<JobId> =
                entries.values().filter(|entry| entry.background && entry.job.is_running()).map(|entry| entry.job.id().clone()).collect();
            ids.iter().filter_map(|id| entries.remove(id)).map(|entry| (entry.job.clone(), entry)).collect()
        };
        let mut jobs = Vec::new();
        for (job, entry) in moved {
            self.insert(job.clone(), entry.kept, true, NoticeState::Open, false);
            self.started(&job).await;
            self.look_after(job.id());
            jobs.push(job);
        }
        jobs
    }

    /// Local agents that earlier processes of this session left: ended ones as they were, running ones marked lost once
    /// (R201).
    pub(crate) fn recover_agents(&self, rows: &[JobRow], announced: &BTreeSet<JobId>) -> Result<(), JobError> {
        for id in folders::agent_ids_of(&self.layout, &self.session)? {
            if self.entries().contains_key(&id) {
                continue;
            }
            let folder = self.layout.job(&self.session, &id);
            let mut metadata = match Metadata::read(&folder, &id, &self.session) {
                Ok(Some(metadata)) => metadata,
                Ok(None) => continue,
                Err(error) => {
                    self.notice(error.to_string());
                    continue;
                }
            };
            let was_lost = metadata.end_cause.is_none();
            if was_lost {
                // Nobody waits for it any more, so that it is announced also when it ran in the foreground.
                metadata.background = true;
                let end = lost(&metadata);
                metadata = metadata.with_end(&end);
                if let Err(error) = metadata.write(&folder) {
                    self.notice(format!("agent {id} was lost; that could not be written: {error}"));
                }
            }
            let told = announced.contains(&id) || rows.iter().any(|row| row.id == id && row.notified);
            let agent = revived(metadata, folder);
            let notice = if told || !agent.is_background() { NoticeState::Settled } else { NoticeState::Open };
            self.insert(job_of(&agent), None, agent.is_background(), notice, true);
        }
        Ok(())
    }
}

/// The registry's view of an agent.
pub(super) fn job_of(agent: &Arc<LocalAgent>) -> Job {
    let (title, task) = JobOwner::shorten(&agent.description, &agent.prompt, TASK_MAX);
    Job {
        owner: Arc::new(JobOwner {
            version: OWNER_VERSION,
            id: agent.id.clone(),
            session: agent.parent.clone(),
            kind: JobKind::LocalAgent,
            title,
            task,
            cli: None,
            cwd: agent.cwd.clone(),
            time_limit_ms: None,
            call_id: agent.call_id.clone(),
            background: agent.is_background(),
            sandbox: None,
        }),
        created_at: agent.created_at,
        folder: agent.folder.clone(),
        state: state_of(agent),
        agent: Some(agent.clone()),
    }
}

/// Bytes of a prompt kept in the entry; the whole is in the metadata.
const TASK_MAX: usize = 1024;

fn state_of(agent: &LocalAgent) -> JobState {
    match (agent.status(), agent.end()) {
        (_, Some(end)) => JobState::Ended { pid: None, cause: end.cause, record: Arc::new(record_of(agent, &end)) },
        (AgentStatus::Waiting, None) => JobState::Waiting { since: agent.started_at() },
        (AgentStatus::Starting | AgentStatus::Running | AgentStatus::Ended, None) => {
            JobState::Running { pid: None, started_at: agent.started_at(), stdout: StreamCount::default(), stderr: StreamCount::default() }
        }
    }
}

/// The end in the form that all jobs have. Nothing of a process is in it.
fn record_of(agent: &LocalAgent, end: &LocalEnd) -> EndRecord {
    let cause = match agent.stopped_by() {
        Some(requester) => EndedBy::Stop { request: StopRequest { requester, at: end.ended_at } },
        None => EndedBy::Itself,
    };
    let bytes = end.text.len() as u64;
    let lines = end.text.bytes().filter(|byte| *byte == b'\n').count() as u64;
    EndRecord {
        version: RECORD_VERSION,
        cause,
        wait: None,
        started_at: end.started_at,
        ended_at: end.ended_at,
        duration_ms: end.totals.duration_ms,
        stdout: StreamCount { bytes, kept: bytes, lines },
        stderr: StreamCount::default(),
        signals: Vec::new(),
        swept: 0,
        left_over: Vec::new(),
        output_error: None,
    }
}

fn stopped_event(agent: &LocalAgent, end: &LocalEnd) -> EventKind {
    EventKind::SubagentStopped {
        agent: agent.origin(),
        status: end.cause.notice_word(JobKind::LocalAgent).to_owned(),
        partial: end.partial.map(str::to_owned),
        totals: end.totals,
        output_file: agent.folder.agent_output().display().to_string(),
        error: end.error.clone(),
    }
}

/// R120
fn completed_event(agent: &LocalAgent, end: &LocalEnd) -> EventKind {
    EventKind::BackgroundTaskCompleted {
        task_id: agent.id.clone(),
        tool_call_id: agent.call_id.clone(),
        tool_name: "Agent".to_owned(),
        task_kind: "subagent".to_owned(),
        child_session_id: agent.session.clone(),
        description: agent.title(),
        status: end.cause.notice_word(JobKind::LocalAgent).to_owned(),
        started_at: end.started_at,
        completed_at: end.ended_at,
        output_path: agent.folder.agent_output().display().to_string(),
    }
}

/// The end of a run whose process is gone. What it had written stays in its output file.
pub(super) fn lost(metadata: &Metadata) -> LocalEnd {
    let started_at = metadata.resumed_at.unwrap_or(metadata.created_at);
    let now = clock::now();
    let mut error = "the process that ran this agent ended before it did".to_owned();
    if let Some(worktree) = metadata.worktree.as_ref().filter(|worktree| worktree.path.exists()) {
        error.push_str(&format!("\n{}", worktree.report("nobody has looked at it since")));
    }
    LocalEnd {
        cause: EndCause::KeeperVanished,
        text: String::new(),
        error: Some(error),
        partial: None,
        started_at,
        ended_at: now,
        totals: SubagentTotals::default(),
    }
}

/// An agent of an earlier process, as its metadata tell it.
pub(super) fn revived(metadata: Metadata, folder: crate::config::layout::JobFolder) -> Arc<LocalAgent> {
    let cause = metadata.end_cause.unwrap_or(EndCause::KeeperVanished);
    let read = |path: &std::path::Path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let end = LocalEnd {
        cause,
        text: read(&metadata.output_file_in(&folder)),
        error: metadata.error.clone(),
        partial: metadata.partial.as_deref().map(metadata::known_partial),
        started_at: metadata.resumed_at.unwrap_or(metadata.created_at),
        ended_at: metadata.completed_at.unwrap_or(metadata.updated_at),
        totals: SubagentTotals {
            usage: metadata.usage.unwrap_or_default(),
            tool_uses: metadata.total_tool_use_count.unwrap_or_default(),
            duration_ms: metadata.total_duration_ms.unwrap_or_default(),
        },
    };
    let (run, background) = (metadata.run, metadata.background);
    let agent = LocalAgent::new(recorded(metadata, folder), background);
    agent.revive(run, stopped_by(cause), end);
    agent
}

/// An agent that runs in another process, as its metadata tell it.
pub(super) fn seen_running(metadata: Metadata, folder: crate::config::layout::JobFolder) -> Arc<LocalAgent> {
    let (run, background) = (metadata.run, metadata.background);
    let started_at = metadata.resumed_at.unwrap_or(metadata.created_at);
    let agent = LocalAgent::new(recorded(metadata, folder), background);
    agent.seen_running(run, started_at);
    agent
}

fn recorded(metadata: Metadata, folder: crate::config::layout::JobFolder) -> AgentRecord {
    AgentRecord {
        id: metadata.agent_id.clone(),
        parent: metadata.parent_session_id.clone(),
        profile: metadata.profile(),
        description: metadata.description,
        prompt: metadata.prompt,
        call_id: metadata.parent_tool_use_id,
        cwd: metadata.cwd,
        worktree: metadata.worktree,
        folder,
        tools: metadata.tools,
        model: metadata.model.unwrap_or_else(metadata::unknown_model),
        model_origin: metadata.model_origin,
        created_at: metadata.created_at,
        warnings: metadata.warnings,
    }
}

/// Who had stopped it, for R213.
fn stopped_by(cause: EndCause) -> Option<Requester> {
    use super::status::StoppedBy;
    match cause {
        EndCause::Stopped { by: StoppedBy::Model } => Some(Requester::Model),
        EndCause::Stopped { by: StoppedBy::Person } => Some(Requester::Person),
        EndCause::Stopped { by: StoppedBy::RunEnd } => Some(Requester::RunEnd),
        _ => None,
    }
}
