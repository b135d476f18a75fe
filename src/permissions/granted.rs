//! What a person has answered for the whole session: rules that hold from then on, in the session and all its children
//! at once (R243). Whoever waits for an answer is woken, since it may no longer be needed.

use std::sync::{PoisonError, RwLock};

use tokio::sync::watch;

use crate::permissions::Rule;

/// Shared by a session's policy and its children's.
pub struct Granted {
    lists: RwLock<Lists>,
    version: watch::Sender<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    pub allow: Vec<Rule>,
    pub deny: Vec<Rule>,
}

/// More answers than this are no person's.
const RULES_MAX: usize = 1000;

impl Default for Granted {
    fn default() -> Self {
        Self { lists: RwLock::default(), version: watch::Sender::new(0) }
    }
}

impl Granted {
    pub fn allow(&self, rules: &[Rule]) {
        self.change(|lists| add(&mut lists.allow, rules));
    }

    pub fn deny(&self, rules: &[Rule]) {
        self.change(|lists| add(&mut lists.deny, rules));
    }

    /// Something else that decides about calls has changed, such as the mode.
    pub fn announce_change(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// Told of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub fn allowed(&self) -> Vec<Rule> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner).allow.clone()
    }

    /// The number of the state and the state, which belong together.
    pub(crate) fn lists(&self) -> (u64, Lists) {
        let lists = self.lists.read().unwrap_or_else(PoisonError::into_inner);
        let version = *self.version.borrow();
        (version, lists.clone())
    }

    pub(crate) fn version(&self) -> u64 {
        *self.version.borrow()
    }

    fn change(&self, change: impl FnOnce(&mut Lists)) {
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut lists);
        // Inside the lock, so that nobody sees the new number with the old lists.
        self.announce_change();
    }
}

fn add(list: &mut Vec<Rule>, rules: &[Rule]) {
    for rule in rules {
        if !list.contains(rule) && list.len() < RULES_MAX {
            list.push(rule.clone());
        }
    }
}
