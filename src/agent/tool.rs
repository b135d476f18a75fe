//! What a tool is to the conversation engine.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent::state::SessionState;
use crate::config::Limits;
use crate::ids::SessionId;
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::permissions::approval::Question;

/// Something the model may call. Tools are thin: they check arguments, call one thing and render with `text`.
///
/// A tool holds no state of its own beyond handles; what belongs to a session is in [`SessionState`].
pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;

    /// What the call would do; asked before permission is decided. An input that makes no sense is `InvalidInput`.
    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure>;

    /// Bytes of its result that the model may get.
    fn result_max(&self, limits: &Limits) -> u64 {
        limits.tool_result_max
    }

    /// Only waits for work that has limits of its own, so it takes no place among the calls that run at once (R31).
    fn only_waits(&self) -> bool {
        false
    }

    /// What an edit would change, as a unified diff for a person; `None` where nothing is edited. A call that cannot work
    /// fails here, and nobody is asked about it.
    fn change<'a>(&'a self, _input: &'a Value, _context: &'a ToolContext) -> BoxFuture<'a, Result<Option<String>, ToolFailure>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The questions that the call puts to a person: it is then an approval itself, and its answers stand in its input
    /// when it runs; without them there was nobody to answer (R235, R237).
    fn questions(&self, _input: &Value) -> Option<Vec<Question>> {
        None
    }

    /// Runs the call. Must end soon after `context.cancel` fires; dropping the future also cancels it.
    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>>;
}

/// The constant part of a tool.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    pub declaration: ToolDeclaration,
    /// Other names under which the call is accepted but never offered.
    pub aliases: &'static [&'static str],
    /// May run beside other calls of the same message.
    pub concurrent: bool,
    /// Decided by mode and rules, or only refused by an explicit deny rule (R392).
    pub approval: ApprovalNeed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalNeed {
    /// The mode decides by the call's effect.
    ByEffect,
    /// Never asked for; a deny rule for the tool still holds.
    Never,
}

/// What a call knows of its surroundings.
#[derive(Clone)]
pub struct ToolContext {
    pub session: SessionId,
    /// The model's id of this call.
    pub call_id: String,
    /// The session's working directory, absolute.
    pub cwd: PathBuf,
    pub cancel: CancellationToken,
    pub state: Arc<SessionState>,
}

/// What a call gives back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolReply {
    /// What the model reads. Cut by the tool batch when longer than the limit for one result.
    pub text: String,
    /// For observers and machine output; never sent to the model.
    pub structured: Option<Value>,
}

impl ToolReply {
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), structured: None }
    }
}

/// A call that failed. Its reader is a model: what was wrong with which argument, what to call instead, and whether
/// trying again makes sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}{}", hint.as_deref().map(|hint| format!("\n{hint}")).unwrap_or_default())]
pub struct ToolFailure {
    pub kind: FailureKind,
    pub message: String,
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    InvalidInput,
    NotFound,
    Denied,
    Unavailable,
    Failed,
    Cancelled,
}

impl ToolFailure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureKind::InvalidInput, message)
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Failed, message)
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The tools of one session, found by name.
#[derive(Clone, Default)]
pub struct ToolBox {
    tools: Vec<Arc<dyn Tool>>,
}

impl ToolBox {
    /// Sorts by name, so that equal sets give equal request bytes.
    pub fn new(mut tools: Vec<Arc<dyn Tool>>) -> Self {
        tools.sort_by(|a, b| a.spec().declaration.name.cmp(&b.spec().declaration.name));
        Self { tools }
    }

    /// By name or alias; letter case and underscores do not matter (R99).
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        let wanted = folded(name);
        self.tools.iter().find(|tool| {
            let spec = tool.spec();
            folded(&spec.declaration.name) == wanted || spec.aliases.iter().any(|alias| folded(alias) == wanted)
        })
    }

    pub fn declarations(&self) -> Vec<ToolDeclaration> {
        self.tools.iter().map(|tool| tool.spec().declaration.clone()).collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.tools.iter().map(|tool| tool.spec().declaration.name.clone()).collect()
    }

    /// The same box with further tools.
    pub fn with(mut self, more: Vec<Arc<dyn Tool>>) -> Self {
        self.tools.extend(more);
        Self::new(self.tools)
    }

    /// The same box with each tool replaced by what `change` makes of it; names stay as they are.
    pub fn mapped(self, change: impl FnMut(Arc<dyn Tool>) -> Arc<dyn Tool>) -> Self {
        Self::new(self.tools.into_iter().map(change).collect())
    }

    /// The same box without the tools for which `keep` is false.
    pub fn filtered(&self, mut keep: impl FnMut(&ToolSpec) -> bool) -> Self {
        Self { tools: self.tools.iter().filter(|tool| keep(tool.spec())).cloned().collect() }
    }
}

fn folded(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}
