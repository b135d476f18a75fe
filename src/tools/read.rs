//! The tool `Read`: a text file with line numbers, in bounded memory, and the mark that allows changing it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

use crate::agent::state::FileMark;
use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::permissions::paths::followed;
use crate::tools::arguments::{annotated, parse};
use crate::tools::file_access::{self, DIGESTED_MAX, Flow};

pub struct Read {
    spec: ToolSpec,
}

/// Lines given when the call names no limit.
const LINES_DEFAULT: u64 = 2000;
/// Longer lines are cut, with a mark.
const LINE_CHARACTERS_MAX: usize = 2000;
/// Of text in one reply; below the limit of one tool result, so that the closing note is always seen.
const REPLY_BYTES_MAX: usize = 90 * 1024;
/// Of one line held at a time: enough for every character of the longest line shown.
const LINE_BYTES_MAX: usize = LINE_CHARACTERS_MAX * 4 + 4;
/// Of the beginning, looked at to tell text from binary.
const PROBE_BYTES: usize = 8 * 1024;

#[derive(Deserialize)]
struct Arguments {
    file_path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

impl Default for Read {
    fn default() -> Self {
        Self::new()
    }
}

impl Read {
    pub fn new() -> Self {
        let declaration = ToolDeclaration {
            name: "Read".into(),
            description: format!(
                "Reads a text file. Gives up to {LINES_DEFAULT} lines with their numbers (number, tab, text); use `offset` and `limit` \
                 for parts of long files. Lines over {LINE_CHARACTERS_MAX} characters are cut. A file must be read before it can be \
                 changed with Write or Edit. For folders use Glob."
            ),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": "Path of the file, absolute or relative to the working directory"},
                    "offset": {"type": "integer", "minimum": 0, "description": "First line to give, counted from 1"},
                    "limit": {"type": "integer", "minimum": 1, "description": "How many lines to give"}
                },
                "required": ["file_path"]
            }),
        };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::ByEffect } }
    }
}

impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure> {
        let arguments = parse::<Arguments>(&self.spec.declaration, input)?.value;
        file_access::resolve(&context.cwd, "file_path", &arguments.file_path).map(Effect::Reads)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            let parsed = parse::<Arguments>(&self.spec.declaration, &input)?;
            let path = file_access::resolve(&context.cwd, "file_path", &parsed.value.file_path)?;
            let first = parsed.value.offset.unwrap_or(1).max(1);
            let window = Window { first, count: parsed.value.limit.unwrap_or(LINES_DEFAULT), is_default: parsed.value.limit.is_none() };
            let target = path.clone();
            let seen = file_access::blocking(&context.cancel, move |cancel| read(&target, &window, cancel)).await?;
            context.state.mark_seen(seen.real, seen.mark);
            let structured = json!({"file_path": path.display().to_string(), "first_line": first, "lines": seen.lines_given, "total_lines": seen.lines_total});
            Ok(annotated(&parsed.notes, ToolReply { text: seen.text, structured: Some(structured) }))
        }
        .boxed()
    }
}

/// Which lines are asked for.
struct Window {
    /// Counted from 1.
    first: u64,
    count: u64,
    is_default: bool,
}

struct Seen {
    text: String,
    lines_given: u64,
    /// Unknown when a huge file was not read to its end.
    lines_total: Option<u64>,
    real: PathBuf,
    mark: FileMark,
}

fn read(path: &Path, window: &Window, cancel: &CancellationToken) -> Result<Seen, ToolFailure> {
    let (mut file, before) = file_access::open_regular(path)?;
    let is_digested = before.len() <= DIGESTED_MAX;
    let mut digest = Sha256::new();
    let mut probe: Vec<u8> = Vec::new();
    let mut lines = Lines::new(window);
    let mut reached_end = true;
    file_access::read_in_chunks(&mut file, path, cancel, |bytes| {
        if probe.len() < PROBE_BYTES {
            probe.extend(&bytes[..bytes.len().min(PROBE_BYTES - probe.len())]);
            if file_access::binary_reason(path, &probe).is_some() {
                return Flow::Enough;
            }
        }
        if is_digested {
            digest.update(bytes);
        }
        lines.take(bytes);
        if !is_digested && lines.is_full() {
            reached_end = false;
            return Flow::Enough;
        }
        Flow::More
    })?;
    if let Some((what, hint)) = file_access::binary_reason(path, &probe) {
        return Err(ToolFailure::invalid(format!("{} is {what} and cannot be read as text ({} bytes)", path.display(), before.len()))
            .with_hint(hint));
    }
    if reached_end {
        lines.finish();
    }
    let changed =
        std::fs::metadata(path).map_or(true, |after| file_access::mark_of_metadata(&after) != file_access::mark_of_metadata(&before));
    let mark = if is_digested { file_access::mark_of_digest(digest) } else { file_access::mark_of_metadata(&before) };
    let lines_total = reached_end.then_some(lines.seen);
    Ok(Seen {
        lines_given: lines.given,
        lines_total,
        text: lines.into_text(path, window, reached_end, changed),
        real: followed(path),
        mark,
    })
}

