//! What a child sees of its parent's servers: some of them, their calls forwarded, none of their connections to manage
//! (R132 to R138). A loan holds no connection, so its end ends none.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::names;
use super::servers::{Lifecycle, McpServers, Server, ServerState, ServerTool};
use crate::agent::tool::{FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::config::Limits;
use crate::permissions::Effect;

/// A child's side of its parent's servers.
#[derive(Clone)]
pub struct Loan {
    parent: Arc<dyn McpServers>,
    /// Never visible to children (R138).
    hidden: Arc<Vec<String>>,
    /// What the profile names; `None`: all that are not hidden.
    scope: Option<Arc<Vec<String>>>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoanError {
    #[error("Subagent MCP port cannot mutate parent connection lifecycle")]
    Lifecycle,
    #[error("Subagent MCP server is outside visible scope: {server}")]
    OutsideScope { server: String },
    #[error("MCP server {server} is not connected")]
    NotConnected { server: String },
    #[error("MCP server {server} has no tool {tool}")]
    UnknownTool { server: String, tool: String },
}

impl Loan {
    pub fn new(parent: Arc<dyn McpServers>, hidden: Arc<Vec<String>>, scope: Option<Vec<String>>) -> Self {
        Self { parent, hidden, scope: scope.map(Arc::new) }
    }

    fn is_visible(&self, server: &str) -> bool {
        let is_in = |names: &[String]| names.iter().any(|name| name == server);
        !is_in(&self.hidden) && self.scope.as_ref().is_none_or(|scope| is_in(scope))
    }

    /// The tool behind a server's own name for it.
    pub fn find(&self, server: &str, tool: &str) -> Result<Arc<dyn Tool>, LoanError> {
        if !self.is_visible(server) {
            return Err(LoanError::OutsideScope { server: server.to_owned() });
        }
        let is_connected = |known: &Server| known.name == server && known.state == ServerState::Connected;
        if !self.parent.servers().iter().any(is_connected) {
            return Err(LoanError::NotConnected { server: server.to_owned() });
        }
        let found = self.parent.tools().into_iter().find(|known| known.server == server && known.name == tool);
        found.map(|found| found.tool).ok_or_else(|| LoanError::UnknownTool { server: server.to_owned(), tool: tool.to_owned() })
    }

    /// The tools as a child's model sees them, and what is to be told about their names.
    pub fn exposed(&self) -> (Vec<Arc<dyn Tool>>, Vec<String>) {
        let mut tools = self.tools();
        // The parent's order may be that of its connections; names and clashes do not depend on it.
        tools.sort_by(|left, right| (&left.server, &left.name).cmp(&(&right.server, &right.name)));
        let (names, clashes) = names::unique(tools.iter().map(|tool| (tool.server.as_str(), tool.name.as_str())));
        let exposed =
            tools.into_iter().zip(names).map(|(tool, name)| -> Arc<dyn Tool> { Arc::new(Borrowed::new(self.clone(), tool, name)) });
        (exposed.collect(), clashes)
    }

    /// Waits until none of the named servers is still connecting, at most as long as their connections may take (R135).
    pub async fn settled(&self, named: &[String]) {
        let since = Instant::now();
        loop {
            // Before the look: a change in between is not missed.
            let changed = self.parent.changed();
            let is_open = |server: &Server| named.contains(&server.name) && server.state == ServerState::Connecting;
            let open = self.parent.servers().into_iter().filter(is_open).map(|server| server.connect_timeout).max();
            let Some(limit) = open else { return };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(since + limit) => return,
            }
        }
    }
}

impl McpServers for Loan {
    fn servers(&self) -> Vec<Server> {
        self.parent.servers().into_iter().filter(|server| self.is_visible(&server.name)).collect()
    }

    fn tools(&self) -> Vec<ServerTool> {
        self.parent.tools().into_iter().filter(|tool| self.is_visible(&tool.server)).collect()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        self.parent.changed()
    }

    fn manage<'a>(&'a self, _server: &'a str, wish: Lifecycle) -> BoxFuture<'a, Result<(), LoanError>> {
        Box::pin(std::future::ready(match wish {
            Lifecycle::Connect | Lifecycle::Disconnect => Err(LoanError::Lifecycle),
            Lifecycle::Close => Ok(()),
        }))
    }
}

/// A tool of a server under the name the child's model calls it by; each call goes to the parent's side as it is then.
struct Borrowed {
    loan: Loan,
    server: String,
    name: String,
    spec: ToolSpec,
    described: Arc<dyn Tool>,
}

impl Borrowed {
    fn new(loan: Loan, tool: ServerTool, shown: String) -> Self {
        let ServerTool { server, name, tool } = tool;
        let mut spec = tool.spec().clone();
        spec.declaration.name = shown;
        spec.aliases = &[];
        Self { loan, server, name, spec, described: tool }
    }
}

impl Tool for Borrowed {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure> {
        self.described.effect(input, context)
    }

    fn result_max(&self, limits: &Limits) -> u64 {
        self.described.result_max(limits)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(async move {
            let tool =
                self.loan.find(&self.server, &self.name).map_err(|error| ToolFailure::new(FailureKind::Unavailable, error.to_string()))?;
            tool.call(input, context).await
        })
    }
}
