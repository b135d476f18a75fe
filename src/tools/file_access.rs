//! What the file tools share: paths from arguments, opening without ever blocking, marks of files seen, atomic replacement.
//!
//! All of it is blocking and runs through [`blocking`], so that a slow disk never holds up the other calls.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::agent::state::{FileMark, SessionState};
use crate::agent::tool::{FailureKind, ToolFailure};
use crate::permissions::paths::followed;
use crate::tools::arguments::nearest;

/// Above this a file is marked by its metadata: its content would take seconds to digest.
pub(crate) const DIGESTED_MAX: u64 = 256 * 1024 * 1024;

/// The absolute path of an argument. Relative ones count from `cwd`; `~` is refused, since nothing here expands it.
pub(crate) fn resolve(cwd: &Path, argument: &str, path: &str) -> Result<PathBuf, ToolFailure> {
    if path.trim().is_empty() {
        return Err(ToolFailure::invalid(format!("`{argument}` is empty"))
            .with_hint("give the path of a file, absolute or relative to the working directory"));
    }
    if path.contains('\0') {
        return Err(ToolFailure::invalid(format!("`{argument}` holds a NUL character, which no path can have")));
    }
    if path == "~" || path.starts_with("~/") {
        return Err(ToolFailure::invalid(format!("`{argument}` is {path:?}: `~` is not expanded here"))
            .with_hint(format!("write the absolute path, or \"./{path}\" for a folder that is really named `~`")));
    }
    Ok(cwd.join(path))
}

/// Runs blocking work off the runtime. The work gets a token that fires on cancel and when the call is dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    cancel: &CancellationToken,
    work: impl FnOnce(&CancellationToken) -> Result<T, ToolFailure> + Send + 'static,
) -> Result<T, ToolFailure> {
    let token = cancel.child_token();
    let _ends_with_the_call = token.clone().drop_guard();
    let inner = token.clone();
    let task = tokio::task::spawn_blocking(move || work(&inner));
    tokio::select! {
        // a result that comes together with the cancel is not wanted any more
        biased;
        () = token.cancelled() => Err(cancelled()),
        result = task => result.unwrap_or_else(|error| Err(ToolFailure::failed(format!("the tool ended unexpectedly: {error}")))),
    }
}

/// As [`blocking`], but waits for the end of work that has begun: for what changes files, so that "cancelled" is true.
pub(crate) async fn blocking_to_the_end<T: Send + 'static>(
    cancel: &CancellationToken,
    work: impl FnOnce(&CancellationToken) -> Result<T, ToolFailure> + Send + 'static,
) -> Result<T, ToolFailure> {
    let token = cancel.clone();
    tokio::task::spawn_blocking(move || if token.is_cancelled() { Err(cancelled()) } else { work(&token) })
        .await
        .unwrap_or_else(|error| Err(ToolFailure::failed(format!("the tool ended unexpectedly: {error}"))))
}

pub(crate) fn cancelled() -> ToolFailure {
    ToolFailure::new(FailureKind::Cancelled, "cancelled")
}

/// Opens a regular file for reading. Folders, devices, pipes and sockets are refused before and after opening, and the
/// opening itself cannot block.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata), ToolFailure> {
    let metadata = std::fs::metadata(path).map_err(|error| cannot("read", path, &error))?;
    check_regular(path, &metadata)?;
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(|error| cannot("read", path, &error))?;
    let metadata = file.metadata().map_err(|error| cannot("read", path, &error))?;
    check_regular(path, &metadata)?;
    Ok((file, metadata))
}

pub(crate) fn check_regular(path: &Path, metadata: &Metadata) -> Result<(), ToolFailure> {
    let kind = metadata.file_type();
    let (what, hint) = if kind.is_dir() {
        ("a folder", "list it with Glob (`pattern`: \"*\") or with `ls` in Bash")
    } else if kind.is_fifo() {
        ("a named pipe", "reading it could wait for ever")
    } else if kind.is_socket() {
        ("a socket", "it has no content to read or write")
    } else if kind.is_char_device() || kind.is_block_device() {
        ("a device", "only regular files can be read and written")
    } else {
        return Ok(());
    };
    Err(ToolFailure::invalid(format!("{} is {what}, not a file", path.display())).with_hint(hint))
}

/// A failed access as the model should hear it, with the names it may have meant.
pub(crate) fn cannot(action: &str, path: &Path, error: &io::Error) -> ToolFailure {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            let failure = ToolFailure::new(FailureKind::NotFound, format!("{shown} does not exist"));
            match similar_names(path) {
                Some(hint) => failure.with_hint(hint),
                None => failure,
            }
        }
        io::ErrorKind::PermissionDenied => ToolFailure::failed(format!("cannot {action} {shown}: permission denied"))
            .with_hint("this user has no right to it; trying again does not help"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ToolFailure::failed(format!("cannot {action} {shown}: {error}; nothing was changed"))
                .with_hint("free space on the disk, then repeat the call")
        }
        _ => ToolFailure::failed(format!("cannot {action} {shown}: {error}")),
    }
}

