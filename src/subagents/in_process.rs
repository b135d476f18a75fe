//! The executor of local agents: launches a child session in this process and tends its run to the end. Foreground,
//! background and moved runs are the same run; the foreground only adds a link to the call that waits.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::child::{Added, LocalParts, Nursery, OpenChild};
use super::delegation::Delegation;
use super::local::{AgentRecord, AgentStatus, LocalAgent, LocalEnd};
use super::metadata;
use super::profiles::matching::MatchError;
use super::profiles::model_choice::{ModelChoiceError, ModelOrigin};
use super::profiles::profile::{GENERAL_PURPOSE, Isolation};
use super::profiles::tool_policy::ToolPolicyError;
use super::profiles::{Catalog, Profile};
use super::status::{EndCause, StoppedBy};
use super::worktree::{Fate, Git, Worktree, WorktreeError};
use crate::agent::Role;
use crate::agent::event::{EventKind, InputSource, TurnCause, TurnEnd};
use crate::agent::inbox::{Delivery, Inbox, Input};
use crate::agent::session::{Denial, Session, SessionError};
use crate::clock;
use crate::files::FileError;
use crate::ids::JobId;
use crate::models::Usage;
use crate::models::one_off::OneOff;
use crate::permissions::rules::RuleError;
use crate::supervisor::record::Requester;

/// What the tool `Agent` is called with.
#[derive(Clone, Debug)]
pub struct AgentCall {
    pub description: String,
    pub prompt: String,
    /// As the model wrote it; `None`: the general one.
    pub agent_type: Option<String>,
    pub background: bool,
    pub call_id: Option<String>,
}

/// What became of a call.
pub enum AgentOutcome {
    /// The call waited; the end is its own.
    Ended(Arc<LocalAgent>, Arc<LocalEnd>),
    /// It runs in the background, from the start or since it was moved.
    Launched(Arc<LocalAgent>),
}

/// Why no agent was started. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("agents in this process are not available in this session")]
    Unavailable,
    #[error(
        "a subagent cannot start another agent: delegation has one level. It is not available here, do not retry; do the work yourself"
    )]
    OneLevel,
    #[error(transparent)]
    Type(#[from] MatchError),
    #[error("subagent_type is required. Available agents: {available}")]
    TypeRequired { available: String },
    #[error("agents of type '{agent_type}' are denied by the rule `{rule}`; do not retry. Available agents: {available}")]
    Denied { agent_type: String, rule: String, available: String },
    #[error(transparent)]
    Tools(#[from] ToolPolicyError),
    #[error(
        "Required MCP server is not connected: {servers}; zapmyco has no connections to MCP servers yet, so an agent of '{profile}' cannot be started: take `mcpServers` out of the profile, or use another one"
    )]
    NoServers { profile: String, servers: String },
    #[error("Cannot start subagent: a restriction of profile '{profile}' cannot be read, so it would not hold: {faults}")]
    Restriction { profile: String, faults: String },
    #[error(transparent)]
    Model(#[from] ModelChoiceError),
    #[error(
        "Cannot start subagent: a scoped tool of profile '{profile}' cannot be held to its scope: {source}; correct `tools` in the profile"
    )]
    Scope { profile: String, source: RuleError },
    #[error("Cannot start subagent: it has no work tree of its own, which its profile asks for: {0}")]
    Worktree(#[from] WorktreeError),
    #[error("Cannot start subagent: {0}")]
    Session(#[from] SessionError),
    #[error("Cannot start subagent: {0}")]
    File(#[from] FileError),
    #[error("Cannot start subagent: its session was not ready within {ms} ms")]
    Slow { ms: u128 },
    #[error(
        "Cannot start subagent: the price of {model} is not known, so the budget of money cannot be held; set \
         [prices.\"{model}\"] in the settings, or use another model"
    )]
    NoPrice { model: String },
    /// R315
    #[error(
        "this turn uses a model given for it alone, so an agent cannot outlive it: call again without run_in_background{}",
        if *by_profile { ", with a profile that does not say `background: true`" } else { "" }
    )]
    OnlyForeground { by_profile: bool },
    #[error("the start was interrupted")]
    Interrupted,
    #[error("agent {id} still runs; a message can be sent into its run")]
    StillRuns { id: JobId },
}

