//! The spellings of `tools` and `disallowedTools`: a line, a list, a map of booleans (fault H10). No I/O.

use serde_json::Value;

use super::profile::ToolEntry;
use crate::frontmatter::unquoted;

/// A tool list as it was meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolList {
    /// `*` stands in it.
    pub everything: bool,
    pub entries: Vec<ToolEntry>,
    /// Names that a map of booleans sets to false.
    pub refused: Vec<ToolEntry>,
    /// Entries that stand twice.
    pub repeated: Vec<String>,
    /// Parts that are no tool name, as written.
    pub unreadable: Vec<String>,
}

impl ToolList {
    pub fn is_empty(&self) -> bool {
        !self.everything && self.entries.is_empty() && self.refused.is_empty() && self.unreadable.is_empty()
    }
}

/// `text` is the value as written and counts where YAML could not read it.
pub fn read(value: Option<&Value>, text: &str) -> ToolList {
    let mut list = ToolList::default();
    match value {
        Some(Value::Null) => {}
        Some(Value::String(line)) => add_line(&mut list, line),
        Some(Value::Array(items)) => add_items(&mut list, items),
        Some(Value::Object(map)) if !map.keys().any(|key| key.contains('(')) => add_map(&mut list, map),
        // `Bash(git: *)` is a mapping to YAML and a tool to everybody else.
        Some(Value::Object(_)) | None => add_text(&mut list, text),
        Some(other @ (Value::Bool(_) | Value::Number(_))) => list.unreadable.push(other.to_string()),
    }
    list
}

fn add_line(list: &mut ToolList, line: &str) {
    for part in parts(line) {
        add(list, &part);
    }
}

/// A list item may hold a comma inside its parentheses, at which YAML's inline list breaks it.
fn add_items(list: &mut ToolList, items: &[Value]) {
    let mut open = String::new();
    for item in items {
        let Value::String(item) = item else {
            let written = match item {
                Value::Object(map) if map.len() == 1 => map.iter().map(|(key, value)| format!("{key}: {}", plain(value))).collect(),
                other => other.to_string(),
            };
            if written.contains('(') {
                add_line(list, &written)
            } else {
                list.unreadable.push(written)
            }
            continue;
        };
        let joined = if open.is_empty() { item.clone() } else { format!("{open}, {item}") };
        if is_open(&joined) {
            open = joined;
        } else {
            open.clear();
            add_line(list, &joined);
        }
    }
    if !open.is_empty() {
        list.unreadable.push(open);
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `Read: true` grants, `Write: false` takes away. What is neither is taken away, so that nothing is granted by mistake.
fn add_map(list: &mut ToolList, map: &serde_json::Map<String, Value>) {
    for (name, value) in map {
        let granted = match value {
            Value::Bool(granted) => Some(*granted),
            Value::String(word) => match word.to_lowercase().as_str() {
                "true" | "yes" | "on" | "allow" | "ask" => Some(true),
                "false" | "no" | "off" | "deny" => Some(false),
                _ => None,
            },
            Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
        };
        match granted {
            Some(true) => add_line(list, name),
            Some(false) => list.refused.push(entry(name)),
            None => {
                list.refused.push(entry(name));
                list.unreadable.push(format!("{name}: {}", plain(value)));
            }
        }
    }
}

/// A value that YAML could not read: lines of a block list, an inline list, or a line.
fn add_text(list: &mut ToolList, text: &str) {
    for line in text.lines() {
        let line = without_comment(line.trim());
        let item = line.strip_prefix("- ").unwrap_or(line).trim();
        let inline = item.strip_prefix('[').map_or(item, |rest| rest.strip_suffix(']').unwrap_or(rest));
        add_line(list, inline);
    }
}

fn without_comment(line: &str) -> &str {
    if line.starts_with('#') { "" } else { line.split(" #").next().unwrap_or(line).trim_end() }
}

fn add(list: &mut ToolList, part: &str) {
    let part = unquoted(part.trim());
    let part = part.trim();
    if part.is_empty() || part == "-" {
        return;
    }
    if part == "*" {
        list.everything = true;
        return;
    }
    let entry = entry(part);
    let named = !entry.name.is_empty() && entry.name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '*' | '/'));
    if !named || is_open(part) {
        list.unreadable.push(part.to_owned());
    } else if list.entries.contains(&entry) {
        list.repeated.push(part.to_owned());
    } else {
        list.entries.push(entry);
    }
}

