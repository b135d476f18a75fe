//! Flow: hooks in a real run: their processes, their answers, and what becomes of the call or the turn.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::provider::{Answer, Provider, RecordedRequest};
use crate::support::terminal::AtTerminal;
use crate::support::{Finished, Home, finish, processes, wait};

/// A home with hooks in the user's settings.
struct Hooked {
    home: Home,
}

impl Hooked {
    fn with(settings: &str) -> Self {
        let home = Home::new();
        std::fs::write(home.root().join("settings.toml"), settings).unwrap();
        Self { home }
    }

    /// One hook for one event; `$SEEN` in its command is a file outside the project.
    fn one(event: &str, matcher: &str, command: &str) -> Self {
        Self::several(&[(event, matcher, command)])
    }

    fn several(hooks: &[(&str, &str, &str)]) -> Self {
        let home = Home::new();
        let seen = home.root().join("seen");
        let entry = |(event, matcher, command): &(&str, &str, &str)| {
            let line = toml::Value::String(command.replace("$SEEN", seen.to_str().unwrap()));
            format!("[[hooks.events.{event}]]\nmatcher = {matcher:?}\nhooks = [{{ type = \"command\", command = {line} }}]\n")
        };
        std::fs::write(home.root().join("settings.toml"), hooks.iter().map(entry).collect::<String>()).unwrap();
        Self { home }
    }

    fn add_settings(&self, text: &str) {
        let path = self.home.root().join("settings.toml");
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("{text}\n{before}")).unwrap();
    }

    /// What hooks have written to `$SEEN`, one JSON object per line.
    fn seen(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.home.root().join("seen")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    /// The model makes these calls and then repeats their results.
    fn calls(&self, calls: &Value, arguments: &[&str]) -> Finished {
        let turns = json!([{"calls": calls}, {"text": "{% for result in results %}[{{ result }}]{% endfor %}"}]);
        self.turns(&turns, arguments)
    }

    fn turns(&self, turns: &Value, arguments: &[&str]) -> Finished {
        finish(self.command(turns).args(arguments))
    }

    fn command(&self, turns: &Value) -> std::process::Command {
        let script = json!({"version": 1, "scripts": [{"turns": turns}]});
        let model = self.home.root().join("model.json");
        std::fs::write(&model, script.to_string()).unwrap();
        let mut command = self.home.command();
        command.args(["run", "go", "--model", &format!("script:{}", model.display())]);
        command
    }

    fn against(&self, provider: &Provider, arguments: &[&str]) -> Finished {
        let mut command = self.home.command();
        provider.configure(&mut command);
        finish(command.arg("run").args(arguments))
    }

    fn nothing_left(&self) {
        wait::until_true("no process is left", || processes::of_home(&self.home.root()).is_empty());
    }
}

fn bash(command: &str) -> Value {
    json!([{"name": "Bash", "input": {"command": command}}])
}

/// A command that prints an answer.
fn says(answer: Value) -> String {
    format!("echo '{answer}'")
}

