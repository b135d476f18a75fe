//! The event log of a session: kind and JSON, encoded and decoded by the agent.

use chrono::{DateTime, Local};
use rusqlite::params;
use serde_json::Value;

use super::columns;
use super::database::Store;
use super::error::StoreError;
use crate::clock;
use crate::ids::SessionId;

/// One stored event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRow {
    /// Grows with time over all sessions; where the next page begins.
    pub seq: i64,
    pub kind: String,
    pub data: Value,
    pub at: DateTime<Local>,
}

impl Store {
    /// Returns the event's number when it is committed.
    pub async fn append_event(&self, session: &SessionId, kind: &str, data: Value) -> Result<i64, StoreError> {
        let session = session.clone();
        let kind = kind.to_owned();
        let data = self.redacted(data.to_string());
        let now = columns::time(clock::now());
        self.write(move |connection| {
            connection.execute(
                "INSERT INTO events (session, kind, data, at) VALUES (?1, ?2, ?3, ?4)",
                params![session.as_str(), kind, data, now],
            )?;
            Ok(connection.last_insert_rowid())
        })
        .await
    }

    /// At most `limit` events after number `after` (0: from the start), in order.
    pub async fn events(&self, session: &SessionId, after: i64, limit: u32) -> Result<Vec<EventRow>, StoreError> {
        let session = session.clone();
        self.read("events", move |connection| {
            connection
                .prepare("SELECT seq, kind, data, at FROM events WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3")?
                .query_map(params![session.as_str(), after, limit], |row| {
                    Ok(EventRow { seq: row.get(0)?, kind: row.get(1)?, data: columns::read_json(row, 2)?, at: columns::read_time(row, 3)? })
                })?
                .collect()
        })
        .await
    }
}
