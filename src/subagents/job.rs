//! A job: what its owner wrote into `spec.json`, what is known of it now, and its one shape in JSON.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Local};
use serde::{Deserialize, Serialize};

use super::local::LocalAgent;
use super::status::EndCause;
use crate::clock;
use crate::config::layout::{JobFolder, Stream};
use crate::files::{self, any_path, shown_path};
use crate::ids::{JobId, JobKind, SessionId};
use crate::permissions::sandbox::SandboxReport;
use crate::supervisor::record::{EndRecord, LeftOver, StreamCount};
use crate::text::subagent_replies::TASK_LINE_MAX;
use crate::text::units::one_line;

/// The owner's part of `spec.json`: what makes the folder alone enough to know the job again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobOwner {
    pub version: u32,
    pub id: JobId,
    /// The session that started it.
    pub session: SessionId,
    pub kind: JobKind,
    /// The first line of the task, or a person's words for it; at most 80 characters.
    pub title: String,
    /// The task of a subagent or the command of a shell; empty when it is too long and stands in `task.txt`.
    pub task: String,
    /// Always `zapmyco` for a process agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cli: Option<String>,
    #[serde(with = "any_path")]
    pub cwd: PathBuf,
    pub time_limit_ms: Option<u64>,
    /// The model's call that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Runs beside the conversation, so its end is announced. Told anew when a shell is moved (`Job::background`).
    pub background: bool,
    /// What holds a shell's commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
}

pub const OWNER_VERSION: u32 = 1;

impl JobOwner {
    /// `task_max`: bytes of the task kept in `spec.json`.
    pub(crate) fn shorten(title: &str, task: &str, task_max: usize) -> (String, String) {
        (first_line(title), if task.len() <= task_max { task.to_owned() } else { String::new() })
    }
}

/// Longest title, in characters.
const TITLE_MAX: usize = 80;
/// Bytes of a long task that are read for its one line: enough for 200 characters among much white space.
const TASK_READ_MAX: u64 = 4 * 1024;

/// What a job is called where there is one line for it: its first line, with a mark where there is more.
fn first_line(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    if lines.next().is_none() {
        one_line(first, TITLE_MAX)
    } else {
        format!("{}…", one_line(first, TITLE_MAX - 1).trim_end_matches('…'))
    }
}

/// What is known of a job at one moment.
#[derive(Clone, Debug)]
pub struct Job {
    pub owner: Arc<JobOwner>,
    pub created_at: DateTime<Local>,
    pub folder: JobFolder,
    pub state: JobState,
    /// The living side of a local agent; `None` for the two kinds of processes.
    pub agent: Option<Arc<LocalAgent>>,
}

#[derive(Clone, Debug)]
pub enum JobState {
    /// A local agent that waits for a free place.
    Waiting {
        since: DateTime<Local>,
    },
    Running {
        /// The payload's process number; `None` while it is being started.
        pid: Option<u32>,
        started_at: DateTime<Local>,
        stdout: StreamCount,
        stderr: StreamCount,
    },
    Ended {
        pid: Option<u32>,
        cause: EndCause,
        record: Arc<EndRecord>,
    },
}

impl Job {
    pub fn id(&self) -> &JobId {
        &self.owner.id
    }

