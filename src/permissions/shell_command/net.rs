//! The textual net: pieces of a line that may be commands, for rules that deny where the grammar cannot tell.
//!
//! Rather too many pieces than one too few. Pure text, no I/O.

use super::words::{self, ANY, program_name};

/// Every piece of the line that may be a command of its own, cut at anything that can separate commands, quotes and
/// parentheses included. For rules that deny: rather too many pieces than one too few.
pub fn rough_fragments(line: &str) -> Vec<String> {
    let mut fragments: Vec<String> = Vec::new();
    for piece in line.replace("\\\n", "").split([';', '|', '&', '\n', '(', ')', '{', '}', '`', '<', '>']) {
        for inner in piece.split(['"', '\'']) {
            // `!` begins a command of the shell in many programs
            fragments.push(inner.trim_start_matches('!').to_owned());
        }
        // `{rm,x}` is `rm x`
        fragments.extend(piece.split(',').skip(1).map(str::to_owned));
        fragments.push(piece.replace(',', " "));
        fragments.push(piece.replace(['"', '\'', '\\'], ""));
    }
    fragments.iter().map(|fragment| without_wrappers(fragment)).filter(|fragment| !fragment.is_empty()).collect()
}

/// The same, with [`ANY`] for whatever the shell would put in, and `$'...'` read.
pub(crate) fn loose_fragments(line: &str) -> Vec<String> {
    let flat = line.replace("\\\n", "");
    let mut text = String::with_capacity(flat.len());
    let mut rest = flat.as_str();
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let length = expansion_length(from);
        let (expansion, after) = from.split_at(length.max(1));
        match (length, words::ansi_c(expansion)) {
            (_, Some(read)) => text.push_str(&read),
            (0, None) if from.starts_with("$(") => {
                // what it puts in, and the commands in it
                text.push(ANY);
                text.push_str(" ; ");
            }
            (0, None) => text.push('$'),
            (_, None) => {
                text.push(ANY);
                // what stands inside may be code as well
                if expansion.len() > "${X}".len() && expansion.contains(['(', '`']) {
                    text.push_str(" ; ");
                    text.push_str(&expansion[2..]);
                    text.push_str(" ; ");
                    text.push(ANY);
                }
            }
        }
        rest = after;
    }
    text.push_str(rest);
    let mut fragments = rough_fragments(&text);
    // a command from inside a substitution ends where the line goes on
    fragments.extend(rough_fragments(&text.replace(['{', '}'], " ")));
    fragments
}

/// Of `$NAME`, `${...}` or `$'...'`; 0 for every other dollar.
fn expansion_length(from: &str) -> usize {
    let after = &from[1..];
    match after.chars().next() {
        Some('{') => after.find('}').map_or(0, |end| end + 2),
        Some('\'') => {
            let mut escaped = false;
            let end = after.char_indices().skip(1).find(|(_, c)| {
                let ends = *c == '\'' && !escaped;
                escaped = *c == '\\' && !escaped;
                ends
            });
            end.map_or(0, |(end, _)| end + 2)
        }
        Some(c) if c.is_ascii_alphabetic() || c == '_' => {
            1 + after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len())
        }
        Some('0'..='9' | '@' | '*' | '#' | '?' | '-' | '$' | '!') => 2,
        Some(_) | None => 0,
    }
}

/// Words in front of the real command: keywords, assignments and programs that start another.
const WRAPPERS: &[&str] = &[
    "!", "builtin", "command", "coproc", "do", "doas", "elif", "else", "env", "eval", "exec", "if", "ionice", "nice", "nohup", "setsid",
    "stdbuf", "sudo", "then", "time", "timeout", "until", "while", "xargs",
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
