//! The tool `TodoWrite`: the session's list of tasks.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent::state::{Todo, TodoStatus};
use crate::agent::tool::{ApprovalNeed, Tool, ToolContext, ToolFailure, ToolReply, ToolSpec};
use crate::models::ToolDeclaration;
use crate::permissions::Effect;
use crate::tools::arguments::{annotated, parse};

pub struct TodoWrite {
    spec: ToolSpec,
}

/// A list longer than this is no plan any more, and it is sent with the session's state.
const TODOS_MAX: usize = 200;
const CONTENT_CHARACTERS_MAX: usize = 1000;

#[derive(Deserialize)]
struct Arguments {
    todos: Vec<Todo>,
}

impl Default for TodoWrite {
    fn default() -> Self {
        Self::new()
    }
}

impl TodoWrite {
    pub fn new() -> Self {
        let declaration = ToolDeclaration {
            name: "TodoWrite".into(),
            description: "Replaces the list of tasks of this session. Use it for work of three or more steps: keep exactly one task \
                          `in_progress`, and mark each `completed` as soon as it is done."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "todos": {
                        "type": "array",
                        "description": "The whole list, in order",
                        "items": {
                            "type": "object",
                            "properties": {
                                "content": {"type": "string", "description": "What is to be done"},
                                "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                                "activeForm": {"type": "string", "description": "The same while it is being done, e.g. \"Running the tests\""}
                            },
                            "required": ["content", "status"]
                        }
                    }
                },
                "required": ["todos"]
            }),
        };
        Self { spec: ToolSpec { declaration, aliases: &[], concurrent: false, approval: ApprovalNeed::ByEffect } }
    }
}

impl Tool for TodoWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn effect(&self, input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        parse::<Arguments>(&self.spec.declaration, input).map(|_| Effect::Internal)
    }

    fn call<'a>(&'a self, input: Value, context: ToolContext) -> BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        async move {
            let parsed = parse::<Arguments>(&self.spec.declaration, &input)?;
            let todos = parsed.value.todos;
            check(&todos)?;
            let reply = reply(&todos);
            context.state.set_todos(todos);
            Ok(annotated(&parsed.notes, reply))
        }
        .boxed()
    }
}

fn check(todos: &[Todo]) -> Result<(), ToolFailure> {
    if todos.len() > TODOS_MAX {
        return Err(ToolFailure::invalid(format!("`todos` has {} entries; at most {TODOS_MAX} are kept", todos.len()))
            .with_hint("join small steps, and leave out what was completed long ago"));
    }
    for (index, todo) in todos.iter().enumerate() {
        if todo.content.trim().is_empty() {
            return Err(ToolFailure::invalid(format!("`todos[{index}].content` is empty")).with_hint("say what is to be done"));
        }
        let length = todo.content.chars().count();
        if length > CONTENT_CHARACTERS_MAX {
            return Err(ToolFailure::invalid(format!(
                "`todos[{index}].content` has {length} characters; at most {CONTENT_CHARACTERS_MAX} are kept"
            ))
            .with_hint("name the task in one sentence"));
        }
    }
    Ok(())
}

fn reply(todos: &[Todo]) -> ToolReply {
    let count = |status: TodoStatus| todos.iter().filter(|todo| todo.status == status).count();
    let (completed, in_progress, pending) = (count(TodoStatus::Completed), count(TodoStatus::InProgress), count(TodoStatus::Pending));
    let mut text = if todos.is_empty() {
        "the list of tasks is empty now".to_owned()
    } else {
        format!("{} tasks: {completed} completed, {in_progress} in progress, {pending} pending", todos.len())
    };
    if in_progress > 1 {
        text.push_str("\n(more than one task is in progress; keep to one at a time)");
    }
    ToolReply { text, structured: Some(json!({"todos": todos})) }
}
