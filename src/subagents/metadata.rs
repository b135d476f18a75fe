//! `metadata.json`, `output.txt` and `task.output` of an in-process run (R7 to R9): the truth about a local agent on disk.
//! Each file is replaced as a whole, so that a reader never sees half of one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Local};
use serde::{Deserialize, Serialize};

use super::local::{LocalAgent, LocalEnd};
use super::profiles::Profile;
use super::profiles::model_choice::ModelSelection;
use super::status::EndCause;
use super::worktree::Worktree;
use crate::clock;
use crate::config::layout::JobFolder;
use crate::files::{self, FileError, Sync};
use crate::ids::{JobId, JobKind, SessionId};
use crate::models::Usage;
use crate::supervisor::confine::{self, Kernel};
use crate::text::agent_replies::STOPPED;

/// The stored form. The names of its fields are fixed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub schema_version: u32,
    pub agent_id: JobId,
    /// R111
    #[serde(default)]
    pub agent_name: String,
    pub child_session_id: SessionId,
    pub created_at: DateTime<Local>,
    pub updated_at: DateTime<Local>,
    pub cwd: PathBuf,
    pub workspace_root: PathBuf,
    pub description: String,
    pub prompt: String,
    pub profile_id: String,
    pub profile_snapshot: Profile,
    pub parent_session_id: SessionId,
    pub parent_tool_use_id: Option<String>,
    pub metadata_file: PathBuf,
    pub output_file: PathBuf,
    pub task_output_file: PathBuf,
    /// `running`, `completed`, `failed`, `stopped`.
    pub status: String,
    /// Its end is announced, not returned to a waiting call.
    pub background: bool,
    /// The resolved tools.
    pub tools: Vec<String>,
    /// The model that is used, and where it came from. A one-off model is not written (R317).
    pub model: Option<ModelSelection>,
    pub model_origin: String,
    /// How reading only is enforced, for the built-in Explore and Plan (R47).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_enforcement: Option<String>,
    /// Its own work tree; stays here also when the tree was removed (R88).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Worktree>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    pub run: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_at: Option<DateTime<Local>>,
    /// The message of the child's history after which the last run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from_message_id: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<DateTime<Local>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_tool_use_count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The cause of the end by its name in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Why the result is partial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// The cause as data, for a later process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_cause: Option<EndCause>,
}

pub const METADATA_VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no metadata of an agent: {source}", path = path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error("{path} has version {found}, this program knows version {METADATA_VERSION}", path = path.display())]
    Version { path: PathBuf, found: u32 },
    /// The folder says that it is another agent's (R330).
    #[error("{path} holds the record of {found}", path = path.display())]
    Foreign { path: PathBuf, found: JobId },
}

/// What holds commands that only read on this system.
fn read_only_enforcement() -> String {
    match confine::kernel() {
        Kernel { landlock: Some(version), calls: true } => {
            format!("command analysis, Landlock (version {version}), filter of system calls")
        }
        Kernel { .. } => "command analysis".to_owned(),
    }
}

impl Metadata {
    pub(crate) fn of(agent: &LocalAgent, workspace: &Path) -> Self {
        Self {
            schema_version: METADATA_VERSION,
            agent_id: agent.id.clone(),
            agent_name: format!("zapmyco-{}", agent.profile.name),
            child_session_id: agent.session.clone(),
            created_at: agent.created_at,
            updated_at: clock::now(),
            cwd: agent.cwd.clone(),
            workspace_root: workspace.to_owned(),
            description: agent.description.clone(),
            prompt: agent.prompt.clone(),
            profile_id: agent.profile.name.clone(),
            profile_snapshot: (*agent.profile).clone(),
            parent_session_id: agent.parent.clone(),
            parent_tool_use_id: agent.call_id.clone(),
            metadata_file: agent.folder.agent_metadata(),
            output_file: agent.folder.agent_output(),
            task_output_file: agent.folder.agent_task_output(),
            status: "running".into(),
            background: agent.is_background(),
            tools: agent.tools.clone(),
            model: (agent.model_origin != ONE_OFF).then(|| agent.model.clone()),
            model_origin: agent.model_origin.clone(),
            read_only_enforcement: agent.profile.is_held_to_reading().then(read_only_enforcement),
            worktree: agent.worktree.clone(),
            warnings: agent.warnings.clone(),
            run: agent.run(),
            resumed_at: (agent.run() > 1).then(|| agent.started_at()),
            resumed_from_message_id: None,
            completed_at: None,
            total_duration_ms: None,
            total_tokens: None,
            total_tool_use_count: None,
            usage: None,
            error: None,
            stop_reason: None,
            partial: None,
            end_cause: None,
        }
    }

