//! The tool `RespondToCoordinator`: a child speaks to its parent and goes on with its task.

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{self, annotated};
use super::send_message::checked;
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::subagents::profiles::tool_policy::RESPOND_TO_COORDINATOR;
use crate::subagents::replies::{ReplyError, ReplyLine};

pub struct RespondToCoordinator {
    spec: ToolSpec,
    line: ReplyLine,
}

#[derive(Deserialize)]
struct Arguments {
    summary: String,
    message: String,
}

impl RespondToCoordinator {
    pub fn new(line: ReplyLine) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "summary": {"type": "string", "description": "One line, at most 200 characters"},
                "message": {"type": "string", "description": "The message, at most 20000 characters"}
            },
            "required": ["summary", "message"]
        });
        let description = "Sends a message to the coordinator that gave you your task, while you go on with it: an answer to a question, or \
                           news it needs now. It does not end your task; your final answer is your report.";
        let declaration = ToolDeclaration { name: RESPOND_TO_COORDINATOR.into(), description: description.into(), input_schema };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::Never }, line }
    }

    fn run(&self, input: &Value) -> Result<ToolReply, ToolFailure> {
        let parsed = arguments::parse::<Arguments>(&self.spec.declaration, input)?;
        let name = RESPOND_TO_COORDINATOR;
        let summary = checked(name, "summary", &parsed.value.summary, super::send_message::SHORT_MAX)?;
        let message = checked(name, "message", &parsed.value.message, super::send_message::MESSAGE_MAX)?;
        let id = self.line.send(summary, message).map_err(|error| {
            let hint = match error {
                ReplyError::RunLimit { .. } | ReplyError::MinuteLimit { .. } => {
                    "go on with your task without further replies; what is left belongs into your final answer"
                }
                ReplyError::Inbox(_) => "go on with your task; put what you wanted to say into your final answer",
            };
            ToolFailure::new(FailureKind::Unavailable, error.to_string()).with_hint(hint)
        })?;
        // R223
        let text = format!("Sent to the coordinator ({id}). Go on with your task: this message does not end it.");
        let reply = ToolReply { text, structured: Some(json!({ "status": "sent", "responseId": id })) };
        Ok(annotated(&parsed.notes, reply))
    }
}

impl Tool for RespondToCoordinator {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, _input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok(Effect::Internal)
    }

    fn call<'a>(&'a self, input: Value, _context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(async move { self.run(&input) })
    }
}
