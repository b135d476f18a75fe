//! Builds a child session: profile, prompt, tools, rights, model, and its own shells. Nothing in it is wider than its
//! parent's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::asking::ThroughParent;
use super::delegation::{Delegation, DelegationParts};
use super::in_process::AgentError;
use super::local::LocalAgent;
use super::memory::{Memory, MemorySettings};
use super::metadata;
use super::process::Starter;
use super::profiles::model_choice::{self, AgentSettings, ModelChoice, ModelChoiceError, ModelSelection, Situation};
use super::profiles::tool_policy::{self, ChildRole, NarrowingRule, ParentTool, Surroundings, ToolGrant, ToolPolicyError};
use super::profiles::{Catalog, ChildMode, Level, LiveCatalog, McpServer, Profile};
use super::uplink::Uplink;
use crate::agent::Role;
use crate::agent::budget::Budget;
use crate::agent::event::EventSink;
use crate::agent::inbox::Inbox;
use crate::agent::instructions;
use crate::agent::prompt::{EnvironmentFacts, child_prompt};
use crate::agent::session::{Session, SessionParts};
use crate::agent::tool::ToolBox;
use crate::clock;
use crate::config::{Layout, Limits};
use crate::hooks::{self, HookSet, SessionHooks};
use crate::mcp::{Loan, McpServers, Server, ServerState};
use crate::models::one_off::OneOff;
use crate::models::prices::{Prices, Usd};
use crate::models::{Model, Prefix};
use crate::permissions::Mode;
use crate::permissions::approval::Approver;
use crate::permissions::decide::Policy;
use crate::permissions::rules::{Rule, RuleSet};
use crate::skills::{Library, View, content};

/// What children in this process are made from; given by `app`, once per main session.
pub struct LocalParts {
    pub catalog: Arc<LiveCatalog>,
    /// The parent's, asked at every call of a child.
    pub policy: Arc<Policy>,
    /// Whom the parent asks: its children's questions go there too.
    pub approver: Arc<dyn Approver>,
    /// CLAUDE.md is read in a folder that has no AGENTS.md (R129).
    pub claude_md: bool,
    pub home: Option<PathBuf>,
    pub model: Arc<dyn Model>,
    /// The parent's model by its parts, with its reasoning level.
    pub selection: ModelSelection,
    pub models: Arc<dyn ChildModels>,
    pub toolbox: ToolFactory,
    /// The session's; they run in its children too (R148).
    pub hooks: SessionHooks,
    /// The parent's context messages (AGENTS.md, date, git state).
    pub context: Vec<String>,
    pub facts: EnvironmentFacts,
    pub settings: AgentSettings,
    pub memory: MemorySettings,
    /// `None`: this session has no skills.
    pub skills: Option<Library>,
    /// The session's servers; `None`: it has no connections at all.
    pub servers: Option<LentServers>,
    /// Model requests of the run that a flag allows; children get no more.
    pub max_turns: Option<u32>,
    /// What the session shares with all its children; `None`: no limit.
    pub budget: Option<Arc<Budget>>,
    /// Money of one run of a child; `None`: no limit.
    pub agent_money: Option<Usd>,
    pub prices: Arc<Prices>,
    /// Observers of the parent see the children's text (R322).
    pub forward_text: bool,
}

/// The servers of a session, for its children.
#[derive(Clone)]
pub struct LentServers {
    pub servers: Arc<dyn McpServers>,
    /// No child ever sees these (R138).
    pub hidden: Arc<Vec<String>>,
}

/// Opens another model than the parent's.
pub trait ChildModels: Send + Sync {
    fn open(&self, selection: &ModelSelection) -> Result<Arc<dyn Model>, ModelChoiceError>;
}

/// Makes the tools of a child; what its profile does not grant is taken out afterwards.
pub type ToolFactory = Arc<dyn Fn(&ChildTools<'_>) -> ToolBox + Send + Sync>;

/// What tools of a child are made for.
pub struct ChildTools<'a> {
    /// Its own shells.
    pub delegation: &'a Delegation,
    pub policy: &'a Arc<Policy>,
    /// `None` when only the names are wanted.
    pub agent: Option<&'a Arc<LocalAgent>>,
    /// Where a reply to the coordinator goes.
    pub parent_inbox: Option<&'a Inbox>,
}

