//! Models over real HTTP on loopback.

use crate::support::provider::{Answer, Provider, Refusing};
use crate::support::{Home, wait};
use futures_util::StreamExt;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zapmyco::config::{Environment, Limits};
use zapmyco::ids::SessionId;
use zapmyco::models::{
    Block, Choice, Gate, Message, Model, ModelError, ModelErrorKind, ModelEvent, Prefix, ProviderSettings, Reply, Request, Role, Selection,
    StopReason, ToolDeclaration, ToolUse, open, select,
};

/// The server itself: both wire formats, keep-alive, records.
#[test]
fn the_test_server_answers_and_records() {
    let provider = Provider::answers([Answer::text("hello"), Answer::call("c1", "Read", json!({"path": "x"})).whole()]);
    let mut stream = std::net::TcpStream::connect(provider.address()).unwrap();
    for (path, body) in [("/v1/messages", r#"{"stream":true}"#), ("/v1/chat/completions", r#"{"stream":true}"#)] {
        write!(stream, "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&answer).contains("\"total_tokens\"") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..read]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("message_stop") && answer.contains("tool_calls"), "{answer}");
    assert_eq!(provider.requests().iter().map(|r| r.path.clone()).collect::<Vec<_>>(), ["/v1/messages", "/v1/chat/completions"]);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wire {
    Anthropic,
    Openai,
}

const BOTH: [Wire; 2] = [Wire::Anthropic, Wire::Openai];

/// Limits under which failures come soon and retries cost milliseconds.
fn limits() -> Limits {
    Limits { request_retries: 0, ..Limits::default() }
}

fn connect(provider: &Provider, wire: Wire, model: &str, limits: &Limits, gate: Gate) -> Arc<dyn Model> {
    let (name, variable) = match wire {
        Wire::Anthropic => ("anthropic", "ANTHROPIC"),
        Wire::Openai => ("openai", "OPENAI"),
    };
    let environment = Environment::from_pairs([
        (format!("{variable}_BASE_URL"), provider.base_url()),
        (format!("{variable}_API_KEY"), "key-that-nobody-may-see".to_owned()),
    ]);
    let providers = BTreeMap::<String, ProviderSettings>::new();
    let model = format!("{name}/{model}");
    let choice = Choice { model: Some(&model), base_url: None, providers: &providers, environment: &environment };
    match select(&choice).unwrap() {
        Selection::Remote(model, _) => open(*model, limits, gate),
        other => panic!("{other:?}"),
    }
}

fn prefix() -> Arc<Prefix> {
    let tool = |name: &str| ToolDeclaration {
        name: name.to_owned(),
        description: format!("tool {name}"),
        input_schema: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
    };
    Arc::new(Prefix { tools: vec![tool("Bash"), tool("Read")], system: "You are a test.".to_owned() })
}

fn request(messages: Vec<Message>) -> Request {
    Request {
        session: SessionId::new_main(),
        prefix: prefix(),
        messages: messages.into_iter().map(Arc::new).collect(),
        tool_use: ToolUse::Allowed,
        max_tokens: None,
        reasoning: None,
    }
}

/// Everything a stream gave: the events before the end, and the end.
struct Played {
    events: Vec<ModelEvent>,
    end: Result<Reply, ModelError>,
}

impl Played {
    fn text(&self) -> String {
        self.events.iter().filter_map(|event| if let ModelEvent::TextDelta(text) = event { Some(text.as_str()) } else { None }).collect()
    }

    fn retries(&self) -> Vec<Duration> {
        self.events.iter().filter_map(|event| if let ModelEvent::Retrying { wait, .. } = event { Some(*wait) } else { None }).collect()
    }

    fn error(&self) -> &ModelError {
        self.end.as_ref().expect_err("the request must fail")
    }
}

async fn play(model: &dyn Model, request: Request) -> Played {
    let mut stream = model.stream(request);
    let mut events = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(ModelEvent::Finished(reply)) => {
                assert!(stream.next().await.is_none(), "nothing follows the end");
                return Played { events, end: Ok(reply) };
            }
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(stream.next().await.is_none(), "nothing follows the end");
                return Played { events, end: Err(error) };
            }
        }
    }
    panic!("a stream without an end");
}

