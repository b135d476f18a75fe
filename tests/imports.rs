//! Who may import whom: the table of ARCHITECTURE.md as data, held against every `crate::` path in `src`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder (or single file) of `src`, and what it may name.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("ids", &[]),
    ("clock", &[]),
    ("files", &[]),
    ("footprint", &[]),
    ("spelling", &[]),
    ("secrets", &[]),
    ("frontmatter", &[]),
    ("text", &["ids"]),
    ("config", &["ids", "files", "spelling"]),
    ("supervisor", &["clock", "files", "footprint", "config", "secrets"]),
    ("models", &["ids", "clock", "files", "footprint", "config", "secrets", "spelling"]),
    ("store", &["ids", "clock", "files", "config", "secrets", "models"]),
    ("skills", &["files", "config", "frontmatter"]),
    ("permissions", &["ids", "clock", "files", "config", "supervisor"]),
    ("hooks", &["ids", "clock", "files", "config", "supervisor", "permissions"]),
    ("web", &["files", "config", "secrets"]),
    ("agent", &["ids", "clock", "text", "config", "models", "store", "permissions", "hooks", "spelling"]),
    ("mcp", &["config", "permissions", "agent"]),
    (
        "subagents",
        &[
            "ids",
            "clock",
            "files",
            "text",
            "config",
            "frontmatter",
            "supervisor",
            "models",
            "store",
            "permissions",
            "skills",
            "hooks",
            "agent",
            "mcp",
            "spelling",
        ],
    ),
    (
        "tools",
        &[
            "ids",
            "clock",
            "files",
            "text",
            "config",
            "supervisor",
            "models",
            "store",
            "permissions",
            "secrets",
            "skills",
            "web",
            "hooks",
            "agent",
            "subagents",
            "spelling",
        ],
    ),
    (
        "app",
        &[
            "ids",
            "clock",
            "files",
            "text",
            "config",
            "frontmatter",
            "supervisor",
            "models",
            "store",
            "permissions",
            "secrets",
            "skills",
            "web",
            "hooks",
            "agent",
            "subagents",
            "tools",
        ],
    ),
    (
        "cli",
        &[
            "app",
            "agent",
            "subagents",
            "models",
            "permissions",
            "secrets",
            "skills",
            "frontmatter",
            "store",
            "text",
            "config",
            "ids",
            "clock",
        ],
    ),
];

/// Narrower still: of these folders only these parts.
const ONLY_PARTS: &[(&str, &str, &[&str])] =
    &[("supervisor", "config", &["layout", "JobFolder", "Stream", "environment"]), ("permissions", "supervisor", &["plan", "confine"])];

#[test]
fn every_folder_imports_only_what_the_table_allows() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let table: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let mut offences = Vec::new();
    for file in rust_files(&source) {
        let relative = file.strip_prefix(&source).unwrap();
        let folder = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if folder == "lib" || folder == "main" {
            continue;
        }
        let Some(allowed) = table.get(folder) else {
            offences.push(format!("{}: folder `{folder}` is not in the table", relative.display()));
            continue;
        };
        for (line_number, path) in crate_paths(&std::fs::read_to_string(&file).unwrap()) {
            let mut parts = path.split("::");
            let target = parts.next().unwrap();
            let part = parts.next().unwrap_or("");
            let forbidden_part =
                ONLY_PARTS.iter().any(|(from, to, only)| *from == folder && *to == target && !part.is_empty() && !only.contains(&part));
            if target != folder && (!allowed.contains(&target) || forbidden_part) {
                offences.push(format!("src/{}:{line_number}: `{folder}` may not import `{target}::{part}`", relative.display()));
            }
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Every `crate::a::b` outside comments, with its line; `crate::{a::b, c}` gives one path per entry.
fn crate_paths(text: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    let mut depth_of_group: Option<usize> = None;
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        if let Some(depth) = depth_of_group {
            let names = code.trim().split(',').map(str::trim).filter(|name| !name.is_empty() && !name.starts_with('}'));
            if depth == 1 {
                paths.extend(names.map(|name| (index + 1, name.to_owned())));
            }
            let opened = code.matches('{').count();
            let closed = code.matches('}').count();
            let now = (depth + opened).saturating_sub(closed);
            depth_of_group = (now > 0).then_some(now);
            continue;
        }
        for (position, _) in code.match_indices("crate::") {
            let rest = &code[position + "crate::".len()..];
            if let Some(group) = rest.strip_prefix('{') {
                let inside = group.split('}').next().unwrap_or("");
                paths.extend(inside.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| (index + 1, name.to_owned())));
                if !group.contains('}') {
                    depth_of_group = Some(1 + group.matches('{').count());
                }
                continue;
            }
            let path: String = rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':')).collect();
            let path = path.trim_end_matches(':').to_owned();
            match rest[path.len()..].strip_prefix("::{") {
                // `crate::a::{B, c}`: every entry is a part of `a`.
                Some(group) if !path.contains("::") => {
                    let inside = group.split('}').next().unwrap_or("");
                    let entries = inside.split(',').map(str::trim).filter(|name| !name.is_empty());
                    paths.extend(entries.map(|name| (index + 1, format!("{path}::{name}"))));
                    paths.push((index + 1, path.clone()));
                }
                _ => paths.push((index + 1, path)),
            }
        }
    }
    paths
}

