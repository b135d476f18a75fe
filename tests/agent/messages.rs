//! Messages that arrive while a session is busy or idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use zapmyco::agent::tool::ToolReply;
use zapmyco::agent::{Inbox, InboxRefusal, Input, InputSource, Receipt, TurnCause, Urgency};
use zapmyco::ids::JobId;
use zapmyco::models::Message;

use super::bench::*;

fn notice(text: &str) -> Input {
    Input::new(InputSource::TaskNotification, text)
}

/// A tool that posts into the session's own inbox while it runs.
fn poster(inbox: &Inbox) -> Probe {
    let inbox = inbox.clone();
    Probe::new("Post", move |input, _| {
        let inbox = inbox.clone();
        async move {
            let urgency = match input["urgency"].as_str() {
                Some("now") => Urgency::Now,
                Some("later") => Urgency::Later,
                _ => Urgency::Next,
            };
            inbox.post(urgency, notice(input["text"].as_str().unwrap())).unwrap();
            Ok(ToolReply::text("posted"))
        }
    })
}

/// R215, R255, R260
#[tokio::test]
async fn messages_join_after_a_complete_batch_by_urgency_and_later_ones_wait() {
    let post = |id, urgency, text| (id, "Post", json!({ "urgency": urgency, "text": text }));
    let player = Player::of([
        answer("", &[post("a", "later", "L"), post("b", "next", "N1"), post("c", "now", "W"), post("d", "next", "N2")]),
        answer("done", &[]),
    ]);
    let bench = Bench::new(player.clone());
    let tool = poster(&bench.inbox).alone();
    let bench = bench.tool(tool);
    let (_, end) = bench.run("go").await;
    assert_eq!(end.cause, TurnCause::Finished);
    assert_eq!(
        bench.shown().await[2..],
        ["tool_results: a=posted | b=posted | c=posted | d=posted", "task_notification: W\n\nN1\n\nN2", "assistant: done"]
    );
    assert_eq!(bench.inbox.len(), 1, "`later` waits for a turn of its own");
    assert_eq!(bench.events.count("input_joined"), 1);
}

/// R260
#[tokio::test]
async fn nothing_joins_before_the_first_step() {
    let player = Player::of([answer("first", &[]), answer("second", &[])]);
    let bench = Bench::new(player.clone());
    bench.inbox.post(Urgency::Next, notice("early")).unwrap();
    let (_, end) = bench.run("go").await;
    assert_eq!(player.requests()[0].messages.len(), 1, "the prompt stands alone in the first request");
    // At the text-only step it joins, before the turn would end (R215).
    assert_eq!(bench.shown().await, ["user: go", "assistant: first", "task_notification: early", "assistant: second"]);
    assert_eq!(end.text, "second");
}

/// R256
#[tokio::test]
async fn what_waits_together_becomes_one_turn() {
    let player = Player::of([answer("seen", &[])]);
    let bench = Bench::new(player.clone());
    let mut session = bench.session().await;
    for input in [notice("one"), notice("two"), Input::user("and this"), notice("three")] {
        bench.inbox.post(Urgency::Next, input).unwrap();
    }
    bench.inbox.post(Urgency::Later, notice("another urgency")).unwrap();
    let end = session.turn(bench.inbox.take().unwrap(), &CancellationToken::new()).await;
    assert_eq!(end.cause, TurnCause::Finished);
    assert_eq!(
        bench.shown().await,
        ["task_notification: one\n\ntwo", "user: and this", "task_notification: three", "assistant: seen"],
        "neighbours from one source are one message, sources stay apart"
    );
}

/// fault B10
#[tokio::test]
async fn many_large_notices_at_one_moment_are_one_bounded_batch() {
    let player = Player::of([answer("seen", &[]), answer("seen", &[])]);
    let mut bench = Bench::new(player.clone());
    bench.inbox = Inbox::new(1000);
    bench.limits.notice_max = 30_000;
    let mut session = bench.session().await;
    for number in 0..120 {
        let text = format!("SubAgent {number}: output in /jobs/{number}/stdout\n{}", "y".repeat(100_000));
        bench.inbox.post(Urgency::Next, notice(&text)).unwrap();
    }
    session.turn(bench.inbox.take().unwrap(), &CancellationToken::new()).await;
    let requests = player.requests();
    let text = requests[0].messages[0].text();
    assert!(text.len() <= 30_000 + 100 * 2, "{}", text.len());
    assert!(!text.contains("/jobs/100/"), "more than a hundred wait for the next step");
    for number in 0..100 {
        assert!(text.contains(&format!("output in /jobs/{number}/stdout\n")), "each keeps its head");
    }
}

#[derive(Default)]
struct Counted(AtomicUsize);

