//! Which model a child uses, and why (R103 to R109). Pure: whether a provider or model exists is asked of the caller.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::profile::{Level, Profile};
use crate::models::catalog;

/// Section `agents` of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSettings {
    /// What the names `sonnet`, `opus`, `haiku` (or any other bare name) in profiles mean here: `provider/model` or
    /// `provider/model$level` (R107).
    pub models: BTreeMap<String, String>,
    /// A profile with `skills` and without `tools` inherits the tools of its parent too (R94).
    pub skills_inherit_tools: bool,
    /// Whether agents in the background may put questions to the person (R236); `None`: they may.
    pub background_questions: Option<bool>,
}

/// A model of a provider with a reasoning level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelSelection {
    pub provider: String,
    pub model: String,
    /// `None`: the provider's default.
    pub level: Option<String>,
}

/// What a model name in a profile or state file asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// `inherit`, `main`, or one of the three names without a mapping.
    Inherit,
    /// A bare name that the settings may map; `inherit` when they do not.
    Named(String),
    Model(ModelSelection),
    /// Cannot be read; never taken for inherit (R104).
    Unreadable(String),
}

/// Where the model of a child came from; recorded with the run (R109).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelOrigin {
    /// A one-off override of this run.
    Override,
    /// Written in the profile.
    Profile,
    /// The profile names an alias that the settings map.
    Settings,
    /// The state file's choice for a built-in or plugin profile.
    StateFile,
    /// The running turn of the parent.
    ParentTurn,
    /// The selection of the parent's session.
    ParentSession,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelChoice {
    #[serde(flatten)]
    pub selection: ModelSelection,
    pub origin: ModelOrigin,
}

/// Everything the order of R103 looks at.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Handed to this single run.
    pub once: Option<&'a ModelSelection>,
    pub profile: &'a Profile,
    /// The state file's entry for this profile, as written there (R69, R70, R108).
    pub state_file: Option<&'a str>,
    /// The model of the parent's running turn with its reasoning level.
    pub parent_turn: Option<&'a ModelSelection>,
    pub parent_session: Option<&'a ModelSelection>,
    pub settings: &'a AgentSettings,
}

/// Why a model cannot be used; the words are fixed (R105).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    SelectionMissing,
    AccountConnectionUnavailable,
    ProviderNotFound,
    ModelNotFound,
    ReasoningLevelMissing,
    ReasoningLevelNotSupported,
}

/// No child is started with another model than the one asked for.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("Cannot start subagent: {message} [reason={reason}; selection={selection}]")]
pub struct ModelChoiceError {
    pub message: String,
    pub reason: Reason,
    /// `provider/model`, or what was written instead.
    pub selection: String,
}

/// The model of a child. `verify` says whether a selection can be used in this session.
pub fn choose(situation: &Situation, verify: impl Fn(&ModelSelection) -> Result<(), Reason>) -> Result<ModelChoice, ModelChoiceError> {
    let choice = unverified(situation)?;
    verify(&choice.selection).map_err(|reason| refused(&choice.selection, reason))?;
    Ok(choice)
}

/// The choice without the question whether the model exists.
pub fn unverified(situation: &Situation) -> Result<ModelChoice, ModelChoiceError> {
    if let Some(once) = situation.once {
        return Ok(ModelChoice { selection: once.clone(), origin: ModelOrigin::Override });
    }
    // The state file speaks for profiles the user cannot edit; a user's or project's own file speaks for itself.
    let overridable = matches!(situation.profile.origin.level, Level::BuiltIn | Level::Plugin);
    let written = match situation.state_file.filter(|_| overridable) {
        Some(text) => Some((text, ModelOrigin::StateFile)),
        None => situation.profile.model.as_deref().map(|text| (text, ModelOrigin::Profile)),
    };
    let mut choice = match written {
        Some((text, origin)) => match explicit(text, origin, situation.settings)? {
            Some(choice) => choice,
            None => inherited(situation)?,
        },
        None => inherited(situation)?,
    };
    let level = situation.profile.thought_level.as_deref().or(situation.profile.effort.map(|effort| effort.as_str()));
    if let Some(level) = level
        && choice.origin != ModelOrigin::StateFile
    {
        choice.selection.level = Some(level.to_owned());
    }
    Ok(choice)
}

