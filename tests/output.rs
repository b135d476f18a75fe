//! Flow: the machine formats of a run (section AC).

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::Home;
use crate::support::provider::{Answer, Provider};

fn stream(provider: &Provider, home: &Home, arguments: &[&str]) -> Vec<Value> {
    let mut command = home.command();
    provider.configure(&mut command);
    let finished = crate::support::finish(command.args(["run", "--output-format", "stream-json"]).args(arguments));
    finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// R319
#[test]
fn the_result_object_has_every_field() {
    let home = Home::new();
    let provider = Provider::always(Answer::text("yes").with_usage(100, 20));
    let mut command = home.command();
    provider.configure(&mut command);
    let finished = crate::support::finish(command.args(["run", "--output-format", "json", "hi"]));
    let result: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(result["type"], "result");
    assert_eq!(result["subtype"], "success");
    assert_eq!(result["is_error"], json!(false));
    assert_eq!(result["num_turns"], 1);
    assert_eq!(result["result"], "yes");
    assert_eq!(result["usage"]["input_tokens"], 100);
    assert_eq!(result["usage"]["output_tokens"], 20);
    for key in [
        "duration_ms",
        "session_id",
        "total_cost_usd",
        "modelUsage",
        "permission_denials",
        "ok",
        "exit_code",
        "end_cause",
        "partial",
        "schema_version",
        "jobs_left",
    ] {
        assert!(result.get(key).is_some(), "{key}: {result}");
    }
    assert_eq!(result["modelUsage"].as_object().unwrap().len(), 1);
    assert_eq!(finished.stdout.lines().count(), 1);
}

/// R320
#[test]
fn a_failed_run_carries_its_errors() {
    let home = Home::new();
    let provider = Provider::always(Answer::error(401, "invalid x-api-key"));
    let lines = stream(&provider, &home, &["hi"]);
    let result = lines.last().unwrap();
    assert_eq!(result["subtype"], "error_during_execution");
    assert_eq!(result["errors"].as_array().unwrap().len(), 1, "{result}");
    assert!(result["errors"][0].as_str().unwrap().contains("invalid x-api-key"), "{result}");
}

/// R321, R324: init first, then messages, the result last; a denial has a line of its own.
#[test]
fn the_stream_has_init_first_and_the_result_last() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("c1", "Write", json!({"file_path": "x", "content": "y"})).and_text("trying"),
        _ => Answer::text("denied"),
    });
    let lines = stream(&provider, &home, &["write x"]);
    let first = &lines[0];
    assert_eq!((first["type"].as_str(), first["subtype"].as_str()), (Some("system"), Some("init")));
    for key in ["session_id", "cwd", "tools", "agents", "mcp_servers", "model", "permissionMode"] {
        assert!(first.get(key).is_some(), "{key}: {first}");
    }
    assert_eq!(lines.iter().filter(|line| line["type"] == "result").count(), 1);
    assert_eq!(lines.last().unwrap()["type"], "result");
    let denied = lines.iter().find(|line| line["subtype"] == "permission_denied").unwrap();
    assert_eq!((denied["tool_name"].as_str(), denied["tool_use_id"].as_str()), (Some("Write"), Some("c1")));
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).filter(|kind| *kind != "system").collect();
    assert_eq!(kinds, ["user", "assistant", "user", "assistant", "result"]);
}

/// R323, fault J5: a child's start and end have lines with its id and the call that started it.
#[test]
fn the_stream_shows_children() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", _) => Answer::text("done"),
        (_, 0) => Answer::call("s1", "subagent", json!({"action": "spawn", "task": "child"})),
        _ => Answer::text("fine"),
    });
    let lines = stream(&provider, &home, &["go"]);
    let started = lines.iter().find(|line| line["subtype"] == "task_started").unwrap();
    let ended = lines.iter().find(|line| line["subtype"] == "task_notification").unwrap();
    assert_eq!(started["tool_use_id"], "s1");
    assert_eq!(started["task_id"], ended["task_id"]);
    assert_eq!(ended["status"], "completed");
    assert!(std::path::Path::new(ended["output_file"].as_str().unwrap()).exists());
}

/// fault B8: complete JSON whatever the reader's speed.
#[test]
fn a_slow_reader_gets_every_byte() {
    let home = Home::new();
    let long = "0123456789abcdef".repeat(5 * 1024 * 1024 / 16);
    let expected = long.clone();
    let provider = Provider::always(Answer::text(long));
    for format in ["json", "stream-json"] {
        let mut command = home.command();
        provider.configure(&mut command);
        let mut child =
            command.args(["run", "--output-format", format, "go"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut text = String::new();
        // The reader begins only when the pipe is full or the run has written all it will.
        crate::support::wait::until_true("the run has something to say", || {
            let mut waiting: nix::libc::c_int = 0;
            pending(&stdout, &mut waiting);
            waiting > 0 || child.try_wait().unwrap().is_some()
        });
        std::io::Read::read_to_string(&mut stdout, &mut text).unwrap();
        assert!(child.wait().unwrap().success());
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["result"].as_str().map(str::len), Some(expected.len()));
    }
}

fn pending(pipe: &std::process::ChildStdout, waiting: &mut nix::libc::c_int) {
    *waiting = rustix::io::ioctl_fionread(pipe).map_or(0, |bytes| bytes.try_into().unwrap_or(nix::libc::c_int::MAX));
}

/// fault B11: control bytes of a child stay out of the terminal and inside JSON strings.
#[test]
fn control_bytes_are_harmless() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::call("b", "Bash", json!({"command": r"printf '\033[31mred\r\007\033]8;;http://x\033\\'"})),
        _ => Answer::text("done"),
    });
    let lines = stream(&provider, &home, &["--permission-mode", "yolo", "go"]);
    assert_eq!(lines.last().unwrap()["ok"], json!(true));
    let told = provider.requests()[1].tool_results()[0].1.clone();
    assert!(told.contains("red") && !told.contains('\u{1b}') && !told.contains('\u{7}'), "{told:?}");
}
