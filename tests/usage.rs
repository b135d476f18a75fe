//! Flow: the command line at its edges: values that are wrong where nobody looks, answers that cannot be written, words
//! that were meant otherwise, a server that is asked what it has.

use std::fs::OpenOptions;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::provider::{Answer, Provider};
use crate::support::{Home, finish, processes, wait};

/// A value that a flag or a stronger file overrides must be right all the same.
#[test]
fn a_broken_value_is_found_also_where_another_one_wins() {
    for (settings, arguments, says) in [
        ("model = 5\n", vec!["--model", "script:a.yaml"], ":1: model = 5: "),
        ("\nbase_url = [\"x\"]\n", vec!["--base-url", "http://127.0.0.1:1", "--model", "script:a.yaml"], ":2: base_url = [\"x\"]: "),
        (
            "permission_mode = \"yolow\"\n",
            vec!["--permission-mode", "plan", "--model", "script:a.yaml"],
            ":1: permission_mode = \"yolow\": ",
        ),
        ("[providers.lab]\nkind = \"openia\"\n", vec!["--model", "script:a.yaml"], ":2: providers.lab.kind = \"openia\": "),
        ("[permissions]\nallow = \"Read\"\n", vec!["--model", "script:a.yaml"], "permissions.allow = \"Read\": "),
        ("[permissions]\ndeny = [\"Bash(\"]\n", vec!["--model", "script:a.yaml"], ":2: permissions.deny"),
        ("[memory]\nenabled = \"perhaps\"\n", vec!["--model", "script:a.yaml"], ":2: memory.enabled = \"perhaps\": "),
        ("[budget]\nturns = \"many\"\n", vec!["--model", "script:a.yaml"], ":2: budget.turns = \"many\": "),
        ("[prices.\"a/b\"]\ninput = \"cheap\"\n", vec!["--model", "script:a.yaml"], ":2: prices.\"a/b\".input = \"cheap\": "),
        ("permission_prompt = 5\n", vec!["--permission-prompt", "never", "--model", "script:a.yaml"], ":1: permission_prompt = 5: "),
        ("[web]\nallow_private = 5\n", vec!["--model", "script:a.yaml"], ":2: web.allow_private = 5: "),
        ("[skills]\nrefused_in_children = 5\n", vec!["--model", "script:a.yaml"], ":2: skills.refused_in_children = 5: "),
        ("[agents.models]\nsonnet = 5\n", vec!["--model", "script:a.yaml"], ":2: agents.models.sonnet = 5: "),
    ] {
        let home = Home::new();
        home.write("a.yaml", "version: 1\nscripts:\n  - match: \".\"\n    turns: [{text: done}]\n");
        let file = home.root().join("settings.toml");
        std::fs::write(&file, settings).unwrap();
        let run = home.run(&[&["run"], arguments.as_slice(), &["hi"]].concat());
        assert_eq!(run.code, 2, "{settings}: {run:?}");
        assert!(run.stderr.contains(&file.display().to_string()) && run.stderr.contains(says), "{settings}: {}", run.stderr);
        // Settings are shown by whoever looks for the mistake.
        let shown = home.run(&["config", "show"]);
        assert_eq!((shown.code, shown.stdout.as_str()), (2, ""), "{settings}: {shown:?}");
        assert!(shown.stderr.contains(says), "{settings}: {}", shown.stderr);
    }
    let home = Home::new();
    std::fs::write(home.root().join("settings.toml"), "[limits]\nstop_grace = \"soon\"\n").unwrap();
    let finished = finish(home.command().env("ZAPMYCO_LIMITS_STOP_GRACE", "1s").args(["config", "show"]));
    assert!(finished.code == 2 && finished.stderr.contains(":2: limits.stop_grace = \"soon\": "), "{finished:?}");
}

