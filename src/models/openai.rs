//! Wire format: OpenAI Chat Completions, as OpenAI and the many compatible servers speak it. Requests out of our
//! messages, answers out of its chunks. Deviations seen in the wild are named where they are met.

use std::collections::VecDeque;

use serde::Serialize;
use serde_json::Value;

use super::sse::Frame;
use super::wire::{Decoder, ErrorBody, Fault, Progress, arguments, partial_message, refuse_error, value_of};
use super::{Block, Message, ModelErrorKind, ModelEvent, Reply, Request, Role, StopReason, ToolUse, Usage};

/// What the request needs beyond the conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) model: &'a str,
    pub(crate) reasoning: Option<&'a str>,
    /// OpenAI itself: its newer models refuse the older name of the limit and reasoning given back.
    pub(crate) is_openai: bool,
}

/// The levels `provider/model$level` may name.
pub(crate) const REASONING_LEVELS: &[&str] = &["off", "none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The body. Equal prefixes give equal bytes: what may differ between two turns stands after the messages.
pub(crate) fn body(request: &Request, settings: Settings<'_>) -> Result<Vec<u8>, serde_json::Error> {
    let tools = &request.prefix.tools;
    let level = request.reasoning.as_deref().or(settings.reasoning);
    let body = Body {
        model: settings.model,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        tools: tools
            .iter()
            .map(|tool| Tool {
                kind: "function",
                function: Function { name: &tool.name, description: &tool.description, parameters: &tool.input_schema },
            })
            .collect(),
        messages: messages(request, settings.is_openai),
        max_tokens: request.max_tokens.filter(|_| !settings.is_openai),
        max_completion_tokens: request.max_tokens.filter(|_| settings.is_openai),
        reasoning_effort: level.map(|level| if level == "off" { "none" } else { level }),
        tool_choice: (request.tool_use == ToolUse::Forbidden && !tools.is_empty()).then_some("none"),
    };
    serde_json::to_vec(&body)
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<&'static str>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: String,
}

impl WireMessage<'_> {
    fn of(role: &'static str, content: Option<String>) -> Self {
        Self { role, content, reasoning_content: None, tool_calls: Vec::new(), tool_call_id: None }
    }
}

fn messages(request: &Request, is_openai: bool) -> Vec<WireMessage<'_>> {
    let mut messages = Vec::new();
    if !request.prefix.system.is_empty() {
        messages.push(WireMessage::of("system", Some(request.prefix.system.clone())));
    }
    let mut rest = request.messages.as_slice();
    while let Some(first) = rest.first() {
        let n_joined = rest.iter().take_while(|message| message.role == first.role).count();
        let (neighbours, others) = rest.split_at(n_joined);
        let blocks = neighbours.iter().flat_map(|message| &message.blocks);
        match first.role {
            Role::User => user_messages(blocks, &mut messages),
            Role::Assistant => messages.extend(assistant_message(blocks, is_openai)),
        }
        rest = others;
    }
    messages
}

/// Results first, each a message of its own, then the texts as one.
fn user_messages<'a>(blocks: impl Iterator<Item = &'a Block>, messages: &mut Vec<WireMessage<'a>>) {
    let mut texts = Vec::new();
    for block in blocks {
        match block {
            Block::ToolResult { tool_use_id, text, is_error: _ } => {
                messages.push(WireMessage { tool_call_id: Some(tool_use_id), ..WireMessage::of("tool", Some(text.clone())) });
            }
            Block::Text { text } if !text.is_empty() => texts.push(text.as_str()),
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse { .. } | Block::Other { .. } => {}
        }
    }
    if !texts.is_empty() {
        messages.push(WireMessage::of("user", Some(texts.join("\n\n"))));
    }
}

