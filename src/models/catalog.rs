//! Which model is meant, where it is reached and with which key: ready-made providers, the user's settings merged over
//! them, the providers' own environment names, `provider/model$level`. The choice comes with its reason in one line.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::providers::{self, Entry};
use super::{Gate, WireFormat, anthropic, http, openai};
use crate::config::{Environment, sections};
use crate::files;
use crate::secrets::KeyStore;

/// One `[providers.NAME]` of the settings. For a ready-made name each value replaces the ready-made one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderSettings {
    /// Needed for a name that is not ready-made.
    pub kind: Option<WireFormat>,
    /// With or without `/v1`.
    pub base_url: Option<String>,
    /// Name of the environment variable that holds the key.
    pub api_key_env: Option<String>,
    pub api_key_file: Option<PathBuf>,
    pub api_key: Option<SecretString>,
    /// From the system's key store, when nothing else gives one.
    #[serde(skip)]
    pub stored_key: Option<SecretString>,
}

/// What the choice is made from. `model` and `base_url` are the values that won over all sources.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    pub model: Option<&'a str>,
    pub base_url: Option<&'a str>,
    pub providers: &'a BTreeMap<String, ProviderSettings>,
    pub environment: &'a Environment,
}

/// What answers.
#[derive(Clone, Debug)]
pub enum Selection {
    Remote(Box<ResolvedModel>, Why),
    /// `script:FILE`
    Script(PathBuf),
    /// `replay:FILE`
    Replay(PathBuf),
    /// No model named, no key, no address: a server on loopback may still be found (`local.rs`).
    NothingSet,
}

/// Why this model: for stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// One line, without a full stop.
    pub line: String,
    /// What a person should mend, for example a key file that others can read.
    pub warnings: Vec<String>,
}

/// A model with everything needed to reach it.
#[derive(Clone, Debug)]
pub struct ResolvedModel {
    pub provider: String,
    pub wire: WireFormat,
    /// As it was set.
    pub base_url: String,
    pub model: String,
    pub key: Option<SecretString>,
    pub key_source: KeySource,
    /// One of the levels the wire format knows.
    pub reasoning: Option<String>,
    /// Tokens the model can read, where known.
    pub context: Option<u64>,
    /// Tokens of its largest answer, where known.
    pub max_output: Option<u32>,
    endpoint: Url,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// A server that needs none.
    None,
    Environment(String),
    File(PathBuf),
    Settings,
    /// The system's key store.
    Store,
}

/// Why no model could be chosen. `code` is the word for scripts (R105).
#[derive(Debug, thiserror::Error)]
pub enum ModelChoiceError {
    #[error("`{wanted}` names no provider, and none is set; write it as provider/model, for example anthropic/{wanted}")]
    SelectionMissing { wanted: String },
    #[error("no provider is called `{name}`{}; known are {known}; a new one is set as [providers.{name}] with kind and base_url", suggest(.nearest))]
    ProviderNotFound { name: String, nearest: Option<String>, known: String },
    #[error("[providers.{name}] lacks `{missing}`; set it in settings.toml")]
    ProviderIncomplete { name: String, missing: &'static str },
    #[error("provider `{provider}` has no default model; name one as {provider}/<model-id>")]
    ModelNotFound { provider: String },
    #[error("no key for provider `{provider}`; {remedy}")]
    AccountUnavailable { provider: String, remedy: String },
    #[error("cannot read the key file {path} of provider `{provider}`: {source}", path = path.display())]
    KeyFile { provider: String, path: PathBuf, source: std::io::Error },
    #[error("`{wanted}` ends in `$` without a reasoning level; levels are {known}")]
    ReasoningLevelMissing { wanted: String, known: String },
    #[error("the reasoning level `{level}` is not supported by {model}; levels are {known}")]
    ReasoningLevelNotSupported { level: String, model: String, known: String },
    #[error(
        "the base URL `{url}` of provider `{provider}` is not usable: {reason}; write it like http://127.0.0.1:8080 or https://host/v1"
    )]
    BaseUrl { provider: String, url: String, reason: String },
    #[error("`{prefix}` needs a file behind it, for example {prefix}demo.yaml")]
    FileMissing { prefix: &'static str },
    #[error("no model was named, and {place} does not say which it has: {reason}; name one with --model {provider}/<model-id>")]
    NotListed { provider: String, place: String, reason: String },
    #[error("the handed-over model is not readable: {reason}")]
    Handover { reason: String },
}

