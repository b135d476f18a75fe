//! One batch of calls: which tool, permission, order, concurrency, and the size of the results.
//!
//! Whatever happens, every call gets exactly one result, in the order of the calls: a refused, unknown, failed, panicking
//! or cancelled call is a result the model can read.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::announcer::Announcer;
use crate::agent::event::EventKind;
use crate::agent::shorten::{fair_share, shortened};
use crate::agent::state::SessionState;
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolBox, ToolContext, ToolFailure, ToolReply};
use crate::config::Limits;
use crate::ids::SessionId;
use crate::permissions::Effect;
use crate::permissions::decide::{CalledTool, Policy, Verdict};
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
    pub policy: &'a Policy,
    /// No person, script or parent has spoken in this turn.
    pub only_peers_spoke: bool,
    pub state: &'a Arc<SessionState>,
    pub limits: &'a Limits,
    pub announcer: &'a Announcer,
    pub store: &'a Store,
    pub cancel: &'a CancellationToken,
}

/// What is known of a call before it runs.
enum Prepared {
    Ready(Arc<dyn Tool>),
    Refused { text: String, denied: bool },
}

/// How a started call came back.
enum Outcome {
    Returned(Result<ToolReply, ToolFailure>),
    Panicked,
}

/// Calls under way.
#[derive(Default)]
struct Running {
    tasks: JoinSet<Result<ToolReply, ToolFailure>>,
    /// Place, start, and whether it only waits.
    calls: HashMap<Id, (usize, Instant, bool)>,
    /// The one that runs must not have company.
    alone: bool,
    /// How many of them only wait.
    waiting: usize,
}

