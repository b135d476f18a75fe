//! Where a session in a workspace sandbox may write, and what stays as it is inside: what runs later with the user's rights
//! (git's hooks and configuration) and what decides about rights (our own files).

use std::path::{Path, PathBuf};

use crate::permissions::paths::{PathForms, followed};

/// The places of one session.
#[derive(Clone, Debug)]
pub(crate) struct WriteBounds {
    workspace: PathForms,
    further: Vec<PathForms>,
    /// Our own storage.
    root: PathForms,
}

/// What a command's own mounts have to keep, as the file system is now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub writable: Vec<PathBuf>,
    pub fixed: Vec<PathBuf>,
    pub pinned: Vec<PathBuf>,
    pub absent: Vec<PathBuf>,
}

/// Entries of a writable folder that decide about rights, or about what runs later.
const GUARDED: [&str; 3] = [".git", ".zapmyco", ".mcp.json"];
/// What git runs or obeys, in its directory.
const GIT_FIXED: [&str; 6] = ["hooks", "config", "config.worktree", "commondir", "modules", "worktrees"];
/// Of those, what need not be there, and must not come to be.
const GIT_ABSENT: [&str; 3] = ["hooks", "config.worktree", "commondir"];
/// The same in the directory of a linked work tree.
const LINKED_FIXED: [&str; 3] = ["config.worktree", "commondir", "gitdir"];

impl WriteBounds {
    pub(crate) fn new(workspace: &Path, further: impl Iterator<Item = PathBuf>, root: &Path) -> Self {
        let further = further.map(|path| PathForms::of(&path)).collect();
        Self { workspace: PathForms::of(workspace), further, root: PathForms::of(root) }
    }

    fn roots(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.workspace).chain(&self.further).map(|forms| forms.real.as_path())
    }

    /// Why a file tool must not write there, if so.
    pub(crate) fn refuses(&self, path: &PathForms) -> Option<String> {
        let shown = path.real.display();
        if path.real.starts_with(&self.root.real) {
            return Some(format!("{shown} belongs to zapmyco's own files, which the sandbox keeps as they are"));
        }
        let below = self.roots().find_map(|root| path.real.strip_prefix(root).ok());
        let Some(below) = below else {
            return Some(format!("{shown} lies outside the working directory, and the sandbox (workspace) writes only inside"));
        };
        let is_name = |name: &std::ffi::OsStr, known: &str| name.to_string_lossy().eq_ignore_ascii_case(known);
        let mut names = below.components().map(std::path::Component::as_os_str);
        let first = names.next().unwrap_or_default();
        let guarded = GUARDED.iter().any(|known| is_name(first, known)) || names.any(|name| is_name(name, ".git"));
        guarded.then(|| format!("{shown} decides about rights or later commands, and the sandbox keeps it as it is"))
    }

    /// For commands with mounts of their own.
    pub(crate) fn kept(&self) -> Kept {
        let mut kept = Kept::default();
        for root in self.roots().filter(|root| root.exists()) {
            kept.writable.push(root.to_owned());
            kept.fixed.extend(GUARDED[1..].iter().map(|name| root.join(name)).filter(|path| path.exists()));
            kept.add_git(root);
        }
        if self.roots().any(|root| self.root.real.starts_with(root)) && self.root.real.exists() {
            kept.fixed.push(self.root.real.clone());
        }
        kept
    }

    /// For commands without: what lies in the folders now. Nothing new can be made directly in them, since a right to do so
    /// would reach everything below.
    pub(crate) fn entries(&self) -> Vec<PathBuf> {
        let is_free = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            !GUARDED.contains(&name.as_str()) && !self.root.real.starts_with(path) && !path.starts_with(&self.root.real)
        };
        let plain = |root: &Path| -> Vec<PathBuf> {
            if root.is_file() {
                return vec![root.to_owned()];
            }
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            // A link could lead anywhere.
            let own = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_file()));
            own.map(|entry| entry.path()).collect()
        };
        self.roots().flat_map(plain).filter(is_free).collect()
    }
}

impl Kept {
    /// The repository whose directory lies in `root`, or is named there.
    fn add_git(&mut self, root: &Path) {
        let entry = root.join(".git");
        let Ok(metadata) = entry.symlink_metadata() else { return };
        if metadata.is_dir() {
            self.add_git_directory(&entry);
        } else if metadata.is_file() {
            self.fixed.push(entry.clone());
            if let Some((own, common)) = linked(&entry) {
                self.add_linked(&own, common);
            }
        } else {
            // A link as the directory: what it leads to can be exchanged, so nothing of it is given.
            self.fixed.push(followed(&entry));
        }
    }

    fn add_git_directory(&mut self, directory: &Path) {
        let is_link = |name: &str| directory.join(name).symlink_metadata().is_ok_and(|found| found.is_symlink());
        if GIT_FIXED.iter().any(|name| is_link(name)) {
            // A link cannot be held in its place.
            self.fixed.push(directory.to_owned());
            return;
        }
        self.pinned.push(directory.to_owned());
        self.fixed.extend(GIT_FIXED.iter().map(|name| directory.join(name)).filter(|path| path.exists()));
        self.absent.extend(GIT_ABSENT.iter().map(|name| directory.join(name)).filter(|path| !path.exists()));
    }

