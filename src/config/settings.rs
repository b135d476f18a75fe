//! Settings: defaults < user file < user's file for the project < project files < environment < flags < handover; each value knows its source.
//!
//! The files are read as typed; what a value means is decided by the folder that asks for its section. What a project
//! may not set is dropped here, with a diagnostic that the caller shows.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::environment::{self, Environment};
use super::error::SettingsError;
use super::layout::{Layout, ProjectLayout};
use super::limits::Limits;
use super::sections::{KnownSection, Shape, nearest};
use super::tree::{Content, Node, Source, joined};
use crate::files;

/// All settings of one process, merged.
#[derive(Clone, Debug)]
pub struct Settings {
    tree: Node,
    /// Each file, variable and flag by itself, weakest first: a mistake in one is a mistake also where another wins.
    layers: Vec<Node>,
    limits: Limits,
    files: Vec<SettingsFile>,
    ignored: Vec<Diagnostic>,
    rights: Vec<ProjectRights>,
}

/// Where settings come from, apart from the files.
pub struct Sources<'s> {
    pub layout: &'s Layout,
    pub project: &'s ProjectLayout,
    pub environment: &'s Environment,
    /// Dotted keys and values from the command line.
    pub flags: Vec<(String, toml::Value)>,
    /// Dotted keys and values that the parent of a process child decided; the strongest of all.
    pub handover: Vec<(String, toml::Value)>,
    /// How wide a permission mode is, `None` for an unknown word: a project file may only make it stricter.
    pub mode_width: fn(&str) -> Option<u8>,
    /// Whether a person has trusted these very bytes of a project's file: only then its hooks and allow rules are taken.
    pub trusted: &'s dyn Fn(&Path, &[u8]) -> bool,
}

/// What a project's settings file asks for that needs a person's trust.
#[derive(Clone, Debug)]
pub struct ProjectRights {
    pub path: PathBuf,
    /// The file as it was read.
    pub content: Vec<u8>,
    pub trusted: bool,
    /// Texts of its allow rules.
    pub allow: Vec<String>,
    pub(crate) hooks: Option<Node>,
}

/// A file that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsFile {
    pub path: PathBuf,
    pub owner: FileOwner,
    pub found: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOwner {
    User,
    /// The user's own for one project, below the storage root: what was answered "always" there.
    UserForProject,
    Project,
    /// `settings.local.toml`: beside the project's file, bound like it, since a repository can bring it along.
    ProjectPrivate,
}

/// A value that was not taken, and why. Never fatal, always shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub key: String,
    pub source: Source,
    pub reason: Refused,
}

/// Why a project's value was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It could send the user's key or conversation somewhere else.
    Address,
    /// It would allow more than the user's own settings do.
    WiderRights,
    /// It concerns the jobs of all projects.
    OtherProjects,
    /// It waits for a person's trust.
    Untrusted,
}

/// One setting with its value as TOML (secrets hidden) and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: String,
    pub source: Source,
}

/// The defaults as a commented settings file.
pub const DEFAULTS: &str = include_str!("defaults.toml");

/// Nobody writes this much by hand; a device or a log file by mistake is refused.
pub(super) const FILE_MAX: u64 = 1024 * 1024;

/// Keys whose lists grow with every layer: a rule of the user is never lost because the project has rules too.
const ADDED_LISTS: [&str; 3] = ["permissions.allow", "permissions.ask", "permissions.deny"];

/// So do the lists of hooks, whatever the event.
const HOOKS_KEY: &str = "hooks";

const MODEL_KEY: &str = "model";
const MODE_KEY: &str = "permission_mode";
const ALLOW_KEY: &str = "permissions.allow";

/// What a project's file cannot set (decision: a repository must not redirect a key or raise its own rights).
const REFUSED_IN_PROJECTS: [(&str, Refused); 14] = [
    ("providers", Refused::Address),
    ("base_url", Refused::Address),
    ("api_key", Refused::Address),
    ("api_key_env", Refused::Address),
    ("api_key_file", Refused::Address),
    ("web", Refused::Address),
    ("sandbox.write", Refused::WiderRights),
    ("shell.keep_keys", Refused::WiderRights),
    ("skills.refused_in_children", Refused::WiderRights),
    ("budget", Refused::WiderRights),
    ("prices", Refused::WiderRights),
    ("limits.retention_age", Refused::OtherProjects),
    ("limits.retention_count", Refused::OtherProjects),
    ("limits.retention_bytes", Refused::OtherProjects),
];

