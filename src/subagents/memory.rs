//! A profile's own memory over many runs: a folder of small files and an index, in one of three scopes (section X).
//!
//! The folder is all that memory reaches. A link that leads out of it is refused wherever one is met: when the folder is
//! opened, when the index is read, and at every call of a file tool.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::agent::tool::ToolBox;
use crate::config::layout::{Layout, ProjectLayout, private_ignore_list, repository_root};
use crate::files::{self, FileError};
use crate::permissions::paths::followed;
use crate::subagents::memory_guard::Guarded;
use crate::subagents::profiles::profile::MemoryScope;
use crate::text::imitation;

/// Settings section `memory` (R264).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MemorySettings {
    pub enabled: bool,
    #[serde(rename = "use")]
    pub used: bool,
    /// Main sessions have a memory for each project too (R276).
    pub main: bool,
}

/// An opened memory folder.
#[derive(Clone, Debug)]
pub struct Memory {
    owner: Owner,
    /// Every link followed.
    folder: PathBuf,
    warnings: Vec<String>,
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Profile(MemoryScope),
    /// The main sessions of one project; never given to children (R275).
    Main,
}

/// Why there is no memory in this run.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("cannot make the memory folder: {0}")]
    Folder(#[from] FileError),
    #[error("the memory folder {folder} leads to {real} through a symbolic link; a project's memory must lie in the project", folder = folder.display(), real = real.display())]
    LeadsOut { folder: PathBuf, real: PathBuf },
}

/// The index file; one line per memory (R271).
pub const INDEX: &str = "MEMORY.md";
/// How much of the index a model reads (R272).
pub const INDEX_LINES: usize = 200;
pub const INDEX_CHARACTERS: usize = 25_000;
/// Bytes of the index that are looked at: more than any text within both limits has.
const INDEX_BYTES_READ: u64 = 4 * INDEX_CHARACTERS as u64 + 1;
/// Characters of a name that become part of the folder's name.
const NAME_MAX: usize = 100;

impl Default for MemorySettings {
    fn default() -> Self {
        Self { enabled: true, used: true, main: false }
    }
}

impl MemorySettings {
    pub fn on(self) -> bool {
        self.enabled && self.used
    }

    pub fn on_in_main(self) -> bool {
        self.on() && self.main
    }
}

impl Memory {
    /// Makes the folder when it is missing. Blocking.
    ///
    /// A folder of the project must really lie in it: a repository may hold a link to anywhere. The user's own folder
    /// may be one, for example into a place that is backed up.
    pub fn open(profile: &str, scope: MemoryScope, layout: &Layout, workspace: &Path) -> Result<Self, MemoryError> {
        let project = ProjectLayout::new(workspace.to_owned());
        let base = match scope {
            MemoryScope::User => layout.agent_memory(),
            MemoryScope::Project => project.agent_memory(),
            MemoryScope::Local => project.private_agent_memory(),
        };
        let folder = base.join(folder_name(profile));
        let real = followed(&folder);
        let allowed = match scope {
            MemoryScope::User => followed(&base).join(folder_name(profile)),
            MemoryScope::Project | MemoryScope::Local => {
                let below = folder.strip_prefix(workspace).unwrap_or(&folder);
                followed(workspace).join(below)
            }
        };
        if real != allowed {
            return Err(MemoryError::LeadsOut { folder, real });
        }
        let mut warnings = Vec::new();
        let is_new = !base.exists();
        files::create_private_folder(&real)?;
        if scope == MemoryScope::Local
            && is_new
            && let Err(error) = ignore_privately(workspace, &base)
        {
            warnings.push(format!("{} is not in the repository's private ignore list: {error}", base.display()));
        }
        Ok(Self { owner: Owner::Profile(scope), folder: real, warnings })
    }

    /// The memory of the main sessions of a project: the repository's root stands for all folders in it (R276). Blocking.
    pub fn open_main(layout: &Layout, cwd: &Path) -> Result<Self, MemoryError> {
        let project = repository_root(cwd).unwrap_or(cwd);
        let folder = layout.project_memory(&project_name(project));
        files::create_private_folder(&folder)?;
        Ok(Self { owner: Owner::Main, folder: followed(&folder), warnings: Vec::new() })
    }

    /// Absolute, every link followed.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What follows the profile's body in the system prompt: how memory works, and the index as it is now (R269, R272).
    /// Blocking.
    pub fn prompt(&self) -> String {
        format!("{}\n\n{}", self.how_to(), self.index())
    }

