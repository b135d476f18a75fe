//! What the tests of this flow share: a model that plays answers and keeps the requests, a tool made of a closure, a
//! sink that keeps events, and the rule what a legal history is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use zapmyco::agent::session::{Session, SessionParts};
use zapmyco::agent::tool::{ApprovalNeed, Tool, ToolBox, ToolContext, ToolFailure, ToolReply, ToolSpec};
use zapmyco::agent::{Event, EventKind, EventSink, Inbox, Input, TurnEnd};
use zapmyco::config::Limits;
use zapmyco::ids::SessionId;
use zapmyco::models::{
    Block, Message, Model, ModelError, ModelErrorKind, ModelEvent, Prefix, Reply, Request, Role, StopReason, ToolDeclaration, Usage,
};
use zapmyco::permissions::approval::Unattended;
use zapmyco::permissions::{Effect, Mode, Policy, RuleSet};
use zapmyco::store::{MessageRow, Store};

type Played = Result<ModelEvent, ModelError>;
type NextAnswer = Box<dyn FnOnce(&Request) -> BoxStream<'static, Played> + Send>;

/// Plays one answer per request and keeps what it was asked.
#[derive(Default)]
pub struct Player {
    answers: Mutex<VecDeque<NextAnswer>>,
    pub requests: Mutex<Vec<Request>>,
}

impl Player {
    pub fn of(answers: impl IntoIterator<Item = Vec<Played>>) -> Arc<Self> {
        let player = Arc::new(Self::default());
        for answer in answers {
            player.then(answer);
        }
        player
    }

    pub fn then(&self, answer: Vec<Played>) {
        self.then_with(move |_| stream::iter(answer).boxed());
    }

    pub fn then_with(&self, answer: impl FnOnce(&Request) -> BoxStream<'static, Played> + Send + 'static) {
        self.answers.lock().unwrap().push_back(Box::new(answer));
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Model for Player {
    fn name(&self) -> &str {
        "test/player"
    }

    fn stream(&self, request: Request) -> BoxStream<'static, Played> {
        assert_legal(&request.messages.iter().map(|message| (**message).clone()).collect::<Vec<_>>());
        let next = self.answers.lock().unwrap().pop_front();
        let stream = match next {
            Some(answer) => answer(&request),
            None => stream::iter([Err(failure(ModelErrorKind::ScriptMismatch, None))]).boxed(),
        };
        self.requests.lock().unwrap().push(request);
        stream
    }
}

pub fn failure(kind: ModelErrorKind, partial: Option<&str>) -> ModelError {
    let partial = partial.map(|text| Message { role: Role::Assistant, blocks: vec![Block::Text { text: text.into() }] });
    ModelError { kind, message: format!("test: {kind:?}"), partial, status: None, usage: usage(1) }
}

pub fn usage(tokens: u64) -> Usage {
    Usage { input: tokens, output: tokens, ..Usage::default() }
}

/// A complete answer with this text and these calls (id, name, input).
pub fn answer(text: &str, calls: &[(&str, &str, Value)]) -> Vec<Played> {
    let stop = if calls.is_empty() { StopReason::EndTurn } else { StopReason::ToolUse };
    stopped(text, calls, stop)
}

pub fn stopped(text: &str, calls: &[(&str, &str, Value)], stop: StopReason) -> Vec<Played> {
    let mut events = Vec::new();
    let mut blocks = Vec::new();
    if !text.is_empty() {
        events.push(Ok(ModelEvent::TextDelta(text.into())));
        blocks.push(Block::Text { text: text.into() });
    }
    for (id, name, input) in calls {
        blocks.push(Block::ToolUse { id: (*id).into(), name: (*name).into(), input: input.clone() });
    }
    events.push(Ok(ModelEvent::Finished(Reply { message: Message { role: Role::Assistant, blocks }, usage: usage(10), stop })));
    events
}

type Body = Box<dyn Fn(Value, ToolContext) -> BoxFuture<'static, Result<ToolReply, ToolFailure>> + Send + Sync>;

/// A tool made of a closure.
pub struct Probe {
    spec: ToolSpec,
    effect: Box<dyn Fn(&Value) -> Effect + Send + Sync>,
    body: Body,
    pub runs: AtomicUsize,
}

impl Probe {
    pub fn new<F>(name: &str, body: impl Fn(Value, ToolContext) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<ToolReply, ToolFailure>> + Send + 'static,
    {
        let declaration =
            ToolDeclaration { name: name.into(), description: format!("{name} for tests"), input_schema: json!({ "type": "object" }) };
        Self {
            spec: ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::ByEffect },
            effect: Box::new(|_| Effect::Internal),
            body: Box::new(move |input, context| Box::pin(body(input, context))),
            runs: AtomicUsize::new(0),
        }
    }

