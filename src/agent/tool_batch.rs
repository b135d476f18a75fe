//! One batch of calls: which tool, order, concurrency, and the size of the results. Permission is each call's own
//! business (`call.rs`).
//!
//! Whatever happens, every call gets exactly one result, in the order of the calls: a refused, unknown, failed, panicking
//! or cancelled call is a result the model can read.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::announcer::Announcer;
use crate::agent::call::{Around, Done, Outcome, Work, context_of, need_of};
use crate::agent::event::EventKind;
use crate::agent::malformed_input;
use crate::agent::places::Places;
use crate::agent::shorten::{fair_share, shortened};
use crate::agent::state::SessionState;
use crate::agent::tool::{FailureKind, ToolBox};
use crate::config::Limits;
use crate::hooks::SessionHooks;
use crate::ids::SessionId;
use crate::permissions::approval::Approver;
use crate::permissions::decide::Policy;
use crate::spelling::distance;
use crate::store::{Store, StoreError};

/// Kind of the log record that keeps a finished call's result until the whole batch is saved.
pub(crate) const CALL_RESULT: &str = "call_result";
/// After a stop a call may use `stop_grace` for its processes and this many times `drain_time` to hand over what it has.
const DRAINS: u32 = 4;
/// All results of one batch together may have this many times the size of one.
const BATCH_FACTOR: u64 = 4;
/// Letters of an unknown name that are compared.
const NAME_MAX: usize = 100;
const CANCELLED_RUNNING: &str = "Cancelled: the turn was stopped before this call ended; it may have taken effect in part.";
const CANCELLED_WAITING: &str = "Cancelled: the turn was stopped before this call was started; it had no effect.";
/// Characters of a result that observers see.
const PREVIEW_MAX: usize = 200;

/// One call of the model.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub id: String,
    pub name: String,
    pub input: Value,
}

/// How one call ended.
#[derive(Clone, Debug)]
pub(crate) struct CallEnd {
    pub id: String,
    /// The tool's own name where the call used an alias.
    pub name: String,
    pub text: String,
    pub is_error: bool,
    /// Permission was refused; the text says why.
    pub denied: bool,
}

/// What a batch needs of its session.
pub(crate) struct Batch<'a> {
    pub session: &'a SessionId,
    pub cwd: &'a Path,
    pub toolbox: &'a ToolBox,
    pub policy: &'a Arc<Policy>,
    pub approver: &'a Arc<dyn Approver>,
    /// No person, script or parent has spoken in this turn.
    pub only_peers_spoke: bool,
    pub state: &'a Arc<SessionState>,
    pub limits: &'a Limits,
    pub announcer: &'a Announcer,
    pub store: &'a Store,
    pub cancel: &'a CancellationToken,
    pub hooks: &'a SessionHooks,
    /// Set when hooks end the turn: no further call is started then.
    pub stopped: &'a Arc<OnceLock<String>>,
}

/// What became of the attempt to start a call.
enum Started {
    Running,
    Refused(CallEnd),
    /// It cannot run beside those that run now.
    MustWait,
}

/// Calls under way.
#[derive(Default)]
struct Running {
    tasks: JoinSet<Done>,
    /// Place of each in the batch.
    calls: HashMap<Id, usize>,
}

