//! The end of a background job becomes at most one notice: what it says, and whether it is still wanted.

use std::sync::{Arc, Weak};

use super::answers::fold_rules;
use super::in_process::partial_in_words;
use super::job::Job;
use super::local::LocalAgent;
use super::output;
use super::registry::Registry;
use super::status::EndCause;
use crate::agent::inbox::Receipt;
use crate::config::Limits;
use crate::config::layout::Stream;
use crate::ids::{JobId, JobKind};
use crate::text::agent_replies::NO_OUTPUT;
use crate::text::incoming::{Notice, NoticeContent, NoticeUsage, framed};
use crate::text::subagent_replies::{TASK_SHORT_MAX, section};
use crate::text::units::{exit_status, one_line};

/// Where the announcement of one end stands. It only moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NoticeState {
    /// Nothing was said yet.
    Open,
    /// A notice waits in the inbox.
    Posted,
    /// The end is known to the model: read by poll, TaskOutput or kill, or the notice is in the history.
    Settled,
}

/// The framed notice about an ended job (decision 24, R262).
pub(crate) fn text(job: &Job, cause: EndCause, limits: &Limits) -> String {
    if let Some(agent) = &job.agent {
        return agent_text(job, agent, cause, limits);
    }
    let kind = job.owner.kind;
    let status = cause.notice_word(kind);
    let (code, signal) = job.exit();
    let reason = cause.detail().unwrap_or_else(|| format!("exit code {}", exit_status(code, signal)));
    let (summary, content) = match kind {
        JobKind::Shell => {
            let how = match cause {
                EndCause::Finished | EndCause::Failed { .. } => format!("exit code {}", exit_status(code, signal)),
                _ => reason,
            };
            (format!("Background command \"{}\" {status} ({how})", title(job)), NoticeContent::Nothing)
        }
        JobKind::ProcessAgent | JobKind::LocalAgent => {
            let head = format!("SubAgent {} task \"{}\" {status}", job.id(), title(job));
            match cause {
                EndCause::Finished => (format!("{head}."), NoticeContent::Result(result(job, limits))),
                EndCause::FinishedPartial => (format!("{head} ({reason})."), NoticeContent::Result(result(job, limits))),
                _ => (format!("{head}: {reason}."), NoticeContent::Error(format!("{reason}\n{}", result(job, limits)))),
            }
        }
    };
    let notice = Notice {
        task_id: job.id().to_string(),
        tool_use_id: job.owner.call_id.clone(),
        output_file: job.output_path(Stream::Stdout).display().to_string(),
        status,
        summary,
        content,
        usage: (kind != JobKind::Shell).then(|| NoticeUsage {
            tokens: None,
            tool_uses: None,
            duration_ms: u64::try_from(job.duration().as_millis()).unwrap_or(u64::MAX),
        }),
    };
    framed(&notice, usize::try_from(limits.notice_max).unwrap_or(usize::MAX))
}

/// R252, R253: the end of a local agent, with its whole result as far as it fits.
fn agent_text(job: &Job, agent: &LocalAgent, cause: EndCause, limits: &Limits) -> String {
    let status = cause.notice_word(JobKind::LocalAgent);
    let head = format!("Agent {} task \"{}\" {status}", agent.agent_type(), title(job));
    let Some(end) = agent.end() else { return head };
    let notes: String = agent.warnings.iter().map(|warning| format!("\n(note: {warning})")).collect();
    let found = if end.text.trim().is_empty() { NO_OUTPUT } else { &end.text };
    let (summary, content) = match cause {
        EndCause::Finished => (format!("{head}."), NoticeContent::Result(format!("{found}{notes}"))),
        EndCause::FinishedPartial => {
            let partial = partial_in_words(&end).unwrap_or_default();
            (format!("{head} (partial: {partial})."), NoticeContent::Result(format!("[Partial result: {partial}]\n{found}{notes}")))
        }
        _ => {
            let reason = end.error.clone().or_else(|| cause.detail()).unwrap_or_else(|| "the run failed".into());
            let found = if end.text.trim().is_empty() { String::new() } else { format!("\nWhat it had found until then:\n{}", end.text) };
            (format!("{head}: {reason}"), NoticeContent::Error(format!("{reason}{found}{notes}")))
        }
    };
    let tokens = end.totals.usage.total();
    let notice = Notice {
        task_id: job.id().to_string(),
        tool_use_id: job.owner.call_id.clone(),
        output_file: agent.folder.agent_output().display().to_string(),
        status,
        summary,
        content,
        usage: Some(NoticeUsage {
            tokens: (tokens > 0).then_some(tokens),
            tool_uses: Some(end.totals.tool_uses),
            duration_ms: end.totals.duration_ms,
        }),
    };
    framed(&notice, usize::try_from(limits.notice_max).unwrap_or(usize::MAX))
}

fn title(job: &Job) -> String {
    one_line(&job.owner.title, 2 * TASK_SHORT_MAX)
}

/// Folded as in `poll`, so that many ends at once stay small (fault B10).
fn result(job: &Job, limits: &Limits) -> String {
    let rules = fold_rules(limits);
    let (stdout, _) = output::read(job, Stream::Stdout, limits.fold_each_end);
    let (stderr, _) = output::read(job, Stream::Stderr, limits.fold_each_end);
    let mut text = section("stdout", &stdout, rules);
    if !stderr.is_empty() && job.cause() != Some(EndCause::Finished) {
        text.push('\n');
        text.push_str(&section("stderr", &stderr, rules));
    }
    text
}

/// Ties a posted notice to its job: dropped when the end was read meanwhile, settled when it is in the history (R257).
pub(crate) struct JobReceipt {
    pub registry: Weak<Registry>,
    pub id: JobId,
}

impl Receipt for JobReceipt {
    fn still_wanted(&self) -> bool {
        self.registry.upgrade().is_some_and(|registry| registry.notice_state(&self.id) == Some(NoticeState::Posted))
    }

    fn delivered(&self) {
        if let Some(registry) = self.registry.upgrade() {
            registry.settle_notices(std::slice::from_ref(&self.id));
        }
    }
}

pub(crate) fn receipt(registry: &Arc<Registry>, id: &JobId) -> Arc<dyn Receipt> {
    Arc::new(JobReceipt { registry: Arc::downgrade(registry), id: id.clone() })
}
