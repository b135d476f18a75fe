//! Sessions and their messages.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Local};
use rusqlite::types::Value as SqlValue;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;

use super::columns;
use super::database::Store;
use super::error::StoreError;
use crate::clock;
use crate::ids::SessionId;

/// One conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionRow {
    pub id: SessionId,
    pub parent: Option<SessionId>,
    /// `main`, `subagent_child`, `process_child` or `named`.
    pub task_type: String,
    pub cwd: PathBuf,
    pub model: String,
    pub mode: String,
    pub title: String,
    /// What the session remembers beside its history; the store does not read it.
    pub state: Value,
    pub created_at: DateTime<Local>,
    pub updated_at: DateTime<Local>,
}

/// One message of a session's history.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageRow {
    /// Position in the history, given by the session; unique in it.
    pub seq: i64,
    /// Who put it there: a person, the model, a notice, ...
    pub source: String,
    pub message: Value,
    pub at: DateTime<Local>,
}

/// A session as a list shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSummary {
    pub row: SessionRow,
    /// Messages of its history.
    pub messages: u64,
    /// Sessions of its subagents.
    pub children: u64,
}

/// Which sessions a list shows; an empty filter shows all.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// Only those that are nobody's child.
    pub roots: bool,
    pub parent: Option<SessionId>,
    pub task_type: Option<String>,
    pub cwd: Option<PathBuf>,
    /// Rows left out at the start.
    pub offset: u32,
    /// Rows given at most; 0 means all.
    pub limit: u32,
}

const COLUMNS: &str = "id, parent, task_type, cwd, model, mode, title, state, created_at, updated_at";
const COUNTS: &str = "(SELECT count(*) FROM messages WHERE messages.session = sessions.id), \
    (SELECT count(*) FROM sessions AS child WHERE child.parent = sessions.id)";
const MAIN: &str = "main";

impl Store {
    /// Fails with [`StoreError::Taken`] when the id is already there.
    pub async fn create_session(&self, row: SessionRow) -> Result<(), StoreError> {
        let id = row.id.clone();
        let state = self.redacted(row.state.to_string());
        let title = self.redacted(row.title);
        let created = self
            .write(move |connection| {
                let inserted = connection.execute(
                    &format!("INSERT INTO sessions ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING"),
                    params![
                        row.id.as_str(),
                        row.parent.as_ref().map(SessionId::as_str),
                        row.task_type,
                        columns::path(&row.cwd),
                        row.model,
                        row.mode,
                        title,
                        state,
                        columns::time(row.created_at),
                        columns::time(row.updated_at)
                    ],
                )?;
                Ok(inserted as i64)
            })
            .await?;
        if created == 1 { Ok(()) } else { Err(StoreError::Taken { path: self.path().to_owned(), what: "session", id: id.to_string() }) }
    }

    pub async fn session(&self, id: &SessionId) -> Result<Option<SessionRow>, StoreError> {
        let id = id.clone();
        self.read("sessions", move |connection| {
            connection.query_row(&format!("SELECT {COLUMNS} FROM sessions WHERE id = ?1"), [id.as_str()], read_session).optional()
        })
        .await
    }

    /// The main session of this directory that was used last.
    pub async fn newest_main(&self, cwd: &Path) -> Result<Option<SessionRow>, StoreError> {
        let filter =
            SessionFilter { task_type: Some(MAIN.into()), cwd: Some(cwd.to_owned()), roots: true, limit: 1, ..SessionFilter::default() };
        Ok(self.sessions(filter).await?.pop())
    }

    /// The sessions that fit, the one used last first.
    pub async fn sessions(&self, filter: SessionFilter) -> Result<Vec<SessionRow>, StoreError> {
        self.read("sessions", move |connection| {
            let (query, values) = of_filter(COLUMNS, filter);
            connection.prepare(&query)?.query_map(rusqlite::params_from_iter(values), read_session)?.collect()
        })
        .await
    }

