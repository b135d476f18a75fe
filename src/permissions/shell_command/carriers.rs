//! Commands inside the words of other commands: what `env`, `xargs`, `sh -c`, `find -exec` and their kind would start.

use super::words::{ANY, Word, joined_raw, program_name};
use super::{Carries, Holds};

/// What a command carries.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub carries: Carries,
    pub items: Vec<Item>,
    /// Code in another language.
    pub loose: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Item {
    pub what: What,
    /// The carrier's text up to and with the carried program.
    pub head: String,
    pub holds: Holds,
}

#[derive(Debug)]
pub(super) enum What {
    Command(Vec<Word>),
    /// Shell code; with [`ANY`] in it nothing is known of it.
    Code(String),
}

/// A program that starts the command in its words.
struct Wrapper {
    names: &'static [&'static str],
    /// Short options whose value is the next word when it is not glued.
    short_with_value: &'static str,
    long_with_value: &'static [&'static str],
    /// Words before the command.
    operands: usize,
    carries: Carries,
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        names: &["command", "builtin", "nohup", "setsid", "catchsegv", "busybox", "toybox"],
        short_with_value: "",
        long_with_value: &[],
        operands: 0,
        carries: Carries::Wraps,
    },
    Wrapper { names: &["exec"], short_with_value: "a", long_with_value: &[], operands: 0, carries: Carries::Wraps },
    Wrapper { names: &["nice"], short_with_value: "n", long_with_value: &["adjustment"], operands: 0, carries: Carries::Wraps },
    Wrapper {
        names: &["ionice"],
        short_with_value: "cnpPu",
        long_with_value: &["class", "classdata", "pid", "pgid", "uid"],
        operands: 0,
        carries: Carries::Wraps,
    },
    Wrapper {
        names: &["timeout"],
        short_with_value: "ks",
        long_with_value: &["kill-after", "signal"],
        operands: 1,
        carries: Carries::Wraps,
    },
    Wrapper {
        names: &["stdbuf"],
        short_with_value: "ioe",
        long_with_value: &["input", "output", "error"],
        operands: 0,
        carries: Carries::Wraps,
    },
    Wrapper { names: &["time"], short_with_value: "fo", long_with_value: &["format", "output"], operands: 0, carries: Carries::Runs },
    Wrapper {
        names: &["chrt"],
        short_with_value: "TPD",
        long_with_value: &["sched-runtime", "sched-period", "sched-deadline"],
        operands: 1,
        carries: Carries::Runs,
    },
    Wrapper { names: &["taskset", "chroot"], short_with_value: "", long_with_value: &[], operands: 1, carries: Carries::Runs },
    Wrapper {
        names: &["sudo", "doas", "pkexec"],
        short_with_value: "ugpCrthDRTU",
        long_with_value: &[
            "user",
            "group",
            "prompt",
            "close-from",
            "role",
            "type",
            "host",
            "chdir",
            "chroot",
            "command-timeout",
            "other-user",
        ],
        operands: 0,
        carries: Carries::Runs,
    },
];

/// Programs that start others, in ways too many to follow: any later word may be the program.
const LAUNCHERS: &[&str] = &[
    "bunx",
    "bwrap",
    "caffeinate",
    "cpulimit",
    "dbus-run-session",
    "direnv",
    "dotenv",
    "entr",
    "fakeroot",
    "firejail",
    "ltrace",
    "nsenter",
    "numactl",
    "npx",
    "perf",
    "pipx",
    "prlimit",
    "proot",
    "proxychains",
    "rlwrap",
    "runuser",
    "setarch",
    "strace",
    "systemd-run",
    "torsocks",
    "unbuffer",
    "unshare",
    "uvx",
    "valgrind",
    "xvfb-run",
];

/// The same after one of their subcommands.
const LAUNCHING: &[(&str, &[&str])] = &[
    ("bundle", &["exec"]),
    ("conda", &["run"]),
    ("git", &["bisect"]),
    ("mise", &["exec", "x"]),
    ("nix", &["run", "shell", "develop"]),
    ("npm", &["exec", "x"]),
    ("pdm", &["run"]),
    ("pipenv", &["run"]),
    ("pnpm", &["exec", "dlx"]),
    ("poetry", &["run"]),
    ("rustup", &["run"]),
    ("uv", &["run"]),
    ("yarn", &["exec", "dlx"]),
];

const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish"];

/// Programs that take code of their own language, and the options that it stands behind.
const INTERPRETERS: &[(&str, &[&str])] = &[
    ("python", &["-c"]),
    ("perl", &["-e", "-E"]),
    ("ruby", &["-e"]),
    ("node", &["-e", "-p", "--eval", "--print"]),
    ("php", &["-r"]),
    ("lua", &["-e"]),
    ("osascript", &["-e"]),
    ("bun", &["-e"]),
    ("deno", &["eval"]),
];

