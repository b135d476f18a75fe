//! Which simple commands are known to read only: listed programs, and per program the options and operands that would
//! write a file, start another program or change the system.
//!
//! A wrong "no" costs a question, a wrong "yes" costs a file; so every doubt is a "no". Pure text, no I/O.

use crate::permissions::shell_command::Word;

/// Whether this one command (program and arguments, quotes removed) is proved to change nothing.
pub(crate) fn is_read_only(words: &[Word]) -> bool {
    let Some((program, arguments)) = words.split_first() else { return false };
    if program.expands || arguments.iter().any(may_become_an_option) {
        return false;
    }
    let expands = arguments.iter().any(|word| word.expands);
    let arguments: Vec<&str> = arguments.iter().map(|word| word.text.as_str()).collect();
    let arguments = arguments.as_slice();
    match program.text.as_str() {
        // no option of these writes or runs anything
        ":" | "arch" | "basename" | "cat" | "cksum" | "cmp" | "column" | "comm" | "cut" | "df" | "diff" | "dir" | "dirname" | "du"
        | "echo" | "egrep" | "expand" | "false" | "fgrep" | "fold" | "free" | "grep" | "groups" | "head" | "hexdump" | "id" | "join"
        | "jq" | "ls" | "md5sum" | "nl" | "nproc" | "od" | "paste" | "ps" | "pwd" | "readlink" | "realpath" | "rev" | "seq" | "sha1sum"
        | "sha256sum" | "sha512sum" | "sleep" | "stat" | "strings" | "tac" | "tail" | "tr" | "true" | "type" | "uname" | "uptime"
        | "vdir" | "wc" | "which" | "whoami" => true,
        "sort" => lacks(arguments, "oT", &["output", "compress-program", "temporary-directory"]),
        "tree" => lacks(arguments, "oR", &["output"]),
        "file" => lacks(arguments, "CzZ", &["compile", "uncompress", "uncompress-noreport"]),
        "rg" => lacks(arguments, "z", &["pre", "hostname-bin", "search-zip"]),
        "find" => !arguments.iter().any(|word| FIND_ACTIONS.iter().any(|action| word.starts_with(action))),
        "uniq" => !expands && operands(arguments, "fsw", &["skip-fields", "skip-chars", "check-chars"]).len() <= 1,
        "date" => !expands && is_date_shown(arguments),
        "cd" => !expands && arguments.len() <= 1 && arguments.iter().all(|word| !word.starts_with('-')),
        "command" => !expands && arguments.len() == 2 && matches!(arguments[0], "-v" | "-V") && !arguments[1].starts_with('-'),
        "hostname" => arguments.is_empty(),
        "printf" => !arguments.iter().any(|word| word.starts_with("-v") || has_count_conversion(word)),
        "test" | "[" => !expands && is_plain_test(arguments),
        "sed" => !expands && is_sed_print(arguments),
        "git" => !expands && is_git_read(arguments),
        _ => false,
    }
}

/// Whether a program shows more than the files it is told by name: it walks folders or reads a repository's history.
pub(crate) fn looks_further(words: &[Word]) -> bool {
    let Some((program, arguments)) = words.split_first() else { return false };
    match program.text.as_str() {
        "rg" | "git" | "cd" | "find" | "tree" | "diff" => true,
        "grep" | "egrep" | "fgrep" | "ls" => {
            arguments.iter().any(|word| word.text.starts_with("--r") || word.text.starts_with("--d") || has_short(&word.text, "rRd"))
        }
        _ => arguments.iter().any(|word| word.expands || word.text.starts_with("--files0-from") || word.text.starts_with("--from-file")),
    }
}

const FIND_ACTIONS: &[&str] = &["-exec", "-ok", "-delete", "-fprint", "-fls"];

