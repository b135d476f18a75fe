//! Raw fields to a profile: the one place that obeys a field of a file. What a field may set depends on the level of
//! the file; what is dropped is told (R73 to R90).

use std::num::{NonZeroU32, NonZeroU64};
use std::path::Path;

use serde_json::{Map, Value};

use super::bounds::{self, Bounds};
use super::matching;
use super::model_choice::{self, Wish};
use super::profile::{
    ChildMode, Color, Effort, Field, Isolation, Level, McpServer, MemoryScope, Origin, Profile, ToolEntry, ToolSelection,
};
use super::tool_list;
use super::tool_policy;
use crate::frontmatter::{self, Code, Diagnostic, RawField, Severity, Vocabulary};
use crate::hooks::{HookSet, Problem};

/// What reading one source gave. Without a profile there is at least one diagnostic.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    pub profile: Option<Profile>,
    pub diagnostics: Vec<Diagnostic>,
}

/// Longest name; it becomes part of ids, folders and rules.
const NAME_MAX: usize = 128;

/// Reads the text of a profile file. `trusted`: a person has trusted the workspace the file belongs to.
pub fn parse(text: &str, origin: Origin, trusted: bool) -> Parsed {
    match frontmatter::split::<Field>(text) {
        Ok(document) => build(document.fields, document.body, document.notes, origin, trusted),
        Err(frontmatter::NoFrontmatter(diagnostic)) => {
            let line = diagnostic.line;
            Parsed { profile: None, diagnostics: vec![diagnostic.at(origin.path.as_deref(), line)] }
        }
    }
}

/// Why `--agents` was refused as a whole: what is typed for one run is corrected, not skipped.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineProfilesError {
    #[error("`--agents` is not JSON: {source}")]
    NotJson {
        #[source]
        source: serde_json::Error,
    },
    #[error("`--agents` must be an object of names and objects")]
    NotAnObject,
    #[error("agent `{name}` in `--agents` must be an object with `description` and `prompt`")]
    ProfileNotAnObject { name: String },
    #[error("agent `{name}` in `--agents` has the unknown field `{field}`; known: prompt, {known}", known = Field::known())]
    UnknownField { name: String, field: String },
    #[error("agent `{name}` in `--agents`: {reason}; {remedy}")]
    Unusable { name: String, reason: String, remedy: String },
}

/// Reads `--agents '<json>'` (R60).
pub fn parse_command_line(json: &str) -> Result<Vec<Parsed>, CommandLineProfilesError> {
    let value: Value = serde_json::from_str(json).map_err(|source| CommandLineProfilesError::NotJson { source })?;
    let Value::Object(profiles) = value else { return Err(CommandLineProfilesError::NotAnObject) };
    profiles.into_iter().map(|(name, body)| command_line_profile(name, body)).collect()
}

