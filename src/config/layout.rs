//! The only place that knows the name of a folder or file of ours.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::ids::{JobId, JobKind, SessionId};

/// Of the digest of a project's path, enough that no two projects meet.
const DIGEST_BYTES: usize = 16;
/// Letters of a project's name that its file has, for people.
const NAME_MAX: usize = 40;

/// Everything below the storage root (`~/.zapmyco` or `ZAPMYCO_HOME`, R1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// `root` must be absolute; `Environment` sees to that.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn database(&self) -> PathBuf {
        self.root.join("zapmyco.db")
    }

    pub fn user_settings(&self) -> PathBuf {
        self.root.join("settings.toml")
    }

    /// The user's own settings for one project: what a person has answered there for good. Not in the project, since
    /// what a repository could bring along must not widen rights.
    pub fn user_settings_for(&self, project: &Path) -> PathBuf {
        let digest = Sha256::digest(project.as_os_str().as_encoded_bytes());
        let digest: String = digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let name: String = project.file_name().unwrap_or_default().to_string_lossy().chars().take(NAME_MAX).collect();
        let name: String = name.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' }).collect();
        self.root.join("projects").join(format!("{name}-{digest}.toml"))
    }

    pub fn user_instructions(&self) -> PathBuf {
        self.root.join("AGENTS.md")
    }

    /// The user's own profiles of agents (R56).
    pub fn user_profiles(&self) -> PathBuf {
        self.root.join("agents")
    }

    /// The user's own skills (R144).
    pub fn user_skills(&self) -> PathBuf {
        self.root.join("skills")
    }

    /// Memory of profiles that belongs to the user, a folder per profile (R265).
    pub fn agent_memory(&self) -> PathBuf {
        self.root.join("agent-memory")
    }

    /// Memory of the main sessions of one project (R276).
    pub fn project_memory(&self, project: &str) -> PathBuf {
        self.root.join("projects").join(project).join("memory")
    }

    /// The work tree of a child that has one of its own (R88).
    pub fn worktree(&self, id: &JobId) -> PathBuf {
        self.root.join("worktrees").join(id.as_str())
    }

    /// Held while work trees of one repository are added or removed.
    pub fn worktree_lock(&self, repository: &str) -> PathBuf {
        self.root.join("locks/worktrees").join(repository)
    }

    /// Which user profiles are disabled, and model choices for built-in and plugin profiles (R68).
    pub fn agents_state(&self) -> PathBuf {
        self.root.join("v2/agents-state.json")
    }

    /// Shared rate gates, one file per provider and key.
    pub fn gate_folder(&self) -> PathBuf {
        self.root.join("gate")
    }

    /// Locks of main sessions: one process at a time holds a session.
    pub fn session_lock(&self, session: &SessionId) -> PathBuf {
        self.root.join("locks").join(session.as_str())
    }

    /// Held while a command of a script waits to start a subagent in the session. No session is named `spawn`.
    pub fn spawn_lock(&self, session: &SessionId) -> PathBuf {
        self.root.join("locks/spawn").join(session.as_str())
    }

    /// What a person has trusted in projects, a file per project.
    pub fn trust(&self) -> PathBuf {
        self.root.join("trust")
    }

    /// `digest`: of the project's path.
    pub fn trust_of(&self, digest: &str) -> PathBuf {
        self.trust().join(format!("{digest}.json"))
    }

    /// Held while a decision is recorded.
    pub fn trust_lock(&self) -> PathBuf {
        self.trust().join("lock")
    }

    /// What a session's hooks need while it is open: a folder per running hook, and transcripts.
    pub fn session_hooks(&self, session: &SessionId) -> PathBuf {
        self.hooks().join(session.as_str())
    }

    /// The folders of all sessions with hooks.
    pub fn hooks(&self) -> PathBuf {
        self.root.join("hooks")
    }

    /// The conversation of `session`, a child of `main` or itself, for hooks to read.
    pub fn hook_transcript(&self, main: &SessionId, session: &SessionId) -> PathBuf {
        self.session_hooks(main).join(format!("{session}.jsonl"))
    }

    /// Its time of change tells when old jobs were last cleared away.
    pub fn retention_mark(&self) -> PathBuf {
        self.root.join("retention")
    }

    /// The folders that hold a folder per session, which holds a folder per job.
    pub fn job_roots(&self) -> [(JobKind, PathBuf); 2] {
        [(JobKind::ProcessAgent, self.root.join("subagents")), (JobKind::Shell, self.root.join("shells"))]
    }

    /// All jobs of one kind of one session. Local agents have no job folder of this form.
    pub fn session_jobs(&self, kind: JobKind, session: &SessionId) -> PathBuf {
        let kind = match kind {
            JobKind::ProcessAgent => "subagents",
            JobKind::Shell => "shells",
            JobKind::LocalAgent => "cli/agents",
        };
        self.root.join(kind).join(session.as_str())
    }

    /// The folder that holds a folder per session with its local agents.
    pub fn agents_root(&self) -> PathBuf {
        self.root.join("cli/agents")
    }

    /// What other processes ask of the one that runs the local agents of a session. No agent is named so.
    pub fn agent_requests(&self, session: &SessionId) -> PathBuf {
        self.session_jobs(JobKind::LocalAgent, session).join("requests")
    }

    pub fn job(&self, session: &SessionId, job: &JobId) -> JobFolder {
        JobFolder::new(self.session_jobs(job.kind(), session).join(job.as_str()))
    }
}

