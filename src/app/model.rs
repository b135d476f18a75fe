//! Which model a process talks to: from its parent, from flags and settings, from a server found on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde_json::{Value, json};

use crate::app::{App, keys};
use crate::config::{Environment, SettingsError};
use crate::files::any_path;
use crate::models::Model;
use crate::models::catalog::{self, Choice, ModelChoiceError, ProviderSettings, ResolvedModel, Selection, Why};
use crate::models::local;
use crate::models::one_off::OneOff;
use crate::models::record::{RecordContext, Recorder, RecordingError, recording, replaying};
use crate::models::remote;
use crate::models::scripted::{Script, ScriptContext, ScriptError, scripted};

/// Where the model comes from.
pub enum ModelSource {
    /// Parent, flags, settings, environment, or a server on loopback.
    Configured,
    /// This script, whatever is configured: the demo.
    Script(Arc<Script>),
}

/// A model ready to be asked.
pub struct ChosenModel {
    pub model: Arc<dyn Model>,
    /// Why this one, and what should be mended about it: lines for a person.
    pub why: Vec<String>,
    /// What children are given to talk to the same one.
    pub for_children: Value,
    /// Where children add their conversations.
    pub record: Option<PathBuf>,
    /// Environment names that hold provider keys: left out of shells.
    pub key_variables: Vec<String>,
    /// Reasoning level of the choice.
    pub reasoning: Option<String>,
    /// It is a provider's; not a script and not a recording.
    pub is_remote: bool,
}