/// One request against a server that gives these answers.
fn once(wire: Wire, limits: &Limits, answers: impl IntoIterator<Item = Answer>) -> (Played, Provider) {
    let provider = Provider::answers(answers);
    let model = connect(&provider, wire, "test-model", limits, Gate::none());
    let played = run(play(model.as_ref(), request(vec![Message::user("hi")])));
    (played, provider)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn text_thinking_and_parallel_calls_arrive_in_order() {
    for wire in BOTH {
        let answer = Answer::thinking("let me see", "sig-1")
            .and_text("你好 — I will look")
            .and_call("c1", "Read", json!({"path": "a"}))
            .and_call("c2", "Bash", json!({}))
            .with_usage(11, 7)
            .with_cache(3, 0);
        for answer in [answer.clone(), answer.clone().split(1), answer.clone().split(7), answer.whole()] {
            let (played, _provider) = once(wire, &limits(), [answer]);
            let reply = played.end.as_ref().unwrap_or_else(|error| panic!("{wire:?}: {error}"));
            let signature = (wire == Wire::Anthropic).then(|| "sig-1".to_owned());
            assert_eq!(
                reply.message.blocks,
                [
                    Block::Thinking { text: "let me see".into(), signature },
                    Block::Text { text: "你好 — I will look".into() },
                    Block::ToolUse { id: "c1".into(), name: "Read".into(), input: json!({"path": "a"}) },
                    Block::ToolUse { id: "c2".into(), name: "Bash".into(), input: json!({}) },
                ]
            );
            assert_eq!(
                (reply.stop.clone(), reply.usage.input, reply.usage.output, reply.usage.cache_read),
                (StopReason::ToolUse, 11, 7, 3)
            );
            assert_eq!(played.text(), "你好 — I will look");
            let kinds: Vec<_> = played
                .events
                .iter()
                .map(|event| match event {
                    ModelEvent::ThinkingDelta(_) => 't',
                    ModelEvent::TextDelta(_) => 'x',
                    ModelEvent::ToolUseStarted { .. } => 'c',
                    other => panic!("{other:?}"),
                })
                .collect();
            assert!(kinds.is_sorted_by_key(|kind| "txc".find(*kind)), "{kinds:?}");
            assert_eq!(kinds.iter().filter(|kind| **kind == 'c').count(), 2);
        }
    }
}

/// fault C3, fault J2: every failure has its own kind, names the provider and keeps the key to itself.
#[test]
fn every_failure_is_told_apart_and_none_is_an_answer() {
    use ModelErrorKind as Kind;
    let text = || Answer::text("a longer text that comes in several pieces");
    let cases: Vec<(Answer, Kind, Option<u16>, &str)> = vec![
        (Answer::rate_limited(1), Kind::RateLimited, Some(429), "status 429: slow down"),
        (Answer::error(500, "boom"), Kind::ServerError, Some(500), "status 500: boom"),
        (Answer::error(529, "busy"), Kind::Overloaded, Some(529), "busy"),
        (Answer::error(503, "busy"), Kind::Overloaded, Some(503), "busy"),
        (Answer::error(401, "bad key key-that-nobody-may-see"), Kind::Unauthorized, Some(401), "bad key [key]"),
        (Answer::error(403, "no"), Kind::Unauthorized, Some(403), "no"),
        (Answer::error(404, "no such model"), Kind::NotFound, Some(404), "no such model"),
        (Answer::error(402, "pay"), Kind::QuotaExhausted, Some(402), "pay"),
        (Answer::error(400, "what"), Kind::InvalidRequest, Some(400), "what"),
        (Answer::error(400, "prompt is too long"), Kind::ContextTooLong, Some(400), "too long"),
        (Answer::status(500, vec![b'x'; 1_000_000]), Kind::ServerError, Some(500), "xxx…"),
        (Answer::status(302, "").with_header("location", "http://elsewhere/"), Kind::NotFound, Some(302), "http://elsewhere/"),
        (Answer::reset(), Kind::Interrupted, None, "broke"),
        (Answer::close(), Kind::Interrupted, None, "broke"),
        (Answer::empty(), Kind::Empty, None, "without any content"),
        (Answer::new(), Kind::Empty, None, "without any content"),
        (Answer::garbage(), Kind::Garbled, None, "a web page"),
        (Answer::status(200, "{\"half\": "), Kind::Garbled, None, "not valid JSON"),
        (Answer::status(200, "{\"other\": 1}"), Kind::Garbled, None, "an answer without"),
        (Answer::status(200, "hello"), Kind::Garbled, None, "not a stream"),
        (Answer::data(["{broken"]), Kind::Garbled, None, "not valid JSON"),
        (Answer::new().and_raw_call("c", "Read", "{\"path\": \"a\"}").end_after(3), Kind::Interrupted, None, "ended without a"),
        (text().cut_after(6), Kind::Interrupted, None, "broke off"),
        (text().reset_after(6), Kind::Interrupted, None, "broke off"),
        (text().end_after(6), Kind::Interrupted, None, "ended without a"),
        (Answer::data([r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#]), Kind::Overloaded, None, "busy"),
    ];
    for wire in BOTH {
        for (answer, kind, status, says) in &cases {
            let (played, provider) = once(wire, &limits(), [answer.clone()]);
            let error = played.error();
            let context = format!("{wire:?} {answer:?}: {error:?}");
            assert_eq!((error.kind, error.status), (*kind, *status), "{context}");
            assert!(error.message.contains(says), "{context}");
            assert!(error.message.starts_with("anthropic: ") || error.message.starts_with("openai: "), "{context}");
            assert!(!error.message.contains("nobody-may-see") && error.message.chars().count() < 500, "{context}");
            assert_eq!(provider.request_count(), 1, "{context}");
        }
    }
}

/// fault C3: the text that had arrived is kept with the error, never passed on as an answer.
#[test]
fn a_broken_stream_keeps_its_text_and_is_not_tried_again() {
    for wire in BOTH {
        for answer in [
            Answer::thinking("hm", "s").and_text("one two three four five six").cut_after(9),
            Answer::thinking("hm", "s").and_text("one two three four five six").reset_after(9),
        ] {
            let limits = Limits { request_retries: 5, ..limits() };
            let (played, provider) = once(wire, &limits, [answer]);
            let error = played.error();
            let partial = error.partial.as_ref().expect("text had arrived");
            assert_eq!((error.kind, partial.role), (ModelErrorKind::Interrupted, Role::Assistant));
            assert!(partial.text().starts_with("one") && partial.text() == played.text(), "{partial:?}");
            assert_eq!(provider.request_count(), 1);
            assert_eq!(played.retries(), []);
        }
    }
}

/// fault D4: a provider that never answers, or falls silent inside the answer, ends at the limit that is named.
#[test]
fn silence_ends_at_its_limit() {
    for wire in BOTH {
        let limits = Limits { first_byte_timeout: Duration::from_millis(50), ..limits() };
        let (played, provider) = once(wire, &limits, [Answer::stall()]);
        assert_eq!(played.error().kind, ModelErrorKind::TimedOut);
        assert!(played.error().message.contains("no answer within 0.05 s (limit `first_byte_timeout`)"), "{}", played.error());
        wait::until_true("the request is given up", || provider.hung_up() == 1);

        let limits = Limits { stream_idle_timeout: Duration::from_millis(50), ..self::limits() };
        let (played, _provider) = once(wire, &limits, [Answer::text("one two three four").silence_after(4)]);
        assert_eq!(played.error().kind, ModelErrorKind::TimedOut);
        assert!(played.error().message.contains("`stream_idle_timeout`"), "{}", played.error());
        assert!(played.error().partial.as_ref().is_some_and(|partial| partial.text().starts_with("one")));
    }
}

/// The common beginning of two bodies, in bytes.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn assistant(blocks: Vec<Block>) -> Message {
    Message { role: Role::Assistant, blocks }
}

fn results(ids: &[&str]) -> Message {
    let blocks = ids
        .iter()
        .map(|id| Block::ToolResult { tool_use_id: (*id).to_owned(), text: format!("result of {id}"), is_error: *id == "c2" })
        .collect();
    Message { role: Role::User, blocks }
}

/// Rule 14 of the architecture: two turns, and the closing request after a turn limit, begin with the same bytes.
#[test]
fn equal_prefixes_give_equal_bytes() {
    for wire in BOTH {
        let provider = Provider::always(Answer::text("ok"));
        let model = connect(&provider, wire, "test-model", &limits(), Gate::none());
        let call = Block::ToolUse { id: "c1".into(), name: "Read".into(), input: json!({"path": "b", "a": 1}) };
        let first = vec![Message::user("context"), Message::user("task")];
        let mut second = first.clone();
        second.extend([assistant(vec![call]), results(&["c1"])]);
        let closing = Request { tool_use: ToolUse::Forbidden, max_tokens: Some(99), ..request(second.clone()) };
        run(async {
            play(model.as_ref(), request(first)).await;
            play(model.as_ref(), request(second)).await;
            play(model.as_ref(), closing).await;
        });
        let requests = provider.requests();
        let [first, second, closing] = [&requests[0], &requests[1], &requests[2]];
        let prefix = |body: &[u8]| body.windows(11).position(|window| window == b"\"messages\":").unwrap();
        assert!(common(&first.body, &second.body) > prefix(&first.body) + 20, "{wire:?}: tools, system and first message are equal bytes");
        assert_eq!(prefix(&second.body), prefix(&closing.body));
        let end = second.body.len() - if wire == Wire::Anthropic { "\"max_tokens\":8192}".len() } else { 1 };
        assert!(common(&second.body, &closing.body) >= end, "{wire:?}: forbidding tools changes nothing before the end");
        assert_eq!(closing.tool_names(), ["Bash", "Read"]);
        let choice = if wire == Wire::Anthropic { json!({"type": "none"}) } else { json!("none") };
        assert_eq!((&closing.json["tool_choice"], &second.json["tool_choice"]), (&choice, &serde_json::Value::Null));
    }
}

#[test]
fn the_anthropic_request_is_of_its_format() {
    let provider = Provider::always(Answer::text("ok"));
    let model = connect(&provider, Wire::Anthropic, "claude-x", &limits(), Gate::none());
    let redacted = json!({"type": "redacted_thinking", "data": "opaque", "later": [1]});
    let history = vec![
        Message::user("context"),
        Message::user("task"),
        assistant(vec![
            Block::Thinking { text: "hm".into(), signature: Some("sig".into()) },
            Block::Thinking { text: "unsigned".into(), signature: None },
            Block::Other { wire: zapmyco::models::WireFormat::Anthropic, raw: redacted.clone() },
            Block::Text { text: "  ".into() },
            Block::ToolUse { id: "c1".into(), name: "Read".into(), input: json!({"path": "x"}) },
            Block::ToolUse { id: "c2".into(), name: "Bash".into(), input: json!({}) },
        ]),
        Message::user("joined from the inbox"),
        results(&["c1", "c2"]),
    ];
    run(play(model.as_ref(), request(history)));
    let sent = provider.requests().remove(0);
    assert_eq!((sent.header("x-api-key"), sent.header("anthropic-version")), (Some("key-that-nobody-may-see"), Some("2023-06-01")));
    let mark = json!({"type": "ephemeral"});
    assert_eq!(sent.json["system"], json!([{"type": "text", "text": "You are a test.", "cache_control": mark}]));
    assert_eq!(
        sent.json["messages"],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "context"}, {"type": "text", "text": "task", "cache_control": mark}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                redacted,
                {"type": "tool_use", "id": "c1", "name": "Read", "input": {"path": "x"}},
                {"type": "tool_use", "id": "c2", "name": "Bash", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "result of c1"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "result of c2", "is_error": true},
                {"type": "text", "text": "joined from the inbox", "cache_control": mark},
            ]},
        ])
    );
    assert_eq!((&sent.json["stream"], &sent.json["max_tokens"], &sent.json["thinking"]), (&json!(true), &json!(32_000), &json!(null)));
}

