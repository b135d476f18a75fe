//! A run as text, json or stream-json: the one place of those formats (section AC of the requirements).
//!
//! stream-json is written by a thread of its own behind a bounded queue: a slow reader slows the run down and never
//! gets half a line; a reader that has gone away ends the run.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agent::event::{Event, EventKind, EventSink, SubagentOrigin, SubagentTotals, TurnCause};
use crate::agent::session::Denial;
use crate::cli::report::{self, CommandError, Exit};
use crate::ids::SessionId;
use crate::models::prices::Usd;
use crate::models::{Block, Message, Role, Usage};
use crate::permissions::sandbox::SandboxReport;
use crate::text::fold::harmless;
use crate::text::subagent_replies::LeftJob;

/// Version of the result object and of the lines of stream-json.
pub const OUTPUT_VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// The answer alone
    Text,
    /// One JSON object at the end
    Json,
    /// One JSON object per line while the run goes on, the result last
    StreamJson,
}

/// A job that was still running when the run ended (R387).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobLeft {
    pub id: String,
    pub kind: String,
    pub title: String,
    pub fate: Fate,
    pub output_path: String,
}

impl JobLeft {
    /// The same for the list on stderr.
    pub fn line(&self) -> LeftJob {
        LeftJob {
            id: self.id.clone(),
            title: self.title.clone(),
            left_running: self.fate == Fate::LeftRunning,
            output_path: self.output_path.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Stopped,
    LeftRunning,
}

/// Everything the result object says (R319, R320).
#[derive(Clone, Debug)]
pub struct RunResult {
    pub session: Option<SessionId>,
    pub exit: Exit,
    pub cause: Option<TurnCause>,
    pub text: String,
    pub errors: Vec<String>,
    pub duration: Duration,
    pub steps: u32,
    pub usage: Usage,
    pub usage_by_model: BTreeMap<String, Usage>,
    /// At list prices, of the run and all its subagents; `None` when a price is not known.
    pub cost: Option<Usd>,
    pub denials: Vec<Denial>,
    pub jobs_left: Vec<JobLeft>,
    /// What holds commands; `None` when there was no session.
    pub sandbox: Option<SandboxReport>,
}

impl RunResult {
    /// A run that failed before there was a session.
    pub fn failed_early(error: &CommandError) -> Self {
        Self {
            session: None,
            exit: error.exit,
            cause: None,
            text: String::new(),
            errors: vec![error.to_string()],
            duration: Duration::ZERO,
            steps: 0,
            usage: Usage::default(),
            usage_by_model: BTreeMap::new(),
            cost: Some(Usd::ZERO),
            denials: Vec::new(),
            jobs_left: Vec::new(),
            sandbox: None,
        }
    }

    pub fn to_json(&self) -> Value {
        let ok = self.exit == Exit::Done;
        let mut object = json!({
            "type": "result",
            "subtype": self.subtype(),
            "is_error": !ok,
            "ok": ok,
            "exit_code": self.exit.code(),
            "end_cause": self.end_cause(),
            "partial": self.is_partial(),
            "duration_ms": u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            "num_turns": self.steps,
            "result": self.text,
            "session_id": self.session,
            "total_cost_usd": self.cost,
            "usage": self.usage,
            "modelUsage": self.usage_by_model,
            "permission_denials": self.denials,
            "jobs_left": self.jobs_left,
            "sandbox": self.sandbox,
            "schema_version": OUTPUT_VERSION,
        });
        if let (false, Value::Object(fields)) = (self.errors.is_empty(), &mut object) {
            fields.insert("errors".to_owned(), json!(self.errors));
        }
        object
    }

    fn subtype(&self) -> &'static str {
        match &self.cause {
            Some(TurnCause::MaxTurns) => "error_max_turns",
            Some(TurnCause::Budget) => "error_max_budget_usd",
            Some(TurnCause::Finished) if self.exit == Exit::Done || self.exit == Exit::Denied => "success",
            _ => "error_during_execution",
        }
    }

    fn end_cause(&self) -> &'static str {
        match &self.cause {
            Some(TurnCause::Finished) => match self.exit {
                Exit::Denied => "denied",
                Exit::JobsLeft => "jobs_left",
                _ => "finished",
            },
            Some(TurnCause::MaxTurns) => "max_turns",
            Some(TurnCause::Budget) => "budget",
            Some(TurnCause::MaxTokens) => "max_tokens",
            Some(TurnCause::Refused) => "refused",
            Some(TurnCause::ModelFailed { .. }) => "model_failed",
            Some(TurnCause::StoreFailed { .. }) => "store_failed",
            Some(TurnCause::StoppedByHook { .. }) => "stopped_by_hook",
            Some(TurnCause::Cancelled) => "cancelled",
            None => "not_started",
        }
    }

