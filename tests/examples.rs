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
