//! Shell completions and man pages, made from the definition of the command line.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::cli::args::definition;
use crate::cli::report::{self, CommandError, Exit};

/// Print a completion script for a shell.
///
/// For example: `zapmyco completions bash > ~/.local/share/bash-completion/completions/zapmyco`
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Print the manual as a man page, or write one page per command.
///
/// For example: `zapmyco man | man -l -`, or `zapmyco man --dir /usr/local/share/man/man1`
#[derive(Debug, Args)]
pub struct ManArguments {
    /// Write a page per command into this folder
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

pub fn completions(arguments: &CompletionsArguments) -> Result<Exit, CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut definition(), "zapmyco", &mut script);
    report::print_out(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub fn man(arguments: &ManArguments) -> Result<Exit, CommandError> {
    let cannot = |error: std::io::Error| CommandError::failed(format!("cannot write the man page: {error}"));
    if let Some(folder) = &arguments.dir {
        std::fs::create_dir_all(folder).map_err(cannot)?;
        clap_mangen::generate_to(definition(), folder).map_err(cannot)?;
        return Ok(Exit::Done);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(definition()).render(&mut page).map_err(cannot)?;
    report::print_out(&String::from_utf8_lossy(&page))?;
    Ok(Exit::Done)
}
