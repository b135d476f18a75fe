//! A session that delegates, inside the test process: real keepers (the built binary), real payloads (shell lines), real
//! SQLite, and the tools as the model would call them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use zapmyco::agent::Role;
use zapmyco::agent::event::{Event, EventKind, EventSink};
use zapmyco::agent::inbox::Inbox;
use zapmyco::agent::state::SessionState;
use zapmyco::agent::tool::{Tool, ToolContext, ToolFailure, ToolReply};
use zapmyco::config::{Environment, Layout, Limits};
use zapmyco::ids::{JobKind, SessionId};
use zapmyco::permissions::{Mode, Policy, RuleSet};
use zapmyco::store::Store;
use zapmyco::subagents::delegation::{Delegation, DelegationParts};
use zapmyco::subagents::handover::ChildSettings;
use zapmyco::supervisor::launch::Launcher;
use zapmyco::supervisor::plan::Program;
use zapmyco::tools::{bash::BashTool, subagent::SubagentTool, task_output::TaskOutputTool, task_stop::TaskStopTool};

use super::Home;

/// Remembers what was told.
#[derive(Default)]
pub struct Heard(Mutex<Vec<EventKind>>);

impl EventSink for Heard {
    fn send(&self, event: &Event) {
        self.0.lock().unwrap().push(event.kind.clone());
    }
}

impl Heard {
    pub fn all(&self) -> Vec<EventKind> {
        self.0.lock().unwrap().clone()
    }
}

pub struct Parent {
    pub delegation: Delegation,
    pub inbox: Inbox,
    pub heard: Arc<Heard>,
    pub store: Option<Store>,
    pub session: SessionId,
    pub layout: Layout,
    cwd: PathBuf,
}

/// Limits that make tests quick: polls return after 200 ms, stops are hard after 500 ms.
pub fn limits() -> Limits {
    Limits {
        poll_base_wait: Duration::from_millis(200),
        stop_grace: Duration::from_millis(500),
        drain_time: Duration::from_millis(200),
        ..Limits::default()
    }
}

pub struct ParentBuilder<'a> {
    home: &'a Home,
    session: SessionId,
    limits: Limits,
    store: bool,
    role: Role,
    program: Program,
    variables: Vec<(String, String)>,
}

/// A session whose process children evaluate their task as a shell line.
pub fn parent(home: &Home) -> ParentBuilder<'_> {
    // `sh run --subagent -- TASK`: the payload's arguments make the shell read this file.
    home.write("run", "if [ \"$2\" = --task-file ]; then eval \"$(cat \"$3\")\"; else eval \"$3\"; fi\n");
    ParentBuilder {
        home,
        session: SessionId::new_main(),
        limits: limits(),
        store: true,
        role: Role::Main,
        program: Program::At("/bin/sh".into()),
        variables: Vec::new(),
    }
}

impl ParentBuilder<'_> {
    pub fn session(mut self, session: &SessionId) -> Self {
        self.session = session.clone();
        self
    }

    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    pub fn program(mut self, program: Program) -> Self {
        self.program = program;
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    pub fn without_store(mut self) -> Self {
        self.store = false;
        self
    }

    pub fn build(self) -> Parent {
        let layout = Layout::new(self.home.root());
        let store = self.store.then(|| Store::open(&layout.database()).unwrap());
        let inbox = Inbox::new(100);
        let heard = Arc::new(Heard::default());
        let mut variables: Vec<(String, String)> = vec![
            ("PATH".into(), std::env::var("PATH").unwrap_or_default()),
            ("ZAPMYCO_HOME".into(), self.home.root().display().to_string()),
        ];
        variables.extend(self.variables);
        let delegation = Delegation::new(DelegationParts {
            launcher: Launcher::new(Program::At(super::binary())),
            store: store.clone(),
            layout: layout.clone(),
            limits: Arc::new(self.limits),
            session: self.session.clone(),
            cwd: self.home.project(),
            environment: Environment::from_pairs(variables),
            child: ChildSettings::default(),
            child_program: self.program,
            role: self.role,
            hidden_variables: vec!["ANTHROPIC_API_KEY".into()],
            events: Some(heard.clone()),
            inbox: Some(inbox.clone()),
            budget: None,
            local: None,
        });
        Parent { delegation, inbox, heard, store, session: self.session, layout, cwd: self.home.project() }
    }
}

