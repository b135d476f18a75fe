//! Flow: agents in this process, through the built binary against a real HTTP server.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::provider::{Answer, Gate, Provider, RecordedRequest};
use crate::support::{Finished, Home, finish, wait};

fn command(provider: &Provider, home: &Home, arguments: &[&str]) -> Command {
    let mut command = home.command();
    provider.configure(&mut command);
    command.arg("run").args(arguments);
    command
}

fn run(provider: &Provider, home: &Home, arguments: &[&str]) -> Finished {
    finish(&mut command(provider, home, arguments))
}

fn agent(prompt: &str) -> Value {
    json!({"description": "count the files", "prompt": prompt})
}

fn background(prompt: &str) -> Value {
    json!({"description": "count the files", "prompt": prompt, "run_in_background": true})
}

/// The main session's requests; all others are children's.
fn is_parent(request: &RecordedRequest) -> bool {
    request.task().starts_with("PARENT")
}

fn parents(provider: &Provider) -> Vec<RecordedRequest> {
    provider.requests().into_iter().filter(is_parent).collect()
}

fn children(provider: &Provider) -> Vec<RecordedRequest> {
    provider.requests().into_iter().filter(|request| !is_parent(request)).collect()
}

/// The folders of all local agents, by name.
fn folders(home: &Home) -> Vec<PathBuf> {
    let Ok(sessions) = std::fs::read_dir(home.root().join("cli/agents")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> =
        sessions.flatten().flat_map(|session| std::fs::read_dir(session.path()).unwrap().flatten()).map(|entry| entry.path()).collect();
    folders.sort();
    folders
}

fn metadata(folder: &std::path::Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(folder.join("metadata.json")).ok()?).ok()
}

fn only_metadata(home: &Home) -> Value {
    let folders = folders(home);
    assert_eq!(folders.len(), 1, "{folders:?}");
    metadata(&folders[0]).unwrap()
}

fn lines(finished: &Finished) -> Vec<Value> {
    finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// R2, R3, R4, R5, R7, R8, R9, R12, R13, R18, R19, R110, R112, R121, R126, R171, fault B9: the child works in a session of
/// its own; its text and nothing else of it comes back.
#[test]
fn a_foreground_agent_returns_its_text_and_leaves_its_records() {
    let home = Home::new();
    home.write("a.txt", "secret file content\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", agent("CHILD look into a.txt")),
        (true, _) => Answer::text("the agent says DONE-1"),
        (false, 0) => Answer::call("c1", "Read", json!({"file_path": "a.txt"})).with_usage(100, 10),
        (false, _) => Answer::text("DONE-1").with_usage(200, 20),
    });
    let finished = run(&provider, &home, &["PARENT delegate", "--output-format", "json"]);
    assert_eq!(finished.code, 0, "{} {}", finished.stdout, finished.stderr);
    let child = &children(&provider)[0];
    assert_eq!(child.task(), "CHILD look into a.txt");
    for absent in ["Agent", "Task", "subagent", "SendMessage"] {
        assert!(!child.tool_names().iter().any(|name| name == absent), "{absent}");
    }
    assert!(child.tool_names().iter().any(|name| name == "Read"));
    assert!(child.system().contains("Your final message is your only output"), "{}", child.system());
    let parent = parents(&provider);
    let (id, result) = parent[1].tool_results()[0].clone();
    assert_eq!(id, "call_1");
    let stored = only_metadata(&home);
    let agent_id = stored["agentId"].as_str().unwrap();
    let expected = format!(
        "DONE-1\n\nagentId: {agent_id} (use SendMessage with to: '{agent_id}' to continue this agent)\n\
         <usage>subagent_tokens: 330\ntool_uses: 1\nduration_ms: {}</usage>",
        stored["totalDurationMs"]
    );
    assert_eq!(result, expected);
    assert!(!String::from_utf8_lossy(&parent[1].body).contains("secret file content"));
    for (key, value) in [
        ("status", json!("completed")),
        ("profileId", json!("general-purpose")),
        ("description", json!("count the files")),
        ("prompt", json!("CHILD look into a.txt")),
        ("parentToolUseId", json!("call_1")),
        ("totalTokens", json!(330)),
        ("totalToolUseCount", json!(1)),
        ("stopReason", json!("finished")),
        ("schemaVersion", json!(1)),
    ] {
        assert_eq!(stored[key], value, "{key}");
    }
    assert_eq!(stored["childSessionId"], format!("sess_subagent_{agent_id}"));
    assert_eq!(stored["profileSnapshot"]["name"], "general-purpose");
    let folder = &folders(&home)[0];
    for file in ["output.txt", "task.output"] {
        assert_eq!(std::fs::read_to_string(folder.join(file)).unwrap(), "DONE-1");
    }
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert!(result["usage"]["input_tokens"].as_u64().unwrap() >= 300, "the child's tokens are in the sum: {result}");
}

