//! One hook, one process: under a keeper of its own, in a session without a terminal, with its input as stdin, bounded in
//! time and output, and ended with its whole tree (R161).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::settings::{Action, Hook};
use crate::config::{JobFolder, Limits, Stream};
use crate::files;
use crate::supervisor::handle::Kept;
use crate::supervisor::launch::{Launcher, Order, sealed_memory_file};
use crate::supervisor::plan::{LaunchPlan, OnOwnerDeath, OutputCaps, PLAN_VERSION, Program};
use crate::supervisor::record::{EndRecord, EndedBy, RecordError, Requester};
use crate::supervisor::recovery;

/// Bytes of each output stream that are read (R154); the rest is drained and counted.
pub const OUTPUT_MAX: u64 = 32_768;
/// Between TERM and KILL of a hook whose time is over. Somebody waits for it, so it is shorter than for other processes.
const GRACE: Duration = Duration::from_secs(1);

/// Starts hooks of one session.
#[derive(Clone)]
pub(crate) struct Runner {
    pub launcher: Launcher,
    /// Where the folders of running hooks are made; each goes when its hook has ended.
    pub folder: PathBuf,
    /// Complete, without the marker that the keeper adds.
    pub environment: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub grace: Duration,
    pub drain: Duration,
    pub ack_max: Duration,
    pub retries: u32,
    /// Everything under way, so that a session can wait for it at its end.
    pub tasks: TaskTracker,
}

/// How a hook ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// `cut`: there was more on stdout.
    Exited {
        code: i32,
        stdout: Vec<u8>,
        stderr: Vec<u8>,
        cut: bool,
    },
    Signalled {
        signal: i32,
    },
    TimedOut {
        after: Duration,
    },
    NotStarted {
        reason: String,
    },
    Lost {
        reason: String,
    },
    /// A file that it runs is not the one that was trusted.
    Changed {
        path: PathBuf,
    },
    /// Nobody wants its answer any more.
    Cancelled,
}

impl Runner {
    pub(crate) fn limited(limits: &Limits) -> (Duration, Duration, Duration, u32) {
        (GRACE.min(limits.stop_grace), limits.drain_time, limits.start_ack_max, limits.start_retries)
    }

    /// Runs to the end. When the future is dropped, or `cancel` fires, the process tree is ended; its folder goes either way.
    pub(crate) async fn run(&self, hook: &Hook, input: Vec<u8>, cancel: &CancellationToken) -> Ended {
        let cancel = cancel.child_token();
        let _gone = cancel.clone().drop_guard();
        let (runner, hook) = (self.clone(), hook.clone());
        let task = self.tasks.spawn(async move { runner.run_aside(hook, input, cancel).await });
        task.await.unwrap_or(Ended::Cancelled)
    }

    async fn run_aside(self, hook: Hook, input: Vec<u8>, cancel: CancellationToken) -> Ended {
        let after = hook.timeout;
        let launched = tokio::task::spawn_blocking(move || {
            // As near to the start as can be.
            match hook.pinned.iter().find(|pinned| !pinned.is_unchanged()) {
                Some(changed) => Err(Ended::Changed { path: changed.path.clone() }),
                None => self.launch(&hook, &input).map_err(|reason| Ended::NotStarted { reason }),
            }
        });
        let kept = match launched.await {
            Ok(Ok(kept)) => kept,
            Ok(Err(ended)) => return ended,
            Err(_) => return Ended::Cancelled,
        };
        let end = tokio::select! {
            end = kept.ended() => end,
            () = cancel.cancelled() => kept.stop(Requester::Person).await,
        };
        tokio::task::spawn_blocking(move || finish(kept, end, after)).await.unwrap_or(Ended::Cancelled)
    }

    fn launch(&self, hook: &Hook, input: &[u8]) -> Result<Kept, String> {
        let id = format!("hook_{:016x}", rand::random::<u64>());
        let (program, argv) = match &hook.action {
            Action::Command { line } => {
                let (shell, name) = shell();
                (Program::At(shell.to_owned()), [name, "-c", line].map(OsString::from).to_vec())
            }
            Action::Process { program, arguments } => {
                let argv = std::iter::once(program).chain(arguments).map(OsString::from).collect();
                (Program::At(program.into()), argv)
            }
        };
        let input = sealed_memory_file("hook-input", input).map_err(|error| format!("its input: {error}"))?;
        let order = Order {
            plan: LaunchPlan {
                version: PLAN_VERSION,
                program,
                argv,
                environment: self.environment.clone(),
                cwd: self.cwd.clone(),
                output: OutputCaps { kept_max: OUTPUT_MAX, tail_max: 0 },
                time_limit: Some(hook.timeout),
                grace: self.grace,
                drain: self.drain,
                on_owner_death: OnOwnerDeath::Stop,
                // The user's own programs, or trusted ones; what they guard may be confined.
                confinement: None,
                temporary_below: None,
            },
            folder: JobFolder::new(self.folder.join(&id)),
            owner: serde_json::json!({ "hook": hook.event.name() }),
            id,
            task_file: None,
            stdin: Some(input),
            handover: Vec::new(),
            ack_max: self.ack_max,
            retries: self.retries,
        };
        self.launcher.launch(order).map_err(|error| error.to_string())
    }
}

/// Reads what it said and removes its folder.
fn finish(kept: Kept, end: Result<EndRecord, RecordError>, after: Duration) -> Ended {
    let folder = kept.folder().clone();
    let read = |stream| files::read_bounded(&folder.output(stream), OUTPUT_MAX).unwrap_or_default();
    let ended = match end {
        Err(error) => Ended::Lost { reason: error.to_string() },
        Ok(end) => match (&end.cause, end.wait) {
            (EndedBy::TimeLimit, _) => Ended::TimedOut { after },
            (EndedBy::Stop { .. } | EndedBy::OwnerGone, _) => Ended::Cancelled,
            (EndedBy::Itself, Some(wait)) => match (wait.code, wait.signal) {
                (Some(code), _) => Ended::Exited {
                    code,
                    stdout: read(Stream::Stdout),
                    stderr: read(Stream::Stderr),
                    cut: end.stdout.bytes > end.stdout.kept,
                },
                (None, signal) => Ended::Signalled { signal: signal.unwrap_or_default() },
            },
            (EndedBy::Itself, None) | (EndedBy::KeeperLost, _) => Ended::Lost { reason: "its keeper was ended".to_owned() },
            (EndedBy::KeeperSignal { signal }, _) => Ended::Signalled { signal: *signal },
        },
    };
    // What cannot be removed goes with the next clean-up.
    let _ = recovery::remove(&folder);
    ended
}

fn shell() -> (&'static Path, &'static str) {
    let bash = Path::new("/bin/bash");
    if bash.exists() { (bash, "bash") } else { (Path::new("/bin/sh"), "sh") }
}
