//! Dead agents, dead keepers, foreign numbers, old folders.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use zapmyco::config::layout::JobFolder;
use zapmyco::supervisor::handle::{Kept, Look, StopAnswer};
use zapmyco::supervisor::plan::Program;
use zapmyco::supervisor::record::{EndedBy, LeftOver, RecordError, Requester, read_status};
use zapmyco::supervisor::recovery::{remove, settle};

use super::kit::{Yard, end_of, runtime, status_of, stdout_of, wait_for_stdout};
use super::roles;
use super::tree::CHAIN;
use crate::support::{processes, wait};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

fn job(yard: &Yard, number: usize) -> Kept {
    Kept::open(yard.folder(&format!("job{number}")))
}

/// fault A1, fault A2, fault K1, fault M20, R380
#[test]
fn attached_jobs_end_with_their_agent_however_it_dies() {
    // Below `nohup` nobody dies of it.
    let ignored = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let deaths = [Signal::KILL, Signal::INT, Signal::TERM, Signal::HUP];
    for death in deaths.into_iter().filter(|death| ignored.unwrap_or(0) >> (death.as_raw() - 1) & 1 == 0) {
        let yard = Yard::new();
        let mut agent = roles::agent_with(yard.path(), "attached", 3);
        signal(agent.id(), death);
        agent.wait().unwrap();
        for number in 0..3 {
            let kept = job(&yard, number);
            let end = end_of(&kept);
            assert_eq!(end.cause, EndedBy::OwnerGone);
            assert!(end.left_over.iter().all(LeftOver::is_of_system));
            assert_eq!(stdout_of(&kept), "first\n");
            assert_eq!(kept.look().unwrap(), Look::Ended(end));
        }
        yard.assert_empty();
    }
}

/// fault S20
#[test]
fn twenty_jobs_of_a_dead_agent_leave_twenty_records_and_no_process() {
    let yard = Yard::new();
    let mut agent = roles::agent_with(yard.path(), "twenty", 20);
    signal(agent.id(), Signal::KILL);
    agent.wait().unwrap();
    for number in 0..20 {
        assert_eq!(end_of(&job(&yard, number)).cause, EndedBy::OwnerGone);
    }
    yard.assert_empty();
}

/// fault A1, fault A4: what breeds faster than it is found, and nobody is left whose child it would become
#[test]
#[cfg_attr(zapmyco_portable, ignore = "processes of a dead keeper in other sessions are found by their marker, which only Linux shows")]
fn a_chain_whose_keeper_died_is_swept() {
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: there is no python3 here");
        return;
    }
    let yard = Yard::new();
    let mut order = yard.order("chain", "");
    order.plan.program = Program::At("python3".into());
    order.plan.argv = ["python3", "-S", "-c", CHAIN].map(Into::into).to_vec();
    let kept = yard.launch_order(order);
    wait_for_stdout(&kept, "up");
    signal(status_of(&kept).keeper.pid, Signal::KILL);
    wait::until_true("the lock is free", || settle(kept.folder()).is_ok_and(|end| end.is_some()));
    let end = settle(kept.folder()).unwrap().unwrap();
    assert_eq!(end.cause, EndedBy::KeeperLost);
    assert!(end.left_over.iter().all(LeftOver::is_of_system), "{:?}", end.left_over);
    yard.assert_empty();
}

/// fault S7, fault S5
#[test]
fn a_detached_job_outlives_its_agent_and_can_be_ended_by_the_next() {
    let yard = Yard::new();
    let mut agent = roles::agent_with(yard.path(), "detached", 1);
    signal(agent.id(), Signal::KILL);
    agent.wait().unwrap();
    let kept = job(&yard, 0);
    let payload = status_of(&kept).payload.pid;
    assert!(processes::is_alive(payload));
    assert!(matches!(settle(kept.folder()), Ok(None)));
    assert!(matches!(remove(kept.folder()), Err(RecordError::StillRunning { .. })));
    let end = runtime().block_on(kept.stop(Requester::Person)).unwrap();
    assert!(matches!(end.cause, EndedBy::Stop { ref request } if request.requester == Requester::Person));
    yard.assert_empty();
}

