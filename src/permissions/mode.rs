//! Permission modes and their foreign names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What may happen without a person's word (R277).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    /// Reading only.
    Plan,
    /// As `Default`, but what would be asked for is denied.
    DontAsk,
    /// Reading is free, everything with a side effect is asked for.
    Default,
    /// As `AcceptEdits`, but what would be asked for is denied (R278).
    Auto,
    /// As `Default`, and file edits inside the workspace are free, those by simple commands too.
    AcceptEdits,
    /// Everything is free that no deny rule forbids.
    Yolo,
}

/// What is free in a mode, apart from whether it asks for the rest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Freedom {
    Reading,
    /// Reading, and what rules allow.
    Ruled,
    Edits,
    Everything,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "unknown permission mode `{0}`; known: default (build), acceptEdits (edit, read-write), plan (read-only), auto, dontAsk, \
     yolo (bypassPermissions, full)"
)]
pub struct UnknownMode(pub String);

impl Mode {
    /// From strict to wide.
    pub const ALL: [Mode; 6] = [Mode::Plan, Mode::DontAsk, Mode::Default, Mode::Auto, Mode::AcceptEdits, Mode::Yolo];

    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Plan => "plan",
            Mode::DontAsk => "dontAsk",
            Mode::Default => "default",
            Mode::Auto => "auto",
            Mode::AcceptEdits => "acceptEdits",
            Mode::Yolo => "yolo",
        }
    }

    /// How wide the mode of this name is, for comparisons by those who do not know modes; `None` for an unknown name.
    pub fn width_of(name: &str) -> Option<u8> {
        name.parse::<Self>().ok().map(|mode| mode as u8)
    }

    /// What both allow: a child is never wider than its parent (R353), and does not ask where its parent would not.
    pub fn narrowed_by(self, other: Mode) -> Mode {
        let asks = self.asks() && other.asks();
        match (self.freedom().min(other.freedom()), asks) {
            (Freedom::Reading, _) => Mode::Plan,
            (Freedom::Ruled, false) => Mode::DontAsk,
            (Freedom::Ruled, true) => Mode::Default,
            (Freedom::Edits, false) => Mode::Auto,
            (Freedom::Edits, true) => Mode::AcceptEdits,
            (Freedom::Everything, _) => Mode::Yolo,
        }
    }

    /// Whether a person may be asked in it; else what needs a word is denied.
    pub fn asks(self) -> bool {
        match self {
            Mode::DontAsk | Mode::Auto => false,
            Mode::Plan | Mode::Default | Mode::AcceptEdits | Mode::Yolo => true,
        }
    }

    /// Whether edits inside the workspace need no word.
    pub(crate) fn edits_freely(self) -> bool {
        self.freedom() >= Freedom::Edits
    }

    /// How reasons say what it does with a call that needs a word: `mode `x` asks before running y`.
    pub(crate) fn asks_before(self) -> &'static str {
        if self.asks() { "asks before" } else { "never asks and refuses" }
    }

    fn freedom(self) -> Freedom {
        match self {
            Mode::Plan => Freedom::Reading,
            Mode::DontAsk | Mode::Default => Freedom::Ruled,
            Mode::Auto | Mode::AcceptEdits => Freedom::Edits,
            Mode::Yolo => Freedom::Everything,
        }
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Accepts our names, those of ZCode and Claude Code, and upstream's; letter case and dashes do not matter.
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let folded: String = text.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect();
        match folded.as_str() {
            "plan" | "readonly" => Ok(Mode::Plan),
            "dontask" => Ok(Mode::DontAsk),
            "auto" => Ok(Mode::Auto),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// R277
    #[test]
    fn every_name_of_every_mode_is_known() {
        for (names, mode) in [
            (&["plan", "read-only", "readonly", "PLAN"][..], Mode::Plan),
            (&["dontAsk", "dont-ask", "dontask"], Mode::DontAsk),
            (&["default", "build"], Mode::Default),
            (&["auto", "Auto"], Mode::Auto),
            (&["acceptEdits", "accept-edits", "edit", "read-write"], Mode::AcceptEdits),
            (&["yolo", "bypassPermissions", "full"], Mode::Yolo),
        ] {
            for name in names {
                assert_eq!(name.parse(), Ok(mode), "{name}");
            }
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        assert_eq!("ask".parse::<Mode>(), Err(UnknownMode("ask".into())));
    }

    /// R284, R285, R353
    #[test]
    fn two_modes_narrow_to_what_both_allow() {
        for (one, other, both) in [
            (Mode::Yolo, Mode::Default, Mode::Default),
            (Mode::Auto, Mode::Yolo, Mode::Auto),
            (Mode::Auto, Mode::AcceptEdits, Mode::Auto),
            (Mode::Auto, Mode::Default, Mode::DontAsk),
            (Mode::DontAsk, Mode::AcceptEdits, Mode::DontAsk),
            (Mode::Auto, Mode::Plan, Mode::Plan),
            (Mode::Yolo, Mode::Yolo, Mode::Yolo),
        ] {
            assert_eq!((one.narrowed_by(other), other.narrowed_by(one)), (both, both), "{one} {other}");
        }
        for one in Mode::ALL {
            assert_eq!(one.narrowed_by(one), one);
            for other in Mode::ALL {
                assert!(one.narrowed_by(other) as u8 <= (one as u8).min(other as u8), "{one} {other}");
            }
        }
    }
}
