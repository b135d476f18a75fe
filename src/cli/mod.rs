//! The command line: one file per command.

pub mod agents;
mod agents_text;
mod approval_text;
mod approvals;
pub mod args;
pub mod config;
pub mod demo;
pub mod failure;
mod fault;
pub mod guard;
pub mod headless;
pub mod jobs;
mod key;
pub mod manual;
pub mod output;
pub mod permissions;
pub mod progress;
mod prompt;
pub mod report;
pub mod run;
mod screen;
pub mod sessions;
mod sessions_text;
pub mod signals;
pub mod skills;
pub mod subagent;
mod table;
mod terminal;
pub mod trust;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use report::{CommandError, Exit};

use crate::config::Environment;

/// The whole command line, from the arguments as typed to the exit code.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    ExitCode::from(fault::guarded(|| answer(arguments)).code())
}

fn answer(arguments: Vec<OsString>) -> Exit {
    if let [_, only] = arguments.as_slice()
        && (only == "--version" || only == "-V")
    {
        // Programs ask for it: answered without building the definition of the whole command line.
        return ended(report::print_out(concat!("zapmyco ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| Exit::Done));
    }
    let arguments = args::with_print_flag_as_run(arguments);
    match Arguments::try_parse_from(&arguments) {
        Ok(parsed) => ended(dispatch(parsed.command)),
        Err(error) if error.use_stderr() => {
            // A stderr that is closed is no further error.
            let _ = error.print();
            if let Some(hint) = args::quoting_hint(&arguments, &error) {
                report::print_plain(&hint);
            }
            Exit::Usage
        }
        // Help and version are answers.
        Err(answer) => ended(report::flushed(answer.print()).map(|()| Exit::Done)),
    }
}

fn ended(result: Result<Exit, CommandError>) -> Exit {
    result.unwrap_or_else(|error| {
        if !error.message.is_empty() {
            report::print_error(&error);
        }
        error.exit
    })
}

fn dispatch(command: Command) -> Result<Exit, CommandError> {
    match command {
        Command::Run(arguments) => run::run(*arguments, Environment::read()),
        Command::Demo(arguments) => demo::run(arguments, Environment::read()),
        Command::Agents(arguments) => agents::run(&arguments, &Environment::read()),
        Command::Config(arguments) => config::run(&arguments),
        Command::Subagent(arguments) => subagent::run(&arguments, &Environment::read()),
        Command::Jobs(arguments) => jobs::run(&arguments, &Environment::read()),
        Command::Sessions(arguments) => sessions::run(&arguments, &Environment::read()),
        Command::Permissions(arguments) => permissions::run(&arguments, Environment::read()),
        Command::Skills(arguments) => skills::run(&arguments, &Environment::read()),
        Command::Trust(arguments) => trust::run(&arguments, Environment::read()),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    }
}