/// R14, R22, R23, R24, R30, R175, R176, R182, R251, R252, R253, R255, R259, fault J3, fault E1: launched at once, announced once,
/// and a headless run waits for it.
#[test]
fn a_background_agent_is_announced_once_when_it_has_ended() {
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", background("CHILD <work> & rest")),
        (true, 1) => {
            held.open();
            Answer::text("it runs")
        }
        (true, _) => Answer::text("it has ended"),
        (false, _) => Answer::text("found <3> things").with_usage(1000, 234).when(&held),
    });
    let finished = run(&provider, &home, &["PARENT delegate"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "it has ended\n"), "{}", finished.stderr);
    let requests = parents(&provider);
    assert_eq!(requests.len(), 3);
    let stored = only_metadata(&home);
    let (agent_id, output) = (stored["agentId"].as_str().unwrap(), stored["outputFile"].as_str().unwrap());
    let launched = &requests[1].tool_results()[0].1;
    for part in ["Agent launched in the background", agent_id, "A notification arrives by itself", output, "do not poll"] {
        assert!(launched.contains(part), "{part}: {launched}");
    }
    let notice = requests[2].last_text();
    assert!(notice.starts_with("[SYSTEM NOTIFICATION - NOT USER INPUT]\n"), "{notice}");
    let expected = format!(
        "<task-notification>\n<task-id>{agent_id}</task-id>\n<tool-use-id>call_1</tool-use-id>\n<output-file>{output}</output-file>\n\
         <status>completed</status>\n<summary>Agent general-purpose task &quot;count the files&quot; completed.</summary>\n\
         <result>found &lt;3&gt; things</result>\n<usage><subagent_tokens>1234</subagent_tokens><tool_uses>0</tool_uses>\
         <duration_ms>{}</duration_ms></usage>\n</task-notification>",
        stored["totalDurationMs"]
    );
    assert!(notice.ends_with(&expected), "{notice}\n---\n{expected}");
    assert_eq!(stored["background"], true);
}

/// R29, R31, R116: more agents than tools may run at once work side by side; siblings share the bytes of their prefix.
#[test]
fn agents_of_one_message_run_at_the_same_time_and_share_their_prefix() {
    const AGENTS: usize = 12;
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => (0..AGENTS).fold(Answer::new(), |answer, n| answer.and_call(&format!("c{n}"), "Agent", agent(&format!("CHILD {n}")))),
        (true, _) => Answer::text("all done"),
        (false, _) => {
            if seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == AGENTS {
                held.open();
            }
            Answer::text(format!("done {}", request.task())).when(&held)
        }
    });
    let finished = run(&provider, &home, &["PARENT delegate"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "all done\n"), "{}", finished.stderr);
    let results = parents(&provider)[1].tool_results();
    for (n, (id, text)) in results.iter().enumerate() {
        assert_eq!(*id, format!("c{n}"));
        assert!(text.starts_with(&format!("done CHILD {n}\n")), "{text}");
    }
    let children = children(&provider);
    assert_eq!(children.len(), AGENTS);
    let prefix = |request: &RecordedRequest| (request.json["tools"].to_string(), request.json["system"].to_string());
    assert!(children.iter().all(|request| prefix(request) == prefix(&children[0])));
    let bytes = |request: &RecordedRequest| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        body[..body.find("CHILD").unwrap()].to_owned()
    };
    assert!(children.iter().all(|request| bytes(request) == bytes(&children[0])), "the bytes before the task are equal");
}

