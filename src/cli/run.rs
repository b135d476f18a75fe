//! The headless run and its end; also the payload of a process subagent (`run --subagent`).

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::output::OutputFormat;
use crate::cli::report::CommandError;
use crate::permissions::Mode;

/// Give the agent a task and print its answer.
///
/// The answer alone goes to stdout; progress, notices and errors go to stderr. Nothing is ever asked: what would need a
/// person's word is denied, and the message says how to allow it.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArguments {
    /// The task; `-` reads it from stdin, as does leaving it out with a pipe on stdin
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<String>,

    /// Read stdin to its end and put it after the prompt
    #[arg(long)]
    pub stdin: bool,

    #[command(flatten)]
    pub model: ModelArguments,

    #[command(flatten)]
    pub rights: RightsArguments,

    /// What stdout carries
    #[arg(long, alias = "output", value_enum, default_value = "text", value_name = "FORMAT")]
    pub output_format: OutputFormat,

    /// Most model requests of a turn; at the limit the model gives a closing report and the exit code is 5
    #[arg(long, alias = "maxTurns", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_turns: Option<u32>,

    /// Text to put after the system prompt
    #[arg(long, value_name = "TEXT")]
    pub append_system_prompt: Option<String>,

    /// Go on with the newest session of this folder
    #[arg(long = "continue", short = 'c', conflicts_with = "resume")]
    pub continue_last: bool,

    /// Go on with this session
    #[arg(long, short = 'r', value_name = "SESSION")]
    pub resume: Option<String>,

    /// What happens at the end to subagents that still run
    #[arg(long, value_enum, default_value = "wait", value_name = "WHAT")]
    pub on_exit: OnExit,

    /// Exit 3 when any call was denied, even if the work was done another way
    #[arg(long, conflicts_with = "ignore_denied")]
    pub fail_on_denied: bool,

    /// Denied calls do not change the exit code
    #[arg(long)]
    pub ignore_denied: bool,

    /// Work in this folder
    #[arg(long, short = 'C', value_name = "FOLDER")]
    pub cwd: Option<PathBuf>,

    /// No progress on stderr, only what must be known
    #[arg(long, short)]
    pub quiet: bool,

    /// Run as a subagent (started by the `subagent` tool)
    #[arg(long, hide = true)]
    pub subagent: bool,

    /// Read the task from this file
    #[arg(long, hide = true, value_name = "FILE", conflicts_with = "prompt")]
    pub task_file: Option<PathBuf>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  zapmyco run \"explain what src/ does\"
  git diff | zapmyco run --stdin \"review this change\"
  zapmyco run --permission-mode acceptEdits \"fix the typos in docs/\"
  zapmyco run --allowedTools 'Bash(cargo test:*)' \"make the tests pass\"
  zapmyco run --model openai/gpt-5 --output-format json \"...\" | jq -r .result
  zapmyco run --model script:agent.yaml \"...\"          play a scripted model (no key)
  zapmyco run --record talk.jsonl \"...\"                record, then play back with --model replay:talk.jsonl";

/// Which model answers. Shared by every command that starts agents.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArguments {
    /// PROVIDER/MODEL, script:FILE or replay:FILE
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,

    /// Address of the provider, with or without /v1
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,

    /// Record every model request and answer, subagents included, into this file
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// What may happen without asking. Shared by every command that starts agents.
#[derive(Debug, Clone, Default, Args)]
pub struct RightsArguments {
    /// default: reading is free; acceptEdits: file edits too; plan: reading only; yolo: everything
    #[arg(long, value_name = "MODE", value_parser = |text: &str| text.parse::<Mode>().map_err(|error| error.to_string()))]
    pub permission_mode: Option<Mode>,

    /// Calls to allow, e.g. `Edit` or `Bash(npm test:*)`; may be repeated or comma-separated
    #[arg(long = "allowed-tools", alias = "allowedTools", visible_alias = "allowedTools", value_name = "RULES")]
    pub allowed_tools: Vec<String>,

    /// Tools to take away, or calls to deny, e.g. `Bash` or `Bash(rm:*)`
    #[arg(long = "disallowed-tools", visible_alias = "disallowedTools", value_name = "RULES")]
    pub disallowed_tools: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnExit {
    /// Wait for them, at most ten minutes, and let the model read their results
    Wait,
    /// Stop them; their output so far is kept
    Stop,
    /// Let process subagents finish without this run; everything else is stopped
    Detach,
}

/// The whole prompt: argument, file, stdin, or both.
///
/// With a prompt given, stdin is never waited for, unless `--stdin` asks for it (fault J1).
pub fn prompt_text(arguments: &RunArguments) -> Result<String, CommandError> {
    if let Some(path) = &arguments.task_file {
        return std::fs::read_to_string(path)
            .map_err(|error| CommandError::usage(format!("cannot read the task from {}: {error}", path.display())));
    }
    let typed = arguments.prompt.as_deref().filter(|prompt| *prompt != "-");
    let wants_stdin = arguments.stdin || arguments.prompt.as_deref() == Some("-");
    let text = match typed {
        Some(prompt) if wants_stdin => format!("{prompt}\n\n{}", read_stdin()?),
        Some(prompt) => prompt.to_owned(),
        None if wants_stdin || !std::io::stdin().is_terminal() => read_stdin()?,
        None => return Err(CommandError::usage("no prompt was given").with_hint("zapmyco run \"what to do\", or pipe a text into it")),
    };
    if text.trim().is_empty() {
        return Err(CommandError::usage("the prompt is empty").with_hint("zapmyco run \"what to do\""));
    }
    Ok(text)
}

/// Largest text taken from stdin, in bytes.
const STDIN_MAX: u64 = 64 * crate::config::limits::MIB;

pub(super) fn read_stdin() -> Result<String, CommandError> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(STDIN_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| CommandError::usage(format!("cannot read stdin: {error}")))?;
    if bytes.len() as u64 > STDIN_MAX {
        return Err(CommandError::usage("stdin has more than 64 MB").with_hint("name a file in the prompt instead; the agent can read it"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
