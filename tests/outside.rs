//! Flow: what comes from outside while a run is under way: signals to a child, a hard kill in the middle of a start, a disk
//! that fills up.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::provider::{Answer, Gate, Provider};
use crate::support::{Home, finish, processes, wait};

fn job(home: &Home, id: &str) -> Value {
    serde_json::from_str(&home.run(&["jobs", "show", id, "--json"]).stdout).unwrap()
}

/// R360, fault C1, fault M6: a signal from outside is `lost` with the signal named, whether our own program catches it (and
/// keeps what it has) or not; a fault of its own is an `error`.
#[test]
fn a_signal_to_a_child_from_outside_is_lost_and_named() {
    for (signal, status, cause, code) in [
        (Signal::SIGTERM, "lost", "killed_from_outside", 143),
        (Signal::SIGHUP, "lost", "killed_from_outside", 129),
        (Signal::SIGINT, "lost", "killed_from_outside", 130),
        (Signal::SIGQUIT, "lost", "killed_from_outside", 131),
        (Signal::SIGKILL, "lost", "killed_from_outside", 137),
        (Signal::SIGABRT, "error", "fault_signal", 134),
    ] {
        let home = Home::new();
        let provider = Provider::with(|request| match request.turn() {
            0 => Answer::text("half of the work").and_call("g", "Glob", json!({"pattern": "*"})),
            _ => Answer::stall(),
        });
        let mut command = home.command();
        provider.configure(&mut command);
        let spawned = finish(command.args(["subagent", "spawn", "--session", "ci", "--json", "work"]));
        let id = serde_json::from_str::<Value>(&spawned.stdout).unwrap()["id"].as_str().unwrap().to_owned();
        wait::until_true("its second request", || provider.request_count() == 2);
        let pid = i32::try_from(job(&home, &id)["pid"].as_i64().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
        let ended = wait::until("its end", || Some(job(&home, &id)).filter(|job| job["status"] != "running"));
        let found = (ended["status"].as_str(), ended["end_cause"].as_str(), ended["exit_code"].as_i64(), ended["signal"].as_str());
        assert_eq!(found, (Some(status), Some(cause), Some(code), Some(signal.as_str())), "{ended}");
        let polled = home.run(&["subagent", "poll", "--session", "ci", &id]).stdout;
        assert!(polled.contains(&format!("Exit code: {code} ({signal})\n")), "{polled}");
        if matches!(signal, Signal::SIGTERM | Signal::SIGHUP | Signal::SIGINT | Signal::SIGQUIT) {
            assert!(polled.contains("half of the work"), "what it had is kept: {polled}");
        }
        wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
    }
}

/// How many hard kills; more on demand.
fn kills() -> u64 {
    std::env::var("ZAPMYCO_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// R331, R380, faults A1, K1, M20: whenever the parent is killed, each child that is known has one end, and it is "parent
/// gone"; never "nobody saw it", since the keepers live.
#[test]
fn a_hard_kill_in_the_middle_of_a_start_is_parent_gone() {
    for round in 0..kills() {
        let home = Home::new();
        let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
            ("go", 0) => {
                let spawn = |id: &str| (id.to_owned(), json!({"action": "spawn", "task": "child"}));
                ["a", "b", "c"]
                    .iter()
                    .map(|id| spawn(id))
                    .fold(Answer::new(), |answer, (id, input)| answer.and_call(&id, "subagent", input))
            }
            _ => Answer::stall(),
        });
        let mut command = home.command();
        provider.configure(&mut command);
        let mut run = command.args(["run", "go"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait::until_true("the first request", || provider.request_count() >= 1);
        // Any moment is right: folders, keepers, orders, payloads come within the next milliseconds.
        let jobs = home.root().join("subagents");
        if round % 3 != 0 {
            wait::until_true("the first folder", || jobs.exists() || run.try_wait().unwrap().is_some());
        }
        std::thread::sleep(Duration::from_micros(round * 7_919 % 12_000));
        run.kill().unwrap();
        run.wait().unwrap();
        wait::until_true("nothing is left", || processes::of_home(&home.root()).is_empty());
        let listed: Value = serde_json::from_str(&home.run(&["jobs", "list", "--json"]).stdout).unwrap();
        for job in listed["jobs"].as_array().unwrap() {
            assert_eq!((&job["status"], &job["end_cause"]), (&json!("cancelled"), &json!("parent_gone")), "round {round}: {job}");
        }
    }
}

/// A run in a mount namespace of its own, whose storage root is a file system of 2 MB.
struct SmallDisk {
    home: Home,
    /// A process inside, for the way to its files.
    inside: Arc<OnceLock<u32>>,
}

impl SmallDisk {
    /// `None` where this system lets a test mount nothing.
    fn new() -> Option<Self> {
        let isolated = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).stderr(Stdio::null()).status();
        if !isolated.is_ok_and(|status| status.success()) {
            eprintln!("NOT RUN: this system lets a test mount no file system of its own (unshare --map-root-user --mount)");
            return None;
        }
        Some(Self { home: Home::new(), inside: Arc::default() })
    }

    /// Runs `zapmyco run` inside, then writes lists of what is stored there beside the project.
    fn start(&self, provider: &Provider) -> Child {
        let mut settings = self.home.command();
        provider.configure(&mut settings);
        let script = "mount -t tmpfs -o size=2m none \"$ZAPMYCO_HOME\" || exit 99
            zapmyco=$1; shift
            \"$zapmyco\" \"$@\"; code=$?
            rm -f \"$ZAPMYCO_HOME/ballast\"
            \"$zapmyco\" jobs list --json > jobs.json
            \"$zapmyco\" sessions list --json > sessions.json
            \"$zapmyco\" sessions show \"$(sed -n 's/.*\"id\": \"\\(sess_[0-9a-f-]*\\)\".*/\\1/p' sessions.json | head -1)\" > session.txt
            exit $code";
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(crate::support::binary());
        command.args(["run", "--permission-mode", "yolo", "go"]).env_clear();
        command.envs(settings.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(self.home.project());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        self.inside.set(child.id()).unwrap();
        child
    }
}

fn fill(path: &std::path::Path) {
    let mut file = std::fs::File::create(path).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 1024]).is_ok() {}
}

/// fault K5, fault S24: a disk that fills up under a run ends neither the run nor its child: it is said once, a start that
/// has no room fails with the reason, the child's end is recorded, and the end of the run says what is missing.
#[test]
fn a_full_disk_does_not_end_a_run() {
    let Some(disk) = SmallDisk::new() else { return };
    let child_may_answer = Gate::new();
    let (gate, path) = (child_may_answer.clone(), OnceLock::new());
    let child_asks = AtomicBool::new(false);
    let (root, inside) = (disk.home.root(), Arc::clone(&disk.inside));
    let provider = Provider::with(move |request| match (request.task().as_str(), request.turn()) {
        ("child", _) => {
            child_asks.store(true, Ordering::SeqCst);
            Answer::text("the child's answer").when(&gate)
        }
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})),
        (_, 1) => {
            let pid = wait::until("the process inside", || inside.get().copied());
            let ballast = path.get_or_init(|| PathBuf::from(format!("/proc/{pid}/root{}", root.join("ballast").display())));
            wait::until_true("the child's request", || child_asks.load(Ordering::SeqCst));
            fill(ballast);
            Answer::text("looking").and_call("g", "Glob", json!({"pattern": "*"}))
        }
        (_, 2) => Answer::call("t", "subagent", json!({"action": "spawn", "task": "one more"})),
        (_, 3) => {
            gate.open();
            let id = request.texts("user").join("\n");
            let id = id.split("[SubAgent] ").nth(1).unwrap_or_default().split(':').next().unwrap_or_default().to_owned();
            Answer::call("p", "subagent", json!({"action": "poll", "subagent_ids": [id], "wait_secs": 30}))
        }
        _ => Answer::text("all is said"),
    });
    let output = disk.start(&provider).wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), stdout.as_ref()), (Some(8), "all is said\n"), "{stderr}");
    assert_eq!(stderr.matches("the conversation cannot be saved: no space left").count(), 1, "{stderr}");
    assert!(stderr.contains("the conversation could not be saved to its end, so it cannot be resumed: no space left"), "{stderr}");
    let requests = provider.requests();
    let result = |call: &str| {
        let all = requests.iter().flat_map(|request| request.tool_results());
        all.into_iter().find(|(id, _)| id == call).map(|(_, text)| text).unwrap_or_default()
    };
    assert!(result("t").contains("No space left on device"), "{}", result("t"));
    assert!(result("p").contains(": completed\n"), "{}", result("p"));
    let jobs: Value = serde_json::from_slice(&std::fs::read(disk.home.project().join("jobs.json")).unwrap()).unwrap();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
    assert_eq!((&jobs["jobs"][0]["status"], &jobs["jobs"][0]["exit_code"]), (&json!("completed"), &json!(0)), "{jobs}");
}

