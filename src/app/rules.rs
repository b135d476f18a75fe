//! The permission rules of a process: from settings, flags and a parent, each with the place where it stands; what names no
//! tool is refused or said.

use std::fmt;

use crate::app::AppError;
use crate::config::sections::nearest;
use crate::config::{Settings, Source};
use crate::permissions::rules::{Rule, RuleSet, split_list};
use crate::subagents::handover::Handover;

/// All rules of a process.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub set: RuleSet,
    pub places: Vec<RulePlace>,
    /// What has no effect; the caller shows each.
    pub notices: Vec<String>,
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePlace {
    /// `allow`, `ask` or `deny`.
    pub list: &'static str,
    pub rule: String,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Setting(Source),
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Setting(source) => write!(f, "{source}"),
            Place::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

pub const ALLOW_FLAG: &str = "--allowedTools";
pub const DENY_FLAG: &str = "--disallowedTools";

/// Tools that exist in some session. What starts with `mcp__` belongs to a server and is known only when that runs.
const TOOLS: &[&str] = &[
    "Agent",
    "AskUserQuestion",
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "Read",
    "RespondToCoordinator",
    "SendMessage",
    "Skill",
    "TaskOutput",
    "TaskStop",
    "TodoWrite",
    "WebFetch",
    "WebSearch",
    "Write",
    "subagent",
];

/// Tools of other programs of this kind: lists of rules are often carried over, and these take nothing away here.
const ELSEWHERE: &[&str] = &[
    "BashOutput",
    "EnterPlanMode",
    "ExitPlanMode",
    "KillBash",
    "KillShell",
    "LS",
    "ListMcpResources",
    "LSP",
    "NotebookRead",
    "ReadMcpResource",
    "SlashCommand",
    "TaskCreate",
    "TaskGet",
    "TaskList",
    "TaskUpdate",
    "TodoRead",
    "ToolSearch",
];

/// Reads all rules. A flag that names no tool is an error, since whoever typed it relies on it; a setting is only said.
pub(super) fn rules(settings: &Settings, allow: &[String], deny: &[String], handover: Option<&Handover>) -> Result<Rules, AppError> {
    let mut rules = Rules { set: settings.section("permissions")?.unwrap_or_default(), ..Rules::default() };
    for list in ["allow", "ask", "deny"] {
        for (rule, source) in settings.listed(&format!("permissions.{list}")) {
            let place = Place::Setting(source);
            if let Ok(parsed) = Rule::parse(&rule)
                && !is_known(&parsed)
            {
                rules.notices.push(format!("{place}: the rule `{rule}` has no effect: {}", no_tool(&parsed)));
            }
            rules.places.push(RulePlace { list, rule, place });
        }
    }
    // A child's allow rules are its parent's whole list; flags of its own could only widen it.
    let allow = if handover.is_some() { &[] } else { allow };
    let allowed = rules.add_flag(ALLOW_FLAG, "allow", allow)?;
    let denied = rules.add_flag(DENY_FLAG, "deny", deny)?;
    rules.set = std::mem::take(&mut rules.set).joined(RuleSet { allow: allowed, ask: Vec::new(), deny: denied });
    Ok(rules)
}

impl Rules {
    fn add_flag(&mut self, flag: &'static str, list: &'static str, given: &[String]) -> Result<Vec<Rule>, AppError> {
        let mut read = Vec::new();
        for text in given {
            let texts = split_list(text);
            if texts.is_empty() {
                return Err(AppError::EmptyRules { flag });
            }
            for text in texts {
                let rule = Rule::parse(&text).map_err(|source| AppError::Rule { place: flag, source })?;
                if !is_known(&rule) {
                    if !is_elsewhere(&rule) {
                        let nearest = nearest(rule.tool_name(), TOOLS.iter().copied()).map(str::to_owned);
                        return Err(AppError::UnknownTool { flag, rule: text, nearest });
                    }
                    self.notices.push(format!("{flag}: the rule `{text}` has no effect: {}", no_tool(&rule)));
                }
                self.places.push(RulePlace { list, rule: rule.to_string(), place: Place::Flag(flag) });
                read.push(rule);
            }
        }
        Ok(read)
    }
}

fn is_known(rule: &Rule) -> bool {
    rule.is_of_server() || TOOLS.iter().any(|tool| rule.is_for(tool))
}

fn is_elsewhere(rule: &Rule) -> bool {
    ELSEWHERE.iter().any(|tool| rule.is_for(tool))
}

fn no_tool(rule: &Rule) -> String {
    let name = rule.tool_name();
    match nearest(name, TOOLS.iter().copied()).filter(|_| !is_elsewhere(rule)) {
        Some(nearest) => format!("there is no tool `{name}`; did you mean `{nearest}`?"),
        None => format!("there is no tool `{name}` here"),
    }
}