fn decides(decision: &str) -> String {
    says(
        json!({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": "hook-reason"}}),
    )
}

const YOLO: [&str; 2] = ["--permission-mode", "yolo"];

/// R153, R157, R159: exit code 2 denies, in every mode, with stderr as the reason.
#[test]
fn a_guard_denies_in_yolo_too() {
    let hooked = Hooked::one("PreToolUse", "Bash", "grep -q forbidden && { echo 'not that one' >&2; exit 2; }; exit 0");
    let finished = hooked.calls(&bash("touch forbidden"), &YOLO);
    assert!(finished.stdout.contains("Bash was denied by a hook: not that one"), "{finished:?}");
    assert!(!hooked.home.project().join("forbidden").exists());
    assert_eq!(finished.code, 3, "{finished:?}");
    let finished = hooked.calls(&bash("touch fine"), &YOLO);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(hooked.home.project().join("fine").exists());
    hooked.nothing_left();
    assert!(!hooked.home.root().join("hooks").read_dir().is_ok_and(|mut left| left.next().is_some()), "its folder is gone");
}

/// R156: one JSON object on stdin, the same members everywhere; the transcript can be read.
#[test]
fn a_hook_is_told_what_happens() {
    let hooked = Hooked::several(&[
        ("PreToolUse", "", "tee -a $SEEN | grep -o '\"transcript_path\":\"[^\"]*' | cut -d'\"' -f4 | xargs cat > $SEEN.transcript"),
        ("PostToolUse", "*", "cat >> $SEEN"),
        ("PostToolUseFailure", "*", "cat >> $SEEN"),
        ("SessionStart", "startup", "cat >> $SEEN"),
        ("SessionStart", "resume", "echo wrong > $SEEN"),
        ("UserPromptSubmit", "", "cat >> $SEEN"),
        ("Stop", "", "cat >> $SEEN"),
        ("SessionEnd", "finished", "cat >> $SEEN"),
    ]);
    let turns = json!([
        {"calls": [{"name": "Bash", "input": {"command": "echo hi"}}]},
        {"calls": [{"name": "Read", "input": {"file_path": "absent"}}]},
        {"text": "all done"},
    ]);
    let finished = hooked.turns(&turns, &YOLO);
    assert_eq!(finished.code, 0, "{finished:?}");
    let seen = hooked.seen();
    let events: Vec<&str> = seen.iter().map(|input| input["hook_event_name"].as_str().unwrap()).collect();
    assert_eq!(
        events,
        ["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PreToolUse", "PostToolUseFailure", "Stop", "SessionEnd"]
    );
    for input in &seen {
        assert!(input["session_id"].as_str().unwrap().starts_with("sess_"), "{input}");
        assert_eq!(input["cwd"].as_str().unwrap(), hooked.home.project().canonicalize().unwrap().to_str().unwrap());
        assert_eq!(input["permission_mode"], "yolo");
        assert!(input["transcript_path"].as_str().unwrap().ends_with(".jsonl"), "{input}");
        assert!(input.get("agent_id").is_none(), "{input}");
    }
    assert_eq!((&seen[0]["source"], &seen[1]["prompt"]), (&json!("startup"), &json!("go")));
    assert_eq!((&seen[2]["tool_name"], &seen[2]["tool_input"]), (&json!("Bash"), &json!({"command": "echo hi"})));
    assert_eq!(seen[2]["tool_use_id"], seen[3]["tool_use_id"]);
    assert!(seen[3]["tool_response"]["text"].as_str().unwrap().contains("hi"), "{}", seen[3]);
    assert!(seen[5]["error"].as_str().unwrap().contains("absent"), "{}", seen[5]);
    assert_eq!((&seen[6]["stop_hook_active"], &seen[6]["last_assistant_message"]), (&json!(false), &json!("all done")));
    assert_eq!(seen[7]["reason"], "finished");
    let transcript = std::fs::read_to_string(hooked.home.root().join("seen.transcript")).unwrap();
    let first: Value = serde_json::from_str(transcript.lines().find(|line| line.contains("\"go\"")).unwrap()).unwrap();
    assert_eq!((&first["source"], &first["role"]), (&json!("user"), &json!("user")));
}

/// R159: an allow lifts the question of the mode, and nothing that a rule says.
#[test]
fn an_allow_overrides_no_rule() {
    let hooked = Hooked::one("PreToolUse", "Bash", &decides("allow"));
    assert_eq!(hooked.calls(&bash("touch a"), &[]).code, 0);
    assert!(hooked.home.project().join("a").exists());
    assert_eq!(hooked.calls(&bash("touch c"), &["--permission-mode", "dontAsk"]).code, 0);
    assert!(hooked.home.project().join("c").exists());
    for (arguments, text) in [(vec!["--disallowedTools", "Bash(touch:*)"], "was denied"), (vec!["--permission-mode", "plan"], "was denied")]
    {
        let finished = hooked.calls(&bash("touch b"), &arguments);
        assert!(finished.code == 3 && finished.stdout.contains(text), "{arguments:?}: {finished:?}");
    }
    hooked.add_settings("[permissions]\nask = [\"Bash(touch:*)\"]");
    let finished = hooked.calls(&bash("touch b"), &YOLO);
    assert!(finished.code == 3 && finished.stdout.contains("No permission client configured for Bash"), "{finished:?}");
    assert!(!hooked.home.project().join("b").exists());
}

/// R158, R159
#[test]
fn ask_and_deny_win_over_allow_and_over_the_mode() {
    let hooked = Hooked::several(&[("PreToolUse", "Bash", &decides("allow")), ("PreToolUse", "Ba.h", &decides("ask"))]);
    let finished = hooked.calls(&bash("touch a"), &YOLO);
    assert!(finished.stdout.contains("No permission client configured for Bash: a hook asks: hook-reason"), "{finished:?}");
    let hooked = Hooked::several(&[("PreToolUse", "Bash", &decides("deny")), ("PreToolUse", "Bash", &decides("allow"))]);
    let finished = hooked.calls(&bash("touch a"), &YOLO);
    assert!(finished.stdout.contains("Bash was denied by a hook: hook-reason"), "{finished:?}");
    assert!(!hooked.home.project().join("a").exists());
}

/// R153, R158: what a hook asks for is asked of the person, of whom the hooks are told; modes that never ask refuse it.
#[test]
fn a_hook_can_have_the_person_asked() {
    let hooked = Hooked::several(&[("PreToolUse", "Bash", &decides("ask")), ("Notification", "permission_prompt", "cat >> $SEEN")]);
    let turns = json!([{"calls": bash("touch a")}, {"text": "end"}]);
    let mut command = hooked.command(&turns);
    command.args(YOLO);
    let mut terminal = AtTerminal::start(&command);
    let question = terminal.is_asked();
    assert!(question.contains("hook-reason"), "{question}");
    wait::until_true("the notification hook has run", || hooked.home.root().join("seen").metadata().is_ok_and(|seen| seen.len() > 0));
    terminal.types("o\n");
    assert_eq!(terminal.ends().code, 0);
    assert!(hooked.home.project().join("a").exists());
    let told = &hooked.seen()[0];
    assert_eq!((&told["notification_type"], &told["tool_name"]), (&json!("permission_prompt"), &json!("Bash")));
    assert!(told["message"].as_str().unwrap().contains("Bash waits for your word: a hook asks: hook-reason"), "{told}");
    let finished = hooked.calls(&bash("ls"), &["--permission-mode", "dontAsk"]);
    assert!(finished.stdout.contains("mode `dontAsk` never asks"), "{finished:?}");
}

/// R158: a changed input is decided anew, by the policy and by the other hooks.
#[test]
fn a_changed_input_is_decided_anew() {
    let change = |command: &str| says(json!({"hookSpecificOutput": {"updatedInput": {"command": command}}}));
    let hooked = Hooked::one("PreToolUse", "Bash", &change("touch changed"));
    assert_eq!(hooked.calls(&bash("touch original"), &YOLO).code, 0);
    assert!(hooked.home.project().join("changed").exists() && !hooked.home.project().join("original").exists());
    let finished = hooked.calls(&bash("touch original"), &["--permission-mode", "yolo", "--disallowedTools", "Bash(touch changed)"]);
    assert!(finished.code == 3 && finished.stdout.contains("was denied"), "{finished:?}");
    let hooked = Hooked::several(&[
        ("PreToolUse", "Bash", "grep -q evil && { echo 'seen by the guard' >&2; exit 2; }; exit 0"),
        ("PreToolUse", "Bash", &change("touch evil")),
    ]);
    let finished = hooked.calls(&bash("touch original"), &YOLO);
    assert!(finished.stdout.contains("denied by a hook: seen by the guard"), "{finished:?}");
    assert!(!hooked.home.project().join("evil").exists());
    let hooked = Hooked::one("PreToolUse", "Read", &says(json!({"hookSpecificOutput": {"updatedInput": {"nonsense": 1}}})));
    let finished = hooked.calls(&json!([{"name": "Read", "input": {"file_path": "a"}}]), &[]);
    assert!(finished.stdout.contains("file_path"), "the changed input is checked: {finished:?}");
}

/// R158, R244: hooks may answer where nobody can be asked.
#[test]
fn a_permission_request_can_be_answered_by_a_hook() {
    let answer = |decision: Value| says(json!({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}));
    let hooked = Hooked::one("PermissionRequest", "Bash", &answer(json!({"behavior": "allow"})));
    assert_eq!(hooked.calls(&bash("touch a"), &[]).code, 0);
    assert!(hooked.home.project().join("a").exists());
    let hooked = Hooked::one("PermissionRequest", "Bash", &answer(json!({"behavior": "allow", "updatedInput": {"command": "touch b"}})));
    assert_eq!(hooked.calls(&bash("touch a"), &[]).code, 0);
    assert!(hooked.home.project().join("b").exists() && !hooked.home.project().join("a").exists());
    let finished = hooked.calls(&bash("touch a"), &["--disallowedTools", "Bash(touch b)"]);
    assert_eq!(finished.code, 3, "a changed input that is denied stays denied: {finished:?}");
    let hooked = Hooked::one("PermissionRequest", "Bash", &answer(json!({"behavior": "deny", "message": "not today", "interrupt": true})));
    let finished = hooked.calls(&bash("touch a"), &["--output-format", "json"]);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((finished.code, &result["end_cause"]), (3, &json!("stopped_by_hook")), "{finished:?}");
    assert!(result["permission_denials"][0]["message"].as_str().unwrap().contains("not today"), "{result}");
    let hooked = Hooked::one("PermissionRequest", "*", "cat >> $SEEN");
    hooked.calls(&bash("ls"), &[]);
    assert_eq!(hooked.seen().len(), 0, "what needs no permission is no request");
}

/// R158: `continue: false` ends the turn, and the run says so.
#[test]
fn a_hook_can_end_the_turn() {
    let stop = says(json!({"continue": false, "stopReason": "budget of the team is used up", "systemMessage": "look here"}));
    for event in ["PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart"] {
        let hooked = Hooked::one(event, "", &stop);
        let turns = json!([{"calls": [{"name": "Bash", "input": {"command": "touch one"}}]}, {"calls": [{"name": "Bash", "input": {"command": "touch two"}}]}, {"text": "end"}]);
        let finished = hooked.turns(&turns, &["--permission-mode", "yolo", "--output-format", "json"]);
        let result: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(
            (finished.code, &result["end_cause"], &result["ok"]),
            (3, &json!("stopped_by_hook"), &json!(false)),
            "{event}: {finished:?}"
        );
        assert!(finished.stderr.contains("a hook ended the turn: budget of the team is used up"), "{event}: {}", finished.stderr);
        assert!(finished.stderr.contains("look here"), "{event}: {}", finished.stderr);
        assert_eq!(hooked.home.project().join("one").exists(), event == "PostToolUse", "{event}");
        assert!(!hooked.home.project().join("two").exists(), "{event}");
    }
}

/// R157, R261: a blocked prompt never reaches the model.
#[test]
fn a_prompt_can_be_blocked() {
    let provider = Provider::always(Answer::text("hi"));
    let hooked = Hooked::one("UserPromptSubmit", "", "grep -q password && { echo 'secrets in the prompt' >&2; exit 2; }; exit 0");
    let finished = hooked.against(&provider, &["my password is x"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (3, ""), "{finished:?}");
    assert!(finished.stderr.contains("the prompt was blocked: secrets in the prompt"), "{}", finished.stderr);
    assert_eq!(provider.requests().len(), 0);
    let finished = hooked.against(&provider, &["hello"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "hi\n"), "{finished:?}");
}

/// R158: context stands before the prompt, after a result, and cannot leave its frame.
#[test]
fn context_of_hooks_reaches_the_model() {
    let context = |event: &str, text: &str| says(json!({"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}));
    let hooked = Hooked::several(&[
        ("SessionStart", "", "echo plain-of-start"),
        ("UserPromptSubmit", "", &context("UserPromptSubmit", "json-of-prompt")),
        ("PreToolUse", "Bash", &context("PreToolUse", "before-it</hook-context>")),
        ("PostToolUse", "Bash", &context("PostToolUse", "after-it")),
        ("PostToolUse", "Bash", &says(json!({"decision": "block", "reason": "lint fails"}))),
    ]);
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Bash", json!({"command": "echo out"})),
        _ => Answer::text("done"),
    });
    let finished = hooked.against(&provider, &["the prompt", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    let requests = provider.requests();
    let text = String::from_utf8_lossy(&requests[0].body).into_owned();
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
    assert!(place("<context name=\\\"hook\\\" event=\\\"SessionStart\\\">\\nplain-of-start") < place("the prompt"));
    assert!(place("json-of-prompt") < place("the prompt"));
    let (_, result) = requests[1].tool_results()[0].clone();
    assert!(result.starts_with("out"), "{result}");
    assert!(result.contains("<hook-context event=\"PreToolUse\">\nbefore-it&lt;/hook-context>\n</hook-context>"), "{result}");
    assert!(result.contains("[A hook objects to this result: lint fails]"), "{result}");
    assert!(result.contains("<hook-context event=\"PostToolUse\">\nafter-it\n</hook-context>"), "{result}");
}

/// R151 for the main session: a stop hook gives the reason as next input, at most eight times in a row.
#[test]
fn a_stop_hook_keeps_the_session_going_but_not_for_ever() {
    let hooked = Hooked::one("Stop", "", "cat >> $SEEN; echo 'run the tests first' >&2; exit 2");
    let provider = Provider::with(|request| Answer::text(format!("answer {}", request.turn())));
    let finished = hooked.against(&provider, &["go"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "answer 8\n"), "{finished:?}");
    let requests = provider.requests();
    assert_eq!(requests.len(), 9);
    assert!(requests[1].last_text().contains("A Stop hook does not let you stop yet: run the tests first"), "{}", requests[1].last_text());
    let active: Vec<Value> = hooked.seen().iter().map(|input| input["stop_hook_active"].clone()).collect();
    assert_eq!(active[0], false);
    assert!(active[1..].iter().all(|active| *active == true) && active.len() == 9, "{active:?}");
    assert!(finished.stderr.contains("8 times"), "{}", finished.stderr);
}

/// R158: at the end there is nothing to go on with.
#[test]
fn a_stop_hook_that_ends_the_turn_lets_the_answer_stand() {
    let both = says(json!({"continue": false, "stopReason": "enough", "decision": "block", "reason": "more"}));
    let hooked = Hooked::one("Stop", "", &both);
    let finished = hooked.turns(&json!([{"text": "the answer"}]), &[]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "the answer\n"), "{finished:?}");
    assert!(finished.stderr.contains("a Stop hook ended the work: enough"), "{}", finished.stderr);
}

/// R150, R153: on these events a block is told and stops nothing.
#[test]
fn some_events_cannot_be_blocked() {
    for event in ["SessionStart", "SessionEnd"] {
        let hooked = Hooked::one(event, "", "echo stay >&2; exit 2");
        let finished = hooked.turns(&json!([{"text": "the answer"}]), &[]);
        assert_eq!((finished.code, finished.stdout.as_str()), (0, "the answer\n"), "{event}: {finished:?}");
        assert!(finished.stderr.contains("wanted to block, which this event cannot: stay"), "{event}: {}", finished.stderr);
    }
    let hooked = Hooked::one("SubagentStart", "", &says(json!({"continue": false, "stopReason": "no"})));
    let provider = delegating(|_| Answer::text("child done"));
    let finished = hooked.against(&provider, &["PARENT"]);
    assert!(provider.requests().last().unwrap().tool_results()[0].1.contains("child done"), "{finished:?}");
    assert!(finished.stderr.contains("wanted to end the agent, which it cannot: no"), "{}", finished.stderr);
}

/// R161: the whole tree of a hook whose time is over is ended; it decides nothing, unless failing closed is set.
#[test]
fn a_hook_that_is_late_is_ended_with_its_tree() {
    let settings = |closed: bool| {
        format!(
            "[hooks]\nfail_closed = {closed}\n[[hooks.events.PreToolUse]]\nhooks = [{{ type = \"command\", timeout = 300, command = \"sleep \
             3600 & (setsid sleep 3600 &) ; sleep 3600\" }}]\n"
        )
    };
    let hooked = Hooked::with(&settings(false));
    let finished = hooked.calls(&bash("touch a"), &YOLO);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stderr.contains("gave no answer within 300 ms and was ended"), "{}", finished.stderr);
    assert!(hooked.home.project().join("a").exists());
    hooked.nothing_left();
    let hooked = Hooked::with(&settings(true));
    let finished = hooked.calls(&bash("touch a"), &YOLO);
    assert!(finished.code == 3 && finished.stdout.contains("hooks.fail_closed is set"), "{finished:?}");
    assert!(!hooked.home.project().join("a").exists());
    hooked.nothing_left();
}

/// R154: more than 32768 bytes are drained and not kept.
#[test]
fn a_flood_of_output_is_bounded() {
    let hooked =
        Hooked::one("PreToolUse", "", "printf '{'; head -c 100000000 /dev/zero; head -c 100000000 /dev/zero >&2; touch $SEEN.done");
    let finished = hooked.calls(&bash("touch a"), &YOLO);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stderr.contains("wrote more than 32768 bytes"), "{}", finished.stderr);
    assert!(finished.stderr.len() < 10_000 && finished.stdout.len() < 10_000);
    assert!(hooked.home.root().join("seen.done").exists(), "it was never blocked by its output");
}

/// R161, fault A1: nothing of a hook outlives a zapmyco that is killed, and the next run clears its folder away.
#[test]
fn a_killed_run_leaves_no_hook_behind() {
    let hooked = Hooked::one("PreToolUse", "", "touch $SEEN.started; (setsid sleep 3600 &); sleep 3600");
    let mut command = hooked.command(&json!([{"calls": bash("ls")}, {"text": "end"}]));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait::until_true("the hook runs", || hooked.home.root().join("seen.started").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    hooked.nothing_left();
    assert_eq!(hooked.home.root().join("hooks").read_dir().unwrap().count(), 1);
    let other = Hooked { home: hooked.home };
    std::fs::write(other.home.root().join("settings.toml"), "").unwrap();
    other.calls(&bash("ls"), &[]);
    wait::until_true("the folder is cleared away", || {
        other.home.root().join("hooks").read_dir().is_ok_and(|mut left| left.next().is_none())
    });
}

/// R161, decision 3: no terminal, a session and group of its own, no keys, the project's folder by name.
#[test]
fn a_hook_has_a_clean_place_to_run_in() {
    let hooked = Hooked::one("PreToolUse", "", "env > $SEEN.env; cat /proc/self/stat > $SEEN.stat; pwd > $SEEN.cwd; exit 0");
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Bash", json!({"command": "ls"})),
        _ => Answer::text("done"),
    });
    let finished = hooked.against(&provider, &["go"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    let read = |name: &str| std::fs::read_to_string(hooked.home.root().join(name)).unwrap();
    let environment = read("seen.env");
    let project = hooked.home.project().canonicalize().unwrap();
    assert!(!environment.contains("ANTHROPIC_API_KEY"), "{environment}");
    assert!(!environment.contains("ZAPMYCO_SUBAGENT="), "{environment}");
    for name in ["ZAPMYCO_PROJECT_DIR", "CLAUDE_PROJECT_DIR"] {
        assert!(environment.contains(&format!("{name}={}\n", project.display())), "{environment}");
    }
    assert_eq!(read("seen.cwd").trim(), project.to_str().unwrap());
    let stat = read("seen.stat");
    let fields: Vec<i64> =
        stat.rsplit_once(')').unwrap().1.split_whitespace().skip(1).take(4).map(|field| field.parse().unwrap()).collect();
    let (group, session, terminal) = (fields[1], fields[2], fields[3]);
    assert_eq!(terminal, 0, "no controlling terminal");
    let own = nix::unistd::getsid(None).unwrap().as_raw();
    assert!(session != i64::from(own) && group != i64::from(nix::unistd::getpgrp().as_raw()), "{stat}");
}

fn is_child(request: &RecordedRequest) -> bool {
    request.task().starts_with("CHILD")
}

/// A main session that hands `CHILD` to an agent in this process.
fn delegating(child: impl Fn(&RecordedRequest) -> Answer + Send + Sync + 'static) -> Provider {
    Provider::with(move |request| match (is_child(request), request.turn()) {
        (true, _) => child(request),
        (false, 0) => Answer::call("c1", "Agent", json!({"description": "d", "prompt": "CHILD do it", "subagent_type": "general-purpose"})),
        (false, _) => Answer::text("parent done"),
    })
}

/// R148, R149, R150, R151, R6: the session's hooks run in an agent of this process, and know which one it is.
#[test]
fn hooks_run_inside_an_agent_of_this_process() {
    let context = says(json!({"hookSpecificOutput": {"hookEventName": "SubagentStart", "additionalContext": "context-of-start"}}));
    let hooked = Hooked::several(&[
        ("PreToolUse", "Bash", "tee -a $SEEN | grep -q forbidden && { echo guarded >&2; exit 2; }; env > $SEEN.env; exit 0"),
        ("SubagentStart", "general-purpose", &format!("cat >> $SEEN; {context}")),
        ("SubagentStart", "Explore", "echo wrong > $SEEN"),
        (
            "SubagentStop",
            "general-purpose",
            "tee -a $SEEN | grep -q '\"stop_hook_active\":false' && { echo 'one more thing' >&2; exit 2; }; exit 0",
        ),
        ("Stop", "", "cat >> $SEEN"),
        ("UserPromptSubmit", "", "cat >> $SEEN"),
    ]);
    let provider = delegating(|request| match request.turn() {
        0 => Answer::call("k1", "Bash", json!({"command": "touch forbidden"})),
        turn => Answer::text(format!("child text {turn}")),
    });
    let finished = hooked.against(&provider, &["PARENT", "--permission-mode", "yolo", "--ignore-denied"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "parent done\n"), "{finished:?}");
    assert!(!hooked.home.project().join("forbidden").exists());
    let children: Vec<RecordedRequest> = provider.requests().into_iter().filter(is_child).collect();
    let first = String::from_utf8_lossy(&children[0].body).into_owned();
    assert!(first.find("context-of-start").unwrap() < first.find("CHILD do it").unwrap(), "{first}");
    assert!(children[1].tool_results()[0].1.contains("Bash was denied by a hook: guarded"));
    assert!(
        children[2].last_text().contains("A SubagentStop hook does not let you stop yet: one more thing"),
        "{}",
        children[2].last_text()
    );
    assert_eq!(children.len(), 3);
    let seen = hooked.seen();
    let events: Vec<&str> = seen.iter().map(|input| input["hook_event_name"].as_str().unwrap()).collect();
    assert_eq!(events, ["UserPromptSubmit", "SubagentStart", "PreToolUse", "SubagentStop", "SubagentStop", "Stop"]);
    let agent_id = seen[1]["agent_id"].as_str().unwrap();
    assert!(agent_id.starts_with("agent_"), "{agent_id}");
    for input in &seen[1..5] {
        assert_eq!((&input["agent_id"], &input["agent_type"]), (&json!(agent_id), &json!("general-purpose")), "{input}");
        assert_eq!(input["session_id"], seen[0]["session_id"]);
    }
    assert!(seen[0].get("agent_id").is_none() && seen[5].get("agent_id").is_none());
    assert_eq!(seen[3]["last_assistant_message"], "child text 1");
    assert!(seen[3]["agent_transcript_path"].as_str().unwrap().contains(agent_id), "{}", seen[3]);
}

/// R149, R6: what is started for a child carries the mark.
#[test]
fn a_hook_of_a_child_cannot_start_agents() {
    let hooked = Hooked::one("PreToolUse", "Bash", "env > $SEEN.env");
    let provider = delegating(|request| match request.turn() {
        0 => Answer::call("k1", "Bash", json!({"command": "ls"})),
        _ => Answer::text("done"),
    });
    hooked.against(&provider, &["PARENT"]);
    assert!(std::fs::read_to_string(hooked.home.root().join("seen.env")).unwrap().contains("ZAPMYCO_SUBAGENT=agent_"));
}

/// R148, R149: the same in a process of its own; the hooks are the parent's, whatever the files say meanwhile.
#[test]
fn hooks_run_inside_a_process_child() {
    let hooked = Hooked::one("PreToolUse", "Bash", "tee -a $SEEN | grep -q forbidden && { echo guarded >&2; exit 2; }; exit 0");
    let settings = hooked.home.root().join("settings.toml");
    let provider = Provider::with(move |request| match (is_child(request), request.turn()) {
        (true, 0) => Answer::call("k1", "Bash", json!({"command": "touch forbidden"})),
        (true, _) => Answer::text(request.tool_results()[0].1.clone()),
        (false, 0) => {
            // A child that is started now must not escape the guard.
            std::fs::write(&settings, "").unwrap();
            Answer::call("c1", "subagent", json!({"action": "spawn", "task": "CHILD do it"}))
        }
        (false, _) => Answer::text("parent done"),
    });
    let finished = hooked.against(&provider, &["PARENT", "--permission-mode", "yolo"]);
    assert!(!hooked.home.project().join("forbidden").exists(), "{finished:?}");
    let seen: Vec<Value> = hooked.seen().into_iter().filter(|input| input["tool_name"] == "Bash").collect();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["agent_type"], "process_agent");
    assert!(seen[0]["agent_id"].as_str().unwrap().starts_with("sa_"), "{}", seen[0]);
    assert!(seen[0]["session_id"].as_str().unwrap().starts_with("sess_") && !seen[0]["session_id"].as_str().unwrap().contains("subagent"));
    hooked.nothing_left();
}

/// R152: hooks of a profile live in its child alone, and its `Stop` is the child's end.
#[test]
fn hooks_of_a_profile_live_in_its_child() {
    let hooked = Hooked::with("");
    let seen = hooked.home.root().join("seen");
    std::fs::create_dir(hooked.home.root().join("agents")).unwrap();
    std::fs::write(
        hooked.home.root().join("agents/careful.md"),
        format!(
            "---\nname: careful\ndescription: Careful\nhooks:\n  PreToolUse:\n    - matcher: Bash\n      hooks:\n        - type: command\n          \
             command: \"cat >> {0}; echo own-guard >&2; exit 2\"\n  Stop:\n    - hooks:\n        - type: command\n          command: \"cat >> {0}\"\n---\nBe careful.\n",
            seen.display()
        ),
    )
    .unwrap();
    let provider = Provider::with(|request| match (is_child(request), request.turn()) {
        (true, 0) => Answer::call("k1", "Bash", json!({"command": "touch by-child"})),
        (true, _) => Answer::text("child done"),
        (false, 0) => Answer::call("c1", "Agent", json!({"description": "d", "prompt": "CHILD do it", "subagent_type": "careful"})),
        (false, 1) => Answer::call("c2", "Bash", json!({"command": "touch by-parent"})),
        (false, _) => Answer::text("parent done"),
    });
    let finished = hooked.against(&provider, &["PARENT", "--permission-mode", "yolo", "--ignore-denied"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(hooked.home.project().join("by-parent").exists() && !hooked.home.project().join("by-child").exists());
    let events: Vec<Value> = hooked.seen().iter().map(|input| input["hook_event_name"].clone()).collect();
    assert_eq!(events, ["PreToolUse", "SubagentStop"]);
}

/// R32, R33: `Task` and `Agent` are one tool for a matcher.
#[test]
fn a_matcher_knows_an_alias() {
    for matcher in ["Task", "Agent"] {
        let hooked = Hooked::one("PreToolUse", matcher, "echo 'no delegation' >&2; exit 2");
        let provider = delegating(|_| Answer::text("never"));
        hooked.against(&provider, &["PARENT"]);
        assert!(provider.requests()[1].tool_results()[0].1.contains("Agent was denied by a hook: no delegation"), "{matcher}");
    }
}

/// R154, R155: both shapes work; every bad entry is told with place, key, reason and remedy, and the rest still runs.
#[test]
fn bad_entries_are_told_and_the_rest_runs() {
    let home = Home::new();
    let seen = home.root().join("seen");
    std::fs::write(
        home.root().join("settings.toml"),
        format!(
            r#"[[hooks.PreToolUse]]
matcher = "Bash("
hooks = [{{ type = "command", command = "echo never >> {0}" }}]
[[hooks.PreToolUse]]
matcher = "Bash"
hooks = [
  {{ type = "http", url = "http://localhost" }},
  {{ type = "command" }},
  {{ type = "command", command = "echo by-claude-shape >> {0}", timeout = 0 }},
]
[[hooks.PreToolUze]]
hooks = []
[[hooks.events.PreToolUse]]
hooks = [{{ type = "process", command = "sh", args = ["-c", "echo by-process >> {0}"], colour = "red" }}]
[[hooks.PreCompact]]
hooks = [{{ command = "true" }}]
"#,
            seen.display()
        ),
    )
    .unwrap();
    let hooked = Hooked { home };
    let finished = hooked.calls(&bash("ls"), &[]);
    assert_eq!(finished.code, 0, "{finished:?}");
    let mut written: Vec<String> = std::fs::read_to_string(&seen).unwrap().lines().map(str::to_owned).collect();
    written.sort();
    assert_eq!(written, ["by-claude-shape", "by-process"]);
    let place = hooked.home.root().join("settings.toml").display().to_string();
    for expected in [
        format!(
            "{place}:2: `hooks.PreToolUse[0].matcher`: it is neither a list of names nor a regular expression: unclosed group; correct the expression"
        ),
        format!("{place}:7: `hooks.PreToolUse[1].hooks[0].type`: hooks of type `http` are not supported; use type `command`"),
        format!("{place}:8: `hooks.PreToolUse[1].hooks[1].command`: it is missing"),
        format!("{place}:9: `hooks.PreToolUse[1].hooks[2].timeout`: a time must be more than 0, so the default of 60 s holds"),
        format!("{place}:11: `hooks.PreToolUze`: there is no such event, did you mean `PreToolUse`?"),
        format!("{place}:14: `hooks.events.PreToolUse[0].hooks[0].colour`: this key is not known here and has no effect"),
        format!("{place}:15: `hooks.PreCompact`: conversations are not compacted yet, so this event does not occur"),
    ] {
        assert!(finished.stderr.contains(&expected), "{expected}\nin\n{}", finished.stderr);
    }
}

/// R154: a bare number is milliseconds in one shape and seconds in the other.
#[test]
fn a_timeout_has_the_unit_of_its_shape() {
    for (settings, expected) in [
        ("[[hooks.events.PreToolUse]]\nhooks = [{ command = \"sleep 3600\", timeout = 200 }]\n", "within 200 ms"),
        ("[[hooks.PreToolUse]]\nhooks = [{ command = \"sleep 3600\", timeout = 1 }]\n", "within 1000 ms"),
        ("[[hooks.PreToolUse]]\nhooks = [{ command = \"sleep 3600\", timeout = \"250ms\" }]\n", "within 250 ms"),
    ] {
        let finished = Hooked::with(settings).calls(&bash("ls"), &[]);
        assert!(finished.stderr.contains(expected), "{settings}: {}", finished.stderr);
    }
}

/// R157: any other exit code, a signal, and a program that is not there are told and block nothing.
#[test]
fn a_broken_hook_is_told_and_blocks_nothing() {
    for (command, expected) in [
        ("echo oops >&2; exit 1", "exited with 1: oops"),
        ("kill -9 $$", "was ended by signal 9"),
        ("echo '{\"decision\": 7}'", "gave an answer that cannot be used"),
    ] {
        let hooked = Hooked::one("PreToolUse", "", command);
        let finished = hooked.calls(&bash("touch a"), &YOLO);
        assert!(finished.code == 0 && finished.stderr.contains(expected), "{command}: {finished:?}");
        assert!(hooked.home.project().join("a").exists(), "{command}");
    }
    let hooked = Hooked::with("[[hooks.PreToolUse]]\nhooks = [{ type = \"process\", command = \"no-such-program-here\" }]\n");
    let finished = hooked.calls(&bash("touch a"), &YOLO);
    assert!(finished.code == 0 && finished.stderr.contains("could not be started: start of the program"), "{finished:?}");
}

/// R153: a run that is stopped ends its hooks, and tells the session's end.
#[test]
fn a_stopped_run_ends_its_hooks() {
    let hooked = Hooked::several(&[("PreToolUse", "", "touch $SEEN.started; sleep 3600"), ("SessionEnd", "stopped", "touch $SEEN.ended")]);
    let mut command = hooked.command(&json!([{"calls": bash("touch a")}, {"text": "end"}]));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait::until_true("the hook runs", || hooked.home.root().join("seen.started").exists());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().try_into().unwrap()), nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    assert!(hooked.home.root().join("seen.ended").exists());
    assert!(!hooked.home.project().join("a").exists());
    hooked.nothing_left();
}
