//! Jobs from a shell: `zapmyco jobs ...` and `zapmyco subagent ...` beside a session that runs, has ended or died hard.

use serde_json::{Value, json};
use zapmyco::ids::SessionId;
use zapmyco::subagents::job::{JobList, JobView};
use zapmyco::subagents::status::EndCause;

use crate::support::delegating::{nothing_left, parent, until_true};
use crate::support::{Finished, Home, processes};

fn json_of<T: serde::de::DeserializeOwned>(finished: &Finished) -> T {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// Runs the binary aside, so that the runtime of the test goes on.
async fn zapmyco(home: &Home, arguments: &[&str]) -> Finished {
    let mut command = home.command();
    command.args(arguments);
    tokio::task::spawn_blocking(move || crate::support::finish(&mut command)).await.unwrap()
}

/// R388, decision 21
#[tokio::test]
async fn list_and_show_one_session_or_all() {
    let home = Home::new();
    let empty = zapmyco(&home, &["jobs", "list"]).await;
    assert_eq!((empty.code, empty.stdout.as_str()), (0, ""));
    assert_eq!(json_of::<JobList>(&zapmyco(&home, &["jobs", "list", "--json"]).await).jobs, []);
    let (one, other) = (parent(&home).build(), parent(&home).build());
    let done = one.spawn("echo out; echo err >&2; exit 3").await;
    one.ended(&done).await;
    let running = other.spawn("sleep 600 # second").await;
    let all: JobList = json_of(&zapmyco(&home, &["jobs", "list", "--json", "--all"]).await);
    assert_eq!(all.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), [done.as_str(), running.as_str()]);
    let first = &all.jobs[0];
    assert_eq!((first.status.as_str(), first.end_cause.as_deref(), first.exit_code), ("error", Some("failed"), Some(3)));
    assert_eq!((first.stdout.bytes, first.stderr.kept), (4, 4));
    let mine: JobList = json_of(&zapmyco(&home, &["jobs", "list", "--json", "--session", other.session.as_str()]).await);
    assert_eq!(mine.jobs.len(), 1);
    let text = zapmyco(&home, &["jobs", "list"]).await.stdout;
    assert!(text.contains(&running) && text.contains("running") && text.contains("sleep 600 # second"), "{text}");
    let shown: JobView = json_of(&zapmyco(&home, &["jobs", "show", &done, "--json"]).await);
    assert_eq!(&shown, first);
    let text = zapmyco(&home, &["jobs", "show", &running]).await.stdout;
    assert!(text.contains("status     running\n") && text.contains(&format!("session    {}\n", other.session)), "{text}");
    for id in ["sa_20260606_a1b2c3d4", "../../x", ""] {
        let unknown = zapmyco(&home, &["jobs", "show", id]).await;
        assert_eq!((unknown.code, unknown.stdout.as_str()), (11, ""), "{unknown:?}");
    }
    let foreign = zapmyco(&home, &["jobs", "show", &done, "--session", other.session.as_str()]).await;
    assert_eq!(foreign.code, 11);
    assert_eq!(zapmyco(&home, &["jobs", "list", "--session", "../x"]).await.code, 2);
    other.kill(&[&running]).await;
}

/// Faults B7, B11
#[tokio::test]
async fn output_is_raw_in_a_pipe_and_harmless_in_json() {
    let home = Home::new();
    let parent = parent(&home).build();
    let id = parent.spawn("printf 'one\\ntwo\\n\\377\\033[31mred\\n'; echo err >&2").await;
    parent.ended(&id).await;
    let raw = home.command().args(["jobs", "output", &id]).output().unwrap();
    assert_eq!(raw.stdout, b"one\ntwo\n\xff\x1b[31mred\n");
    assert_eq!(zapmyco(&home, &["jobs", "output", &id, "--stderr"]).await.stdout, "err\n");
    assert_eq!(home.command().args(["jobs", "output", &id, "--tail", "1"]).output().unwrap().stdout, b"\xff\x1b[31mred\n");
    let value: Value = json_of(&zapmyco(&home, &["jobs", "output", &id, "--json"]).await);
    assert_eq!(value["text"], "one\ntwo\n\u{fffd}red\n");
    assert_eq!((&value["bad_bytes"], &value["left_out"]), (&json!(1), &json!(0)));
    assert_eq!(zapmyco(&home, &["jobs", "output", "sa_20260606_a1b2c3d4"]).await.code, 11);
}

