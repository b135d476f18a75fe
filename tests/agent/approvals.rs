//! A person's word about single calls, as the conversation engine sees it: who waits, who goes on, what holds afterwards.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use zapmyco::agent::session::{Session, SessionParts};
use zapmyco::agent::tool::ToolReply;
use zapmyco::agent::{EventKind, Input};
use zapmyco::permissions::approval::{ApprovalRequest, Approver, Decision, Subject};
use zapmyco::permissions::{Effect, Mode, Policy, Rule, RuleSet};

use super::bench::*;
use crate::support::wait;

/// Questions that lie before a person, who answers when the test says so.
#[derive(Default)]
struct Person {
    open: Mutex<Vec<(ApprovalRequest, oneshot::Sender<Decision>)>>,
}

impl Approver for Person {
    fn is_attended(&self) -> bool {
        true
    }

    fn ask(&self, request: ApprovalRequest) -> BoxFuture<'_, Decision> {
        let (answer, decided) = oneshot::channel();
        self.open.lock().unwrap().push((request, answer));
        Box::pin(async move { decided.await.unwrap_or(Decision::Unanswered) })
    }
}

impl Person {
    /// The calls that are asked about now, by id, sorted.
    fn asked(&self) -> Vec<String> {
        let mut open = self.open.lock().unwrap();
        open.retain(|(_, answer)| !answer.is_closed());
        let mut calls: Vec<String> = open.iter().map(|(request, _)| request.call_id.clone()).collect();
        calls.sort();
        calls
    }

    fn answer(&self, call: &str, decision: Decision) {
        let mut open = self.open.lock().unwrap();
        let place = open.iter().position(|(request, _)| request.call_id == call).unwrap();
        let (_, answer) = open.remove(place);
        answer.send(decision).unwrap();
    }
}

