//! One rate gate per provider and key, shared by all processes of a user through a file.
//!
//! A refusal with a waiting time closes the gate; whoever wants to send then takes a slot after it. Slots are spread, and
//! the spread grows while refusals go on, so that those who waited do not arrive together again. An open gate costs one
//! failed `open` (no file) or one small read. Times are the machine's monotonic clock, valid within one boot.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{clock, files};

/// The gate of one provider and key.
#[derive(Clone, Debug)]
pub struct Gate {
    /// `None`: nobody to share with.
    path: Option<PathBuf>,
}

/// What a sender must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Now,
    /// Wait `slot` long, then ask again with [`Gate::is_closed`]. `closed`: how much of it the provider demands.
    At {
        slot: Duration,
        closed: Duration,
    },
}

/// State on disk. Milliseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    version: u32,
    boot: String,
    /// No request before this.
    closed_until: u64,
    /// The next slot that is not given away.
    next_slot: u64,
    /// Between two slots.
    spacing: u64,
    /// Beyond this the gate is as if it had never closed.
    forgotten_at: u64,
}

const VERSION: u32 = 1;
const FIRST_SPACING_MS: u64 = 100;
const LARGEST_SPACING_MS: u64 = 2_000;
/// How long after the last slot requests are still spread.
const MEMORY_MS: u64 = 5_000;
/// A time beyond this is a broken file, not a wait.
const SANE_WAIT_MS: u64 = 48 * 3_600 * 1_000;
/// How long the lock is tried for; it is held for a read and a write.
/// Bytes of a gate file; a state has some hundred.
const STATE_MAX: u64 = 4096;
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(4);

impl Gate {
    /// The gate file below `folder`, named by a digest: no key and no address can be read from it.
    pub fn shared(folder: &Path, provider: &str, key: Option<&str>) -> Self {
        let mut digest = Sha256::new();
        digest.update(provider.as_bytes());
        digest.update([0]);
        digest.update(key.unwrap_or_default().as_bytes());
        let name: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self { path: Some(folder.join(name)) }
    }

    /// A gate that is always open.
    pub fn none() -> Self {
        Self { path: None }
    }

    /// Whether a refusal reaches other processes.
    pub(crate) fn is_shared(&self) -> bool {
        self.path.is_some()
    }

    /// Asks for a slot.
    pub(crate) async fn pass(&self) -> Pass {
        let Some(path) = &self.path else { return Pass::Now };
        if read(path, now()).is_none() {
            return Pass::Now;
        }
        // Without the lock, for example on a full disk, the waiting time alone is kept.
        let lock = take_lock(path).await;
        let now = now();
        let Some(mut state) = read(path, now) else { return Pass::Now };
        let slot = if lock.is_some() {
            let slot = state.take_slot(now, jitter());
            // A slot that cannot be written is still a slot: it only may be given twice.
            let _ = write(path, &state);
            slot
        } else {
            state.closed_until
        };
        match slot.saturating_sub(now) {
            0 => Pass::Now,
            wait => {
                let closed = Duration::from_millis(state.closed_until.saturating_sub(now));
                Pass::At { slot: Duration::from_millis(wait), closed }
            }
        }
    }

    /// Whether the gate was closed anew while a slot was awaited.
    pub(crate) fn is_closed(&self) -> bool {
        let now = now();
        self.path.as_deref().and_then(|path| read(path, now)).is_some_and(|state| state.closed_until > now)
    }

    /// Closes the gate for everyone. Called the moment a refusal is read. An error means that other processes do not know.
    pub(crate) fn close(&self, wait: Duration) -> Result<(), files::FileError> {
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(folder) = path.parent() {
            files::create_private_folder(folder)?;
        }
        // The lock is held for microseconds by others of this user; a stopped holder must not stop us.
        let mut lock = files::try_lock(&lock_path(path))?;
        for _ in 0..10 {
            if lock.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            lock = files::try_lock(&lock_path(path))?;
        }
        let now = now();
        let state = State::closed(read(path, now), now, u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(SANE_WAIT_MS));
        write(path, &state)
    }
}

impl State {
    fn closed(before: Option<Self>, now: u64, wait: u64) -> Self {
        let until = now + wait;
        match before {
            // One of several refusals of the same crowd.
            Some(before) if before.closed_until > now => {
                let closed_until = before.closed_until.max(until);
                let next_slot = before.next_slot.max(closed_until);
                Self { closed_until, next_slot, forgotten_at: before.forgotten_at.max(next_slot + MEMORY_MS), ..before }
            }
            // A refusal after the gate had opened: the slots were too near.
            Some(before) => Self {
                closed_until: until,
                next_slot: until,
                spacing: (before.spacing * 2).min(LARGEST_SPACING_MS),
                forgotten_at: until + MEMORY_MS,
                ..before
            },
            None => Self {
                version: VERSION,
                boot: clock::boot_id(),
                closed_until: until,
                next_slot: until,
                spacing: FIRST_SPACING_MS,
                forgotten_at: until + MEMORY_MS,
            },
        }
    }

