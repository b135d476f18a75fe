//! Flow: agents of a running session, seen and steered from another process: moved, stopped, listed, swept; and turns with
//! a model of their own.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::delegating::nothing_left;
use crate::support::local::{
    agent, background, beside, children, command, ended, folders, is_parent, json_of, metadata, newest_session, only_metadata, parents, run,
};
use crate::support::provider::{Answer, Gate, Provider};
use crate::support::terminal::AtTerminal;
use crate::support::{Finished, Home, wait};

fn jobs(home: &Home, arguments: &[&str]) -> Finished {
    home.run(&[&["jobs"], arguments].concat())
}

fn listed(home: &Home) -> Vec<Value> {
    json_of(&jobs(home, &["list", "--json"]))["jobs"].as_array().unwrap().clone()
}

/// R185, R187, R176: a command moves the agent that a run waits for to the background: the same agent, not restarted, its
/// end announced.
#[test]
fn a_command_moves_a_foreground_agent_to_the_background() {
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", agent("CHILD")),
        (true, 1) => {
            held.open();
            Answer::text("moved")
        }
        (true, _) => Answer::text("announced"),
        (false, _) => Answer::text("after the move").when(&held),
    });
    assert_eq!(jobs(&home, &["background"]).code, 11, "nothing runs");
    let running = beside(&mut command(&provider, &home, &["PARENT x"]));
    wait::until_true("the child's request", || children(&provider).len() == 1);
    let id = only_metadata(&home)["agentId"].as_str().unwrap().to_owned();
    let moved = jobs(&home, &["background"]);
    assert_eq!((moved.code, moved.stdout.as_str()), (0, format!("{id} goes on in the background\n").as_str()), "{moved:?}");
    let finished = ended(running);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "announced\n"), "{}", finished.stderr);
    assert!(parents(&provider)[1].tool_results()[0].1.contains("Agent launched in the background"));
    assert!(parents(&provider)[2].texts("user").join("\n").contains("<result>after the move</result>"));
    assert_eq!(children(&provider).len(), 1, "not restarted");
    assert_eq!(only_metadata(&home)["background"], true);
    let again = jobs(&home, &["background", &id]);
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains(&format!("agent {id} has ended already (completed)")), "{}", again.stderr);
    assert_eq!(jobs(&home, &["background", "sa_20260606_a1b2c3d4"]).code, 11);
}

/// R186: a profile says after which time its agent goes to the background, and that it never does.
#[test]
fn a_profile_sets_the_time_of_the_move() {
    let home = Home::new();
    home.write(".zapmyco/agents/a.md", "---\nname: leaves\ndescription: d\nautoBackgroundMs: 100\n---\nx\n");
    home.write(".zapmyco/agents/b.md", "---\nname: stays\ndescription: d\nautoBackgroundMs: 0\n---\nx\n");
    for (name, moves) in [("leaves", true), ("stays", false)] {
        let gate = Gate::new();
        let held = gate.clone();
        let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
            (true, 0) => Answer::call("a", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": name})),
            (true, 1) => {
                held.open();
                Answer::text("on")
            }
            (true, _) => Answer::text("told"),
            // The one that stays is answered after the time of the settings would have moved it.
            (false, _) if moves => Answer::text("done").when(&held),
            (false, _) => Answer::text("done").after(std::time::Duration::from_millis(400)),
        });
        let mut command = command(&provider, &home, &["PARENT x"]);
        let setting = if moves { "0s" } else { "50ms" };
        let finished = crate::support::finish(command.env("ZAPMYCO_LIMITS_AUTO_BACKGROUND", setting));
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let result = parents(&provider)[1].tool_results()[0].1.clone();
        assert_eq!(result.contains("Agent launched in the background"), moves, "{name}: {result}");
    }
}

