//! The tool `Bash`: runs one shell line under a keeper, in the foreground or in the background.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{self, annotated};
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::config::layout::Stream;
use crate::models::ToolDeclaration;
use crate::permissions::{Effect, Policy, shell_command};
use crate::subagents::delegation::{Delegation, SpawnError};
use crate::subagents::job::Job;
use crate::subagents::process::ShellOrder;
use crate::subagents::shell::{AtTimeout, ShellEnd, ShellResult};
use crate::text::fold::{Folded, Output};
use crate::text::units::exit_status;

pub struct BashTool {
    spec: ToolSpec,
    delegation: Delegation,
    policy: Arc<Policy>,
}

pub const NAME: &str = "Bash";

const DESCRIPTION: &str = "\
Runs a shell command (bash) in the session's working directory and returns its output. The working directory and variables do \
not persist between calls: use absolute paths or `cd DIR && ...` within one command. stdin is empty. Long output is shortened in \
the middle and the path of the whole is given.

- `timeout` in milliseconds (default 120000, at most 600000). A command that reaches it goes on in the background, except one \
that begins with `sleep` or uses git: that is stopped.
- `run_in_background: true` returns at once with an id; a notification follows when it ends, TaskOutput reads its output, \
TaskStop ends it. Do not put `&` at the end.
- Prefer Read, Glob, Grep, Edit and Write to cat, find, grep and sed.";

#[derive(Deserialize)]
struct BashArguments {
    command: String,
    timeout: Option<u64>,
    description: Option<String>,
    #[serde(default)]
    run_in_background: bool,
}

impl BashTool {
    /// `policy` says what holds the commands that run.
    pub fn new(delegation: Delegation, policy: Arc<Policy>) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The shell command"},
                "timeout": {"type": "integer", "minimum": 1, "description": "Milliseconds; default 120000, at most 600000"},
                "description": {"type": "string", "description": "What the command does, in five to ten words"},
                "run_in_background": {"type": "boolean", "description": "Return at once and be told when it ends"}
            },
            "required": ["command"]
        });
        let declaration = ToolDeclaration { name: NAME.into(), description: DESCRIPTION.into(), input_schema };
        let spec = ToolSpec { declaration, aliases: &[], concurrent: false, approval: ApprovalNeed::ByEffect };
        Self { spec, delegation, policy }
    }

    async fn run(&self, input: Value, context: ToolContext) -> Result<ToolReply, ToolFailure> {
        let parsed = arguments::parse::<BashArguments>(&self.spec.declaration, &input)?;
        let arguments = parsed.value;
        let mut notes = parsed.notes;
        if arguments.command.trim().is_empty() {
            return Err(ToolFailure::invalid("`command` is empty"));
        }
        let limits = self.delegation.limits();
        let asked = arguments.timeout.map_or(limits.shell_timeout, Duration::from_millis);
        let timeout = asked.min(limits.shell_timeout_max);
        if asked > timeout {
            notes.push(format!("timeout is at most {} ms; that was taken", timeout.as_millis()));
        }
        let at_timeout = if may_move(&arguments.command) { AtTimeout::Move } else { AtTimeout::Stop };
        let order = ShellOrder {
            command: arguments.command,
            description: arguments.description,
            cwd: context.cwd.clone(),
            call_id: Some(context.call_id.clone()),
            background: arguments.run_in_background,
            rights: self.policy.shell_rights(),
        };
        let each_end = limits.tool_result_max / SHOWN_PART;
        let end =
            self.delegation.run_shell(order, timeout, at_timeout, each_end, &context.cancel).await.map_err(|error| failure(&error))?;
        let reply = match end {
            ShellEnd::Finished(result) => {
                let lines = [exit_line(&result.job), swept_line(&result.job)];
                let lines: Vec<String> = lines.into_iter().flatten().collect();
                reply(&result, each_end, (!lines.is_empty()).then(|| lines.join("\n")))
            }
            ShellEnd::Stopped { result, cancelled: true } => {
                let text = reply(&result, each_end, Some("Cancelled; the command and everything it had started was ended.".into())).text;
                return Err(ToolFailure::new(FailureKind::Cancelled, text));
            }
            ShellEnd::Stopped { result, cancelled: false } => {
                let line = format!("Timed out after {} ms; the command and everything it had started was ended.", timeout.as_millis());
                let text = reply(&result, each_end, Some(line)).text;
                return Err(ToolFailure::failed(text)
                    .with_hint("a command that begins with sleep or uses git does not go on in the background; use a longer timeout"));
            }
            ShellEnd::Background(job) => ToolReply { text: background(&job), structured: view(&job) },
            ShellEnd::Moved(result) => {
                let line = format!(
                    "The command reached its timeout of {} ms and was moved to the background.\n{}",
                    timeout.as_millis(),
                    background(&result.job)
                );
                reply(&result, each_end, Some(line))
            }
        };
        Ok(annotated(&notes, reply))
    }
}

/// Two streams with two ends each, and room for what is said around them.
const SHOWN_PART: u64 = 8;

