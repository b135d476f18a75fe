//! The process tool `subagent` as a model uses it: formats, isolation, limits, ends, errors. Children are shell lines under
//! real keepers.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use zapmyco::agent::event::EventKind;
use zapmyco::agent::tool::{ApprovalNeed, Tool};
use zapmyco::ids::{JobId, SessionId};
use zapmyco::supervisor::plan::Program;
use zapmyco::supervisor::record::Requester;
use zapmyco::text::subagent_replies::TASK_EMPTY;
use zapmyco::tools::subagent::SubagentTool;

use crate::support::delegating::{Parent, nothing_left, parent, until_true};
use crate::support::{Home, processes};

/// The process numbers that children wrote into files of the project.
fn pid_in(home: &Home, file: &str) -> u32 {
    crate::support::wait::until("a pid file", || std::fs::read_to_string(home.project().join(file)).ok()?.trim().parse().ok())
}

async fn error_of(parent: &Parent, input: Value) -> String {
    parent.subagent(input).await.unwrap_err().to_string()
}

/// R337, R338, R339, R340, R381, R382, R383, R384
#[tokio::test]
async fn bad_input_is_told_at_once_and_starts_nothing() {
    let home = Home::new();
    let parent = parent(&home).build();
    for (input, text) in [
        (json!({}), "缺失 action 参数，可选值: spawn, poll, list, kill"),
        (json!(null), "缺失 action 参数，可选值: spawn, poll, list, kill"),
        (json!({"action": null}), "缺失 action 参数，可选值: spawn, poll, list, kill"),
        (json!({"action": ""}), "缺失 action 参数，可选值: spawn, poll, list, kill"),
        (json!({"action": "X"}), "无效 action: X，可选值: spawn, poll, list, kill"),
        (json!({"action": 5}), "无效 action: 5，可选值: spawn, poll, list, kill"),
        (json!({"action": "spawn"}), "spawn 时 task 必填"),
        (json!({"action": "spawn", "task": null}), "spawn 时 task 必填"),
        (json!({"action": "spawn", "task": " \n"}), "spawn 时 task 不能为空"),
        (json!({"action": "spawn", "task": "x", "cli": "codex"}), "CLI 'codex' 不可用，当前仅支持 zapmyco"),
        (json!({"action": "spawn", "task": "x", "cli": ""}), "CLI '' 不可用，当前仅支持 zapmyco"),
        (json!({"action": "spawn", "task": ["x"]}), "task must be a string, got [\"x\"]"),
        (json!({"action": "poll"}), "poll 时 subagent_ids 不能为空，使用 list 查看所有子代理"),
        (json!({"action": "poll", "subagent_ids": []}), "poll 时 subagent_ids 不能为空，使用 list 查看所有子代理"),
        (json!({"action": "kill"}), "kill 时 subagent_ids 不能为空"),
        (json!({"action": "kill", "subagent_ids": []}), "kill 时 subagent_ids 不能为空"),
        (json!({"action": "kill", "subagent_ids": [1]}), "subagent_ids must be an array of strings, got [1]"),
        (json!({"action": "poll", "subagent_ids": ["x"], "wait_secs": -5}), "wait_secs 必须是 0 到 30 之间的数字，收到: -5"),
        (json!({"action": "poll", "subagent_ids": ["x"], "wait_secs": "x"}), "wait_secs 必须是 0 到 30 之间的数字，收到: x"),
        (json!("x"), "the arguments must be an object, got \"x\""),
    ] {
        assert_eq!(error_of(&parent, input.clone()).await, text, "{input}");
    }
    let error = error_of(&parent, json!({"action": "spawn", "task": "a\0b"})).await;
    assert!(error.contains("NUL character (at byte 1)"), "{error}");
    assert!(!home.root().join("subagents").exists());
    assert_eq!(parent.subagent(json!({"action": "list"})).await.unwrap(), "[SubAgent] 当前没有子代理");
}

/// R335, R336, R342, R392, R393
#[tokio::test]
async fn the_tool_is_declared_as_documented() {
    let home = Home::new();
    let parent = parent(&home).build();
    let tool = SubagentTool::new(parent.delegation.clone());
    let spec = tool.spec();
    assert_eq!(spec.declaration.name, "subagent");
    assert!(spec.concurrent);
    assert_eq!(spec.approval, ApprovalNeed::Never);
    for use_case in ["independent parts which run at the same time", "several views of one code base", "running in parallel"] {
        assert!(spec.declaration.description.contains(use_case), "{use_case}");
    }
    assert!(spec.declaration.description.contains("A subagent cannot start further subagents."));
    let properties = spec.declaration.input_schema["properties"].as_object().unwrap();
    let names: Vec<&str> = properties.keys().map(String::as_str).collect();
    assert_eq!(names, ["action", "cli", "task", "subagent_ids", "wait_secs"]);
    assert_eq!(spec.declaration.input_schema["required"], json!(["action"]));
}

