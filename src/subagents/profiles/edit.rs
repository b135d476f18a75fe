//! Writes profiles: the same Markdown that is read. An edit touches the lines of its own fields only, so that unknown
//! fields, comments and the body stay byte for byte (R72).

use std::path::{Path, PathBuf};

use super::parse::{self, Parsed};
use super::places;
use super::profile::{Field, Level, Origin};
use crate::files::{self, FileError, Sync};
use crate::frontmatter::{self, Code, Diagnostic, RawField, Severity, Vocabulary};

/// One change of a field. `None` takes the field away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub field: Field,
    pub value: Option<String>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error("`{text}` is not FIELD=VALUE; known fields: {known}", known = Field::known())]
    NotAChange { text: String },
    #[error("the field `{key}` is unknown; known fields: {known}", known = Field::known())]
    UnknownField { key: String },
    #[error("the field `{field}` is required and cannot be taken away")]
    Required { field: Field },
    #[error("the name {name:?} {reason}")]
    Name { name: String, reason: &'static str },
    #[error("{path} exists already", path = path.display())]
    Exists { path: PathBuf },
    #[error("{0}")]
    Unreadable(Box<Diagnostic>),
    #[error("the frontmatter of {path} is not valid YAML, so it is not changed automatically", path = path.display())]
    NotStrict { path: PathBuf },
    #[error("the profile would not be valid: {0}")]
    Invalid(Box<Diagnostic>),
    #[error(transparent)]
    File(#[from] FileError),
}

impl Change {
    /// From `FIELD=VALUE`; an empty value takes the field away.
    pub fn parse(text: &str) -> Result<Change, EditError> {
        let (key, value) = text.split_once('=').ok_or_else(|| EditError::NotAChange { text: text.to_owned() })?;
        let field = Field::from_word(key.trim()).ok_or_else(|| EditError::UnknownField { key: key.trim().to_owned() })?;
        let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        if value.is_none() && matches!(field, Field::Name | Field::Description) {
            return Err(EditError::Required { field });
        }
        Ok(Change { field, value })
    }
}

/// Where a new profile of this name is put: a plain file name inside `folder`, whatever the name holds.
pub fn file_for(folder: &Path, name: &str) -> Result<PathBuf, EditError> {
    if let Some(reason) = parse::name_fault(name) {
        return Err(EditError::Name { name: name.to_owned(), reason });
    }
    let stem: String = name.chars().map(|c| if c.is_whitespace() { '-' } else { c }).collect();
    Ok(folder.join(format!("{stem}.md")))
}

/// Writes a new file and gives its path with what reading it back tells. An existing file is never replaced.
pub fn create(folder: &Path, level: Level, name: &str, changes: &[Change], body: &str) -> Result<(PathBuf, Parsed), EditError> {
    use std::io::Write;
    let path = file_for(folder, name)?;
    let mut text = format!("---\n{}", lines_of(Field::Name, name));
    for change in changes {
        if let (Some(value), false) = (&change.value, change.field == Field::Name) {
            text.push_str(&lines_of(change.field, value));
        }
    }
    text.push_str(&format!("---\n\n{}\n", body.trim()));
    let parsed = checked(&text, &path, level)?;
    files::create_private_folder(folder)?;
    let mut file = match files::create_new(&path) {
        Ok(file) => file,
        Err(error) if error.source.kind() == std::io::ErrorKind::AlreadyExists => return Err(EditError::Exists { path }),
        Err(error) => return Err(error.into()),
    };
    if let Err(source) = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()) {
        // Half a profile is worse than none. It was made here a moment ago.
        let _ = std::fs::remove_file(&path);
        return Err(FileError { action: "cannot write", path, source }.into());
    }
    Ok((path, parsed))
}

/// Changes fields and, when given, the body of a file; replaced as a whole.
pub fn edit(path: &Path, level: Level, changes: &[Change], body: Option<&str>) -> Result<Parsed, EditError> {
    let text = places::read(path).map_err(|fault| EditError::Unreadable(Box::new(fault)))?;
    let new = changed(&text, changes, body).ok_or_else(|| EditError::NotStrict { path: path.to_owned() })?;
    let parsed = checked(&new, path, level)?;
    // A link stays a link: its target is what is replaced.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    files::replace(&target, new.as_bytes(), Sync::Disk)?;
    Ok(parsed)
}

