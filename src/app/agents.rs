//! What agents in this process are made from: profiles, other models than the session's, their tools.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::app::model::ChosenModel;
use crate::app::{App, keys};
use crate::config::{Environment, Layout, Limits, SettingsError};
use crate::models::Model;
use crate::models::catalog::{self, Choice, ProviderSettings, Selection};
use crate::models::record::{RecordContext, Recorder, recording};
use crate::models::remote;
use crate::secrets::Secrets;
use crate::skills::{self, Library};
use crate::subagents::child::ChildModels;
use crate::subagents::profiles::model_choice::{AgentSettings, ModelChoiceError, ModelSelection, Reason};
use crate::subagents::profiles::parse::{CommandLineProfilesError, parse_command_line};
use crate::subagents::profiles::{LiveCatalog, Sources};

impl App {
    /// Profiles of user, project and the flag `--agents`.
    pub(super) fn profiles(&self) -> Result<LiveCatalog, CommandLineProfilesError> {
        let command_line = match &self.agents {
            Some(json) => parse_command_line(json)?,
            None => Vec::new(),
        };
        Ok(LiveCatalog::new(Sources {
            layout: self.layout.clone(),
            home: self.environment.home(),
            cwd: self.cwd.clone(),
            plugins: Vec::new(),
            command_line,
            trust: self.trust.clone(),
        }))
    }

    /// Where skills of user and project are found.
    pub fn skills(&self) -> Result<Library, SettingsError> {
        let sources = skills::Sources { layout: self.layout.clone(), home: self.environment.home(), cwd: self.cwd.clone() };
        Ok(Library::new(sources, self.settings.section("skills")?.unwrap_or_default()))
    }

    pub(super) fn agent_settings(&self) -> Result<AgentSettings, SettingsError> {
        Ok(self.settings.section("agents")?.unwrap_or_default())
    }

    pub(super) fn child_models(&self, chosen: &ChosenModel) -> Result<Opener, SettingsError> {
        Ok(Opener {
            providers: keys::providers(&self.settings, &self.layout)?,
            secrets: self.secrets.clone(),
            base_url: self.settings.section("base_url")?,
            parent: selection_of(chosen),
            // A script or a recording answers under any level.
            fixed: (!chosen.is_remote).then(|| Arc::clone(&chosen.model)),
            environment: self.environment.clone(),
            layout: self.layout.clone(),
            limits: Arc::clone(&self.limits),
            record: chosen.record.clone(),
            cwd: self.cwd.clone(),
        })
    }
}

/// The session's model by its parts.
pub(super) fn selection_of(chosen: &ChosenModel) -> ModelSelection {
    let name = chosen.model.name();
    let (provider, model) = name.split_once('/').unwrap_or((name, ""));
    ModelSelection { provider: provider.to_owned(), model: model.to_owned(), level: chosen.reasoning.clone() }
}

/// Opens models that profiles name.
pub(super) struct Opener {
    providers: BTreeMap<String, ProviderSettings>,
    base_url: Option<String>,
    parent: ModelSelection,
    fixed: Option<Arc<dyn Model>>,
    environment: Environment,
    layout: Layout,
    limits: Arc<Limits>,
    record: Option<PathBuf>,
    cwd: PathBuf,
    secrets: Secrets,
}

impl ChildModels for Opener {
    fn open(&self, selection: &ModelSelection) -> Result<Arc<dyn Model>, ModelChoiceError> {
        let same_provider = selection.provider == self.parent.provider;
        if let Some(fixed) = self.fixed.as_ref().filter(|_| same_provider && selection.model == self.parent.model) {
            return Ok(Arc::clone(fixed));
        }
        let name = selection.to_string();
        let choice = Choice {
            model: Some(&name),
            // An address given for the session's provider holds for its other models too.
            base_url: self.base_url.as_deref().filter(|_| same_provider),
            providers: &self.providers,
            environment: &self.environment,
        };
        let refused = |message: String, reason: Reason| ModelChoiceError { message, reason, selection: name.clone() };
        let resolved = match catalog::select(&choice) {
            Ok(Selection::Remote(resolved, _)) => *resolved,
            Ok(Selection::Script(_) | Selection::Replay(_) | Selection::NothingSet) => {
                return Err(refused(format!("`{name}` is not a model of a provider"), Reason::SelectionMissing));
            }
            Err(error) => return Err(refused(error.to_string(), Reason::of(&error))),
        };
        let key = resolved.key.clone();
        let gate = resolved.gate(&self.layout.gate_folder());
        let model = remote::open(resolved, &self.limits, gate);
        let Some(path) = &self.record else { return Ok(model) };
        let context = RecordContext::new(self.layout.root(), self.cwd.clone());
        let context = match key {
            Some(key) => context.hiding(key),
            None => context,
        };
        let context = self.secrets.values().into_iter().fold(context, RecordContext::hiding);
        Ok(recording(model, Recorder::join(path, context)))
    }
}
