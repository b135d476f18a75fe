//! One shell line to allow, ask or deny: its commands, the files of its redirections, and what cannot be seen in it.

use std::path::PathBuf;

use super::{CalledTool, Policy, Verdict, allow_flag, asked_by, denied_by, denied_by_answer};
use crate::permissions::Mode;
use crate::permissions::file_commands::{edited_files, touched_files};
use crate::permissions::paths::PathForms;
use crate::permissions::read_only;
use crate::permissions::rules::{CompiledRule, Found, Named, Rule, Target, suggest_command, suggest_path};
use crate::permissions::shell_command::{self, Carrier, Carries, Changes, Holds, Line, Part, Redirect};

/// The kernel's longest path.
const PATH_BYTES_MAX: usize = 4096;
/// Files that are none.
const NULL_LIKE: &[&str] = &["/dev/null", "/dev/stdout", "/dev/stderr"];
/// Variables that change no command's meaning, so that a rule for the command speaks of it with them too.
const HARMLESS_VARIABLES: &[&str] = &[
    "CARGO_TERM_COLOR",
    "CI",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "FORCE_COLOR",
    "LANG",
    "LC_ALL",
    "LINES",
    "NODE_ENV",
    "NO_COLOR",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "TERM",
    "TZ",
];
/// Lower-case names that programs look at all the same.
const LOWER_CASE_WITH_MEANING: &[&str] =
    &["all_proxy", "auto_resume", "ftp_proxy", "histchars", "http_proxy", "https_proxy", "no_proxy", "npm_"];

/// Whatever writes a file by a shell line counts as the tool that writes files.
const WRITER: Named<'static> = Named { name: "Write", aliases: &[] };

/// Why a command may run.
pub(super) enum Coverage {
    ReadsOnly,
    /// The rule's text.
    Rule(String),
    Wraps,
    Edits,
    Variables,
}

/// What is not allowed yet.
enum Open<'a> {
    Nothing,
    /// At least one command; then files.
    Parts(Vec<&'a Part>, Vec<&'a Redirect>),
    Files(Vec<&'a Redirect>),
    Line,
}

/// Whether every command of a line lies in the scopes that an agent is held to (R75).
pub(super) fn lies_in_scope(line: &Line, scopes: &[CompiledRule]) -> bool {
    let is_named = |part: &Part| part.program().is_some() && scopes.iter().any(|rule| rule.covers_command(part.bare_text()));
    let is_covered = |part: &Part| {
        let is_guess = part.carrier.as_ref().is_some_and(|carrier| carrier.holds == Holds::DenyOnly);
        let reaches = |carrier: &Carrier| {
            let starter = line.parts.get(carrier.part);
            starter.is_some_and(|starter| scopes.iter().any(|rule| rule.covers_command(&starter.text) && rule.reaches(&carrier.head)))
        };
        is_guess || part.carries == Carries::Wraps || is_named(part) || part.carrier.as_ref().is_some_and(reaches)
    };
    let writes = line.redirects.iter().any(|redirect| redirect.writes && !is_null_like(redirect));
    line.unreadable.is_none() && !writes && !line.parts.is_empty() && line.parts.iter().all(is_covered)
}

impl Policy {
    pub(super) fn decide_command(&self, tool: &CalledTool<'_>, named: Named<'_>, mode: Mode, text: &str) -> Verdict {
        let line = Line::read(text);
        for rule in &self.deny {
            if let Some(found) = self.found_by(rule, named, text, &line) {
                return if found.is_certain { denied_by(&rule.rule) } else { Verdict::Deny { reason: perhaps(&rule.rule, found, &line) } };
            }
        }
        if self.answers().deny.iter().any(|rule| self.found_by(rule, named, text, &line).is_some()) {
            return denied_by_answer();
        }
        if tool.never_asked {
            return Verdict::Allow;
        }
        if let Some(asking) = self.ask.iter().find(|rule| self.found_by(rule, named, text, &line).is_some()) {
            return asked_by(&asking.rule);
        }
        if mode == Mode::Yolo || (line.is_read_only() && self.shows_no_hidden_file(&line.parts)) {
            return Verdict::Allow;
        }
        if mode == Mode::Plan {
            return plan_denies_command(text, &line);
        }
        let is_whole = self.allows(|rule| rule.allows(named, &Target::Command { text }));
        let open = if is_whole { Open::Nothing } else { self.not_allowed(named, mode, &line) };
        let asks = format!("mode `{mode}` {}", mode.asks_before());
        let reason = match &open {
            Open::Nothing => return Verdict::Allow,
            Open::Parts(parts, _) => {
                format!("{asks} running `{}`, which is not known to be read-only", shortened(&parts[0].text))
            }
            Open::Files(files) => format!("{asks} writing {}", shortened(&files[0].target.raw)),
            Open::Line => match (line.unreadable, line.not_plain) {
                (Some(why), _) => format!("{asks} running a line that cannot be read safely: {why}"),
                (None, Some(why)) => format!("{asks} running a line that is not plain: {why}"),
                (None, None) => format!("{asks} running `{}`", shortened(text)),
            },
        };
        let suggestion = self.flag(&open, &line).unwrap_or_else(|| whole_line_flag(text));
        Verdict::Ask { reason, suggestion }
    }