fn command_line_profile(name: String, body: Value) -> Result<Parsed, CommandLineProfilesError> {
    let Value::Object(body) = body else { return Err(CommandLineProfilesError::ProfileNotAnObject { name }) };
    let mut prompt = String::new();
    let raw = |key: &str, value: Value| RawField { key: key.to_owned(), line: 0, text: text_of(&value), value: Some(value) };
    let mut fields = vec![raw("name", Value::String(name.clone()))];
    for (key, value) in body {
        match key.as_str() {
            "prompt" => match value {
                Value::String(text) => prompt = text,
                other => {
                    let reason = format!("`prompt` is {other}, not a text");
                    return Err(CommandLineProfilesError::Unusable { name, reason, remedy: "write the prompt as a string".into() });
                }
            },
            "name" => return Err(CommandLineProfilesError::UnknownField { name, field: key }),
            _ if Field::ALL.iter().any(|field| field.as_str() == key) => fields.push(raw(&key, value)),
            _ => return Err(CommandLineProfilesError::UnknownField { name, field: key }),
        }
    }
    let origin = Origin { level: Level::CommandLine, path: None, plugin: None };
    let parsed = build(fields, prompt, Vec::new(), origin, true);
    match (&parsed.profile, parsed.diagnostics.iter().find(|diagnostic| diagnostic.severity == Severity::Error)) {
        (None, Some(fault)) => Err(CommandLineProfilesError::Unusable { name, reason: fault.reason.clone(), remedy: fault.remedy.clone() }),
        _ => Ok(parsed),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// From fields to a profile, in the order the diagnostics are read: keys, then values, then what does not fit together.
fn build(fields: Vec<RawField>, body: String, notes: Vec<Diagnostic>, origin: Origin, trusted: bool) -> Parsed {
    let mut reader = Reader { origin, trusted, diagnostics: notes, withheld: Vec::new(), unheld: Vec::new(), known: Vec::new() };
    for field in fields {
        reader.take(field);
    }
    let mut profile = reader.profile(body);
    let path = reader.origin.path.clone();
    let mut diagnostics = reader.diagnostics;
    for diagnostic in &mut diagnostics {
        diagnostic.path.clone_from(&path);
        diagnostic.line = diagnostic.line.filter(|line| *line > 0);
    }
    diagnostics.sort_by_key(|diagnostic| diagnostic.line);
    if let Some(profile) = &mut profile {
        let unheld = diagnostics.iter().filter(|diagnostic| reader.unheld.contains(&diagnostic.reason));
        profile.unheld = unheld.map(ToString::to_string).collect();
    }
    Parsed { profile, diagnostics }
}

struct Reader {
    origin: Origin,
    trusted: bool,
    diagnostics: Vec<Diagnostic>,
    withheld: Vec<String>,
    /// Reasons of the diagnostics about restrictions that cannot hold.
    unheld: Vec<String>,
    known: Vec<(Field, RawField)>,
}

impl Reader {
    fn tell(&mut self, code: Code, severity: Severity, line: u32, reason: impl Into<String>, remedy: impl Into<String>) {
        self.diagnostics.push(Diagnostic::new(code, severity, reason, remedy).at(None, Some(line)));
    }

    fn get(&self, field: Field) -> Option<RawField> {
        self.known.iter().find(|(known, _)| *known == field).map(|(_, raw)| raw.clone())
    }

    /// A file of the project that nobody has trusted.
    fn is_untrusted_project(&self) -> bool {
        self.origin.level == Level::Project && !self.trusted
    }

    /// Sorts one key: known, known by another spelling, unknown, or there already.
    fn take(&mut self, raw: RawField) {
        let Some(field) = Field::from_any_spelling(&raw.key) else {
            self.unknown_field(&raw);
            return;
        };
        if let Some((_, first)) = self.known.iter().find(|(known, _)| *known == field) {
            let reason = format!("`{}` is set a second time; line {} holds", raw.key, first.line);
            self.tell(Code::DuplicateField, Severity::Warning, raw.line, reason, "remove one of the two");
            return;
        }
        if raw.key != field.as_str() && !self.accepts_foreign(field, &raw) {
            return;
        }
        self.known.push((field, raw));
    }

    /// A foreign spelling is obeyed where it cannot give a right (fault H16), and told in every case.
    fn accepts_foreign(&mut self, field: Field, raw: &RawField) -> bool {
        let could_raise = match field {
            Field::PermissionMode => !raw.text.trim().eq_ignore_ascii_case("plan"),
            Field::Hooks | Field::Memory => true,
            _ => false,
        };
        let (severity, effect) = if could_raise {
            (Severity::Warning, "it was left out, since it sets rights")
        } else {
            (Severity::Info, "it was read as that")
        };
        let reason = format!("`{}` is not the spelling of `{field}`; {effect}", raw.key);
        self.tell(Code::ForeignSpelling, severity, raw.line, reason, format!("write `{field}`"));
        !could_raise
    }

    fn unknown_field(&mut self, raw: &RawField) {
        let nearest = matching::nearest(Field::ALL.iter().map(|field| field.as_str()), &raw.key);
        let (severity, remedy) = match nearest {
            Some(field) => (Severity::Warning, format!("write `{field}` if that is meant, or remove the line")),
            None => (Severity::Info, format!("remove the line, or keep it for another program; known fields: {}", Field::known())),
        };
        let key: String = raw.key.chars().take(NAME_MAX).collect();
        self.tell(Code::UnknownField, severity, raw.line, format!("the field `{key}` is unknown and has no effect"), remedy);
    }

    fn profile(&mut self, body: String) -> Option<Profile> {
        let name = self.name();
        let description = self.description();
        let (Some(name), Some(description)) = (name, description) else { return None };
        let skills = self.names(Field::Skills);
        let (tools, disallowed_tools) = self.tools(skills.is_some());
        let model = self.model();
        let prompt_is_empty = body.is_empty();
        let profile = Profile {
            name,
            description,
            prompt: body,
            tools,
            disallowed_tools,
            model,
            thought_level: self.word(Field::ThoughtLevel),
            effort: self.effort(),
            preload_skills: self.preload_skills(skills.is_some()),
            skills,
            mcp_servers: self.mcp_servers(),
            permission_mode: self.permission_mode(),
            memory: self.memory(),
            max_turns: self.max_turns(),
            bounds: self.bounds(),
            background: self.boolean(Field::Background, false),
            inject_agents_md: self.boolean(Field::InjectAgentsMd, true),
            color: self.color(),
            hooks: self.hooks(),
            isolation: self.isolation(),
            initial_prompt: self.initial_prompt(),
            withheld: std::mem::take(&mut self.withheld),
            unheld: Vec::new(),
            lines: self.known.iter().filter(|(_, raw)| raw.line > 0).map(|(field, raw)| (*field, raw.line)).collect(),
            origin: self.origin.clone(),
        };
        if prompt_is_empty {
            let reason = "the profile has no prompt: nothing stands below the frontmatter";
            self.tell(Code::EmptyPrompt, Severity::Warning, 1, reason, "write the child's instructions below the closing `---`");
        }
        Some(profile)
    }

    /// Required, safe to show on one line, to use in a rule `Agent(name)` and as a part of a folder name.
    fn name(&mut self) -> Option<String> {
        let Some(raw) = self.get(Field::Name) else {
            self.missing(Field::Name);
            return None;
        };
        let name = prose(&raw);
        if name.is_empty() {
            self.missing(Field::Name);
            return None;
        }
        if let Some(reason) = name_fault(&name) {
            let remedy = "use letters, digits, blanks, `-`, `_` and `.`, beginning with a letter or digit";
            self.tell(Code::InvalidName, Severity::Error, raw.line, format!("the name {name:?} {reason}"), remedy);
            return None;
        }
        match (&self.origin.level, &self.origin.plugin) {
            (Level::Plugin, Some(plugin)) => Some(format!("{plugin}:{name}")),
            _ => Some(name),
        }
    }

    fn description(&mut self) -> Option<String> {
        let Some(raw) = self.get(Field::Description) else {
            self.missing(Field::Description);
            return None;
        };
        let description = prose(&raw).replace("\\n", "\n");
        if description.is_empty() {
            self.missing(Field::Description);
            return None;
        }
        let read_plainly = !raw.text.starts_with(['"', '\'', '|', '>']);
        if raw.value.is_some() && read_plainly && raw.text.contains(" #") && !description.contains('#') {
            let reason = "the text after ` #` in the description was read as a comment";
            self.tell(Code::CommentCut, Severity::Info, raw.line, reason, "put the description into quotes to keep it");
        }
        Some(description)
    }

    fn missing(&mut self, field: Field) {
        let other = if field == Field::Name { Field::Description } else { Field::Name };
        let line = self.get(field).or_else(|| self.get(other)).map_or(1, |raw| raw.line);
        let reason = format!("the required field `{field}` is missing or empty, so the file gives no agent");
        self.tell(Code::MissingRequired, Severity::Error, line, reason, format!("add a line `{field}: ...` between the `---` lines"));
    }

    /// A short text; empty counts as not written.
    fn word(&self, field: Field) -> Option<String> {
        let raw = self.get(field)?;
        let text = match &raw.value {
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(Value::Null) => String::new(),
            _ => without_comment(&raw.text),
        };
        (!text.is_empty()).then_some(text)
    }

    fn invalid(&mut self, code: Code, severity: Severity, field: Field, expected: &str) {
        let Some(raw) = self.get(field) else { return };
        let written: String = raw.text.lines().next().unwrap_or("").chars().take(80).collect();
        let reason = format!("`{field}: {written}` is not valid and has no effect");
        if severity == Severity::Error && field != Field::AutoBackgroundMs {
            self.unheld.push(reason.clone());
        }
        self.tell(code, severity, raw.line, reason, format!("write {expected}"));
    }

    fn boolean(&mut self, field: Field, default: bool) -> bool {
        let Some(raw) = self.get(field) else { return default };
        let word = match raw.value {
            Some(Value::Bool(value)) => return value,
            _ => self.word(field).unwrap_or_default().to_lowercase(),
        };
        match word.as_str() {
            "true" | "yes" | "on" => true,
            "false" | "no" | "off" => false,
            _ => {
                self.invalid(Code::InvalidValue, Severity::Warning, field, "`true` or `false`");
                default
            }
        }
    }

    /// 1 or more, as a number or a text of digits (fault D3).
    fn max_turns(&mut self) -> Option<NonZeroU32> {
        let raw = self.get(Field::MaxTurns)?;
        let turns = match &raw.value {
            Some(Value::Number(number)) => number.as_u64().and_then(|turns| u32::try_from(turns).ok()),
            _ => self.word(Field::MaxTurns).and_then(|text| text.parse().ok()),
        }
        .and_then(NonZeroU32::new);
        if turns.is_none() {
            self.invalid(
                Code::InvalidMaxTurns,
                Severity::Error,
                Field::MaxTurns,
                "a whole number of turns from 1 on; the child would run without a turn limit",
            );
        }
        turns
    }

    fn preload_skills(&mut self, has_skills: bool) -> bool {
        let wanted = self.boolean(Field::PreloadSkills, false);
        if wanted && !has_skills {
            self.invalid(
                Code::InvalidValue,
                Severity::Warning,
                Field::PreloadSkills,
                "`skills: ...` too: only skills that are named are preloaded",
            );
        }
        wanted && has_skills
    }

    fn bounds(&mut self) -> Bounds {
        let expected = "a whole number from 1 on; the child would run without this bound";
        Bounds {
            max_tokens: self.bound(Field::MaxTokens, expected, |value, word| bounds::whole(value, word).and_then(NonZeroU64::new)),
            max_budget_usd: self.bound(Field::MaxBudgetUsd, "dollars above 0, such as 0.50", bounds::amount),
            max_minutes: self.bound(Field::MaxMinutes, expected, |value, word| {
                bounds::whole(value, word).and_then(|number| u32::try_from(number).ok()).and_then(NonZeroU32::new)
            }),
            auto_background_ms: self.bound(Field::AutoBackgroundMs, "milliseconds as a whole number; 0 for never", bounds::whole),
        }
    }

    fn bound<T>(&mut self, field: Field, expected: &str, read: impl Fn(Option<&Value>, Option<&str>) -> Option<T>) -> Option<T> {
        let raw = self.get(field)?;
        let word = self.word(field);
        let bound = read(raw.value.as_ref(), word.as_deref());
        if bound.is_none() {
            self.invalid(Code::InvalidValue, Severity::Error, field, expected);
        }
        bound
    }

    fn color(&mut self) -> Option<Color> {
        let word = self.word(Field::Color)?;
        let color = Color::from_word(&word);
        if color.is_none() {
            self.invalid(Code::InvalidColor, Severity::Warning, Field::Color, &format!("one of {}", Color::known()));
        }
        color
    }

    fn effort(&mut self) -> Option<Effort> {
        let word = self.word(Field::Effort)?;
        let effort = Effort::from_word(&word);
        if effort.is_none() {
            self.invalid(Code::InvalidValue, Severity::Warning, Field::Effort, &format!("one of {}", Effort::known()));
        }
        effort
    }

    fn isolation(&mut self) -> Option<Isolation> {
        let word = self.word(Field::Isolation)?;
        if word.eq_ignore_ascii_case("worktree") {
            return Some(Isolation::Worktree);
        }
        if !word.eq_ignore_ascii_case("none") {
            self.invalid(Code::InvalidValue, Severity::Warning, Field::Isolation, "`worktree`, or leave it out");
        }
        None
    }

    fn initial_prompt(&mut self) -> Option<String> {
        let raw = self.get(Field::InitialPrompt)?;
        self.not_supported(Field::InitialPrompt, "a child's first message is the prompt of the call");
        Some(prose(&raw)).filter(|text| !text.is_empty())
    }

    fn not_supported(&mut self, field: Field, instead: &str) {
        let line = self.get(field).map_or(1, |raw| raw.line);
        let reason = format!("`{field}` is kept but has no effect yet: {instead}");
        self.tell(Code::NotSupported, Severity::Warning, line, reason, "do not rely on it; remove the line to silence this");
    }

    /// A right that was written and does not hold: told at load, and again in the result of a run.
    fn withhold(&mut self, field: Field, reason: &str, remedy: &str) {
        let line = self.get(field).map_or(1, |raw| raw.line);
        let reason = format!("`{field}` was left out: {reason}");
        self.withheld.push(reason.clone());
        self.tell(Code::RightWithheld, Severity::Warning, line, reason, remedy);
    }

    fn hooks(&mut self) -> Option<Value> {
        let raw = self.get(Field::Hooks)?;
        match self.origin.level {
            Level::Plugin => {
                self.withhold(Field::Hooks, "profiles of plugins cannot bring hooks", "move the hooks to your settings");
                return None;
            }
            Level::Project if self.is_untrusted_project() => {
                self.withhold(Field::Hooks, "it stands in a project that is not trusted", "`zapmyco trust` shows it and asks");
                return None;
            }
            Level::BuiltIn | Level::User | Level::Project | Level::CommandLine => {}
        }
        let Some(hooks @ Value::Object(_)) = raw.value else {
            self.invalid(Code::InvalidValue, Severity::Warning, Field::Hooks, "a mapping of event names");
            return None;
        };
        let line = raw.line;
        for Problem { key, fault, .. } in HookSet::of_profile(&hooks, "profile").1 {
            self.tell(Code::InvalidValue, Severity::Warning, line, format!("`{key}`: {fault}"), fault.remedy());
        }
        Some(hooks)
    }

    fn permission_mode(&mut self) -> Option<ChildMode> {
        let word = self.word(Field::PermissionMode)?;
        if self.origin.level == Level::Project {
            self.withhold(Field::PermissionMode, "a project's files cannot set it", "set it in a user profile, or remove the line");
            return None;
        }
        match word.to_lowercase().replace(['-', '_'], "").as_str() {
            "auto" | "dontask" => Some(ChildMode::Auto),
            "plan" => Some(ChildMode::Plan),
            "default" | "inherit" => None,
            word => {
                // These would only widen; anything else may have been meant to narrow.
                let severity =
                    if matches!(word, "acceptedits" | "bypasspermissions" | "yolo") { Severity::Warning } else { Severity::Error };
                let expected = "`auto` or `plan`, or leave it out to inherit; no value widens the rights of the parent";
                self.invalid(Code::InvalidPermissionMode, severity, Field::PermissionMode, expected);
                None
            }
        }
    }

    fn memory(&mut self) -> Option<MemoryScope> {
        let word = self.word(Field::Memory)?;
        match word.to_lowercase().as_str() {
            "user" if self.is_untrusted_project() => {
                let reason = "the user's private notes would be shown to a project that is not trusted; the child runs without memory";
                self.withhold(Field::Memory, reason, "write `memory: project`, or move the profile to the user level");
                None
            }
            "user" => Some(MemoryScope::User),
            "project" => Some(MemoryScope::Project),
            "local" => Some(MemoryScope::Local),
            _ => {
                self.invalid(Code::InvalidMemoryScope, Severity::Warning, Field::Memory, "`user`, `project` or `local`");
                None
            }
        }
    }

    fn model(&mut self) -> Option<String> {
        let word = self.word(Field::Model)?;
        if let Wish::Unreadable(_) = model_choice::read_wish(&word) {
            let raw_line = self.get(Field::Model).map_or(1, |raw| raw.line);
            let reason = format!("the model `{word}` names no provider, so the agent cannot be started unless the settings map this name");
            let remedy =
                "write `provider/model`, `provider/model$level`, `inherit`, or map the name under `[agents.models]` in settings.toml";
            self.tell(Code::InvalidModel, Severity::Warning, raw_line, reason, remedy);
        }
        Some(word)
    }

    /// A list of names, as a list or a line.
    fn names(&mut self, field: Field) -> Option<Vec<String>> {
        let raw = self.get(field)?;
        let parts = |line: &str| -> Vec<String> {
            let inline = line.trim().trim_start_matches('[').trim_end_matches(']');
            let separator = |c: char| c == ',' || c == '\n' || c.is_whitespace();
            inline
                .split(separator)
                .map(|part| part.trim_matches(['"', '\'']))
                .filter(|part| !part.is_empty() && *part != "-")
                .map(str::to_owned)
                .collect()
        };
        let mut names = match &raw.value {
            Some(Value::Null) => Vec::new(),
            Some(Value::String(line)) => parts(line),
            Some(Value::Array(items)) => items.iter().map(text_of).collect(),
            None => raw.text.lines().flat_map(|line| parts(&without_comment(line))).collect(),
            Some(Value::Object(_) | Value::Bool(_) | Value::Number(_)) => {
                self.invalid(Code::InvalidValue, Severity::Warning, field, "a list of names");
                return None;
            }
        };
        let mut seen = Vec::new();
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(name.clone());
                true
            }
        });
        Some(names)
    }

    /// A list of server names; definitions only where the file's level may bring servers (R79).
    fn mcp_servers(&mut self) -> Option<Vec<McpServer>> {
        let raw = self.get(Field::McpServers)?;
        let Some(Value::Array(items)) = raw.value else {
            let expected = "a list such as `mcpServers: [github, docs]`";
            self.invalid(Code::InvalidMcpServers, Severity::Warning, Field::McpServers, expected);
            return None;
        };
        let mut servers = Vec::new();
        for item in items {
            match item {
                Value::String(name) if !name.trim().is_empty() => servers.push(McpServer::Named(name.trim().to_owned())),
                Value::Object(map) => servers.extend(self.inline_server(map)),
                _ => self.invalid(Code::InvalidMcpServers, Severity::Warning, Field::McpServers, "names of servers as texts"),
            }
        }
        if servers.iter().any(|server| matches!(server, McpServer::Named(_))) {
            self.not_supported(Field::McpServers, "there are no connections to MCP servers, so the agent cannot be started");
        } else if !servers.is_empty() {
            self.not_supported(Field::McpServers, "servers of profiles are not started");
        }
        Some(servers)
    }

    fn inline_server(&mut self, map: Map<String, Value>) -> Option<McpServer> {
        let (name, definition) = match inline_definition(map) {
            Some(found) => found,
            None => {
                let expected = "an inline server as `- NAME: {command: ...}`";
                self.invalid(Code::InvalidMcpServers, Severity::Warning, Field::McpServers, expected);
                return None;
            }
        };
        let reason = match self.origin.level {
            Level::Plugin => format!("profiles of plugins cannot define the server `{name}`"),
            Level::Project if self.is_untrusted_project() => format!("the project that defines the server `{name}` is not trusted"),
            Level::BuiltIn | Level::User | Level::Project | Level::CommandLine => return Some(McpServer::Inline { name, definition }),
        };
        self.withhold(Field::McpServers, &reason, "define the server in your own mcp.json and name it here");
        None
    }

    fn tools(&mut self, has_skills: bool) -> (ToolSelection, Vec<ToolEntry>) {
        let mut disallowed = Vec::new();
        if let Some(raw) = self.get(Field::DisallowedTools) {
            let list = tool_list::read(raw.value.as_ref(), &raw.text);
            self.tell_list(Field::DisallowedTools, &raw, &list);
            if list.everything {
                disallowed.push(ToolEntry { name: "*".into(), scope: None });
            }
            disallowed.extend(list.entries);
        }
        let Some(raw) = self.get(Field::Tools) else {
            if has_skills {
                let line = self.get(Field::Skills).map_or(1, |raw| raw.line);
                let reason = "`skills` without `tools` gives the child the tool Skill and no other";
                self.tell(
                    Code::SkillsWithoutTools,
                    Severity::Warning,
                    line,
                    reason,
                    "write `tools: *` to inherit all tools as well, or set `agents.skills_inherit_tools`",
                );
                return (ToolSelection::Only(Vec::new()), disallowed);
            }
            return (ToolSelection::Inherit(Vec::new()), disallowed);
        };
        let list = tool_list::read(raw.value.as_ref(), &raw.text);
        self.tell_list(Field::Tools, &raw, &list);
        if list.is_empty() {
            let reason = "`tools` is empty, which means: inherit all tools of the parent";
            self.tell(Code::EmptyTools, Severity::Info, raw.line, reason, "write `tools: *` to say so, or list the tools");
        }
        disallowed.extend(list.refused);
        let scoped: Vec<ToolEntry> = list.entries.iter().filter(|entry| entry.scope.is_some()).cloned().collect();
        if list.everything || (list.entries.is_empty() && list.unreadable.is_empty()) {
            return (ToolSelection::Inherit(scoped), disallowed);
        }
        if list.entries.iter().all(|entry| tool_policy::standing(&entry.name) != tool_policy::Standing::Usable) {
            let written: Vec<String> = list.entries.iter().map(ToString::to_string).chain(list.unreadable).collect();
            let reason = format!("none of the tools {} can be used by an agent, so it cannot be started", written.join(", "));
            self.tell(Code::NoUsableTool, Severity::Error, raw.line, reason, "name tools that exist, such as Read, Grep, Glob, Bash");
        }
        (ToolSelection::Only(list.entries), disallowed)
    }

    fn tell_list(&mut self, field: Field, raw: &RawField, list: &tool_list::ToolList) {
        for part in &list.unreadable {
            let reason = format!("`{part}` in `{field}` is no tool name and was left out");
            let severity = self.unknown_tool(field, true, &reason);
            self.tell(Code::UnknownTool, severity, raw.line, reason, "write names such as `Read` or `Bash(git:*)`, separated by commas");
        }
        for part in &list.repeated {
            self.tell(Code::InvalidValue, Severity::Info, raw.line, format!("`{part}` stands twice in `{field}`"), "remove one of the two");
        }
        for entry in &list.entries {
            self.tell_entry(field, raw.line, entry, list);
        }
    }

    /// How bad a tool is that nobody knows: a tool that was to be refused and is not, keeps the agent from starting.
    fn unknown_tool(&mut self, field: Field, may_be_ours: bool, reason: &str) -> Severity {
        if field != Field::DisallowedTools || !may_be_ours {
            return Severity::Warning;
        }
        self.unheld.push(reason.to_owned());
        Severity::Error
    }

    fn tell_entry(&mut self, field: Field, line: u32, entry: &ToolEntry, list: &tool_list::ToolList) {
        match tool_policy::standing(&entry.name) {
            tool_policy::Standing::Usable if tool_policy::is_mcp(&entry.name) && field == Field::Tools => {
                let reason = format!("`{entry}` is a tool of an MCP server; there are no connections to such servers yet");
                self.tell(Code::NotSupported, Severity::Warning, line, reason, "do not rely on it; remove it to silence this");
            }
            tool_policy::Standing::Usable => {}
            tool_policy::Standing::NotForChildren if field == Field::DisallowedTools => {}
            tool_policy::Standing::NotForChildren => {
                let reason = format!("`{entry}` is not available to subagents and was left out");
                self.tell(Code::UnknownTool, Severity::Info, line, reason, "remove it from the list");
            }
            tool_policy::Standing::Unknown { instead } => {
                let remedy =
                    instead.map_or_else(|| "correct the name or remove it".to_owned(), |name| format!("write `{name}` if that is meant"));
                let reason = format!("the tool `{}` in `{field}` is unknown", entry.name);
                // Tools of other programs cannot be used here anyway; a misspelled one of ours would be left in the child's hands.
                let nearest = matching::nearest(tool_policy::child_tools().iter().copied(), &entry.name).filter(|_| instead.is_none());
                let severity = self.unknown_tool(field, nearest.is_some(), &reason);
                let remedy = nearest.map_or(remedy, |name| format!("write `{name}` if that is meant"));
                self.tell(Code::UnknownTool, severity, line, reason, remedy);
            }
        }
        let Some(scope) = &entry.scope else { return };
        let whole_too = list.everything || list.entries.iter().any(|other| other.name == entry.name && other.scope.is_none());
        let effect = match field {
            Field::DisallowedTools => "only matching calls are denied",
            _ if whole_too => "it narrows although the whole tool is listed too; calls that do not match are denied",
            _ => "the tool is granted and calls that do not match are denied",
        };
        let reason = format!("`{}({scope})` was read as a rule: {effect}", entry.name);
        self.tell(Code::ScopedTool, Severity::Info, line, reason, "nothing, if that is meant; a match is no approval");
    }
}

