//! Which tools a child gets: selection, inheritance, removals, additions, scoped rules (R91 to R102, R270). No I/O.

use serde::Serialize;

use super::profile::{McpServer, Profile, ToolEntry, ToolSelection};
use crate::mcp::names::part as server_part;

/// A tool that is registered in the parent session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentTool {
    pub name: String,
    pub aliases: Vec<String>,
}

/// Which kind of child is built (decision on toolsets by role).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildRole {
    /// A session in this process, with a parent it can answer.
    Local,
    /// A process of its own, with nobody to answer or ask.
    Process,
}

/// What stands around the profile when a child is launched.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The parent's tools now, those of its servers (`mcp__server__tool`) included (R93).
    pub parent: &'a [ParentTool],
    /// Names of the servers that are connected now.
    pub connected_servers: &'a [String],
    /// Disallowed by the session or the command line, in the spellings of a profile.
    pub disallowed: &'a [ToolEntry],
    /// The only tools the parent may pass on, when it is bounded itself (R102).
    pub allowed: Option<&'a [ToolEntry]>,
    /// Skills exist in this session.
    pub skills: bool,
    /// Naming skills takes no tools away: a setting (R94).
    pub skills_inherit: bool,
    /// The session's memory is on (R264).
    pub memory: bool,
    pub role: ChildRole,
    /// Searching goes through Bash; the built-in Explore then has no Glob and Grep (R50).
    pub embedded_search: bool,
}

/// What a child gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolGrant {
    /// Names as the parent registers them, sorted; recorded in the metadata.
    pub tools: Vec<String>,
    pub rules: Vec<NarrowingRule>,
    /// Added so that memory can be written; they may reach the memory folder only (R270).
    pub memory_only: Vec<String>,
    /// For the result of the run, one line each.
    pub warnings: Vec<String>,
}

/// Narrows the calls of one tool; a match is no approval (R75).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum NarrowingRule {
    /// Calls that match none of the scopes are denied.
    OnlyMatching { tool: String, scopes: Vec<String> },
    /// Calls that match are denied.
    NeverMatching { tool: String, scope: String },
}

/// Why a child cannot be launched.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ToolPolicyError {
    #[error("Cannot start subagent: no entry of the tools list of '{profile}' gives a usable tool: {}; correct `tools` in the profile", faults.join(", "))]
    NothingUsable { profile: String, faults: Vec<String> },
    #[error("Required MCP server is not connected: {}", servers.join(", "))]
    ServerNotConnected { servers: Vec<String> },
    #[error("Required MCP tool is not available: {}", tools.join(", "))]
    McpToolMissing { tools: Vec<String> },
}

pub const RESPOND_TO_COORDINATOR: &str = "RespondToCoordinator";
const SKILL: &str = "Skill";
/// What memory needs beside a tools list.
const MEMORY_TOOLS: [&str; 3] = ["Read", "Write", "Edit"];

/// Tools an ordinary child may have.
const CHILD_TOOLS: &[&str] = &[
    "Read",
    "Write",
    "Edit",
    "Glob",
    "Grep",
    "Bash",
    "WebFetch",
    "WebSearch",
    "TodoWrite",
    SKILL,
    "AskUserQuestion",
    "TaskOutput",
    "TaskStop",
    "RespondToCoordinator",
];

/// Tools no child ever has: other agents, plan mode, workflows, timed and off-peak jobs (R51, R92, R100, R101, R6).
const NEVER: &[&str] = &[
    "Agent",
    "Task",
    "subagent",
    "SendMessage",
    "EnterPlanMode",
    "ExitPlanMode",
    "submit_result",
    "escalate",
    "CronCreate",
    "CronDelete",
    "CronList",
    "ScheduleWakeup",
    "OffPeak",
    "OffPeakTask",
    "Workflow",
];

/// Names other programs use, with what is meant here.
const FOREIGN: &[(&str, &str)] = &[
    ("LS", "Glob"),
    ("MultiEdit", "Edit"),
    ("NotebookEdit", "Edit"),
    ("NotebookRead", "Read"),
    ("BashOutput", "TaskOutput"),
    ("AgentOutputTool", "TaskOutput"),
    ("KillShell", "TaskStop"),
    ("KillBash", "TaskStop"),
    ("TodoRead", "TodoWrite"),
    ("Shell", "Bash"),
    ("Terminal", "Bash"),
    ("Search", "Grep"),
    ("Fetch", "WebFetch"),
];

