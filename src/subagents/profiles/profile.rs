//! What a profile says, as plain data. Made by `parse.rs` only; kept whole in the metadata of a run, so that a resumed
//! child has the profile it was started with.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::bounds::Bounds;
use crate::frontmatter::{Code, Codes, Vocabulary};

/// A named description of a child: its prompt, what it may use and how it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// The canonical name; `<plugin>:<name>` for a profile of a plugin.
    pub name: String,
    pub description: String,
    /// The body of the file: the child's system prompt.
    pub prompt: String,
    pub origin: Origin,
    pub tools: ToolSelection,
    pub disallowed_tools: Vec<ToolEntry>,
    /// As written; `model_choice` gives it meaning when a child is launched.
    pub model: Option<String>,
    pub thought_level: Option<String>,
    pub effort: Option<Effort>,
    /// The skills the child may use. `None`: the field is not written.
    pub skills: Option<Vec<String>>,
    /// Their whole text stands before the child's task (R147).
    #[serde(default)]
    pub preload_skills: bool,
    /// Servers the child may see. `None`: the field is not written.
    pub mcp_servers: Option<Vec<McpServer>>,
    pub permission_mode: Option<ChildMode>,
    pub memory: Option<MemoryScope>,
    pub max_turns: Option<NonZeroU32>,
    #[serde(default)]
    pub bounds: Bounds,
    pub background: bool,
    pub inject_agents_md: bool,
    pub color: Option<Color>,
    /// As written; they run in the child alone (R152).
    pub hooks: Option<serde_json::Value>,
    pub isolation: Option<Isolation>,
    pub initial_prompt: Option<String>,
    /// What was written and does not hold, in words for the result of a run (R81, R82).
    pub withheld: Vec<String>,
    /// Restrictions that were written and cannot be read, as diagnostics: an agent is not started without them.
    #[serde(default)]
    pub unheld: Vec<String>,
    /// Lines of the fields in the file, for `agents show`; empty for profiles that are no file.
    pub lines: Vec<(Field, u32)>,
}

/// Where a profile comes from. The level decides what the profile may set, and which of two equal names holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    pub level: Level,
    pub path: Option<PathBuf>,
    pub plugin: Option<String>,
}

/// Ordered from the level that gives way to the level that wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    BuiltIn,
    Plugin,
    User,
    Project,
    CommandLine,
}

/// Which tools of the parent a child asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolSelection {
    /// All; the entries are scoped ones written beside `*`, which still narrow.
    Inherit(Vec<ToolEntry>),
    Only(Vec<ToolEntry>),
}

/// One entry of `tools` or `disallowedTools`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEntry {
    /// The name before a parenthesis.
    pub name: String,
    /// The part in parentheses, which narrows (R75).
    pub scope: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum McpServer {
    /// A server of the parent session.
    Named(String),
    /// Defined in the profile, connected for the life of the child.
    Inline { name: String, definition: serde_json::Value },
}

/// The two modes a profile may ask for (R80). Neither widens the parent's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChildMode {
    Auto,
    Plan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MemoryScope {
    User,
    Project,
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    Worktree,
}

