//! Flow: what a project asks for has no effect before a person has trusted its exact content.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::provider::{Answer, Provider};
use crate::support::terminal::AtTerminal;
use crate::support::{Finished, Home, binary, finish};

const HOOK: &str = "[[hooks.PreToolUse]]\nmatcher = \"Bash\"\nhooks = [{ type = \"command\", command = \"touch hook-ran\" }]\n";

struct Project {
    home: Home,
}

impl Project {
    fn with_settings(settings: &str) -> Self {
        let home = Home::new();
        home.write(".zapmyco/settings.toml", settings);
        Self { home }
    }

    /// The model runs a shell line, then repeats what came of it.
    fn bash(&self, command: &str, arguments: &[&str]) -> Finished {
        self.bash_in(&self.home.project(), command, arguments)
    }

    fn bash_in(&self, folder: &Path, command: &str, arguments: &[&str]) -> Finished {
        finish(self.command(folder, command).args(arguments))
    }

    fn command(&self, folder: &Path, command: &str) -> Command {
        let turns = json!([
            {"calls": [{"name": "Bash", "input": {"command": command}}]},
            {"text": "{% for result in results %}[{{ result }}]{% endfor %}"},
        ]);
        let model = self.home.root().join("model.json");
        std::fs::write(&model, json!({"version": 1, "scripts": [{"turns": turns}]}).to_string()).unwrap();
        let mut run = self.home.command_in(folder);
        run.args(["run", "go", "--model", &format!("script:{}", model.display())]);
        run
    }

    fn trust(&self, arguments: &[&str]) -> Finished {
        finish(self.home.command().arg("trust").args(arguments))
    }

    fn hook_ran(&self) -> bool {
        let mark = self.home.project().join("hook-ran");
        let ran = mark.exists();
        let _ = std::fs::remove_file(mark);
        ran
    }
}

/// R160: skipped and said so without trust; runs with it; one changed byte and it is skipped again.
#[test]
fn a_hook_of_a_project_runs_only_when_its_exact_content_is_trusted() {
    let project = Project::with_settings(HOOK);
    let finished = project.bash("ls", &[]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(!project.hook_ran());
    let told = "skipped, because nobody has trusted it as it is now: 1 hook in .zapmyco/settings.toml; `zapmyco trust` shows it and asks";
    assert_eq!(finished.stderr.matches(told).count(), 1, "{}", finished.stderr);
    let shown = project.trust(&["--yes"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.contains(".zapmyco/settings.toml  (trusted)"), "{}", shown.stdout);
    assert!(shown.stdout.contains("hook PreToolUse (Bash): touch hook-ran"), "{}", shown.stdout);
    let finished = project.bash("ls", &[]);
    assert!(project.hook_ran(), "{finished:?}");
    assert!(!finished.stderr.contains("trust"), "{}", finished.stderr);
    project.home.write(".zapmyco/settings.toml", &format!("{HOOK}\n"));
    let finished = project.bash("ls", &[]);
    assert!(!project.hook_ran() && finished.stderr.contains(told), "{finished:?}");
    project.home.write(".zapmyco/settings.toml", HOOK);
    project.bash("ls", &[]);
    assert!(project.hook_ran(), "the trusted bytes are trusted still");
    assert_eq!(project.trust(&["--revoke"]).code, 0);
    project.bash("ls", &[]);
    assert!(!project.hook_ran());
}

/// R280, rule 9: allow rules of a project need trust; ask and deny rules do not; the rest cannot be trusted at all.
#[test]
fn allow_rules_need_trust_and_some_settings_have_no_effect_ever() {
    let settings = "permission_mode = \"yolo\"\n[permissions]\nallow = [\"Bash(touch:*)\"]\ndeny = [\"Bash(touch denied)\"]\n\
                    [providers.mine]\nbase_url = \"http://127.0.0.1:1\"\n";
    let project = Project::with_settings(settings);
    let finished = project.bash("touch allowed", &[]);
    assert_eq!(finished.code, 3, "{finished:?}");
    assert!(finished.stderr.contains("1 allow rule in .zapmyco/settings.toml"), "{}", finished.stderr);
    assert_eq!(project.bash("touch denied", &["--permission-mode", "yolo"]).code, 3, "a project may always deny");
    assert_eq!(project.trust(&["--yes"]).code, 0);
    let finished = project.bash("touch allowed", &[]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert_eq!(project.bash("touch denied", &[]).code, 3);
    assert_eq!(project.bash("mkdir other", &[]).code, 3, "the mode is not the project's to widen");
    for key in ["providers", "permission_mode"] {
        assert!(finished.stderr.contains(&format!("`{key}` is ignored")), "{key}: {}", finished.stderr);
    }
}

/// R160: only the file that was shown is trusted; the other one is skipped.
#[test]
fn each_file_is_trusted_by_itself() {
    let project = Project::with_settings(HOOK);
    assert_eq!(project.trust(&["--yes"]).code, 0);
    project.home.write(".zapmyco/settings.local.toml", "[permissions]\nallow = [\"Bash(touch:*)\"]\n");
    let finished = project.bash("touch a", &[]);
    assert!(finished.code == 3 && project.hook_ran(), "{finished:?}");
    assert!(finished.stderr.contains("1 allow rule in .zapmyco/settings.local.toml"), "{}", finished.stderr);
}

/// R160: a link that leads out of the project shows nothing of the project's.
#[test]
fn what_a_link_leads_to_cannot_be_trusted() {
    let home = Home::new();
    let outside = home.root().join("elsewhere");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("settings.toml"), HOOK).unwrap();
    symlink(&outside, home.project().join(".zapmyco")).unwrap();
    let project = Project { home };
    let shown = project.trust(&["--yes"]);
    assert!(shown.stdout.contains("cannot be trusted: a link leads out of the project"), "{shown:?}");
    project.bash("ls", &[]);
    assert!(!project.hook_ran());
}

/// R160: a session cannot trust for its user, however the command is dressed up.
#[test]
fn trust_is_not_available_inside_a_session() {
    let project = Project::with_settings(HOOK);
    for line in ["trust --yes", "trust --revoke"] {
        for dress in ["", "env -u ZAPMYCO_JOB "] {
            let command = format!("{dress}{} {line}", binary().display());
            let finished = project.bash(&command, &["--permission-mode", "yolo"]);
            assert!(finished.stdout.contains("not available inside a session, do not retry"), "{command}: {finished:?}");
        }
    }
    project.bash("ls", &[]);
    assert!(!project.hook_ran());
}

/// R160: one project is one repository; a subfolder is part of it, another work tree is not.
#[test]
fn a_subfolder_belongs_to_its_repository_and_a_work_tree_is_its_own() {
    let project = Project::with_settings("");
    let git = |folder: &Path, arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@example.org"]).args(arguments).current_dir(folder).stdin(Stdio::null());
        let output = git.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let root = project.home.project();
    git(&root, &["init", "-q"]);
    project.home.write("part/.zapmyco/settings.toml", HOOK);
    git(&root, &["add", "."]);
    git(&root, &["commit", "-qm", "all"]);
    assert_eq!(project.trust(&["--yes", "part"]).code, 0);
    let stored: Vec<Value> = std::fs::read_dir(project.home.root().join("trust"))
        .unwrap()
        .filter_map(|entry| serde_json::from_slice(&std::fs::read(entry.unwrap().path()).unwrap()).ok())
        .collect();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0]["project"].as_str().unwrap(), root.canonicalize().unwrap().to_str().unwrap());
    project.bash_in(&root.join("part"), "ls", &[]);
    assert!(root.join("part/hook-ran").exists());
    let tree = project.home.root().join("tree");
    git(&root, &["worktree", "add", "-q", tree.to_str().unwrap()]);
    let finished = project.bash_in(&tree.join("part"), "ls", &[]);
    assert!(!tree.join("part/hook-ran").exists(), "{finished:?}");
}

