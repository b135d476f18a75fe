//! Which calls of a batch may run beside each other. A call that waits for a person gives its place away, so that one
//! question does not hold up its siblings; it takes a place again before it runs.
//!
//! A call that must be alone still keeps its order: no other such call starts while it waits, and neither does a call
//! that reads what it may be about to write.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, RwLock, Semaphore};

use crate::permissions::Effect;

/// What a call needs to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// No company.
    Alone,
    /// One of the places for calls that run side by side.
    Beside,
    /// Company that is not alone; it takes no place, since it only waits for work with limits of its own (R31).
    Company,
}

/// The right to run, given back when dropped.
pub(crate) struct Place {
    _company: Company,
    _counted: Option<OwnedSemaphorePermit>,
}

/// Held, never read.
#[allow(dead_code)]
enum Company {
    None(OwnedRwLockWriteGuard<()>),
    Some(OwnedRwLockReadGuard<()>),
}

/// The places of one batch.
pub(crate) struct Places {
    alone: Arc<RwLock<()>>,
    beside: Arc<Semaphore>,
    asking: Mutex<Vec<Asking>>,
    number: Mutex<u64>,
    changed: Notify,
}

struct Asking {
    number: u64,
    need: Need,
    writes: Option<PathBuf>,
}

/// A call waits for a person; ends when dropped.
pub(crate) struct Waiting<'a> {
    places: &'a Places,
    number: u64,
}

impl Places {
    pub fn new(beside: usize) -> Self {
        Self {
            alone: Arc::default(),
            beside: Arc::new(Semaphore::new(beside.max(1))),
            asking: Mutex::default(),
            number: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// A place for the next call in order, if there is one now. `effect` is asked only when it matters.
    pub fn try_take(&self, need: Need, effect: impl FnOnce() -> Option<Effect>) -> Option<Place> {
        let (order_holds, written) = {
            let asking = self.asking();
            let written: Vec<PathBuf> = asking.iter().filter_map(|asking| asking.writes.clone()).collect();
            (need == Need::Alone && asking.iter().any(|asking| asking.need == Need::Alone), written)
        };
        if order_holds || (!written.is_empty() && effect().is_some_and(|effect| reads_one_of(&effect, &written))) {
            return None;
        }
        let company = match need {
            Need::Alone => Company::None(Arc::clone(&self.alone).try_write_owned().ok()?),
            Need::Beside | Need::Company => Company::Some(Arc::clone(&self.alone).try_read_owned().ok()?),
        };
        let counted = match need {
            Need::Beside => Some(Arc::clone(&self.beside).try_acquire_owned().ok()?),
            Need::Alone | Need::Company => None,
        };
        Some(Place { _company: company, _counted: counted })
    }

    /// Waits for a place; for a call that gave its own away.
    pub async fn take(&self, need: Need) -> Place {
        let counted = match need {
            // The semaphore is never closed.
            Need::Beside => Arc::clone(&self.beside).acquire_owned().await.ok(),
            Need::Alone | Need::Company => None,
        };
        let company = match need {
            Need::Alone => Company::None(Arc::clone(&self.alone).write_owned().await),
            Need::Beside | Need::Company => Company::Some(Arc::clone(&self.alone).read_owned().await),
        };
        Place { _company: company, _counted: counted }
    }

    /// A call gives its place away and waits for a person.
    pub fn wait(&self, place: Place, need: Need, effect: &Effect) -> Waiting<'_> {
        let writes = match effect {
            Effect::Writes(path) => Some(path.clone()),
            Effect::Internal | Effect::Reads(_) | Effect::Runs { .. } | Effect::Fetches { .. } => None,
        };
        let number = {
            let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
            *number += 1;
            *number
        };
        self.asking().push(Asking { number, need, writes });
        drop(place);
        self.changed.notify_one();
        Waiting { places: self, number }
    }

    /// Returns when a call has begun or ceased to wait for a person since the last time.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn asking(&self) -> MutexGuard<'_, Vec<Asking>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.places.asking().retain(|asking| asking.number != self.number);
        self.places.changed.notify_one();
    }
}

/// Whether the call reads a file, or searches a folder, that is about to be written.
fn reads_one_of(effect: &Effect, written: &[PathBuf]) -> bool {
    match effect {
        Effect::Reads(path) => written.iter().any(|written| written.starts_with(path)),
        Effect::Internal | Effect::Writes(_) | Effect::Runs { .. } | Effect::Fetches { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Option<Effect> {
        None
    }

    #[test]
    fn places_are_counted_and_one_may_be_alone() {
        let places = Places::new(2);
        let first = places.try_take(Need::Beside, nothing).unwrap();
        let _second = places.try_take(Need::Beside, nothing).unwrap();
        assert!(places.try_take(Need::Beside, nothing).is_none());
        let company = places.try_take(Need::Company, nothing).unwrap();
        assert!(places.try_take(Need::Alone, nothing).is_none());
        drop((first, _second));
        assert!(places.try_take(Need::Alone, nothing).is_none(), "company counts");
        drop(company);
        let alone = places.try_take(Need::Alone, nothing).unwrap();
        assert!(places.try_take(Need::Beside, nothing).is_none());
        assert!(places.try_take(Need::Company, nothing).is_none());
        drop(alone);
        assert!(places.try_take(Need::Beside, nothing).is_some());
    }

    #[tokio::test]
    async fn a_call_that_waits_for_a_person_lets_readers_by_but_keeps_its_order() {
        let places = Places::new(4);
        let write = Effect::Writes("/work/a.txt".into());
        let reads = |path: &str| Some(Effect::Reads(path.into()));
        let place = places.try_take(Need::Alone, nothing).unwrap();
        let waiting = places.wait(place, Need::Alone, &write);
        assert!(places.try_take(Need::Alone, nothing).is_none(), "the order of calls that change something");
        assert!(places.try_take(Need::Beside, || reads("/work/a.txt")).is_none());
        assert!(places.try_take(Need::Beside, || reads("/work")).is_none(), "a search would see the old text");
        let reader = places.try_take(Need::Beside, || reads("/work/b.txt")).unwrap();
        let taking = places.take(Need::Alone);
        tokio::pin!(taking);
        assert!(futures_util::poll!(&mut taking).is_pending());
        drop(reader);
        let place = taking.await;
        drop(waiting);
        assert!(places.try_take(Need::Beside, nothing).is_none());
        drop(place);
        assert!(places.try_take(Need::Alone, nothing).is_some());
    }
}
