//! Flow: messages between a session and its agents, how they are framed, and what they may bring about.

use serde_json::json;
use zapmyco::store::{SessionFilter, Store};

use crate::support::provider::{Answer, Provider};
use crate::support::{Finished, Home, wait};

fn run(home: &Home, provider: &Provider, arguments: &[&str]) -> Finished {
    let mut command = home.command();
    provider.configure(&mut command);
    crate::support::finish(command.arg("run").args(arguments))
}

/// Turns of the newest session that are over.
fn turns_ended(home: &Home) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&home.root().join("zapmyco.db")).unwrap();
        let session = store.sessions(SessionFilter::default()).await.unwrap().remove(0).id;
        store.events(&session, 0, 1000).await.unwrap().iter().filter(|event| event.kind == "turn_ended").count()
    })
}

/// R231, fault E8: what only a notification began cannot change rights or instructions, in the widest mode; the person's own
/// turn can.
#[test]
fn a_turn_that_no_person_began_cannot_change_configuration() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Write", json!({ "file_path": "AGENTS.md", "content": "by the user\n" })).and_call(
            "c2",
            "Bash",
            json!({ "command": "until [ -e go ]; do sleep 0.02; done", "description": "short", "run_in_background": true }),
        ),
        1 => Answer::text("waiting"),
        2 => Answer::call("c3", "Write", json!({ "file_path": ".zapmyco/settings.toml", "content": "permission_mode = \"yolo\"\n" }))
            .and_call("c4", "Edit", json!({ "file_path": "AGENTS.md", "old_string": "by the user", "new_string": "by a peer" }))
            .and_call(
                "c5",
                "Bash",
                json!({ "command": "mkdir -p .zapmyco; echo '[hooks]' >> .zapmyco/settings.toml", "description": "hooks" }),
            )
            .and_call("c6", "Write", json!({ "file_path": "notes.txt", "content": "ordinary work\n" }))
            .and_call("c7", "Bash", json!({ "command": "cat AGENTS.md", "description": "read" })),
        _ => Answer::text("done"),
    });
    std::fs::write(home.root().join("settings.toml"), "[limits]\nexit_shell_wait = \"60s\"\n").unwrap();
    let finished = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&home, &provider, &["--permission-mode", "yolo", "--ignore-denied", "start it"]));
        // The notice must come when the person's turn is over.
        wait::until_true("the end of the first turn", || provider.request_count() >= 2 && turns_ended(&home) == 1);
        home.write("go", "");
        running.join().unwrap()
    });
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "done\n"), "{}", finished.stderr);
    let last = provider.requests().last().unwrap().tool_results();
    let result = |id: &str| last.iter().find(|(known, _)| known == id).unwrap().1.clone();
    for id in ["c3", "c4", "c5"] {
        assert!(result(id).contains("was denied") && result(id).contains("started by a notification"), "{id}: {}", result(id));
    }
    assert!(result("c7").contains("by the user"), "reading is free: {}", result("c7"));
    assert_eq!(std::fs::read_to_string(home.project().join("AGENTS.md")).unwrap(), "by the user\n");
    assert!(!home.project().join(".zapmyco").exists());
    assert_eq!(std::fs::read_to_string(home.project().join("notes.txt")).unwrap(), "ordinary work\n");
}

/// What the parent's model does at each step; a child is told by the system prompt's place.
fn is_child(request: &crate::support::provider::RecordedRequest) -> bool {
    request.tool_names().iter().any(|name| name == "RespondToCoordinator")
}

fn agent_id(text: &str) -> String {
    let at = text.find("agent_").unwrap_or_else(|| panic!("no agent id in {text}"));
    text[at..].chars().take("agent_".len() + 36).collect()
}

fn started(request: &crate::support::provider::RecordedRequest) -> String {
    agent_id(&request.tool_results()[0].1)
}

