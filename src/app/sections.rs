//! What each section of the settings is read as: one list, so that a mistake is found wherever it stands.

use std::collections::BTreeMap;

use crate::config::{Settings, SettingsError};
use crate::models::catalog::ProviderSettings;
use crate::permissions::Mode;
use crate::permissions::rules::RuleSet;
use crate::subagents::memory::MemorySettings;
use crate::subagents::profiles::model_choice::AgentSettings;

/// Every file, variable and flag by itself: a value that another one overrides must be right as well, since nobody would
/// learn of it before the other one is gone.
pub fn check(settings: &Settings) -> Result<(), SettingsError> {
    settings.check_as::<String>("model")?;
    settings.check_as::<String>("base_url")?;
    settings.check_as::<Mode>("permission_mode")?;
    settings.check_as::<BTreeMap<String, ProviderSettings>>("providers")?;
    settings.check_as::<RuleSet>("permissions")?;
    settings.check_as::<AgentSettings>("agents")?;
    settings.check_as::<MemorySettings>("memory")
}
