//! Stored conversations from a shell: list, show, export. Only reads, and takes no lock of a session, so it also works
//! while another process is in the middle of one.

use std::collections::HashSet;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::jobs::{layout, print_json};
use super::report::{CommandError, Exit, print_notice, print_out};
use super::sessions_text::{self, Detail};
use super::table;
use crate::agent::history::stored_message;
use crate::config::{Environment, Layout};
use crate::ids::{JobId, SessionId};
use crate::store::{MessageRow, SessionFilter, SessionSummary, Store, StoreError};
use crate::text::units::one_line;

/// Conversations that are stored, with those of their subagents.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SessionsArguments {
    #[command(subcommand)]
    pub command: SessionsCommand,
}

const EXAMPLES: &str = "\
Examples:
  zapmyco sessions list                    those used last first
  zapmyco sessions list --here --page 2    of this folder, the second page
  zapmyco sessions show SESSION            what was said; long results are shortened
  zapmyco sessions show agent_...          what a subagent did, by its own id
  zapmyco sessions export SESSION > talk.md
  zapmyco sessions export SESSION --json   JSON Lines, children included
  zapmyco run --resume SESSION \"...\"       go on with one

Exit codes: 0 done; 8 the store cannot be read; 11 unknown id";

#[derive(Subcommand, Clone, Debug)]
pub enum SessionsCommand {
    /// List sessions, the one used last first
    List {
        /// Only sessions of the working directory
        #[arg(long)]
        here: bool,
        /// Sessions of subagents too
        #[arg(long)]
        all: bool,
        /// Only the children of this session
        #[arg(long, value_name = "ID", conflicts_with_all = ["here", "all"])]
        children_of: Option<String>,
        /// Sessions on one page
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Which page
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        page: u32,
        /// As {"sessions": [...], "next_page": ...}
        #[arg(long)]
        json: bool,
    },
    /// What was said in one session
    Show {
        /// A session id, a name given with --session, or the id of a subagent
        id: String,
        /// Nothing shortened, and context messages too
        #[arg(long)]
        full: bool,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// One session with all its children as Markdown, nothing shortened
    Export {
        /// A session id, a name given with --session, or the id of a subagent
        id: String,
        /// As JSON Lines: a line per session and per message
        #[arg(long)]
        json: bool,
    },
}

/// Version of the JSON shapes printed here.
const SCHEMA_VERSION: u32 = 1;
/// Levels of children that are followed; delegation has one, a process child's sessions are one more.
const DEPTH_MAX: usize = 8;

pub fn run(arguments: &SessionsArguments, environment: &Environment) -> Result<Exit, CommandError> {
    let layout = layout(environment)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| CommandError::from_error(Exit::Fault, &error))?;
    runtime.block_on(execute(&arguments.command, &layout))
}

async fn execute(command: &SessionsCommand, layout: &Layout) -> Result<Exit, CommandError> {
    let store = open(layout)?;
    match command {
        SessionsCommand::List { here, all, children_of, limit, page, json } => {
            let Some(store) = store else { return empty(*page, *json) };
            let parent = match children_of {
                Some(text) => Some(find(&store, text).await?.row.id),
                None => None,
            };
            let filter = SessionFilter {
                roots: !all && parent.is_none(),
                parent,
                cwd: here.then(working_directory).transpose()?,
                offset: (page - 1).saturating_mul(*limit),
                // One more tells whether there is a next page.
                limit: limit + 1,
                ..SessionFilter::default()
            };
            list(&store, filter, *page, *json).await
        }
        SessionsCommand::Show { id, full, json } => {
            let store = store.ok_or_else(|| unknown(id))?;
            show(&store, id, if *full { Detail::Full } else { Detail::Short }, *json).await
        }
        SessionsCommand::Export { id, json } => {
            let store = store.ok_or_else(|| unknown(id))?;
            export(&store, id, *json).await
        }
    }
}

/// `None` when nothing was ever stored: a command that only reads makes no database.
fn open(layout: &Layout) -> Result<Option<Store>, CommandError> {
    let path = layout.database();
    if !path.exists() {
        return Ok(None);
    }
    Store::open(&path).map(Some).map_err(|error| store_error(&error))
}

fn store_error(error: &StoreError) -> CommandError {
    let told = CommandError::from_error(Exit::StateLost, error);
    match error.remedy() {
        Some(remedy) => told.with_hint(remedy),
        None => told,
    }
}

fn working_directory() -> Result<std::path::PathBuf, CommandError> {
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    here.map_err(|error| CommandError::usage(format!("the working directory is gone: {error}")))
}

fn unknown(text: &str) -> CommandError {
    CommandError::new(Exit::UnknownId, format!("there is no session `{}`", one_line(text, 80)))
        .with_hint("`zapmyco sessions list --all` shows all there are")
}

/// A session by its id, its name, or the id of the subagent whose session it is. A text of another form is unknown.
async fn find(store: &Store, text: &str) -> Result<SessionSummary, CommandError> {
    let of_job = JobId::parse(text).ok().map(|job| SessionId::of_child(&job));
    let Some(id) = of_job.or_else(|| SessionId::parse(text).or_else(|_| SessionId::from_name(text)).ok()) else {
        return Err(unknown(text));
    };
    let found = store.session_summary(&id).await.map_err(|error| store_error(&error))?;
    found.ok_or_else(|| unknown(text))
}