/// R328: beyond the limit agents wait, are shown as waiting, start by themselves, and can be stopped while they wait.
#[test]
fn agents_beyond_the_limit_wait_in_a_queue() {
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let waiting = |request: &RecordedRequest| -> Vec<String> {
        let texts = request.tool_results().into_iter().map(|(_, text)| text);
        let waiting = texts.filter(|text| text.contains("it waits for a free place"));
        waiting.map(|text| text.split("agentId: ").nth(1).unwrap().split(' ').next().unwrap().to_owned()).collect()
    };
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => ["1", "2", "3"]
            .iter()
            .fold(Answer::new(), |answer, n| answer.and_call(&format!("c{n}"), "Agent", background(&format!("CHILD {n}")))),
        (true, 1) => {
            let waiting = waiting(request);
            Answer::new().and_call("o1", "TaskOutput", json!({"task_id": waiting[0], "block": false})).and_call(
                "o2",
                "TaskStop",
                json!({"task_id": waiting[0]}),
            )
        }
        (true, 2) => {
            held.open();
            Answer::text("waiting")
        }
        (true, _) => Answer::text("ended"),
        (false, _) => Answer::text(request.task()).when(&held),
    });
    let finished = finish(command(&provider, &home, &["PARENT delegate"]).env("ZAPMYCO_LIMITS_LOCAL_AGENTS_MAX", "1"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = parents(&provider);
    assert_eq!(waiting(&requests[1]).len(), 2, "{:?}", requests[1].tool_results());
    let looked = requests[2].tool_results();
    assert!(looked[3].1.contains("<status>waiting</status>") && looked[3].1.contains("local_agent"), "{looked:?}");
    assert!(looked[4].1.contains("Successfully stopped task"), "{looked:?}");
    assert_eq!(children(&provider).len(), 2, "the stopped one never ran");
    let mut states: Vec<String> =
        folders(&home).iter().map(|folder| metadata(folder).unwrap()["status"].as_str().unwrap().to_owned()).collect();
    states.sort();
    assert_eq!(states, ["completed", "completed", "stopped"]);
}

/// R83, R172, fault D2: three requests, one closing request without tools, marked partial.
#[test]
fn the_turn_limit_of_a_profile_is_obeyed() {
    let home = Home::new();
    home.write(".zapmyco/agents/short.md", "---\nname: short\ndescription: short\nmaxTurns: 3\n---\nBe short.\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": "SHORT"})),
        (true, _) => Answer::text("ok"),
        (false, turn @ 0..3) => Answer::text(format!("step {turn}")).and_call(&format!("c{turn}"), "Glob", json!({"pattern": "*"})),
        (false, _) => Answer::text("what I have"),
    });
    let finished = run(&provider, &home, &["PARENT delegate"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let result = parents(&provider)[1].tool_results()[0].1.clone();
    assert!(result.starts_with("[Partial result: the turn limit was reached (max_turns)]\n\nwhat I have\n"), "{result}");
    assert_eq!(children(&provider).len(), 4);
    let stored = only_metadata(&home);
    assert_eq!((&stored["status"], &stored["partial"]), (&json!("completed"), &json!("max_turns")));
    assert!(children(&provider)[0].system().contains("Be short."));
}

/// R165, R168, R178, R26, fault D1, fault D4, fault E2: silence ends a run in foreground and background, with what it was
/// doing and what it had found.
#[test]
fn silence_ends_a_run_and_keeps_what_it_found() {
    for runs_in_background in [false, true] {
        let home = Home::new();
        let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
            (true, 0) => Answer::call("call_1", "Agent", if runs_in_background { background("CHILD") } else { agent("CHILD") }),
            (true, _) => Answer::text("ok"),
            (false, 0) => Answer::text("step 1").and_call("c1", "Glob", json!({"pattern": "*"})),
            (false, _) => Answer::stall(),
        });
        let mut command = command(&provider, &home, &["PARENT delegate"]);
        command.env("ZAPMYCO_LIMITS_INACTIVITY_LIMIT", "700ms").env("ZAPMYCO_LIMITS_BACKGROUND_INACTIVITY_LIMIT", "700ms");
        let finished = finish(&mut command);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let requests = parents(&provider);
        let told = if runs_in_background { requests.last().unwrap().last_text() } else { requests[1].tool_results()[0].1.clone() };
        for part in ["Subagent was inactive for 700ms", "waiting for its model", "step 1"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let stored = only_metadata(&home);
        assert_eq!((&stored["status"], &stored["stopReason"]), (&json!("failed"), &json!("inactive")));
        let output = std::fs::read_to_string(folders(&home)[0].join("output.txt")).unwrap();
        assert!(output.contains("inactive") && output.contains("step 1"), "{output}");
    }
}