/// Removes a profile's file.
pub fn remove(path: &Path) -> Result<(), EditError> {
    std::fs::remove_file(path).map_err(|source| FileError { action: "cannot remove", path: path.to_owned(), source }.into())
}

/// The text with the fields changed; `None` when it cannot be done without guessing.
fn changed(text: &str, changes: &[Change], body: Option<&str>) -> Option<String> {
    let document = frontmatter::split::<Field>(text).ok()?;
    if !document.notes.is_empty() {
        return None;
    }
    // Line ends of the file are kept: they belong to whoever wrote it.
    let ending = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut lines: Vec<String> = text.split('\n').map(|line| line.trim_end_matches('\r').to_owned()).collect();
    if text.contains('\r') && ending == "\n" {
        return None;
    }
    let opening = lines.iter().position(|line| line.trim_start_matches('\u{feff}').trim().starts_with("---"))?;
    let mut closing = opening + 1 + lines.iter().skip(opening + 1).position(|line| line.trim_end().starts_with("---"))?;
    for change in changes {
        let known = |raw: &&RawField| Field::from_any_spelling(&raw.key) == Some(change.field);
        let replaced = change.value.as_ref().map(|value| lines_of(change.field, value)).unwrap_or_default();
        let new: Vec<String> = replaced.lines().map(str::to_owned).collect();
        let (start, end) = match document.fields.iter().find(known) {
            Some(raw) => span(&lines, closing, &raw.key)?,
            None => (closing, closing),
        };
        closing = closing + new.len() - (end - start);
        lines.splice(start..end, new);
    }
    if let Some(body) = body {
        lines.truncate(closing + 1);
        lines.push(String::new());
        lines.extend(body.trim().lines().map(str::to_owned));
        lines.push(String::new());
    }
    Some(lines.join(ending))
}

/// The lines of a field: its own and the indented or listed ones below; a comment line below it is not its own.
fn span(lines: &[String], closing: usize, key: &str) -> Option<(usize, usize)> {
    let is_key = |line: &String| {
        line.strip_prefix(key)
            .or_else(|| line.trim_start_matches(['"', '\'']).strip_prefix(key))
            .is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':'))
    };
    let start = lines.iter().take(closing).position(is_key)?;
    let mut end = start + 1;
    let mut own = end;
    while end < closing {
        let line = &lines[end];
        let continues = line.starts_with([' ', '\t']) || line.starts_with("- ") || line == "-";
        if !continues && !line.trim().is_empty() {
            break;
        }
        end += 1;
        if continues {
            own = end;
        }
    }
    Some((start, own))
}

/// A field as YAML that any reader takes for the same text.
fn lines_of(field: Field, value: &str) -> String {
    if field.is_prose() && value.contains('\n') {
        let block: String = value.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") }).collect();
        return format!("{field}: |\n{block}");
    }
    let is_list = matches!(field, Field::McpServers) && !value.starts_with('[');
    let value = if is_list { format!("[{value}]") } else { value.to_owned() };
    let structured = value.starts_with(['[', '{'])
        && matches!(field, Field::McpServers | Field::Hooks | Field::Tools | Field::DisallowedTools | Field::Skills);
    if structured || reads_plainly(&value) {
        return format!("{field}: {value}\n");
    }
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{field}: \"{escaped}\"\n")
}

/// Whether a value can stand without quotes.
fn reads_plainly(value: &str) -> bool {
    let safe_start = value.starts_with(|c: char| c.is_alphanumeric()) || value == "*";
    let ambiguous =
        value.contains(": ") || value.contains(" #") || value.ends_with(':') || value.contains(['\n', '\t', '\r']) || value.contains("\\n");
    safe_start && !ambiguous
}

