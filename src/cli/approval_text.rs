//! What a person reads before deciding about a call, and how the typed answer is understood. Pure.
//!
//! Everything that a model wrote stands behind a bar, wrapped by us: no text of its can look like a line of ours, and no
//! escape sequence reaches the terminal.

use std::path::Path;

use serde_json::Value;

use crate::permissions::approval::{ApprovalRequest, CallSubject, Question, Subject};
use crate::text::fold::escaped_text;
use crate::text::units::one_line;

/// How it is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Columns of the terminal.
    pub width: usize,
    pub colours: bool,
    /// Nothing is left out.
    pub whole: bool,
}

/// What a typed line means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Once,
    Always,
    Deny,
    /// What was typed behind the letter already.
    DenyWithComment(Option<String>),
    DenyForSession,
    ShowAll,
    Unknown,
}

/// Lines of one text that are shown without `[s]how all`: so many of its beginning, and of its end.
const HEAD_LINES: usize = 30;
const TAIL_LINES: usize = 6;
/// Characters of titles and names.
const TITLE_MAX: usize = 120;
const BAR: &str = "  | ";
const BOLD: &str = "\u{1b}[1m";
const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const PLAIN: &str = "\u{1b}[0m";
/// From here on characters may be two columns wide.
const FIRST_WIDE: u32 = 0x1100;
/// Narrower terminals are taken for this wide.
const WIDTH_MIN: usize = 30;

/// Who asks, in a few words.
pub(super) fn asker(request: &ApprovalRequest) -> String {
    match &request.origin {
        None => "zapmyco".to_owned(),
        Some(origin) => {
            let where_ = if origin.background { ", in the background" } else { "" };
            format!("subagent \"{}\" ({}, {}{where_})", short(&origin.description), short(&origin.agent_type), origin.agent_id)
        }
    }
}

/// The whole question about a call, without the line of choices.
pub(super) fn call(request: &ApprovalRequest, subject: &CallSubject, kept_in: &Path, style: Style) -> String {
    let mut text = heading(&format!("{} asks to use {}", asker(request), short(&request.tool)), style);
    let marked = Marks { marks: false, style };
    match (&subject.diff, command_of(&request.input)) {
        (Some(diff), _) => text.push_str(&Marks { marks: true, style }.barred(diff)),
        (None, Some(command)) => text.push_str(&marked.barred(command)),
        (None, None) => text.push_str(&marked.barred(&input(&request.input))),
    }
    text.push_str(&format!("  in {}\n  because {}\n", shown_path(&request.cwd), short_of(&subject.reason, 400)));
    if !subject.lasting.is_empty() {
        let rules: Vec<String> =
            subject.lasting.iter().map(|rule| format!("`{}`", one_line(&escaped_text(&rule.to_string()), 300))).collect();
        text.push_str(&format!("  always here: {} for this folder, kept in {}\n", rules.join(", "), shown_path(kept_in)));
    }
    text
}

/// The line of choices.
pub(super) fn choices(subject: &CallSubject, waiting: usize, style: Style) -> String {
    let (always, session) = if subject.lasting.is_empty() { ("", "") } else { ("[a]lways here, ", ", deny for the [r]est of the session") };
    let more = match waiting {
        0 => String::new(),
        1 => " (1 more question waits)".to_owned(),
        more => format!(" ({more} more questions wait)"),
    };
    let line = format!("[o]nce, {always}[d]eny, deny with [c]omment{session}, [s]how all{more}");
    format!("{} > ", if style.colours { format!("{BOLD}{line}{PLAIN}") } else { line })
}

/// What a typed line means. Whole words are taken too.
pub(super) fn typed(line: &str, subject: &CallSubject) -> Typed {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).map_or((line, ""), |(word, rest)| (word, rest.trim()));
    let can_last = !subject.lasting.is_empty();
    match (word.to_lowercase().as_str(), rest.is_empty()) {
        ("o" | "once" | "y" | "yes", true) => Typed::Once,
        ("a" | "always", true) if can_last => Typed::Always,
        ("d" | "deny" | "n" | "no", true) => Typed::Deny,
        ("c" | "comment", is_empty) => Typed::DenyWithComment((!is_empty).then(|| rest.to_owned())),
        ("r" | "rest", true) if can_last => Typed::DenyForSession,
        ("s" | "show", true) => Typed::ShowAll,
        _ => Typed::Unknown,
    }
}

/// What is said to a line that is none of the choices.
pub(super) fn unknown(line: &str, subject: &CallSubject) -> String {
    let letters = if subject.lasting.is_empty() { "o, d, c or s" } else { "o, a, d, c, r or s" };
    match line.trim() {
        "" => format!("Type {letters}, then Enter.\n"),
        "a" | "always" | "r" | "rest" => format!("No rule can decide this call for good. Type {letters}, then Enter.\n"),
        line => format!("`{}` is not one of the answers. Type {letters}, then Enter.\n", short_of(line, 40)),
    }
}

