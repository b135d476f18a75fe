//! Where skills lie, how a `SKILL.md` is read, and which of equal names holds (R144, R145). Nothing that is there is passed
//! over in silence, and nothing that is broken hides its neighbours.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::config::layout::{self, Layout, ProjectLayout, SKILL_FILE};
use crate::frontmatter::{self, Code, Codes, Diagnostic, Document, NoFrontmatter, RawField, Severity, Vocabulary, reading};

/// Where skills are looked for.
#[derive(Clone, Debug)]
pub struct Sources {
    pub layout: Layout,
    /// The user's home folder, for the folders of other programs.
    pub home: Option<PathBuf>,
    pub cwd: PathBuf,
}

/// One skill, without its text: that is read when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skill {
    pub name: String,
    pub description: String,
    pub level: SkillLevel,
    /// Its `SKILL.md`.
    #[serde(serialize_with = "crate::files::shown_path::serialize")]
    pub path: PathBuf,
    /// A model may not use it by itself (`disable-model-invocation`).
    pub for_people_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SkillLevel {
    User,
    Project,
}

/// All skills at one moment.
#[derive(Clone, Debug, Default)]
pub struct Skills {
    /// Those that hold, by name.
    pub found: BTreeMap<String, Skill>,
    /// Those that another one of the same name stands before, with the path of that one.
    pub replaced: Vec<(Skill, PathBuf)>,
    pub diagnostics: Vec<Diagnostic>,
}

/// Skills read in one place; far above what anyone has.
const SKILLS_MAX: usize = 2_000;
/// Characters of a name. It stands in a tag and in lists.
const NAME_MAX: usize = 128;
/// Characters of a description that is made from the text.
const MADE_DESCRIPTION_MAX: usize = 200;

impl Sources {
    /// From the place that gives way to the place that wins: the level decides first, then nearness to the working
    /// directory, then `.zapmyco` over `.agents` over `.claude`.
    pub fn places(&self) -> Vec<(PathBuf, SkillLevel)> {
        let mut places = Vec::new();
        let mut add = |folder: PathBuf, level| {
            if !places.iter().any(|(known, _)| *known == folder) {
                places.push((folder, level));
            }
        };
        if let Some(home) = &self.home {
            layout::foreign_skill_folders(home).into_iter().for_each(|folder| add(folder, SkillLevel::User));
        }
        add(self.layout.user_skills(), SkillLevel::User);
        let root = layout::repository_root(&self.cwd).unwrap_or(&self.cwd);
        let folders: Vec<&Path> = self.cwd.ancestors().take_while(|folder| folder.starts_with(root)).collect();
        for folder in folders.into_iter().rev() {
            layout::foreign_skill_folders(folder).into_iter().for_each(|folder| add(folder, SkillLevel::Project));
            add(ProjectLayout::new(folder.to_owned()).skills(), SkillLevel::Project);
        }
        places
    }

    /// Reads all places. Blocking; never fails: what cannot be read is a diagnostic.
    pub fn load(&self) -> Skills {
        let mut skills = Skills::default();
        for (folder, level) in self.places() {
            skills.read_place(&folder, level);
        }
        skills
    }
}

