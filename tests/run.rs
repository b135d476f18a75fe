//! Flow: the headless run against a real HTTP server that speaks the providers' wire formats.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::provider::{Answer, Provider};
use crate::support::{Home, processes, wait};

fn run_against(provider: &Provider, home: &Home, arguments: &[&str]) -> crate::support::Finished {
    let mut command = home.command();
    provider.configure(&mut command);
    crate::support::finish(command.arg("run").args(arguments))
}

/// R318, R326: the answer alone on stdout.
#[test]
fn the_answer_alone_goes_to_stdout() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("forty-two"));
    let finished = run_against(&provider, &home, &["what is it?"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "forty-two\n"), "{}", finished.stderr);
}

#[test]
fn both_wire_formats_answer() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("over the other wire"));
    let mut command = home.command();
    provider.configure_openai(&mut command);
    let finished = crate::support::finish(command.args(["run", "hi"]));
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "over the other wire\n"), "{}", finished.stderr);
    assert!(!provider.requests()[0].is_anthropic());
}

/// R31: independent calls of one message run side by side, results stand in the order of the calls.
#[test]
fn tools_work_on_real_files_and_results_go_back() {
    let home = Home::new();
    home.write("a.txt", "alpha\n");
    home.write("b.txt", "beta\n");
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Read", json!({"file_path": "a.txt"})).and_call("c2", "Read", json!({"file_path": "b.txt"})),
        _ => Answer::text("read both"),
    });
    let finished = run_against(&provider, &home, &["read them"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "read both\n"), "{}", finished.stderr);
    let results = provider.requests()[1].tool_results();
    assert_eq!(results.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["c1", "c2"]);
    assert!(results[0].1.contains("alpha") && results[1].1.contains("beta"), "{results:?}");
}