fn assistant_message<'a>(blocks: impl Iterator<Item = &'a Block>, is_openai: bool) -> Option<WireMessage<'a>> {
    let (mut texts, mut reasoning, mut tool_calls) = (Vec::new(), String::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text { text } if !text.is_empty() => texts.push(text.as_str()),
            // Signed thinking is another format's.
            Block::Thinking { text, signature: None } if !is_openai => reasoning.push_str(text),
            Block::ToolUse { id, name, input } => {
                tool_calls.push(WireCall { id, kind: "function", function: WireFunction { name, arguments: input.to_string() } });
            }
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolResult { .. } | Block::Other { .. } => {}
        }
    }
    if texts.is_empty() && tool_calls.is_empty() {
        return None;
    }
    // Some servers demand the field beside calls, and an empty text is accepted by all.
    let mut message = WireMessage::of("assistant", Some(texts.join("\n\n")));
    message.reasoning_content = (!reasoning.is_empty()).then_some(reasoning);
    message.tool_calls = tool_calls;
    Some(message)
}

/// Reads an answer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    text: String,
    thinking: String,
    calls: Vec<Call>,
    usage: Usage,
    stop: Option<StopReason>,
    refused: bool,
}

#[derive(Debug)]
struct Call {
    index: Option<u64>,
    /// As the server wrote it; may be empty.
    server_id: String,
    /// Unique within this answer.
    id: String,
    name: String,
    arguments: String,
}

/// Most calls of one answer.
const CALLS_MAX: usize = 1_000;

impl Reader {
    /// One choice of a chunk; `part` is its `delta` or `message`.
    fn part(&mut self, part: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        // Two names for the same: DeepSeek, Qwen, Kimi, GLM, llama.cpp and vLLM; OpenRouter, Ollama and newer vLLM.
        let thinking = [&part["reasoning_content"], &part["reasoning"]].into_iter().find_map(text_of);
        if let Some(thinking) = thinking {
            self.thinking.push_str(&thinking);
            events.push_back(ModelEvent::ThinkingDelta(thinking));
        }
        if let Some(text) = text_of(&part["content"]) {
            self.text.push_str(&text);
            events.push_back(ModelEvent::TextDelta(text));
        }
        if let Some(text) = text_of(&part["refusal"]) {
            self.refused = true;
            self.text.push_str(&text);
            events.push_back(ModelEvent::TextDelta(text));
        }
        for call in part["tool_calls"].as_array().into_iter().flatten() {
            self.call(call, events)?;
        }
        Ok(())
    }

