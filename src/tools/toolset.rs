//! Which tools exist for a main session and for a process child: one function.

use std::sync::Arc;

use crate::agent::Role;
use crate::agent::tool::{Tool, ToolBox};
use crate::permissions::Policy;
use crate::secrets::Secrets;
use crate::tools::ask_user_question::AskUserQuestion;
use crate::tools::edit::Edit;
use crate::tools::glob::Glob;
use crate::tools::grep::Grep;
use crate::tools::read::Read;
use crate::tools::redacting;
use crate::tools::todo_write::TodoWrite;
use crate::tools::write::Write;

/// Tools that need handles of the session; built by the caller.
#[derive(Default)]
pub struct SessionTools {
    /// Bash, TaskOutput, TaskStop: made for the session's own shells.
    pub shells: Vec<Arc<dyn Tool>>,
    /// `subagent` and whatever else starts agents.
    pub delegation: Vec<Arc<dyn Tool>>,
    /// WebFetch and WebSearch: made from settings.
    pub web: Vec<Arc<dyn Tool>>,
    /// Kept out of the results of all tools.
    pub secrets: Secrets,
}

/// The tools of a session: those of its role that no deny rule takes away (R287).
///
/// A child never gets what starts agents, even when the caller passes it.
pub fn build(role: Role, session: SessionTools, policy: &Arc<Policy>) -> ToolBox {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(Edit::new()),
        Arc::new(Glob::new(policy.clone())),
        Arc::new(Grep::new(policy.clone())),
        Arc::new(Read::new()),
        Arc::new(TodoWrite::new()),
        Arc::new(Write::new()),
    ];
    tools.extend(session.shells);
    tools.extend(session.web);
    match role {
        Role::Main => {
            tools.push(Arc::new(AskUserQuestion::new()));
            tools.extend(session.delegation);
        }
        Role::LocalChild => tools.push(Arc::new(AskUserQuestion::new())),
        // Nobody can be asked from there (R244).
        Role::ProcessChild => {}
    }
    let starts_agents = |name: &str| STARTS_AGENTS.contains(&name.to_lowercase().as_str());
    let toolbox = ToolBox::new(tools).filtered(|spec| {
        let name = spec.declaration.name.as_str();
        !policy.removes(name, spec.aliases) && (role == Role::Main || !starts_agents(name))
    });
    redacting::redacted(toolbox, &session.secrets)
}

const STARTS_AGENTS: &[&str] = &["agent", "subagent", "task", "sendmessage"];
