//! Looks after one running job until its end is recorded and announced.

use std::sync::Arc;

use super::registry::Registry;
use crate::ids::JobId;
use crate::supervisor::handle::Kept;

/// Ends with the job: waits for the end record, then index, event and notice, in this order.
pub(crate) async fn tend(registry: Arc<Registry>, kept: Kept, id: JobId) {
    match kept.ended().await {
        Ok(record) => registry.conclude(&id, record).await,
        Err(error) => registry.give_up(&id, &error.to_string()),
    }
}
