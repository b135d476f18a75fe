//! Everything an observer can see of a session, as one closed list.

use std::time::Duration;

use chrono::{DateTime, Local};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids::{JobId, SessionId};
use crate::models::{Message, ModelErrorKind, Usage};
use crate::permissions::Mode;

/// One event of one session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    pub session: SessionId,
    #[serde(flatten)]
    pub kind: EventKind,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub enum EventKind {
    SessionStarted {
        cwd: String,
        model: String,
        tools: Vec<String>,
        /// Profiles that the session may start agents of.
        agents: Vec<String>,
        mode: Mode,
        resumed: bool,
    },
    /// The input is in the history.
    TurnStarted {
        source: InputSource,
        text: String,
    },
    /// Not stored: the complete message follows.
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        text: String,
    },
    RequestRetried {
        attempt: u32,
        wait_ms: u64,
        reason: String,
    },
    /// The request waits for the shared rate gate.
    RequestWaiting {
        wait_ms: u64,
        reason: String,
    },
    /// A complete answer of the model; saved before it is announced.
    AssistantMessage {
        message: Message,
        usage: Usage,
    },
    ToolStarted {
        call_id: String,
        name: String,
        input: Value,
    },
    ToolEnded {
        call_id: String,
        name: String,
        is_error: bool,
        duration_ms: u64,
        preview: String,
        structured: Option<Value>,
    },
    /// A person is asked about a call, and the session waits for the answer.
    PermissionRequested {
        call_id: String,
        name: String,
        input: Value,
        reason: String,
    },
    /// The question is over: `once`, `always`, `denied`, `answered`, `unanswered`, or `withdrawn`.
    PermissionResolved {
        call_id: String,
        name: String,
        decision: String,
        waited_ms: u64,
    },
    PermissionDenied {
        call_id: String,
        name: String,
        input: Value,
        message: String,
    },
    /// All results of one batch; saved before it is announced.
    ToolResults {
        message: Message,
    },
    /// Text that joined the running turn from the inbox.
    InputJoined {
        source: InputSource,
        text: String,
    },
    /// Something a person should know and no other event says.
    Notice {
        text: String,
    },
    JobStarted {
        job: JobId,
        title: String,
        pid: Option<u32>,
        call_id: Option<String>,
    },
    JobEnded {
        job: JobId,
        title: String,
        status: String,
        duration_ms: u64,
        output_path: String,
        call_id: Option<String>,
        /// What a local agent has used; `None` for processes.
        usage: Option<SubagentTotals>,
    },
    /// A local agent's session is stored and ready (R117, R118).
    SubagentSpawned {
        agent: Box<SubagentOrigin>,
        prompt: String,
        allowed_tools: Vec<String>,
        model: String,
        output_file: String,
        resumed: bool,
    },
    /// A local agent's run has ended; its files are written (R119).
    SubagentStopped {
        agent: Box<SubagentOrigin>,
        /// `completed`, `failed`, `stopped`.
        status: String,
        /// Why the result is not whole, when it is not.
        partial: Option<String>,
        totals: SubagentTotals,
        output_file: String,
        error: Option<String>,
    },
    /// A background run has ended (R120).
    BackgroundTaskCompleted {
        task_id: JobId,
        tool_call_id: Option<String>,
        tool_name: String,
        task_kind: String,
        child_session_id: SessionId,
        description: String,
        status: String,
        started_at: DateTime<Local>,
        completed_at: DateTime<Local>,
        output_path: String,
    },
    /// What a background run has used so far; not stored.
    SubagentProgress {
        agent: Box<SubagentOrigin>,
        totals: SubagentTotals,
        last_tool: Option<String>,
    },
    /// An event of a child's session, shown to its parent's observers: ids are rewritten, the child's own session stores it
    /// (R245 to R250).
    Subagent {
        agent: Box<SubagentOrigin>,
        event: Box<EventKind>,
    },
    TurnEnded {
        end: TurnEnd,
    },
}

/// Which child an event is about (R239, R247).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubagentOrigin {
    pub agent_id: JobId,
    pub agent_type: String,
    pub description: String,
    pub background: bool,
    pub child_session_id: SessionId,
    pub parent_tool_call_id: Option<String>,
}

/// What a run has used (R121).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubagentTotals {
    pub usage: Usage,
    pub tool_uses: u64,
    pub duration_ms: u64,
}

/// Version of the logged form of an event.
const LOG_VERSION: u32 = 1;

