//! Finds profile files below a folder and reads one: bounded in size, depth and number; nothing that is there is passed
//! over in silence, and nothing that is broken stops the rest (R65).

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::diagnostic::Diagnostic;
use super::parse::unreadable;

/// Largest profile file (R65).
pub const FILE_MAX: u64 = 1024 * 1024;
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
    let bytes = read_bytes(path)?;
    let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    if is_utf16 {
        return Err(unreadable(path, Some(1), "the file is not UTF-8 but UTF-16".to_owned(), "save it as UTF-8"));
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let reason = "the file is not a text: it holds a NUL byte".to_owned();
        return Err(unreadable(path, Some(line_at(&bytes, at)), reason, "save it as UTF-8 text"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = line_at(error.as_bytes(), at);
        unreadable(path, Some(line), format!("the file is not UTF-8: byte {at} is no part of a character"), "save it as UTF-8")
    })
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

fn read_bytes(path: &Path) -> Result<Vec<u8>, Diagnostic> {
    // Opening a named pipe would wait for a writer; it is refused below.
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| failed(path, &error))?;
    let metadata = file.metadata().map_err(|error| failed(path, &error))?;
    if !metadata.is_file() {
        return Err(unreadable(path, None, "it is not an ordinary file".to_owned(), "remove it, or put the text into a file"));
    }
    let bytes = read_bounded(&file).map_err(|error| failed(path, &error))?;
    if bytes.len() as u64 > FILE_MAX {
        let reason = format!("the file has {} bytes, more than the largest size of {FILE_MAX}", metadata.len().max(FILE_MAX + 1));
        return Err(unreadable(path, None, reason, "shorten it"));
    }
    Ok(bytes)
}

fn read_bounded(file: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn line_at(bytes: &[u8], at: usize) -> u32 {
    let lines = bytes.iter().take(at).filter(|byte| **byte == b'\n').count();
    u32::try_from(lines + 1).unwrap_or(u32::MAX)
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
    let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    let (reason, remedy) = match error.kind() {
        std::io::ErrorKind::NotFound if is_link => ("the link leads nowhere".to_owned(), "correct or remove the link"),
        std::io::ErrorKind::PermissionDenied => ("it cannot be read: permission denied".to_owned(), "give yourself the right to read it"),
        _ if error.raw_os_error() == Some(nix::libc::ELOOP) => ("the link leads to itself".to_owned(), "remove the link"),
        _ => (format!("it cannot be read: {error}"), "make it a readable file, or remove it"),
    };
    unreadable(path, None, reason, remedy)
}
