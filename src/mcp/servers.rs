//! The servers of a session: which there are, how each stands, and the tools of those that are connected.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::loan::LoanError;
use crate::agent::tool::Tool;

/// How a connection stands (R141).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    Connecting,
    Connected,
    Disabled,
    Disconnected,
    Failed,
    Untrusted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As configured.
    pub name: String,
    pub state: ServerState,
    /// How long a connection may take to come about.
    pub connect_timeout: Duration,
}

/// One tool of a connected server.
#[derive(Clone)]
pub struct ServerTool {
    pub server: String,
    /// As the server names it.
    pub name: String,
    /// Does the call, decides its effect, describes itself; its own name is not shown.
    pub tool: Arc<dyn Tool>,
}

/// What may be asked of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    Connect,
    Disconnect,
    /// The last one: all connections of this side end.
    Close,
}

/// The servers of a session. Asked anew at every launch of a child, never remembered (R93, R133).
pub trait McpServers: Send + Sync {
    fn servers(&self) -> Vec<Server>;

    /// Of the servers that are connected now.
    fn tools(&self) -> Vec<ServerTool>;

    /// Returns at the next change of a state.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// `server` is not looked at for [`Lifecycle::Close`].
    fn manage<'a>(&'a self, server: &'a str, wish: Lifecycle) -> BoxFuture<'a, Result<(), LoanError>>;
}