    pub(crate) fn with_end(mut self, end: &LocalEnd) -> Self {
        self.status = end.cause.notice_word(JobKind::LocalAgent).to_owned();
        self.completed_at = Some(end.ended_at);
        self.updated_at = end.ended_at;
        self.total_duration_ms = Some(end.totals.duration_ms);
        self.total_tokens = Some(end.totals.usage.total());
        self.total_tool_use_count = Some(end.totals.tool_uses);
        self.usage = Some(end.totals.usage);
        self.error.clone_from(&end.error);
        self.stop_reason = Some(end.cause.name().to_owned());
        self.partial = end.partial.map(str::to_owned);
        self.end_cause = Some(end.cause);
        self
    }

    /// Reads what a folder says, and checks whose it is.
    pub fn read(folder: &JobFolder, id: &JobId, parent: &SessionId) -> Result<Option<Self>, MetadataError> {
        let path = folder.agent_metadata();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MetadataError::Read { path, source }),
        };
        let metadata: Self = serde_json::from_slice(&bytes).map_err(|source| MetadataError::Malformed { path: path.clone(), source })?;
        if metadata.schema_version != METADATA_VERSION {
            return Err(MetadataError::Version { path, found: metadata.schema_version });
        }
        if metadata.agent_id != *id || metadata.parent_session_id != *parent {
            return Err(MetadataError::Foreign { path, found: metadata.agent_id });
        }
        Ok(Some(metadata))
    }

    /// Written by rename.
    pub(crate) fn write(&self, folder: &JobFolder) -> Result<(), FileError> {
        // Plain data with text keys has a JSON form.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        files::replace(&folder.agent_metadata(), &text, Sync::Process)
    }

    /// The output file of this folder; a stored path is not trusted.
    pub(crate) fn output_file_in(&self, folder: &JobFolder) -> PathBuf {
        folder.agent_output()
    }

    pub fn profile(&self) -> Arc<Profile> {
        Arc::new(self.profile_snapshot.clone())
    }
}

/// The origin of a model that must not be written.
pub(crate) const ONE_OFF: &str = "override";

/// The reasons a result can be partial, by the name that is stored.
const PARTIALS: [&str; 5] = ["max_turns", "budget", "max_tokens", "refused", "api_failure"];

pub(crate) fn known_partial(name: &str) -> &'static str {
    PARTIALS.into_iter().find(|known| *known == name).unwrap_or("partial")
}

/// Of a run under a one-off model, whose name is not stored.
pub(crate) fn unknown_model() -> ModelSelection {
    ModelSelection { provider: ONE_OFF.into(), model: "one-off".into(), level: None }
}

/// Makes the folder of a new run with its first metadata.
pub(crate) fn create(agent: &LocalAgent, workspace: &Path) -> Result<(), FileError> {
    files::create_private_folder(agent.folder.path())?;
    Metadata::of(agent, workspace).write(&agent.folder)
}

/// The files of an ended run: output first, then the metadata that say so (R251).
pub(crate) fn finish(agent: &LocalAgent, workspace: &Path, end: &LocalEnd) -> Result<(), FileError> {
    let text = output_text(end);
    files::replace(&agent.folder.agent_output(), text.as_bytes(), Sync::Process)?;
    // One file under both names: with many agents, files are what an end costs most.
    files::replace_by_name_of(&agent.folder.agent_task_output(), &agent.folder.agent_output())?;
    Metadata::of(agent, workspace).with_end(end).write(&agent.folder)
}

/// R8: the result; after a failure the error, after a stop one fixed line, each with what had been found.
fn output_text(end: &LocalEnd) -> String {
    let head = match (end.cause, &end.error) {
        (EndCause::Finished | EndCause::FinishedPartial, _) => return end.text.clone(),
        (EndCause::Stopped { .. }, _) => STOPPED,
        (_, Some(error)) => error,
        (_, None) => "the run failed",
    };
    if end.text.trim().is_empty() { head.to_owned() } else { format!("{head}\n\nWhat it had found until then:\n{}", end.text) }
}
