//! Commands that only make, copy or move files by name: what they change is told by their words, so that the rules for
//! edits speak of them too. Pure text, no I/O.

use crate::permissions::shell_command::{Part, Word, program_name};

/// The files that a simple command changes, when its words say all of it: where edits are free, so is it (R278).
pub(crate) fn edited_files(part: &Part) -> Option<Vec<String>> {
    let (program, arguments) = part.words.split_first()?;
    if !part.assignments.is_empty() || part.words.iter().any(|word| !word.is_fixed()) {
        return None;
    }
    let known = match program.text.as_str() {
        "mkdir" => "pv",
        "touch" => "acm",
        "tee" => "a",
        "rmdir" => "v",
        "cp" => "fpuvn",
        "mv" => "fuvn",
        _ => return None,
    };
    let operands = operands(arguments, known)?;
    match (program.text.as_str(), operands.as_slice()) {
        (_, []) => None,
        ("cp" | "mv", [_]) => None,
        ("cp" | "mv", [sources @ .., target]) => {
            let folder = target.trim_end_matches('/');
            let mut files = vec![(*target).to_owned()];
            // the target may be a folder, and in it a link
            files.extend(sources.iter().map(|source| format!("{folder}/{}", program_name(source.trim_end_matches('/')))));
            if program.text == "mv" {
                files.extend(sources.iter().map(|source| (*source).to_owned()));
            }
            Some(files)
        }
        _ => Some(operands.into_iter().map(str::to_owned).collect()),
    }
}

/// Operands when every option is one of the letters.
fn operands<'w>(arguments: &'w [Word], letters: &str) -> Option<Vec<&'w str>> {
    let mut found = Vec::new();
    let mut options = true;
    for word in arguments {
        match word.text.strip_prefix('-').filter(|rest| options && !rest.is_empty()) {
            Some("-") => options = false,
            Some("-parents" | "-verbose") if letters.contains('v') => {}
            Some(given) if given.chars().all(|c| letters.contains(c)) => {}
            Some(_) => return None,
            None => found.push(word.text.as_str()),
        }
    }
    Some(found)
}

/// Words of a command that may name a file it changes or removes, for rules that deny: rather too many than one too few.
pub(crate) fn touched_files(part: &Part) -> Vec<&str> {
    const WRITERS: &[&str] = &[
        "chmod", "chown", "cp", "dd", "install", "ln", "mkdir", "mkfifo", "mv", "patch", "rm", "rmdir", "rsync", "shred", "tee", "touch",
        "truncate", "unlink",
    ];
    let Some((program, arguments)) = part.words.split_first() else { return Vec::new() };
    let name = program_name(&program.text);
    let edits_in_place = |option: &str| arguments.iter().any(|word| word.text.starts_with(option));
    let writes = WRITERS.contains(&name)
        || (matches!(name, "sed" | "perl" | "ruby") && (edits_in_place("-i") || edits_in_place("--in-place")))
        || (name == "sort" && (edits_in_place("-o") || edits_in_place("--output")))
        || (name == "git" && ["checkout", "restore", "rm", "mv"].iter().any(|subcommand| edits_in_place(subcommand)));
    if !writes {
        return Vec::new();
    }
    let value = |word: &'_ str| word.split_once('=').map_or(0, |(name, _)| name.len() + 1);
    let glued = |text: &str| if name == "sort" && text.starts_with("-o") { "-o".len() } else { value(text) };
    arguments.iter().filter(|word| word.is_fixed()).flat_map(|word| [&word.text[..], &word.text[glued(&word.text)..]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permissions::shell_command::Line;

    fn edited(line: &str) -> Option<Vec<String>> {
        edited_files(&Line::read(line).parts[0])
    }

    /// R278
    #[test]
    fn files_are_told_by_words_or_not_at_all() {
        for (line, files) in [
            ("mkdir -p a/b c", &["a/b", "c"][..]),
            ("mkdir --parents a", &["a"]),
            ("touch -- -x", &["-x"]),
            ("cp a b", &["b", "b/a"]),
            ("cp -f x/a y/b d/", &["d/", "d/a", "d/b"]),
            ("mv a b", &["b", "b/a", "a"]),
            ("tee -a log", &["log"]),
        ] {
            assert_eq!(edited(line).unwrap(), files, "{line}");
        }
        for line in [
            "mkdir",
            "mkdir -m 777 a",
            "cp a",
            "cp -r a b",
            "cp -t d a",
            "touch $X",
            "touch *",
            "mv a{,b}",
            "A=1 touch x",
            "rm a",
            "ln -s a b",
        ] {
            assert_eq!(edited(line), None, "{line}");
        }
    }

    /// R283
    #[test]
    fn what_may_be_changed_is_found_widely() {
        let touched = |line: &str| Line::read(line).parts.iter().flat_map(touched_files).map(str::to_owned).collect::<Vec<_>>();
        assert!(touched("dd if=a of=b").contains(&"b".to_owned()));
        assert!(touched("sort -ob a").contains(&"b".to_owned()));
        assert!(touched("sed -i s/a/b/ f").contains(&"f".to_owned()));
        assert!(touched("sudo rm -rf d/f").contains(&"d/f".to_owned()));
        assert!(touched("git checkout -- f").contains(&"f".to_owned()));
        assert!(touched("cat f; python3 f").is_empty());
    }
}
