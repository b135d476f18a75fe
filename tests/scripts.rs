//! The script format: what is refused when a file is read, and what a scripted model answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Finished, Home, processes, wait};
use futures_util::StreamExt;
use serde_json::json;
use zapmyco::ids::SessionId;
use zapmyco::models::record::{RecordContext, Recorder, RecordingError, recording, replaying};
use zapmyco::models::scripted::{Script, ScriptContext, scripted};
use zapmyco::models::{Block, Message, Model, ModelError, ModelErrorKind, ModelEvent, Prefix, Reply, Request, Role, StopReason, ToolUse};
use zapmyco::text::incoming::{Notice, NoticeContent, framed};

fn refused(text: &str) -> String {
    match Script::parse("plan.yaml", text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

fn model(text: &str) -> Arc<dyn Model> {
    let script = Script::parse("plan.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    scripted(Arc::new(script), ScriptContext { cwd: PathBuf::from("/project"), idle_limit: Duration::from_millis(20) })
}

/// A conversation as a session would build it.
struct Talk {
    session: SessionId,
    messages: Vec<Arc<Message>>,
    tool_use: ToolUse,
}

impl Talk {
    fn new(task: &str) -> Self {
        let context = Message::user("<context name=\"date\">2026-06-06</context>");
        let messages = vec![Arc::new(context), Arc::new(Message::user(task))];
        Self { session: SessionId::new_main(), messages, tool_use: ToolUse::Allowed }
    }

    /// The answer's calls get these results; they become the next user message.
    fn step(&mut self, reply: Reply, results: &[(&str, bool)]) {
        let ids: Vec<String> = reply.message.tool_uses().map(|(id, ..)| id.to_owned()).collect();
        assert_eq!(ids.len(), results.len());
        let blocks = ids.into_iter().zip(results).map(|(tool_use_id, (text, is_error))| Block::ToolResult {
            tool_use_id,
            text: (*text).to_owned(),
            is_error: *is_error,
        });
        let blocks = blocks.collect();
        self.messages.push(Arc::new(reply.message));
        self.messages.push(Arc::new(Message { role: Role::User, blocks }));
    }

    fn answered(&mut self, reply: Reply) {
        self.messages.push(Arc::new(reply.message));
    }

    fn hear(&mut self, text: &str) {
        self.messages.push(Arc::new(Message::user(text)));
    }

    async fn ask(&self, model: &Arc<dyn Model>) -> (Vec<ModelEvent>, Result<Reply, ModelError>) {
        let request = Request {
            session: self.session.clone(),
            prefix: Arc::new(Prefix { tools: Vec::new(), system: "be brief".to_owned() }),
            messages: self.messages.clone(),
            tool_use: self.tool_use,
            max_tokens: None,
            reasoning: None,
        };
        let mut stream = model.stream(request);
        let mut events = Vec::new();
        while let Some(item) = stream.next().await {
            match item {
                Ok(ModelEvent::Finished(reply)) => return (events, Ok(reply)),
                Ok(event) => events.push(event),
                Err(error) => return (events, Err(error)),
            }
        }
        panic!("the stream had no end");
    }

    async fn reply(&self, model: &Arc<dyn Model>) -> Reply {
        self.ask(model).await.1.unwrap()
    }

    async fn error(&self, model: &Arc<dyn Model>) -> ModelError {
        self.ask(model).await.1.unwrap_err()
    }
}

fn inputs(reply: &Reply) -> Vec<serde_json::Value> {
    reply.message.tool_uses().map(|(.., input)| input.clone()).collect()
}

#[test]
fn mistakes_in_a_file_are_told_with_place_and_remedy() {
    let table = [
        ("scripts: []\n", "script plan.yaml: `version` is missing; write `version: 1` first"),
        ("version: 2\nscripts: []\n", "script plan.yaml: version 2 is not known; this program plays version 1"),
        ("version: 1\nscripts: []\n", "script plan.yaml: `scripts` is empty; give at least one with `turns`"),
        ("version: 1\nscripts:\n- match: x\n", "script plan.yaml: script 1 has no turns"),
        (
            "version: 1\nscripts:\n- turns:\n  - text: a\n  - delay_ms: 3\n",
            "script plan.yaml: script 1, turn 1: give at least one of `text`, `thinking`, `calls`, `fault`",
        ),
        ("version: 1\nscripts:\n- turns:\n  - txet: a\n", "script plan.yaml, line 4: unknown key `txet`; the nearest known key is `text`"),
        (
            "version: 1\nscript:\n- turns:\n  - text: a\n",
            "script plan.yaml, line 2: unknown key `script`; the nearest known key is `scripts`",
        ),
        (
            "{\"version\": 1,\n \"scripts\": [{\"turns\": [\n  {\"call\": []}]}]}",
            "script plan.yaml, line 3: unknown key `call`; the nearest known key is `calls`",
        ),
        (
            "version: 1\nscripts:\n- turns:\n  - calls: [{name: Read, input: [1]}]\n",
            "script plan.yaml: script 1, turn 0: `input` of call 1 is not an object",
        ),
    ];
    for (text, message) in table {
        assert_eq!(refused(text), message);
    }
    let pattern = refused("version: 1\nscripts:\n- match: '('\n  turns: [{text: a}]\n");
    assert!(pattern.starts_with("script plan.yaml: script 1: `match` is not a regular expression: "), "{pattern}");
    let template = refused("version: 1\nscripts:\n- turns: [{text: '{{ results[ }}'}]\n");
    assert!(template.starts_with("script plan.yaml: script 1, turn 0, text: syntax error"), "{template}");
    let nested = refused("version: 1\nscripts:\n- turns: [{calls: [{name: Read, input: {a: [{b: '{% if %}'}]}}]}]\n");
    assert!(nested.starts_with("script plan.yaml: script 1, turn 0, input of call 1: syntax error"), "{nested}");
    let fault = refused("version: 1\nscripts:\n- turns: [{fault: expload}]\n");
    assert!(fault.starts_with("script plan.yaml, line 3: unknown variant `expload`, expected one of "), "{fault}");
}

#[test]
fn a_missing_or_huge_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.yaml");
    let error = Script::load(&missing).err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot read script {}: ", missing.display())), "{error}");
    let huge = folder.path().join("huge.yaml");
    std::fs::File::create(&huge).unwrap().set_len(5 << 20).unwrap();
    let error = Script::load(&huge).err().unwrap().to_string();
    assert_eq!(error, format!("script {} is larger than 4194304 bytes", huge.display()));
}

#[tokio::test]
async fn the_first_script_that_fits_the_task_is_played() {
    let model = model(
        r#"{"version": 1, "scripts": [
            {"match": "^child (\\d)", "turns": [{"text": "child {{ task | regex_find('child (.)') }} in {{ cwd }}"}]},
            {"turns": [{"text": "main, turn {{ turn }}"}]}
        ]}"#,
    );
    assert_eq!(model.name(), "script/plan.yaml");
    assert_eq!(Talk::new("child 7: look").reply(&model).await.message.text(), "child 7 in /project");
    assert_eq!(Talk::new("something else").reply(&model).await.message.text(), "main, turn 0");
}

