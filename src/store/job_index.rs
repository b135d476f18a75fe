//! Jobs by session: a copy of what the job folders say, so that a list does not grow with history.
//!
//! The folders are the truth; the registry replaces a session's rows from them when the index is missing or behind.

use std::path::PathBuf;

use chrono::{DateTime, Local};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use super::columns;
use super::database::Store;
use super::error::StoreError;
use crate::ids::{JobId, SessionId};

/// One job as last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRow {
    pub session: SessionId,
    pub id: JobId,
    pub kind: String,
    pub title: String,
    pub status: String,
    pub created_at: DateTime<Local>,
    pub started_at: Option<DateTime<Local>>,
    pub ended_at: Option<DateTime<Local>>,
    /// The end as its owner encodes it; the store does not read it.
    pub end: Option<Value>,
    /// Its end stands in the history of the session.
    pub notified: bool,
    pub folder: PathBuf,
}

/// Which jobs a list over all sessions shows; an empty filter shows all.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Only jobs that have ended (`true`) or have not (`false`).
    pub ended: Option<bool>,
    pub created_before: Option<DateTime<Local>>,
    /// Rows given at most; 0 means all.
    pub limit: u32,
}

const COLUMNS: &str = "session, id, kind, title, status, created_at, started_at, ended_at, end_record, notified, folder";

impl Store {
    /// Adds the job or replaces what was known of it.
    pub async fn put_job(&self, row: JobRow) -> Result<(), StoreError> {
        let row = JobRow { title: self.redacted(row.title), ..row };
        self.write(move |connection| put(connection, &row)).await.map(drop)
    }

    /// The jobs of one session in order of creation; independent of how many others there are.
    pub async fn jobs_of(&self, session: &SessionId) -> Result<Vec<JobRow>, StoreError> {
        let session = session.clone();
        self.read("jobs", move |connection| connection.prepare(&of_session())?.query_map([session.as_str()], read_job)?.collect()).await
    }

    pub async fn job(&self, session: &SessionId, id: &JobId) -> Result<Option<JobRow>, StoreError> {
        let (session, id) = (session.clone(), id.clone());
        self.read("jobs", move |connection| {
            connection
                .query_row(&format!("SELECT {COLUMNS} FROM jobs WHERE session = ?1 AND id = ?2"), [session.as_str(), id.as_str()], read_job)
                .optional()
        })
        .await
    }

    /// Jobs of all sessions, in order of creation.
    pub async fn all_jobs(&self, filter: JobFilter) -> Result<Vec<JobRow>, StoreError> {
        self.read("jobs", move |connection| {
            let query = of_all(filter.ended);
            let before = filter.created_before.map_or(i64::MAX, columns::time);
            let limit = if filter.limit == 0 { -1 } else { i64::from(filter.limit) };
            connection.prepare(&query)?.query_map(params![before, limit], read_job)?.collect()
        })
        .await
    }

    /// Marks the job's end as announced; false when the job is unknown or was marked before, so that of several
    /// who try only one announces.
    pub async fn mark_notified(&self, session: &SessionId, id: &JobId) -> Result<bool, StoreError> {
        let (session, id) = (session.clone(), id.clone());
        let changed = self
            .write(move |connection| {
                let query = "UPDATE jobs SET notified = 1 WHERE session = ?1 AND id = ?2 AND notified = 0";
                Ok(connection.execute(query, [session.as_str(), id.as_str()])? as i64)
            })
            .await?;
        Ok(changed == 1)
    }

    /// False when there was no such job.
    pub async fn remove_job(&self, session: &SessionId, id: &JobId) -> Result<bool, StoreError> {
        let (session, id) = (session.clone(), id.clone());
        let removed = self
            .write(move |connection| {
                let query = "DELETE FROM jobs WHERE session = ?1 AND id = ?2";
                Ok(connection.execute(query, [session.as_str(), id.as_str()])? as i64)
            })
            .await?;
        Ok(removed == 1)
    }

    /// Makes these the jobs of the session, in one transaction. A mark that an end was announced is never lost by it.
    pub async fn replace_jobs_of(&self, session: &SessionId, rows: Vec<JobRow>) -> Result<(), StoreError> {
        let session = session.clone();
        self.write(move |connection| {
            let announced: Vec<String> = connection
                .prepare("SELECT id FROM jobs WHERE session = ?1 AND notified = 1")?
                .query_map([session.as_str()], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            connection.execute("DELETE FROM jobs WHERE session = ?1", [session.as_str()])?;
            for row in rows.iter().filter(|row| row.session == session) {
                put(connection, row)?;
            }
            let mut mark = connection.prepare("UPDATE jobs SET notified = 1 WHERE session = ?1 AND id = ?2")?;
            for id in &announced {
                mark.execute([session.as_str(), id.as_str()])?;
            }
            Ok(0)
        })
        .await
        .map(drop)
    }
}

fn of_session() -> String {
    format!("SELECT {COLUMNS} FROM jobs WHERE session = ?1 ORDER BY created_at, id")
}

fn of_all(ended: Option<bool>) -> String {
    let ended = match ended {
        None => "",
        Some(true) => "AND ended_at IS NOT NULL",
        Some(false) => "AND ended_at IS NULL",
    };
    format!("SELECT {COLUMNS} FROM jobs WHERE created_at < ?1 {ended} ORDER BY created_at, id LIMIT ?2")
}

fn put(connection: &Connection, row: &JobRow) -> rusqlite::Result<i64> {
    let query = format!("INSERT OR REPLACE INTO jobs ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)");
    let changed = connection.execute(
        &query,
        params![
            row.session.as_str(),
            row.id.as_str(),
            row.kind,
            row.title,
            row.status,
            columns::time(row.created_at),
            row.started_at.map(columns::time),
            row.ended_at.map(columns::time),
            row.end.as_ref().map(Value::to_string),
            row.notified,
            columns::path(&row.folder)
        ],
    )?;
    Ok(changed as i64)
}

fn read_job(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    Ok(JobRow {
        session: columns::read_parsed(row, 0, SessionId::parse)?,
        id: columns::read_parsed(row, 1, JobId::parse)?,
        kind: row.get(2)?,
        title: row.get(3)?,
        status: row.get(4)?,
        created_at: columns::read_time(row, 5)?,
        started_at: columns::read_optional_time(row, 6)?,
        ended_at: columns::read_optional_time(row, 7)?,
        end: columns::read_optional_parsed(row, 8, |text| serde_json::from_str(text))?,
        notified: row.get(9)?,
        folder: columns::read_path(row, 10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn plan(query: String) -> Vec<String> {
        let store = Store::in_memory().unwrap();
        store
            .read("jobs", move |connection| {
                let mut explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}"))?;
                let values = vec![0; explained.parameter_count()];
                explained.query_map(rusqlite::params_from_iter(values), |row| row.get(3))?.collect()
            })
            .await
            .unwrap()
    }

    /// Independent of how many jobs there are: only rows that are shown are read, and nothing is sorted.
    #[tokio::test]
    async fn a_list_reads_only_what_it_shows() {
        assert_eq!(plan(of_session()).await, ["SEARCH jobs USING INDEX jobs_by_session (session=?)"]);
        assert_eq!(plan(of_all(Some(false))).await, ["SEARCH jobs USING INDEX jobs_not_ended (created_at<?)"]);
        assert_eq!(plan(of_all(None)).await, ["SEARCH jobs USING INDEX jobs_by_time (created_at<?)"]);
    }
}