/// R197, R117, R253, R388: an agent of a running session is listed, shown, read and stopped from another process: output
/// files, index, one event, one notice.
#[test]
fn an_agent_is_stopped_from_another_process() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", background("CHILD")),
        (true, 1) => Answer::text("it runs"),
        (true, _) => Answer::text("it was stopped"),
        (false, 0) => Answer::text("found so far").and_call("c1", "Glob", json!({"pattern": "*"})),
        (false, _) => Answer::call("c2", "Bash", json!({"command": "sleep 600"})),
    });
    let mut command = command(&provider, &home, &["PARENT x", "--permission-mode", "yolo", "--output-format", "stream-json"]);
    let running = beside(&mut command);
    wait::until_true("the sleep of the child", || {
        children(&provider).len() == 2
            && listed(&home).iter().any(|job| job["kind"] == "shell" && job["status"] == "running")
            && parents(&provider).len() == 2
    });
    let id = only_metadata(&home)["agentId"].as_str().unwrap().to_owned();
    let of_agent: Vec<Value> = listed(&home).into_iter().filter(|job| job["kind"] == "local_agent").collect();
    assert_eq!(of_agent.len(), 1);
    assert_eq!(
        (&of_agent[0]["id"], &of_agent[0]["status"], &of_agent[0]["title"]),
        (&json!(id), &json!("running"), &json!("count the files"))
    );
    let shown = jobs(&home, &["show", &id]).stdout;
    assert!(shown.contains("status     running\n") && shown.contains("agent      general-purpose, in the background\n"), "{shown}");
    assert_eq!(jobs(&home, &["output", &id]).stdout.trim(), "found so far");
    let killed = jobs(&home, &["kill", &id, "agent_00000000-0000-4000-8000-000000000000"]);
    assert_eq!(killed.code, 11);
    assert!(killed.stdout.contains(&format!("  {id}: cancelled\n")), "{}", killed.stdout);
    assert_eq!(only_metadata(&home)["status"], "stopped");
    let finished = ended(running);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let lines: Vec<Value> = finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stopped: Vec<&Value> = lines.iter().filter(|line| line["subtype"] == "subagent_stopped").collect();
    assert_eq!((stopped.len(), &stopped[0]["status"]), (1, &json!("stopped")));
    let told = parents(&provider).last().unwrap().texts("user").join("\n");
    assert_eq!(told.matches("<task-notification>").count(), 1, "{told}");
    assert!(told.contains("<status>stopped</status>"), "{told}");
    let output = std::fs::read_to_string(folders(&home)[0].join("output.txt")).unwrap();
    assert!(output.starts_with("The background agent task was stopped.") && output.contains("found so far"), "{output}");
    assert!(nothing_left(&home));
    let again = jobs(&home, &["kill", &id]);
    assert_eq!(again.code, 0);
    assert!(again.stdout.contains("cannot cancel (already cancelled)"), "{}", again.stdout);
}