async fn asked(person: &Person, calls: &[&str]) {
    tokio::time::timeout(wait::PATIENCE, async {
        while person.asked() != calls {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("asked about {:?}, not about {calls:?}", person.asked()));
}

struct Asking {
    bench: Bench,
    person: Arc<Person>,
    policy: Arc<Policy>,
}

impl Asking {
    /// `Write` must be alone and writes `input.path`; `Look` reads `input.path` beside others.
    fn new(calls: &[(&str, &str, serde_json::Value)]) -> Self {
        let path = |input: &serde_json::Value| PathBuf::from(input["path"].as_str().unwrap_or("/work/x"));
        let bench = Bench::new(Player::of([answer("", calls), answer("done", &[])]))
            .tool(Probe::says("Write", "written").alone().effect(move |input| Effect::Writes(path(input))))
            .tool(Probe::says("Look", "seen").effect(move |input| Effect::Reads(path(input))))
            .tool(
                Probe::new("Fetch", |_, _| async { Ok(ToolReply::text("fetched")) })
                    .effect(|_| Effect::Runs { command: "fetch it".into() }),
            );
        let policy = Arc::new(Policy::new(Mode::Default, RuleSet::default(), "/work".into()));
        Self { bench, person: Arc::default(), policy }
    }

    async fn session(&self) -> Session {
        let parts = SessionParts { policy: self.policy.clone(), approver: self.person.clone(), ..self.bench.parts() };
        Session::create(parts).await.unwrap()
    }

    fn ended(&self) -> Vec<String> {
        let name = |event: EventKind| match event {
            EventKind::ToolEnded { call_id, .. } => Some(call_id),
            _ => None,
        };
        self.bench.events.events().into_iter().filter_map(name).collect()
    }

    async fn has_ended(&self, call: &str) {
        tokio::time::timeout(wait::PATIENCE, async {
            while !self.ended().contains(&call.to_owned()) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{call} does not end"));
    }

    fn resolved(&self) -> Vec<(String, String)> {
        let resolved = |event: EventKind| match event {
            EventKind::PermissionResolved { call_id, decision, .. } => Some((call_id, decision)),
            _ => None,
        };
        self.bench.events.events().into_iter().filter_map(resolved).collect()
    }
}

/// R243: one question holds up neither the siblings that may run nor their order: what changes something keeps its turn,
/// and so does a look at what is about to change.
#[tokio::test]
async fn a_call_that_waits_for_a_person_holds_up_no_sibling() {
    let asking = Asking::new(&[
        ("w1", "Write", json!({"path": "/work/a"})),
        ("l1", "Look", json!({"path": "/work/b"})),
        ("f1", "Fetch", json!({})),
        ("l2", "Look", json!({"path": "/work/a"})),
    ]);
    let mut session = asking.session().await;
    let person = asking.person.clone();
    let cancel = CancellationToken::new();
    let (end, ()) = tokio::join!(session.turn(Input::user("go"), &cancel), async {
        asked(&person, &["f1", "w1"]).await;
        asking.has_ended("l1").await;
        person.answer("f1", Decision::Once);
        asking.has_ended("f1").await;
        assert_eq!(asking.ended(), ["l1", "f1"], "the look at the file that is written waits");
        person.answer("w1", Decision::Deny { comment: Some("use b instead".into()) });
    });
    assert_eq!(end.text, "done");
    let results = &asking.bench.shown().await[2];
    assert!(results.contains("!w1=Write was denied by the user\nThe user says: use b instead\n"), "{results}");
    assert!(results.contains("l1=seen | f1=fetched | l2=seen"), "{results}");
    assert_eq!(asking.resolved(), [("f1".to_owned(), "once".to_owned()), ("w1".to_owned(), "denied".to_owned())]);
    let denials = session.denials();
    assert_eq!(denials.iter().map(|denial| denial.tool_use_id.as_str()).collect::<Vec<_>>(), ["w1"]);
}

/// R285: a mode that became stricter while a person was asked holds, whatever the answer.
#[tokio::test]
async fn a_stricter_mode_withdraws_the_question_and_denies() {
    let asking = Asking::new(&[("w1", "Write", json!({"path": "/work/a"}))]);
    let mut session = asking.session().await;
    let cancel = CancellationToken::new();
    let (_, ()) = tokio::join!(session.turn(Input::user("go"), &cancel), async {
        asked(&asking.person, &["w1"]).await;
        asking.policy.set_mode(Mode::Plan);
    });
    assert!(asking.person.asked().is_empty());
    let results = &asking.bench.shown().await[2];
    assert!(results.contains("!w1=Write was denied: mode `plan` is read-only"), "{results}");
    assert_eq!(asking.resolved(), [("w1".to_owned(), "withdrawn".to_owned())]);
}

/// R243, fault F6: an answer that lasts answers the open questions that it covers, allow and deny.
#[tokio::test]
async fn a_lasting_answer_reaches_the_questions_that_are_open() {
    for allows in [true, false] {
        let asking = Asking::new(&[("f1", "Fetch", json!({})), ("f2", "Fetch", json!({})), ("f3", "Fetch", json!({}))]);
        let mut session = asking.session().await;
        let cancel = CancellationToken::new();
        let rules = [Rule::parse("Fetch").unwrap()];
        let (_, ()) = tokio::join!(session.turn(Input::user("go"), &cancel), async {
            asked(&asking.person, &["f1", "f2", "f3"]).await;
            match allows {
                true => asking.policy.granted().allow(&rules),
                false => asking.policy.granted().deny(&rules),
            }
        });
        let results = &asking.bench.shown().await[2];
        if allows {
            assert!(results.contains("f1=fetched | f2=fetched | f3=fetched"), "{results}");
        } else {
            assert_eq!(results.matches("the user has answered that this must not be done in this session").count(), 3, "{results}");
        }
        assert_eq!(asking.resolved().iter().filter(|(_, how)| how == "withdrawn").count(), 3);
    }
}

/// R242: a turn that is stopped takes its questions back, and the call was never run.
#[tokio::test]
async fn a_stopped_turn_withdraws_its_question() {
    let asking = Asking::new(&[("w1", "Write", json!({"path": "/work/a"}))]);
    let mut session = asking.session().await;
    let cancel = CancellationToken::new();
    let (_, ()) = tokio::join!(session.turn(Input::user("go"), &cancel), async {
        asked(&asking.person, &["w1"]).await;
        cancel.cancel();
    });
    assert!(asking.person.asked().is_empty());
    assert_eq!(asking.resolved(), [("w1".to_owned(), "withdrawn".to_owned())]);
    let results = &asking.bench.shown().await[2];
    assert!(results.contains("!w1=Cancelled: the turn was stopped before this call was started; it had no effect."), "{results}");
}

/// R286: what "always" would add stands in the question, and is never wider than the call needs.
#[tokio::test]
async fn the_question_names_the_rule_that_always_would_add() {
    let asking = Asking::new(&[("w1", "Write", json!({"path": "/work/a"})), ("f1", "Fetch", json!({}))]);
    let mut session = asking.session().await;
    let cancel = CancellationToken::new();
    let (_, rules) = tokio::join!(session.turn(Input::user("go"), &cancel), async {
        asked(&asking.person, &["f1", "w1"]).await;
        let rules: Vec<Vec<String>> = {
            let mut open = asking.person.open.lock().unwrap();
            open.sort_by_key(|(request, _)| std::cmp::Reverse(request.call_id.clone()));
            let rules = |(request, _): &(ApprovalRequest, _)| match &request.subject {
                Subject::Call(subject) => subject.lasting.iter().map(ToString::to_string).collect(),
                Subject::Questions(_) => Vec::new(),
            };
            open.iter().map(rules).collect()
        };
        asking.person.answer("f1", Decision::Once);
        asking.person.answer("w1", Decision::Once);
        rules
    });
    assert_eq!(rules[0].len(), 1);
    assert!(rules[0][0].starts_with("Edit(") && rules[0][0].ends_with("work/a)"), "{rules:?}");
    assert!(asking.bench.shown().await[2].contains("w1=written"));
}