    /// `jitter` is within 0 and 1.
    fn take_slot(&mut self, now: u64, jitter: f64) -> u64 {
        let start = self.next_slot.max(self.closed_until).max(now);
        // Three quarters of the spacing are fixed, so that slots keep their order and most of their distance.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a quarter of two seconds")]
        let shift = (jitter * self.spacing as f64 / 4.0) as u64;
        let slot = if start == now { now } else { start + shift };
        self.next_slot = start + self.spacing;
        self.forgotten_at = self.next_slot + MEMORY_MS;
        slot
    }
}

fn jitter() -> f64 {
    rand::random::<f64>()
}

/// `None`: the gate is open and nobody is being spread.
fn read(path: &Path, now: u64) -> Option<State> {
    let bytes = files::read_bounded(path, STATE_MAX).ok()?;
    let state: State = serde_json::from_slice(&bytes).ok()?;
    let is_known = state.version == VERSION && state.closed_until <= now + SANE_WAIT_MS && state.next_slot <= now + SANE_WAIT_MS;
    (is_known && state.forgotten_at > now && state.boot == clock::boot_id()).then_some(state)
}

fn write(path: &Path, state: &State) -> Result<(), files::FileError> {
    files::replace(path, serde_json::to_string(state).unwrap_or_default().as_bytes(), files::Sync::Process)
}

async fn take_lock(path: &Path) -> Option<File> {
    for _ in 0..LOCK_TRIES {
        match files::try_lock(&lock_path(path)) {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) => tokio::time::sleep(LOCK_PAUSE).await,
            Err(_) => return None,
        }
    }
    None
}

fn lock_path(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

/// Milliseconds of the machine's monotonic clock, equal in all processes.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_open_gate_leaves_no_trace_and_a_closed_one_holds_for_every_process() {
        let folder = tempfile::tempdir().unwrap();
        let gate = Gate::shared(&folder.path().join("gate"), "p", Some("key"));
        assert_eq!(gate.pass().await, Pass::Now);
        assert!(!folder.path().join("gate").exists());
        gate.close(Duration::from_secs(30)).unwrap();
        // Another value is another process: nothing is shared but the file.
        let other = Gate::shared(&folder.path().join("gate"), "p", Some("key"));
        let Pass::At { slot: wait, .. } = other.pass().await else { panic!("closed") };
        assert!(wait > Duration::from_secs(29) && wait < Duration::from_secs(31), "{wait:?}");
        assert!(other.is_closed());
        for (provider, key) in [("p", Some("other")), ("q", Some("key")), ("p", None)] {
            assert_eq!(Gate::shared(&folder.path().join("gate"), provider, key).pass().await, Pass::Now);
        }
        let names: Vec<_> = folder.path().join("gate").read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| !name.to_string_lossy().contains("key")), "{names:?}");
    }

    #[test]
    fn slots_lie_behind_the_wait_and_apart() {
        let mut state = State::closed(None, 1_000, 500);
        let slots: Vec<u64> = (0..4).map(|index| state.take_slot(1_000, f64::from(index % 2))).collect();
        assert_eq!(slots, [1_500, 1_625, 1_700, 1_825]);
    }

    #[test]
    fn the_spread_grows_once_per_closing_and_is_forgotten() {
        let first = State::closed(None, 0, 1_000);
        let same_crowd = State::closed(Some(first.clone()), 10, 1_000);
        assert_eq!((same_crowd.spacing, same_crowd.closed_until), (FIRST_SPACING_MS, 1_010));
        let again = State::closed(Some(same_crowd), 1_200, 1_000);
        assert_eq!((again.spacing, again.closed_until), (2 * FIRST_SPACING_MS, 2_200));
        assert_eq!(again.forgotten_at, 2_200 + MEMORY_MS);
    }

    #[test]
    fn a_file_of_another_boot_or_a_broken_one_is_an_open_gate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("g");
        let mut state = State::closed(None, 1_000, 500);
        write(&path, &state).unwrap();
        assert!(read(&path, 1_100).is_some());
        assert!(read(&path, 10_000).is_none());
        state.boot = "another".to_owned();
        write(&path, &state).unwrap();
        assert!(read(&path, 1_100).is_none());
        std::fs::write(&path, "{").unwrap();
        assert!(read(&path, 1_100).is_none());
    }
}