/// fault J1: with a prompt given, stdin is never waited for.
#[test]
fn an_open_stdin_does_not_block_a_run_that_has_its_prompt() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("hi"));
    let mut command = home.command();
    provider.configure(&mut command);
    let mut child = command.args(["run", "say hi"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let held_open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(held_open);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hi\n");
}

#[test]
fn a_pipe_may_bring_the_prompt_or_a_text_to_it() {
    let home = Home::new();
    let provider = Provider::with(|request| Answer::text(request.task()));
    for (arguments, piped, expected) in [
        (vec!["run"], "from the pipe", "from the pipe\n"),
        (vec!["run", "-"], "by dash", "by dash\n"),
        (vec!["run", "look at this", "--stdin"], "some text", "look at this\n\nsome text\n"),
    ] {
        let mut command = home.command();
        provider.configure(&mut command);
        let mut child = command.args(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(piped.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn no_prompt_is_wrong_usage() {
    let home = Home::new();
    let finished = home.run(&["run"]);
    assert_eq!(finished.code, 2);
    assert!(finished.stderr.contains("the prompt is empty"), "{}", finished.stderr);
}

/// fault J2, R326: each failure has its own code, an error on stderr, and `ok: false` in JSON.
#[test]
fn failures_have_exit_codes_of_their_own() {
    let cases: [(&str, Answer, i32); 6] = [
        ("401", Answer::error(401, "invalid x-api-key"), 6),
        ("400", Answer::error(400, "bad request"), 6),
        ("404", Answer::error(404, "no such model"), 6),
        ("garbage", Answer::garbage(), 7),
        ("empty", Answer::empty(), 7),
        ("cut", Answer::text("half of an ans").cut_after(3), 7),
    ];
    for (name, answer, code) in cases {
        let home = Home::new();
        home.write(".zapmyco/settings.toml", "[limits]\nrequest_retries = 0\n");
        let provider = Provider::always(answer);
        let finished = run_against(&provider, &home, &["--output-format", "json", "hi"]);
        let result: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{name}: {}", finished.stdout));
        assert_eq!(finished.code, code, "{name}: {}", finished.stderr);
        assert_eq!((result["ok"].as_bool(), result["exit_code"].as_i64()), (Some(false), Some(i64::from(code))), "{name}");
        assert!(finished.stderr.contains("zapmyco: "), "{name}: {}", finished.stderr);
    }
}

/// fault C3: a broken stream is an error with the partial text kept, never an answer.
#[test]
fn a_broken_stream_is_never_an_answer() {
    let home = Home::new();
    home.write(".zapmyco/settings.toml", "[limits]\nrequest_retries = 0\n");
    let provider = Provider::always(Answer::text("the first half").cut_after(3));
    let finished = run_against(&provider, &home, &["hi"]);
    assert_eq!(finished.stdout, "");
    assert_eq!(finished.code, 7);
}

/// fault J2: no key and no server.
#[test]
fn without_a_model_three_ways_to_go_on_are_named() {
    let home = Home::new();
    let finished = home.run(&["run", "hi", "--output-format", "json"]);
    if finished.code == 0 {
        eprintln!("SKIPPED: a model server answers on this machine");
        return;
    }
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    for way in ["ANTHROPIC_API_KEY", "Ollama", "zapmyco demo"] {
        assert!(finished.stderr.contains(way), "{way}: {}", finished.stderr);
    }
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(result["ok"], json!(false));
}

/// R172, fault D2: three requests and one closing request, marked partial, exit 5.
#[test]
fn the_turn_limit_gives_a_closing_report() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        turn if turn < 3 => Answer::call(&format!("c{turn}"), "Glob", json!({"pattern": "*"})),
        _ => Answer::text("closing report"),
    });
    let finished = run_against(&provider, &home, &["--max-turns", "3", "--output-format", "json", "go"]);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(finished.code, 5, "{}", finished.stderr);
    assert_eq!(provider.request_count(), 4);
    assert_eq!(result["subtype"], "error_max_turns");
    assert_eq!(result["partial"], json!(true));
    assert_eq!(result["result"], "closing report");
    // A model that has nothing to report has still not finished.
    let silent = Provider::with(|request| Answer::call(&format!("c{}", request.turn()), "Glob", json!({"pattern": "*"})));
    let finished = run_against(&silent, &home, &["--max-turns", "2", "--output-format", "json", "go"]);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((finished.code, result["partial"].as_bool()), (5, Some(true)), "{result}");
}

/// fault D3
#[test]
fn a_turn_limit_that_makes_no_sense_is_refused() {
    let home = Home::new();
    for bad in ["0", "-1", "2.5", "x"] {
        let finished = home.run(&["run", &format!("--max-turns={bad}"), "hi"]);
        assert_eq!(finished.code, 2, "{bad}");
        assert!(finished.stderr.contains("--max-turns"), "{}", finished.stderr);
    }
}

/// R327, R244, fault F3, F5: nothing is asked; what would have been asked is denied, and the code says so.
#[test]
fn a_headless_run_denies_what_it_would_have_asked() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Write", json!({"file_path": "probe.txt", "content": "x"})),
        _ => Answer::text("I could not write it."),
    });
    let finished = run_against(&provider, &home, &["--output-format", "json", "write probe.txt"]);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(finished.code, 3, "{}", finished.stderr);
    assert_eq!(result["permission_denials"][0]["tool_name"], "Write");
    assert!(!home.project().join("probe.txt").exists());
    let told = &provider.requests()[1].tool_results()[0].1;
    assert!(told.contains("--permission-mode acceptEdits"), "{told}");
    assert!(finished.stderr.contains("\n  to allow it: --permission-mode acceptEdits\n"), "{}", finished.stderr);
    assert_eq!(finished.stderr.matches("mode `default` asks before writing").count(), 1, "said once: {}", finished.stderr);

    let ignored = run_against(&provider, &home, &["--ignore-denied", "write probe.txt"]);
    assert_eq!(ignored.code, 0, "{}", ignored.stderr);
    let allowed = run_against(&provider, &home, &["--permission-mode", "acceptEdits", "write probe.txt"]);
    assert_eq!(allowed.code, 0, "{}", allowed.stderr);
    assert_eq!(std::fs::read_to_string(home.project().join("probe.txt")).unwrap(), "x");
}

/// R325, R287: `--disallowedTools` holds in every mode.
#[test]
fn a_disallowed_tool_is_gone_and_a_scoped_entry_denies_matching_calls() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Bash", json!({"command": "touch made"})).and_call("c2", "Bash", json!({"command": "echo fine"})),
        _ => Answer::text("done"),
    });
    let scoped = run_against(&provider, &home, &["--permission-mode", "yolo", "--disallowedTools", "Bash(touch:*)", "go"]);
    assert_eq!(scoped.code, 0, "{}", scoped.stderr);
    assert!(!home.project().join("made").exists());
    assert!(provider.requests()[1].tool_results()[1].1.contains("fine"));
    run_against(&provider, &home, &["--disallowedTools", "Bash", "go"]);
    let requests = provider.requests();
    assert!(!requests[2].tool_names().contains(&"Bash".to_owned()));
}

