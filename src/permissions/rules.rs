//! `Tool` and `Tool(specifier)` rules: parse, match, suggest (R280 to R283, R287).
//!
//! Pure: paths come in both forms, the disk is never looked at.

mod commands;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::{Deserialize, Serialize};

use crate::permissions::fetching::Domain;
use crate::permissions::paths::{PathForms, cleaned};
use crate::permissions::shell_command::{Line, Part};

/// One rule as written, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    text: String,
    /// Letter case and separators folded, aliases resolved.
    tool: String,
    specifier: Option<Specifier>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Specifier {
    /// A shell command, whole.
    Exact(String),
    /// A shell command and whatever arguments follow.
    Prefix(String),
    /// A shell command with `*` for any text.
    Wildcard(String),
    /// The type of an agent (R68, R281).
    AgentType(String),
    /// Where a page may come from (R281).
    Domain(Domain),
    Path(PathPattern),
}

/// A gitignore-style pattern and the folder it counts from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PathPattern {
    anchor: Anchor,
    pattern: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    /// `//abs`
    Root,
    /// `~/`
    Home,
    /// `/from the project folder`, or relative to the working directory; both are the workspace.
    Workspace,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("the rule is empty; write `Tool` or `Tool(specifier)`")]
    Empty,
    #[error("`{rule}` is no rule: the name of a tool holds letters, digits, `_` and `-` only; write `Tool` or `Tool(specifier)`")]
    BadName { rule: String },
    #[error("`{rule}` is no rule: the bracket is not closed; write `Tool(specifier)`")]
    Unclosed { rule: String },
    #[error("`{rule}`: {tool} takes no specifier; it is known for Agent, Bash, Read, Edit, Write, Glob, Grep and WebFetch; write `{tool}`")]
    NoSpecifier { rule: String, tool: String },
    #[error("`{rule}`: pages are named by their host; write `{tool}(domain:example.com)` or `{tool}(domain:*.example.com)`")]
    NoDomain { rule: String, tool: String },
    #[error("`{rule}`: `!` does not turn a pattern round; put the exception into another list")]
    Negated { rule: String },
    #[error("`{rule}`: bad path pattern: {reason}")]
    BadPattern { rule: String, reason: String },
}

/// The three lists, evaluated in the order deny, ask, allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSet {
    #[serde(default)]
    pub allow: Vec<Rule>,
    #[serde(default)]
    pub ask: Vec<Rule>,
    #[serde(default)]
    pub deny: Vec<Rule>,
}

impl RuleSet {
    /// All rules of both; the order inside a list does not matter.
    pub fn joined(mut self, other: RuleSet) -> Self {
        self.allow.extend(other.allow);
        self.ask.extend(other.ask);
        self.deny.extend(other.deny);
        self
    }

    /// The deny rule that forbids agents of this type, if there is one. A pattern may hold `*`.
    pub fn denies_agent(&self, agent_type: &str) -> Option<&Rule> {
        self.deny.iter().find(|rule| {
            matches!(&rule.specifier, Some(Specifier::AgentType(pattern))
                if wildcard_matches(&pattern.to_lowercase(), &agent_type.to_lowercase()))
        })
    }

    /// Whether a deny rule without specifier takes the whole tool away, so that it need not be offered (R287).
    pub fn removes(&self, tool: &str, aliases: &[&str]) -> bool {
        self.deny.iter().any(|rule| rule.specifier.is_none() && rule.names(tool, aliases))
    }
}

/// Splits what a person wrote after `--allowedTools`: at commas and spaces outside brackets.
pub fn split_list(text: &str) -> Vec<String> {
    let mut rules = vec![String::new()];
    let mut depth = 0_u32;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (c == ',' || c.is_whitespace()) {
            rules.push(String::new());
        } else if let Some(last) = rules.last_mut() {
            last.push(c);
        }
    }
    rules.retain(|rule| !rule.is_empty());
    rules
}

