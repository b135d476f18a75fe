//! One call to allow, ask or deny, with the reason; the order of evaluation.
//!
//! Deny rules first and in every mode, then ask rules, then allow rules, then the mode (R279, R280). Plan mode is a ceiling:
//! allow rules open nothing there that changes something. A child's policy is capped by its parent's mode now (R285).

mod commands;
pub mod explain;

pub(in crate::permissions) use commands::is_harmless_variable;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::permissions::granted::{Granted, Lists};
use crate::permissions::paths::PathForms;
use crate::permissions::peers::{guarded_path, named_by_command};
use crate::permissions::rules::{CompiledRule, Named, Rule, RuleSet, Target, suggest_path};
use crate::permissions::sandbox::{Sandbox, ShellRights};
use crate::permissions::shell_command::Line;
use crate::permissions::{Effect, Mode, fetching};

/// What a session may do. Shared by all its calls.
pub struct Policy {
    mode: AtomicU8,
    parent: Option<ParentMode>,
    /// Everything that changes something is denied, whatever the mode (R46).
    reading_only: bool,
    /// Calls of these tools must match one of the rules (R75).
    only: Vec<(String, Vec<CompiledRule>)>,
    rules: RuleSet,
    sandbox: Sandbox,
    workspace: PathForms,
    home: Option<PathForms>,
    /// The storage root: our own settings and records.
    root: Option<PathForms>,
    /// Notes of the session's own that it may write (R273).
    memory: Option<PathForms>,
    deny: Vec<CompiledRule>,
    ask: Vec<CompiledRule>,
    allow: Vec<CompiledRule>,
    /// What a person has answered for the whole session; shared with the policies of its children.
    granted: Arc<Granted>,
    /// The same, compiled for this workspace, and the state it was made of.
    answers: Mutex<Option<(u64, Arc<Answers>)>>,
}

/// Rules that came from answers.
#[derive(Default)]
struct Answers {
    deny: Vec<CompiledRule>,
    allow: Vec<CompiledRule>,
}

/// Gives the parent's mode at this moment; `None` when there is no parent or its mode cannot be known.
pub type ParentMode = Arc<dyn Fn() -> Option<Mode> + Send + Sync>;

/// What is decided about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Ask {
        reason: String,
        /// The flag that would allow it, e.g. `--allowedTools 'Bash(npm test:*)'`.
        suggestion: String,
    },
    Deny {
        reason: String,
    },
}

/// The tool of a call, in plain names.
#[derive(Clone, Copy, Debug)]
pub struct CalledTool<'a> {
    pub name: &'a str,
    pub aliases: &'a [&'a str],
    /// Only a deny rule refuses it (R392).
    pub never_asked: bool,
}

impl Policy {
    /// `workspace` is the session's working directory, absolute.
    pub fn new(mode: Mode, rules: RuleSet, workspace: PathBuf) -> Self {
        let mut policy = Self {
            mode: AtomicU8::new(mode as u8),
            parent: None,
            reading_only: false,
            only: Vec::new(),
            rules,
            sandbox: Sandbox::default(),
            workspace: PathForms::of(&workspace),
            home: None,
            root: None,
            memory: None,
            deny: Vec::new(),
            ask: Vec::new(),
            allow: Vec::new(),
            granted: Arc::default(),
            answers: Mutex::default(),
        };
        policy.compile();
        policy
    }

    /// Shares the answers of a person with another session's policy: its parent's.
    pub fn sharing(mut self, granted: &Arc<Granted>) -> Self {
        self.granted = Arc::clone(granted);
        self
    }

    /// What a person has answered for the whole session; tells of every change that may decide otherwise about a call.
    pub fn granted(&self) -> &Arc<Granted> {
        &self.granted
    }

    /// The folder that `~/` in rules stands for; without it such rules match nothing.
    pub fn with_home(mut self, home: &Path) -> Self {
        self.home = Some(PathForms::of(home));
        self.compile();
        self
    }

    /// What holds commands and file tools beside the decision about each call.
    pub fn with_sandbox(mut self, sandbox: Sandbox) -> Self {
        self.sandbox = sandbox;
        self
    }

    /// Where our own settings lie; kept from turns that no person began.
    pub fn with_root(mut self, root: &Path) -> Self {
        self.root = Some(PathForms::of(root));
        self
    }