/// R391: the documented calls work in a headless run with default settings: three folders, three children.
#[test]
fn several_subagents_work_at_once_and_are_polled() {
    let home = Home::new();
    for folder in ["one", "two", "three"] {
        home.write(&format!("{folder}/file.txt"), folder);
    }
    let provider = Provider::with(|request| {
        let task = request.task();
        if let Some(folder) = task.strip_prefix("child ") {
            return match request.turn() {
                0 => Answer::call("r", "Read", json!({"file_path": format!("{folder}/file.txt")})),
                _ => Answer::text(format!("DONE-{folder}")),
            };
        }
        match request.turn() {
            0 => Answer::call("s1", "subagent", json!({"action": "spawn", "task": "child one"}))
                .and_call("s2", "subagent", json!({"action": "spawn", "task": "child two"}))
                .and_call("s3", "subagent", json!({"action": "spawn", "task": "child three"})),
            1 => {
                let ids: Vec<String> = request.tool_results().iter().map(|(_, text)| id_in(text)).collect();
                Answer::call("p", "subagent", json!({"action": "poll", "subagent_ids": ids, "wait_secs": 30}))
            }
            _ => Answer::text(request.tool_results().last().unwrap().1.clone()),
        }
    });
    let finished = run_against(&provider, &home, &["analyse the three folders"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    for folder in ["one", "two", "three"] {
        assert!(finished.stdout.contains(&format!("DONE-{folder}")), "{}", finished.stdout);
    }
    assert_eq!(finished.stdout.matches(": completed").count(), 3);
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}

/// R182, fault J3: the run waits for a child that was never polled, and its end is one more turn.
#[test]
fn a_run_waits_for_its_children_and_tells_the_model() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", _) => Answer::text("child is done").after(Duration::from_millis(300)),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        (_, 1) => Answer::text("started"),
        (_, _) => Answer::text(format!("heard: {}", request.last_text())),
    });
    let finished = run_against(&provider, &home, &["go"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stdout.contains("heard:") && finished.stdout.contains("<task-notification>"), "{}", finished.stdout);
    assert!(finished.stdout.contains("child is done"), "{}", finished.stdout);
}

/// R182, R387, fault J4: the ceiling ends the wait; what ran is named, with its fate and where its results lie; code 9.
#[test]
fn the_ceiling_ends_the_wait() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", _) => Answer::stall(),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        _ => Answer::text("started"),
    });
    let mut command = home.command();
    provider.configure(&mut command);
    let finished =
        crate::support::finish(command.env("ZAPMYCO_LIMITS_EXIT_WAIT_MAX", "300ms").args(["run", "--output-format", "json", "go"]));
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(finished.code, 9, "{}", finished.stderr);
    assert_eq!(result["jobs_left"][0]["fate"], "stopped");
    assert!(finished.stderr.contains("[SubAgent] 仍有 1 个子代理在后台运行:"), "{}", finished.stderr);
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}