/// R82, R152: memory of the user's and hooks in a project's profile.
#[test]
fn profiles_of_a_project_reach_for_no_more_than_is_trusted() {
    let home = Home::new();
    home.write(
        ".zapmyco/agents/nosy.md",
        "---\nname: nosy\ndescription: Nosy\nmemory: user\nhooks:\n  PreToolUse:\n    - hooks:\n        - {type: command, command: 'touch \
         hook-ran'}\n---\nLook around.\n",
    );
    let project = Project { home };
    let provider = Provider::with(|request| match (request.task().starts_with("CHILD"), request.turn()) {
        (true, 0) => Answer::call("k1", "Bash", json!({"command": "ls"})),
        (true, _) => Answer::text("child done"),
        (false, 0) => Answer::call("c1", "Agent", json!({"description": "d", "prompt": "CHILD do it", "subagent_type": "nosy"})),
        (false, _) => Answer::text("done"),
    });
    let run = || {
        let mut command = project.home.command();
        provider.configure(&mut command);
        finish(command.args(["run", "PARENT"]))
    };
    let finished = run();
    assert!(finished.stderr.contains("1 hook, 1 profile with your memory in .zapmyco/agents/nosy.md"), "{}", finished.stderr);
    assert!(!project.hook_ran() && !project.home.root().join("agent-memory").exists(), "{finished:?}");
    assert_eq!(project.trust(&["--yes"]).code, 0);
    let finished = run();
    assert!(project.hook_ran() && project.home.root().join("agent-memory").exists(), "{finished:?}");
}

#[test]
fn it_is_shown_as_text_and_as_json_and_nothing_is_recorded() {
    let project = Project::with_settings(HOOK);
    let shown = project.trust(&["--show", "--json"]);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&shown["schema_version"], &shown["files"][0]["state"]), (&json!(1), &json!("unknown")));
    assert_eq!(
        shown["files"][0]["grants"][0],
        json!({"kind": "hook", "event": "PreToolUse", "matcher": "Bash", "command": "touch hook-ran"})
    );
    let asked = project.trust(&[]);
    assert_eq!(asked.code, 2, "{asked:?}");
    assert!(asked.stderr.contains("there is no terminal to ask on") && asked.stderr.contains("zapmyco trust --yes"), "{}", asked.stderr);
    assert!(!project.home.root().join("trust").exists());
    std::fs::remove_file(project.home.project().join(".zapmyco/settings.toml")).unwrap();
    let nothing = project.trust(&["--yes"]);
    assert!(nothing.code == 0 && nothing.stdout.contains("asks for nothing that needs trust"), "{nothing:?}");
    assert_eq!(project.trust(&["--yes", "--show"]).code, 2);
}