/// Reads `provider/model`, `provider/model$level`, `custom:<provider>:<model>` with URL-encoded parts, and the names
/// that mean inherit (R106, R107).
pub fn read_wish(text: &str) -> Wish {
    let text = text.trim();
    if let Some(custom) = text.strip_prefix("custom:") {
        return custom_form(custom).map_or_else(|| Wish::Unreadable(text.to_owned()), Wish::Model);
    }
    let lower = text.to_lowercase();
    match lower.as_str() {
        "" | "inherit" | "main" => return Wish::Inherit,
        "sonnet" | "opus" | "haiku" => return Wish::Named(lower),
        _ => {}
    }
    let (name, level) = cut_level(text);
    // A model id may itself hold slashes (`openrouter/vendor/model`); the provider is the part before the first.
    match name.split_once('/') {
        Some((provider, model)) if is_part(provider) && is_part(model) && level.is_none_or(is_part) => {
            Wish::Model(ModelSelection { provider: provider.to_owned(), model: model.to_owned(), level: level.map(str::to_owned) })
        }
        _ => Wish::Unreadable(text.to_owned()),
    }
}

fn cut_level(text: &str) -> (&str, Option<&str>) {
    text.rsplit_once('$').map_or((text, None), |(name, level)| (name, Some(level)))
}

fn is_part(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn custom_form(text: &str) -> Option<ModelSelection> {
    let (name, level) = cut_level(text);
    let (provider, model) = name.split_once(':')?;
    let (provider, model) = (url_decoded(provider)?, url_decoded(model)?);
    let whole = !provider.is_empty() && !model.is_empty() && level.is_none_or(is_part);
    whole.then(|| ModelSelection { provider, model, level: level.map(str::to_owned) })
}

fn url_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            bytes.push(digit(rest.next())? << 4 | digit(rest.next())?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// What is written, or `None` for inherit.
fn explicit(text: &str, origin: ModelOrigin, settings: &AgentSettings) -> Result<Option<ModelChoice>, ModelChoiceError> {
    let mapped = |name: &str| settings.models.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, target)| target.as_str());
    match read_wish(text) {
        Wish::Inherit => Ok(None),
        Wish::Model(selection) => Ok(Some(ModelChoice { selection, origin })),
        Wish::Named(name) => mapped(&name).map(from_settings).transpose(),
        Wish::Unreadable(name) => match mapped(&name) {
            Some(target) => from_settings(target).map(Some),
            None => Err(ModelChoiceError {
                message: format!(
                    "`{name}` is not a model of the form provider/model; write one, or map the name under [agents.models] in settings.toml"
                ),
                reason: Reason::SelectionMissing,
                selection: name,
            }),
        },
    }
}

/// A mapping must name a model; one that leads to another name is not followed.
fn from_settings(target: &str) -> Result<ModelChoice, ModelChoiceError> {
    match read_wish(target) {
        Wish::Model(selection) => Ok(ModelChoice { selection, origin: ModelOrigin::Settings }),
        Wish::Inherit | Wish::Named(_) | Wish::Unreadable(_) => Err(ModelChoiceError {
            message: format!("`{target}` under [agents.models] in settings.toml is not of the form provider/model; correct it there"),
            reason: Reason::SelectionMissing,
            selection: target.to_owned(),
        }),
    }
}

fn inherited(situation: &Situation) -> Result<ModelChoice, ModelChoiceError> {
    let turn = situation.parent_turn.map(|selection| (selection, ModelOrigin::ParentTurn));
    let session = situation.parent_session.map(|selection| (selection, ModelOrigin::ParentSession));
    match turn.or(session) {
        Some((selection, origin)) => Ok(ModelChoice { selection: selection.clone(), origin }),
        None => Err(ModelChoiceError {
            message: "the parent session has no model to inherit; choose one with --model or in settings.toml".into(),
            reason: Reason::SelectionMissing,
            selection: "inherit".into(),
        }),
    }
}