/// A pattern that begins with a wildcard may be replaced by a file name that begins with a dash. What it is replaced by
/// begins with the same plain text, so `--include=*.rs` stays the option that it is.
fn may_become_an_option(word: &Word) -> bool {
    let plain = word.text.split(['*', '?', '[', '{']).next().unwrap_or_default();
    let is_whole_option = plain.starts_with("--") && plain.contains('=');
    word.expands && !is_whole_option && (plain.is_empty() || plain.starts_with('-'))
}

/// `%n` of bash sets a variable of the shell, as `-v` does: PATH for example, which the next command then uses.
fn has_count_conversion(format: &str) -> bool {
    format.split('%').skip(1).any(|conversion| {
        let after_flags = conversion.trim_start_matches(|c: char| c.is_ascii_digit() || "-+ #'.*".contains(c));
        after_flags.trim_start_matches(['h', 'l', 'q', 'j', 'z', 't', 'L']).starts_with('n')
    })
}

/// None of the short options (also inside a cluster) and none of the long ones (also shortened) is present.
fn lacks(arguments: &[&str], short: &str, long: &[&str]) -> bool {
    !arguments.iter().any(|word| has_short(word, short) || long.iter().any(|name| is_long(word, name)))
}

fn has_short(word: &str, letters: &str) -> bool {
    word.starts_with('-') && !word.starts_with("--") && word.contains(|c| letters.contains(c))
}

/// `--output=x` and every shortening of it, as programs accept them.
fn is_long(word: &str, name: &str) -> bool {
    word.strip_prefix("--").is_some_and(|given| {
        let given = given.split('=').next().unwrap_or(given);
        !given.is_empty() && name.starts_with(given)
    })
}

/// The arguments that are no options; the named options take the next word as their value.
fn operands<'a>(arguments: &[&'a str], short_with_value: &str, long_with_value: &[&str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut iterator = arguments.iter();
    while let Some(word) = iterator.next() {
        if *word == "--" {
            found.extend(iterator.copied());
            break;
        }
        if !word.starts_with('-') || *word == "-" {
            found.push(*word);
            continue;
        }
        let is_short_alone = word.len() == 2 && has_short(word, short_with_value);
        let is_long_alone = !word.contains('=') && long_with_value.iter().any(|name| is_long(word, name));
        if is_short_alone || is_long_alone {
            iterator.next();
        }
    }
    found
}

/// Only formats and sources of a time; an operand without `+` would set the clock.
fn is_date_shown(arguments: &[&str]) -> bool {
    const FLAGS: &[&str] = &["-u", "-R", "--utc", "--universal", "--rfc-email"];
    const WITH_NEXT: &[&str] = &["-d", "-r", "--date", "--reference"];
    const PREFIXES: &[&str] = &["+", "-I", "--iso-8601", "--rfc-3339=", "--date=", "--reference="];
    let mut iterator = arguments.iter();
    while let Some(word) = iterator.next() {
        if WITH_NEXT.contains(word) {
            iterator.next();
        } else if !FLAGS.contains(word) && !PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
            return false;
        }
    }
    true
}

/// Bash evaluates the subscript of a variable named to `-v` or `-R`, command substitution included.
fn is_plain_test(arguments: &[&str]) -> bool {
    !arguments.iter().any(|word| matches!(*word, "-v" | "-R") || word.contains(['[', '$', '`']))
}

/// `sed -n 10,20p file`: line numbers to print and nothing else; other scripts may write files and run programs.
fn is_sed_print(arguments: &[&str]) -> bool {
    let Some((&"-n", rest)) = arguments.split_first() else { return false };
    let Some((script, files)) = rest.split_first() else { return false };
    is_line_range_print(script) && files.iter().all(|file| !file.starts_with('-'))
}

fn is_line_range_print(script: &str) -> bool {
    let is_address = |text: &str| text == "$" || (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()));
    script.split(';').all(|command| {
        command.trim().strip_suffix('p').is_some_and(|range| match range.split_once(',') {
            Some((first, last)) => is_address(first) && is_address(last),
            None => is_address(range),
        })
    })
}