/// fault K5: as soon as there is room again everything is saved, in its order, and the run is as any other.
#[test]
fn what_could_not_be_saved_is_saved_when_there_is_room() {
    let Some(disk) = SmallDisk::new() else { return };
    let (inside, home) = (Arc::clone(&disk.inside), disk.home.root());
    let provider = Provider::with(move |request| {
        let pid = wait::until("the process inside", || inside.get().copied());
        let ballast = PathBuf::from(format!("/proc/{pid}/root{}", home.join("ballast").display()));
        match request.turn() {
            0 => {
                fill(&ballast);
                Answer::text("word one").and_call("g", "Glob", json!({"pattern": "*"}))
            }
            1 => Answer::text("word two").and_call("h", "Glob", json!({"pattern": "*"})),
            2 => {
                std::fs::remove_file(&ballast).unwrap();
                Answer::text("word three").and_call("i", "Glob", json!({"pattern": "*"}))
            }
            _ => Answer::text("the end"),
        }
    });
    let output = disk.start(&provider).wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), stdout.as_ref()), (Some(0), "the end\n"), "{stderr}");
    assert_eq!(stderr.matches("the conversation cannot be saved").count(), 1, "{stderr}");
    assert_eq!(stderr.matches("there is room again: the conversation is saved").count(), 1, "{stderr}");
    let session = std::fs::read_to_string(disk.home.project().join("session.txt")).unwrap();
    let places: Vec<_> = ["go", "word one", "word two", "word three", "the end"].iter().map(|word| session.find(word)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{session}");
}

