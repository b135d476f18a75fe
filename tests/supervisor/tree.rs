//! Ending whole trees: proved empty, or said what is left.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use zapmyco::supervisor::handle::{Kept, StopAnswer};
use zapmyco::supervisor::plan::Program;
use zapmyco::supervisor::record::{EndRecord, EndedBy, LeftOver, Requester};
use zapmyco::supervisor::recovery::find_marked;

use super::kit::{Yard, end_of, pids_in, runtime, status_of, stdout_of, wait_for_stdout};
use super::roles;
use crate::support::{processes, wait};

fn stop(kept: &Kept) -> EndRecord {
    runtime().block_on(async { tokio::time::timeout(wait::PATIENCE, kept.stop(Requester::Model)).await }).expect("an end").unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// R375, fault A3, fault M4
#[test]
fn a_stop_ends_the_whole_group() {
    let yard = Yard::new();
    let kept = yard.launch("a3", "sleep 600 & sleep 600 & echo up; wait");
    wait_for_stdout(&kept, "up");
    assert!(yard.living().len() >= 3);
    let end = stop(&kept);
    yard.assert_empty();
    assert!(matches!(end.cause, EndedBy::Stop { ref request } if request.requester == Requester::Model));
    assert_eq!(end.wait.unwrap().signal, Some(15));
    assert_eq!(end.signals, ["SIGTERM"]);
}

/// R375, fault A4
#[test]
#[cfg_attr(zapmyco_portable, ignore = "who left the session and lost its parent is found by a subreaper, which only Linux has")]
fn descendants_that_left_the_group_are_ended() {
    let yard = Yard::new();
    let scripts = [
        ("session", "setsid sleep 600 & echo up; wait"),
        ("double", "(setsid bash -c 'sleep 600 & echo up; exit 0' &) ; sleep 600"),
        ("ignoring", "setsid bash -c 'trap \"\" TERM; echo up; while :; do sleep 0.1; done' & sleep 600"),
    ];
    for (id, script) in scripts {
        let mut order = yard.order(id, script);
        order.plan.grace = Duration::from_millis(300);
        let kept = yard.launch_order(order);
        wait_for_stdout(&kept, "up");
        let end = stop(&kept);
        yard.assert_empty();
        assert!(end.left_over.iter().all(LeftOver::is_of_system), "{id}: {end:?}");
    }
}

/// R375, fault A5
#[test]
fn one_that_ignores_term_is_killed_after_the_grace_time() {
    let yard = Yard::new();
    let mut order = yard.order("a5", "trap '' TERM; echo up; while :; do sleep 0.1; done");
    order.plan.grace = Duration::from_millis(300);
    let kept = yard.launch_order(order);
    wait_for_stdout(&kept, "up");
    let end = stop(&kept);
    yard.assert_empty();
    assert_eq!(end.signals, ["SIGTERM", "SIGKILL"]);
    assert_eq!(end.wait.unwrap().signal, Some(9));
    assert!(end.duration_ms >= 300);
}

/// R375
#[test]
fn a_second_request_ends_the_grace_time() {
    let yard = Yard::new();
    let mut order = yard.order("hard", "trap '' TERM; echo up; while :; do sleep 0.1; done");
    order.plan.grace = Duration::from_secs(3600);
    let kept = yard.launch_order(order);
    wait_for_stdout(&kept, "up");
    assert_eq!(kept.request_stop(Requester::Person).unwrap(), StopAnswer::Requested);
    wait::until_true("a stop under way", || status_of(&kept).stopping);
    assert_eq!(kept.request_stop(Requester::RunEnd).unwrap(), StopAnswer::Requested);
    let end = end_of(&kept);
    // The first request is the cause.
    assert!(matches!(end.cause, EndedBy::Stop { ref request } if request.requester == Requester::Person));
    assert!(matches!(kept.request_stop(Requester::Person).unwrap(), StopAnswer::AlreadyEnded(same) if same == end));
    yard.assert_empty();
}

/// R375
#[test]
fn a_stopped_payload_hears_the_polite_signal() {
    let yard = Yard::new();
    let kept = yard.launch("stopped", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done");
    wait_for_stdout(&kept, "up");
    let payload = status_of(&kept).payload.pid;
    signal(payload, Signal::STOP);
    wait::until_true("a stopped payload", || processes::read(payload).is_some_and(|process| process.state == 'T'));
    let end = stop(&kept);
    assert_eq!(end.wait.unwrap().code, Some(0));
    assert!(stdout_of(&kept).contains("bye"));
    yard.assert_empty();
}

/// R376
#[test]
fn a_stop_stays_a_stop_when_the_payload_ends_by_itself() {
    let yard = Yard::new();
    let kept = yard.launch("both", "trap 'exit 0' TERM; echo up; sleep 600 & wait");
    wait_for_stdout(&kept, "up");
    let end = stop(&kept);
    assert_eq!(end.wait.unwrap().code, Some(0));
    assert!(matches!(end.cause, EndedBy::Stop { .. }));
}

/// fault S8
#[test]
fn shells_inside_shells_are_ended() {
    let yard = Yard::new();
    let kept = yard.launch("s8", "bash -c \"bash -c 'echo up; sleep 600; :'; :\"; :");
    wait_for_stdout(&kept, "up");
    stop(&kept);
    yard.assert_empty();
}

/// fault S10
#[test]
fn nothing_is_written_after_a_stop_has_returned() {
    let yard = Yard::new();
    let script = "for i in $(seq 50); do (trap '' TERM; while :; do echo x >> file; sleep 0.01; done) & done; echo up; wait";
    let mut order = yard.order("s10", script);
    order.plan.grace = Duration::from_millis(100);
    let kept = yard.launch_order(order);
    wait_for_stdout(&kept, "up");
    let file = yard.path().join("file");
    wait::until_true("writers at work", || file.metadata().is_ok_and(|metadata| metadata.len() > 100));
    stop(&kept);
    let size = file.metadata().unwrap().len();
    yard.assert_empty();
    assert_eq!(file.metadata().unwrap().len(), size);
}

/// Each process starts the next in a session of its own and ends; TERM means nothing to them.
pub(super) const CHAIN: &str =
    "import os,signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()";

/// fault A4, fault S10: a chain of processes that each start the next in a session of its own and end
#[test]
#[cfg_attr(zapmyco_portable, ignore = "who left the session and lost its parent is found by a subreaper, which only Linux has")]
fn a_chain_that_breeds_faster_than_it_is_found_is_ended() {
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: there is no python3 here");
        return;
    }
    let yard = Yard::new();
    let mut order = yard.order("chain", "");
    order.plan.program = Program::At("python3".into());
    order.plan.argv = ["python3", "-S", "-c", CHAIN].map(Into::into).to_vec();
    order.plan.grace = Duration::from_millis(100);
    let kept = yard.launch_order(order);
    wait_for_stdout(&kept, "up");
    let end = stop(&kept);
    if end.left_over.iter().all(LeftOver::is_of_system) {
        yard.assert_empty();
        return;
    }
    // Without the right to make a cgroup it may escape, and then that is said. Ended here by its groups.
    wait::until_true("nothing left", || {
        for process in yard.living() {
            let _ = rustix::process::kill_process_group(Pid::from_raw(process.pid.try_into().unwrap()).unwrap(), Signal::KILL);
        }
        yard.living().is_empty()
    });
}

/// fault S27, fault A3
#[test]
fn a_group_that_outlives_its_leader_is_swept() {
    let yard = Yard::new();
    let end = yard.run("s27", "(trap '' TERM; while :; do sleep 0.1; done) > /dev/null 2>&1 & exit 0");
    yard.assert_empty();
    assert_eq!((end.cause, end.wait.unwrap().code), (EndedBy::Itself, Some(0)));
    assert!(end.swept >= 1);
    assert_eq!(end.signals, ["SIGTERM", "SIGKILL"]);
}

/// fault S2, fault D1, R378
#[test]
fn a_time_limit_ends_the_whole_pipeline() {
    let yard = Yard::new();
    let mut order = yard.order("s2", "mkfifo f; (while :; do echo x; sleep 0.05; done) > f & cat f");
    order.plan.time_limit = Some(Duration::from_millis(700));
    let kept = yard.launch_order(order);
    let end = end_of(&kept);
    yard.assert_empty();
    assert_eq!(end.cause, EndedBy::TimeLimit);
    assert!(end.duration_ms >= 700);
    assert!(stdout_of(&kept).starts_with("x\n"));
}

/// Decision 2
#[test]
fn a_keeper_told_to_end_stops_its_tree_and_says_so() {
    let yard = Yard::new();
    for (id, signal_sent, number) in [("term", Signal::TERM, 15), ("int", Signal::INT, 2), ("hup", Signal::HUP, 1)] {
        let kept = yard.launch(id, "echo up; sleep 600");
        wait_for_stdout(&kept, "up");
        signal(status_of(&kept).keeper.pid, signal_sent);
        assert_eq!(end_of(&kept).cause, EndedBy::KeeperSignal { signal: number });
        yard.assert_empty();
    }
}

/// Decision 2, fault A4
#[test]
#[cfg_attr(zapmyco_portable, ignore = "the markers of others are read in their environments, which only Linux shows")]
fn nested_keepers_record_before_the_one_above_kills() {
    let yard = Yard::new();
    let inner_folder = yard.path().join("inner");
    std::fs::create_dir(&inner_folder).unwrap();
    let mut order = yard.order("outer", &format!("exec {}", roles::command_line()));
    order.plan.environment.push(("ZAPMYCO_TEST_ROLE".into(), "nested".into()));
    order.plan.environment.push(("ZAPMYCO_TEST_YARD".into(), inner_folder.clone().into()));
    let kept = yard.launch_order(order);
    pids_in(&inner_folder.join("ready"), 1);
    let inner = Kept::open(zapmyco::config::layout::JobFolder::new(inner_folder.join("jobs/job0")));
    let inner_payload = status_of(&inner).payload.pid;
    let nested = find_marked().into_iter().find(|marked| marked.pid == inner_payload).unwrap();
    assert_eq!(nested.components.len(), 2, "{nested:?}");
    assert!(nested.components[0].starts_with("outer.") && nested.components[1].starts_with("job0."), "{nested:?}");
    let end = stop(&kept);
    assert!(end.left_over.iter().all(LeftOver::is_of_system));
    let inner_end = end_of(&inner);
    assert!(matches!(inner_end.cause, EndedBy::OwnerGone | EndedBy::KeeperSignal { signal: 15 }), "{inner_end:?}");
    assert!(super::kit::living(&inner_folder).is_empty());
    yard.assert_empty();
}

/// fault A7, fault S12
#[test]
fn no_zombies_stay_after_many_cancellations() {
    let yard = Yard::new();
    let runtime = runtime();
    let mut keepers = Vec::new();
    for round in 0..20 {
        let jobs: Vec<Kept> = (0..5).map(|number| yard.launch(&format!("job{round}-{number}"), "sleep 600")).collect();
        keepers.extend(jobs.iter().map(|kept| status_of(kept).keeper.pid));
        for kept in &jobs {
            kept.request_stop(Requester::Model).unwrap();
        }
        for kept in &jobs {
            assert!(matches!(runtime.block_on(kept.ended()).unwrap().cause, EndedBy::Stop { .. }));
        }
    }
    let own = std::process::id();
    wait::until_true("all keepers reaped", || {
        !keepers.iter().any(|pid| processes::read(*pid).is_some_and(|process| process.parent == own && process.state == 'Z'))
    });
    yard.assert_empty();
}

/// fault S19
#[test]
fn no_exit_is_missed_when_many_end_at_once() {
    let yard = Yard::new();
    let ends: Vec<EndRecord> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let yard = &yard;
                scope.spawn(move || {
                    let jobs: Vec<Kept> = (0..50).map(|number| yard.launch(&format!("t{thread}-{number}"), "exit 4")).collect();
                    jobs.iter().map(end_of).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ends.len(), 200);
    assert!(ends.iter().all(|end| end.cause == EndedBy::Itself && end.wait.unwrap().code == Some(4)));
}
