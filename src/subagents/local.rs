//! A subagent in this process as its parent's registry knows it, over all its runs: what it was started with, how it
//! stands now, and how to reach it.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Local};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::profiles::Profile;
use super::profiles::model_choice::ModelSelection;
use super::status::EndCause;
use super::worktree::Worktree;
use crate::agent::event::{SubagentOrigin, SubagentTotals};
use crate::agent::inbox::Inbox;
use crate::clock;
use crate::config::layout::JobFolder;
use crate::ids::{JobId, SessionId};
use crate::models::Usage;
use crate::supervisor::record::Requester;
use crate::text::units::one_line;

/// One local agent. Shared by the registry, its run and whoever talks to it.
pub struct LocalAgent {
    pub id: JobId,
    /// The child's own session, derived from the id (R4).
    pub session: SessionId,
    pub parent: SessionId,
    /// As it was at the first run (R214).
    pub profile: Arc<Profile>,
    /// Whole; [`LocalAgent::title`] is what is shown.
    pub description: String,
    pub prompt: String,
    /// The parent's call that started it.
    pub call_id: Option<String>,
    pub cwd: PathBuf,
    /// Its own work tree, in which `cwd` lies then (R88).
    pub worktree: Option<Worktree>,
    pub folder: JobFolder,
    /// What the child may use, by name.
    pub tools: Vec<String>,
    /// The model it uses; a one-off one is not told (R317).
    pub model: ModelSelection,
    pub model_origin: String,
    pub created_at: DateTime<Local>,
    /// What was asked for and does not hold; for the result.
    pub warnings: Vec<String>,
    live: Mutex<Live>,
    changed: watch::Sender<u64>,
}