fn suggest(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

impl ModelChoiceError {
    /// R105
    pub fn code(&self) -> &'static str {
        match self {
            Self::SelectionMissing { .. } | Self::FileMissing { .. } | Self::Handover { .. } => "selection-missing",
            Self::ProviderNotFound { .. } | Self::ProviderIncomplete { .. } | Self::BaseUrl { .. } => "provider-not-found",
            Self::ModelNotFound { .. } | Self::NotListed { .. } => "model-not-found",
            Self::AccountUnavailable { .. } | Self::KeyFile { .. } => "account-connection-unavailable",
            Self::ReasoningLevelMissing { .. } => "reasoning-level-missing",
            Self::ReasoningLevelNotSupported { .. } => "reasoning-level-not-supported",
        }
    }
}

/// Chooses the model. Reads at most the key file; asks no server.
pub fn select(choice: &Choice<'_>) -> Result<Selection, ModelChoiceError> {
    let Some(wanted) = choice.model.map(str::trim).filter(|model| !model.is_empty()) else {
        return select_unnamed(choice);
    };
    for (prefix, selection) in [("script:", Selection::Script as fn(PathBuf) -> Selection), ("replay:", Selection::Replay)] {
        match wanted.strip_prefix(prefix) {
            Some("") => return Err(ModelChoiceError::FileMissing { prefix }),
            Some(file) => return Ok(selection(PathBuf::from(file))),
            None => {}
        }
    }
    let name = Name::parse(wanted);
    let (provider, model) = match name.provider {
        Some(provider) => (provider, Some(name.model)),
        None if is_known(choice, &name.model) => (name.model, None),
        None => match automatic(choice) {
            Some((provider, _)) => (provider, Some(name.model)),
            None => return Err(ModelChoiceError::SelectionMissing { wanted: name.model }),
        },
    };
    let (resolved, warnings) = resolve(choice, &provider, model.filter(|model| !model.is_empty()), name.level, wanted)?;
    let line = format!("model {}{}: named by `{wanted}`", resolved.name(), resolved.place());
    Ok(Selection::Remote(Box::new(resolved), Why { line, warnings }))
}

fn select_unnamed(choice: &Choice<'_>) -> Result<Selection, ModelChoiceError> {
    let Some((provider, reason)) = automatic(choice) else { return Ok(Selection::NothingSet) };
    let (resolved, warnings) = resolve(choice, &provider, None, None, &provider)?;
    let line = format!("model {}{}: no model was named and {reason}", resolved.name(), resolved.place());
    Ok(Selection::Remote(Box::new(resolved), Why { line, warnings }))
}

/// Every environment name that may hold a provider's key, ready-made or from the settings: left out of shells.
pub fn key_variables(providers: &BTreeMap<String, ProviderSettings>) -> Vec<String> {
    let ready_made = providers::ENTRIES.iter().flat_map(|entry| entry.key_names).map(|name| (*name).to_owned());
    let mut names: Vec<String> = ready_made.chain(providers.values().filter_map(|settings| settings.api_key_env.clone())).collect();
    names.sort();
    names.dedup();
    names
}

/// Looks up the stored key of every provider that is known or set.
pub fn add_stored_keys(providers: &mut BTreeMap<String, ProviderSettings>, store: &KeyStore) {
    for name in names(providers) {
        if let Some(key) = store.get(&name) {
            providers.entry(name).or_default().stored_key = Some(key);
        }
    }
}

/// Every provider by name, ready-made or from the settings.
pub fn names(providers: &BTreeMap<String, ProviderSettings>) -> Vec<String> {
    let ready_made = providers::ENTRIES.iter().map(|entry| entry.name.to_owned());
    let mut names: Vec<String> = ready_made.chain(providers.keys().cloned()).collect();
    names.sort();
    names.dedup();
    names
}

/// The values of all keys that are set anywhere, by the name of whose they are. A key file that cannot be read has none.
pub fn keys(providers: &BTreeMap<String, ProviderSettings>, environment: &Environment) -> Vec<(String, SecretString)> {
    let owner = |variable: &str| {
        let of_settings = providers.iter().find(|(_, settings)| settings.api_key_env.as_deref() == Some(variable));
        let ready_made = || providers::ENTRIES.iter().find(|entry| entry.key_names.contains(&variable)).map(|entry| entry.name.to_owned());
        of_settings.map(|(name, _)| name.clone()).or_else(ready_made).unwrap_or_else(|| variable.to_owned())
    };
    let variables = key_variables(providers);
    let set = variables.iter().filter_map(|name| Some((owner(name), SecretString::from(environment.get(name)?))));
    let written = providers.iter().flat_map(|(name, settings)| {
        let file = settings.api_key_file.as_deref().and_then(|path| read_key_file(&in_home(path, environment)).ok());
        let file = file.map(|(text, _)| SecretString::from(text));
        [settings.api_key.clone(), file, settings.stored_key.clone()].into_iter().flatten().map(|key| (name.clone(), key))
    });
    set.chain(written).collect()
}