fn refused(selection: &ModelSelection, reason: Reason) -> ModelChoiceError {
    let (provider, model) = (&selection.provider, &selection.model);
    let level = selection.level.as_deref().unwrap_or("none");
    let message = match reason {
        Reason::SelectionMissing => "no model is selected".to_owned(),
        Reason::AccountConnectionUnavailable => format!("the provider `{provider}` has no key or account; set one and try again"),
        Reason::ProviderNotFound => format!("the provider `{provider}` is not configured; add it under [providers] in settings.toml"),
        Reason::ModelNotFound => format!("the provider `{provider}` has no model `{model}`; correct the profile's `model`"),
        Reason::ReasoningLevelMissing => format!("the model `{model}` needs a reasoning level; write `{provider}/{model}$level`"),
        Reason::ReasoningLevelNotSupported => format!("the model `{model}` has no reasoning level `{level}`; correct it or leave it out"),
    };
    ModelChoiceError { message, reason, selection: format!("{provider}/{model}") }
}

impl Reason {
    /// What a failed resolution of a model means here.
    pub fn of(error: &catalog::ModelChoiceError) -> Reason {
        use catalog::ModelChoiceError as Failed;
        match error {
            Failed::SelectionMissing { .. } | Failed::FileMissing { .. } | Failed::Handover { .. } => Reason::SelectionMissing,
            Failed::ProviderNotFound { .. } | Failed::ProviderIncomplete { .. } | Failed::BaseUrl { .. } => Reason::ProviderNotFound,
            Failed::ModelNotFound { .. } | Failed::NotListed { .. } => Reason::ModelNotFound,
            Failed::AccountUnavailable { .. } | Failed::KeyFile { .. } => Reason::AccountConnectionUnavailable,
            Failed::ReasoningLevelMissing { .. } => Reason::ReasoningLevelMissing,
            Failed::ReasoningLevelNotSupported { .. } => Reason::ReasoningLevelNotSupported,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::SelectionMissing => "selection-missing",
            Reason::AccountConnectionUnavailable => "account-connection-unavailable",
            Reason::ProviderNotFound => "provider-not-found",
            Reason::ModelNotFound => "model-not-found",
            Reason::ReasoningLevelMissing => "reasoning-level-missing",
            Reason::ReasoningLevelNotSupported => "reasoning-level-not-supported",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ModelSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.model)?;
        self.level.as_ref().map_or(Ok(()), |level| write!(f, "${level}"))
    }
}

