//! Identifiers of sessions and jobs: made from random bits or checked on the way in.
//!
//! Only a value of these types ever becomes part of a path. A text from a model that does not parse is an
//! "unknown id" and never reaches the file system.

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Local};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The id of a session.
///
/// Shapes: `sess_<uuid v7>` (main), `sess_subagent_<job id>` (child), `name_<NAME>` (named by a script, belongs to
/// no process). Safe as one path component.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(Arc<str>);

/// What kind of work a job is; told by the form of its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A subagent in a process of its own (`sa_...`).
    ProcessAgent,
    /// A subagent inside this process (`agent_...`).
    LocalAgent,
    /// A command of the Bash tool (`sh_...`).
    Shell,
}

/// The id of a job.
///
/// Shapes: `sa_` + local date `YYYYMMDD` + `_` + 8 hex digits (process agent), `agent_<uuid>` (local agent),
/// `sh_` + 8 hex digits (shell). Hex digits are lower case. Safe as one path component.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(Arc<str>);

/// A text that is not an id of the expected form.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdError {
    #[error("`{text}` is not a session id; expected `sess_...` or a name of at most 64 of [A-Za-z0-9._-]")]
    Session { text: String },
    #[error("`{text}` is not a job id")]
    Job { text: String },
}

/// Longest name that `--session NAME` takes.
const SESSION_NAME_MAX: usize = 64;

impl SessionId {
    /// A fresh id for a main session; ids sort by time of creation.
    pub fn new_main() -> Self {
        Self(format!("sess_{}", Uuid::now_v7()).into())
    }

    /// The session of a child, derived from its job.
    pub fn of_child(job: &JobId) -> Self {
        Self(format!("sess_subagent_{job}").into())
    }

    /// What a person types after `--session`: a name, or a complete `sess_` id.
    pub fn from_name(name: &str) -> Result<Self, IdError> {
        if name.starts_with("sess_") {
            return Self::parse(name);
        }
        if is_session_name(name) {
            return Ok(Self(format!("name_{name}").into()));
        }
        Err(IdError::Session { text: name.to_owned() })
    }

    /// A complete id as stored or printed.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let known = match text.strip_prefix("sess_subagent_") {
            Some(job) => JobId::parse(job).is_ok(),
            None => match text.strip_prefix("sess_") {
                Some(uuid) => is_canonical_uuid(uuid),
                None => text.strip_prefix("name_").is_some_and(is_session_name),
            },
        };
        if known { Ok(Self(text.into())) } else { Err(IdError::Session { text: text.to_owned() }) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The job whose session this is, for sessions of children.
    pub fn child_job(&self) -> Option<JobId> {
        self.0.strip_prefix("sess_subagent_").and_then(|job| JobId::parse(job).ok())
    }

    /// The name a script gave, for `name_` sessions.
    pub fn name(&self) -> Option<&str> {
        self.0.strip_prefix("name_")
    }
}

fn is_session_name(name: &str) -> bool {
    name.len() <= SESSION_NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

impl JobId {
    /// A fresh id for a process agent started at `now`. Uniqueness is proved by creating its folder exclusively.
    pub fn new_process_agent(now: DateTime<Local>) -> Self {
        Self(format!("sa_{}_{:08x}", now.format("%Y%m%d"), rand::random::<u32>()).into())
    }

    pub fn new_local_agent() -> Self {
        Self(format!("agent_{}", Uuid::new_v4()).into())
    }

    pub fn new_shell() -> Self {
        Self(format!("sh_{:08x}", rand::random::<u32>()).into())
    }

    pub fn parse(text: &str) -> Result<Self, IdError> {
        if kind_of(text).is_some() { Ok(Self(text.into())) } else { Err(IdError::Job { text: text.to_owned() }) }
    }

    pub fn kind(&self) -> JobKind {
        // A value of this type has one of the three forms; the last arm is the only one left.
        kind_of(&self.0).unwrap_or(JobKind::Shell)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn kind_of(text: &str) -> Option<JobKind> {
    if let Some(rest) = text.strip_prefix("sa_") {
        let (date, digits) = rest.split_once('_')?;
        let dated = date.len() == 8 && date.bytes().all(|b| b.is_ascii_digit());
        return (dated && is_hex8(digits)).then_some(JobKind::ProcessAgent);
    }
    if let Some(uuid) = text.strip_prefix("agent_") {
        return is_canonical_uuid(uuid).then_some(JobKind::LocalAgent);
    }
    text.strip_prefix("sh_").is_some_and(is_hex8).then_some(JobKind::Shell)
}

fn is_hex8(digits: &str) -> bool {
    digits.len() == 8 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Only the form we print (lower case, hyphens), so that one id has one spelling and one path.
fn is_canonical_uuid(text: &str) -> bool {
    Uuid::try_parse(text).is_ok_and(|uuid| uuid.to_string() == text)
}

macro_rules! id_text_impls {
    ($id:ty) => {
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl From<$id> for String {
            fn from(id: $id) -> String {
                id.0.to_string()
            }
        }
        impl TryFrom<String> for $id {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }
    };
}
id_text_impls!(SessionId);
id_text_impls!(JobId);

#[cfg(test)]
mod tests {
    use super::*;

    /// R346
    #[test]
    fn a_process_agent_id_has_date_and_eight_hex_digits() {
        let id = JobId::new_process_agent(Local::now());
        let text = id.to_string();
        assert_eq!(text.len(), "sa_20260606_a1b2c3d4".len());
        assert_eq!(&text[3..11], Local::now().format("%Y%m%d").to_string());
        assert_eq!(JobId::parse(&text), Ok(id.clone()));
        assert_eq!(id.kind(), JobKind::ProcessAgent);
    }

    /// R365
    #[test]
    fn texts_of_another_form_are_no_ids() {
        for text in [
            "",
            "..",
            "../../x",
            "/etc/passwd",
            "sa_20260606_a1b2c3d4/..",
            "sa_2026060_a1b2c3d4",
            "sa_20260606_A1B2C3D4",
            "sa_20260606_a1b2c3d4\n",
            "sa_20260606_e5f6g7h8",
            "sh_1",
            "agent_x",
            "agent_",
            "SA_20260606_a1b2c3d4",
        ] {
            assert!(JobId::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn session_ids_are_path_safe_in_every_form() {
        assert!(SessionId::parse(SessionId::new_main().as_str()).is_ok());
        assert_eq!(SessionId::from_name("ci-1").unwrap().as_str(), "name_ci-1");
        let child = SessionId::of_child(&JobId::new_process_agent(Local::now()));
        assert_eq!(SessionId::parse(child.as_str()), Ok(child));
        for text in ["", "..", ".hidden", "a/b", "sess_", "sess_../x", "name_..", "name_", "-x", "sess_subagent_../x"] {
            assert!(SessionId::parse(text).is_err(), "{text:?}");
        }
        for name in ["", ".x", "a/b", "ä", &"x".repeat(65)] {
            assert!(SessionId::from_name(name).is_err(), "{name:?}");
        }
    }
}
