//! The tools Bash, TaskOutput and TaskStop: foreground, background, the move between the two, and what is left behind.

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use zapmyco::agent::event::EventKind;
use zapmyco::agent::tool::{FailureKind, Tool};
use zapmyco::permissions::Effect;
use zapmyco::tools::bash::BashTool;

use crate::support::Home;
use crate::support::delegating::{Parent, nothing_left, parent, until_true};

fn shell_folders(parent: &Parent) -> usize {
    let folder = parent.layout.session_jobs(zapmyco::ids::JobKind::Shell, &parent.session);
    std::fs::read_dir(folder).map_or(0, |entries| entries.count())
}

/// The id in the answer about a background command.
fn id_in(text: &str) -> String {
    text.split("ID: ").nth(1).unwrap().split('.').next().unwrap().to_owned()
}

/// R199: output, exit code, no state between calls, nothing left on disk.
#[tokio::test]
async fn a_foreground_command_answers_and_leaves_nothing() {
    let home = Home::new();
    let parent = parent(&home).build();
    let run = async |command: &str| parent.bash(json!({"command": command})).await.unwrap().text;
    assert_eq!(run("echo out; echo err >&2; exit 3").await, "out\nstderr:\nerr\nExit code: 3");
    assert_eq!(run("true").await, "(no output)");
    assert_eq!(run("cd / && X=1; pwd").await, "/");
    let project = home.project().canonicalize().unwrap();
    assert_eq!(run("pwd; echo [$X]; cat").await, format!("{}\n[]", project.display()));
    assert_eq!(run("kill -SEGV $$").await, "Exit code: 139 (SIGSEGV) (fault signal SIGSEGV)");
    assert_eq!(run("kill -9 $$").await, "Exit code: 137 (SIGKILL) (killed from outside by SIGKILL)");
    assert_eq!(run("printf 'a\\377\\033[1mb'").await, "a\u{fffd}b\n[1 bytes were not UTF-8, shown as \u{fffd}]");
    let gone = "left running by the command ended with it; run_in_background keeps a command running]";
    assert_eq!(run("sleep 600 & echo started").await, format!("started\n[1 process {gone}"));
    assert_eq!(run("sleep 600 & sleep 600 & exit 4").await, format!("Exit code: 4\n[2 processes {gone}"));
    assert_eq!(shell_folders(&parent), 0);
    assert!(parent.notices().is_empty());
    assert!(nothing_left(&home));
    for (input, text) in [
        (json!({}), "command"),
        (json!({"command": " "}), "`command` is empty"),
        (json!({"command": 5}), "`command`"),
        (json!({"command": "x", "timeout": -1}), "`timeout`"),
        (json!({"command": "a\0b"}), "NUL character at byte 1"),
    ] {
        let error = parent.bash(input.clone()).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::InvalidInput, "{input}");
        assert!(error.to_string().contains(text), "{input}: {error}");
    }
    let tool = BashTool::new(parent.delegation.clone(), parent.policy());
    let effect = tool.effect(&json!({"command": "ls"}), &parent.context(&CancellationToken::new())).unwrap();
    assert_eq!(effect, Effect::Runs { command: "ls".into() });
}

/// R363 in kind: much output is bounded for the model, and the whole stays on disk.
#[tokio::test]
async fn a_large_output_is_shortened_in_the_middle() {
    let home = Home::new();
    let parent = parent(&home).build();
    let text = parent.bash(json!({"command": "seq 1 100000; echo LAST"})).await.unwrap().text;
    assert!(text.starts_with("1\n2\n3\n") && text.contains(" bytes left out ...]\n"), "{}", text.len());
    let path = text.rsplit("[Truncated. Full output: ").next().unwrap().trim_end_matches(']');
    assert!(text.contains("\nLAST\n[Truncated. Full output: "));
    assert!(text.len() < 100 * 1024, "{}", text.len());
    assert!(std::fs::read_to_string(path).unwrap().ends_with("100000\nLAST\n"));
    assert_eq!(shell_folders(&parent), 1);
    assert!(parent.notices().is_empty());
}

