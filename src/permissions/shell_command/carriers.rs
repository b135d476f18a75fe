//! Commands inside the words of other commands: what `env`, `xargs`, `sh -c`, `find -exec` and their kind would start.

mod table;

use self::table::{
    CODE_OPTIONS, CODE_VARIABLES, GIT_CODE_ENDINGS, GIT_CODE_KEYS, GIT_CODE_OPTIONS, GLOBAL_OPTIONS, INTERPRETERS, LAUNCHERS, LAUNCHING,
    SHELLS, WRAPPERS, Wrapper,
};
use super::words::{ANY, Word, joined_raw, program_name};
use super::{Assignment, Carries, Holds};

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
    /// With the variables that are set for it.
    Command(Vec<Word>, Vec<Assignment>),
    /// Shell code; with [`ANY`] in it nothing is known of it.
    Code(String),
}

/// What the words of one command carry; `input` is text given on its standard input.
pub(super) fn load(words: &[Word], assignments: &[Assignment], input: Option<&Word>) -> Load {
    let mut load = load_of_words(words, input);
    for assignment in assignments.iter().filter(|assignment| CODE_VARIABLES.contains(&assignment.name.as_str())) {
        load.items.extend(code_item(std::slice::from_ref(&assignment.value), &assignment.value.raw));
    }
    load
}

fn load_of_words(words: &[Word], input: Option<&Word>) -> Load {
    let Some((program, arguments)) = words.split_first() else { return Load::default() };
    if !program.is_fixed() {
        return Load::default();
    }
    let name = program_name(&program.text);
    let first = arguments.first().map_or("", |word| word.text.as_str());
    if name == "command" && matches!(first, "-v" | "-V" | "-pv" | "-pV") {
        return Load::default();
    }
    let mut load = match name {
        "env" => environment(words),
        "xargs" => arguments_from_input(words),
        "find" => find(words),
        "eval" => {
            let code = arguments.strip_prefix(&[Word::literal("--")]).unwrap_or(arguments);
            Load { carries: Carries::Wraps, ..code_of(code, words) }
        }
        "trap" => trap(words),
        "alias" => alias(words),
        "hash" => Load { carries: Carries::Runs, ..hash(words) },
        "watch" => joined_code(words, "nq", &["interval", "equexit"], 0),
        "ssh" => ssh(words),
        "source" | "." => {
            if first.starts_with("/dev/") || arguments.first().is_some_and(|word| word.raw.starts_with("<(")) {
                unseen(words)
            } else {
                Load::default()
            }
        }
        "at" | "batch" | "crontab" => from_input(words, input),
        "git" => git(words),
        "awk" | "gawk" | "mawk" | "nawk" => loose_script(words, "vFf", &["assign", "field-separator", "file"]),
        "sed" => loose_script(words, "lf", &["file", "line-length"]),
        _ if SHELLS.contains(&name) => shell(words, input),
        _ => match WRAPPERS.iter().find(|wrapper| wrapper.names.contains(&name)) {
            Some(wrapper) => {
                let load = wrapped(wrapper, words);
                // the shell's own word, not the program, which can write a file
                let only_measures = program.raw == "time" && !(first.starts_with('-') && first != "-p");
                if only_measures { Load { carries: Carries::Wraps, ..load } } else { load }
            }
            None => Load::default(),
        },
    };
    if LAUNCHERS.contains(&name) || name.starts_with("ld-linux") {
        launched(words, 1, &mut load);
        load.loose.extend(arguments.iter().map(|word| word.text.clone()));
    }
    if LAUNCHING.iter().any(|(launcher, with)| *launcher == name && with.contains(&first)) {
        launched(words, 2, &mut load);
    }
    if let Some((_, short, long)) = CODE_OPTIONS.iter().find(|(program, _, _)| *program == name) {
        code_options(words, short, long, &mut load);
    }
    if let Some((_, options)) = INTERPRETERS.iter().find(|(interpreter, _)| is_version_of(name, interpreter)) {
        let has_code = options.is_empty() || arguments.iter().any(|word| options.iter().any(|option| word.text.starts_with(option)));
        load.loose.extend(arguments.iter().filter(|_| has_code).chain(input).map(|word| word.text.clone()));
    }
    load
}

