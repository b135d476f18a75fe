//! Flow: agents with a work tree of their own, on a real repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::provider::{Answer, Provider, RecordedRequest};
use crate::support::{Finished, Home, finish};

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A repository with one commit; the profile `own` has a work tree.
fn repository() -> Home {
    let home = Home::new();
    home.write("sub/a.txt", "alpha\n");
    home.write(".gitignore", "*.log\n");
    home.write(".zapmyco/agents/own.md", "---\nname: own\ndescription: d\nisolation: worktree\n---\nx\n");
    git(&home.project(), &["init", "-q"]);
    git(&home.project(), &["add", "."]);
    git(&home.project(), &["commit", "-qm", "first"]);
    home
}

fn run(provider: &Provider, home: &Home, folder: &Path, arguments: &[&str]) -> Finished {
    let mut command = home.command_in(folder);
    provider.configure(&mut command);
    finish(command.arg("run").args(arguments))
}

/// Children do one shell line each, named by their task.
fn playing(lines: &'static [(&'static str, &'static str)]) -> Provider {
    Provider::with(move |request| match (request.task().as_str(), request.turn()) {
        ("PARENT", 0) => lines.iter().fold(Answer::new(), |answer, (task, _)| {
            answer.and_call(task, "Agent", json!({"description": "d", "prompt": task, "subagent_type": "own"}))
        }),
        (task, 0) => match lines.iter().find(|(known, _)| *known == task) {
            Some((_, line)) => Answer::call("c", "Bash", json!({"command": line})),
            None => Answer::text("ok"),
        },
        ("PARENT", _) => Answer::text("ok"),
        (_, _) => Answer::text("done"),
    })
}

fn of<'r>(requests: &'r [RecordedRequest], task: &str, turn: usize) -> &'r RecordedRequest {
    requests.iter().find(|request| request.task() == task && request.turn() == turn).unwrap()
}

fn result_of(requests: &[RecordedRequest], task: &str) -> String {
    let results = of(requests, "PARENT", 1).tool_results();
    results.into_iter().find(|(id, _)| id == task).unwrap().1
}

fn path_in(result: &str) -> PathBuf {
    result.lines().find_map(|line| line.strip_prefix("path: ")).unwrap_or_else(|| panic!("{result}")).into()
}

/// R88, fault L1: each works in its own tree; what changed in any way, or cannot be looked at, is kept and named; the rest goes.
#[test]
fn work_in_a_worktree_is_never_lost() {
    const LINES: &[(&str, &str)] = &[
        ("LOOK", "cat a.txt; pwd"),
        ("NEW", "echo new > new.txt"),
        ("COMMIT", "echo beta > a.txt; git -c user.name=t -c user.email=t@localhost commit -qam second"),
        ("BREAK", "git_dir=$(git rev-parse --git-dir); echo broken > $git_dir/index; echo x > kept.txt"),
        ("IGNORED", "echo x > build.log"),
    ];
    let home = repository();
    let provider = playing(LINES);
    let folder = home.project().join("sub");
    let finished = run(&provider, &home, &folder, &["PARENT", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = provider.requests();
    let looked = result_of(&requests, "LOOK");
    assert!(!looked.contains("work tree"), "nothing to say: {looked}");
    let shown = of(&requests, "LOOK", 1).tool_results()[0].1.clone();
    let cwd = shown.lines().find(|line| line.contains("/worktrees/agent_")).unwrap();
    assert!(shown.contains("alpha") && cwd.ends_with("/sub"), "{shown}");
    assert!(of(&requests, "LOOK", 0).system().contains(&format!("Working directory: {cwd}")), "the prompt names it");
    for (task, why, file) in [
        ("NEW", "1 changed or new file", "sub/new.txt"),
        ("COMMIT", "1 new commit", "sub/a.txt"),
        ("BREAK", "its state could not be read", "sub/kept.txt"),
        ("IGNORED", "1 changed or new file", "sub/build.log"),
    ] {
        let result = result_of(&requests, task);
        assert!(
            result.contains("which is kept: ") && result.contains(why) && result.contains("branch: zapmyco/agent_"),
            "{task}: {result}"
        );
        assert!(path_in(&result).join(file).exists(), "{task}");
    }
    let branches = git(&home.project(), &["branch", "--list", "zapmyco/*"]);
    assert_eq!(branches.lines().count(), 4, "{branches}");
    assert_eq!(std::fs::read_dir(home.root().join("worktrees")).unwrap().count(), 4);
    assert_eq!(git(&home.project(), &["status", "--porcelain"]), "", "the parent's folder is untouched");
    assert_eq!(std::fs::read_to_string(folder.join("a.txt")).unwrap(), "alpha\n");
}

/// R88: without a repository, or where nothing may change, the launch is refused with the reason, and nothing is left.
#[test]
fn a_launch_without_a_worktree_is_refused() {
    let provider = playing(&[("LOOK", "true")]);
    let home = Home::new();
    home.write(".zapmyco/agents/own.md", "---\nname: own\ndescription: d\nisolation: worktree\n---\nx\n");
    assert_eq!(run(&provider, &home, &home.project(), &["PARENT"]).code, 0);
    let result = result_of(&provider.requests(), "LOOK");
    assert!(
        result.contains("it has no work tree of its own, which its profile asks for") && result.contains("is in no git repository"),
        "{result}"
    );
    let provider = playing(&[("LOOK", "true")]);
    let home = repository();
    assert_eq!(run(&provider, &home, &home.project(), &["PARENT", "--permission-mode", "plan"]).code, 0);
    let result = result_of(&provider.requests(), "LOOK");
    assert!(result.contains("mode `plan` changes nothing"), "{result}");
    assert!(!home.root().join("worktrees").exists() && !home.root().join("cli/agents").exists());
}

/// R88, R209: an agent that is taken up again works in its tree, which is made anew when it had gone.
#[test]
fn a_resumed_agent_has_its_worktree_again() {
    let home = repository();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("PARENT", 0) => Answer::call("a", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": "own"})),
        ("PARENT", 1) => {
            let id = request.tool_results()[0].1.split("agentId: ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
            Answer::call("s", "SendMessage", json!({"to": id, "summary": "again", "message": "write now"}))
        }
        ("CHILD", 1) => Answer::call("w", "Bash", json!({"command": "pwd; echo new > new.txt"})),
        _ => Answer::text("ok"),
    });
    let finished = run(&provider, &home, &home.project(), &["PARENT", "--permission-mode", "yolo"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let stored: Vec<Value> = std::fs::read_dir(home.root().join("cli/agents"))
        .unwrap()
        .flat_map(|session| std::fs::read_dir(session.unwrap().path()).unwrap())
        .map(|agent| serde_json::from_slice(&std::fs::read(agent.unwrap().path().join("metadata.json")).unwrap()).unwrap())
        .collect();
    assert_eq!((stored.len(), &stored[0]["run"]), (1, &json!(2)), "{stored:?}");
    let path = PathBuf::from(stored[0]["worktree"]["path"].as_str().unwrap());
    assert_eq!(std::fs::read_to_string(path.join("new.txt")).unwrap(), "new\n");
    let notice = of(&provider.requests(), "PARENT", 3).texts("user").join("\n");
    assert!(notice.contains("which is kept: 1 changed or new file"), "{notice}");
}
