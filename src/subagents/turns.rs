//! The optional bound on process agents that run at once in a session (R350): a further start waits its turn.
//!
//! Within a process the turns come in the order of the calls. Commands of a script share the bound through a lock file.

use std::fs::File;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::delegation::SpawnError;
use super::detached::Detached;
use super::folders::LOOK_PAUSE;
use super::registry::Registry;
use crate::config::Limits;
use crate::files;
use crate::ids::JobKind;

/// The queue of a session's starts. Its semaphore has one permit and hands it on in the order of the askers.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Semaphore>);

/// The next start waits until this one is entered in the registry, so that it counts.
pub(crate) struct Turn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Returns when fewer than `process_agents_max` run; at once without that limit.
    pub(crate) async fn take(&self, registry: &Arc<Registry>, limits: &Limits, cancel: &CancellationToken) -> Result<Turn, SpawnError> {
        if limits.process_agents_max == 0 {
            return Ok(Turn { _permit: None });
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(SpawnError::Cancelled),
            permit = self.0.clone().acquire_owned() => {
                // Nobody closes the semaphore.
                let permit = permit.map_err(|_| SpawnError::Interrupted)?;
                tokio::select! {
                    () = cancel.cancelled() => Err(SpawnError::Cancelled),
                    () = room(registry, limits) => Ok(Turn { _permit: Some(permit) }),
                }
            }
        }
    }
}

async fn room(registry: &Arc<Registry>, limits: &Limits) {
    let mut changes = registry.changes();
    loop {
        changes.mark_unchanged();
        // A folder that cannot be listed leaves what is known already.
        let _ = registry.refresh();
        let running = registry.running_ids(|job| job.owner.kind == JobKind::ProcessAgent);
        for id in &running {
            registry.look_after(id);
        }
        if is_below(running.len(), limits) {
            return;
        }
        let look = tokio::time::sleep(limits.poll_interval);
        tokio::select! {
            _ = changes.changed() => {}
            () = look => {}
        }
    }
}

impl Detached {
    /// As [`Turns::take`] without a runtime: the lock file keeps other commands of this session behind this one.
    pub(crate) fn take_turn(&self) -> Result<Option<File>, SpawnError> {
        if self.limits.process_agents_max == 0 {
            return Ok(None);
        }
        let path = self.layout.spawn_lock(&self.session);
        if let Some(folder) = path.parent() {
            files::create_private_folder(folder)?;
        }
        let turn = files::lock(&path)?;
        loop {
            let running = self.list()?.found.iter().filter(|found| found.job.is_running()).count();
            if is_below(running, &self.limits) {
                return Ok(Some(turn));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}

fn is_below(n_running: usize, limits: &Limits) -> bool {
    u32::try_from(n_running).is_ok_and(|n_running| n_running < limits.process_agents_max)
}
