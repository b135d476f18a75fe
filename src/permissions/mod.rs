//! Whether a tool call may run: modes, rules, and what a shell line does.

pub mod effect;
pub mod mode;

pub use effect::Effect;
pub use mode::{Mode, UnknownMode};

pub mod decide;
pub mod rules;
pub mod shell_command;
