//! Markdown files with fields above the text, as profiles and skills are: read leniently, and never in silence.

pub mod diagnostic;
pub mod document;
pub mod reading;

pub use diagnostic::{Code, Diagnostic, Severity};
pub use document::{Codes, Document, NoFrontmatter, RawField, Vocabulary, split, unquoted};