/// Architecture 6.7: the owner may still change what happens
#[test]
fn a_job_detached_later_outlives_its_handle() {
    let yard = Yard::new();
    let kept = yard.launch("later", "echo up; while [ ! -e go ]; do sleep 0.02; done; echo end");
    wait_for_stdout(&kept, "up");
    kept.detach().unwrap();
    let folder = kept.folder().clone();
    drop(kept);
    let kept = Kept::open(folder);
    assert!(matches!(kept.detach(), Err(RecordError::NotOwner { .. })));
    std::fs::write(yard.path().join("go"), "").unwrap();
    let end = end_of(&kept);
    assert_eq!((end.cause, end.wait.unwrap().code), (EndedBy::Itself, Some(0)));
    assert_eq!(stdout_of(&kept), "up\nend\n");
}

/// Interface: the last handle is the lifeline
#[test]
fn a_dropped_handle_stops_an_attached_job() {
    let yard = Yard::new();
    let kept = yard.launch("dropped", "echo up; sleep 600");
    wait_for_stdout(&kept, "up");
    let clone = kept.clone();
    drop(kept);
    assert!(matches!(clone.look().unwrap(), Look::Running(_)));
    let folder = clone.folder().clone();
    drop(clone);
    assert_eq!(end_of(&Kept::open(folder)).cause, EndedBy::OwnerGone);
    yard.assert_empty();
}

/// fault S6, fault M7, R380
#[test]
#[cfg_attr(zapmyco_portable, ignore = "processes of a dead keeper in other sessions are found by their marker, which only Linux shows")]
fn a_killed_keeper_is_lost_and_its_tree_swept() {
    let yard = Yard::new();
    for owned in [true, false] {
        let kept = yard.launch(
            if owned { "owned" } else { "foreign" },
            "echo up; setsid bash -c 'trap \"\" TERM; while :; do sleep 0.1; done' & sleep 600",
        );
        wait_for_stdout(&kept, "up");
        let before = status_of(&kept);
        let seen = if owned { kept.clone() } else { Kept::open(kept.folder().clone()) };
        signal(before.keeper.pid, Signal::KILL);
        let end = end_of(&seen);
        assert_eq!((end.cause.clone(), end.wait), (EndedBy::KeeperLost, None));
        assert_eq!((end.started_at, end.stdout.bytes), (before.started_at, 3));
        assert!(end.left_over.iter().all(LeftOver::is_of_system));
        yard.assert_empty();
        assert!(matches!(seen.request_stop(Requester::Person).unwrap(), StopAnswer::AlreadyEnded(same) if same == end));
        assert_eq!(kept.look().unwrap(), Look::Ended(end));
    }
}

