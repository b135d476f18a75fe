//! Agent side: make the folder, start the keeper, wait for its acknowledgement.
//!
//! The keeper is started the flat way (posix_spawn, no code between fork and exec in the large process). Every failure
//! up to the acknowledgement is a typed error and leaves no folder behind.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, SigmaskHow, Signal as CaughtSignal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use secrecy::ExposeSecret;

use super::handle::{Kept, Owned};
use super::plan::{Acknowledgement, Hidden, KeeperOrder, LaunchPlan, Program, StartStage};
use super::platform::{self, Child, ExitLine};
use super::reaper::Reaper;
use super::record::{self, RECORD_VERSION, Spec};
use super::{identity, recovery, wire};
use crate::clock;
use crate::config::environment::Environment;
use crate::config::layout::JobFolder;
use crate::files::{self, FileError};
use crate::secrets::Secrets;

/// The hidden argument by which the binary becomes a keeper.
pub const KEEP_ARGUMENT: &str = "__keep";

/// First pause when the system is out of processes; doubled each time.
const PROCESSES_PAUSE: Duration = Duration::from_millis(50);
/// A program file that was just written is "busy" for a moment.
const BUSY_TRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Starts jobs. Clones share the thread that reaps keepers.
#[derive(Clone, Debug)]
pub struct Launcher {
    keeper: Program,
    reaper: Arc<io::Result<Reaper>>,
    secrets: Secrets,
}

/// One job to start.
#[derive(Debug)]
pub struct Order {
    pub plan: LaunchPlan,
    /// Made exclusively by the launch; its parent is made if missing.
    pub folder: JobFolder,
    /// Goes into `spec.json` unread.
    pub owner: serde_json::Value,
    /// For the marker; letters, digits, `_`, `-`, `.`.
    pub id: String,
    /// Content of the task file, written before the payload starts.
    pub task_file: Option<Vec<u8>>,
    /// What the payload reads as stdin; `None`: nothing.
    pub stdin: Option<OwnedFd>,
    pub handover: Vec<Handover>,
    /// Longest wait for the acknowledgement.
    pub ack_max: Duration,
    /// Further tries when the system is out of processes.
    pub retries: u32,
}

/// A file passed on to the payload, which finds its descriptor's number in `variable`.
#[derive(Debug)]
pub struct Handover {
    pub variable: &'static str,
    pub file: OwnedFd,
}

/// A start that failed. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("folder: {path} exists already", path = path.display())]
    FolderTaken { path: PathBuf },
    #[error("folder: {source}")]
    Folder { source: FileError },
    #[error("{stage}: {source}", stage = stage.name())]
    Keeper { stage: StartStage, source: io::Error },
    #[error("{stage}: {source}", stage = stage.name())]
    Payload { stage: StartStage, source: io::Error },
    #[error("{stage}: out of processes after {tries} tries ({limits})", stage = stage.name())]
    NoProcesses { stage: StartStage, tries: u32, limits: String },
    #[error("{stage}: no answer within {waited:?}", stage = StartStage::Keeper.name())]
    Timeout { waited: Duration },
}

impl LaunchError {
    /// The folder of the job could not be made (R385).
    pub fn is_folder(&self) -> bool {
        matches!(self, Self::FolderTaken { .. } | Self::Folder { .. })
    }
}

/// Gives this process the program's name in lists of processes, however it was started.
pub fn name_own_process() {
    platform::name_process();
}

/// A sealed file in memory, for settings that belong neither on disk nor in arguments.
pub fn sealed_memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = platform::memory_file(name)?;
    file.write_all(content)?;
    io::Seek::rewind(&mut file)?;
    platform::seal(&file)?;
    Ok(file.into())
}

/// A file without a name that others can be handed, where there are such in memory, else in the temporary folder.
pub fn memory_file(name: &str) -> io::Result<File> {
    platform::memory_file(name)
}

/// Opens an inherited descriptor of this process anew, closed on exec. It must be open.
pub fn reopen(number: i32) -> io::Result<File> {
    let file = File::open(format!("{}/{number}", platform::DESCRIPTORS))?;
    // Where this is a copy of the descriptor, the flag of the opening is not its flag.
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)?;
    Ok(file)
}

