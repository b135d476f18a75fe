//! Profiles of agents as people read them in a terminal.

use serde_json::{Map, Value, json};

use super::agents::{Resolved, wish_note};
use crate::subagents::profiles::catalog::Replaced;
use crate::subagents::profiles::profile::Field;
use crate::subagents::profiles::tool_policy::NarrowingRule;
use crate::subagents::profiles::{Catalog, Definition, Diagnostic, Profile, Severity, ToolSelection};
use crate::text::fold::harmless_text;
use crate::text::units::one_line;

const DESCRIPTION_SHOWN_MAX: usize = 80;
const PROMPT_LINES_SHOWN_MAX: usize = 12;

/// A text of somebody else's file, safe for a terminal.
pub fn plain(text: &str) -> String {
    harmless_text(text)
}

/// How many diagnostics of each severity.
pub fn counts<'a>(diagnostics: impl IntoIterator<Item = &'a Diagnostic>) -> Value {
    let mut counts = Map::new();
    for severity in [Severity::Error, Severity::Warning, Severity::Info] {
        counts.insert(severity.as_str().to_owned(), json!(0));
    }
    for diagnostic in diagnostics {
        let count = &mut counts[diagnostic.severity.as_str()];
        *count = json!(count.as_u64().unwrap_or(0) + 1);
    }
    Value::Object(counts)
}

pub fn counts_line(counts: &Value) -> String {
    let of = |severity: Severity| counts[severity.as_str()].as_u64().unwrap_or(0);
    format!("{} errors, {} warnings, {} notes", of(Severity::Error), of(Severity::Warning), of(Severity::Info))
}

pub fn list(catalog: &Catalog) -> String {
    let width = catalog.definitions().map(|definition| definition.profile.name.chars().count()).max().unwrap_or(0).min(40);
    let mut out = String::new();
    for definition in catalog.definitions() {
        let profile = &definition.profile;
        let line = one_line(&profile.description, DESCRIPTION_SHOWN_MAX);
        out.push_str(&format!("{:<width$}  {:<12}  {}\n", plain(&profile.name), profile.origin.level.as_str(), plain(&line)));
        let indent = width + 2;
        if let Some(path) = &profile.origin.path {
            out.push_str(&format!("{:indent$}{}\n", "", plain(&path.display().to_string())));
        }
        let told = definition.diagnostics.iter().filter(|diagnostic| diagnostic.severity > Severity::Info).count();
        if told > 0 {
            out.push_str(&format!("{:indent$}{told} diagnostics: zapmyco agents show {}\n", "", plain(&profile.name)));
        }
    }
    if !catalog.replaced().is_empty() {
        out.push_str("\nNot in effect:\n");
        for replaced in catalog.replaced() {
            out.push_str(&plain(&format!(
                "{}  {}: {}",
                replaced.definition.profile.name,
                described(&replaced.definition.profile),
                replaced.reason
            )));
            out.push('\n');
        }
    }
    out
}

