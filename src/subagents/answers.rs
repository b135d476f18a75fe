//! What is answered about each asked id, and how it becomes what the fixed formats need.

use super::job::{Job, JobState};
use super::output;
use super::status::EndCause;
use crate::config::Limits;
use crate::config::layout::Stream;
use crate::text::subagent_replies::{self, EndedBlock, FoldRules, Killed, Listed, ListedState, Polled, RunningLine};

/// What was found about one asked id.
pub enum Asked {
    Unknown(String),
    Found(Box<Job>),
    /// Its folder cannot be read.
    Broken {
        id: String,
        reason: String,
    },
}

/// What became of one id that was to be ended.
pub enum Ended {
    Unknown(String),
    Before(Box<Job>),
    Now(Box<Job>),
    Failed { id: String, reason: String },
}

impl Ended {
    /// After a stop request: the record tells whether it was the request that ended the job (R376).
    pub(crate) fn now_or_before(job: Job) -> Self {
        match job.cause() {
            Some(EndCause::Stopped { .. }) => Ended::Now(Box::new(job)),
            _ => Ended::Before(Box::new(job)),
        }
    }
}

/// Each text once, in order of first appearance (decision 24).
pub(crate) fn once(ids: &[String]) -> impl Iterator<Item = &str> {
    let mut seen = std::collections::HashSet::new();
    ids.iter().map(String::as_str).filter(move |id| seen.insert(*id))
}

/// The whole reply of `poll`.
pub fn poll_text(answers: &[Asked], limits: &Limits) -> String {
    let entries: Vec<Polled> = answers
        .iter()
        .map(|answer| match answer {
            Asked::Unknown(text) => Polled::Unknown(text.clone()),
            Asked::Found(job) => polled(job, limits),
            Asked::Broken { id, reason } => Polled::Broken { id: id.clone(), reason: reason.clone() },
        })
        .collect();
    subagent_replies::polled(&entries, fold_rules(limits))
}

/// The whole reply of `list`.
pub fn list_text(jobs: &[Job]) -> String {
    subagent_replies::listed(&jobs.iter().map(listed).collect::<Vec<_>>())
}

/// The whole reply of `kill`.
pub fn kill_text(outcomes: &[Ended]) -> String {
    let lines: Vec<Killed> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ended::Unknown(text) => Killed::Unknown(text.clone()),
            Ended::Before(job) => Killed::AlreadyEnded { id: job.id().to_string(), status: job.word() },
            Ended::Now(job) => cancelled(job),
            Ended::Failed { id, reason } => Killed::Failed { id: id.clone(), reason: reason.clone() },
        })
        .collect();
    subagent_replies::killed(&lines)
}

pub fn fold_rules(limits: &Limits) -> FoldRules {
    FoldRules { each_end: usize::try_from(limits.fold_each_end).unwrap_or(usize::MAX), shown_max: limits.output_shown_max }
}

/// One entry of a `poll` reply; reads the ends of the output of an ended job.
fn polled(job: &Job, limits: &Limits) -> Polled {
    match &job.state {
        JobState::Running { .. } | JobState::Waiting { .. } => {
            Polled::Running(RunningLine { task: job.task_line(), waited: job.duration() })
        }
        JobState::Ended { cause, record, .. } => {
            let (stdout, stdout_error) = output::read(job, Stream::Stdout, limits.fold_each_end);
            let (stderr, stderr_error) = output::read(job, Stream::Stderr, limits.fold_each_end);
            let (code, signal) = job.exit();
            Polled::Ended(Box::new(EndedBlock {
                id: job.id().to_string(),
                status: cause.tool_word(),
                code,
                signal,
                duration: job.duration(),
                cause: cause.detail(),
                stdout,
                stderr,
                output_error: record.output_error.clone().or(stdout_error).or(stderr_error),
                left_over: left_over(job),
            }))
        }
    }
}

/// One entry of `list`.
fn listed(job: &Job) -> Listed {
    let state = match &job.state {
        JobState::Running { .. } | JobState::Waiting { .. } => ListedState::Running { since: job.duration() },
        JobState::Ended { cause, .. } => {
            let (code, signal) = job.exit();
            ListedState::Ended {
                status: cause.tool_word(),
                shown_exit: cause.shows_exit().then(|| code.or(signal.map(|signal| 128 + signal))).flatten(),
                lost: cause.tool_word() == "lost",
                duration: job.duration(),
            }
        }
    };
    Listed { id: job.id().to_string(), task: job.task_line(), state }
}

/// One line of `kill` for a job that this request ended.
fn cancelled(job: &Job) -> Killed {
    let JobState::Ended { pid, record, .. } = &job.state else {
        return Killed::Failed { id: job.id().to_string(), reason: "still running".into() };
    };
    let told = |name: &&String| matches!(name.as_str(), "SIGTERM" | "SIGKILL");
    Killed::Cancelled {
        id: job.id().to_string(),
        pid: pid.unwrap_or_default(),
        signals: record.signals.iter().filter(told).cloned().collect(),
        left_over: left_over(job),
    }
}

fn left_over(job: &Job) -> Vec<(u32, String)> {
    job.left_over().iter().map(|left| (left.pid, left.state.clone())).collect()
}
