//! Sessions taken up again, and histories that stay legal whatever happens.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use zapmyco::agent::session::{Session, SessionError};
use zapmyco::agent::state::{FileMark, Todo, TodoStatus};
use zapmyco::agent::tool::{ToolFailure, ToolReply};
use zapmyco::agent::{Input, InputSource, TurnCause, Urgency};
use zapmyco::models::Message;
use zapmyco::permissions::Effect;
use zapmyco::store::{MessageRow, Store};

use super::bench::*;

const UNKNOWN: &str = "Interrupted, result unknown: the program was stopped before this call reported its end. \
    It may have taken effect in part or in full; look before you repeat it.";

#[tokio::test]
async fn history_files_seen_and_todos_come_back() {
    let player = Player::of([answer("", &[("a", "Work", json!({}))]), answer("one", &[]), answer("two", &[])]);
    let bench = Bench::new(player.clone()).tool(Probe::new("Work", |_, context| async move {
        context.state.mark_seen("/work/file".into(), FileMark { digest: "d1".into() });
        let todo = Todo { content: "test".into(), status: TodoStatus::InProgress, active_form: "testing".into() };
        context.state.set_todos(vec![todo]);
        Ok(ToolReply::text("x"))
    }));
    let (first, _) = bench.run("go").await;
    let (state, shown) = (first.state().record(), bench.shown().await);
    drop(first);
    let mut session = bench.resumed().await;
    assert_eq!(session.state().record(), state);
    assert_eq!(state.todos.len(), 1);
    let end = session.turn(Input::user("on"), &CancellationToken::new()).await;
    assert_eq!(end.text, "two");
    assert_eq!(bench.shown().await[..shown.len()], shown);
    let last = player.requests().pop().unwrap();
    assert_eq!(last.messages.len(), shown.len() + 1, "the model sees the whole history");
}

#[tokio::test]
async fn an_unknown_session_and_a_taken_id_are_typed_errors() {
    let bench = Bench::new(Player::of([]));
    assert!(matches!(Session::resume(bench.parts()).await, Err(SessionError::Unknown { .. })));
    bench.session().await;
    assert!(matches!(Session::create(bench.parts()).await, Err(SessionError::Store(_))));
}

/// Only context that has changed since is added on resume; what was sent stays where it was.
#[tokio::test]
async fn changed_context_is_added_and_equal_context_is_not() {
    let player = Player::of([answer("one", &[]), answer("two", &[])]);
    let mut bench = Bench::new(player);
    let context = |name: &str, text: &str| format!("<context name=\"{name}\">\n{text}\n</context>");
    bench.context = vec![context("instructions", "be brief"), context("date", "monday")];
    bench.run("go").await;
    bench.context = vec![context("instructions", "be brief"), context("date", "tuesday")];
    let mut session = bench.resumed().await;
    session.turn(Input::user("on"), &CancellationToken::new()).await;
    let sources: Vec<String> = bench.rows().await.into_iter().map(|row| row.source).collect();
    assert_eq!(sources, ["context", "context", "user", "assistant", "context", "user", "assistant"]);
    assert!(bench.shown().await[4].contains("tuesday"));
}

/// A kill in the middle of a batch: the result that was known is kept, the other is "unknown".
#[tokio::test]
async fn results_that_were_known_before_a_kill_are_kept() {
    let second_runs = Arc::new(Notify::new());
    let player = Player::of([
        // The same ids in both batches: the old results must not be taken for the new ones.
        answer("", &[("a", "Quick", json!({ "say": "old" })), ("b", "Quick", json!({ "say": "old" }))]),
        answer("", &[("a", "Quick", json!({ "say": "new" })), ("b", "Hanging", json!({}))]),
        answer("recovered", &[]),
    ]);
    let bench = Bench::new(player.clone())
        .tool(Probe::new("Quick", |input, _| async move { Ok(ToolReply::text(input["say"].as_str().unwrap().to_owned())) }).alone())
        .tool(Probe::new("Hanging", {
            let second_runs = Arc::clone(&second_runs);
            move |_, _| {
                second_runs.notify_one();
                std::future::pending()
            }
        }));
    let mut session = bench.session().await;
    let cancel = CancellationToken::new();
    tokio::select! {
        end = session.turn(Input::user("go"), &cancel) => panic!("{end:?}"),
        () = second_runs.notified() => {}
    }
    drop(session);
    let mut session = bench.resumed().await;
    assert_eq!(bench.shown().await[4], format!("tool_results: call_3=new | !call_4={UNKNOWN}"));
    let end = session.turn(Input::user("what happened?"), &cancel).await;
    assert_eq!((end.cause, end.text.as_str()), (TurnCause::Finished, "recovered"));
    assert_legal(&bench.stored().await);
}