/// What a project's file may set once a person has trusted its exact content.
const NEED_TRUST: [&str; 2] = [ALLOW_KEY, HOOKS_KEY];

/// A project may only ask for more strictness here.
const FAIL_CLOSED_KEY: &str = "hooks.fail_closed";

/// Model names that make a file play the model: a file of the project would then call tools as if a model had.
const PLAYED_MODELS: [&str; 2] = ["script:", "replay:"];

const FROM_ENVIRONMENT: [(&str, &str); 5] = [
    (environment::MODEL, MODEL_KEY),
    (environment::BASE_URL, "base_url"),
    (environment::PERMISSION_MODE, MODE_KEY),
    (environment::PERMISSION_PROMPT, "permission_prompt"),
    (environment::SANDBOX, "sandbox.mode"),
];

/// Values of the sandbox that allow more than any other: a project's file may not put one in the place of a stricter one.
const LOOSEST: [(&str, &str); 3] = [("sandbox.mode", "\"off\""), ("sandbox.required", "false"), ("sandbox.network", "true")];

impl Settings {
    pub fn load(sources: Sources<'_>) -> Result<Self, SettingsError> {
        let tree = Node::parse_default(DEFAULTS).map_err(|error| SettingsError::Defaults {
            line: error.line,
            column: error.column,
            message: error.message,
        })?;
        let mut settings =
            Self { tree, layers: Vec::new(), limits: Limits::default(), files: Vec::new(), ignored: Vec::new(), rights: Vec::new() };
        let user = sources.layout.user_settings();
        settings.add_file(&user, FileOwner::User, &sources)?;
        let own = sources.layout.user_settings_for(sources.project.workspace());
        settings.add_file(&own, FileOwner::UserForProject, &sources)?;
        let project = [(sources.project.settings(), FileOwner::Project), (sources.project.private_settings(), FileOwner::ProjectPrivate)];
        for (path, owner) in project {
            // In the home folder both names mean the user's own file.
            if !is_same_file(&user, &path) {
                settings.add_file(&path, owner, &sources)?;
            }
        }
        settings.add_environment(sources.environment)?;
        for (key, value) in sources.flags {
            let source = Source::Flag(key.clone());
            settings.lay(Node::at_key(&key, Node::of_toml(value, &source)));
        }
        for (key, value) in sources.handover {
            // The parent's list is the whole list: the child must not add what its own files allow.
            if key == ALLOW_KEY {
                settings.tree.remove(ALLOW_KEY);
            }
            settings.lay(Node::at_key(&key, Node::of_toml(number_of_limit(&key, value), &Source::Handover)));
        }
        settings.read_limits()?;
        Ok(settings)
    }

    /// The merged section at a dotted key. Errors name file, line, key and value.
    pub fn section<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, SettingsError> {
        read_at(&self.tree, key)
    }

    /// Whether every file, variable and flag that sets something at this key sets a `T`; also one that does not win.
    pub fn check_as<T: DeserializeOwned>(&self, key: &str) -> Result<(), SettingsError> {
        self.layers.iter().try_for_each(|layer| read_at::<T>(layer, key).map(drop))
    }

    /// The merged section with the place of every value, for those who tell of each entry by itself.
    pub(crate) fn node(&self, key: &str) -> Option<&Node> {
        self.tree.get(key)
    }

    /// An error about a value that has the right type but makes no sense to whoever reads it.
    pub fn refuse(&self, key: &str, message: impl fmt::Display) -> SettingsError {
        let (value, source_place) = match self.tree.get(key) {
            Some(node) => (node.shown(key), node.source.clone()),
            None => ("(not set)".to_owned(), Source::Default),
        };
        SettingsError::Value { key: key.to_owned(), value, source_place, message: message.to_string() }
    }

    /// Where the value at a dotted key was set; `None` when nothing set it.
    pub fn source(&self, key: &str) -> Option<Source> {
        self.tree.get(key).map(|node| node.source.clone())
    }

