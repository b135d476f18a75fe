//! Pages and searches: what is fetched from the web, from which addresses, and how it becomes text.

pub mod address;
pub mod document;
pub mod error;
pub mod fetch;
mod markdown;
mod proxy;
pub mod search;
pub mod settings;

pub use address::AllowList;
pub use document::{Document, Media};
pub use error::WebError;
pub use fetch::{Fetched, Fetcher};
pub use settings::WebSettings;
