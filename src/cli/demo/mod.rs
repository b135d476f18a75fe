//! `zapmyco demo`: the main job on the user's own folder, with a script in the place of the model.
//!
//! The script is `examples/demo.yaml`, compiled in. It is told in the prompt which parts of the folder to look at;
//! everything that the report says was found by the tools of the subagents.

mod parts;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use crate::agent::Role;
use crate::app::model::ModelSource;
use crate::app::session::Start;
use crate::app::{self, App, Flags};
use crate::cli::report::{self, CommandError, Exit};
use crate::cli::run::{self, RunOptions, Work};
use crate::cli::{failure, guard};
use crate::config::Environment;
use crate::models::scripted::Script;
use parts::{FILES_MAX, Parts};

/// See it work on a folder of yours, without a key: three subagents look at it and report.
///
/// A script stands in for the model. Everything else is real: the session, the subagent processes, their tools, and
/// every number of the report.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// The folder to look at
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
}

const SCRIPT_NAME: &str = "demo.yaml";
const SCRIPT: &str = include_str!("../../../examples/demo.yaml");

const HOW_TO_SET_A_MODEL: &str = "
The model was scripted; everything else was real. With one:
  export ANTHROPIC_API_KEY=...   # or OPENAI_API_KEY
  zapmyco run \"review this project with three subagents\"
  zapmyco config show            # which model, and why";

/// `zapmyco demo`.
pub fn run(arguments: DemoArguments, environment: Environment) -> Result<Exit, CommandError> {
    guard::refuse_inside_subagent(&environment, false, "zapmyco demo")?;
    let folder = app::working_directory(Some(&arguments.folder)).map_err(|error| failure::of_app(&error))?;
    let script = Script::parse(SCRIPT_NAME, SCRIPT).map_err(|error| CommandError::from_error(Exit::Fault, &error))?;
    let app = App::load(environment, folder.clone(), Flags::default(), None).map_err(|error| failure::of_app(&error))?;
    let chosen = parts::choose(&folder);
    if chosen.parts.is_empty() {
        report::print_out(&format!(
            "There is nothing to read in {}: no text file that is neither hidden nor ignored.\n\
             Name another folder: zapmyco demo DIR\n",
            folder.display()
        ))?;
        return Ok(Exit::Done);
    }
    report::print_plain(&introduction(&folder, &chosen));
    let work = Work {
        options: RunOptions { success_text: Some(success_text(chosen.parts.len())), ..RunOptions::default() },
        prompt: prompt(&folder, &chosen),
        app,
        model: ModelSource::Script(Arc::new(script)),
        role: Role::Main,
        start: Start::New,
    };
    let exit = run::execute(work)?;
    report::print_plain(HOW_TO_SET_A_MODEL);
    Ok(exit)
}

fn introduction(folder: &Path, chosen: &Parts) -> String {
    let titles: Vec<&str> = chosen.parts.iter().map(|part| part.title.as_str()).collect();
    let cut = if chosen.is_cut { format!(" (chosen among the first {FILES_MAX} files)") } else { String::new() };
    format!(
        "zapmyco demo: a script stands in for the model.\n\
         Everything else is real: the session, one subagent process\n\
         per part, their tools, and every number of the report.\n  folder: {}\n  parts: {}{cut}",
        folder.display(),
        titles.join(", ")
    )
}

/// How the script's report says that every part was reported on.
fn success_text(n_parts: usize) -> String {
    format!("\n{n_parts} of {n_parts} subagents reported.\n")
}

/// What the script is told: its first line is the heading of the report.
fn prompt(folder: &Path, chosen: &Parts) -> String {
    let n_parts = chosen.parts.len();
    // One line, whatever the folder is called.
    let folder = folder.display().to_string().replace(char::is_control, "?");
    let mut text = format!("Look at {folder} with one subagent for each of {n_parts} parts, and report what they find.\n\n");
    for part in &chosen.parts {
        text.push_str(&format!("part: {}\n", part.title));
        for item in &part.items {
            text.push_str(&format!("- {item}\n"));
        }
    }
    text
}
