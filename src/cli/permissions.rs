//! `zapmyco permissions explain`: what would be decided about a call, and on what grounds.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::app::explain::ExplainError;
use crate::app::{self, App};
use crate::cli::report::{self, CommandError, Exit};
use crate::cli::run::{self, ModelArguments, RightsArguments};
use crate::cli::{agents_text, failure};
use crate::config::Environment;
use crate::permissions::decide::explain::{Explanation, RuleView, Standing};
use crate::permissions::{Mode, Verdict};

/// Show what the permission rules make of a call.
#[derive(Debug, Args)]
pub struct PermissionsArguments {
    #[command(subcommand)]
    pub command: PermissionsCommand,
}

#[derive(Debug, Subcommand)]
pub enum PermissionsCommand {
    /// Take a call apart: its commands, the rules about them and where each stands, the verdict, what would allow it
    Explain(Box<ExplainArguments>),
}

/// Nothing is run. Exit code 0: allowed, 3: denied, 12: a person would be asked.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArguments {
    /// The shell line; several words are joined by spaces
    #[arg(value_name = "COMMAND", required_unless_present = "tool", conflicts_with = "tool", trailing_var_arg = true)]
    pub command: Vec<String>,

    /// Another tool than Bash, e.g. Edit
    #[arg(long, value_name = "NAME", requires = "input")]
    pub tool: Option<String>,

    /// The input of that tool, as JSON
    #[arg(long, value_name = "JSON", requires = "tool")]
    pub input: Option<String>,

    #[command(flatten)]
    pub rights: RightsArguments,

    /// As --permission-mode
    #[arg(long, value_name = "MODE", conflicts_with = "permission_mode", value_parser = |text: &str| text.parse::<Mode>().map_err(|error| error.to_string()))]
    pub mode: Option<Mode>,

    /// In this folder
    #[arg(long, short = 'C', value_name = "FOLDER")]
    pub cwd: Option<PathBuf>,

    /// As one JSON object
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  zapmyco permissions explain -- 'git status && rm -rf x'
  zapmyco permissions explain --mode plan -- ls -la
  zapmyco permissions explain \\
      --allowedTools 'Bash(npm:*)' -- 'npm ci | tail'
  zapmyco permissions explain --tool Edit \\
      --input '{\"file_path\": \"a\",
        \"old_string\": \"b\", \"new_string\": \"c\"}'
  zapmyco permissions explain --json -- 'make' | jq .verdict";

const SCHEMA_VERSION: u32 = 1;

pub fn run(arguments: &PermissionsArguments, environment: Environment) -> Result<Exit, CommandError> {
    match &arguments.command {
        PermissionsCommand::Explain(arguments) => explain(arguments, environment),
    }
}

fn explain(arguments: &ExplainArguments, environment: Environment) -> Result<Exit, CommandError> {
    let cwd = app::working_directory(arguments.cwd.as_deref()).map_err(|error| failure::of_app(&error))?;
    let mut rights = arguments.rights.clone();
    rights.permission_mode = rights.permission_mode.or(arguments.mode);
    let app =
        App::load(environment, cwd, run::flags(&ModelArguments::default(), &rights), None).map_err(|error| failure::of_app(&error))?;
    for notice in &app.notices {
        report::print_notice(notice);
    }
    for diagnostic in app.settings.ignored() {
        report::print_notice(&diagnostic.to_string());
    }
    let (tool, input) = match (&arguments.tool, &arguments.input) {
        (Some(tool), Some(input)) => {
            let read = serde_json::from_str(input).map_err(|error| CommandError::usage(format!("--input is no JSON: {error}")))?;
            (tool.as_str(), read)
        }
        _ => ("Bash", json!({ "command": arguments.command.join(" ") })),
    };
    let explanation = app.explain(tool, &input).map_err(|error| match error {
        ExplainError::App(error) => failure::of_app(&error),
        ExplainError::Policy(_) | ExplainError::Input { .. } | ExplainError::Missing { .. } => {
            CommandError::from_error(Exit::Usage, &error)
        }
    })?;
    report::print_out(&if arguments.json { as_json(&app, &explanation) } else { as_text(&app, &explanation) })?;
    Ok(match explanation.verdict {
        Verdict::Allow => Exit::Done,
        Verdict::Ask { .. } => Exit::WouldAsk,
        Verdict::Deny { .. } => Exit::Denied,
    })
}

fn verdict(explanation: &Explanation) -> (&'static str, Option<&str>, Option<&str>) {
    match &explanation.verdict {
        Verdict::Allow => ("allow", None, None),
        Verdict::Ask { reason, suggestion } => ("ask", Some(reason), Some(suggestion)),
        Verdict::Deny { reason } => ("deny", Some(reason), None),
    }
}

