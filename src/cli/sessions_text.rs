//! Stored conversations as text: a table, a conversation for a terminal, and Markdown. No I/O.

use chrono::{DateTime, Local};

use super::table::{Column, Cut, table};
use crate::models::{Block, Message};
use crate::store::SessionSummary;
use crate::text::fold::harmless_text;
use crate::text::units::one_line;

/// How much of a conversation is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Short,
    Full,
}

/// Lines and characters of a tool result that a short view shows.
const RESULT_LINES: usize = 10;
const RESULT_CHARACTERS: usize = 1000;
/// Characters of a call's input in a short view.
const INPUT_CHARACTERS: usize = 200;
const TIME: &str = "%Y-%m-%d %H:%M:%S";
const CONTEXT: &str = "context";

const COLUMNS: [Column; 7] = [
    Column::new("ID"),
    Column { left_out: Some(3), ..Column::new("USED") },
    Column { is_number: true, left_out: Some(1), ..Column::new("MESSAGES") },
    Column { is_number: true, left_out: Some(0), ..Column::new("CHILDREN") },
    Column { least: Some(12), left_out: Some(2), ..Column::new("MODEL") },
    // The end of a path tells more than its beginning.
    Column { least: Some(12), cut: Cut::Beginning, left_out: Some(4), ..Column::new("DIRECTORY") },
    Column { least: Some(16), ..Column::new("TITLE") },
];

/// `width`: that of the terminal, where it is read on one.
pub(super) fn list(sessions: &[SessionSummary], width: Option<usize>) -> String {
    let row = |session: &SessionSummary| {
        let row = &session.row;
        vec![
            row.id.to_string(),
            row.updated_at.format(TIME).to_string(),
            session.messages.to_string(),
            session.children.to_string(),
            one_line(&row.model, 30),
            one_line(&row.cwd.display().to_string(), 200),
            title(session),
        ]
    };
    table(&COLUMNS, &sessions.iter().map(row).collect::<Vec<_>>(), width)
}

fn title(session: &SessionSummary) -> String {
    if session.row.title.is_empty() { "(without title)".to_owned() } else { one_line(&session.row.title, 80) }
}

pub(super) fn head(session: &SessionSummary, children: &[SessionSummary]) -> String {
    let row = &session.row;
    let mut lines = vec![
        ("session", row.id.to_string()),
        ("title", title(session)),
        ("directory", one_line(&row.cwd.display().to_string(), 4096)),
        ("model", one_line(&row.model, 200)),
        ("mode", row.mode.clone()),
        ("created", row.created_at.format(TIME).to_string()),
        ("last used", row.updated_at.format(TIME).to_string()),
        ("messages", session.messages.to_string()),
    ];
    lines.extend(row.parent.as_ref().map(|parent| ("child of", parent.to_string())));
    lines.extend(children.iter().rev().map(|child| ("child", format!("{}  {}", child.row.id, title(child)))));
    lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}

/// One message for reading in a terminal: nothing in it can move the cursor or change colours.
pub(super) fn message(source: &str, at: DateTime<Local>, message: Option<&Message>, detail: Detail) -> String {
    let heading = format!("\n--- {} {}\n", speaker(source), at.format(TIME));
    let Some(message) = message else { return format!("{heading}(this message cannot be read)\n") };
    if source == CONTEXT && detail == Detail::Short {
        return format!("{heading}{}\n", one_line(message.text().lines().next().unwrap_or_default(), 200));
    }
    let mut text = heading;
    for block in &message.blocks {
        let part = match block {
            Block::Text { text } => harmless_text(text),
            Block::Thinking { .. } if detail == Detail::Short => continue,
            Block::Thinking { text, .. } => format!("(thinking) {}", harmless_text(text)),
            Block::ToolUse { name, input, .. } => {
                let input = input.to_string();
                let shown = if detail == Detail::Short { one_line(&input, INPUT_CHARACTERS) } else { harmless_text(&input) };
                format!("-> {} {shown}", one_line(name, 100))
            }
            Block::ToolResult { text, is_error, .. } => {
                let shown = harmless_text(text);
                let shown = if detail == Detail::Short { shortened(&shown) } else { shown };
                format!("{} {shown}", if *is_error { "<- failed:" } else { "<-" })
            }
            Block::Other { .. } => continue,
        };
        text.push_str(part.trim_end());
        text.push('\n');
    }
    text
}

fn speaker(source: &str) -> String {
    source.replace('_', " ")
}

fn shortened(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let head: String = lines.iter().take(RESULT_LINES).copied().collect::<Vec<_>>().join("\n").chars().take(RESULT_CHARACTERS).collect();
    let left = text.chars().count().saturating_sub(head.chars().count());
    if left <= 1 { head } else { format!("{head}\n   ... {left} more characters; --full shows all") }
}

/// The heading of a session in an export; children stand one level deeper.
pub(super) fn heading(session: &SessionSummary, depth: usize) -> String {
    let row = &session.row;
    let marks = "#".repeat((depth + 1).min(5));
    let mut text = format!("{marks} {}\n\n- session: `{}`\n", title(session), row.id);
    text.extend(row.parent.iter().map(|parent| format!("- child of: `{parent}`\n")));
    text.push_str(&format!(
        "- directory: {}\n- model: {}\n- mode: {}\n- created: {}\n- last used: {}\n\n",
        one_line(&row.cwd.display().to_string(), 4096),
        one_line(&row.model, 200),
        row.mode,
        row.created_at.to_rfc3339(),
        row.updated_at.to_rfc3339()
    ));
    text
}

/// One message as Markdown, whole.
pub(super) fn markdown(source: &str, at: DateTime<Local>, message: Option<&Message>) -> String {
    let mut text = format!("**{}** · {}\n\n", speaker(source), at.to_rfc3339());
    let Some(message) = message else { return text + "(this message cannot be read)\n\n" };
    for block in &message.blocks {
        let part = match block {
            Block::Text { text } if source == CONTEXT => fenced("text", text),
            Block::Text { text } => text.trim_end().to_owned(),
            Block::Thinking { text, .. } => format!("thinking:\n\n{}", fenced("text", text)),
            Block::ToolUse { id, name, input } => {
                let input = serde_json::to_string_pretty(input).unwrap_or_else(|_| input.to_string());
                format!("call `{}` (`{}`)\n\n{}", one_line(name, 200), one_line(id, 200), fenced("json", &input))
            }
            Block::ToolResult { tool_use_id, text, is_error } => {
                let what = if *is_error { "failed result" } else { "result" };
                format!("{what} of `{}`\n\n{}", one_line(tool_use_id, 200), fenced("text", text))
            }
            Block::Other { .. } => continue,
        };
        text.push_str(&part);
        text.push_str("\n\n");
    }
    text
}

/// A fence longer than any run of backticks in the text, so that nothing in it can end the block.
fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}", text.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_what_it_holds() {
        assert_eq!(fenced("text", "a"), "```text\na\n```");
        assert_eq!(fenced("text", "````\nx\n````\n"), "`````text\n````\nx\n````\n`````");
    }

    #[test]
    fn a_long_result_says_how_much_is_left_out() {
        assert_eq!(shortened("a\nb\n"), "a\nb");
        let text = shortened(&"x\n".repeat(30));
        assert!(text.ends_with("   ... 41 more characters; --full shows all"), "{text}");
    }
}
