//! What profiles of a project ask for that waits for a person's trust (R81, R82, R152).

use std::path::PathBuf;

use super::catalog::Sources;
use super::parse;
use super::places;
use super::profile::{Level, McpServer, MemoryScope, Origin, Profile};
use crate::hooks::HookSet;

/// One file with what it asks for.
#[derive(Clone, Debug)]
pub struct ProfileRights {
    pub path: PathBuf,
    /// As it was read.
    pub text: String,
    pub name: String,
    /// The user's own notes.
    pub user_memory: bool,
    pub hooks: HookSet,
    /// Names of the servers it defines.
    pub servers: Vec<String>,
}

/// The profiles of the project that would have more if they were trusted. Files that cannot be read are the catalog's to tell.
pub fn needing_trust(sources: &Sources) -> Vec<ProfileRights> {
    let folders = sources.places().into_iter().filter(|place| place.level == Level::Project);
    let files = folders.flat_map(|place| places::walk(&place.folder).files);
    files.filter_map(|found| places::read(&found.path).ok().and_then(|text| rights_of(found.path, text))).collect()
}

fn rights_of(path: PathBuf, text: String) -> Option<ProfileRights> {
    // Looked for first: most profiles ask for nothing, and every run comes by here.
    let head = text.to_ascii_lowercase();
    if !["hooks", "memory", "mcp"].iter().any(|field| head.contains(field)) {
        return None;
    }
    let read = |trusted| -> Option<Profile> {
        let origin = Origin { level: Level::Project, path: Some(path.clone()), plugin: None };
        parse::parse(&text, origin, trusted).profile
    };
    let without = read(false)?;
    if without.withheld.is_empty() {
        return None;
    }
    let with = read(true)?;
    if without.withheld == with.withheld {
        return None;
    }
    let is_inline = |server: &McpServer| match server {
        McpServer::Inline { name, .. } => Some(name.clone()),
        McpServer::Named(_) => None,
    };
    let place = path.display().to_string();
    Some(ProfileRights {
        user_memory: with.memory == Some(MemoryScope::User),
        hooks: with.hooks.as_ref().map(|hooks| HookSet::of_profile(hooks, &place).0).unwrap_or_default(),
        servers: with.mcp_servers.iter().flatten().filter_map(is_inline).collect(),
        name: with.name,
        path,
        text,
    })
}
