//! Launch, poll, list, stop, wait: what the tools call. Cheap to clone; all clones share one session's jobs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Local};
use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answers::{Asked, Ended, once};
use super::child::LocalParts;
use super::folders::{Found, JobError, just_started};
use super::handover::{ChildSettings, HandoverError, ModePage};
use super::in_process::Host;
use super::job::{Job, JobView};
use super::poll::longest_wait;
use super::process::Starter;
use super::registry::Registry;
use super::steering::Mail;
use super::turns::Turns;
use crate::agent::Role;
use crate::agent::budget::Budget;
use crate::agent::event::EventSink;
use crate::agent::inbox::Inbox;
use crate::clock;
use crate::config::{Environment, Layout, Limits};
use crate::files::FileError;
use crate::ids::{JobId, JobKind, SessionId};
use crate::permissions::Mode;
use crate::store::Store;
use crate::supervisor::handle::StopAnswer;
use crate::supervisor::launch::{LaunchError, Launcher, Order};
use crate::supervisor::plan::{OnOwnerDeath, Program};
use crate::supervisor::record::{RecordError, Requester};

/// What a session's delegation is made of.
pub struct DelegationParts {
    pub launcher: Launcher,
    /// `None`: the folders alone.
    pub store: Option<Store>,
    pub layout: Layout,
    pub limits: Arc<Limits>,
    pub session: SessionId,
    pub cwd: PathBuf,
    pub environment: Environment,
    /// What process children are handed.
    pub child: ChildSettings,
    /// Which program a process child is.
    pub child_program: Program,
    pub role: Role,
    /// Names of provider keys: left out of the environment of shells (R332).
    pub hidden_variables: Vec<String>,
    pub events: Option<Arc<dyn EventSink>>,
    /// Where notices go; `None`: nobody is told.
    pub inbox: Option<Inbox>,
    /// What the session shares with all its children; `None`: no limit.
    pub budget: Option<Arc<Budget>>,
    /// What children in this process are made from; `None`: there are none.
    pub local: Option<LocalParts>,
}

#[derive(Clone)]
pub struct Delegation {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub starter: Starter,
    pub launcher: Launcher,
    pub registry: Arc<Registry>,
    pub turns: Turns,
    pub host: Option<Arc<Host>>,
    pub mail: Mail,
}

/// A child that runs.
#[derive(Clone, Debug)]
pub struct Started {
    pub id: JobId,
    pub created_at: DateTime<Local>,
    pub job: Job,
}

