//! The command line: one file per command.

pub mod agents;
mod agents_text;
mod approval_text;
mod approvals;
pub mod args;
pub mod config;
pub mod demo;
pub mod failure;
pub mod guard;
pub mod headless;
pub mod jobs;
pub mod manual;
pub mod output;
pub mod progress;
mod prompt;
pub mod report;
pub mod run;
pub mod sessions;
mod sessions_text;
pub mod signals;
pub mod skills;
pub mod subagent;
mod terminal;
pub mod trust;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use report::{CommandError, Exit};

use crate::config::Environment;

/// The whole command line, from the arguments as typed to the exit code.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    if let [_, only] = arguments.as_slice()
        && (only == "--version" || only == "-V")
    {
        // Programs ask for it: answered without building the definition of the whole command line. A reader that has
        // gone is none of our business, as with clap's own answer.
        let _ = report::print_out(concat!("zapmyco ", env!("CARGO_PKG_VERSION"), "\n"));
        return ExitCode::SUCCESS;
    }
    let parsed = match Arguments::try_parse_from(args::with_print_flag_as_run(arguments)) {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are answers (0), everything else is wrong usage (2).
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage.code()));
        }
    };
    let exit = match dispatch(parsed.command) {
        Ok(exit) => exit,
        Err(error) => {
            if !error.message.is_empty() {
                report::print_error(&error);
            }
            error.exit
        }
    };
    ExitCode::from(exit.code())
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
        Command::Skills(arguments) => skills::run(&arguments, &Environment::read()),
        Command::Trust(arguments) => trust::run(&arguments, Environment::read()),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    }
}