/// What is decided before anything exists.
pub(crate) struct Blueprint {
    pub profile: Arc<Profile>,
    pub grant: ToolGrant,
    pub choice: ModelChoice,
    pub model: Arc<dyn Model>,
    pub warnings: Vec<String>,
}

/// A session that is ready, with its own shells.
pub(crate) struct OpenChild {
    pub session: Session,
    pub shells: Delegation,
    pub inbox: Inbox,
}

/// Builds children; one per main session.
pub(crate) struct Nursery {
    pub parts: LocalParts,
    /// The tools a child can have at all.
    tools: OnceLock<Vec<ParentTool>>,
    /// Prefixes in use: siblings share theirs.
    prefixes: Mutex<Vec<Arc<Prefix>>>,
    /// That the kernel holds no commands was said.
    warned: OnceLock<()>,
}

/// Prefixes remembered; more profiles than that are rarely used at once.
const PREFIXES_MAX: usize = 64;
/// How context messages of one kind begin.
const INSTRUCTIONS: &str = "<context name=\"instructions\"";
const GIT: &str = "<context name=\"git\"";
const SKILLS: &str = "<context name=\"skills\"";
const MEMORY: &str = "<context name=\"memory\"";
/// The name of the message with a main session's memory.
pub const MEMORY_CONTEXT: &str = "memory";
/// Bytes of the skills that stand before a task.
const PRELOADED_MAX: usize = 200_000;

/// What comes to a child from outside its profile.
#[derive(Default)]
pub(crate) struct Added {
    pub memory: Option<Memory>,
    /// Context messages about skills.
    pub skills: Vec<String>,
}

impl Nursery {
    pub(crate) fn new(parts: LocalParts) -> Self {
        Self { parts, tools: OnceLock::new(), prefixes: Mutex::default(), warned: OnceLock::new() }
    }

    /// The catalog as the files are now; read aside, since it may be large.
    pub(crate) async fn catalog(&self) -> Result<Arc<Catalog>, AgentError> {
        let live = Arc::clone(&self.parts.catalog);
        tokio::task::spawn_blocking(move || live.current()).await.map_err(|_| AgentError::Interrupted)
    }

    /// Everything that can be refused before a session is made.
    pub(crate) fn blueprint(
        &self,
        delegation: &Delegation,
        catalog: &Catalog,
        profile: Arc<Profile>,
        once: Option<OneOff>,
    ) -> Result<Blueprint, AgentError> {
        if !profile.unheld.is_empty() {
            return Err(AgentError::Restriction { profile: profile.name.clone(), faults: profile.unheld.join("; ") });
        }
        let grant = self.grant(delegation, &profile)?;
        let (choice, model) = self.model(catalog, &profile, once)?;
        let mut warnings: Vec<String> = profile.withheld.iter().chain(&grant.warnings).cloned().collect();
        warnings.extend(self.held_by_analysis(&profile));
        Ok(Blueprint { profile, grant, choice, model, warnings })
    }

    /// From what the parent has now, servers included (R93).
    /// What holds the commands of a child that only reads, where the kernel does not.
    fn held_by_analysis(&self, profile: &Profile) -> Option<String> {
        let reads_only = profile.is_held_to_reading() || profile.permission_mode == Some(ChildMode::Plan);
        self.parts.policy.sandbox().warning(true).filter(|_| reads_only)
    }

    /// The same for a person, who is told once; with a parent that only reads the session has begun with it.
    pub(crate) fn first_held_by_analysis(&self, profile: &Profile) -> Option<String> {
        let warning = self.held_by_analysis(profile).filter(|_| self.parts.policy.mode() != Mode::Plan)?;
        self.warned.set(()).ok().map(|()| warning)
    }

