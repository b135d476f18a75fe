//! The folder of a session's hooks: in use while its lock is held, and gone with the session. What a killed process left is
//! found by its free lock.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::config::JobFolder;
use crate::files;
use crate::supervisor::recovery;

/// The right to a folder; the folder goes when the last holder does.
#[derive(Debug)]
pub(crate) struct Claim {
    folder: PathBuf,
    _lock: File,
}

const LOCK: &str = "lock";

impl Claim {
    /// `None` when another process works on the same session, or nothing can be written: hooks are then started all the same,
    /// each in a folder of its own.
    pub(crate) fn take(folder: &Path) -> Option<Self> {
        files::create_private_folder(folder).ok()?;
        let lock = files::try_lock(&folder.join(LOCK)).ok()??;
        Some(Self { folder: folder.to_owned(), _lock: lock })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// Ends and removes what processes that died hard have left below `folder`; the sessions of living ones stay.
pub fn clear_left_over(folder: &Path) {
    let Ok(sessions) = std::fs::read_dir(folder) else { return };
    for session in sessions.flatten().map(|entry| entry.path()) {
        if let Some(claim) = Claim::take(&session) {
            drop(claim);
        }
    }
}

/// Hooks under way are ended by their keepers; their folders stay until that is recorded.
fn remove(session: &Path) {
    let Ok(entries) = std::fs::read_dir(session) else { return };
    let mut all_gone = true;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            all_gone &= recovery::remove(&JobFolder::new(path)).is_ok();
        }
    }
    if all_gone {
        // What stays is found again by the next one who looks.
        let _ = std::fs::remove_dir_all(session);
    }
}

/// Adds lines to a transcript; `anew` begins it.
pub(crate) fn append(path: &Path, anew: bool, lines: &[String]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        files::create_private_folder(folder).map_err(|error| error.source)?;
    }
    let mut file = File::options().create(true).append(!anew).write(true).truncate(anew).mode(0o600).open(path)?;
    let mut text = lines.join("\n");
    text.push('\n');
    file.write_all(text.as_bytes())
}
