//! A session's messages: how they are stored, and the rule that every call has exactly one result.
//!
//! The stored form is read and written only here. Whatever a killed process left behind, `restore` gives a history
//! that a provider accepts.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::agent::event::InputSource;
use crate::clock;
use crate::ids::JobId;
use crate::models::{Block, Message, Role};
use crate::store::MessageRow;

/// How the store names a message of the person.
pub(crate) const USER_SOURCE: &str = "user";

/// Version of the stored form of a message.
const VERSION: u64 = 1;

/// What the model reads in place of a result that nobody knows.
pub(crate) const INTERRUPTED: &str = "Interrupted, result unknown: the program was stopped before this call reported its end. \
    It may have taken effect in part or in full; look before you repeat it.";

/// Stands in for a lost first message: a conversation must begin with a user message.
const LOST_BEGINNING: &str = "<context name=\"history\">\nThe beginning of this conversation is lost.\n</context>";

/// Why a stored history cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("message {seq} is stored in version {found}, this program knows version {VERSION}")]
    UnknownVersion { seq: i64, found: Value },
}

/// Who put a message into the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Model,
    Tools,
    Input(InputSource),
}

/// One message with what we know about it beside its content.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub origin: Origin,
    pub message: Arc<Message>,
    /// The answer broke off; only its text was kept.
    pub partial: bool,
    /// The jobs whose ends this message announces.
    pub about: Vec<JobId>,
}

/// The messages of one session, in order.
#[derive(Debug, Default)]
pub(crate) struct History {
    entries: Vec<Entry>,
    next_seq: i64,
    /// Ids of all calls: some servers count from zero in every answer, and providers refuse an id that comes twice.
    call_ids: HashSet<String>,
}

/// A history as read back, and what a person should know about it.
#[derive(Debug)]
pub(crate) struct Restored {
    pub history: History,
    pub notices: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u64,
    #[serde(flatten)]
    message: Message,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    about: Vec<JobId>,
}

impl Origin {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Model => "assistant",
            Self::Tools => "tool_results",
            Self::Input(InputSource::User) => USER_SOURCE,
            Self::Input(InputSource::Subagent) => "subagent",
            Self::Input(InputSource::SubagentReply) => "subagent_reply",
            Self::Input(InputSource::TaskNotification) => "task_notification",
            Self::Input(InputSource::Context) => "context",
            Self::Input(InputSource::Limit) => "limit",
            Self::Input(InputSource::Hook) => "hook",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let inputs = [
            InputSource::User,
            InputSource::Subagent,
            InputSource::SubagentReply,
            InputSource::TaskNotification,
            InputSource::Context,
            InputSource::Limit,
            InputSource::Hook,
        ];
        let all = [Self::Model, Self::Tools].into_iter().chain(inputs.map(Self::Input));
        all.into_iter().find(|origin| origin.as_str() == text)
    }
}

impl Entry {
    pub fn answer(message: Arc<Message>) -> Self {
        Self { origin: Origin::Model, message, partial: false, about: Vec::new() }
    }

    /// An answer that broke off. Only text is kept: a call without its end must not be run, and reasoning without its
    /// proof of origin is refused by providers. The note tells the model later why its answer stops there.
    pub fn partial_answer(text: &str, why: &str) -> Self {
        let note = format!("[The answer was cut off here: {why}.]");
        let blocks = vec![Block::Text { text: text.to_owned() }, Block::Text { text: note }];
        let message = Arc::new(Message { role: Role::Assistant, blocks });
        Self { origin: Origin::Model, message, partial: true, about: Vec::new() }
    }

    /// `results`: one `ToolResult` per call, in the order of the calls.
    pub fn results(results: Vec<Block>) -> Self {
        let message = Arc::new(Message { role: Role::User, blocks: results });
        Self { origin: Origin::Tools, message, partial: false, about: Vec::new() }
    }

    pub fn input(source: InputSource, text: impl Into<String>, about: Vec<JobId>) -> Self {
        Self { origin: Origin::Input(source), message: Arc::new(Message::user(text)), partial: false, about }
    }
}