    pub(crate) fn grant(&self, delegation: &Delegation, profile: &Profile) -> Result<ToolGrant, AgentError> {
        let mut parent = self.tools(delegation).to_vec();
        let mut connected: Vec<String> = Vec::new();
        let mut about_names = Vec::new();
        if let Some(loan) = self.loan(profile) {
            let (tools, clashes) = loan.exposed();
            parent.extend(tools.iter().map(|tool| ParentTool { name: tool.spec().declaration.name.clone(), aliases: Vec::new() }));
            about_names = clashes;
            let is_connected = |server: &Server| server.state == ServerState::Connected;
            connected = loan.servers().into_iter().filter(is_connected).map(|server| server.name).collect();
        }
        let around = Surroundings {
            parent: &parent,
            connected_servers: &connected,
            disallowed: &[],
            allowed: None,
            skills: self.parts.skills.is_some(),
            memory: self.parts.memory.on(),
            skills_inherit: self.parts.settings.skills_inherit_tools,
            role: ChildRole::Local,
            embedded_search: false,
        };
        let mut grant = match tool_policy::grant(profile, &around) {
            Err(ToolPolicyError::ServerNotConnected { servers }) if self.parts.servers.is_none() => {
                return Err(AgentError::NoServers { profile: profile.name.clone(), servers: servers.join(", ") });
            }
            granted => granted?,
        };
        grant.warnings.extend(about_names);
        for server in profile.mcp_servers.iter().flatten() {
            if let McpServer::Inline { name, .. } = server {
                grant
                    .warnings
                    .push(format!("the MCP server {name} that the profile defines was not started: zapmyco cannot start servers yet"));
            }
        }
        Ok(grant)
    }

    /// What a child of this profile borrows of the session's servers.
    fn loan(&self, profile: &Profile) -> Option<Loan> {
        let LentServers { servers, hidden } = self.parts.servers.clone()?;
        let scope = profile.mcp_servers.as_ref().map(|named| named.iter().map(|server| server.name().to_owned()).collect());
        Some(Loan::new(servers, hidden, scope))
    }

    /// R135: a server that is just being connected is waited for.
    pub(crate) async fn servers_settled(&self, profile: &Profile) {
        let named: Vec<String> = profile.mcp_servers.iter().flatten().map(|server| server.name().to_owned()).collect();
        if let Some(loan) = self.loan(profile).filter(|_| !named.is_empty()) {
            loan.settled(&named).await;
        }
    }

    /// The memory of a profile (R264), and why it has none when it should have one.
    pub(crate) async fn memory(&self, delegation: &Delegation, profile: &Profile) -> (Option<Memory>, Vec<String>) {
        let Some(scope) = profile.memory.filter(|_| self.parts.memory.on()) else { return (None, Vec::new()) };
        let starter = &delegation.inner.starter;
        let (name, layout, workspace) = (profile.name.clone(), starter.layout.clone(), starter.cwd.clone());
        match tokio::task::spawn_blocking(move || Memory::open(&name, scope, &layout, &workspace)).await {
            Ok(Ok(memory)) => {
                let warnings = memory.warnings().to_vec();
                (Some(memory), warnings)
            }
            Ok(Err(error)) => (None, vec![format!("this agent runs without its memory: {error}")]),
            Err(_) => (None, vec!["this agent runs without its memory: it could not be opened".to_owned()]),
        }
    }

    /// What a child is told of the skills it may use, and what its profile names in vain (R125, R142, R147).
    pub(crate) async fn skills(&self, profile: &Profile, grant: &ToolGrant) -> (Vec<String>, Vec<String>) {
        let Some(library) = self.parts.skills.clone().filter(|_| grant.tools.iter().any(|tool| tool == SKILL)) else {
            return (Vec::new(), Vec::new());
        };
        let view = library.view_of_child(profile.skills.as_deref());
        let preloads = profile.preload_skills;
        let told = tokio::task::spawn_blocking(move || told_of_skills(&library, &view, preloads));
        told.await.unwrap_or_else(|_| (Vec::new(), vec!["the skills could not be read".to_owned()]))
    }

    fn tools(&self, delegation: &Delegation) -> &[ParentTool] {
        self.tools.get_or_init(|| {
            let wanted = ChildTools { delegation, policy: &self.parts.policy, agent: None, parent_inbox: None };
            let mut tools = Vec::new();
            let _ = (self.parts.toolbox)(&wanted).filtered(|spec| {
                let aliases = spec.aliases.iter().map(|alias| (*alias).to_owned()).collect();
                tools.push(ParentTool { name: spec.declaration.name.clone(), aliases });
                true
            });
            tools
        })
    }

