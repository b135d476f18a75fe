//! Settings, limits, environment names and the layout on disk.

pub mod answers;
pub mod environment;
pub mod error;
pub mod layout;
pub mod limits;
mod reading;
pub mod sections;
pub mod settings;
mod tree;
pub mod units;

pub use environment::Environment;
pub use error::SettingsError;
pub use layout::{JobFolder, Layout, ProjectLayout, Stream};
pub use limits::Limits;
pub use settings::{ProjectRights, Settings, Sources};
pub use tree::Source;
pub(crate) use tree::{Content, Node};
