//! Markdown to raw fields and body. Strict YAML first; when that fails, a second pass in which a field starts only at a
//! known key in column 0, so that prose with colons, examples, tabs and stray quotes is read as it was meant.
//! Lenient and loud: whatever is read otherwise than strict YAML would, is noted with its line.

use std::fmt;

use serde_json::{Map, Value};

use super::diagnostic::{Code, Diagnostic, Severity};

/// A file taken apart.
#[derive(Debug)]
pub struct Document {
    pub fields: Vec<RawField>,
    pub body: String,
    /// What had to be read leniently; lines are set, paths are not.
    pub notes: Vec<Diagnostic>,
}

/// One key with its value.
#[derive(Clone, Debug)]
pub struct RawField {
    /// As written.
    pub key: String,
    pub line: u32,
    /// The value as YAML sees it; `None` when only the second pass could read it.
    pub value: Option<Value>,
    /// The value as written, comments and quotes included.
    pub text: String,
}

/// A text without fields: told as a diagnostic.
#[derive(Debug)]
pub struct NoFrontmatter(pub Diagnostic);

/// The fields that a kind of file knows.
pub trait Vocabulary: Copy + fmt::Display + 'static {
    const CODES: Codes;

    /// The field of exactly this key.
    fn exact(key: &str) -> Option<Self>;

    /// The field a key means, in whatever spelling.
    fn from_any_spelling(key: &str) -> Option<Self>;

    /// Holds free text, which may run over many lines.
    fn is_prose(self) -> bool;
}

/// How the notes of a kind of file are called.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    pub missing: Code,
    pub lenient: Code,
    pub unclosed: Code,
    pub foreign: Code,
}

/// Keys that belong to other programs. They have no effect here and end the field before them.
const FOREIGN_KEYS: &[&str] =
    &["version", "author", "license", "tags", "category", "metadata", "emoji", "vibe", "mode", "temperature", "triggers"];

/// `text` may start with a byte-order mark and have line ends of any kind.
pub fn split<F: Vocabulary>(text: &str) -> Result<Document, NoFrontmatter> {
    let text = normalise(text);
    let lines: Vec<&str> = text.lines().collect();
    let Some(opening) = lines.iter().position(|line| !line.trim().is_empty()) else {
        return Err(missing::<F>(Severity::Info, 1, "the file is empty"));
    };
    if !is_fence(lines[opening].trim()) {
        return Err(without_fence::<F>(&lines, opening));
    }
    let mut notes = Vec::new();
    let first = opening + 1;
    let line_like = |is_end: &dyn Fn(&str) -> bool| lines.iter().skip(first).position(|line| is_end(line.trim_end())).map(|at| first + at);
    // `...` ends a YAML document too, but may also stand in prose above the fence.
    let closing = line_like(&is_fence).or_else(|| line_like(&|line| line == "..."));
    let (end, body_start) = match closing {
        Some(closing) => (closing, closing + 1),
        None => {
            let end = end_without_fence::<F>(&lines, first);
            notes.push(unclosed::<F>(opening));
            (end, end)
        }
    };
    let block = Block { lines: dedent(&lines[first..end]), first_line: first };
    let body = |from: usize| lines[from.min(lines.len())..].join("\n").trim().to_owned();
    match strict::<F>(&block) {
        Ok(fields) => Ok(Document { fields, body: body(body_start), notes }),
        Err(reason) => {
            let read = lenient::<F>(&block);
            notes.push(reason);
            notes.extend(read.notes);
            let body_start = match read.body_from {
                // The closing fence was missing and a rule in the body was taken for it.
                Some(offset) => {
                    notes.push(unclosed::<F>(opening));
                    first + offset
                }
                None => body_start,
            };
            Ok(Document { fields: read.fields, body: body(body_start), notes })
        }
    }
}

/// One kind of line end, no byte-order mark.
fn normalise(text: &str) -> String {
    text.trim_start_matches('\u{feff}').replace("\r\n", "\n").replace('\r', "\n")
}

fn is_fence(line: &str) -> bool {
    line.len() >= 3 && line.bytes().all(|b| b == b'-')
}

fn missing<F: Vocabulary>(severity: Severity, line: usize, reason: &str) -> NoFrontmatter {
    let remedy = "begin the file with a line `---`, then `name:` and `description:`, then a line `---`";
    NoFrontmatter(Diagnostic::new(F::CODES.missing, severity, reason, remedy).at(None, line_number(line)))
}

