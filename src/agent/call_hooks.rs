//! The hooks of one call: before it, when it needs a person's word, and after it (R148, R158, R159).

use serde_json::{Value, json};

use crate::agent::call::{Around, Asked, Outcome, Wish, need_of};
use crate::agent::event::EventKind;
use crate::agent::places::Place;
use crate::agent::tool::{FailureKind, Tool, ToolContext, ToolFailure, ToolReply};
use crate::hooks::session::tool_fields;
use crate::hooks::{self, Decision, HookEvent};
use crate::permissions::Effect;
use crate::text::hooks as text;

/// What hooks have said about a call that is not run yet.
#[derive(Default)]
pub(super) struct Word {
    /// As a rule that allows this one call: deny and ask rules still hold.
    pub allows: bool,
    /// Why a person has to be asked, whatever mode and rules say.
    pub asks: Option<String>,
    /// For the model, with the result.
    pub context: Vec<String>,
}

/// The names by which matchers know a tool (R32).
pub(super) fn names_of(tool: &dyn Tool) -> Vec<&str> {
    let spec = tool.spec();
    std::iter::once(spec.declaration.name.as_str()).chain(spec.aliases.iter().copied()).collect()
}

impl Wish<'_> {
    /// PreToolUse. Its place is given away meanwhile, so that a slow hook holds up nobody else.
    pub(super) async fn ask_hooks(&mut self, place: Place) -> Result<Place, Outcome> {
        let names = names_of(self.tool);
        let hooks = &self.around.hooks;
        if !hooks.concern(HookEvent::PreToolUse, &names) {
            return Ok(place);
        }
        let need = need_of(self.tool);
        let effect = self.tool.effect(&self.input, self.context).unwrap_or(Effect::Internal);
        let waiting = self.around.places.wait(place, need, &effect);
        let said = hooks.before_tool(&names, &self.context.call_id, &self.input, &self.context.cancel).await;
        let place = tokio::select! {
            biased;
            () = self.context.cancel.cancelled() => return Err(Outcome::NotStarted),
            place = self.around.places.take(need) => place,
        };
        drop(waiting);
        self.around.tell(&said).await?;
        self.refuse_stopped(&said)?;
        match said.decision {
            Some(Decision::Deny) => return Err(Outcome::Refused { text: text::denied(self.name(), &said.reason), denied: true }),
            Some(Decision::Ask) => self.hooks.asks = Some(format!("a hook asks: {}", said.reason)),
            Some(Decision::Allow) => self.hooks.allows = true,
            None => {}
        }
        if let Some(input) = said.updated_input {
            self.input = Value::Object(input);
        }
        self.hooks.context = said.context;
        Ok(place)
    }

    /// Questions are for the person alone.
    pub(super) fn has_permission_hooks(&self, asked: &Asked) -> bool {
        asked.questions.is_none() && self.around.hooks.concern(HookEvent::PermissionRequest, &names_of(self.tool))
    }

    /// PermissionRequest: a hook may answer for the person. Gives whether the call may run.
    pub(super) async fn ask_permission_hooks(&mut self, asked: &Asked) -> Result<bool, Outcome> {
        let names = names_of(self.tool);
        let hooks = &self.around.hooks;
        let mut fields = tool_fields(&names, &self.context.call_id, &self.input);
        fields["permission_reason"] = asked.reason.clone().into();
        let said = hooks.run(HookEvent::PermissionRequest, &names, fields, &self.context.cancel).await;
        if self.context.cancel.is_cancelled() {
            return Err(Outcome::NotStarted);
        }
        self.around.tell(&said).await?;
        self.refuse_stopped(&said)?;
        match said.decision {
            Some(Decision::Deny) => Err(Outcome::Refused { text: text::denied(self.name(), &said.reason), denied: true }),
            Some(Decision::Ask) | None => Ok(false),
            Some(Decision::Allow) => {
                if let Some(input) = said.updated_input {
                    self.input = Value::Object(input);
                }
                Ok(true)
            }
        }
    }

    fn refuse_stopped(&self, said: &hooks::Outcome) -> Result<(), Outcome> {
        let Some(reason) = &said.stop else { return Ok(()) };
        self.around.end_turn(reason);
        let text = if said.blocks() { text::denied(self.name(), &said.reason) } else { text::turn_ended(self.name(), reason) };
        Err(Outcome::Refused { text, denied: true })
    }
}

impl Around {
    /// The turn ends after this batch, whose further calls are not started.
    fn end_turn(&self, reason: &str) {
        // The first reason stands.
        let _ = self.stopped.set(reason.to_owned());
    }

    pub(super) async fn tell(&self, said: &hooks::Outcome) -> Result<(), Outcome> {
        for text in &said.notices {
            self.announcer.announce(EventKind::Notice { text: text.clone() }).await.map_err(Outcome::NotSaved)?;
        }
        Ok(())
    }

    /// PostToolUse or PostToolUseFailure; what they say goes after the result.
    pub(super) async fn after_call(
        &self,
        tool: &dyn Tool,
        context: &ToolContext,
        input: &Value,
        mut returned: Result<ToolReply, ToolFailure>,
        mut before: Vec<String>,
    ) -> Outcome {
        let names = names_of(tool);
        let event = if returned.is_ok() { HookEvent::PostToolUse } else { HookEvent::PostToolUseFailure };
        let mut additions = Vec::new();
        if !before.is_empty() {
            additions.push(text::context_block(HookEvent::PreToolUse.name(), &std::mem::take(&mut before)));
        }
        let cancelled = matches!(&returned, Err(failure) if failure.kind == FailureKind::Cancelled);
        if !cancelled && self.hooks.concern(event, &names) {
            let mut fields = tool_fields(&names, &context.call_id, input);
            match &returned {
                Ok(reply) => fields["tool_response"] = json!({ "text": reply.text, "structured": reply.structured }),
                Err(failure) => fields["error"] = failure.to_string().into(),
            }
            let said = self.hooks.run(event, &names, fields, &context.cancel).await;
            if let Err(not_saved) = self.tell(&said).await {
                return not_saved;
            }
            if said.blocks() {
                additions.push(text::objection(&said.reason));
            }
            if !said.context.is_empty() {
                additions.push(text::context_block(event.name(), &said.context));
            }
            if let Some(reason) = &said.stop {
                self.end_turn(reason);
            }
        }
        if !additions.is_empty() {
            let text = match &mut returned {
                Ok(reply) => &mut reply.text,
                Err(failure) => &mut failure.message,
            };
            text.push_str("\n\n");
            text.push_str(&additions.join("\n\n"));
        }
        Outcome::Returned(returned)
    }
}