impl ResolvedModel {
    /// `provider/model-id`
    pub fn name(&self) -> String {
        format!("{}/{}", self.provider, self.model)
    }

    /// Where requests go.
    pub(crate) fn endpoint(&self) -> Url {
        self.endpoint.clone()
    }

    /// Where the server lists its models.
    pub(crate) fn list_address(&self) -> Url {
        let mut url = self.endpoint.clone();
        let folder = url.path().strip_suffix(method(self.wire)).unwrap_or(url.path());
        url.set_path(&format!("{}/models", folder.trim_end_matches('/')));
        url
    }

    /// The same server with the model of this id, of which nothing else is known.
    pub(crate) fn with_model(self, model: String) -> Self {
        Self { model, context: None, max_output: None, ..self }
    }

    /// The rate gate of this provider and key below `folder`.
    pub fn gate(&self, folder: &Path) -> Gate {
        let provider = format!("{} {}", self.provider, self.base_url);
        Gate::shared(folder, &provider, self.key.as_ref().map(SecretString::expose_secret))
    }

    /// Everything a process child needs, the key included: for the sealed handover only.
    pub fn to_handover(&self) -> Value {
        let handover = Handover {
            provider: self.provider.clone(),
            wire: self.wire,
            base_url: self.base_url.clone(),
            model: self.model.clone(),
            key: self.key.as_ref().map(|key| key.expose_secret().to_owned()),
            key_source: self.key_source.clone(),
            reasoning: self.reasoning.clone(),
            context: self.context,
            max_output: self.max_output,
        };
        serde_json::to_value(handover).unwrap_or_default()
    }

    pub fn from_handover(value: &Value) -> Result<Self, ModelChoiceError> {
        let handover = Handover::deserialize(value).map_err(|error| ModelChoiceError::Handover { reason: error.to_string() })?;
        Ok(Self {
            endpoint: endpoint(&handover.provider, &handover.base_url, handover.wire)?,
            provider: handover.provider,
            wire: handover.wire,
            base_url: handover.base_url,
            model: handover.model,
            key: handover.key.map(SecretString::from),
            key_source: handover.key_source,
            reasoning: handover.reasoning,
            context: handover.context,
            max_output: handover.max_output,
        })
    }

    /// A model of a server found on loopback: no key, no known limits.
    pub(crate) fn local(provider: &str, wire: WireFormat, base_url: String, model: String) -> Result<Self, ModelChoiceError> {
        Ok(Self {
            endpoint: endpoint(provider, &base_url, wire)?,
            provider: provider.to_owned(),
            wire,
            base_url,
            model,
            key: None,
            key_source: KeySource::None,
            reasoning: None,
            context: None,
            max_output: None,
        })
    }

    /// What the path of the address has before the part that every server has.
    fn own_path(&self) -> &str {
        let path = self.endpoint.path();
        let path = path.strip_suffix(method(self.wire)).unwrap_or(path);
        path.strip_suffix("v1/").unwrap_or(path).trim_end_matches('/')
    }

