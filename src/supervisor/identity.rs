//! Which process is meant: boot id, pid and start time; pidfd where there is one.
//!
//! A number comes back within seconds on a machine with a small pid range, so nothing is signalled by number alone:
//! open a pidfd, compare the start time, signal through the pidfd. Numbers below 2 are refused (0 is the own group).

use rustix::process::Pid;

pub(crate) use super::platform::{Verified, stat};
use super::record::ProcessIdentity;
use crate::clock;

/// What the table of processes tells of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub pid: u32,
    pub command: String,
    /// Kernel's letter: `R`, `S`, `D`, `Z`, ...
    pub state: char,
    pub parent: u32,
    pub group: u32,
    pub start_ticks: u64,
}

/// The identity of a process that exists now, with its pid not yet reusable (self, or an own unreaped child).
pub(crate) fn of_own(pid: u32) -> ProcessIdentity {
    ProcessIdentity { boot_id: clock::boot_id(), pid, start_ticks: stat(pid).map_or(0, |stat| stat.start_ticks) }
}

/// A number that may be signalled at all.
pub(crate) fn checked_pid(pid: u32) -> Option<Pid> {
    if pid < 2 {
        return None;
    }
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

impl Verified {
    /// `None` when the process meant is gone, whoever may have its number now.
    pub(crate) fn open(identity: &ProcessIdentity) -> Option<Self> {
        if identity.boot_id != clock::boot_id() {
            return None;
        }
        Self::open_started(identity.pid, identity.start_ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R375, fault A6
    #[test]
    fn numbers_below_two_and_foreign_start_times_are_nobody() {
        assert!(checked_pid(0).is_none() && checked_pid(1).is_none() && checked_pid(u32::MAX).is_none());
        let own = of_own(std::process::id());
        assert!(Verified::open(&own).is_some());
        assert!(Verified::open(&ProcessIdentity { start_ticks: own.start_ticks + 1, ..own.clone() }).is_none());
        assert!(Verified::open(&ProcessIdentity { boot_id: "another".into(), ..own }).is_none());
    }
}
