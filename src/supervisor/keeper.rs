//! Keeper side: one thread, one poll loop, from setsid to the end record.
//!
//! The keeper is the only parent of its payload, so the only one who is told its exit status. It owns the pipes, the
//! time limit and the tree, and outlives the agent for as long as it takes to end and record all of that.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use chrono::{DateTime, Local};
use nix::sys::signal::Signal as CaughtSignal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;

use super::capture::{Capture, READ_BYTES};
use super::payload::{self, StartFailure};
use super::plan::{Acknowledgement, KeeperOrder, OnOwnerDeath, StartStage, lifeline};
use super::platform::{self, Signals};
use super::record::{self, EndRecord, EndedBy, LeftOver, ProcessIdentity, RECORD_VERSION, Requester, Status, StopRequest, WaitStatus};
use super::tree::{Force, Tree};
use super::{confine, identity, recovery, wire};
use crate::config::environment::{self, Environment};
use crate::config::layout::{JobFolder, Stream};
use crate::{clock, files, footprint};

/// Between two versions of `status.json` while output comes.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
/// Left-overs of a payload that ended by itself get this long between TERM and KILL.
const LEFT_OVER_GRACE: Duration = Duration::from_millis(200);
/// After this long of killing, what is still there is named in the record instead of waited for.
const KILL_MAX: Duration = Duration::from_secs(5);
/// The same for a tree whose processes are new ones at every look: each dies of its signal, it only takes luck to meet one
/// before it has started the next, and what escaped would go on for ever.
const BREEDING_KILL_MAX: Duration = Duration::from_secs(30);
/// Rounds of killing before a tree counts as one that breeds faster than it is found.
const ROUNDS_BEFORE_CONTAINMENT: u32 = 15;
/// Part of the grace time above that a nested keeper uses, in percent: it must have recorded when the one above kills.
const NESTED_GRACE_PERCENT: u32 = 60;
/// Tries to write the end record when the disk refuses.
const RECORD_TRIES: u32 = 20;
const RECORD_PAUSE: Duration = Duration::from_millis(100);

/// The hidden `__keep` argument. Reads its order from stdin, which is one end of a socket pair.
pub fn main() -> ExitCode {
    let lifeline = io::stdin();
    let keeper = match Keeper::start(lifeline.as_fd()) {
        Ok(keeper) => keeper,
        Err(StartFailure { stage, source }) => {
            let failed = Acknowledgement::Failed { stage, errno: source.raw_os_error(), text: source.to_string() };
            // Nobody there any more: then nobody waits for the reason either.
            let _ = wire::send_message(lifeline.as_fd(), &failed, &[]);
            return ExitCode::FAILURE;
        }
    };
    if keeper.run() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Signals that mean something to a keeper.
const CAUGHT: [CaughtSignal; 7] = [
    CaughtSignal::SIGTERM,
    CaughtSignal::SIGINT,
    CaughtSignal::SIGHUP,
    CaughtSignal::SIGQUIT,
    CaughtSignal::SIGTSTP,
    CaughtSignal::SIGUSR2,
    CaughtSignal::SIGCHLD,
];

/// How far the end of the tree has come.
#[derive(Clone, Copy, Debug)]
enum Ending {
    NotAsked,
    Asked { kill_at: Instant },
    Killing { since: Instant, rounds: u32 },
}

struct Ended {
    wait: WaitStatus,
    at: Instant,
}

struct Keeper<'a> {
    lifeline: BorrowedFd<'a>,
    lifeline_open: bool,
    signals: Signals,
    order: KeeperOrder,
    folder: JobFolder,
    grace: Duration,
    /// Held for life; freed by the kernel however this process ends.
    _lock: OwnedFd,
    tree: Tree,
    temporary: Temporary,
    identities: (ProcessIdentity, ProcessIdentity),
    stdout: Capture,
    stderr: Capture,
    buffer: Vec<u8>,
    started: Instant,
    started_at: DateTime<Local>,
    ended: Option<Ended>,
    ending: Ending,
    cause: Option<EndedBy>,
    sent: Vec<String>,
    status_at: Instant,
    status_bytes: u64,
    /// A child has ended since the list of children was last looked at.
    child_ended: bool,
}