/// What a local agent is made of.
pub(crate) struct AgentRecord {
    pub id: JobId,
    pub parent: SessionId,
    pub profile: Arc<Profile>,
    pub description: String,
    pub prompt: String,
    pub call_id: Option<String>,
    pub cwd: PathBuf,
    /// Its own work tree, in which `cwd` lies then (R88).
    pub worktree: Option<Worktree>,
    pub folder: JobFolder,
    pub tools: Vec<String>,
    pub model: ModelSelection,
    pub model_origin: String,
    pub created_at: DateTime<Local>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentStatus {
    /// Its session is being made.
    Starting,
    /// Ready, without a place among those that run at once (R328).
    Waiting,
    Running,
    Ended,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct LocalEnd {
    pub cause: EndCause,
    /// The result; after a failure or a stop, what had been found.
    pub text: String,
    pub error: Option<String>,
    /// Why the text is not a whole answer: `max_turns`, `budget`, ...
    pub partial: Option<&'static str>,
    pub started_at: DateTime<Local>,
    pub ended_at: DateTime<Local>,
    pub totals: SubagentTotals,
}

struct Live {
    run: u32,
    status: AgentStatus,
    background: bool,
    /// The waiting call has taken the end; nobody else is told.
    taken: bool,
    inbox: Option<Inbox>,
    /// Cancels the turn of this run.
    cancel: CancellationToken,
    /// Ends it without further waiting.
    hard: CancellationToken,
    stop: Option<Requester>,
    started_at: DateTime<Local>,
    since: Instant,
    usage: Usage,
    tool_uses: u64,
    last_tool: Option<String>,
    pulse: Pulse,
    found: Found,
    end: Option<Arc<LocalEnd>>,
}

/// Signs of life (R165 to R168).
#[derive(Clone)]
struct Pulse {
    last: Instant,
    /// Silence up to then is known and counts for nothing: the request waits for its turn.
    excused_until: Option<Instant>,
    /// The tools that run, oldest first, and since when.
    tools: Vec<(String, String, Instant)>,
    /// Calls that wait for a person.
    asking: Vec<String>,
    asking_since: Option<Instant>,
    /// Earlier waits for a person together.
    waited: Duration,
}

/// The child's texts so far, the newest within a bound.
#[derive(Default)]
struct Found {
    pieces: Vec<String>,
}

/// Characters of a title.
const TITLE_MAX: usize = 200;
/// Bytes of found text kept in memory.
const FOUND_MAX: usize = 64 * 1024;

impl LocalAgent {
    pub(crate) fn new(record: AgentRecord, background: bool) -> Arc<Self> {
        let AgentRecord {
            id,
            parent,
            profile,
            description,
            prompt,
            call_id,
            cwd,
            worktree,
            folder,
            tools,
            model,
            model_origin,
            created_at,
            warnings,
        } = record;
        let (changed, _) = watch::channel(0);
        Arc::new(Self {
            session: SessionId::of_child(&id),
            id,
            parent,
            profile,
            description,
            prompt,
            call_id,
            cwd,
            worktree,
            folder,
            tools,
            model,
            model_origin,
            created_at,
            warnings,
            live: Mutex::new(Live::new(1, background)),
            changed,
        })
    }

    /// Plain data whose fields are set without a panic in between, so a poisoned lock is still good.
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told on every change of its state.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn announce_change(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub fn agent_type(&self) -> &str {
        &self.profile.name
    }

    /// The description as every interface shows it: one line, bounded (R11).
    pub fn title(&self) -> String {
        one_line(&self.description, TITLE_MAX)
    }

    pub fn status(&self) -> AgentStatus {
        self.live().status
    }

    pub fn is_ended(&self) -> bool {
        self.status() == AgentStatus::Ended
    }

    /// Number of the run that is under way, or was the last.
    pub fn run(&self) -> u32 {
        self.live().run
    }

    pub fn is_background(&self) -> bool {
        self.live().background
    }

    /// Of the run under way, once its session is ready; `None` before and after.
    pub fn inbox(&self) -> Option<Inbox> {
        self.live().inbox.clone()
    }

    /// Who asked for the end of this run.
    pub fn stopped_by(&self) -> Option<Requester> {
        self.live().stop
    }

    /// How the last run ended; `None` while one is under way.
    pub fn end(&self) -> Option<Arc<LocalEnd>> {
        self.live().end.clone()
    }

    pub fn started_at(&self) -> DateTime<Local> {
        self.live().started_at
    }

    /// Used so far, or in all.
    pub fn totals(&self) -> SubagentTotals {
        let live = self.live();
        match &live.end {
            Some(end) => end.totals,
            None => live.totals(),
        }
    }

    /// How its events name it (R239).
    pub fn origin(&self) -> Box<SubagentOrigin> {
        Box::new(SubagentOrigin {
            agent_id: self.id.clone(),
            agent_type: self.profile.name.clone(),
            description: self.title(),
            background: self.is_background(),
            child_session_id: self.session.clone(),
            parent_tool_call_id: self.call_id.clone(),
        })
    }

    /// The id that a call of the child has in its parent's events (R246).
    pub fn mirrored_call(&self, call: &str) -> String {
        format!("tool_subagent_{}_{call}", self.id)
    }

    /// Asks for the end; the first who asks is the cause. A second request does not wait any more.
    pub(crate) fn request_stop(&self, requester: Requester) {
        let mut live = self.live();
        if live.status == AgentStatus::Ended {
            return;
        }
        if live.stop.is_some() {
            live.hard.cancel();
        } else {
            live.stop = Some(requester);
            live.cancel.cancel();
        }
        drop(live);
        self.announce_change();
    }

    /// Whether the end of the call that waits is the end of the run (R164).
    pub(crate) fn hangs_on_its_call(&self) -> bool {
        let live = self.live();
        !live.background && live.stop.is_none()
    }

    /// The waiting call is gone. A run that was moved to the background meanwhile goes on.
    pub(crate) fn call_is_gone(&self) {
        if self.hangs_on_its_call() {
            self.request_stop(Requester::Person);
        }
    }

    pub(crate) fn tokens(&self) -> (CancellationToken, CancellationToken) {
        let live = self.live();
        (live.cancel.clone(), live.hard.clone())
    }

    pub(crate) fn set_waiting(&self, inbox: Inbox) {
        let mut live = self.live();
        live.inbox = Some(inbox);
        live.status = AgentStatus::Waiting;
        drop(live);
        self.announce_change();
    }

    pub(crate) fn set_running(&self) {
        let mut live = self.live();
        live.status = AgentStatus::Running;
        live.started_at = clock::now();
        live.since = Instant::now();
        live.pulse = Pulse::new();
        drop(live);
        self.announce_change();
    }

    /// `false` when it was in the background already, or its end was taken by the waiting call.
    pub(crate) fn set_background(&self) -> bool {
        let mut live = self.live();
        if live.background || live.taken {
            return false;
        }
        live.background = true;
        drop(live);
        self.announce_change();
        true
    }

    /// The waiting call takes the end. `false` when the run was moved to the background: then the notice tells it.
    pub(crate) fn take_end(&self) -> bool {
        let mut live = self.live();
        if live.background {
            return false;
        }
        live.taken = true;
        true
    }

    /// The end of a run; the first one stays.
    pub(crate) fn set_ended(&self, end: LocalEnd) -> Arc<LocalEnd> {
        let mut live = self.live();
        if let Some(known) = &live.end {
            return known.clone();
        }
        let end = Arc::new(end);
        live.end = Some(end.clone());
        live.status = AgentStatus::Ended;
        live.inbox = None;
        drop(live);
        self.announce_change();
        end
    }

    /// An agent of an earlier process, ended.
    pub(crate) fn revive(&self, run: u32, stop: Option<Requester>, end: LocalEnd) {
        let mut live = self.live();
        live.run = run;
        live.stop = stop;
        live.started_at = end.started_at;
        live.status = AgentStatus::Ended;
        live.end = Some(Arc::new(end));
    }

    /// An agent that another process runs.
    pub(crate) fn seen_running(&self, run: u32, started_at: DateTime<Local>) {
        let mut live = self.live();
        live.run = run;
        live.started_at = started_at;
        live.status = AgentStatus::Running;
    }

    /// Whoever waits for it looks again.
    pub(crate) fn wake(&self) {
        self.announce_change();
    }

    /// One more run of the same agent, in the background. `false` while one is under way.
    pub(crate) fn begin_again(&self) -> bool {
        let mut live = self.live();
        if live.status != AgentStatus::Ended {
            return false;
        }
        let run = live.run + 1;
        *live = Live::new(run, true);
        drop(live);
        self.announce_change();
        true
    }

    pub(crate) fn count(&self, usage: Usage) {
        self.live().usage += usage;
    }

    pub(crate) fn sign_of_life(&self) {
        let mut live = self.live();
        live.pulse.last = Instant::now();
        live.pulse.excused_until = None;
    }

    /// The request waits for its turn that long; that is no inactivity (R166).
    pub(crate) fn excuse(&self, wait: Duration) {
        let mut live = self.live();
        let now = Instant::now();
        live.pulse.last = now;
        live.pulse.excused_until = Some(now + wait);
    }

    pub(crate) fn tool_started(&self, call: &str, name: &str) {
        let mut live = self.live();
        live.tool_uses += 1;
        live.last_tool = Some(name.to_owned());
        live.pulse.tools.push((call.to_owned(), name.to_owned(), Instant::now()));
    }

    pub(crate) fn tool_ended(&self, call: &str) {
        self.live().pulse.tools.retain(|(known, _, _)| known != call);
    }

    /// A person is asked about a call: until the answer neither silence nor time counts (R166).
    pub(crate) fn person_is_asked(&self, call: &str) {
        let mut live = self.live();
        live.pulse.asking.push(call.to_owned());
        live.pulse.asking_since.get_or_insert_with(Instant::now);
        drop(live);
        self.announce_change();
    }

    pub(crate) fn person_was_asked(&self, call: &str) {
        let mut live = self.live();
        let pulse = &mut live.pulse;
        pulse.asking.retain(|known| known != call);
        if pulse.asking.is_empty()
            && let Some(since) = pulse.asking_since.take()
        {
            pulse.waited += since.elapsed();
        }
        drop(live);
        self.announce_change();
    }

    /// Whether a call of the run waits for a person.
    pub fn waits_for_person(&self) -> bool {
        !self.live().pulse.asking.is_empty()
    }

    /// When the run counts as inactive, if nothing happens before; `None` while a person is awaited.
    pub(crate) fn inactive_at(&self, limit: Duration) -> Option<Instant> {
        let live = self.live();
        let last = live.pulse.excused_until.map_or(live.pulse.last, |until| until.max(live.pulse.last));
        live.pulse.asking.is_empty().then(|| last + limit)
    }

    /// A time limit moved by what was waited for a person; `None` while one is awaited (fault D5).
    pub(crate) fn without_waiting(&self, limit: Instant) -> Option<Instant> {
        let live = self.live();
        live.pulse.asking.is_empty().then(|| limit + live.pulse.waited)
    }

    pub(crate) fn last_tool(&self) -> Option<String> {
        self.live().last_tool.clone()
    }

    /// What it is doing now, for the text of a limit (R168).
    pub(crate) fn doing(&self) -> String {
        let live = self.live();
        match live.pulse.tools.first() {
            Some((_, name, since)) => format!("in the tool {name} for {} s", since.elapsed().as_secs()),
            None => format!("waiting for its model for {} s", live.pulse.last.elapsed().as_secs()),
        }
    }

    pub(crate) fn add_found(&self, text: &str) {
        self.live().found.add(text);
    }

    /// What the child has written so far.
    pub fn found(&self) -> String {
        self.live().found.pieces.join("\n\n")
    }
}

impl fmt::Debug for LocalAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAgent").field("id", &self.id).field("profile", &self.profile.name).finish_non_exhaustive()
    }
}

impl Live {
    fn new(run: u32, background: bool) -> Self {
        Self {
            run,
            status: AgentStatus::Starting,
            background,
            taken: false,
            inbox: None,
            cancel: CancellationToken::new(),
            hard: CancellationToken::new(),
            stop: None,
            started_at: clock::now(),
            since: Instant::now(),
            usage: Usage::default(),
            tool_uses: 0,
            last_tool: None,
            pulse: Pulse::new(),
            found: Found::default(),
            end: None,
        }
    }