    /// The task as `poll` and `list` show it: all of it folded into one line of at most 200 characters (F2, F3).
    pub fn task_line(&self) -> String {
        let stored = self.owner.task.as_str();
        if !stored.trim().is_empty() {
            return one_line(stored, TASK_LINE_MAX);
        }
        let long =
            files::read_start(&self.folder.task(), TASK_READ_MAX).map(|bytes| one_line(&String::from_utf8_lossy(&bytes), TASK_LINE_MAX));
        long.ok().filter(|line| !line.is_empty()).unwrap_or_else(|| self.owner.title.clone())
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, JobState::Running { .. } | JobState::Waiting { .. })
    }

    pub fn cause(&self) -> Option<EndCause> {
        match self.state {
            JobState::Running { .. } | JobState::Waiting { .. } => None,
            JobState::Ended { cause, .. } => Some(cause),
        }
    }

    /// The word in the tool and in JSON.
    pub fn word(&self) -> &'static str {
        match self.state {
            JobState::Waiting { .. } => "waiting",
            JobState::Running { .. } => "running",
            JobState::Ended { cause, .. } => cause.tool_word(),
        }
    }

    /// The file that holds one stream of its output; a local agent has one text.
    pub fn output_path(&self, stream: Stream) -> PathBuf {
        match self.owner.kind {
            JobKind::LocalAgent => self.folder.agent_output(),
            JobKind::ProcessAgent | JobKind::Shell => self.folder.output(stream),
        }
    }

    pub fn pid(&self) -> Option<u32> {
        match self.state {
            JobState::Running { pid, .. } | JobState::Ended { pid, .. } => pid,
            JobState::Waiting { .. } => None,
        }
    }

    pub fn started_at(&self) -> DateTime<Local> {
        match &self.state {
            JobState::Running { started_at, .. } | JobState::Waiting { since: started_at } => *started_at,
            JobState::Ended { record, .. } => record.started_at,
        }
    }

    /// Of an ended job fixed for ever; of a running one the time since its start.
    pub fn duration(&self) -> Duration {
        match &self.state {
            JobState::Running { started_at, .. } | JobState::Waiting { since: started_at } => {
                (clock::now() - *started_at).to_std().unwrap_or_default()
            }
            JobState::Ended { record, .. } => Duration::from_millis(record.duration_ms),
        }
    }

    pub fn count(&self, stream: Stream) -> StreamCount {
        match (&self.state, stream) {
            (JobState::Waiting { .. }, _) => StreamCount::default(),
            (JobState::Running { stdout, .. }, Stream::Stdout) => *stdout,
            (JobState::Running { stderr, .. }, Stream::Stderr) => *stderr,
            (JobState::Ended { record, .. }, Stream::Stdout) => record.stdout,
            (JobState::Ended { record, .. }, Stream::Stderr) => record.stderr,
        }
    }

    /// Exit code and signal, as far as they are known. The signal is also named where our own program caught it and
    /// reports it by its code.
    pub fn exit(&self) -> (Option<i32>, Option<i32>) {
        match &self.state {
            JobState::Running { .. } | JobState::Waiting { .. } => (None, None),
            JobState::Ended { cause, record, .. } => match (record.wait, cause) {
                (Some(wait), EndCause::KilledOutside { signal }) => (wait.code, Some(*signal)),
                (Some(wait), _) => (wait.code, wait.signal),
                (None, _) => (None, None),
            },
        }
    }

    /// Why the output on disk is not complete, beyond the caps.
    pub fn output_error(&self) -> Option<&str> {
        match &self.state {
            JobState::Running { .. } | JobState::Waiting { .. } => None,
            JobState::Ended { record, .. } => record.output_error.as_deref(),
        }
    }

    /// Processes that the payload had left running, and that were ended with it.
    pub fn swept(&self) -> u32 {
        match &self.state {
            JobState::Running { .. } | JobState::Waiting { .. } => 0,
            JobState::Ended { record, .. } => record.swept,
        }
    }

    /// What is left of this job. What a record leaves open on every job of a system is in the view only.
    pub fn left_over(&self) -> &[LeftOver] {
        match self.recorded_left_over() {
            [of_job @ .., last] if last.is_of_system() => of_job,
            all => all,
        }
    }

    fn recorded_left_over(&self) -> &[LeftOver] {
        match &self.state {
            JobState::Running { .. } | JobState::Waiting { .. } => &[],
            JobState::Ended { record, .. } => &record.left_over,
        }
    }

    pub fn view(&self) -> JobView {
        let stream = |stream| {
            let count = self.count(stream);
            StreamView { path: self.output_path(stream), bytes: count.bytes, kept: count.kept }
        };
        let (code, signal) = self.exit();
        let cause = self.cause();
        JobView {
            schema_version: JOB_VIEW_VERSION,
            id: self.owner.id.clone(),
            kind: self.owner.kind,
            session: self.owner.session.clone(),
            title: self.owner.title.clone(),
            status: self.word().to_owned(),
            end_cause: cause.map(|cause| cause.name().to_owned()),
            exit_code: code.or(signal.map(|signal| 128 + signal)),
            signal: signal.map(crate::text::units::signal_name),
            pid: self.pid(),
            started_at: self.started_at(),
            ended_at: match &self.state {
                JobState::Running { .. } | JobState::Waiting { .. } => None,
                JobState::Ended { record, .. } => Some(record.ended_at),
            },
            duration_ms: u64::try_from(self.duration().as_millis()).unwrap_or(u64::MAX),
            stdout: stream(Stream::Stdout),
            stderr: stream(Stream::Stderr),
            left_over: self
                .recorded_left_over()
                .iter()
                .map(|left| LeftOverView { pid: left.pid, state: left.state.clone(), command: left.command.clone() })
                .collect(),
            sandbox: self.owner.sandbox.clone(),
        }
    }
}