/// R375, faults A3, A6, decision 20: a kill from a shell ends the tree; the session sees who did it.
#[tokio::test]
async fn kill_from_outside() {
    let home = Home::new();
    let parent = parent(&home).build();
    let id = parent.spawn("echo partial; sleep 600 & sleep 600").await;
    until_true("its output", || std::fs::read_to_string(parent.folder(&id).join("stdout")).is_ok_and(|text| !text.is_empty())).await;
    let killed = zapmyco(&home, &["jobs", "kill", &id]).await;
    assert_eq!(killed.code, 0, "{killed:?}");
    assert!(killed.stdout.starts_with(&format!("[SubAgent] 已终止 1 个子代理:\n  {id}: cancelled (SIGTERM")), "{killed:?}");
    assert!(nothing_left(&home));
    let reply = parent.ended(&id).await;
    assert!(reply.contains("Cause: stopped by a person\n") && reply.ends_with("partial"), "{reply}");
    // A recycled process number in the stored state is nobody: the unrelated process lives.
    let mut unrelated = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let path = parent.folder(&id).join("status.json");
    let mut status: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    status["payload"]["pid"] = unrelated.id().into();
    status["keeper"]["pid"] = unrelated.id().into();
    std::fs::write(&path, status.to_string()).unwrap();
    let again = zapmyco(&home, &["jobs", "kill", &id, "--json"]).await;
    let value: Value = json_of(&again);
    assert_eq!((again.code, &value["jobs"][0]["status"]), (0, &json!("cancelled")), "{again:?}");
    assert!(processes::is_alive(unrelated.id()));
    unrelated.kill().unwrap();
    unrelated.wait().unwrap();
    let unknown = zapmyco(&home, &["jobs", "kill", "x", &id]).await;
    assert_eq!(unknown.code, 11);
    assert!(unknown.stdout.contains("  x: ID 不存在\n") && unknown.stdout.contains("cannot cancel (already cancelled)"), "{unknown:?}");
}

/// R360, R380, fault M7: keeper and payload die hard; whoever looks next settles it as lost, once, and nothing is left.
#[tokio::test]
async fn sweep_settles_what_died_hard_and_proves_that_nothing_is_left() {
    let home = Home::new();
    assert_eq!(zapmyco(&home, &["jobs", "sweep"]).await.stdout, "nothing was left behind\n");
    let session = SessionId::new_main();
    let parent = parent(&home).session(&session).build();
    let alive = parent.spawn("sleep 600").await;
    let clean = zapmyco(&home, &["jobs", "sweep"]).await;
    assert_eq!((clean.code, clean.stdout.as_str()), (0, "nothing was left behind\n"), "a living keeper is not swept");
    let id = parent.spawn("echo $$ > pid; sleep 600 & wait").await;
    let payload: u32 = {
        until_true("the pid", || std::fs::read_to_string(home.project().join("pid")).is_ok_and(|text| text.ends_with('\n'))).await;
        std::fs::read_to_string(home.project().join("pid")).unwrap().trim().parse().unwrap()
    };
    let status: Value = serde_json::from_slice(&std::fs::read(parent.folder(&id).join("status.json")).unwrap()).unwrap();
    let keeper = i32::try_from(status["keeper"]["pid"].as_u64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(keeper), nix::sys::signal::Signal::SIGKILL).unwrap();
    let swept = zapmyco(&home, &["jobs", "sweep", "--json"]).await;
    let report: Value = json_of(&swept);
    // The session that lives looks too; whoever took the free lock has settled it.
    let by_sweep = report["settled"] == json!([id]);
    assert_eq!(swept.code, if by_sweep { 1 } else { 0 }, "{swept:?}");
    until_true("the payload's end", || !processes::is_alive(payload)).await;
    let reply = parent.ended(&id).await;
    assert!(reply.contains(&format!("[SubAgent] {id}: lost\n")) && reply.contains("Exit code: -\n"), "{reply}");
    assert_eq!(parent.ended(&id).await, reply);
    let view: JobView = json_of(&zapmyco(&home, &["jobs", "show", &id, "--json"]).await);
    assert_eq!(view.end_cause.as_deref(), Some(EndCause::KeeperVanished.name()));
    assert_eq!(zapmyco(&home, &["jobs", "sweep"]).await.code, 0);
    parent.kill(&[&alive]).await;
    assert!(nothing_left(&home));
}

