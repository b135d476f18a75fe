//! Error to message, hints and exit code. The one table of exit codes, and the only place that prints an error.

use std::fmt;
use std::io::Write;

use crate::models::ModelErrorKind;

/// How a command ends, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    Usage,
    Denied,
    TimeLimit,
    Partial,
    ProviderRefused,
    ProviderUnavailable,
    StateLost,
    JobsLeft,
    /// `subagent poll`: something asked for is still running (for scripts).
    StillRunning,
    /// `subagent`, `jobs` and `sessions`: an id that is not known.
    UnknownId,
    /// `permissions explain`: a person would be asked.
    WouldAsk,
    Fault,
    /// Ended by this signal.
    Signal(u8),
}

/// Every exit code with its meaning, for `--help` and the manual.
pub const EXIT_CODES: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "failed: the work, a tool or a subagent failed"),
    ("2", "wrong usage or configuration; no model is set"),
    ("3", "work was refused by permissions"),
    ("4", "a time limit, or a model that was silent too long"),
    ("5", "turn limit or budget reached; the answer is partial"),
    ("6", "the provider refused: key, model or request"),
    ("7", "the provider was unavailable or limited the rate, also after retries"),
    ("8", "state is lost, unreadable or cannot be written"),
    ("9", "ended with jobs still running at the ceiling"),
    ("10", "subagent poll: still running"),
    ("11", "subagent, jobs, sessions: unknown id"),
    ("12", "permissions explain: would be asked (0 allowed, 3 denied)"),
    ("70", "a fault of zapmyco itself"),
    ("128+n", "ended by signal n (130 Ctrl-C, 141 closed pipe, 143 TERM)"),
];

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Denied => 3,
            Exit::TimeLimit => 4,
            Exit::Partial => 5,
            Exit::ProviderRefused => 6,
            Exit::ProviderUnavailable => 7,
            Exit::StateLost => 8,
            Exit::JobsLeft => 9,
            Exit::StillRunning => 10,
            Exit::UnknownId => 11,
            Exit::WouldAsk => 12,
            Exit::Fault => 70,
            Exit::Signal(number) => 128u8.saturating_add(number),
        }
    }

    /// The code for a run whose model gave no answer.
    pub fn of_model_error(kind: ModelErrorKind) -> Self {
        match kind {
            ModelErrorKind::Unauthorized
            | ModelErrorKind::InvalidRequest
            | ModelErrorKind::ContextTooLong
            | ModelErrorKind::NotFound
            | ModelErrorKind::QuotaExhausted => Exit::ProviderRefused,
            ModelErrorKind::RateLimited
            | ModelErrorKind::Overloaded
            | ModelErrorKind::ServerError
            | ModelErrorKind::Connect
            | ModelErrorKind::Interrupted
            | ModelErrorKind::Garbled
            | ModelErrorKind::Empty => Exit::ProviderUnavailable,
            ModelErrorKind::TimedOut => Exit::TimeLimit,
            ModelErrorKind::ScriptMismatch => Exit::Usage,
        }
    }
}

/// The table as text, two columns.
pub fn exit_code_help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (code, meaning) in EXIT_CODES {
        text.push_str(&format!("  {code:<6} {meaning}\n"));
    }
    text
}

/// A command that cannot go on: what was wrong, what to do, how to exit.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandError {
    pub exit: Exit,
    /// One sentence, lower case, without a full stop.
    pub message: String,
    /// What to do, one line each.
    pub hints: Vec<String>,
}

impl CommandError {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hints: Vec::new() }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// State that cannot be read or written.
    pub fn state(message: impl Into<String>) -> Self {
        Self::new(Exit::StateLost, message)
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// From any error with its causes: `outer: inner: innermost`, each said once.
    pub fn from_error(exit: Exit, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(exit, with_causes(error))
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        for hint in &self.hints {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CommandError {}

/// An error and its causes in one line; a cause that the outer text already names is left out.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

/// Prints an error on stderr. A stderr that is closed is no further error.
pub fn print_error(error: &CommandError) {
    let _ = writeln!(std::io::stderr(), "zapmyco: {error}");
}

/// Prints a notice on stderr.
pub fn print_notice(text: &str) {
    let _ = writeln!(std::io::stderr(), "zapmyco: {text}");
}

/// Prints lines on stderr as they are.
pub fn print_plain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes the answer of a command to stdout. A closed pipe is the reader's way to say that it has enough: the command
/// ends quietly with 141, as a program killed by SIGPIPE would.
pub fn print_out(text: &str) -> Result<(), CommandError> {
    print_out_bytes(text.as_bytes())
}

/// As [`print_out`], for bytes that need not be text.
pub fn print_out_bytes(bytes: &[u8]) -> Result<(), CommandError> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// What a writer of its own has made of stdout.
pub fn flushed(written: std::io::Result<()>) -> Result<(), CommandError> {
    written.and_then(|()| std::io::stdout().flush()).map_err(stdout_error)
}

/// What a failed write to stdout means.
pub fn stdout_error(error: std::io::Error) -> CommandError {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        return CommandError::new(Exit::Signal(nix::libc::SIGPIPE as u8), String::new());
    }
    CommandError::failed(format!("cannot write to stdout: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R326
    #[test]
    fn every_exit_stands_in_the_table() {
        let exits = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::Denied,
            Exit::TimeLimit,
            Exit::Partial,
            Exit::ProviderRefused,
            Exit::ProviderUnavailable,
            Exit::StateLost,
            Exit::JobsLeft,
            Exit::StillRunning,
            Exit::UnknownId,
            Exit::Fault,
        ];
        for exit in exits {
            let code = exit.code().to_string();
            assert!(EXIT_CODES.iter().any(|(known, _)| *known == code), "{code}");
        }
        assert_eq!(Exit::Signal(15).code(), 143);
    }

    #[test]
    fn causes_are_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot create {path}{tail}")]
        struct Outer {
            path: &'static str,
            tail: &'static str,
            source: std::io::Error,
        }
        let error = |tail| Outer { path: "/x", tail, source: std::io::Error::other("disk on fire") };
        assert_eq!(with_causes(&error("")), "cannot create /x: disk on fire");
        assert_eq!(with_causes(&error(": disk on fire")), "cannot create /x: disk on fire");
    }
}
