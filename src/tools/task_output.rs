//! The tool `TaskOutput`: what a background job has written so far, or in all.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{self, annotated};
use super::bash::shown;
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::config::layout::Stream;
use crate::ids::JobKind;
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::subagents::delegation::{Delegation, Retrieval};
use crate::subagents::job::Job;
use crate::subagents::output;
use crate::text::imitation;
use crate::text::incoming::escaped;
use crate::text::units::one_line;

pub struct TaskOutputTool {
    spec: ToolSpec,
    delegation: Delegation,
    /// A process child sees its own shells only (decision 15).
    kinds: &'static [JobKind],
}

pub const NAME: &str = "TaskOutput";

#[derive(Deserialize)]
struct TaskOutputArguments {
    task_id: Option<String>,
    block: Option<bool>,
    timeout: Option<u64>,
}

/// R192
const DEFAULT_TIMEOUT_MS: u64 = 30_000;
const TIMEOUT_MAX_MS: u64 = 600_000;
/// R193: half of the 32,000 for each end.
const SHOWN_EACH_END: u64 = 16_000;

impl TaskOutputTool {
    pub fn new(delegation: Delegation, kinds: &'static [JobKind]) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "task_id": {"type": "string", "description": "The id of the background command or subagent"},
                "block": {"type": "boolean", "description": "Wait for its end; default true"},
                "timeout": {"type": "integer", "minimum": 0, "description": "Longest wait in milliseconds; default 30000, at most 600000"}
            }
        });
        let description = "Reads the output of a background command or subagent, waiting for its end unless `block` is false. \
                           What was read here is not announced again.";
        let declaration = ToolDeclaration { name: NAME.into(), description: description.into(), input_schema };
        let aliases = &["AgentOutputTool", "BashOutputTool", "AgentOutput", "BashOutput"];
        let spec = ToolSpec { declaration, aliases, concurrent: true, approval: ApprovalNeed::Never };
        Self { spec, delegation, kinds }
    }

    async fn run(&self, input: Value, context: ToolContext) -> Result<ToolReply, ToolFailure> {
        let parsed = arguments::parse::<TaskOutputArguments>(&self.spec.declaration, &input)?;
        let arguments = parsed.value;
        let job = find(&self.delegation, arguments.task_id.as_deref(), self.kinds)?;
        let longest = Duration::from_millis(arguments.timeout.unwrap_or(DEFAULT_TIMEOUT_MS).min(TIMEOUT_MAX_MS));
        let block = arguments.block.unwrap_or(true);
        let (retrieval, job) = self.delegation.retrieve(job, block.then_some(longest), &context.cancel).await;
        let reply = ToolReply { text: answer(retrieval, &job), structured: serde_json::to_value(job.view()).ok() };
        Ok(annotated(&parsed.notes, reply))
    }
}

/// The tags of R192.
fn answer(retrieval: Retrieval, job: &Job) -> String {
    let kind = job.owner.kind;
    let each_end = usize::try_from(SHOWN_EACH_END).unwrap_or(usize::MAX);
    let status = job.cause().map_or(job.word(), |cause| cause.task_word(kind));
    let (code, signal) = job.exit();
    let mut lines = vec![
        tag("retrieval_status", retrieval.name()),
        tag("task_id", job.id().as_str()),
        tag("task_type", task_type(kind)),
        tag("status", status),
    ];
    lines.extend(code.or(signal.map(|signal| 128 + signal)).map(|code| tag("exit_code", &code.to_string())));
    let (stdout, stdout_error) = output::read(job, Stream::Stdout, SHOWN_EACH_END);
    let (stderr, stderr_error) = output::read(job, Stream::Stderr, SHOWN_EACH_END);
    let mut text = shown(&stdout, each_end);
    if !stderr.is_empty() {
        text = format!("{text}\nstderr:\n{}", shown(&stderr, each_end)).trim_start_matches('\n').to_owned();
    }
    if kind != JobKind::Shell {
        // Written by an agent, which repeats what it has read of strangers (R232).
        text = imitation::marked(&text).into_owned();
    }
    // The text is data, so it cannot close its own tag.
    lines.push(format!("<output>\n{}\n</output>", text.replace("</output>", "&lt;/output&gt;")));
    let error = job.cause().and_then(|cause| cause.detail()).or(stdout_error).or(stderr_error);
    lines.extend(error.map(|error| tag("error", &error)));
    lines.join("\n")
}

fn tag(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", escaped(text))
}

/// R191
pub(super) fn task_type(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Shell => "local_bash",
        JobKind::ProcessAgent => "process_agent",
        JobKind::LocalAgent => "local_agent",
    }
}

/// R194: the job, or which there are.
pub(super) fn find(delegation: &Delegation, id: Option<&str>, kinds: &[JobKind]) -> Result<Job, ToolFailure> {
    let Some(id) = id.map(str::trim).filter(|id| !id.is_empty()) else { return Err(ToolFailure::invalid("Task ID is required")) };
    if let Some(job) = delegation.job(id).filter(|job| kinds.contains(&job.owner.kind)) {
        return Ok(job);
    }
    let running: Vec<String> = delegation
        .known_jobs()
        .iter()
        .filter(|job| job.is_running() && kinds.contains(&job.owner.kind))
        .map(|job| format!("{} ({})", job.id(), one_line(&job.owner.title, 60)))
        .collect();
    let hint = if running.is_empty() { "no task is running".to_owned() } else { format!("running tasks: {}", running.join(", ")) };
    Err(ToolFailure::new(FailureKind::NotFound, format!("No task found with ID: {}", one_line(id, 80))).with_hint(hint))
}

impl Tool for TaskOutputTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, _input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok(Effect::Internal)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(self.run(input, context))
    }
}
