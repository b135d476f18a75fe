//! Looks after one running job until its end is recorded and announced.

use std::sync::Arc;
use std::time::Duration;

use super::registry::Registry;
use crate::ids::JobId;
use crate::supervisor::handle::Kept;

/// Between two tries to read a folder while this process is out of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(500);

/// Ends with the job: waits for the end record, then index, event and notice, in this order.
pub(crate) async fn tend(registry: Arc<Registry>, kept: Kept, id: JobId) {
    loop {
        match kept.ended().await {
            Ok(record) => return registry.conclude(&id, record).await,
            // The job is as it was; only this process cannot look now.
            Err(error) if error.is_shortage() && registry.follows(&id) => tokio::time::sleep(SHORTAGE_PAUSE).await,
            Err(error) => return registry.give_up(&id, &error.to_string()),
        }
    }
}
