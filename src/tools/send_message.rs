//! The tool `SendMessage`: speaks to an agent of this session, running or ended.

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{self, annotated};
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::subagents::delegation::Delegation;
use crate::subagents::steering::{SendError, Sent};

pub struct SendMessageTool {
    spec: ToolSpec,
    delegation: Delegation,
}

pub const NAME: &str = "SendMessage";

/// Characters of `to` and `summary`, and of `message`.
pub(super) const SHORT_MAX: usize = 200;
pub(super) const MESSAGE_MAX: usize = 20_000;

#[derive(Deserialize)]
struct Arguments {
    to: String,
    summary: String,
    message: String,
}

impl SendMessageTool {
    pub fn new(delegation: Delegation) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "to": {"type": "string", "description": "The id of the agent (agent_...), or its title if only one agent has it"},
                "summary": {"type": "string", "description": "One line, at most 200 characters"},
                "message": {"type": "string", "description": "The message, at most 20000 characters"}
            },
            "required": ["to", "summary", "message"]
        });
        let description = "Sends a message to an agent that was started with Agent. A running agent reads it between two steps. An agent that \
                           has ended goes on in the background, with everything it knew and your message as its next task; a notification \
                           tells its end. Use it to correct or continue work; an agent with a new task is better started anew.";
        let declaration = ToolDeclaration { name: NAME.into(), description: description.into(), input_schema };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: false, approval: ApprovalNeed::Never }, delegation }
    }

    async fn run(&self, input: Value, context: ToolContext) -> Result<ToolReply, ToolFailure> {
        let parsed = arguments::parse::<Arguments>(&self.spec.declaration, &input)?;
        let to = checked(NAME, "to", &parsed.value.to, SHORT_MAX)?;
        let summary = checked(NAME, "summary", &parsed.value.summary, SHORT_MAX)?;
        let message = checked(NAME, "message", &parsed.value.message, MESSAGE_MAX)?;
        // R211
        let text = format!("{summary}\n\n{message}");
        let (agent, sent) = self.delegation.send_message(to, text, &context.cancel).await.map_err(|error| failure(&error))?;
        let id = &agent.id;
        let (status, text) = match sent {
            Sent::Steered => ("steered", format!("{id} runs and reads the message after its current step.")),
            Sent::Queued => ("queued", format!("{id} is not ready yet; the message is kept and delivered in order as soon as it is.")),
            Sent::Resumed => (
                "resumed_background",
                format!(
                    "{id} had ended; it goes on in the background with its whole history and this message. A notification tells its end: do not wait or poll."
                ),
            ),
        };
        let reply = ToolReply { text: format!("{text} (status: {status})"), structured: Some(json!({ "status": status, "agentId": id })) };
        Ok(annotated(&parsed.notes, reply))
    }
}

/// A text that says something and is not too long.
pub(super) fn checked<'t>(tool: &str, name: &str, text: &'t str, max: usize) -> Result<&'t str, ToolFailure> {
    let text = text.trim();
    if text.is_empty() {
        return Err(ToolFailure::invalid(format!("{tool}: `{name}` is empty; nothing was sent")));
    }
    let length = text.chars().count();
    if length > max {
        return Err(ToolFailure::invalid(format!("{tool}: `{name}` has {length} characters, at most {max} are taken; nothing was sent"))
            .with_hint("write long material to a file and name the file in the message"));
    }
    Ok(text)
}

fn failure(error: &SendError) -> ToolFailure {
    let told = |kind: FailureKind, hint: String| ToolFailure::new(kind, error.to_string()).with_hint(hint);
    match error {
        SendError::Unknown { known, .. } if known.is_empty() => {
            told(FailureKind::NotFound, "no agent was started in this session; start one with Agent".into())
        }
        SendError::Unknown { known, .. } => told(FailureKind::NotFound, format!("agents of this session: {}", known.join(", "))),
        SendError::Ambiguous { .. } => told(FailureKind::InvalidInput, "give one of these ids as `to`".into()),
        SendError::ProcessAgent { id } => told(
            FailureKind::Unavailable,
            format!(
                "wait for {id} with subagent poll, read its output with TaskOutput, end it with subagent kill, or start another one with the corrected task"
            ),
        ),
        SendError::StoppedByPerson { .. } => {
            told(FailureKind::Denied, "do not retry; tell the user what you wanted to send and wait for their answer".into())
        }
        SendError::ProfileUnavailable { .. } => told(FailureKind::Unavailable, "start another agent of a type that is available".into()),
        SendError::OneOffModel => ToolFailure::new(FailureKind::Unavailable, error.to_string()),
        SendError::Full { .. } => told(FailureKind::Unavailable, "wait for the agent's end; its notification comes by itself".into()),
        SendError::Aborted { .. } => ToolFailure::new(FailureKind::Cancelled, error.to_string()),
        SendError::Resume { .. } => told(FailureKind::Failed, "start another agent with the whole task".into()),
    }
}

impl Tool for SendMessageTool {
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
