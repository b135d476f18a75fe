//! Every environment name we read or set, in one list; read once at start.

use std::ffi::OsString;
use std::path::PathBuf;

/// Replaces the storage root (R1).
pub const HOME: &str = "ZAPMYCO_HOME";
pub const MODEL: &str = "ZAPMYCO_MODEL";
pub const BASE_URL: &str = "ZAPMYCO_BASE_URL";
pub const PERMISSION_MODE: &str = "ZAPMYCO_PERMISSION_MODE";
/// `auto` or `never`: whether a person at the terminal is asked.
pub const PERMISSION_PROMPT: &str = "ZAPMYCO_PERMISSION_PROMPT";
pub const SANDBOX: &str = "ZAPMYCO_SANDBOX";
/// The named session of `zapmyco subagent ...` when `--session` is not given.
pub const SESSION: &str = "ZAPMYCO_SESSION";
/// Followed by the upper-case name of a limit.
pub const LIMITS_PREFIX: &str = "ZAPMYCO_LIMITS_";
/// Marks every process of a supervised tree, for sweeping only: `/<id>.<nonce>` per nested keeper.
pub const JOB: &str = "ZAPMYCO_JOB";
/// Where programs keep what they need for a moment.
pub const TEMPORARY: &str = "TMPDIR";
/// Milliseconds between the polite and the hard signal of the keeper above: a nested one uses less, to record in time.
pub const GRACE_MS: &str = "ZAPMYCO_GRACE_MS";
/// Marks everything started for a subagent: no agent may be started below it (R6, R349).
pub const SUBAGENT: &str = "ZAPMYCO_SUBAGENT";
/// Number of the sealed memory file with the settings handed to a process child.
pub const HANDOVER_FD: &str = "ZAPMYCO_HANDOVER_FD";
/// Number of the one-page memory file with the parent's current permission mode.
pub const MODE_FD: &str = "ZAPMYCO_MODE_FD";
/// Number of the small file in which a session and all its children count what they use of a shared budget.
pub const BUDGET_FD: &str = "ZAPMYCO_BUDGET_FD";
/// The project's folder, for hooks; the second name is what hooks written for Claude Code look for.
pub const PROJECT_DIR: &str = "ZAPMYCO_PROJECT_DIR";
pub const PROJECT_DIR_FOREIGN: &str = "CLAUDE_PROJECT_DIR";
// The providers' own names, honoured without any file.
pub const ANTHROPIC_API_KEY: &str = "ANTHROPIC_API_KEY";
pub const ANTHROPIC_BASE_URL: &str = "ANTHROPIC_BASE_URL";
pub const OPENAI_API_KEY: &str = "OPENAI_API_KEY";
pub const OPENAI_BASE_URL: &str = "OPENAI_BASE_URL";
pub const ZAI_API_KEY: &str = "ZAI_API_KEY";
pub const ZHIPUAI_API_KEY: &str = "ZHIPUAI_API_KEY";
pub const DEEPSEEK_API_KEY: &str = "DEEPSEEK_API_KEY";
pub const DASHSCOPE_API_KEY: &str = "DASHSCOPE_API_KEY";
pub const QWEN_API_KEY: &str = "QWEN_API_KEY";
pub const MOONSHOT_API_KEY: &str = "MOONSHOT_API_KEY";
pub const KIMI_API_KEY: &str = "KIMI_API_KEY";
pub const OPENROUTER_API_KEY: &str = "OPENROUTER_API_KEY";

/// A copy of the process environment, taken once. Tests build their own.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: Vec<(OsString, OsString)>,
}

/// Why there is no storage root.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RootError {
    #[error("ZAPMYCO_HOME is empty; set it to an absolute folder or unset it")]
    Empty,
    #[error("ZAPMYCO_HOME is `{0}`, a relative path; set it to an absolute folder or unset it")]
    Relative(String),
    #[error("no home folder is known for this user; set ZAPMYCO_HOME to an absolute folder")]
    NoHome,
}

impl Environment {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn read() -> Self {
        Self { variables: std::env::vars_os().collect() }
    }

    pub fn from_pairs<K: Into<OsString>, V: Into<OsString>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self { variables: pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }

    /// The raw value of a variable, when it is set.
    pub fn raw(&self, name: &str) -> Option<&OsString> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The value of a variable that is set, not empty and valid UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.raw(name).and_then(|value| value.to_str()).filter(|value| !value.is_empty())
    }

    /// The folder for files that are needed for a moment; absolute.
    pub fn temporary_folder(&self) -> PathBuf {
        let named = self.raw(TEMPORARY).map(PathBuf::from).filter(|path| path.is_absolute());
        named.unwrap_or_else(|| "/tmp".into())
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    pub fn all(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    /// The storage root: `ZAPMYCO_HOME`, else `~/.zapmyco` (R1). Nothing is created.
    pub fn storage_root(&self) -> Result<PathBuf, RootError> {
        match self.raw(HOME) {
            Some(value) if value.is_empty() => Err(RootError::Empty),
            Some(value) => {
                let path = PathBuf::from(value);
                if path.is_absolute() { Ok(path) } else { Err(RootError::Relative(path.display().to_string())) }
            }
            None => self.home().map(|home| home.join(".zapmyco")).ok_or(RootError::NoHome),
        }
    }

    /// The user's home folder, from `HOME` or the user database.
    pub fn home(&self) -> Option<PathBuf> {
        match self.raw("HOME") {
            Some(home) if !home.is_empty() => Some(PathBuf::from(home)),
            _ => nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.dir),
        }
        .filter(|home| home.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R1
    #[test]
    fn the_root_is_absolute_or_refused() {
        let root = |pairs: &[(&str, &str)]| Environment::from_pairs(pairs.iter().copied()).storage_root();
        assert_eq!(root(&[("HOME", "/h")]), Ok(PathBuf::from("/h/.zapmyco")));
        assert_eq!(root(&[("HOME", "/h"), ("ZAPMYCO_HOME", "/z")]), Ok(PathBuf::from("/z")));
        assert_eq!(root(&[("ZAPMYCO_HOME", "")]), Err(RootError::Empty));
        assert_eq!(root(&[("ZAPMYCO_HOME", "z")]), Err(RootError::Relative("z".into())));
    }
}
