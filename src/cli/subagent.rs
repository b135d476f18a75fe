//! The four actions of the tool `subagent` for scripts, without a model: children of a named session that go on when the
//! command ends, kept by their keepers. Same texts as the tool, or JSON.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::jobs::{layout, print_json, report_kill, state_error};
use super::report::{CommandError, Exit, print_notice, print_out};
use super::{config, failure, guard, prompt, run};
use crate::app::model::ModelSource;
use crate::app::{self, App};
use crate::config::Environment;
use crate::config::environment::SESSION;
use crate::ids::SessionId;
use crate::permissions::rules::Rule;
use crate::subagents::answers::{self, Asked, Ended};
use crate::subagents::delegation::SpawnError;
use crate::subagents::detached::Detached;
use crate::subagents::handover::ChildSettings;
use crate::subagents::job::{Job, JobList, JobView};
use crate::subagents::poll::extra_wait;
use crate::text::subagent_replies::{TASK_EMPTY, listed, no_folder, no_start, spawned, wait_was_clamped};

/// Start and follow subagents from a script.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SubagentArguments {
    #[command(subcommand)]
    pub command: SubagentCommand,
}

const EXAMPLES: &str = "\
Examples:
  id=$(zapmyco subagent spawn --session ci --json \"review src/auth\" | jq -r .id)
  while zapmyco subagent poll --session ci --wait 30; [ $? -eq 10 ]; do :; done
  zapmyco subagent kill --session ci \"$id\"

Exit codes:
  spawn  0 started, 1 not (also when the id cannot be written
         to stdout: the subagent is then stopped again)
  poll   0 all completed, 1 one ended otherwise, 10 still running, 11 unknown id
  kill   0 nothing left, 1 otherwise, 11 unknown id

The replies are those of the model's `subagent` tool, partly in Chinese;
scripts read --json.";

#[derive(Subcommand, Clone, Debug)]
pub enum SubagentCommand {
    /// Start a subagent and return at once with its id
    Spawn(SpawnArguments),
    /// Wait 5 seconds, and up to 30 more, for subagents to end; show status and output
    Poll {
        /// Without ids: all of the session
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Seconds to wait beyond the usual 5 (0 to 30)
        #[arg(long, value_name = "SECS", allow_hyphen_values = true)]
        wait: Option<String>,
        #[command(flatten)]
        session: SessionArgument,
        /// As {"jobs": [...], "unknown": [...]}
        #[arg(long)]
        json: bool,
    },
    /// List the subagents of the session
    List {
        #[command(flatten)]
        session: SessionArgument,
        /// As {"jobs": [...]}
        #[arg(long)]
        json: bool,
    },
    /// End subagents and everything they started
    Kill {
        /// One or more
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        #[command(flatten)]
        session: SessionArgument,
        /// As {"jobs": [...], "unknown": [...]}
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Clone, Debug)]
pub struct SpawnArguments {
    /// The whole task; `-` reads it from stdin
    #[arg(value_name = "TASK", required_unless_present = "task_file", conflicts_with = "task_file")]
    pub task: Option<String>,
    /// Read the task from this file
    #[arg(long, value_name = "FILE")]
    pub task_file: Option<PathBuf>,
    #[command(flatten)]
    pub session: SessionArgument,
    #[command(flatten)]
    pub model: run::ModelArguments,
    #[command(flatten)]
    pub rights: run::RightsArguments,
    /// Most model requests of the subagent; at the limit it gives a closing report
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_turns: Option<u32>,
    /// As one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct SessionArgument {
    /// The session the subagents belong to: a name of letters, digits, `.`, `_`, `-` (default: ZAPMYCO_SESSION)
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
}

impl SessionArgument {
    fn id(&self, environment: &Environment) -> Result<SessionId, CommandError> {
        let name = self.session.as_deref().or_else(|| environment.get(SESSION));
        let name =
            name.ok_or_else(|| CommandError::usage("no session is named").with_hint("give --session NAME, or set ZAPMYCO_SESSION"))?;
        SessionId::from_name(name).map_err(|error| CommandError::from_error(Exit::Usage, &error))
    }
}

pub fn run(arguments: &SubagentArguments, environment: &Environment) -> Result<Exit, CommandError> {
    let open = |session: &SessionArgument| -> Result<(Detached, Arc<crate::config::Limits>), CommandError> {
        let limits = Arc::new(config::load(environment)?.limits().clone());
        Ok((Detached::new(layout(environment)?, limits.clone(), session.id(environment)?), limits))
    };
    match &arguments.command {
        SubagentCommand::Spawn(spawn_arguments) => {
            guard::refuse_inside_subagent(environment, false, "subagent spawn")?;
            let (detached, _) = open(&spawn_arguments.session)?;
            spawn(&detached, spawn_arguments, environment)
        }
        SubagentCommand::Poll { ids, wait, session, json } => {
            let (detached, limits) = open(session)?;
            let extra =
                extra_wait(wait.clone().map(Value::String).as_ref(), &limits).map_err(|error| CommandError::usage(error.to_string()))?;
            let ids = if ids.is_empty() { all_ids(&detached)? } else { ids.clone() };
            let answers = detached.poll(&ids, extra.wait);
            let clamped = extra.clamped.then(|| wait_was_clamped(extra.wait));
            report_poll(&answers, &limits, clamped, *json)
        }
        SubagentCommand::List { session, json } => {
            let (detached, _) = open(session)?;
            let jobs = list(&detached)?;
            if *json {
                print_json(&JobList { jobs: jobs.iter().map(Job::view).collect() })?;
            } else {
                print_out(&format!("{}\n", answers::list_text(&jobs)))?;
            }
            Ok(Exit::Done)
        }
        SubagentCommand::Kill { ids, session, json } => {
            let (detached, _) = open(session)?;
            report_kill(&detached.kill(ids), *json)
        }
    }
}

fn list(detached: &Detached) -> Result<Vec<Job>, CommandError> {
    let scan = detached.list().map_err(|error| state_error(&error))?;
    for problem in &scan.problems {
        print_notice(&problem.to_string());
    }
    Ok(scan.found.into_iter().map(|found| found.job).collect())
}

fn all_ids(detached: &Detached) -> Result<Vec<String>, CommandError> {
    Ok(list(detached)?.iter().map(|job| job.id().to_string()).collect())
}

fn spawn(detached: &Detached, arguments: &SpawnArguments, environment: &Environment) -> Result<Exit, CommandError> {
    let task = match (&arguments.task_file, arguments.task.as_deref()) {
        (Some(path), _) => prompt::of_file(path)?,
        (None, Some("-")) => prompt::of_stdin()?,
        (None, task) => task.unwrap_or_default().to_owned(),
    };
    if task.trim().is_empty() {
        return Err(CommandError::failed(TASK_EMPTY));
    }
    let (child, cwd) = child_settings(arguments, environment)?;
    let started = detached.spawn(&task, cwd, environment.clone(), child).map_err(|error| spawn_error(&error))?;
    let printed = if arguments.json {
        print_json(&started.job.view())
    } else {
        print_out(&format!("{}\n", spawned(started.id.as_str(), &task, started.created_at)))
    };
    printed.map(|()| Exit::Done).map_err(|error| unannounced(detached, started.id.as_str(), error))
}

/// Nobody was told the id, and the exit code says that nothing was started: so nothing is left running.
fn unannounced(detached: &Detached, id: &str, error: CommandError) -> CommandError {
    let ended = detached.kill(&[id.to_owned()]);
    print_notice(&format!("the id {id} could not be written to stdout; the subagent is stopped again"));
    match ended.first() {
        Some(Ended::Before(_) | Ended::Now(_)) => error,
        Some(Ended::Unknown(_) | Ended::Failed { .. }) | None => {
            print_notice(&format!("it may still run; see `zapmyco jobs show {id}`"));
            error
        }
    }
}

/// What a child of a session would be handed by its parent: model, rights and limits as settings and flags give them here.
fn child_settings(arguments: &SpawnArguments, environment: &Environment) -> Result<(ChildSettings, PathBuf), CommandError> {
    let cwd = app::working_directory(None).map_err(|error| failure::of_app(&error))?;
    let flags = run::flags(&arguments.model, &arguments.rights);
    let app = App::load(environment.clone(), cwd.clone(), flags, None).map_err(|error| failure::of_app(&error))?;
    for notice in &app.notices {
        print_notice(notice);
    }
    for diagnostic in app.settings.ignored() {
        print_notice(&diagnostic.to_string());
    }
    // Only a search for a server on this machine waits for anything.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::new(Exit::Fault, format!("cannot start the runtime: {error}")))?;
    let record = arguments.model.record.as_deref().map(|file| cwd.join(file));
    let chosen =
        runtime.block_on(app.choose_model(&ModelSource::Configured, record.as_deref())).map_err(|error| failure::of_model(&error))?;
    chosen.why.iter().for_each(|line| print_notice(line));
    let texts = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect();
    let child = ChildSettings {
        model: chosen.for_children,
        record: chosen.record,
        mode: Some(app.mode().map_err(|error| failure::of_app(&error))?),
        allow: texts(&app.rules.allow),
        ask: texts(&app.rules.ask),
        deny: texts(&app.rules.deny),
        hooks: app.hook_set().0,
        limits: app.settings.limits_set(),
        max_turns: arguments.max_turns,
        sandbox: app.sandbox_settings().map_err(|error| failure::of_app(&error.into()))?,
    };
    Ok((child, cwd))
}

fn spawn_error(error: &SpawnError) -> CommandError {
    let text = error.to_string();
    let message = match error {
        SpawnError::EmptyTask => TASK_EMPTY.to_owned(),
        SpawnError::NulInTask { .. } | SpawnError::OneOffModel | SpawnError::Cancelled | SpawnError::Turn(_) => text,
        _ if error.is_folder() => no_folder(text.strip_prefix("folder: ").unwrap_or(&text)),
        SpawnError::Handover(_) | SpawnError::Launch(_) | SpawnError::Job(_) | SpawnError::Interrupted => no_start(&text),
    };
    CommandError::failed(message)
}

/// Prints the answers and gives the exit code of decision 20.
fn report_poll(answers: &[Asked], limits: &crate::config::Limits, clamped: Option<String>, json: bool) -> Result<Exit, CommandError> {
    let jobs: Vec<&Job> =
        answers.iter().filter_map(|answer| if let Asked::Found(job) = answer { Some(job.as_ref()) } else { None }).collect();
    let unknown: Vec<&str> =
        answers.iter().filter_map(|answer| if let Asked::Unknown(text) = answer { Some(text.as_str()) } else { None }).collect();
    if json {
        let views: Vec<JobView> = jobs.iter().map(|job| job.view()).collect();
        print_json(&json!({"jobs": views, "unknown": unknown}))?;
    } else {
        let text = if answers.is_empty() { listed(&[]) } else { answers::poll_text(answers, limits) };
        let text = clamped.map_or(text.clone(), |line| format!("{text}\n{line}"));
        print_out(&format!("{text}\n"))?;
    }
    let broken = answers.iter().any(|answer| matches!(answer, Asked::Broken { .. }));
    Ok(if !unknown.is_empty() {
        Exit::UnknownId
    } else if jobs.iter().any(|job| job.is_running()) {
        Exit::StillRunning
    } else if broken || jobs.iter().any(|job| job.word() != "completed") {
        Exit::Failed
    } else {
        Exit::Done
    })
}
