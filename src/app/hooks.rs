//! The hooks of a session: from the settings, or from the parent of a process child, which hands down what it runs itself.

use std::path::Path;
use std::sync::Arc;

use crate::agent::Role;
use crate::app::App;
use crate::app::model::ChosenModel;
use crate::config::environment::SUBAGENT;
use crate::hooks::session::HookParts;
use crate::hooks::{Agent, HookSet, Problem, SessionHooks, clear_left_over};
use crate::ids::SessionId;
use crate::permissions::decide::Policy;
use crate::supervisor::launch::Launcher;

/// What hooks are told as the type of an agent in a process of its own.
const PROCESS_AGENT: &str = "process_agent";

impl App {
    /// The session's hooks, and what is wrong with their settings.
    pub fn hook_set(&self) -> (HookSet, Vec<Problem>) {
        match &self.handover {
            Some(handover) => (handover.hooks.clone(), Vec::new()),
            None => {
                let (set, problems) = HookSet::of_settings(&self.settings);
                let of_project = |path: &Path| self.settings.project_rights().iter().any(|rights| rights.path == path);
                (set.pinned(of_project, &self.trust, &self.cwd), problems)
            }
        }
    }

    /// What is wrong with the settings of hooks becomes a notice each.
    pub(super) fn session_hooks(
        &self,
        id: &SessionId,
        role: Role,
        chosen: &ChosenModel,
        launcher: &Launcher,
        policy: &Arc<Policy>,
        notices: &mut Vec<String>,
    ) -> SessionHooks {
        let (set, problems) = self.hook_set();
        notices.extend(problems.iter().map(ToString::to_string));
        let main = self.handover.as_ref().map_or(id, |handover| &handover.session);
        let agent = match role {
            Role::Main => None,
            Role::ProcessChild | Role::LocalChild => Some(Agent {
                id: self.environment.get(SUBAGENT).unwrap_or(id.as_str()).to_owned(),
                kind: PROCESS_AGENT.to_owned(),
                transcript: self.layout.hook_transcript(id, id),
            }),
        };
        if role == Role::Main {
            // Aside: after a hard death there may be processes to end first.
            let folder = self.layout.hooks();
            drop(tokio::task::spawn_blocking(move || clear_left_over(&folder)));
        }
        let policy = Arc::clone(policy);
        SessionHooks::new(HookParts {
            set,
            launcher: launcher.clone(),
            folder: self.layout.session_hooks(id),
            environment: self.environment.all().to_vec(),
            hidden_variables: chosen.key_variables.clone(),
            limits: Arc::clone(&self.limits),
            session: main.clone(),
            transcript: self.layout.hook_transcript(main, main),
            cwd: self.cwd.clone(),
            agent,
            mode: Arc::new(move || policy.mode()),
        })
    }
}
