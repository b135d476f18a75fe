//! Profiles of agents in this process: where they lie, how they are read, and what a child gets from one.

pub mod bounds;
pub mod catalog;
pub mod edit;
pub mod matching;
pub mod model_choice;
pub mod parse;
pub mod places;
pub mod profile;
pub mod state_file;
pub mod tool_list;
pub mod tool_policy;
pub mod trust;

pub use crate::frontmatter::{Code, Diagnostic, Severity};
pub use catalog::{Catalog, Definition, LiveCatalog, Plugin, Replaced, Sources};
pub use profile::{ChildMode, Level, McpServer, MemoryScope, Origin, Profile, ToolEntry, ToolSelection};
