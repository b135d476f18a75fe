//! macOS: session and group where Linux has a subreaper, the end of a pipe where it has a pidfd, no foreign environment.
//!
//! What cannot be proved without those is said in every end record ([`UNPROVED`]).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal as CaughtSignal};
use nix::unistd::getsid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

#[cfg(target_os = "macos")]
pub(crate) use super::libproc::{all_pids, children, stat};
#[cfg(target_os = "linux")]
pub(crate) use super::proc_table::{all_pids, children, stat};
use crate::supervisor::identity::{Stat, checked_pid};
use crate::supervisor::plan::Confinement;

/// Lists the descriptors of this process.
pub(crate) const DESCRIPTORS: &str = "/dev/fd";
/// What a write to a socket needs so that a gone reader is an error and no signal. That signal is ignored by every program
/// of this language, ours included.
pub(crate) const NO_SIGNAL: SendFlags = SendFlags::empty();
/// No process can be found by the environment that it was started with.
pub(crate) const SEES_ENVIRONMENTS: bool = false;
/// What no end record can rule out on this system.
pub(crate) const UNPROVED: Option<&str> =
    Some("processes that left the payload's session and lost their parent (this system has no subreaper)");

/// Between two looks at a keeper that has closed its exit line and is about to end.
const CLOSED_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The file that this program was started from, even if another one stands there now.
pub(crate) fn own_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "zapmyco".into())
}

/// The system chooses the size of its pipes itself.
pub(crate) fn enlarge_pipe(_: impl AsFd, _: usize) {}

pub(crate) fn receive_flags() -> RecvFlags {
    RecvFlags::empty()
}

/// For a descriptor that came with a message: to be closed on exec.
pub(crate) fn shield(received: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(received, FdFlags::CLOEXEC)?)
}

/// A file without a name, for this user only.
pub(crate) fn memory_file(_: &str) -> io::Result<File> {
    tempfile::tempfile()
}

/// There are no seals. Nobody but this user's processes that are given the file can change it.
pub(crate) fn seal(_: &File) -> io::Result<()> {
    Ok(())
}

/// Limits on the number of processes beside the user's, for an error text.
pub(crate) fn process_limits() -> Vec<String> {
    vec!["processes of the machine (sysctl kern.maxproc)".to_owned(), "of a user (sysctl kern.maxprocperuid)".to_owned()]
}

pub(crate) fn initial_environment(_: u32) -> Option<Vec<u8>> {
    None
}

/// A keeper below is known as the leader of a session. A payload's own daemon may be taken for one, which only gives it
/// more time before it is killed.
pub(crate) fn is_keeper(process: &Stat) -> bool {
    session_of(process.pid).is_some_and(|session| session == process.pid)
}

fn session_of(pid: u32) -> Option<u32> {
    checked_pid(pid)?;
    // The system's own processes answer with 0.
    let session = getsid(Some(nix::unistd::Pid::from_raw(i32::try_from(pid).ok()?))).ok()?;
    u32::try_from(session.as_raw()).ok()
}

/// The living processes of the session that `leader` began, whoever their parent is, without the leader.
pub(crate) fn session_members(leader: u32) -> Vec<Stat> {
    let member = |pid: &u32| *pid != leader && session_of(*pid) == Some(leader);
    all_pids().filter(member).filter_map(stat).filter(|stat| stat.state != 'Z').collect()
}

/// The keeper's session and group are all that holds its tree together.
pub(crate) fn become_keeper() -> io::Result<()> {
    Ok(())
}

/// Not needed: the program is started by its own path.
pub(crate) fn name_process() {}

/// What the payload's process does before its program runs: nothing of this kind. A payload outlives a killed keeper until
/// somebody settles its folder.
#[derive(Debug)]
pub(crate) struct ChildStep;

impl ChildStep {
    pub(crate) fn prepare() -> Self {
        Self
    }

    pub(crate) fn end_with_keeper(&self) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn go_first(&self) {}
}

/// There is no Landlock.
pub(crate) fn landlock_version() -> Option<u32> {
    None
}

pub(crate) fn filters_calls() -> bool {
    false
}

pub(crate) fn try_mounts() -> bool {
    false
}

/// A payload cannot be confined here, so no start that asks for it succeeds.
pub(crate) enum Confined {}