pub fn show(catalog: &Catalog, definition: &Definition, replaced: &[&Replaced], resolved: &Resolved) -> String {
    let profile = &definition.profile;
    let mut out = format!("{}\n  {}\n\n", profile.name, profile.description.replace('\n', "\n  "));
    let mut line = |label: &str, value: String| out.push_str(&format!("{label:<16} {value}\n"));
    line("source", described(profile));
    if !catalog.aliases(&profile.name).is_empty() {
        line("alias", catalog.aliases(&profile.name).join(", "));
    }
    match &resolved.tools {
        Ok(grant) => {
            line("tools", format!("{}  ({})", grant.tools.join(", "), source_of(profile, Field::Tools)));
            for rule in &grant.rules {
                line("  rule", rule_text(rule));
            }
            if !grant.memory_only.is_empty() {
                line("  memory only", grant.memory_only.join(", "));
            }
            grant.warnings.iter().for_each(|warning| line("  warning", warning.clone()));
        }
        Err(error) => line("tools", error.clone()),
    }
    if let ToolSelection::Only(entries) = &profile.tools
        && !entries.is_empty()
    {
        line("  written", entries.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    }
    match &resolved.model {
        Ok((model, origin)) => line("model", format!("{model}  ({origin})")),
        Err(error) => line("model", error.clone()),
    }
    if let Some(written) = &profile.model {
        let note = wish_note(written).map(|note| format!(", {note}")).unwrap_or_default();
        line("  written", format!("{written}  ({}{note})", source_of(profile, Field::Model)));
    }
    for (field, value) in fields(profile) {
        line(field.as_str(), format!("{value}  ({})", source_of(profile, field)));
    }
    profile.withheld.iter().for_each(|reason| line("withheld", reason.clone()));
    replaced.iter().for_each(|replaced| line("not in effect", format!("{}: {}", described(&replaced.definition.profile), replaced.reason)));
    definition.diagnostics.iter().for_each(|diagnostic| line("diagnostic", diagnostic.to_string()));
    let prompt: Vec<&str> = profile.prompt.lines().collect();
    out.push_str("\nprompt\n");
    for text in prompt.iter().take(PROMPT_LINES_SHOWN_MAX) {
        out.push_str(&format!("  {text}\n"));
    }
    if prompt.len() > PROMPT_LINES_SHOWN_MAX {
        out.push_str(&format!("  ... {} more lines; --json shows all\n", prompt.len() - PROMPT_LINES_SHOWN_MAX));
    }
    plain(&out)
}

/// Where a value comes from: file and line, or the default.
pub fn source_of(profile: &Profile, field: Field) -> String {
    match (&profile.origin.path, profile.line_of(field)) {
        (Some(path), Some(line)) => format!("{}:{line}", path.display()),
        (None, Some(_)) => format!("{} profile", profile.origin.level),
        _ => "default".to_owned(),
    }
}

fn described(profile: &Profile) -> String {
    match &profile.origin.path {
        Some(path) => format!("{} ({})", path.display(), profile.origin.level),
        None => profile.origin.level.as_str().to_owned(),
    }
}

fn rule_text(rule: &NarrowingRule) -> String {
    match rule {
        NarrowingRule::OnlyMatching { tool, scopes } => format!("{tool}: only calls matching {}", scopes.join(" or ")),
        NarrowingRule::NeverMatching { tool, scope } => format!("{tool}: no call matching {scope}"),
    }
}

/// The other fields with a value, and those whose default matters.
fn fields(profile: &Profile) -> Vec<(Field, String)> {
    let list = |names: &[String]| names.join(", ");
    let mut shown = Vec::new();
    let mut add = |field: Field, value: Option<String>| shown.extend(value.map(|value| (field, value)));
    let disallowed: Vec<String> = profile.disallowed_tools.iter().map(ToString::to_string).collect();
    add(Field::DisallowedTools, Some(list(&disallowed)).filter(|_| !disallowed.is_empty()));
    add(Field::ThoughtLevel, profile.thought_level.clone());
    add(Field::Effort, profile.effort.map(|effort| effort.to_string()));
    add(Field::Skills, profile.skills.as_ref().map(|skills| list(skills)));
    let servers = profile.mcp_servers.as_ref().map(|servers| servers.iter().map(|server| server.name().to_owned()).collect::<Vec<_>>());
    add(Field::McpServers, servers.map(|servers| list(&servers)));
    let mode = if profile.is_held_to_reading() { "yolo, held to reading" } else { "inherited" };
    add(Field::PermissionMode, Some(profile.permission_mode.map_or(mode, |mode| mode.as_str()).to_owned()));
    add(Field::Memory, profile.memory.map(|scope| scope.as_str().to_owned()));
    add(Field::MaxTurns, profile.max_turns.map(|turns| turns.to_string()));
    add(Field::MaxTokens, profile.bounds.max_tokens.map(|tokens| tokens.to_string()));
    add(Field::MaxBudgetUsd, profile.bounds.max_budget_usd.map(|usd| usd.to_string()));
    add(Field::MaxMinutes, profile.bounds.max_minutes.map(|minutes| minutes.to_string()));
    add(Field::AutoBackgroundMs, profile.bounds.auto_background_ms.map(|ms| ms.to_string()));
    add(Field::Background, Some(profile.background.to_string()));
    add(Field::InjectAgentsMd, Some(profile.inject_agents_md.to_string()));
    add(Field::Color, profile.color.map(|color| color.to_string()));
    add(Field::Hooks, profile.hooks.as_ref().map(|_| "written, not run yet".to_owned()));
    add(Field::Isolation, profile.isolation.map(|_| "worktree, without effect yet".to_owned()));
    add(Field::InitialPrompt, profile.initial_prompt.as_ref().map(|_| "written, without effect yet".to_owned()));
    shown
}