impl Parent {
    pub fn context(&self, cancel: &CancellationToken) -> ToolContext {
        ToolContext {
            session: self.session.clone(),
            call_id: "call_1".into(),
            cwd: self.cwd.clone(),
            cancel: cancel.clone(),
            state: Arc::new(SessionState::default()),
        }
    }

    /// One call of the tool `subagent`, as the model makes it.
    pub async fn subagent(&self, input: Value) -> Result<String, ToolFailure> {
        self.call(&SubagentTool::new(self.delegation.clone()), input).await.map(|reply| reply.text)
    }

    pub async fn bash(&self, input: Value) -> Result<ToolReply, ToolFailure> {
        self.call(&BashTool::new(self.delegation.clone(), self.policy()), input).await
    }

    pub async fn task_output(&self, input: Value) -> Result<String, ToolFailure> {
        const KINDS: &[JobKind] = &[JobKind::ProcessAgent, JobKind::Shell];
        self.call(&TaskOutputTool::new(self.delegation.clone(), KINDS), input).await.map(|reply| reply.text)
    }

    pub async fn task_stop(&self, input: Value) -> Result<String, ToolFailure> {
        const KINDS: &[JobKind] = &[JobKind::ProcessAgent, JobKind::Shell];
        self.call(&TaskStopTool::new(self.delegation.clone(), KINDS), input).await.map(|reply| reply.text)
    }

    /// One that allows everything.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::new(Policy::new(Mode::Yolo, RuleSet::default(), self.cwd.clone()))
    }

    async fn call(&self, tool: &dyn Tool, input: Value) -> Result<ToolReply, ToolFailure> {
        tool.call(input, self.context(&CancellationToken::new())).await
    }

    /// Starts a child and gives its id.
    pub async fn spawn(&self, task: &str) -> String {
        let reply = self.subagent(json!({"action": "spawn", "task": task})).await.unwrap();
        let id = reply.strip_prefix("[SubAgent] ").unwrap().split(':').next().unwrap();
        id.to_owned()
    }

    /// Polls one child until it has ended.
    pub async fn ended(&self, id: &str) -> String {
        let deadline = std::time::Instant::now() + super::wait::PATIENCE;
        loop {
            let reply = self.subagent(json!({"action": "poll", "subagent_ids": [id], "wait_secs": 5})).await.unwrap();
            if reply.starts_with(">>>") {
                return reply;
            }
            assert!(std::time::Instant::now() < deadline, "{reply}");
        }
    }

    pub async fn kill(&self, ids: &[&str]) -> String {
        self.subagent(json!({"action": "kill", "subagent_ids": ids})).await.unwrap()
    }

    pub fn folder(&self, id: &str) -> PathBuf {
        self.layout.job(&self.session, &zapmyco::ids::JobId::parse(id).unwrap()).path().to_owned()
    }

    /// Notices that wait in the inbox now.
    pub fn notices(&self) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(delivery) = self.inbox.take() {
            texts.extend(delivery.inputs().map(|input| input.text.clone()));
            delivery.confirm();
        }
        texts
    }
}

/// Waits for a condition inside a runtime.
pub async fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + super::wait::PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Nothing of what was started with this home is left. Keepers do not count: one that has written its record is about to
/// exit, and whoever waits for the record is faster.
pub fn nothing_left(home: &Home) -> bool {
    let processes = super::processes::of_home(&home.root());
    processes.iter().all(|process| process.state == 'Z' || process.command == "zapmyco-keep")
}
