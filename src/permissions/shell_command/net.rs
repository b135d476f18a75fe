//! The textual net: pieces of a line that may be commands, for rules that deny where the grammar cannot tell.
//!
//! Rather too many pieces than one too few. Pure text, no I/O.

use super::words::program_name;

/// Every piece of the line that may be a command of its own, cut at anything that can separate commands, quotes and
/// parentheses included. For rules that deny: rather too many pieces than one too few.
pub fn rough_fragments(line: &str) -> Vec<String> {
    let flat = line.replace("\\\n", "");
    let mut fragments: Vec<String> = Vec::new();
    for piece in flat.split([';', '|', '&', '\n', '(', ')', '{', '}', '`', '<', '>']) {
        for inner in piece.split(['"', '\'']) {
            fragments.push(inner.to_owned());
        }
        // `{rm,x}` is `rm x`
        fragments.extend(piece.split(',').skip(1).map(str::to_owned));
        fragments.push(piece.replace(',', " "));
        fragments.push(piece.replace(['"', '\'', '\\'], ""));
    }
    fragments.iter().map(|fragment| without_wrappers(fragment)).filter(|fragment| !fragment.is_empty()).collect()
}

/// Words in front of the real command: keywords, assignments and programs that start another.
const WRAPPERS: &[&str] = &[
    "!", "builtin", "command", "do", "doas", "elif", "else", "env", "exec", "if", "ionice", "nice", "nohup", "setsid", "stdbuf", "sudo",
    "then", "time", "timeout", "until", "while", "xargs",
];

/// The command behind assignments, keywords and wrappers, its program without a folder, spaces folded.
pub fn without_wrappers(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let mut at = 0;
    let mut wrapped = false;
    while let Some(word) = words.get(at) {
        let is_wrapper = WRAPPERS.contains(&program_name(word));
        // options and numbers belong to the wrapper before them: `nice -n 5`, `timeout 10s`
        let belongs_to_wrapper = wrapped && (word.starts_with('-') || word.starts_with(|c: char| c.is_ascii_digit()));
        if !is_wrapper && !belongs_to_wrapper && !is_assignment(word) {
            break;
        }
        wrapped |= is_wrapper;
        at += 1;
    }
    let Some(program) = words.get(at) else { return String::new() };
    let mut plain = vec![program_name(program)];
    plain.extend(&words[at + 1..]);
    plain.join(" ")
}

pub(super) fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.trim_end_matches('+').chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_see_through_wrappers() {
        for line in [
            "rm -rf x",
            "  /bin/rm -rf x",
            "FOO=1 rm -rf x",
            "sudo -n rm -rf x",
            "timeout 10s rm -rf x",
            "echo $(rm -rf x)",
            "echo `rm -rf x`",
            "true;rm -rf x",
            "if true; then rm -rf x; fi",
            "(cd y; rm -rf x)",
            "sh -c 'rm -rf x'",
            "find . | xargs rm -rf x",
            "r\\m -rf x",
            "'rm' -rf x",
            "r\\\nm -rf x",
        ] {
            assert!(rough_fragments(line).iter().any(|fragment| fragment == "rm -rf x"), "{line}: {:?}", rough_fragments(line));
        }
    }
}
