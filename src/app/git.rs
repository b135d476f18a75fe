//! Which branch a folder is on, read from the repository's own files: no program is started for it.

use std::path::{Path, PathBuf};

use crate::files;

/// Bytes of `.git/HEAD`, and of a `.git` that is a file: one line each.
const LINE_MAX: u64 = 16 * 1024;

/// One line about the branch. `None` outside a repository.
pub(crate) fn branch(cwd: &Path) -> Option<String> {
    let head = files::read_text_bounded(&git_folder(cwd)?.join("HEAD"), LINE_MAX).ok()?;
    let head = head.trim();
    Some(match head.strip_prefix("ref: refs/heads/") {
        Some(branch) => format!("Current branch: {branch}"),
        None => format!("Detached at {head}"),
    })
}

/// The nearest `.git`: a folder, or in a worktree or submodule a file that says where the folder is.
fn git_folder(cwd: &Path) -> Option<PathBuf> {
    let (parent, git) = cwd.ancestors().map(|folder| (folder, folder.join(".git"))).find(|(_, git)| git.exists())?;
    if git.is_dir() {
        return Some(git);
    }
    let text = files::read_text_bounded(&git, LINE_MAX).ok()?;
    text.trim().strip_prefix("gitdir:").map(|path| parent.join(path.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worktree_inside_another_repository_has_its_own_branch() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(".git/HEAD", "ref: refs/heads/main\n");
        write(".git/worktrees/side/HEAD", "ref: refs/heads/side\n");
        write("side/.git", "gitdir: ../.git/worktrees/side\n");
        write("side/src/lib.rs", "");
        write("plain/lib.rs", "");
        write("gone/.git", "gitdir: /nonexistent\n");
        write("detached/.git/HEAD", "0123abcd\n");
        let found = |path: &str| branch(&folder.path().join(path));
        assert_eq!(found("plain").as_deref(), Some("Current branch: main"));
        assert_eq!(found("side/src").as_deref(), Some("Current branch: side"));
        assert_eq!(found("gone"), None);
        assert_eq!(found("detached").as_deref(), Some("Detached at 0123abcd"));
    }
}
