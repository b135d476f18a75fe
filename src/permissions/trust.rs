//! Which content of a project a person has trusted: hooks, allow rules and profiles that reach for more than a repository
//! may give itself.
//!
//! Trust is given to the exact bytes of a file, in one folder. A changed byte, another checkout or a link that leads out of
//! the project is not trusted. Nothing in a project can trust itself: the record stands below the storage root.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Local};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::clock;
use crate::config::Layout;
use crate::config::layout::repository_root;
use crate::files::{self, FileError, any_path};

/// What is trusted in one project. Read once; clones share it.
#[derive(Clone, Debug)]
pub struct Trust {
    /// As it is on disk, links resolved.
    project: PathBuf,
    record: Arc<Record>,
}

/// What a person said about some content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Trusted,
    /// Not asked about again until the content changes.
    Refused,
}

/// A file with some content, as it is asked about and recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Below the project.
    pub path: PathBuf,
    pub sha256: String,
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot use the folder {path}: {source}", path = path.display())]
    Project { path: PathBuf, source: std::io::Error },
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not readable as a record of trust: {source}", path = path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error("{path} has version {found}, this program knows version {VERSION}", path = path.display())]
    Version { path: PathBuf, found: u32 },
    #[error(transparent)]
    File(#[from] FileError),
}

/// The stored form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    version: u32,
    #[serde(with = "any_path")]
    project: PathBuf,
    items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Item {
    #[serde(with = "any_path")]
    path: PathBuf,
    sha256: String,
    decision: Decision,
    at: DateTime<Local>,
}

const VERSION: u32 = 1;
const RECORD_MAX: u64 = 4 * 1024 * 1024;
/// Decisions that are remembered per project; the oldest go.
const ITEMS_MAX: usize = 1000;

/// The digest under which content is trusted; `sha256sum` gives the same.
pub fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing into a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Trust {
    /// Nothing is trusted.
    pub fn none(folder: &Path) -> Self {
        Self { project: project_of(folder).unwrap_or_else(|_| folder.to_owned()), record: Arc::default() }
    }

    /// What was decided about the project that `folder` belongs to.
    pub fn open(layout: &Layout, folder: &Path) -> Result<Self, TrustError> {
        let project = project_of(folder)?;
        let record = read(&file_of(layout, &project))?;
        // A digest of paths that fits another path as well would be a wonder; a copied file is not.
        let record = record.filter(|record| record.project == project).unwrap_or_default();
        Ok(Self { project, record: Arc::new(record) })
    }

    /// Whether a person has trusted these very bytes of this file. Never for a file that a link leads out of the project to.
    pub fn holds(&self, path: &Path, content: &[u8]) -> bool {
        self.decision(path, content) == Some(Decision::Trusted)
    }

    /// What was said about it; `None`: nothing yet.
    pub fn decision(&self, path: &Path, content: &[u8]) -> Option<Decision> {
        if self.is_empty() {
            return None;
        }
        let content = self.content(path, content)?;
        let known = self.record.items.iter().find(|item| item.path == content.path && item.sha256 == content.sha256)?;
        Some(known.decision)
    }

    /// Whether some content of this file has been trusted, be it what stands there now or not.
    pub fn has_trusted(&self, path: &Path) -> bool {
        let Some(Content { path, .. }) = self.content(path, b"") else { return false };
        self.record.items.iter().any(|item| item.path == path && item.decision == Decision::Trusted)
    }

    /// The form in which content is asked about; `None`: it lies outside the project, so it cannot be trusted.
    pub fn content(&self, path: &Path, content: &[u8]) -> Option<Content> {
        let real = path.canonicalize().ok()?;
        let path = real.strip_prefix(&self.project).ok()?.to_owned();
        Some(Content { path, sha256: digest(content) })
    }

    pub fn project(&self) -> &Path {
        &self.project
    }

    /// How much is decided.
    pub fn len(&self) -> usize {
        self.record.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.record.items.is_empty()
    }
}

/// Records a decision about content that was shown; earlier ones about other content stay.
pub fn decide(layout: &Layout, folder: &Path, contents: &[Content], decision: Decision) -> Result<Trust, TrustError> {
    let project = project_of(folder)?;
    let path = file_of(layout, &project);
    files::create_private_folder(&layout.trust())?;
    let _lock = files::lock(&layout.trust_lock())?;
    // A record that cannot be read is replaced: it trusted nothing.
    let mut record = read(&path).ok().flatten().filter(|record| record.project == project).unwrap_or_default();
    record.version = VERSION;
    record.project.clone_from(&project);
    let now = clock::now();
    for content in contents {
        record.items.retain(|item| item.path != content.path || item.sha256 != content.sha256);
        record.items.push(Item { path: content.path.clone(), sha256: content.sha256.clone(), decision, at: now });
    }
    let excess = record.items.len().saturating_sub(ITEMS_MAX);
    record.items.drain(..excess);
    let json = serde_json::to_vec_pretty(&record).map_err(|source| TrustError::Malformed { path: path.clone(), source })?;
    files::replace(&path, &json, files::Sync::Disk)?;
    Ok(Trust { project, record: Arc::new(record) })
}

/// Forgets everything about the project; how much there was.
pub fn revoke(layout: &Layout, folder: &Path) -> Result<usize, TrustError> {
    let project = project_of(folder)?;
    let path = file_of(layout, &project);
    let known = read(&path).ok().flatten().map_or(0, |record| record.items.len());
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(known),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(FileError { action: "cannot remove", path, source }.into()),
    }
}