/// R190, R192, R195, R199, R262
#[tokio::test]
async fn a_background_command_is_read_and_announced_once() {
    let home = Home::new();
    let parent = parent(&home).build();
    let start =
        json!({"command": "until [ -e go ]; do sleep 0.02; done; echo ready", "run_in_background": true, "description": "wait for go"});
    let text = parent.bash(start.clone()).await.unwrap().text;
    let id = id_in(&text);
    assert!(text.contains("Output is being written to: ") && text.contains("You will be notified when it ends"), "{text}");
    let early = parent.task_output(json!({"task_id": id, "block": false})).await.unwrap();
    let head = format!("<retrieval_status>not_ready</retrieval_status>\n<task_id>{id}</task_id>\n<task_type>local_bash</task_type>\n");
    assert!(early.starts_with(&format!("{head}<status>running</status>\n<output>")), "{early}");
    let timeout = parent.task_output(json!({"task_id": id, "timeout": 1})).await.unwrap();
    assert!(timeout.starts_with("<retrieval_status>timeout</retrieval_status>\n"), "{timeout}");
    home.write("go", "");
    let done = parent.task_output(json!({"task_id": id})).await.unwrap();
    assert_eq!(
        done,
        format!(
            "<retrieval_status>success</retrieval_status>\n<task_id>{id}</task_id>\n<task_type>local_bash</task_type>\n\
             <status>completed</status>\n<exit_code>0</exit_code>\n<output>\nready\n</output>"
        )
    );
    let unread = id_in(&parent.bash(start).await.unwrap().text);
    until_true("a notice", || !parent.inbox.is_empty()).await;
    let notices = parent.notices();
    assert_eq!(notices.len(), 1);
    assert!(notices[0].contains(&format!("<task-id>{unread}</task-id>")), "{}", notices[0]);
    let summary = "<summary>Background command &quot;wait for go&quot; completed (exit code 0)</summary>\n</task-notification>";
    assert!(notices[0].ends_with(summary), "{}", notices[0]);
}

/// R192, R194, R196, R198, decision 24
#[tokio::test]
async fn tasks_are_stopped_with_their_trees() {
    let home = Home::new();
    let parent = parent(&home).build();
    let started = parent.bash(json!({"command": "echo up; sleep 600 & sleep 600", "run_in_background": true})).await.unwrap();
    let id = id_in(&started.text);
    let agent = parent.spawn("sleep 600").await;
    let unknown = parent.task_output(json!({"task_id": "sh_00000000"})).await.unwrap_err();
    assert_eq!((unknown.kind, unknown.message.as_str()), (FailureKind::NotFound, "No task found with ID: sh_00000000"));
    let hint = unknown.hint.unwrap();
    assert!(hint.contains(&format!("{id} (echo up;")) && hint.contains(&format!("{agent} (sleep 600)")), "{hint}");
    for input in [json!({}), json!({"task_id": ""}), json!({"task_id": null})] {
        assert_eq!(parent.task_output(input.clone()).await.unwrap_err().message, "Task ID is required");
        assert_eq!(parent.task_stop(input).await.unwrap_err().message, "Task ID is required");
    }
    let stopped = parent.task_stop(json!({"shell_id": id})).await.unwrap();
    let value: serde_json::Value = serde_json::from_str(&stopped).unwrap();
    assert_eq!(value["message"], format!("Successfully stopped task: {id} (echo up; sleep 600 & sleep 600)"));
    assert_eq!((&value["task_type"], &value["command"]), (&json!("local_bash"), &json!("echo up; sleep 600 & sleep 600")));
    let again = parent.task_stop(json!({"task_id": id})).await.unwrap_err();
    assert_eq!(again.message, format!("Task {id} is not running (status: killed)"));
    let agent_stopped = parent.task_stop(json!({"task_id": agent})).await.unwrap();
    assert!(agent_stopped.contains("\"task_type\":\"process_agent\""), "{agent_stopped}");
    let output = parent.task_output(json!({"task_id": agent})).await.unwrap();
    assert!(output.contains("<status>stopped</status>") && output.contains("<error>stopped by the model</error>"), "{output}");
    assert!(parent.notices().is_empty());
    assert!(nothing_left(&home));
}

