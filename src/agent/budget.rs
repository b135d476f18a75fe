//! What a run and all its children together use, and may use: tokens, money, model requests, time. Every request is counted
//! in one place, also those of process children, through a small file that all of them share. When it is used up no request
//! starts any more, in whichever session, and calls under way are stopped; what is there stays.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::units::{UnitError, format_duration, parse_duration};
use crate::models::Usage;
use crate::models::prices::{Prices, Usd};

/// What may be used; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    pub tokens: Option<u64>,
    pub usd: Option<Usd>,
    /// Model requests.
    pub turns: Option<u64>,
    pub time: Option<Duration>,
}

/// The section `[budget]` of the settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetSettings {
    pub usd: Option<Usd>,
    pub tokens: Option<u64>,
    pub turns: Option<u64>,
    pub time: Option<TimeText>,
    /// Money of one run of an agent in this process.
    pub agent_usd: Option<Usd>,
}

/// A duration with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TimeText(pub Duration);

impl TryFrom<String> for TimeText {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        parse_duration(&text).map(Self)
    }
}

/// Which bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    Tokens {
        used: u64,
        limit: u64,
    },
    Money {
        used: Usd,
        limit: Usd,
    },
    Turns {
        limit: u64,
    },
    Time {
        limit: Duration,
    },
    /// A budget of money cannot hold a model without a known price.
    NoPrice,
    /// The shared count cannot be read, so that nobody knows what is left.
    Unreadable,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens { used, limit } => write!(f, "{used} of {limit} tokens"),
            Self::Money { used, limit } => write!(f, "{used} of {limit}"),
            Self::Turns { limit } => write!(f, "{limit} of {limit} model requests"),
            Self::Time { limit } => write!(f, "its time of {}", format_duration(*limit)),
            Self::NoPrice => f.write_str("the price of the model is not known"),
            Self::Unreadable => f.write_str("its count cannot be read"),
        }
    }
}

/// One budget, shared by a session and its children in this process and in others.
pub struct Budget {
    allowance: Allowance,
    prices: Arc<Prices>,
    /// With the time it was opened here.
    ends_at: Option<Instant>,
    ledger: Mutex<File>,
    /// Fires when this process sees that it is used up.
    over: CancellationToken,
}

/// What has been used so far. In the shared file: four numbers of eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub tokens: u64,
    pub usd: Usd,
    pub turns: u64,
    /// Requests whose price is not known, so that `usd` is not the whole.
    pub unpriced: u64,
}

const LEDGER_SIZE: usize = 32;
/// How often a running call looks whether another process has used the budget up.
const LOOK: Duration = Duration::from_millis(250);

impl Allowance {
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    fn reached(&self, spent: &Spent) -> Option<Exceeded> {
        let tokens = self.tokens.filter(|limit| spent.tokens >= *limit).map(|limit| Exceeded::Tokens { used: spent.tokens, limit });
        let money = || self.usd.filter(|limit| spent.usd >= *limit).map(|limit| Exceeded::Money { used: spent.usd, limit });
        let turns = || self.turns.filter(|limit| spent.turns >= *limit).map(|limit| Exceeded::Turns { limit });
        tokens.or_else(money).or_else(turns)
    }
}

impl Budget {
    /// `ledger`: a file of its own for a new budget, or the one a parent shares.
    pub fn new(allowance: Allowance, prices: Arc<Prices>, ledger: File) -> Arc<Self> {
        let ends_at = allowance.time.map(|time| Instant::now() + time);
        Arc::new(Self { allowance, prices, ends_at, ledger: Mutex::new(ledger), over: CancellationToken::new() })
    }

    /// What a process child may use: the same shared count, and the time that is left now.
    pub fn share(&self) -> Allowance {
        let left = self.ends_at.map(|at| at.saturating_duration_since(Instant::now()));
        Allowance { time: left, ..self.allowance }
    }

