//! A session that delegates, inside this process: real keepers and payloads of the built program.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use zapmyco::agent::Role;
use zapmyco::agent::inbox::Inbox;
use zapmyco::config::{Environment, Layout, Limits};
use zapmyco::ids::SessionId;
use zapmyco::store::Store;
use zapmyco::subagents::delegation::{Delegation, DelegationParts, Started};
use zapmyco::subagents::handover::ChildSettings;
use zapmyco::supervisor::launch::Launcher;
use zapmyco::supervisor::plan::Program;

use crate::Bench;
use crate::start::environment;

pub struct Parent {
    pub delegation: Delegation,
    pub store: Store,
    pub layout: Layout,
}

impl Parent {
    /// Returns when the payload runs.
    pub async fn spawn(&self, task: &str) -> Started {
        self.delegation.spawn_agent(task, None, &CancellationToken::new()).await.unwrap()
    }
}

/// `child`: what runs as a process child; `None`: the built program.
pub fn parent(bench: &Bench, home: &Path, child: Option<PathBuf>, more: Vec<(String, String)>) -> Parent {
    let layout = Layout::new(home.join("root"));
    let store = Store::open(&layout.database()).unwrap();
    let variables: Vec<(String, String)> = environment(home).into_iter().chain(more).collect();
    let delegation = Delegation::new(DelegationParts {
        launcher: launcher(bench),
        store: Some(store.clone()),
        layout: layout.clone(),
        limits: Arc::new(Limits { stop_grace: Duration::from_millis(200), ..Limits::default() }),
        session: SessionId::new_main(),
        cwd: home.join("project"),
        environment: Environment::from_pairs(variables),
        child: ChildSettings::default(),
        child_program: Program::At(child.unwrap_or_else(|| bench.binary.clone())),
        role: Role::Main,
        hidden_variables: Vec::new(),
        events: None,
        inbox: Some(Inbox::new(10_000)),
        budget: None,
        local: None,
    });
    Parent { delegation, store, layout }
}

pub fn launcher(bench: &Bench) -> Launcher {
    Launcher::new(Program::At(bench.binary.clone()))
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Looks until the condition holds; a benchmark that cannot go on fails.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