/// What a name in a list means before any session is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Usable,
    NotForChildren,
    Unknown { instead: Option<&'static str> },
}

pub fn standing(name: &str) -> Standing {
    let is_one_of = |known: &[&str]| known.iter().any(|tool| same_tool(tool, name));
    if name == "*" || is_mcp(name) || is_one_of(CHILD_TOOLS) {
        return Standing::Usable;
    }
    if is_one_of(NEVER) {
        return Standing::NotForChildren;
    }
    Standing::Unknown { instead: FOREIGN.iter().find(|(foreign, _)| same_tool(foreign, name)).map(|(_, ours)| *ours) }
}

/// The names of all tools that an ordinary child may have.
pub fn child_tools() -> &'static [&'static str] {
    CHILD_TOOLS
}

/// The tools of a main session without servers, as far as a child may have them: for showing a profile outside a session.
pub fn standard_tools() -> Vec<ParentTool> {
    CHILD_TOOLS.iter().map(|name| ParentTool { name: (*name).to_owned(), aliases: Vec::new() }).collect()
}

/// The tools of a child of this profile.
pub fn grant(profile: &Profile, around: &Surroundings) -> Result<ToolGrant, ToolPolicyError> {
    let scope = server_scope(profile, around)?;
    let mut grant = ToolGrant::default();
    let candidates: Vec<&ParentTool> =
        around.parent.iter().filter(|tool| is_available(tool, around.role) && in_server_scope(tool, scope.as_deref())).collect();
    let asked: Vec<&ParentTool> = match &profile.tools {
        ToolSelection::Inherit(_) => candidates.clone(),
        // No `tools` was written beside `skills`.
        ToolSelection::Only(entries) if entries.is_empty() && around.skills_inherit => candidates.clone(),
        ToolSelection::Only(entries) => listed(profile, entries, &candidates, &mut grant)?,
    };
    let is_refused = |tool: &ParentTool| {
        let everywhere = profile.disallowed_tools.iter().chain(around.disallowed);
        everywhere.filter(|entry| entry.scope.is_none()).any(|entry| matches_entry(tool, &entry.name))
            || around.allowed.is_some_and(|allowed| !allowed.iter().any(|entry| matches_entry(tool, &entry.name)))
    };
    if let ToolSelection::Only(entries) = &profile.tools
        && !entries.is_empty()
        && asked.iter().all(|tool| is_refused(tool))
    {
        let faults = entries.iter().map(|entry| format!("{entry} ({})", why_unusable(entry, &candidates))).collect();
        return Err(ToolPolicyError::NothingUsable { profile: profile.name.clone(), faults });
    }
    let mut chosen: Vec<&ParentTool> = asked.into_iter().filter(|tool| !is_refused(tool)).collect();
    add_skill(profile, around, &candidates, &is_refused, &mut chosen, &mut grant);
    add_memory(profile, around, &candidates, &is_refused, &mut chosen, &mut grant);
    if profile.is_built_in_explore() && around.embedded_search {
        chosen.retain(|tool| !matches!(tool.name.as_str(), "Glob" | "Grep"));
    }
    grant.tools = chosen.iter().map(|tool| tool.name.clone()).collect();
    if around.role == ChildRole::Local {
        grant.tools.push(RESPOND_TO_COORDINATOR.to_owned());
    }
    grant.tools.sort();
    grant.tools.dedup();
    grant.rules = rules(profile, around, &grant.tools, around.parent);
    Ok(grant)
}

/// Compared without regard to case style: `web_search` equals `WebSearch` (R99). Names of servers' tools keep their
/// underscores, which separate their parts.
pub fn same_tool(left: &str, right: &str) -> bool {
    if is_mcp(left) || is_mcp(right) {
        return left.eq_ignore_ascii_case(right);
    }
    let fold = |name: &str| -> String { name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect() };
    fold(left) == fold(right)
}

/// The name or pattern of a server's tool.
pub fn is_mcp(name: &str) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("mcp__"))
}

/// The server of `mcp__server__tool`.
fn server_of(name: &str) -> Option<&str> {
    if !is_mcp(name) {
        return None;
    }
    let rest = name.get(5..)?;
    Some(rest.split_once("__").map_or(rest, |(server, _)| server))
}