/// What the words of one command carry; `input` is text given on its standard input.
pub(super) fn load(words: &[Word], input: Option<&Word>) -> Load {
    let Some(program) = words.first().filter(|word| word.is_fixed()) else { return Load::default() };
    let name = program_name(&program.text);
    let only_shows = name == "command" && words.get(1).is_some_and(|word| matches!(word.text.as_str(), "-v" | "-V" | "-pv" | "-pV"));
    if only_shows {
        return Load::default();
    }
    if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.names.contains(&name)) {
        return wrapped(wrapper, words);
    }
    if SHELLS.contains(&name) {
        return shell(words, input);
    }
    if LAUNCHERS.contains(&name)
        || LAUNCHING.iter().any(|(launcher, with)| *launcher == name && words.get(1).is_some_and(|word| with.contains(&word.text.as_str())))
    {
        return launched(words);
    }
    if let Some((_, options)) =
        INTERPRETERS.iter().find(|(interpreter, _)| name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == *interpreter)
    {
        let has_code = words.iter().any(|word| options.iter().any(|option| word.text.starts_with(option)));
        let loose = if has_code { words[1..].iter().map(|word| word.text.clone()).collect() } else { Vec::new() };
        return Load { loose, ..Load::default() };
    }
    match name {
        "env" => environment(words),
        "xargs" => arguments_from_input(words),
        "find" => find(words),
        "eval" => Load { carries: Carries::Wraps, items: code_item(&words[1..], words, 1).into_iter().collect(), loose: Vec::new() },
        "awk" | "gawk" | "mawk" | "nawk" | "sed" => {
            Load { loose: words[1..].iter().map(|word| word.text.clone()).collect(), ..Load::default() }
        }
        _ => Load::default(),
    }
}

/// The command after a wrapper's options and operands.
fn wrapped(wrapper: &Wrapper, words: &[Word]) -> Load {
    let mut at = after_options(words, wrapper.short_with_value, wrapper.long_with_value);
    at += wrapper.operands;
    command_at(words, at, wrapper.carries)
}

/// The first word that is no option and no option's value.
fn after_options(words: &[Word], short_with_value: &str, long_with_value: &[&str]) -> usize {
    let mut at = 1;
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        if text == "--" {
            return at + 1;
        }
        if !text.starts_with('-') || text == "-" {
            return at;
        }
        let takes_next = match text.strip_prefix("--") {
            Some(long) => !long.contains('=') && long_with_value.iter().any(|name| !long.is_empty() && name.starts_with(long)),
            None => {
                let letters = &text[1..];
                letters
                    .char_indices()
                    .find(|(_, c)| short_with_value.contains(*c))
                    .is_some_and(|(at, c)| at + c.len_utf8() == letters.len())
            }
        };
        at += if takes_next { 2 } else { 1 };
    }
    at
}

fn command_at(words: &[Word], at: usize, carries: Carries) -> Load {
    match words.get(at..) {
        Some(command) if !command.is_empty() => {
            let head = joined_raw(&words[..=at]);
            let item = Item { what: What::Command(command.to_vec()), head, holds: Holds::Always };
            Load { carries, items: vec![item], loose: Vec::new() }
        }
        Some(_) | None => Load::default(),
    }
}

/// Code made of words, as `eval` makes it.
fn code_item(code: &[Word], words: &[Word], at: usize) -> Option<Item> {
    if code.is_empty() {
        return None;
    }
    // an expansion of the words themselves has happened before the code is read
    let text = |word: &Word| if word.is_fixed() { word.text.clone() } else { format!("{ANY}{}", word.text) };
    let joined = code.iter().map(text).collect::<Vec<_>>().join(" ");
    Some(Item { what: What::Code(joined), head: joined_raw(&words[..=at.min(words.len() - 1)]), holds: Holds::Always })
}

fn launched(words: &[Word]) -> Load {
    /// Longer calls are cut; their programs stand near the start.
    const TRIED_MAX: usize = 24;
    let items = (1..words.len().min(TRIED_MAX))
        .filter(|at| !words[*at].text.starts_with('-'))
        .map(|at| Item { what: What::Command(words[at..].to_vec()), head: joined_raw(&words[..=at]), holds: Holds::DenyOnly })
        .collect();
    Load { carries: Carries::Runs, items, loose: Vec::new() }
}

