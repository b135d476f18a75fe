//! How a turn can end: limits, failures, cancellation, a store that fails.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use zapmyco::agent::session::{Session, SessionError};
use zapmyco::agent::tool::{FailureKind, ToolFailure, ToolReply};
use zapmyco::agent::{EventKind, Input, TurnCause};
use zapmyco::models::scripted::{Script, ScriptContext, scripted};
use zapmyco::models::{ModelErrorKind, ModelEvent, StopReason, ToolUse};
use zapmyco::store::Store;

use super::bench::*;

/// R172, fault D2
#[tokio::test]
async fn at_the_turn_limit_one_closing_request_asks_for_a_report() {
    let ids = ["a", "b", "c", "d"];
    let mut answers: Vec<_> = ids[..3].iter().map(|id| answer(id, &[(id, "Echo", json!({}))])).collect();
    // The closing answer asks for a tool all the same; the call is not run.
    answers.push(answer("the report", &[("d", "Echo", json!({}))]));
    let player = Player::of(answers);
    let mut bench = Bench::new(player.clone()).tool(Probe::says("Echo", "ran"));
    bench.max_turns = Some(3);
    let (mut session, end) = bench.run("go").await;
    assert_eq!((end.cause, end.text.as_str(), end.steps), (TurnCause::MaxTurns, "the report", 4));
    let requests = player.requests();
    let allowed: Vec<ToolUse> = requests.iter().map(|request| request.tool_use).collect();
    assert_eq!(allowed, [ToolUse::Allowed, ToolUse::Allowed, ToolUse::Allowed, ToolUse::Forbidden]);
    assert!(requests.iter().all(|request| Arc::ptr_eq(&request.prefix, &requests[0].prefix)), "the tools stay declared");
    let shown = bench.shown().await;
    assert!(shown[7].starts_with("limit: The limit of 3 model requests"), "{shown:#?}");
    assert_eq!(shown[9], "tool_results: !d=not run: the limit for this task is reached");
    // A further turn of the same run gets no more than its closing request.
    player.then(answer("still closing", &[]));
    let end = session.turn(Input::user("more"), &CancellationToken::new()).await;
    assert_eq!((end.cause, end.text.as_str(), end.steps), (TurnCause::MaxTurns, "still closing", 1));
}

/// R172, fault D2
#[tokio::test]
async fn a_closing_answer_without_text_leaves_the_last_text() {
    let player = Player::of([answer("halfway", &[("a", "Echo", json!({}))]), answer("", &[("b", "Echo", json!({}))])]);
    let mut bench = Bench::new(player).tool(Probe::says("Echo", "ran"));
    bench.max_turns = Some(1);
    let (_, end) = bench.run("go").await;
    assert_eq!((end.cause, end.text.as_str()), (TurnCause::MaxTurns, "halfway"));
}

/// fault D3
#[tokio::test]
async fn a_limit_of_one_is_obeyed_and_zero_is_refused() {
    let mut bench = Bench::new(Player::of([answer("at once", &[])]));
    bench.max_turns = Some(1);
    let (_, end) = bench.run("go").await;
    assert_eq!(end.cause, TurnCause::Finished, "the limit is not reached by an answer that asks for nothing");
    bench.max_turns = Some(0);
    assert!(matches!(Session::create(bench.parts()).await, Err(SessionError::NoTurns)));
}

/// R173
#[tokio::test]
async fn a_used_up_budget_ends_like_the_turn_limit() {
    let player =
        Player::of([answer("one", &[("a", "Echo", json!({}))]), answer("two", &[("b", "Echo", json!({}))]), answer("the report", &[])]);
    let mut bench = Bench::new(player.clone()).tool(Probe::says("Echo", "ran"));
    // An answer costs 20 tokens.
    bench.token_budget = Some(40);
    let (_, end) = bench.run("go").await;
    assert_eq!((end.cause, end.text.as_str()), (TurnCause::Budget, "the report"));
    assert_eq!(player.requests()[2].tool_use, ToolUse::Forbidden);
    assert_eq!(end.usage.total(), 60);
}

