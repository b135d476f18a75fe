//! Keys from every place they may be set in: environment, files, settings, the system's key store, the parent.

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde_json::Value;

use crate::config::{Environment, Layout, Settings, SettingsError};
use crate::models::catalog::{self, ProviderSettings};
use crate::secrets::{KeyStore, Secrets};
use crate::subagents::handover::Handover;
use crate::web::WebSettings;

/// `[providers]` with the keys that the system stores.
pub fn providers(settings: &Settings, layout: &Layout) -> Result<BTreeMap<String, ProviderSettings>, SettingsError> {
    let mut providers = settings.section("providers")?.unwrap_or_default();
    catalog::add_stored_keys(&mut providers, &KeyStore::of(layout.root()));
    Ok(providers)
}

/// Every key there is, used or not: a tool could print any of them.
pub(super) fn all(
    settings: &Settings,
    layout: &Layout,
    environment: &Environment,
    handover: Option<&Handover>,
) -> Result<Secrets, SettingsError> {
    let mut keys = catalog::keys(&providers(settings, layout)?, environment);
    let handed = handover.map(|handover| &handover.model);
    let text = |key: &str| handed.and_then(|model| model.get(key)).and_then(Value::as_str).map(str::to_owned);
    if let (Some(provider), Some(key)) = (text("provider"), text("key")) {
        keys.push((provider, SecretString::from(key)));
    }
    let web: WebSettings = settings.section("web")?.unwrap_or_default();
    keys.extend(web.search.keys(environment, &KeyStore::of(layout.root())));
    Ok(Secrets::new(keys))
}

/// Names of variables that shells do not get: those of all keys but the ones a person wants them to have.
pub(super) fn hidden_variables(settings: &Settings, providers: &BTreeMap<String, ProviderSettings>) -> Result<Vec<String>, SettingsError> {
    let web: WebSettings = settings.section("web")?.unwrap_or_default();
    let kept: Vec<String> = settings.section("shell.keep_keys")?.unwrap_or_default();
    let mut names = catalog::key_variables(providers);
    names.extend(web.search.variables());
    names.retain(|name| !kept.contains(name));
    names.sort();
    names.dedup();
    Ok(names)
}
