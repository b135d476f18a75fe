//! `v2/agents-state.json`: which user profiles are disabled, and the models chosen for built-in and plugin profiles
//! (R68 to R70). Keys we do not know belong to others and are kept.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::profile::{EXPLORE, GENERAL_PURPOSE};
use crate::files::{self, FileError, Sync};
use crate::frontmatter::{Code, Diagnostic, Severity};

const DISABLED: &str = "disabledAgentIds";
const BUILT_IN_MODELS: &str = "builtInModelSelectionOverrides";
const PLUGIN_MODELS: &str = "pluginAgentModelSelectionOverrides";

/// What the file says; everything empty when it is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentsState {
    pub disabled: Vec<String>,
    /// Model by name of a built-in profile.
    pub built_in_models: BTreeMap<String, String>,
    /// Model by canonical name of a plugin profile.
    pub plugin_models: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not a JSON object and is left as it is: {reason}; correct or remove it", path = path.display())]
    NotAnObject { path: std::path::PathBuf, reason: String },
    #[error(transparent)]
    Write(#[from] FileError),
}

/// Reads the file. What cannot be understood is told, and the rest holds.
pub fn read(path: &Path) -> (AgentsState, Vec<Diagnostic>) {
    let mut notes = Vec::new();
    let map = match object(path) {
        Ok(map) => map,
        Err(error) => {
            notes.push(note(path, error.to_string(), "correct the file; until then nothing is disabled or overridden"));
            Map::new()
        }
    };
    let mut state = AgentsState::default();
    match map.get(DISABLED) {
        None | Some(Value::Null) => {}
        Some(Value::Array(ids)) if ids.iter().all(Value::is_string) => {
            state.disabled = ids.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        Some(_) => notes.push(note(path, format!("`{DISABLED}` is not a list of names"), "write a list of texts")),
    }
    state.built_in_models = models(path, &map, BUILT_IN_MODELS, &mut notes);
    state.built_in_models.retain(|name, _| {
        let known = name == GENERAL_PURPOSE || name == EXPLORE;
        if !known {
            let reason = format!("`{BUILT_IN_MODELS}` names `{name}`; it holds for {GENERAL_PURPOSE} and {EXPLORE} only");
            notes.push(note(path, reason, "write `model` into the profile instead"));
        }
        known
    });
    state.plugin_models = models(path, &map, PLUGIN_MODELS, &mut notes);
    (state, notes)
}

/// Adds or removes a name in `disabledAgentIds`. Says whether the file changed. Held under a lock, replaced as a whole.
pub fn set_disabled(path: &Path, name: &str, disabled: bool) -> Result<bool, StateFileError> {
    if let Some(folder) = path.parent() {
        files::create_private_folder(folder)?;
    }
    let _lock = files::lock(&path.with_extension("lock"))?;
    let mut map = object(path)?;
    let mut ids = match map.get(DISABLED) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(ids)) => ids.clone(),
        Some(_) => return Err(StateFileError::NotAnObject { path: path.to_owned(), reason: format!("`{DISABLED}` is not a list") }),
    };
    let stands = ids.iter().any(|id| id == name);
    if stands == disabled {
        return Ok(false);
    }
    if disabled {
        ids.push(Value::String(name.to_owned()));
    } else {
        ids.retain(|id| id != name);
    }
    map.insert(DISABLED.to_owned(), Value::Array(ids));
    let mut text = serde_json::to_string_pretty(&Value::Object(map)).unwrap_or_default();
    text.push('\n');
    files::replace(path, text.as_bytes(), Sync::Disk)?;
    Ok(true)
}

fn object(path: &Path) -> Result<Map<String, Value>, StateFileError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(source) => return Err(StateFileError::Read { path: path.to_owned(), source }),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(StateFileError::NotAnObject { path: path.to_owned(), reason: "it holds another value".into() }),
        Err(error) => Err(StateFileError::NotAnObject { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// A selection is a text `provider/model$level` or an object with provider, model and level.
fn models(path: &Path, map: &Map<String, Value>, key: &str, notes: &mut Vec<Diagnostic>) -> BTreeMap<String, String> {
    let entries = match map.get(key) {
        None | Some(Value::Null) => return BTreeMap::new(),
        Some(Value::Object(entries)) => entries,
        Some(_) => {
            notes.push(note(path, format!("`{key}` is not an object of names and models"), "write {\"NAME\": \"provider/model\"}"));
            return BTreeMap::new();
        }
    };
    let mut models = BTreeMap::new();
    for (name, value) in entries {
        match selection(value) {
            Some(model) => {
                models.insert(name.clone(), model);
            }
            None if value.is_null() => {}
            None => notes.push(note(
                path,
                format!("`{key}` holds no model for `{name}`"),
                "write \"provider/model\" or \"provider/model$level\"",
            )),
        }
    }
    models
}

fn selection(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let word = |keys: [&str; 3]| keys.iter().find_map(|key| value.get(key)?.as_str());
    let (provider, model) = (word(["providerId", "provider", "providerID"])?, word(["modelId", "model", "modelID"])?);
    let level = word(["thoughtLevel", "reasoningLevel", "level"]);
    Some(level.map_or_else(|| format!("{provider}/{model}"), |level| format!("{provider}/{model}${level}")))
}

fn note(path: &Path, reason: String, remedy: &str) -> Diagnostic {
    Diagnostic::new(Code::StateFile, Severity::Warning, reason, remedy).at(Some(path), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R68, R69, R70
    #[test]
    fn the_state_file_is_read_and_foreign_keys_survive_an_edit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v2/agents-state.json");
        assert_eq!(read(&path), (AgentsState::default(), Vec::new()));
        assert!(set_disabled(&path, "reviewer", true).unwrap());
        assert!(!set_disabled(&path, "reviewer", true).unwrap());
        let text = r#"{"other": {"a": 1}, "disabledAgentIds": ["reviewer"], "builtInModelSelectionOverrides": {"Explore": "zai/air",
            "general-purpose": {"providerId": "a", "modelId": "b", "thoughtLevel": "high"}, "mine": "x/y"},
            "pluginAgentModelSelectionOverrides": {"kit:lint": "p/q"}}"#;
        std::fs::write(&path, text).unwrap();
        let (state, notes) = read(&path);
        assert_eq!(state.disabled, ["reviewer"]);
        assert_eq!(state.built_in_models[EXPLORE], "zai/air");
        assert_eq!(state.built_in_models[GENERAL_PURPOSE], "a/b$high");
        assert_eq!(state.plugin_models["kit:lint"], "p/q");
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(set_disabled(&path, "reviewer", false).unwrap());
        let after: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(after["other"]["a"], 1);
        assert_eq!(after["disabledAgentIds"], serde_json::json!([]));
    }

    /// R68
    #[test]
    fn a_broken_state_file_is_told_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agents-state.json");
        std::fs::write(&path, "{broken").unwrap();
        let (state, notes) = read(&path);
        assert_eq!((state, notes.len(), notes[0].code), (AgentsState::default(), 1, Code::StateFile));
        assert!(matches!(set_disabled(&path, "a", true), Err(StateFileError::NotAnObject { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{broken");
    }
}
