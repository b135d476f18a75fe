//! Linux: pidfd, epoll and signalfd for what happens, a subreaper for orphans, memory files, `/proc` for the rest.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::signal::{SigSet, Signal as CaughtSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) use super::cgroup::Cgroup;
pub(crate) use super::confine::{Confined, filters_calls, landlock_version};
pub(crate) use super::mounts::try_mounts;
pub(crate) use super::proc_table::{all_pids, children, stat};
use crate::supervisor::identity::{Stat, checked_pid};

/// Lists the descriptors of this process.
pub(crate) const DESCRIPTORS: &str = "/proc/self/fd";
/// What a write to a socket needs so that a gone reader is an error and no signal.
pub(crate) const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;

/// The marker of a foreign process can be read.
pub(crate) const SEES_ENVIRONMENTS: bool = true;
/// What no end record can rule out on this system: nothing.
pub(crate) const UNPROVED: Option<&str> = None;

/// The payload goes first when memory runs out; the keeper stays to record it.
const OOM_RAISE: i32 = 300;
const OOM_MAX: i32 = 1000;
/// Events taken from the kernel at once.
const EVENTS: usize = 64;
/// Wakes the thread that waits.
const WAKE: u64 = u64::MAX;

/// This very binary, also after its file was replaced or removed.
pub(crate) fn own_program() -> PathBuf {
    "/proc/self/exe".into()
}

/// Refused when the account holds too much pipe memory: then reads are just smaller.
pub(crate) fn enlarge_pipe(pipe: impl AsFd, bytes: usize) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, bytes);
}

/// Descriptors that come with a message are closed on exec.
pub(crate) fn receive_flags() -> RecvFlags {
    RecvFlags::CMSG_CLOEXEC
}

/// They are so from the start.
pub(crate) fn shield(_: impl AsFd) -> io::Result<()> {
    Ok(())
}

/// A file without a name, in memory.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into())
}

/// From now on nobody can change it.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?)
}

/// Limits on the number of processes beside the user's, for an error text.
pub(crate) fn process_limits() -> Vec<String> {
    let number = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let mut limits = Vec::new();
    limits.extend(number("/proc/sys/kernel/pid_max").map(|max| format!("process numbers (pid_max): {max}")));
    limits.extend(number("/proc/sys/kernel/threads-max").map(|max| format!("threads (threads-max): {max}")));
    limits.push("pids.max of the cgroup".to_owned());
    limits
}

/// The environment that a process was started with, as far as this user may see it.
pub(crate) fn initial_environment(pid: u32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/environ")).ok()
}

/// Name of a keeper's only thread, by which the keeper above knows it, and people in a process list.
const KEEPER_NAME: &str = "zapmyco-keep";

pub(crate) fn is_keeper(process: &Stat) -> bool {
    process.command == KEEPER_NAME
}

/// Not needed: the subreaper's list of children is the whole tree.
pub(crate) fn session_members(_: u32) -> Vec<Stat> {
    Vec::new()
}

/// Makes this process a keeper in the eyes of the system: whatever loses its parent below it becomes its child.
pub(crate) fn become_keeper() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    if let Ok(name) = std::ffi::CString::new(KEEPER_NAME) {
        // Only a name: nothing depends on it but politeness.
        let _ = nix::sys::prctl::set_name(&name);
    }
    Ok(())
}

/// Started through a link of the system, a program is listed under the link's name.
pub(crate) fn name_process() {
    // Only a name, as above.
    let _ = nix::sys::prctl::set_name(c"zapmyco");
}

/// What the payload's process does before its program runs.
#[derive(Debug)]
pub(crate) struct ChildStep {
    oom_score: Option<String>,
}

impl ChildStep {
    /// In the keeper.
    pub(crate) fn prepare() -> Self {
        let own = || std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse::<i32>().ok();
        Self { oom_score: own().map(|own| own.saturating_add(OOM_RAISE).min(OOM_MAX).to_string()) }
    }

    /// In the child: it does not outlive the keeper.
    pub(crate) fn end_with_keeper(&self) -> io::Result<()> {
        Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
    }

    /// In the child: it goes before the keeper when memory runs out.
    pub(crate) fn go_first(&self) {
        if let Some(score) = &self.oom_score {
            let _ = std::fs::write("/proc/self/oom_score_adj", score);
        }
    }
}

