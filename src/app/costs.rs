//! What a run may use and what its tokens cost: the budget of flags, settings or parent, and the prices.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::budget::{Allowance, Budget, BudgetSettings};
use crate::app::model::ChosenModel;
use crate::app::session::OpenError;
use crate::app::{App, AppError};
use crate::models::prices::{Prices, Rates, Usd};
use crate::subagents::handover;

/// The money side of a session.
pub(super) struct Costs {
    /// Shared with every child; counts also where nothing is bounded.
    pub budget: Arc<Budget>,
    /// Of one run of an agent in this process.
    pub agent_money: Option<Usd>,
    pub prices: Arc<Prices>,
}

impl App {
    /// A process child counts in the file of its parent; every other run in one of its own.
    pub(super) fn costs(&self, chosen: &ChosenModel) -> Result<Costs, OpenError> {
        let own: BTreeMap<String, Rates> = self.settings.section("prices").map_err(AppError::Settings)?.unwrap_or_default();
        let prices = Arc::new(Prices::new(own));
        let settings: BudgetSettings = self.settings.section("budget").map_err(AppError::Settings)?.unwrap_or_default();
        let received = handover::receive_ledger(&self.environment)?;
        let shared = self.handover.as_ref().and_then(|handover| handover.budget).zip(received);
        let (allowance, ledger) = match shared {
            Some((allowance, ledger)) => (allowance, Some(ledger)),
            None => (allowance_of(&settings), None),
        };
        let ledger = ledger.map_or_else(handover::new_ledger, Ok)?;
        let budget = Budget::new(allowance, Arc::clone(&prices), ledger);
        if !budget.can_hold(chosen.model.name()) {
            return Err(OpenError::NoPrice { model: chosen.model.name().to_owned() });
        }
        Ok(Costs { budget, agent_money: settings.agent_usd, prices })
    }
}

fn allowance_of(settings: &BudgetSettings) -> Allowance {
    Allowance { tokens: settings.tokens, usd: settings.usd, turns: settings.turns, time: settings.time.map(|time| time.0) }
}