/// One question of the model, with its numbered options.
pub(super) fn question(request: &ApprovalRequest, place: usize, of: usize, question: &Question, style: Style) -> String {
    let number = if of > 1 { format!(" ({place} of {of})") } else { String::new() };
    let mut text = heading(&format!("{} asks you{number}: {}", asker(request), short(&question.header)), style);
    let marked = Marks { marks: false, style };
    text.push_str(&marked.barred(&question.question));
    for (number, option) in question.options.iter().enumerate() {
        let label = short(&option.label);
        let described =
            if option.description.trim().is_empty() { label } else { format!("{label}: {}", short_of(&option.description, 300)) };
        text.push_str(&marked.barred(&format!("{}. {described}", number + 1)));
        if let Some(preview) = &option.preview {
            text.push_str(&marked.barred(preview));
        }
    }
    text
}

pub(super) fn question_choices(question: &Question, style: Style) -> String {
    let numbers = if question.multi_select { "Numbers (several: 1,2)" } else { "A number" };
    let line = format!("{numbers}, or your own words; Ctrl-D declines");
    format!("{} > ", if style.colours { format!("{BOLD}{line}{PLAIN}") } else { line })
}

/// The answer that a typed line gives, or what is wrong with it.
pub(super) fn answer(line: &str, question: &Question) -> Result<String, String> {
    let line = line.trim();
    let count = question.options.len();
    if line.is_empty() {
        return Err(format!("Type a number from 1 to {count}, or your own words, then Enter.\n"));
    }
    let pieces: Vec<&str> = line.split([',', ' ']).filter(|piece| !piece.is_empty()).collect();
    let numbers: Option<Vec<usize>> = pieces.iter().map(|piece| piece.parse().ok()).collect();
    let Some(mut numbers) = numbers else { return Ok(line.to_owned()) };
    if let Some(wrong) = numbers.iter().find(|number| !(1..=count).contains(*number)) {
        return Err(format!("There is no option {wrong}: they are numbered from 1 to {count}.\n"));
    }
    if numbers.len() > 1 && !question.multi_select {
        return Err("Only one of the options can be chosen.\n".to_owned());
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers.iter().map(|number| question.options[number - 1].label.clone()).collect::<Vec<_>>().join(", "))
}

/// A short name of what is asked, for a line that says what became of it.
pub(super) fn title(request: &ApprovalRequest) -> String {
    match &request.subject {
        Subject::Call(_) => format!("{} asks to use {}", asker(request), short(&request.tool)),
        Subject::Questions(_) => format!("{} asks you something", asker(request)),
    }
}

fn heading(text: &str, style: Style) -> String {
    if style.colours { format!("\n{BOLD}? {text}{PLAIN}\n") } else { format!("\n? {text}\n") }
}

fn short(text: &str) -> String {
    short_of(text, TITLE_MAX)
}

/// One line, in which nothing is left that a terminal would obey.
fn short_of(text: &str, max: usize) -> String {
    one_line(&escaped_text(text), max)
}

fn shown_path(path: &Path) -> String {
    escaped_text(&path.display().to_string()).replace('\n', "\\n")
}

/// What a shell would run.
fn command_of(input: &Value) -> Option<&str> {
    input.get("command").and_then(Value::as_str)
}

fn input(input: &Value) -> String {
    serde_json::to_string_pretty(input).unwrap_or_else(|_| input.to_string())
}

/// Foreign text, wrapped behind a bar.
struct Marks {
    /// Lines of a diff have the colour of what they do.
    marks: bool,
    style: Style,
}

impl Marks {
    fn barred(&self, text: &str) -> String {
        let width = self.style.width.max(WIDTH_MIN) - BAR.len() - 1;
        let text = escaped_text(text);
        let lines: Vec<String> = text.trim_end_matches('\n').split('\n').flat_map(|line| self.wrapped(line, width)).collect();
        if self.style.whole || lines.len() <= HEAD_LINES + TAIL_LINES + 1 {
            return lines.concat();
        }
        let (head, tail) = (&lines[..HEAD_LINES], &lines[lines.len() - TAIL_LINES..]);
        let left_out = lines.len() - HEAD_LINES - TAIL_LINES;
        format!("{}  ... {left_out} lines are left out here; s shows all of them ...\n{}", head.concat(), tail.concat())
    }

    /// A line in pieces that fit, each behind a bar.
    fn wrapped(&self, line: &str, width: usize) -> Vec<String> {
        let colour = match line.chars().next() {
            Some('+') if self.marks && self.style.colours => GREEN,
            Some('-') if self.marks && self.style.colours => RED,
            _ => "",
        };
        let end = if colour.is_empty() { "" } else { PLAIN };
        let mut pieces = vec![String::new()];
        let mut used = 0;
        for character in line.chars() {
            // Tabs would move behind the bar unpredictably; wide characters are taken for two columns.
            let (text, columns) = match character {
                '\t' => ("    ".to_owned(), 4),
                _ if (character as u32) < FIRST_WIDE => (character.to_string(), 1),
                _ => (character.to_string(), 2),
            };
            if used + columns > width {
                pieces.push(String::new());
                used = 0;
            }
            if let Some(piece) = pieces.last_mut() {
                piece.push_str(&text);
            }
            used += columns;
        }
        pieces.into_iter().map(|piece| format!("{BAR}{colour}{piece}{end}\n")).collect()
    }
}
