//! Agents that can be killed: this test binary once more, as a process of its own that plays a role.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use zapmyco::supervisor::handle::Look;
use zapmyco::supervisor::launch::LaunchError;
use zapmyco::supervisor::plan::OnOwnerDeath;
use zapmyco::supervisor::record::EndedBy;

use super::kit::{end_of, launcher, order};
use crate::support::wait;

const ROLE: &str = "ZAPMYCO_TEST_ROLE";
const ROLE_YARD: &str = "ZAPMYCO_TEST_YARD";

/// The command line of a role, for a shell.
pub fn command_line() -> String {
    format!("{} --exact supervisor::roles::act --nocapture --test-threads=1", std::env::current_exe().unwrap().display())
}

/// Starts a role as a process of its own, below `wrapper` (for example `unshare -rm`) when that is not empty.
pub fn start(role: &str, yard: &Path, wrapper: &[&str]) -> Child {
    let line = format!("exec {}", command_line());
    let mut words = wrapper.to_vec();
    words.extend(["bash", "-c", &line]);
    Command::new(words[0])
        .args(&words[1..])
        .env(ROLE, role)
        .env(ROLE_YARD, yard)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Plays a role to its end, which asserts by itself. `false`: the wrapper is not permitted here, said loudly.
pub fn play(role: &str, yard: &Path, wrapper: &[&str]) -> bool {
    if !wrapper.is_empty() {
        let allowed = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output().is_ok_and(|probe| probe.status.success());
        if !allowed {
            eprintln!("SKIPPED: `{}` is not permitted here", wrapper.join(" "));
            return false;
        }
    }
    let output = start(role, yard, wrapper).wait_with_output().unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "role {role}: {}\n{said}", output.status);
    true
}

/// An agent with jobs that sleep, ready to be killed.
pub fn agent_with(yard: &Path, role: &str, jobs: usize) -> Child {
    let agent = start(role, yard, &[]);
    wait::until_true("an agent with its jobs", || {
        std::fs::read_to_string(yard.join("ready")).is_ok_and(|ready| ready.lines().count() == jobs)
    });
    agent
}

/// Not a test: does nothing unless started as a role.
#[test]
fn act() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let yard = PathBuf::from(std::env::var_os(ROLE_YARD).unwrap());
    match role.to_str().unwrap() {
        "attached" => hold(&yard, 3, OnOwnerDeath::Stop),
        "twenty" => hold(&yard, 20, OnOwnerDeath::Stop),
        "detached" => hold(&yard, 1, OnOwnerDeath::Finish),
        "nested" => hold(&yard, 1, OnOwnerDeath::Stop),
        "full disk" => full_disk(&yard),
        "no space at all" => no_space_at_all(&yard),
        "few descriptors" => few_descriptors(&yard),
        "few processes" => few_processes(&yard),
        "first process" => first_process(&yard),
        "much output" => much_output(&yard),
        "signalled group" => signalled_group(&yard),
        other => panic!("no role {other}"),
    }
}

fn hold(yard: &Path, jobs: usize, on_owner_death: OnOwnerDeath) {
    let launcher = launcher();
    let mut held = Vec::new();
    for number in 0..jobs {
        let mut order = order(yard, &format!("job{number}"), "echo first; sleep 600 & setsid sleep 600 & wait");
        order.plan.on_owner_death = on_owner_death;
        held.push(launcher.launch(order).unwrap());
    }
    let pids: Vec<String> = held
        .iter()
        .map(|kept| match kept.look().unwrap() {
            Look::Running(status) => status.payload.pid.to_string(),
            Look::Ended(end) => panic!("{end:?}"),
        })
        .collect();
    wait::until_true("first output", || held.iter().all(|kept| super::kit::stdout_of(kept).contains("first")));
    std::fs::write(yard.join("ready"), pids.join("\n") + "\n").unwrap();
    loop {
        std::thread::park();
    }
}

/// In a mount namespace of its own: 1 MB for everything.
fn mount(yard: &Path, options: &str) {
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(yard).status().unwrap();
    assert!(mounted.success());
}