/// R387: `--on-exit stop` stops at once, `detach` lets process subagents finish.
#[test]
fn on_exit_stop_and_detach() {
    for (on_exit, fate) in [("stop", "stopped"), ("detach", "left_running")] {
        let home = Home::new();
        let release = crate::support::provider::Gate::new();
        let gate = release.clone();
        let provider = Provider::with(move |request| match (request.task().as_str(), request.turn()) {
            ("child", _) => Answer::text("child is done").when(&gate),
            (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
            _ => Answer::text("started"),
        });
        let finished = run_against(&provider, &home, &["--on-exit", on_exit, "--output-format", "json", "go"]);
        let result: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        assert_eq!(result["jobs_left"][0]["fate"], fate);
        release.open();
        wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
        let output = std::path::PathBuf::from(result["jobs_left"][0]["output_path"].as_str().unwrap());
        let said = std::fs::read_to_string(output).unwrap();
        assert_eq!(said.contains("child is done"), on_exit == "detach", "{said}");
    }
}

/// R387: agents in this process cannot outlive it; `detach` stops them, says so and records who stopped them.
#[test]
fn detach_stops_what_lives_in_this_process() {
    let home = Home::new();
    let held = crate::support::provider::Gate::new();
    let gate = held.clone();
    let provider = Provider::with(move |request| match (request.task().contains("CHILD"), request.turn()) {
        (true, _) => Answer::text("never").when(&gate),
        (_, 0) => Answer::call(
            "a",
            "Agent",
            json!({"description": "look around", "prompt": "CHILD", "subagent_type": "Explore", "run_in_background": true}),
        ),
        _ => Answer::text("started"),
    });
    let finished = run_against(&provider, &home, &["--on-exit", "detach", "--output-format", "json", "go"]);
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let left = &result["jobs_left"][0];
    assert_eq!((&left["kind"], &left["fate"]), (&json!("local_agent"), &json!("stopped")), "{result}");
    assert!(finished.stderr.contains(left["id"].as_str().unwrap()), "{}", finished.stderr);
    let jobs: Value = serde_json::from_str(&home.run(&["jobs", "list", "--json"]).stdout).unwrap();
    assert!(jobs.to_string().contains("\"cancelled\""), "{jobs}");
    held.open();
    // Its session is no main session.
    let child = format!("sess_subagent_{}", left["id"].as_str().unwrap());
    let refused = run_against(&provider, &home, &["--resume", &child, "write"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    let parent = result["session_id"].as_str().unwrap();
    for part in ["only main sessions can be resumed", "SendMessage", parent] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
}

/// Fault D3: a restriction that cannot be read keeps an agent from starting; the call says which line it is.
#[test]
fn an_agent_does_not_start_without_its_restrictions() {
    for line in ["permissionMode: plann", "disallowedTools: Wirte", "maxTurns: ten", "maxTurns: 0", "maxMinutes: 0.01"] {
        let home = Home::new();
        let profiles = home.root().join("agents");
        std::fs::create_dir_all(&profiles).unwrap();
        std::fs::write(profiles.join("held.md"), format!("---\nname: held\ndescription: d\n{line}\n---\nx\n")).unwrap();
        let provider = Provider::with(|request| match request.turn() {
            0 => Answer::call("a", "Agent", json!({"description": "d", "prompt": "CHILD", "subagent_type": "held"})),
            _ => Answer::text(format!("told: {}", request.tool_results().into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" "))),
        });
        let finished = run_against(&provider, &home, &["go"]);
        for part in ["cannot be read", "held.md:4:", "; write"] {
            assert!(finished.stdout.contains(part), "{line}: {} {}", finished.stdout, finished.stderr);
        }
    }
}

fn id_in(spawn_reply: &str) -> String {
    spawn_reply.split_whitespace().find(|word| word.starts_with("sa_")).unwrap().trim_end_matches(':').to_owned()
}

/// R326, R331, faults A2, S20: a signal to the parent alone ends children and grandchildren; 130, 143, 129.
#[test]
fn a_signal_to_the_run_ends_everything() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let home = Home::new();
        let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
            ("child", 0) => Answer::call("b", "Bash", json!({"command": "sleep 600 & setsid sleep 600 & sleep 600"})),
            ("child", _) => Answer::text("never"),
            (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
            (_, _) => Answer::stall(),
        });
        let mut command = home.command();
        provider.configure(&mut command);
        let child = command.args(["run", "--permission-mode", "yolo", "go"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait::until_true("three sleeps run", || {
            processes::of_home(&home.root()).iter().filter(|process| process.command == "sleep").count() == 3
        });
        wait::until_true("the parent waits for its model", || provider.request_count() >= 3);
        std::process::Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{signal}: {}", String::from_utf8_lossy(&output.stderr));
        // A keeper that has written its record is about to exit; whatever else lives is a leftover.
        let left: Vec<_> = processes::of_home(&home.root()).into_iter().filter(|process| process.state != 'Z').collect();
        assert!(left.iter().all(|process| process.command == "zapmyco-keep"), "{signal}: {left:?}");
        wait::until_true("the keepers have left too", || processes::of_home(&home.root()).is_empty());
    }
}

/// R331, faults A1, S20: a parent that is killed hard leaves nothing, and its child one true end.
#[test]
fn a_hard_death_of_the_run_ends_everything() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", 0) => Answer::call("b", "Bash", json!({"command": "sleep 600"})),
        ("child", _) => Answer::text("never"),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        (_, _) => Answer::stall(),
    });
    let mut command = home.command();
    provider.configure(&mut command);
    let mut child = command.args(["run", "go"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait::until_true("the sleep runs", || processes::of_home(&home.root()).iter().any(|process| process.command == "sleep"));
    child.kill().unwrap();
    child.wait().unwrap();
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
    let listed = home.run(&["jobs", "list", "--json"]);
    let jobs: Value = serde_json::from_str(&listed.stdout).unwrap();
    let agent = jobs["jobs"].as_array().unwrap().iter().find(|job| job["kind"] == "process_agent").unwrap();
    assert_eq!(agent["status"], "cancelled", "{jobs}");
}

/// A reader that has enough ends the run quietly, with 141 and nothing left.
#[test]
fn a_closed_pipe_ends_a_stream_quietly() {
    let home = Home::new();
    let provider = Provider::with(|request| Answer::call(&format!("c{}", request.turn()), "Glob", json!({"pattern": "*"})));
    let mut command = home.command();
    provider.configure(&mut command);
    let mut child =
        command.args(["run", "--output-format", "stream-json", "go"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first_line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut first_line).unwrap();
    assert!(first_line.contains("\"init\""), "{first_line}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141), "{}", String::from_utf8_lossy(&output.stderr));
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}

/// R6, R349, fault I1, I3: a child cannot start children by any route.
#[test]
fn a_child_cannot_start_children() {
    let home = Home::new();
    let binary = crate::support::binary();
    let nested =
        format!("{} run --subagent again; env -u ZAPMYCO_SUBAGENT {0} run again; {0} subagent spawn --session x again", binary.display());
    let provider = Provider::with(move |request| match (request.task().as_str(), request.turn()) {
        ("child", 0) => {
            Answer::call("t", "subagent", json!({"action": "spawn", "task": "again"})).and_call("b", "Bash", json!({"command": nested}))
        }
        ("child", _) => Answer::text(request.tool_results().iter().map(|(_, text)| text.clone()).collect::<Vec<_>>().join("\n===\n")),
        ("again", _) => Answer::text("NESTED"),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        (_, 1) => {
            Answer::call("p", "subagent", json!({"action": "poll", "subagent_ids": [id_in(&request.tool_results()[0].1)], "wait_secs": 30}))
        }
        _ => Answer::text(request.tool_results().last().unwrap().1.clone()),
    });
    let finished = run_against(&provider, &home, &["--permission-mode", "yolo", "go"]);
    assert!(!finished.stdout.contains("NESTED"), "{}", finished.stdout);
    assert_eq!(finished.stdout.matches("not available inside a subagent, do not retry").count(), 3, "{}", finished.stdout);
    let child = provider.requests().into_iter().find(|request| request.task() == "child").unwrap();
    assert!(!child.tool_names().iter().any(|name| name == "subagent" || name == "Agent"));
}

/// R343: the documented form works when typed by hand, with and without `--`.
#[test]
fn the_payload_form_works_by_hand() {
    let home = Home::new();
    let provider = Provider::with(|request| Answer::text(format!("task: {}", request.task())));
    for arguments in [vec!["--subagent", "look"], vec!["--subagent", "--", "-look"]] {
        let finished = run_against(&provider, &home, &arguments);
        assert_eq!(finished.stdout, format!("task: {}\n", arguments.last().unwrap()), "{}", finished.stderr);
    }
}

/// A conversation goes on by `--continue` and by `--resume`; files read before count as read.
#[test]
fn a_session_goes_on() {
    let home = Home::new();
    home.write("a.txt", "one\n");
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Read", json!({"file_path": "a.txt"})),
        1 => Answer::text("read"),
        2 => Answer::call("c2", "Edit", json!({"file_path": "a.txt", "old_string": "one", "new_string": "two"})),
        _ => Answer::text("edited"),
    });
    let first = run_against(&provider, &home, &["--output-format", "json", "read a.txt"]);
    let session = serde_json::from_str::<Value>(&first.stdout).unwrap()["session_id"].as_str().unwrap().to_owned();
    let second = run_against(&provider, &home, &["--continue", "--permission-mode", "acceptEdits", "edit it"]);
    assert_eq!((second.code, second.stdout.as_str()), (0, "edited\n"), "{}", second.stderr);
    assert_eq!(std::fs::read_to_string(home.project().join("a.txt")).unwrap(), "two\n");
    let third = run_against(&provider, &home, &["--resume", &session, "--output-format", "json", "and now?"]);
    assert_eq!(serde_json::from_str::<Value>(&third.stdout).unwrap()["session_id"], session);
    let unknown = run_against(&provider, &home, &["--resume", "sess_00000000-0000-7000-8000-000000000000", "x"]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
}

/// fault J8: no home that can be written is a clear error, with the remedy.
#[test]
fn a_home_that_cannot_be_written_is_a_clear_error() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("hi"));
    let mut command = home.command();
    provider.configure(&mut command);
    // Nothing can be made below /proc, not even by the superuser.
    let finished = crate::support::finish(command.env("ZAPMYCO_HOME", "/proc/zapmyco").args(["run", "hi"]));
    assert_eq!(finished.code, 8, "{}", finished.stderr);
    assert!(finished.stderr.contains("ZAPMYCO_HOME"), "{}", finished.stderr);
}