/// R343, R345, R346, R347, R348, R351, R355, R359, R367, R369
#[tokio::test]
async fn a_child_from_spawn_to_its_end() {
    let home = Home::new();
    let parent = parent(&home).build();
    let reply = parent.subagent(json!({"action": "spawn", "task": "pwd; echo done >&2"})).await.unwrap();
    let lines: Vec<&str> = reply.lines().collect();
    let id = lines[0].strip_prefix("[SubAgent] ").unwrap().strip_suffix(": running").unwrap();
    assert!(JobId::parse(id).is_ok(), "{id}");
    assert_eq!(lines[1..3], ["CLI: zapmyco", "Task: pwd; echo done >&2"]);
    let created = lines[3].strip_prefix("Created: ").unwrap();
    assert_eq!(created.len(), "2026-06-06T15:30:00.123456".len());
    let reply = parent.ended(id).await;
    let project = home.project().canonicalize().unwrap();
    assert_eq!(
        reply,
        format!(
            ">>> {id} <<<\n[SubAgent] {id}: completed\nCLI: zapmyco\nExit code: 0\nDuration: 0s\n\n=== stdout ===\n{}\n\n=== stderr ===\ndone",
            project.display()
        )
    );
    let list = parent.subagent(json!({"action": "list"})).await.unwrap();
    assert_eq!(
        list,
        format!("[SubAgent] 当前共 1 个子代理\n\n{id}: completed (耗时 0s, exit 0)\n  CLI: zapmyco\n  Task: pwd; echo done >&2")
    );
    let folder = parent.folder(id);
    for file in ["spec.json", "status.json", "stdout", "stderr", "lock", "end.json"] {
        assert!(folder.join(file).exists(), "{file}");
    }
    let spec: Value = serde_json::from_slice(&std::fs::read(folder.join("spec.json")).unwrap()).unwrap();
    assert_eq!(spec["owner"]["task"], "pwd; echo done >&2");
    assert_eq!(spec["owner"]["cli"], "zapmyco");
    assert!(nothing_left(&home));
}

/// R354, R357, R358, R364, M11, decision 24
#[tokio::test]
async fn running_ended_and_unknown_in_one_poll() {
    let home = Home::new();
    let parent = parent(&home).build();
    let slow = parent.spawn("sleep 600 # slow").await;
    let slow_too = parent.spawn("sleep 600 # slow too").await;
    let both = parent.subagent(json!({"action": "poll", "subagent_ids": [slow, slow_too]})).await.unwrap();
    assert_eq!(both, "[SubAgent] 2/2 仍在运行 (已等待 0s)\n  任务: sleep 600 # slow / sleep 600 # slow too");
    let quick = parent.spawn("echo quick").await;
    parent.ended(&quick).await;
    let ids = json!([quick, "nonsense", slow, quick, slow]);
    let mixed = parent.subagent(json!({"action": "poll", "subagent_ids": ids})).await.unwrap();
    let blocks: Vec<&str> = mixed.split("\n---\n").collect();
    assert_eq!(blocks.len(), 3, "{mixed}");
    assert!(blocks[0].starts_with(&format!(">>> {quick} <<<\n")) && blocks[0].ends_with("\nquick"), "{mixed}");
    assert_eq!(blocks[1], "nonsense: ID 不存在");
    assert_eq!(blocks[2], "[SubAgent] 还有 1 个仍在运行 (已等待 0s)");
    parent.kill(&[&slow, &slow_too]).await;
}

/// R355, fault M11: nothing left to wait for ends the poll, whatever `wait_secs` says.
#[tokio::test]
async fn a_poll_ends_when_nothing_is_left_to_wait_for() {
    let home = Home::new();
    let parent = parent(&home).limits(|limits| limits.poll_base_wait = Duration::from_secs(3600)).build();
    let id = parent.spawn("echo x").await;
    let reply = parent.subagent(json!({"action": "poll", "subagent_ids": [id, "nonsense"], "wait_secs": 31})).await.unwrap();
    assert!(reply.starts_with(&format!(">>> {id} <<<")), "{reply}");
    assert!(reply.ends_with("\nnonsense: ID 不存在\n(wait_secs 超过上限，按 30 秒处理)"), "{reply}");
}

