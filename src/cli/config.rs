//! Shows settings and where each value came from.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::key::{KeyCommand, run as keys_command};
use super::report::{CommandError, Exit, print_notice, print_out, with_causes};
use super::run::PermissionPrompt;
use crate::app::{keys, sections};
use crate::config::sections::SECTIONS;
use crate::config::settings::{DEFAULTS, Diagnostic, Entry, FileOwner, SettingsFile};
use crate::config::{Environment, Layout, ProjectLayout, Settings, SettingsError, Source, Sources};
use crate::models::catalog::{self, Choice, KeySource, ModelChoiceError, ProviderSettings, Selection};
use crate::permissions::mode::Mode;
use crate::permissions::trust::Trust;

/// Show settings and where each value comes from.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Subcommand, Clone, Debug)]
pub enum ConfigCommand {
    /// Every setting with its value and the file, line, variable or flag that set it; keys are hidden
    Show {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// The defaults as a commented settings file, to start your own from
    Defaults,
    /// Keys of providers in the system's key store
    #[command(subcommand)]
    Key(KeyCommand),
}

const SCHEMA_VERSION: u32 = 1;

pub fn run(arguments: &ConfigArgs) -> Result<Exit, CommandError> {
    match arguments.command {
        ConfigCommand::Defaults => print_out(DEFAULTS)?,
        ConfigCommand::Key(ref command) => return keys_command(command),
        ConfigCommand::Show { json } => {
            let environment = Environment::read();
            let settings = load(&environment)?;
            let checked = sections::check(&settings).and_then(|()| settings.check_as::<PermissionPrompt>("permission_prompt"));
            checked.map_err(|error| settings_error(&error))?;
            check_providers(&settings, &environment)?;
            let model = chosen_model(&settings, &environment);
            for diagnostic in settings.ignored() {
                print_notice(&diagnostic.to_string());
            }
            print_out(&if json { as_json(&settings, &model) } else { as_text(&settings, &model) })?;
        }
    }
    Ok(Exit::Done)
}

/// A settings error ends a command with exit 2: place, key, value, and what to do.
pub(crate) fn settings_error(error: &SettingsError) -> CommandError {
    CommandError::from_error(Exit::Usage, error).with_hint(error.remedy())
}

pub(crate) fn load(environment: &Environment) -> Result<Settings, CommandError> {
    let cwd = std::env::current_dir().map_err(|error| CommandError::usage(format!("the working directory is gone: {error}")))?;
    let root = environment.storage_root().map_err(|error| CommandError::from_error(Exit::Usage, &error))?;
    let layout = Layout::new(root);
    let trust = open_trust(&layout, &cwd);
    let settings = Settings::load(Sources {
        layout: &layout,
        project: &ProjectLayout::new(cwd),
        environment,
        flags: Vec::new(),
        handover: Vec::new(),
        mode_width: Mode::width_of,
        trusted: &|path, content| trust.holds(path, content),
    })
    .and_then(|settings| settings.check(SECTIONS).map(|()| settings))
    .map_err(|error| settings_error(&error))?;
    settings.check_as::<Mode>("permission_mode").map_err(|error| settings_error(&error))?;
    Ok(settings)
}

/// What is trusted in this project; a record that cannot be used is told and trusts nothing.
pub(crate) fn open_trust(layout: &Layout, cwd: &Path) -> Trust {
    Trust::open(layout, cwd).unwrap_or_else(|error| {
        print_notice(&format!("nothing of this project is trusted: {error}"));
        Trust::none(cwd)
    })
}

/// Providers that no model could be asked of, whether or not one is chosen now. A key that is not set is no mistake.
fn check_providers(settings: &Settings, environment: &Environment) -> Result<(), CommandError> {
    let providers: BTreeMap<String, ProviderSettings> =
        settings.section("providers").map_err(|error| settings_error(&error))?.unwrap_or_default();
    for name in providers.keys() {
        let wanted = format!("{name}/model");
        let choice = Choice { model: Some(&wanted), base_url: None, providers: &providers, environment };
        if let Err(error) = catalog::select(&choice)
            && is_broken(&error)
        {
            let source = settings.source(&format!("providers.{name}"));
            let place = source.map(|source| format!("{source}: ")).unwrap_or_default();
            return Err(CommandError::usage(format!("{place}{error}")));
        }
    }
    Ok(())
}

fn is_broken(error: &ModelChoiceError) -> bool {
    matches!(error, ModelChoiceError::ProviderIncomplete { .. } | ModelChoiceError::BaseUrl { .. } | ModelChoiceError::KeyFile { .. })
}

/// Which model a run would use and why, in one line. Asks no server.
fn chosen_model(settings: &Settings, environment: &Environment) -> String {
    let chosen = || {
        let named: Option<String> = settings.section("model").ok()?;
        let base_url: Option<String> = settings.section("base_url").ok()?;
        let providers = keys::providers(settings, &Layout::new(environment.storage_root().ok()?)).ok()?;
        let choice = Choice { model: named.as_deref(), base_url: base_url.as_deref(), providers: &providers, environment };
        Some(match catalog::select(&choice) {
            Ok(Selection::Remote(model, _)) if named.is_none() && base_url.is_some() => {
                let provider = &model.provider;
                format!("no model is named; `zapmyco run` asks the server of {provider} which it has; {}", key_place(&model.key_source))
            }
            Ok(Selection::Remote(model, why)) => format!("{}; {}", why.line, key_place(&model.key_source)),
            Ok(Selection::Script(path)) => format!("model script:{}", path.display()),
            Ok(Selection::Replay(path)) => format!("model replay:{}", path.display()),
            Ok(Selection::NothingSet) => "no model is set; `zapmyco run` uses a model server on this machine if one answers".to_owned(),
            Err(error) => format!("no model can be used: {}", with_causes(&error)),
        })
    };
    chosen().unwrap_or_default()
}

fn key_place(source: &KeySource) -> String {
    match source {
        KeySource::None => "without a key".to_owned(),
        KeySource::Environment(name) => format!("key from {name}"),
        KeySource::File(path) => format!("key from {}", path.display()),
        KeySource::Settings => "key from the settings".to_owned(),
        KeySource::Store => "key from the system's key store".to_owned(),
    }
}

/// TOML that could be put into a settings file as it is, but for the keys that are hidden.
fn as_text(settings: &Settings, model: &str) -> String {
    let mut text = format!("# {}\n# settings files, the later one wins:\n", model.replace('\n', " "));
    for file in settings.files() {
        text.push_str(&format!("#   {} ({}{})\n", file.path.display(), owner(file), if file.found { "" } else { ", none" }));
    }
    for Entry { key, value, source } in settings.entries() {
        text.push_str(&format!("{key} = {value}  # {source}\n"));
    }
    text
}

fn as_json(settings: &Settings, model: &str) -> String {
    let files = settings.files().iter().map(|file| json!({"path": shown(&file.path), "owner": owner(file), "found": file.found}));
    let entries = settings
        .entries()
        .into_iter()
        .map(|Entry { key, value, source }| json!({"key": key, "value": plain(&value), "source": source_json(&source)}));
    let ignored = settings
        .ignored()
        .iter()
        .map(|Diagnostic { key, source, reason }| json!({"key": key, "source": source_json(source), "reason": reason.to_string()}));
    let object = json!({
        "schema_version": SCHEMA_VERSION,
        "chosen_model": model,
        "files": files.collect::<Vec<_>>(),
        "settings": entries.collect::<Vec<_>>(),
        "ignored": ignored.collect::<Vec<_>>(),
    });
    format!("{object:#}\n")
}

fn source_json(source: &Source) -> Value {
    match source {
        Source::Default => json!({"kind": "default"}),
        Source::File { path, line } => json!({"kind": "file", "path": shown(path), "line": line}),
        Source::Environment(name) => json!({"kind": "environment", "name": name}),
        Source::Flag(key) => json!({"kind": "flag", "name": format!("--{}", key.replace(['_', '.'], "-"))}),
        Source::Handover => json!({"kind": "parent"}),
    }
}

/// The shown TOML value as JSON: numbers and truth values keep their type, lists their shape.
fn plain(value: &str) -> Value {
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
    parsed.and_then(|value| serde_json::to_value(value).ok()).unwrap_or_else(|| Value::String(value.to_owned()))
}

fn owner(file: &SettingsFile) -> &'static str {
    match file.owner {
        FileOwner::User => "user",
        FileOwner::UserForProject => "user, for this project",
        FileOwner::Project => "project",
        FileOwner::ProjectPrivate => "project, private",
    }
}

fn shown(path: &std::path::Path) -> String {
    path.display().to_string()
}
