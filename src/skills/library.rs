//! The skills of a session: found anew when they are asked for, shown as a list, and bounded for children (R142, R143).

use std::fmt::Write;
use std::sync::Arc;

use serde::Deserialize;

use super::content;
use super::find::{Skill, Skills, Sources};
use crate::frontmatter::Diagnostic;

/// Settings section `skills`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SkillSettings {
    /// Skills that no child may use, whatever its profile says (R143).
    pub refused_in_children: Vec<String>,
}

impl Default for SkillSettings {
    fn default() -> Self {
        Self { refused_in_children: vec!["computer-use".to_owned()] }
    }
}

/// Where a session takes its skills from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Library {
    sources: Arc<Sources>,
    refused_in_children: Arc<Vec<String>>,
}

/// What one session may see of a library.
#[derive(Clone, Debug, Default)]
pub struct View {
    is_child: bool,
    /// The only ones, when its profile names some.
    allowed: Option<Vec<String>>,
    refused: Arc<Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum SkillError {
    #[error("Skill is not allowed for subagent: {name}. Allowed: {allowed}")]
    NotAllowed { name: String, allowed: String },
    #[error("Skill is not allowed for subagent: {name}; no subagent may use it, do not retry")]
    Refused { name: String },
    #[error("the skill `{name}` may only be used when a person asks for it by name; do not retry")]
    ForPeopleOnly { name: String },
    #[error("there is no skill `{name}`. Available: {available}")]
    Unknown { name: String, available: String },
    #[error("`{name}` means several skills: {names}; use the exact name")]
    Ambiguous { name: String, names: String },
    #[error("the skill cannot be read: {0}")]
    Unreadable(Box<Diagnostic>),
}

/// Skills that a list shows with their description, characters of one, and bytes of the whole list.
const LISTED_MAX: usize = 100;
const DESCRIPTION_MAX: usize = 300;
const LIST_BYTES_MAX: usize = 20_000;

impl Library {
    pub fn new(sources: Sources, settings: SkillSettings) -> Self {
        Self { sources: Arc::new(sources), refused_in_children: Arc::new(settings.refused_in_children) }
    }

    /// As the folders are now. Blocking.
    pub fn load(&self) -> Skills {
        self.sources.load()
    }

    /// `allowed`: what the profile of a child names.
    pub fn view_of_child(&self, allowed: Option<&[String]>) -> View {
        View { is_child: true, allowed: allowed.map(<[String]>::to_vec), refused: Arc::clone(&self.refused_in_children) }
    }
}

/// Case, blanks, `-` and `_` do not matter.
fn folded(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace() && !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

impl View {
    /// Skills a model may use, by name.
    pub fn usable<'s>(&self, skills: &'s Skills) -> Vec<&'s Skill> {
        skills.found.values().filter(|skill| !skill.for_people_only && self.check(&skill.name).is_ok()).collect()
    }

    /// Named by the profile and not there.
    pub fn missing(&self, skills: &Skills) -> Vec<String> {
        let is_there = |name: &String| skills.found.keys().any(|known| folded(known) == folded(name));
        self.allowed.iter().flatten().filter(|name| !is_there(name)).cloned().collect()
    }