/// R365, fault M13
#[tokio::test]
async fn texts_that_are_no_ids_are_unknown_and_touch_nothing() {
    let home = Home::new();
    let parent = parent(&home).build();
    let outside = home.root().join("subagents");
    let ids = json!(["", "..", "../../x", "/etc/passwd", "sa_20260606_a1b2c3d4/..", "sa_20260606_a1b2c3d4"]);
    let poll = parent.subagent(json!({"action": "poll", "subagent_ids": ids})).await.unwrap();
    for line in poll.split("\n---\n") {
        assert!(line.ends_with(": ID 不存在"), "{line}");
    }
    assert_eq!(poll.split("\n---\n").count(), 6);
    let kill = parent.subagent(json!({"action": "kill", "subagent_ids": ids})).await.unwrap();
    assert!(kill.starts_with("[SubAgent] 已终止 0 个子代理:\n  : ID 不存在\n  ..: ID 不存在\n"), "{kill}");
    assert!(!outside.exists());
}

/// R366, R370, fault E6, M14
#[tokio::test]
async fn sessions_do_not_see_one_another() {
    let home = Home::new();
    let (one, other) = (parent(&home).build(), parent(&home).build());
    let mine = one.spawn("echo mine; sleep 600").await;
    let theirs = other.spawn("echo theirs; sleep 600").await;
    assert!(one.subagent(json!({"action": "list"})).await.unwrap().starts_with("[SubAgent] 当前共 1 个子代理\n"));
    let poll = one.subagent(json!({"action": "poll", "subagent_ids": [theirs]})).await.unwrap();
    assert_eq!(poll, format!("{theirs}: ID 不存在"));
    let kill = one.kill(&[&theirs]).await;
    assert_eq!(kill, format!("[SubAgent] 已终止 0 个子代理:\n  {theirs}: ID 不存在"));
    assert!(other.subagent(json!({"action": "list"})).await.unwrap().contains("running"));
    one.kill(&[&mine]).await;
    other.kill(&[&theirs]).await;
    assert!(nothing_left(&home));
}

/// R373, R374, R375, R376, R377, faults A3, A4, A5, M4, M5
#[tokio::test]
async fn kill_ends_whole_trees_and_keeps_the_output() {
    let home = Home::new();
    let parent = parent(&home).build();
    let polite =
        parent.spawn("for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; done; sleep 600 & echo $! > a; setsid sleep 600 & wait").await;
    let stubborn = parent.spawn("trap '' TERM; echo $$ > b; while :; do sleep 0.05; done").await;
    let done = parent.spawn("echo $$ > c; exit 0").await;
    let failed = parent.spawn("exit 3").await;
    let pids: Vec<u32> = ["a", "b", "c"].map(|file| pid_in(&home, file)).to_vec();
    parent.ended(&done).await;
    parent.ended(&failed).await;
    until_true("ten lines", || std::fs::read_to_string(parent.folder(&polite).join("stdout")).is_ok_and(|text| text.contains("line 10")))
        .await;
    let status: Value = serde_json::from_slice(&std::fs::read(parent.folder(&polite).join("status.json")).unwrap()).unwrap();
    let payload = status["payload"]["pid"].as_u64().unwrap();
    let reply = parent.kill(&[&polite, "x", &done, &stubborn, &failed]).await;
    let lines: Vec<&str> = reply.lines().collect();
    assert_eq!(lines[0], "[SubAgent] 已终止 2 个子代理:");
    assert!(
        lines[1].starts_with(&format!("  {polite}: cancelled (SIGTERM")) && lines[1].ends_with(&format!(" → PID {payload})")),
        "{reply}"
    );
    assert_eq!(lines[2], "  x: ID 不存在");
    assert_eq!(lines[3], format!("  {done}: cannot cancel (already completed)"));
    assert!(lines[4].starts_with(&format!("  {stubborn}: cancelled (SIGTERM, SIGKILL → PID {})", pids[1])), "{reply}");
    assert_eq!(lines[5], format!("  {failed}: cannot cancel (already error)"));
    assert!(nothing_left(&home));
    let first = parent.ended(&polite).await;
    assert!(first.contains(": cancelled\n") && first.contains("Cause: stopped by the model\n"), "{first}");
    assert!(first.contains("=== stdout ===\nline 1\n") && first.contains("line 10"), "{first}");
    assert_eq!(parent.ended(&polite).await, first);
    let list = parent.subagent(json!({"action": "list"})).await.unwrap();
    assert!(
        list.contains(&format!("{polite}: cancelled (耗时 0s)\n")) && list.contains(&format!("{failed}: error (耗时 0s, exit 3)\n")),
        "{list}"
    );
}