impl Batch<'_> {
    /// Runs all calls. An error means that the session cannot be saved; calls under way are then given up.
    pub async fn run(&self, calls: &[Call]) -> Result<Vec<CallEnd>, StoreError> {
        let mut ends: Vec<Option<CallEnd>> = vec![None; calls.len()];
        let mut running = Running::default();
        let mut next = 0;
        let mut given_up_at: Option<Instant> = None;
        loop {
            while next < calls.len() && given_up_at.is_none() && !self.cancel.is_cancelled() && self.may_start(&running, &calls[next]) {
                if let Some(end) = self.start(next, &calls[next], &mut running).await? {
                    self.announce_end(&calls[next], &end, Duration::ZERO, None, calls.len()).await?;
                    ends[next] = Some(end);
                }
                next += 1;
            }
            if running.tasks.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                Some(joined) = running.tasks.join_next_with_id() => {
                    if let Some((place, since, outcome)) = running.ended(joined) {
                        let (end, structured) = self.end_of(&calls[place], outcome);
                        self.announce_end(&calls[place], &end, since.elapsed(), structured, calls.len()).await?;
                        ends[place] = Some(end);
                    }
                }
                () = self.cancel.cancelled(), if given_up_at.is_none() => {
                    given_up_at = Some(Instant::now() + self.limits.stop_grace + self.limits.drain_time * DRAINS);
                }
                // Leaving the loop drops the tasks, which ends them.
                () = until(given_up_at), if given_up_at.is_some() => break,
            }
        }
        let started = next;
        self.close(calls, ends, started).await
    }

    fn may_start(&self, running: &Running, call: &Call) -> bool {
        if running.tasks.is_empty() {
            return true;
        }
        let concurrent = self.toolbox.find(&call.name).is_none_or(|tool| tool.spec().concurrent);
        let only_waits = self.toolbox.find(&call.name).is_some_and(|tool| tool.only_waits());
        let places = self.limits.tool_concurrency.max(1) as usize;
        concurrent && !running.alone && (only_waits || running.calls.len() - running.waiting < places)
    }

    /// Starts one call, or tells at once how it ended. Permission is decided here, just before the call, so that a mode
    /// that has become stricter meanwhile holds.
    async fn start(&self, place: usize, call: &Call, running: &mut Running) -> Result<Option<CallEnd>, StoreError> {
        let (id, input) = (call.id.clone(), call.input.clone());
        let name = self.toolbox.find(&call.name).map_or(call.name.clone(), |tool| tool.spec().declaration.name.clone());
        self.announcer.announce(EventKind::ToolStarted { call_id: id.clone(), name: name.clone(), input: input.clone() }).await?;
        let context = ToolContext {
            session: self.session.clone(),
            call_id: id.clone(),
            cwd: self.cwd.to_owned(),
            cancel: self.cancel.child_token(),
            state: Arc::clone(self.state),
        };
        match self.prepare(call, &context) {
            Prepared::Ready(tool) => {
                running.alone = !tool.spec().concurrent;
                let only_waits = tool.only_waits();
                running.waiting += usize::from(only_waits);
                let task = running.tasks.spawn(async move { tool.call(input, context).await });
                running.calls.insert(task.id(), (place, Instant::now(), only_waits));
                Ok(None)
            }
            Prepared::Refused { text, denied } => Ok(Some(CallEnd { id, name, text, is_error: true, denied })),
        }
    }

    fn prepare(&self, call: &Call, context: &ToolContext) -> Prepared {
        let refused = |text: String| Prepared::Refused { text, denied: false };
        let Some(tool) = self.toolbox.find(&call.name) else {
            return refused(self.unknown_tool(&call.name));
        };
        let name = &tool.spec().declaration.name;
        if !call.input.is_object() {
            return refused(format!(
                "the input of {name} must be a JSON object, got {}\ncall it again with an object that fits its schema",
                kind_of(&call.input)
            ));
        }
        // Own code, but run for every call: a fault in it must not end the session.
        let effect = match catch_unwind(AssertUnwindSafe(|| tool.effect(&call.input, context))) {
            Ok(Ok(effect)) => effect,
            Ok(Err(failure)) => return Prepared::Refused { text: failure.to_string(), denied: failure.kind == FailureKind::Denied },
            Err(_) => return refused(fault_of(name)),
        };
        if self.only_peers_spoke
            && let Some(what) = self.policy.kept_from_peers(&effect)
        {
            // In any mode, and whatever rules allow: there is no person here whose approval it would need (R231).
            return Prepared::Refused {
                text: format!(
                    "{name} was denied: {what} decides about rights or later behaviour, and this turn was started by a notification or \
                     another agent's message alone, which cannot approve such a change\nDo not reach the same end on another way. Tell the \
                     user what was asked for and by whom; they can ask for it themselves."
                ),
                denied: true,
            };
        }
        match self.verdict(tool.as_ref(), &effect) {
            Verdict::Allow => Prepared::Ready(Arc::clone(tool)),
            Verdict::Ask { reason, suggestion } => Prepared::Refused {
                // There is nobody to ask: a headless run denies at once (R244).
                text: format!(
                    "No permission client configured for {name}: {reason}\nNobody can be asked in this run, so do not repeat the call; \
                     go on without it and say in your final answer what was not done. To allow it next time: {suggestion}"
                ),
                denied: true,
            },
            Verdict::Deny { reason } => Prepared::Refused {
                text: format!(
                    "{name} was denied: {reason}\nDo not repeat the call or reach the same end on another way; \
                     go on without it and say in your final answer what was not done."
                ),
                denied: true,
            },
        }
    }

    fn unknown_tool(&self, name: &str) -> String {
        let names = self.toolbox.names();
        let nearest = nearest(name, &names).map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
        format!("there is no tool `{}`.{nearest}\nKnown tools: {}", shortened(name.to_owned(), 200), names.join(", "))
    }

    fn end_of(&self, call: &Call, outcome: Outcome) -> (CallEnd, Option<Value>) {
        let name = self.toolbox.find(&call.name).map_or(call.name.clone(), |tool| tool.spec().declaration.name.clone());
        let (text, is_error, denied, structured) = match outcome {
            Outcome::Returned(Ok(reply)) => (reply.text, false, false, reply.structured),
            Outcome::Returned(Err(failure)) => (failure.to_string(), true, failure.kind == FailureKind::Denied, None),
            Outcome::Panicked => (fault_of(&name), true, false, None),
        };
        let max = self.toolbox.find(&call.name).map_or(self.limits.tool_result_max, |tool| tool.result_max(self.limits));
        let text = shortened(text, max);
        (CallEnd { id: call.id.clone(), name, text, is_error, denied }, structured)
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

    fn verdict(&self, tool: &dyn Tool, effect: &Effect) -> Verdict {
        let spec = tool.spec();
        let called = CalledTool {
            name: &spec.declaration.name,
            aliases: spec.aliases,
            never_asked: match spec.approval {
                ApprovalNeed::Never => true,
                ApprovalNeed::ByEffect => false,
            },
        };
        self.policy.decide(&called, effect)
    }
}

impl Running {
    /// Which call ended, when it was started, and how. `None` only for a task that is not one of ours.
    fn ended(&mut self, joined: Result<(Id, Result<ToolReply, ToolFailure>), JoinError>) -> Option<(usize, Instant, Outcome)> {
        let (id, outcome) = match joined {
            Ok((id, returned)) => (id, Outcome::Returned(returned)),
            Err(error) => (error.id(), Outcome::Panicked),
        };
        let (place, since, only_waits) = self.calls.remove(&id)?;
        self.waiting -= usize::from(only_waits);
        self.alone = false;
        Some((place, since, outcome))
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

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
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
