//! Profiles of agents from a shell: list, show, check, create, edit, remove, disable, enable. Every answer also as JSON.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::agents_text as text;
use super::config::{self, settings_error};
use super::report::{CommandError, Exit, print_notice, print_out};
use crate::config::{Environment, Layout, ProjectLayout, Settings};
use crate::models::catalog;
use crate::permissions::mode::Mode;
use crate::permissions::trust::Trust;
use crate::subagents::profiles::catalog::parse_file;
use crate::subagents::profiles::edit::{self, Change, EditError};
use crate::subagents::profiles::model_choice::{self, AgentSettings, ModelSelection, Reason, Situation, Wish};
use crate::subagents::profiles::profile::Field;
use crate::subagents::profiles::tool_policy::{self, ChildRole, Surroundings};
use crate::subagents::profiles::{Catalog, Code, Definition, Diagnostic, Level, Profile, Severity, Sources, parse, places, state_file};

/// Profiles of agents: what there is, what it means, whether it is sound
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AgentsArguments {
    #[command(subcommand)]
    pub command: AgentsCommand,
}

const EXAMPLES: &str = "\
Examples:
  zapmyco agents list                           all, with level and source
  zapmyco agents show Explore                   tools, model, and their sources
  zapmyco agents check                          exit 1 when a file has an error
  zapmyco agents check .claude/agents --strict  a gate; warnings count too
  zapmyco agents create reviewer --description \"Reviews changes\" \\
      --set tools=\"Read, Grep\" --prompt-file prompt.md
  zapmyco agents edit reviewer --set model=zai/glm-5 --set color=
  zapmyco agents disable reviewer

Files: ~/.zapmyco/agents, .zapmyco/agents, .zcode/agents, .claude/agents;
  project over user over built-in

Exit codes: 0 done; 1 check found an error; 2 wrong usage, unknown agent, or
  a change that would not load";

