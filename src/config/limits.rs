//! Every number of the product, with its unit in the type or the name, and where it comes from.

use std::time::Duration;

use super::units::{UnitError, format_duration, format_size, parse_duration, parse_size};

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;
/// No count is larger than this, so that sums of counts cannot overflow.
const COUNT_MAX: u64 = 1_000_000_000;
/// What Linux takes as one argument, less room for what stands around the task.
const ARGUMENT_MAX: u64 = 120 * KIB;

/// All limits. Tests build their own; settings change single values (`[limits]`, `ZAPMYCO_LIMITS_<NAME>`).
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Longest life of a process subagent (R378).
    pub process_time_limit: Duration,
    /// Between the polite signal and the hard one (R375).
    pub stop_grace: Duration,
    /// How long output is still read after the payload has ended (faults B1, S1).
    pub drain_time: Duration,
    /// How long a launch waits for the keeper's acknowledgement.
    pub start_ack_max: Duration,
    /// Further tries when the system is out of processes.
    pub start_retries: u32,
    /// Longest task passed as one argument, in bytes; longer ones go through a file (one argument holds 131,071).
    pub task_argument_max: u64,
    /// What `poll` always waits (R355).
    pub poll_base_wait: Duration,
    /// Largest `wait_secs` of `poll` (R340).
    pub poll_extra_wait_max: Duration,
    /// Upper bound between two looks of `poll` (R356).
    pub poll_interval: Duration,
    /// Bytes shown of each end of a folded output (R361).
    pub fold_each_end: u64,
    /// Bytes above which an output is called truncated (R362).
    pub output_shown_max: u64,
    /// Bytes kept on disk per stream (R386).
    pub output_kept_max: u64,
    /// Of those, bytes kept of the end.
    pub output_tail_kept: u64,
    /// Longest silence of a child's model or tools (R165).
    pub inactivity_limit: Duration,
    /// The same for a local agent in the background; zero: none (R178).
    pub background_inactivity_limit: Duration,
    /// Longest life of a local agent's run; zero: none (R179).
    pub agent_time_limit: Duration,
    /// Model requests of a local agent whose profile sets none; 0: no limit (R172).
    pub agent_max_turns: u32,
    /// Tokens of a local agent's run; 0: no limit (R173).
    pub agent_token_budget: u64,
    /// After this time a foreground agent goes on in the background; zero: never (R186).
    pub auto_background: Duration,
    /// Longest life of a background shell (R122).
    pub background_shell_max: Duration,
    /// Default and longest time of a foreground shell (R199).
    pub shell_timeout: Duration,
    pub shell_timeout_max: Duration,
    /// Bytes of one tool result given to the model.
    pub tool_result_max: u64,
    /// Bytes of one Agent result given to the model (R17).
    pub agent_result_max: u64,
    /// Characters of one notice (R254).
    pub notice_max: u64,
    /// In-process subagents at once per session (R328).
    pub local_agents_max: u32,
    /// Process subagents at once per session; 0 means no limit (R350).
    pub process_agents_max: u32,
    /// How long a headless run waits at its end for jobs (R182); zero: without end.
    pub exit_wait_max: Duration,
    /// How long it waits for background shells (R183).
    pub exit_shell_wait: Duration,
    /// Ended jobs older than this are removed (R333).
    pub retention_age: Duration,
    /// Ended jobs kept at most, over all sessions.
    pub retention_count: u64,
    /// Bytes of ended jobs kept at most, over all sessions.
    pub retention_bytes: u64,
    /// Replies of one subagent to its coordinator in one run (R222); zero: no limit.
    pub agent_replies_max: u32,
    /// And within a minute; zero: no limit.
    pub agent_replies_per_minute: u32,
    /// Messages waiting in one inbox.
    pub inbox_capacity: u32,
    /// Events waiting for one observer.
    pub event_backlog: u32,
    /// Tool calls of one message that run at once (R31).
    pub tool_concurrency: u32,
    /// Time to connect to a provider.
    pub connect_timeout: Duration,
    /// Time from request to the first byte of the answer.
    pub first_byte_timeout: Duration,
    /// Longest silence inside an answer.
    pub stream_idle_timeout: Duration,
    /// Tries of one model request after the first.
    pub request_retries: u32,
    /// Longest single wait before a retry, `Retry-After` included.
    pub retry_wait_max: Duration,
    /// Time for one page or search, redirections included.
    pub web_timeout: Duration,
    /// Bytes read of one page, unpacked.
    pub web_page_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            process_time_limit: Duration::from_secs(300),
            stop_grace: Duration::from_secs(5),
            drain_time: Duration::from_millis(500),
            start_ack_max: Duration::from_secs(10),
            start_retries: 3,
            task_argument_max: 64 * KIB,
            poll_base_wait: Duration::from_secs(5),
            poll_extra_wait_max: Duration::from_secs(30),
            poll_interval: Duration::from_millis(500),
            fold_each_end: 2 * KIB,
            output_shown_max: MIB,
            output_kept_max: 64 * MIB,
            output_tail_kept: MIB,
            inactivity_limit: Duration::from_secs(600),
            background_inactivity_limit: Duration::from_secs(600),
            agent_time_limit: Duration::ZERO,
            agent_max_turns: 0,
            agent_token_budget: 0,
            auto_background: Duration::ZERO,
            background_shell_max: Duration::from_secs(3600),
            shell_timeout: Duration::from_secs(120),
            shell_timeout_max: Duration::from_secs(600),
            tool_result_max: 100 * KIB,
            agent_result_max: 120_000,
            notice_max: 120_000,
            local_agents_max: 20,
            process_agents_max: 0,
            exit_wait_max: Duration::from_secs(600),
            exit_shell_wait: Duration::from_secs(5),
            retention_age: Duration::from_secs(30 * 24 * 3600),
            retention_count: 10_000,
            retention_bytes: 4 * 1024 * MIB,
            agent_replies_max: 100,
            agent_replies_per_minute: 20,
            inbox_capacity: 1000,
            event_backlog: 4096,
            tool_concurrency: 10,
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(180),
            stream_idle_timeout: Duration::from_secs(120),
            request_retries: 8,
            retry_wait_max: Duration::from_secs(120),
            web_timeout: Duration::from_secs(60),
            web_page_max: 10 * MIB,
        }
    }
}

