//! What to do with a folder whose keeper is gone: sweep, settle; retention.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::time::{Duration, Instant};

use chrono::{DateTime, Local};
use rustix::process::Signal;

use super::confine;
use super::identity::{self, Stat, Verified};
use super::platform;
use super::record::{self, EndRecord, EndedBy, LeftOver, RECORD_VERSION, RecordError, Spec, Status, StreamCount};
use crate::clock;
use crate::config::environment;
use crate::config::layout::{JobFolder, Stream};

/// A living process with a marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    pub pid: u32,
    /// `<id>.<nonce>` of every keeper above it, outermost first.
    pub components: Vec<String>,
    pub command: String,
    keeper: bool,
    start_ticks: u64,
    state: char,
}

/// Between TERM and KILL of a sweep.
const SWEEP_GRACE: Duration = Duration::from_millis(200);
/// The same where keepers are among the found: they stop their own trees and write their records.
const SWEEP_GRACE_KEEPERS: Duration = Duration::from_millis(700);
/// After this long of killing, what is still there is named.
const SWEEP_KILL_MAX: Duration = Duration::from_secs(5);
/// The same while every look finds other processes.
const SWEEP_BREEDING_MAX: Duration = Duration::from_secs(30);
/// A walk over all processes may pass the place of one that is being started, so an empty one alone proves nothing then.
const EMPTY_LOOKS_AFTER_BREEDING: u32 = 20;
const SWEEP_PAUSE: Duration = Duration::from_millis(5);
/// A folder without `spec.json` younger than this may belong to a launcher at work.
const YOUNG: Duration = Duration::from_secs(60);

/// Gives the end of a job, writing `KeeperLost` for a keeper that vanished, and `OwnerGone` for a start that its launcher
/// did not live to see. `None`: the keeper (or a start) is alive.
pub fn settle(folder: &JobFolder) -> Result<Option<EndRecord>, RecordError> {
    if let Some(end) = record::read_end(folder)? {
        return Ok(Some(end));
    }
    let no_job = || RecordError::NoJob { path: folder.path().to_owned() };
    let lock = match OpenOptions::new().read(true).write(true).open(folder.lock()) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return if folder.path().is_dir() { never_started(folder) } else { Err(no_job()) };
        }
        Err(source) => return Err(RecordError::Read { path: folder.lock(), source }),
    };
    if lock.try_lock().is_err() {
        return Ok(None);
    }
    // Whoever holds the lock is alone; the record may have come between the look and the lock.
    if let Some(end) = record::read_end(folder)? {
        return Ok(Some(end));
    }
    let Some(spec) = record::read_spec(folder)? else { return never_started(folder) };
    let end = lost(folder, &spec)?;
    let file = record::write_end(folder, &end)?;
    // Survives the death of this process already; a full disk or a broken one must not hide the end.
    let _ = file.sync_data();
    Ok(Some(end))
}

/// The launcher died before the job existed.
fn never_started(folder: &JobFolder) -> Result<Option<EndRecord>, RecordError> {
    let path = folder.path().to_owned();
    let read = |source| RecordError::Read { path: path.clone(), source };
    let changed = path.metadata().and_then(|metadata| metadata.modified()).map_err(read)?;
    if changed.elapsed().unwrap_or_default() < YOUNG {
        return Ok(None);
    }
    std::fs::remove_dir_all(&path).map_err(read)?;
    Err(RecordError::NeverStarted { path })
}

fn lost(folder: &JobFolder, spec: &Spec) -> Result<EndRecord, RecordError> {
    let status = record::read_status(folder)?;
    let (found, mut left_over) = if platform::SEES_ENVIRONMENTS {
        (marked_with(&spec.marker).len(), sweep_marker(&spec.marker))
    } else {
        sweep_session(status.as_ref())
    };
    if let Some(path) = &spec.temporary
        && let Err(error) = confine::remove_temporary(path)
    {
        left_over.push(LeftOver::not_provable(format!("the temporary folder {} could not be removed: {error}", path.display())));
    }
    for path in &spec.absent {
        left_over.extend(confine::refuse_new(&path.0, &spec.marker));
    }
    left_over.extend(LeftOver::of_system());
    let count = |stream, last: Option<StreamCount>| {
        let sizes = [folder.output(stream), folder.output_tail(stream, 0), folder.output_tail(stream, 1)];
        let kept = sizes.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum();
        let last = last.unwrap_or_default();
        StreamCount { bytes: last.bytes.max(kept), kept, lines: last.lines }
    };
    let started_at = status.as_ref().map_or(spec.created_at, |status| status.started_at);
    let ended_at = clock::now();
    // A keeper states who it is before it answers its launcher, and a launcher that lives takes away the folder of a start
    // that failed: without that statement it was the launcher that died in the middle of the start. Keeper and payload
    // then ended with it, or were never there.
    let cause = if status.is_some() { EndedBy::KeeperLost } else { EndedBy::OwnerGone };
    Ok(EndRecord {
        version: RECORD_VERSION,
        cause,
        wait: None,
        started_at,
        ended_at,
        duration_ms: (ended_at - started_at).num_milliseconds().try_into().unwrap_or(0),
        stdout: count(Stream::Stdout, status.as_ref().map(|status| status.stdout)),
        stderr: count(Stream::Stderr, status.as_ref().map(|status| status.stderr)),
        signals: Vec::new(),
        swept: u32::try_from(found).unwrap_or(u32::MAX),
        left_over,
        output_error: None,
    })
}

