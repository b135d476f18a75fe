//! A main session, or the session of a process child: prompt, tools, delegation, history.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::agent::budget::Budget;
use crate::agent::event::EventSink;
use crate::agent::inbox::Inbox;
use crate::agent::instructions::{self, Gathered};
use crate::agent::prompt::{self, EnvironmentFacts, Role, in_git_repository};
use crate::agent::session::{Session, SessionError, SessionParts};
use crate::agent::tool::{Tool, ToolBox};
use crate::app::agents::selection_of;
use crate::app::costs::Costs;
use crate::app::model::ChosenModel;
use crate::app::web::Web;
use crate::app::{App, AppError, git};
use crate::clock;
use crate::files;
use crate::frontmatter::Severity;
use crate::hooks::SessionHooks;
use crate::ids::{IdError, JobId, JobKind, SessionId};
use crate::models::Prefix;
use crate::permissions::approval::Approver;
use crate::permissions::decide::Policy;
use crate::permissions::sandbox::{SandboxReport, SandboxScope};
use crate::permissions::{Granted, Mode};
use crate::secrets::Secrets;
use crate::skills::{Library, View};
use crate::store::{SessionRow, Store};
use crate::subagents::child::{ChildTools, LocalParts, MEMORY_CONTEXT, skills_message};
use crate::subagents::delegation::{Delegation, DelegationParts};
use crate::subagents::folders::JobError;
use crate::subagents::handover::{ChildSettings, HandoverError, ModeReader};
use crate::subagents::in_process::AgentError;
use crate::subagents::memory::{Memory, MemorySettings};
use crate::subagents::profiles::parse::CommandLineProfilesError;
use crate::subagents::replies::ReplyLine;
use crate::supervisor::launch::Launcher;
use crate::supervisor::plan::Program;
use crate::tools::agent::AgentTool;
use crate::tools::bash::BashTool;
use crate::tools::respond::RespondToCoordinator;
use crate::tools::send_message::SendMessageTool;
use crate::tools::skill::SkillTool;
use crate::tools::subagent::SubagentTool;
use crate::tools::task_output::TaskOutputTool;
use crate::tools::task_stop::TaskStopTool;
use crate::tools::toolset::{self, SessionTools};

/// Which session is wanted.
pub enum Start {
    New,
    /// The newest main session of the working directory.
    Continue,
    Resume(String),
}

/// What a session is opened with.
pub struct SessionRequest<'a> {
    pub role: Role,
    pub start: &'a Start,
    pub events: Arc<dyn EventSink>,
    /// Who is asked about calls of the session and of its children in this process.
    pub approver: Arc<dyn Approver>,
    /// What is answered for the whole session.
    pub granted: Arc<Granted>,
    pub max_turns: Option<u32>,
    pub append_system_prompt: Option<&'a str>,
    /// Observers see the text of agents in this process too (R322).
    pub forward_subagent_text: bool,
}

/// An open session and what belongs to it.
pub struct OpenSession {
    pub session: Session,
    pub delegation: Delegation,
    pub rights: Rights,
    pub store: Store,
    /// What holds its commands from the start.
    pub sandbox: SandboxReport,
    /// What it and all its children use.
    pub budget: Arc<Budget>,
    /// Held as long as this process works on the session.
    _lock: Option<File>,
}

/// What a session and its children may do, to be changed while turns run.
#[derive(Clone)]
pub struct Rights {
    policy: Arc<Policy>,
    delegation: Delegation,
}

impl Rights {
    pub fn mode(&self) -> Mode {
        self.policy.mode()
    }

