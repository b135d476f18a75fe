//! Tells observers what happens in a session, after it is in the event log.

use std::sync::Arc;

use crate::agent::event::{Event, EventKind, EventSink};
use crate::ids::SessionId;
use crate::store::{Store, StoreError};

/// Saves, then announces.
#[derive(Clone)]
pub(crate) struct Announcer {
    session: SessionId,
    sink: Arc<dyn EventSink>,
    store: Store,
}

impl Announcer {
    pub fn new(session: SessionId, sink: Arc<dyn EventSink>, store: Store) -> Self {
        Self { session, sink, store }
    }

    /// Writes the event to the log, then shows it. What cannot be saved is not shown.
    pub async fn announce(&self, kind: EventKind) -> Result<(), StoreError> {
        self.log(&kind).await?;
        self.show(kind);
        Ok(())
    }

    /// Only writes the event to the log; for events that are saved together with something else and shown then.
    pub async fn log(&self, kind: &EventKind) -> Result<(), StoreError> {
        match kind.logged() {
            Some((name, data)) => self.store.append_event(&self.session, name, data).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// For events that are not logged: parts of an answer, and messages, which are saved as such.
    pub fn show(&self, kind: EventKind) {
        self.sink.send(&Event { session: self.session.clone(), kind });
    }
}
