//! A file tool of a child that has memory: confined to the memory folder, or only kept from leaving it through a link.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::agent::tool::{FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::permissions::Effect;
use crate::permissions::approval::Question;
use crate::permissions::paths::followed;
use crate::subagents::memory::Memory;

pub(super) struct Guarded {
    inner: Arc<dyn Tool>,
    memory: Memory,
    /// The profile did not ask for the tool: it is there for memory alone (R270).
    is_confined: bool,
}

impl Guarded {
    pub fn new(inner: Arc<dyn Tool>, memory: Memory, is_confined: bool) -> Self {
        Self { inner, memory, is_confined }
    }

    fn check(&self, effect: &Effect) -> Result<(), ToolFailure> {
        let name = &self.inner.spec().declaration.name;
        let folder = self.memory.folder().display();
        let refused = |message: String, hint: String| Err(ToolFailure::new(FailureKind::Denied, message).with_hint(hint));
        let (path, is_write) = match effect {
            Effect::Reads(path) => (path, false),
            Effect::Writes(path) => (path, true),
            Effect::Internal | Effect::Runs { .. } | Effect::Fetches { .. } if self.is_confined => {
                return refused(format!("{name} is there for the memory folder only"), format!("name a file below {folder}"));
            }
            Effect::Internal | Effect::Runs { .. } | Effect::Fetches { .. } => return Ok(()),
        };
        if self.memory.holds(path) {
            if self.is_confined && is_write && !is_markdown(path) {
                return refused(
                    format!("{} does not end in `.md`; {name} is there for memory files only", path.display()),
                    format!("name a file ending in `.md` below {folder}"),
                );
            }
            return Ok(());
        }
        if self.memory.names(path) && is_write {
            return refused(
                format!("{} leads out of the memory folder, to {}", path.display(), followed(path).display()),
                format!("memory files are regular files below {folder}; do not use links there"),
            );
        }
        if self.is_confined {
            return refused(
                format!("{} lies outside the memory folder; {name} is there for memory only", path.display()),
                format!("name a file below {folder}; report everything else in your answer"),
            );
        }
        Ok(())
    }
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"))
}

impl Tool for Guarded {
    fn spec(&self) -> &ToolSpec {
        self.inner.spec()
    }

    fn effect(&self, input: &Value, context: &ToolContext) -> Result<Effect, ToolFailure> {
        let effect = self.inner.effect(input, context)?;
        self.check(&effect)?;
        Ok(effect)
    }

    fn change<'a>(&'a self, input: &'a Value, context: &'a ToolContext) -> BoxFuture<'a, Result<Option<String>, ToolFailure>> {
        self.inner.change(input, context)
    }

    fn questions(&self, input: &Value) -> Option<Vec<Question>> {
        self.inner.questions(input)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            // Looked at again: between the decision and the call another call may have made a link.
            let effect = self.inner.effect(&input, &context)?;
            self.check(&effect)?;
            let mut reply = self.inner.call(input, context).await?;
            if let Effect::Writes(path) = &effect
                && followed(path) == self.memory.index_path()
            {
                let memory = self.memory.clone();
                let request = tokio::task::spawn_blocking(move || memory.request_to_shorten()).await.unwrap_or_default();
                if let Some(request) = request {
                    reply.text.push_str(&format!("\n\n{request}"));
                }
            }
            Ok(reply)
        }
        .boxed()
    }
}
