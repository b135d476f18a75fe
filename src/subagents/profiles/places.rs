//! Finds profile files below a folder and reads one: bounded in size, depth and number; nothing that is there is passed
//! over in silence, and nothing that is broken stops the rest (R65).

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::parse::unreadable;
use crate::frontmatter::reading;
pub use crate::frontmatter::reading::FILE_MAX;
use crate::frontmatter::{Code, Diagnostic};

/// Deepest folder below a place, and most files in one: far above real collections, far below what would hang a start.
const DEPTH_MAX: usize = 32;
const FILES_MAX: usize = 50_000;

/// One file of a place with what tells whether it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub path: PathBuf,
    pub stamp: Stamp,
}

/// Changes with every edit of a file: an editor that replaces the file changes the inode, one that writes into it the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

/// What a walk of one folder gave, in sorted order of paths.
#[derive(Debug, Default)]
pub struct Walk {
    pub files: Vec<Found>,
    pub diagnostics: Vec<Diagnostic>,
}

/// All profile files below `folder`, recursively. A folder that does not exist is empty.
pub fn walk(folder: &Path) -> Walk {
    let mut walk = Walk::default();
    match std::fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => descend(folder, &mut vec![(metadata.dev(), metadata.ino())], &mut walk),
        Ok(_) => {
            let reason = "a file stands where a folder of agents is expected".to_owned();
            walk.diagnostics.push(unreadable(folder, None, reason, "move it into a folder of this name"));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && folder.symlink_metadata().is_err() => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
        Err(error) => walk.diagnostics.push(failed(folder, &error)),
    }
    walk
}

/// Whether a file of this name is a profile (R56).
pub fn is_profile_name(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("md") || extension.eq_ignore_ascii_case("markdown"))
}

/// The text of a profile file, or why there is none.
pub fn read(path: &Path) -> Result<String, Diagnostic> {
    reading::read(Code::ReadFailed, path)
}

/// What tells whether the file changed; `None` when it is not there.
pub fn stamp_of(metadata: &Metadata) -> Stamp {
    Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// `above`: the folders on the way down, so that a link back to one of them is seen as a loop.
fn descend(folder: &Path, above: &mut Vec<(u64, u64)>, walk: &mut Walk) {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            walk.diagnostics.push(failed(folder, &error));
            return;
        }
    };
    let mut paths = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => paths.push((entry.path(), entry.file_type().ok())),
            Err(error) => walk.diagnostics.push(failed(folder, &error)),
        }
    }
    paths.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (path, kind) in paths {
        if walk.files.len() >= FILES_MAX {
            let reason = format!("the folder holds more than {FILES_MAX} files; the rest was not read");
            walk.diagnostics.push(unreadable(folder, None, reason, "keep fewer files in it"));
            return;
        }
        let is_plain_other = kind.is_some_and(|kind| kind.is_file()) && !is_profile_name(&path);
        if !is_plain_other {
            visit(path, above, walk);
        }
    }
}

fn visit(path: PathBuf, above: &mut Vec<(u64, u64)>, walk: &mut Walk) {
    // Links are followed here, so a broken one fails.
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) => {
            walk.diagnostics.push(failed(&path, &error));
            return;
        }
    };
    if metadata.is_dir() {
        let identity = (metadata.dev(), metadata.ino());
        if path.file_name().is_some_and(|name| name == ".git") {
            return;
        }
        if above.contains(&identity) {
            let reason = "the link leads back to a folder above it".to_owned();
            walk.diagnostics.push(unreadable(&path, None, reason, "remove the link"));
        } else if above.len() > DEPTH_MAX {
            let reason = format!("the folder lies more than {DEPTH_MAX} levels deep and was not read");
            walk.diagnostics.push(unreadable(&path, None, reason, "move it up"));
        } else {
            above.push(identity);
            descend(&path, above, walk);
            above.pop();
        }
    } else if is_profile_name(&path) {
        walk.files.push(Found { stamp: stamp_of(&metadata), path });
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Diagnostic {
    reading::failed(Code::ReadFailed, path, error)
}