/// R10, R12, R15, R25, R32, R39, R68: bad calls say what is wrong, and nothing is left of them.
#[test]
fn calls_that_make_no_sense_are_explained() {
    let home = Home::new();
    let call = |name: &str, input: Value| (name.to_owned(), input);
    let calls = [
        call("Agent", json!({"description": "d", "prompt": "x", "subagent_type": "explorer"})),
        call("Agent", json!({"description": "d", "prompt": " "})),
        call("Agent", json!({"description": "", "prompt": "x"})),
        call("Agent", json!({"description": "d", "prompt": "x", "subagent_type": "Explore"})),
        call("Task", json!({"description": "d", "prompt": "CHILD", "model": "opus"})),
    ];
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => calls
            .iter()
            .enumerate()
            .fold(Answer::new(), |answer, (n, (name, input))| answer.and_call(&format!("c{n}"), name, input.clone())),
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text("by the other name"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--disallowedTools", "Agent(Explore)", "--ignore-denied"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let parent = parents(&provider);
    assert!(parent[0].tool_names().iter().any(|name| name == "Agent") && !parent[0].tool_names().iter().any(|name| name == "Task"));
    let results: Vec<String> = parent[1].tool_results().into_iter().map(|(_, text)| text).collect();
    assert!(
        results[0].contains("Agent type 'explorer' not found. Available agents: ") && results[0].contains("agent_unknown_type"),
        "{}",
        results[0]
    );
    assert!(results[0].contains("Did you mean 'Explore'?"), "{}", results[0]);
    assert!(results[1].contains("`prompt` is empty"), "{}", results[1]);
    assert!(results[2].contains("`description` is empty"), "{}", results[2]);
    assert!(results[3].contains("denied by the rule `Agent(Explore)`"), "{}", results[3]);
    assert!(results[4].contains("by the other name") && results[4].contains("no argument `model`"), "{}", results[4]);
    assert_eq!(children(&provider)[0].json["model"], parent[0].json["model"], "a call cannot choose the model");
    assert_eq!(folders(&home).len(), 1);
}

/// R16: the strictest mode lets the call itself pass, and every call inside the child is decided; deny rules still hold.
#[test]
fn the_call_needs_no_approval_and_deny_rules_hold_for_it() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", agent("CHILD")),
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::call("c1", "Write", json!({"file_path": "made.txt", "content": "x"})),
        (false, _) => Answer::text("could not write"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "plan", "--ignore-denied"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(parents(&provider)[1].tool_results()[0].1.starts_with("could not write"));
    assert!(!home.project().join("made.txt").exists());
    for denied in ["Agent", "Task"] {
        let before = children(&provider).len();
        let from = parents(&provider).len();
        let finished = run(&provider, &home, &["PARENT x", "--disallowedTools", denied, "--ignore-denied"]);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        assert!(!parents(&provider)[from].tool_names().iter().any(|name| name == "Agent"), "{denied}");
        assert_eq!(children(&provider).len(), before, "{denied}");
    }
}

/// R54, R47: the built-in Plan is held to reading like Explore; the metadata say how.
#[test]
fn plan_is_read_only_in_every_mode() {
    let home = Home::new();
    home.write("kept.txt", "kept\n");
    home.write("AGENTS.md", "PROJECT RULES\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": "plan"})),
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::new()
            .and_call("c1", "Bash", json!({"command": "rm kept.txt"}))
            .and_call("c2", "Bash", json!({"command": "wc -l kept.txt"}))
            .and_call("c3", "Write", json!({"file_path": "kept.txt", "content": "x"})),
        (false, _) => Answer::text("the plan"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{} {}", finished.stdout, finished.stderr);
    assert_eq!(std::fs::read_to_string(home.project().join("kept.txt")).unwrap(), "kept\n");
    let results = children(&provider)[1].tool_results();
    assert!(results[0].1.contains("this agent runs read-only commands only"), "{results:?}");
    assert!(results[1].1.contains("1 kept.txt"), "{results:?}");
    assert!(children(&provider)[0].texts("user").join("\n").contains("PROJECT RULES"), "a plan follows the project's rules");
    let stored = only_metadata(&home);
    assert!(stored["readOnlyEnforcement"].as_str().unwrap().starts_with("command analysis"), "{stored}");
}

