//! Wire format: Anthropic Messages. Requests out of our messages, answers out of its events.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};

use super::sse::Frame;
use super::wire::{Decoder, ErrorBody, Fault, Progress, arguments, partial_message, refuse_error, value_of};
use super::{Block, Message, ModelErrorKind, ModelEvent, Reply, Request, Role, StopReason, ToolUse, Usage, WireFormat};

pub(crate) const VERSION: &str = "2023-06-01";

/// What the request needs beyond the conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) model: &'a str,
    /// Largest answer the model gives; the format demands a number.
    pub(crate) max_output: u32,
    pub(crate) reasoning: Option<&'a str>,
}

/// Largest answer asked of a model whose own limit is not known.
pub(crate) fn default_max_output(model: &str) -> u32 {
    if model.starts_with("claude-3-5") {
        8_192
    } else if model.starts_with("claude-3-7") || (model.starts_with("claude-") && !model.starts_with("claude-3")) {
        32_000
    } else if model.starts_with("claude-3") {
        4_096
    } else {
        8_192
    }
}

/// The levels `provider/model$level` may name; a number is a budget in tokens.
pub(crate) const REASONING_LEVELS: &[&str] = &["off", "low", "medium", "high", "xhigh", "max"];

/// The body. Equal prefixes give equal bytes: what may differ between two turns stands after the messages.
pub(crate) fn body(request: &Request, settings: Settings<'_>) -> Result<Vec<u8>, serde_json::Error> {
    let tools = &request.prefix.tools;
    let system =
        (!request.prefix.system.is_empty()).then(|| [SystemBlock { kind: "text", text: &request.prefix.system, cache_control: EPHEMERAL }]);
    let last_tool = tools.len().checked_sub(1).filter(|_| system.is_none());
    let max_tokens = request.max_tokens.unwrap_or(settings.max_output);
    let reasoning = Reasoning::new(request.reasoning.as_deref().or(settings.reasoning), settings.model, max_tokens);
    let body = Body {
        model: settings.model,
        stream: true,
        tools: tools
            .iter()
            .enumerate()
            .map(|(index, tool)| Tool {
                name: &tool.name,
                description: &tool.description,
                input_schema: &tool.input_schema,
                cache_control: (last_tool == Some(index)).then_some(EPHEMERAL),
            })
            .collect(),
        system,
        messages: messages(&request.messages),
        max_tokens: reasoning.max_tokens,
        thinking: reasoning.thinking,
        output_config: reasoning.output_config,
        tool_choice: (request.tool_use == ToolUse::Forbidden && !tools.is_empty()).then(|| json!({"type": "none"})),
    };
    serde_json::to_vec(&body)
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[SystemBlock<'a>; 1]>,
    messages: Vec<WireMessage<'a>>,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
struct SystemBlock<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    cache_control: CacheControl,
}

#[derive(Clone, Copy, Serialize)]
struct CacheControl {
    #[serde(rename = "type")]
    kind: &'static str,
}

const EPHEMERAL: CacheControl = CacheControl { kind: "ephemeral" };

#[derive(Serialize)]
struct WireMessage<'a> {
    role: Role,
    content: Vec<WireBlock<'a>>,
}

#[derive(Serialize)]
struct WireBlock<'a> {
    #[serde(flatten)]
    content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Text {
        text: &'a str,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a Value,
    },
    ToolResult {
        tool_use_id: &'a str,
        content: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    #[serde(untagged)]
    Raw(&'a Value),
}

/// The conversation, neighbours of one role joined, with cache marks at the ends of the last two user messages: the
/// older one is where the previous request wrote its cache, the newer one where this request does.
fn messages<'a>(messages: &'a [std::sync::Arc<Message>]) -> Vec<WireMessage<'a>> {
    let mut joined: Vec<WireMessage<'a>> = Vec::new();
    for message in messages {
        let content: Vec<_> = message.blocks.iter().filter_map(content).collect();
        if content.is_empty() {
            continue;
        }
        let content = content.into_iter().map(|content| WireBlock { content, cache_control: None });
        match joined.last_mut() {
            Some(last) if last.role == message.role => last.content.extend(content),
            _ => joined.push(WireMessage { role: message.role, content: content.collect() }),
        }
    }
    for message in joined.iter_mut().filter(|message| message.role == Role::User) {
        // The format wants results before other blocks of the message.
        message.content.sort_by_key(|block| !matches!(block.content, Content::ToolResult { .. }));
    }
    for message in joined.iter_mut().filter(|message| message.role == Role::User).rev().take(MARKED_MESSAGES) {
        if let Some(last) = message.content.iter_mut().rev().find(|block| !matches!(block.content, Content::Raw(_))) {
            last.cache_control = Some(EPHEMERAL);
        }
    }
    joined
}

