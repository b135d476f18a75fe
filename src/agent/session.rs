//! A session: owns history, state and inbox, runs one turn at a time (`turn.rs`), saves before it announces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;

use crate::agent::announcer::Announcer;
use crate::agent::budget::Budget;
use crate::agent::event::{EventKind, EventSink, InputSource};
use crate::agent::history::{Entry, History, HistoryError, INTERRUPTED, Origin, Restored, result_block};
use crate::agent::inbox::Inbox;
use crate::agent::state::{SessionState, StateRecord};
use crate::agent::tool::ToolBox;
use crate::agent::tool_batch::{CALL_RESULT, CallEnd};
use crate::clock;
use crate::config::Limits;
use crate::hooks::SessionHooks;
use crate::ids::{JobId, SessionId};
use crate::models::one_off::OneOff;
use crate::models::prices::{Bill, Prices, Usd};
use crate::models::{Model, Prefix, Usage};
use crate::permissions::approval::Approver;
use crate::permissions::decide::Policy;
use crate::store::{MessageRow, SessionRow, Store, StoreError};

/// What a session is made of. `app` builds all of it.
pub struct SessionParts {
    pub id: SessionId,
    pub parent: Option<SessionId>,
    /// `main`, `subagent_child`, `process_child`.
    pub task_type: String,
    /// Absolute.
    pub cwd: PathBuf,
    pub model: Arc<dyn Model>,
    pub toolbox: ToolBox,
    pub policy: Arc<Policy>,
    /// Who is asked about calls that need a person's word.
    pub approver: Arc<dyn Approver>,
    pub events: Arc<dyn EventSink>,
    pub store: Store,
    pub limits: Arc<Limits>,
    /// Built once; stands first in every request of the session.
    pub prefix: Arc<Prefix>,
    /// Context messages (`instructions.rs`), put before the first prompt. On resume only those that have changed are added.
    pub context: Vec<String>,
    /// Profiles that the session may start agents of; for observers.
    pub agents: Vec<String>,
    /// What a person should hear at the start.
    pub notices: Vec<String>,
    pub inbox: Inbox,
    pub hooks: SessionHooks,
    /// Model requests of this run (R172); `None`: no limit.
    pub max_turns: Option<u32>,
    /// Tokens of this run, cache reads included (R173); `None`: no limit.
    pub token_budget: Option<u64>,
    /// Money of this run (R173); `None`: no limit. Holds only for a model with a known price.
    pub money_budget: Option<Usd>,
    /// What this session shares with others (fault D8); `None`: no limit.
    pub budget: Option<Arc<Budget>>,
    pub prices: Arc<Prices>,
    /// One of the model's own levels.
    pub reasoning: Option<String>,
}

/// Why a session cannot be made or taken up again.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("there is no session {id}")]
    Unknown { id: SessionId },
    #[error("the history of session {id} cannot be used: {source}")]
    History { id: SessionId, source: HistoryError },
    #[error("a turn limit of 0 allows no answer; give at least 1")]
    NoTurns,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A call that permission refused (R319, R324).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Denial {
    pub tool_name: String,
    pub tool_use_id: String,
    pub tool_input: Value,
    pub message: String,
    /// The subagent whose call it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<JobId>,
    /// The same tool had a successful call afterwards: the work was done after all.
    #[serde(skip)]
    pub succeeded_later: bool,
}

/// One conversation.
pub struct Session {
    pub(super) parts: SessionParts,
    pub(super) announcer: Announcer,
    pub(super) history: History,
    pub(super) state: Arc<SessionState>,
    saved_state: StateRecord,
    titled: bool,
    /// Context messages that go into the history with the next input.
    pub(super) pending_context: Vec<String>,
    /// The turn was begun, and has been spoken to since, by notices and replies of children alone (R231).
    pub(super) only_peers_spoke: bool,
    pub(super) usage: Usage,
    pub(super) by_model: BTreeMap<String, Usage>,
    pub(super) bill: Bill,
    /// The model of the turn under way, where it has one of its own (R314).
    pub(super) once: Option<OneOff>,
    /// Requests that gave an answer, over all turns of this run.
    pub(super) steps: u32,
    denials: Vec<Denial>,
    /// Taken up again from the store.
    pub(super) resumed: bool,
    /// The hooks of the start have run.
    pub(super) begun: bool,
}

/// Characters of a session's title.
const TITLE_MAX: usize = 80;
/// Events read at once when results of an interrupted batch are looked for.
const EVENT_PAGE: u32 = 500;