/// A model for one turn, as flags name it.
#[derive(Clone, Debug)]
pub struct OnceChoice {
    pub model: String,
    pub base_url: Option<String>,
    pub key_env: Option<String>,
    pub key_file: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum ModelChoiceFailure {
    #[error("--once-model takes a model of a provider, not a script or a recording")]
    OnceNotRemote,
    /// Nothing names a model and no server answers on this machine.
    #[error("no model is set, and no model server answers on this machine")]
    NothingSet,
    #[error(transparent)]
    Choice(#[from] ModelChoiceError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error("the model handed over by the parent cannot be used: {reason}")]
    Handover { reason: String },
}

/// How long a server on loopback has to answer, all kinds side by side.
const LOCAL_SEARCH: Duration = Duration::from_millis(200);

/// The model before it is wrapped for recording.
struct Base {
    model: Arc<dyn Model>,
    why: Vec<String>,
    for_children: Value,
    reasoning: Option<String>,
    secret: Option<SecretString>,
    /// The recording that is played.
    played: Option<PathBuf>,
    is_remote: bool,
}

impl App {
    /// `record`: the file a flag names. A child records where its parent does.
    pub async fn choose_model(&self, source: &ModelSource, record: Option<&Path>) -> Result<ChosenModel, ModelChoiceFailure> {
        let base = match (source, self.handed_model()) {
            (ModelSource::Script(script), _) => self.scripted(Arc::clone(script)),
            (ModelSource::Configured, Some(handed)) => self.handed_over(handed)?,
            (ModelSource::Configured, None) => self.configured().await?,
        };
        let (model, record) = self.recorded(&base, record)?;
        Ok(ChosenModel {
            model,
            why: base.why,
            for_children: base.for_children,
            record,
            key_variables: keys::hidden_variables(&self.settings, &self.providers()?)?,
            reasoning: base.reasoning,
            is_remote: base.is_remote,
        })
    }

    fn providers(&self) -> Result<BTreeMap<String, ProviderSettings>, SettingsError> {
        keys::providers(&self.settings, &self.layout)
    }

    /// The model of a single turn (R314): by its flags and the providers of the settings. Its key variable is left out of
    /// shells like any other.
    pub fn choose_once(&self, wanted: &OnceChoice, chosen: &mut ChosenModel) -> Result<OneOff, ModelChoiceFailure> {
        let mut providers = self.providers()?;
        let provider = wanted.model.split_once('/').map_or(wanted.model.as_str(), |(provider, _)| provider);
        if wanted.key_env.is_some() || wanted.key_file.is_some() {
            let settings = providers.entry(provider.to_owned()).or_default();
            settings.api_key_env.clone_from(&wanted.key_env);
            settings.api_key_file = wanted.key_file.as_ref().map(|file| self.cwd.join(file));
            settings.api_key = None;
            settings.stored_key = None;
        }
        let base_url = wanted.base_url.as_deref();
        // A file that is named for this turn stands before any key of the environment.
        let ordinary = wanted.key_file.as_ref().map(|_| catalog::key_variables(&providers)).unwrap_or_default();
        let visible = self.environment.all().iter().filter(|(name, _)| !ordinary.iter().any(|key| name == key.as_str()));
        let environment = Environment::from_pairs(visible.cloned());
        let choice = Choice { model: Some(&wanted.model), base_url, providers: &providers, environment: &environment };
        let resolved = match catalog::select(&choice)? {
            Selection::Remote(resolved, why) => {
                // The reason names the model, which the caller knows; what should be mended is said.
                chosen.why.extend(why.warnings);
                *resolved
            }
            Selection::Script(_) | Selection::Replay(_) | Selection::NothingSet => return Err(ModelChoiceFailure::OnceNotRemote),
        };
        chosen.key_variables.extend(wanted.key_env.clone());
        let gate = resolved.gate(&self.layout.gate_folder());
        let inner = remote::open(resolved.clone(), &self.limits, gate);
        Ok(OneOff::new(inner, &resolved))
    }

    /// The parent's model, unless it left the choice to the child.
    fn handed_model(&self) -> Option<&Value> {
        self.handover.as_ref().map(|handover| &handover.model).filter(|model| !model.is_null())
    }

    async fn configured(&self) -> Result<Base, ModelChoiceFailure> {
        let model: Option<String> = self.settings.section("model")?;
        let base_url: Option<String> = self.settings.section("base_url")?;
        let providers = self.providers()?;
        let choice =
            Choice { model: model.as_deref(), base_url: base_url.as_deref(), providers: &providers, environment: &self.environment };
        match catalog::select(&choice)? {
            // An address without a name: what is there decides, not a default that the server may never have heard of.
            Selection::Remote(resolved, _) if model.is_none() && base_url.is_some() => {
                let (resolved, why) = local::choose_listed(*resolved).await?;
                Ok(self.remote(resolved, lines(why, false)))
            }
            Selection::Remote(resolved, why) => Ok(self.remote(*resolved, lines(why, model.is_some()))),
            Selection::Script(path) => Ok(self.scripted(Arc::new(Script::load(&self.cwd.join(path))?))),
            Selection::Replay(path) => self.replayed(&self.cwd.join(path)),
            Selection::NothingSet => self.found_locally().await,
        }
    }

    /// The first server on loopback that has a model.
    async fn found_locally(&self) -> Result<Base, ModelChoiceFailure> {
        let servers = local::find(LOCAL_SEARCH).await;
        let (resolved, why) = servers.iter().find_map(|server| server.choose()).ok_or(ModelChoiceFailure::NothingSet)??;
        Ok(self.remote(resolved, lines(why, false)))
    }

    fn handed_over(&self, handed: &Value) -> Result<Base, ModelChoiceFailure> {
        let malformed = |reason: &str| ModelChoiceFailure::Handover { reason: reason.to_owned() };
        if let Some(script) = handed.get("script") {
            let text = |key: &str| script.get(key).and_then(Value::as_str).ok_or_else(|| malformed("its script has no name or text"));
            return Ok(self.scripted(Arc::new(Script::parse(text("name")?, text("text")?)?)));
        }
        if let Some(path) = handed.get("replay") {
            let path = any_path::deserialize(path).map_err(|_| malformed("its recording has no path"))?;
            return self.replayed(&path);
        }
        let resolved = ResolvedModel::from_handover(handed).map_err(|error| malformed(&error.to_string()))?;
        Ok(self.remote(resolved, Vec::new()))
    }

    fn remote(&self, resolved: ResolvedModel, why: Vec<String>) -> Base {
        let gate = resolved.gate(&self.layout.gate_folder());
        Base {
            why,
            for_children: resolved.to_handover(),
            reasoning: resolved.reasoning.clone(),
            secret: resolved.key.clone(),
            played: None,
            model: remote::open(resolved, &self.limits, gate),
            is_remote: true,
        }
    }

    fn scripted(&self, script: Arc<Script>) -> Base {
        Base {
            for_children: json!({ "script": { "name": script.name(), "text": script.text() } }),
            model: scripted(script, ScriptContext { cwd: self.cwd.clone(), idle_limit: self.limits.stream_idle_timeout }),
            why: Vec::new(),
            reasoning: None,
            secret: None,
            played: None,
            is_remote: false,
        }
    }

    fn replayed(&self, path: &Path) -> Result<Base, ModelChoiceFailure> {
        Ok(Base {
            model: replaying(path, self.record_context(None))?,
            for_children: json!({ "replay": any_path::Wire::from(path) }),
            why: Vec::new(),
            reasoning: None,
            secret: None,
            played: Some(path.to_owned()),
            is_remote: false,
        })
    }

    fn recorded(&self, base: &Base, record: Option<&Path>) -> Result<(Arc<dyn Model>, Option<PathBuf>), RecordingError> {
        let inner = Arc::clone(&base.model);
        let context = || self.record_context(base.secret.clone());
        let joined: Option<PathBuf> = self.handover.as_ref().and_then(|handover| handover.record.clone());
        if let Some(path) = joined {
            let recorder = Recorder::join(&path, context());
            return Ok((recording(inner, recorder), Some(path)));
        }
        match record {
            Some(path) => {
                let path = self.cwd.join(path);
                if base.played.as_deref().is_some_and(|played| is_same_file(played, &path)) {
                    return Err(RecordingError::Played { path });
                }
                let recorder = Recorder::create(&path, inner.name(), context())?;
                Ok((recording(inner, recorder), Some(path)))
            }
            None => Ok((inner, None)),
        }
    }

    fn record_context(&self, secret: Option<SecretString>) -> RecordContext {
        let context = RecordContext::new(self.layout.root(), self.cwd.clone());
        let context = match secret {
            Some(secret) => context.hiding(secret),
            None => context,
        };
        self.secrets.values().into_iter().fold(context, RecordContext::hiding)
    }
}

/// Also through links. A file that is not there is no other's.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// A model that was named needs no reason; warnings are always said.
fn lines(why: Why, named: bool) -> Vec<String> {
    let reason = (!named).then_some(why.line);
    reason.into_iter().chain(why.warnings).collect()
}