    /// Holds from the next call on, in running children of both kinds too (R285). An error: process children were not
    /// reached.
    pub fn set_mode(&self, mode: Mode) -> std::io::Result<()> {
        self.policy.set_mode(mode);
        self.delegation.set_mode(mode)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no earlier session of {cwd}")]
    NothingToContinue { cwd: String },
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("{session} is the session of a subagent; only main sessions can be resumed")]
    ChildSession { session: SessionId, parent: Option<SessionId> },
    #[error("session {session} is open in another process ({holder})")]
    Held { session: SessionId, holder: String },
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Handover(#[from] HandoverError),
    #[error(transparent)]
    Jobs(#[from] JobError),
    #[error(transparent)]
    Agents(#[from] AgentError),
    #[error("the price of {model} is not known, so the budget of money cannot be held")]
    NoPrice { model: String },
    #[error("--agents: {0}")]
    Profiles(#[from] CommandLineProfilesError),
}

impl App {
    pub async fn open_session(&self, chosen: &ChosenModel, request: SessionRequest<'_>) -> Result<OpenSession, OpenError> {
        let store = self.open_store()?;
        let (id, stored) = self.session_id(&store, &request).await?;
        let lock = self.lock_session(&id)?;
        let inbox = Inbox::new(self.limits.inbox_capacity);
        let Gathered { mut context, mut notices } = self.instructions()?;
        let memory = self.main_memory(request.role, &mut notices)?;
        context.extend(memory.as_ref().map(|memory| instructions::framed(MEMORY_CONTEXT, "", &memory.prompt())));
        let policy = self.policy(&request.granted)?;
        let policy = Arc::new(match &memory {
            Some(memory) => policy.with_memory(memory.folder()),
            None => policy,
        });
        let sandbox = policy.shell_rights().report;
        notices.extend(policy.sandbox().warning(sandbox.scope == SandboxScope::ReadOnly));
        let costs = self.costs(chosen)?;
        let shelf = self.shelf(request.role, &mut notices)?;
        context.extend(shelf.as_ref().map(|shelf| skills_message(&shelf.list)));
        let launcher = Launcher::new(Program::Own).hiding(&self.secrets);
        let hooks = self.session_hooks(&id, request.role, chosen, &launcher, &policy, &mut notices);
        let local = match request.role {
            Role::Main => {
                let parts = self.local_parts(chosen, &request, &policy, &context, shelf.as_ref(), &costs)?;
                Some(LocalParts { hooks: hooks.clone(), ..parts })
            }
            Role::ProcessChild | Role::LocalChild => None,
        };
        let parts = self.delegation_parts(&id, chosen, &request, &store, &inbox, &policy);
        let delegation = Delegation::new(DelegationParts { local, launcher, budget: Some(Arc::clone(&costs.budget)), ..parts });
        let mut tools = session_tools(request.role, &delegation, &policy);
        tools.shells.extend(shelf.map(|shelf| shelf.tool()));
        tools.web = self.web(chosen, costs.budget.clone())?.tools(&policy);
        tools.secrets = self.secrets.clone();
        let mut agents = Vec::new();
        if request.role == Role::Main {
            let profiles = delegation.profiles().await?;
            agents = profiles.iter().map(|profile| profile.name.clone()).collect();
            let can_read = ["Read", "Bash"].iter().any(|name| !policy.removes(name, &[]));
            tools.delegation.push(Arc::new(AgentTool::new(delegation.clone(), &profiles, can_read)));
            tools.delegation.push(Arc::new(SendMessageTool::new(delegation.clone())));
        }
        let toolbox = toolset::build(request.role, tools, &policy);
        let toolbox = match &memory {
            Some(memory) => memory.guard(toolbox, &[]),
            None => toolbox,
        };
        let prefix = self.prefix(chosen, &request, &toolbox);
        let rights = Rights { policy: Arc::clone(&policy), delegation: delegation.clone() };
        let parts = SessionParts {
            id: id.clone(),
            parent: self.handover.as_ref().map(|handover| handover.session.clone()),
            task_type: task_type(request.role).to_owned(),
            cwd: self.cwd.clone(),
            model: Arc::clone(&chosen.model),
            toolbox,
            policy,
            approver: request.approver,
            events: request.events,
            store: store.clone(),
            limits: Arc::clone(&self.limits),
            prefix: Arc::new(prefix),
            context,
            agents,
            notices,
            inbox,
            hooks,
            max_turns: request.max_turns,
            token_budget: None,
            money_budget: None,
            budget: Some(Arc::clone(&costs.budget)),
            prices: costs.prices,
            reasoning: chosen.reasoning.clone(),
        };
        if request.role == Role::ProcessChild {
            // Its answer is what its parent waits for; a conversation that cannot be stored is no reason to give none.
            store.hold_when_full();
        }
        let session = if stored { Session::resume(parts).await? } else { Session::create(parts).await? };
        if stored {
            delegation.recover(&session.announced()).await?;
        }
        // A run that has begun is not ended by a disk that fills up meanwhile.
        store.hold_when_full();
        Ok(OpenSession { session, delegation, rights, store, sandbox, budget: costs.budget, _lock: lock })
    }

    /// The id, and whether the store has it already.
    async fn session_id(&self, store: &Store, request: &SessionRequest<'_>) -> Result<(SessionId, bool), OpenError> {
        match request.start {
            Start::New => Ok((self.new_session_id(request.role)?, false)),
            Start::Resume(text) => Ok((only_main(store, SessionId::parse(text)?).await?, true)),
            Start::Continue => {
                let newest = store.newest_main(&self.cwd).await.map_err(AppError::Store)?;
                let row: SessionRow = newest.ok_or_else(|| OpenError::NothingToContinue { cwd: self.cwd.display().to_string() })?;
                Ok((row.id, true))
            }
        }
    }

    /// A child's session is derived from its job, so that either leads to the other.
    fn new_session_id(&self, role: Role) -> Result<SessionId, IdError> {
        match (role, self.environment.get(crate::config::environment::SUBAGENT)) {
            (Role::ProcessChild, Some(job)) => Ok(SessionId::of_child(&JobId::parse(job)?)),
            (Role::ProcessChild | Role::LocalChild | Role::Main, _) => Ok(SessionId::new_main()),
        }
    }

    /// One process at a time works on a session; a second one is told who does.
    fn lock_session(&self, id: &SessionId) -> Result<Option<File>, OpenError> {
        let path = self.layout.session_lock(id);
        let folder = path.parent().unwrap_or(Path::new("/"));
        files::create_private_folder(folder).map_err(AppError::Storage)?;
        let Some(file) = lock_soon(&path).map_err(AppError::Storage)? else {
            let holder = holder_of(&path);
            return Err(OpenError::Held { session: id.clone(), holder });
        };
        // Only for the message above; a lock without a readable holder is still a lock.
        let _ = file.set_len(0).and_then(|()| std::io::Write::write_all(&mut &file, format!("process {}", std::process::id()).as_bytes()));
        Ok(Some(file))
    }

    pub(super) fn policy(&self, granted: &Arc<Granted>) -> Result<Policy, OpenError> {
        let mut policy = Policy::new(self.mode()?, self.rules.clone(), self.cwd.clone())
            .with_root(self.layout.root())
            .with_sandbox(self.sandbox()?)
            .sharing(granted);
        if let Some(home) = self.environment.home() {
            policy = policy.with_home(&home);
        }
        if let Some(reader) = ModeReader::receive(&self.environment)? {
            policy = policy.with_parent(Arc::new(move || Some(reader.mode())));
        }
        Ok(policy)
    }

    fn delegation_parts(
        &self,
        id: &SessionId,
        chosen: &ChosenModel,
        request: &SessionRequest<'_>,
        store: &Store,
        inbox: &Inbox,
        policy: &Policy,
    ) -> DelegationParts {
        DelegationParts {
            launcher: Launcher::new(Program::Own).hiding(&self.secrets),
            child_program: Program::Own,
            store: Some(store.clone()),
            layout: self.layout.clone(),
            limits: Arc::clone(&self.limits),
            session: id.clone(),
            cwd: self.cwd.clone(),
            environment: self.environment.clone(),
            role: request.role,
            child: self.child_settings(chosen, policy, request.max_turns),
            hidden_variables: chosen.key_variables.clone(),
            events: Some(Arc::clone(&request.events)),
            inbox: Some(inbox.clone()),
            budget: None,
            local: None,
        }
    }

    fn local_parts(
        &self,
        chosen: &ChosenModel,
        request: &SessionRequest<'_>,
        policy: &Arc<Policy>,
        context: &[String],
        shelf: Option<&Shelf>,
        costs: &Costs,
    ) -> Result<LocalParts, OpenError> {
        let library = shelf.map(|shelf| shelf.library.clone());
        let (web, secrets) = (self.web(chosen, costs.budget.clone())?, self.secrets.clone());
        Ok(LocalParts {
            catalog: Arc::new(self.profiles()?),
            policy: Arc::clone(policy),
            approver: Arc::clone(&request.approver),
            claude_md: self.reads_claude_md()?,
            home: self.environment.home(),
            model: Arc::clone(&chosen.model),
            selection: selection_of(chosen),
            models: Arc::new(self.child_models(chosen).map_err(AppError::Settings)?),
            skills: library.clone(),
            servers: None,
            toolbox: Arc::new(move |wanted: &ChildTools<'_>| child_tools(wanted, library.as_ref(), &web, &secrets)),
            hooks: SessionHooks::none(),
            context: context.to_vec(),
            facts: self.facts(chosen),
            settings: self.agent_settings().map_err(AppError::Settings)?,
            memory: self.settings.section("memory").map_err(AppError::Settings)?.unwrap_or_default(),
            max_turns: request.max_turns,
            budget: Some(Arc::clone(&costs.budget)),
            agent_money: costs.agent_money,
            prices: Arc::clone(&costs.prices),
            forward_text: request.forward_subagent_text,
        })
    }

    fn child_settings(&self, chosen: &ChosenModel, policy: &Policy, max_turns: Option<u32>) -> ChildSettings {
        let texts = |rules: &[crate::permissions::rules::Rule]| rules.iter().map(ToString::to_string).collect();
        ChildSettings {
            model: chosen.for_children.clone(),
            record: chosen.record.clone(),
            mode: Some(policy.mode()),
            allow: texts(&self.rules.allow),
            ask: texts(&self.rules.ask),
            deny: texts(&self.rules.deny),
            hooks: self.hook_set().0,
            limits: self.settings.limits_set(),
            max_turns,
            sandbox: policy.sandbox().settings().clone(),
        }
    }

    fn instructions(&self) -> Result<Gathered, AppError> {
        Ok(instructions::gather(&instructions::Sources {
            user_file: &self.layout.user_instructions(),
            cwd: &self.cwd,
            claude_md: self.reads_claude_md()?,
            today: clock::now().date_naive(),
            git: git::branch(&self.cwd).as_deref(),
        }))
    }

    /// R129
    fn reads_claude_md(&self) -> Result<bool, AppError> {
        Ok(self.settings.section::<bool>("instructions.claude_md")?.unwrap_or(true))
    }

    fn facts(&self, chosen: &ChosenModel) -> EnvironmentFacts {
        EnvironmentFacts {
            cwd: self.cwd.clone(),
            git_repository: in_git_repository(&self.cwd),
            platform: std::env::consts::OS.to_owned(),
            shell: self.environment.get("SHELL").unwrap_or("/bin/sh").to_owned(),
            os_version: os_version(),
            model: chosen.model.name().to_owned(),
        }
    }

    fn prefix(&self, chosen: &ChosenModel, request: &SessionRequest<'_>, toolbox: &ToolBox) -> Prefix {
        let mut system = prompt::system_prompt(request.role, &self.facts(chosen));
        if let Some(addition) = request.append_system_prompt {
            system.push_str("\n\n");
            system.push_str(addition);
        }
        Prefix { tools: toolbox.declarations(), system }
    }
}

/// `Linux 6.1.0`; empty where the system does not tell.
fn os_version() -> String {
    nix::sys::utsname::uname()
        .map(|name| format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()))
        .unwrap_or_default()
}

/// The skills of a session that has some.
struct Shelf {
    library: Library,
    view: View,
    list: String,
}

impl Shelf {
    fn tool(self) -> Arc<dyn Tool> {
        Arc::new(SkillTool::new(self.library, self.view))
    }
}

impl App {
    /// R276; children have memories of their own or none (R275).
    fn main_memory(&self, role: Role, notices: &mut Vec<String>) -> Result<Option<Memory>, OpenError> {
        let settings: MemorySettings = self.settings.section("memory").map_err(AppError::Settings)?.unwrap_or_default();
        if role != Role::Main || !settings.on_in_main() {
            return Ok(None);
        }
        match Memory::open_main(&self.layout, &self.cwd) {
            Ok(memory) => Ok(Some(memory)),
            Err(error) => {
                notices.push(format!("this session runs without its memory: {error}"));
                Ok(None)
            }
        }
    }

    /// What is wrong with a skill's file is a notice.
    fn shelf(&self, role: Role, notices: &mut Vec<String>) -> Result<Option<Shelf>, OpenError> {
        let library = self.skills().map_err(AppError::Settings)?;
        let view = match role {
            Role::Main => View::default(),
            Role::ProcessChild | Role::LocalChild => library.view_of_child(None),
        };
        let skills = library.load();
        let faults = skills.diagnostics.iter().filter(|fault| fault.severity == Severity::Error).map(ToString::to_string);
        notices.extend(faults);
        Ok(view.listing(&skills).map(|list| Shelf { library, view, list }))
    }
}

/// The tools that need the session's delegation. A child sees its own shells only.
fn session_tools(role: Role, delegation: &Delegation, policy: &Arc<Policy>) -> SessionTools {
    let kinds: &[JobKind] = match role {
        Role::Main => &[JobKind::ProcessAgent, JobKind::LocalAgent, JobKind::Shell],
        Role::ProcessChild | Role::LocalChild => &[JobKind::Shell],
    };
    SessionTools {
        shells: vec![
            Arc::new(BashTool::new(delegation.clone(), Arc::clone(policy))),
            Arc::new(TaskOutputTool::new(delegation.clone(), kinds)),
            Arc::new(TaskStopTool::new(delegation.clone(), kinds)),
        ],
        delegation: vec![Arc::new(SubagentTool::new(delegation.clone()))],
        web: Vec::new(),
        secrets: Secrets::default(),
    }
}

/// Takes the lock unless somebody works on the session. Whoever only looks whether it is held has it for an instant.
fn lock_soon(path: &Path) -> Result<Option<File>, files::FileError> {
    for _ in 0..LOCK_TRIES {
        if let Some(file) = files::try_lock(path)? {
            return Ok(Some(file));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    files::try_lock(path)
}

const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(4);

/// Who holds a session, as it says itself in the lock. It may have locked it this very moment and not said so yet.
fn holder_of(lock: &Path) -> String {
    const TRIES: u32 = 20;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    for _ in 0..TRIES {
        let holder = files::read_text_bounded(lock, HOLDER_MAX).unwrap_or_default();
        if !holder.trim().is_empty() {
            return holder.trim().to_owned();
        }
        std::thread::sleep(PAUSE);
    }
    "unknown".to_owned()
}

/// Bytes of a lock file that names its holder.
const HOLDER_MAX: u64 = 1024;

/// The tools of a child in this process: its own shells, and a line to its coordinator (R216).
fn child_tools(wanted: &ChildTools<'_>, library: Option<&Library>, web: &Web, secrets: &Secrets) -> ToolBox {
    let mut tools = session_tools(Role::LocalChild, wanted.delegation, wanted.policy);
    if let Some(library) = library {
        let allowed = wanted.agent.and_then(|agent| agent.profile.skills.as_deref());
        tools.shells.push(Arc::new(SkillTool::new(library.clone(), library.view_of_child(allowed))));
    }
    tools.web = web.tools(wanted.policy);
    tools.secrets = secrets.clone();
    if let (Some(agent), Some(parent)) = (wanted.agent, wanted.parent_inbox) {
        let line = ReplyLine::new(agent.clone(), parent.clone(), wanted.delegation.limits());
        tools.shells.push(Arc::new(RespondToCoordinator::new(line)));
    }
    toolset::build(Role::LocalChild, tools, wanted.policy)
}

/// What the store calls a session of this role.
/// A child's session is held to the profile it was started with; opened as a main one it would have all rights of a main one.
async fn only_main(store: &Store, id: SessionId) -> Result<SessionId, OpenError> {
    let row = store.session(&id).await.map_err(AppError::Store)?;
    let parent = row.and_then(|row| row.parent);
    if id.child_job().is_some() || parent.is_some() {
        return Err(OpenError::ChildSession { session: id, parent });
    }
    Ok(id)
}

fn task_type(role: Role) -> &'static str {
    match role {
        Role::Main => "main",
        Role::ProcessChild => "process_child",
        Role::LocalChild => crate::subagents::child::TASK_TYPE,
    }
}