/// R77, R103: a model and a level written in a profile are used; the level alone is set on the inherited model.
#[test]
fn model_and_level_of_a_profile_are_used() {
    let home = Home::new();
    home.write(".zapmyco/agents/a.md", "---\nname: other\ndescription: d\nmodel: anthropic/claude-haiku-4-5\n---\nx\n");
    home.write(".zapmyco/agents/b.md", "---\nname: level\ndescription: d\nthoughtLevel: high\n---\nx\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => ["other", "level", "general-purpose"].iter().fold(Answer::new(), |answer, kind| {
            answer.and_call(kind, "Agent", json!({"description": "d", "prompt": format!("CHILD {kind}"), "subagent_type": kind}))
        }),
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text("fine"),
    });
    let finished = run(&provider, &home, &["PARENT x"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let of = |kind: &str| children(&provider).into_iter().find(|request| request.task() == format!("CHILD {kind}")).unwrap().json;
    let own = parents(&provider)[0].json["model"].clone();
    assert_eq!((&of("other")["model"], &of("level")["model"], &of("general-purpose")["model"]), (&json!("claude-haiku-4-5"), &own, &own));
    let reasons = |request: &Value| request.get("thinking").or(request.get("output_config")).is_some();
    assert!(reasons(&of("level")) && !reasons(&of("general-purpose")), "{}", of("level"));
}

/// R6, R112, fault I1: no route leads from a child to a further agent.
#[test]
fn a_child_cannot_start_agents() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", agent("CHILD")),
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::new()
            .and_call("c1", "Agent", agent("GRANDCHILD"))
            .and_call("c2", "Task", agent("GRANDCHILD"))
            .and_call("c3", "subagent", json!({"action": "spawn", "task": "GRANDCHILD"}))
            .and_call("c4", "Bash", json!({"command": format!("{} run GRANDCHILD", crate::support::binary().display())})),
        (false, _) => Answer::text("could not"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(provider.requests().iter().all(|request| request.task() != "GRANDCHILD"));
    let results = children(&provider)[1].tool_results();
    assert_eq!(results.len(), 4);
    assert!(results[3].1.contains("not available inside a subagent"), "{results:?}");
    assert_eq!(folders(&home).len(), 1);
}

/// R45, R46, R244, R284: the built-in Explore changes nothing in any mode and asks nobody; what it is refused is listed.
#[test]
fn explore_is_read_only_in_every_mode() {
    let home = Home::new();
    home.write("kept.txt", "kept\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": "explore"})),
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::new()
            .and_call("c1", "Bash", json!({"command": "echo gone > kept.txt"}))
            .and_call("c2", "Bash", json!({"command": "rm kept.txt"}))
            .and_call("c3", "Bash", json!({"command": "wc -l kept.txt"})),
        (false, _) => Answer::text("looked"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "yolo", "--output-format", "json"]);
    assert_eq!(finished.code, 0, "{} {}", finished.stdout, finished.stderr);
    assert_eq!(std::fs::read_to_string(home.project().join("kept.txt")).unwrap(), "kept\n");
    let results = children(&provider)[1].tool_results();
    assert!(results[0].1.contains("this agent runs read-only commands only"), "{results:?}");
    assert!(results[2].1.contains("1 kept.txt"), "{results:?}");
    let names = children(&provider)[0].tool_names();
    assert!(!names.iter().any(|name| name == "Write" || name == "Edit"), "{names:?}");
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    let denials = result["permission_denials"].as_array().unwrap();
    assert_eq!(denials.len(), 2);
    assert!(denials.iter().all(|denial| denial["agent_id"].as_str().unwrap().starts_with("agent_")), "{denials:?}");
    let id = denials[0]["agent_id"].as_str().unwrap();
    assert_eq!(denials[0]["tool_use_id"], format!("tool_subagent_{id}_c1"));
}

/// R44, R75, R325: a child has its parent's mode and rules; scopes of its profile narrow them.
#[test]
fn a_child_is_never_wider_than_its_parent() {
    let home = Home::new();
    home.write(".zapmyco/agents/git.md", "---\nname: gitter\ndescription: d\ntools: Bash(git log:*)\n---\nx\n");
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("PARENT x", 0) => Answer::new().and_call("a1", "Agent", agent("CHILD general")).and_call(
            "a2",
            "Agent",
            json!({"description": "d", "prompt": "CHILD git", "subagent_type": "gitter"}),
        ),
        ("PARENT x", _) => Answer::text("ok"),
        ("CHILD general", 0) => Answer::new().and_call("c1", "Write", json!({"file_path": "made.txt", "content": "x"})).and_call(
            "c2",
            "Bash",
            json!({"command": "touch made.txt"}),
        ),
        ("CHILD git", 0) => Answer::new().and_call("c1", "Bash", json!({"command": "ls"})),
        _ => Answer::text("could not"),
    });
    let finished = run(&provider, &home, &["PARENT x"]);
    assert_eq!(finished.code, 3, "work was refused: {}", finished.stderr);
    assert!(!home.project().join("made.txt").exists());
    let refused = |task: &str| {
        let request = children(&provider).into_iter().find(|request| request.task() == task && request.turn() == 1).unwrap();
        request.tool_results().into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n")
    };
    assert!(refused("CHILD general").contains("mode `default` asks before writing"), "{}", refused("CHILD general"));
    assert!(refused("CHILD git").contains("may use Bash only as Bash(git log:*)"), "{}", refused("CHILD git"));
}