    /// What a deny or ask rule finds in the line: a command, a file that is read, or a file that is written.
    pub(super) fn found_by(&self, rule: &CompiledRule, named: Named<'_>, text: &str, line: &Line) -> Option<Found> {
        let in_words = || self.touches(rule, text, line).then_some(Found { part: None, is_certain: true });
        rule.found_in(named, text, line).or_else(in_words).or_else(|| self.written_by(rule, line))
    }

    /// What rules, or rules and the proof of reading only, leave uncovered.
    fn not_allowed<'l>(&self, named: Named<'_>, mode: Mode, line: &'l Line) -> Open<'l> {
        if line.unreadable.is_some() || line.parts.is_empty() {
            return Open::Line;
        }
        let open: Vec<&Part> = line.parts.iter().filter(|part| !self.is_covered(named, mode, line, part)).collect();
        let files: Vec<&Redirect> = line.redirects.iter().filter(|redirect| !self.is_file_covered(mode, line, redirect)).collect();
        if !open.is_empty() {
            return Open::Parts(open, files);
        }
        if !files.is_empty() {
            return Open::Files(files);
        }
        if line.moves_git() && !line.parts.iter().all(|part| self.rule_allows(named, part)) { Open::Line } else { Open::Nothing }
    }

    fn is_covered(&self, named: Named<'_>, mode: Mode, line: &Line, part: &Part) -> bool {
        let is_guess = part.carrier.as_ref().is_some_and(|carrier| carrier.holds == Holds::DenyOnly);
        is_guess || self.coverage(named, mode, line, part).is_some()
    }

    /// What lets one command of the line run without a word, if anything does.
    pub(super) fn coverage(&self, named: Named<'_>, mode: Mode, line: &Line, part: &Part) -> Option<Coverage> {
        if part.words.is_empty() {
            let is_harmless = |name: &str| is_local_variable(name) || is_harmless_variable(name);
            if part.assignments.iter().all(|assignment| is_harmless(&assignment.name)) {
                return Some(Coverage::Variables);
            }
        } else if part.is_read_only() && self.shows_no_hidden_file(std::slice::from_ref(part)) {
            return Some(Coverage::ReadsOnly);
        } else if part.carries == Carries::Wraps {
            return Some(Coverage::Wraps);
        }
        let edits =
            || mode.edits_freely() && edited_files(part).is_some_and(|files| files.iter().all(|file| self.may_write(mode, line, file)));
        let rule = self.allowing(|rule| rule.allows_part(named, part)).or_else(|| self.reaching(named, line, part));
        rule.map(Coverage::Rule).or_else(|| edits().then_some(Coverage::Edits))
    }

    fn rule_allows(&self, named: Named<'_>, part: &Part) -> bool {
        self.allows(|rule| rule.allows_part(named, part))
    }

    /// A rule for the command that starts this one and names this one too: `sudo apt:*` for `sudo apt install x`.
    fn reaching(&self, named: Named<'_>, line: &Line, part: &Part) -> Option<String> {
        let mut carried = part;
        while let Some(carrier) = &carried.carrier {
            let starter = line.parts.get(carrier.part)?;
            let rule = self.allowing(|rule| rule.allows_part(named, starter) && rule.reaches(&carrier.head));
            if rule.is_some() {
                return rule;
            }
            carried = starter;
        }
        None
    }

    /// The text of the first allow rule that says so.
    fn allowing(&self, says_so: impl Fn(&CompiledRule) -> bool) -> Option<String> {
        let text = |rule: &CompiledRule| rule.rule.to_string();
        let written = self.allow.iter().find(|rule| says_so(rule)).map(text);
        written.or_else(|| self.answers().allow.iter().find(|rule| says_so(rule)).map(text))
    }

