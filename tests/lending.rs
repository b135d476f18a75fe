//! Flow: agents in this process that borrow the servers of their parent. The servers are a stand-in made of real tools; the
//! child, its session, its toolset and its files are real.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use zapmyco::agent::prompt::EnvironmentFacts;
use zapmyco::agent::state::SessionState;
use zapmyco::agent::tool::{Tool, ToolContext, ToolFailure, ToolReply};
use zapmyco::agent::{Inbox, Role};
use zapmyco::config::{Environment, Layout, Limits};
use zapmyco::ids::SessionId;
use zapmyco::mcp::{Lifecycle, Loan, LoanError, McpServers, Server, ServerState, ServerTool};
use zapmyco::models::Model;
use zapmyco::models::prices::Prices;
use zapmyco::models::scripted::{Script, ScriptContext, scripted};
use zapmyco::permissions::{Mode, Policy, RuleSet};
use zapmyco::store::Store;
use zapmyco::subagents::child::{ChildModels, ChildTools, LentServers, LocalParts};
use zapmyco::subagents::delegation::{Delegation, DelegationParts};
use zapmyco::subagents::handover::ChildSettings;
use zapmyco::subagents::in_process::{AgentCall, AgentOutcome};
use zapmyco::subagents::local::LocalAgent;
use zapmyco::subagents::memory::MemorySettings;
use zapmyco::subagents::profiles::model_choice::{AgentSettings, ModelChoiceError, ModelSelection};
use zapmyco::subagents::profiles::parse::parse_command_line;
use zapmyco::subagents::profiles::{LiveCatalog, Sources};
use zapmyco::supervisor::launch::Launcher;
use zapmyco::supervisor::plan::Program;
use zapmyco::tools::agent::AgentTool;
use zapmyco::tools::glob::Glob;
use zapmyco::tools::read::Read;
use zapmyco::tools::toolset::{self, SessionTools};

use crate::support::delegating::nothing_left;
use crate::support::provider::{Answer, Provider};
use crate::support::{Home, binary, finish};

/// Servers whose tools are tools of ours.
struct Shelf {
    servers: Mutex<Vec<Server>>,
    tools: Vec<ServerTool>,
    changed: Notify,
    managed: Mutex<Vec<Lifecycle>>,
}

impl Shelf {
    fn new(home: &Home, servers: &[(&str, ServerState)]) -> Arc<Self> {
        let policy = Arc::new(Policy::new(Mode::Yolo, RuleSet::default(), home.project()));
        let tools = servers.iter().flat_map(|(server, _)| {
            let read: Arc<dyn Tool> = Arc::new(Read::new());
            let glob: Arc<dyn Tool> = Arc::new(Glob::new(policy.clone()));
            [("read.file", read), ("find", glob)].map(|(name, tool)| ServerTool { server: (*server).into(), name: name.into(), tool })
        });
        Arc::new(Self {
            tools: tools.collect(),
            servers: Mutex::new(servers.iter().map(|(name, state)| server(name, *state)).collect()),
            changed: Notify::new(),
            managed: Mutex::default(),
        })
    }

    fn set(&self, name: &str, state: ServerState) {
        self.servers.lock().unwrap().iter_mut().filter(|server| server.name == name).for_each(|server| server.state = state);
        self.changed.notify_waiters();
    }
}

fn server(name: &str, state: ServerState) -> Server {
    Server { name: name.into(), state, connect_timeout: Duration::from_secs(20) }
}

impl McpServers for Shelf {
    fn servers(&self) -> Vec<Server> {
        self.servers.lock().unwrap().clone()
    }

    fn tools(&self) -> Vec<ServerTool> {
        let servers = self.servers.lock().unwrap();
        let is_connected = |name: &str| servers.iter().any(|server| server.name == name && server.state == ServerState::Connected);
        self.tools.iter().filter(|tool| is_connected(&tool.server)).cloned().collect()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        let mut notified = Box::pin(self.changed.notified());
        notified.as_mut().enable();
        notified
    }

    fn manage<'a>(&'a self, _server: &'a str, wish: Lifecycle) -> BoxFuture<'a, Result<(), LoanError>> {
        self.managed.lock().unwrap().push(wish);
        Box::pin(std::future::ready(Ok(())))
    }
}

