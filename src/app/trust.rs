//! What the project asks for that needs a person's trust: hooks, allow rules, and what its profiles reach for.

use std::path::{Path, PathBuf};

use crate::app::App;
use crate::config::Settings;
use crate::files;
use crate::hooks::HookSet;
use crate::hooks::scripts::{SCRIPT_MAX, named_by};
use crate::hooks::settings::Hook;
use crate::permissions::trust::{Content, Decision, Trust, digest};
use crate::subagents::profiles::Sources;
use crate::subagents::profiles::trust::needing_trust;

/// One file that asks.
#[derive(Clone, Debug)]
pub struct Asking {
    pub path: PathBuf,
    pub sha256: String,
    /// `None`: a link leads out of the project, so it cannot be trusted.
    pub content: Option<Content>,
    pub decision: Option<Decision>,
    pub grants: Vec<Grant>,
}

/// What would be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    Hook {
        event: &'static str,
        matcher: Option<String>,
        command: String,
    },
    AllowRule {
        rule: String,
    },
    /// The user's own notes, read and written by this profile.
    UserMemory {
        profile: String,
    },
    ProfileHook {
        profile: String,
        event: &'static str,
        matcher: Option<String>,
        command: String,
    },
    Server {
        profile: String,
        name: String,
    },
    /// A file that a hook's command runs.
    Script {
        command: String,
    },
}

impl Asking {
    pub fn is_trusted(&self) -> bool {
        self.decision == Some(Decision::Trusted)
    }
}

impl App {
    /// Everything in this project that needs trust, trusted or not.
    pub fn asking(&self) -> Vec<Asking> {
        let sources = Sources {
            layout: self.layout.clone(),
            home: self.environment.home(),
            cwd: self.cwd.clone(),
            plugins: Vec::new(),
            command_line: Vec::new(),
            trust: self.trust.clone(),
        };
        asking(&self.settings, &sources, &self.trust)
    }
}

/// As [`App::asking`], for commands that need no more than this.
pub fn asking(settings: &Settings, sources: &Sources, trust: &Trust) -> Vec<Asking> {
    let of_settings = settings.project_rights().iter().map(|rights| {
        let hooks = HookSet::of_project(rights).hooks.into_iter().map(|hook| Grant::Hook {
            event: hook.event.name(),
            matcher: hook.matcher.text().map(str::to_owned),
            command: hook.action.shown(),
        });
        let rules = rights.allow.iter().map(|rule| Grant::AllowRule { rule: rule.clone() });
        one(trust, &rights.path, &rights.content, hooks.chain(rules).collect())
    });
    let profiles = needing_trust(sources);
    let of_profiles = profiles.iter().map(|rights| {
        let profile = || rights.name.clone();
        let memory = rights.user_memory.then(|| Grant::UserMemory { profile: profile() });
        let hooks = rights.hooks.hooks.iter().map(|hook| Grant::ProfileHook {
            profile: profile(),
            event: hook.event.name(),
            matcher: hook.matcher.text().map(str::to_owned),
            command: hook.action.shown(),
        });
        let servers = rights.servers.iter().map(|name| Grant::Server { profile: profile(), name: name.clone() });
        one(trust, &rights.path, rights.text.as_bytes(), memory.into_iter().chain(hooks).chain(servers).collect())
    });
    let mut all: Vec<Asking> = of_settings.chain(of_profiles).collect();
    let of_files = settings.project_rights().iter().flat_map(|rights| HookSet::of_project(rights).hooks);
    let hooks: Vec<Hook> = of_files.chain(profiles.into_iter().flat_map(|rights| rights.hooks.hooks)).collect();
    for hook in hooks {
        for path in named_by(&hook.action, trust.project(), &sources.cwd) {
            let Ok(content) = files::read_bounded(&path, SCRIPT_MAX) else { continue };
            if !all.iter().any(|asking| asking.path == path) {
                all.push(one(trust, &path, &content, vec![Grant::Script { command: hook.action.shown() }]));
            }
        }
    }
    all
}

fn one(trust: &Trust, path: &Path, bytes: &[u8], grants: Vec<Grant>) -> Asking {
    Asking {
        path: path.to_owned(),
        sha256: digest(bytes),
        content: trust.content(path, bytes),
        decision: trust.decision(path, bytes),
        grants,
    }
}