impl AgentError {
    /// R25
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable | Self::OneLevel | Self::Denied { .. } => "agent_subagent_unavailable",
            Self::Type(_) | Self::TypeRequired { .. } => "agent_unknown_type",
            Self::Tools(_)
            | Self::NoServers { .. }
            | Self::Restriction { .. }
            | Self::Worktree(_)
            | Self::Model(_)
            | Self::Scope { .. }
            | Self::Session(_)
            | Self::File(_)
            | Self::Slow { .. }
            | Self::NoPrice { .. }
            | Self::OnlyForeground { .. }
            | Self::Interrupted
            | Self::StillRuns { .. } => "agent_child_runtime_failed",
        }
    }
}

/// Why a run was not moved to the background.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MoveError {
    #[error("there is no agent {0} in this session")]
    Unknown(JobId),
    #[error("agent {0} has ended already")]
    Ended(JobId),
    #[error("agent {0} runs in the background already")]
    InBackground(JobId),
    /// R189
    #[error("agent {0} uses a model given for this turn only, so it has to stay in the foreground")]
    OneOffModel(JobId),
}

/// The local agents of one main session.
pub(crate) struct Host {
    pub nursery: Nursery,
    /// Fair: in order of asking (R328).
    places: Arc<Semaphore>,
    /// The model of the parent's turn under way, where that has one of its own (R314).
    once: Mutex<Option<OneOff>>,
    /// Somebody looks for what other processes ask.
    pub answers_requests: AtomicBool,
    sums: Mutex<Sums>,
}

/// What ended runs add to their parent's result.
#[derive(Default)]
struct Sums {
    by_model: BTreeMap<String, Usage>,
    denials: Vec<Denial>,
}

/// Denials of children that a result lists.
const DENIALS_MAX: usize = 1000;
/// After a stop: this many times `drain_time` beyond the grace time for handing over what there is.
const DRAINS: u32 = 4;

impl Host {
    pub(crate) fn new(parts: LocalParts, places: u32) -> Self {
        let places = if places == 0 { Semaphore::MAX_PERMITS } else { places as usize };
        Self {
            nursery: Nursery::new(parts),
            places: Arc::new(Semaphore::new(places)),
            once: Mutex::default(),
            answers_requests: AtomicBool::new(false),
            sums: Mutex::default(),
        }
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn once(&self) -> Option<OneOff> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add_up(&self, agent: &LocalAgent, session: &Session) {
        let mut sums = self.sums();
        for (model, usage) in session.usage_by_model() {
            *sums.by_model.entry(model.clone()).or_default() += *usage;
        }
        // What a built-in that only reads is refused is its nature, not work that was not done.
        let by_nature = agent.profile.is_held_to_reading();
        let denials = session.denials().into_iter().map(|denial| Denial {
            tool_use_id: agent.mirrored_call(&denial.tool_use_id),
            succeeded_later: denial.succeeded_later || by_nature,
            agent_id: Some(agent.id.clone()),
            ..denial
        });
        let room = DENIALS_MAX.saturating_sub(sums.denials.len());
        sums.denials.extend(denials.take(room));
    }
}

/// What a run is started with.
struct Launch {
    child: OpenChild,
    input: Input,
    /// Fires when the waiting call is gone.
    link: Option<CancellationToken>,
}

/// A launch, with the place it got at once.
type Placed = (Launch, Option<OwnedSemaphorePermit>);

impl Delegation {
    fn host(&self) -> Result<&Arc<Host>, AgentError> {
        if self.inner.starter.role != Role::Main {
            return Err(AgentError::OneLevel);
        }
        self.inner.host.as_ref().ok_or(AgentError::Unavailable)
    }

    /// A local agent of this session, running or ended.
    pub fn agent(&self, id: &JobId) -> Option<Arc<LocalAgent>> {
        self.inner.registry.agent(id)
    }

    /// All local agents of this session, by start time.
    pub fn agents(&self) -> Vec<Arc<LocalAgent>> {
        self.inner.registry.agents()
    }

    /// Calls that permission refused in ended local agents (R244).
    pub fn agent_denials(&self) -> Vec<Denial> {
        self.inner.host.as_ref().map(|host| host.sums().denials.clone()).unwrap_or_default()
    }