/// "did you mean ...", from the deepest folder of the path that exists.
fn similar_names(path: &Path) -> Option<String> {
    let existing = path.ancestors().skip(1).find(|folder| folder.is_dir())?;
    let missing = path.strip_prefix(existing).ok()?.components().next()?.as_os_str().to_string_lossy().into_owned();
    let names: Vec<String> = std::fs::read_dir(existing)
        .ok()?
        .take(FOLDER_ENTRIES_MAX)
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let is_last = path.parent() == Some(existing);
    let near = nearest(&missing, names.iter().map(String::as_str)).map(str::to_owned).or_else(|| {
        let stem = Path::new(&missing).file_stem()?.to_owned();
        names.iter().find(|name| Path::new(name).file_stem() == Some(&stem)).cloned()
    });
    match near {
        Some(near) => Some(format!("did you mean {}?", existing.join(near).display())),
        None if is_last => Some(format!("{} has no file with a similar name; look with Glob", existing.display())),
        None => Some(format!("{} exists, but has no `{missing}`", existing.display())),
    }
}

const FOLDER_ENTRIES_MAX: usize = 10_000;
const CHUNK_BYTES: usize = 64 * 1024;

/// Reads until the end in bounded pieces; `each` gets them in order.
pub(crate) fn read_in_chunks(
    file: &mut File,
    path: &Path,
    cancel: &CancellationToken,
    mut each: impl FnMut(&[u8]) -> Flow,
) -> Result<(), ToolFailure> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                if each(&buffer[..length]) == Flow::Enough {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot("read", path, &error)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    More,
    Enough,
}

pub(crate) fn mark_of_bytes(content: &[u8]) -> FileMark {
    mark_of_digest(Sha256::new_with_prefix(content))
}

pub(crate) fn mark_of_digest(digest: Sha256) -> FileMark {
    FileMark { digest: digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect() }
}

/// For files too large to digest: what changes whenever the content does.
pub(crate) fn mark_of_metadata(metadata: &Metadata) -> FileMark {
    let (length, seconds, nanoseconds, inode) = (metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino());
    FileMark { digest: format!("metadata:{length}:{seconds}.{nanoseconds:09}:{inode}") }
}

/// The mark a file has now.
pub(crate) fn mark_on_disk(path: &Path, cancel: &CancellationToken) -> Result<(FileMark, Metadata), ToolFailure> {
    let (mut file, metadata) = open_regular(path)?;
    if metadata.len() > DIGESTED_MAX {
        return Ok((mark_of_metadata(&metadata), metadata));
    }
    let mut digest = Sha256::new();
    read_in_chunks(&mut file, path, cancel, |bytes| {
        digest.update(bytes);
        Flow::More
    })?;
    Ok((mark_of_digest(digest), metadata))
}

/// Refuses to change a file that the model has not seen as it is now.
pub(crate) fn check_seen(state: &SessionState, shown: &Path, real: &Path, now: &FileMark) -> Result<(), ToolFailure> {
    match state.seen(real) {
        Some(seen) if seen == *now => Ok(()),
        Some(_) => Err(ToolFailure::invalid(format!("{} has changed since it was read; nothing was written", shown.display()))
            .with_hint("call Read on it again, then repeat the change on its present content")),
        None => Err(ToolFailure::invalid(format!("{} exists and was not read in this session; nothing was written", shown.display()))
            .with_hint("call Read on it first, then repeat this call")),
    }
}

/// Where a write to `path` ends: links are followed, so that the link stays and its target changes.
pub(crate) fn write_target(path: &Path) -> PathBuf {
    followed(path)
}

/// What was there when the decision to write was made.
pub(crate) enum Before {
    Nothing,
    File(Metadata),
}

/// Puts `content` at `target` (links already followed) as a whole: the old file or the new one, never a part. Mode and
/// owner are kept, missing folders made; a failure leaves everything as it was. Gives remarks for the reply.
pub(crate) fn replace(target: &Path, content: &[u8], before: &Before) -> Result<Vec<&'static str>, ToolFailure> {
    if let Before::File(metadata) = before {
        check_writable(target, metadata)?;
    }
    let folder = target.parent().unwrap_or(Path::new("/"));
    let made = MadeFolders::make(folder)?;
    let remarks = replace_in(folder, target, content, before)?;
    made.keep();
    Ok(remarks)
}