/// The project that a folder belongs to: its repository, where it is in one. Another work tree of it is another project.
fn project_of(folder: &Path) -> Result<PathBuf, TrustError> {
    let folder = folder.canonicalize().map_err(|source| TrustError::Project { path: folder.to_owned(), source })?;
    Ok(repository_root(&folder).unwrap_or(&folder).to_owned())
}

fn file_of(layout: &Layout, project: &Path) -> PathBuf {
    layout.trust_of(&digest(project.as_os_str().as_encoded_bytes()))
}

/// `None` when there is no record.
fn read(path: &Path) -> Result<Option<Record>, TrustError> {
    let bytes = match files::read_bounded(path, RECORD_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TrustError::Read { path: path.to_owned(), source }),
    };
    let record: Record = serde_json::from_slice(&bytes).map_err(|source| TrustError::Malformed { path: path.to_owned(), source })?;
    if record.version != VERSION {
        return Err(TrustError::Version { path: path.to_owned(), found: record.version });
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Place {
        folder: tempfile::TempDir,
        layout: Layout,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(folder.path().join("p/.zapmyco")).unwrap();
            let layout = Layout::new(folder.path().join("root"));
            Self { folder, layout }
        }

        fn project(&self) -> PathBuf {
            self.folder.path().join("p")
        }

        fn write(&self, path: &str, content: &str) -> PathBuf {
            let path = self.folder.path().join(path);
            std::fs::write(&path, content).unwrap();
            path
        }

        fn trust(&self) -> Trust {
            Trust::open(&self.layout, &self.project()).unwrap()
        }

        fn decide(&self, path: &Path, bytes: &[u8], decision: Decision) {
            let content = self.trust().content(path, bytes).unwrap();
            decide(&self.layout, &self.project(), &[content], decision).unwrap();
        }
    }

    /// R160
    #[test]
    fn trust_is_for_exact_bytes_of_one_file_in_one_folder() {
        let place = Place::new();
        let file = place.write("p/.zapmyco/settings.toml", "a = 1\n");
        let other = place.write("p/.zapmyco/settings.local.toml", "a = 1\n");
        assert_eq!(place.trust().decision(&file, b"a = 1\n"), None);
        place.decide(&file, b"a = 1\n", Decision::Trusted);
        assert!(place.trust().holds(&file, b"a = 1\n"));
        assert!(!place.trust().holds(&file, b"a = 1 \n"));
        assert!(!place.trust().holds(&other, b"a = 1\n"));
        std::fs::create_dir_all(place.folder.path().join("q/.zapmyco")).unwrap();
        let elsewhere = place.write("q/.zapmyco/settings.toml", "a = 1\n");
        let trust = Trust::open(&place.layout, &place.folder.path().join("q")).unwrap();
        assert!(!trust.holds(&elsewhere, b"a = 1\n"));
        place.decide(&file, b"b\n", Decision::Refused);
        assert_eq!((place.trust().decision(&file, b"b\n"), place.trust().len()), (Some(Decision::Refused), 2));
        assert_eq!(revoke(&place.layout, &place.project()).unwrap(), 2);
        assert!(!place.trust().holds(&file, b"a = 1\n"));
    }

    /// R160: whatever a link shows is not the project's own content.
    #[test]
    fn a_link_out_of_the_project_cannot_be_trusted() {
        let place = Place::new();
        let outside = place.write("outside.toml", "x\n");
        let link = place.project().join(".zapmyco/settings.toml");
        symlink(&outside, &link).unwrap();
        assert_eq!(place.trust().content(&link, b"x\n"), None);
        std::fs::create_dir(place.folder.path().join("away")).unwrap();
        place.write("away/settings.toml", "x\n");
        std::fs::remove_dir_all(place.project().join(".zapmyco")).unwrap();
        symlink(place.folder.path().join("away"), place.project().join(".zapmyco")).unwrap();
        assert_eq!(place.trust().content(&link, b"x\n"), None);
    }

    /// A project reached through a link is the same project.
    #[test]
    fn the_project_is_the_folder_on_disk() {
        let place = Place::new();
        let file = place.write("p/.zapmyco/settings.toml", "x");
        place.decide(&file, b"x", Decision::Trusted);
        let link = place.folder.path().join("link");
        symlink(place.project(), &link).unwrap();
        assert!(Trust::open(&place.layout, &link).unwrap().holds(&link.join(".zapmyco/settings.toml"), b"x"));
    }

    #[test]
    fn the_record_is_the_owners_alone_and_versioned() {
        let place = Place::new();
        let file = place.write("p/.zapmyco/settings.toml", "x");
        place.decide(&file, b"x", Decision::Trusted);
        let folder = place.layout.trust();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let stored = file_of(&place.layout, &place.project().canonicalize().unwrap());
        assert_eq!((mode(&folder), mode(&stored)), (0o700, 0o600));
        std::fs::write(&stored, std::fs::read_to_string(&stored).unwrap().replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert!(matches!(Trust::open(&place.layout, &place.project()), Err(TrustError::Version { found: 2, .. })));
        std::fs::write(&stored, "{").unwrap();
        assert!(matches!(Trust::open(&place.layout, &place.project()), Err(TrustError::Malformed { .. })));
        place.decide_anew(&file);
        assert!(place.trust().holds(&file, b"x"));
    }

    impl Place {
        fn decide_anew(&self, file: &Path) {
            let content = Trust::none(&self.project()).content(file, b"x").unwrap();
            decide(&self.layout, &self.project(), &[content], Decision::Trusted).unwrap();
        }
    }

    #[test]
    fn the_digest_is_the_one_that_tools_print() {
        assert_eq!(digest(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