impl Skills {
    fn read_place(&mut self, folder: &Path, level: SkillLevel) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => {
                let is_absent = matches!(error.kind(), std::io::ErrorKind::NotFound) && folder.symlink_metadata().is_err();
                if !is_absent && error.kind() != std::io::ErrorKind::NotADirectory || folder.is_file() {
                    self.diagnostics.push(reading::failed(Code::SkillReadFailed, folder, &error));
                }
                return;
            }
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| !is_hidden(path)).collect();
        paths.sort();
        if paths.len() > SKILLS_MAX {
            let reason = format!("the folder holds more than {SKILLS_MAX} entries; the rest was not read");
            self.diagnostics.push(reading::unreadable(Code::SkillReadFailed, folder, None, reason, "keep fewer skills in it"));
            paths.truncate(SKILLS_MAX);
        }
        for path in paths {
            self.read_entry(&path, level);
        }
    }

    fn read_entry(&mut self, path: &Path, level: SkillLevel) {
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => return self.diagnostics.push(reading::failed(Code::SkillReadFailed, path, &error)),
        };
        if !metadata.is_dir() {
            self.diagnostics.extend(misplaced_file(path));
            return;
        }
        let file = path.join(SKILL_FILE);
        if file.symlink_metadata().is_err() {
            self.diagnostics.extend(folder_without_skill(path));
            return;
        }
        let (skill, diagnostics) = read_skill(&file, level);
        self.diagnostics.extend(diagnostics);
        if let Some(skill) = skill {
            self.add(skill);
        }
    }

    /// The later one wins. Two of one folder are told, since only the order of their paths decides.
    fn add(&mut self, skill: Skill) {
        let place = |skill: &Skill| skill.path.parent().and_then(Path::parent).map(Path::to_owned);
        let (path, here) = (skill.path.clone(), place(&skill));
        let Some(earlier) = self.found.insert(skill.name.clone(), skill) else { return };
        if place(&earlier) == here {
            let reason = format!("{} has the name `{}` too; the last in order of paths holds", earlier.path.display(), earlier.name);
            let note = Diagnostic::new(Code::SkillDuplicateName, Severity::Warning, reason, "rename or remove one of the two");
            self.diagnostics.push(note.at(Some(&path), None));
        }
        self.replaced.push((earlier, path));
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// A Markdown file that lies where a folder is expected was probably meant as a skill.
fn misplaced_file(path: &Path) -> Option<Diagnostic> {
    let is_markdown = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"));
    let is_readme = path.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("readme"));
    let reason = format!("a skill is a folder with a {SKILL_FILE}; this file is not read");
    let note = Diagnostic::new(Code::SkillMisplaced, Severity::Info, reason, format!("move it to NAME/{SKILL_FILE}"));
    (is_markdown && !is_readme).then(|| note.at(Some(path), None))
}

fn folder_without_skill(folder: &Path) -> Option<Diagnostic> {
    let entries = std::fs::read_dir(folder).ok()?;
    let other = entries.flatten().map(|entry| entry.file_name()).find(|name| name.eq_ignore_ascii_case(SKILL_FILE));
    let (severity, reason, remedy) = match other {
        Some(other) => {
            let reason = format!("the file {} is not read: its name is not {SKILL_FILE}", other.display());
            (Severity::Warning, reason, format!("rename it to {SKILL_FILE}"))
        }
        None => (
            Severity::Info,
            format!("the folder has no {SKILL_FILE}, so it is no skill"),
            format!("add {SKILL_FILE}, or remove the folder"),
        ),
    };
    Some(Diagnostic::new(Code::SkillMisplaced, severity, reason, remedy).at(Some(folder), None))
}

/// The fields of a `SKILL.md` that have an effect or are known from other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field(&'static str);

const FIELDS: &[&str] = &[
    "name",
    "description",
    "when_to_use",
    "disable-model-invocation",
    "allowed-tools",
    "argument-hint",
    "user-invocable",
    "context",
    "agent",
    "model",
    "effort",
    "hooks",
    "license",
    "compatibility",
    "metadata",
    "version",
];
/// They describe; nothing is lost when they do nothing.
const DESCRIBING: &[&str] = &["argument-hint", "license", "compatibility", "metadata", "version", "user-invocable"];

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Vocabulary for Field {
    const CODES: Codes = Codes {
        missing: Code::SkillMissingFrontmatter,
        lenient: Code::SkillLenientYaml,
        unclosed: Code::SkillFenceNotClosed,
        foreign: Code::SkillForeignSpelling,
    };

    fn exact(key: &str) -> Option<Self> {
        FIELDS.iter().find(|field| **field == key).map(|field| Self(field))
    }

    fn from_any_spelling(key: &str) -> Option<Self> {
        let folded = |key: &str| -> String { key.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect() };
        let wanted = folded(key);
        FIELDS.iter().find(|field| folded(field) == wanted).map(|field| Self(field))
    }

    fn is_prose(self) -> bool {
        matches!(self.0, "description" | "when_to_use")
    }
}

