//! Where a conversation meets its hooks: before its first prompt, at every prompt, and when it wants to stop. Those of a
//! call are in `call_hooks.rs`.

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::agent::event::{EventKind, InputSource, TurnCause};
use crate::agent::inbox::{Delivery, Input};
use crate::agent::session::{Session, changed_context};
use crate::hooks::{HookEvent, Outcome};
use crate::models::CONTEXT_TAG;
use crate::store::StoreError;
use crate::text::hooks as text;

/// How often in a turn hooks may keep a session going that wants to stop (R151).
const BLOCKS_MAX: u32 = 8;

impl Session {
    /// Hooks before the input is accepted: those of the start, once per run, and those of a person's prompt. The turn ends
    /// here when one of them says so; a prompt that is blocked leaves no trace in the history.
    pub(super) async fn hooks_before(&mut self, input: &Delivery, cancel: &CancellationToken) -> Result<Option<TurnCause>, StoreError> {
        self.write_transcript().await;
        if !std::mem::replace(&mut self.begun, true)
            && let Some(cause) = self.start_hooks(cancel).await?
        {
            return Ok(Some(cause));
        }
        self.prompt_hooks(input, cancel).await
    }

    async fn start_hooks(&mut self, cancel: &CancellationToken) -> Result<Option<TurnCause>, StoreError> {
        let hooks = self.parts.hooks.clone();
        let source = if self.resumed { "resume" } else { "startup" };
        let (event, subject, fields) = match hooks.agent() {
            Some(agent) => (HookEvent::SubagentStart, agent.kind.clone(), json!({})),
            None => (HookEvent::SessionStart, source.to_owned(), json!({ "source": source, "model": self.parts.model.name() })),
        };
        let mut outcome = hooks.run(event, &[&subject], fields, cancel).await;
        if event == HookEvent::SubagentStart
            && let Some(reason) = outcome.stop.take()
        {
            outcome.notices.push(format!("a SubagentStart hook wanted to end the agent, which it cannot: {reason}"));
        }
        self.take_context(event, &outcome);
        self.tell_hooks(&outcome).await?;
        Ok(outcome.stop.map(|reason| TurnCause::StoppedByHook { reason }))
    }

    /// R261: notices and replies are no prompts.
    pub(super) async fn prompt_hooks(&mut self, input: &Delivery, cancel: &CancellationToken) -> Result<Option<TurnCause>, StoreError> {
        let event = HookEvent::UserPromptSubmit;
        let hooks = self.parts.hooks.clone();
        let prompt: Vec<&str> = input.inputs().filter(|input| input.source == InputSource::User).map(|input| input.text.as_str()).collect();
        if prompt.is_empty() || hooks.agent().is_some() || !hooks.concern(event, &[]) {
            return Ok(None);
        }
        let outcome = hooks.run(event, &[], json!({ "prompt": prompt.join("\n\n") }), cancel).await;
        self.tell_hooks(&outcome).await?;
        if outcome.blocks() {
            return Ok(Some(TurnCause::StoppedByHook { reason: format!("the prompt was blocked: {}", outcome.reason) }));
        }
        self.take_context(event, &outcome);
        Ok(outcome.stop.map(|reason| TurnCause::StoppedByHook { reason }))
    }

    /// Whether hooks keep a session going that wants to stop: the reason is then its next input (R151).
    pub(super) async fn kept_going(&mut self, last: &str, blocks: &mut u32, cancel: &CancellationToken) -> Result<bool, StoreError> {
        let hooks = self.parts.hooks.clone();
        let (event, names) = match hooks.agent() {
            Some(agent) => (HookEvent::SubagentStop, vec![agent.kind.as_str()]),
            None => (HookEvent::Stop, Vec::new()),
        };
        if !hooks.concern(event, &names) {
            return Ok(false);
        }
        self.write_transcript().await;
        let mut fields = json!({ "stop_hook_active": *blocks > 0, "last_assistant_message": last });
        if let Some(agent) = hooks.agent() {
            fields["agent_transcript_path"] = agent.transcript.display().to_string().into();
        }
        let outcome = hooks.run(event, &names, fields, cancel).await;
        self.tell_hooks(&outcome).await?;
        if let Some(reason) = &outcome.stop {
            self.announcer.announce(EventKind::Notice { text: format!("a {} hook ended the work: {reason}", event.name()) }).await?;
            return Ok(false);
        }
        if !outcome.blocks() || cancel.is_cancelled() {
            return Ok(false);
        }
        if *blocks == BLOCKS_MAX {
            let text = format!("{} hooks have kept this going {BLOCKS_MAX} times; it ends now, against: {}", event.name(), outcome.reason);
            self.announcer.announce(EventKind::Notice { text }).await?;
            return Ok(false);
        }
        *blocks += 1;
        let input = Input::new(InputSource::Hook, text::keep_going(event.name(), &outcome.reason));
        self.accept(input.into(), false).await?;
        Ok(true)
    }

    /// Context of hooks goes into the history with the next input; not again what it has already.
    fn take_context(&mut self, event: HookEvent, outcome: &Outcome) {
        let message = |text: &String| format!("{CONTEXT_TAG}\"hook\" event=\"{}\">\n{}\n</context>", event.name(), text::harmless(text));
        let messages = outcome.context.iter().map(message).collect();
        self.pending_context.extend(changed_context(&self.history, messages));
    }

    pub(super) async fn tell_hooks(&self, outcome: &Outcome) -> Result<(), StoreError> {
        for text in &outcome.notices {
            self.announcer.announce(EventKind::Notice { text: text.clone() }).await?;
        }
        Ok(())
    }

    /// Tells the hooks that the session is over. `reason`: `finished`, `failed` or `stopped`. Not for children, whose end is
    /// a `SubagentStop`.
    pub async fn end(&mut self, reason: &str, cancel: &CancellationToken) -> Result<(), StoreError> {
        let hooks = self.parts.hooks.clone();
        if hooks.agent().is_none() && self.begun && hooks.concern(HookEvent::SessionEnd, &[reason]) {
            self.write_transcript().await;
            let outcome = hooks.run(HookEvent::SessionEnd, &[reason], json!({ "reason": reason }), cancel).await;
            self.tell_hooks(&outcome).await?;
        }
        hooks.close().await;
        Ok(())
    }

    /// What is new in the history, for hooks that read it. Nothing is written when there are no hooks.
    pub(super) async fn write_transcript(&self) {
        let Some(written) = self.parts.hooks.transcript_length() else { return };
        let new = self.history.entries().iter().skip(written).map(|entry| {
            let line = json!({ "source": entry.origin.as_str(), "role": entry.message.role, "content": entry.message.blocks });
            line.to_string()
        });
        self.parts.hooks.extend_transcript(new.collect()).await;
    }
}
