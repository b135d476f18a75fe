//! The section `[web]` of the settings. Only the user's own file may set it: it opens addresses and names places that
//! queries are sent to.

use serde::Deserialize;

use super::address::AllowList;
use super::search::SearchSettings;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebSettings {
    /// Addresses that are not public and may be fetched all the same.
    pub allow_private: AllowList,
    /// What WebSearch asks.
    pub search: SearchSettings,
}