const MARKED_MESSAGES: usize = 2;

/// `None` for what this format cannot take: empty texts, unsigned thinking, another provider's blocks.
fn content(block: &Block) -> Option<Content<'_>> {
    match block {
        Block::Text { text } => (!text.trim().is_empty()).then_some(Content::Text { text }),
        Block::Thinking { text, signature } => signature.as_deref().map(|signature| Content::Thinking { thinking: text, signature }),
        Block::ToolUse { id, name, input } => Some(Content::ToolUse { id, name, input }),
        Block::ToolResult { tool_use_id, text, is_error } => Some(Content::ToolResult { tool_use_id, content: text, is_error: *is_error }),
        Block::Other { wire: WireFormat::Anthropic, raw } => Some(Content::Raw(raw)),
        Block::Other { wire: WireFormat::Openai, .. } => None,
    }
}

struct Reasoning {
    max_tokens: u32,
    thinking: Option<Value>,
    output_config: Option<Value>,
}

/// Smallest budget the format accepts, and room kept for the answer beside it.
const BUDGET_MIN: u32 = 1_024;

impl Reasoning {
    fn new(level: Option<&str>, model: &str, max_tokens: u32) -> Self {
        let off = Self { max_tokens, thinking: None, output_config: None };
        let Some(level) = level.filter(|level| !matches!(*level, "off" | "none")) else { return off };
        if !takes_budget(model) && level.parse::<u32>().is_err() {
            return Self {
                thinking: Some(json!({"type": "adaptive", "display": "summarized"})),
                output_config: Some(json!({"effort": level})),
                ..off
            };
        }
        let wanted = match level {
            "low" => 2_048,
            "medium" => 8_192,
            "high" => 16_384,
            "xhigh" | "max" => 28_672,
            number => number.parse().unwrap_or(8_192),
        };
        let max_tokens = max_tokens.max(2 * BUDGET_MIN);
        let budget = wanted.clamp(BUDGET_MIN, max_tokens - BUDGET_MIN);
        Self { max_tokens, thinking: Some(json!({"type": "enabled", "budget_tokens": budget})), output_config: None }
    }
}

/// Models up to Claude 4.5, and those of other makers, think within a budget of tokens; later ones by effort.
fn takes_budget(model: &str) -> bool {
    let Some(name) = model.strip_prefix("claude-") else { return true };
    name.starts_with('3') || ["-4-0", "-4-1", "-4-5", "-4-20"].iter().any(|version| name.contains(version))
}

/// Reads an answer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    blocks: BTreeMap<u64, Open>,
    usage: Usage,
    stop: Option<StopReason>,
}

#[derive(Debug)]
enum Open {
    Text(String),
    Thinking {
        text: String,
        signature: String,
    },
    ToolUse {
        id: String,
        name: String,
        start: Value,
        json: String,
    },
    /// A block we do not interpret; `json` collects the pieces of its input.
    Other {
        raw: Value,
        json: String,
    },
}

/// Most blocks of one answer.
const BLOCKS_MAX: usize = 10_000;