/// fault S6, R380: run and keepers die hard at one moment; what their payloads started lives on, and `jobs sweep` finds it by
/// its marker, ends it, names it, and proves that nothing is left.
#[test]
#[cfg_attr(zapmyco_portable, ignore = "a dead keeper's processes in other sessions are found by their marker, which only Linux shows")]
fn a_sweep_ends_what_dead_keepers_left_behind() {
    let home = Home::new();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("child", 0) => Answer::call("b", "Bash", json!({"command": "setsid sleep 600 & (setsid sleep 600 &) ; sleep 600"})),
        ("child", _) => Answer::text("never"),
        (_, 0) => Answer::call("s", "subagent", json!({"action": "spawn", "task": "child"})).and_call(
            "b",
            "Bash",
            json!({"command": "setsid sleep 600 & sleep 600", "run_in_background": true, "description": "d"}),
        ),
        (_, _) => Answer::stall(),
    });
    let mut command = home.command();
    provider.configure(&mut command);
    let run = command.args(["run", "--permission-mode", "yolo", "go"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let living = || processes::of_home(&home.root());
    let sleeps = || living().into_iter().filter(|process| process.command == "sleep").map(|process| process.pid).collect::<Vec<_>>();
    wait::until_true("five sleeps", || sleeps().len() == 5);
    // Stopped first, so that none of them sees another one's end.
    let ours: Vec<u32> = living().into_iter().filter(|process| process.command.starts_with("zapmyco")).map(|process| process.pid).collect();
    assert!(ours.len() >= 5, "run, child and three keepers: {:?}", living());
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        ours.iter().for_each(|pid| kill(Pid::from_raw(i32::try_from(*pid).unwrap()), signal).unwrap());
    }
    wait_for(run);
    wait::until_true("all of ours are gone", || living().iter().all(|process| !process.command.starts_with("zapmyco")));
    let left = sleeps();
    assert!(left.len() >= 3, "those in sessions of their own live on: {:?}", living());
    let swept = home.run(&["jobs", "sweep", "--json"]);
    assert_eq!(swept.code, 1, "{swept:?}");
    let report: Value = serde_json::from_str(&swept.stdout).unwrap();
    let ended: Vec<u32> =
        report["ended"].as_array().unwrap().iter().map(|one| u32::try_from(one["pid"].as_u64().unwrap()).unwrap()).collect();
    assert!(left.iter().all(|pid| ended.contains(pid)), "{left:?} {report}");
    assert_eq!(report["left_over"], json!([]), "{report}");
    assert!(living().is_empty(), "{:?}", living());
    let jobs: Value = serde_json::from_str(&home.run(&["jobs", "list", "--json"]).stdout).unwrap();
    for job in jobs["jobs"].as_array().unwrap() {
        assert_eq!((&job["status"], &job["end_cause"]), (&json!("lost"), &json!("keeper_vanished")), "{job}");
    }
    let again = home.run(&["jobs", "sweep"]);
    assert_eq!((again.code, again.stdout.as_str()), (0, "nothing was left behind\n"), "{again:?}");
}

fn wait_for(mut child: Child) {
    child.wait().unwrap();
}