    /// What a call would change that only a person may have changed: permission rules, hooks, AGENTS.md, configuration
    /// (R231). `None`: nothing of it.
    pub fn kept_from_peers(&self, effect: &Effect) -> Option<String> {
        match effect {
            Effect::Internal | Effect::Reads(_) | Effect::Fetches { .. } => None,
            Effect::Writes(path) => {
                let path = PathForms::of(path);
                if self.is_memory(&path) {
                    return None;
                }
                let below_root = self.root.as_ref().is_some_and(|root| path.real.starts_with(&root.real));
                let guarded = |path: &Path, workspace: &Path| guarded_path(path.strip_prefix(workspace).unwrap_or(path));
                let is_guarded = below_root || guarded(&path.written, &self.workspace.written) || guarded(&path.real, &self.workspace.real);
                is_guarded.then(|| path.real.display().to_string())
            }
            Effect::Runs { command } => {
                if Line::read(command).is_read_only() {
                    return None;
                }
                let roots: Vec<&Path> = self.root.iter().flat_map(|root| [root.written.as_path(), root.real.as_path()]).collect();
                named_by_command(command, &roots)
            }
        }
    }

    /// Writing `.md` files below the folder needs no approval, unless a deny or ask rule matches or the mode is plan (R273).
    pub fn with_memory(mut self, folder: &Path) -> Self {
        self.memory = Some(PathForms::of(folder));
        self
    }

    /// Asked at every decision; it can only make the mode stricter.
    pub fn with_parent(mut self, parent: ParentMode) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Denies whatever is not proved to read only, in every mode; nothing is ever asked (R46).
    pub fn held_to_reading(mut self) -> Self {
        self.reading_only = true;
        self
    }

    /// Calls of `tool` that match none of the rules are denied; a match is no approval (R75).
    pub fn only_matching(mut self, tool: &str, rules: Vec<Rule>) -> Self {
        let compiled = rules.into_iter().map(|rule| CompiledRule::new(rule, &self.workspace, self.home.as_ref())).collect();
        self.only.push((tool.to_owned(), compiled));
        self
    }

    /// The mode that holds now.
    pub fn mode(&self) -> Mode {
        let own = Mode::ALL.into_iter().find(|mode| *mode as u8 == self.mode.load(Ordering::Acquire)).unwrap_or(Mode::Plan);
        match self.parent.as_ref().and_then(|parent| parent()) {
            Some(parent) => own.narrowed_by(parent),
            None => own,
        }
    }