    fn call(&mut self, piece: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        let index = piece["index"].as_u64();
        let id = piece["id"].as_str().unwrap_or_default();
        let name = piece["function"]["name"].as_str().unwrap_or_default();
        let position = match self.position(index, id, name) {
            Some(position) => position,
            None if self.calls.len() >= CALLS_MAX => {
                return Err(Fault::new(ModelErrorKind::Garbled, format!("an answer of more than {CALLS_MAX} tool calls")));
            }
            None => {
                let unique = !id.is_empty() && self.calls.iter().all(|call| call.id != id);
                let own_id = if unique { id.to_owned() } else { format!("call_{}", uuid::Uuid::new_v4().simple()) };
                self.calls.push(Call { index, server_id: id.to_owned(), id: own_id, name: String::new(), arguments: String::new() });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[position];
        if call.name.is_empty() && !name.is_empty() {
            call.name = name.to_owned();
            events.push_back(ModelEvent::ToolUseStarted { id: call.id.clone(), name: call.name.clone() });
        } else if call.name != name {
            // Pieces of a name; a whole name that is repeated with every piece adds nothing.
            call.name.push_str(name);
        }
        match &piece["function"]["arguments"] {
            Value::String(text) => call.arguments.push_str(text),
            Value::Null => {}
            // Some servers send the object itself.
            object => call.arguments.push_str(&object.to_string()),
        }
        Ok(())
    }

    /// The call a piece belongs to, `None` for a new one.
    fn position(&self, index: Option<u64>, id: &str, name: &str) -> Option<usize> {
        let last = |matches: &dyn Fn(&Call) -> bool| self.calls.iter().rposition(matches);
        match index {
            Some(index) => {
                let position = last(&|call| call.index == Some(index))?;
                let known = &self.calls[position];
                // Some servers number every call of an answer 0: another id with a name begins another call.
                let is_other = !id.is_empty() && !known.server_id.is_empty() && known.server_id != id && !name.is_empty();
                (!is_other).then_some(position)
            }
            // Without a number the id decides, without both a name begins a call.
            None if !id.is_empty() => last(&|call| call.server_id == id),
            None if name.is_empty() => self.calls.len().checked_sub(1),
            None => None,
        }
    }

    fn read_usage(&mut self, usage: &Value) {
        if !usage.is_object() {
            return;
        }
        let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
        let cached = count("/prompt_tokens_details/cached_tokens").or(count("/prompt_cache_hit_tokens")).or(count("/cached_tokens"));
        let prompt = count("/prompt_tokens").unwrap_or(0);
        let cache_read = cached.unwrap_or(0).min(prompt);
        self.usage = Usage {
            input: prompt - cache_read,
            output: count("/completion_tokens").unwrap_or(0),
            cache_read,
            cache_write: 0,
            reasoning: count("/completion_tokens_details/reasoning_tokens").unwrap_or(0),
        };
    }

    fn read_finish(&mut self, reason: &Value) {
        self.stop = match reason.as_str() {
            None | Some("") => return,
            Some("tool_calls" | "function_call") => Some(StopReason::ToolUse),
            Some("length" | "max_tokens") => Some(StopReason::MaxTokens),
            Some("content_filter" | "sensitive" | "refusal") => Some(StopReason::Refusal),
            // stop, eos and words that are not known yet.
            Some(_) => Some(StopReason::EndTurn),
        };
    }

    fn text_blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        if !self.thinking.is_empty() {
            blocks.push(Block::Thinking { text: self.thinking.clone(), signature: None });
        }
        if !self.text.is_empty() {
            blocks.push(Block::Text { text: self.text.clone() });
        }
        blocks
    }
}

impl Decoder for Reader {
    fn frame(&mut self, frame: &Frame, events: &mut VecDeque<ModelEvent>) -> Result<Progress, Fault> {
        if frame.data.trim() == "[DONE]" {
            return Ok(Progress::Ended);
        }
        if frame.data.trim().is_empty() {
            return Ok(Progress::More);
        }
        let value = value_of(frame)?;
        if value.get("error").is_some_and(|error| !error.is_null()) || frame.event == "error" {
            return Err(ErrorBody::from_value(&value).into_fault());
        }
        // The counts come in a last chunk without choices, in every chunk, inside a choice, or under a name of their own.
        for place in ["/usage", "/choices/0/usage", "/x_groq/usage"] {
            if let Some(usage) = value.pointer(place) {
                self.read_usage(usage);
            }
        }
        if !value.is_object() {
            return Err(Fault::new(ModelErrorKind::Garbled, "an event of the stream that is not an object"));
        }
        if let Some(choice) = value.pointer("/choices/0") {
            let part = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
            self.part(part, events)?;
            self.read_finish(&choice["finish_reason"]);
        }
        Ok(Progress::More)
    }

    fn whole(&mut self, answer: &Value, events: &mut VecDeque<ModelEvent>) -> Result<(), Fault> {
        refuse_error(answer)?;
        let Some(choice) = answer.pointer("/choices/0").filter(|choice| choice["message"].is_object()) else {
            return Err(Fault::new(ModelErrorKind::Garbled, "an answer without `choices`"));
        };
        self.part(&choice["message"], events)?;
        self.read_usage(&answer["usage"]);
        self.read_finish(&choice["finish_reason"]);
        self.stop.get_or_insert(StopReason::EndTurn);
        Ok(())
    }

    fn has_stop_reason(&self) -> bool {
        self.stop.is_some()
    }

    fn finish(&mut self) -> Result<Reply, Fault> {
        let Some(mut stop) = self.stop.clone() else {
            return Err(Fault::new(ModelErrorKind::Interrupted, "the answer ended without a finish reason"));
        };
        let mut blocks = self.text_blocks();
        for call in &self.calls {
            if call.name.is_empty() {
                return Err(Fault::new(ModelErrorKind::Garbled, "a tool call without a name"));
            }
            blocks.push(Block::ToolUse { id: call.id.clone(), name: call.name.clone(), input: arguments(&call.arguments) });
        }
        if blocks.is_empty() {
            return Err(Fault::new(ModelErrorKind::Empty, "an answer without any content"));
        }
        // Some servers say `stop` beside calls.
        let has_calls = blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        stop = match stop {
            StopReason::EndTurn if has_calls => StopReason::ToolUse,
            StopReason::ToolUse if !has_calls => StopReason::EndTurn,
            StopReason::EndTurn if self.refused => StopReason::Refusal,
            other => other,
        };
        Ok(Reply { message: Message { role: Role::Assistant, blocks }, usage: self.usage, stop })
    }