    pub(super) fn is_file_covered(&self, mode: Mode, line: &Line, redirect: &Redirect) -> bool {
        if is_null_like(redirect) {
            return true;
        }
        if !redirect.target.is_fixed() {
            return !redirect.writes && !self.hides_files();
        }
        // `/dev/tcp/host/port` is a connection, whichever way
        if !redirect.writes && !redirect.target.text.starts_with("/dev/") {
            return true;
        }
        self.may_write(mode, line, &redirect.target.text)
    }

    /// Whether an edit of the file would be free or is allowed.
    fn may_write(&self, mode: Mode, line: &Line, name: &str) -> bool {
        // where a relative name lies is not known after `cd`
        if (line.moves() && !name.starts_with('/')) || name.len() > PATH_BYTES_MAX {
            return false;
        }
        let path = PathForms::of(&self.workspace.written.join(name));
        let is_ruled = self.allows(|rule| rule.allows(WRITER, &Target::Writing(&path)));
        is_ruled || self.is_memory(&path) || (mode.edits_freely() && self.outside(&path).is_none())
    }

    /// A file that the line writes and a path rule restricts.
    fn written_by(&self, rule: &CompiledRule, line: &Line) -> Option<Found> {
        if !rule.is_path_rule() {
            return None;
        }
        let folders = self.places(line);
        let restricts = |name: &str, writes: bool| {
            name.len() <= PATH_BYTES_MAX
                && folders.iter().any(|folder| {
                    let path = PathForms::of(&folder.join(name));
                    let target = if writes { Target::Writing(&path) } else { Target::Reading(&path) };
                    rule.restricts(WRITER, &target)
                })
        };
        for redirect in line.redirects.iter().filter(|redirect| !is_null_like(redirect)) {
            if !redirect.target.is_fixed() && redirect.writes && rule.is_edit_rule() {
                return Some(Found { part: None, is_certain: false });
            }
            if redirect.target.is_fixed() && restricts(&redirect.target.text, redirect.writes) {
                return Some(Found { part: None, is_certain: true });
            }
        }
        // a folder goes with all that is in it
        let touches = |name: &str| restricts(name, true) || restricts(&format!("{name}/_"), true);
        let at = line.parts.iter().position(|part| touched_files(part).into_iter().any(touches))?;
        Some(Found { part: Some(at), is_certain: true })
    }

    /// Where relative names of the line may lie.
    fn places(&self, line: &Line) -> Vec<PathBuf> {
        let workspace = &self.workspace.written;
        let moves = line.parts.iter().filter(|part| matches!(part.program(), Some("cd" | "pushd"))).filter_map(|part| part.words.get(1));
        std::iter::once(workspace.clone()).chain(moves.map(|word| workspace.join(&word.text))).collect()
    }

    /// With `Read` rules that hide files, a command that walks folders is not free: what it shows is not told by its words.
    fn shows_no_hidden_file(&self, parts: &[Part]) -> bool {
        !self.hides_files() || !parts.iter().any(|part| read_only::looks_further(&part.words))
    }

    /// Whether a word of the line names a file that a `Read` rule covers.
    fn touches(&self, rule: &CompiledRule, text: &str, line: &Line) -> bool {
        if !rule.is_read_path_rule() {
            return false;
        }
        let covers = |word: &str| {
            let value = word.split_once('=').map(|(_, value)| value);
            [Some(word), value].into_iter().flatten().any(|name| {
                let name = match (name.strip_prefix("~/"), &self.home) {
                    (Some(below), Some(home)) => home.written.join(below),
                    (Some(_), None) | (None, _) => PathBuf::from(name),
                };
                rule.hides(&PathForms::of(&self.workspace.written.join(name)))
            })
        };
        let fragments = shell_command::rough_fragments(text);
        let rough = fragments.iter().flat_map(|fragment| fragment.split_whitespace());
        let exact = line.parts.iter().flat_map(|part| part.words.iter().map(|word| word.text.as_str()));
        exact.chain(rough).filter(|word| word.len() <= PATH_BYTES_MAX && !word.contains(shell_command::ANY)).any(covers)
    }

