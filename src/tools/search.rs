//! What Glob and Grep share: walking a folder with ignore files and deny rules obeyed, and the files chosen by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ignore::{DirEntry, WalkBuilder};
use tokio_util::sync::CancellationToken;

use crate::agent::tool::ToolFailure;
use crate::permissions::Policy;
use crate::tools::file_access;

/// Which files a walk leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scope {
    /// Names that begin with a dot are visited too.
    pub(crate) hidden: bool,
    /// Ignore files (`.gitignore`, `.ignore`) are not obeyed.
    pub(crate) ignored: bool,
}

/// What a walk met beside the files.
#[derive(Debug, Default)]
pub(crate) struct WalkNotes {
    unreadable: Vec<String>,
    n_unreadable: u64,
    hidden_by_rules: u64,
}

const UNREADABLE_SHOWN: usize = 3;

impl WalkNotes {
    pub(crate) fn unreadable(&mut self, message: String) {
        self.n_unreadable += 1;
        if self.unreadable.len() < UNREADABLE_SHOWN {
            self.unreadable.push(message);
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.n_unreadable > 0 {
            lines.push(format!("{} could not be read: {}", count(self.n_unreadable, "place"), self.unreadable.join("; ")));
        }
        if self.hidden_by_rules > 0 {
            lines.push(format!("{} left out by a permission rule", count(self.hidden_by_rules, "file")));
        }
        lines
    }
}

/// "1 file", "2 files"
pub(crate) fn count(n: u64, noun: &str) -> String {
    if n == 1 {
        return format!("1 {noun}");
    }
    match noun.strip_suffix("ch") {
        Some(stem) => format!("{n} {stem}ches"),
        None => format!("{n} {noun}s"),
    }
}

/// Notes in brackets, one a line, after the text.
pub(crate) fn with_notes(mut text: String, notes: &[String]) -> String {
    for note in notes {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("({note})"));
    }
    text
}

/// Visits every regular file below `root` in the order of paths, links to folders not followed, until `each` has enough.
pub(crate) fn walk(
    root: &Path,
    scope: Scope,
    policy: &Arc<Policy>,
    cancel: &CancellationToken,
    notes: &mut WalkNotes,
    mut each: impl FnMut(PathBuf, &mut WalkNotes) -> Result<file_access::Flow, ToolFailure>,
) -> Result<(), ToolFailure> {
    let hides = policy.hides_files();
    let mut builder = WalkBuilder::new(root);
    builder
        .hidden(!scope.hidden)
        .ignore(!scope.ignored)
        .git_ignore(!scope.ignored)
        .git_exclude(!scope.ignored)
        .parents(!scope.ignored)
        // the person's own global ignore file would make results differ between machines
        .git_global(false)
        .require_git(false)
        .sort_by_file_name(Ord::cmp);
    // the object store is never what is looked for, unless it is named
    if !root.components().any(|component| component.as_os_str() == ".git") {
        builder.filter_entry(|entry| entry.file_name() != ".git");
    }
    for entry in builder.build() {
        if cancel.is_cancelled() {
            return Err(file_access::cancelled());
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                notes.unreadable(error.to_string());
                continue;
            }
        };
        if !is_regular(&entry) {
            continue;
        }
        let path = entry.into_path();
        if hides && policy.hides(&path) {
            notes.hidden_by_rules += 1;
            continue;
        }
        if each(path, notes)? == file_access::Flow::Enough {
            break;
        }
    }
    Ok(())
}

/// A file, or a link to one.
fn is_regular(entry: &DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_file() || (kind.is_symlink() && entry.path().is_file()))
}

/// The newest files of many, in bounded memory.
pub(crate) struct Newest {
    max: usize,
    /// Sorted by its time of change whenever it is cut back.
    files: Vec<(SystemTime, PathBuf)>,
    pub(crate) seen: u64,
}

impl Newest {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, files: Vec::new(), seen: 0 }
    }

    pub(crate) fn add(&mut self, path: PathBuf) {
        self.seen += 1;
        let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        self.files.push((modified, path));
        if self.files.len() >= self.max.saturating_mul(2).max(64) {
            self.cut_back();
        }
    }

    /// Newest first; equal times by path.
    pub(crate) fn into_sorted(mut self) -> Vec<PathBuf> {
        self.cut_back();
        self.files.into_iter().map(|(_, path)| path).collect()
    }

    fn cut_back(&mut self) {
        self.files.sort_by(|(time_a, path_a), (time_b, path_b)| time_b.cmp(time_a).then_with(|| path_a.cmp(path_b)));
        self.files.truncate(self.max);
    }
}