/// One limit as settings see it: its name, the kind of value, and the range that works.
pub(crate) struct Field<'l> {
    pub name: &'static str,
    slot: Slot<'l>,
    /// Smallest and largest value that work, in milliseconds, bytes or things.
    least: u64,
    most: u64,
}

enum Slot<'l> {
    Time(&'l mut Duration),
    Size(&'l mut u64),
    Number(&'l mut u64),
    Count(&'l mut u32),
}

/// A value that a limit cannot have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LimitError {
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("expected a whole number without quotes and unit")]
    NotANumber,
    #[error("it cannot be negative")]
    Negative,
    #[error("it has to be at least {0}")]
    TooSmall(String),
    #[error("it can be at most {0}")]
    TooLarge(String),
}

/// The one table of names. It takes the struct apart by name, so a limit that is missing here does not compile.
macro_rules! fields {
    ($($name:ident: $kind:ident($least:expr $(, $most:expr)?),)*) => {
        pub(crate) fn fields(&mut self) -> Vec<Field<'_>> {
            let Self { $($name),* } = self;
            vec![$(Field { name: stringify!($name), slot: Slot::$kind($name), least: $least, most: [$($most,)? u64::MAX][0] }),*]
        }
    };
}

impl Limits {
    fields! {
        process_time_limit: Time(1),
        stop_grace: Time(0),
        drain_time: Time(0),
        start_ack_max: Time(1),
        start_retries: Count(0, COUNT_MAX),
        task_argument_max: Size(0, ARGUMENT_MAX),
        poll_base_wait: Time(0),
        poll_extra_wait_max: Time(0),
        poll_interval: Time(1),
        fold_each_end: Size(1),
        output_shown_max: Size(1),
        output_kept_max: Size(0),
        output_tail_kept: Size(0),
        inactivity_limit: Time(0),
        background_inactivity_limit: Time(0),
        agent_time_limit: Time(0),
        agent_max_turns: Count(0, COUNT_MAX),
        agent_token_budget: Number(0),
        auto_background: Time(0),
        background_shell_max: Time(1),
        shell_timeout: Time(1),
        shell_timeout_max: Time(1),
        tool_result_max: Size(KIB),
        agent_result_max: Size(KIB),
        notice_max: Number(KIB, COUNT_MAX),
        local_agents_max: Count(0, COUNT_MAX),
        process_agents_max: Count(0, COUNT_MAX),
        exit_wait_max: Time(0),
        exit_shell_wait: Time(0),
        retention_age: Time(0),
        retention_count: Number(0, COUNT_MAX),
        retention_bytes: Size(0),
        agent_replies_max: Count(0, COUNT_MAX),
        agent_replies_per_minute: Count(0, COUNT_MAX),
        inbox_capacity: Count(1, COUNT_MAX),
        event_backlog: Count(1, COUNT_MAX),
        tool_concurrency: Count(1, COUNT_MAX),
        connect_timeout: Time(1),
        first_byte_timeout: Time(1),
        stream_idle_timeout: Time(1),
        request_retries: Count(0, COUNT_MAX),
        retry_wait_max: Time(0),
        web_timeout: Time(1),
        web_page_max: Size(1, 256 * MIB),
    }

