//! The tool `Agent` (hidden alias `Task`): hands a task to a child session in this process.

use std::fmt::Write;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{self, annotated};
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::config::Limits;
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::subagents::delegation::Delegation;
use crate::subagents::in_process::{AgentCall, AgentError, AgentOutcome, partial_in_words};
use crate::subagents::local::{AgentStatus, LocalAgent, LocalEnd};
use crate::subagents::profiles::Profile;
use crate::subagents::status::EndCause;
use crate::text::agent_replies::{self, Capsule};
use crate::text::units::one_line;

pub struct AgentTool {
    spec: ToolSpec,
    delegation: Delegation,
    /// The caller has Read or Bash (R23).
    can_read: bool,
}

pub const NAME: &str = "Agent";

#[derive(Deserialize)]
struct AgentArguments {
    description: String,
    prompt: String,
    subagent_type: Option<String>,
    run_in_background: Option<bool>,
}

/// Characters of one profile's description in the list (R28).
const DESCRIPTION_MAX: usize = 400;
/// Profiles that are listed with their description; the rest by name, so that a large collection does not fill every
/// request.
const LISTED_MAX: usize = 60;
/// Names that are listed beyond those.
const NAMED_MAX: usize = 200;

const USAGE: &str = "\
Rules:
- Each call starts a new agent that sees nothing of this conversation: write a prompt that stands alone, with the goal, absolute \
paths, limits, and what the report must contain.
- Start independent agents together, with several calls in one message: they run at the same time.
- The agent's report comes back to you alone. The user does not see it: tell the user what matters.
- With run_in_background you go on at once, and a notification arrives by itself when the agent has ended. Do not poll or wait \
for it, and do not do its work a second time.
- Check what a report claims before you rely on it. Two agents must not change the same files.";

impl AgentTool {
    /// `profiles`: as they are now; the list stays as it is for the session, so that its bytes are stable.
    pub fn new(delegation: Delegation, profiles: &[Arc<Profile>], can_read: bool) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "description": {"type": "string", "description": "A title of three to five words for the task"},
                "prompt": {"type": "string", "description": "The whole task for the agent"},
                "subagent_type": {"type": "string", "description": "Which agent; default general-purpose"},
                "run_in_background": {"type": "boolean", "description": "Go on at once; a notification comes when it has ended"}
            },
            "required": ["description", "prompt"]
        });
        let description = description(&delegation, profiles);
        let declaration = ToolDeclaration { name: NAME.into(), description, input_schema };
        let spec = ToolSpec { declaration, aliases: &["Task"], concurrent: true, approval: ApprovalNeed::Never };
        Self { spec, delegation, can_read }
    }

    async fn run(&self, input: Value, context: ToolContext) -> Result<ToolReply, ToolFailure> {
        let parsed = arguments::parse::<AgentArguments>(&self.spec.declaration, &input)?;
        let mut notes = parsed.notes;
        if input.get("model").is_some() {
            notes.push("there is no argument `model`: the model of an agent is set in its profile or in the settings".into());
        }
        let AgentArguments { description, prompt, subagent_type, run_in_background } = parsed.value;
        for (name, text) in [("description", &description), ("prompt", &prompt)] {
            if text.trim().is_empty() {
                return Err(ToolFailure::invalid(format!("Agent: `{name}` is empty; nothing was started"))
                    .with_hint("give a title of three to five words and the whole task"));
            }
        }
        let call = AgentCall {
            description,
            prompt,
            agent_type: subagent_type,
            background: run_in_background.unwrap_or(false),
            call_id: Some(context.call_id.clone()),
        };
        let outcome = self.delegation.run_agent(call, &context.cancel).await.map_err(|error| failure(&error))?;
        match outcome {
            AgentOutcome::Launched(agent) => Ok(annotated(&notes, self.launched(&agent))),
            AgentOutcome::Ended(agent, end) => self.ended(&agent, &end).map(|reply| annotated(&notes, reply)),
        }
    }

    /// R22 to R24
    fn launched(&self, agent: &LocalAgent) -> ToolReply {
        let output_file = agent.folder.agent_output().display().to_string();
        let waiting = agent.status() == AgentStatus::Waiting;
        let mut text = agent_replies::launched(agent.id.as_str(), &output_file, self.can_read, waiting);
        for warning in &agent.warnings {
            // Writing into a string cannot fail.
            let _ = write!(text, "\n(note: {warning})");
        }
        let structured = json!({
            "status": "async_launched",
            "isAsync": true,
            "agentId": agent.id,
            "agentType": agent.agent_type(),
            "description": agent.description,
            "prompt": agent.prompt,
            "childSessionId": agent.session,
            "backgroundTaskId": agent.id,
            "outputFile": output_file,
            "canReadOutputFile": self.can_read,
            "resolvedModel": agent.model.to_string(),
        });
        ToolReply { text, structured: Some(structured) }
    }

    fn ended(&self, agent: &LocalAgent, end: &LocalEnd) -> Result<ToolReply, ToolFailure> {
        let tokens = end.totals.usage.total();
        let capsule = Capsule {
            agent_id: agent.id.to_string(),
            agent_type: agent.agent_type().to_owned(),
            text: end.text.clone(),
            partial: partial_in_words(end),
            notes: agent.warnings.clone(),
            tokens: (tokens > 0).then_some(tokens),
            tool_uses: end.totals.tool_uses,
            duration_ms: end.totals.duration_ms,
            output_file: agent.folder.agent_output().display().to_string(),
        };
        let max = usize::try_from(self.delegation.limits().agent_result_max).unwrap_or(usize::MAX);
        match end.cause {
            EndCause::Finished | EndCause::FinishedPartial => {
                Ok(ToolReply { text: agent_replies::finished(&capsule, max), structured: Some(structured(agent, end)) })
            }
            EndCause::Stopped { .. } => Err(ToolFailure::new(FailureKind::Cancelled, agent_replies::cancelled(&capsule, max))),
            _ => {
                let cause = end.error.clone().or_else(|| end.cause.detail()).unwrap_or_else(|| "the run failed".into());
                let retry = match end.cause {
                    EndCause::Inactive => " (agent_child_runtime_failed; the call may be tried again)",
                    _ => " (agent_child_runtime_failed)",
                };
                Err(ToolFailure::failed(agent_replies::failed(&capsule, &format!("{cause}{retry}"), max)))
            }
        }
    }
}