/// fault C3
#[tokio::test]
async fn a_failed_request_is_never_an_answer_and_keeps_what_had_arrived() {
    let faults = [
        ("rate_limited", ModelErrorKind::RateLimited, ""),
        ("server_error", ModelErrorKind::ServerError, ""),
        ("unauthorized", ModelErrorKind::Unauthorized, ""),
        ("empty", ModelErrorKind::Empty, ""),
        ("garbled", ModelErrorKind::Garbled, ""),
        ("cut", ModelErrorKind::Interrupted, "first part"),
    ];
    for (fault, expected, kept) in faults {
        let script = format!(
            "version: 1\nscripts:\n  - turns:\n      - {{text: 'first part, second part', fault: {fault}}}\n      - {{text: after}}\n"
        );
        let model = scripted(Arc::new(Script::parse("test", script).unwrap()), ScriptContext::new("/work"));
        let bench = Bench::new(model);
        let (mut session, end) = bench.run("go").await;
        let TurnCause::ModelFailed { kind, message } = &end.cause else { panic!("{fault}: {:?}", end.cause) };
        assert_eq!(*kind, expected);
        assert!(message.contains("scripted fault"), "{message}");
        assert!(end.text.starts_with(kept) && (kept.is_empty() == end.text.is_empty()), "{fault}: {:?}", end.text);
        assert_eq!(bench.events.count("assistant_message"), 0, "{fault}");
        let shown = bench.shown().await;
        if kept.is_empty() {
            assert_eq!(shown, ["user: go"]);
        } else {
            assert!(shown[1].ends_with(" | [The answer was cut off here: the model's answer failed.]"), "{shown:?}");
            assert_eq!(bench.rows().await[1].message["partial"], true);
            // The session goes on from there.
            let end = session.turn(Input::user("again"), &CancellationToken::new()).await;
            assert_eq!((end.cause, end.text.as_str()), (TurnCause::Finished, "after"));
        }
    }
}

/// fault C3
#[tokio::test]
async fn a_stream_that_just_stops_is_a_failure() {
    let player = Player::of([vec![Ok(ModelEvent::TextDelta("half".into()))]]);
    let (session, end) = Bench::new(player).run("go").await;
    assert!(matches!(end.cause, TurnCause::ModelFailed { kind: ModelErrorKind::Interrupted, .. }));
    assert_eq!((end.text.as_str(), session.steps()), ("half", 0));
}

#[tokio::test]
async fn usage_of_failed_requests_counts() {
    let player = Player::of([answer("", &[("a", "Echo", json!({}))]), vec![Err(failure(ModelErrorKind::Overloaded, Some("so far")))]]);
    let (session, end) = Bench::new(player).tool(Probe::says("Echo", "x")).run("go").await;
    assert_eq!((end.usage.total(), end.text.as_str(), end.steps), (22, "so far", 1));
    assert_eq!(session.usage_by_model()["test/player"].total(), 22);
}

#[tokio::test]
async fn a_cut_answer_and_a_refusal_are_told_apart_and_their_calls_are_not_run() {
    for (stop, cause) in [(StopReason::MaxTokens, TurnCause::MaxTokens), (StopReason::Refusal, TurnCause::Refused)] {
        let player = Player::of([stopped("so far", &[("a", "Echo", json!({}))], stop), answer("next", &[])]);
        let bench = Bench::new(player).tool(Probe::new("Echo", |_, _| async { panic!("must not run") }));
        let (mut session, end) = bench.run("go").await;
        assert_eq!((end.cause, end.text.as_str()), (cause, "so far"));
        assert!(bench.shown().await[2].starts_with("tool_results: !a=not run: "));
        assert_eq!(session.turn(Input::user("go on"), &CancellationToken::new()).await.cause, TurnCause::Finished);
    }
}

#[tokio::test]
async fn a_turn_stopped_inside_an_answer_keeps_its_text() {
    let player = Player::of([]);
    let cancel = CancellationToken::new();
    player.then_with({
        let cancel = cancel.clone();
        move |_| {
            let begun = stream::iter([Ok(ModelEvent::TextDelta("so ".into())), Ok(ModelEvent::TextDelta("far".into()))]);
            begun
                .chain(stream::once(async move {
                    cancel.cancel();
                    std::future::pending().await
                }))
                .boxed()
        }
    });
    let bench = Bench::new(player);
    let mut session = bench.session().await;
    let end = session.turn(Input::user("go"), &cancel).await;
    assert_eq!((end.cause, end.text.as_str()), (TurnCause::Cancelled, "so far"));
    assert_eq!(bench.shown().await, ["user: go", "assistant: so far | [The answer was cut off here: the turn was stopped.]"]);
}