    /// The texts of a list with the place of each; what is no text is left out.
    pub fn listed(&self, key: &str) -> Vec<(String, Source)> {
        let Some(Content::List(items)) = self.tree.get(key).map(|node| &node.content) else { return Vec::new() };
        items.iter().filter_map(|item| Some((item.text()?.to_owned(), item.source.clone()))).collect()
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Name and text of each limit that something has set, as the parent of a process child hands them down.
    pub fn limits_set(&self) -> Vec<(String, String)> {
        let Some(Content::Table(fields)) = self.tree.get("limits").map(|node| &node.content) else { return Vec::new() };
        let set = fields.iter().filter(|(_, node)| node.source != Source::Default);
        set.filter_map(|(name, node)| match &node.content {
            Content::Value(toml::Value::String(text)) => Some((name.clone(), text.clone())),
            Content::Value(value) => Some((name.clone(), value.to_string())),
            // Not a limit; `read_limits` has refused it.
            Content::List(_) | Content::Table(_) => None,
        })
        .collect()
    }

    /// The files looked for, weakest first.
    pub fn files(&self) -> &[SettingsFile] {
        &self.files
    }

    /// What the project's files set without effect; the caller shows each.
    pub fn ignored(&self) -> &[Diagnostic] {
        &self.ignored
    }

    /// What the project's files ask for that needs trust, and whether they have it.
    pub fn project_rights(&self) -> &[ProjectRights] {
        &self.rights
    }

    /// Every setting, by key.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        collect("", &self.tree, &mut entries);
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        entries
    }

