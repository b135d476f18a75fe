//! A request as recording and replay see it: what the model heard before each of its answers.
//!
//! The model's own answers are not part of it: in a replay they are what the file said. Nor are the system prompt and
//! the descriptions of the tools, which belong to the version of this program, nor what belongs to the machine and the
//! day: date, git state, the user's own instructions.

use std::collections::HashMap;

use serde_json::Value;

use crate::models::{Block, CONTEXT_TAG, Message, Request, Role};

/// How the id of a call begins that a replay makes only to wait (see `replay`).
pub(super) const WAIT_PREFIX: &str = "replay_wait_";

/// How a notice begins, and what stands around the id of its job (`text/incoming.rs`).
const NOTICE_FRAME: &str = "[SYSTEM NOTIFICATION - NOT USER INPUT]";
const NOTICE_JOB: [&str; 2] = ["<task-id>", "</task-id>"];

/// What was heard before each answer, oldest first; the last part belongs to the answer that is asked for.
pub(super) struct Transcript<'a> {
    pub parts: Vec<Vec<Heard<'a>>>,
    /// Waiting steps that a replay has put in, already folded into `parts`.
    pub n_waits: usize,
}

pub(super) enum Heard<'a> {
    Text(&'a str),
    /// The end of a job that runs beside the conversation; when it is told is chance.
    Notice {
        job: &'a str,
        text: &'a str,
    },
    Result {
        call: Call<'a>,
        text: &'a str,
        is_error: bool,
    },
}

/// The call that a result answers.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub input: &'a Value,
}

impl<'a> Transcript<'a> {
    pub fn read(request: &'a Request) -> Self {
        let mut transcript = Self { parts: vec![Vec::new()], n_waits: 0 };
        let mut calls: HashMap<&str, Call<'_>> = HashMap::new();
        for message in &request.messages {
            match message.role {
                Role::User => transcript.hear(message, &calls),
                Role::Assistant => {
                    calls.extend(message.tool_uses().map(|(id, name, input)| (id, Call { id, name, input })));
                    if is_wait(message) {
                        transcript.n_waits += 1;
                    } else {
                        transcript.parts.push(Vec::new());
                    }
                }
            }
        }
        transcript
    }

    /// The first text that is no context: what the conversation is about.
    pub fn task(&self) -> &'a str {
        let texts = self.parts.iter().flatten().filter_map(|heard| match heard {
            Heard::Text(text) => Some(*text),
            Heard::Notice { .. } | Heard::Result { .. } => None,
        });
        texts.into_iter().find(|text| !text.is_empty() && !text.starts_with(CONTEXT_TAG)).unwrap_or_default()
    }

    pub fn turn(&self) -> usize {
        self.parts.len() - 1
    }

    fn hear(&mut self, message: &'a Message, calls: &HashMap<&'a str, Call<'a>>) {
        for block in &message.blocks {
            let heard = match block {
                Block::Text { text } if belongs_to_the_machine(text) => continue,
                Block::Text { text } => match noticed_job(text) {
                    Some(job) => Heard::Notice { job, text },
                    None => Heard::Text(text),
                },
                Block::ToolResult { tool_use_id, text, is_error } => {
                    let unknown = Call { id: tool_use_id, name: "", input: &Value::Null };
                    let call = calls.get(tool_use_id.as_str()).copied().unwrap_or(unknown);
                    if let Some(original) = waited_for(tool_use_id) {
                        self.settle(original, text, *is_error);
                        continue;
                    }
                    Heard::Result { call, text, is_error: *is_error }
                }
                Block::Thinking { .. } | Block::ToolUse { .. } | Block::Other { .. } => continue,
            };
            if let Some(part) = self.parts.last_mut() {
                part.push(heard);
            }
        }
    }

    /// A later look took the place of an earlier one.
    fn settle(&mut self, original: &str, new_text: &'a str, new_is_error: bool) {
        for heard in self.parts.iter_mut().flatten() {
            if let Heard::Result { call, text, is_error } = heard
                && call.id == original
            {
                *text = new_text;
                *is_error = new_is_error;
            }
        }
    }
}

/// Context that is another on every machine or every day.
fn belongs_to_the_machine(text: &str) -> bool {
    let Some(tag) = text.strip_prefix(CONTEXT_TAG).and_then(|rest| rest.split('>').next()) else {
        return false;
    };
    ["\"date\"", "\"git\"", "\"environment\""].iter().any(|name| tag.starts_with(name))
        || tag.contains("own instructions, for all projects")
}

fn noticed_job(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(NOTICE_FRAME)?.split_once(NOTICE_JOB[0])?.1;
    rest.split_once(NOTICE_JOB[1]).map(|(job, _)| job)
}

fn is_wait(message: &Message) -> bool {
    let mut n_calls = 0;
    message.tool_uses().inspect(|_| n_calls += 1).all(|(id, ..)| id.starts_with(WAIT_PREFIX)) && n_calls > 0
}

/// `replay_wait_<n>_<id of the call>`
fn waited_for(id: &str) -> Option<&str> {
    id.strip_prefix(WAIT_PREFIX)?.split_once('_').map(|(_, original)| original)
}