/// As [`reopen`], also for writing.
pub fn reopen_writable(number: i32) -> io::Result<File> {
    let file = File::options().read(true).write(true).open(format!("{}/{number}", platform::DESCRIPTORS))?;
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)?;
    Ok(file)
}

impl Launcher {
    /// `keeper`: which program file becomes the keeper; its first argument will be `__keep`.
    pub fn new(keeper: Program) -> Self {
        Self { keeper, reaper: Arc::new(Reaper::create()), secrets: Secrets::default() }
    }

    /// What payloads print of these values is not written down, and neither is it in `spec.json`.
    pub fn hiding(mut self, secrets: &Secrets) -> Self {
        self.secrets = secrets.clone();
        self
    }

    /// Blocking, for at most `ack_max` and some retries; call it through `spawn_blocking`.
    pub fn launch(&self, order: Order) -> Result<Kept, LaunchError> {
        let reaper = match &*self.reaper {
            Ok(reaper) => reaper,
            Err(error) => return Err(keeper_error(io::Error::new(error.kind(), error.to_string()))),
        };
        reaper.ensure_thread().map_err(|error| match error.raw_os_error() {
            Some(nix::libc::EAGAIN) => LaunchError::NoProcesses { stage: StartStage::Keeper, tries: 1, limits: process_limits() },
            _ => keeper_error(error),
        })?;
        let folder = JobFolder::new(std::path::absolute(order.folder.path()).unwrap_or_else(|_| order.folder.path().to_owned()));
        make_folder(&folder)?;
        let marker = format!("{}.{:08x}", order.id, rand::random::<u32>());
        let order = Order { owner: self.secrets.redacted_value(order.owner), ..order };
        let started = self.start_in(reaper, &folder, &marker, order);
        if started.is_err() {
            discard(&folder);
        }
        started
    }

    fn start_in(&self, reaper: &Reaper, folder: &JobFolder, marker: &str, order: Order) -> Result<Kept, LaunchError> {
        let (lock, spec) = fill_folder(folder, marker, &order).map_err(|source| LaunchError::Folder { source })?;
        let deadline = Instant::now() + order.ack_max;
        let (lifeline, keeper_end) =
            UnixStream::pair().map(|(own, keeper)| (OwnedFd::from(own), OwnedFd::from(keeper))).map_err(keeper_error)?;
        let keeper = KeeperProcess::start(&self.keeper, &keeper_end, order.retries)?;
        drop(keeper_end);
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![lock.as_fd()];
        descriptors.extend(order.handover.iter().map(|handover| handover.file.as_fd()));
        descriptors.extend(order.stdin.iter().map(AsFd::as_fd));
        let message = KeeperOrder {
            plan: order.plan,
            folder: folder.path().to_owned(),
            marker: marker.to_owned(),
            handover: order.handover.iter().map(|handover| handover.variable.to_owned()).collect(),
            has_stdin: order.stdin.is_some(),
            retries: order.retries,
            hidden: Hidden(self.secrets.values().iter().map(|value| value.expose_secret().to_owned()).collect()),
        };
        let answer = rustix::net::sockopt::set_socket_timeout(&lifeline, rustix::net::sockopt::Timeout::Send, Some(order.ack_max))
            .map_err(io::Error::from)
            .and_then(|()| wire::send_message(&lifeline, &message, &descriptors))
            .and_then(|()| receive_answer(&lifeline, deadline));
        match answer {
            Ok(Some(Acknowledgement::Started { keeper: own, payload })) => match reaper.watch(keeper.child.clone(), &lifeline) {
                Ok(news) => Ok(Kept::owned(folder.clone(), Owned { lifeline, child: keeper.released(), keeper: own, payload, spec, news })),
                Err(error) => {
                    keeper.abandon(lifeline, marker);
                    Err(keeper_error(error))
                }
            },
            Ok(Some(Acknowledgement::Failed { stage, errno, text })) => Err(failure(stage, errno, text, order.retries)),
            Ok(None) => {
                keeper.abandon(lifeline, marker);
                Err(LaunchError::Timeout { waited: order.ack_max })
            }
            Err(error) => {
                keeper.abandon(lifeline, marker);
                let gone = io::Error::new(io::ErrorKind::UnexpectedEof, "the keeper ended before it answered");
                Err(keeper_error(if error.kind() == io::ErrorKind::UnexpectedEof { gone } else { error }))
            }
        }
    }
}