    /// R103: a one-off model, the profile's, the parent's.
    fn model(&self, catalog: &Catalog, profile: &Profile, once: Option<OneOff>) -> Result<(ModelChoice, Arc<dyn Model>), AgentError> {
        let hidden = ModelSelection { level: once.as_ref().and_then(|once| once.reasoning.clone()), ..metadata::unknown_model() };
        let situation = Situation {
            once: once.as_ref().map(|_| &hidden),
            profile,
            state_file: catalog.model_override(profile),
            parent_turn: None,
            parent_session: Some(&self.parts.selection),
            settings: &self.parts.settings,
        };
        let choice = model_choice::unverified(&situation)?;
        let model = match once {
            Some(once) => self.priced(once.model, profile)?,
            None => self.open_model(&choice.selection, profile)?,
        };
        Ok((choice, model))
    }

    /// The parent's own model where it is meant, else one of its own.
    pub(crate) fn open_model(&self, selection: &ModelSelection, profile: &Profile) -> Result<Arc<dyn Model>, AgentError> {
        let parent = &self.parts.selection;
        let is_parents = selection.provider == parent.provider && selection.model == parent.model && selection.level == parent.level;
        let model = if is_parents { Arc::clone(&self.parts.model) } else { self.parts.models.open(selection)? };
        self.priced(model, profile)
    }

    /// For one more run of an ended agent: its own model, or the parent's where it had one that was given for a turn only.
    pub(crate) fn open_model_again(&self, agent: &LocalAgent) -> Result<Arc<dyn Model>, AgentError> {
        let selection = if agent.model_origin == metadata::ONE_OFF { &self.parts.selection } else { &agent.model };
        self.open_model(selection, &agent.profile)
    }

    /// A budget of money holds only for a model with a known price.
    fn priced(&self, model: Arc<dyn Model>, profile: &Profile) -> Result<Arc<dyn Model>, AgentError> {
        let holds = self.parts.budget.as_ref().is_none_or(|budget| budget.can_hold(model.name()));
        let bounded = profile.bounds.money(self.parts.agent_money).is_some();
        if !holds || (bounded && !self.parts.prices.knows(model.name())) {
            return Err(AgentError::NoPrice { model: model.name().to_owned() });
        }
        Ok(model)
    }

    /// Makes the child's session, or takes it up again, with everything that belongs to it.
    pub(crate) async fn open(
        &self,
        parent: &Delegation,
        agent: &Arc<LocalAgent>,
        grant: &ToolGrant,
        model: Arc<dyn Model>,
        Added { memory, skills }: Added,
        again: bool,
    ) -> Result<OpenChild, AgentError> {
        let starter = &parent.inner.starter;
        let registry = &parent.inner.registry;
        let store = registry.store().ok_or(AgentError::Unavailable)?;
        let mut policy = self.policy(&agent.profile, &grant.rules, agent.cwd.clone(), starter.layout.root())?;
        if let Some(memory) = &memory {
            policy = policy.with_memory(memory.folder());
        }
        let policy = Arc::new(policy);
        let hooks = self.hooks(agent, &policy, &starter.layout);
        let inbox = Inbox::new(starter.limits.inbox_capacity);
        let uplink: Arc<dyn EventSink> = Arc::new(Uplink::new(agent.clone(), registry.events(), self.parts.forward_text));
        let shells = Delegation::new(DelegationParts {
            launcher: parent.inner.launcher.clone(),
            store: Some(store.clone()),
            layout: starter.layout.clone(),
            limits: Arc::clone(&starter.limits),
            session: agent.session.clone(),
            cwd: agent.cwd.clone(),
            environment: starter.environment.clone(),
            child: super::handover::ChildSettings::default(),
            child_program: starter.child_program.clone(),
            role: Role::LocalChild,
            hidden_variables: starter.hidden_variables.clone(),
            events: Some(Arc::clone(&uplink)),
            inbox: Some(inbox.clone()),
            budget: None,
            local: None,
        });
        let wanted = ChildTools { delegation: &shells, policy: &policy, agent: Some(agent), parent_inbox: registry.inbox() };
        let borrowed = self.loan(&agent.profile).map(|loan| loan.exposed().0).unwrap_or_default();
        let mut toolbox = (self.parts.toolbox)(&wanted).with(borrowed).filtered(|spec| grant.tools.contains(&spec.declaration.name));
        let mut notes = None;
        if let Some(memory) = memory {
            toolbox = memory.guard(toolbox, &grant.memory_only);
            notes = tokio::task::spawn_blocking(move || memory.prompt()).await.ok();
        }
        let prefix = self.prefix(agent, notes.as_deref(), model.name(), &toolbox);
        let parts = SessionParts {
            id: agent.session.clone(),
            parent: Some(agent.parent.clone()),
            task_type: TASK_TYPE.to_owned(),
            cwd: agent.cwd.clone(),
            model,
            toolbox,
            policy,
            approver: Arc::new(ThroughParent::new(
                agent.clone(),
                Arc::clone(&self.parts.approver),
                self.parts.settings.background_questions.unwrap_or(true),
            )),
            events: uplink,
            store,
            limits: Arc::clone(&starter.limits),
            prefix,
            context: self.context(&agent.profile, starter).await.into_iter().chain(skills).collect(),
            agents: Vec::new(),
            notices: Vec::new(),
            inbox: inbox.clone(),
            hooks,
            max_turns: self.max_turns(&agent.profile, &starter.limits),
            token_budget: agent.profile.bounds.tokens(starter.limits.agent_token_budget),
            money_budget: agent.profile.bounds.money(self.parts.agent_money),
            budget: self.parts.budget.clone(),
            prices: Arc::clone(&self.parts.prices),
            reasoning: agent.model.level.clone(),
        };
        let session = if again { Session::resume(parts).await? } else { Session::create(parts).await? };
        Ok(OpenChild { session, shells, inbox })
    }