#[tokio::test]
async fn a_task_that_nothing_fits_and_a_turn_too_many_are_mismatches() {
    let model = model("version: 1\nscripts:\n- match: ^only this$\n  turns: [{calls: [{name: Glob}]}]\n");
    let error = Talk::new("that").error(&model).await;
    assert_eq!(error.kind, ModelErrorKind::ScriptMismatch);
    assert_eq!(error.message, "script plan.yaml: no script has a `match` that fits the task `that`");
    let mut talk = Talk::new("only this");
    let reply = talk.reply(&model).await;
    assert_eq!(inputs(&reply), [json!({})]);
    talk.step(reply, &[("a.rs", false)]);
    let error = talk.error(&model).await;
    assert_eq!(error.kind, ModelErrorKind::ScriptMismatch);
    assert_eq!(error.message, "script plan.yaml: script 1 has 1 turn, but the session asks for turn 1");
}

#[tokio::test]
async fn calls_use_the_results_of_the_batch_before() {
    let model = model(
        r#"
version: 1
scripts:
- turns:
  - text: starting
    thinking: three of them
    calls:
    - {name: subagent, input: {action: spawn, task: "{{ item }}"}, each: "{{ ['a', 'b'] }}"}
  - calls:
    - name: subagent
      input:
        action: poll
        subagent_ids: "{{ results | map('regex_find', 'sa_[0-9]{8}_[0-9a-f]{8}') | list }}"
        wait_secs: "{{ 10 }}"
        note: "{{ turn }} and {{ results | length }}"
  - text: |
      {% for result in results %}
      - {{ result | lines | first }}
      {% endfor %}
      {{ history[0] | length }} started, failed: {{ failed | json }}
"#,
    );
    let mut talk = Talk::new("go");
    let reply = talk.reply(&model).await;
    assert_eq!(reply.stop, StopReason::ToolUse);
    assert_eq!(reply.message.blocks[0], Block::Thinking { text: "three of them".to_owned(), signature: None });
    assert_eq!(reply.message.tool_uses().map(|(id, ..)| id).collect::<Vec<_>>(), ["call_0_0", "call_0_1"]);
    assert_eq!(inputs(&reply), [json!({"action": "spawn", "task": "a"}), json!({"action": "spawn", "task": "b"})]);
    talk.step(reply, &[("[SubAgent] sa_20260606_00000001: running", false), ("[SubAgent] sa_20260606_00000002: running", false)]);
    let reply = talk.reply(&model).await;
    let ids = json!(["sa_20260606_00000001", "sa_20260606_00000002"]);
    assert_eq!(inputs(&reply), [json!({"action": "poll", "subagent_ids": ids, "wait_secs": 10, "note": "1 and 2"})]);
    talk.step(reply, &[("first line\nsecond", true)]);
    let reply = talk.reply(&model).await;
    assert_eq!(reply.stop, StopReason::EndTurn);
    assert_eq!(reply.message.text(), "- first line\n2 started, failed: [true]\n");
}