impl Session {
    /// A new session; fails when the id is taken.
    pub async fn create(parts: SessionParts) -> Result<Self, SessionError> {
        let session = Self::assemble(parts, History::default(), StateRecord::default())?;
        let parts = &session.parts;
        let now = clock::now();
        let row = SessionRow {
            id: parts.id.clone(),
            parent: parts.parent.clone(),
            task_type: parts.task_type.clone(),
            cwd: parts.cwd.clone(),
            model: parts.model.name().to_owned(),
            mode: parts.policy.mode().as_str().to_owned(),
            title: String::new(),
            state: state_value(&session.saved_state),
            created_at: now,
            updated_at: now,
        };
        let started = session.started(false);
        // Sent together, written in one transaction, in this order.
        let (created, logged) = tokio::join!(parts.store.create_session(row), session.announcer.log(&started));
        created?;
        logged?;
        session.announcer.show(started);
        session.tell(parts.notices.clone()).await?;
        Ok(session)
    }

    /// A stored session taken up again: history, files seen and todo list are as they were; calls that a stopped process
    /// left without a result get one.
    pub async fn resume(parts: SessionParts) -> Result<Self, SessionError> {
        let id = parts.id.clone();
        let row = parts.store.session(&id).await?.ok_or_else(|| SessionError::Unknown { id: id.clone() })?;
        let rows = parts.store.messages(&id).await?;
        let Restored { history, mut notices } =
            History::restore(rows).map_err(|source| SessionError::History { id: id.clone(), source })?;
        let record = serde_json::from_value(row.state).unwrap_or_else(|error| {
            notices.push(format!("the stored state of session {id} cannot be read, files count as not read: {error}"));
            StateRecord::default()
        });
        let mut session = Self::assemble(parts, history, record)?;
        session.titled = !row.title.is_empty();
        session.resumed = true;
        session.pending_context = changed_context(&session.history, std::mem::take(&mut session.pending_context));
        let (model, mode) = (session.parts.model.name(), session.parts.policy.mode().as_str());
        if row.model != model {
            session.parts.store.set_model(&id, model).await?;
        }
        if row.mode != mode {
            session.parts.store.set_mode(&id, mode).await?;
        }
        session.repair().await?;
        session.announcer.announce(session.started(true)).await?;
        notices.extend(session.parts.notices.iter().cloned());
        session.tell(notices).await?;
        Ok(session)
    }

    pub fn id(&self) -> &SessionId {
        &self.parts.id
    }

    pub fn inbox(&self) -> Inbox {
        self.parts.inbox.clone()
    }

    pub fn state(&self) -> Arc<SessionState> {
        Arc::clone(&self.state)
    }

    /// Calls that permission refused in this run, in order.
    pub fn denials(&self) -> Vec<Denial> {
        self.denials.clone()
    }

    /// Tokens of all requests of this run.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The same by `provider/model`.
    pub fn usage_by_model(&self) -> &BTreeMap<String, Usage> {
        &self.by_model
    }

    /// Model requests of this run that gave an answer.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Jobs whose end the history already tells of; they must not be announced again (R257).
    pub fn announced(&self) -> BTreeSet<JobId> {
        self.history.announced()
    }

    fn assemble(mut parts: SessionParts, history: History, record: StateRecord) -> Result<Self, SessionError> {
        if parts.max_turns == Some(0) {
            return Err(SessionError::NoTurns);
        }
        Ok(Self {
            announcer: Announcer::new(parts.id.clone(), Arc::clone(&parts.events), parts.store.clone()),
            history,
            state: Arc::new(SessionState::restored(record.clone())),
            saved_state: record,
            titled: false,
            pending_context: std::mem::take(&mut parts.context),
            only_peers_spoke: false,
            usage: Usage::default(),
            by_model: BTreeMap::new(),
            bill: Bill::default(),
            once: None,
            steps: 0,
            denials: Vec::new(),
            resumed: false,
            begun: false,
            parts,
        })
    }

    fn started(&self, resumed: bool) -> EventKind {
        EventKind::SessionStarted {
            cwd: self.parts.cwd.display().to_string(),
            model: self.parts.model.name().to_owned(),
            tools: self.parts.toolbox.names(),
            agents: self.parts.agents.clone(),
            mode: self.parts.policy.mode(),
            resumed,
        }
    }

    async fn tell(&self, notices: Vec<String>) -> Result<(), StoreError> {
        for text in notices {
            self.announcer.announce(EventKind::Notice { text }).await?;
        }
        Ok(())
    }

    /// Saves what is to be appended, together with the state if it has changed; in the history only when saved.
    pub(super) async fn commit(&mut self, entries: Vec<Entry>) -> Result<(), StoreError> {
        self.commit_with(entries, None, &[]).await
    }