    /// R148, R149, R152
    fn hooks(&self, agent: &LocalAgent, policy: &Arc<Policy>, layout: &Layout) -> SessionHooks {
        let child = hooks::Agent {
            id: agent.id.to_string(),
            kind: agent.profile.name.clone(),
            transcript: layout.hook_transcript(&agent.parent, &agent.session),
        };
        let place = agent.profile.origin.path.as_ref().map_or_else(|| agent.profile.name.clone(), |path| path.display().to_string());
        // What is wrong with them was told when the profile was read.
        let own = agent.profile.hooks.as_ref().map(|hooks| HookSet::of_profile(hooks, &place).0).unwrap_or_default();
        // The profile may be a copy of an earlier run.
        let trust = self.parts.catalog.trust();
        let own = match (agent.profile.origin.level, &agent.profile.origin.path) {
            (Level::Project, Some(path)) if trust.has_trusted(path) => own.held(trust, &agent.cwd),
            (Level::Project, _) => HookSet::default(),
            (Level::BuiltIn | Level::Plugin | Level::User | Level::CommandLine, _) => own,
        };
        let policy = Arc::clone(policy);
        self.parts.hooks.for_child(child, own, Arc::new(move || policy.mode()))
    }

    /// R44, R45, R81, R284, R285: never wider than the parent now; the built-in Explore and Plan are held to reading in code.
    fn policy(&self, profile: &Profile, narrowing: &[NarrowingRule], cwd: PathBuf, root: &Path) -> Result<Policy, AgentError> {
        let inherited = self.parts.policy.rules();
        let rule = |tool: &str, scope: &str| {
            let text = format!("{tool}({scope})");
            Rule::parse(&text).map_err(|source| AgentError::Scope { profile: profile.name.clone(), source })
        };
        let mut deny = inherited.deny.clone();
        for narrowing in narrowing {
            if let NarrowingRule::NeverMatching { tool, scope } = narrowing {
                deny.push(rule(tool, scope)?);
            }
        }
        let reads_only = profile.is_held_to_reading();
        let rules = if reads_only {
            RuleSet { deny, ..RuleSet::default() }
        } else {
            RuleSet { allow: inherited.allow.clone(), ask: inherited.ask.clone(), deny }
        };
        // A project's file cannot set a mode: dropped when it is read, and here again.
        let own_mode = profile.permission_mode.filter(|_| profile.origin.level != Level::Project);
        let mode = match own_mode {
            _ if reads_only => Mode::Yolo,
            Some(ChildMode::Plan) => Mode::Plan,
            Some(ChildMode::Auto) => Mode::Auto,
            // Capped by the parent's at every call.
            None => Mode::Yolo,
        };
        let mut policy = Policy::new(mode, rules, cwd)
            .with_root(root)
            .with_sandbox(self.parts.policy.sandbox().clone())
            .sharing(self.parts.policy.granted());
        if let Some(home) = &self.parts.home {
            policy = policy.with_home(home);
        }
        for narrowing in narrowing {
            if let NarrowingRule::OnlyMatching { tool, scopes } = narrowing {
                let scopes = scopes.iter().map(|scope| rule(tool, scope)).collect::<Result<Vec<Rule>, _>>()?;
                policy = policy.only_matching(tool, scopes);
            }
        }
        if reads_only {
            return Ok(policy.held_to_reading());
        }
        let parent = Arc::clone(&self.parts.policy);
        Ok(policy.with_parent(Arc::new(move || Some(parent.mode()))))
    }

