//! Flow: how a run of an agent in this process goes: its start, its limits, its shells, its messages, its end, and what is
//! left after the whole program was killed at any moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use zapmyco::ids::SessionId;
use zapmyco::store::Store;

use crate::support::delegating::nothing_left;
use crate::support::local::{
    agent, background, beside, children, command, ended, folders, is_parent, metadata, newest_session, only_metadata, parents, run,
};
use crate::support::provider::{Answer, Gate, Provider};
use crate::support::{Home, finish, wait};

/// The logged events of a session: name and data.
fn events(home: &Home, session: &str) -> Vec<(String, Value)> {
    let store = Store::open(&home.root().join("zapmyco.db")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let rows = runtime.block_on(store.events(&SessionId::parse(session).unwrap(), 0, 10_000)).unwrap();
    rows.into_iter().map(|row| (row.kind, row.data)).collect()
}

/// R111, R120, R162, R163, R245, R247, R249: a run in the background because its profile says so; its name, its events, and
/// that the mirrored ones are not stored a second time.
#[test]
fn a_profile_runs_its_agent_in_the_background_and_events_tell_it_once() {
    let home = Home::new();
    home.write("a.txt", "alpha\n");
    home.write(".zapmyco/agents/a.md", "---\nname: aside\ndescription: d\nbackground: true\n---\nx\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("call_1", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": "aside"})),
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::call("c1", "Read", json!({"file_path": "a.txt"})),
        (false, _) => Answer::text("read"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--output-format", "stream-json"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(parents(&provider)[1].tool_results()[0].1.contains("Agent launched in the background"));
    let stored = only_metadata(&home);
    assert_eq!((&stored["agentName"], &stored["background"]), (&json!("zapmyco-aside"), &json!(true)));
    let id = stored["agentId"].as_str().unwrap();
    let parent = stored["parentSessionId"].as_str().unwrap();
    let of_parent = events(&home, parent);
    let completed: Vec<&Value> = of_parent.iter().filter(|(kind, _)| kind == "background_task_completed").map(|(_, data)| data).collect();
    assert_eq!(completed.len(), 1, "{of_parent:?}");
    for (key, value) in [
        ("task_id", json!(id)),
        ("tool_call_id", json!("call_1")),
        ("tool_name", json!("Agent")),
        ("task_kind", json!("subagent")),
        ("child_session_id", stored["childSessionId"].clone()),
        ("description", json!("d")),
        ("status", json!("completed")),
        ("output_path", stored["outputFile"].clone()),
    ] {
        assert_eq!(completed[0][key], value, "{key}");
    }
    assert!(completed[0]["started_at"].is_string() && completed[0]["completed_at"].is_string());
    let calls = |events: &[(String, Value)]| events.iter().filter(|(kind, data)| kind == "tool_started" && data["name"] == "Read").count();
    assert_eq!(calls(&of_parent), 0, "mirrors are not stored again");
    assert_eq!(calls(&events(&home, stored["childSessionId"].as_str().unwrap())), 1);
    let lines: Vec<Value> = finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mirrored: Vec<&Value> = lines.iter().filter(|line| line["source"] == "subagent").collect();
    assert!(!mirrored.is_empty());
    for line in mirrored {
        assert_eq!((&line["agent_id"], &line["agent_type"], &line["parent_tool_use_id"]), (&json!(id), &json!("aside"), &json!("call_1")));
        assert!(line.to_string().contains(&format!("tool_subagent_{id}_c1")), "{line}");
    }
}

/// R163, R177, R329: a folder that cannot be made fails the call, in foreground and background, and nothing is left of it.
#[test]
fn a_start_that_fails_fails_the_call_and_leaves_nothing() {
    let home = Home::new();
    std::fs::create_dir_all(home.root().join("cli")).unwrap();
    std::fs::write(home.root().join("cli/agents"), "in the way").unwrap();
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("a", "Agent", agent("CHILD")).and_call("b", "Agent", background("CHILD")),
        _ => Answer::text("ok"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--output-format", "json"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    for (_, text) in parents(&provider)[1].tool_results() {
        assert!(text.contains("Cannot start subagent: ") && text.contains("cli/agents"), "{text}");
        assert!(text.contains("agent_child_runtime_failed"), "{text}");
    }
    assert_eq!(children(&provider).len(), 0);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(result["jobs_left"], json!([]));
}

