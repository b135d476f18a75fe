//! Flow: every example runs, without a key.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Finished, Home, binary, finish, processes, wait};

fn example(home: &Home, script: &str, arguments: &[&str]) -> Finished {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("bash");
    command
        .arg(repository.join("examples").join(script))
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.root())
        .env("ZAPMYCO_HOME", home.root())
        .env("ZAPMYCO", binary())
        .env("ZAPMYCO_MODEL", format!("script:{}", repository.join("examples/fan-out.yaml").display()))
        .current_dir(home.project())
        .stdin(std::process::Stdio::null());
    finish(&mut command)
}

/// Three tasks about a small project, as a task list.
fn tasks(home: &Home) -> PathBuf {
    home.write("src/a.rs", "fn a() {}\n// TODO: b\n");
    home.write("src/deep/c.rs", "fn c() {\n}\n\n");
    home.write("tasks.txt", "count the Rust files below src\nname the longest Rust file below src\nlist the TODO comments below src\n")
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !found {
        eprintln!("NOT RUN: {program} is not installed");
    }
    found
}

#[test]
fn the_fan_out_with_run_gives_a_result_per_task() {
    if !has("parallel") || !has("jq") {
        return;
    }
    let home = Home::new();
    let tasks = tasks(&home);
    let finished = example(&home, "fan-out-run.sh", &[tasks.to_str().unwrap(), "results"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[0], "1\tdone\t2 Rust files");
    assert_eq!(lines[1], "2\tdone\tsrc/deep/c.rs has 3 lines");
    assert!(lines[2].starts_with("3\tdone\tsrc/a.rs:2:// TODO: b"), "{}", lines[2]);
}

#[test]
fn the_fan_out_with_run_fails_when_a_task_fails() {
    if !has("parallel") || !has("jq") {
        return;
    }
    let home = Home::new();
    let tasks = home.write("tasks.txt", "count the Rust files below src\nno script fits this one\n");
    let finished = example(&home, "fan-out-run.sh", &[tasks.to_str().unwrap(), "results"]);
    assert_eq!(finished.code, 1, "{}", finished.stdout);
    assert!(finished.stdout.contains("2\tfailed (exit 2)"), "{}", finished.stdout);
}

#[test]
fn the_fan_out_with_subagents_leaves_nothing() {
    if !has("jq") {
        return;
    }
    let home = Home::new();
    let tasks = tasks(&home);
    let finished = example(&home, "fan-out-subagent.sh", &[tasks.to_str().unwrap(), "ci"]);
    assert_eq!(finished.code, 0, "{}\n{}", finished.stdout, finished.stderr);
    assert_eq!(finished.stdout.matches(": completed (").count(), 3, "{}", finished.stdout);
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}

/// R148, R157: the guard of the examples, in the main session and in a subagent.
#[test]
fn the_guard_hook_denies_and_logs() {
    if !has("jq") {
        return;
    }
    let home = Home::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    // HOME of the commands is the folder above the project.
    let own = home.project().parent().unwrap().join(".zapmyco");
    std::fs::create_dir(&own).unwrap();
    std::fs::copy(examples.join("guard-hook.sh"), own.join("guard-hook.sh")).unwrap();
    std::fs::copy(examples.join("guard-hook.toml"), own.join("settings.toml")).unwrap();
    let model = home.write(
        "model.yaml",
        r#"
version: 1
scripts:
  - match: "^CHILD"
    turns:
      - calls: [{ name: Bash, input: { command: "git push --force origin main" } }]
      - text: "{{ results[0] }}"
  - turns:
      - calls:
          - { name: Bash, input: { command: "echo fine" } }
          - { name: Agent, input: { description: push, prompt: "CHILD push", subagent_type: general-purpose } }
      - text: "{{ results | join(' and ') }}"
"#,
    );
    let mut command = home.command();
    command.env("ZAPMYCO_HOME", &own).args(["run", "go", "--permission-mode", "yolo", "--ignore-denied"]);
    let finished = finish(command.args(["--model", &format!("script:{}", model.display())]));
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stdout.contains("fine and Bash was denied by a hook: no forced push"), "{finished:?}");
    let log = std::fs::read_to_string(own.join("guard.log")).unwrap();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["general-purpose\tgit push --force origin main", "main\techo fine"]);
}

/// R190, R205, R209, R244: the example of agents in the process of their parent says what it promises.
#[test]
fn the_agents_are_announced_steered_resumed_and_refused() {
    if !has("jq") {
        return;
    }
    let home = Home::new();
    home.write("src/a.rs", "fn a() {}\n");
    home.write("src/deep/b.rs", "fn b() {\n}\n\n");
    let finished = example(&home, "agents.sh", &["."]);
    assert_eq!(finished.code, 0, "{}{}", finished.stdout, finished.stderr);
    assert_eq!(
        finished.stdout,
        "== an agent in the background, steered while it works\n\
         The notice has come:\n\
         2 files, 4 lines.\n\
         The lines were asked for while it worked: Count the lines of those files as well.\n\
         == after a restart: the same agent, from its stored session\n\
         The same agent, run again:\n\
         3 lines has the longest of them\n\
         == an approval that nobody is there to give\n\
         exit 3, denied: Write\n"
    );
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}