impl History {
    /// As a request carries them. Cheap: the messages themselves are shared.
    pub fn messages(&self) -> Vec<Arc<Message>> {
        self.entries.iter().map(|entry| Arc::clone(&entry.message)).collect()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The answer as a history can hold it: from the assistant, every call with an id of its own in this session and
    /// an object as input.
    pub fn well_formed(&self, message: Message) -> Message {
        let mut fresh = HashSet::new();
        let mut number = self.call_ids.len();
        let mut blocks = message.blocks;
        for block in &mut blocks {
            let Block::ToolUse { id, input, .. } = block else { continue };
            while id.is_empty() || self.call_ids.contains(id.as_str()) || fresh.contains(id.as_str()) {
                number += 1;
                *id = format!("call_{number}");
            }
            fresh.insert(id.clone());
            if input.is_null() {
                *input = json!({});
            } else if !input.is_object() {
                *input = json!({ NOT_AN_OBJECT: input.take() });
            }
        }
        Message { role: Role::Assistant, blocks }
    }

    /// The stored form of what is about to be appended.
    pub fn rows(&self, entries: &[Entry]) -> Vec<MessageRow> {
        let at = clock::now();
        let numbered = entries.iter().zip(self.next_seq..);
        numbered
            .map(|(entry, seq)| {
                let stored =
                    Stored { version: VERSION, message: (*entry.message).clone(), partial: entry.partial, about: entry.about.clone() };
                // Plain data with text keys always has a JSON form; a null would be skipped when read.
                let message = serde_json::to_value(stored).unwrap_or(Value::Null);
                MessageRow { seq, source: entry.origin.as_str().to_owned(), message, at }
            })
            .collect()
    }

    /// Appends what has been saved.
    pub fn push(&mut self, entries: Vec<Entry>) {
        self.next_seq += i64::try_from(entries.len()).unwrap_or(i64::MAX);
        self.call_ids.extend(entries.iter().flat_map(|entry| entry.message.tool_uses()).map(|(id, ..)| id.to_owned()));
        self.entries.extend(entries);
    }

    /// Ids of calls of the last answer that have no result yet, in order.
    pub fn open_calls(&self) -> Vec<String> {
        let mut open = Vec::new();
        for entry in &self.entries {
            match entry.message.role {
                Role::Assistant => open = entry.message.tool_uses().map(|(id, ..)| id.to_owned()).collect(),
                Role::User => open.retain(|id| !results_of(&entry.message).any(|result| result == id)),
            }
        }
        open
    }

    /// Ends that were announced in this history.
    pub fn announced(&self) -> BTreeSet<JobId> {
        self.entries.iter().flat_map(|entry| entry.about.iter().cloned()).collect()
    }

    /// Reads a stored history. Rows that cannot be read are left out and named; calls without a result before the last
    /// answer get one, results without a call are left out. Open calls of the last answer stay open: the session saves
    /// their results.
    pub fn restore(rows: Vec<MessageRow>) -> Result<Restored, HistoryError> {
        let next_seq = rows.last().map_or(0, |row| row.seq.saturating_add(1));
        let mut notices = Vec::new();
        let mut entries = Vec::new();
        let mut open: VecDeque<String> = VecDeque::new();
        for row in rows {
            let seq = row.seq;
            let Some(mut entry) = read(row)? else {
                notices.push(format!("message {seq} of the stored history cannot be read and is left out"));
                continue;
            };
            match entry.message.role {
                Role::Assistant => {
                    close(&mut entries, &mut open);
                    open = entry.message.tool_uses().map(|(id, ..)| id.to_owned()).collect();
                }
                Role::User => {
                    let has_results = results_of(&entry.message).next().is_some();
                    if has_results {
                        entry.message = Arc::new(only_wanted_results(&entry.message, &mut open));
                    } else {
                        close(&mut entries, &mut open);
                    }
                    if entry.message.blocks.is_empty() {
                        notices.push(format!("message {seq} of the stored history has results without calls and is left out"));
                        continue;
                    }
                }
            }
            entries.push(entry);
        }
        if entries.first().is_some_and(|entry| entry.message.role == Role::Assistant) {
            notices.push("the beginning of the stored history is missing".to_owned());
            entries.insert(0, Entry::input(InputSource::Context, LOST_BEGINNING, Vec::new()));
        }
        let call_ids = entries.iter().flat_map(|entry| entry.message.tool_uses()).map(|(id, ..)| id.to_owned()).collect();
        Ok(Restored { history: Self { entries, next_seq, call_ids }, notices })
    }
}

/// Key under which the history keeps an input that is not an object; providers accept nothing else than objects.
const NOT_AN_OBJECT: &str = "input_that_is_not_an_object";

/// The input of a call as the model wrote it.
pub(crate) fn original_input(input: &Value) -> &Value {
    let only_key = input.as_object().is_some_and(|all| all.len() == 1);
    input.get(NOT_AN_OBJECT).filter(|_| only_key).unwrap_or(input)
}

/// The result of a call as the history holds it.
pub(crate) fn result_block(id: &str, text: impl Into<String>, is_error: bool) -> Block {
    Block::ToolResult { tool_use_id: id.to_owned(), text: text.into(), is_error }
}

/// The message of a stored row, for readers that only show it; `None` when it cannot be read.
pub(crate) fn stored_message(row: MessageRow) -> Result<Option<Arc<Message>>, HistoryError> {
    Ok(read(row)?.map(|entry| entry.message))
}

fn read(row: MessageRow) -> Result<Option<Entry>, HistoryError> {
    let version = row.message.get("version").cloned().unwrap_or(Value::Null);
    if version.is_number() && version.as_u64() != Some(VERSION) {
        return Err(HistoryError::UnknownVersion { seq: row.seq, found: version });
    }
    let stored = serde_json::from_value::<Stored>(row.message).ok();
    Ok(stored.zip(Origin::parse(&row.source)).map(|(stored, origin)| Entry {
        origin,
        message: Arc::new(stored.message),
        partial: stored.partial,
        about: stored.about,
    }))
}

fn results_of(message: &Message) -> impl Iterator<Item = &str> {
    message.blocks.iter().filter_map(|block| match block {
        Block::ToolResult { tool_use_id, .. } => Some(tool_use_id.as_str()),
        Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse { .. } | Block::Other { .. } => None,
    })
}

/// Gives every call that is still open a result.
fn close(entries: &mut Vec<Entry>, open: &mut VecDeque<String>) {
    if !open.is_empty() {
        entries.push(Entry::results(open.drain(..).map(|id| result_block(&id, INTERRUPTED, true)).collect()));
    }
}

fn only_wanted_results(message: &Message, open: &mut VecDeque<String>) -> Message {
    let wanted = |block: &&Block| match block {
        Block::ToolResult { tool_use_id, .. } => match open.iter().position(|id| id == tool_use_id) {
            Some(place) => open.remove(place).is_some(),
            None => false,
        },
        Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse { .. } | Block::Other { .. } => true,
    };
    Message { role: message.role, blocks: message.blocks.iter().filter(wanted).cloned().collect() }
}