/// Whether an entry's name means this tool: a name, an alias, or a pattern of servers' tools (R76).
fn matches_entry(tool: &ParentTool, entry: &str) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some(prefix) = entry.strip_suffix('*')
        && is_mcp(entry)
    {
        return tool.name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    }
    let whole_server = is_mcp(entry) && entry.get(5..).is_some_and(|rest| !rest.contains("__"));
    if whole_server {
        return server_of(&tool.name).is_some_and(|server| entry.get(5..).is_some_and(|wanted| wanted.eq_ignore_ascii_case(server)));
    }
    std::iter::once(&tool.name).chain(&tool.aliases).any(|name| same_tool(name, entry))
}

fn is_available(tool: &ParentTool, role: ChildRole) -> bool {
    let never = NEVER.iter().any(|name| same_tool(name, &tool.name) || tool.aliases.iter().any(|alias| same_tool(name, alias)));
    let needs_parent = role == ChildRole::Process && matches!(tool.name.as_str(), RESPOND_TO_COORDINATOR | "AskUserQuestion");
    !never && !needs_parent
}

/// The servers a child may see; `None` means all. A named one must be connected (R133, R135).
fn server_scope(profile: &Profile, around: &Surroundings) -> Result<Option<Vec<String>>, ToolPolicyError> {
    let Some(servers) = &profile.mcp_servers else { return Ok(None) };
    let is_connected = |name: &str| around.connected_servers.iter().any(|known| known == name);
    let missing: Vec<String> = servers
        .iter()
        .filter(|server| matches!(server, McpServer::Named(name) if !is_connected(name)))
        .map(|server| server.name().to_owned())
        .collect();
    if missing.is_empty() {
        return Ok(Some(servers.iter().map(|server| server_part(server.name())).collect()));
    }
    Err(ToolPolicyError::ServerNotConnected { servers: missing })
}

fn in_server_scope(tool: &ParentTool, scope: Option<&[String]>) -> bool {
    match (server_of(&tool.name), scope) {
        (Some(server), Some(scope)) => scope.iter().any(|known| known.eq_ignore_ascii_case(server)),
        (None, _) | (_, None) => true,
    }
}

/// The tools of an explicit list, as far as the parent has them (R95). Single entries without effect are warnings;
/// a missing tool of a server refuses the launch (R136).
fn listed<'a>(
    profile: &Profile,
    entries: &[ToolEntry],
    candidates: &[&'a ParentTool],
    grant: &mut ToolGrant,
) -> Result<Vec<&'a ParentTool>, ToolPolicyError> {
    let matched = |entry: &ToolEntry| candidates.iter().any(|tool| matches_entry(tool, &entry.name));
    let faulty: Vec<&ToolEntry> = entries.iter().filter(|entry| !matched(entry)).collect();
    if !entries.is_empty() && faulty.len() == entries.len() {
        let faults = entries.iter().map(|entry| format!("{entry} ({})", why_unusable(entry, candidates))).collect();
        return Err(ToolPolicyError::NothingUsable { profile: profile.name.clone(), faults });
    }
    let is_one_mcp_tool = |entry: &&&ToolEntry| is_mcp(&entry.name) && !entry.name.ends_with('*') && entry.name[5..].contains("__");
    let missing: Vec<String> = faulty.iter().filter(is_one_mcp_tool).map(|entry| entry.name.clone()).collect();
    if !missing.is_empty() {
        return Err(ToolPolicyError::McpToolMissing { tools: missing });
    }
    for entry in faulty {
        grant.warnings.push(format!("tool {entry} of profile '{}' was left out: {}", profile.name, why_unusable(entry, candidates)));
    }
    let idle = profile.mcp_servers.iter().flatten().filter(|server| {
        let part = server_part(server.name());
        !entries.iter().any(|entry| server_of(&entry.name).is_some_and(|known| known.eq_ignore_ascii_case(&part) || known == "*"))
    });
    for server in idle {
        let part = server_part(server.name());
        grant.warnings.push(format!("no tool of MCP server {} is listed; add mcp__{part}__* to `tools`", server.name()));
    }
    Ok(candidates.iter().copied().filter(|tool| entries.iter().any(|entry| matches_entry(tool, &entry.name))).collect())
}

