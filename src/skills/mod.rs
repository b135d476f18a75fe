//! Skills: folders with a `SKILL.md` that a model may read when a task calls for it (section L).

pub mod content;
pub mod find;
pub mod library;

pub use find::{Skill, SkillLevel, Skills, Sources};
pub use library::{Library, SkillError, SkillSettings, View};