    /// Tokens of ended local agents, by model (R121).
    pub fn agent_usage(&self) -> BTreeMap<String, Usage> {
        self.inner.host.as_ref().map(|host| host.sums().by_model.clone()).unwrap_or_default()
    }

    /// From now on the parent's turn uses this model, and its foreground agents with it; `None`: the session's own again.
    pub fn set_once(&self, once: Option<OneOff>) {
        if let Some(host) = &self.inner.host {
            *host.once.lock().unwrap_or_else(PoisonError::into_inner) = once;
        }
    }

    /// The parent's turn uses a model of its own, which nothing that outlives it may use (R315, R316).
    pub(crate) fn is_once(&self) -> bool {
        self.inner.host.as_ref().is_some_and(|host| host.once().is_some())
    }

    /// Whether the budget that the session shares with its children stops what runs.
    fn budget_stops(&self) -> bool {
        self.inner.starter.budget.as_ref().is_some_and(|budget| budget.stops())
    }

    /// The profiles a model may name now: all but those a rule denies.
    pub async fn profiles(&self) -> Result<Vec<Arc<Profile>>, AgentError> {
        let host = self.host()?;
        let catalog = host.nursery.catalog().await?;
        Ok(self.usable(&catalog))
    }

    fn usable(&self, catalog: &Catalog) -> Vec<Arc<Profile>> {
        let Some(host) = &self.inner.host else { return Vec::new() };
        let rules = host.nursery.parts.policy.rules();
        let profiles = catalog.definitions().map(|definition| Arc::clone(&definition.profile));
        profiles.filter(|profile| rules.denies_agent(&profile.name).is_none()).collect()
    }

    /// Whether a rule forbids agents of this type now.
    pub(crate) fn denies_type(&self, agent_type: &str) -> bool {
        self.inner.host.as_ref().is_some_and(|host| host.nursery.parts.policy.rules().denies_agent(agent_type).is_some())
    }

    /// The tools a child of this profile would get.
    pub fn tools_of(&self, profile: &Profile) -> Result<Vec<String>, AgentError> {
        Ok(self.host()?.nursery.grant(self, profile)?.tools)
    }

    /// Runs an agent as a call of the model asks for it: returns its end, or that it runs in the background (R162, R175,
    /// R184).
    pub async fn run_agent(&self, call: AgentCall, cancel: &CancellationToken) -> Result<AgentOutcome, AgentError> {
        let host = self.host()?.clone();
        let link = CancellationToken::new();
        // However the call ends, also by being dropped: a run that is still in the foreground then ends too.
        let _linked = link.clone().drop_guard();
        let started = {
            let (delegation, link) = (self.clone(), link.clone());
            // Aside, so that a call that is dropped half-way leaves no half-made agent.
            self.inner.registry.spawn(async move { delegation.start_agent(&host, call, link).await })
        };
        let agent = started.await.map_err(|_| AgentError::Interrupted)??;
        if agent.is_background() {
            return Ok(AgentOutcome::Launched(agent));
        }
        self.wait_in_foreground(agent, link, cancel).await
    }

    async fn wait_in_foreground(
        &self,
        agent: Arc<LocalAgent>,
        link: CancellationToken,
        cancel: &CancellationToken,
    ) -> Result<AgentOutcome, AgentError> {
        let auto = agent.profile.bounds.auto_background(self.limits().auto_background);
        let auto_at = auto.map(|auto| Instant::now() + auto);
        let mut changes = agent.changes();
        loop {
            changes.mark_unchanged();
            if agent.is_background() {
                return Ok(AgentOutcome::Launched(agent));
            }
            if self.inner.registry.is_concluded(&agent.id)
                && let Some(end) = agent.end()
            {
                // A move at the last moment wins: its notice tells the end then.
                return Ok(if agent.take_end() { AgentOutcome::Ended(agent, end) } else { AgentOutcome::Launched(agent) });
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = cancel.cancelled(), if !link.is_cancelled() => link.cancel(),
                () = reached(auto_at), if auto_at.is_some() && !link.is_cancelled() => {
                    // A run that has to stay is no longer asked about.
                    let _ = self.move_to_background(&agent.id).await;
                    if !agent.is_background() {
                        return self.wait_to_the_end(agent, link, cancel).await;
                    }
                }
            }
        }
    }

