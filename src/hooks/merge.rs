//! What several hooks amount to together: deny over ask over allow (R159).

use serde_json::{Map, Value};

pub use super::answer::Decision;
use super::answer::{Answer, Trouble};

/// All answers to one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub decision: Option<Decision>,
    /// The reasons of those who decided so, one per line.
    pub reason: String,
    pub updated_input: Option<Map<String, Value>>,
    /// Which of the hooks changed the input.
    pub(crate) updated_by: Option<usize>,
    /// For the model, in the order of the hooks.
    pub context: Vec<String>,
    /// The turn ends here.
    pub stop: Option<String>,
    /// What a person should hear: messages of hooks, and what went wrong with them.
    pub notices: Vec<String>,
}

/// An answer and whose it is.
pub(crate) struct Said {
    /// Which hook, as people read it.
    pub who: String,
    pub answer: Answer,
    pub trouble: Option<Trouble>,
    /// It stands before a call.
    pub guards: bool,
    /// A failure of a guard denies the call.
    pub fail_closed: bool,
}

impl Outcome {
    pub(crate) fn of(said: Vec<Said>) -> Self {
        let mut outcome = Self::default();
        let mut reasons: Vec<(Decision, String)> = Vec::new();
        for (index, Said { who, answer, trouble, guards, fail_closed }) in said.into_iter().enumerate() {
            if let Some(trouble) = trouble {
                let text = format!("hook {who} {trouble}");
                match trouble {
                    // Whoever changed it must not have taken a guard away by that.
                    Trouble::Changed { .. } if guards => reasons.push((Decision::Deny, text.clone())),
                    _ if guards && fail_closed && trouble.is_failure() => {
                        reasons.push((Decision::Deny, format!("{text}; hooks.fail_closed is set")));
                    }
                    _ => {}
                }
                outcome.notices.push(text);
            }
            outcome.notices.extend(answer.message);
            if let Some(decision) = answer.decision {
                reasons.push((decision, answer.reason.unwrap_or_else(|| format!("hook {who} gave no reason"))));
            }
            if let Some(input) = answer.updated_input.filter(|_| answer.decision != Some(Decision::Deny)) {
                match &outcome.updated_input {
                    None => (outcome.updated_input, outcome.updated_by) = (Some(input), Some(index)),
                    // The later one has not seen what the first made of it.
                    Some(first) if *first != input => {
                        outcome.notices.push(format!("hook {who} changed an input that another hook had changed; the first change holds"));
                    }
                    Some(_) => {}
                }
            }
            outcome.context.extend(answer.context);
            if let Some(stop) = answer.stop {
                let stop = if stop.is_empty() { format!("hook {who} gave no reason") } else { stop };
                outcome.stop.get_or_insert(stop);
            } else if answer.interrupt && answer.decision == Some(Decision::Deny) {
                outcome.stop.get_or_insert_with(|| format!("hook {who} denied a call and ended the turn"));
            }
        }
        outcome.decision = reasons.iter().map(|(decision, _)| *decision).max();
        let deciding = reasons.into_iter().filter(|(decision, _)| Some(*decision) == outcome.decision).map(|(_, reason)| reason);
        outcome.reason = deciding.collect::<Vec<_>>().join("\n");
        outcome
    }

    pub fn blocks(&self) -> bool {
        self.decision == Some(Decision::Deny)
    }

    /// What both amount to. The input of `self` stays.
    pub(crate) fn with(mut self, other: Self) -> Self {
        match (self.decision, other.decision) {
            (own, Some(theirs)) if own.is_none_or(|own| theirs > own) => (self.decision, self.reason) = (Some(theirs), other.reason),
            (Some(own), Some(theirs)) if own == theirs && self.reason != other.reason => {
                self.reason = format!("{}\n{}", self.reason, other.reason);
            }
            _ => {}
        }
        self.context.extend(other.context);
        self.stop = self.stop.or(other.stop);
        self.notices.extend(other.notices);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn said(decision: Option<Decision>, reason: &str) -> Said {
        Said {
            who: "`h`".into(),
            answer: Answer { decision, reason: Some(reason.into()), ..Answer::default() },
            trouble: None,
            guards: true,
            fail_closed: false,
        }
    }

    /// R159
    #[test]
    fn deny_is_over_ask_is_over_allow_in_every_order() {
        use Decision::{Allow, Ask, Deny};
        for (decisions, expected) in [
            (vec![None, None], None),
            (vec![Some(Allow), None], Some(Allow)),
            (vec![Some(Allow), Some(Ask)], Some(Ask)),
            (vec![Some(Deny), Some(Allow), Some(Ask)], Some(Deny)),
            (vec![Some(Ask), Some(Allow)], Some(Ask)),
            (vec![Some(Allow), Some(Deny)], Some(Deny)),
        ] {
            let outcome = Outcome::of(decisions.iter().map(|decision| said(*decision, "r")).collect());
            assert_eq!(outcome.decision, expected, "{decisions:?}");
        }
        let outcome = Outcome::of(vec![said(Some(Deny), "one"), said(Some(Allow), "two"), said(Some(Deny), "three")]);
        assert_eq!(outcome.reason, "one\nthree");
    }

    /// R161: a hook whose time is over decides nothing, unless failing closed was asked for.
    #[test]
    fn failing_closed_is_a_choice() {
        let late = |fail_closed| Said {
            who: "`h`".into(),
            answer: Answer::default(),
            trouble: Some(Trouble::TimedOut { after: Duration::from_millis(5) }),
            guards: true,
            fail_closed,
        };
        let open = Outcome::of(vec![late(false)]);
        assert_eq!((open.decision, open.notices.len()), (None, 1));
        let closed = Outcome::of(vec![late(true), said(Some(Decision::Allow), "fine")]);
        assert_eq!(closed.decision, Some(Decision::Deny));
        assert!(closed.reason.contains("hooks.fail_closed"), "{}", closed.reason);
    }

    #[test]
    fn the_first_change_of_an_input_holds_and_the_other_is_told() {
        let change = |value: i64| Said {
            answer: Answer { updated_input: Some(Map::from_iter([("a".to_owned(), value.into())])), ..Answer::default() },
            ..said(None, "")
        };
        let outcome = Outcome::of(vec![change(1), change(2), change(1)]);
        assert_eq!(outcome.updated_input.unwrap()["a"], 1);
        assert_eq!((outcome.updated_by, outcome.notices.len()), (Some(0), 1));
    }
}