#[test]
fn the_openai_request_is_of_its_format() {
    let provider = Provider::always(Answer::text("ok"));
    let model = connect(&provider, Wire::Openai, "test-model$high", &limits(), Gate::none());
    let history = vec![
        Message::user("context"),
        Message::user("task"),
        assistant(vec![
            Block::Thinking { text: "hm".into(), signature: Some("of another provider".into()) },
            Block::Text { text: "I look".into() },
            Block::ToolUse { id: "c1".into(), name: "Read".into(), input: json!({"path": "x"}) },
        ]),
        Message::user("joined from the inbox"),
        results(&["c1"]),
    ];
    run(play(model.as_ref(), request(history)));
    let sent = provider.requests().remove(0);
    assert_eq!(sent.header("authorization"), Some("Bearer key-that-nobody-may-see"));
    assert_eq!(
        sent.json["messages"],
        json!([
            {"role": "system", "content": "You are a test."},
            {"role": "user", "content": "context\n\ntask"},
            {"role": "assistant", "content": "I look",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "Read", "arguments": "{\"path\":\"x\"}"}}]},
            {"role": "tool", "content": "result of c1", "tool_call_id": "c1"},
            {"role": "user", "content": "joined from the inbox"},
        ])
    );
    assert_eq!((&sent.json["stream_options"]["include_usage"], &sent.json["reasoning_effort"]), (&json!(true), &json!("high")));
    assert_eq!(sent.json["tools"][0]["function"]["name"], "Bash");
}

