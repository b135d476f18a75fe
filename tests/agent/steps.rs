//! Steps of a turn: requests, batches, results.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::Barrier;
use zapmyco::agent::tool::{ToolFailure, ToolReply};
use zapmyco::agent::{EventKind, TurnCause};
use zapmyco::models::scripted::{Script, ScriptContext, scripted};
use zapmyco::models::{Block, Message};
use zapmyco::permissions::{Effect, Mode};

use super::bench::*;

#[tokio::test]
async fn a_turn_goes_on_until_the_model_asks_for_nothing_more() {
    let script = "
version: 1
scripts:
  - turns:
      - {text: looking, calls: [{name: Echo, input: {text: one}}, {name: Echo, input: {text: two}}], usage: {input_tokens: 5, output_tokens: 2}}
      - {calls: [{name: Echo, input: {text: '{{ results[0] }}'}}], usage: {input_tokens: 7, output_tokens: 3, cache_read_input_tokens: 4}}
      - {text: 'found {{ results | last }}', usage: {input_tokens: 1, output_tokens: 1}}
";
    let model = scripted(Arc::new(Script::parse("test", script).unwrap()), ScriptContext::new("/work"));
    let bench = Bench::new(model)
        .tool(Probe::new("Echo", |input, _| async move { Ok(ToolReply::text(input["text"].as_str().unwrap_or_default().to_owned())) }));
    let (session, end) = bench.run("find it").await;
    assert_eq!(end.cause, TurnCause::Finished);
    assert!(end.text.starts_with("found "), "{}", end.text);
    assert_eq!(end.steps, 3);
    assert_eq!((end.usage.input, end.usage.output, end.usage.cache_read), (13, 6, 4));
    assert_eq!(session.usage(), end.usage);
    assert_eq!(session.usage_by_model().values().copied().collect::<Vec<_>>(), [end.usage]);
    assert_eq!(bench.stored().await.len(), 6);
    let row = bench.store.session(&bench.id).await.unwrap().unwrap();
    assert_eq!((row.title.as_str(), row.task_type.as_str(), row.mode.as_str()), ("find it", "main", "yolo"));
}

/// R321
#[tokio::test]
async fn events_come_in_order_and_each_call_has_a_start_and_an_end() {
    let player = Player::of([answer("hm", &[("a", "Echo", json!({}))]), answer("done", &[])]);
    let bench = Bench::new(player).tool(Probe::says("Echo", "x"));
    bench.run("go").await;
    assert_eq!(
        bench.events.names(),
        [
            "session_started",
            "turn_started",
            "text_delta",
            "assistant_message",
            "tool_started",
            "tool_ended",
            "tool_results",
            "text_delta",
            "assistant_message",
            "turn_ended"
        ]
    );
    let logged: Vec<String> = bench.store.events(&bench.id, 0, 100).await.unwrap().into_iter().map(|event| event.kind).collect();
    assert_eq!(logged, ["session_started", "turn_started", "tool_started", "tool_ended", "turn_ended"]);
}

/// R31
#[tokio::test]
async fn independent_calls_of_one_message_run_side_by_side_and_keep_their_order() {
    // Each of the three waits for the other two, so in a row they would wait for ever.
    let together = Arc::new(Barrier::new(3));
    let calls: Vec<_> = ["a", "b", "c"].map(|id| (id, "Meet", json!({ "id": id }))).into();
    let player = Player::of([answer("", &calls), answer("done", &[])]);
    let bench = Bench::new(player.clone()).tool(Probe::new("Meet", move |input, _| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            // The first call ends last.
            for _ in 0..if input["id"] == "a" { 50 } else { 0 } {
                tokio::task::yield_now().await;
            }
            Ok(ToolReply::text(format!("met {}", input["id"].as_str().unwrap())))
        }
    }));
    let (_, end) = bench.run("meet").await;
    assert_eq!(end.cause, TurnCause::Finished);
    assert_eq!(bench.shown().await[2], "tool_results: a=met a | b=met b | c=met c");
}