fn full_disk(yard: &Path) {
    mount(yard, "size=1m");
    let launcher = launcher();
    let filler = launcher.launch(order(yard, "filler", "echo begin; head -c 4M /dev/zero; echo >&2 done")).unwrap();
    let end = end_of(&filler);
    assert_eq!((end.cause.clone(), end.wait.unwrap().code), (EndedBy::Itself, Some(0)));
    assert_eq!(end.stdout.bytes, 4 * 1024 * 1024 + 6);
    assert!(end.stdout.kept < 1024 * 1024);
    assert!(end.output_error.as_ref().unwrap().contains("No space left on device"), "{end:?}");
    assert!(super::kit::stdout_of(&filler).starts_with("begin\n"));
    // The disk is full now.
    let error = launcher.launch(order(yard, "next", "true")).unwrap_err();
    assert!(error.is_folder() || matches!(error, LaunchError::Payload { .. }), "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
    assert!(!yard.join("jobs/next").exists());
}

fn no_space_at_all(yard: &Path) {
    mount(yard, "size=64k");
    std::fs::create_dir(yard.join("jobs")).unwrap();
    let _ = std::fs::write(yard.join("filling"), vec![0; 64 * 1024]);
    let error = launcher().launch(order(yard, "one", "true")).unwrap_err();
    assert!(error.is_folder(), "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
    assert_eq!(std::fs::read_dir(yard.join("jobs")).unwrap().count(), 0);
}

fn few_descriptors(yard: &Path) {
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let launcher = launcher();
    let mut held = Vec::new();
    let error = loop {
        match launcher.launch(order(yard, &format!("job{}", held.len()), "ulimit -n; sleep 600")) {
            Ok(kept) => held.push(kept),
            Err(error) => break error,
        }
        assert!(held.len() < 64);
    };
    assert!(error.to_string().contains("Too many open files"), "{error}");
    assert_eq!(std::fs::read_dir(yard.join("jobs")).unwrap().count(), held.len());
    held.truncate(held.len() - 1);
    for kept in &held {
        assert!(matches!(kept.look().unwrap(), Look::Running(_)));
    }
    // The limit of the payload is the one that was found, and a place that became free is usable.
    super::kit::wait_for_stdout(&held[0], "64\n");
    let last = held.pop().unwrap();
    drop(held);
    drop(last);
}

fn few_processes(yard: &Path) {
    if rustix::process::getuid().is_root() {
        // The limit does not bind root.
        nix::unistd::setgid(nix::unistd::Gid::from_raw(65534)).unwrap();
        nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)).unwrap();
    }
    let launcher = launcher();
    let first = launcher.launch(order(yard, "first", "sleep 600")).unwrap();
    let limit = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::setrlimit(rustix::process::Resource::Nproc, limit).unwrap();
    let error = launcher.launch(order(yard, "second", "true")).unwrap_err();
    let LaunchError::NoProcesses { tries, .. } = &error else { panic!("{error}") };
    assert_eq!(*tries, 4);
    assert!(error.to_string().contains("limit of this user (ulimit -u): 1"), "{error}");
    assert!(!yard.join("jobs/second").exists());
    assert!(matches!(first.look().unwrap(), Look::Running(_)));
}

fn first_process(yard: &Path) {
    assert_eq!(std::process::id(), 1);
    let launcher = launcher();
    let jobs: Vec<_> =
        (0..5).map(|number| launcher.launch(order(yard, &format!("job{number}"), "(setsid sleep 0.05 &) ; exit 7")).unwrap()).collect();
    for job in &jobs {
        assert_eq!(end_of(job).wait.unwrap().code, Some(7));
        assert!(matches!(job.look().unwrap(), Look::Ended(_)));
    }
}

fn much_output(yard: &Path) {
    let launcher = launcher();
    let jobs: Vec<_> = (0..4)
        .map(|number| {
            let mut order = order(yard, &format!("job{number}"), "head -c 50M /dev/zero");
            order.plan.output.kept_max = 1 << 20;
            order.plan.output.tail_max = 1 << 16;
            launcher.launch(order).unwrap()
        })
        .collect();
    for job in &jobs {
        assert_eq!(end_of(job).stdout.bytes, 50 << 20);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak < 50 * 1024, "peak of {peak} KiB");
}

/// Started as the leader of a group, with the terminal's signals ignored: whoever joins the group and does not ignore
/// them would be hit.
fn signalled_group(yard: &Path) {
    let launcher = launcher();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for signal in [rustix::process::Signal::INT, rustix::process::Signal::TSTP, rustix::process::Signal::HUP] {
                    rustix::process::kill_current_process_group(signal).unwrap();
                }
                std::thread::yield_now();
            }
        });
        let ends: Vec<_> =
            (0..60).map(|number| launcher.launch(order(yard, &format!("job{number}"), "exit 8")).map(|kept| end_of(&kept))).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for end in ends {
            let end = end.unwrap();
            assert_eq!((end.cause, end.wait.unwrap().code), (EndedBy::Itself, Some(8)));
        }
    });
}
