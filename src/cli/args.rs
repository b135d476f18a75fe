//! The command line exactly as typed, with help texts. What the flags mean is decided by each command.

use std::ffi::OsString;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ColorChoice, CommandFactory, Parser, Subcommand};

use crate::cli::{agents, config, demo, jobs, manual, report, run, sessions, subagent};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  zapmyco demo                                     see it work on this folder, without any key
  export ANTHROPIC_API_KEY=...                     or OPENAI_API_KEY, or start Ollama, LM Studio, llama.cpp, vLLM
  zapmyco run \"review src/ with three subagents\"   the answer goes to stdout, progress to stderr
  git diff | zapmyco run --stdin \"review this\"     a prompt and piped text
  zapmyco run --continue \"now fix the first one\"   go on with the last session of this folder
  zapmyco run --output-format json \"...\" | jq .    for scripts
  zapmyco jobs list                                what runs or ran, in all sessions
  zapmyco jobs sweep                               prove that nothing was left behind

Set-up of a model:
  ANTHROPIC_API_KEY, OPENAI_API_KEY                a key alone is enough
  ANTHROPIC_BASE_URL, OPENAI_BASE_URL              another server, with or without /v1
  --model NAME/MODEL  --base-url URL               for one run (NAME: anthropic, openai, zai, deepseek, qwen,
                                                   moonshot, openrouter, ollama, llamacpp, lmstudio, vllm)
  ~/.zapmyco/settings.toml                         model = \"NAME/MODEL\"; `zapmyco config defaults` prints all keys
";

/// A coding agent for the command line whose subagents never get lost.
#[derive(Debug, Parser)]
#[command(name = "zapmyco", version, about, styles = STYLES, color = color_choice(), subcommand_required = true, arg_required_else_help = true,
    after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n{}\n{}", report::exit_code_help(), DATA_HELP), max_term_width = 120)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const DATA_HELP: &str = "\
Data:
  ~/.zapmyco (or ZAPMYCO_HOME)                     sessions and jobs in zapmyco.db; subagents/SESSION/ID/ holds each
                                                   subagent's stdout, stderr and end.json; settings.toml is yours";

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<run::RunArguments>),
    Demo(demo::DemoArguments),
    Agents(agents::AgentsArguments),
    Config(config::ConfigArgs),
    Subagent(Box<subagent::SubagentArguments>),
    Jobs(jobs::JobsArguments),
    Sessions(sessions::SessionsArguments),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
}

/// Colour only on a terminal that wants it.
#[expect(clippy::disallowed_methods, reason = "help is printed before the environment is read")]
fn color_choice() -> ColorChoice {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if dumb { ColorChoice::Never } else { ColorChoice::Auto }
}

/// `zapmyco -p "text"` is `zapmyco run "text"`, as people know it from other tools (R318).
pub fn with_print_flag_as_run(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let starts_with_flag = arguments.get(1).and_then(|first| first.to_str()).is_some_and(|first| first.starts_with('-'));
    let print_flag =
        arguments.iter().take_while(|argument| *argument != "--").position(|argument| argument == "-p" || argument == "--print");
    if let (true, Some(position)) = (starts_with_flag, print_flag) {
        arguments.remove(position);
        arguments.insert(1, "run".into());
    }
    arguments
}

/// The definition of the whole command line: help, man pages and completions come from it.
pub fn definition() -> clap::Command {
    Arguments::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    /// R318
    #[test]
    fn the_print_flag_means_run() {
        let rewritten = |arguments: &[&str]| -> Vec<String> {
            with_print_flag_as_run(arguments.iter().map(OsString::from).collect())
                .iter()
                .map(|a| a.to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(rewritten(&["zapmyco", "-p", "hi"]), ["zapmyco", "run", "hi"]);
        assert_eq!(rewritten(&["zapmyco", "--model", "m", "-p", "hi"]), ["zapmyco", "run", "--model", "m", "hi"]);
        assert_eq!(rewritten(&["zapmyco", "jobs", "-p"]), ["zapmyco", "jobs", "-p"]);
        assert_eq!(rewritten(&["zapmyco", "run", "--", "-p"]), ["zapmyco", "run", "--", "-p"]);
    }
}
