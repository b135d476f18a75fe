//! Ends a whole process tree, in layers, and proves that it is empty.
//!
//! The keeper is a subreaper: whatever loses its parent below it becomes its child, so its list of children is the
//! proof. Signals go to the payload's group while its leader is unreaped (the group id cannot be reused before), and
//! to every descendant outside the group through a verified pidfd. Where killing does not converge (processes that
//! start others faster than they are found), the rest is moved into a fresh cgroup and ended there at once.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::identity::{self, Stat, Verified};
use super::platform::{self, Cgroup, children};
use super::record::{LeftOver, WaitStatus};

/// Descendants looked at in one walk; more than a machine has processes.
const WALK_MAX: usize = 1 << 16;

/// The tree below this keeper.
pub(crate) struct Tree {
    own: u32,
    payload: u32,
    payload_pid: Pid,
    /// Descendants that were signalled after the payload had ended.
    swept: BTreeSet<(u32, u64)>,
    /// Descendants that were signalled, where one that loses its parent is not found again by its place in the tree.
    met: BTreeSet<(u32, u64)>,
    cgroup: Option<Cgroup>,
    /// Who lived at the end of the last containment.
    contained: BTreeSet<(u32, u64)>,
    /// The last containment found none of those that the one before had left.
    breeds: bool,
}

/// Looks of one containment: a chain of short-lived processes is met by chance, so often.
const CONTAINMENT_TRIES: u32 = 50;

/// What one look at the children other than the payload found.
#[derive(Default)]
struct Others {
    live: bool,
    reaped: bool,
}

/// How hard to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Force {
    /// TERM, and CONT, since a stopped process cannot handle TERM.
    Polite,
    Kill,
}

impl Tree {
    /// `None` for a number that is no child's.
    pub(crate) fn new(payload: u32) -> Option<Self> {
        let payload_pid = identity::checked_pid(payload)?;
        Some(Self {
            own: std::process::id(),
            payload,
            payload_pid,
            swept: BTreeSet::new(),
            met: BTreeSet::new(),
            cgroup: None,
            contained: BTreeSet::new(),
            breeds: false,
        })
    }