    fn totals(&self) -> SubagentTotals {
        let duration_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        SubagentTotals { usage: self.usage, tool_uses: self.tool_uses, duration_ms }
    }
}

impl Pulse {
    fn new() -> Self {
        Self {
            last: Instant::now(),
            excused_until: None,
            tools: Vec::new(),
            asking: Vec::new(),
            asking_since: None,
            waited: Duration::ZERO,
        }
    }
}

impl Found {
    fn add(&mut self, piece: &str) {
        if piece.trim().is_empty() {
            return;
        }
        self.pieces.push(piece.to_owned());
        while self.pieces.len() > 1 && self.pieces.iter().map(String::len).sum::<usize>() > FOUND_MAX {
            self.pieces.remove(0);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A general agent of `parent` that was called `description` by the call `call_<description>`.
    pub(crate) fn agent_of(parent: &SessionId, description: &str) -> Arc<LocalAgent> {
        let profile = crate::subagents::profiles::catalog::built_in().remove(0).profile.unwrap();
        let record = AgentRecord {
            id: JobId::new_local_agent(),
            parent: parent.clone(),
            profile: Arc::new(profile),
            description: description.to_owned(),
            prompt: String::new(),
            call_id: Some(format!("call_{description}")),
            cwd: "/w".into(),
            worktree: None,
            folder: JobFolder::new("/w/job".into()),
            tools: Vec::new(),
            model: ModelSelection { provider: "test".into(), model: "m".into(), level: None },
            model_origin: "profile".into(),
            created_at: clock::now(),
            warnings: Vec::new(),
        };
        LocalAgent::new(record, false)
    }

    /// R166, fault D5: while a person is awaited neither silence nor the time limit counts; afterwards the wait is added.
    #[test]
    fn waiting_for_a_person_counts_neither_as_silence_nor_as_time() {
        let agent = agent_of(&SessionId::new_main(), "child");
        let limit = Duration::from_secs(5);
        let time_up = Instant::now() + limit;
        assert!(agent.inactive_at(limit).is_some());
        assert_eq!(agent.without_waiting(time_up), Some(time_up));
        agent.person_is_asked("c1");
        agent.person_is_asked("c2");
        assert_eq!((agent.inactive_at(limit), agent.without_waiting(time_up)), (None, None));
        agent.person_was_asked("c1");
        assert!(agent.waits_for_person() && agent.inactive_at(limit).is_none());
        agent.person_was_asked("c2");
        assert!(!agent.waits_for_person());
        assert!(agent.inactive_at(limit).is_some());
        assert!(agent.without_waiting(time_up).unwrap() > time_up);
    }
}