/// Why nothing was started. No half-made id is left.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("the task is empty")]
    EmptyTask,
    #[error("the task holds a NUL character (at byte {at}), which no process argument can carry; remove it and call again")]
    NulInTask { at: usize },
    #[error("the start was cancelled while it waited for its turn")]
    Cancelled,
    #[error("cannot wait for a turn: {0}")]
    Turn(#[from] FileError),
    #[error("settings of the child: {0}")]
    Handover(#[from] HandoverError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("the started job cannot be read: {0}")]
    Job(#[from] JobError),
    /// R315
    #[error("this turn uses a model given for it alone, which no process of its own may use; use the tool Agent in the foreground")]
    OneOffModel,
    #[error("the start was interrupted")]
    Interrupted,
}

impl SpawnError {
    /// Whether the folder of the new job could not be made (R385).
    pub fn is_folder(&self) -> bool {
        matches!(self, SpawnError::Launch(error) if error.is_folder())
    }
}

/// Tries of another id when one is taken: eight random digits meet rarely, so a few are plenty.
const ID_TRIES: u32 = 16;

/// Whether a child can be given this task: known before anything is started or waited for.
pub(crate) fn check_task(task: &str) -> Result<(), SpawnError> {
    if task.trim().is_empty() {
        return Err(SpawnError::EmptyTask);
    }
    task.find('\0').map_or(Ok(()), |at| Err(SpawnError::NulInTask { at }))
}

/// Starts a process agent for a checked task; blocking.
pub(crate) fn launch_agent(
    launcher: &Launcher,
    starter: &Starter,
    task: &str,
    call_id: Option<String>,
) -> Result<(Started, Found), SpawnError> {
    let make_id = || JobId::new_process_agent(clock::now());
    launch(launcher, starter, make_id, |id| Ok(starter.agent(id, task, call_id.clone())?))
}

/// Starts under the first id that is free.
pub(crate) fn launch(
    launcher: &Launcher,
    starter: &Starter,
    make_id: impl Fn() -> JobId,
    order: impl Fn(&JobId) -> Result<Order, SpawnError>,
) -> Result<(Started, Found), SpawnError> {
    let mut tries = 0;
    loop {
        let id = make_id();
        match launcher.launch(order(&id)?) {
            Ok(kept) => {
                let found = just_started(&starter.layout, &starter.session, &id, kept)?;
                let started = Started { id, created_at: found.job.created_at, job: found.job.clone() };
                return Ok((started, found));
            }
            Err(LaunchError::FolderTaken { .. }) if tries < ID_TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

impl Delegation {
    pub fn new(parts: DelegationParts) -> Self {
        // Without a page the child keeps the mode it was started with, which is this one.
        let mode_page = parts.child.mode.and_then(|mode| ModePage::create(mode).ok());
        let starter = Starter {
            layout: parts.layout.clone(),
            limits: parts.limits.clone(),
            session: parts.session.clone(),
            cwd: parts.cwd,
            environment: parts.environment,
            child: parts.child,
            child_program: parts.child_program,
            mode_page,
            budget: parts.budget,
            role: parts.role,
            hidden_variables: parts.hidden_variables,
            on_owner_death: OnOwnerDeath::Stop,
        };
        let registry = Registry::new(parts.session, parts.layout, parts.limits, parts.store, parts.events, parts.inbox);
        let host = parts.local.map(|local| Arc::new(Host::new(local, starter.limits.local_agents_max)));
        Self { inner: Arc::new(Inner { starter, launcher: parts.launcher, registry, turns: Turns::new(), host, mail: Mail::default() }) }
    }

    pub fn limits(&self) -> &Limits {
        &self.inner.starter.limits
    }

    /// After a resume: takes up what earlier processes of this session left and posts what was never announced.
    /// `announced`: ends that the history has already.
    pub async fn recover(&self, announced: &BTreeSet<JobId>) -> Result<(), JobError> {
        self.inner.registry.recover(announced).await
    }

    /// Running children see a stricter mode at their next call (R285).
    pub fn set_mode(&self, mode: Mode) -> std::io::Result<()> {
        self.inner.starter.mode_page.as_ref().map_or(Ok(()), |page| page.set(mode))
    }

    /// What a process agent is started with now: what a person has answered for the session holds for it too (R243).
    fn starter_now(&self) -> Starter {
        let mut starter = self.inner.starter.clone();
        if let Some(host) = &self.inner.host {
            let (_, answers) = host.nursery.parts.policy.granted().lists();
            starter.child.allow.extend(answers.allow.iter().map(ToString::to_string));
            starter.child.deny.extend(answers.deny.iter().map(ToString::to_string));
        }
        starter
    }

    /// Starts a process agent and returns when its payload runs. With `process_agents_max` set it first waits its turn.
    pub async fn spawn_agent(&self, task: &str, call_id: Option<String>, cancel: &CancellationToken) -> Result<Started, SpawnError> {
        check_task(task)?;
        if self.is_once() {
            return Err(SpawnError::OneOffModel);
        }
        let _turn = self.inner.turns.take(&self.inner.registry, self.limits(), cancel).await?;
        let inner = self.inner.clone();
        let task = task.to_owned();
        let starter = self.starter_now();
        let launched = tokio::task::spawn_blocking(move || launch_agent(&inner.launcher, &starter, &task, call_id)).await;
        let (started, found) = launched.map_err(|_| SpawnError::Interrupted)??;
        self.inner.registry.add(found, true).await;
        Ok(started)
    }

    /// Waits for the asked process agents as R355 says; one answer per id, repeated ids once. What is told here is not
    /// announced again. A fired token ends the waiting at once.
    pub async fn poll(&self, ids: &[String], extra: Duration, cancel: &CancellationToken) -> Vec<Asked> {
        let registry = &self.inner.registry;
        // A folder that cannot be listed leaves what is known already.
        let _ = registry.refresh();
        let asked: Vec<(&str, Option<JobId>)> = once(ids).map(|text| (text, self.known(text, JobKind::ProcessAgent))).collect();
        let known: Vec<JobId> = asked.iter().filter_map(|(_, id)| id.clone()).collect();
        let waiting = registry.awaiting(&known);
        self.wait_for(&known, longest_wait(extra, self.limits()), cancel).await;
        let answers: Vec<Asked> = asked
            .into_iter()
            .map(|(text, id)| match id.and_then(|id| registry.get(&id)) {
                Some(job) => Asked::Found(Box::new(job)),
                None => Asked::Unknown(text.to_owned()),
            })
            .collect();
        if !cancel.is_cancelled() {
            let told: Vec<JobId> = answers
                .iter()
                .filter_map(|answer| match answer {
                    Asked::Found(job) if !job.is_running() => Some(job.id().clone()),
                    Asked::Found(_) | Asked::Unknown(_) | Asked::Broken { .. } => None,
                })
                .collect();
            registry.settle_notices(&told);
        }
        drop(waiting);
        answers
    }

    /// Returns when all of these have ended, at the time limit, or when the token fires.
    pub(crate) async fn wait_for(&self, ids: &[JobId], longest: Duration, cancel: &CancellationToken) {
        let registry = &self.inner.registry;
        for id in ids {
            registry.look_after(id);
        }
        let deadline = Instant::now() + longest;
        let mut changes = registry.changes();
        loop {
            changes.mark_unchanged();
            let runs = ids.iter().any(|id| registry.get(id).is_some_and(|job| job.is_running()));
            if !runs {
                return;
            }
            let next_look = deadline.min(Instant::now() + self.limits().poll_interval);
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(next_look) => if next_look == deadline { return },
                () = cancel.cancelled() => return,
            }
        }
    }

    /// A text that is the id of a job of this session and kind. Everything else is unknown (R365, R366).
    fn known(&self, text: &str, kind: JobKind) -> Option<JobId> {
        JobId::parse(text).ok().filter(|id| id.kind() == kind && self.inner.registry.kept(id).is_some())
    }

    /// The process agents of this session, by start time.
    pub async fn list(&self) -> Result<Vec<Job>, JobError> {
        self.inner.registry.refresh()?;
        Ok(self.inner.registry.all(|job| job.owner.kind == JobKind::ProcessAgent))
    }

    /// Ends the asked process agents side by side; returns when every tree is empty.
    pub async fn kill(&self, ids: &[String], requester: Requester) -> Vec<Ended> {
        let _ = self.inner.registry.refresh();
        let outcomes = once(ids).map(|text| async move {
            match self.known(text, JobKind::ProcessAgent) {
                Some(id) => self.stop_job(&id, requester).await,
                None => Ended::Unknown(text.to_owned()),
            }
        });
        join_all(outcomes).await
    }

    /// Ends one job and waits until its tree is empty. When a model asked for it, the end of a process is not announced: the
    /// answer says all there is. That of an agent in this process is (R197): the notice brings what it had found.
    pub(crate) async fn stop_job(&self, id: &JobId, requester: Requester) -> Ended {
        let registry = &self.inner.registry;
        let Some(job) = registry.get(id) else { return Ended::Unknown(id.to_string()) };
        if !job.is_running() {
            return Ended::Before(Box::new(job));
        }
        registry.look_after(id);
        let waiting = registry.awaiting(std::slice::from_ref(id));
        let failed = |reason: String| Ended::Failed { id: id.to_string(), reason };
        if let Some(agent) = job.agent {
            agent.request_stop(requester);
            // Its run ends within the grace time, whatever its tools do.
            self.wait_for_conclusion(id).await;
            let Some(job) = registry.get(id) else { return failed("it is gone".into()) };
            drop(waiting);
            return Ended::now_or_before(job);
        }
        let Some(kept) = registry.kept(id) else { return Ended::Unknown(id.to_string()) };
        let record = match kept.request_stop(requester) {
            Ok(StopAnswer::AlreadyEnded(record)) => record,
            Ok(StopAnswer::Requested) => match kept.ended().await {
                Ok(record) => record,
                Err(error) => return failed(error.to_string()),
            },
            Err(error) => return failed(error.to_string()),
        };
        registry.conclude(id, record).await;
        let Some(job) = registry.get(id) else { return failed("it is gone".into()) };
        let ended = Ended::now_or_before(job);
        if requester == Requester::Model && matches!(ended, Ended::Now(_)) {
            registry.settle_notices(std::slice::from_ref(id));
        }
        drop(waiting);
        ended
    }

    async fn wait_for_conclusion(&self, id: &JobId) {
        let registry = &self.inner.registry;
        let mut changes = registry.changes();
        while !registry.is_concluded(id) {
            // The registry outlives all who wait on it.
            let _ = changes.changed().await;
        }
    }

    /// Every running background job.
    pub fn running(&self) -> Vec<JobView> {
        self.running_jobs().iter().map(Job::view).collect()
    }

    fn running_jobs(&self) -> Vec<Job> {
        let mut jobs = self.inner.registry.all(Job::is_running);
        jobs.retain(Job::is_running);
        jobs
    }

    /// Returns when one of the jobs that run now has ended; at once when none runs.
    pub async fn any_end(&self) {
        let registry = &self.inner.registry;
        let mut changes = registry.changes();
        let running = registry.running_ids(|_| true);
        for id in &running {
            registry.look_after(id);
        }
        while !running.is_empty() && running.iter().all(|id| registry.get(id).is_some_and(|job| job.is_running())) {
            let look = tokio::time::sleep(self.limits().poll_interval);
            tokio::select! {
                _ = changes.changed() => {}
                () = look => {}
            }
        }
    }

    /// Ends every running job, foreground shells included, and waits until all are recorded and saved. A second call while
    /// the first one waits is hard: no grace time. Gives back what had been running in the background.
    pub async fn stop_all(&self, requester: Requester) -> Vec<JobView> {
        self.stop_where(requester, |_| true).await
    }

    /// As [`Self::stop_all`], for what cannot outlive this process: shells, and agents that live in it.
    pub async fn stop_bound(&self, requester: Requester) -> Vec<JobView> {
        self.stop_where(requester, |job| match job.owner.kind {
            JobKind::Shell | JobKind::LocalAgent => true,
            JobKind::ProcessAgent => false,
        })
        .await
    }

    async fn stop_where(&self, requester: Requester, wanted: impl Fn(&Job) -> bool) -> Vec<JobView> {
        let registry = &self.inner.registry;
        let background: BTreeSet<JobId> = self.running_jobs().iter().map(|job| job.id().clone()).collect();
        let ids = registry.running_ids(wanted);
        join_all(ids.iter().map(|id| self.stop_job(id, requester))).await;
        self.settled().await;
        let stopped = ids.iter().filter(|id| background.contains(*id));
        stopped.filter_map(|id| registry.get(id)).map(|job| job.view()).collect()
    }

    /// Waits until every end that is known is saved and told: its notice is in the inbox, or not wanted.
    pub async fn settled(&self) {
        let mut changes = self.inner.registry.changes();
        while !self.inner.registry.is_settled() {
            let look = tokio::time::sleep(self.limits().poll_interval);
            tokio::select! {
                _ = changes.changed() => {}
                () = look => {}
            }
        }
    }

    /// From now on process agents go on when this process ends. Gives back those for which that holds; shells and
    /// children that could not be told are not among them.
    pub fn detach_all(&self) -> Vec<JobView> {
        let detached = |job: &Job| {
            match self.inner.registry.kept(job.id())?.detach() {
                // One that an earlier process of this session let go has no owner any more: it goes on anyway.
                Ok(()) | Err(RecordError::NotOwner { .. }) => Some(job.view()),
                Err(_) => None,
            }
        };
        self.running_jobs().iter().filter(|job| job.owner.kind == JobKind::ProcessAgent).filter_map(detached).collect()
    }

    /// A job of this session by its id, whatever its kind; background jobs only.
    pub(crate) fn job(&self, text: &str) -> Option<Job> {
        let _ = self.inner.registry.refresh();
        let id = JobId::parse(text).ok()?;
        self.inner.registry.get(&id)
    }

    /// All background jobs, for a reply that lists what there is.
    pub(crate) fn known_jobs(&self) -> Vec<Job> {
        self.inner.registry.all(|_| true)
    }

    /// Reads a job for `TaskOutput`; with `wait`, at most so long for its end. An end that is read is not announced again.
    pub(crate) async fn retrieve(&self, job: Job, wait: Option<Duration>, cancel: &CancellationToken) -> (Retrieval, Job) {
        let registry = &self.inner.registry;
        let ids = [job.id().clone()];
        let waiting = registry.awaiting(&ids);
        if let Some(longest) = wait {
            self.wait_for(&ids, longest, cancel).await;
        }
        let job = registry.get(&ids[0]).unwrap_or(job);
        let retrieval = match (job.is_running(), wait) {
            (false, _) => Retrieval::Success,
            (true, None) => Retrieval::NotReady,
            (true, Some(_)) => Retrieval::Timeout,
        };
        if retrieval == Retrieval::Success && !cancel.is_cancelled() {
            registry.settle_notices(&ids);
        }
        drop(waiting);
        (retrieval, job)
    }
}

/// How a reading of `TaskOutput` went (R192).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retrieval {
    Success,
    NotReady,
    Timeout,
}

impl Retrieval {
    pub fn name(self) -> &'static str {
        match self {
            Retrieval::Success => "success",
            Retrieval::NotReady => "not_ready",
            Retrieval::Timeout => "timeout",
        }
    }
}
