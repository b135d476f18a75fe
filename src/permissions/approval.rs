//! A question to a person about one call, and the answer. A child's question goes out under the session that clients
//! know, the root, and says whose it really is (R234, R238, R239).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{JobId, SessionId};
use crate::permissions::Rule;

/// One question. It stands as long as the future that `Approver::ask` returned.
#[derive(Clone, Debug)]
pub struct ApprovalRequest {
    /// The session that is asked: the root, at whatever depth the call was made.
    pub session: SessionId,
    /// Who asks, when it is not that session itself.
    pub origin: Option<Origin>,
    /// The call, under the id by which the asked session's observers know it (R246).
    pub call_id: String,
    pub tool: String,
    pub input: Value,
    /// The session's folder: paths below it are shown without it.
    pub cwd: PathBuf,
    pub subject: Subject,
    pub still_open: StillOpen,
}

/// Whether the answer is still needed: rules or mode may have decided meanwhile.
#[derive(Clone)]
pub struct StillOpen(Arc<dyn Fn() -> bool + Send + Sync>);

impl StillOpen {
    pub fn new(check: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    pub fn check(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for StillOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StillOpen")
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub enum Subject {
    /// Whether a call may run.
    Call(CallSubject),
    /// Questions of the model to the person (R235).
    Questions(Vec<Question>),
}

/// A call that needs a person's word.
#[derive(Clone, Debug, Default)]
pub struct CallSubject {
    pub reason: String,
    /// The flag or setting that would have allowed it.
    pub suggestion: String,
    /// What would be changed, as a unified diff; `None` where nothing is edited.
    pub diff: Option<String>,
    /// The rules that "always" would add. Empty: no rule can allow it, so "always" is not offered.
    pub lasting: Vec<Rule>,
}

/// Which subagent asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    pub kind: OriginKind,
    pub agent_id: JobId,
    pub child_session_id: SessionId,
    /// The parent's call that started it.
    pub parent_tool_call_id: Option<String>,
    pub agent_type: String,
    pub description: String,
    pub background: bool,
    pub parent_session_id: SessionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_turn_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_turn_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    Subagent,
}

/// One question of the model (R237).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    pub question: String,
    /// A word or two that stand for it.
    pub header: String,
    pub options: Vec<QuestionOption>,
    #[serde(default)]
    pub multi_select: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionOption {
    pub label: String,
    pub description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
}

/// What a person said to one question: labels that were chosen, or own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub question: String,
    pub answer: String,
}

/// How a question was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Once,
    /// This call, and from now on what the request's lasting rules cover: the approver has seen to that (R243).
    Always,
    /// With a comment for the model (R286).
    Deny {
        comment: Option<String>,
    },
    /// To questions only.
    Answered(Vec<Answer>),
    /// There is nobody who could answer (R244).
    Unanswered,
    /// Something else has decided meanwhile; the call looks again.
    Obsolete,
}

impl Decision {
    /// The word for logs and machine output.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Always => "always",
            Self::Deny { .. } => "denied",
            Self::Answered(_) => "answered",
            Self::Unanswered => "unanswered",
            Self::Obsolete => "withdrawn",
        }
    }
}

/// Answers questions. One question, one decision; dropping the future withdraws the question (R242).
pub trait Approver: Send + Sync {
    /// Whether there is anyone to ask; when not, every question is `Unanswered` at once.
    fn is_attended(&self) -> bool;

    fn ask(&self, request: ApprovalRequest) -> BoxFuture<'_, Decision>;
}

/// The approver of runs that have nobody to ask: without a terminal, and process children.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unattended;

impl Approver for Unattended {
    fn is_attended(&self) -> bool {
        false
    }

    fn ask(&self, _: ApprovalRequest) -> BoxFuture<'_, Decision> {
        Box::pin(std::future::ready(Decision::Unanswered))
    }
}

impl fmt::Debug for dyn Approver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approver").field("attended", &self.is_attended()).finish()
    }
}