/// Whether [`find_marked`] can find anything on this system.
pub const FINDS_MARKED: bool = platform::SEES_ENVIRONMENTS;

/// Every living process that carries a marker in its initial environment, as far as this user may see.
pub fn find_marked() -> Vec<Marked> {
    platform::all_pids().filter_map(marked).collect()
}

fn marked(pid: u32) -> Option<Marked> {
    let environ = platform::initial_environment(pid)?;
    let name = environment::JOB.as_bytes();
    let marker = environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"="))?;
    let components: Vec<String> = String::from_utf8_lossy(marker).split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let stat = identity::stat(pid)?;
    let keeper = platform::is_keeper(&stat);
    let Stat { command, start_ticks, state, .. } = stat;
    (state != 'Z' && !components.is_empty()).then_some(Marked { pid, components, command, keeper, start_ticks, state })
}

/// Living processes below the keeper with this component, without this process and what it lives in.
fn marked_with(component: &str) -> Vec<Marked> {
    let spared = own_line();
    find_marked()
        .into_iter()
        .filter(|marked| !spared.contains(&marked.pid) && marked.components.iter().any(|part| part == component))
        .collect()
}

/// This process and its ancestors.
fn own_line() -> BTreeSet<u32> {
    let mut line = BTreeSet::new();
    let mut pid = std::process::id();
    while pid > 1 && line.insert(pid) {
        pid = identity::stat(pid).map_or(0, |stat| stat.parent);
    }
    line
}

/// Ends every process that carries the component `<id>.<nonce>` in its marker; gives what could not be ended.
pub fn sweep_marker(component: &str) -> Vec<LeftOver> {
    let first = marked_with(component);
    if first.is_empty() {
        return Vec::new();
    }
    for process in &first {
        // What lives below a keeper of its own is that keeper's to end.
        if process.components.last().is_some_and(|last| last == component) {
            signal(process, &[Signal::TERM, Signal::CONT]);
        }
    }
    let keepers = first.iter().any(|process| process.keeper);
    let kill_at = Instant::now() + if keepers { SWEEP_GRACE_KEEPERS } else { SWEEP_GRACE };
    let mut before = BTreeSet::new();
    let (mut bred, mut empty_looks) = (false, 0);
    loop {
        let left = marked_with(component);
        let now = Instant::now();
        let these: BTreeSet<(u32, u64)> = left.iter().map(|process| (process.pid, process.start_ticks)).collect();
        // Others at every look: a chain that starts its next before it dies. It takes many looks to meet one in time.
        let breeds = now >= kill_at && these.is_disjoint(&before);
        bred |= breeds && !these.is_empty();
        empty_looks = if these.is_empty() { empty_looks + 1 } else { 0 };
        let gone = empty_looks > if bred { EMPTY_LOOKS_AFTER_BREEDING } else { 0 };
        let kill_max = if breeds { SWEEP_BREEDING_MAX } else { SWEEP_KILL_MAX };
        if gone || now >= kill_at + kill_max {
            return left
                .into_iter()
                .map(|process| LeftOver { pid: process.pid, state: process.state.to_string(), command: process.command })
                .collect();
        }
        if now >= kill_at {
            left.iter().for_each(|process| signal(process, &[Signal::KILL]));
        }
        if !breeds {
            std::thread::sleep(SWEEP_PAUSE);
        }
        before = these;
    }
}