/// The project's own files, below the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectLayout {
    workspace: PathBuf,
}

impl ProjectLayout {
    pub fn new(workspace: PathBuf) -> Self {
        Self { workspace }
    }

    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    pub fn settings(&self) -> PathBuf {
        self.workspace.join(".zapmyco/settings.toml")
    }

    pub fn private_settings(&self) -> PathBuf {
        self.workspace.join(".zapmyco/settings.local.toml")
    }

    /// Memory of profiles that is shared through version control (R266).
    pub fn agent_memory(&self) -> PathBuf {
        self.workspace.join(".zapmyco/agent-memory")
    }

    /// Memory of profiles that stays on this machine (R267).
    pub fn private_agent_memory(&self) -> PathBuf {
        self.workspace.join(".zapmyco/agent-memory-local")
    }

    /// The project's profiles of agents (R57).
    pub fn profiles(&self) -> PathBuf {
        self.workspace.join(".zapmyco/agents")
    }

    /// The project's skills (R144).
    pub fn skills(&self) -> PathBuf {
        self.workspace.join(".zapmyco/skills")
    }
}

/// Folders below a home or project folder in which other programs keep profiles that we read too, from the one that
/// gives way to the one that wins (R58).
pub fn foreign_profile_folders(base: &Path) -> [PathBuf; 2] {
    [base.join(".claude/agents"), base.join(".zcode/agents")]
}

/// As [`foreign_profile_folders`], for skills (R144).
pub fn foreign_skill_folders(base: &Path) -> [PathBuf; 2] {
    [base.join(".claude/skills"), base.join(".agents/skills")]
}

/// What a skill's folder holds; other files beside it belong to the skill.
pub const SKILL_FILE: &str = "SKILL.md";

/// Where a plugin keeps its profiles (R61).
pub fn plugin_profiles(plugin_root: &Path) -> PathBuf {
    plugin_root.join("agents")
}

/// The root of the repository that holds `folder`: the nearest folder up with a `.git` in it.
pub fn repository_root(folder: &Path) -> Option<&Path> {
    folder.ancestors().find(|ancestor| ancestor.join(".git").exists())
}

/// The ignore list of the repository at `root` that is not shared. In a linked work tree `.git` is a file that names the
/// real folder, which names the common one.
pub fn private_ignore_list(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    let named = |file: PathBuf, prefix: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        Some(PathBuf::from(text.trim().strip_prefix(prefix)?.trim()))
    };
    let git = if git.is_dir() { git } else { root.join(named(git, "gitdir:")?) };
    let common = named(git.join("commondir"), "").map_or(git.clone(), |common| git.join(common));
    Some(common.join("info/exclude"))
}

/// The folder of one supervised process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFolder {
    path: PathBuf,
}

/// Which of the two output streams of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl JobFolder {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Written by the launcher before the keeper exists.
    pub fn spec(&self) -> PathBuf {
        self.path.join("spec.json")
    }

    /// Held by the keeper for its life.
    pub fn lock(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// State, identities and counts; replaced by the keeper.
    pub fn status(&self) -> PathBuf {
        self.path.join("status.json")
    }

    /// The end record, its space reserved from the start.
    pub fn end(&self) -> PathBuf {
        self.path.join("end.json")
    }

    /// Cause of the first stop request; created by whoever asks.
    pub fn stop(&self) -> PathBuf {
        self.path.join("stop.json")
    }

    /// A task too long for one argument.
    pub fn task(&self) -> PathBuf {
        self.path.join("task.txt")
    }

    /// The first bytes of a stream, up to the cap.
    pub fn output(&self, stream: Stream) -> PathBuf {
        self.path.join(match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        })
    }

    /// What a local agent is and how it ended (R7, R9).
    pub fn agent_metadata(&self) -> PathBuf {
        self.path.join("metadata.json")
    }

    /// A local agent's text: what was found so far, at the end the result.
    pub fn agent_output(&self) -> PathBuf {
        self.path.join("output.txt")
    }

    /// The same text under the name other programs know.
    pub fn agent_task_output(&self) -> PathBuf {
        self.path.join("task.output")
    }

    /// The last bytes of a stream beyond the cap: two segments written in turn (`segment` is 0 or 1).
    pub fn output_tail(&self, stream: Stream, segment: u8) -> PathBuf {
        let name = match stream {
            Stream::Stdout => "stdout.tail",
            Stream::Stderr => "stderr.tail",
        };
        self.path.join(format!("{name}{segment}"))
    }
}