#[tokio::test]
async fn an_undefined_value_names_file_script_turn_and_place() {
    let model = model("version: 1\nscripts:\n- turns: [{text: 'a {{ results[3] }}'}]\n");
    let error = Talk::new("x").error(&model).await;
    assert_eq!(error.kind, ModelErrorKind::ScriptMismatch);
    assert!(error.message.starts_with("script plan.yaml: script 1, turn 0, text: undefined value"), "{}", error.message);
    let model = self::model("version: 1\nscripts:\n- turns: [{calls: [{name: Read, input: {id: \"{{ task | regex_find('sa_') }}\"}}]}]\n");
    let error = Talk::new("x").error(&model).await;
    let expected = "script plan.yaml: script 1, turn 0, call 1: invalid operation: regex_find: nothing matches `sa_`";
    assert_eq!(error.message, expected);
}

#[tokio::test]
async fn a_template_cannot_run_away() {
    let model = model(
        "version: 1\nscripts:\n- turns: [{text: '{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}'}]\n",
    );
    let error = Talk::new("x").error(&model).await;
    assert!(error.message.contains("ran out of fuel"), "{}", error.message);
}

#[tokio::test]
async fn text_is_streamed_in_pieces_that_make_the_answer() {
    let model =
        model("version: 1\nscripts:\n- turns: [{text: 'grüße an alle', usage: {input_tokens: 5, output_tokens: 6}, delay_ms: 1}]\n");
    let (events, reply) = Talk::new("x").ask(&model).await;
    let pieces: Vec<&str> = events.iter().map(|event| if let ModelEvent::TextDelta(text) = event { text.as_str() } else { "" }).collect();
    assert!(pieces.len() > 1);
    assert_eq!(pieces.concat(), "grüße an alle");
    let usage = reply.unwrap().usage;
    assert_eq!((usage.input, usage.output, usage.total()), (5, 6, 11));
}

#[tokio::test]
async fn every_fault_is_the_error_of_the_real_wire() {
    let table = [
        ("cut", ModelErrorKind::Interrupted, Some(200), Some("half")),
        ("stall", ModelErrorKind::TimedOut, Some(200), Some("half")),
        ("empty", ModelErrorKind::Empty, Some(200), None),
        ("garbled", ModelErrorKind::Garbled, Some(200), None),
        ("rate_limited", ModelErrorKind::RateLimited, Some(429), None),
        ("overloaded", ModelErrorKind::Overloaded, Some(529), None),
        ("server_error", ModelErrorKind::ServerError, Some(500), None),
        ("unauthorized", ModelErrorKind::Unauthorized, Some(401), None),
        ("invalid_request", ModelErrorKind::InvalidRequest, Some(400), None),
        ("context_too_long", ModelErrorKind::ContextTooLong, Some(400), None),
        ("not_found", ModelErrorKind::NotFound, Some(404), None),
        ("quota_exhausted", ModelErrorKind::QuotaExhausted, Some(402), None),
        ("connect", ModelErrorKind::Connect, None, None),
    ];
    for (fault, kind, status, partial) in table {
        let model = model(&format!("version: 1\nscripts:\n- turns: [{{text: half1234, fault: {fault}}}]\n"));
        let error = Talk::new("x").error(&model).await;
        assert_eq!((error.kind, error.status), (kind, status), "{fault}");
        assert_eq!(error.partial.map(|message| message.text()).as_deref(), partial, "{fault}");
        assert!(error.message.ends_with("(scripted fault, script 1, turn 0)"), "{}", error.message);
    }
}

#[tokio::test]
async fn a_closing_report_may_not_call_tools() {
    let model = model("version: 1\nscripts:\n- turns: [{text: a, calls: [{name: Glob}]}]\n");
    let mut talk = Talk::new("x");
    talk.tool_use = ToolUse::Forbidden;
    assert_eq!(talk.error(&model).await.kind, ModelErrorKind::ScriptMismatch);
}

const TWO_STEPS: &str = r#"
version: 1
scripts:
- match: watch
  turns:
  - {thinking: hm, calls: [{name: subagent, input: {action: spawn, task: x}}]}
  - calls: [{name: subagent, input: {action: poll, subagent_ids: ["{{ results[0] | regex_find('sa_[0-9_a-f]+') }}"]}}]
  - text: "it said {{ results[0] | regex_find('found .*') }} in {{ cwd }}"