    /// The shared count, for a process child.
    pub fn ledger(&self) -> io::Result<OwnedFd> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).try_clone().map(OwnedFd::from)
    }

    /// Whether requests to this model can be held to the budget: money needs a price.
    pub fn can_hold(&self, model: &str) -> bool {
        self.allowance.usd.is_none() || self.prices.knows(model)
    }

    /// Counts one more request, unless nothing is left for it.
    pub(crate) fn start_request(&self, model: &str) -> Result<(), Exceeded> {
        if !self.can_hold(model) {
            return Err(Exceeded::NoPrice);
        }
        if let Some(exceeded) = self.time_up() {
            return Err(exceeded);
        }
        self.change(|spent| match self.allowance.reached(spent) {
            Some(exceeded) => Err(exceeded),
            None => {
                spent.turns += 1;
                Ok(())
            }
        })
        .unwrap_or(if self.allowance.is_unlimited() { Ok(()) } else { Err(Exceeded::Unreadable) })
    }

    /// Counts what a request has used.
    pub(crate) fn add(&self, model: &str, usage: &Usage) {
        if *usage == Usage::default() {
            return;
        }
        let cost = self.prices.cost(model, usage);
        let counted = self.change(|spent| {
            spent.tokens = spent.tokens.saturating_add(usage.total());
            spent.usd = spent.usd.plus(cost.unwrap_or_default());
            spent.unpriced += u64::from(cost.is_none());
        });
        if (counted.is_err() && !self.allowance.is_unlimited()) || self.stops() {
            self.over.cancel();
        }
    }

    /// What is used so far, in all sessions and processes.
    pub fn spent(&self) -> io::Result<Spent> {
        self.change(|spent| *spent)
    }

    /// What everything has cost so far, process children included; `None` when a part of it is not known.
    pub fn cost(&self) -> Option<Usd> {
        self.spent().ok().filter(|spent| spent.unpriced == 0).map(|spent| spent.usd)
    }

    /// Which bound is reached now.
    pub fn exceeded(&self) -> Option<Exceeded> {
        if self.allowance.is_unlimited() {
            return None;
        }
        if let Some(exceeded) = self.time_up() {
            return Some(exceeded);
        }
        match self.spent() {
            // The last request that was allowed may still run.
            Ok(spent) => self.allowance.reached(&spent),
            Err(_) => Some(Exceeded::Unreadable),
        }
    }

    /// Whether a bound is reached that stops what runs. The number of requests is none: it refuses only the next one.
    pub fn stops(&self) -> bool {
        self.exceeded().is_some_and(|exceeded| !matches!(exceeded, Exceeded::Turns { .. }))
    }

    /// Returns when [`Self::stops`] holds.
    pub async fn over(&self) {
        if self.allowance.is_unlimited() {
            return std::future::pending().await;
        }
        loop {
            if self.over.is_cancelled() || self.stops() {
                return;
            }
            let look = Instant::now() + LOOK;
            let until = self.ends_at.map_or(look, |at| at.min(look));
            tokio::select! {
                () = self.over.cancelled() => return,
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Returns when its time is over.
    pub(crate) async fn time_over(&self) {
        match self.ends_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn time_up(&self) -> Option<Exceeded> {
        let limit = self.allowance.time?;
        self.ends_at.filter(|at| Instant::now() >= *at).map(|_| Exceeded::Time { limit })
    }

    /// One look at, or change of, the shared count. The lock of the file keeps other processes out, held for one small read
    /// and write; the mutex keeps out other sessions of this one.
    fn change<T>(&self, change: impl FnOnce(&mut Spent) -> T) -> io::Result<T> {
        let file = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        file.lock()?;
        let changed = Self::read(&file).and_then(|before| {
            let mut spent = before;
            let answer = change(&mut spent);
            if spent != before {
                file.write_all_at(&spent.to_bytes(), 0)?;
            }
            Ok(answer)
        });
        file.unlock()?;
        changed
    }

    fn read(file: &File) -> io::Result<Spent> {
        let mut bytes = [0; LEDGER_SIZE];
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(Spent::of_bytes(&bytes)),
            // Nothing has been used yet.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Spent::default()),
            Err(error) => Err(error),
        }
    }
}

impl Spent {
    fn to_bytes(self) -> [u8; LEDGER_SIZE] {
        let mut bytes = [0; LEDGER_SIZE];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.tokens, self.usd.billionths(), self.turns, self.unpriced]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn of_bytes(bytes: &[u8; LEDGER_SIZE]) -> Self {
        let number = |place: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[place * 8..place * 8 + 8]);
            u64::from_le_bytes(eight)
        };
        Self { tokens: number(0), usd: Usd::of_billionths(number(1)), turns: number(2), unpriced: number(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn tokens(input: u64) -> Usage {
        Usage { input, ..Usage::default() }
    }

    /// fault D8: each opening of the file stands for a process; no count is lost and no request too many is started.
    #[test]
    fn counts_from_many_sides_are_exact() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let allowance = Allowance { turns: Some(500), ..Allowance::default() };
        let started: u64 = std::thread::scope(|scope| {
            let sides: Vec<_> = (0..4)
                .map(|_| {
                    let budget = Budget::new(allowance, Arc::default(), open(&path));
                    scope.spawn(move || {
                        let one = |_| match budget.start_request("a/b") {
                            Ok(()) => {
                                budget.add("a/b", &tokens(3));
                                true
                            }
                            Err(_) => false,
                        };
                        (0..200).map(one).filter(|started| *started).count() as u64
                    })
                })
                .collect();
            sides.into_iter().map(|side| side.join().unwrap()).sum()
        });
        assert_eq!(started, 500);
        let spent = Budget::new(allowance, Arc::default(), open(&path)).spent().unwrap();
        assert_eq!(spent, Spent { tokens: 1500, usd: Usd::ZERO, turns: 500, unpriced: 500 });
    }

    /// R173
    #[test]
    fn each_bound_is_told_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let budget = |name: &str, allowance| Budget::new(allowance, Arc::default(), open(&folder.path().join(name)));
        let bounded = budget("t", Allowance { tokens: Some(10), ..Allowance::default() });
        assert_eq!(bounded.start_request("a/b"), Ok(()));
        bounded.add("a/b", &tokens(11));
        assert_eq!(bounded.start_request("a/b").unwrap_err().to_string(), "11 of 10 tokens");
        assert!(bounded.stops());
        let bounded = budget("n", Allowance { turns: Some(1), ..Allowance::default() });
        assert_eq!(bounded.start_request("a/b"), Ok(()));
        assert_eq!(bounded.start_request("a/b").unwrap_err().to_string(), "1 of 1 model requests");
        assert!(!bounded.stops(), "what the last request asked for may still be done");
        let bounded = budget("m", Allowance { usd: "0.01".parse().ok(), ..Allowance::default() });
        assert_eq!(bounded.start_request("a/b"), Err(Exceeded::NoPrice));
        assert_eq!(bounded.start_request("anthropic/claude-sonnet-5"), Ok(()));
        bounded.add("anthropic/claude-sonnet-5", &tokens(10_000));
        assert_eq!(bounded.start_request("anthropic/claude-sonnet-5").unwrap_err().to_string(), "$0.02 of $0.01");
        let share = bounded.share();
        assert_eq!(share.usd, "0.01".parse().ok());
    }

    #[test]
    fn a_share_has_the_time_that_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let allowance = Allowance { time: Some(Duration::from_secs(100)), ..Allowance::default() };
        let share = Budget::new(allowance, Arc::default(), open(&folder.path().join("l"))).share();
        assert!(share.time.is_some_and(|left| left <= Duration::from_secs(100) && left > Duration::from_secs(10)));
        let over = Allowance { time: Some(Duration::ZERO), ..Allowance::default() };
        assert!(matches!(
            Budget::new(over, Arc::default(), open(&folder.path().join("o"))).start_request("a/b"),
            Err(Exceeded::Time { .. })
        ));
    }
}