/// `sh -c code`, `sh` reading its code from standard input; `sh file` is a program like any other.
fn shell(words: &[Word], input: Option<&Word>) -> Load {
    let mut at = 1;
    let mut takes_code = false;
    let mut is_plain = true;
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        if !(text.starts_with('-') || text.starts_with('+')) || text.len() < 2 {
            break;
        }
        at += 1;
        if text == "--" {
            break;
        }
        let letters = &text[1..];
        if text.starts_with("--") {
            is_plain &= matches!(text, "--noprofile" | "--norc" | "--posix" | "--login");
            at += usize::from(matches!(text, "--rcfile" | "--init-file"));
            continue;
        }
        takes_code |= text.starts_with('-') && letters.contains('c');
        is_plain &= letters.chars().all(|c| "abcefhlmnuvxo".contains(c));
        at += letters.matches(['o', 'O']).count();
    }
    let Some(code) = words.get(at) else {
        // the code comes from elsewhere
        let shown = match input {
            Some(input) => input.text.clone(),
            None if words.len() > 1 && words[1..].iter().all(|word| matches!(word.text.as_str(), "--version" | "--help")) => {
                return Load::default();
            }
            None => ANY.to_string(),
        };
        let item = Item { what: What::Code(shown), head: joined_raw(words), holds: Holds::Always };
        return Load { carries: Carries::Runs, items: vec![item], loose: Vec::new() };
    };
    if takes_code {
        let items = code_item(std::slice::from_ref(code), words, at).into_iter().collect();
        return Load { carries: if is_plain { Carries::Wraps } else { Carries::Runs }, items, loose: Vec::new() };
    }
    let reads_made_file = code.text.starts_with("/dev/") || code.text == ANY.to_string() && code.raw.starts_with("<(") || code.text == "-";
    if reads_made_file {
        let item = Item { what: What::Code(ANY.to_string()), head: joined_raw(words), holds: Holds::Always };
        return Load { carries: Carries::Runs, items: vec![item], loose: Vec::new() };
    }
    Load::default()
}

fn environment(words: &[Word]) -> Load {
    let mut at = 1;
    let mut carries = Carries::Wraps;
    while let Some(word) = words.get(at) {
        let text = word.text.as_str();
        if text == "--" {
            at += 1;
            continue;
        }
        if let Some(code) = text.strip_prefix("-S").or_else(|| text.strip_prefix("--split-string=")).or_else(|| text.strip_prefix("-vS")) {
            let mut code_words = vec![Word { text: code.to_owned(), ..word.clone() }];
            code_words.extend_from_slice(&words[at + 1..]);
            return Load { carries: Carries::Runs, items: code_item(&code_words, words, at).into_iter().collect(), loose: Vec::new() };
        }
        if text == "--split-string" {
            return Load { carries: Carries::Runs, items: code_item(&words[at + 1..], words, at).into_iter().collect(), loose: Vec::new() };
        }
        if text.starts_with('-') {
            carries = Carries::Runs;
            at += if matches!(text, "-u" | "-C" | "--unset" | "--chdir") { 2 } else { 1 };
            continue;
        }
        if !text.contains('=') {
            break;
        }
        carries = Carries::Runs;
        at += 1;
    }
    command_at(words, at, carries)
}

fn arguments_from_input(words: &[Word]) -> Load {
    const LONG: &[&str] = &["arg-file", "delimiter", "max-lines", "max-args", "max-procs", "max-chars", "process-slot-var"];
    let at = after_options(words, "adEILnPs", LONG);
    let options = &words[1..at.min(words.len())];
    let replaced = options.iter().enumerate().find_map(|(index, word)| {
        let glued =
            word.text.strip_prefix("-I").or_else(|| word.text.strip_prefix("-i")).or_else(|| word.text.strip_prefix("--replace="))?;
        let next = options.get(index + 1).map(|next| next.text.as_str());
        Some(if !glued.is_empty() {
            glued
        } else if word.text == "-I" {
            next.unwrap_or("{}")
        } else {
            "{}"
        })
    });
    let mut load = command_at(words, at, Carries::Runs);
    for item in &mut load.items {
        let What::Command(command) = &mut item.what else { continue };
        match replaced {
            Some(mark) => command.iter_mut().for_each(|word| fill(word, mark)),
            None => command.push(Word::unknown("")),
        }
    }
    load
}

/// The place of an argument that is known only later.
fn fill(word: &mut Word, mark: &str) {
    if word.text.contains(mark) {
        word.text = word.text.replace(mark, "\0");
        word.dynamic = true;
    }
}

fn find(words: &[Word]) -> Load {
    let mut items = Vec::new();
    let mut at = 1;
    while let Some(word) = words.get(at) {
        at += 1;
        if !matches!(word.text.as_str(), "-exec" | "-execdir" | "-ok" | "-okdir") {
            continue;
        }
        let rest = &words[at..];
        let length = rest
            .iter()
            .enumerate()
            .position(|(index, word)| word.text == ";" || (word.text == "+" && index > 0 && rest[index - 1].text == "{}"))
            .unwrap_or(rest.len());
        let mut command = rest[..length].to_vec();
        command.iter_mut().for_each(|word| fill(word, "{}"));
        if !command.is_empty() {
            items.push(Item { what: What::Command(command), head: joined_raw(&words[..=at]), holds: Holds::Always });
        }
        at += length;
    }
    Load { carries: if items.is_empty() { Carries::Nothing } else { Carries::Runs }, items, loose: Vec::new() }
}
