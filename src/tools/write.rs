//! The tool `Write`: a whole file, new or replaced as one step.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

use crate::agent::state::SessionState;
use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::tools::arguments::{annotated, parse};
use crate::tools::diff;
use crate::tools::file_access::{self, Before};
use crate::tools::snippet;

pub struct Write {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Arguments {
    file_path: String,
    content: String,
}

impl Default for Write {
    fn default() -> Self {
        Self::new()
    }
}

impl Write {
    pub fn new() -> Self {
        let declaration = ToolDeclaration {
            name: "Write".into(),
            description: "Writes a whole file; missing folders are made. An existing file is replaced, which needs that it was read in \
                          this session and has not changed since. To change a part of a file use Edit."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": "Path of the file, absolute or relative to the working directory"},
                    "content": {"type": "string", "description": "The whole new content"}
                },
                "required": ["file_path", "content"]
            }),
        };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: false, approval: ApprovalNeed::ByEffect } }
    }
}

impl Tool for Write {
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
            let (state, content) = (context.state.clone(), arguments.content);
            file_access::blocking_to_the_end(&context.cancel, move |cancel| change(&path, &content, &state, cancel).map(Some)).await
        }
        .boxed()
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            let parsed = parse::<Arguments>(&self.spec.declaration, &input)?;
            let path = file_access::resolve(&context.cwd, "file_path", &parsed.value.file_path)?;
            let content = parsed.value.content;
            let state = context.state.clone();
            let reply = file_access::blocking_to_the_end(&context.cancel, move |cancel| write(&path, &content, &state, cancel)).await?;
            Ok(annotated(&parsed.notes, reply))
        }
        .boxed()
    }
}

/// Where the content goes, and what is there: refuses what could not be written.
fn target_of(path: &Path, state: &SessionState, cancel: &CancellationToken) -> Result<(PathBuf, Before), ToolFailure> {
    let target = file_access::write_target(path);
    let before = match std::fs::metadata(&target) {
        Ok(metadata) => {
            file_access::check_regular(path, &metadata)?;
            let (mark, metadata) = file_access::mark_on_disk(&target, cancel)?;
            file_access::check_seen(state, path, &target, &mark)?;
            Before::File(metadata)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Before::Nothing,
        // the folder is a file, or may not be entered: told by what follows
        Err(_) => Before::Nothing,
    };
    if path.as_os_str().to_string_lossy().ends_with('/') {
        return Err(ToolFailure::invalid(format!("{} ends with `/`, so it names a folder", path.display()))
            .with_hint("name the file to write; missing folders are made"));
    }
    Ok((target, before))
}

fn change(path: &Path, content: &str, state: &SessionState, cancel: &CancellationToken) -> Result<String, ToolFailure> {
    let (target, before) = target_of(path, state, cancel)?;
    let old = match before {
        Before::Nothing => None,
        Before::File(metadata) if metadata.len() > diff::COMPARED_MAX => return Ok(diff::sizes(path, metadata.len(), content.len())),
        Before::File(_) => Some(std::fs::read(&target).map_err(|error| file_access::cannot("read", path, &error))?),
    };
    Ok(diff::unified(path, old.as_deref(), content.as_bytes()))
}

fn write(path: &Path, content: &str, state: &SessionState, cancel: &CancellationToken) -> Result<ToolReply, ToolFailure> {
    let (target, before) = target_of(path, state, cancel)?;
    let remarks = file_access::replace(&target, content.as_bytes(), &before)?;
    state.mark_seen(target, file_access::mark_of_bytes(content.as_bytes()));
    let created = matches!(before, Before::Nothing);
    let lines = content.lines().count();
    let verb = if created { "created" } else { "replaced" };
    let mut text = format!("{verb} {} ({lines} lines, {} bytes)", path.display(), content.len());
    for remark in remarks {
        text.push_str(&format!("\n({remark})"));
    }
    if !content.is_empty() {
        text.push_str(&format!("\nit begins:\n{}", snippet::around(content, 1, 1)));
    }
    let structured = json!({"file_path": path.display().to_string(), "created": created, "lines": lines, "bytes": content.len()});
    Ok(ToolReply { text, structured: Some(structured) })
}
