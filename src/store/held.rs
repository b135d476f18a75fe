//! What a disk without room could not take: kept in memory, in order, and written as soon as there is room again.
//!
//! Only after [`Store::hold_when_full`]: until then a write that fails is told to its sender, so that a run which could
//! never be saved does not begin.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Store;
use super::database::Write;
use super::error::StoreError;

/// Most writes that are kept; beyond that senders are told that the disk is full. A message or an event is one.
pub(super) const HELD_MAX: usize = 20_000;
/// Between two tries to write what is kept.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A change that a person should hear of, told once to whoever asks first.
#[derive(Clone, Debug)]
pub enum SavingNews {
    /// From now on what happens is kept in memory only.
    Failing(StoreError),
    /// There is room again, and nothing was lost.
    SavedAgain,
}

impl fmt::Display for SavingNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failing(error) => write!(
                f,
                "the conversation cannot be saved: {error}; the run goes on, and what is said is kept in memory until there is room"
            ),
            Self::SavedAgain => f.write_str("there is room again: the conversation is saved, nothing of it is missing"),
        }
    }
}

/// What the handles of a store and its writer share.
#[derive(Debug, Default)]
pub(super) struct Saving {
    holds: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Why something is not saved now.
    failing: Option<StoreError>,
    news: Option<SavingNews>,
    told_failing: bool,
}

impl Saving {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn failing(&self) -> Option<StoreError> {
        self.state().failing.clone()
    }

    fn began_to_fail(&self, error: StoreError) {
        let mut state = self.state();
        state.news = Some(SavingNews::Failing(error.clone()));
        state.failing = Some(error);
    }

    fn is_well_again(&self) {
        let mut state = self.state();
        state.failing = None;
        // Who has heard nothing of the trouble need not hear of its end.
        state.news = std::mem::take(&mut state.told_failing).then_some(SavingNews::SavedAgain);
    }
}

impl Store {
    /// From now on a write for which there is no room is kept and counts as done; [`Store::saving_news`] tells of it.
    pub fn hold_when_full(&self) {
        self.saving().holds.store(true, Ordering::Release);
    }

    /// What has changed about saving since this was asked last, by any handle.
    pub fn saving_news(&self) -> Option<SavingNews> {
        let mut state = self.saving().state();
        let news = state.news.take();
        state.told_failing |= matches!(news, Some(SavingNews::Failing(_)));
        news
    }

    /// Why something is kept in memory only at this moment.
    pub fn unsaved(&self) -> Option<StoreError> {
        self.saving().failing()
    }
}

/// The writer's side.
#[derive(Default)]
pub(super) struct Held {
    writes: VecDeque<Write>,
    tried_at: Option<Instant>,
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter()
    }

    pub fn is_due(&self) -> bool {
        self.tried_at.is_none_or(|at| at.elapsed() >= RETRY_PAUSE)
    }

    /// The disk has refused again.
    pub fn refused(&mut self) {
        self.tried_at = Some(Instant::now());
    }

    pub fn saved(&mut self, saving: &Saving) {
        self.writes.clear();
        self.tried_at = None;
        saving.is_well_again();
    }

    /// Keeps a write that failed with this error, or that must stay behind such a one. Gives it back where it may not be
    /// kept.
    pub fn keep(&mut self, write: Write, error: &StoreError, saving: &Saving) -> Result<(), Write> {
        let may_hold = saving.holds.load(Ordering::Acquire) && error.has_no_room() && self.writes.len() < HELD_MAX;
        if !may_hold {
            return Err(write);
        }
        if self.writes.is_empty() {
            self.refused();
            saving.began_to_fail(error.clone());
        }
        self.writes.push_back(write);
        Ok(())
    }
}