    pub fn says(name: &str, text: &'static str) -> Self {
        Self::new(name, move |_, _| async move { Ok(ToolReply::text(text)) })
    }

    pub fn alone(mut self) -> Self {
        self.spec.concurrent = false;
        self
    }

    pub fn effect(mut self, effect: impl Fn(&Value) -> Effect + Send + Sync + 'static) -> Self {
        self.effect = Box::new(effect);
        self
    }
}

impl Tool for Probe {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, _: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok((self.effect)(input))
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.body)(input, context)
    }
}

type Watcher = Box<dyn Fn(&EventKind) + Send + Sync>;

/// Keeps events, and may look at the world when one arrives.
#[derive(Default)]
pub struct Kept {
    events: Mutex<Vec<EventKind>>,
    on_event: Option<Watcher>,
}

impl Kept {
    pub fn watching(on_event: impl Fn(&EventKind) + Send + Sync + 'static) -> Self {
        Self { events: Mutex::default(), on_event: Some(Box::new(on_event)) }
    }

    pub fn events(&self) -> Vec<EventKind> {
        self.events.lock().unwrap().clone()
    }

    /// The names of the events, as machine output shows them.
    pub fn names(&self) -> Vec<String> {
        let name = |event: &EventKind| serde_json::to_value(event).unwrap()["event"].as_str().unwrap().to_owned();
        self.events().iter().map(name).collect()
    }

    pub fn count(&self, name: &str) -> usize {
        self.names().iter().filter(|known| *known == name).count()
    }
}

impl EventSink for Kept {
    fn send(&self, event: &Event) {
        if let Some(on_event) = &self.on_event {
            on_event(&event.kind);
        }
        self.events.lock().unwrap().push(event.kind.clone());
    }
}

/// Everything a session of these tests stands on.
pub struct Bench {
    pub model: Arc<dyn Model>,
    pub store: Store,
    pub events: Arc<Kept>,
    pub inbox: Inbox,
    pub id: SessionId,
    pub tools: Vec<Arc<dyn Tool>>,
    pub limits: Limits,
    pub mode: Mode,
    pub context: Vec<String>,
    pub max_turns: Option<u32>,
    pub token_budget: Option<u64>,
}

impl Bench {
    pub fn new(model: Arc<dyn Model>) -> Self {
        Self {
            model,
            store: Store::in_memory().unwrap(),
            events: Arc::default(),
            inbox: Inbox::new(100),
            id: SessionId::new_main(),
            tools: Vec::new(),
            limits: Limits::default(),
            mode: Mode::Yolo,
            context: Vec::new(),
            max_turns: None,
            token_budget: None,
        }
    }

    pub fn tool(mut self, tool: Probe) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    pub fn parts(&self) -> SessionParts {
        let toolbox = ToolBox::new(self.tools.clone());
        SessionParts {
            id: self.id.clone(),
            parent: None,
            task_type: "main".into(),
            cwd: "/work".into(),
            model: Arc::clone(&self.model),
            prefix: Arc::new(Prefix { tools: toolbox.declarations(), system: "you are a test".into() }),
            toolbox,
            policy: Arc::new(Policy::new(self.mode, RuleSet::default(), "/work".into())),
            approver: Arc::new(Unattended),
            events: self.events.clone(),
            store: self.store.clone(),
            limits: Arc::new(self.limits.clone()),
            context: self.context.clone(),
            agents: Vec::new(),
            notices: Vec::new(),
            hooks: zapmyco::hooks::SessionHooks::none(),
            inbox: self.inbox.clone(),
            max_turns: self.max_turns,
            token_budget: self.token_budget,
            money_budget: None,
            budget: None,
            prices: Arc::default(),
            reasoning: None,
        }
    }

