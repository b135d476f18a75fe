//! Child to parent: what a child's session does is a sign of life, is counted, and is shown to the parent's observers
//! under ids of its own. The child's text stays with the child unless an observer asked for it (R250).

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use super::local::LocalAgent;
use crate::agent::event::{Event, EventKind, EventSink};
use crate::models::{Block, Message};
use crate::text::agent_replies::preview;

/// The event sink of a child's session.
pub(crate) struct Uplink {
    agent: Arc<LocalAgent>,
    parent: Option<Arc<dyn EventSink>>,
    /// Text of the child is shown too (`--forward-subagent-text`).
    forward_text: bool,
}

/// Bytes of one result that the parent's observers see (R250).
const PREVIEW_MAX: usize = 2048;

impl Uplink {
    pub(crate) fn new(agent: Arc<LocalAgent>, parent: Option<Arc<dyn EventSink>>, forward_text: bool) -> Self {
        Self { agent, parent, forward_text }
    }

    /// Feeds the watch over inactivity and the counts.
    fn note(&self, kind: &EventKind) {
        match kind {
            EventKind::RequestWaiting { wait_ms, .. } | EventKind::RequestRetried { wait_ms, .. } => {
                self.agent.excuse(Duration::from_millis(*wait_ms));
                return;
            }
            // Nothing new: a heartbeat is no activity (R167).
            EventKind::TextDelta { text } | EventKind::ThinkingDelta { text } if text.is_empty() => return,
            EventKind::ToolStarted { call_id, name, .. } => self.agent.tool_started(call_id, name),
            EventKind::ToolEnded { call_id, .. } => self.agent.tool_ended(call_id),
            EventKind::PermissionRequested { call_id, .. } => self.agent.person_is_asked(call_id),
            EventKind::PermissionResolved { call_id, .. } => self.agent.person_was_asked(call_id),
            EventKind::AssistantMessage { message, usage } => {
                self.agent.count(*usage);
                self.keep(message);
            }
            _ => {}
        }
        self.agent.sign_of_life();
    }

    /// Text beside tool calls is not the result yet; it is kept, so that a run that is cut off leaves what it found (R8).
    fn keep(&self, message: &Message) {
        let text = message.text();
        if text.is_empty() {
            return;
        }
        self.agent.add_found(&text);
        if message.tool_uses().next().is_some() {
            let path = self.agent.folder.agent_output();
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
            // The text is in the child's session as well; a full disk is reported when the result is written.
            let _ = file.and_then(|mut file| writeln!(file, "{text}\n"));
        }
    }

    /// The event as the parent's observers see it.
    fn mirrored(&self, kind: &EventKind) -> Option<EventKind> {
        let id = |call: &str| self.agent.mirrored_call(call);
        Some(match kind {
            EventKind::AssistantMessage { message, usage } => {
                let message = self.without_text(message);
                if message.blocks.is_empty() {
                    return None;
                }
                EventKind::AssistantMessage { message, usage: *usage }
            }
            EventKind::ToolStarted { call_id, name, input } => {
                EventKind::ToolStarted { call_id: id(call_id), name: name.clone(), input: input.clone() }
            }
            EventKind::ToolEnded { call_id, name, is_error, duration_ms, preview, .. } => EventKind::ToolEnded {
                call_id: id(call_id),
                name: name.clone(),
                is_error: *is_error,
                duration_ms: *duration_ms,
                preview: preview.clone(),
                structured: None,
            },
            EventKind::PermissionRequested { call_id, name, input, reason } => {
                EventKind::PermissionRequested { call_id: id(call_id), name: name.clone(), input: input.clone(), reason: reason.clone() }
            }
            EventKind::PermissionResolved { call_id, name, decision, waited_ms } => EventKind::PermissionResolved {
                call_id: id(call_id),
                name: name.clone(),
                decision: decision.clone(),
                waited_ms: *waited_ms,
            },
            EventKind::PermissionDenied { call_id, name, input, message } => {
                EventKind::PermissionDenied { call_id: id(call_id), name: name.clone(), input: input.clone(), message: message.clone() }
            }
            EventKind::ToolResults { message } => EventKind::ToolResults { message: self.without_text(message) },
            _ => return None,
        })
    }

