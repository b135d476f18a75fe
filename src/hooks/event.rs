//! The points at which hooks run, and what their matchers look at.

use serde::{Deserialize, Serialize};

/// R153
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HookEvent {
    SessionStart,
    UserPromptSubmit,
    PreToolUse,
    PermissionRequest,
    PostToolUse,
    PostToolUseFailure,
    Stop,
    SubagentStart,
    SubagentStop,
    Notification,
    SessionEnd,
    PreCompact,
}

impl HookEvent {
    pub const ALL: [Self; 12] = [
        Self::SessionStart,
        Self::UserPromptSubmit,
        Self::PreToolUse,
        Self::PermissionRequest,
        Self::PostToolUse,
        Self::PostToolUseFailure,
        Self::Stop,
        Self::SubagentStart,
        Self::SubagentStop,
        Self::Notification,
        Self::SessionEnd,
        Self::PreCompact,
    ];

    /// As it is written in settings and in the input of a hook.
    pub fn name(self) -> &'static str {
        match self {
            Self::SessionStart => "SessionStart",
            Self::UserPromptSubmit => "UserPromptSubmit",
            Self::PreToolUse => "PreToolUse",
            Self::PermissionRequest => "PermissionRequest",
            Self::PostToolUse => "PostToolUse",
            Self::PostToolUseFailure => "PostToolUseFailure",
            Self::Stop => "Stop",
            Self::SubagentStart => "SubagentStart",
            Self::SubagentStop => "SubagentStop",
            Self::Notification => "Notification",
            Self::SessionEnd => "SessionEnd",
            Self::PreCompact => "PreCompact",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name() == name)
    }

    /// What a matcher is held against; `None`: there is nothing to choose by, and every hook of the event runs.
    pub fn subject(self) -> Option<&'static str> {
        match self {
            Self::PreToolUse | Self::PermissionRequest | Self::PostToolUse | Self::PostToolUseFailure => Some("the tool's name"),
            Self::SessionStart => Some("the source: startup or resume"),
            Self::SubagentStart | Self::SubagentStop => Some("the agent's type"),
            Self::Notification => Some("the kind of notification"),
            Self::SessionEnd => Some("the reason"),
            Self::PreCompact => Some("the trigger"),
            Self::UserPromptSubmit | Self::Stop => None,
        }
    }

    /// Exit code 2 and `decision: "block"` mean something here.
    pub fn can_block(self) -> bool {
        match self {
            Self::UserPromptSubmit
            | Self::PreToolUse
            | Self::PermissionRequest
            | Self::PostToolUse
            | Self::PostToolUseFailure
            | Self::Stop
            | Self::SubagentStop => true,
            Self::SessionStart | Self::SubagentStart | Self::Notification | Self::SessionEnd | Self::PreCompact => false,
        }
    }

    /// A plain text on stdout is context for the model.
    pub fn takes_plain_context(self) -> bool {
        matches!(self, Self::SessionStart | Self::UserPromptSubmit)
    }
}