    /// Names the first key that nobody reads.
    pub fn check(&self, known: &[KnownSection]) -> Result<(), SettingsError> {
        let Content::Table(fields) = &self.tree.content else { return Ok(()) };
        for (name, node) in fields {
            match known.iter().find(|section| section.key == name) {
                Some(section) => check_below(name, node, &section.shape)?,
                None => return Err(unknown(name, name, node, known.iter().map(|section| section.key))),
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path, owner: FileOwner, sources: &Sources<'_>) -> Result<(), SettingsError> {
        let text = read_file(path)?;
        self.files.push(SettingsFile { path: path.to_owned(), owner, found: text.is_some() });
        let Some(text) = text else { return Ok(()) };
        let mut node = Node::parse_file(path, &text).map_err(|error| SettingsError::Syntax {
            path: path.to_owned(),
            line: error.line,
            column: error.column,
            message: error.message,
        })?;
        match owner {
            FileOwner::User | FileOwner::UserForProject => {}
            FileOwner::Project | FileOwner::ProjectPrivate => {
                self.drop_refused(&mut node, sources.mode_width);
                self.drop_untrusted(&mut node, path, text.as_bytes(), sources.trusted);
            }
        }
        self.lay(node);
        Ok(())
    }

    /// Takes out of a project's file what it may not set.
    fn drop_refused(&mut self, node: &mut Node, mode_width: fn(&str) -> Option<u8>) {
        for (key, reason) in REFUSED_IN_PROJECTS {
            self.drop_key(node, key, reason);
        }
        let plays = |node: &Node| node.text().is_some_and(|text| PLAYED_MODELS.iter().any(|prefix| text.starts_with(prefix)));
        if node.get(MODEL_KEY).is_some_and(plays) {
            self.drop_key(node, MODEL_KEY, Refused::WiderRights);
        }
        let width = |node: &Node| node.get(MODE_KEY).and_then(Node::text).and_then(mode_width);
        // An unknown word stays, so that whoever reads the mode can name it.
        if let (Some(wanted), Some(allowed)) = (width(node), width(&self.tree))
            && wanted > allowed
        {
            self.drop_key(node, MODE_KEY, Refused::WiderRights);
        }
        let is = |node: &Node, key: &str, value: &str| node.get(key).is_some_and(|found| found.shown(key) == value);
        for (key, loosest) in LOOSEST {
            if is(node, key, loosest) && self.tree.get(key).is_some() && !is(&self.tree, key, loosest) {
                self.drop_key(node, key, Refused::WiderRights);
            }
        }
    }

    /// Trust is asked for the bytes that were parsed, so nothing can change between the question and the use.
    fn drop_untrusted(&mut self, node: &mut Node, path: &Path, content: &[u8], trusted: &dyn Fn(&Path, &[u8]) -> bool) {
        let rights = ProjectRights {
            path: path.to_owned(),
            content: content.to_owned(),
            trusted: trusted(path, content),
            allow: node.get(ALLOW_KEY).map(texts_of).unwrap_or_default(),
            hooks: node.get(HOOKS_KEY).filter(|hooks| !hooks.is_empty_table()).cloned(),
        };
        if rights.allow.is_empty() && rights.hooks.is_none() {
            return;
        }
        if !rights.trusted {
            NEED_TRUST.iter().for_each(|key| self.drop_key(node, key, Refused::Untrusted));
        }
        if node.get(FAIL_CLOSED_KEY).is_some_and(|node| node.content != Content::Value(toml::Value::Boolean(true))) {
            self.drop_key(node, FAIL_CLOSED_KEY, Refused::WiderRights);
        }
        self.rights.push(rights);
    }

    fn drop_key(&mut self, node: &mut Node, key: &str, reason: Refused) {
        if let Some(dropped) = node.remove(key) {
            self.ignored.push(Diagnostic { key: key.to_owned(), source: dropped.source, reason });
        }
    }

    fn add_environment(&mut self, environment: &Environment) -> Result<(), SettingsError> {
        for (name, key) in FROM_ENVIRONMENT {
            let Some(raw) = environment.raw(name).filter(|raw| !raw.is_empty()) else { continue };
            let text = raw.to_str().ok_or_else(|| SettingsError::EnvironmentNotText { name: name.to_owned() })?;
            let value = toml::Value::String(text.to_owned());
            self.lay(Node::at_key(key, Node::of_toml(value, &Source::Environment(name.to_owned()))));
        }
        for (name, raw) in environment.all() {
            let name = name.to_string_lossy();
            let Some(limit) = name.strip_prefix(environment::LIMITS_PREFIX) else { continue };
            if raw.is_empty() {
                continue;
            }
            let text = raw.to_str().ok_or_else(|| SettingsError::EnvironmentNotText { name: name.to_string() })?;
            self.add_limit_variable(&name, limit, text)?;
        }
        Ok(())
    }

    fn add_limit_variable(&mut self, name: &str, limit: &str, text: &str) -> Result<(), SettingsError> {
        let source = Source::Environment(name.to_owned());
        let limit = limit.to_ascii_lowercase();
        let mut limits = Limits::default();
        let Some(field) = limits.fields().into_iter().find(|field| field.name == limit) else {
            let nearest = nearest(&limit, Limits::names().into_iter());
            let nearest = nearest.map(|near| format!("{}{}", environment::LIMITS_PREFIX, near.to_ascii_uppercase()));
            return Err(SettingsError::UnknownKey { key: format!("limits.{limit}"), source_place: source, nearest });
        };
        let value = field.of_text(text);
        self.lay(Node::at_key(&format!("limits.{limit}"), Node::of_toml(value, &source)));
        Ok(())
    }

    fn lay(&mut self, stronger: Node) {
        self.layers.push(stronger.clone());
        self.tree.merge(stronger, &|key| ADDED_LISTS.contains(&key) || key.split('.').next() == Some(HOOKS_KEY));
    }

    fn read_limits(&mut self) -> Result<(), SettingsError> {
        let mut limits = Limits::default();
        for mut field in limits.fields() {
            let key = format!("limits.{}", field.name);
            // The merged value is set last.
            for node in self.layers.iter().chain([&self.tree]).filter_map(|tree| tree.get(&key)) {
                let value = match &node.content {
                    Content::Value(value) => value.clone(),
                    Content::List(_) | Content::Table(_) => toml::Value::Boolean(false),
                };
                field.set(&value).map_err(|reason| SettingsError::Limit {
                    value: node.shown(&key),
                    source_place: node.source.clone(),
                    key: key.clone(),
                    reason,
                })?;
            }
        }
        if limits.output_tail_kept > limits.output_kept_max {
            let place = |key| self.source(key).unwrap_or(Source::Default);
            return Err(SettingsError::TailLargerThanWhole {
                tail_place: place("limits.output_tail_kept"),
                kept_place: place("limits.output_kept_max"),
            });
        }
        self.limits = limits;
        Ok(())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "a project cannot choose where keys and conversations are sent",
            Self::WiderRights => "a project cannot allow more than your own settings do",
            Self::OtherProjects => "it concerns the jobs of all projects",
            Self::Untrusted => "nobody has trusted this file as it is now",
        })
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self.reason {
            Refused::Address | Refused::WiderRights | Refused::OtherProjects => "set it in your own settings file or by a flag",
            Refused::Untrusted => "`zapmyco trust` shows it and asks",
        };
        write!(f, "{}: `{}` is ignored: {}; {remedy}", self.source, self.key, self.reason)
    }
}

