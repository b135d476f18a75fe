//! Messages of a session to its agents: into a running turn, kept until the agent is ready, or as the beginning of one
//! more run (section R).
//!
//! A message that was accepted is kept here until it stands in the agent's history, so that one which comes in the last
//! moments of a run is not lost: it begins another run, or is reported back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::delegation::Delegation;
use super::in_process::AgentError;
use super::local::{AgentStatus, LocalAgent};
use crate::agent::event::InputSource;
use crate::agent::inbox::{Input, Receipt, Urgency};
use crate::ids::{JobId, JobKind};
use crate::supervisor::record::Requester;
use crate::text::incoming;
use crate::text::units::one_line;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The agent reads it in its running turn, after a complete batch of results (R205, R215).
    Steered,
    /// It is kept and delivered in order (R207).
    Queued,
    /// The agent had ended; it runs once more, in the background (R209).
    Resumed,
}

/// Why a message was not taken. The first three have the words that models know (R212).
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("No active local_agent task found for target {target}.")]
    Unknown { target: String, known: Vec<String> },
    #[error("SendMessage was aborted for {target}.")]
    Aborted { target: String },
    #[error("Cannot resume local agent {id}: profile {agent_type} is unavailable.")]
    ProfileUnavailable { id: JobId, agent_type: String },
    #[error("{target} names several agents: {}", ids.iter().map(JobId::as_str).collect::<Vec<_>>().join(", "))]
    Ambiguous { target: String, ids: Vec<JobId> },
    #[error("{id} is an agent in a process of its own, which takes no messages")]
    ProcessAgent { id: JobId },
    #[error("agent {id} was stopped by the user and is not taken up again before the user has written again")]
    StoppedByPerson { id: JobId },
    #[error("{waiting} messages wait for agent {id} already; it takes no more before it has read them")]
    Full { id: JobId, waiting: usize },
    /// R204, R316
    #[error("SendMessage is not available in this turn: it uses a model given for it alone, and an agent that goes on would outlive it")]
    OneOffModel,
    #[error("Cannot resume local agent {id}: {source}")]
    Resume { id: JobId, source: AgentError },
}

/// Messages that no history has yet, by agent.
#[derive(Default)]
pub(crate) struct Mail {
    slots: Mutex<BTreeMap<JobId, Arc<Slot>>>,
}

#[derive(Default)]
struct Slot {
    /// Held while messages are handed over, so that they keep their order and one agent is resumed once (R210).
    order: tokio::sync::Mutex<()>,
    letters: Mutex<VecDeque<Arc<Letter>>>,
}

struct Letter {
    text: String,
    /// The run into whose inbox it was put; 0: none.
    run: AtomicU32,
    delivered: AtomicBool,
}

/// Tries while an agent is not ready, and the longest wait between two (R206).
const TRIES: u32 = 21;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
/// R203
pub const TIMEOUT: Duration = Duration::from_millis(10_000);
/// Messages for one agent that may wait.
const LETTERS_MAX: usize = 100;
/// Characters of a message that a report on its loss repeats.
const REPORTED_MAX: usize = 400;

impl Receipt for Letter {
    fn still_wanted(&self) -> bool {
        true
    }

    fn delivered(&self) {
        self.delivered.store(true, Ordering::Release);
    }
}

impl Mail {
    fn slot(&self, id: &JobId) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry(id.clone()).or_default().clone()
    }
}

impl Slot {
    /// Only pushes and removals, so a poisoned lock is still good.
    fn letters(&self) -> MutexGuard<'_, VecDeque<Arc<Letter>>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What no history has, in order.
    fn open(&self) -> Vec<Arc<Letter>> {
        let mut letters = self.letters();
        letters.retain(|letter| !letter.delivered.load(Ordering::Acquire));
        letters.iter().cloned().collect()
    }

    fn remove(&self, gone: &[Arc<Letter>]) {
        self.letters().retain(|letter| !gone.iter().any(|other| Arc::ptr_eq(letter, other)));
    }
}

