//! The tool `Edit`: replaces exact text in a file that was read before. Line ends and a byte-order mark stay as they are.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

use crate::agent::state::SessionState;
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::tools::arguments::{annotated, parse};
use crate::tools::diff;
use crate::tools::file_access::{self, Before, Flow};
use crate::tools::snippet;

pub struct Edit {
    spec: ToolSpec,
}

/// Larger files are not held in memory.
const EDITED_BYTES_MAX: u64 = 64 * 1024 * 1024;
const LINE_NUMBERS_SHOWN: usize = 10;

#[derive(Deserialize)]
struct Arguments {
    file_path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

impl Default for Edit {
    fn default() -> Self {
        Self::new()
    }
}

impl Edit {
    pub fn new() -> Self {
        let declaration = ToolDeclaration {
            name: "Edit".into(),
            description: "Replaces exact text in a file. The file must have been read in this session and not changed since. `old_string` \
                          must be in the file exactly once, with its indentation and without line numbers; take more lines around it \
                          when it is not unique, or set `replace_all` to replace every place."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": "Path of the file, absolute or relative to the working directory"},
                    "old_string": {"type": "string", "description": "The text to replace"},
                    "new_string": {"type": "string", "description": "The text to put in its place; must differ"},
                    "replace_all": {"type": "boolean", "description": "Replace every place instead of the only one (default false)"}
                },
                "required": ["file_path", "old_string", "new_string"]
            }),
        };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: false, approval: ApprovalNeed::ByEffect } }
    }
}

impl Tool for Edit {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure> {
        let arguments = parse::<Arguments>(&self.spec.declaration, input)?.value;
        file_access::resolve(&context.cwd, "file_path", &arguments.file_path).map(Effect::Writes)
    }

    fn change<'a>(&'a self, input: &'a Value, context: &'a ToolContext) -> BoxFuture<'a, Result<Option<String>, ToolFailure>> {
        async move {
            let arguments = parse::<Arguments>(&self.spec.declaration, input)?.value;
            let path = file_access::resolve(&context.cwd, "file_path", &arguments.file_path)?;
            let state = context.state.clone();
            let diff = move |cancel: &CancellationToken| {
                let Planned { content, found, .. } = plan(&path, &arguments, &state, cancel)?;
                Ok(diff::unified(&path, Some(&content), &found.applied(&content)))
            };
            file_access::blocking_to_the_end(&context.cancel, diff).await.map(Some)
        }
        .boxed()
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            let parsed = parse::<Arguments>(&self.spec.declaration, &input)?;
            let path = file_access::resolve(&context.cwd, "file_path", &parsed.value.file_path)?;
            let arguments = parsed.value;
            let state = context.state.clone();
            let reply = file_access::blocking_to_the_end(&context.cancel, move |cancel| edit(&path, &arguments, &state, cancel)).await?;
            Ok(annotated(&parsed.notes, reply))
        }
        .boxed()
    }
}

/// An edit that can be made.
struct Planned {
    target: PathBuf,
    metadata: Metadata,
    content: Vec<u8>,
    found: Found,
}

fn edit(path: &Path, arguments: &Arguments, state: &SessionState, cancel: &CancellationToken) -> Result<ToolReply, ToolFailure> {
    let Planned { target, metadata, content, found } = plan(path, arguments, state, cancel)?;
    let changed = found.applied(&content);
    let remarks = file_access::replace(&target, &changed, &Before::File(metadata))?;
    state.mark_seen(target, file_access::mark_of_bytes(&changed));
    Ok(reply(path, &changed, &found, remarks))
}

/// Finds the places; refuses what could not be edited.
fn plan(path: &Path, arguments: &Arguments, state: &SessionState, cancel: &CancellationToken) -> Result<Planned, ToolFailure> {
    if arguments.old_string.is_empty() {
        return Err(ToolFailure::invalid("`old_string` is empty, so there is no place to change")
            .with_hint("to make a new file or replace a whole one use Write; to insert, take the line before the place as `old_string`"));
    }
    if arguments.old_string == arguments.new_string {
        return Err(ToolFailure::invalid("`old_string` and `new_string` are equal, so nothing would change")
            .with_hint("send the text as it should be afterwards in `new_string`"));
    }
    let target = file_access::write_target(path);
    let (mut file, metadata) = file_access::open_regular(&target)?;
    if metadata.len() > EDITED_BYTES_MAX {
        return Err(ToolFailure::invalid(format!(
            "{} has {} bytes; Edit takes files up to {EDITED_BYTES_MAX}",
            path.display(),
            metadata.len()
        ))
        .with_hint("change it with a program in Bash, e.g. `sed`"));
    }
    let mut content = Vec::new();
    file_access::read_in_chunks(&mut file, &target, cancel, |bytes| {
        content.extend_from_slice(bytes);
        if content.len() as u64 > EDITED_BYTES_MAX { Flow::Enough } else { Flow::More }
    })?;
    file_access::check_seen(state, path, &target, &file_access::mark_of_bytes(&content))?;
    let found = find(&content, arguments);
    if found.places.is_empty() {
        let text = String::from_utf8_lossy(&content);
        return Err(ToolFailure::new(FailureKind::NotFound, format!("`old_string` is not in {}; nothing was changed", path.display()))
            .with_hint(snippet::explain_missing(&text, &arguments.old_string)));
    }
    if !arguments.replace_all && found.places.len() + found.overlapping > 1 {
        let lines: Vec<String> = found.places.iter().take(LINE_NUMBERS_SHOWN).map(|at| line_of(&content, *at).to_string()).collect();
        let more = if found.places.len() > LINE_NUMBERS_SHOWN { ", ..." } else { "" };
        let count = found.places.len() + found.overlapping;
        return Err(ToolFailure::invalid(format!(
            "`old_string` is {count} times in {} (lines {}{more}); nothing was changed",
            path.display(),
            lines.join(", ")
        ))
        .with_hint("take more of the lines around the place that is meant, or set `replace_all` to true to change all of them"));
    }
    Ok(Planned { target, metadata, content, found })
}