/// R202, R205, R211, R215, R226, fault E5: a message goes into the running turn, after the batch of results; the sender does
/// not wait for it.
#[test]
fn a_message_steers_a_running_agent() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_child(request), request.turn()) {
        (true, 0) => Answer::call("k1", "Bash", json!({ "command": "until [ -e go ]; do sleep 0.02; done", "description": "wait for go" })),
        (true, _) => Answer::text("child done"),
        (false, 0) => Answer::call("c1", "Agent", json!({ "description": "the waiter", "prompt": "wait", "run_in_background": true })),
        (false, 1) => {
            let id = started(request);
            Answer::call("c2", "SendMessage", json!({ "to": id, "summary": "Hurry up", "message": "It is needed today." }))
        }
        (false, 2) => Answer::call("c3", "Write", json!({ "file_path": "go", "content": "" })),
        _ => Answer::text("parent done"),
    });
    let finished = run(&home, &provider, &["--permission-mode", "yolo", "start"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "parent done\n"), "{}", finished.stderr);
    let requests = provider.requests();
    let told: Vec<_> = requests.iter().filter(|request| is_child(request) && request.turn() == 1).collect();
    assert_eq!(told[0].tool_results().len(), 1, "after the results");
    let texts = told[0].texts("user").join("\n");
    assert!(
        texts.contains("The coordinator sent a message while you were working:\nHurry up\n\nIt is needed today.\n\nAddress this before completing your current task."),
        "{texts}"
    );
    let child = requests.iter().find(|request| is_child(request)).unwrap();
    assert!(!child.tool_names().iter().any(|name| matches!(name.as_str(), "SendMessage" | "Agent")));
    let parent = requests.iter().find(|request| !is_child(request)).unwrap();
    assert!(parent.tool_names().iter().any(|name| name == "SendMessage"));
    assert!(!parent.tool_names().iter().any(|name| name == "RespondToCoordinator"));
}

