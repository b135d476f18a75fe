//! Everything an observer can see of a session, as one closed list.

use std::time::Duration;

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
    },
    TurnEnded {
        end: TurnEnd,
    },
}

/// Version of the logged form of an event.
const LOG_VERSION: u32 = 1;

impl EventKind {
    /// The form in the event log: a name and data. Texts and inputs that the session's messages hold are not repeated.
    ///
    /// `None` for what is not logged: parts of an answer, whole messages, and jobs, which have a table of their own.
    pub fn logged(&self) -> Option<(&'static str, Value)> {
        let (name, data) = match self {
            Self::SessionStarted { cwd, model, tools, mode, resumed } => {
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
            | Self::JobEnded { .. } => return None,
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
}

impl InputSource {
    /// Written by a model or by us, not by whoever gave the task: it cannot stand for a person's word (R231).
    pub fn is_peer(self) -> bool {
        match self {
            Self::SubagentReply | Self::TaskNotification => true,
            Self::User | Self::Subagent | Self::Context | Self::Limit => false,
        }
    }

    /// The word of the person, script or parent that gives this session its tasks.
    pub fn gives_tasks(self) -> bool {
        match self {
            Self::User | Self::Subagent => true,
            Self::SubagentReply | Self::TaskNotification | Self::Context | Self::Limit => false,
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
    Cancelled,
}

/// Takes events. Must not block: an observer that is slow buffers by itself, within a bound.
pub trait EventSink: Send + Sync {
    fn send(&self, event: &Event);
}
