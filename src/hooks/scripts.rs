//! Files of a project that a hook's command runs. They are as much part of what is trusted as the command itself.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::settings::{Action, Hook, HookSet};
use crate::config::environment::{PROJECT_DIR, PROJECT_DIR_FOREIGN};
use crate::files::{self, any_path};
use crate::permissions::trust::{Trust, digest};

/// A file as it was when it was trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    #[serde(with = "any_path")]
    pub path: PathBuf,
    pub sha256: String,
}

/// Bytes of a script that are read; a larger file cannot be trusted.
pub const SCRIPT_MAX: u64 = 64 * 1024 * 1024;

/// Programs whose next argument is what they run.
const INTERPRETERS: [&str; 15] =
    ["sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "node", "deno", "bun", "ruby", "perl", "source", "."];

impl Pinned {
    pub(crate) fn is_unchanged(&self) -> bool {
        files::read_bounded(&self.path, SCRIPT_MAX).is_ok_and(|content| digest(&content) == self.sha256)
    }
}

impl HookSet {
    /// Of the hooks that files of the project bring, only those whose scripts are trusted; with what these scripts are.
    pub fn pinned(self, is_projects: impl Fn(&Path) -> bool, trust: &Trust, cwd: &Path) -> Self {
        let keep = |hook: Hook| match hook.file.as_deref().is_some_and(&is_projects) {
            true => Some(Hook { pinned: pins(&hook.action, trust, cwd)?, ..hook }),
            false => Some(hook),
        };
        Self { hooks: self.hooks.into_iter().filter_map(keep).collect(), fail_closed: self.fail_closed }
    }

    /// For hooks that were trusted when they were read: a script that is not trusted by now keeps its hook from running, and
    /// a guard denies then.
    pub fn held(self, trust: &Trust, cwd: &Path) -> Self {
        let pin = |path: PathBuf| {
            let content = files::read_bounded(&path, SCRIPT_MAX).unwrap_or_default();
            // No content has an empty digest.
            let sha256 = if trust.holds(&path, &content) { digest(&content) } else { String::new() };
            Pinned { path, sha256 }
        };
        let hold = |hook: Hook| {
            let pinned = named_by(&hook.action, trust.project(), cwd).into_iter().map(pin).collect();
            Hook { pinned, ..hook }
        };
        Self { hooks: self.hooks.into_iter().map(hold).collect(), fail_closed: self.fail_closed }
    }

    /// Whether all scripts of all hooks are trusted.
    pub fn has_trusted_scripts(&self, trust: &Trust, cwd: &Path) -> bool {
        self.hooks.iter().all(|hook| pins(&hook.action, trust, cwd).is_some())
    }
}

/// `None` when one of them is not trusted.
fn pins(action: &Action, trust: &Trust, cwd: &Path) -> Option<Vec<Pinned>> {
    let pin = |path: PathBuf| {
        let content = files::read_bounded(&path, SCRIPT_MAX).ok()?;
        trust.holds(&path, &content).then(|| Pinned { sha256: digest(&content), path })
    };
    named_by(action, trust.project(), cwd).into_iter().map(pin).collect()
}

/// The files below `project` that the command runs, as far as words tell: what stands first, what an interpreter is given,
/// and whatever can be executed.
pub fn named_by(action: &Action, project: &Path, cwd: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut first = true;
    let mut after_interpreter = false;
    for word in words_of(action) {
        let Some(word) = word else {
            (first, after_interpreter) = (true, false);
            continue;
        };
        let name = word.rsplit('/').next().unwrap_or_default();
        let is_assignment = first && word.split_once('=').is_some_and(|(name, _)| is_variable(name));
        let stands_first = first && !is_assignment;
        let is_given = after_interpreter;
        // A lone dot is a folder everywhere but at the beginning.
        let interprets = INTERPRETERS.contains(&name) && (stands_first || !matches!(name, "." | "source"));
        after_interpreter = interprets || (is_given && word.starts_with('-'));
        first = is_assignment;
        let path = normal(&cwd.join(word.strip_prefix("./").unwrap_or(&word)));
        let Ok(metadata) = path.metadata() else { continue };
        let is_below = path.starts_with(project) || path.starts_with(cwd);
        // A plain word that stands first is a program of the system, whatever file of the project has its name.
        let is_run = is_given || if stands_first { word.contains('/') } else { is_script(&path, &metadata) };
        if metadata.is_file() && is_below && is_run && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_script(path: &Path, metadata: &Metadata) -> bool {
    let begins_as_one = || {
        let mut start = [0; 2];
        std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && &start == b"#!"
    };
    metadata.permissions().mode() & 0o111 != 0 || begins_as_one()
}

/// The words of a command, without quotes; `None` between two commands.
fn words_of(action: &Action) -> Vec<Option<String>> {
    match action {
        Action::Process { program, arguments } => std::iter::once(program).chain(arguments).map(|word| Some(word.clone())).collect(),
        Action::Command { line } => {
            let mut words = Vec::new();
            let mut word = String::new();
            for character in line.chars().chain([' ']) {
                let ends = character.is_whitespace() || ";|&()<>`\n".contains(character);
                match character {
                    '"' | '\'' | '\\' => {}
                    _ if ends => {
                        if !word.is_empty() {
                            words.push(Some(expanded(&std::mem::take(&mut word))));
                        }
                        if ";|&(`\n".contains(character) {
                            words.push(None);
                        }
                    }
                    _ => word.push(character),
                }
            }
            words
        }
    }
}

/// The project's folder by its variables; a relative path is the same.
fn expanded(word: &str) -> String {
    for name in [PROJECT_DIR, PROJECT_DIR_FOREIGN] {
        for variable in [format!("${{{name}}}/"), format!("${name}/")] {
            if let Some(rest) = word.strip_prefix(&variable) {
                return format!("./{rest}");
            }
        }
    }
    word.to_owned()
}

/// Without `.` and `..`, as they are written.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R160
    #[test]
    fn what_a_command_runs_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().canonicalize().unwrap();
        std::fs::create_dir(cwd.join("hooks")).unwrap();
        for (name, content) in
            [("hooks/guard.sh", "echo"), ("hooks/run", "#!/bin/sh\n"), ("data.json", "{}"), ("git", "x"), ("my guard.py", "x")]
        {
            std::fs::write(cwd.join(name), content).unwrap();
        }
        let named = |line: &str| -> Vec<String> {
            let action = Action::Command { line: line.into() };
            let paths = named_by(&action, &cwd, &cwd);
            paths.iter().map(|path| path.strip_prefix(&cwd).unwrap().display().to_string()).collect()
        };
        for line in [
            "hooks/guard.sh",
            "./hooks/guard.sh --strict data.json",
            "bash hooks/guard.sh",
            "bash -eu hooks/guard.sh < data.json",
            "\"$ZAPMYCO_PROJECT_DIR\"/hooks/guard.sh",
            "'${CLAUDE_PROJECT_DIR}/hooks/guard.sh' data.json",
            "cd . && A=1 ./hooks/../hooks/guard.sh",
            "echo x | python3 hooks/guard.sh",
        ] {
            assert_eq!(named(line), ["hooks/guard.sh"], "{line}");
        }
        assert_eq!(named("env FAST=1 hooks/run; hooks/guard.sh"), ["hooks/run", "hooks/guard.sh"]);
        for line in ["git status", "jq . data.json", "/bin/true", "hooks", "absent.sh"] {
            assert!(named(line).is_empty(), "{line}");
        }
        let action = Action::Process { program: "python3".into(), arguments: vec!["my guard.py".into()] };
        assert_eq!(named_by(&action, &cwd, &cwd), [cwd.join("my guard.py")]);
    }
    /// R152, R160: what was trusted when a profile was read has to be so when its child starts, and whenever the hook runs.
    #[test]
    fn a_hook_is_held_to_the_scripts_that_were_trusted() {
        use crate::config::Layout;
        use crate::permissions::trust::{Decision, decide};
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().canonicalize().unwrap();
        let layout = Layout::new(folder.path().join("root"));
        let script = cwd.join("guard.sh");
        std::fs::write(&script, "exit 2").unwrap();
        let hooks = || {
            let hooks = serde_json::json!({"PreToolUse": [{"hooks": [{"command": "bash guard.sh"}]}]});
            HookSet::of_profile(&hooks, "profile").0
        };
        let nothing = Trust::none(&cwd);
        assert!(!hooks().has_trusted_scripts(&nothing, &cwd));
        let trust = decide(&layout, &cwd, &[nothing.content(&script, b"exit 2").unwrap()], Decision::Trusted).unwrap();
        assert!(hooks().has_trusted_scripts(&trust, &cwd) && trust.has_trusted(&script));
        let held = hooks().held(&trust, &cwd);
        assert!(held.hooks[0].pinned[0].is_unchanged());
        std::fs::write(&script, "exit 0").unwrap();
        assert!(!held.hooks[0].pinned[0].is_unchanged());
        assert!(!hooks().held(&trust, &cwd).hooks[0].pinned[0].is_unchanged());
        std::fs::remove_file(&script).unwrap();
        assert!(!held.hooks[0].pinned[0].is_unchanged());
    }
}
