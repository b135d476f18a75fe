//! One turn: request, stream, tool batch, what joins from the inbox between steps, and the limits.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent::budget::{Budget, Exceeded};
use crate::agent::event::{EventKind, InputSource, TurnCause, TurnEnd};
use crate::agent::history::{Entry, original_input, result_block};
use crate::agent::inbox::{Delivery, Input, Urgency};
use crate::agent::session::Session;
use crate::agent::shorten::{fair_share, shortened};
use crate::agent::tool_batch::{Batch, Call};
use crate::ids::JobId;
use crate::models::one_off::OneOff;
use crate::models::prices::Usd;
use crate::models::{Block, Message, Model, ModelError, ModelErrorKind, ModelEvent, Reply, Request, StopReason, ToolUse, Usage};
use crate::store::StoreError;
use crate::text::incoming;

/// What a turn has so far.
#[derive(Default)]
struct Progress {
    usage: Usage,
    steps: u32,
    /// Text of the last answer that had one; after a failure, what had arrived.
    text: String,
}

/// How one request came back.
enum Answer {
    Complete(Reply),
    /// The turn ends here.
    Ended(TurnCause),
}

/// Why a request has no answer.
enum Broken {
    Cancelled,
    /// The shared budget: its time is over, or the request had only waited.
    UsedUp,
    Failed(ModelError),
}

/// Which limit is reached.
#[derive(Clone, Copy)]
enum Reached {
    Turns(u32),
    Tokens(u64),
    Money(Usd),
}

impl Session {
    /// Runs steps until the model asks for no more tools. Whatever ends it, the history stays one that a provider accepts.
    ///
    /// Dropping the future gives up what is under way; the next turn, or a resume, repairs the history first.
    pub async fn turn(&mut self, input: impl Into<Delivery>, cancel: &CancellationToken) -> TurnEnd {
        let since = Instant::now();
        let mut progress = Progress::default();
        let cause = match self.run(input.into(), &mut progress, cancel).await {
            Ok(cause) => cause,
            Err(error) => TurnCause::StoreFailed { message: error.to_string() },
        };
        let Progress { usage, steps, text } = progress;
        let end = TurnEnd { cause, text, usage, steps, duration: since.elapsed() };
        if let Err(error) = self.announcer.announce(EventKind::TurnEnded { end: end.clone() }).await {
            // The answer itself is saved or has failed already; observers must still hear that the turn is over.
            if !matches!(end.cause, TurnCause::StoreFailed { .. }) {
                self.announcer.show(EventKind::Notice { text: format!("the end of the turn could not be logged: {error}") });
            }
            self.announcer.show(EventKind::TurnEnded { end: end.clone() });
        }
        end
    }

    /// As [`Self::turn`], with a model for this turn alone (R314). Nothing of it stays with the session.
    pub async fn turn_with(&mut self, input: impl Into<Delivery>, once: OneOff, cancel: &CancellationToken) -> TurnEnd {
        self.once = Some(once);
        let end = self.turn(input, cancel).await;
        self.once = None;
        end
    }

    /// The model of the turn under way, and its reasoning level.
    fn model(&self) -> (&Arc<dyn Model>, &Option<String>) {
        match &self.once {
            Some(once) => (&once.model, &once.reasoning),
            None => (&self.parts.model, &self.parts.reasoning),
        }
    }

    async fn run(&mut self, input: Delivery, progress: &mut Progress, cancel: &CancellationToken) -> Result<TurnCause, StoreError> {
        self.repair().await?;
        if let Some(cause) = self.hooks_before(&input, cancel).await? {
            // Taken, though not into the history: it must not come again.
            input.confirm();
            return Ok(cause);
        }
        self.accept(input, true).await?;
        let mut blocks = 0;
        loop {
            if cancel.is_cancelled() {
                return Ok(TurnCause::Cancelled);
            }
            if let Some(reached) = self.limit_reached() {
                return self.close_turn(reached, progress, cancel).await;
            }
            if progress.steps > 0 {
                self.join_waiting().await?;
            }
            let reply = match self.request(ToolUse::Allowed, progress, cancel).await? {
                Answer::Complete(reply) => reply,
                Answer::Ended(cause) => return Ok(cause),
            };
            let calls = calls_of(&reply.message);
            match reply.stop {
                StopReason::MaxTokens => {
                    self.leave_calls(&calls, "not run: the answer was cut by the model's token limit").await?;
                    return Ok(TurnCause::MaxTokens);
                }
                StopReason::Refusal => {
                    self.leave_calls(&calls, "not run: the provider ended the answer").await?;
                    return Ok(TurnCause::Refused);
                }
                // What counts is whether there are calls; some servers name the wrong reason.
                StopReason::EndTurn | StopReason::ToolUse => {}
            }
            if !calls.is_empty() {
                if let Some(reason) = self.run_batch(&calls, cancel).await? {
                    return Ok(TurnCause::StoppedByHook { reason });
                }
            } else if cancel.is_cancelled()
                || self.limit_reached().is_some()
                || !(self.join_waiting().await? || self.kept_going(&progress.text, &mut blocks, cancel).await?)
            {
                return Ok(TurnCause::Finished);
            }
        }
    }