    /// One session with what belongs to it counted.
    pub async fn session_summary(&self, id: &SessionId) -> Result<Option<SessionSummary>, StoreError> {
        let id = id.clone();
        self.read("sessions", move |connection| {
            let query = format!("SELECT {COLUMNS}, {COUNTS} FROM sessions WHERE id = ?1");
            connection.query_row(&query, [id.as_str()], read_summary).optional()
        })
        .await
    }

    /// As [`Store::sessions`], with what belongs to each counted. One query, whatever the number of sessions.
    pub async fn session_summaries(&self, filter: SessionFilter) -> Result<Vec<SessionSummary>, StoreError> {
        self.read("sessions", move |connection| {
            let (query, values) = of_filter(&format!("{COLUMNS}, {COUNTS}"), filter);
            connection.prepare(&query)?.query_map(rusqlite::params_from_iter(values), read_summary)?.collect()
        })
        .await
    }

    /// Appends to the history in one transaction: all rows or none. The session counts as used now.
    ///
    /// [`StoreError::Taken`] when a position is already there, [`StoreError::UnknownSession`] when there is no such session.
    pub async fn append_messages(&self, session: &SessionId, rows: Vec<MessageRow>) -> Result<(), StoreError> {
        self.append(session, rows, None).await
    }

    /// As [`Store::append_messages`], and replaces the session's state in the same transaction.
    pub async fn append_messages_and_state(&self, session: &SessionId, rows: Vec<MessageRow>, state: &Value) -> Result<(), StoreError> {
        self.append(session, rows, Some(self.redacted(state.to_string()))).await
    }

    async fn append(&self, session: &SessionId, rows: Vec<MessageRow>, state: Option<String>) -> Result<(), StoreError> {
        let id = session.clone();
        let texts = rows.into_iter().map(|row| (row.seq, row.source, self.redacted(row.message.to_string()), columns::time(row.at)));
        let rows: Vec<_> = texts.collect();
        let now = columns::time(clock::now());
        let last = rows.iter().map(|(seq, ..)| *seq).max().unwrap_or_default();
        let updated = self
            .write(move |connection| {
                let updated = match &state {
                    Some(state) => connection
                        .execute("UPDATE sessions SET updated_at = ?2, state = ?3 WHERE id = ?1", params![id.as_str(), now, state])?,
                    None => connection.execute("UPDATE sessions SET updated_at = ?2 WHERE id = ?1", params![id.as_str(), now])?,
                };
                if updated == 0 {
                    return Ok(0);
                }
                let mut insert =
                    connection.prepare("INSERT INTO messages (session, seq, source, message, at) VALUES (?1, ?2, ?3, ?4, ?5)")?;
                for (seq, source, message, at) in &rows {
                    insert.execute(params![id.as_str(), seq, source, message, at])?;
                }
                Ok(1)
            })
            .await
            .map_err(|error| match error {
                StoreError::Failed { path, source } if is_constraint(&source) => {
                    StoreError::Taken { path, what: "message", id: format!("{last} of {session} (or one before it)") }
                }
                error => error,
            })?;
        if updated == 1 { Ok(()) } else { Err(self.unknown(session)) }
    }

    /// The whole history, in order.
    pub async fn messages(&self, session: &SessionId) -> Result<Vec<MessageRow>, StoreError> {
        let id = session.clone();
        self.read("messages", move |connection| {
            connection
                .prepare("SELECT seq, source, message, at FROM messages WHERE session = ?1 ORDER BY seq")?
                .query_map([id.as_str()], |row| {
                    Ok(MessageRow {
                        seq: row.get(0)?,
                        source: row.get(1)?,
                        message: columns::read_json(row, 2)?,
                        at: columns::read_time(row, 3)?,
                    })
                })?
                .collect()
        })
        .await
    }

    pub async fn save_state(&self, session: &SessionId, state: &Value) -> Result<(), StoreError> {
        self.update(session, "state", state.to_string()).await
    }

    pub async fn set_title(&self, session: &SessionId, title: &str) -> Result<(), StoreError> {
        let title = &self.redacted(title.to_owned());
        self.update(session, "title", title.to_owned()).await
    }

    pub async fn set_model(&self, session: &SessionId, model: &str) -> Result<(), StoreError> {
        self.update(session, "model", model.to_owned()).await
    }