/// A model that says what a command printed, or runs one that does not end.
const SCRIPT: &str = r#"
version: 1
scripts:
  - match: "^quick"
    turns:
      - calls: [{name: Bash, input: {command: "echo from a tool"}}]
      - text: "said: {{ results[0] }}"
  - match: "^slow"
    turns:
      - text: "working"
        calls: [{name: Bash, input: {command: "echo $$ > pid; setsid sleep 600 & sleep 600 & wait", timeout: 600000}}]
      - text: "never"
  - match: "."
    turns:
      - text: "other"
"#;

/// Starts a child of the session `ci` that is a real `zapmyco run --subagent`.
async fn spawn_in_ci(home: &Home, task: &str) -> String {
    home.write("agent.yaml", SCRIPT);
    let arguments = ["subagent", "spawn", "--session", "ci", "--model", "script:agent.yaml", "--permission-mode", "yolo", "--json", task];
    let spawned = zapmyco(home, &arguments).await;
    assert_eq!(spawned.code, 0, "{spawned:?}");
    json_of::<JobView>(&spawned).id.to_string()
}

fn quick_polls(home: &Home) {
    std::fs::write(home.root().join("settings.toml"), "[limits]\npoll_base_wait = \"50ms\"\nstop_grace = \"1s\"\n").unwrap();
}

/// R343, R344, R352, decision 20: the four actions without a model and without a parent.
#[tokio::test]
async fn a_script_starts_follows_and_ends_subagents() {
    let home = Home::new();
    quick_polls(&home);
    home.write("agent.yaml", SCRIPT);
    let mut command = home.command();
    command.args(["subagent", "spawn", "--model", "script:agent.yaml", "quick one"]).env("ZAPMYCO_SESSION", "ci");
    let spawned = tokio::task::spawn_blocking(move || crate::support::finish(&mut command)).await.unwrap();
    assert_eq!(spawned.code, 0, "{spawned:?}");
    let id = spawned.stdout.strip_prefix("[SubAgent] ").unwrap().split(':').next().unwrap().to_owned();
    assert!(spawned.stdout.contains(": running\nCLI: zapmyco\nTask: quick one\nCreated: "), "{spawned:?}");
    let polled = loop {
        let polled = zapmyco(&home, &["subagent", "poll", "--session", "ci", "--wait", "5"]).await;
        if polled.code != 10 {
            break polled;
        }
    };
    assert_eq!(polled.code, 0, "{polled:?}");
    assert!(polled.stdout.contains("=== stdout ===\nsaid: from a tool\n"), "{polled:?}");
    let slow = spawn_in_ci(&home, "slow one").await;
    until_true("its command", || home.project().join("pid").exists()).await;
    assert_eq!(zapmyco(&home, &["subagent", "poll", "--session", "ci", &slow, &id]).await.code, 10);
    assert_eq!(zapmyco(&home, &["subagent", "poll", "--session", "other", &slow]).await.code, 11);
    let killed = zapmyco(&home, &["subagent", "kill", "--session", "ci", &slow]).await;
    assert_eq!(killed.code, 0, "{killed:?}");
    assert!(killed.stdout.contains(&format!("  {slow}: cancelled (SIGTERM")), "{killed:?}");
    assert!(nothing_left(&home));
    assert_eq!(zapmyco(&home, &["subagent", "poll", "--session", "ci", &slow]).await.code, 1);
    let list = zapmyco(&home, &["subagent", "list", "--session", "ci"]).await.stdout;
    assert!(list.starts_with("[SubAgent] 当前共 2 个子代理\n") && list.contains("completed (耗时 "), "{list}");
    let no_model = zapmyco(&home, &["subagent", "spawn", "--session", "ci", "--model", "script:nowhere.yaml", "x"]).await;
    assert_eq!(no_model.code, 2, "{no_model:?}");
    assert_eq!(zapmyco(&home, &["jobs", "sweep"]).await.code, 0);
}