/// Where the text is, and what is put there.
struct Found {
    /// Byte offsets, ascending, without overlap.
    places: Vec<usize>,
    /// Further places that overlap the first: the text is not unique there.
    overlapping: usize,
    old: String,
    new: String,
}

/// The line ends of the file win over those of the arguments: models send `\n` also for files with `\r\n`.
fn find(content: &[u8], arguments: &Arguments) -> Found {
    let new_has_breaks = arguments.new_string.contains('\n');
    let plain = places_of(content, &arguments.old_string);
    if !plain.is_empty() {
        let follows_crlf = new_has_breaks && !arguments.old_string.contains('\n') && is_mostly_crlf(content);
        let new = if follows_crlf { with_crlf(&arguments.new_string) } else { arguments.new_string.clone() };
        return Found {
            overlapping: overlapping(content, &arguments.old_string, &plain),
            places: plain,
            old: arguments.old_string.clone(),
            new,
        };
    }
    let old = with_crlf(&arguments.old_string);
    let places = places_of(content, &old);
    Found { overlapping: overlapping(content, &old, &places), places, old, new: with_crlf(&arguments.new_string) }
}

impl Found {
    fn applied(&self, content: &[u8]) -> Vec<u8> {
        let mut changed = Vec::with_capacity(content.len() + self.places.len() * self.new.len());
        let mut from = 0;
        for place in &self.places {
            changed.extend_from_slice(&content[from..*place]);
            changed.extend_from_slice(self.new.as_bytes());
            from = place + self.old.len();
        }
        changed.extend_from_slice(&content[from..]);
        changed
    }
}

/// Text can only be inside valid text, so files with other bytes in them are searched (and kept) too.
fn places_of(content: &[u8], text: &str) -> Vec<usize> {
    let mut places = Vec::new();
    let mut offset = 0;
    for chunk in content.utf8_chunks() {
        places.extend(chunk.valid().match_indices(text).map(|(at, _)| offset + at));
        offset += chunk.valid().len() + chunk.invalid().len();
    }
    places
}

fn overlapping(content: &[u8], text: &str, places: &[usize]) -> usize {
    let [only] = places else { return 0 };
    let first_character = text.chars().next().map_or(1, char::len_utf8);
    let end = (only + 2 * text.len()).min(content.len());
    places_of(&content[only + first_character..end], text).len()
}

fn with_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

fn is_mostly_crlf(content: &[u8]) -> bool {
    let breaks = content.iter().filter(|byte| **byte == b'\n').count();
    let crlf = content.windows(2).filter(|pair| *pair == b"\r\n").count();
    crlf * 2 > breaks
}

/// Counted from 1.
fn line_of(content: &[u8], at: usize) -> usize {
    content[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn reply(path: &Path, changed: &[u8], found: &Found, remarks: Vec<&'static str>) -> ToolReply {
    let count = found.places.len();
    let first = found.places.first().map_or(1, |at| line_of(changed, *at));
    let last = first + found.new.matches('\n').count();
    let places = if count == 1 { "1 place".to_owned() } else { format!("{count} places") };
    let mut text = format!("changed {} ({places})", path.display());
    for remark in remarks {
        text.push_str(&format!("\n({remark})"));
    }
    let which = if count == 1 { "now" } else { "the first of them now" };
    let shown = snippet::around(&String::from_utf8_lossy(changed), first, last);
    if !shown.is_empty() {
        text.push_str(&format!("; {which}:\n{shown}"));
    }
    ToolReply { text, structured: Some(json!({"file_path": path.display().to_string(), "replacements": count, "first_line": first})) }
}
