//! Skills from a shell: which there are, what a model would read of one, and what is wrong with a file.

use clap::{Args, Subcommand};
use serde_json::json;

use super::agents_text::plain;
use super::config::{load, settings_error};
use super::jobs::{layout, print_json};
use super::report::{CommandError, Exit, print_notice, print_out};
use crate::config::Environment;
use crate::frontmatter::Severity;
use crate::skills::{Library, Skill, Skills, Sources, View, content};
use crate::text::units::one_line;

/// Skills: what there is and whether it is sound
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SkillsArguments {
    #[command(subcommand)]
    pub command: SkillsCommand,
}

const EXAMPLES: &str = "\
Examples:
  zapmyco skills list                    all, with level and file
  zapmyco skills show deploy             the text a model would read
  zapmyco skills show deploy \"staging\"   with arguments filled in
  zapmyco skills check                   exit 1 when a file cannot be used

Files: NAME/SKILL.md in ~/.zapmyco/skills, ~/.agents/skills,
  ~/.claude/skills; in each folder from here to the repository root:
  .zapmyco/skills, .agents/skills, .claude/skills;
  project over user, the nearest folder first

Exit codes: 0 done; 1 check found an error; 2 wrong usage, unknown skill";

#[derive(Subcommand, Clone, Debug)]
pub enum SkillsCommand {
    /// Every skill with level and file; and what was replaced
    List {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// The text of one skill as a model reads it
    Show {
        name: String,
        /// Filled in for `$ARGUMENTS`, `$ARGUMENTS[N]` and `$N`
        args: Option<String>,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Tell what is wrong with skills; exit 1 on an error
    Check {
        /// Exit 1 on a warning too
        #[arg(long)]
        strict: bool,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
}

const SCHEMA_VERSION: u32 = 1;

pub fn run(arguments: &SkillsArguments, environment: &Environment) -> Result<Exit, CommandError> {
    let cwd = std::env::current_dir().map_err(|error| CommandError::usage(format!("the working directory is gone: {error}")))?;
    let sources = Sources { layout: layout(environment)?, home: environment.home(), cwd };
    let settings = load(environment)?.section("skills").map_err(|error| settings_error(&error))?.unwrap_or_default();
    let library = Library::new(sources, settings);
    let skills = library.load();
    match &arguments.command {
        SkillsCommand::List { json } => list(&library, &skills, *json),
        SkillsCommand::Show { name, args, json } => show(&skills, name, args.as_deref(), *json),
        SkillsCommand::Check { strict, json } => check(&skills, *strict, *json),
    }
}

fn list(library: &Library, skills: &Skills, as_json: bool) -> Result<Exit, CommandError> {
    let children = library.view_of_child(None);
    let usable = children.usable(skills);
    let for_children = |skill: &Skill| usable.iter().any(|known| known.name == skill.name);
    if as_json {
        let entry = |skill: &Skill| {
            let mut entry = json!(skill);
            entry["for_subagents"] = json!(for_children(skill));
            entry
        };
        print_json(&json!({
            "schema_version": SCHEMA_VERSION,
            "skills": skills.found.values().map(entry).collect::<Vec<_>>(),
            "replaced": skills.replaced.iter().map(|(skill, by)| {
                json!({"name": skill.name, "level": skill.level, "path": skill.path.display().to_string(), "by": by.display().to_string()})
            }).collect::<Vec<_>>(),
            "diagnostics": skills.diagnostics,
        }))?;
        return Ok(Exit::Done);
    }
    print_out(&listed(skills, for_children))?;
    for diagnostic in skills.diagnostics.iter().filter(|diagnostic| diagnostic.severity > Severity::Info) {
        print_notice(&plain(&diagnostic.to_string()));
    }
    Ok(Exit::Done)
}

fn listed(skills: &Skills, for_children: impl Fn(&Skill) -> bool) -> String {
    const DESCRIPTION_SHOWN_MAX: usize = 80;
    if skills.found.is_empty() {
        return "no skills; `zapmyco skills --help` says where they are looked for\n".to_owned();
    }
    let width = skills.found.keys().map(|name| name.chars().count()).max().unwrap_or(0).min(40);
    let mut out = String::new();
    for skill in skills.found.values() {
        let level = match skill.level {
            crate::skills::SkillLevel::User => "user",
            crate::skills::SkillLevel::Project => "project",
        };
        let name = plain(&skill.name);
        out.push_str(&format!("{name:<width$}  {level:<7}  {}\n", plain(&one_line(&skill.description, DESCRIPTION_SHOWN_MAX))));
        out.push_str(&format!("{:indent$}{}\n", "", plain(&skill.path.display().to_string()), indent = width + 2));
        if skill.for_people_only {
            out.push_str(&format!("{:indent$}not offered to models (disable-model-invocation)\n", "", indent = width + 2));
        } else if !for_children(skill) {
            out.push_str(&format!("{:indent$}not for subagents (skills.refused_in_children)\n", "", indent = width + 2));
        }
    }
    if !skills.replaced.is_empty() {
        out.push_str("\nNot in effect:\n");
        for (skill, by) in &skills.replaced {
            out.push_str(&plain(&format!("{}  {}: replaced by {}", skill.name, skill.path.display(), by.display())));
            out.push('\n');
        }
    }
    out
}

fn show(skills: &Skills, name: &str, args: Option<&str>, as_json: bool) -> Result<Exit, CommandError> {
    // A person may look at every skill.
    let skill = match skills.found.get(name) {
        Some(skill) => skill,
        None => View::default().resolve(skills, name).map_err(|error| CommandError::usage(error.to_string()))?,
    };
    let text = content::content(skill, args).map_err(|error| CommandError::usage(error.to_string()))?;
    let own: Vec<_> = skills.diagnostics.iter().filter(|diagnostic| diagnostic.path.as_ref() == Some(&skill.path)).collect();
    if as_json {
        let mut answer = json!(skill);
        answer["schema_version"] = json!(SCHEMA_VERSION);
        answer["content"] = json!(text);
        answer["diagnostics"] = json!(own);
        print_json(&answer)?;
        return Ok(Exit::Done);
    }
    print_out(&format!("{}\n", plain(&text)))?;
    own.iter().for_each(|diagnostic| print_notice(&plain(&diagnostic.to_string())));
    Ok(Exit::Done)
}

fn check(skills: &Skills, strict: bool, as_json: bool) -> Result<Exit, CommandError> {
    let fails_at = if strict { Severity::Warning } else { Severity::Error };
    let is_fine = !skills.diagnostics.iter().any(|diagnostic| diagnostic.severity >= fails_at);
    if as_json {
        let skills = json!({
            "schema_version": SCHEMA_VERSION,
            "ok": is_fine,
            "skills": skills.found.len(),
            "counts": super::agents_text::counts(&skills.diagnostics),
            "diagnostics": skills.diagnostics,
        });
        print_json(&skills)?;
    } else {
        let lines: String = skills.diagnostics.iter().map(|diagnostic| plain(&diagnostic.to_string()) + "\n").collect();
        let counts = super::agents_text::counts_line(&super::agents_text::counts(&skills.diagnostics));
        print_out(&format!("{lines}{} skills; {counts}\n", skills.found.len()))?;
    }
    Ok(if is_fine { Exit::Done } else { Exit::Failed })
}
