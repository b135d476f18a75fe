//! A session's jobs in memory: saves, then announces; rebuilds itself from the folders.
//!
//! The folder of a job is saved by its keeper before anything here hears of an end. The index is a copy of the folders.
//! No lock is held across an await.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::folders::{self, Found, JobError};
use super::job::{Job, JobState};
use super::notices::{self, NoticeState};
use super::status::EndCause;
use super::tend::tend;
use crate::agent::event::{Event, EventKind, EventSink, InputSource};
use crate::agent::inbox::{Inbox, InboxRefusal, Input, Urgency};
use crate::config::layout::Stream;
use crate::config::{Layout, Limits};
use crate::ids::{JobId, JobKind, SessionId};
use crate::store::Store;
use crate::store::job_index::JobRow;
use crate::supervisor::handle::Kept;
use crate::supervisor::record::EndRecord;

pub(crate) struct Registry {
    pub(super) session: SessionId,
    pub(super) layout: Layout,
    limits: Arc<Limits>,
    store: Option<Store>,
    events: Option<Arc<dyn EventSink>>,
    inbox: Option<Inbox>,
    entries: Mutex<BTreeMap<JobId, Entry>>,
    /// Counts changes, so that whoever waits can look again.
    changed: watch::Sender<u64>,
    tasks: TaskTracker,
}

pub(super) struct Entry {
    pub(super) job: Job,
    /// The lifeline of an attached process: as long as this lives, the keeper lets it run. `None` for a local agent.
    pub(super) kept: Option<Kept>,
    /// Beside the conversation; its end is announced.
    pub(super) background: bool,
    pub(super) tended: bool,
    /// Saved in the index and announced.
    pub(super) concluded: bool,
    /// The end is saved, and its event and notice are out.
    pub(super) told: bool,
    pub(super) notice: NoticeState,
    /// Polls that wait for this job now: they will tell its end.
    awaited: u32,
}

/// How long a notice waits for room in a full inbox.
const INBOX_PAUSE: Duration = Duration::from_millis(500);

impl Registry {
    pub(crate) fn new(
        session: SessionId,
        layout: Layout,
        limits: Arc<Limits>,
        store: Option<Store>,
        events: Option<Arc<dyn EventSink>>,
        inbox: Option<Inbox>,
    ) -> Arc<Self> {
        let (changed, _) = watch::channel(0);
        let entries = Mutex::default();
        Arc::new(Self { session, layout, limits, store, events, inbox, entries, changed, tasks: TaskTracker::new() })
    }