    /// Calls and results under their mirrored ids; long results as size and beginning.
    fn without_text(&self, message: &Message) -> Message {
        let block = |block: &Block| match block {
            Block::Text { text } => self.forward_text.then(|| Block::Text { text: text.clone() }),
            Block::ToolUse { id, name, input } => {
                Some(Block::ToolUse { id: self.agent.mirrored_call(id), name: name.clone(), input: input.clone() })
            }
            Block::ToolResult { tool_use_id, text, is_error } => Some(Block::ToolResult {
                tool_use_id: self.agent.mirrored_call(tool_use_id),
                text: preview(text, PREVIEW_MAX),
                is_error: *is_error,
            }),
            Block::Thinking { .. } | Block::Other { .. } => None,
        };
        Message { role: message.role, blocks: message.blocks.iter().filter_map(block).collect() }
    }
}

impl EventSink for Uplink {
    fn send(&self, event: &Event) {
        // An event of another session never appears under this child's id (R330).
        if event.session != self.agent.session {
            return;
        }
        self.note(&event.kind);
        let Some(parent) = &self.parent else { return };
        let show = |kind| parent.send(&Event { session: self.agent.parent.clone(), kind });
        if let EventKind::Notice { text } = &event.kind {
            // What a person should hear is theirs to hear, whoever says it.
            show(EventKind::Notice { text: format!("{} ({}): {text}", self.agent.profile.name, self.agent.id) });
        }
        if let Some(mirrored) = self.mirrored(&event.kind) {
            show(EventKind::Subagent { agent: self.agent.origin(), event: Box::new(mirrored) });
        }
        if let EventKind::ToolResults { .. } = &event.kind
            && self.agent.is_background()
        {
            show(EventKind::SubagentProgress {
                agent: self.agent.origin(),
                totals: self.agent.totals(),
                last_tool: self.agent.last_tool(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layout;
    use crate::ids::{JobId, SessionId};
    use crate::models::Role;
    use crate::subagents::local::AgentRecord;
    use crate::subagents::metadata::unknown_model;
    use crate::subagents::profiles::catalog::built_in;

    fn agent() -> Arc<LocalAgent> {
        let (id, parent) = (JobId::new_local_agent(), SessionId::new_main());
        let record = AgentRecord {
            folder: Layout::new("/nowhere".into()).job(&parent, &id),
            id,
            parent,
            profile: Arc::new(built_in().remove(0).profile.unwrap()),
            description: "d".into(),
            prompt: "p".into(),
            call_id: None,
            cwd: "/".into(),
            worktree: None,
            tools: Vec::new(),
            model: unknown_model(),
            model_origin: "profile".into(),
            created_at: crate::clock::now(),
            warnings: Vec::new(),
        };
        LocalAgent::new(record, true)
    }

    /// R166, R167: a heartbeat that says nothing new is no sign of life; a new piece, a change of state and an end are, also
    /// without output; a wait for its turn moves the limit.
    #[test]
    fn only_what_is_new_is_a_sign_of_life() {
        let agent = agent();
        let uplink = Uplink::new(agent.clone(), None, false);
        let limit = Duration::from_secs(60);
        let send = |session: &SessionId, kind| {
            let before = agent.inactive_at(limit);
            // So that two moments differ.
            std::thread::sleep(Duration::from_millis(2));
            uplink.send(&Event { session: session.clone(), kind });
            (before, agent.inactive_at(limit))
        };
        let text = |text: &str| EventKind::TextDelta { text: text.to_owned() };
        for nothing_new in [text(""), EventKind::ThinkingDelta { text: String::new() }] {
            let (before, after) = send(&agent.session, nothing_new);
            assert_eq!(before, after);
        }
        let started = EventKind::ToolStarted { call_id: "c".into(), name: "Bash".into(), input: serde_json::json!({}) };
        for new in [text("x"), started] {
            let (before, after) = send(&agent.session, new);
            assert!(after > before);
        }
        assert!(agent.doing().starts_with("in the tool Bash"));
        let (before, after) = send(&agent.session, EventKind::RequestWaiting { wait_ms: 30_000, reason: "r".into() });
        assert!(after.zip(before).is_some_and(|(after, before)| after - before >= Duration::from_secs(30)));
        let results = EventKind::ToolResults { message: Message { role: Role::User, blocks: Vec::new() } };
        let (before, after) = send(&agent.session, results);
        assert!(after < before, "the wait is over, so the limit counts from now");
        // An event of another session is none of its own (R330).
        let (before, after) = send(&SessionId::new_main(), text("x"));
        assert_eq!(before, after);
    }
}