    /// Puts messages into the history: neighbours from one source as one message (R256). The first of a turn brings the
    /// context with it.
    pub(super) async fn accept(&mut self, delivery: Delivery, first: bool) -> Result<(), StoreError> {
        let inputs = joined(&delivery, self.parts.limits.notice_max);
        let context = self.pending_context.iter().map(|text| Entry::input(InputSource::Context, text.clone(), Vec::new()));
        let own = inputs.iter().map(|input| Entry::input(input.source, as_read(input, first), input.about.clone()));
        let entries = context.chain(own).collect();
        let title = inputs.first().filter(|_| first).and_then(|input| self.title_from(&input.text));
        let events: Vec<EventKind> = inputs
            .into_iter()
            .enumerate()
            .map(|(place, Joined { source, text, .. })| match place {
                0 if first => EventKind::TurnStarted { source, text },
                _ => EventKind::InputJoined { source, text },
            })
            .collect();
        self.commit_with(entries, title, &events).await?;
        self.pending_context.clear();
        let sources: Vec<InputSource> = delivery.inputs().map(|input| input.source).collect();
        if first {
            self.only_peers_spoke = sources.iter().all(|source| source.is_peer());
        } else if sources.iter().any(|source| source.gives_tasks()) {
            self.only_peers_spoke = false;
        }
        delivery.confirm();
        for event in events {
            self.announcer.show(event);
        }
        Ok(())
    }