impl Batch<'_> {
    /// Runs all calls. An error means that the session cannot be saved; calls under way are then given up.
    pub async fn run(&self, calls: &[Call]) -> Result<Vec<CallEnd>, StoreError> {
        let around = Arc::new(self.around());
        let mut ends: Vec<Option<CallEnd>> = vec![None; calls.len()];
        let mut running = Running::default();
        let mut next = 0;
        let mut given_up_at: Option<Instant> = None;
        loop {
            while next < calls.len() && given_up_at.is_none() && !self.cancel.is_cancelled() && self.stopped.get().is_none() {
                match self.start(next, &calls[next], &around, &mut running).await? {
                    Started::Running => {}
                    Started::Refused(end) => {
                        self.announce_end(&calls[next], &end, Duration::ZERO, None, calls.len()).await?;
                        ends[next] = Some(end);
                    }
                    Started::MustWait => break,
                }
                next += 1;
            }
            if running.tasks.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                Some(joined) = running.tasks.join_next_with_id() => {
                    if let Some((place, Done { outcome, ran })) = running.ended(joined) {
                        let (end, structured) = self.end_of(&calls[place], outcome)?;
                        self.announce_end(&calls[place], &end, ran, structured, calls.len()).await?;
                        ends[place] = Some(end);
                    }
                }
                () = self.cancel.cancelled(), if given_up_at.is_none() => {
                    given_up_at = Some(Instant::now() + self.limits.stop_grace + self.limits.drain_time * DRAINS);
                }
                // Leaving the loop drops the tasks, which ends them.
                () = until(given_up_at), if given_up_at.is_some() => break,
                // A call that waits for a person has given its place away.
                () = around.places.changed() => {}
            }
        }
        let started = next;
        self.close(calls, ends, started).await
    }

    fn around(&self) -> Around {
        Around {
            session: self.session.clone(),
            cwd: self.cwd.to_owned(),
            policy: Arc::clone(self.policy),
            approver: Arc::clone(self.approver),
            announcer: self.announcer.clone(),
            only_peers_spoke: self.only_peers_spoke,
            state: Arc::clone(self.state),
            places: Places::new(self.limits.tool_concurrency as usize),
            hooks: self.hooks.clone(),
            stopped: Arc::clone(self.stopped),
        }
    }

    /// Starts one call in a task of its own, or tells at once that it cannot be run.
    async fn start(&self, index: usize, call: &Call, around: &Arc<Around>, running: &mut Running) -> Result<Started, StoreError> {
        let Some(tool) = self.toolbox.find(&call.name) else {
            return self.refuse(call, &call.name, self.unknown_tool(&call.name)).await;
        };
        let name = &tool.spec().declaration.name;
        if !call.input.is_object() {
            return self.refuse(call, name, malformed_input::described(name, &call.input)).await;
        }
        let cancel = self.cancel.child_token();
        // Own code, but run for every call: a fault in it must not end the session.
        let effect = || catch_unwind(AssertUnwindSafe(|| tool.effect(&call.input, &context_of(around, call, &cancel)))).ok()?.ok();
        let Some(place) = around.places.try_take(need_of(tool.as_ref()), effect) else { return Ok(Started::MustWait) };
        self.announce_start(call, name).await?;
        let work = Work { around: Arc::clone(around), tool: Arc::clone(tool), call: call.clone(), place, cancel };
        let task = running.tasks.spawn(work.perform());
        running.calls.insert(task.id(), index);
        Ok(Started::Running)
    }

    async fn refuse(&self, call: &Call, name: &str, text: String) -> Result<Started, StoreError> {
        self.announce_start(call, name).await?;
        Ok(Started::Refused(CallEnd { id: call.id.clone(), name: name.to_owned(), text, is_error: true, denied: false }))
    }

    async fn announce_start(&self, call: &Call, name: &str) -> Result<(), StoreError> {
        let started = EventKind::ToolStarted { call_id: call.id.clone(), name: name.to_owned(), input: call.input.clone() };
        self.announcer.announce(started).await
    }

    fn unknown_tool(&self, name: &str) -> String {
        let names = self.toolbox.names();
        let nearest = nearest(name, &names).map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
        format!("there is no tool `{}`.{nearest}\nKnown tools: {}", shortened(name.to_owned(), 200), names.join(", "))
    }

    fn end_of(&self, call: &Call, outcome: Outcome) -> Result<(CallEnd, Option<Value>), StoreError> {
        let name = self.toolbox.find(&call.name).map_or(call.name.clone(), |tool| tool.spec().declaration.name.clone());
        let (text, is_error, denied, structured) = match outcome {
            Outcome::Returned(Ok(reply)) => (reply.text, false, false, reply.structured),
            Outcome::Returned(Err(failure)) => (failure.to_string(), true, failure.kind == FailureKind::Denied, None),
            Outcome::Refused { text, denied } => (text, true, denied, None),
            Outcome::NotStarted => (CANCELLED_WAITING.to_owned(), true, false, None),
            Outcome::NotSaved(error) => return Err(error),
            Outcome::Panicked => (fault_of(&name), true, false, None),
        };
        let max = self.toolbox.find(&call.name).map_or(self.limits.tool_result_max, |tool| tool.result_max(self.limits));
        let text = shortened(text, max);
        Ok((CallEnd { id: call.id.clone(), name, text, is_error, denied }, structured))
    }

    /// Tells of the end of one call. In a batch of several the result is put into the log first, so that a kill before
    /// the batch is complete does not lose what is known.
    async fn announce_end(
        &self,
        call: &Call,
        end: &CallEnd,
        duration: Duration,
        structured: Option<Value>,
        batch: usize,
    ) -> Result<(), StoreError> {
        let (call_id, name) = (end.id.clone(), end.name.clone());
        let denied = end.denied.then(|| EventKind::PermissionDenied {
            call_id: call_id.clone(),
            name: name.clone(),
            input: call.input.clone(),
            message: end.text.clone(),
        });
        let ended = EventKind::ToolEnded {
            call_id,
            name,
            is_error: end.is_error,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            preview: end.text.chars().take(PREVIEW_MAX).collect(),
            structured,
        };
        let keep = async {
            if batch > 1 {
                let record = json!({ "version": 1, "call_id": end.id, "text": end.text, "is_error": end.is_error });
                self.store.append_event(self.session, CALL_RESULT, record).await?;
            }
            Ok(())
        };
        let events: Vec<EventKind> = denied.into_iter().chain([ended]).collect();
        // Sent together, written in one transaction.
        let (kept, logged) = tokio::join!(keep, join_all(events.iter().map(|event| self.announcer.log(event))));
        kept?;
        logged.into_iter().collect::<Result<(), StoreError>>()?;
        for event in events {
            self.announcer.show(event);
        }
        Ok(())
    }

    /// Gives the calls that did not end their result, and bounds the whole.
    async fn close(&self, calls: &[Call], ends: Vec<Option<CallEnd>>, started: usize) -> Result<Vec<CallEnd>, StoreError> {
        let mut complete = Vec::with_capacity(calls.len());
        for (place, (call, end)) in calls.iter().zip(ends).enumerate() {
            let end = match end {
                Some(end) => end,
                None if place < started => {
                    let end = cancelled(call, CANCELLED_RUNNING);
                    self.announce_end(call, &end, Duration::ZERO, None, calls.len()).await?;
                    end
                }
                None => cancelled(call, CANCELLED_WAITING),
            };
            complete.push(end);
        }
        let total = self.limits.tool_result_max.saturating_mul(BATCH_FACTOR);
        let share = fair_share(complete.iter().map(|end| end.text.len() as u64), total);
        for end in &mut complete {
            end.text = shortened(std::mem::take(&mut end.text), share);
        }
        Ok(complete)
    }
}