/// What a provider sent comes back to it unchanged: signed thinking and blocks nobody interprets, or open reasoning.
#[test]
fn thinking_is_given_back() {
    for wire in BOTH {
        let provider = Provider::with(move |request| match (request.turn(), wire) {
            (0, Wire::Anthropic) => Answer::thinking("deep thought", "sig=")
                .and_block(json!({"type": "redacted_thinking", "data": "opaque"}))
                .and_call("c1", "Read", json!({})),
            (0, Wire::Openai) => Answer::thinking("deep thought", "").and_call("c1", "Read", json!({})),
            _ => Answer::text("done"),
        });
        // Not OpenAI itself, which never sends its reasoning and refuses it.
        let providers: BTreeMap<String, ProviderSettings> =
            toml::from_str(&format!("[lab]\nkind = 'openai'\nbase_url = '{}'", provider.base_url())).unwrap();
        let environment = Environment::from_pairs([("ANTHROPIC_BASE_URL", provider.base_url())]);
        let name = if wire == Wire::Anthropic { "anthropic/m" } else { "lab/m" };
        let choice = Choice { model: Some(name), base_url: None, providers: &providers, environment: &environment };
        let Selection::Remote(model, _) = select(&choice).unwrap() else { panic!("{name}") };
        let model = open(*model, &limits(), Gate::none());
        run(async {
            let reply = play(model.as_ref(), request(vec![Message::user("go")])).await.end.unwrap();
            play(model.as_ref(), request(vec![Message::user("go"), reply.message, results(&["c1"])])).await.end.unwrap();
        });
        let message = &provider.requests()[1].json["messages"];
        match wire {
            Wire::Anthropic => assert_eq!(
                message[1]["content"].as_array().unwrap()[..2],
                [
                    json!({"type": "thinking", "thinking": "deep thought", "signature": "sig="}),
                    json!({"type": "redacted_thinking", "data": "opaque"})
                ]
            ),
            Wire::Openai => assert_eq!(message[2]["reasoning_content"], "deep thought"),
        }
    }
}