/// R350: with a limit, the command of a script waits until there is room.
#[tokio::test]
async fn a_script_waits_its_turn_under_the_limit() {
    let home = Home::new();
    let settings = "[limits]\npoll_base_wait = \"50ms\"\nstop_grace = \"1s\"\nprocess_agents_max = 1\n";
    std::fs::write(home.root().join("settings.toml"), settings).unwrap();
    let first = spawn_in_ci(&home, "slow one").await;
    let (second, ()) = tokio::join!(spawn_in_ci(&home, "quick one"), async {
        let lock = home.root().join("locks/spawn/name_ci");
        until_true("the second one waits", || zapmyco::files::try_lock(&lock).is_ok_and(|free| free.is_none())).await;
        let list: JobList = json_of(&zapmyco(&home, &["subagent", "list", "--session", "ci", "--json"]).await);
        assert_eq!(list.jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), [first.as_str()]);
        assert_eq!(zapmyco(&home, &["subagent", "kill", "--session", "ci", &first]).await.code, 0);
    });
    until_true("the second one ends", || {
        let found = zapmyco::subagents::folders::scan_all(&zapmyco::config::Layout::new(home.root())).unwrap().found;
        found.iter().all(|found| !found.job.is_running()) && found.len() == 2
    })
    .await;
    let polled = zapmyco(&home, &["subagent", "poll", "--session", "ci", &second]).await;
    assert_eq!(polled.code, 0, "{polled:?}");
}

/// Faults A1, M7: the keeper of a detached child dies hard; its record is settled and nothing is left, nested shells included.
#[tokio::test]
async fn sweep_ends_the_tree_of_a_dead_keeper() {
    let home = Home::new();
    quick_polls(&home);
    let id = spawn_in_ci(&home, "slow one").await;
    until_true("its command", || home.project().join("pid").exists()).await;
    let path = home.root().join("subagents/name_ci").join(&id).join("status.json");
    let status: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let keeper = i32::try_from(status["keeper"]["pid"].as_u64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(keeper), nix::sys::signal::Signal::SIGKILL).unwrap();
    until_true("the keeper's end", || !processes::is_alive(keeper.unsigned_abs())).await;
    let swept = zapmyco(&home, &["jobs", "sweep"]).await;
    assert_eq!(swept.code, 1, "{swept:?}");
    assert!(swept.stdout.contains(&format!("settled: {id} is lost")), "{swept:?}");
    assert!(swept.stdout.ends_with("nothing is left now\n"), "{swept:?}");
    assert!(nothing_left(&home));
    let again = zapmyco(&home, &["jobs", "sweep"]).await;
    assert_eq!((again.code, again.stdout.as_str()), (0, "nothing was left behind\n"));
    let polled = zapmyco(&home, &["subagent", "poll", "--session", "ci", &id]).await;
    assert_eq!(polled.code, 1);
    assert!(polled.stdout.contains(&format!("[SubAgent] {id}: lost\n")), "{polled:?}");
}

/// Decision 19, decision 20, R340, R364
#[tokio::test]
async fn subagent_commands_need_a_session_and_check_their_input() {
    let home = Home::new();
    let without = zapmyco(&home, &["subagent", "list"]).await;
    assert_eq!(without.code, 2);
    assert!(without.stderr.contains("ZAPMYCO_SESSION"), "{without:?}");
    let list = zapmyco(&home, &["subagent", "list", "--session", "ci"]).await;
    assert_eq!((list.code, list.stdout.as_str()), (0, "[SubAgent] 当前没有子代理\n"));
    let poll = zapmyco(&home, &["subagent", "poll", "--session", "ci"]).await;
    assert_eq!((poll.code, poll.stdout.as_str()), (0, "[SubAgent] 当前没有子代理\n"));
    let unknown = zapmyco(&home, &["subagent", "poll", "--session", "ci", "../x", "sa_20260606_a1b2c3d4"]).await;
    assert_eq!(unknown.code, 11);
    assert_eq!(unknown.stdout, "../x: ID 不存在\n---\nsa_20260606_a1b2c3d4: ID 不存在\n");
    let wait = zapmyco(&home, &["subagent", "poll", "--session", "ci", "--wait", "-5"]).await;
    assert_eq!((wait.code, wait.stderr.as_str()), (2, "zapmyco: wait_secs 必须是 0 到 30 之间的数字，收到: -5\n"));
    let kill = zapmyco(&home, &["subagent", "kill", "--session", "ci", "x"]).await;
    assert_eq!((kill.code, kill.stdout.as_str()), (11, "[SubAgent] 已终止 0 个子代理:\n  x: ID 不存在\n"));
    let empty = zapmyco(&home, &["subagent", "spawn", "--session", "ci", " "]).await;
    assert_eq!((empty.code, empty.stderr.as_str()), (1, "zapmyco: spawn 时 task 不能为空\n"));
    assert!(!home.root().join("subagents").exists());
    let inside = {
        let mut command = home.command();
        command.args(["subagent", "spawn", "--session", "ci", "x"]).env("ZAPMYCO_SUBAGENT", "sa_20260606_a1b2c3d4");
        tokio::task::spawn_blocking(move || crate::support::finish(&mut command)).await.unwrap()
    };
    assert_eq!(inside.code, 2);
    assert!(inside.stderr.contains("subagent spawn is not available inside a subagent, do not retry"), "{inside:?}");
}