struct NoOthers;

impl ChildModels for NoOthers {
    fn open(&self, selection: &ModelSelection) -> Result<Arc<dyn Model>, ModelChoiceError> {
        panic!("{selection} was asked for")
    }
}

const SCRIPT: &str = r#"
version: 1
scripts:
  - match: "^use (\\S+)"
    turns:
      - calls:
          - name: "{{ task | regex_find('^use (\\S+)') }}"
            input: { file_path: "a.txt" }
      - text: "{{ results[0] }}"
  - turns:
      - text: "seen"
"#;

/// A parent session's delegation with agents in this process; `profiles` as for `--agents`.
fn parent(home: &Home, shelf: Option<&Arc<Shelf>>, profiles: &Value) -> Delegation {
    let layout = Layout::new(home.root());
    let script = Arc::new(Script::parse("lending.yaml", SCRIPT).unwrap());
    let policy = Arc::new(Policy::new(Mode::Yolo, RuleSet::default(), home.project()));
    let catalog = LiveCatalog::new(Sources {
        layout: layout.clone(),
        home: None,
        cwd: home.project(),
        plugins: Vec::new(),
        command_line: parse_command_line(&profiles.to_string()).unwrap(),
        trust: zapmyco::permissions::trust::Trust::none(&home.project()),
    });
    let facts = EnvironmentFacts {
        cwd: home.project(),
        git_repository: false,
        platform: "linux".into(),
        shell: "/bin/sh".into(),
        os_version: String::new(),
        model: "script/lending.yaml".into(),
    };
    let local = LocalParts {
        hooks: zapmyco::hooks::SessionHooks::none(),
        catalog: Arc::new(catalog),
        approver: Arc::new(zapmyco::permissions::approval::Unattended),
        claude_md: true,
        policy,
        home: None,
        model: scripted(script, ScriptContext::new(home.project())),
        selection: ModelSelection { provider: "script".into(), model: "lending.yaml".into(), level: None },
        models: Arc::new(NoOthers),
        toolbox: Arc::new(|wanted: &ChildTools<'_>| toolset::build(Role::LocalChild, SessionTools::default(), wanted.policy)),
        context: Vec::new(),
        facts,
        settings: AgentSettings::default(),
        memory: MemorySettings::default(),
        skills: None,
        servers: shelf.map(|shelf| LentServers { servers: shelf.clone(), hidden: Arc::new(vec!["screen".to_owned()]) }),
        max_turns: None,
        budget: None,
        agent_money: None,
        prices: Arc::new(Prices::new(Default::default())),
        forward_text: false,
    };
    Delegation::new(DelegationParts {
        launcher: Launcher::new(Program::At(binary())),
        store: Some(Store::open(&layout.database()).unwrap()),
        layout,
        limits: Arc::new(Limits::default()),
        session: SessionId::new_main(),
        cwd: home.project(),
        environment: Environment::from_pairs(Vec::<(String, String)>::new()),
        child: ChildSettings::default(),
        child_program: Program::At(binary()),
        role: Role::Main,
        hidden_variables: Vec::new(),
        events: None,
        inbox: Some(Inbox::new(100)),
        budget: None,
        local: Some(local),
    })
}

/// Runs an agent in the foreground: itself, and its text.
async fn run(parent: &Delegation, kind: &str, prompt: &str) -> Result<(Arc<LocalAgent>, String), String> {
    let call =
        AgentCall { description: "d".into(), prompt: prompt.into(), agent_type: Some(kind.into()), background: false, call_id: None };
    match parent.run_agent(call, &CancellationToken::new()).await {
        Ok(AgentOutcome::Ended(agent, end)) => Ok((agent, format!("{}{}", end.text, end.error.clone().unwrap_or_default()))),
        Ok(AgentOutcome::Launched(agent)) => panic!("{agent:?} is in the background"),
        Err(error) => Err(error.to_string()),
    }
}

fn of_servers(agent: &LocalAgent) -> Vec<&str> {
    agent.tools.iter().map(String::as_str).filter(|name| name.starts_with("mcp__")).collect()
}

fn any() -> Value {
    json!({
        "any": {"description": "d", "prompt": "p"},
        "docs": {"description": "d", "prompt": "p", "mcpServers": ["docs"]},
        "late": {"description": "d", "prompt": "p", "mcpServers": ["late", "docs"]},
        "gone": {"description": "d", "prompt": "p", "mcpServers": ["docs", "gone", "lost"]},
        "screen": {"description": "d", "prompt": "p", "mcpServers": ["screen"]},
        "one": {"description": "d", "prompt": "p", "tools": ["Read", "mcp__docs__read_file"]},
        "none": {"description": "d", "prompt": "p", "tools": ["Read", "mcp__docs__burn"]},
    })
}

/// R93, R132, R133, R138, R139: a child calls its parent's servers as they are at its launch; it opens none, ends none, and
/// never sees the hidden ones.
#[tokio::test]
async fn a_child_borrows_what_is_connected_when_it_starts() {
    let home = Home::new();
    home.write("a.txt", "from the file\n");
    let states = [("docs", ServerState::Connected), ("screen", ServerState::Connected), ("late", ServerState::Disconnected)];
    let shelf = Shelf::new(&home, &states);
    let parent = parent(&home, Some(&shelf), &any());
    let (agent, text) = run(&parent, "any", "use mcp__docs__read_file").await.unwrap();
    assert!(text.contains("from the file"), "{text}");
    assert_eq!(of_servers(&agent), ["mcp__docs__find", "mcp__docs__read_file"]);
    let stored: Value = serde_json::from_slice(&std::fs::read(agent.folder.agent_metadata()).unwrap()).unwrap();
    assert_eq!(stored["tools"], json!(agent.tools), "what it was granted is recorded");
    let (_, text) = run(&parent, "any", "use mcp__screen__read_file").await.unwrap();
    assert!(!text.contains("from the file"), "{text}");
    shelf.set("late", ServerState::Connected);
    let (later, text) = run(&parent, "any", "use mcp__late__read_file").await.unwrap();
    assert!(text.contains("from the file"), "connected since: {text}");
    assert_eq!(of_servers(&later).len(), 4);
    let (scoped, _) = run(&parent, "docs", "x").await.unwrap();
    assert_eq!(of_servers(&scoped), ["mcp__docs__find", "mcp__docs__read_file"]);
    let (one, _) = run(&parent, "one", "x").await.unwrap();
    assert_eq!(of_servers(&one), ["mcp__docs__read_file"]);
    assert_eq!(*shelf.managed.lock().unwrap(), [], "nothing was connected or closed");
}

/// fault A9: ten borrowers one after another leave the one server of their parent as it was: none connects a second one and
/// none ends it, and neither does one that is stopped.
#[tokio::test]
async fn borrowers_multiply_no_server() {
    let home = Home::new();
    home.write("a.txt", "from the file\n");
    let shelf = Shelf::new(&home, &[("docs", ServerState::Connected)]);
    let parent = parent(&home, Some(&shelf), &any());
    let before = shelf.servers();
    for _ in 0..10 {
        let (_, text) = run(&parent, "docs", "use mcp__docs__read_file").await.unwrap();
        assert!(text.contains("from the file"), "{text}");
    }
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let call = AgentCall {
        description: "d".into(),
        prompt: "use mcp__docs__read_file".into(),
        agent_type: Some("docs".into()),
        background: false,
        call_id: None,
    };
    let _ = parent.run_agent(call, &cancelled).await;
    assert_eq!(shelf.servers(), before);
    assert_eq!(*shelf.managed.lock().unwrap(), [], "no connection was opened or closed");
}

/// fault A9: what files of the project name as servers is started for no process child, so none is left after one that
/// ended or was stopped.
#[test]
fn process_children_leave_no_server() {
    let home = Home::new();
    let server = json!({"command": "sh", "args": ["-c", "echo $$ >> servers; exec cat"]});
    home.write(".mcp.json", &json!({"mcpServers": {"docs": server}}).to_string());
    let provider = Provider::with(|request| {
        let results = request.tool_results();
        let last = || results.last().map(|(_, text)| text.clone()).unwrap_or_default();
        let id = || last().split([' ', ':', '\n']).find(|word| word.starts_with("sa_")).unwrap_or_default().to_owned();
        match (request.task().as_str(), request.turn()) {
            ("child", _) => Answer::text("the child is done"),
            ("stuck", _) => Answer::stall(),
            (_, turn) if turn < 20 && turn % 2 == 0 => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
            (_, turn) if turn < 20 => Answer::call("p", "subagent", json!({"action": "poll", "subagent_ids": [id()], "wait_secs": 30})),
            (_, 20) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "stuck"})),
            (_, 21) => Answer::call("k", "subagent", json!({"action": "kill", "subagent_ids": [id()]})),
            _ => Answer::text(results.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n")),
        }
    });
    let mut command = home.command();
    provider.configure(&mut command);
    let finished = finish(command.args(["run", "--permission-mode", "yolo", "go"]));
    assert_eq!(finished.code, 0, "{finished:?}");
    assert_eq!(finished.stdout.matches("the child is done").count(), 10, "{finished:?}");
    assert!(finished.stdout.contains("已终止 1 个子代理"), "{finished:?}");
    assert!(!home.project().join("servers").exists());
    assert!(nothing_left(&home));
}