impl ModelOrigin {
    pub fn as_str(self) -> &'static str {
        match self {
            ModelOrigin::Override => "override of this run",
            ModelOrigin::Profile => "profile",
            ModelOrigin::Settings => "settings, agents.models",
            ModelOrigin::StateFile => "agents-state.json",
            ModelOrigin::ParentTurn => "running turn of the parent",
            ModelOrigin::ParentSession => "parent session",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::super::profile::Origin;
    use super::*;

    fn selection(text: &str) -> ModelSelection {
        match read_wish(text) {
            Wish::Model(selection) => selection,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn profile(level: Level, fields: &str) -> Profile {
        let text = format!("---\nname: a\ndescription: b\n{fields}\n---\nBody");
        parse(&text, Origin { level, path: None, plugin: None }, false).profile.unwrap()
    }

    fn chosen(situation: &Situation) -> (String, ModelOrigin) {
        let choice = choose(situation, |_| Ok(())).unwrap();
        (choice.selection.to_string(), choice.origin)
    }

    /// R103, R108
    #[test]
    fn the_order_is_override_profile_turn_session() {
        let (once, turn, session) = (selection("o/o"), selection("t/t$high"), selection("s/s"));
        let own = profile(Level::User, "model: p/p");
        let settings = AgentSettings::default();
        let mut situation = Situation {
            once: Some(&once),
            profile: &own,
            state_file: Some("f/f"),
            parent_turn: Some(&turn),
            parent_session: Some(&session),
            settings: &settings,
        };
        assert_eq!(chosen(&situation), ("o/o".into(), ModelOrigin::Override));
        situation.once = None;
        assert_eq!(chosen(&situation), ("p/p".into(), ModelOrigin::Profile));
        let plain = profile(Level::User, "");
        situation.profile = &plain;
        assert_eq!(chosen(&situation), ("t/t$high".into(), ModelOrigin::ParentTurn));
        situation.parent_turn = None;
        assert_eq!(chosen(&situation), ("s/s".into(), ModelOrigin::ParentSession));
        situation.parent_session = None;
        assert_eq!(choose(&situation, |_| Ok(())).unwrap_err().reason, Reason::SelectionMissing);
        let built_in = profile(Level::BuiltIn, "");
        situation.profile = &built_in;
        assert_eq!(chosen(&situation), ("f/f".into(), ModelOrigin::StateFile));
    }

    /// R104, R105
    #[test]
    fn a_written_model_is_never_replaced_silently() {
        let turn = selection("t/t");
        let settings = AgentSettings::default();
        let own = profile(Level::User, "model: nobody/x");
        let situation =
            Situation { once: None, profile: &own, state_file: None, parent_turn: Some(&turn), parent_session: None, settings: &settings };
        let error = choose(&situation, |_| Err(Reason::ProviderNotFound)).unwrap_err().to_string();
        assert_eq!(
            error,
            "Cannot start subagent: the provider `nobody` is not configured; add it under [providers] in settings.toml [reason=provider-not-found; selection=nobody/x]"
        );
        let unreadable = profile(Level::User, "model: gpt-5");
        let error = choose(&Situation { profile: &unreadable, ..situation }, |_| Ok(())).unwrap_err();
        assert_eq!((error.reason, error.selection.as_str()), (Reason::SelectionMissing, "gpt-5"));
    }

    /// R106
    #[test]
    fn every_documented_form_is_read() {
        let level = |text: &str| selection(text).level;
        assert_eq!(selection("zai/glm-5").to_string(), "zai/glm-5");
        assert_eq!(selection("openrouter/a/b").model, "a/b");
        assert_eq!(level("zai/glm-5$high").as_deref(), Some("high"));
        let custom = selection("custom:my%20box:a%2Fb%3A7$low");
        assert_eq!((custom.provider.as_str(), custom.model.as_str(), custom.level.as_deref()), ("my box", "a/b:7", Some("low")));
        for broken in ["glm-5", "/x", "x/", "a b/c", "a/b$", "custom:a", "custom::b", "custom:a%zz:b", "custom:a%ff:b"] {
            assert!(matches!(read_wish(broken), Wish::Unreadable(_)), "{broken}");
        }
    }

    /// R53, R107
    #[test]
    fn names_of_other_programs_inherit_unless_mapped() {
        let turn = selection("t/t");
        let mapped = AgentSettings { models: [("haiku".to_owned(), "zai/air$low".to_owned())].into(), ..AgentSettings::default() };
        for (word, settings, expected) in [
            ("inherit", AgentSettings::default(), "t/t"),
            ("main", AgentSettings::default(), "t/t"),
            ("Sonnet", AgentSettings::default(), "t/t"),
            ("opus", mapped.clone(), "t/t"),
            ("haiku", mapped.clone(), "zai/air$low"),
        ] {
            let own = profile(Level::Project, &format!("model: {word}"));
            let situation = Situation {
                once: None,
                profile: &own,
                state_file: None,
                parent_turn: Some(&turn),
                parent_session: None,
                settings: &settings,
            };
            assert_eq!(chosen(&situation).0, expected, "{word}");
        }
    }

    /// R87, R106
    #[test]
    fn a_level_alone_is_set_on_the_inherited_model() {
        let turn = selection("t/t$high");
        let settings = AgentSettings::default();
        for (field, expected) in
            [("thoughtLevel: low", "t/t$low"), ("effort: xhigh", "t/t$xhigh"), ("thoughtLevel: low\neffort: max", "t/t$low")]
        {
            let own = profile(Level::User, field);
            let situation = Situation {
                once: None,
                profile: &own,
                state_file: None,
                parent_turn: Some(&turn),
                parent_session: None,
                settings: &settings,
            };
            assert_eq!(chosen(&situation).0, expected);
        }
    }
}
