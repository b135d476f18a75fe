//! The settings a process child gets privately, and the parent's current mode.
//!
//! Both are memory files whose numbers are in the child's environment. The settings are sealed, read once and closed; the
//! mode is one page that the parent rewrites when its mode changes and the child reads before each call (R285).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::budget::Allowance;
use crate::config::Environment;
use crate::config::environment::{BUDGET_FD, HANDOVER_FD, MODE_FD};
use crate::files::{any_path, any_path_option};
use crate::hooks::HookSet;
use crate::ids::SessionId;
use crate::permissions::Mode;
use crate::permissions::sandbox::SandboxSettings;
use crate::supervisor::launch::{memory_file, reopen, reopen_writable, sealed_memory_file};

pub const HANDOVER_VERSION: u32 = 1;
/// A handover is small; more than this is none.
const HANDOVER_MAX: u64 = 16 * 1024 * 1024;
/// Bytes of the page with the mode.
const MODE_PAGE: usize = 64;
/// A child's own shells get this part of the parent's grace time, so that their keepers have ended before its own must
/// (decision 2).
const CHILD_GRACE_PERCENT: u32 = 60;

/// What every process child of a session is given beside its task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChildSettings {
    /// The resolved model, or `{"script": ..}`, `{"replay": ..}`; read by whoever wrote it. `Null`: the child resolves one.
    pub model: Value,
    /// Where the child adds its conversation to a recording.
    pub record: Option<PathBuf>,
    /// The parent's mode now; `None`: the child's settings decide.
    pub mode: Option<Mode>,
    pub allow: Vec<String>,
    pub ask: Vec<String>,
    pub deny: Vec<String>,
    /// The hooks of the session, which run in its children too (R148). Handed down and not read again: a child must not have
    /// other ones because a file has changed meanwhile.
    pub hooks: HookSet,
    /// `[limits]` keys that differ from the defaults.
    pub limits: Vec<(String, String)>,
    pub max_turns: Option<u32>,
    pub sandbox: SandboxSettings,
}

/// The versioned wire form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Handover {
    pub version: u32,
    pub model: Value,
    #[serde(default, with = "any_path_option")]
    pub record: Option<PathBuf>,
    pub mode: Option<Mode>,
    pub allow: Vec<String>,
    pub ask: Vec<String>,
    pub deny: Vec<String>,
    #[serde(default)]
    pub hooks: HookSet,
    pub limits: Vec<(String, String)>,
    pub max_turns: Option<u32>,
    #[serde(default)]
    pub sandbox: SandboxSettings,
    /// What is shared with the parent; the count itself is in a file of its own. `None`: nothing is.
    #[serde(default)]
    pub budget: Option<Allowance>,
    /// The storage root.
    #[serde(with = "any_path")]
    pub root: PathBuf,
    /// The parent's session, for the log (R352).
    pub session: SessionId,
    /// What the child's own keepers wait between the polite signal and the hard one.
    pub grace_ms: u64,
}