#[derive(Subcommand, Clone, Debug)]
pub enum AgentsCommand {
    /// Every agent with level, source and number of diagnostics; and what was replaced
    List {
        #[command(flatten)]
        extra: Extra,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// One agent: fields with their sources, resolved tools and model
    Show {
        name: String,
        #[command(flatten)]
        extra: Extra,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read profiles and tell what is wrong; exit 1 on an error
    Check {
        /// Files and folders; every place when none is given
        paths: Vec<PathBuf>,
        /// What the files may set
        #[arg(long, value_enum, default_value = "project")]
        level: FileLevel,
        /// Exit 1 on a warning too
        #[arg(long)]
        strict: bool,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write a new profile
    Create {
        name: String,
        #[arg(long)]
        description: String,
        #[command(flatten)]
        content: Content,
    },
    /// Change fields or prompt of a profile; everything else stays as it is
    Edit {
        name: String,
        #[command(flatten)]
        content: Content,
    },
    /// Remove the file of a profile
    Remove {
        name: String,
        /// A file of the project
        #[arg(long)]
        project: bool,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Switch a user-level profile off
    Disable(Switch),
    /// Switch a user-level profile on again
    Enable(Switch),
}

#[derive(Args, Clone, Debug)]
pub struct Extra {
    /// Further profiles for this call: {"NAME": {"description": "...", "prompt": "..."}}
    #[arg(long, value_name = "JSON")]
    pub agents: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct Content {
    /// A field and its value; an empty value takes the field away
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
    /// The agent's instructions
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// A file with the agent's instructions; `-` for stdin
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Write to the project's .zapmyco/agents instead of the user's
    #[arg(long)]
    pub project: bool,
    /// As one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct Switch {
    pub name: String,
    /// As one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FileLevel {
    User,
    Project,
    Plugin,
}

const SCHEMA_VERSION: u32 = 1;

pub fn run(arguments: &AgentsArguments, environment: &Environment) -> Result<Exit, CommandError> {
    let place = Place::of(environment)?;
    match &arguments.command {
        AgentsCommand::List { extra, json } => list(&place, extra, *json),
        AgentsCommand::Show { name, extra, json } => show(&place, name, extra, *json),
        AgentsCommand::Check { paths, level, strict, json } => check(&place, paths, *level, *strict, *json),
        AgentsCommand::Create { name, description, content } => create(&place, name, description, content),
        AgentsCommand::Edit { name, content } => edit_profile(&place, name, content),
        AgentsCommand::Remove { name, project, json } => remove(&place, name, *project, *json),
        AgentsCommand::Disable(switch) => set_disabled(&place, switch, true),
        AgentsCommand::Enable(switch) => set_disabled(&place, switch, false),
    }
}

/// Where the command was called.
struct Place<'a> {
    environment: &'a Environment,
    layout: Layout,
    cwd: PathBuf,
}

impl<'a> Place<'a> {
    fn of(environment: &'a Environment) -> Result<Self, CommandError> {
        let cwd = std::env::current_dir().map_err(|error| CommandError::usage(format!("the working directory is gone: {error}")))?;
        let root = environment.storage_root().map_err(|error| CommandError::from_error(Exit::Usage, &error))?;
        Ok(Self { environment, layout: Layout::new(root), cwd })
    }

    fn catalog(&self, extra: Option<&str>) -> Result<Catalog, CommandError> {
        let command_line = extra.map(parse::parse_command_line).transpose();
        Ok(Catalog::load(&Sources {
            layout: self.layout.clone(),
            home: self.environment.home(),
            cwd: self.cwd.clone(),
            plugins: Vec::new(),
            command_line: command_line.map_err(|error| CommandError::usage(error.to_string()))?.unwrap_or_default(),
            trust: config::open_trust(&self.layout, &self.cwd),
        }))
    }

    fn settings(&self) -> Result<Settings, CommandError> {
        let trust = config::open_trust(&self.layout, &self.cwd);
        Settings::load(crate::config::Sources {
            layout: &self.layout,
            project: &ProjectLayout::new(self.cwd.clone()),
            environment: self.environment,
            flags: Vec::new(),
            handover: Vec::new(),
            mode_width: Mode::width_of,
            trusted: &|path, content| trust.holds(path, content),
        })
        .map_err(|error| settings_error(&error))
    }
}

fn list(place: &Place, extra: &Extra, as_json: bool) -> Result<Exit, CommandError> {
    let catalog = place.catalog(extra.agents.as_deref())?;
    if as_json {
        return answer(&json!({
            "schema_version": SCHEMA_VERSION,
            "agents": catalog.definitions().map(|definition| entry(&catalog, definition)).collect::<Vec<_>>(),
            "replaced": catalog.replaced().iter().map(|replaced| {
                let profile = &replaced.definition.profile;
                json!({
                    "name": profile.name, "level": profile.origin.level, "path": profile.origin.path,
                    "disabled": replaced.disabled, "reason": replaced.reason,
                })
            }).collect::<Vec<_>>(),
            "diagnostics": catalog.diagnostics(),
        }));
    }
    print_out(&text::list(&catalog))?;
    for diagnostic in catalog.diagnostics().iter().filter(|diagnostic| diagnostic.severity > Severity::Info) {
        print_notice(&text::plain(&diagnostic.to_string()));
    }
    Ok(Exit::Done)
}

fn entry(catalog: &Catalog, definition: &Definition) -> Value {
    let profile = &definition.profile;
    json!({
        "name": profile.name,
        "aliases": catalog.aliases(&profile.name),
        "level": profile.origin.level,
        "plugin": profile.origin.plugin,
        "path": profile.origin.path,
        "description": profile.description,
        "color": profile.color,
        "replaces": catalog.replaced().iter().filter(|replaced| replaced.definition.profile.name == profile.name && !replaced.disabled).count(),
        "diagnostics": text::counts(&definition.diagnostics),
    })
}

/// What a profile resolves to, outside any session: the standard tools, no servers, the configured model.
pub struct Resolved {
    pub tools: Result<tool_policy::ToolGrant, String>,
    pub model: Result<(ModelSelection, &'static str), String>,
}

fn resolve(place: &Place, catalog: &Catalog, profile: &Profile) -> Result<Resolved, CommandError> {
    let own: AgentSettings = place.settings()?.section("agents").map_err(|error| settings_error(&error))?.unwrap_or_default();
    let parent = tool_policy::standard_tools();
    let around = Surroundings {
        parent: &parent,
        connected_servers: &[],
        disallowed: &[],
        allowed: None,
        skills: true,
        skills_inherit: own.skills_inherit_tools,
        memory: true,
        role: ChildRole::Local,
        embedded_search: false,
    };
    let tools = tool_policy::grant(profile, &around).map_err(|error| error.to_string());
    Ok(Resolved { tools, model: resolve_model(place, catalog, profile)? })
}

fn resolve_model(
    place: &Place,
    catalog: &Catalog,
    profile: &Profile,
) -> Result<Result<(ModelSelection, &'static str), String>, CommandError> {
    let settings = place.settings()?;
    let section = |error| settings_error(&error);
    let providers: BTreeMap<String, catalog::ProviderSettings> = crate::app::keys::providers(&settings, &place.layout).map_err(section)?;
    let configured: Option<String> = settings.section("model").map_err(section)?;
    let base_url: Option<String> = settings.section("base_url").map_err(section)?;
    let own: AgentSettings = settings.section("agents").map_err(section)?.unwrap_or_default();
    let select = |model: Option<&str>| {
        catalog::select(&catalog::Choice { model, base_url: base_url.as_deref(), providers: &providers, environment: place.environment })
    };
    let parent = match select(configured.as_deref()) {
        Ok(catalog::Selection::Remote(model, _)) => {
            Some(ModelSelection { provider: model.provider, model: model.model, level: model.reasoning })
        }
        // A scripted model, none at all, or one that cannot be reached: there is nothing to inherit here.
        Ok(catalog::Selection::Script(_) | catalog::Selection::Replay(_) | catalog::Selection::NothingSet) | Err(_) => None,
    };
    let situation = Situation {
        once: None,
        profile,
        state_file: catalog.model_override(profile),
        parent_turn: None,
        parent_session: parent.as_ref(),
        settings: &own,
    };
    let inherits = |error: &model_choice::ModelChoiceError| parent.is_none() && error.selection == "inherit";
    let verify = |selection: &ModelSelection| select(Some(&selection.to_string())).map(drop).map_err(|error| Reason::of(&error));
    Ok(model_choice::choose(&situation, verify).map(|choice| (choice.selection, choice.origin.as_str())).map_err(|error| {
        if inherits(&error) { "inherits the model of the parent; none is set here".to_owned() } else { error.to_string() }
    }))
}

fn show(place: &Place, name: &str, extra: &Extra, as_json: bool) -> Result<Exit, CommandError> {
    let catalog = place.catalog(extra.agents.as_deref())?;
    let definition = found(&catalog, name)?;
    let profile = &definition.profile;
    let resolved = resolve(place, &catalog, profile)?;
    let replaced: Vec<_> = catalog.replaced().iter().filter(|replaced| replaced.definition.profile.name == profile.name).collect();
    if !as_json {
        print_out(&text::show(&catalog, definition, &replaced, &resolved))?;
        return Ok(Exit::Done);
    }
    let sources: serde_json::Map<String, Value> =
        Field::ALL.iter().map(|field| (field.as_str().to_owned(), json!(text::source_of(profile, *field)))).collect();
    answer(&json!({
        "schema_version": SCHEMA_VERSION,
        "profile": profile.as_ref(),
        "aliases": catalog.aliases(&profile.name),
        "sources": sources,
        "resolved": {
            "tools": resolved.tools.as_ref().ok(),
            "tools_error": resolved.tools.as_ref().err(),
            "model": resolved.model.as_ref().ok().map(|(model, origin)| json!({
                "provider": model.provider, "model": model.model, "level": model.level, "source": origin,
            })),
            "model_error": resolved.model.as_ref().err(),
        },
        "replaced": replaced.iter().map(|replaced| json!({
            "level": replaced.definition.profile.origin.level, "path": replaced.definition.profile.origin.path, "reason": replaced.reason,
        })).collect::<Vec<_>>(),
        "diagnostics": definition.diagnostics,
    }))
}

fn found<'a>(catalog: &'a Catalog, name: &str) -> Result<&'a Definition, CommandError> {
    catalog.resolve(name).map_err(|error| CommandError::usage(error.to_string()).with_hint("`zapmyco agents list` shows every agent"))
}

/// One file that was checked: a profile, or at least one diagnostic.
struct Checked {
    path: Option<PathBuf>,
    name: Option<String>,
    diagnostics: Vec<Diagnostic>,
}

fn check(place: &Place, paths: &[PathBuf], level: FileLevel, strict: bool, as_json: bool) -> Result<Exit, CommandError> {
    let checked = if paths.is_empty() { check_catalog(&place.catalog(None)?) } else { check_paths(paths, level) };
    let all = || checked.iter().flat_map(|file| &file.diagnostics);
    let limit = if strict { Severity::Warning } else { Severity::Error };
    let exit = if all().any(|diagnostic| diagnostic.severity >= limit) { Exit::Failed } else { Exit::Done };
    let n_profiles = checked.iter().filter(|file| file.name.is_some() && file.path.is_some()).count();
    let n_files = checked.iter().filter(|file| file.path.is_some()).count();
    let counts = text::counts(all());
    if as_json {
        answer(&json!({
            "schema_version": SCHEMA_VERSION,
            "ok": exit == Exit::Done,
            "files": n_files,
            "profiles": n_profiles,
            "counts": counts,
            "results": checked.iter().map(|file| json!({
                "path": file.path, "name": file.name, "diagnostics": file.diagnostics,
            })).collect::<Vec<_>>(),
        }))?;
        return Ok(exit);
    }
    let mut out = String::new();
    for diagnostic in all() {
        out.push_str(&text::plain(&diagnostic.to_string()));
        out.push('\n');
    }
    out.push_str(&format!("{n_files} files, {n_profiles} profiles; {}\n", text::counts_line(&counts)));
    print_out(&out)?;
    Ok(exit)
}

/// Every place: files with a profile first, then what belongs to no profile.
fn check_catalog(catalog: &Catalog) -> Vec<Checked> {
    let held = catalog.definitions().chain(catalog.replaced().iter().map(|replaced| &replaced.definition));
    let mut checked: Vec<Checked> = held
        .map(|definition| Checked {
            path: definition.profile.origin.path.clone(),
            name: Some(definition.profile.name.clone()),
            diagnostics: definition.diagnostics.clone(),
        })
        .collect();
    checked.extend(by_path(catalog.diagnostics().to_vec()));
    checked
}

fn check_paths(paths: &[PathBuf], level: FileLevel) -> Vec<Checked> {
    let (level, plugin) = match level {
        FileLevel::User => (Level::User, None),
        FileLevel::Project => (Level::Project, None),
        FileLevel::Plugin => (Level::Plugin, Some("plugin".to_owned())),
    };
    // What a file says is checked, not what a person has said about it.
    let trust = Trust::none(Path::new("/"));
    let mut checked = Vec::new();
    let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut check_file = |path: &Path, checked: &mut Vec<Checked>| {
        let parsed = parse_file(path, level, plugin.clone(), (&trust, Path::new("/")));
        let mut diagnostics = parsed.diagnostics;
        let name = parsed.profile.map(|profile| profile.name);
        if let Some(name) = &name
            && let Some(first) = names.insert(name.clone(), path.to_owned())
        {
            let reason = format!("two files define `{name}`: {} and {}; only one of them can hold", first.display(), path.display());
            let note = Diagnostic::new(Code::DuplicateName, Severity::Warning, reason, "rename or remove one of the two");
            diagnostics.push(note.at(Some(path), None));
        }
        checked.push(Checked { path: Some(path.to_owned()), name, diagnostics });
    };
    for path in paths {
        if path.is_dir() {
            let walk = places::walk(path);
            checked.extend(by_path(walk.diagnostics));
            walk.files.iter().for_each(|found| check_file(&found.path, &mut checked));
        } else {
            check_file(path, &mut checked);
        }
    }
    checked
}

fn by_path(diagnostics: Vec<Diagnostic>) -> Vec<Checked> {
    let mut files: BTreeMap<Option<PathBuf>, Vec<Diagnostic>> = BTreeMap::new();
    for diagnostic in diagnostics {
        files.entry(diagnostic.path.clone()).or_default().push(diagnostic);
    }
    files.into_iter().map(|(path, diagnostics)| Checked { path, name: None, diagnostics }).collect()
}

fn create(place: &Place, name: &str, description: &str, content: &Content) -> Result<Exit, CommandError> {
    let mut changes = vec![Change { field: Field::Description, value: Some(description.to_owned()) }];
    changes.extend(changes_of(content)?.into_iter().filter(|change| change.field != Field::Description));
    let Some(body) = body_of(content)? else {
        return Err(CommandError::usage("the agent needs instructions").with_hint("give --prompt TEXT or --prompt-file FILE"));
    };
    let (folder, level) = if content.project {
        (ProjectLayout::new(place.cwd.clone()).profiles(), Level::Project)
    } else {
        (place.layout.user_profiles(), Level::User)
    };
    if let Some(known) = place.catalog(None)?.get(name).filter(|known| known.profile.origin.level == level) {
        let path = known.profile.origin.path.as_deref().unwrap_or(Path::new(""));
        let message = format!("the agent `{name}` exists already in {}", path.display());
        return Err(CommandError::usage(message).with_hint(format!("`zapmyco agents edit {name}` changes it")));
    }
    let (path, parsed) = edit::create(&folder, level, name, &changes, &body).map_err(|error| edit_error(&error))?;
    written("created", name, &path, &parsed.diagnostics, content.json)
}

fn edit_profile(place: &Place, name: &str, content: &Content) -> Result<Exit, CommandError> {
    let catalog = place.catalog(None)?;
    let changes = changes_of(content)?;
    let body = body_of(content)?;
    if changes.is_empty() && body.is_none() {
        return Err(CommandError::usage("nothing to change").with_hint("give --set FIELD=VALUE, --prompt TEXT or --prompt-file FILE"));
    }
    let profile = writable(&catalog, name, content.project)?;
    let path = file_of(&profile)?;
    let parsed = edit::edit(&path, profile.origin.level, &changes, body.as_deref()).map_err(|error| edit_error(&error))?;
    written("edited", &profile.name, &path, &parsed.diagnostics, content.json)
}

fn remove(place: &Place, name: &str, project: bool, as_json: bool) -> Result<Exit, CommandError> {
    let catalog = place.catalog(None)?;
    let profile = writable(&catalog, name, project)?;
    let path = file_of(&profile)?;
    edit::remove(&path).map_err(|error| edit_error(&error))?;
    written("removed", &profile.name, &path, &[], as_json)
}

/// The definition that may be written: the user's own, or with `--project` the project's. A user's file that a project's
/// replaces is found too.
fn writable(catalog: &Catalog, name: &str, project: bool) -> Result<Profile, CommandError> {
    let level = if project { Level::Project } else { Level::User };
    let definition = catalog.resolve(name);
    let canonical = definition.as_ref().map_or(name, |definition| definition.profile.name.as_str());
    let replaced = catalog.replaced().iter().rev().map(|replaced| &replaced.definition);
    let of_level = catalog.get(canonical).into_iter().chain(replaced);
    let found = of_level.map(|definition| &definition.profile).find(|profile| profile.name == canonical && profile.origin.level == level);
    if let Some(profile) = found {
        return Ok(profile.as_ref().clone());
    }
    let other = definition.map_err(|error| CommandError::usage(error.to_string()).with_hint("`zapmyco agents list` shows every agent"))?;
    let hint = match other.profile.origin.level {
        Level::Project => "add --project to change the project's file".to_owned(),
        Level::BuiltIn | Level::Plugin | Level::CommandLine | Level::User => {
            format!("`zapmyco agents create {canonical} ...` writes one of your own that replaces it")
        }
    };
    Err(CommandError::usage(format!("the agent `{canonical}` is of level {}, not {level}", other.profile.origin.level)).with_hint(hint))
}

fn file_of(profile: &Profile) -> Result<PathBuf, CommandError> {
    profile.origin.path.clone().ok_or_else(|| CommandError::usage(format!("the agent `{}` is no file", profile.name)))
}

fn changes_of(content: &Content) -> Result<Vec<Change>, CommandError> {
    content.set.iter().map(|text| Change::parse(text).map_err(|error| edit_error(&error))).collect()
}

fn body_of(content: &Content) -> Result<Option<String>, CommandError> {
    let Some(path) = &content.prompt_file else { return Ok(content.prompt.clone()) };
    if path != Path::new("-") {
        let text = places::read(path)
            .map_err(|fault| CommandError::usage(format!("{}: {}", path.display(), fault.reason)).with_hint(fault.remedy))?;
        return Ok(Some(text));
    }
    let mut text = String::new();
    let read = std::io::stdin().take(places::FILE_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| CommandError::usage(format!("cannot read the prompt from stdin: {error}")))?;
    if text.len() as u64 > places::FILE_MAX {
        return Err(CommandError::usage(format!("the prompt on stdin is larger than {} bytes", places::FILE_MAX)));
    }
    Ok(Some(text))
}

fn edit_error(error: &EditError) -> CommandError {
    let (exit, hint) = match error {
        EditError::NotAChange { .. } | EditError::UnknownField { .. } => (Exit::Usage, "write for example --set color=blue"),
        EditError::Required { .. } => (Exit::Usage, "give it another value"),
        EditError::Name { .. } => (Exit::Usage, "use letters, digits, blanks, `-`, `_` and `.`, beginning with a letter or digit"),
        EditError::Exists { .. } => (Exit::Usage, "choose another name, or edit the file that is there"),
        EditError::Unreadable(_) | EditError::NotStrict { .. } => {
            (Exit::Usage, "`zapmyco agents check` tells what to correct by hand first")
        }
        EditError::Invalid(_) => (Exit::Usage, "nothing was written"),
        EditError::File(_) => (Exit::StateLost, "check the rights of the folder and the space on the disk"),
    };
    CommandError::from_error(exit, error).with_hint(hint)
}

/// User-level profiles only; for others a deny rule does it (R68).
fn set_disabled(place: &Place, switch: &Switch, disabled: bool) -> Result<Exit, CommandError> {
    let catalog = place.catalog(None)?;
    let own = catalog
        .definitions()
        .chain(catalog.replaced().iter().map(|replaced| &replaced.definition))
        .find(|definition| definition.profile.origin.level == Level::User && definition.profile.name == switch.name);
    let is_listed = catalog.state().disabled.contains(&switch.name);
    let name = match own {
        Some(definition) => definition.profile.name.clone(),
        // An entry of a profile that is gone can still be taken out.
        None if is_listed && !disabled => switch.name.clone(),
        None => {
            let definition = found(&catalog, &switch.name)?;
            let name = &definition.profile.name;
            if definition.profile.origin.level == Level::User {
                name.clone()
            } else {
                let message =
                    format!("the agent `{name}` is of level {}; only user-level agents are switched here", definition.profile.origin.level);
                let hint = format!(
                    "put `deny = [\"Agent({name})\"]` under [permissions] in {} to forbid it",
                    place.layout.user_settings().display()
                );
                return Err(CommandError::usage(message).with_hint(hint));
            }
        }
    };
    let path = place.layout.agents_state();
    let changed = state_file::set_disabled(&path, &name, disabled)
        .map_err(|error| CommandError::from_error(Exit::StateLost, &error).with_hint("nothing was changed"))?;
    if switch.json {
        return answer(
            &json!({"schema_version": SCHEMA_VERSION, "name": name, "disabled": disabled, "changed": changed, "path": path.display().to_string()}),
        );
    }
    let state = if disabled { "disabled" } else { "enabled" };
    print_out(&format!("{name}: {}{state}\n", if changed { "" } else { "already " }))?;
    Ok(Exit::Done)
}

fn written(action: &str, name: &str, path: &Path, diagnostics: &[Diagnostic], as_json: bool) -> Result<Exit, CommandError> {
    if as_json {
        return answer(
            &json!({"schema_version": SCHEMA_VERSION, "action": action, "name": name, "path": path.display().to_string(), "diagnostics": diagnostics}),
        );
    }
    for diagnostic in diagnostics {
        print_notice(&text::plain(&diagnostic.to_string()));
    }
    print_out(&format!("{action} {}\n", path.display()))?;
    Ok(Exit::Done)
}

fn answer(value: &Value) -> Result<Exit, CommandError> {
    print_out(&format!("{value:#}\n"))?;
    Ok(Exit::Done)
}

/// How a written model name is read, for people.
pub(super) fn wish_note(text: &str) -> Option<&'static str> {
    match model_choice::read_wish(text) {
        Wish::Inherit | Wish::Named(_) => Some("means inherit unless [agents.models] maps it"),
        Wish::Model(_) | Wish::Unreadable(_) => None,
    }
}