    /// The work is not the whole of what was asked for: a limit was reached, or a text broke off.
    pub fn is_partial(&self) -> bool {
        match &self.cause {
            Some(TurnCause::MaxTurns | TurnCause::Budget | TurnCause::MaxTokens) => true,
            Some(TurnCause::Finished) => false,
            Some(
                TurnCause::Refused
                | TurnCause::ModelFailed { .. }
                | TurnCause::StoreFailed { .. }
                | TurnCause::StoppedByHook { .. }
                | TurnCause::Cancelled,
            )
            | None => !self.text.is_empty(),
        }
    }

    /// The text is what had arrived before a failure or a stop, not an answer.
    pub fn is_broken(&self) -> bool {
        match &self.cause {
            Some(TurnCause::Finished | TurnCause::MaxTurns | TurnCause::Budget | TurnCause::MaxTokens | TurnCause::Refused) => false,
            Some(
                TurnCause::ModelFailed { .. } | TurnCause::StoreFailed { .. } | TurnCause::StoppedByHook { .. } | TurnCause::Cancelled,
            )
            | None => true,
        }
    }
}

/// Where the machine format of a run goes.
pub enum Output {
    Text,
    Json,
    Stream(LineWriter),
}

impl Output {
    /// `reader_gone` is cancelled when the reader of stdout has closed it.
    pub fn new(format: OutputFormat, backlog: usize, reader_gone: CancellationToken) -> Self {
        match format {
            OutputFormat::Text => Output::Text,
            OutputFormat::Json => Output::Json,
            OutputFormat::StreamJson => Output::Stream(LineWriter::start(backlog, reader_gone)),
        }
    }

    /// Writes the end of the run: the answer alone, or the result object.
    pub fn finish(&self, answer: &str, result: &RunResult) -> Result<(), CommandError> {
        match self {
            Output::Text if answer.is_empty() => Ok(()),
            // A terminal obeys what a file only keeps.
            Output::Text if std::io::IsTerminal::is_terminal(&std::io::stdout()) => {
                report::print_out(&with_line_end(&harmless(answer.as_bytes()).text))
            }
            Output::Text => report::print_out(&with_line_end(answer)),
            Output::Json => report::print_out(&format!("{}\n", result.to_json())),
            Output::Stream(writer) => writer.finish(&result.to_json()),
        }
    }
}

impl EventSink for Output {
    fn send(&self, event: &Event) {
        match self {
            Output::Text | Output::Json => {}
            Output::Stream(writer) => writer.event(event),
        }
    }
}

fn with_line_end(text: &str) -> String {
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// Complete lines to stdout, in order, by one thread.
pub struct LineWriter {
    /// `None` after the end.
    sender: Mutex<Option<SyncSender<String>>>,
    thread: Mutex<Option<JoinHandle<std::io::Result<()>>>>,
}

impl LineWriter {
    fn start(backlog: usize, reader_gone: CancellationToken) -> Self {
        let (sender, receiver) = sync_channel::<String>(backlog);
        let thread = std::thread::spawn(move || {
            let mut stdout = std::io::stdout().lock();
            while let Ok(line) = receiver.recv() {
                if let Err(error) = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()) {
                    reader_gone.cancel();
                    return Err(error);
                }
            }
            Ok(())
        });
        Self { sender: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) }
    }

    /// Waits while the queue is full. Lines after the reader has gone are dropped: nobody is there to read them.
    fn line(&self, value: &Value) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sender) = sender {
            let _ = sender.send(format!("{value}\n"));
        }
    }

    fn event(&self, event: &Event) {
        if let Some(value) = stream_line(event) {
            self.line(&value);
        }
    }

    fn finish(&self, last: &Value) -> Result<(), CommandError> {
        self.line(last);
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(report::stdout_error(error)),
            Some(Err(_)) => Err(CommandError::new(Exit::Fault, "the output thread failed")),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }
}