"#;

fn spawned(id: &str) -> String {
    format!("[SubAgent] {id}: running\nCLI: zapmyco\nTask: x\nCreated: 2026-06-06T15:30:00.123456")
}

fn ended(id: &str, duration: u32) -> String {
    format!(">>> {id} <<<\n[SubAgent] {id}: completed\nCLI: zapmyco\nExit code: 0\nDuration: {duration}s\n\n=== stdout ===\nfound 3 files")
}

const RUNNING: &str = "[SubAgent] 1/1 仍在运行 (已等待 5s)\n  任务: x";

/// Records the conversation with a child that had this poll result.
async fn record(path: &std::path::Path, poll: &str) {
    let context = RecordContext::new("/root-of-a", "/project").hiding("sk-live-0123456789".to_owned().into());
    let recorder = Recorder::create(path, "anthropic/claude-x", context).unwrap();
    let model = recording(model(TWO_STEPS), recorder);
    let mut talk = Talk::new("watch one with sk-live-0123456789 in /project");
    let reply = talk.reply(&model).await;
    talk.step(reply, &[(&spawned("sa_20260606_0000000a"), false)]);
    let reply = talk.reply(&model).await;
    talk.step(reply, &[(poll, false)]);
    let reply = talk.reply(&model).await;
    assert_eq!(reply.message.text(), "it said found 3 files in /project");
}

/// Plays it elsewhere, with another id, up to the last answer.
async fn replay(path: &std::path::Path, polls: &[&str]) -> Result<Reply, ModelError> {
    let context = RecordContext::new("/root-of-b", "/elsewhere").hiding("sk-live-0123456789".to_owned().into());
    let model = replaying(path, context).unwrap();
    assert_eq!(model.name(), "anthropic/claude-x");
    let mut talk = Talk::new("watch one with sk-live-0123456789 in /elsewhere");
    let reply = talk.reply(&model).await;
    talk.step(reply, &[(&spawned("sa_20270101_cafecafe"), false)]);
    for poll in polls {
        let reply = talk.reply(&model).await;
        assert_eq!(inputs(&reply), [json!({"action": "poll", "subagent_ids": ["sa_20270101_cafecafe"]})]);
        talk.step(reply, &[(poll, false)]);
    }
    talk.ask(&model).await.1
}

#[tokio::test]
async fn a_recording_is_played_with_the_values_of_the_new_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    record(&path, &ended("sa_20260606_0000000a", 45)).await;
    let text = std::fs::read_to_string(&path).unwrap();
    for absent in ["sk-live", "sa_2026", "/project", "2026-06-06", "45s"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    assert_eq!(text.lines().next().unwrap(), r#"{"zapmyco_recording":1,"model":"anthropic/claude-x"}"#);
    let reply = replay(&path, &[&ended("sa_20270101_cafecafe", 2)]).await.unwrap();
    assert_eq!(reply.message.text(), "it said found 3 files in /elsewhere");
}

#[tokio::test]
async fn a_replay_looks_again_at_a_child_that_is_slower_than_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    record(&path, &ended("sa_20260606_0000000a", 45)).await;
    let reply = replay(&path, &[RUNNING, RUNNING, &ended("sa_20270101_cafecafe", 2)]).await.unwrap();
    assert_eq!(reply.message.text(), "it said found 3 files in /elsewhere");
}

fn notice(id: &str, result: &str) -> String {
    let notice = Notice {
        task_id: id.to_owned(),
        tool_use_id: Some("call_0_0".to_owned()),
        output_file: format!("/root-of-x/{id}/stdout"),
        status: "completed",
        summary: format!("SubAgent {id} task completed."),
        content: NoticeContent::Result(result.to_owned()),
        usage: Some(zapmyco::text::incoming::NoticeUsage { tokens: None, tool_uses: None, duration_ms: 1234 }),
    };
    framed(&notice, 10_000)
}

/// Two children, no poll: the recorded model is told of the first end while it works, of the second afterwards.
const TOLD: &str = r#"
version: 1
scripts:
- turns:
  - calls: [{name: subagent, input: {action: spawn, task: a}}, {name: subagent, input: {action: spawn, task: b}}]
  - text: waiting
  - text: "both: {{ input | regex_find('<result>(.*)</result>') }}"
"#;