/// Reads one file. Only what cannot be read at all gives no skill.
fn read_skill(path: &Path, level: SkillLevel) -> (Option<Skill>, Vec<Diagnostic>) {
    let text = match reading::read(Code::SkillReadFailed, path) {
        Ok(text) => text,
        Err(fault) => return (None, vec![fault]),
    };
    let folder_name = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut notes = Vec::new();
    let document = match frontmatter::split::<Field>(&text) {
        Ok(document) => document,
        Err(NoFrontmatter(note)) => {
            notes.push(Diagnostic { remedy: "begin the file with `---`, `name:`, `description:`, `---`".to_owned(), ..note });
            Document { fields: Vec::new(), body: text, notes: Vec::new() }
        }
    };
    let Document { fields, body, notes: found } = document;
    notes.extend(found);
    let field = |name: &str| fields.iter().find(|raw| Field::from_any_spelling(&raw.key) == Some(Field(name_of(name))));
    let name = skill_name(field("name"), folder_name, &mut notes);
    let description = skill_description(field("description"), field("when_to_use"), &body, &mut notes);
    let for_people_only = field("disable-model-invocation").is_some_and(|raw| flag(raw, &mut notes));
    for raw in &fields {
        notes.extend(without_effect(raw));
    }
    for note in &mut notes {
        note.path = Some(path.to_owned());
    }
    (Some(Skill { name, description, level, path: path.to_owned(), for_people_only }), notes)
}

fn name_of(name: &str) -> &'static str {
    FIELDS.iter().find(|field| **field == name).copied().unwrap_or("")
}

fn text_of(raw: &RawField) -> String {
    match &raw.value {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Null) => String::new(),
        Some(_) => frontmatter::unquoted(raw.text.split(" #").next().unwrap_or_default().trim()),
        None => raw.text.trim().to_owned(),
    }
}

/// R145: the written name, or that of the folder.
fn skill_name(raw: Option<&RawField>, folder: String, notes: &mut Vec<Diagnostic>) -> String {
    let safe: String = folder.chars().map(|c| if is_name_char(c) { c } else { '_' }).take(NAME_MAX).collect();
    let Some(raw) = raw else { return safe };
    let written = text_of(raw);
    if written.is_empty() {
        return safe;
    }
    if written.chars().count() <= NAME_MAX && written.chars().all(is_name_char) {
        return written;
    }
    let reason = format!("the name {written:?} cannot be used; the skill is called `{safe}`, as its folder");
    let remedy = "use letters, digits, blanks, `-`, `_`, `.` and `:`";
    notes.push(Diagnostic::new(Code::SkillInvalidName, Severity::Warning, reason, remedy).at(None, Some(raw.line)));
    safe
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, ' ' | '-' | '_' | '.' | ':')
}

fn skill_description(raw: Option<&RawField>, when: Option<&RawField>, body: &str, notes: &mut Vec<Diagnostic>) -> String {
    let parts: Vec<String> = [raw, when].into_iter().flatten().map(text_of).filter(|text| !text.is_empty()).collect();
    if !parts.is_empty() {
        return parts.join(" ");
    }
    let line = body.lines().map(|line| line.trim_start_matches(['#', ' ']).trim()).find(|line| !line.is_empty()).unwrap_or_default();
    let reason = "the skill has no description; its first line stands in for it";
    let remedy = "add a line `description: ...` that says when to use it";
    notes.push(Diagnostic::new(Code::SkillNoDescription, Severity::Warning, reason, remedy).at(None, Some(1)));
    line.chars().take(MADE_DESCRIPTION_MAX).collect()
}

/// What cannot be read as a flag keeps the skill from the model: the stricter reading.
fn flag(raw: &RawField, notes: &mut Vec<Diagnostic>) -> bool {
    match text_of(raw).to_lowercase().as_str() {
        "true" | "yes" | "on" => true,
        "false" | "no" | "off" | "" => false,
        _ => {
            let reason = format!("`{}` is neither true nor false; it was read as true", raw.key);
            notes.push(
                Diagnostic::new(Code::SkillInvalidValue, Severity::Warning, reason, "write `true` or `false`").at(None, Some(raw.line)),
            );
            true
        }
    }
}

fn without_effect(raw: &RawField) -> Option<Diagnostic> {
    let field = Field::from_any_spelling(&raw.key);
    let (severity, reason) = match field.map(|field| field.0) {
        Some("name" | "description" | "when_to_use" | "disable-model-invocation") => return None,
        Some(known) if DESCRIBING.contains(&known) => return None,
        Some("allowed-tools") => (Severity::Info, "`allowed-tools` gives no rights: modes and rules decide every call".to_owned()),
        Some(known) => (Severity::Warning, format!("`{known}` has no effect: the skill's text is given to whoever asks for it")),
        None => {
            (Severity::Info, format!("the field `{}` is unknown and has no effect", raw.key.chars().take(NAME_MAX).collect::<String>()))
        }
    };
    let note = Diagnostic::new(Code::SkillFieldWithoutEffect, severity, reason, "do not rely on it");
    Some(note.at(None, Some(raw.line)))
}