impl Delegation {
    /// Hands a message to an agent of this session. Returns at once when the agent is busy: nobody waits for its tools
    /// (fault E5).
    pub async fn send_message(&self, to: &str, text: String, cancel: &CancellationToken) -> Result<(Arc<LocalAgent>, Sent), SendError> {
        if self.is_once() {
            return Err(SendError::OneOffModel);
        }
        let agent = self.addressee(to)?;
        let slot = self.slot(&agent.id);
        let letter = Arc::new(Letter { text, run: AtomicU32::new(0), delivered: AtomicBool::new(false) });
        {
            let waiting = slot.open().len();
            if waiting >= LETTERS_MAX {
                return Err(SendError::Full { id: agent.id.clone(), waiting });
            }
            slot.letters().push_back(letter.clone());
        }
        // Aside, so that a call that is dropped half-way leaves no half-resumed agent.
        let attempt = {
            let (delegation, agent) = (self.clone(), agent.clone());
            self.inner.registry.spawn(async move { delegation.try_for_a_while(&agent).await })
        };
        let outcome = tokio::select! {
            biased;
            outcome = tokio::time::timeout(TIMEOUT, attempt) => outcome,
            () = cancel.cancelled() => {
                if letter.run.load(Ordering::Acquire) == 0 {
                    slot.remove(&[letter]);
                }
                return Err(SendError::Aborted { target: one_line(to, TARGET_SHOWN) });
            }
        };
        let sent = match outcome {
            Ok(Ok(sent)) => sent.inspect_err(|_| slot.remove(std::slice::from_ref(&letter)))?,
            // It is kept, and handed over by whoever sees the agent ready.
            Ok(Err(_)) | Err(_) => Sent::Queued,
        };
        Ok((agent, sent))
    }