/// R21
fn structured(agent: &LocalAgent, end: &LocalEnd) -> Value {
    let tokens = end.totals.usage.total();
    let mut structured = json!({
        "status": "completed",
        "agentId": agent.id,
        "agentType": agent.agent_type(),
        "description": agent.description,
        "prompt": agent.prompt,
        "content": [{"type": "text", "text": end.text}],
        "totalToolUseCount": end.totals.tool_uses,
        "totalDurationMs": end.totals.duration_ms,
        "usage": end.totals.usage,
        "resolvedModel": agent.model.to_string(),
        "childSessionId": agent.session,
        "partial": end.partial.is_some(),
    });
    if tokens > 0 {
        structured["totalTokens"] = json!(tokens);
    }
    if let Some(reason) = end.partial {
        structured["partialReason"] = json!(reason);
    }
    structured
}

fn failure(error: &AgentError) -> ToolFailure {
    let kind = match error {
        AgentError::Unavailable | AgentError::OneLevel => FailureKind::Unavailable,
        AgentError::Type(_) | AgentError::TypeRequired { .. } => FailureKind::NotFound,
        AgentError::Denied { .. } => FailureKind::Denied,
        _ => FailureKind::Failed,
    };
    ToolFailure::new(kind, format!("{error} ({})", error.code()))
}

/// What the tool is for, which agents there are, and the rules (R28 to R30). Equal profiles give equal bytes.
fn description(delegation: &Delegation, profiles: &[Arc<Profile>]) -> String {
    let mut text = String::from(
        "Hands a task to an agent of its own inside this program, with its own context and tools, and returns its report.\n\nAgents:\n",
    );
    for profile in profiles.iter().take(LISTED_MAX) {
        let tools = match delegation.tools_of(profile) {
            Ok(tools) => tools.join(", "),
            Err(_) => "none usable here".to_owned(),
        };
        let _ = writeln!(text, "- {}: {} (Tools: {tools})", profile.name, one_line(&profile.description, DESCRIPTION_MAX));
    }
    let rest: Vec<&str> = profiles.iter().skip(LISTED_MAX).take(NAMED_MAX).map(|profile| profile.name.as_str()).collect();
    if !rest.is_empty() {
        let more = profiles.len() - LISTED_MAX - rest.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(text, "- further ones, described in their files: {}{more}", rest.join(", "));
    }
    text.push('\n');
    text.push_str(USAGE);
    text
}

impl Tool for AgentTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Every call inside the child is decided there (R16).
    fn effect(&self, _input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok(Effect::Internal)
    }

    fn result_max(&self, limits: &Limits) -> u64 {
        limits.agent_result_max
    }

    /// Agents have a limit and a queue of their own (R31, R328).
    fn only_waits(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(self.run(input, context))
    }
}
