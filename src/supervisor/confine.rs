//! What this system can take away from a payload, and the private temporary folder that a confined payload writes in.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::plan::LaunchPlan;
use super::platform;
use crate::files;

/// What the kernel enforces, looked at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The version of Landlock; `None` where there is none.
    pub landlock: Option<u32>,
    /// Filters of system calls.
    pub calls: bool,
}

impl Kernel {
    /// Both, without which nothing can be promised.
    pub fn confines(&self) -> bool {
        self.landlock.is_some() && self.calls
    }
}

pub fn kernel() -> Kernel {
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    *KERNEL.get_or_init(|| Kernel { landlock: platform::landlock_version(), calls: platform::filters_calls() })
}

impl LaunchPlan {
    /// The payload's private temporary folder; the marker is used once.
    pub(crate) fn temporary_folder(&self, marker: &str) -> Option<PathBuf> {
        self.temporary_below.as_ref().map(|below| below.join(format!("zapmyco-{marker}")))
    }
}

pub(crate) fn make_temporary(path: &Path) -> io::Result<()> {
    files::create_new_private_folder(path).map_err(|error| error.source)
}

/// Also where the payload has taken its own rights to folders away.
pub(crate) fn remove_temporary(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => {
            open_folders(path);
            std::fs::remove_dir_all(path)
        }
    }
}

/// Deeper than this nothing is opened; the removal then says what it could not do.
const DEPTH_MAX: usize = 64;

fn open_folders(path: &Path) {
    let mut waiting = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        // The payload's tree has ended: nobody changes a folder into a link any more.
        let _ = std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700));
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()));
        waiting.extend(folders.map(|entry| (entry.path(), depth + 1)));
    }
}
