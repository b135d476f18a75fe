//! Which parts of a folder the demo's subagents look at: three subfolders, or groups of files where there are fewer.
//!
//! No tool could choose them before the model's first word, so this is done here; it counts nothing that is reported.
//! Hidden files, ignored files and binary files are left out, as the tools do.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use ignore::WalkBuilder;

/// Files that are looked at to choose the parts.
pub(super) const FILES_MAX: usize = 20_000;
const PARTS: usize = 3;
/// Searches of one part; a folder that needs more is too large to be one.
const ITEMS_MAX: usize = 40;
/// Text and files that one search goes through, so that what it finds fits into one tool result.
const ITEM_BYTES_MAX: u64 = 256 * 1024;
const ITEM_FILES_MAX: usize = 150;
/// Bytes at the start of a file that tell whether it is text.
const SNIFFED_BYTES: u64 = 1024;

/// What the subagents get, one part each.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Parts {
    pub parts: Vec<Part>,
    /// The folder has more files than were looked at.
    pub is_cut: bool,
}

#[derive(Debug, PartialEq)]
pub(super) struct Part {
    pub title: String,
    /// Paths relative to the folder; a folder ends in `/`.
    pub items: Vec<String>,
}

/// A folder with the text files below it.
#[derive(Default)]
struct Tree {
    folders: BTreeMap<String, Tree>,
    files: BTreeMap<String, u64>,
}

/// Walks the folder and chooses. No parts: there is nothing to read.
pub(super) fn choose(folder: &Path) -> Parts {
    let mut tree = Tree::default();
    let mut n_files = 0;
    let mut is_cut = false;
    // The same rules as those of the search tools; what is mounted below (`/proc`) is no part of the folder.
    let walk = WalkBuilder::new(folder).require_git(false).git_global(false).same_file_system(true).build();
    for entry in walk.flatten() {
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        if n_files == FILES_MAX {
            is_cut = true;
            break;
        }
        n_files += 1;
        let relative = entry.path().strip_prefix(folder).ok().and_then(Path::to_str);
        if let Some(path) = relative.filter(|path| is_plain(path))
            && let Some(bytes) = text_bytes(entry.path())
        {
            tree.insert(path, bytes);
        }
    }
    Parts { parts: tree.parts(), is_cut }
}

/// A name that can stand in a line of a prompt, a glob and a shell word.
fn is_plain(path: &str) -> bool {
    !path.starts_with('(') && !path.contains(|c: char| c.is_control() || c == '\\' || c == ':')
}

/// Size of a text file; `None` for an empty, binary or unreadable one.
fn text_bytes(path: &Path) -> Option<u64> {
    let file = std::fs::File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    let mut start = Vec::new();
    file.take(SNIFFED_BYTES).read_to_end(&mut start).ok()?;
    (!start.is_empty() && !start.contains(&0)).then_some(size)
}

impl Tree {
    fn insert(&mut self, path: &str, bytes: u64) {
        match path.split_once('/') {
            Some((folder, rest)) => self.folders.entry(folder.to_owned()).or_default().insert(rest, bytes),
            None => _ = self.files.insert(path.to_owned(), bytes),
        }
    }

    fn n_files(&self) -> usize {
        self.files.len() + self.folders.values().map(Self::n_files).sum::<usize>()
    }

    fn bytes(&self) -> u64 {
        self.files.values().sum::<u64>() + self.folders.values().map(Self::bytes).sum::<u64>()
    }

    fn parts(&self) -> Vec<Part> {
        let mut folders: Vec<(String, &Self)> = self.children("");
        // A folder that is too large, and the largest while there are too few, is replaced by its subfolders.
        loop {
            folders.sort_by_key(|(path, tree)| (std::cmp::Reverse(tree.n_files()), path.clone()));
            let too_few = folders.len() < PARTS;
            let next = folders.iter().position(|(path, tree)| too_few && tree.branches() || tree.items(path).is_none());
            let Some(at) = next else { break };
            let (path, tree) = folders.remove(at);
            folders.extend(tree.children(&path));
        }
        let mut parts: Vec<Part> =
            folders.into_iter().take(PARTS).filter_map(|(title, tree)| Some(Part { items: tree.items(&title)?, title })).collect();
        if parts.len() < PARTS {
            parts = self.groups_of_files();
        }
        parts.sort_by(|a, b| a.title.cmp(&b.title));
        parts
    }

