//! The tool `Skill`: gives the text of a skill when a task calls for it.

use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{self, annotated};
use crate::agent::tool::{ApprovalNeed, FailureKind, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::config::Limits;
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::skills::content::CONTENT_MAX;
use crate::skills::library::text_of;
use crate::skills::{Library, SkillError, View};

pub struct SkillTool {
    spec: ToolSpec,
    library: Library,
    view: View,
}

pub const NAME: &str = "Skill";

#[derive(Deserialize)]
struct Arguments {
    skill: String,
    args: Option<String>,
}

impl SkillTool {
    /// The list of skills is a context message and no part of the declaration, so that the bytes before it are the same in
    /// every project.
    pub fn new(library: Library, view: View) -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "skill": {"type": "string", "description": "Its name, from the list of skills"},
                "args": {"type": "string", "description": "Arguments, if the skill takes some"}
            },
            "required": ["skill"]
        });
        let description = "Gives the text of a skill: instructions for one kind of task. When a task matches a skill in the list you were \
                           given, call this first and follow the text. Do not call it for a skill whose text you have already.";
        let declaration = ToolDeclaration { name: NAME.into(), description: description.into(), input_schema };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: true, approval: ApprovalNeed::Never }, library, view }
    }

    async fn run(&self, input: Value) -> Result<ToolReply, ToolFailure> {
        let parsed = arguments::parse::<Arguments>(&self.spec.declaration, &input)?;
        let Arguments { skill, args } = parsed.value;
        let (library, view) = (self.library.clone(), self.view.clone());
        let read = tokio::task::spawn_blocking(move || text_of(&library, &view, &skill, args.as_deref()));
        let text = read.await.map_err(|_| ToolFailure::failed("reading the skill was interrupted"))?.map_err(|error| failure(&error))?;
        Ok(annotated(&parsed.notes, ToolReply::text(text)))
    }
}

fn failure(error: &SkillError) -> ToolFailure {
    let kind = match error {
        // Not a refusal of work by a permission: nothing that was asked for is left undone because of it.
        SkillError::NotAllowed { .. } | SkillError::Refused { .. } | SkillError::ForPeopleOnly { .. } => FailureKind::Unavailable,
        SkillError::Unknown { .. } | SkillError::Ambiguous { .. } => FailureKind::NotFound,
        SkillError::Unreadable(_) => FailureKind::Failed,
    };
    ToolFailure::new(kind, error.to_string())
}

impl Tool for SkillTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Gives a text; what follows from it is decided call by call.
    fn effect(&self, _input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok(Effect::Internal)
    }

    fn result_max(&self, limits: &Limits) -> u64 {
        // The text has its own bound; notes about arguments come on top.
        limits.tool_result_max.max(CONTENT_MAX as u64 + 2_000)
    }

    fn call<'a>(&'a self, input: Value, _context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(self.run(input))
    }
}