/// A provider of which no model could ever be asked is a mistake, whether or not it is the chosen one.
#[test]
fn config_show_reports_a_provider_that_cannot_work() {
    for (settings, says) in [
        ("[providers.lab]\nkind = \"openai\"\n", "[providers.lab] lacks `base_url`"),
        ("[providers.lab]\nbase_url = \"http://127.0.0.1:1\"\n", "[providers.lab] lacks `kind`"),
        ("[providers.lab]\nkind = \"openai\"\nbase_url = \"ftp://x\"\n", "the base URL `ftp://x` of provider `lab` is not usable"),
        ("[providers.anthropic]\napi_key_file = \"/nowhere/key\"\n", "cannot read the key file /nowhere/key"),
    ] {
        let home = Home::new();
        let file = home.root().join("settings.toml");
        std::fs::write(&file, settings).unwrap();
        let shown = home.run(&["config", "show", "--json"]);
        assert_eq!(shown.code, 2, "{settings}: {shown:?}");
        assert!(shown.stderr.contains(&format!("{}:1: {says}", file.display())), "{settings}: {}", shown.stderr);
    }
    let home = Home::new();
    std::fs::write(home.root().join("settings.toml"), "[providers.anthropic]\napi_key_env = \"UNSET\"\n").unwrap();
    assert_eq!(home.run(&["config", "show"]).code, 0, "a key that is not set is no mistake in the file");
}

/// What cannot be written was not answered: a message and a code; a reader that has enough is no error.
#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let home = Home::new();
    for arguments in
        [&["--help"][..], &["--version"], &["-V"], &["run", "--help"], &["help"], &["completions", "zsh"], &["config", "defaults"]]
    {
        let output = home.command().args(arguments).stdout(full()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_eq!(stderr, "zapmyco: cannot write to stdout: No space left on device (os error 28)\n", "{arguments:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = home.command().args(arguments).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(141), 0), "{arguments:?}: {output:?}");
    }
}

/// Nobody was told the id: the child is stopped again, and stderr says so.
#[test]
fn a_spawn_that_cannot_say_its_id_leaves_nothing() {
    let home = Home::new();
    let provider = Provider::always(Answer::stall());
    for as_json in [false, true] {
        let mut command = home.command();
        provider.configure(&mut command);
        command.args(["subagent", "spawn", "--session", "ci"]).args(as_json.then_some("--json")).arg("work");
        let output = command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let id = stderr.split("the id ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        assert!(stderr.contains("could not be written to stdout; the subagent is stopped again"), "{stderr}");
        let shown: Value = serde_json::from_str(&home.run(&["jobs", "show", id, "--json"]).stdout).unwrap();
        assert_eq!(shown["status"], "cancelled", "{shown}");
        wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
    }
}

#[test]
fn several_words_are_one_task_in_quotes() {
    let home = Home::new();
    for arguments in [&["run", "hi", "there"][..], &["run", "--quiet", "hi", "there", "you"], &["subagent", "spawn", "hi", "there"]] {
        let finished = home.run(arguments);
        assert_eq!(finished.code, 2);
        assert!(finished.stderr.contains("put it in quotes, for example \"... there ...\""), "{}", finished.stderr);
    }
    let flag = home.run(&["run", "--nonsense", "hi"]);
    assert!(flag.code == 2 && !flag.stderr.contains("in quotes"), "{}", flag.stderr);
}

/// Closed sets are listed in help, completions and errors; names of other tools are accepted and not listed.
#[test]
fn closed_sets_are_completed() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = home.run(&["completions", shell]).stdout;
        for word in ["acceptEdits", "yolo", "stream-json", "detach"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(!script.contains("bypassPermissions"), "{shell}");
    }
    let help = home.run(&["run", "--help"]).stdout;
    assert!(help.contains("acceptEdits") && help.contains("reading only"), "{help}");
    let wrong = home.run(&["run", "--permission-mode", "acceptedit", "hi"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("[possible values: plan, dontAsk, default, auto, acceptEdits, yolo]"), "{}", wrong.stderr);
    for alias in ["read-only", "bypassPermissions", "accept-edits", "build"] {
        home.write("a.yaml", "version: 1\nscripts:\n  - match: \".\"\n    turns: [{text: done}]\n");
        assert_eq!(home.run(&["run", "--permission-mode", alias, "--model", "script:a.yaml", "hi"]).code, 0, "{alias}");
    }
}

/// An address without the name of a model: the server is asked.
#[test]
fn a_server_is_asked_for_its_models() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("hello"));
    let run = |arguments: &[&str]| finish(home.command().args(["run", "--base-url", &provider.base_url()]).args(arguments).arg("hi"));
    provider.set_models(&["only-one"]);
    let finished = run(&[]);
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "hello\n"), "{}", finished.stderr);
    assert!(finished.stderr.contains("model openai/only-one: no model was named, and ") && finished.stderr.contains("the only one there"));
    provider.set_models(&["nomic-embed-text", "first", "second"]);
    let finished = run(&[]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stderr.contains("model openai/first: ") && finished.stderr.contains("2 more there; choose with --model openai/<id>"));
    let sent: Vec<Value> = provider.requests().iter().map(|request| request.json["model"].clone()).collect();
    assert_eq!(sent, [json!("only-one"), json!("first")]);
    provider.set_models(&[]);
    let finished = run(&[]);
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("it lists no model that can hold a conversation; name one with --model openai/<model-id>"),
        "{}",
        finished.stderr
    );
    let nobody = crate::support::provider::Refusing::new();
    let finished = home.run(&["run", "--base-url", &format!("http://{}", nobody.address), "hi"]);
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("no model was named, and ") && finished.stderr.contains("does not say which it has"),
        "{}",
        finished.stderr
    );
    assert_eq!(run(&["--model", "openai/named"]).code, 0, "a name is never looked up");
}

