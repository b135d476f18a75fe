//! End causes and status words: the one table every surface looks in. A status only moves forward; an end is final.

use serde::{Deserialize, Serialize};

use crate::ids::JobKind;
use crate::supervisor::record::{EndRecord, EndedBy, Requester};
use crate::text::units::signal_name;

/// Why a job ended: a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum EndCause {
    Finished,
    /// A turn limit or a budget; the result is a closing report.
    FinishedPartial,
    /// The payload's own failure.
    Failed {
        code: i32,
    },
    /// A signal that the payload gave itself by a fault.
    Fault {
        signal: i32,
    },
    TimeLimit,
    /// No activity of model or tools.
    Inactive,
    Stopped {
        by: StoppedBy,
    },
    /// A signal that was not ours.
    KilledOutside {
        signal: i32,
    },
    /// The keeper is gone and nobody saw the end.
    KeeperVanished,
    /// The payload was never started.
    NeverStarted,
}

/// Who wanted the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    Model,
    Person,
    /// The run that owned the job ended.
    RunEnd,
    /// The owner is gone.
    ParentGone,
    /// The keeper was told to end by a signal.
    OutsideSignal,
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Starting,
    Running,
    Ended(EndCause),
}

/// What can happen to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusEvent {
    Started,
    Ended(EndCause),
}

impl Status {
    /// The only way from one status to the next. `None`: the event changes nothing, the status stays.
    pub fn next(self, event: StatusEvent) -> Option<Status> {
        match (self, event) {
            (Status::Starting, StatusEvent::Started) => Some(Status::Running),
            (Status::Starting | Status::Running, StatusEvent::Ended(cause)) => Some(Status::Ended(cause)),
            (Status::Running, StatusEvent::Started) | (Status::Ended(_), _) => None,
        }
    }

    pub fn is_final(self) -> bool {
        matches!(self, Status::Ended(_))
    }

    /// The word in the `subagent` tool and in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Status::Starting | Status::Running => "running",
            Status::Ended(cause) => cause.tool_word(),
        }
    }
}

/// Exit codes by which our own binary reports how its run ended (decision 1).
const EXIT_TIME_LIMIT: i32 = 4;
const EXIT_PARTIAL: i32 = 5;
/// Added to the number of the signal that ended it.
const EXIT_SIGNAL: i32 = 128;

impl EndCause {
    /// The cause of an end record. The exit code counts as a typed report only for process agents: their payload is
    /// this binary.
    pub fn from_record(kind: JobKind, record: &EndRecord) -> EndCause {
        match &record.cause {
            EndedBy::TimeLimit => EndCause::TimeLimit,
            EndedBy::Stop { request } => match request.requester {
                Requester::Model => EndCause::Stopped { by: StoppedBy::Model },
                Requester::Person => EndCause::Stopped { by: StoppedBy::Person },
                Requester::RunEnd => EndCause::Stopped { by: StoppedBy::RunEnd },
                Requester::Limit => EndCause::TimeLimit,
            },
            EndedBy::OwnerGone => EndCause::Stopped { by: StoppedBy::ParentGone },
            EndedBy::KeeperSignal { .. } => EndCause::Stopped { by: StoppedBy::OutsideSignal },
            EndedBy::KeeperLost => EndCause::KeeperVanished,
            EndedBy::Itself => match record.wait {
                None => EndCause::KeeperVanished,
                Some(wait) => Self::from_payload(kind, wait.code, wait.signal),
            },
        }
    }

    /// How a payload ended that nobody stopped (decision 1).
    pub fn from_payload(kind: JobKind, code: Option<i32>, signal: Option<i32>) -> EndCause {
        match (code, signal) {
            (_, Some(signal)) if is_fault(signal) => EndCause::Fault { signal },
            (_, Some(signal)) => EndCause::KilledOutside { signal },
            (Some(0), None) => EndCause::Finished,
            (Some(code), None) => match (kind, code, reported_signal(code)) {
                // Our own program takes note of a signal, keeps what it has and then says by its code which one it was.
                // Nobody asked the keeper for a stop, so it came from outside (R360, fault C1).
                (JobKind::ProcessAgent, _, Some(signal)) => EndCause::KilledOutside { signal },
                (JobKind::ProcessAgent, EXIT_PARTIAL, None) => EndCause::FinishedPartial,
                (JobKind::ProcessAgent, EXIT_TIME_LIMIT, None) => EndCause::Inactive,
                (JobKind::ProcessAgent | JobKind::LocalAgent | JobKind::Shell, code, _) => EndCause::Failed { code },
            },
            (None, None) => EndCause::KeeperVanished,
        }
    }