/// R113, R166: a child that waits for its model's slot is not taken for stuck, however short the limit.
#[test]
fn waiting_for_a_slot_is_no_silence() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", agent("CHILD")),
        (true, _) => Answer::text("ok"),
        (false, _) if request.header("x-stainless-retry-count").is_some() => Answer::text("never"),
        (false, _) => {
            static SEEN: AtomicU64 = AtomicU64::new(0);
            if SEEN.fetch_add(1, Ordering::SeqCst) == 0 { Answer::rate_limited(2) } else { Answer::text("after the wait") }
        }
    });
    let mut command = command(&provider, &home, &["PARENT x"]);
    let finished = finish(command.env("ZAPMYCO_LIMITS_INACTIVITY_LIMIT", "900ms"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(parents(&provider)[1].tool_results()[0].1.starts_with("after the wait\n"), "{:?}", parents(&provider)[1].tool_results());
}

/// R114, R115, R124: a child sees nothing of its parent's conversation, has its disallowed tools and the date, and its shell
/// begins in its folder at every call.
#[test]
fn a_child_begins_without_its_parents_conversation() {
    let home = Home::new();
    home.write("sub/x.txt", "x");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("r", "Bash", json!({"command": "cd sub && pwd"})).and_text("words of the parent"),
        (true, 1) => Answer::call("a", "Agent", agent("CHILD")),
        (true, 2) => Answer::call("p", "Bash", json!({"command": "pwd"})),
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::call("c1", "Bash", json!({"command": "cd sub && pwd"})),
        (false, 1) => Answer::call("c2", "Bash", json!({"command": "pwd"})),
        (false, _) => Answer::text("done"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "yolo", "--disallowedTools", "Grep"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let first = &children(&provider)[0];
    assert!(!String::from_utf8_lossy(&first.body).contains("words of the parent"));
    assert!(!first.tool_names().iter().any(|name| name == "Grep") && first.tool_names().iter().any(|name| name == "Glob"));
    assert!(first.texts("user").join("\n").contains("<context name=\"date\""), "{:?}", first.texts("user"));
    let project = home.project().canonicalize().unwrap().display().to_string();
    let results = children(&provider).last().unwrap().tool_results();
    assert!(results[0].1.contains(&format!("{project}/sub")) && !results[1].1.contains("/sub"), "{results:?}");
    assert!(!parents(&provider).last().unwrap().tool_results().last().unwrap().1.contains("/sub"));
}

/// R115, R129: a child reads the instructions as they are when it starts.
#[test]
fn a_child_reads_the_instructions_as_they_are_now() {
    let home = Home::new();
    home.write("AGENTS.md", "the first words\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("r", "Read", json!({"file_path": "AGENTS.md"})),
        (true, 1) => Answer::call("w", "Write", json!({"file_path": "AGENTS.md", "content": "the second words\n"})),
        (true, 2) => Answer::call("a", "Agent", agent("CHILD")),
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text("done"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let texts = children(&provider)[0].texts("user").join("\n");
    assert!(texts.contains("the second words") && !texts.contains("the first words"), "{texts}");
}

/// fault C4: what an agent did is there when its end is told.
#[test]
fn the_work_is_done_when_the_end_is_told() {
    let home = Home::new();
    let project = home.project();
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", background("CHILD one 0.4")).and_call("b", "Agent", background("CHILD two 0.1")),
        (true, _) => {
            let told = request.texts("user").join("\n");
            for (call, name) in [("a", "one"), ("b", "two")] {
                let is_told = told.contains(&format!("<tool-use-id>{call}</tool-use-id>"));
                assert!(!is_told || project.join(name).exists(), "{name} is told and not there");
            }
            Answer::text("ok")
        }
        (false, 0) => {
            let task = request.task();
            let words: Vec<&str> = task.split(' ').collect();
            Answer::call("c", "Bash", json!({"command": format!("sleep {}; touch {}", words[2], words[1])}))
        }
        (false, _) => Answer::text("done"),
    });
    let finished = run(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let told = parents(&provider).last().unwrap().texts("user").join("\n");
    let (one, two) = (told.find("<tool-use-id>a<"), told.find("<tool-use-id>b<"));
    assert!(two.is_some() && two < one, "in the order of their ends: {told}");
}

/// R179, fault D1, fault E2: no time limit unless one is set; then it ends the run and keeps what was found.
#[test]
fn a_time_limit_may_be_set() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", background("CHILD")),
        (true, _) => Answer::text("ok"),
        (false, 0) => Answer::call("c1", "Glob", json!({"pattern": "*"})).and_text("found so far"),
        (false, _) => Answer::stall(),
    });
    let mut command = command(&provider, &home, &["PARENT x"]);
    let finished = finish(command.env("ZAPMYCO_LIMITS_AGENT_TIME_LIMIT", "600ms"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let told = parents(&provider).last().unwrap().texts("user").join("\n");
    assert!(told.contains("Subagent reached its time limit of 600 ms") && told.contains("found so far"), "{told}");
}

/// R170, R198: a stop ends a child whose tool ignores it, with everything that the tool had started.
#[test]
fn a_stop_does_not_wait_for_a_tool_that_ignores_it() {
    let home = Home::new();
    let provider = Provider::with(|request| match is_parent(request) {
        true => Answer::call("a", "Agent", agent("CHILD")),
        false => Answer::call("c", "Bash", json!({"command": "trap '' TERM; touch started; while :; do sleep 1; done"})),
    });
    let mut command = command(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]);
    let running = beside(command.env("ZAPMYCO_LIMITS_STOP_GRACE", "300ms"));
    wait::until_true("the tool", || home.project().join("started").exists());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(running.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(ended(running).code, 143);
    assert_eq!(only_metadata(&home)["status"], "stopped");
    wait::until_true("nothing is left", || nothing_left(&home));
}

/// R183: background shells get a moment after the final answer, then they end with everything they had started.
#[test]
fn background_shells_end_soon_after_the_run() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("s", "Bash", json!({"command": "sleep 600 & sleep 600", "run_in_background": true})),
        _ => Answer::text("done"),
    });
    let mut command = command(&provider, &home, &["PARENT x", "--permission-mode", "yolo", "--output-format", "json"]);
    let finished = finish(command.env("ZAPMYCO_LIMITS_EXIT_SHELL_WAIT", "200ms"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((&result["jobs_left"][0]["kind"], &result["jobs_left"][0]["fate"]), (&json!("shell"), &json!("stopped")));
    wait::until_true("nothing is left", || nothing_left(&home));
}

/// R193, R195: a long result is read with both ends and the path of the whole, and reading it is its notice.
#[test]
fn a_long_result_is_read_with_both_ends() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", background("CHILD")),
        (true, 1) => {
            let text = request.tool_results()[0].1.clone();
            let at = text.find("agent_").unwrap();
            let id: String = text[at..].chars().take("agent_".len() + 36).collect();
            Answer::call("o", "TaskOutput", json!({"task_id": id, "timeout": 60_000}))
        }
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text(format!("HEAD{}TAIL", "x".repeat(100_000))),
    });
    let finished = run(&provider, &home, &["PARENT x"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_eq!(parents(&provider).len(), 3, "no further turn for a notice");
    let read = parents(&provider)[2].tool_results()[1].1.clone();
    let output = folders(&home)[0].join("output.txt").display().to_string();
    assert!(read.contains("HEAD") && read.contains("TAIL") && read.len() < 40_000, "{}", read.len());
    assert!(read.contains(&format!("[Truncated. Full output: {output}]")), "{}", &read[..600]);
}

/// R206, R207, R203: a message for an agent that waits for its place is kept and read when it begins.
#[test]
fn a_message_waits_until_its_agent_begins() {
    let home = Home::new();
    let gate = Gate::new();
    let held = gate.clone();
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", background("CHILD 1")).and_call("b", "Agent", background("CHILD 2")),
        (true, 1) => {
            let waits = request.tool_results().into_iter().find(|(_, text)| text.contains("it waits for a free place")).unwrap().1;
            let id = waits.split("agentId: ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
            let send = |text: &str| json!({"to": id, "summary": text, "message": "please"});
            Answer::call("m1", "SendMessage", send("first")).and_call("m2", "SendMessage", send("second"))
        }
        (true, 2) => {
            held.open();
            Answer::text("ok")
        }
        (true, _) => Answer::text("ok"),
        (false, _) => Answer::text("done").when(&held),
    });
    let mut command = command(&provider, &home, &["PARENT x"]);
    let finished = finish(command.env("ZAPMYCO_LIMITS_LOCAL_AGENTS_MAX", "1"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let answers = parents(&provider)[2].tool_results();
    assert!(answers[2].1.contains("queued") && answers[3].1.contains("queued"), "{answers:?}");
    let all = children(&provider).iter().map(|request| request.texts("user").join("\n")).collect::<Vec<_>>().join("\n");
    let (first, second) = (all.find("first\n\nplease"), all.find("second\n\nplease"));
    assert!(first.is_some() && first < second, "in order: {all}");
}

/// R213, R208: an agent that a person has stopped is not taken up again before that person has written; then it is, after
/// a restart too, with its history.
#[test]
fn a_person_who_stopped_an_agent_speaks_before_it_goes_on() {
    let home = Home::new();
    let id_of = |text: &str| -> String {
        let at = text.find("agent_").unwrap();
        text[at..].chars().take("agent_".len() + 36).collect()
    };
    let send = move |request: &crate::support::provider::RecordedRequest, call: &str| {
        let id = id_of(&request.tool_results()[0].1);
        Answer::call(call, "SendMessage", json!({"to": id, "summary": "again", "message": "go on"}))
    };
    let provider = Provider::with(move |request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", background("CHILD")),
        (true, 1) => Answer::text("it runs"),
        (true, 2) => send(request, "m1"),
        (true, 3) => Answer::text("refused"),
        (true, 4) => send(request, "m2"),
        (true, _) => Answer::text("ok"),
        (false, 0) if !request.texts("user").iter().any(|text| text.contains("go on")) => Answer::stall(),
        (false, _) => Answer::text("the second report"),
    });
    let running = beside(&mut command(&provider, &home, &["PARENT x", "--ignore-denied"]));
    wait::until_true("the child's request", || children(&provider).len() == 1 && parents(&provider).len() == 2);
    let id = only_metadata(&home)["agentId"].as_str().unwrap().to_owned();
    assert_eq!(home.run(&["jobs", "kill", &id]).code, 0);
    let finished = ended(running);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let refused = parents(&provider)[3].tool_results().last().unwrap().1.clone();
    assert!(refused.contains("was stopped by the user and is not taken up again"), "{refused}");
    assert_eq!(children(&provider).len(), 1);
    let finished = run(&provider, &home, &["let it go on", "--resume", &newest_session(&home)]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let resumed = parents(&provider)[5].tool_results().last().unwrap().1.clone();
    assert!(resumed.contains("resumed_background"), "{resumed}");
    let again = children(&provider).last().unwrap().texts("user");
    assert!(again.iter().any(|text| text == "CHILD") && again.iter().any(|text| text == "again\n\ngo on"), "{again:?}");
    assert_eq!((&only_metadata(&home)["status"], &only_metadata(&home)["run"]), (&json!("completed"), &json!(2)));
}

/// R123: what an agent had left running is announced to its parent also after the whole program was killed.
#[test]
fn a_shell_of_an_ended_agent_is_announced_after_a_restart() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", agent("CHILD")),
        (true, 1) if !request.texts("user").iter().any(|text| text == "go on") => Answer::stall(),
        (true, _) => Answer::text("resumed"),
        (false, 0) => Answer::call("c", "Bash", json!({"command": "sleep 600", "run_in_background": true, "description": "long sleep"})),
        (false, _) => Answer::text("left it"),
    });
    let mut running = beside(&mut command(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]));
    wait::until_true("the parent stalls", || parents(&provider).len() == 2);
    running.kill().unwrap();
    running.wait().unwrap();
    wait::until_true("its keeper ends it", || nothing_left(&home));
    for round in 0..2 {
        let finished = run(&provider, &home, &["go on", "--resume", &newest_session(&home)]);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let told = parents(&provider).last().unwrap().texts("user").join("\n");
        assert_eq!(told.matches("Background command &quot;long sleep&quot;").count(), 1, "round {round}: {told}");
    }
}