    /// The payload's end, without reaping it: its number and its group's stay taken.
    pub(crate) fn payload_end(&self) -> Option<WaitStatus> {
        self.wait_payload(WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
    }

    /// To be called once, at the very end.
    pub(crate) fn reap_payload(&self) {
        self.wait_payload(WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }

    fn wait_payload(&self, options: WaitIdOptions) -> Option<WaitStatus> {
        let status = waitid(WaitId::Pid(self.payload_pid), options).ok().flatten()?;
        Some(WaitStatus { code: status.exit_status(), signal: status.terminating_signal(), core_dumped: status.dumped() })
    }

    /// Reaps ended children other than the payload and tells whether others live. Once the payload has ended, nothing
    /// of the tree can be anywhere else than in this list.
    pub(crate) fn others_live(&self) -> bool {
        while let Some(found) = self.reap_others() {
            if found.live {
                return true;
            }
            if !found.reaped {
                break;
            }
            // Whoever ended after the list was read may have left a child, which came into the list by that.
        }
        self.strays().iter().any(|stray| stray.pid != self.payload && stray.state != 'Z')
    }

    /// One look at the list of children. `None`: there are no others in it.
    fn reap_others(&self) -> Option<Others> {
        let mut others = None;
        for pid in children(self.own).into_iter().filter(|pid| *pid != self.payload) {
            let Some(pid) = identity::checked_pid(pid) else { continue };
            let reaped = matches!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(Some(_)));
            let seen: &mut Others = others.get_or_insert_default();
            seen.reaped |= reaped;
            seen.live |= !reaped;
        }
        others
    }

    /// Signals everything in the tree. `after_end`: the payload has ended, so whoever is found is a left-over.
    pub(crate) fn signal(&mut self, force: Force, after_end: bool) {
        let signals: &[Signal] = match force {
            Force::Polite => &[Signal::TERM, Signal::CONT],
            Force::Kill => &[Signal::KILL],
        };
        let descendants = self.descendants(force);
        for signal in signals {
            // An error means that the group has no member left.
            let _ = kill_process_group(self.payload_pid, *signal);
        }
        for process in descendants {
            if platform::UNPROVED.is_some() && self.met.len() < WALK_MAX {
                self.met.insert((process.pid, process.start_ticks));
            }
            if after_end && process.pid != self.payload && process.state != 'Z' && self.swept.len() < WALK_MAX {
                self.swept.insert((process.pid, process.start_ticks));
            }
            if process.group == self.payload || process.state == 'Z' {
                continue;
            }
            if let Some(verified) = Verified::open_started(process.pid, process.start_ticks) {
                for signal in signals {
                    let _ = verified.signal(*signal);
                }
            }
        }
    }

    /// The last means against processes that start others and end faster than they are found: their groups at once, and
    /// a cgroup of their own, from which no child of theirs is born outside, ended as a whole. Without the right to make
    /// a cgroup, the groups alone.
    pub(crate) fn contain(&mut self) {
        if self.cgroup.is_none() {
            self.cgroup = Cgroup::create();
            // Whoever may, runs before them from now on; what is left of this keeper's life is this.
            let _ = rustix::process::setpriority_process(None, -20);
        }
        for _ in 0..CONTAINMENT_TRIES {
            let descendants = self.descendants(Force::Kill);
            for process in &descendants {
                // Compared once more right before, since what follows goes by numbers.
                if identity::stat(process.pid).is_none_or(|now| now.start_ticks != process.start_ticks) {
                    continue;
                }
                if let Some(cgroup) = &self.cgroup {
                    cgroup.adopt(process.pid);
                }
                // A group of this tree: groups do not reach beyond a session, and this keeper began the session that
                // every one below it is or was born in.
                if process.group != self.own
                    && let Some(group) = identity::checked_pid(process.group)
                {
                    let _ = kill_process_group(group, Signal::KILL);
                }
            }
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
        }
        let living: BTreeSet<(u32, u64)> = self
            .descendants(Force::Kill)
            .iter()
            .filter(|process| process.state != 'Z')
            .map(|process| (process.pid, process.start_ticks))
            .collect();
        self.breeds = living.is_disjoint(&self.contained) && !living.is_empty();
        self.contained = living;
    }

    /// Whether killing only ever meets new processes: it must be gone on with, and without a pause.
    pub(crate) fn breeds(&self) -> bool {
        self.breeds
    }

    /// How many left-overs were signalled.
    pub(crate) fn swept(&self) -> u32 {
        u32::try_from(self.swept.len()).unwrap_or(u32::MAX)
    }

    /// Whether a keeper lives below: it needs time for its own record.
    pub(crate) fn has_keeper(&self) -> bool {
        self.descendants(Force::Polite).iter().any(platform::is_keeper)
    }

    /// What is still there, for the record.
    pub(crate) fn left_over(&self) -> Vec<LeftOver> {
        self.descendants(Force::Kill)
            .into_iter()
            .filter(|process| process.state != 'Z')
            .map(|process| LeftOver { pid: process.pid, state: process.state.to_string(), command: process.command })
            .collect()
    }

    /// Everything below this keeper, the payload included. A polite walk leaves the tree of a keeper below to that keeper.
    fn descendants(&self, force: Force) -> Vec<Stat> {
        let mut found: Vec<Stat> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut open = vec![self.own];
        while let Some(parent) = open.pop() {
            for pid in children(parent) {
                // The parent is compared once more: between the two looks the number may have become another process.
                let Some(stat) = identity::stat(pid).filter(|stat| stat.parent == parent) else { continue };
                if found.len() >= WALK_MAX || !seen.insert(pid) {
                    continue;
                }
                if force == Force::Kill || !platform::is_keeper(&stat) {
                    open.push(pid);
                }
                found.push(stat);
            }
        }
        found.extend(self.strays().into_iter().filter(|stray| !seen.contains(&stray.pid)));
        found
    }

    /// Those of the tree that may have no place in it any more: the members of this keeper's session and whoever was met
    /// before. None on a system where they become this keeper's children.
    fn strays(&self) -> Vec<Stat> {
        let mut strays = platform::session_members(self.own);
        let met = self.met.iter().filter(|(pid, _)| strays.iter().all(|stray| stray.pid != *pid));
        let met: Vec<Stat> =
            met.filter_map(|(pid, start)| identity::stat(*pid).filter(|stat| stat.start_ticks == *start && stat.state != 'Z')).collect();
        strays.extend(met);
        strays
    }
}
