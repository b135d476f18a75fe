//! `[hooks]` of the settings, and `hooks` of a profile, as a list of hooks (R154). A bad entry is a problem that names
//! file, key, reason and remedy; the others still load.
//!
//! Two shapes are read: `hooks.events.<Event>`, whose `timeout` is in milliseconds, and `hooks.<Event>` as in Claude Code,
//! whose `timeout` is in seconds. A text such as `"30s"` is understood in both.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event::HookEvent;
use super::matcher::Matcher;
use super::scripts::Pinned;
use crate::config::sections::nearest;
use crate::config::units::{UnitError, parse_duration};
use crate::config::{Content, Node, ProjectRights, Settings, Source};

/// All hooks of one origin or of a session, in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HookSet {
    pub hooks: Vec<Hook>,
    /// A hook before a tool call that gives no decision in time, or cannot be run, denies the call (R161).
    #[serde(default)]
    pub fail_closed: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hook {
    pub event: HookEvent,
    pub matcher: Matcher,
    pub action: Action,
    pub timeout: Duration,
    /// `FILE:LINE`, as people read it.
    pub place: String,
    /// The settings file it stands in.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Files that it runs, as they must be for it to run.
    #[serde(default)]
    pub pinned: Vec<Pinned>,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// One line for the shell.
    Command { line: String },
    /// A program with arguments, no shell between.
    Process { program: String, arguments: Vec<String> },
}

/// An entry that was not taken, or not as it was written. Never fatal, always shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: String,
    pub key: String,
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    UnknownEvent {
        nearest: Option<&'static str>,
    },
    UnknownKey {
        nearest: Option<&'static str>,
    },
    NotAList,
    NotATable,
    NotAText,
    NotATruthValue,
    Empty,
    NoHooks,
    NoCommand,
    UnknownType {
        found: String,
    },
    Expression {
        reason: String,
    },
    Timeout {
        reason: TimeoutFault,
    },
    /// The matcher has no meaning for this event.
    NothingToMatch,
    NeverRuns,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeoutFault {
    NotPositive,
    TooLong,
    NoNumber,
    Text(UnitError),
}

/// R154
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// A hook is asked while somebody waits: a day is a slip of the unit.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Hooks of one origin; nobody writes as many by hand.
const HOOKS_MAX: usize = 1000;

const EVENTS: &str = "events";
const FAIL_CLOSED: &str = "fail_closed";

/// The unit of a `timeout` that is a bare number.
#[derive(Clone, Copy)]
enum Unit {
    Milliseconds,
    Seconds,
}

impl HookSet {
    /// The section `hooks` of the settings.
    pub fn of_settings(settings: &Settings) -> (Self, Vec<Problem>) {
        settings.node("hooks").map_or_else(Default::default, |section| Reader::default().read(section))
    }

    /// What a project's settings file asks for, trusted or not.
    pub fn of_project(rights: &ProjectRights) -> Self {
        rights.hooks.as_ref().map_or_else(Self::default, |section| Reader::default().read(section).0)
    }

    /// The field `hooks` of a profile: for its child alone, whose end is a `SubagentStop` (R152).
    pub fn of_profile(value: &Value, place: &str) -> (Self, Vec<Problem>) {
        let source = Source::Flag(place.to_owned());
        let mut reader = Reader { place: Some(place.to_owned()), ..Reader::default() };
        let Some(node) = node_of(value, &source) else {
            reader.problem(&source, "hooks", Fault::NotATable);
            return (Self::default(), reader.problems);
        };
        let (mut set, problems) = reader.read(&node);
        for hook in &mut set.hooks {
            if hook.event == HookEvent::Stop {
                hook.event = HookEvent::SubagentStop;
            }
        }
        (set, problems)
    }

    pub fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// These hooks, then the others.
    pub fn joined(mut self, other: Self) -> Self {
        self.hooks.extend(other.hooks);
        self.fail_closed |= other.fail_closed;
        self
    }

