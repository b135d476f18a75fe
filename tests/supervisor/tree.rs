//! Ending whole trees.

use zapmyco::supervisor::record::{EndedBy, Requester};

use super::kit::{Yard, runtime, wait_for_stdout};

/// R375, fault A3
#[test]
fn a_stop_ends_the_whole_group() {
    let yard = Yard::new();
    let kept = yard.launch("a3", "sleep 600 & sleep 600 & echo up; wait");
    wait_for_stdout(&kept, "up");
    assert!(yard.living().len() >= 3);
    let end = runtime().block_on(kept.stop(Requester::Model)).unwrap();
    yard.assert_empty();
    assert!(matches!(end.cause, EndedBy::Stop { request } if request.requester == Requester::Model));
    assert_eq!(end.wait.unwrap().signal, Some(15));
    assert_eq!(end.signals, ["SIGTERM"]);
}