/// Why the settings handed over cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("{variable} is `{value}`, which is no descriptor number")]
    Number { variable: &'static str, value: String },
    #[error("cannot read the settings handed over through {variable}: {source}")]
    Read { variable: &'static str, source: io::Error },
    #[error("the settings handed over are not readable: {source}")]
    Malformed { source: serde_json::Error },
    #[error("the settings handed over have version {found}, this program knows version {HANDOVER_VERSION}")]
    Version { found: u32 },
    #[error("cannot make a memory file: {source}")]
    Create { source: io::Error },
}

impl Handover {
    pub(crate) fn new(child: &ChildSettings, budget: Option<Allowance>, root: &Path, session: &SessionId, grace: Duration) -> Self {
        let child = child.clone();
        Self {
            version: HANDOVER_VERSION,
            model: child.model,
            record: child.record,
            mode: child.mode,
            allow: child.allow,
            ask: child.ask,
            deny: child.deny,
            hooks: child.hooks,
            limits: child.limits,
            max_turns: child.max_turns,
            sandbox: child.sandbox,
            budget,
            root: root.to_owned(),
            session: session.clone(),
            grace_ms: u64::try_from((grace * CHILD_GRACE_PERCENT / 100).as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    /// A sealed memory file with the wire form.
    pub(crate) fn to_memory(&self) -> Result<OwnedFd, HandoverError> {
        let bytes = serde_json::to_vec(self).map_err(|source| HandoverError::Malformed { source })?;
        sealed_memory_file("zapmyco-handover", &bytes).map_err(|source| HandoverError::Create { source })
    }

    /// In the child: reads the settings and closes their descriptor. `None` when nothing was handed over.
    pub fn receive(environment: &Environment) -> Result<Option<Self>, HandoverError> {
        let Some(file) = take_inherited(environment, HANDOVER_FD, reopen)? else { return Ok(None) };
        let read = || -> io::Result<Vec<u8>> {
            let length = file.metadata()?.len();
            if length > HANDOVER_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too large"));
            }
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| HandoverError::Read { variable: HANDOVER_FD, source })?;
        Self::decode(&bytes).map(Some)
    }

    fn decode(bytes: &[u8]) -> Result<Self, HandoverError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        // The version first: the shape of another one is not ours to judge.
        let Versioned { version } = serde_json::from_slice(bytes).map_err(|source| HandoverError::Malformed { source })?;
        if version != HANDOVER_VERSION {
            return Err(HandoverError::Version { found: version });
        }
        serde_json::from_slice(bytes).map_err(|source| HandoverError::Malformed { source })
    }
}

/// The file in which a session and its children count what they use of a budget. Each process opens it anew, so that its
/// lock keeps them apart; where that is not possible (macOS), two counts at one instant may become one.
pub fn new_ledger() -> Result<File, HandoverError> {
    memory_file("zapmyco-budget").map_err(|source| HandoverError::Create { source })
}

/// The parent's file; `None` when nothing is shared.
pub fn receive_ledger(environment: &Environment) -> Result<Option<File>, HandoverError> {
    take_inherited(environment, BUDGET_FD, reopen_writable)
}

/// The parent's side of the page with the current mode.
#[derive(Clone, Debug)]
pub struct ModePage {
    file: Arc<File>,
}

impl ModePage {
    pub fn create(mode: Mode) -> Result<Self, HandoverError> {
        let create = || -> io::Result<File> {
            let file = memory_file("zapmyco-mode")?;
            file.write_all_at(&page(mode), 0)?;
            Ok(file)
        };
        Ok(Self { file: Arc::new(create().map_err(|source| HandoverError::Create { source })?) })
    }

    /// Children see the new mode at their next call. One write within a page: no reader sees a part of it.
    pub fn set(&self, mode: Mode) -> io::Result<()> {
        self.file.write_all_at(&page(mode), 0)
    }

    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }
}

fn page(mode: Mode) -> [u8; MODE_PAGE] {
    let mut page = [b' '; MODE_PAGE];
    let name = mode.as_str().as_bytes();
    page[..name.len()].copy_from_slice(name);
    page
}

/// The child's side.
#[derive(Debug)]
pub struct ModeReader {
    file: File,
}

impl ModeReader {
    /// `None` when no page was handed over.
    pub fn receive(environment: &Environment) -> Result<Option<Self>, HandoverError> {
        Ok(take_inherited(environment, MODE_FD, reopen)?.map(|file| Self { file }))
    }

    /// The parent's mode now. A page that cannot be read gives the strictest one: rights are never widened by a fault.
    pub fn mode(&self) -> Mode {
        let mut bytes = [0; MODE_PAGE];
        let read = self.file.read_exact_at(&mut bytes, 0).ok();
        read.and_then(|()| std::str::from_utf8(&bytes).ok()).and_then(|text| text.trim_end().parse().ok()).unwrap_or(Mode::Plan)
    }
}

/// Opens an inherited descriptor anew, close-on-exec, and closes the inherited one, so that nothing we start gets it.
fn take_inherited(
    environment: &Environment,
    variable: &'static str,
    open: fn(i32) -> io::Result<File>,
) -> Result<Option<File>, HandoverError> {
    let Some(text) = environment.get(variable) else { return Ok(None) };
    let number: i32 =
        text.parse().ok().filter(|number| *number > 2).ok_or_else(|| HandoverError::Number { variable, value: text.to_owned() })?;
    let file = open(number).map_err(|source| HandoverError::Read { variable, source })?;
    // Opened through its name above, so it is open; a failure to close it changes nothing for us.
    let _ = nix::unistd::close(number);
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    fn handover() -> Handover {
        let child = ChildSettings { model: serde_json::json!({"model": "m"}), mode: Some(Mode::Plan), ..ChildSettings::default() };
        Handover::new(
            &child,
            Some(Allowance { tokens: Some(7), ..Allowance::default() }),
            Path::new("/r"),
            &SessionId::from_name("n").unwrap(),
            Duration::from_secs(5),
        )
    }

    /// R353
    #[test]
    fn settings_travel_through_a_memory_file() {
        let number = handover().to_memory().unwrap().into_raw_fd();
        let environment = Environment::from_pairs([(HANDOVER_FD, number.to_string())]);
        let received = Handover::receive(&environment).unwrap().unwrap();
        assert_eq!(received, handover());
        assert_eq!(received.grace(), Duration::from_secs(3));
    }

    /// R285
    #[test]
    fn a_stricter_mode_is_seen_at_the_next_look() {
        let page = ModePage::create(Mode::Yolo).unwrap();
        let number = page.descriptor().unwrap().into_raw_fd();
        let reader = ModeReader::receive(&Environment::from_pairs([(MODE_FD, number.to_string())])).unwrap().unwrap();
        assert_eq!(reader.mode(), Mode::Yolo);
        page.set(Mode::AcceptEdits).unwrap();
        assert_eq!(reader.mode(), Mode::AcceptEdits);
        page.set(Mode::Plan).unwrap();
        assert_eq!(reader.mode(), Mode::Plan);
    }

    #[test]
    fn nothing_handed_over_is_no_error_and_nonsense_is_one() {
        assert!(Handover::receive(&Environment::default()).unwrap().is_none());
        for value in ["x", "-1", "0", "2"] {
            let environment = Environment::from_pairs([(HANDOVER_FD, value)]);
            assert!(matches!(Handover::receive(&environment), Err(HandoverError::Number { .. })), "{value}");
        }
        let mut other = serde_json::to_value(handover()).unwrap();
        other["version"] = 99.into();
        assert!(matches!(Handover::decode(other.to_string().as_bytes()), Err(HandoverError::Version { found: 99 })));
    }
}