/// A recording begins with its session.
#[test]
fn a_continued_session_is_not_recorded() {
    let home = Home::new();
    home.write("a.yaml", "version: 1\nscripts:\n  - match: \".\"\n    turns: [{text: one}, {text: two}]\n");
    assert_eq!(home.run(&["run", "--model", "script:a.yaml", "--record", "first.jsonl", "hi"]).code, 0);
    for again in [&["--continue"][..], &["--resume", "sess_01920000-0000-7000-8000-000000000000"]] {
        let finished = home.run(&[&["run", "--model", "script:a.yaml", "--record", "second.jsonl"], again, &["more"]].concat());
        assert_eq!(finished.code, 2, "{finished:?}");
        assert!(finished.stderr.contains("a recording begins with its session"), "{}", finished.stderr);
        assert!(!home.project().join("second.jsonl").exists());
    }
    // One that was made of a continued session all the same says what is wrong with it.
    let lines = std::fs::read_to_string(home.project().join("first.jsonl")).unwrap();
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines[1]["turn"] = json!(2);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    home.write("headless.jsonl", &text);
    let finished = home.run(&["run", "--model", "replay:headless.jsonl", "hi"]);
    assert_eq!(finished.code, 2, "{finished:?}");
    assert!(finished.stderr.contains("begins in turn 2 of a conversation"), "{}", finished.stderr);
}

/// A demo in which one subagent did not report has not shown what it is there to show.
#[test]
fn a_demo_without_every_report_fails() {
    let home = Home::new();
    for folder in ["a", "b", "c"] {
        home.write(&format!("{folder}/x.rs"), "fn x() {\n}\n");
    }
    assert_eq!(home.run(&["demo"]).code, 0);
    // None of its subagents lives long enough.
    let limited = finish(home.command().env("ZAPMYCO_LIMITS_PROCESS_TIME_LIMIT", "1ms").arg("demo"));
    assert_eq!(limited.code, 1, "{}\n{}", limited.stdout, limited.stderr);
    assert!(limited.stdout.contains("0 of 3 subagents reported."), "{}", limited.stdout);
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}