/// R378, R379, faults D1, M2: the keeper holds the limit, nobody polls, and the output so far is kept.
#[tokio::test]
async fn a_time_limit_keeps_the_work_done_so_far() {
    let home = Home::new();
    let parent = parent(&home).limits(|limits| limits.process_time_limit = Duration::from_millis(400)).build();
    let id = parent.spawn("echo step 1; echo step 2; echo step 3; sleep 600").await;
    until_true("the end", || parent.delegation.running().is_empty()).await;
    let reply = parent.ended(&id).await;
    assert!(reply.contains(": timeout\nCLI: zapmyco\n") && reply.ends_with("=== stdout ===\nstep 1\nstep 2\nstep 3"), "{reply}");
    let list = parent.subagent(json!({"action": "list"})).await.unwrap();
    assert!(list.contains(&format!("{id}: timeout (耗时 0s)\n")), "{list}");
}

/// R360, R380, faults C1, M6, decision 1
#[tokio::test]
async fn the_words_for_all_ends_are_true() {
    let home = Home::new();
    let parent = parent(&home).build();
    for (task, word, exit) in [
        ("exit 0", "completed", "0"),
        ("exit 1", "error", "1"),
        ("exit 5", "completed", "5"),
        ("exit 4", "timeout", "4"),
        ("exit 137", "error", "137"),
        ("kill -9 $$", "lost", "137 (SIGKILL)"),
        ("kill -TERM $$", "lost", "143 (SIGTERM)"),
        ("kill -SEGV $$", "error", "139 (SIGSEGV)"),
        ("kill -ABRT $$", "error", "134 (SIGABRT)"),
    ] {
        let id = parent.spawn(task).await;
        let reply = parent.ended(&id).await;
        assert!(reply.contains(&format!("[SubAgent] {id}: {word}\nCLI: zapmyco\nExit code: {exit}\n")), "{task}: {reply}");
    }
    let partial = parent.spawn("echo so far; exit 5").await;
    assert!(parent.ended(&partial).await.contains("Cause: partial: turn limit or budget reached\n"));
    let list = parent.subagent(json!({"action": "list"})).await.unwrap();
    assert!(list.contains("lost (已运行 0s)\n") && list.contains("error (耗时 0s, exit 139)\n"), "{list}");
}

/// R361, R362, R363, R386, faults B5, B7, M1, M8, M16, M17, M19
#[tokio::test]
async fn much_output_never_blocks_and_is_folded() {
    let home = Home::new();
    let parent = parent(&home)
        .limits(|limits| {
            limits.output_kept_max = 512 * 1024;
            limits.output_tail_kept = 64 * 1024;
        })
        .build();
    let large = parent.spawn("yes 0123456789abcde | head -n 6250; echo LAST").await;
    let reply = parent.ended(&large).await;
    let path = parent.folder(&large).join("stdout");
    assert!(reply.contains("=== stdout (OUTPUT LARGE: 97KB, 6251 lines) ===\n0123456789abcde\n"), "{reply}");
    assert!(reply.contains("省略 ") && reply.ends_with(&format!("LAST\n完整输出: {}", path.display())), "{reply}");
    let huge = parent.spawn("yes 0123456789abcde | head -n 131072; echo ANSWER; yes x | head -c 5000000 >&2").await;
    let reply = parent.ended(&huge).await;
    assert!(reply.contains("=== stdout (OUTPUT TRUNCATED at 1MB) ===\n总大小: 2097159 字节\n"), "{reply}");
    assert!(reply.contains("ANSWER\n(磁盘只保留了 2097159 字节中的 "), "{reply}");
    assert!(reply.contains("=== stderr (OUTPUT TRUNCATED at 1MB) ===\n总大小: 5000000 字节\n"), "{reply}");
    let bad = parent.spawn("printf 'start\\377end\\n'; printf '\\033[31mred\\007'").await;
    let reply = parent.ended(&bad).await;
    assert!(reply.contains("Exit code: 0\n") && reply.contains("start\u{fffd}end\nred\\x07\n(含 1 个非 UTF-8 字节"), "{reply}");
    let wide = parent.spawn("for i in 1 2 3 4 5 6 7 8 9 10; do printf '中文字符%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; done").await;
    let reply = parent.ended(&wide).await;
    assert!(reply.contains("省略 ") || reply.contains("OUTPUT LARGE"), "{reply}");
    assert!(!reply.contains('\u{fffd}'), "{reply}");
}