    async fn wait_to_the_end(
        &self,
        agent: Arc<LocalAgent>,
        link: CancellationToken,
        cancel: &CancellationToken,
    ) -> Result<AgentOutcome, AgentError> {
        let mut changes = agent.changes();
        while !self.inner.registry.is_concluded(&agent.id) {
            tokio::select! {
                _ = changes.changed() => {}
                () = cancel.cancelled(), if !link.is_cancelled() => link.cancel(),
            }
        }
        match agent.end() {
            Some(end) if agent.take_end() => Ok(AgentOutcome::Ended(agent, end)),
            Some(_) | None => Ok(AgentOutcome::Launched(agent)),
        }
    }

    /// From now on the run is in the background: same session, same id, no restart; the call that waits returns (R187).
    pub async fn move_to_background(&self, id: &JobId) -> Result<(), MoveError> {
        let agent = self.agent(id).ok_or_else(|| MoveError::Unknown(id.clone()))?;
        if agent.model_origin == metadata::ONE_OFF {
            return Err(MoveError::OneOffModel(id.clone()));
        }
        if agent.is_ended() {
            return Err(MoveError::Ended(id.clone()));
        }
        if !agent.set_background() {
            return Err(if agent.is_background() { MoveError::InBackground(id.clone()) } else { MoveError::Ended(id.clone()) });
        }
        let written = metadata::Metadata::of(&agent, &self.inner.starter.cwd).write(&agent.folder);
        if let Err(error) = written {
            self.inner.registry.notice(format!("agent {id} was moved, its metadata could not be written: {error}"));
        }
        self.inner.registry.move_to_background(id).await;
        Ok(())
    }

    /// Resolves, records, stores, announces, and lets it run (R163, R116, R174).
    async fn start_agent(&self, host: &Arc<Host>, call: AgentCall, link: CancellationToken) -> Result<Arc<LocalAgent>, AgentError> {
        let catalog = host.nursery.catalog().await?;
        let profile = self.profile_for(&catalog, call.agent_type.as_deref())?;
        let background = call.background || profile.background;
        let once = host.once();
        if background && once.is_some() {
            return Err(AgentError::OnlyForeground { by_profile: profile.background });
        }
        host.nursery.servers_settled(&profile).await;
        let blueprint = host.nursery.blueprint(self, &catalog, profile, once)?;
        let (memory, mut warnings) = host.nursery.memory(self, &blueprint.profile).await;
        let (skills, about_skills) = host.nursery.skills(&blueprint.profile, &blueprint.grant).await;
        warnings.extend(about_skills);
        warnings.extend(blueprint.warnings.iter().cloned());
        if let Some(warning) = host.nursery.first_held_by_analysis(&blueprint.profile) {
            self.inner.registry.notice(warning);
        }
        let id = JobId::new_local_agent();
        let starter = &self.inner.starter;
        let worktree = match blueprint.profile.isolation {
            Some(Isolation::Worktree) => Some(Worktree::create(&self.git(host), &starter.layout, &starter.cwd, &id).await?),
            None => None,
        };
        let agent = LocalAgent::new(
            AgentRecord {
                folder: starter.layout.job(&starter.session, &id),
                id,
                parent: starter.session.clone(),
                profile: Arc::clone(&blueprint.profile),
                description: call.description,
                prompt: call.prompt.clone(),
                call_id: call.call_id,
                cwd: worktree.as_ref().map_or_else(|| starter.cwd.clone(), |worktree| worktree.cwd(&starter.cwd)),
                worktree,
                tools: blueprint.grant.tools.clone(),
                model: blueprint.choice.selection.clone(),
                model_origin: origin_name(blueprint.choice.origin),
                created_at: clock::now(),
                warnings,
            },
            background,
        );
        let registry = &self.inner.registry;
        registry.add_agent(&agent);
        self.answer_requests();
        let limit = starter.limits.inactivity_limit;
        let opening = async {
            metadata::create(&agent, &starter.cwd)?;
            host.nursery.open(self, &agent, &blueprint.grant, blueprint.model, Added { memory, skills }, false).await
        };
        // Watched from before the session is stored (R169).
        let opened = tokio::select! {
            opened = opening => opened,
            () = reached((!limit.is_zero()).then(|| Instant::now() + limit)) => Err(AgentError::Slow { ms: limit.as_millis() }),
        };
        let child = match opened {
            Ok(child) => child,
            Err(error) => {
                registry.forget(&agent.id);
                // A folder that stays is only one more for the retention.
                let _ = std::fs::remove_dir_all(agent.folder.path());
                if let Some(worktree) = &agent.worktree {
                    // Nobody worked in it; should it stay all the same, git lists it.
                    let _ = worktree.settle(&self.git(host), false).await;
                }
                return Err(error);
            }
        };
        let input = Input::new(InputSource::Subagent, call.prompt);
        self.set_going(host, &agent, Launch { child, input, link: (!background).then_some(link) }).await;
        Ok(agent)
    }