    /// Column `subagent` tool; also the status of a job in JSON.
    pub fn tool_word(self) -> &'static str {
        match self {
            EndCause::Finished | EndCause::FinishedPartial => "completed",
            EndCause::Failed { .. } | EndCause::Fault { .. } | EndCause::NeverStarted => "error",
            EndCause::TimeLimit | EndCause::Inactive => "timeout",
            EndCause::Stopped { .. } => "cancelled",
            EndCause::KilledOutside { .. } | EndCause::KeeperVanished => "lost",
        }
    }

    /// Column metadata and notice; shells that were stopped are `killed` there (R262).
    pub fn notice_word(self, kind: JobKind) -> &'static str {
        match (self, kind) {
            (EndCause::Finished | EndCause::FinishedPartial, _) => "completed",
            (EndCause::Stopped { .. }, JobKind::Shell) => "killed",
            (EndCause::Stopped { .. }, JobKind::ProcessAgent | JobKind::LocalAgent) => "stopped",
            (
                EndCause::Failed { .. }
                | EndCause::Fault { .. }
                | EndCause::TimeLimit
                | EndCause::Inactive
                | EndCause::KilledOutside { .. }
                | EndCause::KeeperVanished
                | EndCause::NeverStarted,
                _,
            ) => "failed",
        }
    }

    /// The word in `TaskOutput`, `TaskStop` (R191).
    pub fn task_word(self, kind: JobKind) -> &'static str {
        match self {
            EndCause::KilledOutside { .. } | EndCause::KeeperVanished => "lost",
            _ => self.notice_word(kind),
        }
    }

    /// The name in JSON (`end_cause`).
    pub fn name(self) -> &'static str {
        match self {
            EndCause::Finished => "finished",
            EndCause::FinishedPartial => "finished_partial",
            EndCause::Failed { .. } => "failed",
            EndCause::Fault { .. } => "fault_signal",
            EndCause::TimeLimit => "time_limit",
            EndCause::Inactive => "inactive",
            EndCause::Stopped { by: StoppedBy::Model } => "stopped_by_model",
            EndCause::Stopped { by: StoppedBy::Person } => "stopped_by_person",
            EndCause::Stopped { by: StoppedBy::RunEnd } => "stopped_at_run_end",
            EndCause::Stopped { by: StoppedBy::ParentGone } => "parent_gone",
            EndCause::Stopped { by: StoppedBy::OutsideSignal } => "stopped_by_signal",
            EndCause::KilledOutside { .. } => "killed_from_outside",
            EndCause::KeeperVanished => "keeper_vanished",
            EndCause::NeverStarted => "never_started",
        }
    }

    /// What the tool word alone does not tell; `None` for a plain end.
    pub fn detail(self) -> Option<String> {
        match self {
            EndCause::Finished | EndCause::Failed { .. } => None,
            EndCause::FinishedPartial => Some("partial: turn limit or budget reached".into()),
            EndCause::Fault { signal } => Some(format!("fault signal {}", signal_name(signal))),
            EndCause::TimeLimit => Some("time limit".into()),
            EndCause::Inactive => Some("no activity".into()),
            EndCause::Stopped { by } => Some(
                match by {
                    StoppedBy::Model => "stopped by the model",
                    StoppedBy::Person => "stopped by a person",
                    StoppedBy::RunEnd => "stopped at the end of the run",
                    StoppedBy::ParentGone => "parent gone",
                    StoppedBy::OutsideSignal => "stopped by an outside signal",
                }
                .into(),
            ),
            EndCause::KilledOutside { signal } => Some(format!("killed from outside by {}", signal_name(signal))),
            EndCause::KeeperVanished => Some("nobody saw the end: its keeper is gone".into()),
            EndCause::NeverStarted => Some("never started".into()),
        }
    }

    /// Whether `list` states the exit code (R369).
    pub fn shows_exit(self) -> bool {
        matches!(self, EndCause::Finished | EndCause::FinishedPartial | EndCause::Failed { .. } | EndCause::Fault { .. })
    }
}

/// The signal that a run was ended by, as its exit code tells (`cli/signals.rs`).
fn reported_signal(code: i32) -> Option<i32> {
    use nix::sys::signal::Signal;
    let signals = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
    signals.into_iter().map(|signal| signal as i32).find(|signal| code == EXIT_SIGNAL + signal)
}