    fn partial(&self) -> Option<Message> {
        partial_message(self.text_blocks())
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}

/// A text, or the texts of a list of parts; `None` when there is nothing.
fn text_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(chunks: &[Value]) -> Result<Reply, Fault> {
        let mut reader = Reader::default();
        let mut events = VecDeque::new();
        for chunk in chunks {
            reader.frame(&Frame { event: String::new(), data: chunk.to_string() }, &mut events)?;
        }
        reader.finish()
    }

    fn chunk(delta: Value, finish: Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    }

    fn calls(reply: &Reply) -> Vec<(String, Value)> {
        reply.message.tool_uses().map(|(_, name, input)| (name.to_owned(), input.clone())).collect()
    }

    #[test]
    fn calls_are_told_apart_however_the_server_numbers_them() {
        let call = |index: Value, id: Value, name: Value, arguments: &str| {
            chunk(json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}), Value::Null)
        };
        let end = chunk(json!({}), json!("tool_calls"));
        let expected = [("A".to_owned(), json!({"x": 1})), ("B".to_owned(), json!({}))];
        let styles = [
            // Interleaved pieces by number.
            vec![
                call(json!(0), json!("a"), json!("A"), ""),
                call(json!(1), json!("b"), json!("B"), ""),
                call(json!(0), Value::Null, Value::Null, "{\"x\""),
                call(json!(1), Value::Null, Value::Null, "{}"),
                call(json!(0), Value::Null, Value::Null, ":1}"),
            ],
            // No number, whole calls, ids missing.
            vec![call(Value::Null, Value::Null, json!("A"), "{\"x\":1}"), call(Value::Null, Value::Null, json!("B"), "")],
            // Every call is number 0.
            vec![call(json!(0), json!("a"), json!("A"), "{\"x\":1}"), call(json!(0), json!("b"), json!("B"), "{}")],
            // One id for all, repeated with every piece, name too.
            vec![
                call(json!(0), json!("same"), json!("A"), "{\"x\":"),
                call(json!(0), json!("same"), json!("A"), "1}"),
                call(json!(1), json!("same"), json!("B"), ""),
            ],
        ];
        for mut style in styles {
            style.push(end.clone());
            let reply = read(&style).unwrap();
            assert_eq!(calls(&reply), expected);
            let ids: std::collections::BTreeSet<_> = reply.message.tool_uses().map(|(id, ..)| id.to_owned()).collect();
            assert_eq!(ids.len(), 2, "ids are unique");
        }
    }

    #[test]
    fn counts_are_found_in_odd_places() {
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 4});
        for last in [
            json!({"choices": [], "usage": usage}),
            json!({"choices": [{"delta": {}, "finish_reason": "stop", "usage": usage}]}),
            json!({"choices": [], "x_groq": {"usage": usage}}),
        ] {
            let reply = read(&[chunk(json!({"content": "hi"}), json!("stop")), last]).unwrap();
            assert_eq!((reply.usage.input, reply.usage.cache_read, reply.usage.output), (6, 4, 2));
        }
    }

    #[test]
    fn without_a_finish_reason_nothing_is_an_answer() {
        assert_eq!(read(&[chunk(json!({"content": "hi"}), Value::Null)]).unwrap_err().kind, ModelErrorKind::Interrupted);
        assert_eq!(read(&[chunk(json!({"content": ""}), json!("stop"))]).unwrap_err().kind, ModelErrorKind::Empty);
        assert_eq!(read(&[chunk(json!({"refusal": "no"}), json!("stop"))]).unwrap().stop, StopReason::Refusal);
        assert_eq!(read(&[chunk(json!({"content": [{"text": "a"}]}), json!("length"))]).unwrap().stop, StopReason::MaxTokens);
    }
}
