//! Builds store, models, toolset, delegation and sessions from settings: the only place where all parts meet.
//!
//! Everything is opened when it is needed first, so that a command that fails early has touched nothing.

mod agents;
mod costs;
pub mod explain;
mod git;
mod hooks;
pub mod keys;
pub mod model;
pub mod rules;
pub mod sections;
pub mod session;
pub mod trust;
mod web;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::environment::RootError;
use crate::config::sections::SECTIONS;
use crate::config::{Environment, Layout, Limits, ProjectLayout, Settings, SettingsError, Source, Sources};
use crate::files::{self, FileError};
use crate::permissions::Mode;
use crate::permissions::rules::{RuleError, RuleSet};
use crate::permissions::sandbox::{Sandbox, SandboxError, SandboxSettings};
use crate::permissions::trust::{Trust, TrustError};
use crate::secrets::Secrets;
use crate::store::{Store, StoreError};
use crate::subagents::handover::Handover;

/// What the command line asks for, as dotted keys and rule texts.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub settings: Vec<(String, toml::Value)>,
    /// `--allowedTools` and `--disallowedTools`, each possibly a list.
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    /// Profiles of `--agents`, as JSON.
    pub agents: Option<String>,
}

/// One process of zapmyco: where it stands and how it is set.
pub struct App {
    pub environment: Environment,
    pub layout: Layout,
    pub cwd: PathBuf,
    pub settings: Settings,
    pub limits: Arc<Limits>,
    pub rules: RuleSet,
    /// Where each of them stands.
    pub rule_places: Vec<rules::RulePlace>,
    /// Rules without effect; to be shown.
    pub notices: Vec<String>,
    /// What the parent gave, when this process is a subagent.
    pub handover: Option<Handover>,
    /// Profiles of `--agents`, as JSON.
    pub agents: Option<String>,
    /// What a person has trusted in this project.
    pub trust: Trust,
    /// Why the record of trust could not be used; nothing is trusted then.
    pub trust_problem: Option<TrustError>,
    /// The values of all configured keys: kept out of everything that is stored.
    pub secrets: Secrets,
}

/// Why the parts could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("cannot use the working directory {path}: {source}", path = path.display())]
    WorkingDirectory { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{place} is no rule: {source}")]
    Rule { place: &'static str, source: RuleError },
    #[error("{flag}: the list is empty; leave the flag out, or name a tool")]
    EmptyRules { flag: &'static str },
    #[error("{flag}: `{rule}` names no tool{}", nearest.as_ref().map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default())]
    UnknownTool { flag: &'static str, rule: String, nearest: Option<String> },
    #[error("cannot use the storage root: {0}")]
    Storage(#[from] FileError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl App {
    /// Reads all settings. `cwd` is absolute. Nothing is created.
    pub fn load(environment: Environment, cwd: PathBuf, flags: Flags, handover: Option<Handover>) -> Result<Self, AppError> {
        let root = match &handover {
            Some(handover) => handover.root.clone(),
            None => environment.storage_root()?,
        };
        let layout = Layout::new(root);
        // A child has what its parent hands down, and no trust of its own.
        let opened = if handover.is_some() { Ok(Trust::none(&cwd)) } else { Trust::open(&layout, &cwd) };
        let (trust, trust_problem) = match opened {
            Ok(trust) => (trust, None),
            Err(error) => (Trust::none(&cwd), Some(error)),
        };
        let settings = Settings::load(Sources {
            layout: &layout,
            project: &ProjectLayout::new(cwd.clone()),
            environment: &environment,
            flags: flags.settings,
            handover: handover.as_ref().map(handed_settings).unwrap_or_default(),
            mode_width: Mode::width_of,
            trusted: &|path, content| trust.holds(path, content),
        })?;
        settings.check(SECTIONS)?;
        sections::check(&settings)?;
        let rules::Rules { set: rules, places: rule_places, notices } =
            rules::rules(&settings, &flags.allow, &flags.deny, handover.as_ref())?;
        let limits = Arc::new(settings.limits().clone());
        let secrets = keys::all(&settings, &layout, &environment, handover.as_ref())?;
        Ok(Self {
            environment,
            layout,
            cwd,
            settings,
            limits,
            rules,
            rule_places,
            notices,
            handover,
            agents: flags.agents,
            trust,
            trust_problem,
            secrets,
        })
    }

    /// The mode that settings, flags and parent give. A parent's mode is the widest there is, and the one that holds where
    /// nothing else was set (R353).
    pub fn mode(&self) -> Result<Mode, AppError> {
        let parent = self.handover.as_ref().and_then(|handover| handover.mode);
        let was_set = self.settings.source("permission_mode").is_some_and(|source| source != Source::Default);
        let own = if was_set { self.settings.section::<Mode>("permission_mode")? } else { None };
        Ok(match (own, parent) {
            (Some(own), Some(parent)) => own.narrowed_by(parent),
            (Some(mode), None) | (None, Some(mode)) => mode,
            (None, None) => Mode::Default,
        })
    }

    /// What holds commands and file tools; an error where the settings promise more than this system can hold.
    pub(crate) fn sandbox(&self) -> Result<Sandbox, AppError> {
        let settings = self.sandbox_settings()?;
        Ok(Sandbox::new(settings, &self.cwd, self.layout.root(), self.environment.home().as_deref())?)
    }

    pub fn sandbox_settings(&self) -> Result<SandboxSettings, SettingsError> {
        Ok(self.settings.section("sandbox")?.unwrap_or_default())
    }

    /// Opens the database, making the storage root if it is missing.
    pub fn open_store(&self) -> Result<Store, AppError> {
        self.create_root()?;
        Ok(Store::open(&self.layout.database())?.hiding(&self.secrets))
    }

    pub(crate) fn create_root(&self) -> Result<(), FileError> {
        files::create_private_folder(self.layout.root())
    }
}

/// The absolute working directory: the current one, or the one a flag names.
pub fn working_directory(named: Option<&Path>) -> Result<PathBuf, AppError> {
    let path = named.unwrap_or(Path::new("."));
    path.canonicalize()
        .and_then(|path| if path.is_dir() { Ok(path) } else { Err(std::io::ErrorKind::NotADirectory.into()) })
        .map_err(|source| AppError::WorkingDirectory { path: path.to_owned(), source })
}

/// What a parent decided for its child, as settings that rank above everything the child reads itself.
fn handed_settings(handover: &Handover) -> Vec<(String, toml::Value)> {
    let text = |text: &String| toml::Value::String(text.clone());
    let mut settings: Vec<(String, toml::Value)> =
        handover.limits.iter().map(|(name, value)| (format!("limits.{name}"), text(value))).collect();
    let list = |rules: &[String]| toml::Value::Array(rules.iter().map(text).collect());
    settings.push(("permissions.allow".to_owned(), list(&handover.allow)));
    settings.push(("permissions.ask".to_owned(), list(&handover.ask)));
    settings.push(("permissions.deny".to_owned(), list(&handover.deny)));
    let SandboxSettings { mode, required, network, write } = &handover.sandbox;
    settings.push(("sandbox.mode".to_owned(), text(&mode.as_str().to_owned())));
    settings.push(("sandbox.required".to_owned(), toml::Value::Boolean(*required)));
    settings.push(("sandbox.network".to_owned(), toml::Value::Boolean(*network)));
    settings.push(("sandbox.write".to_owned(), list(write)));
    settings
}
