//! Every number of the product, with its unit in the type or the name, and where it comes from.

use std::time::Duration;

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;

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
            inbox_capacity: 1000,
            event_backlog: 4096,
            tool_concurrency: 10,
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(180),
            stream_idle_timeout: Duration::from_secs(120),
            request_retries: 8,
            retry_wait_max: Duration::from_secs(120),
        }
    }
}