    /// The skill a name means: exact, else the only one that differs in case, blanks, dashes and underscores.
    pub fn resolve<'s>(&self, skills: &'s Skills, name: &str) -> Result<&'s Skill, SkillError> {
        let name = name.trim().trim_start_matches('/');
        // Before it is looked for: what a child may not use is not told to exist either.
        self.check(name).map_err(|error| self.with_names(error, skills))?;
        let wanted = folded(name);
        let hits: Vec<&Skill> = match skills.found.get(name) {
            Some(skill) => vec![skill],
            None => skills.found.values().filter(|skill| folded(&skill.name) == wanted).collect(),
        };
        match hits.as_slice() {
            [skill] if skill.for_people_only => Err(SkillError::ForPeopleOnly { name: skill.name.clone() }),
            [skill] => Ok(skill),
            [] => Err(SkillError::Unknown { name: shown(name), available: self.names(skills) }),
            several => {
                let names = several.iter().map(|skill| skill.name.as_str()).collect::<Vec<_>>().join(", ");
                Err(SkillError::Ambiguous { name: shown(name), names })
            }
        }
    }

    fn check(&self, name: &str) -> Result<(), SkillError> {
        let wanted = folded(name);
        let is_in = |names: &[String]| names.iter().any(|known| folded(known) == wanted);
        if self.is_child && is_in(&self.refused) {
            return Err(SkillError::Refused { name: shown(name) });
        }
        match &self.allowed {
            Some(allowed) if !is_in(allowed) => Err(SkillError::NotAllowed { name: shown(name), allowed: String::new() }),
            Some(_) | None => Ok(()),
        }
    }

    fn with_names(&self, error: SkillError, skills: &Skills) -> SkillError {
        match error {
            SkillError::NotAllowed { name, .. } => SkillError::NotAllowed { name, allowed: self.names(skills) },
            other => other,
        }
    }

    fn names(&self, skills: &Skills) -> String {
        let names: Vec<&str> = self.usable(skills).iter().take(LISTED_MAX).map(|skill| skill.name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    /// What a session is told of its skills; `None` when it has none. Equal skills give equal bytes.
    pub fn listing(&self, skills: &Skills) -> Option<String> {
        let usable = self.usable(skills);
        if usable.is_empty() {
            return None;
        }
        let mut text = String::from("Skills that the tool Skill gives the text of, when a task calls for one:\n");
        let mut further = Vec::new();
        for (index, skill) in usable.iter().enumerate() {
            let line = format!("- {}: {}\n", skill.name, one_line(&skill.description));
            if index < LISTED_MAX && text.len() + line.len() <= LIST_BYTES_MAX {
                text.push_str(&line);
            } else {
                further.push(skill.name.as_str());
            }
        }
        if !further.is_empty() {
            let named = further.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
            let more = further.len().saturating_sub(LISTED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            // Writing into a string cannot fail.
            let _ = writeln!(text, "- further ones, without their description: {named}{more}");
        }
        Some(text.trim_end().to_owned())
    }
}

/// A name as an error may show it.
fn shown(name: &str) -> String {
    const SHOWN_MAX: usize = 100;
    name.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect()
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(DESCRIPTION_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// The text of a skill by its name, arguments filled in (R146). Blocking.
pub fn text_of(library: &Library, view: &View, name: &str, args: Option<&str>) -> Result<String, SkillError> {
    let skills = library.load();
    let skill = view.resolve(&skills, name)?;
    content::content(skill, args)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::find::SkillLevel;
    use super::*;

    fn skills(names: &[&str]) -> Skills {
        let skill = |name: &str| Skill {
            name: name.to_owned(),
            description: format!("About {name}.\nSecond line."),
            level: SkillLevel::User,
            path: PathBuf::from(format!("/s/{name}/SKILL.md")),
            for_people_only: name == "people",
        };
        Skills { found: names.iter().map(|name| ((*name).to_owned(), skill(name))).collect(), ..Skills::default() }
    }

    fn library() -> Library {
        let sources = Sources { layout: crate::config::Layout::new("/none".into()), home: None, cwd: "/none".into() };
        Library::new(sources, SkillSettings::default())
    }

    /// R142, R143
    #[test]
    fn a_child_uses_what_its_profile_names_and_never_what_is_refused() {
        let skills = skills(&["deploy", "code-review", "computer-use"]);
        let error = |view: &View, name: &str| view.resolve(&skills, name).unwrap_err().to_string();
        let child = library().view_of_child(Some(&["Code Review".to_owned(), "computer-use".to_owned()]));
        assert_eq!(child.resolve(&skills, "code_review").unwrap().name, "code-review");
        assert_eq!(error(&child, "deploy"), "Skill is not allowed for subagent: deploy. Allowed: code-review");
        assert!(error(&child, "computer_use").starts_with("Skill is not allowed for subagent: computer_use;"));
        let heir = library().view_of_child(None);
        assert_eq!(heir.usable(&skills).len(), 2);
        assert!(error(&heir, "Computer-Use").contains("no subagent may use it"));
        assert!(View::default().resolve(&skills, "computer-use").is_ok(), "a main session may");
    }

    #[test]
    fn names_are_exact_then_folded() {
        let skills = skills(&["a-b", "ab", "people"]);
        let view = View::default();
        assert_eq!(view.resolve(&skills, " /a-b ").unwrap().name, "a-b");
        assert!(view.resolve(&skills, "A_B").unwrap_err().to_string().contains("a-b, ab"));
        assert_eq!(view.resolve(&skills, "x").unwrap_err().to_string(), "there is no skill `x`. Available: a-b, ab");
        assert!(matches!(view.resolve(&skills, "people"), Err(SkillError::ForPeopleOnly { .. })));
        assert_eq!(library().view_of_child(Some(&["ab".into(), "gone".into()])).missing(&skills), ["gone"]);
    }

    #[test]
    fn a_list_is_bounded_and_names_the_rest() {
        let names: Vec<String> = (0..300).map(|n| format!("skill-{n:03}")).collect();
        let skills = skills(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let text = View::default().listing(&skills).unwrap();
        assert!(text.contains("- skill-000: About skill-000. Second line.\n"));
        assert!(text.contains("- further ones, without their description: skill-100, ") && text.ends_with("and 100 more"), "{text}");
        assert_eq!(View::default().listing(&Skills::default()), None);
    }
}