/// A closed list of words: parsed, printed and named in diagnostics from one table.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $(#[serde(rename = $word)] $variant),+ }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// Exactly as printed, letter case aside.
            pub fn from_word(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.as_str().eq_ignore_ascii_case(text))
            }

            /// All words, for remedies.
            pub fn known() -> String {
                Self::ALL.iter().map(|known| known.as_str()).collect::<Vec<_>>().join(", ")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words!(Color { Red = "red", Blue = "blue", Green = "green", Yellow = "yellow", Purple = "purple", Orange = "orange", Pink = "pink", Cyan = "cyan" });
words!(
    /// Maps to the reasoning level of the same name (R87).
    Effort { Low = "low", Medium = "medium", High = "high", ExtraHigh = "xhigh", Max = "max" }
);
words!(
    /// Every field of a profile, by its documented spelling.
    Field {
        Name = "name",
        Description = "description",
        Tools = "tools",
        DisallowedTools = "disallowedTools",
        Model = "model",
        ThoughtLevel = "thoughtLevel",
        Skills = "skills",
        PreloadSkills = "preloadSkills",
        McpServers = "mcpServers",
        PermissionMode = "permissionMode",
        Memory = "memory",
        MaxTurns = "maxTurns",
        MaxTokens = "maxTokens",
        MaxBudgetUsd = "maxBudgetUsd",
        MaxMinutes = "maxMinutes",
        AutoBackgroundMs = "autoBackgroundMs",
        Background = "background",
        InjectAgentsMd = "injectAgentsMd",
        Color = "color",
        Hooks = "hooks",
        Effort = "effort",
        Isolation = "isolation",
        InitialPrompt = "initialPrompt",
    }
);

impl Vocabulary for Field {
    const CODES: Codes = Codes {
        missing: Code::MissingFrontmatter,
        lenient: Code::LenientYaml,
        unclosed: Code::FenceNotClosed,
        foreign: Code::ForeignSpelling,
    };

    fn exact(key: &str) -> Option<Self> {
        Field::ALL.iter().copied().find(|field| field.as_str() == key)
    }

    /// In whatever spelling: letter case, `-` and `_` do not matter.
    fn from_any_spelling(key: &str) -> Option<Self> {
        let folded: String = key.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect();
        match folded.as_str() {
            "allowedtools" => Some(Field::Tools),
            "colour" => Some(Field::Color),
            _ => Field::ALL.iter().copied().find(|field| field.as_str().to_lowercase() == folded),
        }
    }

    fn is_prose(self) -> bool {
        matches!(self, Field::Description | Field::InitialPrompt)
    }
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Level::BuiltIn => "built-in",
            Level::Plugin => "plugin",
            Level::User => "user",
            Level::Project => "project",
            Level::CommandLine => "command-line",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl MemoryScope {
    pub fn as_str(self) -> &'static str {
        match self {
            MemoryScope::User => "user",
            MemoryScope::Project => "project",
            MemoryScope::Local => "local",
        }
    }
}

impl ChildMode {
    pub fn as_str(self) -> &'static str {
        match self {
            ChildMode::Auto => "auto",
            ChildMode::Plan => "plan",
        }
    }
}

impl McpServer {
    pub fn name(&self) -> &str {
        match self {
            McpServer::Named(name) | McpServer::Inline { name, .. } => name,
        }
    }
}

impl fmt::Display for ToolEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Some(scope) => write!(f, "{}({scope})", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Which toolset a child starts from (R390).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildToolset {
    Main,
    Explore,
}

pub const GENERAL_PURPOSE: &str = "general-purpose";
pub const EXPLORE: &str = "Explore";
pub const PLAN: &str = "Plan";

impl Profile {
    /// The built-in `Explore`, not a replacement of it (R40, R45).
    pub fn is_built_in_explore(&self) -> bool {
        self.origin.level == Level::BuiltIn && self.name == EXPLORE
    }

    /// The built-in `Explore` or `Plan`: held to reading in code, in every mode (R46, R54).
    pub fn is_held_to_reading(&self) -> bool {
        self.origin.level == Level::BuiltIn && (self.name == EXPLORE || self.name == PLAN)
    }

    pub fn toolset(&self) -> ChildToolset {
        if self.is_held_to_reading() { ChildToolset::Explore } else { ChildToolset::Main }
    }

    /// The name without its plugin.
    pub fn bare_name(&self) -> &str {
        match &self.origin.plugin {
            Some(plugin) => self.name.strip_prefix(plugin.as_str()).and_then(|rest| rest.strip_prefix(':')).unwrap_or(&self.name),
            None => &self.name,
        }
    }

    pub fn line_of(&self, field: Field) -> Option<u32> {
        self.lines.iter().find(|(known, _)| *known == field).map(|(_, line)| *line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_known_in_every_spelling() {
        for key in ["maxTurns", "max_turns", "max-turns", "MAXTURNS", "MaxTurns"] {
            assert_eq!(Field::from_any_spelling(key), Some(Field::MaxTurns), "{key}");
        }
        assert_eq!(Field::from_any_spelling("allowed-tools"), Some(Field::Tools));
        assert_eq!(Field::from_any_spelling("version"), None);
    }

    /// R81
    #[test]
    fn levels_are_ordered_by_who_wins() {
        assert!(Level::CommandLine > Level::Project && Level::Project > Level::User && Level::User > Level::BuiltIn);
    }
}
