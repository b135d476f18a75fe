//! Flow: messages between a session and its agents, how they are framed, and what they may bring about.

use serde_json::json;

use crate::support::provider::{Answer, Provider};
use crate::support::{Finished, Home};

fn run(home: &Home, provider: &Provider, arguments: &[&str]) -> Finished {
    let mut command = home.command();
    provider.configure(&mut command);
    crate::support::finish(command.arg("run").args(arguments))
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
            json!({ "command": "echo over", "description": "short", "run_in_background": true }),
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
    let finished = run(&home, &provider, &["--permission-mode", "yolo", "--ignore-denied", "start it"]);
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
