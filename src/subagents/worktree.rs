//! `isolation: worktree`: a child works in a work tree of its own on a branch of its own. What it leaves there is never
//! lost: the tree goes only when git itself says that nothing in it changed (R88).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::delegation::{Delegation, SpawnError};
use super::process::ShellOrder;
use super::shell::{AtTimeout, ShellEnd, ShellResult};
use crate::config::Layout;
use crate::config::layout::repository_root;
use crate::files::{self, FileError};
use crate::ids::JobId;
use crate::permissions::sandbox::ShellRights;
use crate::text::fold::{Excerpt, Output};

/// The work tree of one child; kept in its metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worktree {
    /// The root of the tree.
    pub path: PathBuf,
    pub branch: String,
    /// The commit it began at.
    pub base: String,
    /// The repository it belongs to.
    pub repository: PathBuf,
}

/// What became of a tree at the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Removed,
    /// Why it stays.
    Kept(String),
}

#[derive(Debug, thiserror::Error)]
pub enum WorktreeError {
    #[error("{cwd} is in no git repository", cwd = cwd.display())]
    NoRepository { cwd: PathBuf },
    #[error("mode `plan` changes nothing, and a work tree is a change of the repository")]
    ReadOnly,
    #[error("`git {action}` failed: {output}")]
    Git { action: &'static str, output: String },
    #[error("`git {action}` was not started: {source}")]
    Start { action: &'static str, source: Box<SpawnError> },
    #[error("the start was interrupted")]
    Interrupted,
    #[error(transparent)]
    File(#[from] FileError),
}

/// Checking out a large repository takes a while; beyond this something hangs.
const GIT_TIME_MAX: Duration = Duration::from_secs(300);
/// Bytes of each end of what git says that are read.
const GIT_OUTPUT_EACH_END: u64 = 16 * 1024;

/// How git is run for us, and where.
pub(crate) struct Git<'a> {
    pub delegation: &'a Delegation,
    pub rights: ShellRights,
}

impl Worktree {
    /// Makes the tree at the commit that the parent's folder is on.
    pub(crate) async fn create(git: &Git<'_>, layout: &Layout, cwd: &Path, id: &JobId) -> Result<Self, WorktreeError> {
        let repository = repository_root(cwd).ok_or_else(|| WorktreeError::NoRepository { cwd: cwd.to_owned() })?.to_owned();
        if git.rights.confinement.is_some() {
            return Err(WorktreeError::ReadOnly);
        }
        let base = git.run(&repository, "rev-parse", "--verify HEAD^{commit}").await?.trim().to_owned();
        let path = layout.worktree(id);
        if let Some(folder) = path.parent() {
            files::create_private_folder(folder)?;
        }
        let worktree = Self { path, branch: format!("zapmyco/{id}"), base, repository };
        worktree.check_out(git).await?;
        Ok(worktree)
    }

    /// Makes the tree again when it went with an earlier run.
    pub(crate) async fn restore(&self, git: &Git<'_>) -> Result<(), WorktreeError> {
        if self.path.exists() { Ok(()) } else { self.check_out(git).await }
    }

    async fn check_out(&self, git: &Git<'_>) -> Result<(), WorktreeError> {
        let _turn = git.turn(&self.repository).await?;
        let arguments = format!("add --quiet -b {} {} {}", quoted(&self.branch), quoted(&self.path.to_string_lossy()), quoted(&self.base));
        git.run(&self.repository, "worktree", &arguments).await.map(drop)
    }

    /// Where the child works: the same place in the tree as the parent's in the repository.
    pub(crate) fn cwd(&self, parent: &Path) -> PathBuf {
        let below = parent.strip_prefix(&self.repository).unwrap_or(Path::new(""));
        let place = self.path.join(below);
        // A folder that is not in the commit is not in the tree.
        if place.is_dir() { place } else { self.path.clone() }
    }

    /// Takes the tree away when nothing in it changed; whatever is in doubt keeps it.
    pub(crate) async fn settle(&self, git: &Git<'_>, in_use: bool) -> Fate {
        match self.reason_to_keep(git, in_use).await {
            Some(why) => Fate::Kept(why),
            None => match self.remove(git).await {
                Ok(()) => Fate::Removed,
                Err(error) => Fate::Kept(format!("it could not be removed: {error}")),
            },
        }
    }

    async fn reason_to_keep(&self, git: &Git<'_>, in_use: bool) -> Option<String> {
        if in_use {
            return Some("a command that the agent left running may use it".to_owned());
        }
        let status = match git.run(&self.path, "status", "--porcelain --untracked-files=all --ignored").await {
            Ok(status) => status,
            Err(error) => return Some(format!("its state could not be read: {error}")),
        };
        let commits = match git.run(&self.path, "rev-list", &format!("--count {}..HEAD", quoted(&self.base))).await {
            Ok(count) => count.trim().to_owned(),
            Err(error) => return Some(format!("its commits could not be counted: {error}")),
        };
        let changed = status.lines().filter(|line| !line.trim().is_empty()).count();
        let mut found = Vec::new();
        if commits != "0" {
            found.push(format!("{commits} new {}", if commits == "1" { "commit" } else { "commits" }));
        }
        if changed > 0 {
            found.push(format!("{changed} changed or new {}", if changed == 1 { "file" } else { "files" }));
        }
        (!found.is_empty()).then(|| found.join(", "))
    }

    /// Without `--force` anywhere: git refuses what would lose something.
    async fn remove(&self, git: &Git<'_>) -> Result<(), WorktreeError> {
        let _turn = git.turn(&self.repository).await?;
        git.run(&self.repository, "worktree", &format!("remove {}", quoted(&self.path.to_string_lossy()))).await?;
        // The branch goes only while it is where it began: a commit that came in between stays reachable.
        let reference = format!("refs/heads/{}", self.branch);
        git.run(&self.repository, "update-ref", &format!("-d {} {}", quoted(&reference), quoted(&self.base))).await.map(drop)
    }

    /// For the one who reads the result.
    pub(crate) fn report(&self, why: &str) -> String {
        format!(
            "[This agent worked in a work tree of its own, which is kept: {why}.\npath: {}\nbranch: {}\nbegan at: {}]",
            self.path.display(),
            self.branch,
            self.base
        )
    }
}

impl Git<'_> {
    /// One at a time in a repository, over all processes: git reads half-made entries of others and fails.
    async fn turn(&self, repository: &Path) -> Result<File, WorktreeError> {
        let digest = Sha256::digest(repository.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let path = self.delegation.inner.starter.layout.worktree_lock(&name);
        let locked = tokio::task::spawn_blocking(move || {
            if let Some(folder) = path.parent() {
                files::create_private_folder(folder)?;
            }
            files::lock(&path)
        });
        Ok(locked.await.map_err(|_| WorktreeError::Interrupted)??)
    }

    /// What git says on stdout. No hooks run: they belong to what a person does.
    async fn run(&self, folder: &Path, action: &'static str, arguments: &str) -> Result<String, WorktreeError> {
        let command = format!("git -c core.hooksPath=/dev/null -C {} {action} {arguments}", quoted(&folder.to_string_lossy()));
        let order = ShellOrder {
            command,
            description: Some(format!("git {action} for the work tree of an agent")),
            cwd: self.delegation.inner.starter.cwd.clone(),
            call_id: None,
            background: false,
            rights: self.rights.clone(),
        };
        let never = CancellationToken::new();
        let ended = self.delegation.run_shell(order, GIT_TIME_MAX, AtTimeout::Stop, GIT_OUTPUT_EACH_END, &never).await;
        let result = match ended.map_err(|source| WorktreeError::Start { action, source: Box::new(source) })? {
            ShellEnd::Finished(result) => result,
            ShellEnd::Stopped { .. } | ShellEnd::Background(_) | ShellEnd::Moved(_) => {
                return Err(WorktreeError::Git { action, output: format!("it took longer than {} s", GIT_TIME_MAX.as_secs()) });
            }
        };
        let ShellResult { job, stdout, stderr } = *result;
        if job.view().exit_code == Some(0) {
            return Ok(text_of(&stdout));
        }
        let said = text_of(&stderr);
        let said = if said.trim().is_empty() { format!("exit {:?}", job.view().exit_code) } else { said.trim().to_owned() };
        Err(WorktreeError::Git { action, output: said })
    }
}

fn text_of(output: &Output) -> String {
    match &output.excerpt {
        Excerpt::Whole(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Excerpt::Ends { head, tail } => format!("{}\n...\n{}", String::from_utf8_lossy(head), String::from_utf8_lossy(tail)),
    }
}

/// One word of a shell line.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