#[tokio::test]
async fn notices_may_come_at_another_moment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let context = RecordContext::new("/root-of-x", "/project");
    let recorded = recording(model(TOLD), Recorder::create(&path, "m/x", context.clone()).unwrap());
    let ids = ["sa_20260606_0000000a", "sa_20260606_0000000b"];
    let mut talk = Talk::new("go");
    let reply = talk.reply(&recorded).await;
    talk.step(reply, &[(&spawned(ids[0]), false), (&spawned(ids[1]), false)]);
    talk.hear(&notice(ids[0], "one"));
    let reply = talk.reply(&recorded).await;
    assert_eq!(reply.message.text(), "waiting");
    talk.answered(reply);
    talk.hear(&notice(ids[1], "two"));
    assert_eq!(talk.reply(&recorded).await.message.text(), "both: two");

    let model = replaying(&path, context).unwrap();
    let ids = ["sa_20270101_cafecafe", "sa_20270101_00000000"];
    let begin = async || {
        let mut talk = Talk::new("go");
        let reply = talk.reply(&model).await;
        talk.step(reply, &[(&spawned(ids[0]), false), (&spawned(ids[1]), false)]);
        talk
    };
    // both at once, before the answer
    let mut talk = begin().await;
    talk.hear(&notice(ids[1], "two"));
    talk.hear(&notice(ids[0], "one"));
    assert_eq!(talk.reply(&model).await.message.text(), "both: two");
    // both afterwards, in the other order
    let mut talk = begin().await;
    let reply = talk.reply(&model).await;
    assert_eq!(reply.message.text(), "waiting");
    talk.answered(reply);
    talk.hear(&notice(ids[1], "two"));
    let reply = talk.reply(&model).await;
    assert_eq!(reply.message.text(), "both: two");
    talk.answered(reply);
    talk.hear(&notice(ids[0], "one"));
    assert_eq!(talk.reply(&model).await.message.text(), "both: two");
    // another content
    let mut talk = begin().await;
    talk.hear(&notice(ids[0], "three"));
    let error = talk.error(&model).await;
    assert!(error.message.contains("-<result>one</result>\n+<result>three</result>"), "{}", error.message);
}

#[tokio::test]
async fn what_differs_is_shown_as_a_diff() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    record(&path, &ended("sa_20260606_0000000a", 45)).await;
    let other = ended("sa_20270101_cafecafe", 2).replace("3 files", "4 files");
    let error = replay(&path, &[&other]).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::ScriptMismatch);
    let head = format!("recording {}: turn 2 of the conversation `watch one with ⟦secret⟧ in ⟦workspace⟧` differs\n", path.display());
    assert!(error.message.starts_with(&head), "{}", error.message);
    assert!(error.message.contains("\n-found 3 files\n+found 4 files"), "{}", error.message);
    assert!(error.message.contains("--- recorded\n+++ now\n"), "{}", error.message);
    assert!(!error.message.contains("sk-live"), "{}", error.message);
}

#[tokio::test]
async fn a_task_that_was_not_recorded_is_a_mismatch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    record(&path, &ended("sa_20260606_0000000a", 45)).await;
    let model = replaying(&path, RecordContext::new("/r", "/w")).unwrap();
    let error = Talk::new("watch two").error(&model).await;
    assert_eq!(error.kind, ModelErrorKind::ScriptMismatch);
    assert!(error.message.contains("no conversation has this task; the nearest differs\n"), "{}", error.message);
    assert!(error.message.contains("+watch two"), "{}", error.message);
}

#[tokio::test]
async fn children_append_to_the_file_of_their_parent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let context = RecordContext::new("/r", "/project");
    let inner = || model("version: 1\nscripts: [{turns: [{text: 'done {{ task }}'}]}]\n");
    let main = recording(inner(), Recorder::create(&path, "m/x", context.clone()).unwrap());
    Talk::new("main").reply(&main).await;
    let children = (0..8).map(|number| {
        let child = recording(inner(), Recorder::join(&path, context.clone()));
        tokio::spawn(async move { Talk::new(&format!("child {number}")).reply(&child).await })
    });
    for child in children.collect::<Vec<_>>() {
        child.await.unwrap();
    }
    let model = replaying(&path, context).unwrap();
    for number in 0..8 {
        assert_eq!(Talk::new(&format!("child {number}")).reply(&model).await.message.text(), format!("done child {number}"));
    }
}

#[tokio::test]
async fn a_recorded_failure_fails_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let context = RecordContext::new("/r", "/project");
    let inner = model("version: 1\nscripts: [{turns: [{text: half1234, fault: cut}]}]\n");
    let first = Talk::new("x").error(&recording(inner, Recorder::create(&path, "m/x", context.clone()).unwrap())).await;
    let second = Talk::new("x").error(&replaying(&path, context).unwrap()).await;
    assert_eq!((second.kind, second.message, second.partial), (first.kind, first.message, first.partial));
}

