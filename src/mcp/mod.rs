//! Servers of the Model Context Protocol as far as agents in this process need them: the face a session's servers have,
//! and what a child borrows of it (section K). Nothing here opens a connection.

pub mod loan;
pub mod names;
pub mod servers;

pub use loan::{Loan, LoanError};
pub use servers::{Lifecycle, McpServers, Server, ServerState, ServerTool};