/// The texts of a list, or a text alone.
fn texts_of(node: &Node) -> Vec<String> {
    match &node.content {
        Content::List(items) => items.iter().flat_map(texts_of).collect(),
        Content::Value(toml::Value::String(text)) => vec![text.clone()],
        // Not a rule; whoever reads the rules says so.
        Content::Value(value) => vec![value.to_string()],
        Content::Table(_) => Vec::new(),
    }
}

/// Limits are handed down as texts; a count becomes the number it spells.
fn number_of_limit(key: &str, value: toml::Value) -> toml::Value {
    let mut limits = Limits::default();
    let field = key.strip_prefix("limits.").and_then(|name| limits.fields().into_iter().find(|field| field.name == name));
    match (field, value) {
        (Some(field), toml::Value::String(text)) => field.of_text(&text),
        (_, value) => value,
    }
}

fn read_at<T: DeserializeOwned>(tree: &Node, key: &str) -> Result<Option<T>, SettingsError> {
    let Some(node) = tree.get(key) else { return Ok(None) };
    node.read(key).map(Some).map_err(|error| {
        let (key, value, source_place) = error.place.unwrap_or_else(|| (key.to_owned(), node.shown(key), node.source.clone()));
        SettingsError::Value { key, value, source_place, message: error.message }
    })
}

fn collect(key: &str, node: &Node, entries: &mut Vec<Entry>) {
    match &node.content {
        Content::Table(fields) => {
            for (name, node) in fields {
                collect(&joined(key, name), node, entries);
            }
        }
        Content::List(_) | Content::Value(_) => {
            entries.push(Entry { key: key.to_owned(), value: node.shown(key), source: node.source.clone() });
        }
    }
}

fn check_below(key: &str, node: &Node, shape: &Shape) -> Result<(), SettingsError> {
    let Content::Table(fields) = &node.content else {
        return match shape {
            Shape::Value => Ok(()),
            Shape::Fields(_) | Shape::Named(_) | Shape::Limits => Err(SettingsError::Value {
                key: key.to_owned(),
                value: node.shown(key),
                source_place: node.source.clone(),
                message: format!("expected a table; write it as [{key}]"),
            }),
        };
    };
    for (name, node) in fields {
        let below = joined(key, name);
        match shape {
            Shape::Value => {}
            Shape::Named(shape) => check_below(&below, node, shape)?,
            Shape::Fields(known) => match known.iter().find(|(known, _)| known == name) {
                Some((_, shape)) => check_below(&below, node, shape)?,
                None => return Err(unknown(&below, name, node, known.iter().map(|(known, _)| *known))),
            },
            Shape::Limits => {
                let known = Limits::names();
                if !known.contains(&name.as_str()) {
                    return Err(unknown(&below, name, node, known.into_iter()));
                }
            }
        }
    }
    Ok(())
}

fn unknown<'k>(key: &str, name: &str, node: &Node, known: impl Iterator<Item = &'k str>) -> SettingsError {
    SettingsError::UnknownKey { key: key.to_owned(), source_place: node.source.clone(), nearest: nearest(name, known).map(str::to_owned) }
}

/// The text of a settings file; `None` when there is none.
fn read_file(path: &Path) -> Result<Option<String>, SettingsError> {
    let unreadable = |source| SettingsError::Unreadable { path: path.to_owned(), source };
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    // Opening a pipe would wait for a writer, reading a device might never end.
    if !metadata.is_file() {
        return Err(SettingsError::NotAFile { path: path.to_owned() });
    }
    let bytes = files::read_bounded(path, FILE_MAX).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => SettingsError::TooLarge { path: path.to_owned() },
        _ => unreadable(source),
    })?;
    String::from_utf8(bytes).map(Some).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count() + 1;
        SettingsError::NotText { path: path.to_owned(), line }
    })
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        (Err(_), _) | (_, Err(_)) => one == other,
    }
}
