//! The conversation engine: sessions, turns, tool batches, the inbox. It starts no process and prints nothing.

pub mod event;
pub mod state;
pub mod tool;

pub mod history;
pub mod inbox;
pub mod instructions;
pub mod prompt;
pub mod session;
pub mod tool_batch;
pub mod turn;