    /// Hands over what was kept for the agent, now that it is ready or has ended. What cannot be delivered any more is
    /// reported to the model (R208).
    pub(crate) fn forward_mail(&self, agent: &Arc<LocalAgent>) -> BoxFuture<'static, ()> {
        let (delegation, agent) = (self.clone(), agent.clone());
        async move {
            let slot = delegation.slot(&agent.id);
            if slot.open().is_empty() {
                return;
            }
            let was_stopped = agent.is_ended() && agent.stopped_by().is_some();
            let why = match was_stopped {
                true => "it was stopped before it had read it".to_owned(),
                false => match delegation.dispatch(&agent).await {
                    Ok(_) => return,
                    Err(error) => error.to_string(),
                },
            };
            let lost = slot.open();
            slot.remove(&lost);
            let Some(inbox) = delegation.inner.registry.inbox() else { return };
            for letter in lost {
                let text = format!(
                    "{}\nA message for agent {} was not delivered: {why}. It began: {}",
                    incoming::FRAME,
                    agent.id,
                    one_line(&letter.text, REPORTED_MAX)
                );
                if inbox.post(Urgency::Next, Input::new(InputSource::TaskNotification, text)).is_err() {
                    delegation.inner.registry.notice(format!("a message for agent {} was not delivered: {why}", agent.id));
                }
            }
        }
        .boxed()
    }

    fn slot(&self, id: &JobId) -> Arc<Slot> {
        self.inner.mail.slot(id)
    }

    /// By id, or by a title or type that only one agent has (R202). Ids of other sessions are unknown (R330).
    fn addressee(&self, to: &str) -> Result<Arc<LocalAgent>, SendError> {
        let unknown = |agents: &[Arc<LocalAgent>]| SendError::Unknown {
            target: one_line(to, TARGET_SHOWN),
            known: agents
                .iter()
                .rev()
                .take(KNOWN_SHOWN)
                .map(|agent| format!("{} ({})", agent.id, one_line(&agent.description, 60)))
                .collect(),
        };
        let agents = self.agents();
        let wanted = to.trim();
        match JobId::parse(wanted) {
            Ok(id) if id.kind() == JobKind::ProcessAgent => return Err(SendError::ProcessAgent { id }),
            Ok(id) => return self.agent(&id).ok_or_else(|| unknown(&agents)),
            Err(_) => {}
        }
        let folded = wanted.to_lowercase();
        let named = |name: fn(&LocalAgent) -> &str| -> Vec<Arc<LocalAgent>> {
            agents.iter().filter(|agent| name(agent).to_lowercase() == folded).cloned().collect()
        };
        let mut found = named(|agent| &agent.description);
        if found.is_empty() {
            found = named(LocalAgent::agent_type);
        }
        match found.as_slice() {
            [] => Err(unknown(&agents)),
            [agent] => Ok(agent.clone()),
            several => Err(SendError::Ambiguous {
                target: one_line(to, TARGET_SHOWN),
                ids: several.iter().map(|agent| agent.id.clone()).collect(),
            }),
        }
    }

    async fn try_for_a_while(&self, agent: &Arc<LocalAgent>) -> Result<Sent, SendError> {
        let mut changes = agent.changes();
        for _ in 0..TRIES {
            changes.mark_unchanged();
            if let Some(sent) = self.dispatch(agent).await? {
                return Ok(sent);
            }
            // Woken by the change itself; the time is only the bound.
            let _ = tokio::time::timeout(BETWEEN_TRIES, changes.changed()).await;
        }
        Ok(Sent::Queued)
    }

    /// Hands over everything that is open, in order. `None`: the agent is not ready.
    async fn dispatch(&self, agent: &Arc<LocalAgent>) -> Result<Option<Sent>, SendError> {
        let slot = self.slot(&agent.id);
        let _in_order = slot.order.lock().await;
        loop {
            let open = slot.open();
            if open.is_empty() {
                return Ok(Some(Sent::Steered));
            }
            let status = agent.status();
            match status {
                AgentStatus::Starting => return Ok(None),
                AgentStatus::Waiting | AgentStatus::Running => {
                    let Some(inbox) = agent.inbox() else { return Ok(None) };
                    let run = agent.run();
                    for letter in open.iter().filter(|letter| letter.run.load(Ordering::Acquire) != run) {
                        let input = Input::new(InputSource::Subagent, letter.text.clone()).with_receipt(letter.clone());
                        if inbox.post(Urgency::Next, input).is_err() {
                            return Ok(None);
                        }
                        letter.run.store(run, Ordering::Release);
                    }
                    return Ok(Some(if status == AgentStatus::Running { Sent::Steered } else { Sent::Queued }));
                }
                AgentStatus::Ended if !self.inner.registry.is_concluded(&agent.id) => return Ok(None),
                AgentStatus::Ended => {
                    self.may_resume(agent).await?;
                    let text = open.iter().map(|letter| letter.text.as_str()).collect::<Vec<_>>().join("\n\n");
                    match self.run_again(agent, text).await {
                        Ok(()) => {
                            slot.remove(&open);
                            return Ok(Some(Sent::Resumed));
                        }
                        Err(AgentError::StillRuns { .. }) => {}
                        Err(source) => return Err(SendError::Resume { id: agent.id.clone(), source }),
                    }
                }
            }
        }
    }

    /// R212, R213
    async fn may_resume(&self, agent: &LocalAgent) -> Result<(), SendError> {
        if self.denies_type(agent.agent_type()) {
            return Err(SendError::ProfileUnavailable { id: agent.id.clone(), agent_type: agent.agent_type().to_owned() });
        }
        if agent.stopped_by() != Some(Requester::Person) {
            return Ok(());
        }
        let ended_at = agent.end().map(|end| end.ended_at);
        let history = match self.inner.registry.store() {
            Some(store) => store.messages(&agent.parent).await.unwrap_or_default(),
            None => Vec::new(),
        };
        let user = crate::agent::history::USER_SOURCE;
        let spoke_since = history.iter().rev().any(|row| row.source == user && ended_at.is_some_and(|ended_at| row.at > ended_at));
        if spoke_since { Ok(()) } else { Err(SendError::StoppedByPerson { id: agent.id.clone() }) }
    }
}

/// Characters of a target in an error.
const TARGET_SHOWN: usize = 200;
/// Agents that an error lists.
const KNOWN_SHOWN: usize = 10;