#[test]
fn the_reason_of_the_end_is_told() {
    for (wire, word, stop) in [
        (Wire::Anthropic, "max_tokens", StopReason::MaxTokens),
        (Wire::Anthropic, "refusal", StopReason::Refusal),
        (Wire::Anthropic, "a_word_of_tomorrow", StopReason::EndTurn),
        (Wire::Openai, "length", StopReason::MaxTokens),
        (Wire::Openai, "content_filter", StopReason::Refusal),
        (Wire::Openai, "a_word_of_tomorrow", StopReason::EndTurn),
    ] {
        let (played, _provider) = once(wire, &limits(), [Answer::text("some").with_stop(word)]);
        assert_eq!(played.end.unwrap().stop, stop, "{wire:?} {word}");
        // The limit fell into a call: the text is still true, and the call is kept as the text it is; nobody runs it.
        if stop == StopReason::MaxTokens {
            let answer = Answer::text("some").and_raw_call("c", "Read", "{\"path\": \"ha").with_stop(word);
            let (played, _provider) = once(wire, &limits(), [answer]);
            let reply = played.end.unwrap();
            let inputs: Vec<_> = reply.message.tool_uses().map(|(_, _, input)| input.clone()).collect();
            assert_eq!((reply.stop, reply.message.text().as_str(), inputs), (stop, "some", vec![json!("{\"path\": \"ha")]));
        }
    }
}