/// R31
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_calls_at_once_is_bounded_and_some_run_alone() {
    let (now, most, beside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let ids: Vec<String> = (0..10).map(|number| format!("c{number}")).collect();
    let name = |place: usize| if place % 5 == 4 { "Alone" } else { "Beside" };
    let calls: Vec<_> = ids.iter().enumerate().map(|(place, id)| (id.as_str(), name(place), json!({}))).collect();
    let player = Player::of([answer("", &calls), answer("done", &[])]);
    let pair = Arc::new(Barrier::new(2));
    let mut bench = Bench::new(player)
        .tool(Probe::new("Beside", {
            let (now, most) = (now.clone(), most.clone());
            move |_, _| {
                let (now, most, pair) = (now.clone(), most.clone(), pair.clone());
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    // Goes on only when two run at once.
                    pair.wait().await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(ToolReply::text("ok"))
                }
            }
        }))
        .tool(
            Probe::new("Alone", {
                let (now, beside) = (now.clone(), beside.clone());
                move |_, _| {
                    beside.fetch_max(now.load(Ordering::SeqCst), Ordering::SeqCst);
                    async { Ok(ToolReply::text("ok")) }
                }
            })
            .alone(),
        );
    bench.limits.tool_concurrency = 2;
    let (_, end) = bench.run("go").await;
    assert_eq!(end.cause, TurnCause::Finished);
    assert_eq!(most.load(Ordering::SeqCst), 2);
    assert_eq!(beside.load(Ordering::SeqCst), 0, "a call that must run alone has company");
    let results = results(&bench.stored().await);
    assert_eq!(results, vec![("ok".to_owned(), false); 10]);
}

/// R334
#[tokio::test]
async fn calls_that_cannot_be_run_are_results_that_say_why() {
    let player = Player::of([
        answer(
            "",
            &[
                ("a", "Reed", json!({})),
                ("b", "Read", json!("path")),
                ("c", "Broken", json!({})),
                ("d", "BrokenEffect", json!({})),
                ("e", "Failing", json!({})),
                ("f", "Read", Value::Null),
                ("f", "read", json!({})),
                ("", "Read", json!({})),
            ],
        ),
        answer("done", &[]),
    ]);
    let bench = Bench::new(player.clone())
        .tool(Probe::says("Read", "text"))
        .tool(Probe::new("Broken", |_, _| async { panic!("a fault in the tool") }))
        .tool(Probe::says("BrokenEffect", "never").effect(|_| panic!("a fault in the effect")))
        .tool(Probe::new("Failing", |_, _| async { Err(ToolFailure::failed("no such file: x").with_hint("call Glob first")) }));
    let (session, end) = bench.run("go").await;
    assert_eq!((end.cause, end.text.as_str()), (TurnCause::Finished, "done"));
    let fault = "failed because of a fault in the program itself; the same call would fail again, so go on without it";
    assert_eq!(
        results(&bench.stored().await),
        [
            ("there is no tool `Reed`. Did you mean Read?\nKnown tools: Broken, BrokenEffect, Failing, Read".to_owned(), true),
            (
                "the input of Read is not valid JSON: expected value at line 1 column 1\nup to there: `p`\nfrom there:  `ath`\n\
                 The call was not run. Call Read again with one JSON object that fits its schema."
                    .into(),
                true
            ),
            (format!("Broken {fault}"), true),
            (format!("BrokenEffect {fault}"), true),
            ("no such file: x\ncall Glob first".into(), true),
            ("text".into(), false),
            ("text".into(), false),
            ("text".into(), false),
        ]
    );
    assert!(session.denials().is_empty());
    // Ids that are missing or used twice are replaced, an input that is no object is wrapped: providers refuse both.
    let Block::ToolUse { input, .. } = &bench.stored().await[1].blocks[1] else { panic!("not a call") };
    assert_eq!(input, &json!({ "input_that_is_not_an_object": "path" }));
    let ended = bench.events.events().iter().filter(|event| matches!(event, EventKind::ToolEnded { .. })).count();
    assert_eq!(ended, 8);
}