    /// The hooks that an event concerns. `names`: what its subject is called.
    pub fn matching<'s>(&'s self, event: HookEvent, names: &'s [&'s str]) -> impl Iterator<Item = &'s Hook> {
        self.hooks.iter().filter(move |hook| hook.event == event && (event.subject().is_none() || hook.matcher.matches(names)))
    }
}

impl Action {
    /// As people read it.
    pub fn shown(&self) -> String {
        match self {
            Self::Command { line } => line.clone(),
            Self::Process { program, arguments } => {
                std::iter::once(program).chain(arguments).map(String::as_str).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// A value of a profile as a tree of settings.
fn node_of(value: &Value, source: &Source) -> Option<Node> {
    // `null` has no form in TOML; a key without a value says nothing.
    fn without_nulls(value: &Value) -> Option<Value> {
        match value {
            Value::Null => None,
            Value::Array(items) => Some(Value::Array(items.iter().filter_map(without_nulls).collect())),
            Value::Object(fields) => {
                Some(Value::Object(fields.iter().filter_map(|(key, value)| Some((key.clone(), without_nulls(value)?))).collect()))
            }
            value => Some(value.clone()),
        }
    }
    let value = toml::Value::try_from(without_nulls(value)?).ok()?;
    Some(Node::of_toml(value, source))
}

#[derive(Default)]
struct Reader {
    set: HookSet,
    problems: Vec<Problem>,
    /// Where everything stands, when the nodes do not know it.
    place: Option<String>,
}

impl Reader {
    fn read(mut self, section: &Node) -> (HookSet, Vec<Problem>) {
        let Some(fields) = self.table(section, "hooks") else { return (self.set, self.problems) };
        for (name, node) in fields {
            let key = format!("hooks.{name}");
            match name.as_str() {
                FAIL_CLOSED => match &node.content {
                    Content::Value(toml::Value::Boolean(value)) => self.set.fail_closed |= value,
                    Content::Value(_) | Content::List(_) | Content::Table(_) => self.problem(&node.source, &key, Fault::NotATruthValue),
                },
                EVENTS => {
                    let Some(events) = self.table(node, &key) else { continue };
                    for (name, node) in events {
                        self.event(name, node, &format!("{key}.{name}"), Unit::Milliseconds);
                    }
                }
                name => self.event(name, node, &key, Unit::Seconds),
            }
        }
        (self.set, self.problems)
    }

    fn event(&mut self, name: &str, node: &Node, key: &str, unit: Unit) {
        let Some(event) = HookEvent::parse(name) else {
            let known = HookEvent::ALL.into_iter().map(HookEvent::name).chain([EVENTS, FAIL_CLOSED]);
            return self.problem(&node.source, key, Fault::UnknownEvent { nearest: nearest(name, known) });
        };
        let Content::List(groups) = &node.content else { return self.problem(&node.source, key, Fault::NotAList) };
        if event == HookEvent::PreCompact && !groups.is_empty() {
            self.problem(&node.source, key, Fault::NeverRuns);
        }
        for (index, group) in groups.iter().enumerate() {
            self.group(event, group, &format!("{key}[{index}]"), unit);
        }
    }

    fn group(&mut self, event: HookEvent, group: &Node, key: &str, unit: Unit) {
        let Some(fields) = self.table(group, key) else { return };
        let mut matcher = Matcher::default();
        let mut hooks: Option<&Node> = None;
        for (name, node) in fields {
            let key = format!("{key}.{name}");
            match name.as_str() {
                "matcher" => {
                    let Some(text) = self.text(node, &key) else { return };
                    match Matcher::parse(Some(text)) {
                        Ok(parsed) => matcher = parsed,
                        Err(error) => {
                            let reason = error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                            return self.problem(&node.source, &key, Fault::Expression { reason });
                        }
                    }
                    if event.subject().is_none() && !matcher.is_all() {
                        self.problem(&node.source, &key, Fault::NothingToMatch);
                    }
                }
                "hooks" => hooks = Some(node),
                name => self.problem(&node.source, &key, Fault::UnknownKey { nearest: nearest(name, ["matcher", "hooks"].into_iter()) }),
            }
        }
        let key = format!("{key}.hooks");
        let Some(hooks) = hooks else { return self.problem(&group.source, &key, Fault::NoHooks) };
        let Content::List(items) = &hooks.content else { return self.problem(&hooks.source, &key, Fault::NotAList) };
        if items.is_empty() {
            self.problem(&hooks.source, &key, Fault::Empty);
        }
        for (index, item) in items.iter().enumerate() {
            self.hook(event, &matcher, item, &format!("{key}[{index}]"), unit);
        }
    }

    fn hook(&mut self, event: HookEvent, matcher: &Matcher, item: &Node, key: &str, unit: Unit) {
        const KNOWN: [&str; 4] = ["type", "command", "args", "timeout"];
        let Some(fields) = self.table(item, key) else { return };
        for (name, node) in fields.iter().filter(|(name, _)| !KNOWN.contains(&name.as_str())) {
            self.problem(&node.source, &format!("{key}.{name}"), Fault::UnknownKey { nearest: nearest(name, KNOWN.into_iter()) });
        }
        let kind = match fields.get("type") {
            None => "command",
            Some(node) => match self.text(node, &format!("{key}.type")) {
                Some(kind) => kind,
                None => return,
            },
        };
        if !matches!(kind, "command" | "process") {
            let found = kind.chars().take(40).collect();
            return self.problem(&item.source, &format!("{key}.type"), Fault::UnknownType { found });
        }
        let command_key = format!("{key}.command");
        let Some(node) = fields.get("command") else { return self.problem(&item.source, &command_key, Fault::NoCommand) };
        let Some(command) = self.text(node, &command_key) else { return };
        if command.trim().is_empty() || command.contains('\0') {
            return self.problem(&node.source, &command_key, Fault::Empty);
        }
        let action = match (kind, fields.get("args")) {
            ("process", arguments) => {
                let Some(arguments) = self.arguments(arguments, &format!("{key}.args")) else { return };
                Action::Process { program: command.to_owned(), arguments }
            }
            (_, Some(node)) => return self.problem(&node.source, &format!("{key}.args"), Fault::UnknownKey { nearest: None }),
            (_, None) => Action::Command { line: command.to_owned() },
        };
        let timeout = self.timeout(fields.get("timeout"), &format!("{key}.timeout"), unit);
        if self.set.hooks.len() < HOOKS_MAX {
            let place = self.place_of(&item.source);
            let file = match &item.source {
                Source::File { path, .. } => Some(path.clone()),
                Source::Default | Source::Environment(_) | Source::Flag(_) | Source::Handover => None,
            };
            self.set.hooks.push(Hook { event, matcher: matcher.clone(), action, timeout, place, file, pinned: Vec::new() });
        }
    }

    /// A bad one is told, and the hook keeps the default: a guard must not fall out over its time.
    fn timeout(&mut self, node: Option<&Node>, key: &str, unit: Unit) -> Duration {
        let Some(node) = node else { return TIMEOUT };
        let number = |value: f64| match unit {
            Unit::Milliseconds => Duration::try_from_secs_f64(value / 1000.0),
            Unit::Seconds => Duration::try_from_secs_f64(value),
        };
        let read = match &node.content {
            Content::Value(toml::Value::Integer(value)) => number(*value as f64).map_err(|_| TimeoutFault::NotPositive),
            Content::Value(toml::Value::Float(value)) => number(*value).map_err(|_| TimeoutFault::NotPositive),
            Content::Value(toml::Value::String(text)) => parse_duration(text).map_err(TimeoutFault::Text),
            Content::Value(_) | Content::List(_) | Content::Table(_) => Err(TimeoutFault::NoNumber),
        };
        let checked = read.and_then(|timeout| match timeout {
            timeout if timeout.is_zero() => Err(TimeoutFault::NotPositive),
            timeout if timeout > TIMEOUT_MAX => Err(TimeoutFault::TooLong),
            timeout => Ok(timeout),
        });
        checked.unwrap_or_else(|reason| {
            self.problem(&node.source, key, Fault::Timeout { reason });
            TIMEOUT
        })
    }

    fn arguments(&mut self, node: Option<&Node>, key: &str) -> Option<Vec<String>> {
        let Some(node) = node else { return Some(Vec::new()) };
        let Content::List(items) = &node.content else {
            self.problem(&node.source, key, Fault::NotAList);
            return None;
        };
        items.iter().enumerate().map(|(index, item)| self.text(item, &format!("{key}[{index}]")).map(str::to_owned)).collect()
    }

    fn table<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n std::collections::BTreeMap<String, Node>> {
        match &node.content {
            Content::Table(fields) => Some(fields),
            Content::List(_) | Content::Value(_) => {
                self.problem(&node.source, key, Fault::NotATable);
                None
            }
        }
    }

    fn text<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n str> {
        let text = node.text();
        if text.is_none() {
            self.problem(&node.source, key, Fault::NotAText);
        }
        text
    }

    fn place_of(&self, source: &Source) -> String {
        self.place.clone().unwrap_or_else(|| source.to_string())
    }

    fn problem(&mut self, source: &Source, key: &str, fault: Fault) {
        let place = self.place_of(source);
        self.problems.push(Problem { place, key: key.to_owned(), fault });
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}; {}", self.place, self.key, self.fault, self.fault.remedy())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meant = |nearest: &Option<&'static str>| nearest.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default();
        match self {
            Self::UnknownEvent { nearest } => write!(f, "there is no such event{}", meant(nearest)),
            Self::UnknownKey { nearest } => write!(f, "this key is not known here and has no effect{}", meant(nearest)),
            Self::NotAList => f.write_str("expected a list"),
            Self::NotATable => f.write_str("expected a table"),
            Self::NotAText => f.write_str("expected a text"),
            Self::NotATruthValue => f.write_str("expected true or false"),
            Self::Empty => f.write_str("it is empty"),
            Self::NoHooks => f.write_str("it is missing, so nothing would run"),
            Self::NoCommand => f.write_str("it is missing"),
            Self::UnknownType { found } => write!(f, "hooks of type `{found}` are not supported"),
            Self::Expression { reason } => write!(f, "it is neither a list of names nor a regular expression: {reason}"),
            Self::Timeout { reason } => write!(f, "{reason}, so the default of 60 s holds"),
            Self::NothingToMatch => f.write_str("this event has nothing to match, so the hook runs every time"),
            Self::NeverRuns => f.write_str("conversations are not compacted yet, so this event does not occur"),
        }
    }
}

impl Fault {
    /// What a person can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::UnknownEvent { .. } => {
                "the events are SessionStart, UserPromptSubmit, PreToolUse, PermissionRequest, PostToolUse, PostToolUseFailure, Stop, \
                 SubagentStart, SubagentStop, Notification, SessionEnd and PreCompact"
            }
            Self::UnknownKey { .. } => "remove or correct it",
            Self::NotAList => "write it as [{ hooks = [{ type = \"command\", command = \"...\" }] }]",
            Self::NotATable => "write it as { hooks = [{ type = \"command\", command = \"...\" }] }",
            Self::NotAText | Self::NotATruthValue | Self::Empty | Self::NoHooks | Self::NoCommand => "correct or remove the entry",
            Self::UnknownType { .. } => "use type `command` with a shell line, or `process` with a program and `args`",
            Self::Expression { .. } => "correct the expression; until then the hook does not run",
            Self::Timeout { .. } => "give milliseconds below `hooks.events`, seconds below `hooks`, or a text such as \"30s\"",
            Self::NothingToMatch => "remove the matcher",
            Self::NeverRuns => "keep it for later or remove it",
        }
    }
}

impl fmt::Display for TimeoutFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPositive => f.write_str("a time must be more than 0"),
            Self::TooLong => f.write_str("a time of more than a day"),
            Self::NoNumber => f.write_str("expected a number or a time"),
            Self::Text(error) => error.fmt(f),
        }
    }
}