/// The one shape of a job in JSON: commands, `subagent --json`, streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    pub schema_version: u32,
    pub id: JobId,
    pub kind: JobKind,
    pub session: SessionId,
    pub title: String,
    /// `waiting` (a local agent without a place yet), `running`, `completed`, `error`, `timeout`, `cancelled`, `lost`.
    pub status: String,
    /// The name of the cause; `null` while it runs.
    pub end_cause: Option<String>,
    /// 128 + n when a signal ended it.
    pub exit_code: Option<i32>,
    pub signal: Option<String>,
    /// Of the payload, never of its keeper.
    pub pid: Option<u32>,
    pub started_at: DateTime<Local>,
    pub ended_at: Option<DateTime<Local>>,
    pub duration_ms: u64,
    pub stdout: StreamView,
    pub stderr: StreamView,
    /// What could not be ended.
    pub left_over: Vec<LeftOverView>,
    /// What holds a shell's commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
}

pub const JOB_VIEW_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamView {
    #[serde(with = "shown_path")]
    pub path: PathBuf,
    /// Written by the payload.
    pub bytes: u64,
    /// Of those, on disk.
    pub kept: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOverView {
    pub pid: u32,
    pub state: String,
    pub command: String,
}

/// The shape of a list of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobList {
    pub jobs: Vec<JobView>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored sample of the shape that scripts depend on (decision 21).
    const SAMPLE: &str = r#"{
  "schema_version": 1,
  "id": "sa_20260606_a1b2c3d4",
  "kind": "process_agent",
  "session": "name_ci-1",
  "title": "scan the parser",
  "status": "error",
  "end_cause": "fault_signal",
  "exit_code": 139,
  "signal": "SIGSEGV",
  "pid": 4711,
  "started_at": "2026-06-06T15:30:00.123456Z",
  "ended_at": "2026-06-06T15:30:45.123456Z",
  "duration_ms": 45000,
  "stdout": { "path": "/r/subagents/name_ci-1/sa_20260606_a1b2c3d4/stdout", "bytes": 12, "kept": 12 },
  "stderr": { "path": "/r/subagents/name_ci-1/sa_20260606_a1b2c3d4/stderr", "bytes": 0, "kept": 0 },
  "left_over": []
}"#;

    /// R388
    #[test]
    fn the_json_shape_of_a_job_is_the_stored_one() {
        let started_at = DateTime::parse_from_rfc3339("2026-06-06T15:30:00.123456Z").unwrap().with_timezone(&Local);
        let record = EndRecord {
            version: crate::supervisor::record::RECORD_VERSION,
            cause: crate::supervisor::record::EndedBy::Itself,
            wait: Some(crate::supervisor::record::WaitStatus { code: None, signal: Some(11), core_dumped: false }),
            started_at,
            ended_at: started_at + Duration::from_secs(45),
            duration_ms: 45_000,
            stdout: StreamCount { bytes: 12, kept: 12, lines: 1 },
            stderr: StreamCount::default(),
            signals: Vec::new(),
            swept: 0,
            left_over: Vec::new(),
            output_error: None,
        };
        let id = JobId::parse("sa_20260606_a1b2c3d4").unwrap();
        let session = SessionId::parse("name_ci-1").unwrap();
        let job = Job {
            owner: Arc::new(JobOwner {
                version: OWNER_VERSION,
                id: id.clone(),
                session: session.clone(),
                kind: JobKind::ProcessAgent,
                title: "scan the parser".into(),
                task: String::new(),
                cli: None,
                cwd: "/p".into(),
                time_limit_ms: None,
                call_id: None,
                background: true,
                sandbox: None,
            }),
            created_at: started_at,
            folder: crate::config::Layout::new("/r".into()).job(&session, &id),
            state: JobState::Ended {
                pid: Some(4711),
                cause: EndCause::from_record(JobKind::ProcessAgent, &record),
                record: Arc::new(record),
            },
            agent: None,
        };
        let sample: JobView = serde_json::from_str(SAMPLE).unwrap();
        assert_eq!(job.view(), sample);
        let names = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let stored: serde_json::Value = serde_json::from_str(SAMPLE).unwrap();
        assert_eq!(names(&serde_json::to_value(job.view()).unwrap()), names(&stored));
    }
}
