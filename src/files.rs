//! The one way files of ours are written: owner-only folders, atomic replacement, exclusive creation, advisory locks. And
//! how files that others may have written are read: never without a bound.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A failed operation on a file or folder of ours, with the path it concerned.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {source}", path = path.display())]
pub struct FileError {
    /// What was tried, as a verb with its object: `cannot create`, `cannot replace`, ...
    pub action: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

const OWNER_ONLY_FOLDER: u32 = 0o700;
const OWNER_ONLY_FILE: u32 = 0o600;

/// Makes a folder and its missing parents, readable by the owner alone. An existing folder is left as it is.
pub fn create_private_folder(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(OWNER_ONLY_FOLDER).create(path).map_err(FileError::at("cannot create folder", path))
}

/// Makes exactly this folder; its parent must exist. `AlreadyExists` when somebody else was first.
pub fn create_new_private_folder(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().mode(OWNER_ONLY_FOLDER).create(path).map_err(FileError::at("cannot create folder", path))
}

/// Makes a file that did not exist before and opens it for reading and writing.
pub fn create_new(path: &Path) -> Result<File, FileError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(OWNER_ONLY_FILE)
        .open(path)
        .map_err(FileError::at("cannot create", path))
}

/// Replaces the content of `path` as a whole: a reader sees the old or the new bytes, never a part of them.
///
/// Safe against the death of the process; `sync` also against a loss of power.
pub fn replace(path: &Path, content: &[u8], sync: Sync) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        let mut temporary = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
        temporary.write_all(content)?;
        if sync == Sync::Disk {
            temporary.as_file().sync_data()?;
        }
        temporary.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(FileError::at("cannot replace", path))
}

/// Makes `path` a second name of the file `of`, in place of whatever it was: no further file is made and written. A file
/// system without such names gets a copy.
pub fn replace_by_name_of(path: &Path, of: &Path) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let linked = || -> io::Result<()> {
        let name = tempfile::Builder::new().prefix(".new-").make_in(folder, |temporary| std::fs::hard_link(of, temporary))?;
        let (_, temporary) = name.into_parts();
        // Nothing happens, and the temporary name goes, when `path` is a name of that file already.
        std::fs::rename(&temporary, path)
    };
    match linked() {
        Ok(()) => Ok(()),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported | io::ErrorKind::CrossesDevices | io::ErrorKind::TooManyLinks
            ) =>
        {
            let content = std::fs::read(of).map_err(FileError::at("cannot read", of))?;
            replace(path, &content, Sync::Process)
        }
        Err(error) => Err(FileError::at("cannot replace", path)(error)),
    }
}

/// The whole content, when it has at most `max` bytes; else `FileTooLarge`. The bound holds for pipes and devices too,
/// which have no length.
pub fn read_bounded(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
    }
    Ok(bytes)
}

/// The first `max` bytes, or all there are.
pub fn read_start(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As [`read_bounded`]; `InvalidData` when it is not UTF-8.
pub fn read_text_bounded(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read_bounded(path, max)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Whether a write must survive a loss of power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// Survives the death of the process only; 64 times cheaper.
    Process,
    Disk,
}

/// Opens a lock file (made if missing) and takes its exclusive lock. `None` when another open file holds it.
///
/// The lock belongs to the open file: it lives as long as any descriptor of it, in whatever process.
pub fn try_lock(path: &Path) -> Result<Option<File>, FileError> {
    let file = open_lock(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(source)) => Err(FileError::at("cannot lock", path)(source)),
    }
}

/// As [`try_lock`], but waits for its turn.
pub fn lock(path: &Path) -> Result<File, FileError> {
    let file = open_lock(path)?;
    file.lock().map_err(FileError::at("cannot lock", path))?;
    Ok(file)
}

fn open_lock(path: &Path) -> Result<File, FileError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(OWNER_ONLY_FILE)
        .open(path)
        .map_err(FileError::at("cannot open", path))
}

/// A path in JSON: its text, or its bytes where it is not UTF-8. Nothing is lost either way.
pub mod any_path {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    pub(crate) enum Wire {
        Text(String),
        Bytes(OsString),
    }

    impl From<&Path> for Wire {
        fn from(path: &Path) -> Self {
            path.to_str().map_or_else(|| Self::Bytes(path.into()), |text| Self::Text(text.to_owned()))
        }
    }

    impl From<Wire> for PathBuf {
        fn from(wire: Wire) -> Self {
            match wire {
                Wire::Text(text) => text.into(),
                Wire::Bytes(bytes) => bytes.into(),
            }
        }
    }

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        Wire::from(path).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Wire::deserialize(deserializer).map(PathBuf::from)
    }
}

/// A path as people and scripts read it: text always, with marks for what is not UTF-8.
pub mod shown_path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&path.display())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        String::deserialize(deserializer).map(PathBuf::from)
    }
}

/// `shown_path` of several.
pub mod shown_paths {
    use std::path::PathBuf;

    use serde::Serializer;

    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| path.display().to_string()))
    }
}

/// The same as `any_path` for a path that may be absent.
pub mod any_path_option {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::any_path::Wire;

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(|path: &Path| Wire::from(path)).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Option::<Wire>::deserialize(deserializer).map(|path| path.map(PathBuf::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replace_leaves_one_owner_only_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, b"one", Sync::Process).unwrap();
        replace(&path, b"two", Sync::Disk).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_lock_is_held_by_one_and_freed_by_closing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = try_lock(&path).unwrap();
        assert!(held.is_some());
        assert!(try_lock(&path).unwrap().is_none());
        drop(held);
        assert!(try_lock(&path).unwrap().is_some());
    }

    #[test]
    fn reading_has_a_bound_also_where_there_is_no_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_text_bounded(&path, 4).unwrap(), "four");
        assert_eq!(read_bounded(&path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_bounded(Path::new("/dev/zero"), 1000).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text_bounded(&path, 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn an_error_names_the_path() {
        let error = create_new_private_folder(Path::new("/nonexistent/x")).unwrap_err();
        assert!(error.to_string().starts_with("cannot create folder /nonexistent/x: "), "{error}");
    }

    /// Stored files and the wire keep their shape for ordinary paths, and any other path comes back as it was.
    #[test]
    fn any_path_survives_json() {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct Both {
            #[serde(with = "any_path")]
            path: PathBuf,
            #[serde(default, with = "any_path_option")]
            other: Option<PathBuf>,
        }
        let plain = Both { path: "/a/b".into(), other: None };
        assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"path":"/a/b","other":null}"#);
        let odd: PathBuf = std::ffi::OsString::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"/a/\xff")).into();
        for both in [plain, Both { path: odd.clone(), other: Some(odd) }] {
            let json = serde_json::to_string(&both).unwrap();
            assert_eq!(serde_json::from_str::<Both>(&json).unwrap(), both, "{json}");
        }
        assert_eq!(serde_json::from_str::<Both>(r#"{"path":"/a"}"#).unwrap().other, None);
    }
}