/// R135, R136, R138: what a profile needs and is not there refuses the launch, and leaves nothing.
#[tokio::test]
async fn what_is_required_and_missing_refuses_the_launch() {
    let home = Home::new();
    let states = [("docs", ServerState::Connected), ("gone", ServerState::Failed), ("screen", ServerState::Connected)];
    let shelf = Shelf::new(&home, &states);
    let parent = parent(&home, Some(&shelf), &any());
    for (kind, expected) in [
        ("gone", "Required MCP server is not connected: gone, lost"),
        ("screen", "Required MCP server is not connected: screen"),
        ("none", "Required MCP tool is not available: mcp__docs__burn"),
    ] {
        assert_eq!(run(&parent, kind, "x").await.unwrap_err(), expected);
    }
    assert!(parent.agents().is_empty());
    assert!(!home.root().join("cli/agents").exists());
}

/// R135: a server that is just being connected is waited for, one that then fails refuses the launch.
#[tokio::test]
async fn a_server_that_connects_is_waited_for() {
    for (end, starts) in [(ServerState::Connected, true), (ServerState::Failed, false)] {
        let home = Home::new();
        let shelf = Shelf::new(&home, &[("docs", ServerState::Connected), ("late", ServerState::Connecting)]);
        let parent = parent(&home, Some(&shelf), &any());
        let mut launch = Box::pin(run(&parent, "late", "x"));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut launch).await;
        assert!(early.is_err(), "it waits");
        shelf.set("late", end);
        assert_eq!(launch.await.is_ok(), starts);
    }
}