/// Faults B1, M3
#[tokio::test]
async fn a_background_grandchild_does_not_keep_the_child_running() {
    let home = Home::new();
    let parent = parent(&home).build();
    let id = parent.spawn("echo out; sleep 600 & exit 0").await;
    let reply = parent.ended(&id).await;
    assert!(reply.contains(": completed\n") && reply.ends_with("=== stdout ===\nout"), "{reply}");
    assert!(nothing_left(&home));
}

/// R343, fault M10
#[tokio::test]
async fn long_and_odd_tasks_arrive_unchanged() {
    let home = Home::new();
    let parent = parent(&home).build();
    let long = format!("echo arrived; : '{}'", "x".repeat(10 * 1024 * 1024));
    let id = parent.spawn(&long).await;
    assert!(parent.ended(&id).await.ends_with("=== stdout ===\narrived"));
    assert!(std::fs::read_to_string(parent.folder(&id).join("task.txt")).unwrap() == long);
    let error = error_of(&parent, json!({"action": "spawn", "task": format!("{}\0", "x".repeat(200_000))})).await;
    assert!(error.contains("NUL character (at byte 200000)"), "{error}");
    let dashed = parent.spawn("--help 2>/dev/null; echo \"a\nb\"").await;
    assert!(parent.ended(&dashed).await.ends_with("=== stdout ===\na\nb"));
    let list = parent.subagent(json!({"action": "list"})).await.unwrap();
    assert!(list.contains("  Task: --help 2>/dev/null; echo \"a b\""), "{list}");
    assert!(list.len() < 2000, "{}", list.len());
}

/// fault S28: all bytes of the output, readable text beside the raw file, the signal by its number, a long task, an id that
/// is none.
#[tokio::test]
async fn a_mixed_bag_for_one_child() {
    let home = Home::new();
    let parent = parent(&home).build();
    let work = "head -c 65537 /dev/zero | tr '\\0' a; printf '\\377'; ulimit -c 0; kill -SEGV $$; : ";
    let task = format!("{work}'{}'", "x".repeat(200_000));
    let id = parent.spawn(&task).await;
    parent.ended(&id).await;
    let reply = parent.subagent(json!({"action": "poll", "subagent_ids": [id, "../x"]})).await.unwrap();
    let raw = std::fs::read(parent.folder(&id).join("stdout")).unwrap();
    assert!(raw == ["a".repeat(65_537).as_bytes(), b"\xff"].concat(), "{} bytes", raw.len());
    assert!(std::fs::read_to_string(parent.folder(&id).join("task.txt")).unwrap() == task);
    assert!(reply.contains("\nExit code: 139 (SIGSEGV)\n"), "128 and the signal 11: {reply}");
    assert!(reply.contains("a\u{fffd}\n(含 1 个非 UTF-8 字节，以 \u{fffd} 标记)"), "{reply}");
    assert!(reply.contains(parent.folder(&id).join("stdout").to_str().unwrap()), "the raw file is named");
    assert!(reply.ends_with("\n---\n../x: ID 不存在"), "{reply}");
    assert!(nothing_left(&home));
}

/// R345, R385, decision 24
#[tokio::test]
async fn start_failures_are_told_by_spawn_and_leave_no_id() {
    let home = Home::new();
    let missing = parent(&home).program(Program::At("/nonexistent/zapmyco".into())).build();
    let error = error_of(&missing, json!({"action": "spawn", "task": "x"})).await;
    assert!(error.starts_with("启动子代理失败: start of the program: "), "{error}");
    assert_eq!(missing.subagent(json!({"action": "list"})).await.unwrap(), "[SubAgent] 当前没有子代理");
    let blocked = Home::new();
    std::fs::write(blocked.root().join("subagents"), "a file where the folder should be").unwrap();
    let parent = parent(&blocked).build();
    let error = error_of(&parent, json!({"action": "spawn", "task": "x"})).await;
    assert!(error.starts_with("创建子代理目录失败: "), "{error}");
}