/// A text without an opening fence: a README is only mentioned; fields without a fence were meant to be a profile.
fn without_fence<F: Vocabulary>(lines: &[&str], first: usize) -> NoFrontmatter {
    const LOOKED_AT: usize = 40;
    let named = lines.iter().skip(first).take(LOOKED_AT).position(|line| key_of::<F>(line, true).is_some_and(|(key, _)| key == "name"));
    match named {
        Some(offset) => {
            let reason = "the file has a `name:` line but no frontmatter: the first line that is not blank is not `---`";
            missing::<F>(Severity::Error, first + offset + 1, reason)
        }
        None => missing::<F>(Severity::Info, first + 1, "the file has no frontmatter"),
    }
}

fn unclosed<F: Vocabulary>(opening: usize) -> Diagnostic {
    let reason = "the frontmatter that begins here is not closed; its end was guessed";
    Diagnostic::new(F::CODES.unclosed, Severity::Warning, reason, "write a line `---` after the last field")
        .at(None, line_number(opening + 1))
}

fn line_number(line: usize) -> Option<u32> {
    u32::try_from(line).ok()
}

/// Without a closing fence the fields end at the first blank line that no field follows.
fn end_without_fence<F: Vocabulary>(lines: &[&str], first: usize) -> usize {
    let continues = |line: &str| key_of::<F>(line, true).is_some() || line.starts_with([' ', '\t']) || line.starts_with("- ");
    let mut at = first;
    while at < lines.len() {
        if lines[at].trim().is_empty() && !lines[at..].iter().find(|line| !line.trim().is_empty()).is_some_and(|line| continues(line)) {
            return at;
        }
        if lines[at].starts_with("# ") && at > first {
            return at;
        }
        at += 1;
    }
    lines.len()
}

/// The lines between the fences.
struct Block<'a> {
    lines: Vec<&'a str>,
    /// Lines of the file before the first of them.
    first_line: usize,
}

impl Block<'_> {
    fn line(&self, index: usize) -> u32 {
        u32::try_from(self.first_line + index + 1).unwrap_or(u32::MAX)
    }
}

/// Takes away blanks that stand before every line.
fn dedent<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let indent = |line: &&str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let common = lines.iter().filter(|line| !line.trim().is_empty()).map(indent).min().unwrap_or(0);
    lines.iter().map(|line| line.get(common..).unwrap_or("")).collect()
}

/// Bounds for a text written by anyone: no alias bombs, no deep nesting.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_depth: 40,
            max_nodes: 20_000,
            max_events: 100_000,
            max_aliases: 50,
            max_anchors: 50,
            max_documents: 1,
        },
    }
}

fn yaml(text: &str) -> Result<Map<String, Value>, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options::<Option<Map<String, Value>>>(text, options()).map(Option::unwrap_or_default)
}

fn strict<F: Vocabulary>(block: &Block) -> Result<Vec<RawField>, Diagnostic> {
    let text: String = block.lines.iter().map(|line| star_quoted(line) + "\n").collect();
    let map = yaml(&text).map_err(|error| lenient_note::<F>(block, &error))?;
    let starts = key_lines(block, &map);
    let fields = map.into_iter().map(|(key, value)| {
        let at = starts.iter().position(|(known, _)| *known == key);
        let index = at.map_or(0, |at| starts[at].1);
        let end = at.and_then(|at| starts.get(at + 1)).map_or(block.lines.len(), |(_, next)| *next);
        let text = if at.is_some() { text_after_key(&block.lines[index..end]) } else { value.to_string() };
        RawField { key, line: block.line(index), value: Some(value), text }
    });
    Ok(fields.collect())
}

/// `tools: *` is an alias without a name in YAML; the star is documented, so it is read as text.
fn star_quoted(line: &str) -> String {
    let code = line.split(" #").next().unwrap_or(line).trim_end();
    match code.strip_suffix('*').map(str::trim_end) {
        Some(before) if before.ends_with(':') || before.trim_start() == "-" => format!("{before} \"*\""),
        _ => line.to_owned(),
    }
}

/// Where each top-level key stands, in order of lines.
fn key_lines(block: &Block, map: &Map<String, Value>) -> Vec<(String, usize)> {
    let mut starts: Vec<(String, usize)> = Vec::new();
    for (index, line) in block.lines.iter().enumerate() {
        if line.starts_with([' ', '\t', '#', '-']) {
            continue;
        }
        let Some((key, _)) = line.split_once(':') else { continue };
        let key = key.trim().trim_matches(['"', '\'']);
        if map.contains_key(key) && !starts.iter().any(|(known, _)| known == key) {
            starts.push((key.to_owned(), index));
        }
    }
    starts
}