/// Broken settings: file, line, key, remedy, exit 2.
#[test]
fn broken_settings_are_named() {
    let home = Home::new();
    home.write(".zapmyco/settings.toml", "permission_mode = \"plan\"\nmodell = \"x/y\"\n");
    let finished = home.run(&["run", "hi"]);
    assert_eq!(finished.code, 2);
    assert!(finished.stderr.contains("settings.toml:2") && finished.stderr.contains("modell"), "{}", finished.stderr);
}

/// R333, fault M23: old jobs go once a day; the new ones stay.
#[test]
fn old_jobs_are_cleared_away() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", _) => Answer::text("done"),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        _ => Answer::text("started"),
    });
    assert_eq!(run_against(&provider, &home, &["first"]).code, 0);
    let job_count = || {
        let listed = home.run(&["jobs", "list", "--json"]);
        serde_json::from_str::<Value>(&listed.stdout).unwrap()["jobs"].as_array().unwrap().len()
    };
    assert_eq!(job_count(), 1);
    let keeping_none = |command: &mut std::process::Command| {
        crate::support::finish(provider.configure(command).env("ZAPMYCO_LIMITS_RETENTION_COUNT", "0").args(["run", "child"]))
    };
    assert_eq!(keeping_none(&mut home.command()).code, 0);
    assert_eq!(job_count(), 1, "the first run has looked today");
    let mark = zapmyco::config::Layout::new(home.root()).retention_mark();
    std::fs::File::options().write(true).open(&mark).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(keeping_none(&mut home.command()).code, 0);
    assert_eq!(job_count(), 0);
}