impl<'a> Keeper<'a> {
    /// Everything up to the acknowledgement.
    fn start(lifeline: BorrowedFd<'a>) -> Result<Self, StartFailure> {
        let at = |stage| move |source: io::Error| StartFailure { stage, source };
        close_strays();
        let signals = Signals::take(&CAUGHT).map_err(at(StartStage::KeeperSetup))?;
        rustix::process::setsid().map_err(io::Error::from).map_err(at(StartStage::KeeperSetup))?;
        // What was sent to the terminal's group before was meant for the agent, which got it as well.
        while signals.next().is_some() {}
        platform::become_keeper().map_err(at(StartStage::KeeperSetup))?;
        let (order, mut descriptors): (KeeperOrder, _) = wire::receive_message(lifeline).map_err(at(StartStage::KeeperSetup))?;
        if descriptors.len() != order.handover.len() + 1 + usize::from(order.has_stdin) {
            return Err(at(StartStage::KeeperSetup)(io::Error::new(io::ErrorKind::InvalidData, "descriptors are missing")));
        }
        let stdin = if order.has_stdin { descriptors.pop() } else { None };
        let handed_over = descriptors.split_off(1);
        let lock = descriptors.remove(0);
        // Not to hold the agent's directory or its file system.
        std::env::set_current_dir("/").map_err(at(StartStage::KeeperSetup))?;

        let folder = JobFolder::new(order.folder.clone());
        let inherited = Environment::read();
        let grace = own_grace(order.plan.grace, inherited.get(environment::GRACE_MS));
        let output = at(StartStage::Output);
        let (stdout, stdout_writer) =
            Capture::create(&folder, Stream::Stdout, order.plan.output, order.hidden.masker()).map_err(&output)?;
        let (stderr, stderr_writer) =
            Capture::create(&folder, Stream::Stderr, order.plan.output, order.hidden.masker()).map_err(&output)?;
        let temporary = Temporary::make(order.plan.temporary_folder(&order.marker)).map_err(at(StartStage::Confinement))?;
        let additions = additions(&order, &inherited, grace, temporary.path(), &handed_over);
        let payload = payload::start(&order, &additions, &handed_over, temporary.path(), stdin, (stdout_writer, stderr_writer))?;
        let (started, started_at) = (Instant::now(), clock::now());
        drop(handed_over);
        let no_child = || io::Error::new(io::ErrorKind::InvalidData, "impossible process number");
        let tree = Tree::new(payload).ok_or_else(no_child).map_err(at(StartStage::Program))?;
        let identities = (identity::of_own(std::process::id()), identity::of_own(payload));
        let mut keeper = Self {
            lifeline,
            lifeline_open: true,
            signals,
            folder,
            grace,
            _lock: lock,
            tree,
            temporary,
            identities,
            stdout,
            stderr,
            buffer: vec![0; READ_BYTES],
            started,
            started_at,
            ended: None,
            ending: Ending::NotAsked,
            cause: None,
            sent: Vec::new(),
            status_at: started,
            status_bytes: 0,
            child_ended: true,
            order,
        };
        if let Err(error) = keeper.write_status() {
            keeper.hard_stop();
            keeper.end_tree();
            return Err(at(StartStage::Status)(error.source));
        }
        let (own, payload) = keeper.identities.clone();
        // A launcher that is gone shows as the end of the lifeline a moment later.
        let _ = wire::send_message(lifeline, &Acknowledgement::Started { keeper: own, payload }, &[]);
        footprint::give_back_code();
        Ok(keeper)
    }

    /// Until the end record stands. False when it could not be written: the free lock then tells the rest.
    fn run(mut self) -> bool {
        // A request that came before this process could be signalled.
        if let Some(request) = record::read_stop(&self.folder) {
            self.stop(EndedBy::Stop { request });
        }
        let mut left_over = self.end_tree();
        left_over.extend(self.temporary.remove());
        left_over.extend(self.order.plan.refuse_new(&self.order.marker));
        self.record(left_over)
    }

    /// The poll loop: until the payload has ended, its output is read and its tree is empty, or will not become so.
    fn end_tree(&mut self) -> Vec<LeftOver> {
        loop {
            let now = Instant::now();
            self.see_end(now);
            if let Some(left_over) = self.done(now) {
                self.stdout.finish(&mut self.buffer);
                self.stderr.finish(&mut self.buffer);
                self.tree.reap_payload();
                return left_over;
            }
            self.keep_limits(now);
            if now >= self.status_at + STATUS_INTERVAL && self.bytes() != self.status_bytes {
                // A full disk: the counts come with the end record.
                let _ = self.write_status();
            }
            self.wait(self.next_deadline(now));
        }
    }

