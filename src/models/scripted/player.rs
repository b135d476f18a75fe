//! Plays a script as a model. It keeps no state: the turn is the number of answers in the request, so a resumed or
//! restarted session goes on where it stood.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use serde_json::Value;

use super::conversation::Conversation;
use super::format::{Fault, Script, Turn};
use super::template::Variables;
use crate::config::Limits;
use crate::models::{Block, Message, Model, ModelError, ModelErrorKind, ModelEvent, Reply, Request, Role, StopReason, ToolUse, Usage};

/// Text deltas of one answer.
const CHUNKS: usize = 4;
/// Bytes of text per token, for the estimate.
const BYTES_PER_TOKEN: u64 = 4;

/// What a script is told of the session it plays in.
#[derive(Clone, Debug)]
pub struct ScriptContext {
    /// The session's working directory, `cwd` in templates.
    pub cwd: PathBuf,
    /// How long the fault `stall` is silent before it counts as timed out.
    pub idle_limit: Duration,
}

impl ScriptContext {
    pub fn new(cwd: impl Into<PathBuf>) -> Self {
        Self { cwd: cwd.into(), idle_limit: Limits::default().stream_idle_timeout }
    }
}

/// A model that plays the script.
pub fn scripted(script: Arc<Script>, context: ScriptContext) -> Arc<dyn Model> {
    let file = std::path::Path::new(script.name()).file_name().map(|name| name.to_string_lossy().into_owned());
    let name = format!("script/{}", file.unwrap_or_else(|| script.name().to_owned()));
    Arc::new(Player { name, script, context })
}

struct Player {
    name: String,
    script: Arc<Script>,
    context: ScriptContext,
}

/// One answer, worked out: what is streamed, with what waits.
struct Performance {
    delay: Duration,
    events: Vec<ModelEvent>,
    /// Silence before the end.
    stall: Duration,
    end: Result<Reply, ModelError>,
}

impl Model for Player {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let performance = self.perform(&request).unwrap_or_else(Performance::failed);
        let Performance { delay, events, stall, end } = performance;
        let delayed = stream::once(async move {
            wait(delay).await;
            stream::iter(events.into_iter().map(Ok))
        });
        let ended = stream::once(async move {
            wait(stall).await;
            end.map(ModelEvent::Finished)
        });
        delayed.flatten().chain(ended).boxed()
    }
}

async fn wait(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

impl Performance {
    fn failed(error: ModelError) -> Self {
        Self { delay: Duration::ZERO, events: Vec::new(), stall: Duration::ZERO, end: Err(error) }
    }
}

impl Player {
    fn perform(&self, request: &Request) -> Result<Performance, ModelError> {
        let conversation = Conversation::read(request);
        let Some((number, conduct)) = self.script.conduct_for(conversation.task) else {
            let task: String = conversation.task.chars().take(200).collect();
            return Err(self.mismatch(format!("no script has a `match` that fits the task `{task}`")));
        };
        let index = conversation.turn;
        let Some(turn) = conduct.turns.get(index) else {
            let n_turns = conduct.turns.len();
            let plural = if n_turns == 1 { "" } else { "s" };
            return Err(self.mismatch(format!("script {number} has {n_turns} turn{plural}, but the session asks for turn {index}")));
        };
        let place = Place { script: number, turn: index };
        let variables = Variables::of(&conversation, &self.context.cwd);
        let blocks = self.blocks(turn, place, &variables)?;
        let has_calls = blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        if has_calls && request.tool_use == ToolUse::Forbidden {
            return Err(self.mismatch(format!("{place} calls a tool, but this request is for a closing report and allows none")));
        }
        let usage = turn.usage.map_or_else(|| estimate(request, &blocks), Usage::from);
        let delay = Duration::from_millis(turn.delay_ms);
        Ok(match turn.fault {
            None if blocks.is_empty() => self.fault(Fault::Empty, place, delay, blocks, usage),
            None => {
                let stop = if has_calls { StopReason::ToolUse } else { StopReason::EndTurn };
                let events = deltas(&blocks);
                let message = Message { role: Role::Assistant, blocks };
                Performance { delay, events, stall: Duration::ZERO, end: Ok(Reply { message, usage, stop }) }
            }
            Some(fault) => self.fault(fault, place, delay, blocks, usage),
        })
    }

    /// The answer's blocks in the order of the wire formats: thinking, text, calls.
    fn blocks(&self, turn: &Turn, place: Place, variables: &Variables) -> Result<Vec<Block>, ModelError> {
        let templates = &self.script.templates;
        let text = |what: &str, source: &Option<String>| -> Result<String, ModelError> {
            let source = source.as_deref().unwrap_or_default();
            templates.text(source, variables).map_err(|message| self.mismatch(format!("{place}, {what}: {message}")))
        };
        let mut blocks = Vec::new();
        let thinking = text("thinking", &turn.thinking)?;
        if !thinking.is_empty() {
            blocks.push(Block::Thinking { text: thinking, signature: None });
        }
        let answer = text("text", &turn.text)?;
        if !answer.is_empty() {
            blocks.push(Block::Text { text: answer });
        }
        let mut n_calls = 0;
        for (index, call) in turn.calls.iter().enumerate() {
            let bad = |message| self.mismatch(format!("{place}, call {}: {message}", index + 1));
            let scopes = match &call.each {
                None => vec![variables.clone()],
                Some(each) => {
                    let items = templates.list(each, variables).map_err(bad)?;
                    items.into_iter().enumerate().map(|(index, item)| variables.with_item(item, index)).collect()
                }
            };
            for scope in scopes {
                let name = templates.text(&call.name, &scope).map_err(bad)?;
                let input = self.filled(&call.input, &scope).map_err(bad)?;
                blocks.push(Block::ToolUse { id: format!("call_{}_{}", place.turn, n_calls), name, input });
                n_calls += 1;
            }
        }
        Ok(blocks)
    }

    fn filled(&self, value: &Value, variables: &Variables) -> Result<Value, String> {
        match value {
            Value::String(text) => self.script.templates.json(text, variables),
            Value::Array(items) => items.iter().map(|item| self.filled(item, variables)).collect(),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, field)| Ok((key.clone(), self.filled(field, variables)?)));
                fields.collect::<Result<_, String>>().map(Value::Object)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }

    fn fault(&self, fault: Fault, place: Place, delay: Duration, blocks: Vec<Block>, usage: Usage) -> Performance {
        let (kind, status, words) = described(fault);
        let breaks_inside = matches!(fault, Fault::Cut | Fault::Stall);
        let begun = if breaks_inside { first_half(blocks) } else { Vec::new() };
        let events = deltas(&begun);
        let kept: Vec<Block> = begun.into_iter().filter(|block| !matches!(block, Block::ToolUse { .. })).collect();
        let partial = (!kept.is_empty()).then_some(Message { role: Role::Assistant, blocks: kept });
        let stall = if fault == Fault::Stall { self.context.idle_limit } else { Duration::ZERO };
        let message = format!("{}: {words} (scripted fault, {place})", self.name);
        let usage = if breaks_inside { usage } else { Usage::default() };
        Performance { delay, events, stall, end: Err(ModelError { kind, message, partial, status, usage }) }
    }

    fn mismatch(&self, message: String) -> ModelError {
        ModelError {
            kind: ModelErrorKind::ScriptMismatch,
            message: format!("script {}: {message}", self.script.name()),
            partial: None,
            status: None,
            usage: Usage::default(),
        }
    }
}