#[test]
fn the_reader_of_imports_sees_every_form() {
    let text = "use crate::a::B;\nuse crate::{c, d::E};\n// use crate::no;\nfn f() { crate::g::h() }\nuse crate::i::{J, k};\nuse crate::{\n    l,\n    m::N,\n};\n";
    let found: Vec<String> = crate_paths(text).into_iter().map(|(_, path)| path).collect();
    assert_eq!(found, ["a::B", "c", "d::E", "g::h", "i::J", "i::k", "i", "l", "m::N"]);
}

/// ARCHITECTURE.md lists every file with the first sentence of its documentation, and the table of imports as it is here.
/// `ZAPMYCO_UPDATE_ARCHITECTURE=1` writes both anew.
#[test]
fn the_architecture_page_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page_path = root.join("ARCHITECTURE.md");
    let page = std::fs::read_to_string(&page_path).unwrap();
    let fresh = replaced(&replaced(&page, "```text\n", "```", &tree(root)), "| folder | may import |\n|---|---|\n", "\n", &import_rows());
    if std::env::var_os("ZAPMYCO_UPDATE_ARCHITECTURE").is_some() {
        return std::fs::write(&page_path, &fresh).unwrap();
    }
    assert!(page == fresh, "ARCHITECTURE.md is behind the code: run the tests once with ZAPMYCO_UPDATE_ARCHITECTURE=1");
}

/// The text with what stands between `start` and the next line that begins with `end` replaced.
fn replaced(page: &str, start: &str, end: &str, content: &str) -> String {
    let from = page.find(start).unwrap_or_else(|| panic!("no {start:?} in ARCHITECTURE.md")) + start.len();
    let mut to = from;
    while !page[to..].starts_with(end) && to < page.len() {
        to += page[to..].find('\n').map_or(page.len() - to, |line| line + 1);
    }
    format!("{}{content}{}", &page[..from], &page[to..])
}

fn import_rows() -> String {
    let row = |(folder, allowed): &(&str, &[&str])| {
        let allowed = if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") };
        format!("| {folder} | {allowed} |\n")
    };
    MAY_IMPORT.iter().map(row).collect()
}

fn tree(root: &Path) -> String {
    const FIRST: &[&str] = &["main.rs", "lib.rs", "app.rs", "ids.rs", "clock.rs", "files.rs", "footprint.rs", "spelling.rs"];
    const FOLDERS: &[&str] = &[
        "app",
        "cli",
        "agent",
        "subagents",
        "mcp",
        "skills",
        "supervisor",
        "models",
        "tools",
        "web",
        "permissions",
        "hooks",
        "store",
        "config",
        "secrets",
        "frontmatter",
        "text",
    ];
    let source = root.join("src");
    let mut lines: Vec<String> = FIRST.iter().map(|file| entry(&source.join(file), 0)).collect();
    for folder in FOLDERS {
        branch(&source.join(folder), 0, &mut lines);
    }
    lines.join("\n") + "\n"
}

fn branch(folder: &Path, depth: usize, lines: &mut Vec<String>) {
    let name = format!("{}/", folder.file_name().unwrap().to_str().unwrap());
    let module = folder.join("mod.rs");
    let meaning = if module.exists() { first_sentence(&module) } else { String::new() };
    lines.push(format!("{:indent$}{name:<width$}{meaning}", "", indent = 2 * depth, width = 24 - 2 * depth).trim_end().to_owned());
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort_by_key(|path| (path.is_dir(), path.clone()));
    for path in entries {
        if path.is_dir() {
            branch(&path, depth + 1, lines);
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.file_name().unwrap() != "mod.rs" {
            lines.push(entry(&path, depth + 1));
        }
    }
}

fn entry(file: &Path, depth: usize) -> String {
    let name = file.file_name().unwrap().to_str().unwrap();
    format!("{:indent$}{name:<width$} {}", "", first_sentence(file), indent = 2 * depth, width = 23 - 2 * depth)
}

fn first_sentence(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).take_while(|line| !line.is_empty());
    let paragraph = lines.collect::<Vec<_>>().join(" ");
    assert!(!paragraph.is_empty(), "{} begins without a `//!` sentence", file.display());
    paragraph.split_once(". ").map_or(paragraph.trim_end_matches('.'), |(sentence, _)| sentence).to_owned()
}
