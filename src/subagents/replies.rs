//! A child's line to its coordinator, with bounds so that no child floods its parent (section S).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::local::LocalAgent;
use crate::agent::event::InputSource;
use crate::agent::inbox::{Inbox, InboxRefusal, Input, Urgency};
use crate::config::Limits;
use crate::text::incoming;

/// Made for one run.
pub struct ReplyLine {
    agent: Arc<LocalAgent>,
    parent: Inbox,
    /// 0: no limit.
    per_run: u32,
    per_minute: u32,
    sent: Mutex<Sent>,
}

#[derive(Default)]
struct Sent {
    count: u32,
    /// Those of the last minute.
    lately: VecDeque<Instant>,
}

/// Why a reply was not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplyError {
    #[error("{max} replies were sent in this run, and no more are taken")]
    RunLimit { max: u32 },
    #[error("{max} replies were sent within the last minute, and no more are taken before {seconds} s have passed")]
    MinuteLimit { max: u32, seconds: u64 },
    #[error("the coordinator cannot be reached: {0}")]
    Inbox(#[from] InboxRefusal),
}

const MINUTE: Duration = Duration::from_secs(60);

impl ReplyLine {
    pub fn new(agent: Arc<LocalAgent>, parent: Inbox, limits: &Limits) -> Self {
        Self { agent, parent, per_run: limits.agent_replies_max, per_minute: limits.agent_replies_per_minute, sent: Mutex::default() }
    }

    /// Puts the reply into the coordinator's queue and gives its id (R216, R219).
    pub fn send(&self, summary: &str, message: &str) -> Result<String, ReplyError> {
        // Plain counts, good whatever panicked.
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while sent.lately.front().is_some_and(|at| now.duration_since(*at) >= MINUTE) {
            sent.lately.pop_front();
        }
        if self.per_run > 0 && sent.count >= self.per_run {
            return Err(ReplyError::RunLimit { max: self.per_run });
        }
        if self.per_minute > 0
            && sent.lately.len() >= self.per_minute as usize
            && let Some(oldest) = sent.lately.front()
        {
            let seconds = (MINUTE - now.duration_since(*oldest)).as_secs() + 1;
            return Err(ReplyError::MinuteLimit { max: self.per_minute, seconds });
        }
        let text = incoming::reply_fragment(self.agent.id.as_str(), self.agent.agent_type(), summary, message);
        self.parent.post(Urgency::Next, Input::new(InputSource::SubagentReply, text))?;
        sent.count += 1;
        sent.lately.push_back(now);
        Ok(format!("response_{}", Uuid::new_v4()))
    }
}
