//! The tool `subagent`: spawn, poll, list, kill. Thin: checks arguments, calls the delegation, answers in the fixed formats.

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::subagents::answers::{self, Asked, Ended};
use crate::subagents::delegation::{Delegation, SpawnError};
use crate::subagents::job::{Job, JobList};
use crate::subagents::poll::extra_wait;
use crate::supervisor::record::Requester;
use crate::text::subagent_replies::{
    CLI, KILL_WITHOUT_IDS, MISSING_ACTION, POLL_WITHOUT_IDS, TASK_EMPTY, TASK_MISSING, no_folder, no_start, spawned, unknown_action,
    unsupported_cli, wait_was_clamped,
};
use crate::text::units::one_line;

pub struct SubagentTool {
    spec: ToolSpec,
    delegation: Delegation,
}

/// The name under which the model calls it.
pub const NAME: &str = "subagent";

/// R393
const DESCRIPTION: &str = "\
Starts subagents as independent operating-system processes and looks after them. Each has its own conversation and its own \
tools, works in the current directory, and knows only what its task says, so write tasks that are complete by themselves.

Use it for:
- a large task that splits into independent parts which run at the same time
- several views of one code base (correctness, security, tests, ...)
- independent work that gains from running in parallel

Actions:
- spawn: needs `task`; returns at once with the id. Start all independent children before the first poll.
- poll: needs `subagent_ids`; waits 5 seconds, plus `wait_secs` (1 to 30), for them to end and shows status and output of those \
that have ended. Ask for all of them in one call, and again while some are still running.
- list: shows the children of this session.
- kill: needs `subagent_ids`; ends them and everything they started.

Children run at most 300 seconds by default. The end of a child that was not polled is announced by itself. Long output is folded \
to its beginning and end; the path of the whole is given and can be read. A subagent cannot start further subagents.";

impl SubagentTool {
    pub fn new(delegation: Delegation) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["spawn", "poll", "list", "kill"], "description": "What to do"},
                "cli": {"type": "string", "enum": [CLI], "description": "Which program to run; only zapmyco"},
                "task": {"type": "string", "description": "spawn: the whole task of the child"},
                "subagent_ids": {"type": "array", "items": {"type": "string"}, "description": "poll, kill: the ids that spawn returned"},
                "wait_secs": {"type": "number", "description": "poll: seconds to wait beyond the usual 5; 1 to 30, default 0"}
            },
            "required": ["action"]
        });
        let declaration = ToolDeclaration { name: NAME.into(), description: DESCRIPTION.into(), input_schema };
        let spec = ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::Never };
        Self { spec, delegation }
    }

    async fn run(&self, input: Value, context: ToolContext) -> Result<ToolReply, ToolFailure> {
        let request = Request::read(&input, &self.delegation)?;
        let unknown = unknown_arguments(&input);
        let mut reply = match request {
            Request::Spawn { task } => self.spawn(&task, &context).await?,
            Request::Poll { ids, extra, clamped } => {
                let found = self.delegation.poll(&ids, extra, &context.cancel).await;
                let mut text = answers::poll_text(&found, self.delegation.limits());
                if clamped {
                    text = format!("{text}\n{}", wait_was_clamped(extra));
                }
                let jobs = found.iter().filter_map(|asked| match asked {
                    Asked::Found(job) => Some(job.as_ref()),
                    Asked::Unknown(_) | Asked::Broken { .. } => None,
                });
                ToolReply { text, structured: structured(jobs) }
            }
            Request::List => {
                let jobs = self.delegation.list().await.map_err(|error| ToolFailure::failed(error.to_string()))?;
                ToolReply { text: answers::list_text(&jobs), structured: structured(jobs.iter()) }
            }
            Request::Kill { ids } => {
                let outcomes = self.delegation.kill(&ids, Requester::Model).await;
                let jobs = outcomes.iter().filter_map(|outcome| match outcome {
                    Ended::Before(job) | Ended::Now(job) => Some(job.as_ref()),
                    Ended::Unknown(_) | Ended::Failed { .. } => None,
                });
                ToolReply { text: answers::kill_text(&outcomes), structured: structured(jobs) }
            }
        };
        if !unknown.is_empty() {
            reply.text = format!("{}\n(ignored unknown arguments: {})", reply.text, unknown.join(", "));
        }
        Ok(reply)
    }

    async fn spawn(&self, task: &str, context: &ToolContext) -> Result<ToolReply, ToolFailure> {
        let started = self.delegation.spawn_agent(task, Some(context.call_id.clone()), &context.cancel).await;
        let started = started.map_err(|error| spawn_failure(&error))?;
        let text = spawned(started.id.as_str(), task, started.created_at);
        Ok(ToolReply { text, structured: serde_json::to_value(started.job.view()).ok() })
    }
}