/// `python3.12` is a python.
fn is_version_of(name: &str, interpreter: &str) -> bool {
    name.strip_prefix(interpreter).is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// The script of `awk` and `sed`: the first operand, and whatever stands behind `-e`.
fn loose_script(words: &[Word], short: &str, long: &[&str]) -> Load {
    let mut loose: Vec<String> = words.get(after_options(words, short, long)).map(|word| word.text.clone()).into_iter().collect();
    let is_script = |pair: &&[Word]| matches!(pair[0].text.as_str(), "-e" | "--expression" | "--source");
    loose.extend(words.windows(2).filter(is_script).map(|pair| pair[1].text.clone()));
    loose.extend(
        words.iter().filter(|word| word.text.starts_with("-e") || word.text.starts_with("--expression=")).map(|word| word.text.clone()),
    );
    // sed runs what follows its command `e`
    let commands = loose.iter().filter_map(|script| script.split_once("e ")).map(|(_, code)| code.to_owned()).collect::<Vec<_>>();
    loose.extend(commands);
    Load { loose, ..Load::default() }
}

/// The command after a wrapper's options and operands.
fn wrapped(wrapper: &Wrapper, words: &[Word]) -> Load {
    let mut at = after_options(words, wrapper.short_with_value, wrapper.long_with_value) + wrapper.operands;
    // `time ! command`: the shell's own words, any number of them.
    while wrapper.names == ["time"] && words.get(at).is_some_and(|word| matches!(word.raw.as_str(), "!" | "time" | "-p" | "--")) {
        at += 1;
    }
    if !wrapper.names.contains(&"sudo") {
        return command_at(words, at, wrapper.carries);
    }
    let mut load = command_at(words, after_assignments(words, at), wrapper.carries);
    set_for(&words[at.min(words.len())..], &mut load);
    load
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
            let item = Item { what: What::Command(command.to_vec(), Vec::new()), head, holds: Holds::Always };
            Load { carries, items: vec![item], loose: Vec::new() }
        }
        Some(_) | None => Load::default(),
    }
}

/// Code made of words, as `eval` makes it.
fn code_item(code: &[Word], head: &str) -> Option<Item> {
    if code.is_empty() {
        return None;
    }
    // an expansion of the words themselves has happened before the code is read
    let text = |word: &Word| if word.is_fixed() { word.text.clone() } else { format!("{ANY}{}", word.text) };
    let joined = code.iter().map(text).collect::<Vec<_>>().join(" ");
    Some(Item { what: What::Code(joined), head: head.to_owned(), holds: Holds::Always })
}

/// Code that stands in the last words of a command.
fn code_of(code: &[Word], words: &[Word]) -> Load {
    let first = words.len() - code.len();
    let head = joined_raw(&words[..words.len().min(first + 1)]);
    Load { carries: Carries::Runs, items: code_item(code, &head).into_iter().collect(), loose: Vec::new() }
}

/// A command runs code that does not stand in the line.
fn unseen(words: &[Word]) -> Load {
    let item = Item { what: What::Code(ANY.to_string()), head: joined_raw(words), holds: Holds::Always };
    Load { carries: Carries::Runs, items: vec![item], loose: Vec::new() }
}

fn from_input(words: &[Word], input: Option<&Word>) -> Load {
    match input {
        Some(input) => Load {
            carries: Carries::Runs,
            items: code_item(std::slice::from_ref(input), &joined_raw(words)).into_iter().collect(),
            loose: Vec::new(),
        },
        None => unseen(words),
    }
}

/// Options, some operands, then code made of the rest.
fn joined_code(words: &[Word], short: &str, long: &[&str], operands: usize) -> Load {
    let at = (after_options(words, short, long) + operands).min(words.len());
    code_of(&words[at..], words)
}

fn ssh(words: &[Word]) -> Load {
    let mut load = joined_code(words, "BbcDEeFIiJLlmOopQRSWw", &[], 1);
    for word in words {
        let value = word.text.strip_prefix("-o").unwrap_or(&word.text).trim_start();
        let (key, code) = value.split_once(['=', ' ']).unwrap_or((value, ""));
        if ["proxycommand", "localcommand", "knownhostscommand"].contains(&key.to_lowercase().as_str()) {
            load.items.extend(code_item(&[Word { text: code.to_owned(), ..word.clone() }], &word.raw));
        }
    }
    load
}

fn trap(words: &[Word]) -> Load {
    let at = after_options(words, "", &[]);
    match words.get(at) {
        Some(code) if words.len() > at + 1 && !matches!(code.text.as_str(), "" | "-") => {
            let head = joined_raw(&words[..=at]);
            Load { carries: Carries::Wraps, items: code_item(std::slice::from_ref(code), &head).into_iter().collect(), loose: Vec::new() }
        }
        Some(_) | None => Load::default(),
    }
}

fn alias(words: &[Word]) -> Load {
    let value = |word: &Word| {
        let (_, code) = word.text.split_once('=')?;
        code_item(&[Word { text: code.to_owned(), ..word.clone() }], &word.raw)
    };
    Load { carries: Carries::Runs, items: words[1..].iter().filter_map(value).collect(), loose: Vec::new() }
}

