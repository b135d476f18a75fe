//! What tests of agents in this process share: who asks, and what lies on disk.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::provider::{Provider, RecordedRequest};
use super::{Finished, Home, finish};

pub fn command(provider: &Provider, home: &Home, arguments: &[&str]) -> Command {
    let mut command = home.command();
    provider.configure(&mut command);
    command.arg("run").args(arguments);
    command
}

pub fn run(provider: &Provider, home: &Home, arguments: &[&str]) -> Finished {
    finish(&mut command(provider, home, arguments))
}

/// The command with its output kept, going on beside the test.
pub fn beside(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn ended(child: Child) -> Finished {
    let output = child.wait_with_output().unwrap();
    Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

pub fn agent(prompt: &str) -> Value {
    json!({"description": "count the files", "prompt": prompt})
}

pub fn background(prompt: &str) -> Value {
    json!({"description": "count the files", "prompt": prompt, "run_in_background": true})
}

/// The main session's requests begin with this word; all others are children's.
pub fn is_parent(request: &RecordedRequest) -> bool {
    request.task().starts_with("PARENT")
}

pub fn parents(provider: &Provider) -> Vec<RecordedRequest> {
    provider.requests().into_iter().filter(is_parent).collect()
}

pub fn children(provider: &Provider) -> Vec<RecordedRequest> {
    provider.requests().into_iter().filter(|request| !is_parent(request)).collect()
}

/// The folders of all local agents, by name.
pub fn folders(home: &Home) -> Vec<PathBuf> {
    let Ok(sessions) = std::fs::read_dir(home.root().join("cli/agents")) else { return Vec::new() };
    let inside = |session: std::fs::DirEntry| std::fs::read_dir(session.path()).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = sessions.flatten().flat_map(inside).map(|entry| entry.path()).collect();
    folders.retain(|folder| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("agent_")));
    folders.sort();
    folders
}

pub fn metadata(folder: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(folder.join("metadata.json")).ok()?).ok()
}

pub fn only_metadata(home: &Home) -> Value {
    let folders = folders(home);
    assert_eq!(folders.len(), 1, "{folders:?}");
    metadata(&folders[0]).unwrap()
}

pub fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// The session that was used last.
pub fn newest_session(home: &Home) -> String {
    json_of(&home.run(&["sessions", "list", "--json"]))["sessions"][0]["id"].as_str().unwrap().to_owned()
}
