//! What would be decided about a call in a session of this folder, without one.

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent::Role;
use crate::agent::tool::{ApprovalNeed, ToolContext, ToolFailure};
use crate::app::session::OpenError;
use crate::app::{App, AppError};
use crate::ids::SessionId;
use crate::permissions::decide::explain::Explanation;
use crate::permissions::{CalledTool, Effect};
use crate::tools::toolset::{self, SessionTools};

#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Policy(#[from] OpenError),
    #[error("{tool}: {failure}")]
    Input { tool: String, failure: ToolFailure },
    #[error("{tool}: `{key}` is missing")]
    Missing { tool: String, key: &'static str },
}

impl App {
    /// The decision about one call of a tool and what it rests on. Nothing is run or touched.
    pub fn explain(&self, tool: &str, input: &Value) -> Result<Explanation, ExplainError> {
        let policy = Arc::new(self.policy(&Arc::default())?);
        let toolbox = toolset::build(Role::Main, SessionTools::default(), &policy);
        let text = |key: &'static str| {
            let given = input.get(key).and_then(Value::as_str).map(str::to_owned);
            given.ok_or_else(|| ExplainError::Missing { tool: tool.to_owned(), key })
        };
        let found = toolbox.find(tool);
        let (name, never_asked, effect) = match (tool.to_lowercase().as_str(), &found) {
            ("bash", _) => ("Bash", false, Effect::Runs { command: text("command")? }),
            ("webfetch" | "web_fetch" | "fetch", _) => ("WebFetch", false, Effect::Fetches { url: text("url")? }),
            (_, Some(found)) => {
                let spec = found.spec();
                let context = ToolContext {
                    session: SessionId::new_main(),
                    call_id: String::new(),
                    cwd: self.cwd.clone(),
                    cancel: CancellationToken::new(),
                    state: Arc::default(),
                };
                let failed = |failure| ExplainError::Input { tool: spec.declaration.name.clone(), failure };
                let effect = found.effect(input, &context).map_err(failed)?;
                (spec.declaration.name.as_str(), spec.approval == ApprovalNeed::Never, effect)
            }
            // Tools of sessions and servers touch nothing by themselves.
            (_, None) => (tool, !tool.starts_with("mcp__"), Effect::Internal),
        };
        Ok(policy.explain(&CalledTool { name, aliases: &[], never_asked }, &effect))
    }
}