/// R209, R210, R214, R227: an agent that has ended goes on in the background with its whole history; both messages of one
/// moment start one run; by its title too.
#[test]
fn a_message_resumes_an_ended_agent() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_child(request), request.turn()) {
        (true, 0) => Answer::text("first report"),
        (true, _) => Answer::text("second report"),
        (false, 0) => Answer::call("c1", "Agent", json!({ "description": "The Reader", "prompt": "read it" })),
        (false, 1) => {
            let id = started(request);
            Answer::call("c2", "SendMessage", json!({ "to": id, "summary": "more", "message": "look at b" })).and_call(
                "c3",
                "SendMessage",
                json!({ "to": "the reader", "summary": "and", "message": "look at c" }),
            )
        }
        _ => Answer::text("parent done"),
    });
    let finished = run(&home, &provider, &["start"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = provider.requests();
    let answers = requests.iter().find(|request| !is_child(request) && request.turn() == 2).unwrap().tool_results();
    let answer = |id: &str| answers.iter().find(|(known, _)| known == id).unwrap().1.clone();
    assert!(answer("c2").contains("resumed_background"), "{}", answer("c2"));
    assert!(answer("c3").contains("steered") || answer("c3").contains("queued") || answer("c3").contains("resumed_background"));
    let resumed: Vec<_> = requests.iter().filter(|request| is_child(request) && request.turn() >= 1).collect();
    let texts = resumed[0].texts("user");
    assert!(texts.iter().any(|text| text == "read it") && texts.iter().any(|text| text == "more\n\nlook at b"), "{texts:?}");
    assert!(requests.iter().any(|request| is_child(request) && request.texts("user").join("\n").contains("look at c")), "nothing is lost");
    assert_eq!(resumed[0].system(), requests.iter().find(|request| is_child(request)).unwrap().system(), "the same profile");
    assert!(
        requests.iter().any(|request| !is_child(request) && request.texts("user").join("\n").contains("<task-notification>")),
        "its end is announced"
    );
}

/// R212, R334: what cannot be reached is said in fixed words, with what can.
#[test]
fn wrong_addresses_are_told() {
    let home = Home::new();
    let long = "x".repeat(201);
    let provider = Provider::with(move |request| match request.turn() {
        0 => Answer::call("c1", "SendMessage", json!({ "to": "nobody", "summary": "s", "message": "m" }))
            .and_call("c2", "SendMessage", json!({ "to": "sa_20260606_a1b2c3d4", "summary": "s", "message": "m" }))
            .and_call("c3", "SendMessage", json!({ "to": "agent_6f1ed002-ab5b-4be2-9e86-3b8f3c1f7a10", "summary": "s", "message": "m" }))
            .and_call("c4", "SendMessage", json!({ "to": "a", "summary": long, "message": "m" }))
            .and_call("c5", "SendMessage", json!({ "to": "a", "summary": "s", "message": " " })),
        _ => Answer::text("done"),
    });
    assert_eq!(run(&home, &provider, &["start"]).code, 0);
    let results = provider.requests()[1].tool_results();
    let expected = [
        "No active local_agent task found for target nobody.",
        "takes no messages",
        "No active local_agent task found for target agent_6f1ed002-ab5b-4be2-9e86-3b8f3c1f7a10.",
        "`summary` has 201 characters, at most 200",
        "`message` is empty",
    ];
    for ((_, text), expected) in results.iter().zip(expected) {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(results[1].1.contains("subagent poll"), "{}", results[1].1);
}

/// R216, R217, R218, R219, R221, R222, R223, R228: a child speaks to its parent while it works on; too much is refused.
#[test]
fn a_child_replies_to_its_coordinator() {
    let home = Home::new();
    home.write(".zapmyco/settings.toml", "[limits]\nagent_replies_max = 1\n");
    home.write(".zapmyco/agents/scout.md", "---\nname: scout\ndescription: looks\ntools: Read\n---\nYou look.\n");
    let provider = Provider::with(|request| match (is_child(request), request.turn()) {
        (true, 0) => Answer::call("k1", "RespondToCoordinator", json!({ "summary": "found <it>", "message": "in a & b" })).and_call(
            "k2",
            "RespondToCoordinator",
            json!({ "summary": "again", "message": "more" }),
        ),
        (true, _) => Answer::text("child done").after(std::time::Duration::from_millis(300)),
        (false, 0) => Answer::call(
            "c1",
            "Agent",
            json!({ "description": "look", "prompt": "look", "subagent_type": "scout", "run_in_background": true }),
        ),
        _ => Answer::text("parent done"),
    });
    let finished = run(&home, &provider, &["--permission-mode", "plan", "start"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = provider.requests();
    let child = requests.iter().find(|request| is_child(request) && request.turn() == 1).unwrap();
    let results = child.tool_results();
    assert!(
        results[0].1.contains("Go on with your task: this message does not end it.") && results[0].1.contains("response_"),
        "{results:?}"
    );
    assert!(results[1].1.contains("1 replies were sent in this run") && results[1].1.contains("final answer"), "{results:?}");
    let heard: Vec<String> = requests.iter().filter(|request| !is_child(request)).flat_map(|request| request.texts("user")).collect();
    let reply = heard.iter().find(|text| text.contains("<subagent-message>")).unwrap();
    assert!(reply.starts_with("Another zapmyco session sent a message"), "{reply}");
    assert!(
        reply.contains(
            "<agent-type>scout</agent-type>\n<summary>found &lt;it&gt;</summary>\n<message>in a &amp; b</message>\n</subagent-message>"
        ),
        "{reply}"
    );
    assert!(reply.contains("permission laundering"), "{reply}");
}

/// R244, faults F3, F5: nobody can be asked, so the child is refused at once, goes on, and the result names it.
#[test]
fn a_request_of_a_child_is_denied_at_once_and_listed() {
    let home = Home::new();
    let provider = Provider::with(|request| match (is_child(request), request.turn()) {
        (true, 0) => Answer::call("k1", "Write", json!({ "file_path": "probe.txt", "content": "x" })),
        (true, _) => Answer::text("could not write"),
        (false, 0) => Answer::call("c1", "Agent", json!({ "description": "write", "prompt": "write probe.txt" })),
        _ => Answer::text("it could not"),
    });
    let finished = run(&home, &provider, &["--output-format", "json", "start"]);
    assert_eq!(finished.code, 3, "{finished:?}");
    let result: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    let denial = &result["permission_denials"][0];
    assert_eq!(denial["tool_name"], "Write");
    assert!(denial["agent_id"].as_str().unwrap().starts_with("agent_"), "{denial}");
    assert!(denial["message"].as_str().unwrap().contains("No permission client configured for Write"), "{denial}");
    assert!(!home.project().join("probe.txt").exists());
}