#[test]
fn only_a_recording_is_overwritten_and_only_a_recording_is_played() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "dear diary\n").unwrap();
    let context = RecordContext::new("/r", "/project");
    assert!(matches!(Recorder::create(&path, "m/x", context.clone()), Err(RecordingError::NotOurs { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary\n");
    let error = replaying(&path, context.clone()).err().unwrap().to_string();
    assert_eq!(error, format!("{} is not a recording: its first line does not say `zapmyco_recording`", path.display()));
    let path = folder.path().join("run.jsonl");
    for _ in 0..2 {
        drop(Recorder::create(&path, "m/x", context.clone()).unwrap());
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    assert!(matches!(replaying(&path, context.clone()), Err(RecordingError::Empty { .. })));
    std::fs::write(&path, "{\"zapmyco_recording\":1,\"model\":\"m\"}\n{\"turn\":0}\n").unwrap();
    let error = replaying(&path, context.clone()).err().unwrap().to_string();
    assert!(error.contains(", line 2: missing field `conversation`"), "{error}");
    std::fs::write(&path, "{\"zapmyco_recording\":9,\"model\":\"m\"}\n").unwrap();
    let error = replaying(&path, context).err().unwrap().to_string();
    assert!(error.ends_with("has version 9; this program plays version 1"), "{error}");
    std::fs::File::options().write(true).open(&path).unwrap().set_len(300 << 20).unwrap();
    assert!(matches!(replaying(&path, RecordContext::new("/r", "/project")), Err(RecordingError::TooLarge { .. })));
}

/// Runs the built binary; nothing may be left running.
fn run(home: &Home, arguments: &[&str]) -> Finished {
    let finished = home.run(arguments);
    wait::until("no process of the run is left", || processes::of_home(&home.root()).is_empty().then_some(()));
    finished
}

#[test]
fn every_fault_has_its_exit_code() {
    let home = Home::new();
    let table = [
        ("cut", 7),
        ("garbled", 7),
        ("empty", 7),
        ("server_error", 7),
        ("overloaded", 7),
        ("rate_limited", 7),
        ("connect", 7),
        ("unauthorized", 6),
        ("invalid_request", 6),
        ("context_too_long", 6),
        ("not_found", 6),
        ("quota_exhausted", 6),
    ];
    for (fault, code) in table {
        home.write("s.yaml", &format!("version: 1\nscripts: [{{turns: [{{text: half1234, fault: {fault}}}]}}]\n"));
        let finished = run(&home, &["run", "--model", "script:s.yaml", "hello"]);
        assert_eq!((finished.code, finished.stdout.as_str()), (code, ""), "{fault}: {finished:?}");
        assert!(finished.stderr.contains("(scripted fault, script 1, turn 0)"), "{finished:?}");
    }
}

#[test]
fn the_example_of_the_documentation_plays() {
    let home = Home::new();
    home.write("src/a/b.rs", "");
    home.write("src/c.rs", "");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/README.md")).unwrap();
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    home.write("s.yaml", example);
    let finished = run(&home, &["run", "--model", "script:s.yaml", "how many sources are there?"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stdout.contains(": completed\n") && finished.stdout.trim_end().ends_with("=== stdout ===\n2 files"), "{finished:?}");
}

#[test]
fn the_script_of_the_demo_plays_from_its_file() {
    let home = Home::new();
    home.write("docs/a.md", "one\ntwo\n");
    let script = concat!("script:", env!("CARGO_MANIFEST_DIR"), "/examples/demo.yaml");
    let task = "Look at docs with one subagent for each part.\n\npart: docs/\n- docs/\n";
    let finished = run(&home, &["run", "--model", script, task]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stdout.contains("| docs/ | 1 | 1 | 2 | 8 | 0 | 0 |"), "{finished:?}");
}

#[test]
fn a_stalled_answer_ends_at_the_limit_for_silence() {
    let home = Home::new();
    home.write("s.yaml", "version: 1\nscripts: [{turns: [{text: half1234, fault: stall}]}]\n");
    let mut command = home.command();
    command.args(["run", "--model", "script:s.yaml", "hello"]).env("ZAPMYCO_LIMITS_STREAM_IDLE_TIMEOUT", "50ms");
    let finished = crate::support::finish(&mut command);
    assert_eq!((finished.code, finished.stdout.as_str()), (4, ""), "{finished:?}");
    assert!(finished.stderr.contains("half") && !finished.stderr.contains("half1234"), "{finished:?}");
}

#[test]
fn mistakes_in_a_script_end_a_run_before_it_begins() {
    let home = Home::new();
    home.write("s.yaml", "version: 1\nscripts:\n- turns:\n  - txet: a\n");
    let finished = run(&home, &["run", "--model", "script:s.yaml", "hello"]);
    assert_eq!(finished.code, 2, "{finished:?}");
    assert!(finished.stderr.contains("s.yaml, line 4: unknown key `txet`; the nearest known key is `text`"), "{finished:?}");
    let missing = run(&home, &["run", "--model", "script:none.yaml", "hello"]);
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(missing.stderr.contains("cannot read script ") && missing.stderr.contains("none.yaml"), "{missing:?}");
    home.write("s.yaml", "version: 1\nscripts: [{match: other, turns: [{text: a}]}]\n");
    let mismatch = run(&home, &["run", "--model", "script:s.yaml", "hello"]);
    assert_eq!(mismatch.code, 2, "{mismatch:?}");
    assert!(mismatch.stderr.contains("no script has a `match` that fits the task `hello`"), "{mismatch:?}");
}

/// A main session and two process children, each with its own script and real tools.
const FAMILY: &str = r#"
version: 1
scripts:
- match: "^count (?P<what>.*)"
  turns:
  - calls: [{name: Grep, input: {pattern: "{{ task | regex_find('count (.*)') }}", path: fruit.txt, output_mode: count}}]
  - text: "{{ results[0] | lines | first }} in {{ cwd }}"
- turns:
  - calls: [{name: subagent, each: "{{ ['apple', 'pear'] }}", input: {action: spawn, task: "count {{ item }}"}}]
  - calls:
    - name: subagent
      input: {action: poll, subagent_ids: "{{ results | map('regex_find', 'sa_[0-9]{8}_[0-9a-f]{8}') | list }}", wait_secs: 30}
  - calls: [{name: Read, input: {file_path: "{{ cwd }}/fruit.txt"}}]
  - text: "{{ history[1][0] | regex_find_all('(?m)^fruit.txt.*') | sort | join(' and ') }}; {{ history[0][0] | regex_find('sa_[0-9_a-f]+') }}"
"#;

fn family() -> Home {
    let home = Home::new();
    home.write("fruit.txt", "apple\npear\napple\n");
    home
}

fn family_text(home: &Home) -> String {
    let cwd = home.project().canonicalize().unwrap();
    format!("fruit.txt:2 in {0} and fruit.txt:1 in {0}", cwd.display())
}

/// The answer without the id of the first child, and that id.
fn answer(finished: &Finished) -> (String, String) {
    assert_eq!(finished.code, 0, "{finished:?}");
    let (text, id) = finished.stdout.trim_end().rsplit_once("; ").unwrap();
    let mut parts: Vec<&str> = text.split(" and ").collect();
    parts.sort_by(|a, b| b.cmp(a));
    (parts.join(" and "), id.to_owned())
}

#[test]
fn a_conversation_tree_is_recorded_and_played_elsewhere() {
    let first = family();
    first.write("family.yaml", FAMILY);
    let key = "sk-ant-0123456789abcdef";
    let mut command = first.command();
    command.args(["run", "--model", "script:family.yaml", "--record", "talk.jsonl", "go"]).env("ANTHROPIC_API_KEY", key);
    let recorded = crate::support::finish(&mut command);
    let (text, first_id) = answer(&recorded);
    assert_eq!(text, family_text(&first));
    let recording = std::fs::read_to_string(first.project().join("talk.jsonl")).unwrap();
    let cwd = first.project().canonicalize().unwrap();
    for absent in [key, first_id.as_str(), cwd.to_str().unwrap(), first.root().to_str().unwrap(), "authorization"] {
        assert!(!recording.contains(absent), "{absent} in {recording}");
    }
    // main: four requests; each child: two
    assert_eq!(recording.lines().count(), 1 + 4 + 2 + 2, "{recording}");

    let second = family();
    second.write("talk.jsonl", &recording);
    for _ in 0..3 {
        let played = run(&second, &["run", "--model", "replay:talk.jsonl", "go"]);
        let (text, id) = answer(&played);
        assert_eq!(text, family_text(&second));
        assert_ne!(id, first_id);
    }

    second.write("fruit.txt", "apple\npear\napple\npear\n");
    let differs = run(&second, &["run", "--model", "replay:talk.jsonl", "go"]);
    assert_eq!((differs.code, differs.stdout.as_str()), (2, ""), "{differs:?}");
    assert!(differs.stderr.contains("turn 2 of the conversation `go` differs\n--- recorded\n+++ now\n"), "{differs:?}");
    let other = run(&second, &["run", "--model", "replay:talk.jsonl", "gone"]);
    assert_eq!(other.code, 2, "{other:?}");
    assert!(other.stderr.contains("\n-go\n+gone\n"), "{other:?}");
}

#[test]
fn a_file_that_is_no_recording_is_not_overwritten() {
    let home = Home::new();
    home.write("s.yaml", "version: 1\nscripts: [{turns: [{text: hi}]}]\n");
    let notes = home.write("notes.txt", "mine\n");
    let finished = run(&home, &["run", "--model", "script:s.yaml", "--record", "notes.txt", "hello"]);
    assert_eq!(finished.code, 2, "{finished:?}");
    assert!(finished.stderr.contains("exists and is not a recording; it is not overwritten"), "{finished:?}");
    assert_eq!(std::fs::read_to_string(notes).unwrap(), "mine\n");
}

/// A recording is never emptied by the run that plays it.
#[test]
fn a_recording_is_not_recorded_into_itself() {
    let home = Home::new();
    home.write("s.yaml", "version: 1\nscripts: [{turns: [{text: hi}]}]\n");
    assert_eq!(run(&home, &["run", "--model", "script:s.yaml", "--record", "talk.jsonl", "hello"]).code, 0);
    std::os::unix::fs::symlink("talk.jsonl", home.project().join("link.jsonl")).unwrap();
    let before = std::fs::read(home.project().join("talk.jsonl")).unwrap();
    for target in ["talk.jsonl", "./talk.jsonl", "link.jsonl"] {
        let finished = run(&home, &["run", "--model", "replay:talk.jsonl", "--record", target, "hello"]);
        assert_eq!(finished.code, 2, "{finished:?}");
        assert!(finished.stderr.contains("is the recording that is played; record into another file"), "{finished:?}");
        assert_eq!(std::fs::read(home.project().join("talk.jsonl")).unwrap(), before);
    }
    let other = run(&home, &["run", "--model", "replay:talk.jsonl", "--record", "other.jsonl", "hello"]);
    assert_eq!((other.code, other.stdout.as_str()), (0, "hi\n"), "{other:?}");
}

/// A working folder and a storage root whose names are not UTF-8 work like any other, for tools, children, recordings and
/// a resume.
#[cfg(target_os = "linux")]
#[test]
fn folders_whose_names_are_not_utf8_work_like_any_other() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let folder = home.project().join(std::ffi::OsStr::from_bytes(b"odd \xff"));
    std::fs::create_dir(&folder).unwrap();
    for (name, text) in [("family.yaml", FAMILY), ("fruit.txt", "apple\npear\napple\n")] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let command =
        |arguments: &[&str]| crate::support::finish(home.command_in(&folder).env("ZAPMYCO_HOME", folder.join("root")).args(arguments));
    for arguments in [
        ["run", "--model", "script:family.yaml", "--record", "talk.jsonl", "go"].as_slice(),
        ["run", "--model", "replay:talk.jsonl", "go"].as_slice(),
    ] {
        let finished = command(arguments);
        let (text, _) = answer(&finished);
        assert!(text.starts_with("fruit.txt:2 in ") && text.contains(" and fruit.txt:1 in "), "{finished:?}");
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    }
    std::fs::write(
        folder.join("more.yaml"),
        "version: 1\nscripts: [{turns: [{text: a}, {text: b}, {text: c}, {text: d}, {text: more}]}]\n",
    )
    .unwrap();
    let resumed = command(&["run", "--continue", "--model", "script:more.yaml", "on"]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (0, "more\n"), "{resumed:?}");
    let listed = command(&["jobs", "list", "--json"]);
    let jobs: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    let jobs = jobs["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 4, "{listed:?}");
    assert!(jobs.iter().all(|job| job["status"] == "completed" && job["stdout"]["path"].is_string()), "{listed:?}");
    for job in jobs.iter().filter(|job| job["kind"] == "process_agent") {
        let shown = command(&["jobs", "output", "--json", job["id"].as_str().unwrap()]);
        assert!(shown.code == 0 && shown.stdout.contains("fruit.txt:"), "{shown:?}");
    }
    assert_eq!(command(&["jobs", "sweep", "--json"]).code, 0);
}

/// fault B11: a terminal is sent no control bytes of a model; a file gets the answer as it is.
#[cfg(target_os = "linux")]
#[test]
fn an_answer_cannot_command_the_terminal() {
    let home = Home::new();
    home.write("s.yaml", "version: 1\nscripts: [{turns: [{text: \"a\\e[31mred\\a \\e]8;;http://x\\a link \\e[2J end\"}]}]\n");
    let piped = run(&home, &["run", "--model", "script:s.yaml", "hello"]);
    assert_eq!(piped.stdout, "a\u{1b}[31mred\u{7} \u{1b}]8;;http://x\u{7} link \u{1b}[2J end\n");
    let line = format!("{} run --model script:s.yaml hello 2>/dev/null", crate::support::binary().display());
    let mut terminal = std::process::Command::new("script");
    let plain = home.command();
    terminal.args(["-qec", &line, "/dev/null"]).env_clear().current_dir(home.project()).stdin(std::process::Stdio::null());
    terminal.envs(plain.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    let Ok(shown) = terminal.output() else {
        eprintln!("NOT RUN: there is no program `script` that gives a test a terminal");
        return;
    };
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("red") && shown.contains(" end"), "{shown:?}");
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{shown:?}");
}