/// Claude Code writes `- NAME: {...}`; a mapping with `name` inside is understood too.
fn inline_definition(mut map: Map<String, Value>) -> Option<(String, Value)> {
    if let Some(Value::String(name)) = map.get("name").cloned() {
        map.shift_remove("name");
        return Some((name, Value::Object(map)));
    }
    let mut entries = map.into_iter();
    match (entries.next(), entries.next()) {
        (Some((name, definition @ Value::Object(_))), None) => Some((name, definition)),
        _ => None,
    }
}

/// A text as a person reads it: what YAML takes for a number, a date or a mapping is its spelling.
fn prose(raw: &RawField) -> String {
    match &raw.value {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Null) => String::new(),
        Some(_) => without_comment(&raw.text),
        None => raw.text.trim().to_owned(),
    }
}

fn without_comment(text: &str) -> String {
    frontmatter::unquoted(text.split(" #").next().unwrap_or(text).trim())
}

/// Why a name cannot be used (R73, fault H14).
pub fn name_fault(name: &str) -> Option<&'static str> {
    if name.chars().count() > NAME_MAX {
        return Some("is longer than 128 characters");
    }
    if name.starts_with(['-', '.']) {
        return Some("begins with `-` or `.`");
    }
    if name.chars().any(char::is_control) {
        return Some("holds a line break or another control character");
    }
    if name.contains([':', '/', '\\', '(', ')', '<', '>', ',', '*', '"', '\'', '`']) {
        return Some("holds one of : / \\ ( ) < > , * or a quote");
    }
    matching::fold(name).is_empty().then_some("holds no letter or digit")
}