fn text_after_key(lines: &[&str]) -> String {
    let mut text = lines.first().and_then(|line| line.split_once(':')).map(|(_, rest)| rest.trim().to_owned()).unwrap_or_default();
    for line in lines.iter().skip(1) {
        text.push('\n');
        text.push_str(line);
    }
    text.trim_end().to_owned()
}

fn lenient_note<F: Vocabulary>(block: &Block, error: &serde_saphyr::Error) -> Diagnostic {
    const REASON_MAX: usize = 200;
    let index = error.location().and_then(|location| usize::try_from(location.line()).ok()).unwrap_or(1).max(1) - 1;
    let message: String = error.to_string().lines().next().unwrap_or("").chars().take(REASON_MAX).collect();
    let reason = format!("the frontmatter is not valid YAML ({message}); its fields were read one by one");
    Diagnostic::new(F::CODES.lenient, Severity::Warning, reason, "put values with `: `, `#` or quotes in them into quotes, or after `|`")
        .at(None, Some(block.line(index.min(block.lines.len()))))
}

/// What the second pass found.
struct Lenient {
    fields: Vec<RawField>,
    notes: Vec<Diagnostic>,
    /// The line, counted in the block, at which prose after the last field shows that the body begins there.
    body_from: Option<usize>,
}

/// One key of the second pass: its spelling and the lines it covers.
struct Segment<'a, F> {
    key: String,
    field: Option<F>,
    start: usize,
    lines: Vec<&'a str>,
}

fn lenient<F: Vocabulary>(block: &Block) -> Lenient {
    let mut segments: Vec<Segment<F>> = Vec::new();
    let mut notes = Vec::new();
    for (index, line) in block.lines.iter().enumerate() {
        let in_prose = segments.last().is_some_and(|segment| segment.field.is_some_and(F::is_prose));
        match key_of::<F>(line, in_prose) {
            Some((key, field)) => segments.push(Segment { key, field, start: index, lines: vec![line] }),
            None => match segments.last_mut() {
                Some(segment) => {
                    notes.extend(looks_like_field::<F>(line).filter(|_| in_prose).map(|field| taken_as_prose(block, index, field)));
                    segment.lines.push(line);
                }
                None if line.trim().is_empty() || line.starts_with('#') => {}
                None => notes.push(ignored_line::<F>(block, index)),
            },
        }
    }
    let body_from = segments.last_mut().and_then(cut_body_off);
    let fields = segments
        .into_iter()
        .map(|segment| {
            let value = segment_value(&segment);
            RawField { line: block.line(segment.start), text: segment_text(&segment), value, key: segment.key }
        })
        .collect();
    Lenient { fields, notes, body_from }
}

fn ignored_line<F: Vocabulary>(block: &Block, index: usize) -> Diagnostic {
    Diagnostic::new(
        F::CODES.lenient,
        Severity::Warning,
        "text before the first field was left out",
        "remove the line, or put it below the frontmatter",
    )
    .at(None, Some(block.line(index)))
}

/// A line of prose that could have been meant as a field: indented, or with a capital letter.
fn looks_like_field<F: Vocabulary>(line: &str) -> Option<F> {
    let (key, rest) = line.trim_start().split_once(':')?;
    if rest.starts_with([' ', '\t']) { F::from_any_spelling(key.trim_end()) } else { None }
}

fn taken_as_prose<F: Vocabulary>(block: &Block, index: usize, field: F) -> Diagnostic {
    let reason = format!("the line looks like the field `{field}` but was read as part of the text above it");
    let remedy = format!("write `{field}:` at the start of the line if the field is meant, or put the text into quotes");
    Diagnostic::new(F::CODES.foreign, Severity::Warning, reason, remedy).at(None, Some(block.line(index)))
}