/// A file with escape sequences shows none in the terminal.
#[test]
fn what_is_shown_is_harmless() {
    let project = Project::with_settings("[[hooks.Stop]]\nhooks = [{ command = \"echo \\u001b[2Jhidden\" }]\n");
    let shown = project.trust(&["--show"]);
    assert!(!shown.stdout.contains('\u{1b}') && shown.stdout.contains("hidden"), "{shown:?}");
}

/// Issue 4: in a terminal a run asks once, and a refusal is remembered until something changes.
#[test]
fn a_run_in_a_terminal_asks_once() {
    const QUESTION: &str = "Trust this content?";
    let project = Project::with_settings(HOOK);
    let run = || AtTerminal::start(&project.command(&project.home.project(), "ls"));
    let answered = |answer: &str| {
        let mut terminal = run();
        let shown = terminal.sees(QUESTION);
        assert!(shown.contains("hook PreToolUse (Bash): touch hook-ran"), "{shown}");
        terminal.sees(" > ");
        terminal.types(answer);
        let left = terminal.ends();
        assert_eq!(left.code, 0, "{}", left.screen);
    };
    answered("what\nn\n");
    assert!(!project.hook_ran());
    let left = run().ends();
    assert!(!left.screen.contains(QUESTION) && !project.hook_ran(), "a refusal stands: {}", left.screen);
    assert!(left.screen.contains("nobody has trusted it"), "{}", left.screen);
    project.home.write(".zapmyco/settings.toml", &format!("# new\n{HOOK}"));
    answered("y\n");
    assert!(project.hook_ran());
    let left = run().ends();
    assert!(!left.screen.contains(QUESTION) && project.hook_ran(), "{}", left.screen);
    project.home.write(".zapmyco/settings.toml", HOOK);
    let mut silent = project.command(&project.home.project(), "ls");
    silent.args(["--permission-prompt", "never"]);
    let left = AtTerminal::start(&silent).ends();
    assert!(!left.screen.contains(QUESTION) && !project.hook_ran(), "{}", left.screen);
    let mut trust = project.home.command();
    trust.arg("trust");
    let mut terminal = AtTerminal::start(&trust);
    terminal.sees(QUESTION);
    terminal.sees(" > ");
    terminal.types("y\n");
    assert_eq!(terminal.ends().code, 0);
    run().ends();
    assert!(project.hook_ran());
}

/// R160: a script that a trusted hook runs is trusted with it; changed before a run it is skipped, changed during one the
/// guard does not fall away.
#[test]
fn a_script_of_a_trusted_hook_is_part_of_it() {
    let project = Project::with_settings("[[hooks.PreToolUse]]\nmatcher = \"Bash\"\nhooks = [{ command = \"bash tools/guard.sh\" }]\n");
    project.home.write("tools/guard.sh", "touch hook-ran\n");
    let shown = project.trust(&["--yes"]);
    assert!(
        shown.stdout.contains("tools/guard.sh  (trusted)") && shown.stdout.contains("run by the hook: bash tools/guard.sh"),
        "{shown:?}"
    );
    project.bash("ls", &[]);
    assert!(project.hook_ran());
    project.home.write("tools/guard.sh", "touch hook-ran; echo more\n");
    let finished = project.bash("ls", &[]);
    assert!(!project.hook_ran(), "{finished:?}");
    assert!(finished.stderr.contains("1 script of a hook in tools/guard.sh"), "{}", finished.stderr);
    assert_eq!(project.trust(&["--yes"]).code, 0);
    let turns = json!([
        {"calls": [{"name": "Write", "input": {"file_path": "tools/guard.sh", "content": "exit 0\n"}}, {"name": "Read", "input": {"file_path": "tools/guard.sh"}}]},
        {"calls": [{"name": "Write", "input": {"file_path": "tools/guard.sh", "content": "exit 0\n"}}]},
        {"calls": [{"name": "Bash", "input": {"command": "touch passed"}}]},
        {"text": "{{ results[0] }}"},
    ]);
    let model = project.home.root().join("change.json");
    std::fs::write(&model, json!({"version": 1, "scripts": [{"turns": turns}]}).to_string()).unwrap();
    let mut run = project.home.command();
    run.args(["run", "go", "--permission-mode", "yolo", "--model", &format!("script:{}", model.display())]);
    let finished = finish(&mut run);
    assert_eq!(std::fs::read_to_string(project.home.project().join("tools/guard.sh")).unwrap(), "exit 0\n", "{finished:?}");
    assert!(!project.home.project().join("passed").exists(), "{finished:?}");
    assert!(finished.stdout.contains("guard.sh has changed since it was trusted"), "{finished:?}");
}