fn entry(part: &str) -> ToolEntry {
    match part.split_once('(').and_then(|(name, rest)| rest.strip_suffix(')').map(|scope| (name, scope.trim()))) {
        // `Bash(*)` and `Bash()` are the whole tool.
        Some((name, "" | "*")) => ToolEntry { name: name.trim().to_owned(), scope: None },
        Some((name, scope)) => ToolEntry { name: name.trim().to_owned(), scope: Some(scope.to_owned()) },
        None => ToolEntry { name: part.to_owned(), scope: None },
    }
}

fn is_open(text: &str) -> bool {
    text.matches('(').count() > text.matches(')').count()
}

/// Cuts at commas and blanks that stand outside parentheses and quotes.
fn parts(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut part = String::new();
    let mut depth = 0usize;
    let mut quote: Option<char> = None;
    for c in line.chars() {
        match c {
            '"' | '\'' if depth > 0 || part.is_empty() || quote == Some(c) => {
                quote = match quote {
                    None => Some(c),
                    Some(open) if open == c => None,
                    still => still,
                };
                part.push(c);
            }
            '(' if quote.is_none() => {
                // `Bash (git:*)`: the parenthesis belongs to the name before it.
                if part.is_empty() && depth == 0 {
                    part = found.pop().unwrap_or_default();
                }
                depth += 1;
                part.push(c);
            }
            ')' if quote.is_none() => {
                depth = depth.saturating_sub(1);
                part.push(c);
            }
            c if depth == 0 && quote.is_none() && (c == ',' || c == ';' || c == '，' || c == '、' || c.is_whitespace()) => {
                if !part.is_empty() {
                    found.push(std::mem::take(&mut part));
                }
            }
            c => part.push(c),
        }
    }
    if !part.is_empty() {
        found.push(part);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(text: &str) -> ToolList {
        read(Some(&json!(text)), text)
    }

    fn names(list: &ToolList) -> Vec<String> {
        list.entries.iter().map(ToString::to_string).collect()
    }

    /// R74, fault H10
    #[test]
    fn lines_and_lists_mean_the_same() {
        for value in [
            json!("Read, Grep,Glob"),
            json!("Read Grep  Glob"),
            json!("Read, Grep, Glob,"),
            json!(["Read", "Grep", "Glob"]),
            json!("\"Read\", 'Grep' Glob"),
        ] {
            let list = read(Some(&value), "");
            assert_eq!(names(&list), ["Read", "Grep", "Glob"], "{value}");
            assert!(list.unreadable.is_empty() && list.repeated.is_empty());
        }
        assert_eq!(names(&read(None, "[Read, Grep, Glob")), ["Read", "Grep", "Glob"]);
        assert_eq!(names(&read(None, "- Read # a\n  - Grep\n- Glob")), ["Read", "Grep", "Glob"]);
    }

    /// R75, fault H10
    #[test]
    fn a_scope_keeps_its_commas_and_quotes() {
        assert_eq!(names(&line("Bash(git:*), Read")), ["Bash(git:*)", "Read"]);
        assert_eq!(names(&line("Bash(git commit -m \"a, b\"), Agent(p:n)")), ["Bash(git commit -m \"a, b\")", "Agent(p:n)"]);
        assert_eq!(names(&read(Some(&json!(["Bash(git commit -m \"a", "b\")", "Read"])), "")), ["Bash(git commit -m \"a, b\")", "Read"]);
        assert_eq!(names(&line("Bash (git:*) Read")), ["Bash(git:*)", "Read"]);
        assert_eq!(names(&read(None, "Read, Bash(git: *)")), ["Read", "Bash(git: *)"]);
        assert_eq!(line("Bash(*)").entries[0].scope, None);
        assert_eq!(line("Bash(git").unreadable, ["Bash(git"]);
    }

    /// R91, fault H10
    #[test]
    fn a_star_and_emptiness() {
        assert!(line("*").everything);
        assert!(read(Some(&json!(["*"])), "").everything);
        for empty in [json!(""), json!("  "), json!([]), json!(null), json!(",")] {
            assert!(read(Some(&empty), "").is_empty(), "{empty}");
        }
        assert_eq!(line("Read, Read").repeated, ["Read"]);
    }

    /// fault H10
    #[test]
    fn a_map_of_booleans_grants_and_takes_away() {
        let list = read(Some(&json!({"Read": true, "Bash": false, "Write": "deny", "Edit": 3})), "");
        assert_eq!(names(&list), ["Read"]);
        assert_eq!(list.refused.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["Bash", "Write", "Edit"]);
        assert_eq!(list.unreadable, ["Edit: 3"]);
    }
}