    /// Changes this session's own mode; a parent's stricter one still holds.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Release);
        self.granted.announce_change();
    }

    /// How a shell is started now: held by the kernel where nothing may be changed.
    pub fn shell_rights(&self) -> ShellRights {
        self.sandbox.shell(self.reading_only || self.mode() == Mode::Plan)
    }

    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Whether a deny rule takes the tool away altogether.
    pub fn removes(&self, tool: &str, aliases: &[&str]) -> bool {
        self.rules.removes(tool, aliases)
    }

    /// Whether any file may be hidden from searching and listing; when not, [`Policy::hides`] need not be asked.
    pub fn hides_files(&self) -> bool {
        self.deny.iter().chain(&self.ask).any(CompiledRule::is_read_path_rule)
    }

    /// Whether a `Read` rule denies the file or asks for it: searching and listing leave it out.
    pub fn hides(&self, path: &Path) -> bool {
        let path = PathForms::of(path);
        self.deny.iter().chain(&self.ask).any(|rule| rule.hides(&path))
    }

    pub fn decide(&self, tool: &CalledTool<'_>, effect: &Effect) -> Verdict {
        let mode = if self.reading_only { Mode::Plan } else { self.mode() };
        let named = Named { name: tool.name, aliases: tool.aliases };
        if let Some(denied) = self.outside_scope(tool, effect) {
            return denied;
        }
        let verdict = match effect {
            Effect::Internal => self.decide_internal(tool, named),
            Effect::Reads(path) => self.decide_path(tool, named, mode, &PathForms::of(path), Access::Read),
            Effect::Writes(path) => self.decide_path(tool, named, mode, &PathForms::of(path), Access::Write),
            Effect::Runs { command } => self.decide_command(tool, named, mode, command),
            Effect::Fetches { url } => self.decide_fetch(tool, named, &fetching::host_of(url)),
        };
        match verdict {
            Verdict::Deny { reason } if self.reading_only => Verdict::Deny { reason: reading_only(&reason) },
            Verdict::Ask { reason, suggestion } if !mode.asks() => refused(mode, &reason, &suggestion),
            Verdict::Allow | Verdict::Ask { .. } | Verdict::Deny { .. } => verdict,
        }
    }

    /// The refusal of a call that the scopes of its tool do not cover; every command of a line must be covered.
    fn outside_scope(&self, tool: &CalledTool<'_>, effect: &Effect) -> Option<Verdict> {
        let (_, rules) = self.only.iter().find(|(name, _)| name.eq_ignore_ascii_case(tool.name))?;
        let covered = match effect {
            Effect::Internal => false,
            Effect::Reads(path) | Effect::Writes(path) => {
                let path = PathForms::of(path);
                rules.iter().any(|rule| rule.covers_path(&path))
            }
            Effect::Runs { command } => commands::lies_in_scope(&Line::read(command), rules),
            Effect::Fetches { url } => {
                let host = fetching::host_of(url);
                rules.iter().any(|rule| rule.covers_host(&host))
            }
        };
        if covered {
            return None;
        }
        let scopes: Vec<String> = rules.iter().map(|rule| rule.rule.to_string()).collect();
        let reason = format!("this agent may use {} only as {}; do it another way or report what is missing", tool.name, scopes.join(", "));
        Some(Verdict::Deny { reason })
    }

    fn compile(&mut self) {
        let compiled = |rules: &[Rule]| -> Vec<CompiledRule> {
            rules.iter().map(|rule| CompiledRule::new(rule.clone(), &self.workspace, self.home.as_ref())).collect()
        };
        let (deny, ask, allow) = (compiled(&self.rules.deny), compiled(&self.rules.ask), compiled(&self.rules.allow));
        (self.deny, self.ask, self.allow) = (deny, ask, allow);
    }

    fn decide_internal(&self, tool: &CalledTool<'_>, named: Named<'_>) -> Verdict {
        self.restricted(tool, named, &Target::Nothing).unwrap_or(Verdict::Allow)
    }

    /// Nothing here changes, but the URL goes out: every mode but `yolo` asks, plan too. An agent held to reading never asks
    /// (R45) and may fetch; deny rules hold for it.
    fn decide_fetch(&self, tool: &CalledTool<'_>, named: Named<'_>, host: &str) -> Verdict {
        let target = Target::Fetching { host };
        if let Some(verdict) = self.restricted(tool, named, &target) {
            return verdict;
        }
        let mode = self.mode();
        if tool.never_asked || self.reading_only || mode == Mode::Yolo || self.allows(|rule| rule.allows(named, &target)) {
            return Verdict::Allow;
        }
        let rule = fetching::rule_for(tool.name, host);
        let asks = if mode.asks() { "asks before something is fetched" } else { "never asks and refuses to fetch" };
        Verdict::Ask { reason: format!("mode `{mode}` {asks} from {host}"), suggestion: allow_flag(&rule) }
    }

    /// A verdict from the deny and ask rules, if one of them speaks.
    fn restricted(&self, tool: &CalledTool<'_>, named: Named<'_>, target: &Target<'_>) -> Option<Verdict> {
        if let Some(denying) = self.deny.iter().find(|rule| rule.restricts(named, target)) {
            return Some(denied_by(&denying.rule));
        }
        if self.answers().deny.iter().any(|rule| rule.restricts(named, target)) {
            return Some(denied_by_answer());
        }
        let asking = self.ask.iter().find(|rule| !tool.never_asked && rule.restricts(named, target))?;
        Some(asked_by(&asking.rule))
    }

    fn decide_path(&self, tool: &CalledTool<'_>, named: Named<'_>, mode: Mode, path: &PathForms, access: Access) -> Verdict {
        let target = match access {
            Access::Read => Target::Reading(path),
            Access::Write => Target::Writing(path),
        };
        if let Some(verdict) = self.restricted(tool, named, &target) {
            return verdict;
        }
        if matches!(access, Access::Write)
            && !self.is_memory(path)
            && let Some(reason) = self.sandbox.refuses(path)
        {
            return Verdict::Deny { reason };
        }
        match access {
            Access::Read => return Verdict::Allow,
            Access::Write if tool.never_asked || mode == Mode::Yolo => return Verdict::Allow,
            Access::Write if mode == Mode::Plan => return plan_denies(tool.name),
            Access::Write if self.is_memory(path) => return Verdict::Allow,
            Access::Write => {}
        }
        if self.allows(|rule| rule.allows(named, &target)) {
            return Verdict::Allow;
        }
        let outside = self.outside(path);
        match (mode, &outside) {
            (_, None) if mode.edits_freely() => Verdict::Allow,
            (_, Some(outside)) => Verdict::Ask {
                reason: format!("{} {}, so mode `{mode}` {} writing it", path.real.display(), outside.reason(), mode.asks_before()),
                suggestion: allow_flag(&suggest_path("Edit", &path.real)),
            },
            (_, None) => Verdict::Ask {
                reason: format!("mode `{mode}` {} writing {}", mode.asks_before(), path.real.display()),
                suggestion: format!("--permission-mode {}", Mode::AcceptEdits),
            },
        }
    }

    /// Decided by where the write really ends.
    fn is_memory(&self, path: &PathForms) -> bool {
        let Some(memory) = &self.memory else { return false };
        let is_note = path.real.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"));
        is_note && path.real.starts_with(&memory.real)
    }

    /// Why `acceptEdits` does not cover a path, if it does not.
    fn outside(&self, path: &PathForms) -> Option<Outside> {
        let Ok(below) = path.real.strip_prefix(&self.workspace.real) else { return Some(Outside::Workspace) };
        let written = path.written.strip_prefix(&self.workspace.written).unwrap_or(Path::new(""));
        let is_protected = below.components().chain(written.components()).any(|component| {
            let name = component.as_os_str().to_string_lossy().to_lowercase();
            PROTECTED.contains(&name.as_str())
        });
        is_protected.then_some(Outside::Protected)
    }

    /// Whether an allow rule of the settings or of a person's answers says so.
    fn allows(&self, says_so: impl Fn(&CompiledRule) -> bool) -> bool {
        self.allow.iter().any(&says_so) || self.answers().allow.iter().any(&says_so)
    }

    /// This policy as it is now with further allow rules, to see whether they would help.
    pub(crate) fn trial(&self, allow: &[Rule]) -> Policy {
        let only = |rules: &Vec<CompiledRule>| -> Vec<CompiledRule> {
            rules.iter().map(|rule| CompiledRule::new(rule.rule.clone(), &self.workspace, self.home.as_ref())).collect()
        };
        let more = RuleSet { allow: allow.to_vec(), ..RuleSet::default() };
        let mut trial = Policy {
            mode: AtomicU8::new(self.mode() as u8),
            parent: None,
            reading_only: self.reading_only,
            only: self.only.iter().map(|(tool, rules)| (tool.clone(), only(rules))).collect(),
            rules: self.rules.clone().joined(more),
            sandbox: self.sandbox.clone(),
            workspace: self.workspace.clone(),
            home: self.home.clone(),
            root: self.root.clone(),
            memory: self.memory.clone(),
            deny: Vec::new(),
            ask: Vec::new(),
            allow: Vec::new(),
            granted: Arc::clone(&self.granted),
            answers: Mutex::default(),
        };
        trial.compile();
        trial
    }

    fn answers(&self) -> Arc<Answers> {
        let mut known = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((version, answers)) = &*known
            && *version == self.granted.version()
        {
            return Arc::clone(answers);
        }
        let (version, Lists { allow, deny }) = self.granted.lists();
        let compiled = |rules: Vec<Rule>| -> Vec<CompiledRule> {
            rules.into_iter().map(|rule| CompiledRule::new(rule, &self.workspace, self.home.as_ref())).collect()
        };
        let answers = Arc::new(Answers { deny: compiled(deny), allow: compiled(allow) });
        *known = Some((version, Arc::clone(&answers)));
        answers
    }
}