impl Receipt for Counted {
    fn still_wanted(&self) -> bool {
        true
    }
    fn delivered(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// R257, R259, fault E1
#[tokio::test]
async fn a_notice_is_delivered_once_whenever_it_comes() {
    for moment in ["idle", "in a tool call", "in the last token", "just resumed"] {
        let receipt = Arc::new(Counted::default());
        let job = JobId::new_process_agent(zapmyco::clock::now());
        let ended = notice("the job has ended").about(job.clone()).with_receipt(receipt.clone());
        let player = Player::of([]);
        let mut bench = Bench::new(player.clone());
        let inbox = bench.inbox.clone();
        if moment == "in a tool call" {
            player.then(answer("", &[("a", "End", json!({}))]));
            let (inbox, ended) = (inbox.clone(), ended.clone());
            bench = bench.tool(Probe::new("End", move |_, _| {
                inbox.post(Urgency::Next, ended.clone()).unwrap();
                async { Ok(ToolReply::text("x")) }
            }));
        }
        let last_token = (moment == "in the last token").then(|| (inbox.clone(), ended.clone()));
        player.then_with(move |_| {
            let answer = answer("first", &[]);
            stream::iter(answer)
                .inspect(move |event| {
                    if let (Ok(zapmyco::models::ModelEvent::Finished(_)), Some((inbox, ended))) = (event, &last_token) {
                        inbox.post(Urgency::Next, ended.clone()).unwrap();
                    }
                })
                .boxed()
        });
        player.then(answer("last", &[]));
        let (mut session, _) = bench.run("go").await;
        if moment == "just resumed" {
            session = bench.resumed().await;
        }
        let inbox = session.inbox();
        if moment == "idle" || moment == "just resumed" {
            inbox.post(Urgency::Next, ended).unwrap();
            inbox.wait().await;
        }
        while let Some(delivery) = inbox.take() {
            session.turn(delivery, &CancellationToken::new()).await;
        }
        let told = bench.stored().await.iter().filter(|message| message.text().contains("the job has ended")).count();
        assert_eq!((told, receipt.0.load(Ordering::SeqCst)), (1, 1), "{moment}");
        assert!(session.announced().contains(&job), "{moment}");
        assert!(bench.resumed().await.announced().contains(&job), "{moment}: also after a restart");
    }
}

/// R225, R226, R227
#[tokio::test]
async fn a_message_inside_a_turn_says_that_it_came_meanwhile() {
    let player = Player::of([answer("", &[("a", "Steer", json!({}))]), answer("done", &[])]);
    let bench = Bench::new(player.clone());
    let inbox = bench.inbox.clone();
    let bench = bench.tool(Probe::new("Steer", move |_, _| {
        inbox.post(Urgency::Now, Input::user("only the docs")).unwrap();
        inbox.post(Urgency::Next, Input::new(InputSource::Subagent, "hurry")).unwrap();
        async { Ok(ToolReply::text("x")) }
    }));
    bench.run("go").await;
    let shown = bench.shown().await;
    assert_eq!(shown[0], "user: go", "a message that begins a turn is bare");
    assert!(
        shown[3]
            .starts_with("user: The user sent a new message while you were working:\nonly the docs\n\nTake it into account in this turn"),
        "{}",
        shown[3]
    );
    assert_eq!(
        shown[4],
        "subagent: The coordinator sent a message while you were working:\nhurry\n\nAddress this before completing your current task."
    );
}

/// R259
#[tokio::test]
async fn the_inbox_of_a_session_that_is_gone_refuses() {
    let bench = Bench::new(Player::of([answer("done", &[])]));
    let (session, _) = bench.run("go").await;
    assert_eq!(bench.inbox.post(Urgency::Later, notice("still there")), Ok(()));
    drop(session);
    assert_eq!(bench.inbox.post(Urgency::Later, notice("too late")), Err(InboxRefusal::Closed));
}

/// fault B9
#[tokio::test]
async fn a_result_reaches_the_model_as_the_tool_gave_it_and_nothing_else() {
    let player = Player::of([answer("", &[("a", "Agent", json!({}))]), answer("done", &[])]);
    let bench = Bench::new(player.clone()).tool(Probe::new("Agent", |_, _| async {
        Ok(ToolReply { text: "DONE-1".into(), structured: Some(json!({ "traffic": "for observers only" })) })
    }));
    bench.run("go").await;
    let requests = player.requests();
    let sent: Vec<&Message> = requests[1].messages.iter().map(|message| &**message).collect();
    assert_eq!(texts_of(sent[2]), ["a=DONE-1"]);
    assert!(!serde_json::to_string(&sent).unwrap().contains("observers"));
}