fn keeper_error(source: io::Error) -> LaunchError {
    LaunchError::Keeper { stage: StartStage::Keeper, source }
}

fn failure(stage: StartStage, errno: Option<i32>, text: String, retries: u32) -> LaunchError {
    if errno == Some(nix::libc::EAGAIN) && stage == StartStage::Program {
        return LaunchError::NoProcesses { stage, tries: retries + 1, limits: process_limits() };
    }
    let source = errno.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error);
    match stage {
        StartStage::Keeper | StartStage::KeeperSetup => LaunchError::Keeper { stage, source },
        StartStage::Output | StartStage::WorkingDirectory | StartStage::Confinement | StartStage::Program | StartStage::Status => {
            LaunchError::Payload { stage, source }
        }
    }
}

/// The limits that may have been met, with their values.
fn process_limits() -> String {
    let user = rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    let mut limits = vec![format!("limit of this user (ulimit -u): {}", user.map_or("none".to_owned(), |user| user.to_string()))];
    limits.extend(platform::process_limits());
    limits.join(", ")
}

fn make_folder(folder: &JobFolder) -> Result<(), LaunchError> {
    if let Some(parent) = folder.path().parent() {
        files::create_private_folder(parent).map_err(|source| LaunchError::Folder { source })?;
    }
    files::create_new_private_folder(folder.path()).map_err(|source| {
        if source.source.kind() == io::ErrorKind::AlreadyExists {
            LaunchError::FolderTaken { path: folder.path().to_owned() }
        } else {
            LaunchError::Folder { source }
        }
    })
}

/// Takes back what was made for a start that failed. Removing a folder with its content needs descriptors, and there may be
/// none: `spec.json` goes first and by its name, so that no job is seen where there was none. The rest, where it cannot be
/// removed now, goes with the next clean-up.
fn discard(folder: &JobFolder) {
    let _ = std::fs::remove_file(folder.spec());
    for file in [folder.lock(), folder.end(), folder.task()] {
        let _ = std::fs::remove_file(file);
    }
    if std::fs::remove_dir(folder.path()).is_err() {
        let _ = std::fs::remove_dir_all(folder.path());
    }
}

/// Everything that must stand before the keeper exists; gives the held lock and what was written. `spec.json` comes last:
/// with it the job exists.
fn fill_folder(folder: &JobFolder, marker: &str, order: &Order) -> Result<(File, Spec), FileError> {
    let path = folder.lock();
    let lock = files::create_new(&path)?;
    lock.try_lock().map_err(|error| FileError { action: "cannot lock", path, source: error.into() })?;
    record::reserve_end(folder)?;
    if let Some(task) = &order.task_file {
        let path = folder.task();
        files::create_new(&path)?.write_all(task).map_err(|source| FileError { action: "cannot write", path, source })?;
    }
    let spec = Spec {
        version: RECORD_VERSION,
        created_at: clock::now(),
        marker: marker.to_owned(),
        temporary: order.plan.temporary_folder(marker),
        absent: order.plan.absent().to_vec(),
        owner: order.owner.clone(),
    };
    let path = folder.spec();
    let json =
        serde_json::to_vec(&spec).map_err(|error| FileError { action: "cannot encode", path: path.clone(), source: error.into() })?;
    files::replace(&path, &json, files::Sync::Process)?;
    Ok((lock, spec))
}

