//! What is told about a profile or a skill: file, line, code, reason and remedy. Nothing that was written is dropped
//! without one.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub code: Code,
    pub severity: Severity,
    pub path: Option<PathBuf>,
    /// Counted from 1.
    pub line: Option<u32>,
    /// What is the case; one sentence, lower case, without a full stop.
    pub reason: String,
    /// What to change.
    pub remedy: String,
}

/// `Error`: a file gives no profile or skill, or a bound that was written cannot hold. `Warning`: something written has no
/// effect. `Info`: how something was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    Warning,
    Error,
}

macro_rules! codes {
    ($($variant:ident = $word:literal),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum Code { $(#[serde(rename = $word)] $variant),+ }

        impl Code {
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $word),+ }
            }
        }
    };
}

codes! {
    MissingFrontmatter = "agent_missing_frontmatter",
    MissingRequired = "agent_missing_required_frontmatter",
    InvalidMemoryScope = "agent_invalid_memory_scope",
    InvalidMcpServers = "agent_invalid_mcp_servers",
    AmbiguousName = "agent_ambiguous_name",
    ReadFailed = "agent_read_failed",
    DuplicateName = "agent_duplicate_name",
    DuplicateField = "agent_duplicate_field",
    UnknownField = "agent_unknown_field",
    ForeignSpelling = "agent_foreign_spelling",
    UnknownTool = "agent_unknown_tool",
    NoUsableTool = "agent_no_usable_tool",
    EmptyTools = "agent_empty_tools",
    ScopedTool = "agent_scoped_tool",
    SkillsWithoutTools = "agent_skills_without_tools",
    InvalidName = "agent_invalid_name",
    InvalidColor = "agent_invalid_color",
    InvalidPermissionMode = "agent_invalid_permission_mode",
    InvalidMaxTurns = "agent_invalid_max_turns",
    InvalidModel = "agent_invalid_model",
    InvalidValue = "agent_invalid_value",
    LenientYaml = "agent_lenient_yaml",
    FenceNotClosed = "agent_fence_not_closed",
    CommentCut = "agent_comment_cut",
    RightWithheld = "agent_right_withheld",
    NotSupported = "agent_not_supported",
    EmptyPrompt = "agent_empty_prompt",
    StateFile = "agent_state_file",
    SkillReadFailed = "skill_read_failed",
    SkillMissingFrontmatter = "skill_missing_frontmatter",
    SkillLenientYaml = "skill_lenient_yaml",
    SkillFenceNotClosed = "skill_fence_not_closed",
    SkillForeignSpelling = "skill_foreign_spelling",
    SkillInvalidName = "skill_invalid_name",
    SkillInvalidValue = "skill_invalid_value",
    SkillNoDescription = "skill_no_description",
    SkillFieldWithoutEffect = "skill_field_without_effect",
    SkillMisplaced = "skill_misplaced",
    SkillDuplicateName = "skill_duplicate_name",
}

impl Diagnostic {
    pub fn new(code: Code, severity: Severity, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, severity, path: None, line: None, reason: reason.into(), remedy: remedy.into() }
    }

    #[must_use]
    pub fn at(mut self, path: Option<&Path>, line: Option<u32>) -> Self {
        self.path = path.map(Path::to_owned);
        self.line = line;
        self
    }
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}:", path.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        write!(f, "{}[{}]: {}; {}", self.severity.as_str(), self.code.as_str(), self.reason, self.remedy)
    }
}
