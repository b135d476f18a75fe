//! Refuses to start agents inside a subagent: delegation has one level (R6, R349), on every route.
//!
//! A process child is told from anything started below one by its handover: only the supervisor passes that. So the
//! mark in our own environment is allowed with a handover, and a mark in the environment of an ancestor never is.

use crate::cli::report::CommandError;
use crate::config::Environment;
use crate::config::environment::{JOB, SUBAGENT};
use crate::subagents::KEEP_ARGUMENT;

/// What stands between us and the machine's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A person, a script, or a shell of a main session started us.
    Outside,
    /// A subagent, or something that a subagent started.
    InsideSubagent,
}

/// Where this process stands. `has_handover`: we are the payload that a supervisor started as a subagent.
pub fn place(environment: &Environment, has_handover: bool) -> Place {
    let marked = environment.is_set(SUBAGENT) && !has_handover;
    if marked || an_ancestor_has(SUBAGENT) { Place::InsideSubagent } else { Place::Outside }
}

/// The refusal, worded so that a model does not try again (fault I3).
pub fn refuse_inside_subagent(environment: &Environment, has_handover: bool, what: &str) -> Result<(), CommandError> {
    match place(environment, has_handover) {
        Place::Outside => Ok(()),
        Place::InsideSubagent => Err(CommandError::usage(format!("{what} is not available inside a subagent, do not retry"))
            .with_hint("do the work yourself with the tools you have, or report back what should be delegated")),
    }
}

/// Whether anything of ours has started us: a shell, a hook or a subagent of some session.
pub fn is_inside_session(environment: &Environment) -> bool {
    environment.is_set(JOB) || environment.is_set(SUBAGENT) || an_ancestor_has(JOB) || an_ancestor_is_a_keeper()
}

/// Longest chain of parents that is looked at; a real one has about ten.
#[cfg(target_os = "linux")]
const ANCESTORS_MAX: usize = 256;

/// Looks at the initial environment of every ancestor, which no program below can change.
fn an_ancestor_has(name: &str) -> bool {
    let mark = [name.as_bytes(), b"="].concat();
    an_ancestor_shows("environ", |entries| entries.iter().any(|entry| entry.starts_with(&mark)))
}

/// A shell that replaces itself by us has taken its own environment along; the keeper above it is still there.
fn an_ancestor_is_a_keeper() -> bool {
    an_ancestor_shows("cmdline", |arguments| arguments.get(1).is_some_and(|argument| *argument == KEEP_ARGUMENT.as_bytes()))
}

#[cfg(target_os = "linux")]
fn an_ancestor_shows(file: &str, found: impl Fn(&[&[u8]]) -> bool) -> bool {
    let mut pid = nix::unistd::getppid().as_raw();
    for _ in 0..ANCESTORS_MAX {
        if pid <= 1 {
            return false;
        }
        if let Ok(content) = std::fs::read(format!("/proc/{pid}/{file}"))
            && found(&content.split(|byte| *byte == 0).collect::<Vec<_>>())
        {
            return true;
        }
        match parent_of(pid) {
            Some(parent) => pid = parent,
            None => return false,
        }
    }
    false
}

#[cfg(target_os = "linux")]
fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold blanks and parentheses itself: fields are counted after the last one.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// Other systems show nothing of foreign processes; there the mark in our own environment is the whole check.
#[cfg(not(target_os = "linux"))]
fn an_ancestor_shows(_: &str, _: impl Fn(&[&[u8]]) -> bool) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R349
    #[test]
    fn the_mark_needs_a_handover() {
        let marked = Environment::from_pairs([(SUBAGENT, "sa_20260606_a1b2c3d4")]);
        assert_eq!(place(&marked, false), Place::InsideSubagent);
        let error = refuse_inside_subagent(&marked, false, "run").unwrap_err();
        assert_eq!(error.exit.code(), 2);
        assert!(error.message.contains("not available inside a subagent, do not retry"));
    }
}