/// A profile that would not load, or would lose a bound, is not written.
fn checked(text: &str, path: &Path, level: Level) -> Result<Parsed, EditError> {
    let origin = Origin { level, path: Some(path.to_owned()), plugin: None };
    let parsed = parse::parse(text, origin, false);
    match parsed.diagnostics.iter().find(|diagnostic| diagnostic.severity == Severity::Error) {
        Some(fault) => Err(EditError::Invalid(Box::new(fault.clone()))),
        None if parsed.profile.is_none() => {
            let fault = Diagnostic::new(Code::MissingFrontmatter, Severity::Error, "the text gives no profile", "check the frontmatter");
            Err(EditError::Invalid(Box::new(fault)))
        }
        None => Ok(parsed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Change {
        Change::parse(text).unwrap()
    }

    /// R72
    #[test]
    fn an_edit_keeps_every_other_byte() {
        let text = "\u{feff}---\n# who\nname: a\n# why\nx-team:   core # kept\ntools:\n  - Read\n  - Bash(git:*)\n# below\ncolor: red\ndescription: \"b\"\n---\n\n<!-- note -->\nBody  \n\n";
        let edited = changed(text, &[change("tools=Read, Grep"), change("color="), change("maxTurns=4")], None).unwrap();
        let expected = "\u{feff}---\n# who\nname: a\n# why\nx-team:   core # kept\ntools: Read, Grep\n# below\ndescription: \"b\"\nmaxTurns: 4\n---\n\n<!-- note -->\nBody  \n\n";
        assert_eq!(edited, expected);
        let windows = text.replace('\n', "\r\n");
        let edited = changed(&windows, &[change("color=blue")], None).unwrap();
        assert_eq!(edited, windows.replace("color: red", "color: blue"));
    }

    /// R72
    #[test]
    fn a_new_body_replaces_the_body_only() {
        let edited = changed("---\nname: a\ndescription: b\nother: 1\n---\nOld\n", &[], Some("New\nbody\n")).unwrap();
        assert_eq!(edited, "---\nname: a\ndescription: b\nother: 1\n---\n\nNew\nbody\n");
    }

    #[test]
    fn what_was_read_leniently_is_not_rewritten() {
        assert_eq!(changed("---\nname: a\ndescription: b: c\n---\nx", &[change("color=red")], None), None);
    }

    /// R72
    #[test]
    fn what_is_written_is_read_back_the_same() {
        let folder = tempfile::tempdir().unwrap();
        for (at, description) in
            ["Plain words", "With: colon # hash", "two\nlines\n\nand \"quotes\"", "- dash 'x'", "back\\slash: \"y\"", "yes"]
                .iter()
                .enumerate()
        {
            let name = format!("agent {at}");
            let changes = [
                Change { field: Field::Description, value: Some((*description).to_owned()) },
                change("tools=Bash(git:*), Read"),
                change("mcpServers=docs, web"),
            ];
            let (path, parsed) = create(folder.path(), Level::User, &name, &changes, "Body").unwrap();
            let profile = parsed.profile.unwrap();
            assert_eq!((profile.description.as_str(), profile.name.as_str()), (*description, name.as_str()));
            assert_eq!(profile.mcp_servers.map(|servers| servers.len()), Some(2));
            assert!(matches!(create(folder.path(), Level::User, &name, &changes, "x"), Err(EditError::Exists { .. })));
            assert!(path.ends_with(format!("agent-{at}.md")));
        }
    }

    #[test]
    fn a_change_that_would_break_the_profile_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let changes = [change("description=d"), change("maxTurns=0")];
        assert!(matches!(create(folder.path(), Level::User, "a", &changes, "x"), Err(EditError::Invalid(_))));
        assert!(matches!(create(folder.path(), Level::User, "../a", &changes, "x"), Err(EditError::Name { .. })));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        assert!(matches!(Change::parse("color"), Err(EditError::NotAChange { .. })));
        assert!(matches!(Change::parse("colr=red"), Err(EditError::UnknownField { .. })));
        assert!(matches!(Change::parse("name="), Err(EditError::Required { .. })));
    }
}