    fn see_end(&mut self, now: Instant) {
        if self.ended.is_none() {
            self.ended = self.tree.payload_end().map(|wait| Ended { wait, at: now });
        }
    }

    fn drain_until(&self) -> Option<Instant> {
        self.ended.as_ref().map(|ended| ended.at + self.order.plan.drain)
    }

    /// What could not be ended, once there is nothing more to wait for.
    fn done(&mut self, now: Instant) -> Option<Vec<LeftOver>> {
        if self.ended.is_none() && matches!(self.ending, Ending::NotAsked) && !std::mem::take(&mut self.child_ended) {
            // Nothing to reap and nothing to prove yet: the list is not read for every piece of output.
            return None;
        }
        let others = self.tree.others_live();
        let piped = self.stdout.is_open() || self.stderr.is_open();
        if let Some(drain_until) = self.drain_until() {
            if !others && !piped {
                return Some(Vec::new());
            }
            if !others && now >= drain_until {
                return Some(self.pipe_holders());
            }
        }
        match self.ending {
            Ending::Killing { since, .. } if now >= since + KILL_MAX && !(self.tree.breeds() && now < since + BREEDING_KILL_MAX) => {
                Some(self.tree.left_over())
            }
            _ => None,
        }
    }

    /// The tree is empty, yet somebody outside it holds a pipe: those with our marker are ended, the rest is said.
    fn pipe_holders(&mut self) -> Vec<LeftOver> {
        let mut left_over = recovery::sweep_marker(&self.order.marker);
        self.stdout.read_some(&mut self.buffer);
        self.stderr.read_some(&mut self.buffer);
        for (name, stream) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if stream.is_open() {
                left_over.push(LeftOver::not_provable(format!("a process outside the tree holds {name}")));
            }
        }
        left_over
    }

    fn keep_limits(&mut self, now: Instant) {
        if self.ended.is_none() && self.time_limit_at().is_some_and(|at| now >= at) {
            self.stop(EndedBy::TimeLimit);
        }
        match self.ending {
            Ending::NotAsked => {
                if self.drain_until().is_some_and(|at| now >= at) {
                    let grace = if self.tree.has_keeper() { self.grace } else { LEFT_OVER_GRACE.min(self.grace) };
                    self.ask(now + grace);
                }
            }
            Ending::Asked { kill_at } if now >= kill_at => self.kill(now, 0),
            Ending::Asked { .. } => {}
            Ending::Killing { since, rounds } => self.kill(since, rounds + 1),
        }
    }

    fn time_limit_at(&self) -> Option<Instant> {
        // Only the first cause counts, so a limit after a stop is none.
        self.order.plan.time_limit.filter(|_| self.cause.is_none()).and_then(|limit| self.started.checked_add(limit))
    }

    /// The first cause stays. The request of somebody counts even when the payload ends by itself at that moment;
    /// a limit or a signal that comes after the payload's end only hastens the end of the rest.
    fn stop(&mut self, cause: EndedBy) {
        if self.cause.is_none() && (self.ended.is_none() || matches!(cause, EndedBy::Stop { .. })) {
            self.cause = Some(cause);
        }
        if matches!(self.ending, Ending::NotAsked) {
            self.ask(Instant::now() + self.grace);
            let _ = self.write_status();
        }
    }

    fn hard_stop(&mut self) {
        if !matches!(self.ending, Ending::Killing { .. }) {
            self.ending = Ending::Asked { kill_at: Instant::now() };
        }
    }

    fn ask(&mut self, kill_at: Instant) {
        self.tree.signal(Force::Polite, self.ended.is_some());
        self.sent.push("SIGTERM".to_owned());
        self.ending = Ending::Asked { kill_at };
    }

    fn kill(&mut self, since: Instant, rounds: u32) {
        if rounds == 0 {
            self.sent.push("SIGKILL".to_owned());
        }
        self.tree.signal(Force::Kill, self.ended.is_some());
        if rounds > 0 && rounds.is_multiple_of(ROUNDS_BEFORE_CONTAINMENT) {
            self.tree.contain();
        }
        self.ending = Ending::Killing { since, rounds };
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let status = (self.bytes() != self.status_bytes).then_some(self.status_at + STATUS_INTERVAL);
        let ending = match self.ending {
            Ending::NotAsked => None,
            Ending::Asked { kill_at } => Some(kill_at),
            // The child list is looked at again soon: fast at first, for the ordinary tree is gone at once.
            Ending::Killing { .. } if self.tree.breeds() => Some(now),
            Ending::Killing { rounds, .. } => Some(now + Duration::from_millis(u64::from(rounds.clamp(1, 20)))),
        };
        let limit = if self.ended.is_none() { self.time_limit_at() } else { None };
        let drain = self.drain_until().filter(|at| *at > now);
        [status, ending, limit, drain].into_iter().flatten().min()
    }

    fn wait(&mut self, until: Option<Instant>) {
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut watched = vec![(Source::Signals, self.signals.as_fd())];
        if self.lifeline_open {
            watched.push((Source::Lifeline, self.lifeline));
        }
        watched.extend(self.stdout.pipe().map(|pipe| (Source::Stdout, pipe)));
        watched.extend(self.stderr.pipe().map(|pipe| (Source::Stderr, pipe)));
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // Interrupted: everything is looked at again in the next turn.
            return;
        }
        let ready: Vec<Source> =
            watched.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|((source, _), _)| *source).collect();
        drop(fds);
        drop(watched);
        for source in ready {
            match source {
                Source::Signals => self.read_signals(),
                Source::Lifeline => self.read_lifeline(),
                Source::Stdout => self.stdout.read_some(&mut self.buffer),
                Source::Stderr => self.stderr.read_some(&mut self.buffer),
            }
        }
    }

    fn read_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal {
                CaughtSignal::SIGTSTP => {}
                CaughtSignal::SIGCHLD => self.child_ended = true,
                CaughtSignal::SIGUSR2 => {
                    self.stop(self.requested_or(CaughtSignal::SIGUSR2));
                    self.hard_stop();
                }
                other => self.stop(self.requested_or(other)),
            }
        }
    }

    fn requested_or(&self, signal: CaughtSignal) -> EndedBy {
        match record::read_stop(&self.folder) {
            Some(request) => EndedBy::Stop { request },
            None => EndedBy::KeeperSignal { signal: signal as i32 },
        }
    }

    fn read_lifeline(&mut self) {
        let mut bytes = [0; 64];
        match rustix::net::recv(self.lifeline, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.owner_is_gone(),
            Ok((read, _)) => {
                let mut rest = bytes[..read].iter();
                while let Some(message) = rest.next() {
                    match *message {
                        lifeline::DETACH => self.order.plan.on_owner_death = OnOwnerDeath::Finish,
                        lifeline::STOP => {
                            let requester = rest.next().and_then(|code| Requester::from_code(*code)).unwrap_or(Requester::Person);
                            self.stop(EndedBy::Stop { request: StopRequest { requester, at: clock::now() } });
                        }
                        _ => {}
                    }
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.owner_is_gone(),
        }
    }

    fn owner_is_gone(&mut self) {
        self.lifeline_open = false;
        match self.order.plan.on_owner_death {
            OnOwnerDeath::Stop => self.stop(EndedBy::OwnerGone),
            OnOwnerDeath::Finish => {}
        }
    }

    fn bytes(&self) -> u64 {
        self.stdout.count().bytes + self.stderr.count().bytes
    }

    fn write_status(&mut self) -> Result<(), files::FileError> {
        let (keeper, payload) = self.identities.clone();
        let status = Status {
            version: RECORD_VERSION,
            keeper,
            payload,
            started_at: self.started_at,
            stopping: !matches!(self.ending, Ending::NotAsked),
            stdout: self.stdout.count(),
            stderr: self.stderr.count(),
        };
        self.status_at = Instant::now();
        self.status_bytes = self.bytes();
        let path = self.folder.status();
        let json = serde_json::to_vec(&status).map_err(|error| files::FileError {
            action: "cannot encode",
            path: path.clone(),
            source: error.into(),
        })?;
        files::replace(&path, &json, files::Sync::Process)
    }

    fn record(mut self, mut left_over: Vec<LeftOver>) -> bool {
        left_over.extend(LeftOver::of_system());
        let requested = || record::read_stop(&self.folder).map(|request| EndedBy::Stop { request });
        let cause = self.cause.take().or_else(requested).unwrap_or(EndedBy::Itself);
        let ended = self.ended.as_ref();
        let record = EndRecord {
            version: RECORD_VERSION,
            cause,
            wait: ended.map(|ended| ended.wait),
            started_at: self.started_at,
            ended_at: clock::now(),
            duration_ms: ended
                .map_or_else(|| self.started.elapsed(), |ended| ended.at - self.started)
                .as_millis()
                .try_into()
                .unwrap_or(u64::MAX),
            stdout: self.stdout.count(),
            stderr: self.stderr.count(),
            signals: std::mem::take(&mut self.sent),
            swept: self.tree.swept(),
            left_over,
            output_error: self.output_error(),
        };
        for _ in 0..RECORD_TRIES {
            if let Ok(file) = record::write_end(&self.folder, &record) {
                // Whoever waits may read it now; that it also survives a loss of power takes some milliseconds more.
                platform::tell_recorded(self.lifeline, lifeline::RECORDED);
                let _ = file.sync_data();
                return true;
            }
            std::thread::sleep(RECORD_PAUSE);
        }
        false
    }

    fn output_error(&self) -> Option<String> {
        let named = |name, error: Option<&str>| error.map(|error| format!("{name}: {error}"));
        let errors: Vec<String> =
            [named("stdout", self.stdout.error()), named("stderr", self.stderr.error())].into_iter().flatten().collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }
}

#[derive(Clone, Copy)]
enum Source {
    Signals,
    Lifeline,
    Stdout,
    Stderr,
}

/// The payload's private temporary folder, if it has one; gone with this value.
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn make(path: Option<PathBuf>) -> io::Result<Self> {
        path.as_deref().map_or(Ok(()), confine::make_temporary)?;
        Ok(Self(path))
    }

    fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }

    fn remove(&mut self) -> Option<LeftOver> {
        let path = self.0.take()?;
        let error = confine::remove_temporary(&path).err()?;
        Some(LeftOver::not_provable(format!("the temporary folder {} could not be removed: {error}", path.display())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A start that failed: there is no record to name it in.
        self.remove();
    }
}

/// Descriptors that came through the agent by accident; 0 to 2 are ours.
fn close_strays() {
    let Ok(entries) = std::fs::read_dir(platform::DESCRIPTORS) else { return };
    let strays: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|number| *number > 2).collect();
    for number in strays {
        // The descriptor of the listing itself is closed already and answers with an error.
        let _ = nix::unistd::close(number);
    }
}

