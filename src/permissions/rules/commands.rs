//! Rules for commands held against a line that was read: what matches, and what may match once it runs (R282).

use super::{Found, Specifier, begins_with, wildcard_matches};
use crate::permissions::shell_command::{ANY, Line, Part, joined_loosely, loose_fragments, program_name};

/// Of a command that is not known whole, as much is held against a rule; the rest counts as unknown.
const LOOSE_CHARS_MAX: usize = 1000;

impl Specifier {
    /// Deny and ask: the line, or any command in it, as written or as the shell sees it, and what it may become when it
    /// runs. A line that cannot be read safely is searched roughly besides, since a doubt must not open what a rule closes.
    pub(super) fn found_in(&self, text: &str, line: &Line) -> Option<Found> {
        let found = |part, is_certain| Some(Found { part, is_certain });
        if self.matches_command(text.trim()) {
            return found(None, true);
        }
        let mut possible = None;
        for (at, part) in line.parts.iter().enumerate() {
            match self.restricts_part(part) {
                Some(true) => return found(Some(at), true),
                Some(false) => possible = possible.or(Some(at)),
                None => {}
            }
        }
        let in_any = |fragments: &[String]| fragments.iter().any(|fragment| self.may_match(fragment));
        let in_text = line.unreadable.is_some() && in_any(&loose_fragments(text));
        // a dollar in another language is none of the shell's
        if in_text || in_any(line.loose_pieces()) {
            return found(None, false);
        }
        possible.and_then(|at| found(Some(at), false))
    }

    /// Whether the command matches for certain (`true`) or may match (`false`).
    fn restricts_part(&self, part: &Part) -> Option<bool> {
        if self.matches_command(&part.text) {
            return Some(true);
        }
        let (program, arguments) = part.words.split_first()?;
        let joined = joined_loosely(&part.words);
        let bare = program_name(&program.text);
        let is_open = joined.contains(ANY);
        if self.may_match(&joined) {
            return Some(!is_open);
        }
        if bare.len() != program.text.len() {
            let mut words = vec![program.clone()];
            bare.clone_into(&mut words[0].text);
            words.extend_from_slice(arguments);
            if self.may_match(&joined_loosely(&words)) {
                return Some(!is_open);
            }
        }
        let plain = part.without_global_options()?;
        self.may_match(&joined_loosely(&plain)).then_some(!is_open)
    }

    /// Whether the command may become one that matches, with any text in place of each [`ANY`].
    fn may_match(&self, command: &str) -> bool {
        if !command.contains(ANY) {
            return self.matches_command(command);
        }
        let open = |c: char| if c == ANY { Glob::Any } else { Glob::One(c) };
        let mut glob: Vec<Glob> = command.chars().take(LOOSE_CHARS_MAX).map(open).collect();
        if command.len() > LOOSE_CHARS_MAX {
            glob.push(Glob::Any);
        }
        let literal = |text: &str| text.chars().map(Glob::One).collect::<Vec<_>>();
        match self {
            Self::Exact(exact) => globs_meet(&glob, &literal(exact)),
            Self::Prefix(prefix) => {
                let with_arguments: Vec<Glob> = literal(prefix).into_iter().chain([Glob::One(' '), Glob::Any]).collect();
                globs_meet(&glob, &literal(prefix)) || globs_meet(&glob, &with_arguments)
            }
            Self::Wildcard(pattern) => {
                let stars = |text: &str| text.chars().map(|c| if c == '*' { Glob::Any } else { Glob::One(c) }).collect::<Vec<_>>();
                globs_meet(&glob, &stars(pattern)) || pattern.strip_suffix(" *").is_some_and(|bare| globs_meet(&glob, &stars(bare)))
            }
            Self::Path(_) | Self::AgentType(_) | Self::Domain(_) => false,
        }
    }

    /// How far an allow rule's fixed text goes; see [`super::CompiledRule::reaches`].
    pub(super) fn reaches(&self, head: &str) -> bool {
        match self {
            Self::Exact(text) | Self::Prefix(text) => begins_with(text, head),
            Self::Wildcard(pattern) => begins_with(pattern.split('*').next().unwrap_or_default().trim_end(), head),
            Self::Path(_) | Self::AgentType(_) | Self::Domain(_) => false,
        }
    }

    /// One command against the specifier.
    pub(super) fn matches_command(&self, command: &str) -> bool {
        match self {
            Self::Exact(exact) => command == exact,
            Self::Prefix(prefix) => begins_with(command, prefix),
            // `ls *` covers a bare `ls`, as people mean it
            Self::Wildcard(pattern) => {
                wildcard_matches(pattern, command) || pattern.strip_suffix(" *").is_some_and(|bare| wildcard_matches(bare, command))
            }
            Self::Path(_) | Self::AgentType(_) | Self::Domain(_) => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Glob {
    One(char),
    /// Any text, also none.
    Any,
}

/// Whether some text fits both patterns.
fn globs_meet(left: &[Glob], right: &[Glob]) -> bool {
    // reached[j]: the patterns up to here in `left` and up to `j` in `right` can stand for the same text
    let mut reached = vec![false; right.len() + 1];
    reached[0] = true;
    for j in 0..right.len() {
        reached[j + 1] = reached[j] && right[j] == Glob::Any;
    }
    for piece in left {
        let mut next = vec![false; right.len() + 1];
        next[0] = reached[0] && *piece == Glob::Any;
        for j in 0..right.len() {
            next[j + 1] = match (*piece, right[j]) {
                (Glob::Any, Glob::Any) => reached[j + 1] || next[j] || reached[j],
                (Glob::Any, Glob::One(_)) | (Glob::One(_), Glob::Any) => reached[j + 1] || next[j],
                (Glob::One(a), Glob::One(b)) => reached[j] && a == b,
            };
        }
        reached = next;
    }
    reached[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meet(left: &str, right: &str) -> bool {
        let globs = |text: &str| text.chars().map(|c| if c == '*' { Glob::Any } else { Glob::One(c) }).collect::<Vec<_>>();
        globs_meet(&globs(left), &globs(right)) && globs_meet(&globs(right), &globs(left))
    }

    #[test]
    fn patterns_meet_when_a_text_fits_both() {
        for (left, right) in
            [("a*", "*b"), ("*", ""), ("rm", "rm"), ("*x", "rm x"), ("git *", "git push *"), ("a*c*e", "abcde"), ("**", "*")]
        {
            assert!(meet(left, right), "{left} {right}");
        }
        for (left, right) in [("a*", "b*"), ("git log*", "git push*"), ("", "a"), ("a*b", "a*c"), ("ls*", "rm")] {
            assert!(!meet(left, right), "{left} {right}");
        }
    }
}