/// `hash -p /bin/rm ls` makes `ls` another program.
fn hash(words: &[Word]) -> Load {
    let Some(at) = words.iter().position(|word| word.text.starts_with("-p")) else { return Load::default() };
    let glued = words[at].text[2..].to_owned();
    let path = if glued.is_empty() { words.get(at + 1).cloned() } else { Some(Word { text: glued, ..words[at].clone() }) };
    let Some(path) = path else { return Load::default() };
    let item = Item { what: What::Command(vec![path, Word::unknown("...")], Vec::new()), head: joined_raw(words), holds: Holds::Always };
    Load { items: vec![item], ..Load::default() }
}

fn launched(words: &[Word], from: usize, load: &mut Load) {
    /// Longer calls are cut; their programs stand near the start.
    const TRIED_MAX: usize = 24;
    load.carries = Carries::Runs;
    let starts = (from..words.len().min(TRIED_MAX)).filter(|at| !words[*at].text.starts_with('-'));
    load.items.extend(starts.map(|at| Item {
        what: What::Command(words[at..].to_vec(), Vec::new()),
        head: joined_raw(&words[..=at]),
        holds: Holds::DenyOnly,
    }));
}

/// Values of options that are code: `--filter=code`, `--filter code`, `-c code`, `-ccode`.
fn code_options(words: &[Word], short: &str, long: &[&str], load: &mut Load) {
    for (at, word) in words.iter().enumerate().skip(1) {
        let text = word.text.as_str();
        let next = || words.get(at + 1).cloned();
        let code = if let Some(option) = text.strip_prefix("--") {
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            let is_one = !name.is_empty() && long.iter().any(|known| known.starts_with(name));
            let action = (name == "checkpoint-action").then(|| value.and_then(|value| value.strip_prefix("exec="))).flatten();
            match (is_one, value, action) {
                (true, Some(value), _) | (false, _, Some(value)) => Some(Word { text: value.to_owned(), ..word.clone() }),
                (true, None, _) => next(),
                (false, _, None) => None,
            }
        } else if let Some(letters) = text.strip_prefix('-') {
            letters.find(|c| short.contains(c)).and_then(|place| match &letters[place + 1..] {
                "" => next(),
                glued => Some(Word { text: glued.to_owned(), ..word.clone() }),
            })
        } else {
            None
        };
        if let Some(code) = code {
            load.carries = Carries::Runs;
            load.items.extend(code_item(std::slice::from_ref(&code), &joined_raw(&words[..words.len().min(at + 2)])));
        }
    }
}

/// The words without the options between a program and its subcommand, for programs whose rules speak of subcommands.
pub(super) fn without_global_options(words: &[Word]) -> Option<Vec<Word>> {
    let program = words.first()?;
    let (_, short, long) = GLOBAL_OPTIONS.iter().find(|(name, _, _)| *name == program_name(&program.text))?;
    let at = after_options(words, short, long);
    let rest = words.get(at..).filter(|_| at > 1)?;
    let mut plain = vec![Word::literal(program_name(&program.text))];
    plain.extend_from_slice(rest);
    Some(plain)
}

/// Aliases, configuration and options of git that start programs.
fn git(words: &[Word]) -> Load {
    let mut load = Load::default();
    let mut add = |code: &str, word: &Word| {
        load.carries = Carries::Runs;
        load.items.extend(code_item(&[Word { text: code.to_owned(), ..word.clone() }], &word.raw));
    };
    for (at, word) in words.iter().enumerate().skip(1) {
        let text = word.text.as_str();
        let next = words.get(at + 1);
        let (option, glued) = text.split_once('=').map_or((text, None), |(option, value)| (option, Some(value)));
        if GIT_CODE_OPTIONS.contains(&option) {
            match (glued, next) {
                (Some(code), _) => add(code, word),
                (None, Some(next)) => add(&next.text, next),
                (None, None) => {}
            }
        }
        let pair = match text.strip_prefix("-c").or_else(|| text.strip_prefix("--config-env")) {
            Some("") => next.map(|next| (next, next.text.as_str())),
            Some(glued) => Some((word, glued.trim_start_matches('='))),
            None => None,
        };
        if let Some((word, pair)) = pair {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let Some(code) = git_code(key, value) {
                add(code, word);
            }
        }
        // `git config key value`
        if let Some(next) = next
            && let Some(code) = git_code(text, &next.text)
        {
            add(code, next);
        }
        if let Some(code) = text.strip_prefix("ext::") {
            add(code, word);
        }
        if text.starts_with("-O") && text.len() > 2 && words.iter().any(|word| word.text == "grep") {
            add(&text[2..], word);
        }
        if text == "foreach" && words.get(at - 1).is_some_and(|word| word.text == "submodule") {
            let code = words[at + 1..].iter().find(|word| !word.text.starts_with('-'));
            if let Some(code) = code {
                add(&code.text, code);
            }
        }
    }
    load
}