/// fault B10
#[tokio::test]
async fn results_are_bounded_one_by_one_and_together() {
    let ids: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "Large", json!({}))).collect();
    let player = Player::of([answer("", &[("x", "Large", json!({}))]), answer("", &calls), answer("done", &[])]);
    let mut bench = Bench::new(player.clone())
        .tool(Probe::new("Large", |_, _| async { Ok(ToolReply::text(format!("START {} END", "界".repeat(40_000)))) }));
    bench.limits.tool_result_max = 10_000;
    bench.run("go").await;
    let texts: Vec<String> = results(&bench.stored().await).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts.len(), 21);
    assert!(texts[0].len() <= 10_000 && texts[0].len() > 9_000, "{}", texts[0].len());
    for text in &texts {
        assert!(text.starts_with("START 界") && text.ends_with("界 END") && text.contains("bytes left out here"));
    }
    assert!(texts[1..].iter().map(String::len).sum::<usize>() <= 40_000, "the whole batch is bounded too");
}

/// R125
#[tokio::test]
async fn the_prefix_never_changes_and_context_comes_before_the_first_prompt() {
    let player = Player::of([answer("", &[("a", "Echo", json!({}))]), answer("one", &[]), answer("two", &[])]);
    let mut bench = Bench::new(player.clone()).tool(Probe::says("Echo", "x")).tool(Probe::says("Ask", "y"));
    bench.context = vec!["<context name=\"date\">\nToday.\n</context>".into()];
    let (mut session, _) = bench.run("first").await;
    session.turn(zapmyco::agent::Input::user("second"), &Default::default()).await;
    let requests = player.requests();
    assert_eq!(requests.len(), 3);
    for request in &requests {
        assert!(Arc::ptr_eq(&request.prefix, &requests[0].prefix));
        assert_eq!(request.messages[0].text(), "<context name=\"date\">\nToday.\n</context>");
        assert_eq!(request.messages[1].text(), "first");
    }
    let later: Vec<Message> = requests[2].messages.iter().map(|message| (**message).clone()).collect();
    let earlier: Vec<Message> = requests[1].messages.iter().map(|message| (**message).clone()).collect();
    assert_eq!(later[..earlier.len()], earlier, "what was sent once is sent again unchanged");
    assert_eq!(requests[0].prefix.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["Ask", "Echo"]);
}

/// R244, R324, R327, fault F5
#[tokio::test]
async fn what_would_be_asked_is_denied_told_and_counted() {
    let write = json!({ "file_path": "/work/x" });
    let player = Player::of([
        answer("", &[("a", "Write", write.clone()), ("b", "Look", json!({}))]),
        answer("", &[("c", "Look", json!({}))]),
        answer("I could not write", &[]),
    ]);
    let mut bench = Bench::new(player.clone())
        .tool(Probe::says("Write", "written").effect(|_| Effect::Writes("/work/x".into())))
        .tool(Probe::says("Look", "seen"));
    bench.mode = Mode::Default;
    let (session, end) = bench.run("go").await;
    assert_eq!(end.cause, TurnCause::Finished);
    let (text, is_error) = results(&bench.stored().await)[0].clone();
    assert!(is_error && text.starts_with("No permission client configured for Write: "), "{text}");
    assert!(text.contains("To allow it next time: "), "{text}");
    let denials = session.denials();
    assert_eq!(denials.len(), 1);
    assert_eq!(
        serde_json::to_value(&denials[0]).unwrap(),
        json!({ "tool_name": "Write", "tool_use_id": "a", "tool_input": write, "message": text })
    );
    assert!(!denials[0].succeeded_later);
    let denied = bench.events.events().into_iter().find_map(|event| match event {
        EventKind::PermissionDenied { call_id, name, input, .. } => Some((call_id, name, input)),
        _ => None,
    });
    assert_eq!(denied, Some(("a".into(), "Write".into(), write)));
}

#[tokio::test]
async fn a_denial_is_made_good_by_a_later_success_of_the_same_tool() {
    let player = Player::of([
        answer("", &[("a", "Write", json!({ "path": "/etc/x" })), ("b", "Look", json!({}))]),
        answer("", &[("c", "Write", json!({ "path": "/work/x" }))]),
        answer("done", &[]),
    ]);
    let mut bench = Bench::new(player)
        .tool(Probe::says("Write", "written").effect(|input| Effect::Writes(input["path"].as_str().unwrap().into())))
        .tool(Probe::says("Look", "seen"));
    bench.mode = Mode::AcceptEdits;
    let (session, _) = bench.run("go").await;
    let denials = session.denials();
    assert_eq!(denials.iter().map(|denial| (denial.tool_use_id.as_str(), denial.succeeded_later)).collect::<Vec<_>>(), [("a", true)]);
}