fn replace_in(folder: &Path, target: &Path, content: &[u8], before: &Before) -> Result<Vec<&'static str>, ToolFailure> {
    let failed = |error: io::Error| cannot("write", target, &error);
    let mut remarks = Vec::new();
    // the kernel takes the umask off, as for any new file
    let new_file_mode = std::fs::Permissions::from_mode(0o666);
    let mut temporary = tempfile::Builder::new().prefix(".zapmyco-new-").permissions(new_file_mode).tempfile_in(folder).map_err(failed)?;
    temporary.write_all(content).map_err(failed)?;
    match before {
        Before::File(metadata) => {
            if !keep_owner(temporary.as_file(), metadata) {
                remarks.push("the owner or group of the file could not be kept");
            }
            temporary.as_file().set_permissions(std::fs::Permissions::from_mode(metadata.mode() & 0o7777)).map_err(failed)?;
            check_unchanged(target, metadata)?;
            temporary.persist(target).map_err(|error| failed(error.error))?;
        }
        Before::Nothing => {
            temporary.persist_noclobber(target).map_err(|error| match error.error.kind() {
                io::ErrorKind::AlreadyExists => appeared(target),
                _ => failed(error.error),
            })?;
        }
    }
    Ok(remarks)
}

fn appeared(target: &Path) -> ToolFailure {
    ToolFailure::failed(format!("{} was made by somebody else just now; nothing was written", target.display()))
        .with_hint("call Read on it first, then repeat this call")
}

/// A file without any right to write was protected on purpose; replacing it would go around that.
fn check_writable(target: &Path, metadata: &Metadata) -> Result<(), ToolFailure> {
    let no_write_bit = metadata.mode() & 0o222 == 0;
    if no_write_bit || rustix::fs::access(target, rustix::fs::Access::WRITE_OK).is_err() {
        return Err(ToolFailure::failed(format!(
            "{} is write-protected (mode {:03o}); nothing was written",
            target.display(),
            metadata.mode() & 0o777
        ))
        .with_hint("if it is really to be changed, make it writable first, e.g. `chmod u+w` in Bash"));
    }
    Ok(())
}

fn keep_owner(file: &File, before: &Metadata) -> bool {
    let Ok(now) = file.metadata() else { return false };
    if (now.uid(), now.gid()) == (before.uid(), before.gid()) {
        return true;
    }
    let owner = (now.uid() != before.uid()).then(|| rustix::fs::Uid::from_raw(before.uid()));
    let group = (now.gid() != before.gid()).then(|| rustix::fs::Gid::from_raw(before.gid()));
    rustix::fs::fchown(file, owner, group).is_ok()
}

/// Between the look and the rename another program may have written.
fn check_unchanged(target: &Path, before: &Metadata) -> Result<(), ToolFailure> {
    let unchanged = std::fs::metadata(target).is_ok_and(|now| mark_of_metadata(&now) == mark_of_metadata(before));
    if unchanged {
        return Ok(());
    }
    Err(ToolFailure::failed(format!("{} changed while it was being written; nothing was written", target.display()))
        .with_hint("call Read on it again, then repeat the change"))
}

/// Folders made for a write, taken away again when the write fails.
struct MadeFolders {
    /// Deepest first.
    folders: Vec<PathBuf>,
}

impl MadeFolders {
    fn make(folder: &Path) -> Result<Self, ToolFailure> {
        let missing: Vec<PathBuf> = folder.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        let made = Self { folders: missing };
        match std::fs::create_dir_all(folder) {
            Ok(()) => Ok(made),
            Err(error) if folder.ancestors().any(|part| part.exists() && !part.is_dir()) => {
                Err(ToolFailure::invalid(format!("cannot make the folder {}: a part of the path is a file ({error})", folder.display())))
            }
            Err(error) => Err(cannot("make the folder", folder, &error)),
        }
    }

    fn keep(mut self) {
        self.folders.clear();
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        for folder in &self.folders {
            // not empty or not ours: stays
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// The path as it is best shown: below `cwd` without it.
pub(crate) fn shown(path: &Path, cwd: &Path) -> String {
    match path.strip_prefix(cwd) {
        Ok(below) if !below.as_os_str().is_empty() => below.display().to_string(),
        Ok(_) => ".".to_owned(),
        Err(_) => path.display().to_string(),
    }
}

/// Why bytes are no text to show or edit, with what to do instead; `None` for text. `start` is the beginning of the file.
pub(crate) fn binary_reason(path: &Path, start: &[u8]) -> Option<(&'static str, &'static str)> {
    let extension = path.extension().map(|extension| extension.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    if start.starts_with(b"%PDF-") {
        return Some(("a PDF", "turn it into text first, e.g. `pdftotext FILE -` in Bash"));
    }
    let is_image = start.starts_with(b"\x89PNG\r\n\x1a\n")
        || start.starts_with(b"\xff\xd8\xff")
        || start.starts_with(b"GIF8")
        || (start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP"))
        || (matches!(extension.as_slice(), b"png" | b"jpg" | b"jpeg" | b"gif" | b"webp" | b"bmp" | b"ico" | b"tiff") && start.contains(&0));
    if is_image {
        return Some(("an image", "images cannot be shown here; `file FILE` in Bash tells its kind and size"));
    }
    if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        return Some(("UTF-16 text", "turn it into UTF-8 first, e.g. `iconv -f UTF-16 -t UTF-8 FILE` in Bash"));
    }
    start.contains(&0).then_some(("binary", "look at it with `file`, `strings` or `od -c` in Bash"))
}
