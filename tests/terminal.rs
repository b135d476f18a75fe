//! Flow: what a person at a terminal sees: moving lines that go away again, lists that fit, keys that stop.

use serde_json::json;

use crate::support::provider::{Answer, Provider};
use crate::support::pty::Terminal;
use crate::support::{Home, finish, processes, wait};

/// Ctrl-C, once: the run ends, its exit code says so, and no moving line is left standing.
#[test]
fn ctrl_c_leaves_no_stale_line() {
    for with_child in [false, true] {
        let home = Home::new();
        let provider = Provider::with(move |request| match (request.task().as_str(), request.turn()) {
            ("child", _) => Answer::stall(),
            (_, 0) if with_child => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
            _ => Answer::stall(),
        });
        let mut command = home.command();
        provider.configure(&mut command);
        command.args(["run", "--model", "anthropic/test-model", "go"]);
        let terminal = Terminal::run(&command, 70, 20);
        terminal.wait_for("waiting for the model");
        wait::until_true("all requests stand", || provider.request_count() == if with_child { 3 } else { 1 });
        // A few more turns of the spinner.
        let drawn = terminal.count("waiting for the model");
        wait::until_true("it is drawn again", || terminal.count("waiting for the model") > drawn + 2);
        terminal.press("\u{3}");
        let (code, lines) = terminal.end();
        assert_eq!(code, 130, "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("waiting for the model")), "{lines:#?}");
        let spinners = lines.iter().filter(|line| line.chars().any(|character| ('\u{2801}'..='\u{28ff}').contains(&character))).count();
        assert_eq!(spinners, 0, "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("zapmyco: stopped before")), "{lines:#?}");
        wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
    }
}

const SCRIPT: &str = "version: 1\nscripts:\n  - match: \".\"\n    turns: [{text: done}]\n";

/// On a terminal no line is wider than it; in a pipe nothing is left out.
#[test]
fn lists_fit_the_terminal() {
    let home = Home::new();
    home.write("agent.yaml", SCRIPT);
    let task = "Look at every file of the parser and say which functions are longer than sixty lines\nand why";
    let spawn = ["subagent", "spawn", "--session", "a-rather-long-name-of-a-session", "--model", "script:agent.yaml", "--json", task];
    let spawned = home.run(&spawn);
    assert_eq!(spawned.code, 0, "{}", spawned.stderr);
    assert_eq!(
        home.run(&["run", "--model", "script:agent.yaml", "第一行 一个相当长的标题，用来看看列表是不是按终端的宽度来显示的"]).code,
        0
    );
    let id = serde_json::from_str::<serde_json::Value>(&spawned.stdout).unwrap()["id"].as_str().unwrap().to_owned();
    for list in [["jobs", "list"], ["sessions", "list"]] {
        let piped = home.run(&list).stdout;
        assert!(piped.lines().any(|line| line.chars().count() > 100), "{piped}");
        for columns in [60, 80, 100, 200] {
            let mut command = home.command();
            command.args(list);
            let (code, lines) = Terminal::run(&command, columns, 50).end();
            assert_eq!(code, 0, "{lines:#?}");
            // A line that is too wide would have become two.
            assert_eq!(lines.len(), piped.lines().count(), "{list:?} {columns}:\n{}", lines.join("\n"));
            if list[0] == "jobs" {
                assert!(lines[1].starts_with(&id), "{lines:#?}");
            }
        }
    }
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}

/// A job's title is the first line of its task; the tool's own `Task:` line still folds all of it (F3).
#[test]
fn a_title_is_the_first_line() {
    let home = Home::new();
    home.write("agent.yaml", SCRIPT);
    let task = "\n  Count the lines  \n\nof every file below src, and say which is the longest";
    let spawned = home.run(&["subagent", "spawn", "--session", "ci", "--model", "script:agent.yaml", "--json", task]);
    let job: serde_json::Value = serde_json::from_str(&spawned.stdout).unwrap();
    assert_eq!(job["title"], "Count the lines…");
    let long = format!("first line of a long task\n{}", "x".repeat(200_000));
    home.write("task.md", &long);
    let spawned = home.run(&["subagent", "spawn", "--session", "ci", "--model", "script:agent.yaml", "--json", "--task-file", "task.md"]);
    let job: serde_json::Value = serde_json::from_str(&spawned.stdout).unwrap();
    assert_eq!(job["title"], "first line of a long task…");
    let listed = home.run(&["subagent", "list", "--session", "ci"]).stdout;
    assert!(listed.contains("Task: Count the lines of every file below src, and say which is the longest\n"), "{listed}");
    assert!(listed.contains(&format!("Task: first line of a long task {}…", "x".repeat(173))), "{listed}");
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}

/// The moving lines are for terminals: plain lines elsewhere.
#[test]
fn a_pipe_gets_plain_lines() {
    let home = Home::new();
    home.write("agent.yaml", SCRIPT);
    let finished = finish(home.command().env("TERM", "xterm").args(["run", "--model", "script:agent.yaml", "go"]));
    assert!(!finished.stderr.contains('\u{1b}') && finished.stdout == "done\n", "{finished:?}");
}

/// How often Ctrl-Z is pressed; more on demand.
fn stops() -> usize {
    std::env::var("ZAPMYCO_TEST_STOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// fault S16: Ctrl-Z and `fg` in a shell with job control while subagents are being started: nothing gets stuck, and every
/// child ends as if nothing had happened.
#[test]
fn ctrl_z_during_starts_harms_nothing() {
    let home = Home::new();
    let starts = 2 * stops();
    let provider = Provider::with(move |request| match request.turn() {
        turn if request.task() == "go" && turn < starts => {
            Answer::call(&format!("s{turn}"), "subagent", json!({"action": "spawn", "task": format!("child {turn}")}))
        }
        _ => Answer::text("done"),
    });
    let mut settings = home.command();
    provider.configure(&mut settings);
    let mut shell = std::process::Command::new("bash");
    shell.args(["--norc", "--noprofile", "--noediting", "-i"]).current_dir(home.project()).env("PS1", "PROMPT>");
    shell.envs(settings.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let terminal = Terminal::run(&shell, 200, 50);
    terminal.wait_for("PROMPT>");
    terminal.press(&format!("{} run --quiet --on-exit wait go\n", crate::support::binary().display()));
    wait::until_true("its first request", || provider.request_count() > 0);
    let mut stopped = 0;
    for _ in 0..stops() {
        let prompts = terminal.count("PROMPT>");
        terminal.press("\u{1a}");
        wait::until_true("the shell is back", || terminal.count("PROMPT>") > prompts);
        if terminal.count("Stopped") == stopped {
            break;
        }
        stopped = terminal.count("Stopped");
        let (asked, prompts, shown) = (provider.request_count(), terminal.count("PROMPT>"), terminal.count("run --quiet"));
        // Bash names the command that it brings back; a key pressed earlier would throw the line away.
        terminal.press("fg\n");
        wait::until_true("it is back", || terminal.count("run --quiet") > shown);
        wait::until_true("it goes on", || provider.request_count() > asked || terminal.count("PROMPT>") > prompts);
    }
    assert!(stopped > 0, "{}", terminal.text());
    wait::until_true("the run has ended", || terminal.text().ends_with("PROMPT>"));
    terminal.press("echo END-$?; exit\n");
    terminal.wait_for("END-0");
    terminal.end();
    let listed: serde_json::Value = serde_json::from_str(&home.run(&["jobs", "list", "--json"]).stdout).unwrap();
    let jobs = listed["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), starts);
    assert!(jobs.iter().all(|job| job["status"] == "completed"), "{listed}");
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}