/// R134, R137: calls are forwarded; life cycle, closing and foreign servers are not the child's business.
#[tokio::test]
async fn a_loan_forwards_calls_and_manages_nothing() {
    let home = Home::new();
    home.write("a.txt", "from the file\n");
    let shelf = Shelf::new(&home, &[("docs", ServerState::Connected), ("other", ServerState::Connected)]);
    let loan = Loan::new(shelf.clone(), Arc::default(), Some(vec!["docs".to_owned()]));
    assert_eq!(loan.servers().len(), 1);
    let (tools, _) = loan.exposed();
    let context = ToolContext {
        session: SessionId::new_main(),
        call_id: "c".into(),
        cwd: home.project(),
        cancel: CancellationToken::new(),
        state: Arc::new(SessionState::default()),
    };
    let read = |tools: &[Arc<dyn Tool>]| tools.iter().find(|tool| tool.spec().declaration.name == "mcp__docs__read_file").cloned().unwrap();
    let called: Result<ToolReply, ToolFailure> = read(&tools).call(json!({"file_path": "a.txt"}), context.clone()).await;
    assert!(called.unwrap().text.contains("from the file"));
    for wish in [Lifecycle::Connect, Lifecycle::Disconnect] {
        let refused = loan.manage("docs", wish).await.unwrap_err();
        assert_eq!(refused.to_string(), "Subagent MCP port cannot mutate parent connection lifecycle");
    }
    loan.manage("", Lifecycle::Close).await.unwrap();
    drop(loan.clone());
    assert_eq!(*shelf.managed.lock().unwrap(), []);
    let outside = loan.find("other", "find").err().unwrap();
    assert_eq!(outside.to_string(), "Subagent MCP server is outside visible scope: other");
    shelf.set("docs", ServerState::Disconnected);
    let failed = read(&tools).call(json!({"file_path": "a.txt"}), context).await.unwrap_err();
    assert_eq!(failed.message, "MCP server docs is not connected", "the state at the call counts");
}

