//! Shells of the Bash tool: under the same supervisor as everything else, in the foreground too; so a command that is
//! moved to the background is only no longer waited for.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::delegation::{Delegation, SpawnError, launch};
use super::folders::Found;
use super::job::Job;
use super::output;
use super::process::ShellOrder;
use super::registry::Registry;
use crate::config::layout::Stream;
use crate::ids::JobId;
use crate::supervisor::handle::Kept;
use crate::supervisor::record::Requester;
use crate::supervisor::recovery;
use crate::text::fold::Output;

/// How a foreground command may go on when its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtTimeout {
    /// It goes on in the background.
    Move,
    Stop,
}

/// What became of a shell line.
pub enum ShellEnd {
    Finished(Box<ShellResult>),
    /// Ended by its time-out or by a cancel; the output so far.
    Stopped {
        result: Box<ShellResult>,
        cancelled: bool,
    },
    /// Started in the background.
    Background(Box<Job>),
    /// Its time was over; it goes on in the background. The output so far.
    Moved(Box<ShellResult>),
}

pub struct ShellResult {
    pub job: Job,
    pub stdout: Output,
    pub stderr: Output,
}

impl Delegation {
    /// Runs one shell line. `shown_each_end`: bytes of each end of an output that the caller will show; what does not fit
    /// stays on disk, and what fits leaves nothing behind.
    pub async fn run_shell(
        &self,
        order: ShellOrder,
        timeout: Duration,
        at_timeout: AtTimeout,
        shown_each_end: u64,
        cancel: &CancellationToken,
    ) -> Result<ShellEnd, SpawnError> {
        if let Some(at) = order.command.find('\0') {
            return Err(SpawnError::NulInTask { at });
        }
        let background = order.background;
        let inner = self.inner.clone();
        let launched = tokio::task::spawn_blocking(move || {
            launch(&inner.launcher, &inner.starter, JobId::new_shell, |id| Ok(inner.starter.shell(id, order.clone())))
        })
        .await;
        let (started, found) = launched.map_err(|_| SpawnError::Interrupted)??;
        let Found { job, kept } = found;
        let mut guard = StopOnDrop { kept: Some(kept.clone()) };
        self.inner.registry.add(Found { job, kept }, background).await;
        if background {
            guard.kept = None;
            return Ok(ShellEnd::Background(Box::new(started.job)));
        }
        let id = started.id;
        self.wait_for(std::slice::from_ref(&id), timeout, cancel).await;
        let Some(job) = self.inner.registry.get(&id) else { return Err(SpawnError::Interrupted) };
        if !job.is_running() {
            guard.kept = None;
            return Ok(ShellEnd::Finished(Box::new(self.finish(job, shown_each_end).await)));
        }
        let cancelled = cancel.is_cancelled();
        if !cancelled && at_timeout == AtTimeout::Move {
            guard.kept = None;
            let job = self.inner.registry.move_to_background(&id).await.unwrap_or(job);
            return Ok(ShellEnd::Moved(Box::new(read(job, shown_each_end))));
        }
        let requester = if cancelled { Requester::Person } else { Requester::Limit };
        self.stop_job(&id, requester).await;
        guard.kept = None;
        let job = self.inner.registry.get(&id).unwrap_or(job);
        Ok(ShellEnd::Stopped { result: Box::new(self.finish(job, shown_each_end).await), cancelled })
    }

    /// Reads what is shown and removes the folder when that is all there is.
    async fn finish(&self, job: Job, shown_each_end: u64) -> ShellResult {
        let result = read(job, shown_each_end);
        let registry: &Registry = &self.inner.registry;
        let whole = |output: &Output| matches!(output.excerpt, crate::text::fold::Excerpt::Whole(_)) && !output.is_incomplete();
        if whole(&result.stdout) && whole(&result.stderr) && result.job.left_over().is_empty() {
            registry.forget(result.job.id());
            // A folder that stays is only one more for the retention.
            let _ = recovery::remove(&result.job.folder);
        } else {
            registry.keep_silently(&result.job).await;
        }
        result
    }
}

fn read(job: Job, each_end: u64) -> ShellResult {
    let (stdout, _) = output::read(&job, Stream::Stdout, each_end);
    let (stderr, _) = output::read(&job, Stream::Stderr, each_end);
    ShellResult { job, stdout, stderr }
}

/// A call that is dropped while its command runs stops the command's whole tree; its keeper sees to the rest.
struct StopOnDrop {
    kept: Option<Kept>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept {
            // Nobody is left to hear of a failure; the lifeline ends the tree at the latest with this process.
            let _ = kept.request_stop(Requester::Person);
        }
    }
}
