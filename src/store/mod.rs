//! Sessions, messages, events and the job index in one SQLite file.

mod columns;
pub mod database;
pub mod error;
pub mod events;
mod held;
pub mod job_index;
pub mod sessions;

pub use database::Store;
pub use error::StoreError;
pub use events::EventRow;
pub use held::SavingNews;
pub use job_index::{JobFilter, JobRow};
pub use sessions::{MessageRow, SessionFilter, SessionRow, SessionSummary};