/// Ctrl-C twice is hard: no grace time is waited for, and nothing is left.
#[test]
fn a_second_signal_skips_the_grace_time() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", 0) => Answer::call("b", "Bash", json!({"command": "trap '' TERM INT HUP; sleep 600 & while :; do sleep 600; done"})),
        ("child", _) => Answer::text("never"),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        (_, _) => Answer::stall(),
    });
    let mut command = home.command();
    // A grace time that the test would not outlive.
    provider.configure(&mut command).env("ZAPMYCO_LIMITS_STOP_GRACE", "1h");
    let child = command.args(["run", "--permission-mode", "yolo", "go"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait::until_true("the sleeps run", || {
        processes::of_home(&home.root()).iter().filter(|process| process.command == "sleep").count() == 2
    });
    let interrupt = || std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    interrupt();
    let stop = || find_file(&home.root().join("subagents"), "stop.json");
    wait::until_true("the first signal is on its way to the child", stop);
    interrupt();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}

fn find_file(folder: &std::path::Path, name: &str) -> bool {
    let entries = std::fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.iter().any(|entry| entry.file_name() == name || (entry.path().is_dir() && find_file(&entry.path(), name)))
}

/// Local servers take any key, and people give them short ones: hiding those would garble the message.
#[test]
fn a_key_of_one_letter_garbles_no_message() {
    let home = Home::new();
    let provider = Provider::always(Answer::error(400, "take another key"));
    let mut command = home.command();
    provider.configure(&mut command);
    let finished = crate::support::finish(command.env("ANTHROPIC_API_KEY", "e").args(["run", "hi"]));
    assert_eq!(finished.code, 6, "{finished:?}");
    assert!(finished.stderr.contains("take another key"), "{finished:?}");
}

const MANY_CHILDREN: &str = r#"
version: 1
scripts:
- match: "^c[0-9]"
  turns: [{text: done, delay_ms: 300}]
- turns:
  - calls: [{name: subagent, each: "{{ range(30) | list }}", input: {action: spawn, task: "c{{ item }}"}}]
  - calls:
    - name: subagent
      input: {action: poll, wait_secs: 30, subagent_ids: "{{ results | join(' ') | regex_find_all('sa_[0-9]{8}_[0-9a-f]{8}') }}"}
  - text: "{{ history[0] | join('\n=====\n') }}\n#####\n{{ history[1][0] }}"
"#;

/// fault S13: spawns fail with the reason; no job that was started is lost sight of while descriptors are short.
#[test]
fn without_descriptors_no_started_child_is_lost_sight_of() {
    let home = Home::new();
    home.write("many.yaml", MANY_CHILDREN);
    for descriptors in [40, 48, 56] {
        let command = home.command();
        let limited = Command::new("sh")
            .args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"")])
            .arg(crate::support::binary())
            .args(["run", "--model", "script:many.yaml", "go"])
            .env_clear()
            .envs(command.get_envs().filter_map(|(name, value)| value.map(|value| (name.to_owned(), value.to_owned()))))
            .current_dir(home.project())
            .output()
            .unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&limited.stdout), String::from_utf8_lossy(&limited.stderr));
        assert_eq!(limited.status.code(), Some(0), "{stdout}{stderr}");
        let (replies, polled) = stdout.split_once("\n#####\n").unwrap_or_else(|| panic!("{stdout}{stderr}"));
        let (started, refused): (Vec<&str>, Vec<&str>) =
            replies.split("\n=====\n").partition(|reply| reply.starts_with("[SubAgent] sa_") && reply.contains(": running\n"));
        assert_eq!(started.len() + refused.len(), 30, "{stdout}{stderr}");
        assert!(!started.is_empty() && !refused.is_empty(), "{stdout}{stderr}");
        assert!(refused.iter().all(|reply| reply.contains("Too many open files")), "{stdout}{stderr}");
        let started: BTreeSet<String> = started.iter().map(|reply| id_in(reply)).collect();
        let ended: BTreeSet<String> = polled.lines().filter(|line| line.starts_with(">>> sa_")).map(id_in).collect();
        assert_eq!(ended, started, "what was refused was not started: {stdout}{stderr}");
        assert!(!stderr.contains("cannot be followed"), "{stdout}{stderr}");
    }
    assert_eq!(home.run(&["jobs", "sweep"]).code, 0);
}