/// What decides about later commands or rights, so that a free edit must not reach it. `head` is what makes a folder look
/// like a bare repository to git.
const PROTECTED: &[&str] = &[".git", ".zapmyco", ".mcp.json", ".claude", ".vscode", ".idea", "head"];

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

enum Outside {
    Workspace,
    Protected,
}

impl Outside {
    fn reason(&self) -> &'static str {
        match self {
            Outside::Workspace => "lies outside the workspace",
            Outside::Protected => "decides about rights or later commands",
        }
    }
}

/// The reason for an agent that only reads, whose mode is not what the reason of the plan mode names.
fn reading_only(reason: &str) -> String {
    let reason = reason.split_once("; describe the change instead").map_or(reason, |(cause, _)| cause);
    let cause = reason.replace("mode `plan` is read-only", "this agent is read-only").replace("mode `plan` runs", "this agent runs");
    format!("{cause}; do not look for a way around it, report what would have to be changed")
}

fn denied_by(rule: &Rule) -> Verdict {
    Verdict::Deny { reason: format!("denied by the rule `{rule}`, which holds in every mode; do not retry") }
}

fn denied_by_answer() -> Verdict {
    Verdict::Deny { reason: "the user has answered that this must not be done in this session; do not retry".to_owned() }
}

fn asked_by(rule: &Rule) -> Verdict {
    Verdict::Ask {
        reason: format!("the rule `{rule}` asks before this call"),
        suggestion: format!("take `{rule}` out of the ask rules of the settings"),
    }
}

/// What a mode that never asks makes of a question (R278).
fn refused(mode: Mode, reason: &str, suggestion: &str) -> Verdict {
    let never = if reason.contains("never asks") { String::new() } else { format!(", and mode `{mode}` never asks") };
    let way = if suggestion.starts_with("--") { format!("{suggestion} would allow it") } else { suggestion.to_owned() };
    Verdict::Deny { reason: format!("{reason}{never}; do it another way, or report what is missing ({way})") }
}

fn plan_denies(tool: &str) -> Verdict {
    Verdict::Deny {
        reason: format!(
            "mode `plan` is read-only and {tool} would write; describe the change instead, or start the run with --permission-mode {}",
            Mode::AcceptEdits
        ),
    }
}

fn allow_flag(rule: &str) -> String {
    format!("--allowedTools '{}'", rule.replace('\'', r"'\''"))
}
