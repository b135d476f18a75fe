//! Paths as written and as the kernel will follow them: symbolic links, `..` and parts that do not exist yet.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// One path in both forms. A rule that allows must cover both, a rule that denies needs one (R283).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathForms {
    /// Absolute, `.` and `..` removed without looking at the disk.
    pub written: PathBuf,
    /// With every symbolic link followed.
    pub real: PathBuf,
}

impl PathForms {
    pub fn of(path: &Path) -> Self {
        Self { written: cleaned(path), real: followed(path) }
    }
}

/// As the kernel's own limit: a longer chain of links is a loop.
const LINKS_MAX: u32 = 40;

/// Removes `.` and `..` by the text alone.
pub fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => clean.push(component),
        }
    }
    clean
}

/// Where an access to `path` really ends: links followed one by one, also dangling ones, also before `..`; what does not
/// exist is kept as written. A loop of links ends at the link where it was noticed.
pub fn followed(path: &Path) -> PathBuf {
    let mut waiting: VecDeque<OsString> = path.components().map(|component| component.as_os_str().to_owned()).collect();
    let mut real = PathBuf::new();
    let mut links = 0;
    while let Some(part) = waiting.pop_front() {
        match Path::new(&part).components().next() {
            None | Some(Component::CurDir) => continue,
            Some(Component::ParentDir) => {
                real.pop();
                continue;
            }
            Some(Component::Prefix(_) | Component::RootDir) => {
                real = PathBuf::from(&part);
                continue;
            }
            Some(Component::Normal(_)) => {}
        }
        let next = real.join(&part);
        match std::fs::read_link(&next) {
            Ok(target) if links < LINKS_MAX => {
                links += 1;
                for component in target.components().rev() {
                    waiting.push_front(component.as_os_str().to_owned());
                }
            }
            Ok(_) | Err(_) => real = next,
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn cleaning_is_by_text_and_following_by_disk() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("real/deep")).unwrap();
        symlink(base.join("real/deep"), base.join("link")).unwrap();
        symlink("missing/target", base.join("dangling")).unwrap();
        symlink("loop", base.join("loop")).unwrap();

        assert_eq!(cleaned(&base.join("link/../x")), base.join("x"));
        assert_eq!(followed(&base.join("link/../x")), base.join("real/x"));
        assert_eq!(followed(&base.join("link/new/file")), base.join("real/deep/new/file"));
        assert_eq!(followed(&base.join("dangling")), base.join("missing/target"));
        assert_eq!(followed(&base.join("loop/x")), base.join("loop/x"));
        assert_eq!(followed(Path::new("/")), Path::new("/"));
        assert_eq!(cleaned(Path::new("/../../a")), Path::new("/a"));
    }
}