impl Confined {
    pub(crate) fn prepare(_: &Confinement, _: Option<&Path>, _: &Path) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this system cannot confine a program"))
    }

    pub(crate) fn enter(&mut self) -> io::Result<()> {
        match *self {}
    }
}

/// There are none.
pub(crate) enum Cgroup {}

impl Cgroup {
    pub(crate) fn create() -> Option<Self> {
        None
    }

    pub(crate) fn adopt(&self, _: u32) {
        match *self {}
    }

    pub(crate) fn kill(&self) {
        match *self {}
    }
}

/// Where the handler writes the numbers of signals.
static CAUGHT: AtomicI32 = AtomicI32::new(-1);

/// Runs in the place of whatever was interrupted, so it makes one system call and leaves no trace.
extern "C" fn catch(signal: i32) {
    let before = nix::errno::Errno::last_raw();
    let pipe = CAUGHT.load(Ordering::Relaxed);
    let number = u8::try_from(signal).unwrap_or(0);
    #[expect(unsafe_code, reason = "a handler; the descriptor stays open for the life of the process")]
    let pipe = unsafe { BorrowedFd::borrow_raw(pipe) };
    // A full pipe holds enough of them.
    let _ = rustix::io::write(pipe, &[number]);
    nix::errno::Errno::set_raw(before);
}

/// All signals that mean something to a keeper come through a pipe.
#[derive(Debug)]
pub(crate) struct Signals {
    reader: OwnedFd,
    /// Named by the handler, which stays in place for good; so is this.
    _writer: OwnedFd,
}

impl Signals {
    #[expect(unsafe_code, reason = "the handler does nothing but what is allowed in one")]
    pub(crate) fn take(signals: &[CaughtSignal]) -> io::Result<Self> {
        let (reader, writer) = quiet_pipe()?;
        rustix::io::ioctl_fionbio(&writer, true)?;
        CAUGHT.store(writer.as_raw_fd(), Ordering::Relaxed);
        let set = signals.iter().copied().collect::<SigSet>();
        let action = SigAction::new(SigHandler::Handler(catch), SaFlags::SA_RESTART, SigSet::empty());
        for signal in signals {
            unsafe { nix::sys::signal::sigaction(*signal, &action) }?;
        }
        // They were blocked by whoever started this process.
        set.thread_unblock()?;
        Ok(Self { reader, _writer: writer })
    }

    /// The next one that has come, without waiting.
    pub(crate) fn next(&self) -> Option<CaughtSignal> {
        let mut number = [0];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.reader, &mut number)) {
            Ok(1) => CaughtSignal::try_from(i32::from(number[0])).ok(),
            Ok(_) | Err(_) => None,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// A pipe, closed on exec, whose reader never waits.
fn quiet_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader.into(), writer.into()))
}

/// A foreign process that was proved to be the one meant, a moment ago: its number is all there is to signal it by.
#[derive(Debug)]
pub(crate) struct Verified {
    pid: Pid,
    number: u32,
    start_ticks: u64,
}

impl Verified {
    pub(crate) fn open_started(pid: u32, start_ticks: u64) -> Option<Self> {
        let verified = Self { pid: checked_pid(pid)?, number: pid, start_ticks };
        verified.is_meant().then_some(verified)
    }

    fn is_meant(&self) -> bool {
        stat(self.number).is_some_and(|stat| stat.start_ticks == self.start_ticks)
    }

    /// Compares once more right before.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        if !self.is_meant() {
            return Err(Errno::SRCH.into());
        }
        Ok(kill_process(self.pid, signal)?)
    }

    /// Not watched: whoever waits looks every now and then.
    pub(crate) async fn exited(self) {
        std::future::pending().await
    }
}

/// A pipe whose writer only the keeper holds, as its stdout: the reader sees its end, and a byte before that.
#[derive(Debug)]
pub(crate) struct ExitLine {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl ExitLine {
    pub(crate) fn create() -> io::Result<Self> {
        let (reader, writer) = quiet_pipe()?;
        Ok(Self { reader, writer })
    }

    /// Becomes the keeper's stdout.
    pub(crate) fn keeper_end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.writer.as_fd())
    }
}

/// From the keeper to whoever started it: the end record can be read.
pub(crate) fn tell_recorded(_: BorrowedFd<'_>, message: u8) {
    let _ = rustix::io::write(io::stdout().as_fd(), &[message]);
}

