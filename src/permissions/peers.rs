//! What a turn that only notices and other agents began must not change: rights, hooks, instructions, configuration (R231).

use std::path::{Component, Path};

use globset::GlobBuilder;

/// Folders whose content decides about rights, profiles, hooks and servers.
const FOLDERS: &[&str] = &[".zapmyco", ".zcode", ".claude", ".githooks", ".husky"];
/// Files that do, wherever they lie.
const FILES: &[&str] =
    &["agents.md", "agents.local.md", "agents.override.md", "claude.md", "claude.local.md", ".mcp.json", ".zapmyco.toml"];
/// What a command that changes configuration names.
const IN_COMMANDS: &[&str] = &[
    ".git/hooks",
    ".git/config",
    "core.hookspath",
    "git config",
    "settings.toml",
    "settings.local.toml",
    "agents-state.json",
    "zapmyco agents",
];

/// Whether a file is one of them. `path` is relative to the workspace where it lies in it.
pub(super) fn guarded_path(path: &Path) -> bool {
    let names: Vec<String> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_string_lossy().to_lowercase()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
        })
        .collect();
    let is_folder = names.iter().any(|name| FOLDERS.contains(&name.as_str()));
    let is_file = names.last().is_some_and(|name| FILES.contains(&name.as_str()));
    let in_git = names.windows(2).any(|pair| pair[0] == ".git" && matches!(pair[1].as_str(), "hooks" | "config" | "info"));
    is_folder || is_file || in_git
}

/// What of it a shell line names, quotes and letter case aside; a pattern counts for what it may stand for. `roots`: further
/// folders that are guarded as a whole.
pub(super) fn named_by_command(command: &str, roots: &[&Path]) -> Option<String> {
    let plain: String = command.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect::<String>().to_lowercase();
    let roots = roots.iter().map(|root| root.to_string_lossy().to_lowercase()).filter(|root| root.len() > 1);
    let fixed = FOLDERS.iter().chain(FILES).chain(IN_COMMANDS).map(|name| (*name).to_owned());
    if let Some(name) = fixed.chain(roots).find(|name| plain.contains(name.as_str())) {
        return Some(format!("`{name}`"));
    }
    let words = plain.split(|c: char| c.is_whitespace() || matches!(c, ';' | '&' | '|' | '<' | '>' | '(' | ')' | '`' | '=' | '/'));
    let patterns = words.filter(|word| word.contains(['*', '?', '[', '{']));
    patterns.map(str::to_owned).find(|pattern| stands_for_guarded(pattern)).map(|pattern| format!("what `{pattern}` may stand for"))
}

fn stands_for_guarded(pattern: &str) -> bool {
    let Ok(glob) = GlobBuilder::new(pattern).build() else { return false };
    let matcher = glob.compile_matcher();
    FOLDERS.iter().chain(FILES).any(|name| {
        // A shell's pattern finds hidden files only when it begins with the dot.
        (!name.starts_with('.') || pattern.starts_with(['.', '[', '{'])) && matcher.is_match(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R231
    #[test]
    fn files_that_decide_are_known_by_name_and_place() {
        for path in [
            "AGENTS.md",
            "sub/agents.MD",
            ".zapmyco/settings.toml",
            "x/.claude/agents/a.md",
            ".git/hooks/pre-commit",
            ".git/config",
            ".mcp.json",
        ] {
            assert!(guarded_path(Path::new(path)), "{path}");
        }
        for path in ["src/main.rs", "docs/agents.md.txt", "zapmyco/x", ".github/workflows/ci.yml", "README.md"] {
            assert!(!guarded_path(Path::new(path)), "{path}");
        }
    }

    /// R231
    #[test]
    fn commands_that_name_them_are_seen_through_quotes_and_patterns() {
        let root = Path::new("/home/me/state");
        for command in [
            "echo x >> AGENTS.md",
            "echo x > '.zap''myco'/settings.toml",
            "cp a AGENTS\\.md",
            "rm -r .zap*",
            "sed -i s/a/b/ *.md",
            "tee A?ENTS.md",
            "touch /home/me/state/settings.toml",
            "git config core.hooksPath x",
            "ln -s x .git/hooks/post-commit",
        ] {
            assert!(named_by_command(command, &[root]).is_some(), "{command}");
        }
        for command in ["cargo test", "touch src/*.rs", "echo done > result.txt", "[ -f a ] && make", "npm run build -- --x=1"] {
            assert_eq!(named_by_command(command, &[root]), None, "{command}");
        }
    }
}