/// Takes bytes, keeps the lines of the window.
struct Lines<'a> {
    window: &'a Window,
    text: String,
    /// The line that is not complete yet, up to its cap.
    line: Vec<u8>,
    /// Bytes of it in all.
    line_bytes: u64,
    /// Complete lines so far.
    seen: u64,
    given: u64,
    full_by_bytes: bool,
    has_invalid_text: bool,
    crlf: u64,
    cut: u64,
}

impl<'a> Lines<'a> {
    fn new(window: &'a Window) -> Self {
        Self {
            window,
            text: String::new(),
            line: Vec::new(),
            line_bytes: 0,
            seen: 0,
            given: 0,
            full_by_bytes: false,
            has_invalid_text: false,
            crlf: 0,
            cut: 0,
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    /// The last line when it has no line break.
    fn finish(&mut self) {
        if self.line_bytes > 0 {
            self.end_line();
        }
    }

    fn is_full(&self) -> bool {
        self.full_by_bytes || self.seen >= self.window.first - 1 + self.window.count
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.line_bytes += bytes.len() as u64;
        let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
        self.line.extend(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self) {
        self.seen += 1;
        let is_whole = self.line.len() as u64 == self.line_bytes;
        if is_whole && self.line.last() == Some(&b'\r') {
            self.line.pop();
            self.crlf += 1;
        }
        if self.seen >= self.window.first && !self.full_by_bytes && self.given < self.window.count {
            self.give(is_whole);
        }
        self.line.clear();
        self.line_bytes = 0;
    }

    fn give(&mut self, is_whole: bool) {
        let start = if self.seen == 1 { self.line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.line) } else { &self.line };
        let has_nul = start.contains(&0);
        let decoded = String::from_utf8_lossy(start);
        // a character cut by our own cap is no fault of the file
        self.has_invalid_text |= has_nul || is_whole && matches!(decoded, std::borrow::Cow::Owned(_));
        let cut = decoded.char_indices().nth(LINE_CHARACTERS_MAX).map(|(at, _)| at);
        let shown = &decoded[..cut.unwrap_or(decoded.len())];
        let mark = if cut.is_some() { format!(" [line cut, {} bytes in all]", self.line_bytes) } else { String::new() };
        if self.text.len() + shown.len() + mark.len() > REPLY_BYTES_MAX && self.given > 0 {
            self.full_by_bytes = true;
            return;
        }
        self.cut += u64::from(cut.is_some());
        let line_start = self.text.len();
        self.text.push_str(&format!("{:>6}\t{shown}{mark}\n", self.seen));
        if has_nul {
            let harmless = self.text[line_start..].replace('\0', "\u{fffd}");
            self.text.replace_range(line_start.., &harmless);
        }
        self.given += 1;
    }

    fn into_text(mut self, path: &Path, window: &Window, reached_end: bool, changed: bool) -> String {
        let mut notes = Vec::new();
        if self.seen == 0 && reached_end {
            notes.push(format!("{} is empty", path.display()));
        } else if self.given == 0 && reached_end {
            notes.push(format!("nothing to show: `offset` is {}, and {} has {} lines", window.first, path.display(), self.seen));
        }
        let last = window.first - 1 + self.given;
        if self.given > 0 && (!reached_end || last < self.seen) {
            let total = if reached_end { format!(" of {}", self.seen) } else { String::new() };
            let why = if self.full_by_bytes { "; the reply is full" } else { "" };
            if window.is_default || self.full_by_bytes {
                notes.push(format!("lines {} to {last}{total}{why}; go on with `offset`: {}", window.first, last + 1));
            } else {
                notes.push(format!("lines {} to {last}{total}", window.first));
            }
        }
        if self.cut > 0 {
            notes.push(format!("{} lines were longer than {LINE_CHARACTERS_MAX} characters and are cut", self.cut));
        }
        if self.has_invalid_text {
            notes.push("the file is not valid UTF-8: what could not be read shows as \u{fffd}".to_owned());
        }
        if self.crlf > 0 {
            notes.push("lines end with CRLF; Edit keeps that".to_owned());
        }
        if changed {
            notes.push("the file changed while it was read; read it again before changing it".to_owned());
        }
        for note in notes {
            self.text.push_str(&format!("({note})\n"));
        }
        self.text.pop();
        self.text
    }
}