impl EventKind {
    /// The form in the event log: a name and data. Texts and inputs that the session's messages hold are not repeated.
    ///
    /// `None` for what is not logged here: parts of an answer, whole messages, what a child's own session logs, and jobs,
    /// whose registry saves what it tells.
    pub fn logged(&self) -> Option<(&'static str, Value)> {
        let (name, data) = match self {
            Self::SessionStarted { cwd, model, tools, mode, resumed, .. } => {
                ("session_started", json!({ "cwd": cwd, "model": model, "tools": tools, "mode": mode, "resumed": resumed }))
            }
            Self::TurnStarted { source, .. } => ("turn_started", json!({ "source": source })),
            Self::RequestRetried { attempt, wait_ms, reason } => {
                ("request_retried", json!({ "attempt": attempt, "wait_ms": wait_ms, "reason": reason }))
            }
            Self::RequestWaiting { wait_ms, reason } => ("request_waiting", json!({ "wait_ms": wait_ms, "reason": reason })),
            Self::ToolStarted { call_id, name, .. } => ("tool_started", json!({ "call_id": call_id, "name": name })),
            Self::ToolEnded { call_id, name, is_error, duration_ms, .. } => {
                ("tool_ended", json!({ "call_id": call_id, "name": name, "is_error": is_error, "duration_ms": duration_ms }))
            }
            Self::PermissionRequested { call_id, name, reason, .. } => {
                ("permission_requested", json!({ "call_id": call_id, "name": name, "reason": reason }))
            }
            Self::PermissionResolved { call_id, name, decision, waited_ms } => {
                ("permission_resolved", json!({ "call_id": call_id, "name": name, "decision": decision, "waited_ms": waited_ms }))
            }
            Self::PermissionDenied { call_id, name, message, .. } => {
                ("permission_denied", json!({ "call_id": call_id, "name": name, "message": message }))
            }
            Self::InputJoined { source, .. } => ("input_joined", json!({ "source": source })),
            Self::Notice { text } => ("notice", json!({ "text": text })),
            Self::TurnEnded { end } => (
                "turn_ended",
                json!({ "cause": end.cause, "usage": end.usage, "steps": end.steps, "duration_ms": end.duration.as_millis() as u64 }),
            ),
            Self::TextDelta { .. }
            | Self::ThinkingDelta { .. }
            | Self::AssistantMessage { .. }
            | Self::ToolResults { .. }
            | Self::JobStarted { .. }
            | Self::JobEnded { .. }
            | Self::SubagentSpawned { .. }
            | Self::SubagentStopped { .. }
            | Self::BackgroundTaskCompleted { .. }
            | Self::SubagentProgress { .. }
            | Self::Subagent { .. } => return None,
        };
        let mut logged = json!({ "version": LOG_VERSION });
        if let (Some(logged), Value::Object(data)) = (logged.as_object_mut(), data) {
            logged.extend(data);
        }
        Some((name, logged))
    }
}

/// Where an input came from (R110, section T).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSource {
    /// A person, or the script that runs us.
    User,
    /// The task of a subagent.
    Subagent,
    /// A reply of a child to its coordinator, while it goes on with its task (R219).
    SubagentReply,
    /// The end of a job.
    TaskNotification,
    /// Instructions, date, git state: context that no person typed.
    Context,
    /// The request for a closing report after a limit.
    Limit,
    /// A hook that keeps the session going (R151).
    Hook,
}

impl InputSource {
    /// Written by a model or by us, not by whoever gave the task: it cannot stand for a person's word (R231).
    pub fn is_peer(self) -> bool {
        match self {
            Self::SubagentReply | Self::TaskNotification => true,
            Self::User | Self::Subagent | Self::Context | Self::Limit | Self::Hook => false,
        }
    }

    /// The word of the person, script or parent that gives this session its tasks.
    pub fn gives_tasks(self) -> bool {
        match self {
            Self::User | Self::Subagent => true,
            Self::SubagentReply | Self::TaskNotification | Self::Context | Self::Limit | Self::Hook => false,
        }
    }
}

/// How a turn ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnEnd {
    pub cause: TurnCause,
    /// The text of the last answer; what had arrived when the cause is a failure.
    pub text: String,
    pub usage: Usage,
    /// Model requests that gave an answer.
    pub steps: u32,
    pub duration: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum TurnCause {
    Finished,
    /// The turn limit; the text is a closing report (R172).
    MaxTurns,
    /// A budget was used up; the text is a closing report (R173).
    Budget,
    /// The answer was cut by the model's token limit.
    MaxTokens,
    /// The provider's safety system ended the answer.
    Refused,
    /// The model gave no answer.
    ModelFailed {
        kind: ModelErrorKind,
        message: String,
    },
    /// The session could not be saved.
    StoreFailed {
        message: String,
    },
    /// A hook has ended the turn.
    StoppedByHook {
        reason: String,
    },
    Cancelled,
}

/// Takes events. Must not block: an observer that is slow buffers by itself, within a bound.
pub trait EventSink: Send + Sync {
    fn send(&self, event: &Event);
}