    /// The address, where it is not the provider's own.
    fn place(&self) -> String {
        match providers::find(&self.provider) {
            Some(entry) if entry.base_url == self.base_url => String::new(),
            _ => format!(" at {}{}", http::host_of(&self.endpoint), self.own_path()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Handover {
    provider: String,
    wire: WireFormat,
    base_url: String,
    model: String,
    key: Option<String>,
    key_source: KeySource,
    reasoning: Option<String>,
    context: Option<u64>,
    max_output: Option<u32>,
}

/// `provider/model$level`, `custom:provider:model`, or a part of it, as written.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    provider: Option<String>,
    model: String,
    level: Option<String>,
}

impl Name {
    fn parse(text: &str) -> Self {
        if let Some((provider, model)) = text.strip_prefix("custom:").and_then(|rest| rest.split_once(':')) {
            let (model, level) = split_level(model);
            return Self { provider: Some(decode(provider)), model: decode(model), level };
        }
        let (name, level) = split_level(text);
        match name.split_once('/') {
            Some((provider, model)) => Self { provider: Some(provider.to_owned()), model: model.to_owned(), level },
            None => Self { provider: None, model: name.to_owned(), level },
        }
    }
}

fn split_level(text: &str) -> (&str, Option<String>) {
    match text.rsplit_once('$') {
        Some((name, level)) => (name, Some(level.to_owned())),
        None => (text, None),
    }
}

/// `%2F` and the like; what is not such a code stays.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let code = (*first == b'%').then(|| others.get(..2)).flatten();
        match code.and_then(|code| std::str::from_utf8(code).ok()).and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_known(choice: &Choice<'_>, name: &str) -> bool {
    providers::find(name).is_some() || choice.providers.contains_key(name)
}

/// The provider that is meant when none is named, and why: a key or an address is set for it.
fn automatic(choice: &Choice<'_>) -> Option<(String, String)> {
    let ready_made = providers::ENTRIES.iter().filter(|entry| entry.default.is_some()).find_map(|entry| {
        let reason = match choice.providers.get(entry.name) {
            // A key name of the user's own replaces the ready-made ones.
            Some(ProviderSettings { api_key_env: Some(own), .. }) => set_name(choice, entry, &[own.as_str()]),
            _ => set_name(choice, entry, entry.key_names),
        };
        let reason = reason.or_else(|| settings_reason(choice, entry.name))?;
        Some((entry.name.to_owned(), reason))
    });
    ready_made
        .or_else(|| choice.providers.keys().find_map(|name| Some((name.clone(), settings_reason(choice, name)?))))
        .or_else(|| choice.base_url.map(|_| ("openai".to_owned(), "a base URL is given".to_owned())))
}

fn set_name(choice: &Choice<'_>, entry: &Entry, key_names: &[&str]) -> Option<String> {
    let mut names = key_names.iter().chain(&entry.base_url_name);
    names.find(|name| choice.environment.get(name).is_some()).map(|name| format!("{name} is set"))
}

/// An entry of the settings counts when it brings a key or an address.
fn settings_reason(choice: &Choice<'_>, name: &str) -> Option<String> {
    let settings = choice.providers.get(name)?;
    let key_is_set = settings.api_key_env.as_deref().is_some_and(|name| choice.environment.get(name).is_some());
    (key_is_set
        || settings.api_key_file.is_some()
        || settings.api_key.is_some()
        || settings.stored_key.is_some()
        || settings.base_url.is_some())
    .then(|| {
        let only_stored = settings.stored_key.is_some()
            && !key_is_set
            && settings.api_key_file.is_none()
            && settings.api_key.is_none()
            && settings.base_url.is_none();
        if only_stored { format!("a key of {name} is stored") } else { format!("[providers.{name}] is set") }
    })
}

fn resolve(
    choice: &Choice<'_>,
    provider: &str,
    model: Option<String>,
    level: Option<String>,
    wanted: &str,
) -> Result<(ResolvedModel, Vec<String>), ModelChoiceError> {
    let entry = providers::find(provider);
    let settings = choice.providers.get(provider);
    if entry.is_none() && settings.is_none() {
        return Err(provider_not_found(choice, provider));
    }
    let incomplete = |missing| ModelChoiceError::ProviderIncomplete { name: provider.to_owned(), missing };
    let wire = settings.and_then(|settings| settings.kind).or(entry.map(|entry| entry.wire)).ok_or_else(|| incomplete("kind"))?;
    let base_url = base_url(choice, entry, settings).ok_or_else(|| incomplete("base_url"))?;
    let endpoint = endpoint(provider, &base_url, wire)?;
    let default = entry.and_then(|entry| entry.default);
    let model = model
        .or(default.map(|known| known.id.to_owned()))
        .ok_or_else(|| ModelChoiceError::ModelNotFound { provider: provider.to_owned() })?;
    let reasoning = level.map(|level| check_level(level, wire, &model, wanted)).transpose()?;
    let known = default.filter(|known| known.id == model);
    let (key, key_source, warnings) = key(choice, provider, entry, settings, &endpoint)?;
    let resolved = ResolvedModel {
        provider: provider.to_owned(),
        wire,
        base_url,
        model,
        key,
        key_source,
        reasoning,
        context: known.and_then(|known| known.context),
        max_output: known.and_then(|known| known.max_output),
        endpoint,
    };
    Ok((resolved, warnings))
}

fn provider_not_found(choice: &Choice<'_>, name: &str) -> ModelChoiceError {
    let known: Vec<&str> = providers::ENTRIES
        .iter()
        .map(|entry| entry.name)
        .chain(choice.providers.keys().map(String::as_str).filter(|name| providers::find(name).is_none()))
        .collect();
    let nearest = sections::nearest(name, known.iter().copied()).map(str::to_owned);
    ModelChoiceError::ProviderNotFound { name: name.to_owned(), nearest, known: known.join(", ") }
}

/// Flag and general environment name first, then the provider's own name, the settings, the ready-made address.
fn base_url(choice: &Choice<'_>, entry: Option<&Entry>, settings: Option<&ProviderSettings>) -> Option<String> {
    choice
        .base_url
        .or_else(|| entry.and_then(|entry| entry.base_url_name).and_then(|name| choice.environment.get(name)))
        .or_else(|| settings.and_then(|settings| settings.base_url.as_deref()))
        .or_else(|| entry.map(|entry| entry.base_url))
        .map(|url| url.trim().to_owned())
}

/// The address requests go to. A base URL that already ends in a version, or in the whole path, is taken as it is.
fn endpoint(provider: &str, base_url: &str, wire: WireFormat) -> Result<Url, ModelChoiceError> {
    let unusable = |reason: &str| ModelChoiceError::BaseUrl {
        provider: provider.to_owned(),
        url: super::wire::excerpt(base_url.rsplit('@').next().unwrap_or_default()),
        reason: reason.to_owned(),
    };
    let mut url: Url = base_url.parse().map_err(|error: <Url as std::str::FromStr>::Err| unusable(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(unusable("it begins neither with http:// nor with https://"));
    }
    if url.host_str().is_none() {
        return Err(unusable("it has no host"));
    }
    let method = method(wire);
    let path = url.path().trim_end_matches('/').to_owned();
    let last = path.rsplit('/').next().unwrap_or_default();
    let is_version = last.strip_prefix('v').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    let path = if path.ends_with(&format!("/{method}")) {
        path
    } else if is_version || last == "openai" {
        format!("{path}/{method}")
    } else {
        format!("{path}/v1/{method}")
    };
    url.set_path(&path);
    Ok(url)
}

/// The end of the path, the same on all servers of a wire format.
fn method(wire: WireFormat) -> &'static str {
    match wire {
        WireFormat::Anthropic => "messages",
        WireFormat::Openai => "chat/completions",
    }
}

fn check_level(level: String, wire: WireFormat, model: &str, wanted: &str) -> Result<String, ModelChoiceError> {
    let (levels, takes_number) = match wire {
        WireFormat::Anthropic => (anthropic::REASONING_LEVELS, true),
        WireFormat::Openai => (openai::REASONING_LEVELS, false),
    };
    let known = || levels.join(", ");
    if level.is_empty() {
        return Err(ModelChoiceError::ReasoningLevelMissing { wanted: wanted.to_owned(), known: known() });
    }
    if levels.contains(&level.as_str()) || (takes_number && level.parse::<u32>().is_ok_and(|budget| budget > 0)) {
        return Ok(level);
    }
    Err(ModelChoiceError::ReasoningLevelNotSupported { level, model: model.to_owned(), known: known() })
}

type Key = (Option<SecretString>, KeySource, Vec<String>);

/// Environment first, then the key file, the key in the settings, the system's key store.
fn key(
    choice: &Choice<'_>,
    provider: &str,
    entry: Option<&Entry>,
    settings: Option<&ProviderSettings>,
    endpoint: &Url,
) -> Result<Key, ModelChoiceError> {
    let unavailable = |remedy: String| ModelChoiceError::AccountUnavailable { provider: provider.to_owned(), remedy };
    let own_name = settings.and_then(|settings| settings.api_key_env.as_deref());
    let names: Vec<&str> = match own_name {
        Some(name) => vec![name],
        None => entry.map_or(Vec::new(), |entry| entry.key_names.to_vec()),
    };
    let checked = |text: &str, source: KeySource, warnings| {
        let text = text.trim();
        if text.is_empty() || http::secret_header(text).is_none() {
            let place = match &source {
                KeySource::Environment(name) => name.clone(),
                KeySource::File(path) => path.display().to_string(),
                KeySource::Settings | KeySource::None => format!("providers.{provider}.api_key"),
                KeySource::Store => "the system's key store".to_owned(),
            };
            return Err(unavailable(format!("what {place} holds is empty or no key: it has line breaks or control characters")));
        }
        Ok((Some(SecretString::from(text)), source, warnings))
    };
    if let Some((name, value)) = names.iter().find_map(|name| choice.environment.get(name).map(|value| (*name, value))) {
        return checked(value, KeySource::Environment(name.to_owned()), Vec::new());
    }
    if let Some(path) = settings.and_then(|settings| settings.api_key_file.as_deref()) {
        let path = in_home(path, choice.environment);
        let (text, warnings) = read_key_file(&path).map_err(|source| ModelChoiceError::KeyFile {
            provider: provider.to_owned(),
            path: path.clone(),
            source,
        })?;
        return checked(&text, KeySource::File(path), warnings);
    }
    if let Some(key) = settings.and_then(|settings| settings.api_key.as_ref()) {
        return checked(key.expose_secret(), KeySource::Settings, Vec::new());
    }
    if let Some(key) = settings.and_then(|settings| settings.stored_key.as_ref()) {
        return checked(key.expose_secret(), KeySource::Store, Vec::new());
    }
    // A server of one's own: on this machine, or ready-made or set without any word of a key.
    let is_own = match entry {
        Some(entry) => entry.key_names.is_empty(),
        None => own_name.is_none(),
    };
    if http::is_loopback(endpoint) || (is_own && own_name.is_none()) {
        // A key that was spoken of and is not there is worth a word, though a server on this machine may need none.
        let warnings = own_name.map(|name| format!("{name} is not set; {provider} is asked without a key"));
        return Ok((None, KeySource::None, warnings.into_iter().collect()));
    }
    let name = names.first().map_or("api_key_env", |name| *name);
    Err(unavailable(format!(
        "set {name}, or `api_key_file` in [providers.{provider}] of settings.toml, or run `zapmyco config key set {provider}`"
    )))
}

/// Largest key file, in bytes.
const KEY_FILE_MAX: u64 = 64 * 1024;

fn read_key_file(path: &Path) -> std::io::Result<(String, Vec<String>)> {
    let text = files::read_text_bounded(path, KEY_FILE_MAX)?;
    let mut warnings = Vec::new();
    if path.metadata()?.permissions().mode() & 0o077 != 0 {
        warnings.push(format!("others can read the key file {0}; run: chmod 600 {0}", path.display()));
    }
    Ok((text, warnings))
}

fn in_home(path: &Path, environment: &Environment) -> PathBuf {
    match (path.strip_prefix("~"), environment.home()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(
        model: Option<&str>,
        base_url: Option<&str>,
        settings: &str,
        environment: &[(&str, &str)],
    ) -> Result<Selection, ModelChoiceError> {
        let providers: BTreeMap<String, ProviderSettings> = toml::from_str(settings).unwrap();
        let environment = Environment::from_pairs(environment.iter().copied());
        select(&Choice { model, base_url, providers: &providers, environment: &environment })
    }

    fn remote(selection: Selection) -> (ResolvedModel, Why) {
        match selection {
            Selection::Remote(model, why) => (*model, why),
            other => panic!("{other:?}"),
        }
    }

    /// R106
    #[test]
    fn names_are_read_as_written() {
        let name = |text| {
            let name = Name::parse(text);
            (name.provider.unwrap_or_default(), name.model, name.level.unwrap_or_default())
        };
        let parts = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(name("openrouter/meta/llama:free$high"), parts("openrouter", "meta/llama:free", "high"));
        assert_eq!(name("anthropic/claude-x"), parts("anthropic", "claude-x", ""));
        assert_eq!(name("gpt-5"), parts("", "gpt-5", ""));
        assert_eq!(name("custom:my%20host:org%2Fm$low"), parts("my host", "org/m", "low"));
    }

    #[test]
    fn a_key_alone_is_enough_and_anthropic_comes_first() {
        let keys = [("OPENAI_API_KEY", "o"), ("ANTHROPIC_API_KEY", "a")];
        let (model, why) = remote(choose(None, None, "", &keys).unwrap());
        assert_eq!((model.provider.as_str(), model.key.as_ref().unwrap().expose_secret()), ("anthropic", "a"));
        assert_eq!(why.line, format!("model {}: no model was named and ANTHROPIC_API_KEY is set", model.name()));
        let (model, _) = remote(choose(None, None, "", &keys[..1]).unwrap());
        assert_eq!((model.provider.as_str(), model.key_source), ("openai", KeySource::Environment("OPENAI_API_KEY".into())));
        assert!(matches!(choose(None, None, "", &[]).unwrap(), Selection::NothingSet));
        for entry in providers::ENTRIES.iter().filter(|entry| !entry.key_names.is_empty()) {
            let (model, _) = remote(choose(None, None, "", &[(entry.key_names[0], "k")]).unwrap());
            assert_eq!(model.provider, entry.name);
        }
    }

    #[test]
    fn a_loopback_address_alone_is_enough_and_a_foreign_one_needs_a_key() {
        for (name, provider, path) in
            [("ANTHROPIC_BASE_URL", "anthropic", "/v1/messages"), ("OPENAI_BASE_URL", "openai", "/v1/chat/completions")]
        {
            for url in ["http://127.0.0.1:9", "http://127.0.0.1:9/", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1/"] {
                let (model, why) = remote(choose(None, None, "", &[(name, url)]).unwrap());
                assert_eq!((model.provider.as_str(), model.endpoint.path()), (provider, path), "{url}");
                assert!(model.key.is_none() && why.line.contains(" at http://127.0.0.1:9: "), "{}", why.line);
            }
            let error = choose(None, None, "", &[(name, "https://example.com")]).unwrap_err();
            assert_eq!(error.code(), "account-connection-unavailable");
            assert!(error.to_string().contains("_API_KEY, or `api_key_file`"), "{error}");
        }
        let (model, _) = remote(choose(Some("anthropic/m"), Some("http://localhost:1/proxy"), "", &[]).unwrap());
        assert_eq!(model.endpoint.as_str(), "http://localhost:1/proxy/v1/messages");
        let (model, _) = remote(choose(Some("zai/m"), None, "", &[("ZAI_API_KEY", "k")]).unwrap());
        assert_eq!(model.endpoint.as_str(), "https://api.z.ai/api/paas/v4/chat/completions");
    }

    #[test]
    fn settings_are_merged_over_the_ready_made() {
        let settings =
            "[anthropic]\napi_key_env = 'MY_KEY'\n[lab]\nkind = 'openai'\nbase_url = 'http://10.0.0.1:8000'\n[half]\nkind = 'openai'\n";
        let environment = [("MY_KEY", "mine"), ("ANTHROPIC_API_KEY", "other")];
        let (model, _) = remote(choose(Some("anthropic/m"), None, settings, &environment).unwrap());
        assert_eq!((model.base_url.as_str(), model.key.unwrap().expose_secret()), ("https://api.anthropic.com", "mine"));
        let (model, _) = remote(choose(Some("lab/org/model"), None, settings, &[]).unwrap());
        assert_eq!((model.name().as_str(), model.wire, model.key.is_none()), ("lab/org/model", WireFormat::Openai, true));
        let (model, _) = remote(choose(Some("some-model"), None, "", &environment).unwrap());
        assert_eq!(model.name(), "anthropic/some-model");
        assert_eq!(
            choose(Some("half/m"), None, settings, &[]).unwrap_err().to_string(),
            "[providers.half] lacks `base_url`; set it in settings.toml"
        );
        assert_eq!(choose(Some("lab"), None, settings, &[]).unwrap_err().code(), "model-not-found");
    }

    #[test]
    fn an_entry_without_key_or_address_does_not_stand_in_the_way() {
        let settings = "[anthropic]\napi_key_env = 'MY_KEY'\n";
        let provider = |settings, environment: &[(&str, &str)]| remote(choose(None, None, settings, environment).unwrap()).0.provider;
        assert_eq!(provider(settings, &[("OPENAI_API_KEY", "k"), ("ANTHROPIC_API_KEY", "not this one")]), "openai");
        assert_eq!(provider(settings, &[("OPENAI_API_KEY", "k"), ("MY_KEY", "k")]), "anthropic");
        assert_eq!(provider("[zai]\napi_key = 'k'\n", &[]), "zai");
        assert_eq!(provider("[ollama]\n[openai]\nbase_url = 'http://127.0.0.1:1'\n", &[]), "openai");
        let why = remote(choose(None, Some("http://127.0.0.1:1"), "", &[]).unwrap()).1;
        assert_eq!(why.line, "model openai/gpt-5.4 at http://127.0.0.1:1: no model was named and a base URL is given");
        for url in ["http://user:secret@127.0.0.1:1/lab/proxy", "http://127.0.0.1:1/lab/proxy/v1/?key=secret"] {
            let why = remote(choose(None, Some(url), "", &[]).unwrap()).1;
            assert!(why.line.starts_with("model openai/gpt-5.4 at http://127.0.0.1:1/lab/proxy: "), "{}", why.line);
        }
    }

    #[test]
    fn a_key_that_is_spoken_of_and_missing_is_told() {
        let settings = "[lab]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1'\napi_key_env = 'LAB_KEY'\n";
        let warnings = |environment: &[(&str, &str)]| remote(choose(Some("lab/m"), None, settings, environment).unwrap()).1.warnings;
        assert_eq!(warnings(&[]), ["LAB_KEY is not set; lab is asked without a key"]);
        assert!(warnings(&[("LAB_KEY", "k")]).is_empty());
    }

    #[test]
    fn a_key_file_others_can_read_is_used_with_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "secret-key\n").unwrap();
        let settings = format!("[openai]\napi_key_file = '{}'", file.display());
        for (mode, n_warnings) in [(0o600, 0), (0o644, 1)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let (model, why) = remote(choose(Some("openai/m"), None, &settings, &[]).unwrap());
            assert_eq!(model.key.as_ref().unwrap().expose_secret(), "secret-key");
            assert_eq!((why.warnings.len(), model.key_source.clone()), (n_warnings, KeySource::File(file.clone())));
            assert!(!format!("{model:?}").contains("secret-key"));
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(choose(Some("openai/m"), None, &settings, &[]).unwrap_err().code(), "account-connection-unavailable");
        let error = choose(Some("openai/m"), None, "", &[("OPENAI_API_KEY", "a\nb")]).unwrap_err().to_string();
        assert!(error.contains("OPENAI_API_KEY holds"), "{error}");
    }

    /// R105
    #[test]
    fn every_failure_has_a_code_and_a_remedy() {
        let failed = |model: &str| choose(Some(model), None, "", &[("OPENAI_API_KEY", "k"), ("ANTHROPIC_API_KEY", "k")]).unwrap_err();
        assert_eq!(failed("antropic/m").code(), "provider-not-found");
        assert!(failed("antropic/m").to_string().contains("did you mean `anthropic`?"));
        assert_eq!(failed("openai/m$").code(), "reasoning-level-missing");
        assert_eq!(failed("openai/m$huge").code(), "reasoning-level-not-supported");
        assert_eq!(failed("ollama").code(), "model-not-found");
        assert_eq!(failed("script:").code(), "selection-missing");
        assert_eq!(choose(Some("gpt-5"), None, "", &[]).unwrap_err().code(), "selection-missing");
        for url in ["127.0.0.1:80", "ftp://h", "http://"] {
            let error = choose(Some("openai/m"), Some(url), "", &[]).unwrap_err();
            assert!(matches!(error, ModelChoiceError::BaseUrl { .. }), "{error}");
        }
        let (model, _) = remote(choose(Some("anthropic/claude-x$4096"), None, "", &[("ANTHROPIC_API_KEY", "k")]).unwrap());
        assert_eq!(model.reasoning.as_deref(), Some("4096"));
    }

    #[test]
    fn every_name_that_may_hold_a_key_is_known() {
        let providers: BTreeMap<String, ProviderSettings> =
            toml::from_str("[lab]\napi_key_env = 'LAB_KEY'\n[openai]\napi_key_env = 'OPENAI_API_KEY'").unwrap();
        let names = key_variables(&providers);
        for name in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "LAB_KEY", "OPENROUTER_API_KEY"] {
            assert_eq!(names.iter().filter(|known| *known == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn files_stand_in_for_models() {
        assert!(
            matches!(choose(Some("script:a/b.yaml"), None, "", &[]).unwrap(), Selection::Script(file) if file == Path::new("a/b.yaml"))
        );
        assert!(matches!(choose(Some("replay:c"), None, "", &[]).unwrap(), Selection::Replay(file) if file == Path::new("c")));
    }

    #[test]
    fn a_handover_gives_the_same_model() {
        let (model, _) = remote(choose(Some("anthropic/m$high"), Some("http://127.0.0.1:1"), "", &[("ANTHROPIC_API_KEY", "k")]).unwrap());
        let again = ResolvedModel::from_handover(&model.to_handover()).unwrap();
        assert_eq!(again.to_handover(), model.to_handover());
        assert_eq!(again.endpoint, model.endpoint);
        assert!(ResolvedModel::from_handover(&serde_json::json!({"provider": "x"})).is_err());
    }
}