    /// Equal for siblings, byte by byte, and kept once.
    fn prefix(&self, agent: &LocalAgent, memory: Option<&str>, model: &str, toolbox: &ToolBox) -> Arc<Prefix> {
        let facts = EnvironmentFacts { model: model.to_owned(), cwd: agent.cwd.clone(), ..self.parts.facts.clone() };
        let prefix = Prefix { tools: toolbox.declarations(), system: child_prompt(&agent.profile.prompt, memory, &facts) };
        let mut known = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known.iter().find(|known| ***known == prefix) {
            return Arc::clone(same);
        }
        let prefix = Arc::new(prefix);
        if known.len() >= PREFIXES_MAX {
            known.remove(0);
        }
        known.push(Arc::clone(&prefix));
        prefix
    }

    /// R43, R114, R125, R129, R130: instructions and date as they are now, also when the parent read them long ago; the git
    /// state as the parent knows it.
    async fn context(&self, profile: &Profile, starter: &Starter) -> Vec<String> {
        let (user_file, cwd) = (starter.layout.user_instructions(), starter.cwd.clone());
        let claude_md = self.parts.claude_md;
        let gather = move || {
            let today = clock::now().date_naive();
            instructions::gather(&instructions::Sources { user_file: &user_file, cwd: &cwd, claude_md, today, git: None }).context
        };
        let mut context = match tokio::task::spawn_blocking(gather).await {
            Ok(fresh) => fresh,
            Err(_) => self.parts.context.iter().filter(|text| !text.starts_with(GIT)).cloned().collect(),
        };
        context.extend(self.parts.context.iter().filter(|text| text.starts_with(GIT)).cloned());
        let wanted = |text: &String| {
            let instructions = text.starts_with(INSTRUCTIONS) && !profile.inject_agents_md;
            let git = text.starts_with(GIT) && profile.is_built_in_explore();
            // A child's own skills follow; its own memory stands in its prompt, and the main session's is none of it (R275).
            !instructions && !git && !text.starts_with(SKILLS) && !text.starts_with(MEMORY)
        };
        context.retain(wanted);
        context
    }

    /// R172: the profile's, else the setting's; a flag of the run holds above both.
    fn max_turns(&self, profile: &Profile, limits: &Limits) -> Option<u32> {
        let own = profile.max_turns.map(std::num::NonZeroU32::get).or(Some(limits.agent_max_turns).filter(|turns| *turns > 0));
        match (own, self.parts.max_turns) {
            (Some(own), Some(run)) => Some(own.min(run)),
            (own, run) => own.or(run),
        }
    }
}

/// The list of skills, or the whole texts where they are to be there from the start. Blocking.
fn told_of_skills(library: &Library, view: &View, preloads: bool) -> (Vec<String>, Vec<String>) {
    let skills = library.load();
    let mut warnings: Vec<String> = Vec::new();
    let missing = view.missing(&skills);
    if !missing.is_empty() {
        warnings.push(format!("skills that the profile names and that do not exist: {}", missing.join(", ")));
    }
    let mut messages: Vec<String> = view.listing(&skills).map(|list| skills_message(&list)).into_iter().collect();
    if !preloads {
        return (messages, warnings);
    }
    let mut room = PRELOADED_MAX;
    for skill in view.usable(&skills) {
        match content::content(skill, None) {
            Ok(text) if text.len() <= room => {
                room -= text.len();
                messages.push(instructions::framed("skill", " note=\"preloaded: its text need not be asked for\"", &text));
            }
            Ok(_) => warnings.push(format!("skill {} was not preloaded: together they are longer than {PRELOADED_MAX} bytes", skill.name)),
            Err(error) => warnings.push(format!("skill {} was not preloaded: {error}", skill.name)),
        }
    }
    (messages, warnings)
}

/// The context message that lists skills; equal lists give equal bytes.
pub fn skills_message(list: &str) -> String {
    instructions::framed("skills", "", list)
}

const SKILL: &str = "Skill";

/// What the store calls the session of a child in this process (R5).
pub const TASK_TYPE: &str = "subagent_child";