    /// Plain data whose fields are set one by one without a panic in between, so a poisoned lock is still good.
    pub(super) fn entries(&self) -> MutexGuard<'_, BTreeMap<JobId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn store(&self) -> Option<Store> {
        self.store.clone()
    }

    pub(crate) fn events(&self) -> Option<Arc<dyn EventSink>> {
        self.events.clone()
    }

    pub(crate) fn inbox(&self) -> Option<&Inbox> {
        self.inbox.as_ref()
    }

    /// A task that belongs to the registry.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
        self.tasks.spawn(task)
    }

    pub(crate) fn notice(&self, text: String) {
        self.show(EventKind::Notice { text });
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn announce_change(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Takes up a job that this process has started.
    pub(crate) async fn add(self: &Arc<Self>, found: Found, background: bool) {
        let Found { job, kept } = found;
        let id = job.id().clone();
        // Even when it has ended meanwhile: its end is still to be told.
        self.insert(job.clone(), Some(kept), background, NoticeState::Open, false);
        if background {
            self.started(&job).await;
        }
        self.look_after(&id);
    }

    /// A foreground shell is from now on only no longer waited for.
    pub(crate) async fn move_to_background(self: &Arc<Self>, id: &JobId) -> Option<Job> {
        let job = {
            let mut entries = self.entries();
            let entry = entries.get_mut(id)?;
            entry.background = true;
            entry.job.clone()
        };
        self.started(&job).await;
        // It may have ended in between, when nobody was to be told.
        let ended = {
            let mut entries = self.entries();
            entries.get_mut(id).filter(|entry| entry.concluded).map(|entry| {
                entry.concluded = false;
                entry.told = false;
                entry.job.clone()
            })
        };
        match ended.map(|job| (job.agent, job.state)) {
            Some((Some(agent), _)) => {
                if let Some(end) = agent.end() {
                    self.conclude_agent(&agent, &end).await;
                }
            }
            Some((None, JobState::Ended { record, .. })) => self.conclude(id, (*record).clone()).await,
            Some((None, JobState::Running { .. } | JobState::Waiting { .. })) | None => {}
        }
        self.get(id)
    }

    pub(super) fn insert(&self, job: Job, kept: Option<Kept>, background: bool, notice: NoticeState, concluded: bool) {
        let id = job.id().clone();
        let mut entries = self.entries();
        let (tended, awaited) = entries.get(&id).map_or((false, 0), |known| (known.tended, known.awaited));
        entries.insert(id, Entry { job, kept, background, tended, concluded, told: concluded, notice, awaited });
        drop(entries);
        self.announce_change();
    }

    pub(super) async fn started(&self, job: &Job) {
        self.save(job, false).await;
        let kind = EventKind::JobStarted {
            job: job.id().clone(),
            title: job.owner.title.clone(),
            pid: job.pid(),
            call_id: job.owner.call_id.clone(),
        };
        self.tell(kind).await;
    }

    /// One task per running job. Without effect for one that is looked after already, or has ended.
    pub(crate) fn look_after(self: &Arc<Self>, id: &JobId) {
        let kept = {
            let mut entries = self.entries();
            let Some(entry) = entries.get_mut(id).filter(|entry| !entry.tended && !entry.concluded) else { return };
            let Some(kept) = entry.kept.clone() else { return };
            entry.tended = true;
            kept
        };
        self.tasks.spawn(tend(self.clone(), kept, id.clone()));
    }

    /// The end of a job: remembered once, saved in the index, told, announced.
    pub(crate) async fn conclude(self: &Arc<Self>, id: &JobId, record: EndRecord) {
        let (job, background, notified) = {
            let mut entries = self.entries();
            let Some(entry) = entries.get_mut(id).filter(|entry| !entry.concluded) else { return };
            entry.concluded = true;
            if entry.job.is_running() {
                entry.job.state = folders::ended(&entry.job.folder, &entry.job.owner, record);
            }
            (entry.job.clone(), entry.background, entry.notice == NoticeState::Settled)
        };
        // Whoever waits may look now: the folder is saved.
        self.announce_change();
        if background {
            self.tell_end(&job, notified).await;
        }
        if let Some(entry) = self.entries().get_mut(id) {
            entry.told = true;
        }
        self.announce_change();
    }

    pub(super) async fn tell_end(self: &Arc<Self>, job: &Job, notified: bool) {
        self.save(job, notified).await;
        let kind = EventKind::JobEnded {
            job: job.id().clone(),
            title: job.owner.title.clone(),
            status: job.word().to_owned(),
            duration_ms: u64::try_from(job.duration().as_millis()).unwrap_or(u64::MAX),
            output_path: job.output_path(Stream::Stdout).display().to_string(),
            call_id: job.owner.call_id.clone(),
            usage: job.agent.as_ref().map(|agent| agent.totals()),
        };
        self.tell(kind).await;
        self.post_notice(job.id());
    }

    /// Whether the job is still looked after.
    pub(crate) fn follows(&self, id: &JobId) -> bool {
        self.entries().get(id).is_some_and(|entry| !entry.concluded)
    }

    /// The end cannot be known: the folder is gone or unreadable. The job is forgotten, and that is said; not of one
    /// whose end was known and whose folder was removed for that reason.
    pub(crate) fn give_up(&self, id: &JobId, reason: &str) {
        let lost = self.entries().remove(id).is_some_and(|entry| entry.job.is_running());
        self.announce_change();
        if !lost {
            return;
        }
        self.show(EventKind::Notice { text: format!("job {id} cannot be followed any more: {reason}") });
    }

    pub(crate) fn forget(&self, id: &JobId) {
        self.entries().remove(id);
        self.announce_change();
    }

    /// Keeps a foreground shell whose output is worth keeping in the index, without a word.
    pub(crate) async fn keep_silently(&self, job: &Job) {
        self.settle_notices(std::slice::from_ref(job.id()));
        self.save(job, true).await;
    }

    /// The job as it is now. Ids of other sessions and kinds are absent by construction.
    pub(crate) fn get(&self, id: &JobId) -> Option<Job> {
        let (job, kept) = {
            let entries = self.entries();
            let entry = entries.get(id)?;
            (entry.job.clone(), entry.kept.clone())
        };
        let Some(kept) = kept.filter(|_| job.is_running()) else { return Some(job) };
        // The keeper may have ended before its tend loop has run.
        match folders::look(&job.folder, &job.owner, &kept) {
            Ok(state) => Some(self.remember(id, Job { state, ..job })),
            Err(_) => Some(job),
        }
    }

    /// An end never changes once it is known.
    fn remember(&self, id: &JobId, seen: Job) -> Job {
        let mut entries = self.entries();
        match entries.get_mut(id) {
            Some(entry) if entry.job.is_running() => {
                entry.job.state = seen.state.clone();
                seen
            }
            Some(entry) => entry.job.clone(),
            None => seen,
        }
    }

    pub(crate) fn kept(&self, id: &JobId) -> Option<Kept> {
        self.entries().get(id).and_then(|entry| entry.kept.clone())
    }

    /// All jobs for which `wanted` holds, by start time. Foreground shells are not among them.
    pub(crate) fn all(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let ids: Vec<JobId> =
            self.entries().values().filter(|entry| entry.background && wanted(&entry.job)).map(|entry| entry.job.id().clone()).collect();
        let mut jobs: Vec<Job> = ids.iter().filter_map(|id| self.get(id)).collect();
        jobs.sort_by(|a, b| (a.created_at, a.id()).cmp(&(b.created_at, b.id())));
        jobs
    }

    /// Every running job, foreground shells included.
    pub(crate) fn running_ids(&self, wanted: impl Fn(&Job) -> bool) -> Vec<JobId> {
        self.entries().values().filter(|entry| entry.job.is_running() && wanted(&entry.job)).map(|entry| entry.job.id().clone()).collect()
    }

    /// Whether every end of a job that is looked after is saved and told.
    pub(crate) fn is_settled(&self) -> bool {
        self.entries().values().all(|entry| !entry.tended || entry.told || entry.job.is_running())
    }

    /// Takes up process agents that another process started in this session, and what an earlier one left.
    pub(crate) fn refresh(&self) -> Result<(), JobError> {
        let known: BTreeSet<JobId> = self.entries().keys().cloned().collect();
        for id in folders::ids_of(&self.layout, &self.session)? {
            if id.kind() == JobKind::ProcessAgent && !known.contains(&id) {
                self.take_up(&self.session, &id, NoticeState::Settled);
            }
        }
        Ok(())
    }

    fn take_up(&self, session: &SessionId, id: &JobId, notice: NoticeState) {
        match folders::read_job(&self.layout, session, id) {
            Ok(Found { job, kept }) => {
                let background = job.owner.background;
                // Somebody may have added it with its lifeline while the folder was read.
                if !self.entries().contains_key(id) {
                    let concluded = !job.is_running();
                    self.insert(job, Some(kept), background, notice, concluded);
                }
            }
            Err(error) if error.is_absent() => {}
            Err(error) => self.show(EventKind::Notice { text: error.to_string() }),
        }
    }

    /// After a restart in the same session: folders first, then the index, then what was never announced (R201, R263).
    ///
    /// `announced`: ends that the history has already.
    pub(crate) async fn recover(self: &Arc<Self>, announced: &BTreeSet<JobId>) -> Result<(), JobError> {
        let rows = match &self.store {
            Some(store) => store.jobs_of(&self.session).await.unwrap_or_default(),
            None => Vec::new(),
        };
        self.recover_agents(&rows, announced)?;
        for id in folders::ids_of(&self.layout, &self.session)? {
            let row = rows.iter().find(|row| row.id == id);
            let told = announced.contains(&id) || row.is_some_and(|row| row.notified);
            self.take_up(&self.session, &id, if told { NoticeState::Settled } else { NoticeState::Open });
            if row.is_some_and(|row| !row.notified) {
                // A shell that was moved: its folder still says foreground.
                if let Some(entry) = self.entries().get_mut(&id) {
                    entry.background = true;
                }
            }
        }
        self.recover_shells_of_agents(&rows, announced).await?;
        self.rebuild_index(&rows).await;
        for job in self.all(|_| true) {
            if job.is_running() {
                self.look_after(job.id());
            } else {
                self.post_notice(job.id());
            }
        }
        Ok(())
    }

    /// Shells that ended agents had left to this session, and those of agents that were lost with their process (R123).
    async fn recover_shells_of_agents(&self, rows: &[JobRow], announced: &BTreeSet<JobId>) -> Result<(), JobError> {
        for agent in self.agents() {
            let was_lost = agent.end().is_some_and(|end| end.cause == EndCause::KeeperVanished);
            let of_agent = match &self.store {
                Some(store) if was_lost => store.jobs_of(&agent.session).await.unwrap_or_default(),
                Some(_) | None => Vec::new(),
            };
            for id in folders::ids_of(&self.layout, &agent.session)? {
                let row = rows.iter().find(|row| row.id == id);
                let was_told = |rows: &[JobRow]| rows.iter().any(|row| row.id == id && row.notified);
                // What an agent that ended properly did not leave here, it had read itself.
                if (row.is_none() && !was_lost) || was_told(&of_agent) {
                    continue;
                }
                let told = announced.contains(&id) || was_told(rows);
                self.take_up(&agent.session, &id, if told { NoticeState::Settled } else { NoticeState::Open });
                if row.is_some()
                    && let Some(entry) = self.entries().get_mut(&id)
                {
                    entry.background = true;
                }
            }
        }
        Ok(())
    }

    /// Makes the index say what the folders say, when it does not.
    async fn rebuild_index(&self, rows: &[JobRow]) {
        let Some(store) = &self.store else { return };
        let wanted: Vec<JobRow> = self
            .entries()
            .values()
            .filter(|entry| entry.background)
            .map(|entry| self.row(&entry.job, entry.notice == NoticeState::Settled))
            .collect();
        let same = wanted.len() == rows.len()
            && wanted
                .iter()
                .all(|row| rows.iter().any(|known| known.id == row.id && known.status == row.status && known.notified == row.notified));
        if !same && let Err(error) = store.replace_jobs_of(&self.session, wanted).await {
            self.show(EventKind::Notice { text: format!("the job index could not be rebuilt: {error}") });
        }
    }

    fn row(&self, job: &Job, notified: bool) -> JobRow {
        let (ended_at, end) = match &job.state {
            JobState::Running { .. } | JobState::Waiting { .. } => (None, None),
            JobState::Ended { record, .. } => (Some(record.ended_at), serde_json::to_value(record.as_ref()).ok()),
        };
        JobRow {
            session: self.session.clone(),
            id: job.id().clone(),
            kind: kind_name(job.owner.kind).to_owned(),
            title: job.owner.title.clone(),
            status: job.word().to_owned(),
            created_at: job.created_at,
            started_at: Some(job.started_at()),
            ended_at,
            end,
            notified,
            folder: job.folder.path().to_owned(),
        }
    }

    async fn save(&self, job: &Job, notified: bool) {
        let Some(store) = &self.store else { return };
        if let Err(error) = store.put_job(self.row(job, notified)).await {
            self.show(EventKind::Notice { text: format!("the job index could not be saved: {error}") });
        }
    }

    /// Saves the event, then shows it.
    pub(crate) async fn tell(&self, kind: EventKind) {
        if let Some(store) = &self.store {
            let value = serde_json::to_value(&kind).unwrap_or_default();
            let name = value.get("event").and_then(serde_json::Value::as_str).unwrap_or("job").to_owned();
            let data = value.get("data").cloned().unwrap_or_default();
            if let Err(error) = store.append_event(&self.session, &name, data).await {
                self.show(EventKind::Notice { text: format!("an event could not be saved: {error}") });
            }
        }
        self.show(kind);
    }

    fn show(&self, kind: EventKind) {
        if let Some(events) = &self.events {
            events.send(&Event { session: self.session.clone(), kind });
        }
    }

    pub(crate) fn notice_state(&self, id: &JobId) -> Option<NoticeState> {
        self.entries().get(id).map(|entry| entry.notice)
    }

    /// The model knows these ends: no notice any more, and that is stored.
    pub(crate) fn settle_notices(self: &Registry, ids: &[JobId]) {
        let mut settled = Vec::new();
        {
            let mut entries = self.entries();
            for id in ids {
                if let Some(entry) = entries.get_mut(id).filter(|entry| !entry.job.is_running() && entry.notice != NoticeState::Settled) {
                    entry.notice = NoticeState::Settled;
                    settled.extend(entry.background.then(|| id.clone()));
                }
            }
        }
        let Some(store) = self.store.clone().filter(|_| !settled.is_empty()) else { return };
        let session = self.session.clone();
        self.tasks.spawn(async move {
            for id in settled {
                // A mark that is lost repeats a notice after a restart, which is better than losing one.
                let _ = store.mark_notified(&session, &id).await;
            }
        });
    }

    /// Posts the notice of an ended background job, unless its end is known or somebody waits to tell it.
    pub(crate) fn post_notice(self: &Arc<Self>, id: &JobId) {
        let Some(inbox) = &self.inbox else { return };
        let job = {
            let mut entries = self.entries();
            let Some(entry) = entries.get_mut(id) else { return };
            let due = entry.background && entry.concluded && entry.awaited == 0 && entry.notice == NoticeState::Open;
            if !due {
                return;
            }
            entry.notice = NoticeState::Posted;
            entry.job.clone()
        };
        let Some(cause) = job.cause() else { return };
        let text = notices::text(&job, cause, &self.limits);
        let input = Input::new(InputSource::TaskNotification, text).about(id.clone()).with_receipt(notices::receipt(self, id));
        match inbox.post(Urgency::Next, input) {
            Ok(()) => {}
            Err(InboxRefusal::Closed) => self.reopen_notice(id),
            Err(InboxRefusal::Full { .. }) => {
                self.reopen_notice(id);
                let (registry, id) = (Arc::downgrade(self), id.clone());
                self.tasks.spawn(async move {
                    tokio::time::sleep(INBOX_PAUSE).await;
                    if let Some(registry) = registry.upgrade() {
                        registry.post_notice(&id);
                    }
                });
            }
        }
    }

    /// Not told in this life; a later one of the same session will.
    fn reopen_notice(&self, id: &JobId) {
        if let Some(entry) = self.entries().get_mut(id).filter(|entry| entry.notice == NoticeState::Posted) {
            entry.notice = NoticeState::Open;
        }
    }

    /// While the guard lives, ends of these jobs are told by its holder.
    pub(crate) fn awaiting(self: &Arc<Self>, ids: &[JobId]) -> Awaiting {
        let mut entries = self.entries();
        for id in ids {
            if let Some(entry) = entries.get_mut(id) {
                entry.awaited += 1;
            }
        }
        Awaiting { registry: self.clone(), ids: ids.to_vec() }
    }
}

/// Given back when a poll ends, however it ends: what it did not tell is announced.
pub(crate) struct Awaiting {
    registry: Arc<Registry>,
    ids: Vec<JobId>,
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        {
            let mut entries = self.registry.entries();
            for id in &self.ids {
                if let Some(entry) = entries.get_mut(id) {
                    entry.awaited = entry.awaited.saturating_sub(1);
                }
            }
        }
        for id in &self.ids {
            self.registry.post_notice(id);
        }
    }
}

/// The name of a kind in the index, in JSON and in task replies.
pub fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::ProcessAgent => "process_agent",
        JobKind::LocalAgent => "local_agent",
        JobKind::Shell => "shell",
    }
}