impl Reader {
    fn start_block(&mut self, index: u64, block: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        if self.blocks.len() >= BLOCKS_MAX {
            return Err(Fault::new(ModelErrorKind::Garbled, format!("an answer of more than {BLOCKS_MAX} blocks")));
        }
        let text_of = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
        let open = match block["type"].as_str() {
            Some("text") => {
                let text = text_of("text");
                if !text.is_empty() {
                    events.push_back(ModelEvent::TextDelta(text.clone()));
                }
                Open::Text(text)
            }
            Some("thinking") => {
                let text = text_of("thinking");
                if !text.is_empty() {
                    events.push_back(ModelEvent::ThinkingDelta(text.clone()));
                }
                Open::Thinking { text, signature: text_of("signature") }
            }
            Some("tool_use") => {
                let (id, name) = (text_of("id"), text_of("name"));
                if id.is_empty() || name.is_empty() {
                    return Err(Fault::new(ModelErrorKind::Garbled, "a tool call without id or name"));
                }
                events.push_back(ModelEvent::ToolUseStarted { id: id.clone(), name: name.clone() });
                Open::ToolUse { id, name, start: block["input"].clone(), json: String::new() }
            }
            Some(_) => Open::Other { raw: block.clone(), json: String::new() },
            None => return Err(Fault::new(ModelErrorKind::Garbled, "a content block without a type")),
        };
        self.blocks.insert(index, open);
        Ok(())
    }

    fn delta(&mut self, index: u64, delta: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        let piece = |key: &str| delta[key].as_str().unwrap_or_default();
        let open = self
            .blocks
            .get_mut(&index)
            .ok_or_else(|| Fault::new(ModelErrorKind::Garbled, format!("a piece of block {index}, which was never started")))?;
        match (open, delta["type"].as_str()) {
            (Open::Text(text), Some("text_delta")) => {
                text.push_str(piece("text"));
                events.push_back(ModelEvent::TextDelta(piece("text").to_owned()));
            }
            (Open::Thinking { text, .. }, Some("thinking_delta")) => {
                text.push_str(piece("thinking"));
                events.push_back(ModelEvent::ThinkingDelta(piece("thinking").to_owned()));
            }
            (Open::Thinking { signature, .. }, Some("signature_delta")) => signature.push_str(piece("signature")),
            (Open::ToolUse { json, .. } | Open::Other { json, .. }, Some("input_json_delta")) => json.push_str(piece("partial_json")),
            (Open::Other { raw, .. }, Some("text_delta")) => append(raw, "text", piece("text")),
            // Citations and kinds of pieces that are not known yet add nothing we could keep.
            (Open::Text(_) | Open::Thinking { .. } | Open::ToolUse { .. } | Open::Other { .. }, _) => {}
        }
        Ok(())
    }

    fn read_usage(&mut self, usage: &Value) {
        let mut take = |key: &str, field: fn(&mut Usage) -> &mut u64| {
            if let Some(count) = usage[key].as_u64() {
                *field(&mut self.usage) = count;
            }
        };
        take("input_tokens", |usage| &mut usage.input);
        take("output_tokens", |usage| &mut usage.output);
        take("cache_read_input_tokens", |usage| &mut usage.cache_read);
        take("cache_creation_input_tokens", |usage| &mut usage.cache_write);
    }

    fn read_stop(&mut self, stop: &Value) {
        self.stop = match stop.as_str() {
            None => return,
            Some("tool_use") => Some(StopReason::ToolUse),
            Some("max_tokens" | "model_context_window_exceeded") => Some(StopReason::MaxTokens),
            Some("refusal") => Some(StopReason::Refusal),
            // end_turn, stop_sequence, pause_turn and words that are not known yet.
            Some(_) => Some(StopReason::EndTurn),
        };
    }

    fn text_blocks(&self) -> Vec<Block> {
        self.blocks
            .values()
            .filter_map(|open| match open {
                Open::Text(text) => Some(Block::Text { text: text.clone() }),
                Open::Thinking { text, signature } => {
                    Some(Block::Thinking { text: text.clone(), signature: (!signature.is_empty()).then(|| signature.clone()) })
                }
                Open::ToolUse { .. } | Open::Other { .. } => None,
            })
            .collect()
    }
}