    /// As `commit`; the title and the log of what will be announced are sent along, so that the store can write all of
    /// it in one transaction.
    pub(super) async fn commit_with(&mut self, entries: Vec<Entry>, title: Option<String>, events: &[EventKind]) -> Result<(), StoreError> {
        let rows: Vec<MessageRow> = self.history.rows(&entries);
        let record = self.state.record();
        let changed = (record != self.saved_state).then(|| state_value(&record));
        let (store, id) = (&self.parts.store, &self.parts.id);
        let append = async {
            match &changed {
                Some(state) => store.append_messages_and_state(id, rows, state).await,
                None => store.append_messages(id, rows).await,
            }
        };
        let name = async {
            match &title {
                Some(title) => store.set_title(id, title).await,
                None => Ok(()),
            }
        };
        let log = join_all(events.iter().map(|event| self.announcer.log(event)));
        let (appended, named, logged) = tokio::join!(append, name, log);
        appended?;
        self.saved_state = record;
        self.history.push(entries);
        named?;
        self.titled |= title.is_some();
        logged.into_iter().collect::<Result<(), StoreError>>()?;
        self.tell_of_saving().await
    }

    /// Once when nothing can be saved any more, and once when everything is (fault K5). Sessions of one process share the
    /// store, and with it this news.
    async fn tell_of_saving(&self) -> Result<(), StoreError> {
        match self.parts.store.saving_news() {
            Some(news) => self.tell(vec![news.to_string()]).await,
            None => Ok(()),
        }
    }

    /// Gives the calls of the last answer that have no result one: what the log knows of them, else "unknown". Needed
    /// after a kill, and after a turn that was dropped in the middle of a batch.
    pub(super) async fn repair(&mut self) -> Result<(), StoreError> {
        let open = self.history.open_calls();
        if open.is_empty() {
            return Ok(());
        }
        let known = self.logged_results(&open).await?;
        let results = open.iter().map(|id| match known.get(id) {
            Some((text, is_error)) => result_block(id, text.clone(), *is_error),
            None => result_block(id, INTERRUPTED, true),
        });
        self.commit(vec![Entry::results(results.collect())]).await
    }

    async fn logged_results(&self, open: &[String]) -> Result<BTreeMap<String, (String, bool)>, StoreError> {
        let mut known = BTreeMap::new();
        let mut after = 0;
        loop {
            let page = self.parts.store.events(&self.parts.id, after, EVENT_PAGE).await?;
            let Some(last) = page.last() else { return Ok(known) };
            after = last.seq;
            for event in page.iter().filter(|event| event.kind == CALL_RESULT) {
                let text = |key: &str| event.data.get(key).and_then(Value::as_str);
                if let (Some(id), Some(text)) = (text("call_id"), text("text"))
                    && open.iter().any(|open| open == id)
                {
                    let is_error = event.data.get("is_error").and_then(Value::as_bool).unwrap_or(true);
                    known.insert(id.to_owned(), (text.to_owned(), is_error));
                }
            }
        }
    }

    /// The first line a person or parent wrote becomes the session's title.
    /// `None` when it has one.
    pub(super) fn title_from(&self, text: &str) -> Option<String> {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        (!self.titled).then(|| line.chars().take(TITLE_MAX).collect())
    }

    /// Keeps what was refused, and that a refused tool worked after all.
    pub(super) fn note_denials(&mut self, ends: &[CallEnd], input_of: impl Fn(&str) -> Value) {
        for end in ends {
            if end.denied {
                self.denials.push(Denial {
                    tool_name: end.name.clone(),
                    tool_use_id: end.id.clone(),
                    tool_input: input_of(&end.id),
                    message: end.text.clone(),
                    agent_id: None,
                    succeeded_later: false,
                });
            } else if !end.is_error {
                for denial in self.denials.iter_mut().filter(|denial| denial.tool_name == end.name) {
                    denial.succeeded_later = true;
                }
            }
        }
    }
}

impl Drop for Session {
    /// A session that is gone reads nothing more; senders are told so.
    fn drop(&mut self) {
        self.parts.inbox.close();
    }
}

fn state_value(record: &StateRecord) -> Value {
    let mut record = record.clone();
    // A path that is not UTF-8 has no JSON form; such a file counts as not read after a resume.
    record.files_seen.retain(|path, _| path.to_str().is_some());
    // Plain data with text keys always has a JSON form.
    serde_json::to_value(record).unwrap_or_else(|_| Value::Object(serde_json::Map::new()))
}

/// The context messages whose text is not the newest of its kind in the history.
pub(super) fn changed_context(history: &History, context: Vec<String>) -> Vec<String> {
    let kind = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let mut newest: BTreeMap<String, String> = BTreeMap::new();
    for entry in history.entries() {
        if entry.origin == Origin::Input(InputSource::Context) {
            let text = entry.message.text();
            newest.insert(kind(&text), text);
        }
    }
    context.into_iter().filter(|text| newest.get(&kind(text)) != Some(text)).collect()
}
