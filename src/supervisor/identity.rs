//! Which process is meant: boot id, pid and start time; pidfd where there is one.
//!
//! A number comes back within seconds on a machine with a small pid range, so nothing is signalled by number alone:
//! open a pidfd, compare the start time, signal through the pidfd. Numbers below 2 are refused (0 is the own group).

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::record::ProcessIdentity;
use crate::clock;

/// What `/proc/<pid>/stat` tells.
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

/// `None` when there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The command may hold blanks and parentheses, so fields are counted after the *last* `)`.
fn parse_stat(pid: u32, stat: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(stat);
    let (head, rest) = text.rsplit_once(')')?;
    let command = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        command,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
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

/// A process that was proved to be the one meant.
#[derive(Debug)]
pub(crate) struct Verified {
    pidfd: OwnedFd,
}

impl Verified {
    /// `None` when the process meant is gone, whoever may have its number now.
    pub(crate) fn open(identity: &ProcessIdentity) -> Option<Self> {
        if identity.boot_id != clock::boot_id() {
            return None;
        }
        Self::open_started(identity.pid, identity.start_ticks)
    }

    /// As [`Verified::open`] for a process seen a moment ago on this machine.
    pub(crate) fn open_started(pid: u32, start_ticks: u64) -> Option<Self> {
        let pidfd = pidfd_open(checked_pid(pid)?, PidfdFlags::empty()).ok()?;
        // The pidfd is open, so the number belongs to its process as long as that one is alive: compare now.
        (stat(pid)?.start_ticks == start_ticks).then_some(Self { pidfd })
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        pidfd_send_signal(&self.pidfd, signal).map_err(io::Error::from)
    }

    pub(crate) fn into_pidfd(self) -> OwnedFd {
        self.pidfd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let line = b"42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2 3";
        let stat = parse_stat(42, line).unwrap();
        assert_eq!((stat.command.as_str(), stat.state, stat.parent, stat.group, stat.start_ticks), ("a) b (c)", 'S', 7, 42, 98765));
    }

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