/// Where no marker can be read: ends the session that the keeper began, as long as its payload lives and proves by it that
/// the session is still that one. Gives how many were found and what could not be ended.
fn sweep_session(status: Option<&Status>) -> (usize, Vec<LeftOver>) {
    let Some(status) = status.filter(|status| Verified::open(&status.payload).is_some()) else {
        return (0, vec![LeftOver::not_provable("processes that the payload left behind")]);
    };
    // Its number stays taken as long as the session has a member.
    let members = || platform::session_members(status.keeper.pid);
    let first = members();
    first.iter().for_each(|process| signal_started(process.pid, process.start_ticks, &[Signal::TERM, Signal::CONT]));
    let kill_at = Instant::now() + SWEEP_GRACE;
    let give_up_at = kill_at + SWEEP_KILL_MAX;
    loop {
        let left = members();
        let now = Instant::now();
        if left.is_empty() || now >= give_up_at {
            let named = left.into_iter().map(|left| LeftOver { pid: left.pid, state: left.state.to_string(), command: left.command });
            return (first.len(), named.collect());
        }
        if now >= kill_at {
            left.iter().for_each(|process| signal_started(process.pid, process.start_ticks, &[Signal::KILL]));
        }
        std::thread::sleep(SWEEP_PAUSE);
    }
}

fn signal(process: &Marked, signals: &[Signal]) {
    signal_started(process.pid, process.start_ticks, signals);
}

fn signal_started(pid: u32, start_ticks: u64, signals: &[Signal]) {
    if let Some(verified) = Verified::open_started(pid, start_ticks) {
        for signal in signals {
            // It may have ended meanwhile, or belong to somebody else now: the next look tells.
            let _ = verified.signal(*signal);
        }
    }
}

/// An ended job as retention sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedJob {
    pub ended_at: DateTime<Local>,
    /// Size of its folder.
    pub bytes: u64,
    /// Nobody has been told of its end yet: such a job is kept.
    pub unannounced: bool,
}

/// How much of the past is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionRules {
    pub age: Duration,
    pub count: u64,
    pub bytes: u64,
}

/// Which jobs to remove, as indexes into `ended`, oldest first: the too old, then the oldest until count and bytes fit.
pub fn choose(ended: &[EndedJob], now: DateTime<Local>, rules: RetentionRules) -> Vec<usize> {
    let mut newest_first: Vec<usize> = (0..ended.len()).collect();
    newest_first.sort_by_key(|index| (std::cmp::Reverse(ended[*index].ended_at), *index));
    let (mut count, mut bytes) = (0_u64, 0_u64);
    let mut chosen = Vec::new();
    for index in newest_first {
        let job = ended[index];
        let too_old = (now - job.ended_at).to_std().is_ok_and(|age| age > rules.age);
        let fits = count < rules.count && bytes.saturating_add(job.bytes) <= rules.bytes;
        if job.unannounced || (!too_old && fits) {
            count += 1;
            bytes = bytes.saturating_add(job.bytes);
        } else {
            chosen.push(index);
        }
    }
    chosen.reverse();
    chosen
}

/// Removes the folder of an ended job. `StillRunning` for any other.
pub fn remove(folder: &JobFolder) -> Result<(), RecordError> {
    let path = folder.path().to_owned();
    match settle(folder) {
        Ok(Some(_)) => {}
        Ok(None) => return Err(RecordError::StillRunning { path }),
        Err(RecordError::NeverStarted { .. }) => return Ok(()),
        Err(error) => return Err(error),
    }
    std::fs::remove_dir_all(&path).map_err(|source| RecordError::Read { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(hours_ago: i64, bytes: u64) -> EndedJob {
        EndedJob { ended_at: now() - chrono::TimeDelta::hours(hours_ago), bytes, unannounced: false }
    }

    fn now() -> DateTime<Local> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap().with_timezone(&Local)
    }

    fn rules(hours: u64, count: u64, bytes: u64) -> RetentionRules {
        RetentionRules { age: Duration::from_secs(hours * 3600), count, bytes }
    }

    /// R333, fault M23
    #[test]
    fn the_oldest_go_by_age_count_and_bytes() {
        let jobs = [job(5, 10), job(1, 10), job(9, 10), job(3, 10)];
        assert_eq!(choose(&jobs, now(), rules(100, 100, 1000)), Vec::<usize>::new());
        assert_eq!(choose(&jobs, now(), rules(4, 100, 1000)), [2, 0]);
        assert_eq!(choose(&jobs, now(), rules(100, 1, 1000)), [2, 0, 3]);
        assert_eq!(choose(&jobs, now(), rules(100, 100, 25)), [2, 0]);
    }

    #[test]
    fn an_end_that_nobody_was_told_of_is_kept() {
        let jobs = [EndedJob { unannounced: true, ..job(500, 10) }, job(500, 10)];
        assert_eq!(choose(&jobs, now(), rules(1, 0, 0)), [1]);
    }
}