/// An own child. Its number is used only while nobody has reaped it, which only this handle does.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    shared: Arc<ChildShared>,
}

#[derive(Debug)]
struct ChildShared {
    pid: Pid,
    exit_line: OwnedFd,
    reaped: Mutex<bool>,
}

impl Child {
    pub(crate) fn open(pid: Pid, line: ExitLine) -> io::Result<Self> {
        let ExitLine { reader: exit_line, writer: _ } = line;
        Ok(Self { shared: Arc::new(ChildShared { pid, exit_line, reaped: Mutex::new(false) }) })
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let reaped = lock(&self.shared.reaped);
        if *reaped {
            return Err(Errno::SRCH.into());
        }
        Ok(kill_process(self.shared.pid, signal)?)
    }

    /// Waits for its end.
    pub(crate) fn reap(&self) {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(self.shared.pid), ended));
        self.try_reap();
    }

    /// False while it lives. An error means that somebody else has reaped it, or that the system does so by itself.
    pub(crate) fn try_reap(&self) -> bool {
        let mut reaped = lock(&self.shared.reaped);
        if !*reaped {
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            *reaped = !matches!(rustix::io::retry_on_intr(|| waitid(WaitId::Pid(self.shared.pid), ended)), Ok(None));
        }
        *reaped
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a [`Watch`] has seen; the number is the one given with the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The end record stands.
    Recorded(u64),
    /// The keeper has exited and may be reaped, or is about to.
    Exited(u64),
}

/// Waits for many keepers at once, by their exit lines.
#[derive(Debug)]
pub(crate) struct Watch {
    wake: (OwnedFd, OwnedFd),
    lines: Mutex<HashMap<u64, Line>>,
}

#[derive(Clone, Debug)]
struct Line {
    child: Child,
    /// At its end: the keeper is looked at until it can be reaped.
    closed: bool,
}

impl Watch {
    pub(crate) fn create() -> io::Result<Self> {
        let wake = quiet_pipe()?;
        rustix::io::ioctl_fionbio(&wake.1, true)?;
        Ok(Self { wake, lines: Mutex::default() })
    }

    pub(crate) fn add(&self, key: u64, child: &Child, _: impl AsFd) -> io::Result<()> {
        lock(&self.lines).insert(key, Line { child: child.clone(), closed: false });
        self.wake();
        Ok(())
    }

    pub(crate) fn remove(&self, key: u64, _: &Child) {
        lock(&self.lines).remove(&key);
    }

    /// Ends a wait.
    pub(crate) fn wake(&self) {
        // A full pipe wakes as well.
        let _ = rustix::io::write(&self.wake.1, &[0]);
    }

    /// Waits for something to happen; may return with nothing. An error is final.
    pub(crate) fn wait(&self) -> io::Result<Vec<Seen>> {
        let lines: Vec<(u64, Line)> = lock(&self.lines).iter().map(|(key, line)| (*key, line.clone())).collect();
        let open: Vec<&(u64, Line)> = lines.iter().filter(|(_, line)| !line.closed).collect();
        let watched = open.iter().map(|(_, line)| line.child.shared.exit_line.as_fd());
        let mut fds: Vec<PollFd<'_>> =
            std::iter::once(self.wake.0.as_fd()).chain(watched).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = (open.len() < lines.len()).then_some(&CLOSED_PAUSE);
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let _ = rustix::io::read(&self.wake.0, &mut [0; 64]);
        let ready = open.iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty());
        let mut seen: Vec<Seen> = ready.filter_map(|((key, line), _)| self.read(*key, line)).collect();
        seen.extend(lines.iter().filter(|(_, line)| line.closed).map(|(key, _)| Seen::Exited(*key)));
        Ok(seen)
    }

    fn read(&self, key: u64, line: &Line) -> Option<Seen> {
        match rustix::io::read(&line.child.shared.exit_line, &mut [0; 8]) {
            Ok(read) if read > 0 => Some(Seen::Recorded(key)),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Ok(_) | Err(_) => {
                if let Some(line) = lock(&self.lines).get_mut(&key) {
                    line.closed = true;
                }
                Some(Seen::Exited(key))
            }
        }
    }
}