/// Options that make git write a file or start a program.
const GIT_DENIED: &[&str] = &["output", "ext-diff", "textconv", "filters", "open-files-in-pager", "show-signature", "exec", "upload-pack"];

fn is_git_read(arguments: &[&str]) -> bool {
    const GLOBAL_FLAGS: &[&str] = &["--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"];
    let first = arguments.iter().position(|word| !GLOBAL_FLAGS.contains(word)).unwrap_or(arguments.len());
    let Some((subcommand, rest)) = arguments[first..].split_first() else { return false };
    let options: Vec<&str> = rest.iter().take_while(|word| **word != "--").copied().collect();
    // signature placeholders start gpg
    if options.iter().any(|word| word.starts_with("-O") || word.contains("%G") || GIT_DENIED.iter().any(|name| is_long(word, name))) {
        return false;
    }
    match *subcommand {
        "--version" | "version" => rest.is_empty(),
        // the pager may also stand in a cluster: `-nO./x`
        "grep" => !options.iter().any(|word| has_short(word, "O")),
        "blame" | "cat-file" | "check-attr" | "check-ignore" | "count-objects" | "describe" | "diff" | "diff-files" | "diff-index"
        | "diff-tree" | "for-each-ref" | "log" | "ls-files" | "ls-tree" | "merge-base" | "name-rev" | "rev-list" | "rev-parse"
        | "shortlog" | "show" | "show-ref" | "status" | "whatchanged" => true,
        "branch" => {
            is_git_list(rest, &["--show-current", "-a", "-r", "-v", "-vv", "-av", "-avv", "-rv", "--all", "--remotes", "--verbose"])
        }
        "tag" => is_git_list(rest, &["-l", "-n"]),
        "reflog" => rest.is_empty() || rest[0] == "show" || (rest.len() == 1 && rest[0].starts_with('-')),
        "stash" => matches!(rest.first(), Some(&"list" | &"show")),
        "remote" => matches!(rest, [] | ["-v"] | ["--verbose"] | ["get-url", _]) && !rest.get(1).is_some_and(|name| name.starts_with('-')),
        "worktree" => matches!(rest, ["list"] | ["list", "--porcelain"]),
        "config" => is_git_config_read(rest),
        _ => false,
    }
}

/// `git branch` and `git tag` list when told so; with a bare name they would create it.
fn is_git_list(arguments: &[&str], flags: &[&str]) -> bool {
    const LISTING: &[&str] = &["-l", "--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at"];
    const WITH_VALUE: &[&str] = &["--sort=", "--format=", "--color=", "--contains=", "--merged=", "--no-merged=", "--points-at="];
    // `git branch -l` created a reflog in older versions, so it counts only where the caller lists it
    let lists = arguments.iter().any(|word| LISTING.contains(word) && (*word != "-l" || flags.contains(word)));
    arguments.iter().all(|word| {
        if !word.starts_with('-') {
            return lists;
        }
        let is_known = flags.contains(word)
            || (LISTING.contains(word) && *word != "-l")
            || matches!(*word, "--no-color" | "--color" | "--column" | "--no-column" | "--ignore-case");
        is_known || WITH_VALUE.iter().any(|prefix| word.starts_with(prefix)) || is_line_count(word, flags)
    })
}

/// `git tag -n3`
fn is_line_count(word: &str, flags: &[&str]) -> bool {
    flags.contains(&"-n") && word.strip_prefix("-n").is_some_and(|digits| digits.chars().all(|c| c.is_ascii_digit()))
}

fn is_git_config_read(arguments: &[&str]) -> bool {
    const READING: &[&str] = &["--get", "--get-all", "--get-regexp", "--list", "-l"];
    const SCOPES: &[&str] = &["--global", "--local", "--system", "--show-origin", "--show-scope", "--null", "-z", "--name-only"];
    arguments.iter().any(|word| READING.contains(word))
        && arguments.iter().all(|word| !word.starts_with('-') || READING.contains(word) || SCOPES.contains(word))
}
