//! What can be wrong with settings: always the place, the key, the value, what was expected, and what to do.

use std::io;
use std::path::PathBuf;

use super::limits::LimitError;
use super::settings::FILE_MAX;
use super::tree::Source;

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read settings file {path}: {source}", path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("settings file {path} is not a file", path = path.display())]
    NotAFile { path: PathBuf },
    #[error("settings file {path} is larger than {FILE_MAX} bytes", path = path.display())]
    TooLarge { path: PathBuf },
    #[error("{path}:{line}: not UTF-8 text", path = path.display())]
    NotText { path: PathBuf, line: usize },
    #[error("{path}:{line}:{column}: {message}", path = path.display())]
    Syntax { path: PathBuf, line: usize, column: usize, message: String },
    #[error("{source_place}: unknown key `{key}`{}", suggestion(nearest))]
    UnknownKey { key: String, source_place: Source, nearest: Option<String> },
    #[error("{source_place}: {key} = {value}: {message}")]
    Value { key: String, value: String, source_place: Source, message: String },
    #[error("{source_place}: {key} = {value}: {reason}")]
    Limit { key: String, value: String, source_place: Source, reason: LimitError },
    #[error("{tail_place}: limits.output_tail_kept cannot be larger than limits.output_kept_max ({kept_place})")]
    TailLargerThanWhole { tail_place: Source, kept_place: Source },
    #[error("environment variable {name} is not UTF-8 text")]
    EnvironmentNotText { name: String },
    #[error("the defaults compiled in are broken: {line}:{column}: {message}")]
    Defaults { line: usize, column: usize, message: String },
}

impl SettingsError {
    /// What a person can do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Unreadable { .. } | Self::NotAFile { .. } | Self::TooLarge { .. } => {
                "make it a readable text file, or move it away".to_owned()
            }
            Self::NotText { .. } => "save the file as UTF-8".to_owned(),
            Self::Syntax { .. } => {
                "the file is TOML: `key = \"text\"`, `[section]`, `# comment`; `zapmyco config defaults` is an example".to_owned()
            }
            Self::UnknownKey { .. } => "`zapmyco config defaults` prints every key with its meaning".to_owned(),
            Self::Value { .. } | Self::Limit { .. } | Self::TailLargerThanWhole { .. } => {
                "change or remove it; `zapmyco config defaults` prints every key with its default".to_owned()
            }
            Self::EnvironmentNotText { name } => format!("set {name} to plain text or unset it"),
            Self::Defaults { .. } => "this is a fault of zapmyco; please report it".to_owned(),
        }
    }
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