    fn git<'d>(&'d self, host: &Host) -> Git<'d> {
        Git { delegation: self, rights: host.nursery.parts.policy.shell_rights() }
    }

    /// One more run of an ended agent, in the background, from its stored session (R209, R214): same id, session, profile,
    /// model and folder. Its rights are those of its profile under the parent's rules now, so never wider.
    pub async fn run_again(&self, agent: &Arc<LocalAgent>, text: String) -> Result<(), AgentError> {
        let host = self.host()?.clone();
        let mut grant = host.nursery.grant(self, &agent.profile)?;
        if !agent.tools.is_empty() {
            grant.tools.retain(|tool| agent.tools.contains(tool));
        }
        let model = host.nursery.open_model_again(agent)?;
        let (memory, _) = host.nursery.memory(self, &agent.profile).await;
        if !agent.begin_again() {
            return Err(AgentError::StillRuns { id: agent.id.clone() });
        }
        let registry = &self.inner.registry;
        registry.add_agent(agent);
        self.answer_requests();
        let opened = async {
            if let Some(worktree) = &agent.worktree {
                worktree.restore(&self.git(&host)).await?;
            }
            metadata::create(agent, &self.inner.starter.cwd)?;
            host.nursery.open(self, agent, &grant, model, Added { memory, skills: Vec::new() }, true).await
        };
        match opened.await {
            Ok(child) => {
                let input = Input::new(InputSource::Subagent, text);
                self.set_going(&host, agent, Launch { child, input, link: None }).await;
                Ok(())
            }
            Err(error) => {
                let end = ended_by(agent, EndCause::NeverStarted, None, Some(error.to_string()), String::new());
                let end = agent.set_ended(end);
                let _ = metadata::finish(agent, &self.inner.starter.cwd, &end);
                registry.forget_run(agent);
                Err(error)
            }
        }
    }

    /// R13, R35 to R39, R68
    fn profile_for(&self, catalog: &Catalog, wanted: Option<&str>) -> Result<Arc<Profile>, AgentError> {
        let host = self.host()?;
        let rules = host.nursery.parts.policy.rules();
        let available = || self.usable(catalog).iter().map(|profile| profile.name.clone()).collect::<Vec<_>>().join(", ");
        let is_absent = wanted.is_none_or(|name| name.trim().is_empty());
        let name = wanted.filter(|_| !is_absent).unwrap_or(GENERAL_PURPOSE);
        let profile = match catalog.resolve(name) {
            Ok(definition) => Arc::clone(&definition.profile),
            Err(_) if is_absent => return Err(AgentError::TypeRequired { available: available() }),
            Err(error) => return Err(error.into()),
        };
        match rules.denies_agent(&profile.name) {
            None => Ok(profile),
            Some(_) if is_absent => Err(AgentError::TypeRequired { available: available() }),
            Some(rule) => Err(AgentError::Denied { agent_type: profile.name.clone(), rule: rule.to_string(), available: available() }),
        }
    }

    /// The session is stored: tells it, and starts the tend loop.
    async fn set_going(&self, host: &Arc<Host>, agent: &Arc<LocalAgent>, launch: Launch) {
        agent.set_waiting(launch.child.inbox.clone());
        let registry = &self.inner.registry;
        registry
            .tell(EventKind::SubagentSpawned {
                agent: agent.origin(),
                prompt: agent.prompt.clone(),
                allowed_tools: agent.tools.clone(),
                model: agent.model.to_string(),
                output_file: agent.folder.agent_output().display().to_string(),
                resumed: agent.run() > 1,
            })
            .await;
        let place = Arc::clone(&host.places).try_acquire_owned().ok();
        if place.is_some() {
            agent.set_running();
        }
        registry.agent_ready(agent).await;
        // What came while its session was being made.
        drop(registry.spawn(self.forward_mail(agent)));
        let (delegation, host, agent) = (self.clone(), host.clone(), agent.clone());
        drop(registry.spawn(async move { delegation.tend(host, agent, (launch, place)).await }));
    }

    /// Looks after one run until its end is on disk, in the index and announced.
    async fn tend(self, host: Arc<Host>, agent: Arc<LocalAgent>, (launch, place): Placed) {
        let Launch { child: OpenChild { mut session, shells, inbox }, input, link } = launch;
        let place = match place {
            Some(place) => Some(place),
            None => {
                let place = self.wait_for_place(&host, &agent, link.as_ref()).await;
                if place.is_some() {
                    agent.set_running();
                }
                place
            }
        };
        let end = match &place {
            None => ended_by(&agent, stopped_cause(&agent), None, None, String::new()),
            Some(_) => {
                self.inner.registry.agent_changed(&agent);
                let ran = self.run_to_the_end(&agent, &mut session, &inbox, input, link.as_ref()).await;
                let (mut end, left_running) = self.with_shells(&agent, &shells, ran).await;
                if let Some(worktree) = &agent.worktree
                    && let Fate::Kept(why) = worktree.settle(&self.git(&host), left_running).await
                {
                    end.text = format!("{}\n\n{}", end.text, worktree.report(&why)).trim().to_owned();
                }
                end
            }
        };
        inbox.close();
        host.add_up(&agent, &session);
        drop(session);
        drop(place);
        self.conclude_agent(&agent, end).await;
        self.forward_mail(&agent).await;
    }

    async fn wait_for_place(&self, host: &Arc<Host>, agent: &LocalAgent, link: Option<&CancellationToken>) -> Option<OwnedSemaphorePermit> {
        let (cancel, _) = agent.tokens();
        // Kept over the rounds: whoever asks anew goes to the end of the queue.
        let place = Arc::clone(&host.places).acquire_owned();
        tokio::pin!(place);
        let mut changes = agent.changes();
        loop {
            let linked = link.filter(|_| agent.hangs_on_its_call());
            tokio::select! {
                biased;
                () = cancel.cancelled() => return None,
                () = gone(linked) => agent.call_is_gone(),
                place = &mut place => return place.ok(),
                // A move cuts the link.
                _ = changes.changed(), if linked.is_some() => {}
            }
        }
    }

    /// Runs the child's turns under the watch over inactivity, time, stop and link; whichever comes first is the cause.
    async fn run_to_the_end(
        &self,
        agent: &Arc<LocalAgent>,
        session: &mut Session,
        inbox: &Inbox,
        input: Input,
        link: Option<&CancellationToken>,
    ) -> LocalEnd {
        let limits = self.limits().clone();
        let (cancel, hard) = agent.tokens();
        let longest = agent.profile.bounds.time_limit(limits.agent_time_limit);
        let time_up = longest.map(|longest| Instant::now() + longest);
        let mut forced: Option<(EndCause, String)> = None;
        let mut give_up_at: Option<Instant> = None;
        let mut changes = agent.changes();
        let turn = {
            let work = converse(session, inbox, input, &cancel);
            tokio::pin!(work);
            loop {
                // A call that is stopped by the budget leaves its agent to end by itself, by the same budget.
                let linked = link.filter(|_| agent.hangs_on_its_call() && forced.is_none() && !self.budget_stops());
                let quiet = if agent.is_background() { limits.background_inactivity_limit } else { limits.inactivity_limit };
                let inactive_at = (!quiet.is_zero() && give_up_at.is_none()).then(|| agent.inactive_at(quiet)).flatten();
                let out_of_time_at = time_up.and_then(|limit| agent.without_waiting(limit));
                if cancel.is_cancelled() && give_up_at.is_none() {
                    give_up_at = Some(Instant::now() + limits.stop_grace + limits.drain_time * DRAINS);
                }
                tokio::select! {
                    biased;
                    end = &mut work => break Some(end),
                    () = hard.cancelled() => break None,
                    () = reached(give_up_at) => break None,
                    () = gone(linked) => if !self.budget_stops() { agent.call_is_gone() },
                    () = reached(out_of_time_at), if forced.is_none() && give_up_at.is_none() => {
                        forced = Some((EndCause::TimeLimit, format!("Subagent reached its time limit of {} ms", longest.unwrap_or_default().as_millis())));
                        cancel.cancel();
                    }
                    () = reached(inactive_at) => {
                        // Something may have happened since the time was taken.
                        if agent.inactive_at(quiet).is_some_and(|inactive_at| Instant::now() >= inactive_at) {
                            let text = format!("Subagent was inactive for {}ms ({})", quiet.as_millis(), agent.doing());
                            forced = Some((EndCause::Inactive, text));
                            cancel.cancel();
                        }
                    }
                    _ = changes.changed() => {}
                }
            }
        };
        end_of(agent, turn, forced, self.budget_stops())
    }

    /// R123: what a finished child left running goes over to its parent, named in the report; a cancelled child's shells end.
    /// Says too whether something was left running.
    async fn with_shells(&self, agent: &LocalAgent, shells: &Delegation, mut end: LocalEnd) -> (LocalEnd, bool) {
        if shells.running().is_empty() {
            return (end, false);
        }
        if !matches!(end.cause, EndCause::Finished | EndCause::FinishedPartial) {
            shells.stop_all(agent.stopped_by().unwrap_or(Requester::Limit)).await;
            return (end, false);
        }
        let handed = self.inner.registry.adopt(&shells.inner.registry).await;
        if !handed.is_empty() {
            let lines: Vec<String> = handed
                .iter()
                .map(|job| {
                    format!(
                        "- {} ({}), output: {}",
                        job.id(),
                        job.owner.title,
                        job.output_path(crate::config::layout::Stream::Stdout).display()
                    )
                })
                .collect();
            end.text.push_str(&format!(
                "\n\n[Background commands of this agent that still run; they are this session's now, and their ends are announced:\n{}]",
                lines.join("\n")
            ));
        }
        (end, !handed.is_empty())
    }

    /// Files, then registry, events and notice, in this order (R251).
    async fn conclude_agent(&self, agent: &Arc<LocalAgent>, end: LocalEnd) {
        let end = agent.set_ended(end);
        let written = {
            let (agent, end, workspace) = (agent.clone(), end.clone(), self.inner.starter.cwd.clone());
            tokio::task::spawn_blocking(move || metadata::finish(&agent, &workspace, &end)).await
        };
        if let Ok(Err(error)) = written {
            self.inner.registry.notice(format!("the result of agent {} could not be written: {error}", agent.id));
        }
        self.inner.registry.conclude_agent(agent, &end).await;
    }
}