    /// Takes what may join a running turn (R215, R260). Only called where every call has its result.
    async fn join_waiting(&mut self) -> Result<bool, StoreError> {
        match self.parts.inbox.take_up_to(Urgency::Next) {
            Some(delivery) => self.accept(delivery, false).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// One request and its answer, saved. A broken stream is never an answer: its text is kept, marked, and the turn ends.
    async fn request(&mut self, tool_use: ToolUse, progress: &mut Progress, cancel: &CancellationToken) -> Result<Answer, StoreError> {
        let budget = self.parts.budget.clone();
        if let Some(Err(exceeded)) = budget.as_ref().map(|budget| budget.start_request(self.model().0.name())) {
            return self.used_up(exceeded).await.map(Answer::Ended);
        }
        let request = Request {
            session: self.parts.id.clone(),
            prefix: Arc::clone(&self.parts.prefix),
            messages: self.history.messages(),
            tool_use,
            max_tokens: None,
            reasoning: self.model().1.clone(),
        };
        let mut stream = self.model().0.stream(request);
        let mut arrived = String::new();
        // A request that only waits for its turn has used nothing yet; one that is under way is paid for, so it may end.
        let mut waits = false;
        let outcome = loop {
            let event = tokio::select! {
                biased;
                () = cancel.cancelled() => break Err(Broken::Cancelled),
                () = over(budget.as_deref()), if waits => break Err(Broken::UsedUp),
                () = time_over(budget.as_deref()) => break Err(Broken::UsedUp),
                event = stream.next() => event,
            };
            waits = matches!(event, Some(Ok(ModelEvent::Waiting { .. } | ModelEvent::Retrying { .. })));
            match event {
                Some(Ok(ModelEvent::Finished(reply))) => break Ok(reply),
                Some(Ok(event)) => self.forward(event, &mut arrived).await?,
                Some(Err(error)) => break Err(Broken::Failed(error)),
                None => break Err(Broken::Failed(ended_early())),
            }
        };
        drop(stream);
        match outcome {
            Ok(reply) if reply.message.blocks.is_empty() => {
                self.count(reply.usage, progress);
                let message = format!("{} gave an answer without any content", self.model().0.name());
                Ok(Answer::Ended(TurnCause::ModelFailed { kind: ModelErrorKind::Empty, message }))
            }
            Ok(reply) => self.keep_answer(reply, progress).await.map(Answer::Complete),
            Err(Broken::UsedUp) => {
                self.keep_partial(&arrived, "the budget was used up", progress).await?;
                let exceeded = budget.and_then(|budget| budget.exceeded()).unwrap_or(Exceeded::Unreadable);
                self.used_up(exceeded).await.map(Answer::Ended)
            }
            Err(Broken::Cancelled) => {
                self.keep_partial(&arrived, "the turn was stopped", progress).await?;
                Ok(Answer::Ended(TurnCause::Cancelled))
            }
            Err(Broken::Failed(error)) => {
                self.count(error.usage, progress);
                let partial = error.partial.as_ref().map(Message::text).filter(|text| !text.is_empty()).unwrap_or(arrived);
                self.keep_partial(&partial, "the model's answer failed", progress).await?;
                Ok(Answer::Ended(TurnCause::ModelFailed { kind: error.kind, message: error.message }))
            }
        }
    }

    async fn forward(&self, event: ModelEvent, arrived: &mut String) -> Result<(), StoreError> {
        match event {
            ModelEvent::TextDelta(text) => {
                arrived.push_str(&text);
                self.announcer.show(EventKind::TextDelta { text });
            }
            ModelEvent::ThinkingDelta(text) => self.announcer.show(EventKind::ThinkingDelta { text }),
            ModelEvent::Retrying { attempt, wait, reason } => {
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.announcer.announce(EventKind::RequestRetried { attempt, wait_ms, reason }).await?;
            }
            ModelEvent::Waiting { wait, reason } => {
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.announcer.announce(EventKind::RequestWaiting { wait_ms, reason }).await?;
            }
            // Observers hear of a call when it starts; `Finished` is handled by the caller.
            ModelEvent::ToolUseStarted { .. } | ModelEvent::Finished(_) => {}
        }
        Ok(())
    }

    fn count(&mut self, usage: Usage, progress: &mut Progress) {
        progress.usage += usage;
        self.usage += usage;
        let model = self.model().0.name().to_owned();
        *self.by_model.entry(model.clone()).or_default() += usage;
        if usage != Usage::default() {
            self.bill.add(self.parts.prices.cost(&model, &usage));
        }
        if let Some(budget) = &self.parts.budget {
            budget.add(&model, &usage);
        }
    }

    /// Nothing is left for a further request: the turn ends with what there is.
    async fn used_up(&self, exceeded: Exceeded) -> Result<TurnCause, StoreError> {
        self.announcer.announce(EventKind::Notice { text: format!("the budget of this run is used up: {exceeded}") }).await?;
        Ok(TurnCause::Budget)
    }

    async fn keep_answer(&mut self, reply: Reply, progress: &mut Progress) -> Result<Reply, StoreError> {
        let Reply { message, usage, stop } = reply;
        let message = self.history.well_formed(message);
        self.count(usage, progress);
        progress.steps += 1;
        self.steps += 1;
        self.commit(vec![Entry::answer(Arc::new(message.clone()))]).await?;
        let text = message.text();
        if !text.is_empty() {
            progress.text = text;
        }
        self.announcer.show(EventKind::AssistantMessage { message: message.clone(), usage });
        Ok(Reply { message, usage, stop })
    }

    async fn keep_partial(&mut self, text: &str, why: &str, progress: &mut Progress) -> Result<(), StoreError> {
        if text.trim().is_empty() {
            return Ok(());
        }
        self.commit(vec![Entry::partial_answer(text, why)]).await?;
        progress.text = text.to_owned();
        Ok(())
    }

    /// Gives the reason when hooks end the turn.
    async fn run_batch(&mut self, calls: &[Call], cancel: &CancellationToken) -> Result<Option<String>, StoreError> {
        self.write_transcript().await;
        let stopped = Arc::new(OnceLock::new());
        let stop = cancel.child_token();
        let (budget, grace) = (self.parts.budget.clone(), self.parts.limits.stop_grace);
        let batch = Batch {
            session: &self.parts.id,
            cwd: &self.parts.cwd,
            toolbox: &self.parts.toolbox,
            policy: &self.parts.policy,
            approver: &self.parts.approver,
            only_peers_spoke: self.only_peers_spoke,
            state: &self.state,
            limits: &self.parts.limits,
            announcer: &self.announcer,
            store: &self.parts.store,
            cancel: &stop,
            hooks: &self.parts.hooks,
            stopped: &stopped,
        };
        let ends = {
            let running = batch.run(calls);
            tokio::pin!(running);
            tokio::select! {
                ends = &mut running => ends?,
                // Short calls still get done; nobody would read what a long one gives.
                () = outlasts(budget.as_deref(), grace) => {
                    stop.cancel();
                    running.await?
                }
            }
        };
        self.note_denials(&ends, |id| calls.iter().find(|call| call.id == id).map_or(Value::Null, |call| call.input.clone()));
        self.keep_results(ends.into_iter().map(|end| result_block(&end.id, end.text, end.is_error)).collect()).await?;
        Ok(stopped.get().cloned())
    }

    /// Pairs calls that will not be run with a result that says why.
    async fn leave_calls(&mut self, calls: &[Call], why: &str) -> Result<(), StoreError> {
        if calls.is_empty() {
            return Ok(());
        }
        self.keep_results(calls.iter().map(|call| result_block(&call.id, why, true)).collect()).await
    }

    async fn keep_results(&mut self, results: Vec<Block>) -> Result<(), StoreError> {
        let entry = Entry::results(results);
        let message = (*entry.message).clone();
        self.commit(vec![entry]).await?;
        self.announcer.show(EventKind::ToolResults { message });
        Ok(())
    }

    fn limit_reached(&self) -> Option<Reached> {
        let turns = self.parts.max_turns.filter(|limit| self.steps >= *limit).map(Reached::Turns);
        let tokens = || self.parts.token_budget.filter(|limit| self.usage.total() >= *limit).map(Reached::Tokens);
        let money = || self.parts.money_budget.filter(|limit| self.bill.known() >= *limit).map(Reached::Money);
        turns.or_else(tokens).or_else(money)
    }

    /// The one request after a limit: a report without tools (R172, R173). Calls in its answer are not run.
    async fn close_turn(&mut self, reached: Reached, progress: &mut Progress, cancel: &CancellationToken) -> Result<TurnCause, StoreError> {
        let (limit, cause) = match reached {
            Reached::Turns(limit) => (format!("The limit of {limit} model requests"), TurnCause::MaxTurns),
            Reached::Tokens(limit) => (format!("The budget of {limit} tokens"), TurnCause::Budget),
            Reached::Money(limit) => (format!("The budget of {limit}"), TurnCause::Budget),
        };
        let text = format!(
            "{limit} for this task is reached. No more tools can be called. Write your final report now: what is done, what you \
             found, and what is still open."
        );
        self.accept(Input::new(InputSource::Limit, text).into(), false).await?;
        match self.request(ToolUse::Forbidden, progress, cancel).await? {
            Answer::Complete(reply) => {
                self.leave_calls(&calls_of(&reply.message), "not run: the limit for this task is reached").await?;
                Ok(cause)
            }
            Answer::Ended(cause) => Ok(cause),
        }
    }
}

async fn over(budget: Option<&Budget>) {
    match budget {
        Some(budget) => budget.over().await,
        None => std::future::pending().await,
    }
}

async fn time_over(budget: Option<&Budget>) {
    match budget {
        Some(budget) => budget.time_over().await,
        None => std::future::pending().await,
    }
}

/// Returns when the budget has been used up for this time.
async fn outlasts(budget: Option<&Budget>, grace: Duration) {
    over(budget).await;
    tokio::time::sleep(grace).await;
}

/// Messages of one source that become one message of the history.
struct Joined {
    source: InputSource,
    text: String,
    about: Vec<JobId>,
}

/// Neighbours from one source are joined by a blank line. Notices share `notice_max`, so that many ends at one moment do
/// not overflow the request; what a notice begins with (which job, where its output lies) stays.
fn joined(delivery: &Delivery, notice_max: u64) -> Vec<Joined> {
    let notices = delivery.inputs().filter(|input| input.source == InputSource::TaskNotification);
    let share = fair_share(notices.map(|input| input.text.len() as u64), notice_max);
    let mut all: Vec<Joined> = Vec::new();
    for input in delivery.inputs() {
        let text = match input.source {
            InputSource::TaskNotification => shortened(input.text.clone(), share),
            InputSource::User
            | InputSource::Subagent
            | InputSource::SubagentReply
            | InputSource::Context
            | InputSource::Limit
            | InputSource::Hook => input.text.clone(),
        };
        match all.last_mut() {
            Some(last) if last.source == input.source => {
                last.text.push_str("\n\n");
                last.text.push_str(&text);
                last.about.extend(input.about.clone());
            }
            _ => all.push(Joined { source: input.source, text, about: input.about.iter().cloned().collect() }),
        }
    }
    all
}

/// What the model reads: a message that comes while it works says so (R225, R226), a task that begins a turn is bare
/// (R227), a reply of a child says in both places what it is (R228). Notices bring their own frame.
fn as_read(input: &Joined, first: bool) -> String {
    match input.source {
        InputSource::User if !first => incoming::user_steer(&input.text),
        InputSource::Subagent if !first => incoming::coordinator_steer(&input.text),
        InputSource::SubagentReply if first => incoming::subagent_reply(&input.text),
        InputSource::SubagentReply => incoming::subagent_reply_steer(&input.text),
        InputSource::User
        | InputSource::Subagent
        | InputSource::TaskNotification
        | InputSource::Context
        | InputSource::Limit
        | InputSource::Hook => input.text.clone(),
    }
}

fn calls_of(message: &Message) -> Vec<Call> {
    let call =
        |(id, name, input): (&str, &str, &Value)| Call { id: id.to_owned(), name: name.to_owned(), input: original_input(input).clone() };
    message.tool_uses().map(call).collect()
}

fn ended_early() -> ModelError {
    ModelError {
        kind: ModelErrorKind::Interrupted,
        message: "the model's answer ended without its end mark".into(),
        partial: None,
        status: None,
        usage: Usage::default(),
    }
}