impl Rule {
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(RuleError::Empty);
        }
        let rule = || text.to_owned();
        let (name, inner) = match text.split_once('(') {
            None => (text, None),
            Some((name, rest)) => (name.trim_end(), Some(rest.strip_suffix(')').ok_or_else(|| RuleError::Unclosed { rule: rule() })?)),
        };
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        // `mcp__server__*` is the server
        let name = if is_of_server(name) { name.strip_suffix("__*").unwrap_or(name) } else { name };
        if name.is_empty() || !name.chars().all(is_name_char) {
            return Err(RuleError::BadName { rule: rule() });
        }
        let tool = canonical(name);
        let specifier = match inner.map(str::trim) {
            None | Some("" | "*") => None,
            Some(inner) => Some(Specifier::parse(text, name, &tool, inner)?),
        };
        Ok(Self { text: rule(), tool, specifier })
    }

    /// Whether the rule is for this tool by name; case style does not matter (R99), `Task` is `Agent`, Edit rules cover Write.
    fn names(&self, tool: &str, aliases: &[&str]) -> bool {
        let is_named = |name: &str| {
            let name = canonical(name);
            name == self.tool || (self.tool == EDIT && name == WRITE) || is_tool_of_server(&name, &self.tool)
        };
        is_named(tool) || aliases.iter().any(|alias| is_named(alias))
    }

    /// The tool it names, as written.
    pub fn tool_name(&self) -> &str {
        self.text.split('(').next().unwrap_or_default().trim_end()
    }

    /// Whether it is for tools of a server, whose names are known only when it runs.
    pub fn is_of_server(&self) -> bool {
        is_of_server(&self.text)
    }

    /// Whether it is for the tool of this name.
    pub fn is_for(&self, tool: &str) -> bool {
        self.names(tool, &[])
    }

    fn path_pattern(&self) -> Option<&PathPattern> {
        match &self.specifier {
            Some(Specifier::Path(pattern)) => Some(pattern),
            Some(Specifier::Exact(_) | Specifier::Prefix(_) | Specifier::Wildcard(_) | Specifier::AgentType(_) | Specifier::Domain(_))
            | None => None,
        }
    }
}

/// Rules with their path patterns compiled for one workspace.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) rule: Rule,
    matchers: Vec<Gitignore>,
}

/// What a rule is held against.
pub(crate) enum Target<'a> {
    Nothing,
    Reading(&'a PathForms),
    Writing(&'a PathForms),
    /// The whole line, as written.
    Command {
        text: &'a str,
    },
    /// A page of this host, in lower case and without brackets.
    Fetching {
        host: &'a str,
    },
}

/// What a rule for commands has found in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its place among the line's parts; `None` for the line as a whole or its text.
    pub(crate) part: Option<usize>,
    /// Else it may become what the rule is about only when it runs.
    pub(crate) is_certain: bool,
}

/// The tool of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    pub(crate) aliases: &'a [&'a str],
}

impl CompiledRule {
    /// `home` may be missing: then no path lies below it and `~/` rules match nothing.
    pub(crate) fn new(rule: Rule, workspace: &PathForms, home: Option<&PathForms>) -> Self {
        let mut matchers = Vec::new();
        if let Some(pattern) = rule.path_pattern() {
            let root_folder = PathForms { written: PathBuf::from("/"), real: PathBuf::from("/") };
            let base = match pattern.anchor {
                Anchor::Root => Some(&root_folder),
                Anchor::Home => home,
                Anchor::Workspace => Some(workspace),
            };
            let mut roots: Vec<&Path> = base.into_iter().flat_map(|base| [base.written.as_path(), base.real.as_path()]).collect();
            roots.dedup();
            matchers.extend(roots.into_iter().filter_map(|root| compiled(root, &pattern.pattern).ok()));
        }
        Self { rule, matchers }
    }

    /// For deny and ask: one covered path or one covered command is enough. `Read` rules hold for whatever reads, and
    /// block editing too; `Edit` rules hold for whatever writes (R283).
    pub(crate) fn restricts(&self, tool: Named<'_>, target: &Target<'_>) -> bool {
        let is_named = self.rule.names(tool.name, tool.aliases);
        let Some(specifier) = &self.rule.specifier else { return is_named };
        match target {
            Target::Nothing => false,
            Target::Reading(path) => (is_named || self.rule.tool == READ) && (self.covers(&path.written) || self.covers(&path.real)),
            Target::Writing(path) => {
                let applies = is_named || self.rule.tool == READ || self.rule.tool == EDIT;
                applies && (self.covers(&path.written) || self.covers(&path.real))
            }
            // asked for by `found_in`, which says where
            Target::Command { .. } => false,
            Target::Fetching { host } => is_named && matches!(specifier, Specifier::Domain(domain) if domain.restricts(host)),
        }
    }

    /// Where a deny or ask rule for commands finds what it is about.
    pub(crate) fn found_in(&self, tool: Named<'_>, text: &str, line: &Line) -> Option<Found> {
        if !self.rule.names(tool.name, tool.aliases) {
            return None;
        }
        match &self.rule.specifier {
            None => Some(Found { part: None, is_certain: true }),
            Some(specifier) => specifier.found_in(text, line),
        }
    }