/// R350, fault G2: with a limit further starts wait in the order of their calls; bad ones do not wait.
#[tokio::test]
async fn with_a_limit_further_children_start_in_order() {
    let home = Home::new();
    let parent = parent(&home).limits(|limits| limits.process_agents_max = 2).build();
    let tasks = (0..6).map(|n| format!("echo +{n} >> log; while [ ! -e go{n} ]; do sleep 0.01; done; echo - >> log"));
    let spawned = join_all(tasks.map(|task| {
        let parent = &parent;
        async move { parent.spawn(&task).await }
    }));
    let log = || std::fs::read_to_string(home.project().join("log")).unwrap_or_default();
    let releases = async {
        for n in 0..6 {
            // Two run: a third one starts only when the first one may end.
            until_true("two children run", || log().contains(&format!("+{}\n", (n + 1).min(5)))).await;
            let error = error_of(&parent, json!({"action": "spawn", "task": " "})).await;
            assert_eq!(error, TASK_EMPTY);
            home.write(&format!("go{n}"), "");
        }
    };
    let (ids, ()) = tokio::join!(spawned, releases);
    for id in &ids {
        parent.ended(id).await;
    }
    let starts: Vec<String> = log().lines().filter(|line| *line != "-").map(str::to_owned).collect();
    assert_eq!(starts.len(), 6);
    let listed: Vec<String> = parent.delegation.list().await.unwrap().iter().map(|job| job.id().to_string()).collect();
    assert_eq!(listed, ids);
    let running = log()
        .lines()
        .scan(0, |running, line| {
            *running += if line == "-" { -1 } else { 1 };
            Some(*running)
        })
        .max();
    assert_eq!(running, Some(2));
}

/// R350: who waits can be stopped, and the place is not lost.
#[tokio::test]
async fn a_start_that_waits_can_be_cancelled() {
    let home = Home::new();
    let parent = parent(&home).limits(|limits| limits.process_agents_max = 1).build();
    let id = parent.spawn("sleep 600").await;
    let cancel = CancellationToken::new();
    let tool = SubagentTool::new(parent.delegation.clone());
    let waiting = tool.call(json!({"action": "spawn", "task": "touch never"}), parent.context(&cancel));
    let (reply, ()) = tokio::join!(waiting, async { cancel.cancel() });
    assert_eq!(reply.unwrap_err().message, "the start was cancelled while it waited for its turn");
    parent.kill(&[&id]).await;
    let next = parent.spawn("echo next").await;
    assert!(parent.ended(&next).await.ends_with("next"));
    assert!(!home.project().join("never").exists());
}

/// R251, R255, R257, R195 in kind, rule 9
#[tokio::test]
async fn an_end_is_announced_once_and_not_when_it_was_read() {
    let home = Home::new();
    let parent = parent(&home).build();
    let unread = parent.spawn("echo unread; exit 3").await;
    until_true("a notice", || !parent.inbox.is_empty()).await;
    let notices = parent.notices();
    assert_eq!(notices.len(), 1);
    assert!(notices[0].starts_with("[SYSTEM NOTIFICATION - NOT USER INPUT]\n"), "{}", notices[0]);
    assert!(
        notices[0].contains(&format!("<task-id>{unread}</task-id>\n<tool-use-id>call_1</tool-use-id>\n<output-file>")),
        "{}",
        notices[0]
    );
    assert!(
        notices[0].contains("<status>failed</status>\n<summary>SubAgent ")
            && notices[0].contains("failed: exit code 3.</summary>\n<error>")
    );
    let polled = parent.spawn("sleep 0.1; echo polled").await;
    parent.ended(&polled).await;
    // A notice that waits is dropped when a poll tells the end first.
    let both = parent.spawn("echo both").await;
    until_true("a notice", || !parent.inbox.is_empty()).await;
    parent.ended(&both).await;
    parent.kill(&[&parent.spawn("sleep 600").await]).await;
    assert_eq!(parent.notices(), Vec::<String>::new());
    let store = parent.store.clone().unwrap();
    let mut marks = store.jobs_of(&parent.session).await.unwrap();
    while marks.len() < 4 || !marks.iter().all(|row| row.notified) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        marks = store.jobs_of(&parent.session).await.unwrap();
    }
    assert_eq!(marks.iter().filter(|row| row.status == "completed").count(), 2);
}

