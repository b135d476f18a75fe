//! The command line exactly as typed, with help texts. What the flags mean is decided by each command.

use std::ffi::OsString;

use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, CommandFactory, Parser, Subcommand};

use crate::cli::{agents, config, demo, jobs, manual, permissions, report, run, sessions, skills, subagent, trust};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

// Lines of at most 60 columns: the library that prints help breaks longer ones without their indentation.
const EXAMPLES: &str = "\
Examples:
  zapmyco demo                      on this folder, no key
  zapmyco run \"review src/\"         the answer on stdout
  git diff | zapmyco run --stdin \"review this\"
  zapmyco run --continue \"now fix the first one\"
  zapmyco run --output-format json \"...\" | jq .
  zapmyco jobs list                 what runs or ran
  zapmyco jobs sweep                prove nothing is left

Set-up of a model, any one of these:
  export ANTHROPIC_API_KEY=...      or OPENAI_API_KEY
  export ANTHROPIC_BASE_URL=...     or OPENAI_BASE_URL
  start Ollama, LM Studio, llama.cpp or vLLM here
  --model PROVIDER/MODEL            and --base-url: one run
  model = \"PROVIDER/MODEL\"          ~/.zapmyco/settings.toml
Providers: anthropic, openai, zai, deepseek, qwen,
  moonshot, openrouter, ollama, llamacpp, lmstudio, vllm;
  `zapmyco config defaults` shows how to add one
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
Environment:
  ZAPMYCO_MODEL, ZAPMYCO_BASE_URL   as the flags of run
  ZAPMYCO_PERMISSION_MODE           as the flag of run
  ZAPMYCO_SANDBOX                   as the flag of run
  ZAPMYCO_SESSION                   as the flag of subagent
  ZAPMYCO_LIMITS_<NAME>             see `config defaults`
  ZAPMYCO_HOME                      instead of ~/.zapmyco

Data, in ~/.zapmyco:
  zapmyco.db                        sessions, index of jobs
  subagents/SESSION/ID/             stdout, stderr, end.json
  settings.toml                     yours";

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<run::RunArguments>),
    Demo(demo::DemoArguments),
    Agents(agents::AgentsArguments),
    Config(config::ConfigArgs),
    Subagent(Box<subagent::SubagentArguments>),
    Jobs(jobs::JobsArguments),
    Sessions(sessions::SessionsArguments),
    Permissions(permissions::PermissionsArguments),
    Skills(skills::SkillsArguments),
    Trust(trust::TrustArguments),
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

/// `zapmyco run hi there`: the shell has made several words of one task.
pub fn quoting_hint(arguments: &[OsString], error: &clap::Error) -> Option<String> {
    let takes_a_text = arguments.get(1).is_some_and(|command| command == "run")
        || (arguments.get(1).is_some_and(|command| command == "subagent") && arguments.get(2).is_some_and(|action| action == "spawn"));
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) if error.kind() == ErrorKind::UnknownArgument => text,
        _ => return None,
    };
    // A flag that is not known is a slip of another kind.
    (takes_a_text && !unknown.starts_with('-'))
        .then(|| format!("\na task of several words is one argument: put it in quotes, for example \"... {unknown} ...\""))
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
