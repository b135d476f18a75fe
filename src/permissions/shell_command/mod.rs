//! A shell line to its commands, as the shell would start them, and whether it is proved to be read-only.
//!
//! The grammar splits the line; carriers (`env`, `xargs`, `sh -c`, `find -exec`) give the commands inside their words. What
//! cannot be read safely is said, never guessed: such a line is allowed by its exact text only, while deny and ask rules
//! still see every command that could be made out, and a textual net besides (R282). Pure text, no I/O.

mod carriers;
mod checks;
mod grammar;
mod net;
mod plain;
mod words;

pub use net::{rough_fragments, without_wrappers};
pub use plain::{NotPlain, split};
pub use words::{ANY, Word};

pub(crate) use net::loose_fragments;
pub(crate) use words::{joined_loosely, program_name};

use std::cell::OnceCell;

use crate::permissions::decide::is_harmless_variable;
use crate::permissions::read_only;

/// A line with all commands that it may start.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pub parts: Vec<Part>,
    pub redirects: Vec<Redirect>,
    /// Why it cannot be read safely, if it cannot.
    pub unreadable: Option<Unreadable>,
    /// Why it is not a plain list of commands, if it is not: then it is never called read-only.
    pub not_plain: Option<NotPlain>,
    /// Text that may become commands although it is no shell code where it stands: code for interpreters, quoted substitutions.
    pub(crate) loose: Vec<String>,
    /// What of it is held against rules, cut once for all of them.
    loose_pieces: OnceCell<Vec<String>>,
}

/// One command, or what could be seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// As written, without redirections.
    pub text: String,
    /// The program and its arguments; empty when variables are only assigned.
    pub words: Vec<Word>,
    pub assignments: Vec<Assignment>,
    /// The command that starts this one.
    pub carrier: Option<Carrier>,
    pub carries: Carries,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub name: String,
    pub value: Word,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Its place among the line's parts.
    pub part: usize,
    /// How far an allow rule for the carrier must reach to speak of this command too.
    pub head: String,
    pub holds: Holds,
}

/// For which rules a carried command counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Always,
    /// Where nothing certain is known of the carrier's options: to deny and to ask, not as one more thing to allow.
    DenyOnly,
}

/// What a command does with the commands in its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carries {
    #[default]
    Nothing,
    /// It only starts them: whoever may run them may run it.
    Wraps,
    /// It adds something of its own: rights, repetition, another place.
    Runs,
}

/// A file named in a redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    pub target: Word,
    pub writes: bool,
}

/// What stopped the safe reading of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it does not follow the shell's grammar")]
    Syntax,
    #[error("it has a construct that is not understood")]
    Construct,
    #[error("it starts a coprocess")]
    Coprocess,
    #[error("it has a here-document with more than a plain body")]
    HereDocument,
    #[error("it has an arithmetic expression that is not understood")]
    Arithmetic,
    #[error("it has a control character or unusual space")]
    Character,
    #[error("it is nested too deeply")]
    Depth,
    #[error("it is too long")]
    Length,
    #[error("it can be read in two ways")]
    Ambiguous,
}

impl Line {
    /// Reads a line as bash would. Never fails: what is not understood is said in the result.
    pub fn read(line: &str) -> Self {
        grammar::read(line)
    }

    /// The pieces of loose text that may be commands.
    pub(crate) fn loose_pieces(&self) -> &[String] {
        self.loose_pieces.get_or_init(|| self.loose.iter().flat_map(|text| rough_fragments(text)).collect())
    }

    /// Whether every command of the line only reads.
    pub fn is_read_only(&self) -> bool {
        self.why_not_read_only().is_none()
    }

    /// What keeps the line from being called read-only.
    pub fn why_not_read_only(&self) -> Option<Changes<'_>> {
        if let Some(why) = self.not_plain {
            return Some(Changes::NotPlain(why));
        }
        if let Some(why) = self.unreadable {
            return Some(Changes::Unreadable(why));
        }
        if self.moves_git() {
            return Some(Changes::MovesGit);
        }
        self.parts.iter().find(|part| !part.is_read_only()).map(Changes::Part)
    }

    /// git runs programs named in the configuration of the repository it stands in, so it may only stand in the workspace.
    pub(crate) fn moves_git(&self) -> bool {
        let has = |program: &str| self.parts.iter().any(|part| part.program() == Some(program));
        has("cd") && has("git")
    }

    /// Whether the working directory may change before a redirection is made.
    pub(crate) fn moves(&self) -> bool {
        const MOVING: &[&str] = &["cd", "pushd", "popd"];
        self.parts.iter().any(|part| part.program().is_some_and(|program| MOVING.contains(&program)))
    }
}

/// Why a line is not proved to read only.
#[derive(Clone, Copy, Debug)]
pub enum Changes<'a> {
    NotPlain(NotPlain),
    Unreadable(Unreadable),
    MovesGit,
    Part(&'a Part),
}

impl Part {
    /// The program as the shell will look for it, when it is known.
    pub fn program(&self) -> Option<&str> {
        self.words.first().filter(|word| word.is_fixed()).map(|word| word.text.as_str())
    }

    /// As written, without assignments in front that change no command's meaning.
    pub(crate) fn bare_text(&self) -> &str {
        let is_harmless = |assignment: &Assignment| assignment.value.is_fixed() && is_harmless_variable(&assignment.name);
        let is_bare = !self.words.is_empty() && self.assignments.iter().all(is_harmless);
        let bare = self.words.iter().map(|word| word.raw.len() + 1).sum::<usize>().saturating_sub(1);
        if is_bare { self.text.get(self.text.len().saturating_sub(bare)..).unwrap_or(&self.text) } else { &self.text }
    }

    /// `git -C x --no-pager push` as `git push`; `None` for other programs, and where nothing stands between.
    pub(crate) fn without_global_options(&self) -> Option<Vec<Word>> {
        carriers::without_global_options(&self.words)
    }

    /// Whether this one command is proved to change nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        self.assignments.is_empty() && !self.words.iter().any(|word| word.dynamic) && read_only::is_read_only(&self.words)
    }
}

/// Whether every command of the line only reads.
pub fn is_read_only(line: &str) -> bool {
    Line::read(line).is_read_only()
}