/// The first turn, and one more for whatever came meanwhile. Nothing that was accepted is lost: the inbox is closed only
/// when it is empty (R208).
async fn converse(session: &mut Session, inbox: &Inbox, input: Input, cancel: &CancellationToken) -> TurnEnd {
    let mut end = session.turn(input, cancel).await;
    while end.cause == TurnCause::Finished {
        let waiting: Option<Delivery> = inbox.take().or_else(|| {
            inbox.close();
            inbox.take()
        });
        let Some(delivery) = waiting else { break };
        let before = end;
        end = session.turn(delivery, cancel).await;
        if end.text.is_empty() {
            end.text = before.text;
        }
    }
    end
}

/// What the turn's end, or a forced one, means for the run.
fn end_of(agent: &LocalAgent, turn: Option<TurnEnd>, forced: Option<(EndCause, String)>, used_up: bool) -> LocalEnd {
    let found = agent.found();
    // Whoever stops what the shared budget ends anyway is not the cause.
    let by_budget = used_up && forced.is_none() && matches!(agent.stopped_by(), Some(Requester::RunEnd));
    let Some(TurnEnd { cause, text, .. }) = turn else {
        if by_budget {
            return ended_by(agent, EndCause::FinishedPartial, Some("budget"), None, found);
        }
        let (cause, error) = forced.map_or_else(|| (stopped_cause(agent), None), |(cause, error)| (cause, Some(error)));
        return ended_by(agent, cause, None, error, found);
    };
    // What was just arriving is the newest of what was found.
    let partial_text =
        || if text.is_empty() || found.ends_with(&text) { found.clone() } else { format!("{found}\n\n{text}").trim().to_owned() };
    match cause {
        TurnCause::Finished => ended_by(agent, EndCause::Finished, None, None, text),
        TurnCause::MaxTurns => ended_by(agent, EndCause::FinishedPartial, Some("max_turns"), None, text),
        // After a closing report its text is the result; where the shared budget allowed none, what was found.
        TurnCause::Budget => ended_by(agent, EndCause::FinishedPartial, Some("budget"), None, if used_up { partial_text() } else { text }),
        TurnCause::MaxTokens => ended_by(agent, EndCause::FinishedPartial, Some("max_tokens"), None, text),
        TurnCause::Refused if !text.trim().is_empty() => ended_by(agent, EndCause::FinishedPartial, Some("refused"), None, text),
        TurnCause::Refused => failed(agent, "the provider's safety system ended the answer".into(), found),
        // R27: what it had produced is worth more than its absence.
        TurnCause::ModelFailed { message, .. } if !partial_text().trim().is_empty() => {
            ended_by(agent, EndCause::FinishedPartial, Some("api_failure"), Some(message), partial_text())
        }
        TurnCause::ModelFailed { message, .. } => failed(agent, message, String::new()),
        TurnCause::StoppedByHook { reason } if !partial_text().trim().is_empty() => {
            ended_by(agent, EndCause::FinishedPartial, Some("stopped_by_hook"), Some(reason), partial_text())
        }
        TurnCause::StoppedByHook { reason } => failed(agent, format!("a hook ended the turn: {reason}"), String::new()),
        TurnCause::StoreFailed { message } => failed(agent, message, partial_text()),
        TurnCause::Cancelled if by_budget => ended_by(agent, EndCause::FinishedPartial, Some("budget"), None, partial_text()),
        TurnCause::Cancelled => {
            let (cause, error) = forced.map_or_else(|| (stopped_cause(agent), None), |(cause, error)| (cause, Some(error)));
            ended_by(agent, cause, None, error, partial_text())
        }
    }
}