    /// For allow and paths: written form and real form must be covered, by this rule.
    pub(crate) fn allows(&self, tool: Named<'_>, target: &Target<'_>) -> bool {
        let is_named = self.rule.names(tool.name, tool.aliases);
        if self.rule.specifier.is_none() {
            return is_named;
        }
        match target {
            Target::Nothing => false,
            Target::Reading(path) => (is_named || self.rule.tool == READ) && self.covers(&path.written) && self.covers(&path.real),
            Target::Writing(path) => (is_named || self.rule.tool == EDIT) && self.covers(&path.written) && self.covers(&path.real),
            Target::Command { text } => is_named && self.allows_line_exactly(text),
            Target::Fetching { host } => is_named && self.covers_host(host),
        }
    }

    fn allows_line_exactly(&self, line: &str) -> bool {
        matches!(&self.rule.specifier, Some(Specifier::Exact(exact)) if exact == line.trim())
    }

    /// Whether the rule allows this one command of a line. One whose program is decided only when it runs must be written in
    /// the rule as it stands.
    pub(crate) fn allows_part(&self, tool: Named<'_>, part: &Part) -> bool {
        if !self.rule.names(tool.name, tool.aliases) {
            return false;
        }
        match &self.rule.specifier {
            None => true,
            Some(Specifier::Exact(exact)) => *exact == part.text || *exact == part.bare_text(),
            Some(specifier) => part.program().is_some() && specifier.matches_command(part.bare_text()),
        }
    }

    /// Whether the rule, which allows a command, speaks of what that command starts too: its fixed text names it.
    pub(crate) fn reaches(&self, head: &str) -> bool {
        self.rule.specifier.as_ref().is_none_or(|specifier| specifier.reaches(head))
    }

    /// Whether the path lies in its scope, in both forms; a rule without scope covers all.
    pub(crate) fn covers_path(&self, path: &PathForms) -> bool {
        self.rule.specifier.is_none() || (self.covers(&path.written) && self.covers(&path.real))
    }

    /// Whether one command lies in its scope.
    pub(crate) fn covers_command(&self, command: &str) -> bool {
        self.rule.specifier.as_ref().is_none_or(|specifier| specifier.matches_command(command))
    }

    /// Whether a host lies in its scope.
    pub(crate) fn covers_host(&self, host: &str) -> bool {
        match &self.rule.specifier {
            None => true,
            Some(Specifier::Domain(domain)) => domain.covers(host),
            Some(Specifier::Exact(_) | Specifier::Prefix(_) | Specifier::Wildcard(_) | Specifier::AgentType(_) | Specifier::Path(_)) => {
                false
            }
        }
    }

    /// Whether it keeps files from being read, so that searching and listing must leave them out.
    pub(crate) fn hides(&self, path: &PathForms) -> bool {
        self.rule.tool == READ && (self.covers(&path.written) || self.covers(&path.real))
    }

    pub(crate) fn is_read_path_rule(&self) -> bool {
        self.rule.tool == READ && self.rule.specifier.is_some()
    }

    pub(crate) fn is_path_rule(&self) -> bool {
        !self.matchers.is_empty()
    }

    /// Whether it is for what writes files.
    pub(crate) fn is_edit_rule(&self) -> bool {
        self.rule.tool == EDIT || self.rule.tool == WRITE
    }

    fn covers(&self, path: &Path) -> bool {
        self.matchers.iter().any(|matcher| {
            // a path outside would make the matcher panic
            path != matcher.path()
                && path.strip_prefix(matcher.path()).is_ok()
                && matcher.matched_path_or_any_parents(path, false).is_ignore()
        })
    }
}

/// The rule that would allow writing exactly this file.
pub(crate) fn suggest_path(tool: &str, path: &Path) -> String {
    let mut escaped = String::from("/");
    for c in path.to_string_lossy().chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '!' | '#') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    format!("{tool}({escaped})")
}

/// The rule that would allow commands like this one: its program with the subcommand, where there is one.
pub(crate) fn suggest_command(part: &Part) -> Option<String> {
    const WITH_SUBCOMMANDS: &[&str] =
        &["cargo", "docker", "gh", "git", "go", "just", "kubectl", "make", "npm", "npx", "pip", "pnpm", "poetry", "uv", "yarn"];
    let program = part.words.first().filter(|word| is_plain(&word.text))?;
    let subcommand = part
        .words
        .get(1)
        .filter(|word| WITH_SUBCOMMANDS.contains(&program.text.as_str()) && !word.text.starts_with('-') && is_plain(&word.text));
    match subcommand {
        Some(subcommand) => Some(format!("Bash({} {}:*)", program.text, subcommand.text)),
        None => Some(format!("Bash({}:*)", program.text)),
    }
}

