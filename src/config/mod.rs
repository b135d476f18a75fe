//! Settings, limits, environment names and the layout on disk.

pub mod environment;
pub mod layout;
pub mod limits;
pub mod sections;
pub mod settings;
mod tree;
pub mod units;

pub use environment::Environment;
pub use layout::{JobFolder, Layout, ProjectLayout, Stream};
pub use limits::Limits;
pub use settings::{Settings, SettingsError, Sources};
pub use tree::Source;
