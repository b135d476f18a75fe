//! Reads a Markdown file that anyone may have written: bounded, never waiting, and every reason why it cannot be used is a
//! diagnostic with a remedy.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::diagnostic::{Code, Diagnostic, Severity};

/// Largest file (R65).
pub const FILE_MAX: u64 = 1024 * 1024;

/// The text of a file, or why there is none.
pub fn read(code: Code, path: &Path) -> Result<String, Diagnostic> {
    let bytes = read_bytes(code, path)?;
    let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    if is_utf16 {
        return Err(unreadable(code, path, Some(1), "the file is not UTF-8 but UTF-16".to_owned(), "save it as UTF-8"));
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let reason = "the file is not a text: it holds a NUL byte".to_owned();
        return Err(unreadable(code, path, Some(line_at(&bytes, at)), reason, "save it as UTF-8 text"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = line_at(error.as_bytes(), at);
        unreadable(code, path, Some(line), format!("the file is not UTF-8: byte {at} is no part of a character"), "save it as UTF-8")
    })
}

/// Why a file or folder cannot be read, with a remedy.
pub fn failed(code: Code, path: &Path, error: &std::io::Error) -> Diagnostic {
    let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    let (reason, remedy) = match error.kind() {
        std::io::ErrorKind::NotFound if is_link => ("the link leads nowhere".to_owned(), "correct or remove the link"),
        std::io::ErrorKind::PermissionDenied => ("it cannot be read: permission denied".to_owned(), "give yourself the right to read it"),
        _ if error.raw_os_error() == Some(nix::libc::ELOOP) => ("the link leads to itself".to_owned(), "remove the link"),
        _ => (format!("it cannot be read: {error}"), "make it a readable file, or remove it"),
    };
    unreadable(code, path, None, reason, remedy)
}

/// The scope of a diagnostic that concerns a whole file.
pub fn unreadable(code: Code, path: &Path, line: Option<u32>, reason: String, remedy: &str) -> Diagnostic {
    Diagnostic::new(code, Severity::Error, reason, remedy).at(Some(path), line)
}

fn read_bytes(code: Code, path: &Path) -> Result<Vec<u8>, Diagnostic> {
    // Opening a named pipe would wait for a writer; it is refused below.
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| failed(code, path, &error))?;
    let metadata = file.metadata().map_err(|error| failed(code, path, &error))?;
    if !metadata.is_file() {
        return Err(unreadable(code, path, None, "it is not an ordinary file".to_owned(), "remove it, or put the text into a file"));
    }
    let bytes = read_bounded(&file).map_err(|error| failed(code, path, &error))?;
    if bytes.len() as u64 > FILE_MAX {
        let reason = format!("the file has {} bytes, more than the largest size of {FILE_MAX}", metadata.len().max(FILE_MAX + 1));
        return Err(unreadable(code, path, None, reason, "shorten it"));
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