/// A running session's children can be followed by name too: list, poll and kill see a named session as the tool does.
#[tokio::test]
async fn a_named_session_is_followed_from_a_shell() {
    let home = Home::new();
    let session = SessionId::from_name("ci-1").unwrap();
    let parent = parent(&home).session(&session).without_store().build();
    let done = parent.spawn("echo fine").await;
    parent.ended(&done).await;
    let text = zapmyco(&home, &["subagent", "poll", "--session", "ci-1"]).await;
    assert_eq!(text.code, 0, "{text:?}");
    assert_eq!(text.stdout, format!("{}\n", parent.ended(&done).await));
    let failed = parent.spawn("exit 1").await;
    parent.ended(&failed).await;
    assert_eq!(zapmyco(&home, &["subagent", "poll", "--session", "ci-1", &failed, "--json"]).await.code, 1);
    home.write(".zapmyco/settings.toml", "[limits]\npoll_base_wait = \"50ms\"\n");
    let slow = parent.spawn("sleep 600").await;
    let running = zapmyco(&home, &["subagent", "poll", "--session", "ci-1", &slow]).await;
    assert_eq!(running.code, 10, "{running:?}");
    assert!(running.stdout.starts_with("[SubAgent] 1/1 仍在运行 (已等待 "), "{running:?}");
    let list: JobList = json_of(&zapmyco(&home, &["subagent", "list", "--session", "ci-1", "--json"]).await);
    assert_eq!(list.jobs.len(), 3);
    let killed = zapmyco(&home, &["subagent", "kill", "--session", "ci-1", &slow, "--json"]).await;
    assert_eq!(killed.code, 0);
    assert_eq!(json_of::<Value>(&killed)["jobs"][0]["end_cause"], "stopped_by_person");
}

/// R333, fault M23: old jobs go by age and by count, never running ones, never one whose end nobody was told.
#[tokio::test]
async fn old_jobs_go_and_what_is_needed_stays() {
    use std::time::Duration;
    use zapmyco::config::Limits;
    use zapmyco::subagents::retention;
    let home = Home::new();
    let parent = parent(&home).build();
    let mut told = Vec::new();
    for n in 0..5 {
        told.push(parent.spawn(&format!("echo {n}")).await);
        parent.ended(&told[n]).await;
    }
    let untold = parent.spawn("echo untold").await;
    let running = parent.spawn("sleep 600").await;
    until_true("a notice", || !parent.inbox.is_empty()).await;
    let store = parent.store.clone().unwrap();
    while store.jobs_of(&parent.session).await.unwrap().iter().filter(|row| row.notified).count() < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(retention::is_due(&parent.layout));
    let kept = Limits { retention_count: 3, ..Limits::default() };
    let removed = retention::apply(&parent.layout, &kept, Some(&store)).await.unwrap();
    assert!(!retention::is_due(&parent.layout));
    let mut removed: Vec<String> = removed.iter().map(ToString::to_string).collect();
    removed.sort();
    let mut oldest = told[..3].to_vec();
    oldest.sort();
    assert_eq!(removed, oldest);
    let old = Limits { retention_age: Duration::ZERO, ..Limits::default() };
    retention::apply(&parent.layout, &old, Some(&store)).await.unwrap();
    let list: JobList = json_of(&zapmyco(&home, &["jobs", "list", "--json"]).await);
    let mut left: Vec<&str> = list.jobs.iter().map(|job| job.id.as_str()).collect();
    left.sort_unstable();
    let mut expected = vec![untold.as_str(), running.as_str()];
    expected.sort_unstable();
    assert_eq!(left, expected);
    assert_eq!(store.jobs_of(&parent.session).await.unwrap().len(), 2);
    parent.kill(&[&running]).await;
}
