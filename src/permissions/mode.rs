//! Permission modes and their foreign names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What may happen without a person's word (R277). Ordered from strict to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    /// Reading only.
    Plan,
    /// Reading is free, everything with a side effect is asked for.
    Default,
    /// As `Default`, and file edits inside the workspace are free.
    AcceptEdits,
    /// Everything is free that no deny rule forbids.
    Yolo,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "unknown permission mode `{0}`; known: default (build), acceptEdits (edit, read-write), plan (read-only), yolo (bypassPermissions, full)"
)]
pub struct UnknownMode(pub String);

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Plan => "plan",
            Mode::Default => "default",
            Mode::AcceptEdits => "acceptEdits",
            Mode::Yolo => "yolo",
        }
    }

    /// How wide the mode of this name is, for comparisons by those who do not know modes; `None` for an unknown name.
    pub fn width_of(name: &str) -> Option<u8> {
        name.parse::<Self>().ok().map(|mode| match mode {
            Mode::Plan => 0,
            Mode::Default => 1,
            Mode::AcceptEdits => 2,
            Mode::Yolo => 3,
        })
    }

    /// The stricter of two: a child is never wider than its parent (R353).
    pub fn narrowed_by(self, other: Mode) -> Mode {
        self.min(other)
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Accepts our names, those of ZCode and Claude Code, and upstream's; letter case and dashes do not matter.
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let folded: String = text.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect();
        match folded.as_str() {
            "plan" | "readonly" => Ok(Mode::Plan),
            "default" | "build" => Ok(Mode::Default),
            "acceptedits" | "edit" | "readwrite" => Ok(Mode::AcceptEdits),
            "yolo" | "bypasspermissions" | "full" => Ok(Mode::Yolo),
            _ => Err(UnknownMode(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Mode {
    type Error = UnknownMode;
    fn try_from(text: String) -> Result<Self, UnknownMode> {
        text.parse()
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> String {
        mode.as_str().to_owned()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
