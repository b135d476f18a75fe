//! The hooks of one session: what a conversation calls at the fixed points.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::Answer;
use super::event::HookEvent;
use super::folders::{self, Claim};
use super::merge::{Decision, Outcome, Said};
use super::run::Runner;
use super::settings::{Hook, HookSet};
use crate::config::Limits;
use crate::config::environment::{BUDGET_FD, HANDOVER_FD, JOB, MODE_FD, PROJECT_DIR, PROJECT_DIR_FOREIGN, SUBAGENT};
use crate::ids::SessionId;
use crate::permissions::Mode;
use crate::supervisor::launch::Launcher;

/// Hooks of one session. Clones are the same.
#[derive(Clone)]
pub struct SessionHooks {
    inner: Option<Arc<Inner>>,
}

/// What a session gives its hooks.
pub struct HookParts {
    pub set: HookSet,
    pub launcher: Launcher,
    /// Where folders of running hooks are made.
    pub folder: PathBuf,
    /// The environment of the process; what hooks must not have is taken out here.
    pub environment: Vec<(OsString, OsString)>,
    /// Names of variables with keys of providers.
    pub hidden_variables: Vec<String>,
    pub limits: Arc<Limits>,
    /// The main session, also in its children.
    pub session: SessionId,
    pub transcript: PathBuf,
    pub cwd: PathBuf,
    /// The child whose hooks these are.
    pub agent: Option<Agent>,
    /// Asked at every event.
    pub mode: Arc<dyn Fn() -> Mode + Send + Sync>,
}

/// Which child a hook is told about (R149).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub id: String,
    pub kind: String,
    pub transcript: PathBuf,
}

struct Inner {
    /// Held from the first hooks that may run to the end of the session and its children: the folder is in use.
    claim: Arc<OnceLock<Option<Claim>>>,
    /// Messages of the session that its transcript has.
    written: Mutex<usize>,
    set: HookSet,
    runner: Runner,
    session: SessionId,
    transcript: PathBuf,
    cwd: PathBuf,
    agent: Option<Agent>,
    mode: Arc<dyn Fn() -> Mode + Send + Sync>,
}

/// Hooks of one event that run at once.
const AT_ONCE: usize = 16;

impl SessionHooks {
    /// Nothing is ever run.
    pub fn none() -> Self {
        Self { inner: None }
    }

    pub fn new(parts: HookParts) -> Self {
        let HookParts { set, launcher, folder, environment, hidden_variables, limits, session, transcript, cwd, agent, mode } = parts;
        let (grace, drain, ack_max, retries) = Runner::limited(&limits);
        let own = [JOB, HANDOVER_FD, MODE_FD, BUDGET_FD, SUBAGENT, PROJECT_DIR, PROJECT_DIR_FOREIGN];
        let is_left_out =
            |name: &OsString| own.iter().any(|own| name == own) || hidden_variables.iter().any(|hidden| name == hidden.as_str());
        let mut environment: Vec<(OsString, OsString)> = environment.into_iter().filter(|(name, _)| !is_left_out(name)).collect();
        environment.push((PROJECT_DIR.into(), cwd.clone().into()));
        environment.push((PROJECT_DIR_FOREIGN.into(), cwd.clone().into()));
        mark(&mut environment, agent.as_ref());
        let runner = Runner { launcher, folder, environment, cwd: cwd.clone(), grace, drain, ack_max, retries, tasks: TaskTracker::new() };
        let (claim, written) = (Arc::default(), Mutex::default());
        Inner { claim, written, set, runner, session, transcript, cwd, agent, mode }.claimed()
    }

    /// The hooks of a child of this session: the same, and those its profile brings, which live as long as it (R148, R152).
    pub fn for_child(&self, agent: Agent, own: HookSet, mode: Arc<dyn Fn() -> Mode + Send + Sync>) -> Self {
        let Some(inner) = &self.inner else { return Self::none() };
        let mut runner = inner.runner.clone();
        mark(&mut runner.environment, Some(&agent));
        let child = Inner {
            claim: Arc::clone(&inner.claim),
            written: Mutex::default(),
            set: inner.set.clone().joined(own),
            runner,
            session: inner.session.clone(),
            transcript: inner.transcript.clone(),
            cwd: inner.cwd.clone(),
            agent: Some(agent),
            mode,
        };
        child.claimed()
    }

    pub fn agent(&self) -> Option<&Agent> {
        self.inner.as_ref().and_then(|inner| inner.agent.as_ref())
    }