const READ: &str = "read";
const EDIT: &str = "edit";
const WRITE: &str = "write";

fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+'))
}

fn is_of_server(name: &str) -> bool {
    name.get(..MCP.len()).is_some_and(|start| start.eq_ignore_ascii_case(MCP))
}

/// `mcp__server` is a rule for each of its tools.
fn is_tool_of_server(tool: &str, rule: &str) -> bool {
    let is_server = rule.strip_prefix(MCP).is_some_and(|server| !server.is_empty() && !server.contains("__"));
    is_server && tool.strip_prefix(rule).is_some_and(|rest| rest.starts_with("__"))
}

/// How the tools of other servers are named: `mcp__server__tool`.
const MCP: &str = "mcp__";

/// Names compare without case style; old names of the same tool count as one. In the names of servers and their tools the
/// separators have a meaning.
fn canonical(name: &str) -> String {
    if is_of_server(name) {
        return name.to_lowercase();
    }
    let folded: String = name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect();
    match folded.as_str() {
        "task" => "agent".to_owned(),
        "multiedit" | "notebookedit" => EDIT.to_owned(),
        "fetch" => "webfetch".to_owned(),
        _ => folded,
    }
}

impl Specifier {
    fn parse(rule: &str, name: &str, tool: &str, inner: &str) -> Result<Self, RuleError> {
        match tool {
            "bash" => Ok(Self::command(inner)),
            "agent" => Ok(Self::AgentType(inner.to_owned())),
            "webfetch" => {
                let no_domain = || RuleError::NoDomain { rule: rule.to_owned(), tool: name.to_owned() };
                Domain::parse(inner).map(Self::Domain).ok_or_else(no_domain)
            }
            READ | EDIT | WRITE | "glob" | "grep" => PathPattern::parse(rule, inner).map(Self::Path),
            _ => Err(RuleError::NoSpecifier { rule: rule.to_owned(), tool: name.to_owned() }),
        }
    }

    fn command(inner: &str) -> Self {
        match inner.strip_suffix(":*") {
            Some(prefix) => Self::Prefix(prefix.trim_end().to_owned()),
            None if inner.contains('*') => Self::Wildcard(inner.to_owned()),
            None => Self::Exact(inner.to_owned()),
        }
    }
}

fn begins_with(command: &str, prefix: &str) -> bool {
    command.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// `*` stands for any text. Linear in practice: only the last star is ever tried again.
fn wildcard_matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((star_p, star_t)) = star {
            star = Some((star_p, star_t + 1));
            p = star_p + 1;
            t = star_t + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

impl PathPattern {
    fn parse(rule: &str, inner: &str) -> Result<Self, RuleError> {
        if inner.starts_with('!') {
            return Err(RuleError::Negated { rule: rule.to_owned() });
        }
        let (anchor, pattern) = if let Some(absolute) = inner.strip_prefix("//") {
            (Anchor::Root, format!("/{absolute}"))
        } else if let Some(below) = inner.strip_prefix("~/") {
            (Anchor::Home, format!("/{below}"))
        } else if inner == "~" {
            (Anchor::Home, "/**".to_owned())
        } else if let Some(relative) = inner.strip_prefix("./") {
            (Anchor::Workspace, format!("/{relative}"))
        } else {
            (Anchor::Workspace, inner.to_owned())
        };
        if pattern.split('/').any(|component| component == "..") {
            let reason = "`..` does not match; write the folder as `//absolute/path`".to_owned();
            return Err(RuleError::BadPattern { rule: rule.to_owned(), reason });
        }
        let bad = |reason: String| RuleError::BadPattern { rule: rule.to_owned(), reason };
        let matcher = compiled(Path::new("/"), &pattern).map_err(|error| bad(error.to_string()))?;
        if matcher.is_empty() {
            return Err(bad("it covers nothing".to_owned()));
        }
        Ok(Self { anchor, pattern })
    }
}

fn compiled(root: &Path, pattern: &str) -> Result<Gitignore, ignore::Error> {
    let mut builder = GitignoreBuilder::new(cleaned(root));
    // a leading `#` would be a comment
    let escaped = if pattern.starts_with('#') { format!("\\{pattern}") } else { pattern.to_owned() };
    builder.add_line(None, if pattern == "/" { "/**" } else { &escaped })?;
    builder.build()
}

impl FromStr for Rule {
    type Err = RuleError;
    fn from_str(text: &str) -> Result<Self, RuleError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Rule {
    type Error = RuleError;
    fn try_from(text: String) -> Result<Self, RuleError> {
        Self::parse(&text)
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> String {
        rule.text
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