impl Decoder for Reader {
    fn frame(&mut self, frame: &Frame, events: &mut VecDeque<ModelEvent>) -> Result<Progress, Fault> {
        let value = value_of(frame)?;
        let index = value["index"].as_u64().unwrap_or(0);
        match value["type"].as_str() {
            Some("message_start") => self.read_usage(&value["message"]["usage"]),
            Some("content_block_start") => self.start_block(index, &value["content_block"], events)?,
            Some("content_block_delta") => self.delta(index, &value["delta"], events)?,
            Some("message_delta") => {
                self.read_stop(&value["delta"]["stop_reason"]);
                self.read_usage(&value["usage"]);
            }
            Some("message_stop") => return Ok(Progress::Ended),
            Some("error") => return Err(ErrorBody::from_value(&value).into_fault()),
            // ping, content_block_stop and events that are not known yet.
            Some(_) => {}
            None if value.get("error").is_some() => return Err(ErrorBody::from_value(&value).into_fault()),
            None => return Err(Fault::new(ModelErrorKind::Garbled, "an event of the stream without a type")),
        }
        Ok(Progress::More)
    }

    fn whole(&mut self, answer: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        refuse_error(answer)?;
        let Some(content) = answer["content"].as_array() else {
            return Err(Fault::new(ModelErrorKind::Garbled, "an answer without `content`"));
        };
        for (index, block) in (0..).zip(content) {
            self.start_block(index, block, events)?;
        }
        self.read_usage(&answer["usage"]);
        self.read_stop(&answer["stop_reason"]);
        self.stop.get_or_insert(StopReason::EndTurn);
        Ok(())
    }

    fn has_stop_reason(&self) -> bool {
        self.stop.is_some()
    }

    fn finish(&mut self) -> Result<Reply, Fault> {
        let Some(mut stop) = self.stop.clone() else {
            return Err(Fault::new(ModelErrorKind::Interrupted, "the answer ended without a stop reason"));
        };
        let mut blocks = Vec::new();
        for open in self.blocks.values() {
            blocks.push(match open {
                Open::Text(text) if text.is_empty() => continue,
                Open::Text(text) => Block::Text { text: text.clone() },
                Open::Thinking { text, signature } => {
                    Block::Thinking { text: text.clone(), signature: (!signature.is_empty()).then(|| signature.clone()) }
                }
                Open::ToolUse { id, name, start, json } => {
                    let text = if json.is_empty() && !start.is_null() { start.to_string() } else { json.clone() };
                    Block::ToolUse { id: id.clone(), name: name.clone(), input: arguments(&text) }
                }
                Open::Other { raw, json } => {
                    let mut raw = raw.clone();
                    if let (false, Some(object)) = (json.is_empty(), raw.as_object_mut()) {
                        object.insert("input".to_owned(), arguments(json));
                    }
                    Block::Other { wire: WireFormat::Anthropic, raw }
                }
            });
        }
        if blocks.is_empty() {
            return Err(Fault::new(ModelErrorKind::Empty, "an answer without any content"));
        }
        if stop == StopReason::EndTurn && blocks.iter().any(|block| matches!(block, Block::ToolUse { .. })) {
            stop = StopReason::ToolUse;
        }
        Ok(Reply { message: Message { role: Role::Assistant, blocks }, usage: self.usage, stop })
    }

    fn partial(&self) -> Option<Message> {
        partial_message(self.text_blocks())
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}

fn append(object: &mut Value, key: &str, text: &str) {
    let Some(object) = object.as_object_mut() else { return };
    match object.get_mut(key) {
        Some(Value::String(before)) => before.push_str(text),
        Some(_) | None => {
            object.insert(key.to_owned(), Value::String(text.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_leaves_room_for_the_answer() {
        let reasoning = |level, model, max| {
            let reasoning = Reasoning::new(Some(level), model, max);
            (reasoning.max_tokens, reasoning.thinking, reasoning.output_config)
        };
        assert_eq!(reasoning("high", "claude-sonnet-4-5-20250929", 32_000).1, Some(json!({"type": "enabled", "budget_tokens": 16_384})));
        assert_eq!(reasoning("high", "glm-5", 8_192).1, Some(json!({"type": "enabled", "budget_tokens": 7_168})));
        assert_eq!(reasoning("low", "claude-3-7-sonnet", 100).0, 2_048);
        assert_eq!(reasoning("off", "claude-sonnet-5", 100), (100, None, None));
        assert_eq!(reasoning("xhigh", "claude-sonnet-5", 100).2, Some(json!({"effort": "xhigh"})));
    }
}