/// R17: a long result keeps both ends and names the whole.
#[test]
fn a_long_result_is_cut_and_names_its_file() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", agent("CHILD")),
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text(format!("HEAD{}TAIL", "界".repeat(100_000))),
    });
    let finished = run(&provider, &home, &["PARENT x"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let result = parents(&provider)[1].tool_results()[0].1.clone();
    let output = folders(&home)[0].join("output.txt");
    assert!(result.len() <= 120_000 && result.len() > 110_000, "{}", result.len());
    assert!(result.starts_with("HEAD") && result.contains("TAIL\n\nagentId: "), "{}", &result[result.len() - 400..]);
    assert!(result.contains(&format!("the whole text is in {}", output.display())));
    assert_eq!(std::fs::read_to_string(output).unwrap().len(), 300_008);
}

/// R254, R256, fault B10: many large results at one moment become one bounded turn in which each names its file.
#[test]
fn many_large_results_at_once_stay_bounded() {
    const AGENTS: usize = 8;
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => {
            (0..AGENTS).fold(Answer::new(), |answer, n| answer.and_call(&format!("c{n}"), "Agent", background(&format!("CHILD {n}"))))
        }
        (true, 1) => {
            held.open();
            Answer::text("wait").after(Duration::from_millis(300))
        }
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text("x<y ".repeat(25_000)).when(&held),
    });
    let finished = run(&provider, &home, &["PARENT x"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = parents(&provider);
    let last = requests.last().unwrap();
    let texts: Vec<String> = last.texts("user").into_iter().filter(|text| text.contains("<task-notification>")).collect();
    assert!(texts.iter().map(String::len).max().unwrap() <= 130_000, "{:?}", texts.iter().map(String::len).collect::<Vec<_>>());
    let all = texts.join("\n");
    for folder in folders(&home) {
        assert!(all.contains(&folder.join("output.txt").display().to_string()), "{}", folder.display());
    }
}

/// R184, R186, R187: after the time that is set, a foreground run goes on in the background: same agent, no restart.
#[test]
fn a_foreground_run_moves_to_the_background_by_time() {
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
    let finished = finish(command(&provider, &home, &["PARENT x"]).env("ZAPMYCO_LIMITS_AUTO_BACKGROUND", "200ms"));
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "announced\n"), "{}", finished.stderr);
    assert!(parents(&provider)[1].tool_results()[0].1.contains("Agent launched in the background"));
    let told = parents(&provider)[2].texts("user").join("\n");
    assert!(told.contains("<result>after the move</result>"), "{told}");
    assert_eq!(children(&provider).len(), 1, "not restarted");
    assert_eq!(only_metadata(&home)["status"], "completed");
}

/// R117, R118, R119, R174, R246, R250, R321, R322, R323, fault J5: the stream shows what children do, under ids of their own.
#[test]
fn the_stream_shows_the_children() {
    for forwarded in [false, true] {
        let home = Home::new();
        home.write("a.txt", "alpha\n");
        let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
            ("PARENT x", 0) => Answer::new().and_call("a1", "Agent", agent("CHILD fore")).and_call("a2", "Agent", background("CHILD back")),
            ("PARENT x", _) => Answer::text("ok"),
            (_, 0) => Answer::text("I will read").and_call("c1", "Read", json!({"file_path": "a.txt"})),
            _ => Answer::text("the report"),
        });
        let mut arguments = vec!["PARENT x", "--output-format", "stream-json"];
        arguments.extend(forwarded.then_some("--forward-subagent-text"));
        let finished = run(&provider, &home, &arguments);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let lines = lines(&finished);
        assert_eq!(lines[0]["subtype"], "init");
        let agents: Vec<&str> = lines[0]["agents"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(agents, ["Explore", "Plan", "general-purpose"]);
        let of = |key: &str, value: &str| lines.iter().filter(|line| line[key] == value).cloned().collect::<Vec<Value>>();
        let spawned = of("subtype", "subagent_spawned");
        assert_eq!(spawned.len(), 2);
        assert_eq!(of("subtype", "subagent_stopped").len(), 2);
        for (call, is_background) in [("a1", false), ("a2", true)] {
            let spawned = spawned.iter().find(|line| line["parent_tool_use_id"] == call).unwrap();
            assert_eq!(spawned["background"], is_background);
            let id = spawned["agent_id"].as_str().unwrap();
            let own: Vec<&Value> = lines.iter().filter(|line| line["agent_id"] == id && line["message"].is_object()).collect();
            assert!(own.iter().all(|line| line["parent_tool_use_id"] == call));
            let text = serde_json::to_string(&own).unwrap();
            assert!(text.contains(&format!("tool_subagent_{id}_c1")), "{text}");
            assert_eq!(text.contains("I will read"), forwarded, "{text}");
            assert_eq!(text.contains("the report"), forwarded, "{text}");
        }
        let background_id = spawned.iter().find(|line| line["background"] == true).unwrap()["agent_id"].clone();
        for subtype in ["task_started", "task_progress", "task_notification"] {
            let found = of("subtype", subtype);
            assert!(
                !found.is_empty() && found.iter().all(|line| line["task_id"] == background_id && line["tool_use_id"] == "a2"),
                "{subtype}: {found:?}"
            );
        }
        let ended = &of("subtype", "task_notification")[0];
        assert_eq!(ended["usage"]["tool_uses"], 1);
        assert!(ended["usage"]["total_tokens"].is_u64() && ended["output_file"].as_str().unwrap().ends_with("output.txt"));
        assert_eq!(lines.last().unwrap()["type"], "result");
    }
}

