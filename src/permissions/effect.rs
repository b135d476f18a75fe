//! What a tool call would do, as far as a permission decision needs to know.

use std::path::PathBuf;

/// Told by the tool itself from its input, before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Touches nothing outside the conversation (todo list, delegation: each call inside a child is decided there).
    Internal,
    /// Reads one file or searches below a folder. Absolute path.
    Reads(PathBuf),
    /// Creates or changes one file. Absolute path.
    Writes(PathBuf),
    /// Runs one shell line.
    Runs { command: String },
    /// Asks a server of the web for something: nothing here changes, but the URL goes out. The whole URL.
    Fetches { url: String },
}