/// The key a line starts with, and the field it means. In prose only known keys start a field, and only in a
/// spelling that prose would hardly have.
fn key_of<F: Vocabulary>(line: &str, in_prose: bool) -> Option<(String, Option<F>)> {
    let (raw, rest, colon_is_wide) = match (line.split_once(':'), line.split_once('：')) {
        (Some((key, rest)), Some((wide, _))) if key.len() < wide.len() => (key, rest, false),
        (_, Some((key, rest))) => (key, rest, true),
        (Some((key, rest)), None) => (key, rest, false),
        (None, None) => return None,
    };
    let key = raw.trim_end().trim_matches(['"', '\'']);
    let is_word =
        key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if !is_word || line.starts_with([' ', '\t']) {
        return None;
    }
    let exact = F::exact(key);
    let separated = rest.is_empty() || rest.starts_with([' ', '\t']);
    if let Some(field) = exact {
        return Some((key.to_owned(), Some(field)));
    }
    if !separated || colon_is_wide {
        return None;
    }
    let any = F::from_any_spelling(key);
    // `Description:` or `Model:` in an example is prose; `max_turns:` and `allowed-tools:` are not.
    let looks_like_prose = key.starts_with(|c: char| c.is_ascii_uppercase()) && key.chars().skip(1).all(|c| c.is_ascii_lowercase());
    match any {
        Some(field) if !(in_prose && looks_like_prose) => Some((key.to_owned(), Some(field))),
        _ if FOREIGN_KEYS.contains(&key) || !in_prose => Some((key.to_owned(), None)),
        _ => None,
    }
}

/// A last field that holds one value and is followed by a blank line and prose: the closing fence was missing.
fn cut_body_off<F: Vocabulary>(last: &mut Segment<F>) -> Option<usize> {
    if last.field.is_some_and(F::is_prose) {
        return None;
    }
    let blank = last.lines.iter().position(|line| line.trim().is_empty())?;
    let follows = last.lines[blank..].iter().find(|line| !line.trim().is_empty())?;
    if follows.starts_with([' ', '\t']) || follows.starts_with("- ") {
        return None;
    }
    last.lines.truncate(blank);
    Some(last.start + blank)
}

/// The field read as YAML by itself: one broken field does not take the others with it.
fn segment_value<F>(segment: &Segment<F>) -> Option<Value> {
    let text: String = segment.lines.iter().map(|line| star_quoted(line) + "\n").collect();
    let map = yaml(&text).ok()?;
    let mut values = map.into_iter();
    match (values.next(), values.next()) {
        (Some((key, value)), None) if key == segment.key => Some(value),
        _ => None,
    }
}

/// The text of a value that YAML cannot read: outer quotes and block marks taken away, lines kept.
fn segment_text<F>(segment: &Segment<F>) -> String {
    let (first, rest) = (segment.lines.first().copied().unwrap_or(""), segment.lines.get(1..).unwrap_or(&[]));
    let first = first.split_once([':', '：']).map_or("", |(_, value)| value.trim());
    let rest = dedent(rest).join("\n");
    let is_block = matches!(first, "|" | ">" | "|-" | ">-" | "|+" | ">+");
    let text = if is_block { rest } else { format!("{first}\n{rest}") };
    unquoted(text.trim())
}