/// The line of one event; `None` for events that have none.
fn stream_line(event: &Event) -> Option<Value> {
    let session = &event.session;
    let value = match &event.kind {
        EventKind::SessionStarted { cwd, model, tools, agents, mode, resumed } => json!({
            "type": "system", "subtype": "init", "session_id": session, "cwd": cwd, "tools": tools, "agents": agents, "mcp_servers": [],
            "model": model, "permissionMode": mode, "resumed": resumed, "schema_version": OUTPUT_VERSION,
        }),
        EventKind::AssistantMessage { message, usage } => json!({
            "type": "assistant", "session_id": session, "parent_tool_use_id": null,
            "message": { "role": "assistant", "content": content(message), "usage": usage },
        }),
        EventKind::ToolResults { message } => json!({
            "type": "user", "session_id": session, "parent_tool_use_id": null,
            "message": { "role": "user", "content": content(message) },
        }),
        EventKind::InputJoined { source, text } => json!({
            "type": "user", "session_id": session, "parent_tool_use_id": null, "source": source,
            "message": { "role": "user", "content": [{ "type": "text", "text": text }] },
        }),
        EventKind::TurnStarted { source, text } => json!({
            "type": "user", "session_id": session, "parent_tool_use_id": null, "source": source,
            "message": { "role": "user", "content": [{ "type": "text", "text": text }] },
        }),
        EventKind::PermissionRequested { call_id, name, input, reason } => json!({
            "type": "system", "subtype": "permission_requested", "session_id": session, "tool_name": name, "tool_use_id": call_id,
            "tool_input": input, "reason": reason,
        }),
        EventKind::PermissionResolved { call_id, name, decision, waited_ms } => json!({
            "type": "system", "subtype": "permission_resolved", "session_id": session, "tool_name": name, "tool_use_id": call_id,
            "decision": decision, "waited_ms": waited_ms,
        }),
        EventKind::PermissionDenied { call_id, name, message, .. } => json!({
            "type": "system", "subtype": "permission_denied", "session_id": session, "tool_name": name, "tool_use_id": call_id,
            "message": message,
        }),
        EventKind::RequestRetried { attempt, wait_ms, reason } => json!({
            "type": "system", "subtype": "request_retried", "session_id": session, "attempt": attempt, "wait_ms": wait_ms, "reason": reason,
        }),
        EventKind::RequestWaiting { wait_ms, reason } => json!({
            "type": "system", "subtype": "request_waiting", "session_id": session, "wait_ms": wait_ms, "reason": reason,
        }),
        EventKind::JobStarted { job, title, pid, call_id } => json!({
            "type": "system", "subtype": "task_started", "session_id": session, "task_id": job, "task_type": job.kind(),
            "tool_use_id": call_id, "parent_tool_use_id": call_id, "description": title, "pid": pid,
        }),
        EventKind::JobEnded { job, title, status, duration_ms, output_path, call_id, usage } => json!({
            "type": "system", "subtype": "task_notification", "session_id": session, "task_id": job, "task_type": job.kind(),
            "tool_use_id": call_id, "parent_tool_use_id": call_id, "status": status, "summary": title, "output_file": output_path,
            "usage": usage.as_ref().map_or_else(|| json!({ "duration_ms": duration_ms }), task_usage),
        }),
        EventKind::Subagent { agent, event } => return child_line(session, agent, event),
        EventKind::SubagentSpawned { agent, prompt, allowed_tools, model, output_file, resumed } => json!({
            "type": "system", "subtype": "subagent_spawned", "session_id": session, "agent_id": agent.agent_id, "agent_type": agent.agent_type,
            "description": agent.description, "background": agent.background, "child_session_id": agent.child_session_id,
            "parent_tool_use_id": agent.parent_tool_call_id, "prompt": prompt, "allowed_tools": allowed_tools, "model": model,
            "output_file": output_file, "resumed": resumed,
        }),
        EventKind::SubagentStopped { agent, status, partial, totals, output_file, error } => json!({
            "type": "system", "subtype": "subagent_stopped", "session_id": session, "agent_id": agent.agent_id, "agent_type": agent.agent_type,
            "background": agent.background, "child_session_id": agent.child_session_id, "parent_tool_use_id": agent.parent_tool_call_id,
            "status": status, "partial": partial, "output_file": output_file, "error": error, "usage": task_usage(totals),
        }),
        EventKind::SubagentProgress { agent, totals, last_tool } => json!({
            "type": "system", "subtype": "task_progress", "session_id": session, "task_id": agent.agent_id,
            "tool_use_id": agent.parent_tool_call_id, "parent_tool_use_id": agent.parent_tool_call_id, "description": agent.description,
            "last_tool_name": last_tool, "usage": task_usage(totals),
        }),
        EventKind::Notice { text } => json!({ "type": "system", "subtype": "notice", "session_id": session, "message": text }),
        EventKind::TextDelta { .. }
        | EventKind::ThinkingDelta { .. }
        | EventKind::ToolStarted { .. }
        | EventKind::ToolEnded { .. }
        | EventKind::BackgroundTaskCompleted { .. }
        | EventKind::TurnEnded { .. } => return None,
    };
    Some(value)
}