fn standing(standing: &Standing) -> String {
    match standing {
        Standing::ReadsOnly => "reads only".to_owned(),
        Standing::ByRule(rule) => format!("allowed by {rule}"),
        Standing::OnlyStarts => "only starts what follows".to_owned(),
        Standing::Edits => "edits files that may be edited freely".to_owned(),
        Standing::OnlySetsVariables => "only sets variables of the line".to_owned(),
        Standing::Guess => "perhaps started; held against deny and ask rules only".to_owned(),
        Standing::Open => "not allowed by a rule".to_owned(),
    }
}

fn place(app: &App, view: &RuleView) -> String {
    if view.is_answer {
        return "an answer in this session".to_owned();
    }
    let found = app.rule_places.iter().find(|known| known.list == view.list.as_str() && known.rule.trim() == view.rule);
    found.map_or_else(|| "settings".to_owned(), |known| known.place.to_string())
}

fn mode_place(app: &App) -> String {
    app.settings.source("permission_mode").map_or_else(|| "default".to_owned(), |source| source.to_string())
}

fn as_text(app: &App, explanation: &Explanation) -> String {
    let mut text = format!("mode     {} ({})\n", explanation.mode, mode_place(app));
    if let Some(why) = &explanation.unreadable {
        let _ = writeln!(text, "line     cannot be read safely: {why}; only a rule with its exact text allows it");
    }
    for (at, part) in explanation.parts.iter().enumerate() {
        let started = part.started_by.map(|by| format!(", started by part {}", by + 1)).unwrap_or_default();
        let _ = writeln!(text, "part {:<3} {}\n         {}{started}", at + 1, shown(&part.text), standing(&part.standing));
    }
    for file in &explanation.files {
        let access = if file.writes { "is written" } else { "is read" };
        let _ =
            writeln!(text, "file     {} {access}; {}", shown(&file.name), if file.is_free { "allowed" } else { "not allowed by a rule" });
    }
    for view in &explanation.rules {
        let about = match (view.part, view.is_certain) {
            (Some(part), true) => format!("part {}", part + 1),
            (Some(part), false) => format!("perhaps part {}, which is decided only when it runs", part + 1),
            (None, true) => "the call".to_owned(),
            (None, false) => "perhaps the line, which is decided only when it runs".to_owned(),
        };
        let _ = writeln!(text, "rule     {} {}: {about} ({})", view.list.as_str(), view.rule, place(app, view));
    }
    let (verdict, reason, suggestion) = verdict(explanation);
    let _ = writeln!(text, "verdict  {verdict}");
    if let Some(reason) = reason {
        let _ = writeln!(text, "because  {}", shown(reason));
    }
    if let Some(suggestion) = suggestion {
        let _ = writeln!(text, "to allow {}", shown(suggestion));
    }
    text
}

/// On one line, without what could move the cursor.
fn shown(text: &str) -> String {
    agents_text::plain(&text.replace('\n', "\\n"))
}

fn as_json(app: &App, explanation: &Explanation) -> String {
    let (verdict, reason, suggestion) = verdict(explanation);
    let parts = explanation.parts.iter().map(|part| {
        let (kind, rule) = match &part.standing {
            Standing::ReadsOnly => ("reads_only", None),
            Standing::ByRule(rule) => ("allowed_by_rule", Some(rule)),
            Standing::OnlyStarts => ("only_starts", None),
            Standing::Edits => ("edits", None),
            Standing::OnlySetsVariables => ("sets_variables", None),
            Standing::Guess => ("guess", None),
            Standing::Open => ("not_allowed", None),
        };
        json!({"command": part.text, "started_by": part.started_by, "standing": kind, "rule": rule})
    });
    let files = explanation.files.iter().map(|file| json!({"name": file.name, "written": file.writes, "allowed": file.is_free}));
    let rules = explanation.rules.iter().map(|view| {
        json!({"list": view.list.as_str(), "rule": view.rule, "part": view.part, "certain": view.is_certain, "source": place(app, view)})
    });
    let object = json!({
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict,
        "reason": reason,
        "to_allow": suggestion,
        "mode": explanation.mode.as_str(),
        "mode_source": mode_place(app),
        "unreadable": explanation.unreadable,
        "parts": parts.collect::<Vec<Value>>(),
        "files": files.collect::<Vec<Value>>(),
        "rules": rules.collect::<Vec<Value>>(),
    });
    format!("{object:#}\n")
}