    /// The tools of the child: file tools refuse links that lead out of the folder, those that were only added for memory
    /// reach nothing else, and a write that makes the index too long says so (R270, R273, R274).
    pub fn guard(&self, toolbox: ToolBox, memory_only: &[String]) -> ToolBox {
        toolbox.mapped(|tool| {
            let name = &tool.spec().declaration.name;
            let is_confined = memory_only.iter().any(|only| only == name);
            if is_confined || matches!(name.as_str(), "Read" | "Write" | "Edit") {
                Arc::new(Guarded::new(tool, self.clone(), is_confined))
            } else {
                tool
            }
        })
    }

    /// Whether the path, every link followed, lies below the folder.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        let real = followed(path);
        real != self.folder && real.starts_with(&self.folder)
    }

    /// Whether the path says that it lies below the folder, whatever links do with it.
    pub(crate) fn names(&self, path: &Path) -> bool {
        let cleaned = crate::permissions::paths::cleaned(path);
        cleaned.starts_with(&self.folder) || cleaned.parent().is_some_and(|parent| followed(parent).starts_with(&self.folder))
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        self.folder.join(INDEX)
    }

    /// The request to shorten an index that is over its limit (R274).
    pub(crate) fn request_to_shorten(&self) -> Option<String> {
        let index = read_bounded(&self.index_path()).ok()?;
        let shown = shown_part(&index);
        (shown.len() < index.text.len() || index.is_cut).then(|| {
            format!(
                "{INDEX} is now longer than what is loaded ({INDEX_LINES} lines, {INDEX_CHARACTERS} characters). Shorten it now: one line per \
                 memory, details in the memory's own file, entries that no longer hold removed."
            )
        })
    }

    fn how_to(&self) -> String {
        let shared = match self.owner {
            Owner::Main => "It belongs to the user's work on this project, on this machine: keep what helps in a later session.",
            Owner::Profile(MemoryScope::User) => "It belongs to the user and is the same in all projects: keep what holds everywhere.",
            Owner::Profile(MemoryScope::Project) => {
                "It is shared with everybody who works on this project, through version control: keep what holds for all of them, and nothing private."
            }
            Owner::Profile(MemoryScope::Local) => "It belongs to this project on this machine and is not shared: keep what holds here.",
        };
        format!(
            "# Memory\n\n\
             You have a memory that outlives this run: the folder `{folder}`, which exists already. {shared}\n\
             Write to it with Write and Edit, read it with Read; files end in `.md`.\n\n\
             There are four types of memories:\n\
             - `user`: who the user is, what they know and prefer\n\
             - `feedback`: how the user wants the work done, corrections and confirmed ways, each with its reason\n\
             - `project`: goals, decisions and circumstances that neither code nor history tells; dates absolute\n\
             - `reference`: where something outside is found\n\n\
             One memory is one file, for example `feedback_tests.md`, which begins with\n\n\
             ---\nname: <short name>\ndescription: <one line that tells when it matters>\ntype: <user|feedback|project|reference>\n---\n\n\
             `{INDEX}` is only an index: one line per memory, `- [name](file.md): what it is about`, never the memory itself. Of it the first \
             {INDEX_LINES} lines and {INDEX_CHARACTERS} characters are loaded, the rest is cut.\n\n\
             Before you add a memory look for one to correct; remove what no longer holds. Do not keep what the code, its history or this \
             conversation tells anyway. A memory says what was true when it was written: check files and names before you rely on it.",
            folder = self.folder.display()
        )
    }

    fn index(&self) -> String {
        let heading = format!("## {INDEX}\n\n");
        let index = match read_bounded(&self.index_path()) {
            Ok(index) => index,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return heading + "The index is empty: nothing has been kept yet.",
            Err(error) => return format!("{heading}The index cannot be read ({error})."),
        };
        let shown = shown_part(&index);
        if shown.trim().is_empty() {
            return heading + "The index is empty: nothing has been kept yet.";
        }
        let mut text = format!("{heading}<memory-index>\n{}\n</memory-index>", imitation::marked(shown.trim_end()));
        if shown.len() < index.text.len() || index.is_cut {
            // Writing into a string cannot fail.
            let _ = write!(
                text,
                "\n\nWARNING: {INDEX} is longer than {INDEX_LINES} lines or {INDEX_CHARACTERS} characters; only its beginning is shown. \
                 Shorten it: one line per memory, details in the memory's own file."
            );
        }
        text
    }
}

