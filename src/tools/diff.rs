//! What an edit would change, as a unified diff for a person who is asked about it.

use std::path::Path;
use std::time::{Duration, Instant};

use similar::TextDiff;

/// Files larger than this are not compared line by line.
pub(crate) const COMPARED_MAX: u64 = 2 * 1024 * 1024;
/// Comparing gets coarser after this time; a person waits.
const COMPARE_FOR: Duration = Duration::from_millis(500);
const CONTEXT_LINES: usize = 3;

/// `old`: `None` for a file that does not exist yet.
pub(crate) fn unified(path: &Path, old: Option<&[u8]>, new: &[u8]) -> String {
    let name = path.display().to_string();
    let before = if old.is_some() { name.as_str() } else { "/dev/null" };
    let old = old.unwrap_or_default();
    if old.len().max(new.len()) as u64 > COMPARED_MAX {
        return sizes(path, old.len() as u64, new.len());
    }
    let is_binary = |bytes: &[u8]| bytes.contains(&0);
    if is_binary(old) || is_binary(new) {
        return format!("--- {before}\n+++ {name}\n(no text: {} bytes become {} bytes)\n", old.len(), new.len());
    }
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let diff = TextDiff::configure().deadline(Instant::now() + COMPARE_FOR).diff_lines(old.as_ref(), new.as_ref());
    let text = diff.unified_diff().context_radius(CONTEXT_LINES).header(before, &name).to_string();
    if text.is_empty() { format!("--- {before}\n+++ {name}\n(nothing changes)\n") } else { text }
}

/// For files that are too large to be compared, or even to be read for it.
pub(crate) fn sizes(path: &Path, old: u64, new: usize) -> String {
    let name = path.display();
    format!("--- {name}\n+++ {name}\n(too large to compare: {old} bytes become {new} bytes)\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_shown_with_their_surroundings() {
        let old: String = (1..=20).map(|number| format!("line {number}\n")).collect();
        let new = old.replace("line 10\n", "line ten\n");
        let text = unified(Path::new("/w/a.txt"), Some(old.as_bytes()), new.as_bytes());
        assert!(text.starts_with("--- /w/a.txt\n+++ /w/a.txt\n@@ -7,7 +7,7 @@\n line 7\n"), "{text}");
        assert!(text.contains("-line 10\n+line ten\n") && !text.contains("line 14"), "{text}");
    }

    #[test]
    fn a_new_file_a_binary_one_and_a_huge_one_are_told_apart() {
        let new = unified(Path::new("/w/a"), None, b"one\ntwo");
        assert!(new.starts_with("--- /dev/null\n+++ /w/a\n@@ -0,0 +1,2 @@\n+one\n+two\n"), "{new}");
        assert!(unified(Path::new("/w/a"), Some(b"\0\x01"), b"x").contains("(no text: 2 bytes become 1 bytes)"));
        assert!(unified(Path::new("/w/a"), Some(&vec![b'a'; 3_000_000]), b"x").contains("too large to compare"));
        assert!(unified(Path::new("/w/a"), Some(b"x\n"), b"x\n").contains("(nothing changes)"));
    }
}