/// Signals that a process gets by its own fault: SEGV, ABRT, ILL, BUS, FPE, SYS.
fn is_fault(signal: i32) -> bool {
    use nix::sys::signal::Signal;
    matches!(
        Signal::try_from(signal),
        Ok(Signal::SIGSEGV | Signal::SIGABRT | Signal::SIGILL | Signal::SIGBUS | Signal::SIGFPE | Signal::SIGSYS)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::record::{RECORD_VERSION, StopRequest, StreamCount, WaitStatus};
    use proptest::prelude::*;

    fn record(cause: EndedBy, code: Option<i32>, signal: Option<i32>) -> EndRecord {
        let now = crate::clock::now();
        EndRecord {
            version: RECORD_VERSION,
            cause,
            wait: (code.is_some() || signal.is_some()).then_some(WaitStatus { code, signal, core_dumped: false }),
            started_at: now,
            ended_at: now,
            duration_ms: 0,
            stdout: StreamCount::default(),
            stderr: StreamCount::default(),
            signals: Vec::new(),
            swept: 0,
            left_over: Vec::new(),
            output_error: None,
        }
    }

    fn stop(requester: Requester) -> EndedBy {
        EndedBy::Stop { request: StopRequest { requester, at: crate::clock::now() } }
    }

    /// R360, R376, R378, R380, faults C1, M6, M7
    #[test]
    fn one_word_per_surface() {
        use JobKind::{ProcessAgent, Shell};
        let rows = [
            (ProcessAgent, record(EndedBy::Itself, Some(0), None), "completed", "completed", "finished"),
            (ProcessAgent, record(EndedBy::Itself, Some(5), None), "completed", "completed", "finished_partial"),
            (ProcessAgent, record(EndedBy::Itself, Some(4), None), "timeout", "failed", "inactive"),
            (ProcessAgent, record(EndedBy::Itself, Some(7), None), "error", "failed", "failed"),
            (Shell, record(EndedBy::Itself, Some(5), None), "error", "failed", "failed"),
            (Shell, record(EndedBy::Itself, Some(4), None), "error", "failed", "failed"),
            (ProcessAgent, record(EndedBy::Itself, None, Some(11)), "error", "failed", "fault_signal"),
            (ProcessAgent, record(EndedBy::Itself, None, Some(9)), "lost", "failed", "killed_from_outside"),
            (ProcessAgent, record(EndedBy::Itself, None, Some(15)), "lost", "failed", "killed_from_outside"),
            (ProcessAgent, record(EndedBy::Itself, Some(143), None), "lost", "failed", "killed_from_outside"),
            (ProcessAgent, record(EndedBy::Itself, Some(130), None), "lost", "failed", "killed_from_outside"),
            (ProcessAgent, record(EndedBy::Itself, Some(137), None), "error", "failed", "failed"),
            (ProcessAgent, record(EndedBy::Itself, Some(141), None), "error", "failed", "failed"),
            (Shell, record(EndedBy::Itself, Some(143), None), "error", "failed", "failed"),
            (ProcessAgent, record(stop(Requester::Model), Some(143), None), "cancelled", "stopped", "stopped_by_model"),
            (ProcessAgent, record(EndedBy::OwnerGone, Some(143), None), "cancelled", "stopped", "parent_gone"),
            (ProcessAgent, record(EndedBy::TimeLimit, None, Some(15)), "timeout", "failed", "time_limit"),
            (ProcessAgent, record(stop(Requester::Model), Some(0), None), "cancelled", "stopped", "stopped_by_model"),
            (Shell, record(stop(Requester::Person), None, Some(9)), "cancelled", "killed", "stopped_by_person"),
            (Shell, record(stop(Requester::Limit), None, Some(15)), "timeout", "failed", "time_limit"),
            (ProcessAgent, record(EndedBy::OwnerGone, None, Some(15)), "cancelled", "stopped", "parent_gone"),
            (ProcessAgent, record(EndedBy::KeeperLost, None, None), "lost", "failed", "keeper_vanished"),
        ];
        for (kind, record, tool, notice, name) in rows {
            let cause = EndCause::from_record(kind, &record);
            let found = (cause.tool_word(), cause.notice_word(kind), cause.name());
            assert_eq!(found, (tool, notice, name), "{record:?}");
        }
    }

    fn causes() -> impl Strategy<Value = EndCause> {
        prop_oneof![
            Just(EndCause::Finished),
            any::<i32>().prop_map(|code| EndCause::Failed { code }),
            Just(EndCause::TimeLimit),
            Just(EndCause::Stopped { by: StoppedBy::Model }),
            Just(EndCause::KeeperVanished),
        ]
    }

    proptest! {
        /// R191: any order of events leaves a legal record: forward only, an end never changes.
        #[test]
        fn an_end_is_final(events in proptest::collection::vec(
            prop_oneof![Just(StatusEvent::Started), causes().prop_map(StatusEvent::Ended)], 0..12,
        )) {
            let mut status = Status::Starting;
            let mut first_end = None;
            for event in events {
                if let Some(next) = status.next(event) {
                    prop_assert!(!status.is_final());
                    status = next;
                }
                if let (None, StatusEvent::Ended(cause)) = (first_end, event) {
                    first_end = Some(cause);
                }
                match first_end {
                    Some(cause) => prop_assert_eq!(status, Status::Ended(cause)),
                    None => prop_assert!(!status.is_final()),
                }
            }
        }
    }
}
