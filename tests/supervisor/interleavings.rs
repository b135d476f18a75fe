//! Any order of stops, deaths and ends leaves one end record that never changes.

use proptest::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use zapmyco::supervisor::handle::{Kept, Look};
use zapmyco::supervisor::record::{EndRecord, EndedBy, LeftOver, Requester};

use super::kit::{Yard, end_of, status_of};
use crate::support::wait;

#[derive(Clone, Debug)]
enum Step {
    Stop,
    StopFromElsewhere,
    KillKeeper,
    EndPayload,
    KillPayload,
    DropHandle,
    Look,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Stop),
        Just(Step::StopFromElsewhere),
        Just(Step::KillKeeper),
        Just(Step::EndPayload),
        Just(Step::KillPayload),
        Just(Step::DropHandle),
        Just(Step::Look),
        (0_u64..20).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rules 1, 2 and 4 of the architecture, R376
    #[test]
    fn one_record_that_never_changes(steps in prop::collection::vec(step(), 1..8)) {
        let yard = Yard::new();
        let kept = yard.launch("one", "trap '' HUP; echo up; while [ ! -e end ]; do sleep 0.01; done; exit 3");
        let status = status_of(&kept);
        let elsewhere = Kept::open(kept.folder().clone());
        let mut handle = Some(kept);
        let mut seen: Option<EndRecord> = None;
        let mut keeper_killed = false;
        let signal = |pid: u32, signal| {
            // Only as long as it is certainly the one meant: the keeper is ours and unreaped, or gone.
            let same = |process: crate::support::processes::Process| process.command.contains("zapmyco") || process.command == "bash";
            if crate::support::processes::read(pid).is_some_and(same) {
                let _ = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal);
            }
        };
        for step in steps {
            match step {
                Step::Stop => {
                    if let Some(kept) = &handle {
                        let _ = kept.request_stop(Requester::Model);
                    }
                }
                Step::StopFromElsewhere => {
                    let _ = elsewhere.request_stop(Requester::Person);
                }
                Step::KillKeeper => {
                    keeper_killed = true;
                    signal(status.keeper.pid, Signal::KILL);
                }
                Step::EndPayload => std::fs::write(yard.path().join("end"), "").unwrap(),
                Step::KillPayload => signal(status.payload.pid, Signal::KILL),
                Step::DropHandle => handle = None,
                Step::Look => {
                    if let Look::Ended(end) = elsewhere.look().unwrap() {
                        prop_assert_eq!(seen.get_or_insert(end.clone()), &end);
                    }
                }
                Step::Wait(milliseconds) => std::thread::sleep(std::time::Duration::from_millis(milliseconds)),
            }
        }
        drop(handle);
        let end = end_of(&elsewhere);
        prop_assert_eq!(seen.get_or_insert(end.clone()), &end);
        prop_assert!(keeper_killed || end.cause != EndedBy::KeeperLost);
        prop_assert!(end.left_over.iter().all(LeftOver::is_of_system));
        wait::until_true("nothing left", || yard.living().is_empty());
        for _ in 0..3 {
            prop_assert_eq!(elsewhere.look().unwrap(), Look::Ended(end.clone()));
        }
    }
}