    /// Whether anything would run.
    pub fn concern(&self, event: HookEvent, names: &[&str]) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.set.matching(event, names).next().is_some())
    }

    /// Runs the hooks of an event side by side. `names`: what its subject is called; `fields` join the common ones (R156).
    pub async fn run(&self, event: HookEvent, names: &[&str], fields: Value, cancel: &CancellationToken) -> Outcome {
        let Some(inner) = &self.inner else { return Outcome::default() };
        let hooks: Vec<&Hook> = inner.set.matching(event, names).collect();
        inner.run_all(event, &hooks, &fields, cancel).await
    }

    /// The hooks before a tool call. When one of them changes the input, the others are asked once more about what it has
    /// become, so that no guard is passed by a change it has not seen; further changes are not taken.
    pub async fn before_tool(&self, names: &[&str], call_id: &str, input: &Value, cancel: &CancellationToken) -> Outcome {
        let Some(inner) = &self.inner else { return Outcome::default() };
        let event = HookEvent::PreToolUse;
        let hooks: Vec<&Hook> = inner.set.matching(event, names).collect();
        let fields = |input: &Value| tool_fields(names, call_id, input);
        let first = inner.run_all(event, &hooks, &fields(input), cancel).await;
        let (Some(updated), Some(by)) = (&first.updated_input, first.updated_by) else { return first };
        let others: Vec<&Hook> = hooks.iter().enumerate().filter(|(index, _)| *index != by).map(|(_, hook)| *hook).collect();
        if first.decision == Some(Decision::Deny) || first.stop.is_some() || others.is_empty() {
            return first;
        }
        let second = inner.run_all(event, &others, &fields(&Value::Object(updated.clone())), cancel).await;
        let second = Outcome { context: Vec::new(), ..second };
        first.with(second)
    }

    /// How many messages the transcript has; `None`: nobody would read it.
    pub fn transcript_length(&self) -> Option<usize> {
        let inner = self.inner.as_ref().filter(|inner| !inner.set.is_empty())?;
        Some(*inner.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds messages, one JSON object per line. A transcript that cannot be written is incomplete; hooks still run.
    pub async fn extend_transcript(&self, lines: Vec<String>) {
        let Some(inner) = self.inner.as_ref().filter(|_| !lines.is_empty()) else { return };
        let inner = Arc::clone(inner);
        let writing = tokio::task::spawn_blocking(move || {
            let mut written = inner.written.lock().unwrap_or_else(PoisonError::into_inner);
            if folders::append(inner.own_transcript(), *written == 0, &lines).is_ok() {
                *written += lines.len();
            }
        });
        // Nothing depends on it.
        let _ = writing.await;
    }

    /// Waits for hooks that are being ended.
    pub async fn close(&self) {
        if let Some(inner) = &self.inner {
            inner.runner.tasks.close();
            inner.runner.tasks.wait().await;
        }
    }
}

/// `tool_name`, `tool_input`, `tool_use_id` (R156). The first of the names is the tool's own.
pub fn tool_fields(names: &[&str], call_id: &str, input: &Value) -> Value {
    json!({ "tool_name": names.first(), "tool_input": input, "tool_use_id": call_id })
}

/// Everything started for a child carries the mark (R6, R349).
fn mark(environment: &mut Vec<(OsString, OsString)>, agent: Option<&Agent>) {
    environment.retain(|(name, _)| name != SUBAGENT);
    environment.extend(agent.map(|agent| (SUBAGENT.into(), agent.id.clone().into())));
}

impl Inner {
    fn claimed(self) -> SessionHooks {
        if !self.set.is_empty() {
            self.claim.get_or_init(|| Claim::take(&self.runner.folder));
        }
        SessionHooks { inner: Some(Arc::new(self)) }
    }

    fn own_transcript(&self) -> &Path {
        self.agent.as_ref().map_or(&self.transcript, |agent| &agent.transcript)
    }

    async fn run_all(&self, event: HookEvent, hooks: &[&Hook], fields: &Value, cancel: &CancellationToken) -> Outcome {
        if hooks.is_empty() || cancel.is_cancelled() {
            return Outcome::default();
        }
        let input = self.input(event, fields);
        let asked: Vec<BoxFuture<'_, Said>> = hooks.iter().map(|hook| self.ask(event, hook, input.clone(), cancel).boxed()).collect();
        Outcome::of(stream::iter(asked).buffered(AT_ONCE).collect().await)
    }

    async fn ask(&self, event: HookEvent, hook: &Hook, input: Vec<u8>, cancel: &CancellationToken) -> Said {
        let ended = self.runner.run(hook, input, cancel).await;
        let (answer, trouble) = Answer::of(event, ended);
        let who = format!("`{}` ({}, {})", one_line(&hook.action.shown()), event.name(), hook.place);
        Said { who, answer, trouble, guards: event == HookEvent::PreToolUse, fail_closed: self.set.fail_closed }
    }

    fn input(&self, event: HookEvent, fields: &Value) -> Vec<u8> {
        let mut input = Map::new();
        input.insert("session_id".into(), self.session.as_str().into());
        input.insert("transcript_path".into(), self.transcript.display().to_string().into());
        input.insert("cwd".into(), self.cwd.display().to_string().into());
        input.insert("permission_mode".into(), (self.mode)().as_str().into());
        input.insert("hook_event_name".into(), event.name().into());
        if let Some(agent) = &self.agent {
            input.insert("agent_id".into(), agent.id.clone().into());
            input.insert("agent_type".into(), agent.kind.clone().into());
        }
        if let Value::Object(fields) = fields {
            input.extend(fields.clone());
        }
        let mut bytes = Value::Object(input).to_string().into_bytes();
        bytes.push(b'\n');
        bytes
    }
}

/// Characters of a command that a message shows.
const SHOWN_MAX: usize = 80;

fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN_MAX + 1).collect();
    match line.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}