/// Servers that leave the end mark out, or keep the connection open after the answer.
#[test]
fn a_missing_end_mark_is_no_failure_once_the_reason_is_known() {
    for wire in BOTH {
        let n_events = if wire == Wire::Anthropic { 6 } else { 3 };
        for answer in [Answer::text("short").end_after(n_events), Answer::text("short").silence_after(n_events)] {
            let (played, _provider) = once(wire, &limits(), [answer]);
            assert_eq!(played.end.unwrap().message.text(), "short", "{wire:?}");
        }
        let (played, _provider) = once(wire, &limits(), [Answer::text("short").end_after(n_events - 1)]);
        assert_eq!(played.error().kind, ModelErrorKind::Interrupted, "{wire:?}");
    }
}

/// fault C3: wherever a stream is cut, what came is an error, never an answer.
#[test]
fn a_stream_cut_anywhere_is_never_an_answer() {
    for wire in BOTH {
        let answer = || Answer::thinking("hm", "s").and_text("some text").and_call("c", "Read", json!({"path": "x"}));
        let n_events = if wire == Wire::Anthropic { 17 } else { 11 };
        let (whole, _provider) = once(wire, &limits(), [answer().cut_after(n_events)]);
        assert!(whole.end.is_ok(), "{wire:?}: the end mark was sent");
        for n_sent in 0..n_events - 1 {
            for answer in [answer().cut_after(n_sent), answer().reset_after(n_sent)] {
                let (played, _provider) = once(wire, &limits(), [answer.split(9)]);
                let error = played.end.expect_err("cut");
                assert_eq!(error.kind, ModelErrorKind::Interrupted, "{wire:?} after {n_sent}: {error}");
                assert!(error.partial.is_none_or(|partial| partial.tool_uses().count() == 0));
            }
        }
    }
}

/// R121
#[test]
fn every_count_of_tokens_is_read() {
    let answer = || Answer::text("ok").with_usage(11, 7).with_cache(3, 2);
    let usage = |wire, answer| once(wire, &limits(), [answer]).0.end.unwrap().usage;
    for answer in [answer(), answer().whole()] {
        let read = usage(Wire::Anthropic, answer);
        assert_eq!((read.input, read.output, read.cache_read, read.cache_write), (11, 7, 3, 2));
    }
    let chunk = json!({"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 14,
        "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 5}}});
    let mut read = usage(Wire::Openai, Answer::data([chunk.to_string(), "[DONE]".to_owned()]));
    assert_eq!((read.input, read.output, read.cache_read, read.reasoning), (11, 7, 3, 5));
    read += read;
    assert_eq!((read.total(), read.reasoning), (42, 10));
}

#[test]
fn a_connection_that_is_not_taken_ends_at_its_limit() {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
    // The queue of one is full; the system answers no further greeting.
    let _first = std::net::TcpStream::connect(address).unwrap();
    let environment = Environment::from_pairs([("OPENAI_BASE_URL", format!("http://{address}"))]);
    let choice = Choice { model: None, base_url: None, providers: &BTreeMap::new(), environment: &environment };
    let Selection::Remote(model, _) = select(&choice).unwrap() else { panic!("a base URL is enough") };
    let limits = Limits { connect_timeout: Duration::from_millis(50), ..limits() };
    let played = run(play(open(*model, &limits, Gate::none()).as_ref(), request(vec![Message::user("hi")])));
    assert_eq!(played.error().kind, ModelErrorKind::Connect);
    assert_eq!(
        played.error().message,
        format!("openai: no connection to http://{address}: timed out after 0.05 s (limit `connect_timeout`)")
    );
}

#[test]
fn only_what_gave_no_output_is_tried_again() {
    for wire in BOTH {
        let limits = Limits { request_retries: 4, retry_wait_max: Duration::from_millis(4), ..limits() };
        let (played, provider) =
            once(wire, &limits, [Answer::error(500, "boom"), Answer::error(529, "busy"), Answer::reset(), Answer::text("at last")]);
        assert_eq!(played.retries().len(), 3);
        assert_eq!((played.end.unwrap().message.text().as_str(), provider.request_count()), ("at last", 4));
        let bodies: Vec<_> = provider.requests().into_iter().map(|request| request.body).collect();
        assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "a retry sends the same bytes");

        let (played, provider) = once(wire, &limits, std::iter::repeat_n(Answer::error(500, "boom"), 9));
        assert_eq!((played.retries().len(), provider.request_count()), (4, 5));
        assert!(played.error().message.ends_with("status 500: boom (after 5 tries)"), "{}", played.error());

        let (played, provider) = once(wire, &limits, [Answer::error(401, "no")]);
        assert_eq!((played.error().kind, provider.request_count()), (ModelErrorKind::Unauthorized, 1));
    }
}

#[test]
fn a_waiting_time_beyond_our_patience_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let provider = Provider::always(Answer::rate_limited(3600));
    let gate = || Gate::shared(&folder.path().join("gate"), "p", Some("k"));
    let limits = Limits { request_retries: 4, ..limits() };
    let model = connect(&provider, Wire::Anthropic, "m", &limits, gate());
    let played = run(play(model.as_ref(), request(vec![Message::user("hi")])));
    assert_eq!(played.error().kind, ModelErrorKind::RateLimited);
    assert!(played.error().message.contains("asks to wait 3600 s, longer than 120 s (limit `retry_wait_max`)"), "{}", played.error());
    // Another process learns it from the gate, without a request.
    let model = connect(&provider, Wire::Anthropic, "m", &limits, gate());
    let played = run(play(model.as_ref(), request(vec![Message::user("hi")])));
    assert!(played.error().message.contains("3600 s, longer than 120 s") || played.error().message.contains("3599"), "{}", played.error());
    assert_eq!(provider.request_count(), 1);
}