/// Without a pair of outer quotes, their escapes undone. A single stray quote stays as written.
pub fn unquoted(text: &str) -> String {
    let inner = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    if let Some(inner) = inner('"') {
        return inner.replace("\\\"", "\"").replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\");
    }
    match inner('\'') {
        Some(inner) => inner.replace("''", "'"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Word(&'static str);

    impl fmt::Display for Word {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Vocabulary for Word {
        const CODES: Codes = Codes {
            missing: Code::MissingFrontmatter,
            lenient: Code::LenientYaml,
            unclosed: Code::FenceNotClosed,
            foreign: Code::ForeignSpelling,
        };

        fn exact(key: &str) -> Option<Self> {
            ["name", "description", "tools", "model", "color"].into_iter().find(|word| *word == key).map(Self)
        }

        fn from_any_spelling(key: &str) -> Option<Self> {
            Self::exact(&key.to_lowercase())
        }

        fn is_prose(self) -> bool {
            self.0 == "description"
        }
    }

    fn split(text: &str) -> Result<Document, NoFrontmatter> {
        super::split::<Word>(text)
    }

    fn field<'a>(document: &'a Document, key: &str) -> &'a RawField {
        document.fields.iter().find(|field| field.key == key).unwrap_or_else(|| panic!("no {key} in {document:?}"))
    }

    fn text_of(document: &Document, key: &str) -> String {
        let field = field(document, key);
        field.value.as_ref().and_then(Value::as_str).map_or_else(|| field.text.clone(), str::to_owned)
    }

    /// fault H4, fault H6
    #[test]
    fn line_ends_and_marks_make_no_difference() {
        let unix = "---\nname: a\ndescription: |\n  one\n  two\n---\nBody\nmore\n";
        let forms = [
            unix.to_owned(),
            unix.replace('\n', "\r\n"),
            unix.replace('\n', "\r"),
            unix.replacen('\n', "\r\n", 3),
            format!("\u{feff}{unix}"),
            format!("\n \t\n{unix}"),
            unix.replace("---", "-----  "),
        ];
        for form in forms {
            let document = split(&form).unwrap();
            assert!(document.notes.is_empty(), "{form:?}: {:?}", document.notes);
            assert_eq!(text_of(&document, "description"), "one\ntwo\n");
            assert_eq!(document.body, "Body\nmore");
            assert!(!format!("{document:?}").contains("\\r"));
        }
    }

    /// fault H1
    #[test]
    fn prose_with_colons_is_kept_whole() {
        let document = split("---\nname: a\ndescription: Reviews code. Triggers: bugs, style\nmodel: inherit\n---\nBody").unwrap();
        assert_eq!(text_of(&document, "description"), "Reviews code. Triggers: bugs, style");
        assert_eq!(text_of(&document, "model"), "inherit");
        assert_eq!(document.notes.len(), 1);
        assert_eq!(document.notes[0].line, Some(3));
    }

    #[test]
    fn examples_over_many_lines_tabs_and_stray_quotes_are_kept() {
        let text = "---\nname: a\ndescription: Use this. Examples: <example>\nContext: a change.\nuser: \"do it\"\nassistant: \"I'll: go\"\n</example>\n\n\tAnd 'more\ntools: Read, Grep\n---\nBody";
        let document = split(text).unwrap();
        let description = text_of(&document, "description");
        assert!(description.starts_with("Use this. Examples: <example>\nContext: a change.\n"), "{description}");
        assert!(description.ends_with("And 'more"), "{description}");
        assert_eq!(text_of(&document, "tools"), "Read, Grep");
    }

    #[test]
    fn a_missing_closing_fence_is_guessed() {
        let document = split("---\nname: a\ndescription: b\n\nYou are a.\nMore.\n").unwrap();
        assert_eq!((text_of(&document, "description").as_str(), document.body.as_str()), ("b", "You are a.\nMore."));
        assert_eq!(document.notes[0].code, Code::FenceNotClosed);

        let with_rule = split("---\nname: a\ndescription: b\ncolor: red\n\nYou are: a: b.\n\n---\nMore.\n").unwrap();
        assert_eq!(with_rule.body, "You are: a: b.\n\n---\nMore.");
        assert_eq!(text_of(&with_rule, "color"), "red");
        assert!(with_rule.notes.iter().any(|note| note.code == Code::FenceNotClosed));
    }

    #[test]
    fn three_dots_end_the_frontmatter_when_no_fence_does() {
        let document = split("---\nname: a\ndescription: b\n...\nBody").unwrap();
        assert_eq!((document.body.as_str(), document.notes.len()), ("Body", 0));
    }

    /// fault H1
    #[test]
    fn a_line_of_prose_that_looks_like_a_field_is_told() {
        for line in ["Tools: Read", " tools: Read"] {
            let document = split(&format!("---\nname: a\ndescription: b: c\n{line}\n---\nBody")).unwrap();
            let note = document.notes.iter().find(|note| note.code == Code::ForeignSpelling).unwrap();
            assert_eq!((note.line, note.severity), (Some(4), Severity::Warning), "{line}");
        }
    }

    #[test]
    fn a_star_is_text() {
        for form in ["tools: *", "tools:\n  - *", "tools:  *  "] {
            let document = split(&format!("---\nname: a\n{form}\n---\n")).unwrap();
            assert!(document.notes.is_empty(), "{form}: {:?}", document.notes);
        }
    }

    #[test]
    fn a_readme_is_only_mentioned_and_fields_without_a_fence_are_an_error() {
        assert_eq!(split("# Agents\n\ntext").unwrap_err().0.severity, Severity::Info);
        assert_eq!(split("").unwrap_err().0.severity, Severity::Info);
        assert_eq!(split("name: a\ndescription: b\n---\nBody").unwrap_err().0.severity, Severity::Error);
    }

    #[test]
    fn equal_keys_are_both_found() {
        let document = split("---\nname: a\nname: b\ndescription: c\n---\n").unwrap();
        let names: Vec<&str> = document.fields.iter().filter(|field| field.key == "name").map(|field| field.text.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    proptest::proptest! {
        /// Whatever is written, reading ends with a document or a reason.
        #[test]
        fn any_text_is_read_or_refused(text in "(---\n)?([a-zT]{0,6}:? ?[\\[\\]{}&*!|>'\"%@`#, \t\r\n-]{0,4}){0,20}(\n---\n)?.{0,20}") {
            let _ = split(&text);
        }
    }
}
