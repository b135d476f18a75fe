//! What a scripted or recorded model needs to know of a request: the task, the turn, the tool results so far.

use serde_json::Value;

use crate::models::{Block, CONTEXT_TAG, Message, Request, Role};

/// A request as a script sees it.
pub(crate) struct Conversation<'a> {
    /// The first text that a user or a parent wrote; empty when there is none.
    pub task: &'a str,
    /// The latest such text; differs from `task` after a further prompt or a notice.
    pub input: &'a str,
    /// Answers given so far, so the number of the turn to play.
    pub turn: usize,
    /// The results of every batch of calls, oldest first.
    pub batches: Vec<Vec<CallResult<'a>>>,
    /// The calls of the latest answer that made any: name and input.
    pub calls: Vec<(&'a str, &'a Value)>,
}

pub(crate) struct CallResult<'a> {
    pub text: &'a str,
    pub is_error: bool,
}

impl<'a> Conversation<'a> {
    pub fn read(request: &'a Request) -> Self {
        let mut conversation = Self { task: "", input: "", turn: 0, batches: Vec::new(), calls: Vec::new() };
        for message in &request.messages {
            match message.role {
                Role::Assistant => {
                    conversation.turn += 1;
                    let calls: Vec<_> = message.tool_uses().map(|(_, name, input)| (name, input)).collect();
                    if !calls.is_empty() {
                        conversation.calls = calls;
                    }
                }
                Role::User => conversation.read_user(message),
            }
        }
        conversation
    }

    fn read_user(&mut self, message: &'a Message) {
        let mut batch = Vec::new();
        for block in &message.blocks {
            match block {
                Block::Text { text } if is_prompt(text) => {
                    if self.task.is_empty() {
                        self.task = text;
                    }
                    self.input = text;
                }
                Block::ToolResult { text, is_error, .. } => batch.push(CallResult { text, is_error: *is_error }),
                Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse { .. } | Block::Other { .. } => {}
            }
        }
        if !batch.is_empty() {
            self.batches.push(batch);
        }
    }
}

fn is_prompt(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(CONTEXT_TAG)
}