    /// The names in the order of the table.
    pub(crate) fn names() -> Vec<&'static str> {
        Self::default().fields().iter().map(|field| field.name).collect()
    }
}

impl Field<'_> {
    /// Takes what stands in settings: a text with a unit for times and sizes, a number for counts.
    pub(crate) fn set(&mut self, value: &toml::Value) -> Result<(), LimitError> {
        let amount = match (&self.slot, value) {
            (Slot::Time(_), toml::Value::String(text)) => milliseconds(parse_duration(text)?),
            (Slot::Time(_), _) => return Err(UnitError::NoTimeUnit.into()),
            (Slot::Size(_), toml::Value::String(text)) => parse_size(text)?,
            (Slot::Size(_), _) => return Err(UnitError::NoSizeUnit.into()),
            (Slot::Number(_) | Slot::Count(_), toml::Value::Integer(number)) => u64::try_from(*number).map_err(|_| LimitError::Negative)?,
            (Slot::Number(_) | Slot::Count(_), _) => return Err(LimitError::NotANumber),
        };
        if amount < self.least {
            return Err(LimitError::TooSmall(self.in_words(self.least)));
        }
        if amount > self.most {
            return Err(LimitError::TooLarge(self.in_words(self.most)));
        }
        match &mut self.slot {
            Slot::Time(slot) => **slot = Duration::from_millis(amount),
            Slot::Size(slot) | Slot::Number(slot) => **slot = amount,
            Slot::Count(slot) => **slot = u32::try_from(amount).unwrap_or(u32::MAX),
        }
        Ok(())
    }

    /// Environment variables hold texts only; a count is read as the number it spells.
    pub(crate) fn of_text(&self, text: &str) -> toml::Value {
        match (&self.slot, text.parse()) {
            (Slot::Number(_) | Slot::Count(_), Ok(number)) => toml::Value::Integer(number),
            _ => toml::Value::String(text.to_owned()),
        }
    }

    /// The value as settings write it.
    #[cfg(test)]
    fn value(&self) -> toml::Value {
        match &self.slot {
            Slot::Time(slot) => toml::Value::String(format_duration(**slot)),
            Slot::Size(slot) => toml::Value::String(format_size(**slot)),
            Slot::Number(slot) => toml::Value::Integer(**slot as i64),
            Slot::Count(slot) => toml::Value::Integer(i64::from(**slot)),
        }
    }

    fn in_words(&self, amount: u64) -> String {
        match &self.slot {
            Slot::Time(_) => format_duration(Duration::from_millis(amount)),
            Slot::Size(_) => format_size(amount),
            Slot::Number(_) | Slot::Count(_) => amount.to_string(),
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_reads_back_what_it_writes() {
        let mut defaults = Limits::default();
        let mut read = Limits { stop_grace: Duration::from_millis(1), retention_count: 7, ..Limits::default() };
        for (field, mut target) in defaults.fields().iter().zip(read.fields()) {
            assert_eq!(target.set(&field.value()), Ok(()), "{}", field.name);
        }
        assert_eq!(read, Limits::default());
    }

    #[test]
    fn what_would_stand_still_is_refused() {
        let mut limits = Limits::default();
        for mut field in limits.fields() {
            let outcome = match field.name {
                "inbox_capacity" | "event_backlog" | "tool_concurrency" => Some((toml::Value::Integer(0), "1")),
                "poll_interval" => Some((toml::Value::String("0s".into()), "1ms")),
                _ => None,
            };
            if let Some((value, least)) = outcome {
                assert_eq!(field.set(&value), Err(LimitError::TooSmall(least.into())), "{}", field.name);
            }
        }
        assert_eq!(limits, Limits::default());
    }
}