/// R388, R323 in kind: save, then announce.
#[tokio::test]
async fn starts_and_ends_are_events() {
    let home = Home::new();
    let parent = parent(&home).build();
    let id = parent.spawn("echo x").await;
    parent.ended(&id).await;
    until_true("the end event", || parent.heard.all().len() >= 2).await;
    let heard = parent.heard.all();
    let [EventKind::JobStarted { job, pid: Some(_), call_id: Some(call), .. }, EventKind::JobEnded { job: ended, status, output_path, .. }] =
        heard.as_slice()
    else {
        panic!("{heard:?}")
    };
    assert_eq!((job.as_str(), ended.as_str(), call.as_str(), status.as_str()), (id.as_str(), id.as_str(), "call_1", "completed"));
    assert_eq!(std::fs::read_to_string(output_path).unwrap(), "x\n");
    let stored = parent.store.clone().unwrap().events(&parent.session, 0, 10).await.unwrap();
    assert_eq!(stored.iter().map(|row| row.kind.as_str()).collect::<Vec<_>>(), ["job_started", "job_ended"]);
}

/// R201, R263, R351, faults K1, M20: a later process of the same session sees one fixed end and hears of it once.
#[tokio::test]
async fn after_a_restart_the_session_has_its_children_again() {
    let home = Home::new();
    let session = SessionId::new_main();
    let first = parent(&home).session(&session).build();
    let told = first.spawn("echo told").await;
    let told_text = first.ended(&told).await;
    let orphan = first.spawn("echo partial; sleep 600").await;
    until_true("its output", || std::fs::read_to_string(first.folder(&orphan).join("stdout")).is_ok_and(|text| text == "partial\n")).await;
    first.store.as_ref().unwrap().flush().await.unwrap();
    // The index is lost; the folders are not.
    first.delegation.stop_all(Requester::RunEnd).await;
    first.notices();
    drop(first);
    for file in ["zapmyco.db", "zapmyco.db-wal", "zapmyco.db-shm"] {
        let _ = std::fs::remove_file(home.root().join(file));
    }
    let second = parent(&home).session(&session).build();
    second.delegation.recover(&[JobId::parse(&told).unwrap()].into()).await.unwrap();
    assert_eq!(second.ended(&told).await, told_text);
    let notices = second.notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].contains(&orphan) && notices[0].contains("<status>stopped</status>") && notices[0].contains("partial"),
        "{}",
        notices[0]
    );
    let reply = second.ended(&orphan).await;
    assert!(reply.contains(": cancelled\n") && reply.contains("Cause: stopped at the end of the run\n"), "{reply}");
    let rows = second.store.clone().unwrap().jobs_of(&session).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.ended_at.is_some()));
    second.delegation.recover(&Default::default()).await.unwrap();
    assert!(second.notices().is_empty());
}

/// R182 and R331 as far as delegation goes: stop says what ran, a second one is hard, detached children go on.
#[tokio::test]
async fn the_end_of_a_run_stops_or_detaches_what_still_runs() {
    let home = Home::new();
    let parent = parent(&home).limits(|limits| limits.stop_grace = Duration::from_secs(3600)).build();
    let stubborn = parent.spawn("trap '' TERM; echo up; while :; do sleep 0.05; done").await;
    until_true("the trap", || std::fs::read_to_string(parent.folder(&stubborn).join("stdout")).is_ok_and(|text| text == "up\n")).await;
    let (first, _) = tokio::join!(parent.delegation.stop_all(Requester::RunEnd), async {
        until_true("the first request", || parent.folder(&stubborn).join("stop.json").exists()).await;
        parent.delegation.stop_all(Requester::RunEnd).await
    });
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].id.as_str(), first[0].status.as_str()), (stubborn.as_str(), "cancelled"));
    let detached = parent.spawn("until [ -e go ]; do sleep 0.02; done; echo went on").await;
    let views = parent.delegation.detach_all();
    assert_eq!(views.iter().map(|view| view.id.as_str()).collect::<Vec<_>>(), [detached.as_str()]);
    let folder = parent.folder(&detached);
    let session = parent.session.clone();
    drop(parent);
    // A later process of the session finds it running and lets it go on, too.
    let later = crate::support::delegating::parent(&home).session(&session).build();
    later.delegation.recover(&Default::default()).await.unwrap();
    assert_eq!(later.delegation.detach_all().iter().map(|view| view.id.as_str()).collect::<Vec<_>>(), [detached.as_str()]);
    home.write("go", "");
    until_true("its end", || std::fs::read_to_string(folder.join("stdout")).is_ok_and(|text| text == "went on\n")).await;
    until_true("nothing left", || nothing_left(&home)).await;
}