/// R182, R331, fault J4: at the ceiling what still runs is stopped, named, and leaves its partial text.
#[test]
fn a_run_does_not_wait_for_ever() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", background("CHILD")),
        (true, _) => Answer::text("started"),
        (false, 0) => Answer::text("found so far").and_call("c1", "Glob", json!({"pattern": "*"})),
        (false, _) => Answer::stall(),
    });
    let mut command = command(&provider, &home, &["PARENT x", "--output-format", "json"]);
    let finished = finish(command.env("ZAPMYCO_LIMITS_EXIT_WAIT_MAX", "700ms"));
    assert_eq!(finished.code, 9, "{} {}", finished.stdout, finished.stderr);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    let left = &result["jobs_left"][0];
    assert_eq!((&left["kind"], &left["fate"]), (&json!("local_agent"), &json!("stopped")));
    let output = std::fs::read_to_string(left["output_path"].as_str().unwrap()).unwrap();
    assert!(output.starts_with("The background agent task was stopped.") && output.contains("found so far"), "{output}");
    assert_eq!(only_metadata(&home)["status"], "stopped");
}

/// R34, R164: a stop of the turn reaches the foreground child.
#[test]
fn an_interrupted_turn_stops_its_foreground_agent() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, _) => Answer::call("call_1", "Agent", agent("CHILD")),
        (false, 0) => Answer::text("found so far").and_call("c1", "Glob", json!({"pattern": "*"})),
        (false, _) => Answer::stall(),
    });
    let mut command = command(&provider, &home, &["PARENT x"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait::until_true("the child's second request", || children(&provider).len() == 2);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", String::from_utf8_lossy(&output.stderr));
    let stored = only_metadata(&home);
    assert_eq!((&stored["status"], &stored["stopReason"]), (&json!("stopped"), &json!("stopped_by_person")));
    assert!(std::fs::read_to_string(folders(&home)[0].join("output.txt")).unwrap().contains("found so far"));
}

/// R201, R263: after a kill of the whole program what ran is lost once, announced once, its partial text readable.
#[test]
fn after_a_kill_a_running_agent_is_lost_and_announced_once() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", background("CHILD")),
        (true, 1) if !request.texts("user").iter().any(|text| text == "go on") => Answer::stall(),
        (true, _) => Answer::text("resumed"),
        (false, 0) => Answer::text("found so far").and_call("c1", "Glob", json!({"pattern": "*"})),
        (false, _) => Answer::stall(),
    });
    let mut command = command(&provider, &home, &["PARENT x", "--output-format", "stream-json"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait::until_true("both stall", || children(&provider).len() == 2 && parents(&provider).len() == 2);
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let first: Value = serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().next().unwrap()).unwrap();
    let session = first["session_id"].as_str().unwrap().to_owned();
    assert_eq!(only_metadata(&home)["status"], "running");
    let notices = |from: usize| -> usize {
        let requests = parents(&provider);
        let last = requests[from..].last().unwrap();
        last.texts("user").iter().map(|text| text.matches("<task-notification>").count()).sum()
    };
    let finished = run(&provider, &home, &["go on", "--resume", &session]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "resumed\n"), "{}", finished.stderr);
    assert_eq!(notices(2), 1);
    let text = parents(&provider).last().unwrap().texts("user").join("\n");
    assert!(text.contains("the process that ran this agent ended before it did") && text.contains("found so far"), "{text}");
    let stored = only_metadata(&home);
    assert_eq!((&stored["status"], &stored["stopReason"]), (&json!("failed"), &json!("keeper_vanished")));
    let finished = run(&provider, &home, &["and again", "--resume", &session]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_eq!(notices(2), 1, "announced once");
}

/// R123: what a finished child leaves running is named in its report and belongs to its parent from then on.
#[test]
fn a_background_command_of_a_child_goes_over_to_its_parent() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", agent("CHILD")),
        (true, 1) => {
            let text = request.tool_results()[0].1.clone();
            let id = text.split("- sh_").nth(1).unwrap().split(' ').next().unwrap().to_owned();
            Answer::call("k1", "TaskStop", json!({"task_id": format!("sh_{id}")}))
        }
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::call("c1", "Bash", json!({"command": "sleep 600", "run_in_background": true, "description": "long sleep"})),
        (false, _) => Answer::text("left it running"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = parents(&provider);
    assert!(
        requests[1].tool_results()[0].1.contains("Background commands of this agent that still run"),
        "{:?}",
        requests[1].tool_results()
    );
    assert!(requests[2].tool_results()[1].1.contains("Successfully stopped task"), "{:?}", requests[2].tool_results());
}