/// The code in a value of git's configuration.
fn git_code<'v>(key: &str, value: &'v str) -> Option<&'v str> {
    let key = key.to_lowercase();
    if key.starts_with("alias.") {
        return value.strip_prefix('!');
    }
    let is_code = GIT_CODE_KEYS.contains(&key.as_str())
        || key.starts_with("pager.")
        || (key.contains('.') && !key.contains(['/', ' ', ':']) && GIT_CODE_ENDINGS.iter().any(|ending| key.ends_with(ending)));
    (is_code && !value.is_empty()).then(|| value.strip_prefix('!').unwrap_or(value))
}

/// `sh -c code`, `sh` reading its code from standard input; `sh file` is a program like any other.
fn shell(words: &[Word], input: Option<&Word>) -> Load {
    let mut at = 1;
    let mut takes_code = false;
    let mut takes_input = false;
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
        takes_input |= text.starts_with('-') && letters.contains('s');
        is_plain &= letters.chars().all(|c| "abcefhlmnuvxo".contains(c));
        at += letters.matches(['o', 'O']).count();
    }
    let Some(code) = words.get(at).filter(|_| takes_code || !takes_input) else {
        let only_shows = words.len() > 1 && words[1..].iter().all(|word| matches!(word.text.as_str(), "--version" | "--help"));
        return if only_shows { Load::default() } else { from_input(words, input) };
    };
    if takes_code {
        let head = joined_raw(&words[..=at]);
        let items = code_item(std::slice::from_ref(code), &head).into_iter().collect();
        return Load { carries: if is_plain { Carries::Wraps } else { Carries::Runs }, items, loose: Vec::new() };
    }
    let reads_input = code.text.starts_with("/dev/") || code.raw.starts_with("<(") || code.text == "-";
    if reads_input { from_input(words, input) } else { Load::default() }
}

fn environment(words: &[Word]) -> Load {
    let mut at = 1;
    let mut carries = Carries::Wraps;
    while let Some(word) = words.get(at).filter(|word| word.text.starts_with('-')) {
        let text = word.text.as_str();
        at += 1;
        let split = ["-S", "--split-string=", "-vS", "-iS"].iter().find_map(|option| text.strip_prefix(option));
        if let Some(glued) = split.filter(|glued| !glued.is_empty()) {
            let mut code = vec![Word { text: glued.to_owned(), ..word.clone() }];
            code.extend_from_slice(&words[at..]);
            return Load {
                carries: Carries::Runs,
                items: code_item(&code, &joined_raw(&words[..at])).into_iter().collect(),
                loose: Vec::new(),
            };
        }
        if split.is_some() || text == "--split-string" {
            return code_of(&words[at..], words);
        }
        if text == "--" {
            break;
        }
        carries = Carries::Runs;
        at += usize::from(matches!(text, "-u" | "-C" | "-a" | "--unset" | "--chdir" | "--argv0"));
    }
    let mut load = command_at(words, after_assignments(words, at), carries);
    set_for(&words[at.min(words.len())..], &mut load);
    load
}

/// The first word that is no `NAME=value`.
fn after_assignments(words: &[Word], from: usize) -> usize {
    let is_assignment = |word: &&Word| word.text.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !name.contains(['/', ANY]));
    from + words.get(from..).unwrap_or_default().iter().take_while(is_assignment).count()
}

/// Gives the carried command the assignments that stand before it.
fn set_for(words: &[Word], load: &mut Load) {
    let count = after_assignments(words, 0);
    let assignment = |word: &Word| {
        let (name, value) = word.text.split_once('=')?;
        let raw = word.raw.split_once('=').map_or(word.raw.as_str(), |(_, raw)| raw);
        Some(Assignment { name: name.to_owned(), value: Word { text: value.to_owned(), raw: raw.to_owned(), ..word.clone() } })
    };
    for item in &mut load.items {
        if let What::Command(_, assignments) = &mut item.what {
            assignments.extend(words[..count].iter().filter_map(assignment));
        }
    }
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
        let What::Command(command, _) = &mut item.what else { continue };
        match replaced {
            Some(mark) => command.iter_mut().for_each(|word| fill(word, mark)),
            None => command.push(Word::unknown("...")),
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
            items.push(Item { what: What::Command(command, Vec::new()), head: joined_raw(&words[..=at]), holds: Holds::Always });
        }
        at += length;
    }
    Load { carries: if items.is_empty() { Carries::Nothing } else { Carries::Runs }, items, loose: Vec::new() }
}