    /// A linked work tree writes in the directory of the repository it belongs to.
    fn add_linked(&mut self, own: &Path, common: PathBuf) {
        self.writable.push(common.clone());
        self.add_git_directory(&common);
        let worktrees = common.join("worktrees");
        // The others stay as they are, this one is written in.
        self.fixed.retain(|path| *path != worktrees);
        self.pinned.push(worktrees.clone());
        let others = std::fs::read_dir(&worktrees).into_iter().flatten().flatten().map(|entry| entry.path());
        self.fixed.extend(others.filter(|path| path != own));
        self.pinned.push(own.to_owned());
        self.fixed.extend(LINKED_FIXED.iter().map(|name| own.join(name)).filter(|path| path.exists()));
        self.absent.extend(LINKED_FIXED.iter().map(|name| own.join(name)).filter(|path| !path.exists()));
    }
}

/// The directory of a linked work tree and that of its repository, when each names the other: a file alone could name any
/// folder.
fn linked(entry: &Path) -> Option<(PathBuf, PathBuf)> {
    const NAME_MAX: u64 = 64 * 1024;
    let read = |path: &Path| crate::files::read_text_bounded(path, NAME_MAX).ok();
    let base = entry.parent()?;
    let own = followed(&base.join(read(entry)?.trim().strip_prefix("gitdir:")?.trim()));
    let back = followed(&own.join(read(&own.join("gitdir"))?.trim()));
    let common = followed(&own.join(read(&own.join("commondir"))?.trim()));
    let belongs = own.parent() == Some(common.join("worktrees").as_path()) && common.join("HEAD").is_file();
    (back == followed(entry) && belongs).then_some((own, common))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Project {
        folder: tempfile::TempDir,
    }

    impl Project {
        fn new(entries: &[&str]) -> Self {
            let project = Self { folder: tempfile::tempdir().unwrap() };
            for entry in entries {
                let path = project.at(entry);
                if entry.ends_with('/') {
                    std::fs::create_dir_all(path).unwrap();
                } else {
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::fs::write(path, "x").unwrap();
                }
            }
            project
        }

        fn at(&self, path: &str) -> PathBuf {
            self.folder.path().canonicalize().unwrap().join(path)
        }

        fn bounds(&self) -> WriteBounds {
            WriteBounds::new(&self.at("w"), [self.at("extra")].into_iter(), &self.at("storage"))
        }
    }

    #[test]
    fn file_tools_are_kept_inside_and_away_from_what_is_guarded() {
        let project = Project::new(&["w/a", "extra/", "storage/"]);
        std::os::unix::fs::symlink("/etc", project.at("w/out")).unwrap();
        let bounds = project.bounds();
        let refused = |path: &str| bounds.refuses(&PathForms::of(&project.at(path)));
        for free in ["w/a", "w/new/deep", "extra/x", "w/sub/.zapmyco/notes", "w/.github/x"] {
            assert_eq!(refused(free), None, "{free}");
        }
        for outside in ["other", "w/../other", "w/out/passwd"] {
            assert!(refused(outside).unwrap().contains("outside the working directory"), "{outside}");
        }
        for guarded in ["w/.git/config", "w/.GIT/hooks/x", "w/.zapmyco/settings.toml", "w/.mcp.json", "w/sub/.git/hooks/x", "storage/x"] {
            assert!(refused(guarded).unwrap().contains("keeps"), "{guarded}");
        }
    }

    #[test]
    fn a_repository_is_written_in_but_for_what_git_runs_and_obeys() {
        let project = Project::new(&["w/.git/hooks/", "w/.git/config", "w/.git/HEAD", "w/.zapmyco/settings.toml", "extra/", "storage/"]);
        let kept = project.bounds().kept();
        assert_eq!(kept.writable, [project.at("w"), project.at("extra")]);
        assert_eq!(kept.pinned, [project.at("w/.git")]);
        assert_eq!(kept.fixed, [project.at("w/.zapmyco"), project.at("w/.git/hooks"), project.at("w/.git/config")]);
        assert_eq!(kept.absent, [project.at("w/.git/config.worktree"), project.at("w/.git/commondir")]);
        std::fs::remove_dir(project.at("w/.git/hooks")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", project.at("w/.git/hooks")).unwrap();
        assert_eq!(project.bounds().kept().fixed, [project.at("w/.zapmyco"), project.at("w/.git")]);
    }

    #[test]
    fn a_linked_work_tree_must_be_named_by_its_repository_too() {
        let project = Project::new(&["main/.git/HEAD", "main/.git/config", "main/.git/worktrees/w/x", "main/.git/worktrees/o/x", "w/a"]);
        let git = project.at("main/.git");
        std::fs::write(project.at("w/.git"), format!("gitdir: {}\n", git.join("worktrees/w").display())).unwrap();
        std::fs::write(git.join("worktrees/w/commondir"), "../..\n").unwrap();
        let alone = project.bounds().kept();
        assert_eq!((alone.writable, alone.fixed), (vec![project.at("w")], vec![project.at("w/.git")]));
        std::fs::write(git.join("worktrees/w/gitdir"), format!("{}\n", project.at("w/.git").display())).unwrap();
        let kept = project.bounds().kept();
        assert_eq!(kept.writable, [project.at("w"), git.clone()]);
        for fixed in ["config", "worktrees/o", "worktrees/w/commondir", "worktrees/w/gitdir"] {
            assert!(kept.fixed.contains(&git.join(fixed)), "{fixed}: {:?}", kept.fixed);
        }
        assert!(!kept.fixed.contains(&git.join("worktrees")) && kept.pinned.contains(&git.join("worktrees/w")));
    }

    #[test]
    fn without_mounts_what_is_there_is_given_one_by_one() {
        let project = Project::new(&["w/a", "w/sub/b", "w/.git/config", "w/.zapmyco/x", "w/.mcp.json", "storage/"]);
        std::os::unix::fs::symlink("/etc", project.at("w/out")).unwrap();
        let mut entries = project.bounds().entries();
        entries.sort();
        assert_eq!(entries, [project.at("w/a"), project.at("w/sub")]);
    }
}