/// R285: a poll that is cancelled returns at once, and what it did not tell is announced.
#[tokio::test]
async fn a_cancelled_poll_returns_at_once() {
    let home = Home::new();
    let parent = parent(&home).limits(|limits| limits.poll_base_wait = Duration::from_secs(3600)).build();
    let id = parent.spawn("until [ -e go ]; do sleep 0.02; done").await;
    let cancel = CancellationToken::new();
    let ids = [id.clone()];
    let (answers, ()) = tokio::join!(parent.delegation.poll(&ids, Duration::ZERO, &cancel), async { cancel.cancel() });
    assert_eq!(answers.len(), 1);
    home.write("go", "");
    until_true("a notice", || !parent.inbox.is_empty()).await;
    assert!(parent.notices()[0].contains(&id));
}

/// Fault A7: no zombie and no "running" among fifty that end at once; every id is its own.
#[tokio::test]
async fn fifty_children_that_end_at_once() {
    let home = Home::new();
    let parent = parent(&home).build();
    let spawned = futures_util::future::join_all((0..50).map(|n| {
        let parent = &parent;
        async move { (n, parent.spawn(&format!("echo I am {n}.")).await) }
    }))
    .await;
    for (n, id) in &spawned {
        assert!(parent.ended(id).await.ends_with(&format!("\nI am {n}.")), "R330");
    }
    let list = parent.subagent(json!({"action": "list"})).await.unwrap();
    assert!(list.starts_with("[SubAgent] 当前共 50 个子代理\n") && !list.contains("running"), "{list}");
    until_true("no zombies", || processes::of_home(&home.root()).is_empty()).await;
}

/// R251, R257: also a child that has ended before its start was reported is announced.
#[tokio::test]
async fn the_quickest_children_are_announced_too() {
    let home = Home::new();
    let parent = parent(&home).build();
    for _ in 0..30 {
        parent.spawn("exit 0").await;
    }
    let mut told = Vec::new();
    until_true("thirty notices", || {
        told.extend(parent.notices());
        told.len() >= 30
    })
    .await;
    assert_eq!(told.len(), 30);
}

/// R332, R349: children carry the mark, shells of a child too, and no shell has provider keys.
#[tokio::test]
async fn marks_and_secrets_in_the_environment() {
    let home = Home::new();
    let main = parent(&home).variable("ANTHROPIC_API_KEY", "secret").build();
    let id = main.spawn("echo mark=$ZAPMYCO_SUBAGENT home=$ZAPMYCO_HOME handover=${ZAPMYCO_HANDOVER_FD:+yes}").await;
    let reply = main.ended(&id).await;
    assert!(reply.ends_with(&format!("mark={id} home={} handover=yes", home.root().display())), "{reply}");
    let call = json!({"command": "echo key=$ANTHROPIC_API_KEY mark=${ZAPMYCO_SUBAGENT:-none} fd=$ZAPMYCO_HANDOVER_FD"});
    assert_eq!(main.bash(call.clone()).await.unwrap().text, "key= mark=none fd=");
    let child = parent(&home)
        .role(zapmyco::agent::Role::ProcessChild)
        .variable("ZAPMYCO_SUBAGENT", &id)
        .variable("ANTHROPIC_API_KEY", "secret")
        .build();
    assert_eq!(child.bash(call).await.unwrap().text, format!("key= mark={id} fd="));
}

/// R372: entries stand by start time, and `list` alone sees that a keeper has died.
#[tokio::test]
async fn a_list_is_ordered_and_sees_dead_keepers() {
    let home = Home::new();
    let parent = parent(&home).build();
    let mut ids = Vec::new();
    for number in 0..4 {
        ids.push(parent.spawn(&format!("sleep 600; : {number}")).await);
    }
    let status = parent.folder(&ids[1]).join("status.json");
    until_true("its status", || status.exists()).await;
    let status: serde_json::Value = serde_json::from_slice(&std::fs::read(status).unwrap()).unwrap();
    let keeper = status["keeper"]["pid"].as_u64().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-9", &keeper]).status().unwrap().success());
    let mut list = String::new();
    for _ in 0..2000 {
        list = parent.subagent(json!({"action": "list"})).await.unwrap();
        if list.contains(&format!("{}: lost (已运行 ", ids[1])) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(list.contains(&format!("{}: lost (已运行 ", ids[1])), "{list}");
    let places: Vec<usize> = ids.iter().map(|id| list.find(id.as_str()).unwrap()).collect();
    assert!(places.is_sorted(), "{list}");
    parent.kill(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    until_true("nothing is left", || nothing_left(&home)).await;
}