/// The folder of a profile: its name when that is a plain one; else with `-` for every other character and a hash of the
/// name, so that no two profiles share a folder (R268).
pub fn folder_name(profile: &str) -> String {
    let plain: String = profile.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' }).collect();
    let cut: String = plain.chars().take(NAME_MAX).collect();
    let name = if cut.is_empty() { "unknown".to_owned() } else { cut };
    if name == profile {
        return name;
    }
    let digest = Sha256::digest(profile.as_bytes());
    let hash: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}-{hash}")
}

/// A name a person recognises, with a hash of the whole path: projects of one name do not share a memory (R276).
fn project_name(project: &Path) -> String {
    let readable: String = project.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let plain: String = readable.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' }).collect();
    let name: String = plain.chars().take(NAME_MAX).collect();
    let digest = Sha256::digest(project.as_os_str().as_encoded_bytes());
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}-{hash}")
}

struct Index {
    text: String,
    /// The file has more than was read.
    is_cut: bool,
}

/// A regular file, never through a link, and never more than needed.
fn read_bounded(path: &Path) -> io::Result<Index> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let read = file.take(INDEX_BYTES_READ).read_to_end(&mut bytes)?;
    Ok(Index { text: String::from_utf8_lossy(&bytes).into_owned(), is_cut: read as u64 == INDEX_BYTES_READ })
}

/// The lines that are loaded: whole ones, as far as both limits reach.
fn shown_part(index: &Index) -> &str {
    let lines_end = index.text.match_indices('\n').nth(INDEX_LINES - 1).map_or(index.text.len(), |(at, _)| at + 1);
    let characters_end = index.text.char_indices().nth(INDEX_CHARACTERS).map_or(index.text.len(), |(at, _)| at);
    let end = lines_end.min(characters_end);
    let shown = &index.text[..end];
    match shown.rfind('\n') {
        Some(at) if characters_end < lines_end => &shown[..=at],
        Some(_) | None => shown,
    }
}

/// Adds the folder to the repository's ignore list that is not shared (R267). Nothing to do outside a repository.
fn ignore_privately(workspace: &Path, base: &Path) -> io::Result<()> {
    let Some(root) = repository_root(workspace) else { return Ok(()) };
    let Ok(below) = base.strip_prefix(root) else { return Ok(()) };
    let Some(list) = private_ignore_list(root) else { return Ok(()) };
    let escaped: String =
        below.to_string_lossy().chars().flat_map(|c| matches!(c, '\\' | '*' | '?' | '[').then_some('\\').into_iter().chain([c])).collect();
    let line = format!("/{escaped}/");
    let known = std::fs::read_to_string(&list)
        .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(String::new()) } else { Err(error) })?;
    if known.lines().any(|known| known.trim() == line) {
        return Ok(());
    }
    if let Some(folder) = list.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let feed = if known.is_empty() || known.ends_with('\n') { "" } else { "\n" };
    OpenOptions::new().create(true).append(true).open(&list)?.write_all(format!("{feed}{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// R268, fault H14
    #[test]
    fn folder_names_are_plain_and_never_shared() {
        assert_eq!(folder_name("code-reviewer_2"), "code-reviewer_2");
        assert!(folder_name("../../x").starts_with("------x-"), "{}", folder_name("../../x"));
        assert!(folder_name("").starts_with("unknown-"));
        assert_ne!(folder_name("a:b"), folder_name("a/b"));
        assert_ne!(folder_name(&"x".repeat(200)), folder_name(&"x".repeat(201)));
    }

    fn shown(text: &str) -> String {
        shown_part(&Index { text: text.to_owned(), is_cut: false }).to_owned()
    }

    /// R272
    #[test]
    fn the_index_is_cut_at_lines_and_characters() {
        assert_eq!(shown("a\nb\n"), "a\nb\n");
        let lines: String = (1..=201).map(|n| format!("line {n}\n")).collect();
        assert!(shown(&lines).ends_with("\nline 200\n"));
        let long = format!("{}\n{}\n", "字".repeat(20_000), "x".repeat(20_000));
        assert_eq!(shown(&long), format!("{}\n", "字".repeat(20_000)), "a line that does not fit is left out whole");
        assert_eq!(shown(&"x".repeat(30_000)).len(), 25_000, "one line that is too long is cut");
    }

    proptest! {
        /// R268, fault H14
        #[test]
        fn any_name_is_one_path_component(name in any::<String>()) {
            let folder = folder_name(&name);
            prop_assert!(!folder.is_empty() && folder.len() <= 120);
            prop_assert!(folder.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')));
        }
    }
}