/// R27, R60, R103, R105, R109: profiles of the command line; a model that cannot be used refuses the launch; a provider that
/// fails after text gives that text, marked.
#[test]
fn profiles_of_the_command_line_and_failures_of_the_provider() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("PARENT x", 0) => Answer::new()
            .and_call("a1", "Agent", json!({"description": "d", "prompt": "CHILD ok", "subagent_type": "mine"}))
            .and_call("a2", "Agent", json!({"description": "d", "prompt": "CHILD no", "subagent_type": "lost"}))
            .and_call("a3", "Agent", json!({"description": "d", "prompt": "CHILD down"})),
        ("PARENT x", _) => Answer::text("ok"),
        ("CHILD down", 0) => Answer::text("half of it").and_call("c1", "Glob", json!({"pattern": "*"})),
        ("CHILD down", _) => Answer::error(400, "bad request by test"),
        _ => Answer::text("fine"),
    });
    let agents =
        r#"{"mine": {"description": "d", "prompt": "I AM MINE"}, "lost": {"description": "d", "prompt": "p", "model": "nowhere/none"}}"#;
    let finished = run(&provider, &home, &["PARENT x", "--agents", agents]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let results: Vec<String> = parents(&provider)[1].tool_results().into_iter().map(|(_, text)| text).collect();
    assert!(results[0].starts_with("fine\n"), "{}", results[0]);
    assert!(children(&provider).iter().any(|request| request.system().contains("I AM MINE")));
    assert!(
        results[1].contains("Cannot start subagent: ") && results[1].contains("[reason=provider-not-found; selection=nowhere/none]"),
        "{}",
        results[1]
    );
    assert!(results[2].contains("(api_failure)") && results[2].contains("half of it"), "{}", results[2]);
    assert_eq!(folders(&home).len(), 2, "nothing is left of a launch that was refused");
    let bad = run(&provider, &home, &["PARENT x", "--agents", "[]"]);
    assert_eq!(bad.code, 2, "{}", bad.stderr);
}

/// The bytes that stand before a text in a request.
fn before<'r>(request: &'r RecordedRequest, text: &str) -> &'r [u8] {
    let at = request.body.windows(text.len()).position(|window| window == text.as_bytes()).unwrap_or_else(|| panic!("no {text:?}"));
    &request.body[..at]
}

/// R116, R125: the bytes of a request are stable. Between two turns of a session the second begins with the whole of the
/// first, up to its last block; siblings of one profile share everything before their tasks, tools and model included, also
/// when they are started later and in another process.
#[test]
fn recorded_requests_share_the_bytes_of_their_prefix() {
    let home = Home::new();
    home.write("AGENTS.md", "RULES\n");
    home.write(".zapmyco/skills/s/SKILL.md", "---\nname: s\ndescription: d\n---\nx\n");
    home.write(".zapmyco/agents/a.md", "---\nname: mine\ndescription: d\nmemory: project\n---\nBODY\n");
    home.write("a.txt", "alpha\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => ["general-purpose", "mine", "Explore"].iter().fold(Answer::new(), |answer, kind| {
            (0..2).fold(answer, |answer, n| {
                let input = json!({"description": format!("d{n}"), "prompt": format!("CHILD {n} {kind}"), "subagent_type": kind});
                answer.and_call(&format!("{kind}{n}"), "Agent", input)
            })
        }),
        (false, 0..3) => Answer::text("step").and_call(&format!("c{}", request.turn()), "Read", json!({"file_path": "a.txt"})),
        _ => Answer::text("ok"),
    });
    for task in ["PARENT one", "PARENT two"] {
        let finished = run(&provider, &home, &[task]);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
    }
    let children = children(&provider);
    assert_eq!(children.len(), 2 * 3 * 2 * 4);
    for kind in ["general-purpose", "mine", "Explore"] {
        let siblings: Vec<&RecordedRequest> =
            children.iter().filter(|request| request.task().ends_with(kind) && request.turn() == 0).collect();
        assert_eq!(siblings.len(), 4);
        for sibling in &siblings {
            assert!(before(sibling, "CHILD ") == before(siblings[0], "CHILD "), "{kind}");
        }
    }
    let parents = parents(&provider);
    assert!(before(&parents[0], "PARENT ") == before(&parents[2], "PARENT "), "two sessions of one folder");
    // Cache marks move with the end of the conversation; everything else stays byte by byte.
    let without_marks =
        |request: &RecordedRequest| String::from_utf8_lossy(&request.body).replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "");
    let start = |body: &str| body.find("\"messages\":[").unwrap();
    let mut compared = 0;
    for request in &children {
        let next = children
            .iter()
            .find(|other| other.task() == request.task() && other.turn() == request.turn() + 1 && same_session(other, request));
        let Some(next) = next else { continue };
        let (first, second) = (without_marks(request), without_marks(next));
        assert_eq!(first[..start(&first)], second[..start(&second)]);
        // Up to the end of the last message's content.
        let end = first.rfind("]}]").unwrap();
        assert!(second.starts_with(&first[..end]), "{first}\n---\n{second}");
        compared += 1;
    }
    assert!(compared >= 3 * 2 * 3, "{compared}");
}

/// Sessions with equal tasks are told apart by the beginning of their history only; equal ones are interchangeable.
fn same_session(one: &RecordedRequest, other: &RecordedRequest) -> bool {
    one.json["messages"][0] == other.json["messages"][0]
}