/// R353: a child has its parent's mode, and never a wider one, whatever its own settings say.
#[test]
fn a_child_has_the_rights_of_its_parent() {
    let home = Home::new();
    std::fs::write(home.root().join("settings.toml"), "permission_mode = \"yolo\"\n").unwrap();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", 0) => Answer::call("w", "Write", json!({"file_path": "written", "content": "x"})).and_call(
            "b",
            "Bash",
            json!({"command": "git init -q touched"}),
        ),
        ("child", _) => Answer::text("done"),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        _ => Answer::text("fine"),
    });
    let exists = |name: &str| home.project().join(name).exists();
    run_against(&provider, &home, &["--permission-mode", "plan", "go"]);
    assert_eq!((exists("written"), exists("touched")), (false, false));
    run_against(&provider, &home, &["--permission-mode", "acceptEdits", "go"]);
    assert_eq!((exists("written"), exists("touched")), (true, false));
    run_against(&provider, &home, &["go"]);
    assert_eq!((exists("written"), exists("touched")), (true, true));
}

/// R355, R356: a poll that waits uses no turn of the model, and answers when the child ends.
#[test]
fn a_waiting_poll_uses_no_turn() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", _) => Answer::text("late").after(Duration::from_millis(1200)),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        (_, 1) => Answer::call("p", "subagent", json!({"action": "poll", "subagent_ids": [id_in(&request.tool_results()[0].1)]})),
        _ => Answer::text(request.tool_results().last().unwrap().1.clone()),
    });
    let finished = run_against(&provider, &home, &["go"]);
    assert!(finished.stdout.contains("completed") && finished.stdout.contains("late"), "{}", finished.stdout);
    assert_eq!(provider.requests().iter().filter(|request| request.task() == "go").count(), 3);
}
