//! What each section of the settings is read as: one list, so that a mistake is found wherever it stands.

use std::collections::BTreeMap;

use crate::agent::budget::BudgetSettings;
use crate::config::{Settings, SettingsError};
use crate::models::catalog::ProviderSettings;
use crate::models::prices::Usd;
use crate::permissions::Mode;
use crate::permissions::rules::RuleSet;
use crate::permissions::sandbox::SandboxSettings;
use crate::skills::SkillSettings;
use crate::subagents::memory::MemorySettings;
use crate::subagents::profiles::model_choice::AgentSettings;
use crate::web::WebSettings;

/// Whether all that is set at a key is what its owner reads.
type Check = fn(&Settings, &str) -> Result<(), SettingsError>;

/// Sections that others check: `config` its limits, `hooks` each hook by itself, `cli` what only it knows.
#[cfg(test)]
const READ_ELSEWHERE: [&str; 3] = ["limits", "hooks", "permission_prompt"];

/// All other sections.
const READ_AS: &[(&str, Check)] = &[
    ("model", Settings::check_as::<String>),
    ("base_url", Settings::check_as::<String>),
    ("permission_mode", Settings::check_as::<Mode>),
    ("providers", Settings::check_as::<BTreeMap<String, ProviderSettings>>),
    ("permissions", Settings::check_as::<RuleSet>),
    ("agents", Settings::check_as::<AgentSettings>),
    ("memory", Settings::check_as::<MemorySettings>),
    ("skills", Settings::check_as::<SkillSettings>),
    // A file may set one rate of a model and leave the others to another file.
    ("prices", Settings::check_as::<BTreeMap<String, BTreeMap<String, Usd>>>),
    ("budget", Settings::check_as::<BudgetSettings>),
    ("web", Settings::check_as::<WebSettings>),
    ("sandbox", Settings::check_as::<SandboxSettings>),
    // Of one list of names, `keep_keys`.
    ("shell", Settings::check_as::<BTreeMap<String, Vec<String>>>),
    // Of one truth value, `claude_md`.
    ("instructions", Settings::check_as::<BTreeMap<String, bool>>),
];

/// Every file, variable and flag by itself: a value that another one overrides must be right as well, since nobody would
/// learn of it before the other one is gone.
pub fn check(settings: &Settings) -> Result<(), SettingsError> {
    READ_AS.iter().try_for_each(|(key, check)| check(settings, key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::sections::SECTIONS;

    #[test]
    fn every_section_is_read_as_something() {
        let known: BTreeSet<&str> = SECTIONS.iter().map(|section| section.key).filter(|key| !READ_ELSEWHERE.contains(key)).collect();
        assert_eq!(READ_AS.iter().map(|(key, _)| *key).collect::<BTreeSet<_>>(), known, "add the new section to `READ_AS`");
    }
}