fn why_unusable(entry: &ToolEntry, candidates: &[&ParentTool]) -> String {
    if candidates.iter().any(|tool| matches_entry(tool, &entry.name)) {
        return "disallowed in this session".to_owned();
    }
    match standing(&entry.name) {
        Standing::Usable => "matching nothing in this session".to_owned(),
        Standing::NotForChildren => "not available to subagents".to_owned(),
        Standing::Unknown { instead: None } => "unknown".to_owned(),
        Standing::Unknown { instead: Some(name) } => format!("unknown, {name} may be meant"),
    }
}

/// `skills` adds the Skill tool unless it is disallowed (R78).
fn add_skill<'a>(
    profile: &Profile,
    around: &Surroundings,
    candidates: &[&'a ParentTool],
    is_refused: &impl Fn(&ParentTool) -> bool,
    chosen: &mut Vec<&'a ParentTool>,
    grant: &mut ToolGrant,
) {
    if profile.skills.is_none() || chosen.iter().any(|tool| tool.name == SKILL) {
        return;
    }
    match candidates.iter().find(|tool| tool.name == SKILL) {
        Some(skill) if around.skills && !is_refused(skill) => chosen.push(skill),
        Some(skill) if is_refused(skill) => grant.warnings.push("the profile names skills, but the tool Skill is disallowed".to_owned()),
        _ => grant.warnings.push("the profile names skills, but this session has none".to_owned()),
    }
}

/// Beside a list, memory adds Read, Write and Edit, confined to its folder when the list does not have them (R270).
fn add_memory<'a>(
    profile: &Profile,
    around: &Surroundings,
    candidates: &[&'a ParentTool],
    is_refused: &impl Fn(&ParentTool) -> bool,
    chosen: &mut Vec<&'a ParentTool>,
    grant: &mut ToolGrant,
) {
    let lists_tools = matches!(profile.tools, ToolSelection::Only(_));
    if profile.memory.is_none() || !around.memory || !lists_tools {
        return;
    }
    for name in MEMORY_TOOLS {
        if chosen.iter().any(|tool| tool.name == name) {
            continue;
        }
        match candidates.iter().find(|tool| tool.name == name) {
            Some(tool) if !is_refused(tool) => {
                chosen.push(tool);
                grant.memory_only.push(name.to_owned());
            }
            _ => grant.warnings.push(format!("the memory of '{}' cannot be used fully: {name} is not allowed here", profile.name)),
        }
    }
}