#[tokio::test]
async fn a_turn_stopped_inside_a_batch_gives_every_call_a_result() {
    let started = Arc::new(Notify::new());
    let player = Player::of([
        answer("working", &[("a", "Quick", json!({})), ("b", "Polite", json!({})), ("c", "Deaf", json!({})), ("d", "Alone", json!({}))]),
        answer("after", &[]),
    ]);
    let mut bench = Bench::new(player.clone())
        .tool(Probe::says("Quick", "quick result"))
        .tool(Probe::new("Polite", |_, context| async move {
            context.cancel.cancelled().await;
            Err(ToolFailure::new(FailureKind::Cancelled, "cancelled; output so far: line 1"))
        }))
        .tool(Probe::new("Deaf", {
            let started = Arc::clone(&started);
            move |_, _| {
                let started = Arc::clone(&started);
                async move {
                    started.notify_one();
                    std::future::pending::<()>().await;
                    Ok(ToolReply::text("never"))
                }
            }
        }))
        .tool(Probe::new("Alone", |_, _| async { panic!("must not start") }).alone());
    (bench.limits.stop_grace, bench.limits.drain_time) = (Duration::from_millis(100), Duration::from_millis(25));
    let cancel = CancellationToken::new();
    let mut session = bench.session().await;
    let stopper = async {
        started.notified().await;
        cancel.cancel();
    };
    let (end, ()) = tokio::join!(session.turn(Input::user("go"), &cancel), stopper);
    assert_eq!((end.cause, end.text.as_str()), (TurnCause::Cancelled, "working"));
    let results = results(&bench.stored().await);
    assert_eq!(results[1], ("cancelled; output so far: line 1".into(), true), "a tool that obeys hands over what it has");
    assert_eq!(results[2], ("Cancelled: the turn was stopped before this call ended; it may have taken effect in part.".into(), true));
    assert_eq!(results[3], ("Cancelled: the turn was stopped before this call was started; it had no effect.".into(), true));
    assert_legal(&bench.stored().await);
    let end = session.turn(Input::user("go on"), &CancellationToken::new()).await;
    assert_eq!((end.cause, end.text.as_str()), (TurnCause::Finished, "after"));
}

#[tokio::test]
async fn a_turn_that_is_stopped_before_it_begins_asks_no_model() {
    let player = Player::of([]);
    let bench = Bench::new(player.clone());
    let mut session = bench.session().await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let end = session.turn(Input::user("go"), &cancel).await;
    assert_eq!((end.cause, end.duration < Duration::from_secs(60)), (TurnCause::Cancelled, true));
    assert!(player.requests().is_empty());
    assert_eq!(bench.shown().await, ["user: go"]);
}

/// A database on disk whose table of messages refuses rows from one source (by an overflow in a trigger).
fn store_that_refuses(folder: &tempfile::TempDir, source: &str) -> Store {
    let path = folder.path().join("zapmyco.db");
    let store = Store::open(&path).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch(&format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN NEW.source = '{source}' BEGIN SELECT abs(-9223372036854775807 - 1); END"
        ))
        .unwrap();
    store
}

/// What cannot be saved is not announced, and the next step does not happen.
#[tokio::test]
async fn a_store_that_fails_ends_the_turn() {
    let cases = [("user", "turn_started", 0), ("assistant", "assistant_message", 1), ("tool_results", "tool_results", 1)];
    for (source, event, requests) in cases {
        let folder = tempfile::tempdir().unwrap();
        let player = Player::of([answer("one", &[("a", "Echo", json!({}))]), answer("two", &[])]);
        let mut bench = Bench::new(player.clone()).tool(Probe::says("Echo", "x"));
        bench.store = store_that_refuses(&folder, source);
        let mut session = bench.session().await;
        let end = session.turn(Input::user("go"), &CancellationToken::new()).await;
        let TurnCause::StoreFailed { message } = &end.cause else { panic!("{source}: {:?}", end.cause) };
        assert!(message.contains("integer overflow"), "{message}");
        assert_eq!(bench.events.count(event), 0, "{source}");
        assert_eq!(bench.events.count("turn_ended"), 1, "{source}");
        assert_eq!(player.requests().len(), requests, "{source}");
    }
}

/// An input that could not be saved waits in the inbox again.
#[tokio::test]
async fn a_notice_that_cannot_be_saved_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(Player::of([answer("one", &[])]));
    bench.store = store_that_refuses(&folder, "task_notification");
    let mut session = bench.session().await;
    let notice = Input::new(zapmyco::agent::InputSource::TaskNotification, "a job ended");
    bench.inbox.post(zapmyco::agent::Urgency::Next, notice).unwrap();
    let delivery = bench.inbox.take().unwrap();
    let end = session.turn(delivery, &CancellationToken::new()).await;
    assert!(matches!(end.cause, TurnCause::StoreFailed { .. }));
    assert_eq!(bench.inbox.len(), 1);
}

/// At the moment of each announcement the message is already in the database, as another process sees it.
#[tokio::test]
async fn saved_first_announced_second() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zapmyco.db");
    let player = Player::of([answer("one", &[("a", "Echo", json!({}))]), answer("two", &[])]);
    let mut bench = Bench::new(player).tool(Probe::says("Echo", "x"));
    bench.store = Store::open(&path).unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    bench.events = Arc::new(Kept::watching({
        let seen = Arc::clone(&seen);
        move |event| {
            let count = || -> i64 {
                let connection = rusqlite::Connection::open(&path).unwrap();
                connection.query_row("SELECT count(*) FROM messages", [], |row| row.get(0)).unwrap()
            };
            match event {
                EventKind::TurnStarted { .. } | EventKind::AssistantMessage { .. } | EventKind::ToolResults { .. } => {
                    seen.lock().unwrap().push(count());
                }
                _ => {}
            }
        }
    }));
    let mut session = bench.session().await;
    session.turn(Input::user("go"), &CancellationToken::new()).await;
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3, 4]);
}