fn failure(error: &SpawnError) -> ToolFailure {
    match error {
        SpawnError::NulInTask { at } => ToolFailure::invalid(format!("`command` holds a NUL character at byte {at}; remove it")),
        _ => ToolFailure::failed(format!("the command was not started: {error}")),
    }
}

fn view(job: &Job) -> Option<Value> {
    serde_json::to_value(job.view()).ok()
}

/// R199
fn background(job: &Job) -> String {
    format!(
        "Command running in background with ID: {}. Output is being written to: {} (stderr: {}). You will be notified when it ends; \
         TaskOutput reads what there is, TaskStop ends it.",
        job.id(),
        job.folder.output(Stream::Stdout).display(),
        job.folder.output(Stream::Stderr).display()
    )
}

/// Nothing for a plain success.
fn exit_line(job: &Job) -> Option<String> {
    let cause = job.cause()?;
    match job.exit() {
        (Some(0), None) => cause.detail(),
        (code, signal) => {
            let detail = cause.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
            Some(format!("Exit code: {}{detail}", exit_status(code, signal)))
        }
    }
}

/// A model that started something with `&` has to know that it is gone.
fn swept_line(job: &Job) -> Option<String> {
    let swept = job.swept();
    let what = if swept == 1 { "process" } else { "processes" };
    (swept > 0).then(|| format!("[{swept} {what} left running by the command ended with it; run_in_background keeps a command running]"))
}

fn reply(result: &ShellResult, each_end: u64, last_line: Option<String>) -> ToolReply {
    let each_end = usize::try_from(each_end).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    if !result.stdout.is_empty() {
        parts.push(shown(&result.stdout, each_end));
    }
    if !result.stderr.is_empty() {
        parts.push(format!("stderr:\n{}", shown(&result.stderr, each_end)));
    }
    if parts.is_empty() && last_line.is_none() {
        parts.push("(no output)".into());
    }
    parts.extend(last_line);
    let left = result.job.left_over().iter().map(|left| match left.pid {
        // Not a process, but what else is not as it should be.
        0 => left.command.clone(),
        pid => format!("could not be ended: PID {pid} ({})", left.state),
    });
    parts.extend(left);
    ToolReply { text: parts.join("\n"), structured: view(&result.job) }
}

/// Both ends of one stream, bounded and harmless; the tail is never lost.
pub(super) fn shown(output: &Output, each_end: usize) -> String {
    let (text, bad_bytes, cut) = match output.fold(each_end) {
        Folded::Short(shown) | Folded::Large(shown) => (shown.text.trim_end_matches('\n').to_owned(), shown.bad_bytes, false),
        Folded::Cut { head, tail, omitted_bytes, .. } => {
            let middle = format!("[... {omitted_bytes} bytes left out ...]");
            (
                format!("{}\n{middle}\n{}", head.text.trim_end_matches('\n'), tail.text.trim_end_matches('\n')),
                head.bad_bytes + tail.bad_bytes,
                true,
            )
        }
    };
    let mut lines = vec![text];
    if bad_bytes > 0 {
        lines.push(format!("[{bad_bytes} bytes were not UTF-8, shown as \u{fffd}]"));
    }
    if output.is_incomplete() {
        let reason = if output.write_failed { "writing failed" } else { "the limit was reached" };
        lines.push(format!("[{} of {} bytes are kept on disk: {reason}]", output.kept, output.bytes));
    }
    if cut {
        lines.push(format!("[Truncated. Full output: {}]", output.path));
    }
    lines.join("\n")
}

/// R200: not what begins with `sleep`, uses git, or cannot be parsed.
fn may_move(command: &str) -> bool {
    let first = shell_command::without_wrappers(command);
    let starts_with_sleep = first.split_whitespace().next() == Some("sleep");
    let uses_git = shell_command::rough_fragments(command)
        .iter()
        .any(|fragment| shell_command::without_wrappers(fragment).split_whitespace().next() == Some("git"));
    !starts_with_sleep && !uses_git && quotes_are_closed(command)
}

/// A line whose quotes are open is no command.
fn quotes_are_closed(command: &str) -> bool {
    let mut quote = None;
    let mut dangling = false;
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), close) if open == close => quote = None,
            // An escape holds outside quotes and inside double ones.
            (None | Some('"'), '\\') => dangling |= characters.next().is_none(),
            _ => {}
        }
    }
    quote.is_none() && !dangling
}

impl Tool for BashTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        let parsed = arguments::parse::<BashArguments>(&self.spec.declaration, input)?;
        Ok(Effect::Runs { command: parsed.value.command })
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(self.run(input, context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R200
    #[test]
    fn what_may_not_be_moved_to_the_background() {
        for command in ["sleep 500", "  sleep 1; echo x", "git fetch", "cd x && git status", "timeout 9 git pull", "echo 'open", "echo \\"]
        {
            assert!(!may_move(command), "{command}");
        }
        for command in ["cargo build", "echo 'a; b'", "make; echo done", "echo it\\'s", "npm run sleepy", "cat digit.txt"] {
            assert!(may_move(command), "{command}");
        }
    }
}
