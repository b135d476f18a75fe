//! Encoding of the columns that all tables share: times, paths, and texts that are parsed.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local, Utc};
use rusqlite::Row;
use rusqlite::types::Type;

/// A stored text that is not what its column holds.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a time")]
struct NotATime(i64);

/// Microseconds since 1970.
pub fn time(at: DateTime<Local>) -> i64 {
    at.timestamp_micros()
}

pub fn read_time(row: &Row<'_>, column: usize) -> rusqlite::Result<DateTime<Local>> {
    to_time(column, row.get(column)?)
}

pub fn read_optional_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<DateTime<Local>>> {
    row.get::<_, Option<i64>>(column)?.map(|micros| to_time(column, micros)).transpose()
}

fn to_time(column: usize, micros: i64) -> rusqlite::Result<DateTime<Local>> {
    DateTime::<Utc>::from_timestamp_micros(micros)
        .map(|at| at.with_timezone(&Local))
        .ok_or_else(|| rusqlite::Error::FromSqlConversionFailure(column, Type::Integer, Box::new(NotATime(micros))))
}

/// Paths are bytes, which need not be UTF-8.
pub fn path(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

pub fn read_path(row: &Row<'_>, column: usize) -> rusqlite::Result<PathBuf> {
    Ok(PathBuf::from(OsString::from_vec(row.get(column)?)))
}

/// A text that is parsed: an id, or JSON.
pub fn read_parsed<T, E: std::error::Error + Send + Sync + 'static>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    parse(&text).map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

pub fn read_optional_parsed<T, E: std::error::Error + Send + Sync + 'static>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => read_parsed(row, column, parse).map(Some),
    }
}

pub fn read_json(row: &Row<'_>, column: usize) -> rusqlite::Result<serde_json::Value> {
    read_parsed(row, column, |text| serde_json::from_str(text))
}