/// All signals that mean something to a keeper come through a descriptor; none interrupts anything.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    pub(crate) fn take(signals: &[CaughtSignal]) -> io::Result<Self> {
        let set = signals.iter().copied().collect::<SigSet>();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// The next one that has come, without waiting.
    pub(crate) fn next(&self) -> Option<CaughtSignal> {
        while let Ok(Some(signal)) = self.0.read_signal() {
            if let Some(known) = i32::try_from(signal.ssi_signo).ok().and_then(|number| CaughtSignal::try_from(number).ok()) {
                return Some(known);
            }
        }
        None
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A foreign process that was proved to be the one meant.
#[derive(Debug)]
pub(crate) struct Verified {
    pidfd: OwnedFd,
}

impl Verified {
    /// For a process seen on this machine since its start.
    pub(crate) fn open_started(pid: u32, start_ticks: u64) -> Option<Self> {
        let pidfd = pidfd_open(checked_pid(pid)?, PidfdFlags::empty()).ok()?;
        // The pidfd is open, so the number belongs to its process as long as that one is alive: compare now.
        (stat(pid)?.start_ticks == start_ticks).then_some(Self { pidfd })
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        pidfd_send_signal(&self.pidfd, signal).map_err(io::Error::from)
    }

    /// Waits for its exit; for ever where it cannot be watched.
    #[expect(deprecated, reason = "its successor is unsafe for foreign types; an owned descriptor keeps what that asks for")]
    pub(crate) async fn exited(self) {
        match AsyncFd::with_interest(self.pidfd, Interest::READABLE) {
            Ok(watched) => {
                let _ = watched.readable().await;
            }
            Err(_) => std::future::pending().await,
        }
    }
}

/// What a keeper about to be started is given so that its end is seen. Here nothing: a pidfd tells.
#[derive(Debug)]
pub(crate) struct ExitLine;

impl ExitLine {
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self)
    }

    /// Becomes the keeper's stdout, if anything.
    pub(crate) fn keeper_end(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// From the keeper to whoever started it: the end record can be read.
pub(crate) fn tell_recorded(lifeline: BorrowedFd<'_>, message: u8) {
    let _ = rustix::net::send(lifeline, &[message], NO_SIGNAL | SendFlags::DONTWAIT);
}

/// An own child, signalled by descriptor and not by number: somebody else may reap it at any time.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pidfd: Arc<OwnedFd>,
}

impl Child {
    pub(crate) fn open(pid: Pid, _: ExitLine) -> io::Result<Self> {
        Ok(Self { pidfd: Arc::new(pidfd_open(pid, PidfdFlags::empty())?) })
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&*self.pidfd, signal)?)
    }

    /// Waits for its end.
    pub(crate) fn reap(&self) {
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }

    /// False while it lives. An error means that somebody else has reaped it, or that the system does so by itself.
    pub(crate) fn try_reap(&self) -> bool {
        !matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(None))
    }
}

/// What a [`Watch`] has seen; the number is the one given with the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The end record stands, or the keeper let go of the lifeline.
    Recorded(u64),
    /// The keeper has exited and may be reaped.
    Exited(u64),
}

/// Waits for many keepers at once. Holds no lifeline, so dropping the last handle of a job still closes it.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
    wake: OwnedFd,
}

impl Watch {
    pub(crate) fn create() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self { epoll, wake })
    }

    pub(crate) fn add(&self, key: u64, child: &Child, lifeline: impl AsFd) -> io::Result<()> {
        epoll::add(&self.epoll, &lifeline, EventData::new_u64(key * 2 + 1), EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT)?;
        Ok(epoll::add(&self.epoll, &*child.pidfd, EventData::new_u64(key * 2), EventFlags::IN)?)
    }

    pub(crate) fn remove(&self, _: u64, child: &Child) {
        let _ = epoll::delete(&self.epoll, &*child.pidfd);
    }

    /// Ends a wait.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits for something to happen; may return with nothing. An error is final.
    pub(crate) fn wait(&self) -> io::Result<Vec<Seen>> {
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.iter().filter_map(|event| self.read(event.data.u64())).collect())
    }

    fn read(&self, data: u64) -> Option<Seen> {
        if data == WAKE {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            return None;
        }
        Some(if data % 2 == 1 { Seen::Recorded(data / 2) } else { Seen::Exited(data / 2) })
    }
}
