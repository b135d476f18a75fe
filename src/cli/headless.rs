//! The conversation of a headless run, from its first turn to the end of everything it started (R182, R183, R387).

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::agent::event::{TurnCause, TurnEnd};
use crate::agent::inbox::{Delivery, Input};
use crate::app::session::OpenSession;
use crate::cli::output::{Fate, JobLeft};
use crate::cli::run::OnExit;
use crate::cli::signals::Shutdown;
use crate::config::Limits;
use crate::ids::JobKind;
use crate::models::Usage;
use crate::models::one_off::OneOff;
use crate::subagents::Requester;
use crate::subagents::job::JobView;

/// What came out of all turns of a run.
pub struct Conversation {
    pub end: TurnEnd,
    pub jobs_left: Vec<JobLeft>,
    /// The ceiling of the final wait was reached.
    pub ceiling_reached: bool,
}

/// Runs the first turn, then lets ended jobs speak, until nothing runs or the end is wished for.
///
/// `once`: the model of the first turn alone.
pub async fn converse(
    open: &mut OpenSession,
    prompt: Input,
    once: Option<OneOff>,
    on_exit: OnExit,
    limits: &Limits,
    shutdown: &Shutdown,
    person: watch::Receiver<bool>,
) -> Conversation {
    let mut end = match once {
        Some(once) => {
            open.delegation.set_once(Some(once.clone()));
            let end = open.session.turn_with(prompt, once, &shutdown.requested).await;
            open.delegation.set_once(None);
            end
        }
        None => open.session.turn(prompt, &shutdown.requested).await,
    };
    let mut ceiling_reached = false;
    while end.cause == TurnCause::Finished && !shutdown.requested.is_cancelled() {
        // What ended while the model was speaking is told first, whatever happens to the rest.
        if let Some(delivery) = open.session.inbox().take() {
            end = next_turn(open, delivery, shutdown, &end).await;
            continue;
        }
        if on_exit != OnExit::Wait {
            break;
        }
        match wait_for_jobs(open, limits, shutdown, person.clone()).await {
            Waited::NothingRuns | Waited::Stopped => break,
            Waited::SomethingSaid => {}
            Waited::Ceiling => {
                ceiling_reached = true;
                break;
            }
        }
    }
    if end.cause == TurnCause::Budget {
        let_agents_end(open, limits).await;
    }
    let jobs_left = settle(open, on_exit, shutdown, &end).await;
    Conversation { end, jobs_left, ceiling_reached }
}

/// A further turn; its end stands for the whole run, with the numbers of all turns.
async fn next_turn(open: &mut OpenSession, delivery: Delivery, shutdown: &Shutdown, before: &TurnEnd) -> TurnEnd {
    let mut end = open.session.turn(delivery, &shutdown.requested).await;
    if end.text.is_empty() {
        end.text.clone_from(&before.text);
    }
    let mut usage: Usage = before.usage;
    usage += end.usage;
    TurnEnd { usage, steps: before.steps + end.steps, duration: before.duration + end.duration, ..end }
}

enum Waited {
    NothingRuns,
    SomethingSaid,
    Ceiling,
    Stopped,
}

/// Waits until a job's end is in the inbox, or until nothing is left to wait for.
/// `person`: whether a question waits for an answer; that time does not count (R166).
async fn wait_for_jobs(open: &OpenSession, limits: &Limits, shutdown: &Shutdown, mut person: watch::Receiver<bool>) -> Waited {
    let inbox = open.session.inbox();
    let mut ceiling = deadline(limits.exit_wait_max);
    let shells_until = Some(Instant::now() + limits.exit_shell_wait);
    loop {
        let running = open.delegation.running();
        if running.is_empty() {
            // An end is saved before it is told; only then is the inbox the whole truth.
            open.delegation.settled().await;
            return if inbox.is_empty() { Waited::NothingRuns } else { Waited::SomethingSaid };
        }
        let only_shells = running.iter().all(|job| job.kind == JobKind::Shell);
        let until = if only_shells { shells_until } else { ceiling };
        let asked = *person.borrow_and_update();
        let since = Instant::now();
        tokio::select! {
            Ok(()) = person.changed() => {}
            () = shutdown.requested.cancelled() => return Waited::Stopped,
            () = inbox.wait() => return Waited::SomethingSaid,
            () = open.delegation.any_end() => {}
            () = reached(until), if !asked => return if only_shells { Waited::NothingRuns } else { Waited::Ceiling },
        }
        if asked {
            ceiling = ceiling.map(|ceiling| ceiling + since.elapsed());
        }
    }
}

/// The budget has ended this session; it ends its agents too, each with what it has.
async fn let_agents_end(open: &OpenSession, limits: &Limits) {
    let until = tokio::time::Instant::now() + limits.stop_grace * 2;
    while open.delegation.running().iter().any(|job| job.kind != JobKind::Shell) {
        tokio::select! {
            () = open.delegation.any_end() => {}
            () = tokio::time::sleep_until(until) => return,
        }
    }
}

/// Zero means without end.
fn deadline(limit: Duration) -> Option<Instant> {
    (!limit.is_zero()).then(|| Instant::now() + limit)
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Stops or detaches what still runs, and says what happened to it.
async fn settle(open: &OpenSession, on_exit: OnExit, shutdown: &Shutdown, end: &TurnEnd) -> Vec<JobLeft> {
    let delegation = &open.delegation;
    let wished = shutdown.requested.is_cancelled();
    let detaches = on_exit == OnExit::Detach && end.cause == TurnCause::Finished && !wished;
    let requester = if wished { Requester::Person } else { Requester::RunEnd };
    let detached = if detaches { delegation.detach_all() } else { Vec::new() };
    let stopping = async { if detaches { delegation.stop_bound(requester).await } else { delegation.stop_all(requester).await } };
    tokio::pin!(stopping);
    let stopped = tokio::select! {
        stopped = &mut stopping => stopped,
        () = shutdown.hard.cancelled() => {
            // A second request on the same jobs skips the grace time.
            let (stopped, _) = tokio::join!(stopping, delegation.stop_all(Requester::Person));
            stopped
        }
    };
    let left = |job: JobView, fate| JobLeft {
        id: job.id.to_string(),
        kind: kind_word(job.kind).to_owned(),
        title: job.title,
        fate,
        output_path: job.stdout.path.display().to_string(),
    };
    let running_on = detached.into_iter().map(|job| left(job, Fate::LeftRunning));
    running_on.chain(stopped.into_iter().map(|job| left(job, Fate::Stopped))).collect()
}

fn kind_word(kind: JobKind) -> &'static str {
    match kind {
        JobKind::ProcessAgent => "process_agent",
        JobKind::LocalAgent => "local_agent",
        JobKind::Shell => "shell",
    }
}