/// fault G1: senders that share nothing but the gate's file.
#[test]
fn a_crowd_obeys_one_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let crowd = Crowd::new();
    let senders: Vec<_> = (0..8)
        .map(|_| {
            let model = connect(&crowd.provider, Wire::Openai, "m", &Limits::default(), Gate::shared(folder.path(), "p", Some("k")));
            std::thread::spawn(move || run(play(model.as_ref(), request(vec![Message::user("hi")]))).end.map(|reply| reply.message.text()))
        })
        .collect();
    for sender in senders {
        assert_eq!(sender.join().unwrap().unwrap(), "done");
    }
    crowd.check(8);
}

#[test]
fn a_dropped_stream_ends_its_request() {
    for wire in BOTH {
        for answer in [Answer::stall(), Answer::text("one two three four").silence_after(4)] {
            let provider = Provider::always(answer);
            let model = connect(&provider, wire, "m", &limits(), Gate::none());
            run(async {
                let mut stream = model.stream(request(vec![Message::user("hi")]));
                let waited = tokio::time::timeout(Duration::from_millis(100), async { while stream.next().await.is_some() {} }).await;
                assert!(waited.is_err(), "no end");
                drop(stream);
                // The connection closes while its runtime lives.
                while provider.hung_up() == 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
    }
}

/// fault B8: a large answer arrives whole, in bounded pieces, on a connection that is used again.
#[test]
fn a_large_answer_arrives_whole_and_the_connection_is_used_again() {
    for wire in BOTH {
        let text = "0123456789 你好\n".repeat(300_000);
        let provider = Provider::always(Answer::text(text.clone()));
        let model = connect(&provider, wire, "m", &limits(), Gate::none());
        run(async {
            for _ in 0..2 {
                let played = play(model.as_ref(), request(vec![Message::user("hi")])).await;
                assert!(played.text() == text && played.end.unwrap().message.text() == text, "{wire:?}");
            }
        });
        assert_eq!((provider.connections_made(), provider.request_count()), (1, 2), "{wire:?}");
    }
}

#[test]
fn what_cannot_be_reached_is_named() {
    let refusing = Refusing::new();
    let closed = refusing.address;
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let plain_address = plain.local_addr().unwrap();
    let plain = std::thread::spawn(move || plain.accept().unwrap().0.write_all(b"HTTP/1.1 400 no TLS here\r\n\r\n").unwrap());
    for (url, place) in [
        (format!("http://{closed}"), format!("http://{closed}")),
        (format!("http://user:secret-word@{closed}"), format!("http://{closed}")),
        // Builds the client with certificates; the handshake then fails.
        (format!("https://{plain_address}"), format!("https://{plain_address}")),
    ] {
        let environment = Environment::from_pairs([("OPENAI_BASE_URL", url)]);
        let choice = Choice { model: None, base_url: None, providers: &BTreeMap::new(), environment: &environment };
        let Selection::Remote(model, why) = select(&choice).unwrap() else { panic!("a base URL is enough") };
        let model = open(*model, &limits(), Gate::none());
        let played = run(play(model.as_ref(), request(vec![Message::user("hi")])));
        let error = played.error();
        assert_eq!(error.kind, ModelErrorKind::Connect, "{error}");
        assert!(error.message.contains(&format!("no connection to {place}: ")), "{error}");
        assert!(!error.message.contains("secret-word") && !why.line.contains("secret-word"), "{error} {why:?}");
    }
    plain.join().unwrap();
}

#[test]
fn servers_on_loopback_are_found_side_by_side() {
    use zapmyco::models::local::{Probe, find_at};
    let with_models = Provider::always(Answer::text("hello from here"));
    with_models.set_models(&["nomic-embed-text", "qwen3:8b", "llama"]);
    let other_program = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let web_port = other_program.local_addr().unwrap().port();
    let web = std::thread::spawn(move || {
        let (mut stream, _) = other_program.accept().unwrap();
        drop(stream.read(&mut [0; 1024]));
        let (mut stream2, _) = other_program.accept().unwrap();
        drop(stream2.read(&mut [0; 1024]));
        drop(stream.write_all(b""));
        stream2.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>").unwrap();
    });
    let closed = Refusing::new();
    let probes = [
        Probe { program: "lmstudio", port: closed.address.port() },
        Probe { program: "llamacpp", port: web_port },
        Probe { program: "vllm", port: silent_port },
        Probe { program: "ollama", port: with_models.address().port() },
    ];
    let found = run(find_at(&probes, Duration::from_secs(1)));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].program, found[0].models.len()), ("ollama", 3));
    let (model, why) = found[0].choose().unwrap().unwrap();
    assert_eq!(model.name(), "ollama/qwen3:8b");
    assert!(why.line.starts_with("model ollama/qwen3:8b: no key is set, and ollama answers at http://127.0.0.1:"), "{}", why.line);
    let played = run(play(open(model, &limits(), Gate::none()).as_ref(), request(vec![Message::user("hi")])));
    assert_eq!(played.end.unwrap().message.text(), "hello from here");
    web.join().unwrap();
}

