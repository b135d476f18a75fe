//! The tool `TaskStop`: ends a background job and everything it started.

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{self, annotated};
use super::task_output::{find, task_type};
use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::ids::JobKind;
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::subagents::answers::Ended;
use crate::subagents::delegation::Delegation;
use crate::subagents::job::Job;
use crate::supervisor::record::Requester;
use crate::text::units::one_line;

pub struct TaskStopTool {
    spec: ToolSpec,
    delegation: Delegation,
    kinds: &'static [JobKind],
}

pub const NAME: &str = "TaskStop";

#[derive(Deserialize)]
struct TaskStopArguments {
    task_id: Option<String>,
    shell_id: Option<String>,
}

impl TaskStopTool {
    pub fn new(delegation: Delegation, kinds: &'static [JobKind]) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "task_id": {"type": "string", "description": "The id of the background command or subagent"},
                "shell_id": {"type": "string", "description": "Older name of task_id"}
            }
        });
        let description = "Ends a background command or subagent and every process it started. Its output so far is kept.";
        let declaration = ToolDeclaration { name: NAME.into(), description: description.into(), input_schema };
        let aliases = &["KillShell", "KillBash"];
        let spec = ToolSpec { declaration, aliases, concurrent: true, approval: ApprovalNeed::Never };
        Self { spec, delegation, kinds }
    }

    async fn run(&self, input: Value) -> Result<ToolReply, ToolFailure> {
        let parsed = arguments::parse::<TaskStopArguments>(&self.spec.declaration, &input)?;
        let id = parsed.value.task_id.as_deref().or(parsed.value.shell_id.as_deref());
        let job = find(&self.delegation, id, self.kinds)?;
        let not_running = |job: &Job| {
            let status = job.cause().map_or("running", |cause| cause.task_word(job.owner.kind));
            ToolFailure::invalid(format!("Task {} is not running (status: {status})", job.id()))
        };
        if !job.is_running() {
            return Err(not_running(&job));
        }
        match self.delegation.stop_job(job.id(), Requester::Model).await {
            Ended::Now(job) => Ok(annotated(&parsed.notes, stopped(&job))),
            Ended::Before(job) => Err(not_running(&job)),
            Ended::Unknown(_) => Err(ToolFailure::failed(format!("Task {} cannot be stopped", job.id()))),
            Ended::Failed { reason, .. } => Err(ToolFailure::failed(format!("Task {} cannot be stopped", job.id())).with_hint(reason)),
        }
    }
}

/// R196
fn stopped(job: &Job) -> ToolReply {
    let command = if job.owner.kind == JobKind::Shell { &job.owner.task } else { &job.owner.title };
    let mut answer = json!({
        "message": format!("Successfully stopped task: {} ({})", job.id(), one_line(command, 200)),
        "task_id": job.id().as_str(),
        "task_type": task_type(job.owner.kind),
    });
    if job.owner.kind == JobKind::Shell {
        answer["command"] = Value::String(job.owner.task.clone());
    }
    let left: Vec<String> = job.left_over().iter().map(|left| format!("PID {} ({})", left.pid, left.state)).collect();
    if !left.is_empty() {
        answer["could_not_be_ended"] = json!(left);
    }
    ToolReply { text: answer.to_string(), structured: serde_json::to_value(job.view()).ok() }
}

impl Tool for TaskStopTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, _input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok(Effect::Internal)
    }

    fn call<'a>(&'a self, input: Value, _context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(self.run(input))
    }
}