fn structured<'a>(jobs: impl Iterator<Item = &'a Job>) -> Option<Value> {
    serde_json::to_value(JobList { jobs: jobs.map(Job::view).collect() }).ok()
}

/// The fixed texts of decision 24; the reason names stage and cause.
fn spawn_failure(error: &SpawnError) -> ToolFailure {
    match error {
        SpawnError::EmptyTask => ToolFailure::invalid(TASK_EMPTY),
        SpawnError::NulInTask { .. } => ToolFailure::invalid(error.to_string()),
        SpawnError::Cancelled | SpawnError::OneOffModel => ToolFailure::failed(error.to_string()),
        SpawnError::Turn(_) | SpawnError::Handover(_) | SpawnError::Launch(_) | SpawnError::Job(_) | SpawnError::Interrupted => {
            ToolFailure::failed(start_failure_text(error))
                .with_hint("no child was started; try once more only when the cause may pass, else do the work yourself")
        }
    }
}

/// What a start failure is called (R385, decision 24).
fn start_failure_text(error: &SpawnError) -> String {
    let text = error.to_string();
    if error.is_folder() { no_folder(text.strip_prefix("folder: ").unwrap_or(&text)) } else { no_start(&text) }
}

/// A checked call.
enum Request {
    Spawn { task: String },
    Poll { ids: Vec<String>, extra: std::time::Duration, clamped: bool },
    List,
    Kill { ids: Vec<String> },
}

const KNOWN: [&str; 5] = ["action", "cli", "task", "subagent_ids", "wait_secs"];

fn unknown_arguments(input: &Value) -> Vec<&str> {
    input.as_object().map(|map| map.keys().map(String::as_str).filter(|key| !KNOWN.contains(key)).collect()).unwrap_or_default()
}

impl Request {
    fn read(input: &Value, delegation: &Delegation) -> Result<Self, ToolFailure> {
        let empty = Map::new();
        let map = match input {
            Value::Object(map) => map,
            Value::Null => &empty,
            other => return Err(ToolFailure::invalid(format!("the arguments must be an object, got {}", shown(other)))),
        };
        let get = |name: &str| map.get(name).filter(|value| !value.is_null());
        let action = match get("action") {
            None => return Err(ToolFailure::invalid(MISSING_ACTION)),
            Some(Value::String(action)) => action.as_str(),
            Some(other) => return Err(ToolFailure::invalid(unknown_action(&other.to_string()))),
        };
        if !matches!(action, "spawn" | "poll" | "list" | "kill") {
            return Err(ToolFailure::invalid(if action.is_empty() { MISSING_ACTION.into() } else { unknown_action(action) }));
        }
        match get("cli") {
            None => {}
            Some(Value::String(cli)) if cli == CLI => {}
            Some(Value::String(cli)) => return Err(ToolFailure::invalid(unsupported_cli(cli))),
            Some(other) => return Err(ToolFailure::invalid(unsupported_cli(&other.to_string()))),
        }
        match action {
            "spawn" => match get("task") {
                None => Err(ToolFailure::invalid(TASK_MISSING)),
                Some(Value::String(task)) if task.trim().is_empty() => Err(ToolFailure::invalid(TASK_EMPTY)),
                Some(Value::String(task)) => Ok(Request::Spawn { task: task.clone() }),
                Some(other) => Err(ToolFailure::invalid(format!("task must be a string, got {}", shown(other)))),
            },
            "poll" => {
                let ids = ids(get("subagent_ids"), POLL_WITHOUT_IDS)?;
                let extra = extra_wait(get("wait_secs"), delegation.limits()).map_err(|error| ToolFailure::invalid(error.to_string()))?;
                Ok(Request::Poll { ids, extra: extra.wait, clamped: extra.clamped })
            }
            "list" => Ok(Request::List),
            _ => Ok(Request::Kill { ids: ids(get("subagent_ids"), KILL_WITHOUT_IDS)? }),
        }
    }
}

/// A single id may stand without its brackets.
fn ids(value: Option<&Value>, when_empty: &str) -> Result<Vec<String>, ToolFailure> {
    let wrong = |value: &Value| ToolFailure::invalid(format!("subagent_ids must be an array of strings, got {}", shown(value)));
    let ids = match value {
        None => Vec::new(),
        Some(Value::String(id)) if id.trim().is_empty() => Vec::new(),
        Some(Value::String(id)) => vec![id.clone()],
        Some(whole @ Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong(whole))).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong(other)),
    };
    if ids.is_empty() { Err(ToolFailure::invalid(when_empty)) } else { Ok(ids) }
}

fn shown(value: &Value) -> String {
    one_line(&value.to_string(), 80)
}

impl Tool for SubagentTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Each call inside a child is decided there (R392).
    fn effect(&self, _input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok(Effect::Internal)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(self.run(input, context))
    }
}