fn empty(page: u32, json: bool) -> Result<Exit, CommandError> {
    if json {
        print_json(&json!({ "schema_version": SCHEMA_VERSION, "sessions": [], "page": page, "next_page": null }))?;
    } else {
        print_notice("there are no sessions");
    }
    Ok(Exit::Done)
}

async fn list(store: &Store, filter: SessionFilter, page: u32, json: bool) -> Result<Exit, CommandError> {
    let wanted = usize::try_from(filter.limit).unwrap_or(usize::MAX).saturating_sub(1);
    let mut found = store.session_summaries(filter).await.map_err(|error| store_error(&error))?;
    let has_next = found.len() > wanted;
    found.truncate(wanted);
    if found.is_empty() {
        return empty(page, json);
    }
    if json {
        let sessions: Vec<Value> = found.iter().map(session_json).collect();
        let next_page = has_next.then(|| page.saturating_add(1));
        print_json(&json!({ "schema_version": SCHEMA_VERSION, "sessions": sessions, "page": page, "next_page": next_page }))?;
    } else {
        print_out(&sessions_text::list(&found, table::stdout_width()))?;
        if has_next {
            print_notice(&format!("there are more: --page {}", page.saturating_add(1)));
        }
    }
    Ok(Exit::Done)
}

async fn show(store: &Store, text: &str, detail: Detail, json: bool) -> Result<Exit, CommandError> {
    let session = find(store, text).await?;
    let rows = store.messages(&session.row.id).await.map_err(|error| store_error(&error))?;
    let children = children_of(store, &session.row.id).await?;
    if json {
        let mut value = session_json(&session);
        value["schema_version"] = json!(SCHEMA_VERSION);
        value["child_sessions"] = children.iter().map(session_json).collect();
        value["history"] = rows.iter().map(message_json).collect();
        print_json(&value)?;
        return Ok(Exit::Done);
    }
    print_out(&sessions_text::head(&session, &children))?;
    for row in rows {
        let (source, at) = (row.source.clone(), row.at);
        let message = read(row)?;
        print_out(&sessions_text::message(&source, at, message.as_deref(), detail))?;
    }
    Ok(Exit::Done)
}

/// Written session by session, so that a large family never stands in memory as a whole.
async fn export(store: &Store, text: &str, json: bool) -> Result<Exit, CommandError> {
    let mut waiting = vec![(find(store, text).await?, 0)];
    let mut seen = HashSet::new();
    while let Some((session, depth)) = waiting.pop() {
        if !seen.insert(session.row.id.clone()) {
            continue;
        }
        let rows = store.messages(&session.row.id).await.map_err(|error| store_error(&error))?;
        if json {
            let mut line = session_json(&session);
            (line["type"], line["schema_version"]) = (json!("session"), json!(SCHEMA_VERSION));
            print_out(&format!("{line}\n"))?;
        } else {
            print_out(&sessions_text::heading(&session, depth))?;
        }
        for row in rows {
            if json {
                let mut line = message_json(&row);
                (line["type"], line["session"]) = (json!("message"), json!(session.row.id));
                print_out(&format!("{line}\n"))?;
            } else {
                let (source, at) = (row.source.clone(), row.at);
                print_out(&sessions_text::markdown(&source, at, read(row)?.as_deref()))?;
            }
        }
        if depth < DEPTH_MAX {
            // The oldest child is written first.
            waiting.extend(children_of(store, &session.row.id).await?.into_iter().map(|child| (child, depth + 1)));
        }
    }
    Ok(Exit::Done)
}

/// Newest first.
async fn children_of(store: &Store, id: &SessionId) -> Result<Vec<SessionSummary>, CommandError> {
    let filter = SessionFilter { parent: Some(id.clone()), ..SessionFilter::default() };
    let mut children = store.session_summaries(filter).await.map_err(|error| store_error(&error))?;
    children.sort_by_key(|child| std::cmp::Reverse(child.row.created_at));
    Ok(children)
}

fn read(row: MessageRow) -> Result<Option<std::sync::Arc<crate::models::Message>>, CommandError> {
    stored_message(row).map_err(|error| CommandError::from_error(Exit::StateLost, &error).with_hint("use a newer zapmyco"))
}

fn session_json(session: &SessionSummary) -> Value {
    let row = &session.row;
    json!({
        "id": row.id,
        "parent": row.parent,
        "task_type": row.task_type,
        "title": row.title,
        "cwd": row.cwd.display().to_string(),
        "model": row.model,
        "mode": row.mode,
        "messages": session.messages,
        "children": session.children,
        "created_at": row.created_at.to_rfc3339(),
        "updated_at": row.updated_at.to_rfc3339(),
    })
}

fn message_json(row: &MessageRow) -> Value {
    json!({ "seq": row.seq, "source": row.source, "at": row.at.to_rfc3339(), "message": row.message })
}