fn failed(agent: &LocalAgent, error: String, text: String) -> LocalEnd {
    ended_by(agent, EndCause::Failed { code: 1 }, None, Some(error), text)
}

fn ended_by(agent: &LocalAgent, cause: EndCause, partial: Option<&'static str>, error: Option<String>, text: String) -> LocalEnd {
    let ran = agent.status() == AgentStatus::Running;
    LocalEnd {
        cause,
        text,
        error,
        partial,
        started_at: if ran { agent.started_at() } else { agent.created_at },
        ended_at: clock::now(),
        totals: agent.totals(),
    }
}

fn stopped_cause(agent: &LocalAgent) -> EndCause {
    let by = match agent.stopped_by() {
        Some(Requester::Model) => StoppedBy::Model,
        Some(Requester::RunEnd) => StoppedBy::RunEnd,
        Some(Requester::Limit) => return EndCause::TimeLimit,
        Some(Requester::Person) | None => StoppedBy::Person,
    };
    EndCause::Stopped { by }
}

fn origin_name(origin: ModelOrigin) -> String {
    match origin {
        ModelOrigin::Override => metadata::ONE_OFF,
        ModelOrigin::Profile => "profile",
        ModelOrigin::Settings => "settings",
        ModelOrigin::StateFile => "state-file",
        ModelOrigin::ParentTurn => "parent-turn",
        ModelOrigin::ParentSession => "parent-session",
    }
    .to_owned()
}

async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn gone(link: Option<&CancellationToken>) {
    match link {
        Some(link) => link.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Why a result is partial, for the one who reads it.
pub fn partial_in_words(end: &LocalEnd) -> Option<String> {
    let words = match end.partial? {
        "max_turns" => "the turn limit was reached (max_turns)".to_owned(),
        "budget" => "the budget was used up (budget)".to_owned(),
        "max_tokens" => "the answer was cut by the model's token limit (max_tokens)".to_owned(),
        "refused" => "the provider's safety system ended the answer (refused)".to_owned(),
        "api_failure" => format!("the provider failed before the end (api_failure): {}", end.error.as_deref().unwrap_or("no reason given")),
        "stopped_by_hook" => format!("a hook ended the turn (stopped_by_hook): {}", end.error.as_deref().unwrap_or("no reason given")),
        other => other.to_owned(),
    };
    Some(words)
}