/// The scope of a diagnostic that concerns a whole file.
pub(crate) fn unreadable(path: &Path, line: Option<u32>, reason: String, remedy: &str) -> Diagnostic {
    frontmatter::reading::unreadable(Code::ReadFailed, path, line, reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::profile::Level;
    use super::*;

    fn parse_at(level: Level, fields: &str) -> Parsed {
        let text = format!("---\nname: a\ndescription: b\n{fields}\n---\nBody");
        parse(&text, Origin { level, path: None, plugin: None }, false)
    }

    fn profile(level: Level, fields: &str) -> Profile {
        parse_at(level, fields).profile.unwrap()
    }

    fn codes(parsed: &Parsed) -> Vec<(Code, Option<u32>)> {
        parsed.diagnostics.iter().map(|diagnostic| (diagnostic.code, diagnostic.line)).collect()
    }

    fn only(profile: &Profile) -> Vec<String> {
        match &profile.tools {
            ToolSelection::Only(entries) => entries.iter().map(ToString::to_string).collect(),
            ToolSelection::Inherit(_) => panic!("inherits"),
        }
    }

    /// R55, R90
    #[test]
    fn the_documented_example_loads_without_diagnostics() {
        let text = "---\nname: code-reviewer\ndescription: Reviews changes for bugs and style\ntools: Read, Grep, Glob, Bash\nmodel: inherit\nskills: code-review\ncolor: purple\n---\n\nYou review code. Report each finding with file and line.\n";
        let parsed = parse(text, Origin { level: Level::User, path: None, plugin: None }, false);
        assert_eq!(parsed.diagnostics, []);
        let profile = parsed.profile.unwrap();
        assert_eq!(only(&profile), ["Read", "Grep", "Glob", "Bash"]);
        assert_eq!(profile.skills, Some(vec!["code-review".to_owned()]));
        assert_eq!(profile.color, Some(Color::Purple));
        assert_eq!(profile.prompt, "You review code. Report each finding with file and line.");
    }

    /// R63, R73
    #[test]
    fn name_and_description_are_required() {
        for (text, missing) in [
            ("---\ndescription: b\n---\nx", "name"),
            ("---\nname: a\n---\nx", "description"),
            ("---\nname: a\ndescription: ''\n---\n", "description"),
        ] {
            let parsed = parse(text, Origin { level: Level::User, path: None, plugin: None }, false);
            assert!(parsed.profile.is_none());
            let fault = parsed.diagnostics.iter().find(|fault| fault.code == Code::MissingRequired).unwrap();
            assert!(fault.reason.contains(missing) && fault.line.is_some(), "{fault}");
        }
    }

    /// R73, fault H14
    #[test]
    fn names_that_are_paths_markup_or_flags_are_refused() {
        for name in ["../../x", "a:b", "-x", "\"a\\nb\"", "a/b", "<b>", "___", "..", "x(y)", &"x".repeat(129)] {
            let parsed = parse(
                &format!("---\nname: {name}\ndescription: b\n---\nBody"),
                Origin { level: Level::User, path: None, plugin: None },
                false,
            );
            assert!(parsed.profile.is_none(), "{name}");
            assert!(parsed.diagnostics.iter().any(|fault| fault.code == Code::InvalidName), "{name}: {:?}", parsed.diagnostics);
        }
        for (name, read) in [("Code Reviewer", "Code Reviewer"), ("1.10", "1.10"), ("no", "no"), ("审查", "审查")] {
            let parsed = parse(
                &format!("---\nname: {name}\ndescription: b\n---\nBody"),
                Origin { level: Level::User, path: None, plugin: None },
                false,
            );
            assert_eq!(parsed.profile.unwrap().name, read);
        }
    }

    /// R73
    #[test]
    fn a_written_line_break_in_a_description_is_one() {
        let parsed =
            parse("---\nname: a\ndescription: one\\ntwo\n---\nBody", Origin { level: Level::User, path: None, plugin: None }, false);
        assert_eq!(parsed.profile.unwrap().description, "one\ntwo");
    }

    /// R80
    #[test]
    fn only_auto_and_plan_change_the_mode() {
        for (word, mode, told) in [
            ("auto", Some(ChildMode::Auto), false),
            ("plan", Some(ChildMode::Plan), false),
            ("default", None, false),
            ("dontAsk", Some(ChildMode::Auto), false),
            ("acceptEdits", None, true),
            ("bypassPermissions", None, true),
            ("yolo", None, true),
        ] {
            let parsed = parse_at(Level::User, &format!("permissionMode: {word}"));
            assert_eq!(parsed.profile.as_ref().unwrap().permission_mode, mode, "{word}");
            assert_eq!(parsed.diagnostics.iter().any(|fault| fault.code == Code::InvalidPermissionMode), told, "{word}");
        }
    }

    /// R81, fault H16
    #[test]
    fn a_project_file_raises_no_right_in_any_spelling() {
        for key in ["permissionMode", "PERMISSIONMODE", "permission-mode", "permission_mode", "PermissionMode"] {
            for word in ["auto", "plan"] {
                let parsed = parse_at(Level::Project, &format!("{key}: {word}"));
                assert_eq!(parsed.profile.as_ref().unwrap().permission_mode, None);
                assert!(!parsed.diagnostics.is_empty(), "{key}: {word}");
            }
        }
        let spelled = parse_at(Level::User, "permission-mode: auto");
        assert_eq!((spelled.profile.as_ref().unwrap().permission_mode, codes(&spelled)), (None, vec![(Code::ForeignSpelling, Some(4))]));
        assert_eq!(profile(Level::User, "permission-mode: plan").permission_mode, Some(ChildMode::Plan));
        let narrowed = profile(Level::Project, "disallowed-tools: Bash\nmax_turns: 3");
        assert_eq!((narrowed.disallowed_tools.len(), narrowed.max_turns.map(NonZeroU32::get)), (1, Some(3)));
    }

    /// R79, R81
    #[test]
    fn hooks_and_servers_of_a_project_wait_for_trust() {
        let fields = "hooks:\n  Stop: []\nmcpServers:\n  - docs\n  - own: {command: x}";
        let parsed = parse_at(Level::Project, fields);
        let profile = parsed.profile.unwrap();
        assert_eq!((&profile.hooks, &profile.mcp_servers), (&None, &Some(vec![McpServer::Named("docs".into())])));
        assert_eq!(profile.withheld.len(), 2);
        let user = super::tests::profile(Level::User, fields);
        assert!(user.hooks.is_some() && user.mcp_servers.unwrap().len() == 2);
        let plugin = parse(
            &format!("---\nname: a\ndescription: b\n{fields}\n---\nx"),
            Origin { level: Level::Plugin, path: None, plugin: Some("kit".into()) },
            true,
        );
        assert_eq!(plugin.profile.unwrap().hooks, None);
    }

    /// R79
    #[test]
    fn a_mapping_or_a_bare_word_is_no_list_of_servers() {
        for value in ["github", "{github: {command: x}}", "true"] {
            let parsed = parse_at(Level::User, &format!("mcpServers: {value}"));
            assert_eq!(parsed.profile.as_ref().unwrap().mcp_servers, None);
            assert_eq!(codes(&parsed), [(Code::InvalidMcpServers, Some(4))], "{value}");
        }
    }

    /// R82
    #[test]
    fn memory_has_three_scopes_and_the_users_notes_need_trust() {
        assert_eq!(profile(Level::Project, "memory: project").memory, Some(MemoryScope::Project));
        assert_eq!(profile(Level::User, "memory: user").memory, Some(MemoryScope::User));
        assert_eq!(profile(Level::User, "memory: local").memory, Some(MemoryScope::Local));
        let shown = profile(Level::Project, "memory: user");
        assert_eq!((shown.memory, shown.withheld.len()), (None, 1));
        assert_eq!(codes(&parse_at(Level::User, "memory: everything")), [(Code::InvalidMemoryScope, Some(4))]);
    }

    /// R83, fault D3
    #[test]
    fn a_turn_limit_is_read_or_told() {
        assert_eq!(profile(Level::User, "maxTurns: 1").max_turns.map(NonZeroU32::get), Some(1));
        assert_eq!(profile(Level::User, "maxTurns: \"5\"").max_turns.map(NonZeroU32::get), Some(5));
        for wrong in ["0", "-1", "2.5", "many", "99999999999"] {
            let parsed = parse_at(Level::User, &format!("maxTurns: {wrong}"));
            assert_eq!(parsed.profile.as_ref().unwrap().max_turns, None);
            assert_eq!(codes(&parsed), [(Code::InvalidMaxTurns, Some(4))], "{wrong}");
        }
    }

    /// R173, R186
    #[test]
    fn bounds_are_read_or_told() {
        let set = profile(Level::User, "maxTokens: 5000\nmaxBudgetUsd: 0.5\nmaxMinutes: \"3\"\nautoBackgroundMs: 0").bounds;
        let read = (set.max_tokens.map(NonZeroU64::get), set.max_budget_usd.map(|usd| usd.dollars()), set.max_minutes.map(NonZeroU32::get));
        assert_eq!((read, set.auto_background_ms), ((Some(5000), Some(0.5), Some(3)), Some(0)));
        for wrong in ["maxTokens: 0", "maxTokens: 2.5", "maxBudgetUsd: -1", "maxBudgetUsd: much", "maxMinutes: 0", "autoBackgroundMs: -1"] {
            let parsed = parse_at(Level::User, wrong);
            assert_eq!(parsed.profile.as_ref().unwrap().bounds, Bounds::default(), "{wrong}");
            assert_eq!(codes(&parsed), [(Code::InvalidValue, Some(4))], "{wrong}");
        }
    }

    /// R84, R85, R86, R64
    #[test]
    fn flags_and_colours_are_checked() {
        let plain = profile(Level::User, "");
        assert!(!plain.background && plain.inject_agents_md && plain.color.is_none());
        let set = profile(Level::User, "background: true\ninjectAgentsMd: 'no'\ncolor: Cyan");
        assert!(set.background && !set.inject_agents_md && set.color == Some(Color::Cyan));
        assert_eq!(codes(&parse_at(Level::User, "color: beige")), [(Code::InvalidColor, Some(4))]);
        assert_eq!(codes(&parse_at(Level::User, "background: maybe")), [(Code::InvalidValue, Some(4))]);
    }

    /// R64
    #[test]
    fn unknown_fields_and_tools_are_told() {
        let parsed = parse_at(Level::User, "modle: x\ntools: Read, Bsah, LS\nversion: 1");
        assert_eq!(
            codes(&parsed),
            [(Code::UnknownField, Some(4)), (Code::UnknownTool, Some(5)), (Code::UnknownTool, Some(5)), (Code::UnknownField, Some(6))]
        );
        assert!(parsed.diagnostics[0].remedy.contains("`model`") && parsed.diagnostics[2].remedy.contains("`Glob`"));
        assert_eq!(only(&parsed.profile.unwrap()), ["Read", "Bsah", "LS"]);
    }

    /// fault H9
    #[test]
    fn a_list_of_unknown_tools_is_an_error_at_load_that_names_them() {
        let parsed = parse_at(Level::User, "tools: Foo, Bar");
        let fault = parsed.diagnostics.iter().find(|fault| fault.code == Code::NoUsableTool).unwrap();
        assert!(fault.severity == Severity::Error && fault.reason.contains("Foo, Bar"), "{fault}");
    }

    /// R75
    #[test]
    fn a_scope_is_kept_and_told() {
        let parsed = parse_at(Level::User, "tools: Bash(git:*), Read\ndisallowedTools: Bash(git push:*)");
        assert_eq!(codes(&parsed), [(Code::ScopedTool, Some(4)), (Code::ScopedTool, Some(5))]);
        let profile = parsed.profile.unwrap();
        assert_eq!(only(&profile), ["Bash(git:*)", "Read"]);
        assert_eq!(profile.disallowed_tools[0].scope.as_deref(), Some("git push:*"));
    }

    /// R91, R94
    #[test]
    fn empty_lists_and_lonely_skills_are_told() {
        let empty = parse_at(Level::User, "tools: []");
        assert_eq!(
            (codes(&empty), &empty.profile.unwrap().tools),
            (vec![(Code::EmptyTools, Some(4))], &ToolSelection::Inherit(Vec::new()))
        );
        let skills = parse_at(Level::User, "skills: [a]");
        assert_eq!(
            (codes(&skills), &skills.profile.unwrap().tools),
            (vec![(Code::SkillsWithoutTools, Some(4))], &ToolSelection::Only(Vec::new()))
        );
        let both = parse_at(Level::User, "skills: [a]\ntools: *");
        assert_eq!((codes(&both), &both.profile.unwrap().tools), (vec![], &ToolSelection::Inherit(Vec::new())));
    }

    /// R87
    #[test]
    fn what_is_not_supported_is_told_and_kept() {
        let parsed = parse_at(Level::User, "isolation: worktree\ninitialPrompt: go\neffort: high\nhooks: {Stop: []}");
        assert_eq!(codes(&parsed), [(Code::NotSupported, Some(5))]);
        let profile = parsed.profile.unwrap();
        assert!(profile.hooks.is_some());
        let wrong = parse_at(Level::User, "hooks: {Stopp: [], Stop: [{matcher: 'a(', hooks: [{command: x}]}]}");
        assert_eq!(codes(&wrong), [(Code::InvalidValue, Some(4)), (Code::InvalidValue, Some(4))]);
        assert_eq!(
            (profile.isolation, profile.initial_prompt.as_deref(), profile.effort),
            (Some(Isolation::Worktree), Some("go"), Some(Effort::High))
        );
    }

    /// R89
    #[test]
    fn comments_lists_and_quotes_are_yaml() {
        let profile = profile(Level::User, "tools: # which\n  - Read # a\n  - 'Grep'\nskills: [a, \"b\"] # two\nmodel: zai/glm # fast");
        assert_eq!(only(&profile), ["Read", "Grep"]);
        assert_eq!((profile.skills.unwrap().len(), profile.model.as_deref()), (2, Some("zai/glm")));
        let cut = parse("---\nname: a\ndescription: Fix issue #12\n---\nx", Origin { level: Level::User, path: None, plugin: None }, false);
        assert_eq!(codes(&cut), [(Code::CommentCut, Some(3))]);
    }

    #[test]
    fn a_second_value_of_a_field_is_told_and_the_first_holds() {
        let parsed = parse_at(Level::User, "color: red\ncolor: blue");
        assert_eq!(parsed.profile.as_ref().unwrap().color, Some(Color::Red));
        assert!(codes(&parsed).contains(&(Code::DuplicateField, Some(5))), "{:?}", codes(&parsed));
    }

    /// R60
    #[test]
    fn command_line_profiles_are_exact() {
        let good = parse_command_line(
            r#"{"scout": {"description": "d", "prompt": "p", "tools": ["Read"], "maxTurns": 3, "permissionMode": "plan"}}"#,
        )
        .unwrap();
        let profile = good[0].profile.as_ref().unwrap();
        assert_eq!((profile.name.as_str(), profile.prompt.as_str(), profile.permission_mode), ("scout", "p", Some(ChildMode::Plan)));
        assert_eq!(profile.origin.level, Level::CommandLine);
        for (json, part) in [
            ("{", "not JSON"),
            ("[]", "must be an object"),
            (r#"{"a": 1}"#, "agent `a`"),
            (r#"{"a": {"description": "d", "prompt": "p", "tool": "Read"}}"#, "unknown field `tool`"),
            (r#"{"a": {"description": "d", "prompt": "p", "max_turns": 1}}"#, "unknown field `max_turns`"),
            (r#"{"a": {"prompt": "p"}}"#, "`description` is missing"),
            (r#"{"a:b": {"description": "d", "prompt": "p"}}"#, "holds one of"),
        ] {
            let error = parse_command_line(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    /// R42, R43, R41, R45, R52, R54, R390
    #[test]
    fn the_built_in_profiles_are_as_documented() {
        let built_in = super::super::catalog::built_in();
        assert!(built_in.iter().all(|parsed| parsed.diagnostics.is_empty()), "{built_in:?}");
        let [general, explore, plan] =
            built_in.iter().map(|parsed| parsed.profile.clone().unwrap()).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((general.name.as_str(), explore.name.as_str()), ("general-purpose", "Explore"));
        assert_eq!(general.tools, ToolSelection::Inherit(Vec::new()));
        assert_eq!(only(&explore), ["Bash", "Glob", "Grep", "Read", "WebFetch", "WebSearch", "TodoWrite"]);
        assert!(general.inject_agents_md && !explore.inject_agents_md);
        assert_eq!((general.color, explore.color), (Some(Color::Blue), Some(Color::Cyan)));
        assert!(explore.is_built_in_explore() && !general.is_built_in_explore());
        assert!(general.permission_mode.is_none() && general.prompt.contains("zapmyco"));
        assert_eq!((plan.name.as_str(), &plan.tools, plan.inject_agents_md), ("Plan", &explore.tools, true));
        assert!(explore.is_held_to_reading() && plan.is_held_to_reading() && !general.is_held_to_reading());
        assert!(plan.prompt.starts_with("READ-ONLY"));
    }

    /// R49, R48
    #[test]
    fn the_prompt_of_explore_opens_with_the_ban_and_asks_for_a_report() {
        let built_in = super::super::catalog::built_in();
        let prompt = |at: usize| built_in[at].profile.clone().unwrap().prompt;
        assert!(prompt(1).starts_with("READ-ONLY") && prompt(1).contains("absolute paths"));
        assert!(prompt(0).contains("nothing beside it") && prompt(0).contains("report"));
    }
}