/// Where in the file: scripts are counted from 1, turns from 0, as in `turn`.
#[derive(Clone, Copy)]
struct Place {
    script: usize,
    turn: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "script {}, turn {}", self.script, self.turn)
    }
}

fn described(fault: Fault) -> (ModelErrorKind, Option<u16>, &'static str) {
    match fault {
        Fault::Cut => (ModelErrorKind::Interrupted, Some(200), "the stream ended before its end mark"),
        Fault::Stall => (ModelErrorKind::TimedOut, Some(200), "the stream fell silent"),
        Fault::Empty => (ModelErrorKind::Empty, Some(200), "the answer has no content"),
        Fault::Garbled => (ModelErrorKind::Garbled, Some(200), "the answer is not of the wire format"),
        Fault::RateLimited => (ModelErrorKind::RateLimited, Some(429), "still rate limited after all retries"),
        Fault::Overloaded => (ModelErrorKind::Overloaded, Some(529), "still overloaded after all retries"),
        Fault::ServerError => (ModelErrorKind::ServerError, Some(500), "the server failed"),
        Fault::Unauthorized => (ModelErrorKind::Unauthorized, Some(401), "the key is not accepted"),
        Fault::InvalidRequest => (ModelErrorKind::InvalidRequest, Some(400), "the request is not accepted"),
        Fault::ContextTooLong => (ModelErrorKind::ContextTooLong, Some(400), "the conversation is too long"),
        Fault::NotFound => (ModelErrorKind::NotFound, Some(404), "there is no such model"),
        Fault::QuotaExhausted => (ModelErrorKind::QuotaExhausted, Some(402), "the quota is used up"),
        Fault::Connect => (ModelErrorKind::Connect, None, "connection refused"),
    }
}

/// What a consumer sees before the end: text in a few chunks, calls as begun.
fn deltas(blocks: &[Block]) -> Vec<ModelEvent> {
    let mut events = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text } => events.extend(chunks(text).into_iter().map(ModelEvent::TextDelta)),
            Block::Thinking { text, .. } => events.extend(chunks(text).into_iter().map(ModelEvent::ThinkingDelta)),
            Block::ToolUse { id, name, .. } => events.push(ModelEvent::ToolUseStarted { id: id.clone(), name: name.clone() }),
            Block::ToolResult { .. } | Block::Other { .. } => {}
        }
    }
    events
}

fn chunks(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let size = characters.len().div_ceil(CHUNKS).max(1);
    characters.chunks(size).map(|chunk| chunk.iter().collect()).collect()
}

/// The first half of the text, or the begun calls when there is no text: what had arrived when the stream broke.
fn first_half(mut blocks: Vec<Block>) -> Vec<Block> {
    let Some(at) = blocks.iter().position(|block| matches!(block, Block::Text { .. })) else {
        return blocks;
    };
    blocks.truncate(at + 1);
    if let Some(Block::Text { text }) = blocks.last_mut() {
        *text = text.chars().take(text.chars().count().div_ceil(2)).collect();
    }
    blocks
}

fn estimate(request: &Request, blocks: &[Block]) -> Usage {
    let tools: u64 = request.prefix.tools.iter().map(|tool| (tool.name.len() + tool.description.len()) as u64).sum();
    let history: u64 = request.messages.iter().map(|message| bytes_of(&message.blocks)).sum();
    let input = request.prefix.system.len() as u64 + tools + history;
    Usage { input: input.div_ceil(BYTES_PER_TOKEN), output: bytes_of(blocks).div_ceil(BYTES_PER_TOKEN), ..Usage::default() }
}

fn bytes_of(blocks: &[Block]) -> u64 {
    let size = |block: &Block| match block {
        Block::Text { text } | Block::Thinking { text, .. } | Block::ToolResult { text, .. } => text.len(),
        Block::ToolUse { name, input, .. } => name.len() + input.to_string().len(),
        Block::Other { raw, .. } => raw.to_string().len(),
    };
    blocks.iter().map(|block| size(block) as u64).sum()
}