/// The line of a child's event, as its parent's observers see it (R322, R324).
fn child_line(session: &SessionId, agent: &SubagentOrigin, event: &EventKind) -> Option<Value> {
    let message = |role: &str, message: &Message, usage: Option<&Usage>| {
        json!({
            "type": role, "session_id": session, "parent_tool_use_id": agent.parent_tool_call_id, "agent_id": agent.agent_id,
            "agent_type": agent.agent_type, "child_session_id": agent.child_session_id, "source": "subagent",
            "message": { "role": role, "content": content(message), "usage": usage },
        })
    };
    match event {
        EventKind::AssistantMessage { message: said, usage } => Some(message("assistant", said, Some(usage))),
        EventKind::ToolResults { message: results } => Some(message("user", results, None)),
        EventKind::PermissionRequested { call_id, name, input, reason } => Some(json!({
            "type": "system", "subtype": "permission_requested", "session_id": session, "tool_name": name, "tool_use_id": call_id,
            "tool_input": input, "reason": reason, "agent_id": agent.agent_id, "agent_type": agent.agent_type,
            "description": agent.description, "child_session_id": agent.child_session_id, "parent_tool_use_id": agent.parent_tool_call_id,
        })),
        EventKind::PermissionResolved { call_id, name, decision, waited_ms } => Some(json!({
            "type": "system", "subtype": "permission_resolved", "session_id": session, "tool_name": name, "tool_use_id": call_id,
            "decision": decision, "waited_ms": waited_ms, "agent_id": agent.agent_id, "parent_tool_use_id": agent.parent_tool_call_id,
        })),
        EventKind::PermissionDenied { call_id, name, message, .. } => Some(json!({
            "type": "system", "subtype": "permission_denied", "session_id": session, "tool_name": name, "tool_use_id": call_id,
            "agent_id": agent.agent_id, "parent_tool_use_id": agent.parent_tool_call_id, "message": message,
        })),
        _ => None,
    }
}

/// R323
fn task_usage(totals: &SubagentTotals) -> Value {
    json!({ "total_tokens": totals.usage.total(), "tool_uses": totals.tool_uses, "duration_ms": totals.duration_ms })
}

/// Blocks in the form that readers of such streams know.
fn content(message: &Message) -> Vec<Value> {
    message
        .blocks
        .iter()
        .map(|block| match block {
            Block::Text { text } => json!({ "type": "text", "text": text }),
            Block::Thinking { text, .. } => json!({ "type": "thinking", "thinking": text }),
            Block::ToolUse { id, name, input } => json!({ "type": "tool_use", "id": id, "name": name, "input": input }),
            Block::ToolResult { tool_use_id, text, is_error } => {
                json!({ "type": "tool_result", "tool_use_id": tool_use_id, "content": text, "is_error": is_error })
            }
            Block::Other { raw, .. } => raw.clone(),
        })
        .collect()
}

/// Collects what a run has found so far, for a child that is stopped before it could answer: the texts of the model
/// and the last results of its tools, the newest within a bound.
#[derive(Default)]
pub struct WorkSoFar {
    pieces: Mutex<Vec<String>>,
}

/// Bytes of work kept for a stopped child.
const WORK_KEPT_MAX: usize = 64 * 1024;

impl WorkSoFar {
    /// All pieces, and the text that was just arriving.
    pub fn text_with(&self, arriving: &str) -> String {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if pieces.last().is_none_or(|last| last != arriving) && !arriving.trim().is_empty() {
            pieces.push(arriving.to_owned());
        }
        pieces.join("\n\n")
    }

    fn add(&self, piece: String) {
        if piece.trim().is_empty() {
            return;
        }
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.push(piece);
        while pieces.len() > 1 && pieces.iter().map(String::len).sum::<usize>() > WORK_KEPT_MAX {
            pieces.remove(0);
        }
    }
}

impl EventSink for WorkSoFar {
    fn send(&self, event: &Event) {
        match &event.kind {
            EventKind::AssistantMessage { message, .. } => self.add(message.text()),
            EventKind::ToolResults { message } if message.role == Role::User => {
                for block in &message.blocks {
                    if let Block::ToolResult { text, .. } = block {
                        self.add(text.clone());
                    }
                }
            }
            _ => {}
        }
    }
}
