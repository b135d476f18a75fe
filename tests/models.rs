//! Models over real HTTP on loopback.

use crate::support::provider::{Answer, Provider};
use crate::support::wait;
use futures_util::StreamExt;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
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
        (Answer::new().and_raw_call("c", "Read", "{\"path\":"), Kind::Garbled, None, "arguments of the call of `Read`"),
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