    pub async fn session(&self) -> Session {
        Session::create(self.parts()).await.unwrap()
    }

    /// The session as a later process takes it up, with an inbox of its own.
    pub async fn resumed(&self) -> Session {
        let parts = SessionParts { inbox: Inbox::new(100), ..self.parts() };
        Session::resume(parts).await.unwrap()
    }

    /// A new session and its first turn.
    pub async fn run(&self, task: &str) -> (Session, TurnEnd) {
        let mut session = self.session().await;
        let end = session.turn(Input::user(task), &CancellationToken::new()).await;
        assert_legal(&self.stored().await);
        (session, end)
    }

    pub async fn rows(&self) -> Vec<MessageRow> {
        self.store.messages(&self.id).await.unwrap()
    }

    pub async fn stored(&self) -> Vec<Message> {
        self.rows().await.into_iter().map(|row| serde_json::from_value(row.message).unwrap()).collect()
    }

    /// The stored history in short: who, and the texts.
    pub async fn shown(&self) -> Vec<String> {
        let rows = self.rows().await.into_iter();
        rows.map(|row| {
            let message: Message = serde_json::from_value(row.message).unwrap();
            format!("{}: {}", row.source, texts_of(&message).join(" | "))
        })
        .collect()
    }
}

pub fn texts_of(message: &Message) -> Vec<String> {
    let text = |block: &Block| match block {
        Block::Text { text } | Block::Thinking { text, .. } => text.clone(),
        Block::ToolUse { id, name, .. } => format!("{name}#{id}"),
        Block::ToolResult { tool_use_id, text, is_error } => format!("{}{tool_use_id}={text}", if *is_error { "!" } else { "" }),
        Block::Other { .. } => "other".into(),
    };
    message.blocks.iter().map(text).collect()
}

/// The text of every tool result of the last request's last message.
pub fn results(messages: &[Message]) -> Vec<(String, bool)> {
    let result = |block: &Block| match block {
        Block::ToolResult { text, is_error, .. } => Some((text.clone(), *is_error)),
        _ => None,
    };
    messages.iter().flat_map(|message| message.blocks.iter().filter_map(result)).collect()
}

/// What every provider demands: a user message first, every call answered at once, once and in order, nothing before
/// the answers, no answer without a call.
#[track_caller]
pub fn assert_legal(messages: &[Message]) {
    let mut joined: Vec<Message> = Vec::new();
    for message in messages {
        match joined.last_mut() {
            Some(last) if last.role == message.role => last.blocks.extend(message.blocks.clone()),
            _ => joined.push(message.clone()),
        }
    }
    let mut open: Vec<String> = Vec::new();
    for (place, message) in joined.iter().enumerate() {
        let expected = if place % 2 == 0 { Role::User } else { Role::Assistant };
        assert_eq!(message.role, expected, "message {place} of {messages:#?}");
        assert!(!message.blocks.is_empty(), "message {place} is empty");
        let answered: Vec<String> = message
            .blocks
            .iter()
            .filter_map(|block| match block {
                Block::ToolResult { tool_use_id, .. } => Some(tool_use_id.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(answered, open, "results of message {place} of {messages:#?}");
        let first_other = message.blocks.iter().position(|block| !matches!(block, Block::ToolResult { .. }));
        assert!(answered.is_empty() || first_other.is_none_or(|first| first >= answered.len()), "text before results in {messages:#?}");
        open = message.tool_uses().map(|(id, ..)| id.to_owned()).collect();
        assert!(message.tool_uses().all(|(.., input)| input.is_object()), "an input is no object in {messages:#?}");
    }
}