    pub async fn set_mode(&self, session: &SessionId, mode: &str) -> Result<(), StoreError> {
        self.update(session, "mode", mode.to_owned()).await
    }

    async fn update(&self, session: &SessionId, column: &'static str, value: String) -> Result<(), StoreError> {
        let id = session.clone();
        let now = columns::time(clock::now());
        let query = format!("UPDATE sessions SET {column} = ?2, updated_at = ?3 WHERE id = ?1");
        let updated = self.write(move |connection| Ok(connection.execute(&query, params![id.as_str(), value, now])? as i64)).await?;
        if updated == 1 { Ok(()) } else { Err(self.unknown(session)) }
    }

    fn unknown(&self, session: &SessionId) -> StoreError {
        StoreError::UnknownSession { path: self.path().to_owned(), id: session.clone() }
    }
}

/// One clause per part of the filter that is set, so that the index which fits is used.
fn of_filter(columns: &str, filter: SessionFilter) -> (String, Vec<SqlValue>) {
    let parts: [(&str, Option<SqlValue>); 3] = [
        ("cwd", filter.cwd.as_deref().map(|cwd| columns::path(cwd).into())),
        ("task_type", filter.task_type.map(Into::into)),
        ("parent", filter.parent.map(|parent| String::from(parent).into())),
    ];
    let (mut clauses, mut values): (Vec<_>, Vec<_>) =
        parts.into_iter().filter_map(|(column, value)| Some((format!("{column} = ?"), value?))).unzip();
    if filter.roots {
        clauses.push("parent IS NULL".to_owned());
    }
    let condition = if clauses.is_empty() { String::new() } else { format!("WHERE {}", clauses.join(" AND ")) };
    values.push(if filter.limit == 0 { -1 } else { i64::from(filter.limit) }.into());
    values.push(i64::from(filter.offset).into());
    let query = format!("SELECT {columns} FROM sessions {condition} ORDER BY updated_at DESC, created_at DESC, id DESC LIMIT ? OFFSET ?");
    (query, values)
}

fn is_constraint(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation)
}

fn read_summary(row: &Row<'_>) -> rusqlite::Result<SessionSummary> {
    let count = |column| row.get::<_, i64>(column).map(|count| u64::try_from(count).unwrap_or_default());
    Ok(SessionSummary { row: read_session(row)?, messages: count(10)?, children: count(11)? })
}

fn read_session(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        id: columns::read_parsed(row, 0, SessionId::parse)?,
        parent: columns::read_optional_parsed(row, 1, SessionId::parse)?,
        task_type: row.get(2)?,
        cwd: columns::read_path(row, 3)?,
        model: row.get(4)?,
        mode: row.get(5)?,
        title: row.get(6)?,
        state: columns::read_json(row, 7)?,
        created_at: columns::read_time(row, 8)?,
        updated_at: columns::read_time(row, 9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The newest session of a directory is found without reading the others.
    #[tokio::test]
    async fn sessions_are_found_by_an_index_and_not_sorted() {
        let store = Store::in_memory().unwrap();
        let parent = SessionId::new_main();
        let main = SessionFilter { cwd: Some("/w".into()), task_type: Some(MAIN.into()), limit: 1, ..SessionFilter::default() };
        let children = SessionFilter { parent: Some(parent), ..SessionFilter::default() };
        for (filter, expected) in [
            (main, "SEARCH sessions USING INDEX sessions_by_cwd (cwd=? AND task_type=?)"),
            (children, "SEARCH sessions USING INDEX sessions_by_parent (parent=?)"),
            (SessionFilter::default(), "SCAN sessions USING INDEX sessions_by_time"),
        ] {
            let plan: Vec<String> = store
                .read("sessions", move |connection| {
                    let (query, values) = of_filter(COLUMNS, filter);
                    let mut explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}"))?;
                    explained.query_map(rusqlite::params_from_iter(values), |row| row.get(3))?.collect()
                })
                .await
                .unwrap();
            assert_eq!(plan, [expected]);
        }
    }
}