/// Scoped entries become rules for the tools that were granted (R75).
fn rules(profile: &Profile, around: &Surroundings, granted: &[String], parent: &[ParentTool]) -> Vec<NarrowingRule> {
    let (ToolSelection::Inherit(entries) | ToolSelection::Only(entries)) = &profile.tools;
    let mut rules = Vec::new();
    for name in granted {
        let own = ParentTool { name: name.clone(), aliases: Vec::new() };
        let tool = parent.iter().find(|tool| tool.name == *name).unwrap_or(&own);
        let scopes = |entries: &[ToolEntry]| -> Vec<String> {
            entries.iter().filter(|entry| matches_entry(tool, &entry.name)).filter_map(|entry| entry.scope.clone()).collect()
        };
        let is_whole = |entries: &[ToolEntry]| entries.iter().any(|entry| entry.scope.is_none() && matches_entry(tool, &entry.name));
        let wanted = scopes(entries);
        if !wanted.is_empty() {
            rules.push(NarrowingRule::OnlyMatching { tool: name.clone(), scopes: wanted });
        }
        // A bound of the parent is the union of its entries: the whole tool beside a scope is the whole tool.
        if let Some(allowed) = around.allowed
            && !is_whole(allowed)
            && !scopes(allowed).is_empty()
        {
            rules.push(NarrowingRule::OnlyMatching { tool: name.clone(), scopes: scopes(allowed) });
        }
        let never = scopes(&profile.disallowed_tools).into_iter().chain(scopes(around.disallowed));
        rules.extend(never.map(|scope| NarrowingRule::NeverMatching { tool: name.clone(), scope }));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::super::profile::{Level, Origin};
    use super::*;

    fn profile(fields: &str) -> Profile {
        let text = format!("---\nname: a\ndescription: b\n{fields}\n---\nBody");
        parse(&text, Origin { level: Level::User, path: None, plugin: None }, false).profile.unwrap()
    }

    fn tool(name: &str) -> ParentTool {
        ParentTool { name: name.to_owned(), aliases: Vec::new() }
    }

    fn entries(names: &[&str]) -> Vec<ToolEntry> {
        names.iter().map(|name| ToolEntry { name: (*name).to_owned(), scope: None }).collect()
    }

    /// A parent with everything, never-available tools and two servers included.
    fn parent() -> Vec<ParentTool> {
        let mut tools = standard_tools();
        tools.extend(NEVER.iter().map(|name| tool(name)));
        tools.extend(["mcp__docs__find", "mcp__docs__read", "mcp__git_hub__open"].map(tool));
        tools
    }

    fn granted_with(fields: &str, change: impl FnOnce(&mut Surroundings)) -> Result<ToolGrant, ToolPolicyError> {
        let parent = parent();
        let servers = ["docs".to_owned(), "git hub".to_owned()];
        let mut around = Surroundings {
            parent: &parent,
            connected_servers: &servers,
            disallowed: &[],
            allowed: None,
            skills: true,
            skills_inherit: false,
            memory: true,
            role: ChildRole::Local,
            embedded_search: false,
        };
        change(&mut around);
        grant(&profile(fields), &around)
    }

    fn granted(fields: &str) -> ToolGrant {
        granted_with(fields, |_| ()).unwrap()
    }

    /// R91, R92, R97, R100, R101, R51, R6
    #[test]
    fn inheriting_takes_all_but_what_no_child_has() {
        let all = granted("");
        assert_eq!(granted("tools: *"), all);
        assert_eq!(granted("tools: []"), all);
        assert_eq!(all.tools.len(), CHILD_TOOLS.len() + 3);
        assert!(!all.tools.iter().any(|name| NEVER.contains(&name.as_str())), "{:?}", all.tools);
        assert!(all.tools.contains(&RESPOND_TO_COORDINATOR.to_owned()));
    }

    /// R92, R98, R102
    #[test]
    fn every_level_may_take_tools_away() {
        let left = granted_with("tools: Read, Bash, Grep, Write\ndisallowedTools: web_search Bash", |around| {
            around.disallowed = Box::leak(entries(&["grep"]).into_boxed_slice());
            around.allowed = Some(Box::leak(entries(&["Read", "Grep", "Bash"]).into_boxed_slice()));
        })
        .unwrap();
        assert_eq!(left.tools, ["Read", RESPOND_TO_COORDINATOR]);
        assert!(!granted("disallowedTools: mcp__*").tools.iter().any(|name| name.starts_with("mcp__")));
        assert_eq!(granted("disallowedTools: '*'").tools, [RESPOND_TO_COORDINATOR]);
    }

    /// R95, R97, R99
    #[test]
    fn a_list_gives_exactly_its_tools() {
        let listed = granted("tools: read, WEB_SEARCH, todo-write");
        assert_eq!(listed.tools, ["Read", RESPOND_TO_COORDINATOR, "TodoWrite", "WebSearch"]);
        assert!(listed.warnings.is_empty() && listed.rules.is_empty());
    }

    /// R76, R136
    #[test]
    fn patterns_name_the_tools_of_a_server() {
        assert_eq!(granted("tools: mcp__docs").tools, [RESPOND_TO_COORDINATOR, "mcp__docs__find", "mcp__docs__read"]);
        assert_eq!(granted("tools: mcp__docs__*, Read").tools.len(), 4);
        assert_eq!(granted("tools: mcp__docs__find").tools, [RESPOND_TO_COORDINATOR, "mcp__docs__find"]);
        let missing = granted_with("tools: Read, mcp__docs__gone", |_| ()).unwrap_err();
        assert_eq!(missing.to_string(), "Required MCP tool is not available: mcp__docs__gone");
    }

    /// R133, R135
    #[test]
    fn named_servers_bound_what_is_inherited_and_must_be_connected() {
        let scoped = granted("mcpServers: [git hub]");
        assert_eq!(scoped.tools.iter().filter(|name| name.starts_with("mcp__")).collect::<Vec<_>>(), ["mcp__git_hub__open"]);
        let missing = granted_with("mcpServers: [docs, x, y]", |_| ()).unwrap_err();
        assert_eq!(missing.to_string(), "Required MCP server is not connected: x, y");
        assert!(granted("tools: Read\nmcpServers: [docs]").warnings[0].contains("mcp__docs__*"));
    }

    /// R96, fault H9
    #[test]
    fn a_list_in_which_nothing_resolves_refuses_the_launch() {
        let error = granted_with("tools: Foo, Agent(p:n), NotebookEdit, mcp__none", |_| ()).unwrap_err().to_string();
        assert_eq!(
            error,
            "Cannot start subagent: no entry of the tools list of 'a' gives a usable tool: Foo (unknown), Agent(p:n) (not available to subagents), \
             NotebookEdit (unknown, Edit may be meant), mcp__none (matching nothing in this session); correct `tools` in the profile"
        );
        let refused = granted_with("tools: Bash\ndisallowedTools: Bash", |_| ()).unwrap_err().to_string();
        assert!(refused.contains("Bash (disallowed in this session)"), "{refused}");
        let some = granted("tools: Foo, Read");
        assert_eq!((some.tools.len(), some.warnings.len()), (2, 1));
    }

    /// R75
    #[test]
    fn scopes_become_rules_that_only_narrow() {
        let scoped = granted("tools: Bash(git:*), Bash(ls:*), Read\ndisallowedTools: Bash(git push:*)");
        assert_eq!(scoped.tools, ["Bash", "Read", RESPOND_TO_COORDINATOR]);
        assert_eq!(
            scoped.rules,
            [
                NarrowingRule::OnlyMatching { tool: "Bash".into(), scopes: vec!["git:*".into(), "ls:*".into()] },
                NarrowingRule::NeverMatching { tool: "Bash".into(), scope: "git push:*".into() },
            ]
        );
        assert_eq!(granted("tools: '*, Bash(git:*)'").rules.len(), 1);
    }

    /// R78, R90, R94
    #[test]
    fn skills_add_the_skill_tool() {
        assert_eq!(granted("skills: [x]").tools, [RESPOND_TO_COORDINATOR, "Skill"]);
        let inherits = granted_with("skills: [x]", |around| around.skills_inherit = true).unwrap();
        assert_eq!(inherits.tools, granted("tools: '*'\nskills: [x]").tools, "a setting");
        let listed = granted("tools: Read, Grep, Glob, Bash\nskills: code-review");
        assert_eq!(listed.tools, ["Bash", "Glob", "Grep", "Read", RESPOND_TO_COORDINATOR, "Skill"]);
        let refused = granted("tools: Read\nskills: x\ndisallowedTools: Skill");
        assert_eq!((refused.tools.len(), refused.warnings.len()), (2, 1));
        assert_eq!(granted_with("tools: Read\nskills: x", |around| around.skills = false).unwrap().warnings.len(), 1);
    }

    /// R270, R264
    #[test]
    fn memory_adds_confined_file_tools_beside_a_list() {
        let listed = granted("tools: Read, Bash\nmemory: project");
        assert_eq!(listed.tools, ["Bash", "Edit", "Read", RESPOND_TO_COORDINATOR, "Write"]);
        assert_eq!(listed.memory_only, ["Write", "Edit"]);
        assert!(granted("memory: project").memory_only.is_empty());
        assert!(granted_with("tools: Bash\nmemory: local", |around| around.memory = false).unwrap().memory_only.is_empty());
        let bounded = granted("tools: Bash\nmemory: local\ndisallowedTools: Write");
        assert_eq!((bounded.memory_only, bounded.warnings.len()), (vec!["Read".to_owned(), "Edit".to_owned()], 1));
    }

    #[test]
    fn a_process_child_has_nobody_to_answer_or_ask() {
        let process = granted_with("", |around| around.role = ChildRole::Process).unwrap();
        assert!(!process.tools.iter().any(|name| name == RESPOND_TO_COORDINATOR || name == "AskUserQuestion"));
    }

    /// R50
    #[test]
    fn embedded_search_takes_the_search_tools_from_explore_only() {
        let parent = parent();
        let around = Surroundings {
            parent: &parent,
            connected_servers: &[],
            disallowed: &[],
            allowed: None,
            skills: false,
            skills_inherit: false,
            memory: false,
            role: ChildRole::Local,
            embedded_search: true,
        };
        let explore = super::super::catalog::built_in().remove(1).profile.unwrap();
        assert_eq!(grant(&explore, &around).unwrap().tools, ["Bash", "Read", RESPOND_TO_COORDINATOR, "TodoWrite", "WebFetch", "WebSearch"]);
        assert!(grant(&profile("tools: Grep"), &around).unwrap().tools.contains(&"Grep".to_owned()));
    }
}
