//! Settings, limits, environment names and the layout on disk.

pub mod environment;
pub mod layout;
pub mod limits;

pub use environment::Environment;
pub use layout::{JobFolder, Layout, ProjectLayout, Stream};
pub use limits::Limits;

pub mod settings;