/// R201, R333: what died with its process is shown as lost, settled once by a sweep, announced at the next start, and cleared
/// away when it is old enough.
#[test]
fn a_lost_agent_is_swept_announced_and_cleared_away() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, _) if request.task() == "PARENT other" => Answer::text("nothing"),
        (true, 0) => Answer::call("call_1", "Agent", background("CHILD")),
        (true, 1) if !request.texts("user").iter().any(|text| text == "go on") => Answer::stall(),
        (true, _) => Answer::text("resumed"),
        (false, 0) => Answer::text("found so far").and_call("c1", "Glob", json!({"pattern": "*"})),
        (false, _) => Answer::stall(),
    });
    let mut running = beside(&mut command(&provider, &home, &["PARENT x"]));
    wait::until_true("both stall", || children(&provider).len() == 2 && parents(&provider).len() == 2);
    running.kill().unwrap();
    running.wait().unwrap();
    let id = only_metadata(&home)["agentId"].as_str().unwrap().to_owned();
    assert_eq!((&listed(&home)[0]["id"], &listed(&home)[0]["status"]), (&json!(id), &json!("lost")));
    let refused = jobs(&home, &["background", &id]);
    assert!(refused.code == 1 && refused.stderr.contains("has ended already (lost)"), "{refused:?}");
    let swept = jobs(&home, &["sweep"]);
    assert_eq!(swept.code, 1);
    assert!(swept.stdout.contains(&format!("settled: {id} is lost; its process had died without a record")), "{}", swept.stdout);
    assert_eq!(jobs(&home, &["sweep"]).code, 0);
    assert_eq!(jobs(&home, &["output", &id]).stdout.trim(), "found so far");
    let session = newest_session(&home);
    let finished = run(&provider, &home, &["go on", "--resume", &session]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let told = parents(&provider).last().unwrap().texts("user").join("\n");
    assert_eq!(told.matches("<task-notification>").count(), 1, "{told}");
    assert!(told.contains("found so far"), "{told}");
    std::fs::remove_file(home.root().join("retention")).unwrap();
    let mut command = command(&provider, &home, &["PARENT other"]);
    let finished = crate::support::finish(command.env("ZAPMYCO_LIMITS_RETENTION_AGE", "1ms"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_eq!(folders(&home).len(), 0, "{:?}", listed(&home));
}

/// Every file below a folder whose bytes hold the text.
fn holding(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else if std::fs::read(&path).unwrap_or_default().windows(text.len()).any(|bytes| bytes == text.as_bytes()) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// R314, R315, R316, R189, R204, R317, R103: the model of one turn is used by it and its foreground agents, by nothing that
/// outlives it, and neither it nor its key is written anywhere.
#[test]
fn a_model_for_one_turn_leaves_no_trace() {
    const KEY: &str = "sk-once-secret-0123456789";
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let own = Provider::with(|_| Answer::text("of the own model"));
    let once = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a0", "Agent", background("CHILD back"))
            .and_call("s0", "SendMessage", json!({"to": "x", "summary": "s", "message": "m"}))
            .and_call("p0", "subagent", json!({"action": "spawn", "task": "t"})),
        (true, 1) => Answer::call("a1", "Agent", agent("CHILD fore")),
        (true, 2) => Answer::error(400, "claude-night at the gate"),
        (true, _) => Answer::text("no"),
        (false, _) => Answer::text("by the night model").when(&held),
    });
    let url = once.base_url();
    let arguments = [
        "PARENT x",
        "--once-model",
        "anthropic/claude-night",
        "--once-base-url",
        &url,
        "--once-key-env",
        "NIGHT_KEY",
        "--output-format",
        "json",
    ];
    let running = beside(command(&own, &home, &arguments).env("NIGHT_KEY", KEY));
    wait::until_true("the child's request", || children(&once).len() == 1);
    let refused = jobs(&home, &["background"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("uses a model given for this turn only, so it has to stay in the foreground"), "{}", refused.stderr);
    gate.open();
    let finished = ended(running);
    assert_eq!(finished.code, 6, "the provider's refusal: {} {}", finished.stdout, finished.stderr);
    assert_eq!(own.request_count(), 0);
    assert!(once.requests().iter().all(|request| request.header("x-api-key") == Some(KEY) && request.json["model"] == "claude-night"));
    let results = parents(&once)[1].tool_results();
    assert!(results[0].1.contains("call again without run_in_background"), "{results:?}");
    assert!(results[1].1.contains("SendMessage is not available in this turn"), "{results:?}");
    assert!(results[2].1.contains("use the tool Agent in the foreground"), "{results:?}");
    assert!(parents(&once)[2].tool_results().last().unwrap().1.starts_with("by the night model\n"));
    let stored = only_metadata(&home);
    assert_eq!((&stored["model"], &stored["modelOrigin"]), (&Value::Null, &json!("override")));
    assert!(finished.stderr.contains("[one-off]"), "{}", finished.stderr);
    for secret in [KEY, "claude-night", url.trim_start_matches("http://")] {
        assert_eq!(holding(&home.root(), secret), Vec::<String>::new(), "{secret}");
    }
    // The next turn of the session uses its own model.
    let finished = run(&own, &home, &["PARENT again", "--resume", &newest_session(&home)]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "of the own model\n"), "{}", finished.stderr);
}

/// R316, R209: an agent of such a turn is resumed later, by the session's own model.
#[test]
fn an_agent_of_such_a_turn_goes_on_with_the_sessions_model() {
    let home = Home::new();
    let once = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", agent("CHILD")),
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text("first"),
    });
    let own = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 2) => {
            let text = request.tool_results()[0].1.clone();
            let id = text.split("agentId: ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
            Answer::call("s", "SendMessage", json!({"to": id, "summary": "more", "message": "go on"}))
        }
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text("second"),
    });
    let url = once.base_url();
    let arguments = ["PARENT x", "--once-model", "anthropic/claude-night", "--once-base-url", &url, "--once-key-env", "NIGHT_KEY"];
    let finished = crate::support::finish(command(&own, &home, &arguments).env("NIGHT_KEY", "sk-once-secret-0123456789"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let finished = run(&own, &home, &["more", "--resume", &newest_session(&home)]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_eq!(children(&own).len(), 1, "its second run");
    assert!(children(&own)[0].texts("assistant").join("").contains("first"));
    assert_eq!(metadata(&folders(&home)[0]).unwrap()["status"], "completed");
}

/// R180, R181, R188, R187: a run that waits for a person's word is moved; the question stays open, a refusal is one of this
/// call alone, and the agent goes on in the background.
#[test]
fn a_run_that_waits_for_a_person_is_moved_with_its_question() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", agent("CHILD")),
        (true, _) => Answer::text("finished"),
        (false, 0) => Answer::call("k0", "Bash", json!({"command": "touch first"})),
        (false, 1) => Answer::call("k1", "Bash", json!({"command": "touch second"})),
        (false, _) => Answer::text("the report"),
    });
    let mut person = AtTerminal::start(&command(&provider, &home, &["--ignore-denied", "PARENT x"]));
    let question = person.is_asked();
    assert!(question.contains("  | touch first\r\n") && question.contains("subagent"), "{question}");
    let moved = jobs(&home, &["background"]);
    assert_eq!(moved.code, 0, "{moved:?}");
    wait::until_true("the parent goes on", || parents(&provider).len() >= 2);
    assert!(parents(&provider)[1].tool_results()[0].1.contains("Agent launched in the background"));
    assert_eq!(children(&provider).len(), 1, "the question is still open");
    person.types("d\n");
    let question = person.is_asked();
    assert!(question.contains("  | touch second\r\n"), "{question}");
    person.types("o\n");
    let left = person.ends();
    assert_eq!(left.code, 0, "{}", left.screen);
    assert!(!home.project().join("first").exists() && home.project().join("second").exists());
    assert!(parents(&provider).last().unwrap().texts("user").join("\n").contains("<result>the report</result>"));
    assert_eq!(only_metadata(&home)["background"], true);
}

/// R314: the key of one turn from a file; what should be mended about the file is said.
#[test]
fn the_key_of_one_turn_can_stand_in_a_file() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let key = home.write("key.txt", "sk-once-secret-0123456789\n");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (own, once) = (Provider::always(Answer::text("own")), Provider::always(Answer::text("by the night model")));
    let url = once.base_url();
    let arguments = ["PARENT x", "--once-model", "anthropic/claude-night", "--once-base-url", &url, "--once-key-file", "key.txt"];
    let finished = run(&own, &home, &arguments);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "by the night model\n"), "{}", finished.stderr);
    assert_eq!(once.requests()[0].header("x-api-key"), Some("sk-once-secret-0123456789"));
    assert!(finished.stderr.contains("key.txt"), "others can read it: {}", finished.stderr);
    for (wrong, said) in [
        (&["x", "--once-model", "script:a.yaml"][..], "--once-model takes a model of a provider"),
        (&["x", "--once-key-env", "K"][..], "--once-model"),
        (&["x", "--once-model", "anthropic/m", "--record", "r.jsonl"][..], "cannot be used with"),
    ] {
        let refused = run(&own, &home, wrong);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    assert_eq!(own.request_count(), 0);
}