/// `None` at the deadline.
fn receive_answer(lifeline: &OwnedFd, deadline: Instant) -> io::Result<Option<Acknowledgement>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout = Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(lifeline, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // The answer is short and sent in one piece.
            Ok(_) => return wire::receive_message(lifeline).map(|(answer, _)| Some(answer)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A keeper from its start to the acknowledgement; reaped on drop unless released.
struct KeeperProcess {
    child: Child,
    reap_on_drop: bool,
}

impl KeeperProcess {
    fn start(program: &Program, keeper_end: &OwnedFd, retries: u32) -> Result<Self, LaunchError> {
        let path = match program {
            Program::Own => platform::own_program(),
            Program::At(path) => path.clone(),
        };
        let exit_line = ExitLine::create().map_err(keeper_error)?;
        let pid = spawn_with_retries(&path, keeper_end, &exit_line, retries)?;
        let opened = u32::try_from(pid.as_raw()).ok().and_then(identity::checked_pid).ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidData, "impossible process number");
            keeper_error(source)
        })?;
        match Child::open(opened, exit_line) {
            Ok(child) => Ok(Self { child, reap_on_drop: true }),
            Err(error) => {
                // Out of descriptors. The number is that of an own child that nobody has reaped, so it is safe to use.
                let _ = rustix::process::kill_process(opened, Signal::KILL);
                let _ = waitid(WaitId::Pid(opened), WaitIdOptions::EXITED);
                Err(keeper_error(error))
            }
        }
    }

    /// The reaper takes over.
    fn released(mut self) -> Child {
        self.reap_on_drop = false;
        self.child.clone()
    }

    /// Ends a keeper that does not answer, and whatever it may have started.
    fn abandon(self, lifeline: OwnedFd, marker: &str) {
        drop(lifeline);
        let _ = self.child.signal(Signal::KILL);
        drop(self);
        recovery::sweep_marker(marker);
    }
}

impl Drop for KeeperProcess {
    fn drop(&mut self) {
        if self.reap_on_drop {
            // It has answered "failed" or was killed: it exits now.
            self.child.reap();
        }
    }
}

fn spawn_with_retries(program: &Path, keeper_end: &OwnedFd, exit_line: &ExitLine, retries: u32) -> Result<nix::unistd::Pid, LaunchError> {
    let mut busy = 0;
    let mut scarce = 0;
    loop {
        match spawn(program, keeper_end, exit_line) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && busy < BUSY_TRIES => {
                busy += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(error) if error.raw_os_error() == Some(nix::libc::EAGAIN) => {
                if scarce == retries {
                    return Err(LaunchError::NoProcesses { stage: StartStage::Keeper, tries: retries + 1, limits: process_limits() });
                }
                std::thread::sleep(PROCESSES_PAUSE * 2_u32.saturating_pow(scarce));
                scarce += 1;
            }
            other => return other.map_err(keeper_error),
        }
    }
}

/// One keeper: the socket as stdin, nothing to write to, default dispositions. Terminal signals stay blocked until it
/// has left the terminal's session, or Ctrl-C and Ctrl-Z would reach it in the window before.
fn spawn(program: &Path, keeper_end: &OwnedFd, exit_line: &ExitLine) -> io::Result<nix::unistd::Pid> {
    let mut actions = PosixSpawnFileActions::init()?;
    actions.add_dup2(keeper_end.as_raw_fd(), 0)?;
    for standard in [1, 2] {
        actions.add_open(standard, "/dev/null", nix::fcntl::OFlag::O_WRONLY, nix::sys::stat::Mode::empty())?;
    }
    if let Some(exit_end) = exit_line.keeper_end() {
        actions.add_dup2(exit_end.as_raw_fd(), 1)?;
    }
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    attributes.set_sigdefault(&SigSet::from_iter(
        CaughtSignal::iterator().filter(|signal| !matches!(signal, CaughtSignal::SIGKILL | CaughtSignal::SIGSTOP)),
    ))?;
    let environment = Environment::read();
    let variables: Vec<CString> = environment
        .all()
        .iter()
        .filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok())
        .collect();
    let arguments = [c"zapmyco".to_owned(), CString::new(KEEP_ARGUMENT)?];
    let blocked = SigSet::from_iter([CaughtSignal::SIGINT, CaughtSignal::SIGTSTP, CaughtSignal::SIGHUP, CaughtSignal::SIGQUIT]);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let spawned = posix_spawn(program, &actions, &attributes, &arguments, &variables);
    before.thread_set_mask()?;
    Ok(spawned?)
}