/// R264, R272: what a child writes into its memory is in the prompt of the next one.
#[test]
fn a_child_remembers_from_run_to_run() {
    let home = Home::new();
    home.write(".zapmyco/agents/a.md", "---\nname: keeper\ndescription: d\nmemory: project\n---\nYou remember.\n");
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a", "Agent", json!({"description": "d", "prompt": "CHILD 1", "subagent_type": "keeper"})),
        (true, 1) => Answer::call("b", "Agent", json!({"description": "d", "prompt": "CHILD 2", "subagent_type": "keeper"})),
        (true, _) => Answer::text("ok"),
        (false, 0) if request.task() == "CHILD 1" => {
            let system = request.system();
            let at = system.find(".zapmyco/agent-memory/").unwrap_or_else(|| panic!("{system}"));
            let start = system[..at].rfind(|c: char| c.is_whitespace() || c == '`' || c == '"').unwrap() + 1;
            let folder: String = system[start..].chars().take_while(|c| !c.is_whitespace() && !matches!(c, '`' | '"')).collect();
            let file = format!("{}/MEMORY.md", folder.trim_end_matches(['/', '.']));
            Answer::call("w", "Write", json!({"file_path": file, "content": "- the answer is 42\n"}))
        }
        (false, _) => Answer::text("done"),
    });
    let finished = run(&provider, &home, &["PARENT x"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let second = children(&provider).into_iter().find(|request| request.task() == "CHILD 2").unwrap();
    assert!(second.system().contains("the answer is 42"), "{}", second.system());
}

/// R330: two agents side by side; nothing of one appears under the other's id.
#[test]
fn what_one_agent_does_never_appears_under_another() {
    let home = Home::new();
    for name in ["one", "two"] {
        home.write(&format!("{name}.txt"), &format!("text of {name}\n"));
    }
    let provider = Provider::with(|request| match (is_parent(request), request.turn()) {
        (true, 0) => Answer::call("a_one", "Agent", agent("CHILD one")).and_call("a_two", "Agent", background("CHILD two")),
        (true, _) => Answer::text("ok"),
        (false, 0) => {
            let name = request.task().replace("CHILD ", "");
            Answer::call("same", "Read", json!({"file_path": format!("{name}.txt")}))
        }
        (false, _) => Answer::text(format!("end of {}", request.task())),
    });
    let finished = run(&provider, &home, &["PARENT x", "--output-format", "stream-json", "--forward-subagent-text"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let lines: Vec<Value> = finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (folder, other) in [("one", "two"), ("two", "one")].map(|(name, other)| {
        let of = |folder: &std::path::PathBuf| metadata(folder).unwrap()["prompt"] == format!("CHILD {name}");
        (folders(&home).into_iter().find(of).unwrap(), other)
    }) {
        let stored = metadata(&folder).unwrap();
        let own: Vec<&Value> = lines.iter().filter(|line| line["agent_id"] == stored["agentId"]).collect();
        assert!(own.len() >= 4, "{own:?}");
        for line in own {
            let text = line.to_string();
            assert!(!text.contains(&format!("text of {other}")) && !text.contains(&format!("CHILD {other}")), "{text}");
        }
        assert!(!std::fs::read_to_string(folder.join("output.txt")).unwrap().contains(other));
    }
}

/// A small generator, so that a failing round can be played again by its seed.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// R201, R257, R263, R329, fault E1, fault K1: the whole program is killed at any moment. Whatever had begun has exactly one
/// end afterwards, is announced exactly once over all further starts, and what it had written can be read.
#[test]
fn a_kill_at_any_moment_loses_and_repeats_nothing() {
    for seed in 1..=8_u64 {
        let home = Home::new();
        let pace = AtomicU64::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let provider = Provider::with(move |request| {
            let mut state = pace.load(Ordering::SeqCst) | 1;
            let delay = Duration::from_millis(next(&mut state) % 90);
            pace.store(state, Ordering::SeqCst);
            let resumed = request.texts("user").iter().any(|text| text == "go on");
            let answer = match (is_parent(request), request.turn()) {
                (true, _) if resumed => Answer::text("resumed"),
                (true, 0) => Answer::call("a1", "Agent", background("CHILD 1")).and_call("a2", "Agent", background("CHILD 2")),
                (true, 1) => Answer::call("a3", "Agent", agent("CHILD 3"))
                    .and_call("a4", "Agent", background("CHILD 4"))
                    .and_call(
                        "s",
                        "Bash",
                        json!({"command": "echo from the shell; sleep 0.2", "run_in_background": true, "description": "d"}),
                    )
                    .and_call("p", "subagent", json!({"action": "spawn", "task": "CHILD 5"})),
                (true, _) => Answer::text("ok"),
                (false, 0) => Answer::call("c", "Glob", json!({"pattern": "*"})).and_text(format!("part of {}", request.task())),
                (false, _) => Answer::text(format!("whole of {}", request.task())),
            };
            answer.after(delay)
        });
        let mut state = seed;
        let moment = Duration::from_millis(20 + (0..3).map(|_| next(&mut state)).last().unwrap_or(0) % 700);
        let mut running = beside(&mut command(&provider, &home, &["PARENT x", "--permission-mode", "yolo"]));
        std::thread::sleep(moment);
        let _ = running.kill();
        running.wait().unwrap();
        let listed: Value = serde_json::from_str(&home.run(&["sessions", "list", "--json"]).stdout).unwrap();
        let Some(session) = listed["sessions"].get(0).and_then(|session| session["id"].as_str()) else { continue };
        wait::until_true("the keepers end what they kept", || nothing_left(&home));
        let began: Vec<Value> = folders(&home).iter().filter_map(|folder| metadata(folder)).collect();
        let asked = parents(&provider).len();
        for round in 0..2 {
            let finished = run(&provider, &home, &["go on", "--resume", session]);
            assert_eq!(finished.code, 0, "seed {seed}, round {round}: {}", finished.stderr);
        }
        if asked == 0 {
            continue;
        }
        let history = parents(&provider).last().unwrap().clone();
        let told = history.texts("user").join("\n");
        let results = history.tool_results();
        let jobs: Value = serde_json::from_str(&home.run(&["jobs", "list", "--json"]).stdout).unwrap();
        for job in jobs["jobs"].as_array().unwrap() {
            assert!(job["ended_at"].is_string(), "seed {seed}: {job}");
            if job["kind"] != "local_agent" {
                let id = job["id"].as_str().unwrap();
                let notices = told.matches(&format!("<task-id>{id}</task-id>")).count();
                assert_eq!(notices, 1, "seed {seed}, killed after {moment:?}: {job}\n{told}");
            }
        }
        for before in &began {
            let id = before["agentId"].as_str().unwrap();
            let folder = folders(&home).into_iter().find(|folder| folder.ends_with(id)).unwrap();
            let stored = metadata(&folder).unwrap();
            assert_ne!(stored["status"], "running", "seed {seed}: {stored}");
            let notices = told.matches(&format!("<task-id>{id}</task-id>")).count();
            let returned = results.iter().filter(|(_, text)| text.contains(&format!("agentId: {id} (use SendMessage"))).count();
            let in_foreground = before["prompt"] == "CHILD 3";
            if in_foreground {
                assert!(notices <= 1 && notices + returned <= 2, "seed {seed}: {id} {notices} {returned}");
            } else {
                assert_eq!(notices, 1, "seed {seed}, killed after {moment:?}: {id} {}\n{told}", before["prompt"]);
            }
            let text = std::fs::read_to_string(folder.join("output.txt")).unwrap_or_default();
            if stored["stopReason"] == "finished" {
                assert_eq!(text, format!("whole of {}", before["prompt"].as_str().unwrap()), "seed {seed}");
            }
            let partial = format!("part of {}", before["prompt"].as_str().unwrap());
            let answered = children(&provider).iter().any(|request| request.task() == before["prompt"] && request.turn() == 1);
            if answered && stored["stopReason"] != "finished" {
                assert!(text.contains(&partial), "seed {seed}: what it had written can be read: {text:?}");
            }
        }
        assert!(nothing_left(&home), "seed {seed}");
    }
}