impl Running {
    /// Which call ended, and how. `None` only for a task that is not one of ours.
    fn ended(&mut self, joined: Result<(Id, Done), JoinError>) -> Option<(usize, Done)> {
        let (id, done) = match joined {
            Ok((id, done)) => (id, done),
            Err(error) => (error.id(), Done { outcome: Outcome::Panicked, ran: Duration::ZERO }),
        };
        Some((self.calls.remove(&id)?, done))
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn cancelled(call: &Call, text: &str) -> CallEnd {
    CallEnd { id: call.id.clone(), name: call.name.clone(), text: text.to_owned(), is_error: true, denied: false }
}

fn fault_of(tool: &str) -> String {
    format!("{tool} failed because of a fault in the program itself; the same call would fail again, so go on without it")
}

/// The known name that was most likely meant: at most a third of its letters differ.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let wanted: String = name.chars().take(NAME_MAX).flat_map(char::to_lowercase).collect();
    let distances = known.iter().map(|known| (distance(&wanted, &known.to_lowercase()), known.chars().count(), known.as_str()));
    distances.filter(|(distance, length, _)| distance * 3 <= *length).min().map(|(.., known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let known: Vec<String> = ["Bash", "Glob", "Grep", "Read", "TaskOutput", "Write"].map(String::from).into();
        assert_eq!(nearest("Reed", &known), Some("Read"));
        assert_eq!(nearest("greb", &known), Some("Grep"));
        assert_eq!(nearest("TaskOutputs", &known), Some("TaskOutput"));
        assert_eq!(nearest("Delete", &known), None);
        assert_eq!(nearest("", &known), None);
    }
}