/// fault G1: 16 processes of one user, 2 requests per second: all finish, and none sends inside a waiting time.
#[test]
fn processes_of_one_user_obey_one_refusal() {
    let home = Home::new();
    let crowd = Crowd::new();
    let children: Vec<_> = (0..16)
        .map(|_| {
            let mut command = home.command();
            crowd.provider.configure(&mut command).args(["run", "hi"]).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(0), "done\n"), "{errors}");
    }
    crowd.check(16);
}

/// A provider that takes 2 requests per second and refuses the others for one second.
struct Crowd {
    provider: Provider,
    accepted: Arc<std::sync::Mutex<Vec<Instant>>>,
    refused: Arc<std::sync::Mutex<Vec<Instant>>>,
}

impl Crowd {
    fn new() -> Self {
        let accepted = Arc::new(std::sync::Mutex::new(Vec::<Instant>::new()));
        let refused = Arc::new(std::sync::Mutex::new(Vec::<Instant>::new()));
        let provider = Provider::with({
            let (accepted, refused) = (accepted.clone(), refused.clone());
            move |request| {
                let mut accepted = accepted.lock().unwrap();
                let recent = accepted.iter().filter(|at| request.at.saturating_duration_since(**at) < Duration::from_secs(1)).count();
                if recent < 2 {
                    accepted.push(request.at);
                    return Answer::text("done");
                }
                refused.lock().unwrap().push(Instant::now());
                Answer::rate_limited(1)
            }
        });
        Self { provider, accepted, refused }
    }

    fn check(&self, n_senders: usize) {
        assert_eq!(self.accepted.lock().unwrap().len(), n_senders);
        // Sent is not arrived, and the reading of the refusal is not its writing: on a busy machine both cost time, so the
        // waiting time is looked at from 300 ms after the refusal to its end.
        let requests = self.provider.requests();
        for refused in self.refused.lock().unwrap().iter() {
            let window = *refused + Duration::from_millis(300)..*refused + Duration::from_millis(990);
            let inside = requests.iter().filter(|request| window.contains(&request.at)).count();
            assert_eq!(inside, 0, "requests inside a waiting time");
        }
        assert!(requests.len() < n_senders * 4, "{} requests: the spread grows until refusals cease", requests.len());
    }
}