/// R122, R200
#[tokio::test]
async fn a_command_that_reaches_its_timeout_is_moved_or_stopped() {
    let home = Home::new();
    let other = parent(&home).limits(|limits| limits.background_shell_max = Duration::from_millis(300)).build();
    let parent = parent(&home).build();
    let moved =
        parent.bash(json!({"command": "echo first; until [ -e go ]; do sleep 0.02; done; echo second", "timeout": 150})).await.unwrap();
    assert!(
        moved.text.starts_with("first\nThe command reached its timeout of 150 ms and was moved to the background.\n"),
        "{}",
        moved.text
    );
    let id = id_in(&moved.text);
    home.write("go", "");
    until_true("a notice", || !parent.inbox.is_empty()).await;
    assert!(parent.notices()[0].contains("completed (exit code 0)"));
    let whole = parent.task_output(json!({"task_id": id})).await.unwrap();
    assert!(whole.contains("<output>\nfirst\nsecond\n</output>"), "{whole}");
    let slept = parent.bash(json!({"command": "sleep 600", "timeout": 100})).await.unwrap_err();
    assert!(slept.message.ends_with("Timed out after 100 ms; the command and everything it had started was ended."), "{slept}");
    let forgotten = id_in(&other.bash(json!({"command": "echo x; sleep 600", "run_in_background": true})).await.unwrap().text);
    until_true("the end by its longest life", || !other.inbox.is_empty()).await;
    let notice = &other.notices()[0];
    assert!(notice.contains(&forgotten) && notice.contains("failed (time limit)"), "{notice}");
    assert!(nothing_left(&home));
}

/// R198, fault A3: a cancelled call ends the tree and keeps what was printed; so does a call that is dropped.
#[tokio::test]
async fn a_cancelled_command_is_ended_and_keeps_its_output() {
    let home = Home::new();
    let parent = parent(&home).build();
    let cancel = CancellationToken::new();
    let tool = BashTool::new(parent.delegation.clone(), parent.policy());
    let call = tool.call(json!({"command": "echo so far; echo x > started; setsid sleep 600 & sleep 600"}), parent.context(&cancel));
    let (result, ()) = tokio::join!(call, async {
        until_true("its start", || home.project().join("started").exists()).await;
        cancel.cancel();
    });
    let failure = result.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Cancelled);
    assert_eq!(failure.message, "so far\nCancelled; the command and everything it had started was ended.");
    assert!(nothing_left(&home));
    std::fs::remove_file(home.project().join("started")).unwrap();
    let dropped = tool.call(json!({"command": "echo x > started; sleep 600 & sleep 600"}), parent.context(&CancellationToken::new()));
    tokio::select! {
        _ = dropped => panic!("it cannot end"),
        () = until_true("its start", || home.project().join("started").exists()) => {}
    }
    until_true("nothing left", || nothing_left(&home)).await;
}

/// The end of a foreground command whose keeper died is told once, by the call; nothing is said of its removed folder.
#[tokio::test]
async fn a_folder_that_is_removed_with_its_answer_is_no_lost_job() {
    let home = Home::new();
    let parent = parent(&home).build();
    let mut ended = 0;
    while ended < 10 {
        match parent.bash(json!({"command": "sleep 0.05; kill -9 $PPID; sleep 600"})).await {
            Ok(reply) => {
                assert!(reply.text.contains("its keeper is gone"), "{}", reply.text);
                ended += 1;
            }
            // Killed before its start was told.
            Err(error) => assert!(error.message.contains("the keeper ended before it answered"), "{error}"),
        }
    }
    // The watchers look every 500 ms at the latest, so they have looked when a later and longer job is announced.
    parent.bash(json!({"command": "sleep 1", "run_in_background": true})).await.unwrap();
    until_true("a notice", || !parent.inbox.is_empty()).await;
    let told: Vec<_> = parent.heard.all().into_iter().filter(|kind| matches!(kind, EventKind::Notice { .. })).collect();
    assert!(told.is_empty(), "{told:?}");
    assert!(nothing_left(&home));
}