/// fault A6, fault M21, fault S5, R375
#[test]
fn a_stored_number_of_somebody_else_is_never_signalled() {
    let yard = Yard::new();
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let rewrite = |folder: &JobFolder| {
        let mut status = read_status(folder).unwrap().unwrap();
        status.keeper.pid = stranger.id();
        status.payload.pid = stranger.id();
        std::fs::write(folder.status(), serde_json::to_vec(&status).unwrap()).unwrap();
    };
    // Ended: the record is the answer, whatever the status says.
    let ended = yard.launch("ended", "exit 5");
    let end = end_of(&ended);
    rewrite(ended.folder());
    let later = Kept::open(ended.folder().clone());
    assert_eq!(later.look().unwrap(), Look::Ended(end.clone()));
    assert_eq!(later.request_stop(Requester::Model).unwrap(), StopAnswer::AlreadyEnded(end));
    // Running, with a status of another start of the keeper: refused, not sent to the stranger.
    let running = yard.launch("running", "echo up; sleep 600");
    wait_for_stdout(&running, "up");
    rewrite(running.folder());
    assert!(matches!(Kept::open(running.folder().clone()).request_stop(Requester::Model), Err(RecordError::Keeper { .. })));
    // Keeper dead: swept by marker, not by number.
    let lost = yard.launch("lost", "echo up; sleep 600");
    wait_for_stdout(&lost, "up");
    let keeper = status_of(&lost).keeper.pid;
    rewrite(lost.folder());
    signal(keeper, Signal::KILL);
    assert_eq!(end_of(&lost).cause, EndedBy::KeeperLost);
    assert!(processes::is_alive(stranger.id()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// fault S5: the number of an ended payload, taken by somebody else for real
#[test]
fn a_reused_number_shows_the_real_end() {
    let yard = Yard::new();
    let kept = yard.launch("one", "exit 9");
    let end = end_of(&kept);
    let later = Kept::open(kept.folder().clone());
    assert_eq!(runtime().block_on(later.stop(Requester::Model)).unwrap(), end);
    assert_eq!(end.wait.unwrap().code, Some(9));
}

/// Architecture 7, R351
#[test]
fn a_folder_without_a_specification_is_young_or_removed() {
    let yard = Yard::new();
    let folder = yard.folder("remains");
    assert!(matches!(settle(&folder), Err(RecordError::NoJob { .. })));
    std::fs::create_dir_all(folder.path()).unwrap();
    std::fs::write(folder.lock(), "").unwrap();
    assert!(matches!(settle(&folder), Ok(None)));
    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::open(folder.path()).unwrap().set_modified(old).unwrap();
    assert!(matches!(settle(&folder), Err(RecordError::NeverStarted { .. })));
    assert!(!folder.path().exists());
}

/// R333, fault M23
#[test]
fn an_ended_job_can_be_removed_and_a_running_one_cannot() {
    let yard = Yard::new();
    let ended = yard.launch("ended", "true");
    end_of(&ended);
    remove(ended.folder()).unwrap();
    assert!(!ended.folder().path().exists());
    let running = yard.launch("running", "sleep 600");
    assert!(matches!(remove(running.folder()), Err(RecordError::StillRunning { .. })));
    assert!(matches!(running.look().unwrap(), Look::Running(_)));
}

/// Rule 1 of the architecture: several at once settle one dead keeper to one record
#[test]
fn many_who_look_at_a_dead_keeper_agree() {
    let yard = Yard::new();
    let kept = yard.launch("one", "echo up; sleep 600");
    wait_for_stdout(&kept, "up");
    signal(status_of(&kept).keeper.pid, Signal::KILL);
    let ends: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| end_of(&Kept::open(kept.folder().clone())))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}");
    assert_eq!(ends[0].cause, EndedBy::KeeperLost);
    wait::until_true("nothing left", || yard.living().is_empty());
}

/// R380, faults A1, K1: a folder without a keeper's statement is a start that its launcher did not live to see; with one it is
/// a keeper that vanished.
#[test]
fn a_start_that_was_never_answered_ended_with_its_launcher() {
    let yard = Yard::new();
    let real = yard.launch("real", "true");
    end_of(&real);
    for (files, cause) in [(&["spec.json", "lock"][..], EndedBy::OwnerGone), (&["spec.json", "lock", "status.json"], EndedBy::KeeperLost)] {
        let folder = yard.folder(&format!("orphan{}", files.len()));
        std::fs::create_dir(folder.path()).unwrap();
        for file in files {
            std::fs::copy(real.folder().path().join(file), folder.path().join(file)).unwrap();
        }
        let end = settle(&folder).unwrap().unwrap();
        assert_eq!((&end.cause, end.wait), (&cause, None));
        assert_eq!(settle(&folder).unwrap().unwrap(), end, "once");
    }
    yard.assert_empty();
}
