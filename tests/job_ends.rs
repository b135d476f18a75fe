//! Flow: every way a job can end leads to one final state that is told once, and what belongs to one job never shows under
//! another one's id.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::provider::{Answer, Gate, Provider, RecordedRequest};
use crate::support::{Home, finish, processes, wait};

fn command(provider: &Provider, home: &Home, arguments: &[&str]) -> Command {
    let mut command = home.command();
    provider.configure(&mut command);
    command.arg("run").args(arguments);
    command
}

fn lines_of(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn background(prompt: &str) -> Value {
    json!({"description": prompt, "prompt": prompt, "run_in_background": true})
}

fn is_parent(request: &RecordedRequest) -> bool {
    request.task() == "PARENT"
}

/// The ids of local agents in all results so far, in the order of their launch.
fn agent_ids(request: &RecordedRequest) -> Vec<String> {
    let texts = request.tool_results().into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n");
    let mut ids: Vec<String> = Vec::new();
    for part in texts.split("agent_").skip(1) {
        let id = format!(
            "agent_{}",
            part.chars().take_while(|character| character.is_ascii_hexdigit() || *character == '-').collect::<String>()
        );
        if id.len() > 20 && !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

fn metadata(home: &Home) -> BTreeMap<String, Value> {
    let sessions = std::fs::read_dir(home.root().join("cli/agents")).unwrap().flatten();
    let folders = sessions.flat_map(|session| std::fs::read_dir(session.path()).unwrap().flatten());
    let read = |folder: std::fs::DirEntry| -> Value {
        serde_json::from_slice(&std::fs::read(folder.path().join("metadata.json")).unwrap()).unwrap()
    };
    folders.map(read).map(|stored| (stored["prompt"].as_str().unwrap().to_owned(), stored)).collect()
}

/// How often the parent was told of the end of this job, over the whole conversation.
fn notices(provider: &Provider, id: &str) -> usize {
    let last = provider.requests().into_iter().rfind(is_parent).unwrap();
    last.texts("user").iter().map(|text| text.matches(&format!("<task-id>{id}</task-id>")).count()).sum()
}

/// R197, R329: an agent in the background that finishes, fails, is stopped, falls silent or reaches its turn limit: one final
/// state in its record, one `subagent_stopped` with the same word, one notification to the model.
#[test]
fn every_end_of_an_agent_is_one_state_one_event_and_one_notice() {
    let home = Home::new();
    home.write(".zapmyco/agents/short.md", "---\nname: short\ndescription: d\nmaxTurns: 1\n---\nbe short\n");
    let ready = Gate::new();
    let opened = ready.clone();
    let provider = Provider::with(move |request| match (request.task().as_str(), request.turn()) {
        ("PARENT", 0) => {
            let mut short = background("CHILD limit");
            short["subagent_type"] = json!("short");
            Answer::new()
                .and_call("a1", "Agent", background("CHILD good"))
                .and_call("a2", "Agent", background("CHILD broken"))
                .and_call("a3", "Agent", background("CHILD stopped"))
                .and_call("a4", "Agent", background("CHILD silent"))
                .and_call("a5", "Agent", short)
        }
        ("PARENT", 1) => {
            let ids = agent_ids(request);
            opened.open();
            Answer::call("stop", "TaskStop", json!({"task_id": ids[2]}))
        }
        ("PARENT", _) => Answer::text("heard"),
        ("CHILD good", _) => Answer::text("good report").when(&ready),
        ("CHILD broken", _) => Answer::error(400, "refused by test"),
        ("CHILD limit", 0) => Answer::text("one").and_call("g", "Glob", json!({"pattern": "*"})),
        ("CHILD limit", _) => Answer::text("closing report"),
        // The stopped and the silent one.
        (_, 0) => Answer::text("found so far").and_call("g", "Glob", json!({"pattern": "*"})),
        _ => Answer::stall(),
    });
    let mut run = command(&provider, &home, &["PARENT", "--output-format", "stream-json"]);
    let finished = finish(run.env("ZAPMYCO_LIMITS_BACKGROUND_INACTIVITY_LIMIT", "3s").env("ZAPMYCO_LIMITS_STOP_GRACE", "1s"));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let lines = lines_of(&finished.stdout);
    let stored = metadata(&home);
    assert_eq!(stored.len(), 5, "{stored:?}");
    for (prompt, status, event) in [
        ("CHILD good", "completed", "completed"),
        ("CHILD broken", "failed", "failed"),
        ("CHILD stopped", "stopped", "stopped"),
        ("CHILD silent", "failed", "failed"),
        ("CHILD limit", "completed", "completed"),
    ] {
        let record = &stored[prompt];
        let id = record["agentId"].as_str().unwrap();
        assert_eq!(record["status"], status, "{prompt}: {record}");
        let stopped: Vec<&Value> = lines.iter().filter(|line| line["subtype"] == "subagent_stopped" && line["agent_id"] == id).collect();
        assert_eq!(stopped.len(), 1, "{prompt}: {stopped:?}");
        assert_eq!(stopped[0]["status"], event, "{prompt}: {stopped:?}");
        let ended = lines.iter().filter(|line| line["subtype"] == "task_notification" && line["task_id"] == id).count();
        assert_eq!(ended, 1, "{prompt}");
        assert_eq!(notices(&provider, id), 1, "{prompt}");
        let output = std::fs::read_to_string(stopped[0]["output_file"].as_str().unwrap()).unwrap();
        let kept = match prompt {
            "CHILD good" => "good report",
            "CHILD broken" => "refused by test",
            "CHILD limit" => "closing report",
            _ => "found so far",
        };
        assert!(output.contains(kept), "{prompt}: {output}");
    }
}

/// R329: a stop and an end at the same moment: whoever comes first decides, for every surface alike.
#[test]
fn a_race_between_end_and_stop_has_one_winner() {
    for round in 0..6 {
        let home = Home::new();
        let ready = Gate::new();
        let opened = ready.clone();
        let provider = Provider::with(move |request| match (request.task().as_str(), request.turn()) {
            ("PARENT", 0) => Answer::call("a1", "Agent", background("CHILD")),
            ("PARENT", 1) => {
                // Both answers are on their way at once; which is first differs from round to round.
                opened.open();
                std::thread::sleep(std::time::Duration::from_millis(round * 2));
                Answer::call("stop", "TaskStop", json!({"task_id": agent_ids(request)[0]}))
            }
            ("PARENT", _) => Answer::text("heard"),
            _ => Answer::text("report").when(&ready),
        });
        let finished = finish(&mut command(&provider, &home, &["PARENT", "--output-format", "stream-json"]));
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let lines = lines_of(&finished.stdout);
        let stored = metadata(&home).remove("CHILD").unwrap();
        let status = stored["status"].as_str().unwrap();
        assert!(matches!(status, "completed" | "stopped"), "{stored}");
        let id = stored["agentId"].as_str().unwrap();
        let told: Vec<&Value> = lines.iter().filter(|line| line["subtype"] == "subagent_stopped").collect();
        assert_eq!((told.len(), &told[0]["status"]), (1, &json!(status)), "round {round}: {told:?}");
        let result = provider.requests().iter().flat_map(RecordedRequest::tool_results).find(|(call, _)| call == "stop").unwrap().1;
        let expected = if status == "stopped" { "Successfully stopped task" } else { "is not running (status: completed)" };
        assert!(result.contains(expected), "round {round}: {status}: {result}");
        assert_eq!(notices(&provider, id), 1, "round {round}");
    }
}

/// R330: two children at work at the same time: each text, call, result, refusal and file stands under its own id alone, and
/// the id of another session is unknown to every tool.
#[test]
fn nothing_of_one_child_shows_under_another_id() {
    let home = Home::new();
    home.write("alpha.txt", "content of ALPHA\n");
    home.write("beta.txt", "content of BETA\n");
    let provider = Provider::with(|request| {
        let task = request.task();
        match (task.as_str(), request.turn()) {
            ("PARENT", 0) => Answer::call("a1", "Agent", background("ALPHA")).and_call("a2", "Agent", background("BETA")),
            ("PARENT", _) => Answer::text("heard"),
            (word @ ("ALPHA" | "BETA"), turn) => match turn {
                0..4 => Answer::text(format!("thought {turn} of {word}"))
                    .and_call("same_id", "Read", json!({"file_path": format!("{}.txt", word.to_lowercase())}))
                    .and_call("denied", "Bash", json!({"command": format!("rm {word}")})),
                _ => Answer::text(format!("report of {word}")),
            },
            _ => Answer::text("unused"),
        }
    });
    let finished =
        finish(&mut command(&provider, &home, &["PARENT", "--output-format", "stream-json", "--forward-subagent-text", "--ignore-denied"]));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let lines = lines_of(&finished.stdout);
    let stored = metadata(&home);
    let ids: BTreeMap<&str, &str> = ["ALPHA", "BETA"].map(|word| (word, stored[word]["agentId"].as_str().unwrap())).into();
    for (word, other) in [("ALPHA", "BETA"), ("BETA", "ALPHA")] {
        let own: Vec<&Value> = lines.iter().filter(|line| line["agent_id"] == ids[word] || line["task_id"] == ids[word]).collect();
        let text = serde_json::to_string(&own).unwrap();
        assert!(own.len() > 10 && text.contains(&format!("thought 3 of {word}")) && text.contains(&format!("content of {word}")), "{text}");
        assert!(!text.contains(other) && !text.contains(ids[other]) && !text.contains(&other.to_lowercase()), "{word}: {text}");
        let folder = std::path::Path::new(own.iter().find_map(|line| line["output_file"].as_str()).unwrap());
        assert_eq!(std::fs::read_to_string(folder).unwrap(), format!("report of {word}"));
        let requests: Vec<String> = provider
            .requests()
            .iter()
            .filter(|request| request.task() == word)
            .map(|request| String::from_utf8_lossy(&request.body).into_owned())
            .collect();
        assert!(requests.iter().all(|request| !request.contains(other)), "{word}");
    }
    let result = lines.last().unwrap();
    let denials = result["permission_denials"].as_array().unwrap();
    assert_eq!(denials.len(), 8, "{denials:?}");
    for denial in denials {
        let word = denial["tool_input"]["command"].as_str().unwrap().trim_start_matches("rm ");
        assert_eq!(denial["agent_id"], ids[word], "{denial}");
    }
    // Another session of the same folder and home: both ids are nobody.
    let (alpha, beta) = (ids["ALPHA"].to_owned(), ids["BETA"].to_owned());
    let stranger = Provider::with(move |request| match request.turn() {
        0 => Answer::new()
            .and_call("o", "TaskOutput", json!({"task_id": alpha, "block": false}))
            .and_call("s", "TaskStop", json!({"task_id": beta}))
            .and_call("m", "SendMessage", json!({"to": alpha, "summary": "hello", "message": "hello"})),
        _ => Answer::text("done"),
    });
    assert_eq!(finish(&mut command(&stranger, &home, &["STRANGER"])).code, 0);
    for (call, text) in stranger.requests()[1].tool_results() {
        assert!(!text.contains("report of") && !text.contains("Successfully"), "{call}: {text}");
        assert!(text.contains("No task found with ID") || text.contains("no agent"), "{call}: {text}");
    }
}

/// R193: what is read of a job is bounded: both ends, a mark in the middle, and where the whole lies.
#[test]
fn a_long_output_is_cut_in_the_middle_and_names_its_file() {
    let home = Home::new();
    let provider = Provider::with(|request| match request.turn() {
        0 => {
            let command = "echo FIRST; head -c 100000 /dev/zero | tr '\\0' x; echo; echo LAST";
            Answer::call("b", "Bash", json!({"command": command, "run_in_background": true, "description": "much"}))
        }
        1 => {
            let text = request.tool_results()[0].1.clone();
            let id =
                text.split("sh_").nth(1).unwrap().chars().take_while(|character| character.is_ascii_alphanumeric() || *character == '_');
            Answer::call("o", "TaskOutput", json!({"task_id": format!("sh_{}", id.collect::<String>())}))
        }
        _ => Answer::text("done"),
    });
    let finished = finish(&mut command(&provider, &home, &["PARENT", "--permission-mode", "yolo"]));
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = provider.requests();
    let (_, text) = requests.last().unwrap().tool_results().into_iter().find(|(call, _)| call == "o").unwrap();
    let output = text.split("<output>\n").nth(1).unwrap().split("\n</output>").next().unwrap();
    assert!(output.starts_with("FIRST\n") && output.contains(" bytes left out ...]\n"), "{}", &output[..200]);
    let (shown, path) = output.rsplit_once("\n[Truncated. Full output: ").unwrap();
    assert!(shown.ends_with("\nLAST") && shown.len() <= 32_000 + 60, "{}", shown.len());
    let whole = std::fs::read_to_string(path.trim_end_matches(']')).unwrap();
    assert_eq!(whole.len(), "FIRST\n".len() + 100_000 + "\nLAST\n".len());
    wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
}