    /// Whether opening it, and what it alone holds, gives more than one folder.
    fn branches(&self) -> bool {
        self.folders.len() > 1 || self.folders.values().any(Self::branches)
    }

    fn children(&self, path: &str) -> Vec<(String, &Self)> {
        self.folders.iter().map(|(name, tree)| (format!("{path}{name}/"), tree)).collect()
    }

    /// What to search to see the whole folder; `None` when it takes too many searches.
    fn items(&self, path: &str) -> Option<Vec<String>> {
        if self.bytes() <= ITEM_BYTES_MAX && self.n_files() <= ITEM_FILES_MAX {
            return Some(vec![path.to_owned()]);
        }
        let mut items: Vec<String> = Vec::new();
        for (name, tree) in &self.folders {
            items.extend(tree.items(&format!("{path}{name}/"))?);
        }
        items.extend(self.files.keys().map(|name| format!("{path}{name}")));
        (items.len() <= ITEMS_MAX).then_some(items)
    }

    /// At most three groups of the first files, in order of their paths.
    fn groups_of_files(&self) -> Vec<Part> {
        let mut files = Vec::new();
        self.collect_files("", &mut files);
        files.truncate(PARTS * ITEMS_MAX);
        let size = files.len().div_ceil(PARTS).max(1);
        let groups = files.chunks(size).map(|group| Part {
            title: match group {
                [only] => only.clone(),
                [first, .., last] => format!("{first} to {last}"),
                [] => String::new(),
            },
            items: group.to_vec(),
        });
        groups.collect()
    }

    fn collect_files(&self, path: &str, files: &mut Vec<String>) {
        files.extend(self.files.keys().map(|name| format!("{path}{name}")));
        for (name, tree) in &self.folders {
            tree.collect_files(&format!("{path}{name}/"), files);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(files: &[&str]) -> Vec<String> {
        let mut tree = Tree::default();
        files.iter().for_each(|file| tree.insert(file, 10));
        tree.parts().into_iter().map(|part| part.title).collect()
    }

    #[test]
    fn the_three_largest_subfolders_are_the_parts() {
        let files = ["a/1", "b/1", "b/2", "c/1", "c/2", "c/x/3", "d/1", "d/2", "top"];
        assert_eq!(titles(&files), ["b/", "c/", "d/"]);
    }

    #[test]
    fn a_single_large_folder_is_opened() {
        assert_eq!(titles(&["src/a/1", "src/b/1", "src/c/1", "src/main"]), ["src/a/", "src/b/", "src/c/"]);
        assert_eq!(titles(&["src/main/x/a/1", "src/main/x/b/1", "src/main/x/c/1"]), ["src/main/x/a/", "src/main/x/b/", "src/main/x/c/"]);
        assert_eq!(titles(&["src/a/1", "src/b/1", "tests/1"]), ["src/a/", "src/b/", "tests/"]);
    }

    #[test]
    fn fewer_than_three_folders_are_split_by_files() {
        assert_eq!(titles(&["1", "2", "3", "4", "a/5"]), ["1 to 2", "3 to 4", "a/5"]);
        assert_eq!(titles(&["1", "2"]), ["1", "2"]);
        assert_eq!(titles(&["only"]), ["only"]);
        assert!(titles(&[]).is_empty());
    }

    #[test]
    fn a_large_folder_is_searched_piece_by_piece() {
        let mut tree = Tree::default();
        tree.insert("big/one/a", ITEM_BYTES_MAX);
        tree.insert("big/two/b", 10);
        tree.insert("big/c", 10);
        assert_eq!(tree.folders["big"].items("big/").unwrap(), ["big/one/", "big/two/", "big/c"]);
        (0..100).for_each(|number| tree.insert(&format!("flat/{number}"), ITEM_BYTES_MAX));
        assert_eq!(tree.folders["flat"].items("flat/"), None);
    }
}