/// The same in one process: a turn whose future was dropped does not spoil the next one.
#[tokio::test]
async fn a_dropped_turn_is_repaired_by_the_next() {
    let runs = Arc::new(Notify::new());
    let player = Player::of([answer("", &[("a", "Hanging", json!({}))]), answer("after", &[])]);
    let bench = Bench::new(player).tool(Probe::new("Hanging", {
        let runs = Arc::clone(&runs);
        move |_, _| {
            runs.notify_one();
            std::future::pending()
        }
    }));
    let mut session = bench.session().await;
    let cancel = CancellationToken::new();
    tokio::select! {
        end = session.turn(Input::user("go"), &cancel) => panic!("{end:?}"),
        () = runs.notified() => {}
    }
    let end = session.turn(Input::user("again"), &cancel).await;
    assert_eq!(end.cause, TurnCause::Finished);
    assert_eq!(bench.shown().await[2..], [format!("tool_results: !a={UNKNOWN}"), "user: again".into(), "assistant: after".into()]);
}

/// A process killed after any row, and even a database that lost a row, can be taken up again.
#[tokio::test]
async fn a_history_cut_or_holed_anywhere_can_be_taken_up() {
    let bench = Bench::new(Player::of([
        answer("x", &[("a", "Echo", json!({})), ("b", "Echo", json!({}))]),
        answer("", &[("c", "Echo", json!({}))]),
        answer("done", &[]),
        answer("", &[("d", "Echo", json!({}))]),
        answer("more", &[]),
    ]))
    .tool(Probe::says("Echo", "echoed"));
    let (mut session, _) = bench.run("go").await;
    session.turn(Input::user("next"), &CancellationToken::new()).await;
    let (rows, row) = (bench.rows().await, bench.store.session(&bench.id).await.unwrap().unwrap());
    assert_eq!(rows.len(), 10);
    let cuts = (0..=rows.len()).map(|length| rows[..length].to_vec());
    let holes = (0..rows.len()).map(|hole| {
        let mut rest: Vec<MessageRow> = rows.clone();
        rest.remove(hole);
        rest
    });
    for rows in cuts.chain(holes) {
        let player = Player::of([answer("", &[("e", "Echo", json!({}))]), answer("recovered", &[])]);
        let mut later = Bench::new(player.clone()).tool(Probe::says("Echo", "echoed"));
        later.id = bench.id.clone();
        later.store.create_session(row.clone()).await.unwrap();
        later.store.append_messages(&bench.id, rows.clone()).await.unwrap();
        let mut session = later.resumed().await;
        // The model checks every request for legality.
        let end = session.turn(Input::user("go on"), &CancellationToken::new()).await;
        assert_eq!((end.cause, end.text.as_str()), (TurnCause::Finished, "recovered"));
        assert_eq!(later.rows().await[..rows.len()], rows, "nothing stored is changed");
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_told_and_a_newer_version_is_refused() {
    let bench = Bench::new(Player::of([answer("one", &[]), answer("two", &[])]));
    bench.run("go").await;
    let bad = |seq, message| MessageRow { seq, source: "assistant".into(), message, at: zapmyco::clock::now() };
    bench.store.append_messages(&bench.id, vec![bad(2, json!({ "version": 1, "role": "nobody" }))]).await.unwrap();
    let mut session = bench.resumed().await;
    let told = bench.events.events().iter().any(|event| {
        matches!(event, zapmyco::agent::EventKind::Notice { text } if text == "message 2 of the stored history cannot be read and is left out")
    });
    assert!(told);
    assert_eq!(session.turn(Input::user("on"), &CancellationToken::new()).await.text, "two");
    bench.store.append_messages(&bench.id, vec![bad(9, json!({ "version": 2 }))]).await.unwrap();
    let error = Session::resume(bench.parts()).await.err().unwrap().to_string();
    assert!(error.ends_with("message 9 is stored in version 2, this program knows version 1"), "{error}");
}

/// What a generated call does.
#[derive(Clone, Debug)]
struct Move {
    tool: &'static str,
    /// How often it lets others go first.
    yields: usize,
    post: Option<u8>,
    cancels: bool,
}

fn moves() -> impl Strategy<Value = Vec<Vec<Move>>> {
    let tools = prop::sample::select(vec!["Beside", "Alone", "Failing", "Panics", "Denied", "Unknown"]);
    let one = (tools, 0usize..6, prop::option::weighted(0.4, 0u8..3), prop::bool::weighted(0.04));
    let call = one.prop_map(|(tool, yields, post, cancels)| Move { tool, yields, post, cancels });
    prop::collection::vec(prop::collection::vec(call, 1..5), 0..4)
}

/// Plays the moves: one batch per answer, posts and a cancellation from inside the calls, then turns until the inbox is empty.
async fn play(batches: Vec<Vec<Move>>) -> (Vec<Message>, usize) {
    let player = Player::of([]);
    for (step, batch) in batches.iter().enumerate() {
        let ids: Vec<String> = (0..batch.len()).map(|call| format!("s{step}c{call}")).collect();
        let calls: Vec<(&str, &str, Value)> = batch
            .iter()
            .zip(&ids)
            .map(|(step, id)| (id.as_str(), step.tool, json!({ "yields": step.yields, "post": step.post, "cancels": step.cancels })))
            .collect();
        player.then(answer("", &calls));
    }
    for _ in 0..40 {
        player.then(answer("text", &[]));
    }
    let cancel = CancellationToken::new();
    let mut bench = Bench::new(player);
    bench.mode = zapmyco::permissions::Mode::Plan;
    let (inbox, token) = (bench.inbox.clone(), cancel.clone());
    let body = move |input: Value, _| {
        let (inbox, token) = (inbox.clone(), token.clone());
        async move {
            for _ in 0..input["yields"].as_u64().unwrap() {
                tokio::task::yield_now().await;
            }
            if let Some(urgency) = input["post"].as_u64() {
                let urgency = [Urgency::Now, Urgency::Next, Urgency::Later][urgency as usize];
                inbox.post(urgency, Input::new(InputSource::TaskNotification, "posted")).unwrap();
            }
            if input["cancels"] == true {
                token.cancel();
            }
            Ok(ToolReply::text("ok"))
        }
    };
    let failing = body.clone();
    let panics = body.clone();
    let bench = bench
        .tool(Probe::new("Beside", body.clone()))
        .tool(Probe::new("Alone", body.clone()).alone())
        .tool(Probe::new("Denied", body).effect(|_| Effect::Writes("/work/x".into())))
        .tool(Probe::new("Failing", move |input, context| {
            let done = failing(input, context);
            async move { done.await.and_then(|_: ToolReply| Err(ToolFailure::failed("no"))) }
        }))
        .tool(Probe::new("Panics", move |input, context| {
            let done = panics(input, context);
            async move {
                let _: Result<ToolReply, ToolFailure> = done.await;
                panic!("as generated")
            }
        }));
    let mut session = bench.session().await;
    session.turn(Input::user("go"), &cancel).await;
    while let Some(delivery) = bench.inbox.take() {
        session.turn(delivery, &CancellationToken::new()).await;
    }
    let end = session.turn(Input::user("last"), &CancellationToken::new()).await;
    assert_eq!(end.cause, TurnCause::Finished);
    let stored = bench.stored().await;
    let delivered = stored.iter().map(|message| message.text().matches("posted").count()).sum();
    (stored, delivered)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// R215: any order of tool ends, posts and a stop leaves a history that every provider accepts, and no message is
    /// lost or doubled.
    #[test]
    fn any_order_of_ends_and_posts_leaves_a_legal_history(batches in moves(), many_threads: bool) {
        let mut builder = if many_threads { tokio::runtime::Builder::new_multi_thread() } else { tokio::runtime::Builder::new_current_thread() };
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let (stored, delivered) = runtime.block_on(play(batches.clone()));
        assert_legal(&stored);
        let asked: usize = batches.iter().map(Vec::len).sum();
        let results = results(&stored);
        prop_assert!(results.len() <= asked);
        let runs = |step: &Move| matches!(step.tool, "Beside" | "Alone" | "Failing" | "Panics");
        let stopped = batches.iter().flatten().any(|step| step.cancels && runs(step));
        if !stopped {
            prop_assert_eq!(results.len(), asked);
            let posted = batches.iter().flatten().filter(|step| step.post.is_some() && runs(step)).count();
            prop_assert_eq!(delivered, posted);
        }
    }
}

/// Sessions in one database do not see one another.
#[tokio::test]
async fn sessions_share_a_database_and_nothing_else() {
    let store = Store::in_memory().unwrap();
    let mut one = Bench::new(Player::of([answer("one", &[])]));
    let mut two = Bench::new(Player::of([answer("two", &[])]));
    (one.store, two.store) = (store.clone(), store);
    tokio::join!(one.run("first"), two.run("second"));
    assert_eq!(one.shown().await, ["user: first", "assistant: one"]);
    assert_eq!(two.shown().await, ["user: second", "assistant: two"]);
}
