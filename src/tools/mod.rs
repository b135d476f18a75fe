//! The tools: thin; they parse arguments, call one thing and render with `text`.

pub mod agent;
pub mod arguments;
pub mod ask_user_question;
pub mod bash;
pub(crate) mod diff;
pub mod edit;
pub(crate) mod file_access;
pub mod glob;
pub mod grep;
pub mod read;
pub(crate) mod redacting;
pub mod respond;
pub(crate) mod search;
pub mod send_message;
pub mod skill;
pub(crate) mod snippet;
pub mod subagent;
pub mod task_output;
pub mod task_stop;
pub mod todo_write;
pub mod toolset;
pub mod web_fetch;
pub mod web_search;
pub mod write;