fn own_grace(planned: Duration, above_ms: Option<&str>) -> Duration {
    match above_ms.and_then(|text| text.parse().ok()) {
        Some(above_ms) => planned.min(Duration::from_millis(above_ms) * NESTED_GRACE_PERCENT / 100),
        None => planned,
    }
}

/// What the keeper adds to the payload's environment: the marker as a path, the grace time, the descriptors' numbers.
fn additions(
    order: &KeeperOrder,
    inherited: &Environment,
    grace: Duration,
    temporary: Option<&Path>,
    handed_over: &[OwnedFd],
) -> Vec<(OsString, OsString)> {
    let mut marker = inherited.raw(environment::JOB).cloned().unwrap_or_default();
    marker.push("/");
    marker.push(&order.marker);
    let mut additions = vec![(environment::JOB.into(), marker), (environment::GRACE_MS.into(), grace.as_millis().to_string().into())];
    additions.extend(temporary.map(|path| (environment::TEMPORARY.into(), path.into())));
    for (variable, file) in order.handover.iter().zip(handed_over) {
        additions.push((variable.into(), file.as_raw_fd().to_string().into()));
    }
    additions
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that a deadline has passed when the wait ends.
    let duration = duration + Duration::from_micros(1);
    Timespec { tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_keeper_uses_less_than_the_one_above() {
        let planned = Duration::from_secs(5);
        assert_eq!(own_grace(planned, None), planned);
        assert_eq!(own_grace(planned, Some("5000")), Duration::from_secs(3));
        assert_eq!(own_grace(Duration::from_secs(1), Some("5000")), Duration::from_secs(1));
        assert_eq!(own_grace(planned, Some("nonsense")), planned);
    }
}
