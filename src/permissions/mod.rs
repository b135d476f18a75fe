//! Whether a tool call may run: modes, rules, and what a shell line does.

pub mod approval;
mod bounds;
pub mod decide;
pub mod effect;
mod fetching;
mod file_commands;
pub mod granted;
mod lasting;
pub mod mode;
pub mod paths;
mod peers;
mod read_only;
pub mod rules;
pub mod sandbox;
pub mod shell_command;
pub mod trust;

pub use decide::{CalledTool, ParentMode, Policy, Verdict};
pub use effect::Effect;
pub use granted::Granted;
pub use mode::{Mode, UnknownMode};
pub use rules::{Rule, RuleError, RuleSet, split_list};