    /// One flag with a rule for each command and file that is not allowed yet, when such rules can be written.
    fn flag(&self, open: &Open<'_>, line: &Line) -> Option<String> {
        let (parts, files): (&[&Part], &[&Redirect]) = match open {
            Open::Parts(parts, files) => (parts, files),
            Open::Files(files) => (&[], files),
            Open::Nothing | Open::Line => return None,
        };
        let file_rule = |redirect: &&Redirect| {
            // where a relative name lies is not known after `cd`
            let is_placed = |text: &&str| text.starts_with('/') || !line.moves();
            let text = redirect.target.is_fixed().then_some(redirect.target.text.as_str()).filter(is_placed);
            let path = PathForms::of(&self.workspace.written.join(text?));
            Some(suggest_path("Edit", &path.real))
        };
        let carried: Vec<usize> = parts.iter().filter_map(|part| Some(head_of(part)?.part)).collect();
        let part_rule = |part: &&Part| {
            let varies = part.words.iter().any(|word| word.dynamic);
            let of_carrier = head_of(part).map(|carrier| format!("Bash({}:*)", carrier.head));
            let sets_variables = !part.assignments.is_empty() && part.bare_text() == part.text;
            of_carrier.or_else(|| exact_rule(&part.text).filter(|_| varies || sets_variables)).or_else(|| suggest_command(part))
        };
        // the rule for what a command starts begins with the command itself
        let spoken_for = |part: &&&Part| carried.iter().any(|at| line.parts.get(*at).is_some_and(|carrier| std::ptr::eq(carrier, **part)));
        let wanted = parts.iter().filter(|part| !spoken_for(part));
        let mut rules = wanted.map(part_rule).collect::<Option<Vec<String>>>()?;
        rules.extend(files.iter().map(file_rule).collect::<Option<Vec<String>>>()?);
        rules.sort();
        rules.dedup();
        Some(allow_flag(&rules.join(",")))
    }
}

/// The carrier of a command that stands in its words as it is, when a rule can name both.
fn head_of(part: &Part) -> Option<&Carrier> {
    let carrier = part.carrier.as_ref()?;
    let is_plain = part.program().is_some() && part.words.first().is_some_and(|word| carrier.head.ends_with(&format!(" {}", word.raw)));
    let can_be_written = !carrier.head.contains(['\n', '*', '(', ')', '$', '`', '\'', '"']) && carrier.head.len() <= 80;
    (is_plain && can_be_written).then_some(carrier)
}

/// Why a rule denies what may only become what it is about.
fn perhaps(rule: &Rule, found: Found, line: &Line) -> String {
    let what = match (found.part.and_then(|at| line.parts.get(at)), line.unreadable) {
        (Some(part), _) => format!("what `{}` will be is decided only when it runs", shortened(&part.text)),
        (None, Some(why)) => format!("the line cannot be read safely ({why})"),
        (None, None) => "a file name in it, or code for another program, is decided only when it runs".to_owned(),
    };
    format!("{what}, and the rule `{rule}` may deny it, which holds in every mode; write plain commands without expansions instead")
}

fn is_null_like(redirect: &Redirect) -> bool {
    redirect.target.is_fixed() && NULL_LIKE.contains(&redirect.target.text.as_str())
}

/// Whether a variable in a command's environment changes nothing but the look of its output.
pub(in crate::permissions) fn is_harmless_variable(name: &str) -> bool {
    HARMLESS_VARIABLES.contains(&name)
}

/// Whether a variable is one of a script's own, which no program looks at.
fn is_local_variable(name: &str) -> bool {
    let is_lower = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') && !name.is_empty();
    is_lower && !LOWER_CASE_WITH_MEANING.iter().any(|known| name.starts_with(known))
}

fn plan_denies_command(text: &str, line: &Line) -> Verdict {
    let why = match line.why_not_read_only() {
        Some(Changes::NotPlain(why)) => why.to_string(),
        Some(Changes::Unreadable(why)) => why.to_string(),
        Some(Changes::MovesGit) => "git must stay in the workspace, whose configuration is known".to_owned(),
        Some(Changes::Part(part)) => format!("`{}` is not known to be read-only", shortened(&part.text)),
        None => "it walks folders with files that a rule hides".to_owned(),
    };
    Verdict::Deny { reason: format!("mode `plan` runs read-only commands only, and `{}` is refused: {why}", shortened(text)) }
}

/// A rule for exactly this line when that can be written on a command line, else the mode that asks nothing.
fn whole_line_flag(line: &str) -> String {
    match exact_rule(line.trim()) {
        Some(rule) => allow_flag(&rule),
        None => format!("--permission-mode {}", Mode::Yolo),
    }
}

/// The rule for exactly this text, when it reads back as that.
fn exact_rule(text: &str) -> Option<String> {
    const TEXT_MAX: usize = 120;
    let balanced = text.matches('(').count() == text.matches(')').count();
    let rule = format!("Bash({text})");
    let can_be_written = text.len() <= TEXT_MAX && !text.contains(['\n', '*']) && balanced && Rule::parse(&rule).is_ok();
    can_be_written.then_some(rule)
}

fn shortened(command: &str) -> String {
    const SHOWN_MAX: usize = 100;
    let line = command.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}