/// R135: without any connections the refusal says so, and what to do.
#[tokio::test]
async fn a_session_without_servers_says_so() {
    let home = Home::new();
    let parent = parent(&home, None, &any());
    let refused = run(&parent, "docs", "x").await.unwrap_err();
    assert!(refused.starts_with("Required MCP server is not connected: docs; zapmyco has no connections to MCP servers yet"), "{refused}");
    let (agent, _) = run(&parent, "any", "x").await.unwrap();
    assert!(of_servers(&agent).is_empty());
}

/// R11, R16, R21, R28: what the tool declares, lists and returns as data.
#[tokio::test]
async fn the_tool_declares_lists_and_returns() {
    let home = Home::new();
    let long = "word ".repeat(200);
    let profiles = json!({"b": {"description": long, "prompt": "p", "tools": ["Read", "Grep"]}, "a": {"description": "d", "prompt": "p"}});
    let parent = parent(&home, None, &profiles);
    let known = parent.profiles().await.unwrap();
    let tool = AgentTool::new(parent.clone(), &known, true);
    let again = AgentTool::new(parent.clone(), &parent.profiles().await.unwrap(), true);
    assert_eq!(tool.spec().declaration, again.spec().declaration, "equal profiles give equal bytes");
    let text = &tool.spec().declaration.description;
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("- Explore: ") < at("- Plan: ") && at("- Plan: ") < at("- a: d (Tools: ") && at("- a: d") < at("- b: word word"));
    assert!(text.contains("(Tools: Grep, Read, RespondToCoordinator)"), "{text}");
    let line = text.lines().find(|line| line.starts_with("- b: ")).unwrap();
    assert!(line.len() < 500, "each description is bounded: {}", line.len());
    let keys: Vec<&String> = tool.spec().declaration.input_schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["description", "prompt", "subagent_type", "run_in_background"]);
    assert!(tool.spec().concurrent);
    assert_eq!(tool.spec().approval, zapmyco::agent::tool::ApprovalNeed::Never);
    let context = ToolContext {
        session: SessionId::new_main(),
        call_id: "c1".into(),
        cwd: home.project(),
        cancel: CancellationToken::new(),
        state: Arc::new(SessionState::default()),
    };
    assert_eq!(tool.effect(&json!({}), &context).unwrap(), zapmyco::permissions::Effect::Internal);
    let title = "a title\nof many words ".repeat(40);
    let input = json!({"description": title, "prompt": "look", "subagent_type": "a"});
    let reply = tool.call(input, context).await.unwrap();
    let data = reply.structured.unwrap();
    for (key, value) in [
        ("status", json!("completed")),
        ("agentType", json!("a")),
        ("description", json!(title)),
        ("prompt", json!("look")),
        ("content", json!([{"type": "text", "text": "seen"}])),
        ("totalToolUseCount", json!(0)),
        ("partial", json!(false)),
        ("resolvedModel", json!("script/lending.yaml")),
    ] {
        assert_eq!(data[key], value, "{key}");
    }
    let agent = &parent.agents()[0];
    assert_eq!((&data["agentId"], &data["childSessionId"]), (&json!(agent.id), &json!(agent.session)));
    assert!(data["totalDurationMs"].is_u64() && data["totalTokens"].is_u64() && data["usage"].is_object());
    assert!(agent.title().starts_with("a title of many words a title") && agent.title().chars().count() <= 201, "{}", agent.title());
    let listed = parent.list().await.unwrap();
    assert!(listed.iter().all(|job| !job.owner.title.contains('\n')), "shown shortened");
}
