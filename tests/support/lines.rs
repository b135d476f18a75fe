//! Shell lines made from bytes, and a real shell that tells what each of them runs.
//!
//! `mark` is a program that leaves a file behind; no rule allows it and one denies it. Whatever line makes the file appear
//! must have been denied where the rule denies, and must not have been allowed where only `ok` is. The lines are made of
//! pieces that can do no harm: no absolute name, and a PATH with a few tools only.

use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use zapmyco::permissions::{CalledTool, Effect, Mode, Policy, Rule, RuleSet, Verdict};

/// Programs that lines may use besides `mark` and `ok`.
const TOOLS: &[&str] = &[
    "awk", "bash", "cat", "chroot", "env", "find", "git", "head", "ionice", "ls", "nice", "nohup", "printf", "sed", "setsid", "sh", "sort",
    "stdbuf", "tee", "timeout", "touch", "tr", "wc", "xargs",
];

/// What a line is stirred from when it follows no plan.
const PIECES: &[&str] = &[
    "mark",
    "mark x",
    "ok",
    "ok a",
    " ",
    " ",
    " ",
    " ",
    "\n",
    "\n",
    ";",
    ";",
    "; ",
    "&&",
    "||",
    "|",
    "|&",
    " & ",
    "(",
    ")",
    "$(",
    ")",
    "`",
    "`",
    "\"",
    "\"",
    "'",
    "'",
    "\\",
    "\\\n",
    "{ ",
    "; }",
    "{",
    "}",
    "$",
    "$X",
    "${X}",
    "${X:-",
    "}",
    "X=",
    "X=mark ",
    "X=mark;",
    "$((",
    "))",
    "((",
    "[ ",
    " ]",
    "[[ ",
    " ]]",
    "<<E\n",
    "\nE\n",
    "<<'E'\n",
    "<<-E\n",
    "<<<",
    "<",
    ">",
    ">>",
    ">f ",
    "2>&1",
    "&>f ",
    "<(",
    ">(",
    "#",
    "# ",
    "!",
    "! ",
    "if ",
    "; then ",
    "; fi",
    "else ",
    "for i in ",
    "; do ",
    "; done",
    "case x in ",
    "x) ",
    ";;",
    "esac",
    "*",
    "?",
    "~",
    "=",
    "a",
    "x",
    "E",
    "coproc ",
    "time ",
    "eval ",
    "exec ",
    "command ",
    "builtin ",
    "env ",
    "xargs ",
    "sh -c ",
    "bash -c ",
    "nice ",
    "timeout 1 ",
    "echo ",
    "true",
    "false",
    "cat",
    "$'",
    "$\"",
    "\\x6d",
    "ark",
    "m",
    "m\"\"ark",
    "-exec ",
    "find . ",
    "\\;",
    "{}",
    "+",
    "a[",
    "]",
    "@(",
    "|ok",
    "mark|",
    "&>",
    "1",
    "[[",
    "]]",
    "function ",
    "declare ",
    "export ",
    "local ",
    "let ",
    "test ",
    ":",
    ": ",
    "\t",
    "\r",
    ",",
    "%",
    "${X@P}",
    "${!X}",
    "trap ",
    " EXIT",
    "source ",
    ". ",
    "alias ",
    "read X",
    "printf ",
    "-v X ",
    "select ",
    "until ",
    "break",
    "set ",
    "-- ",
    "--",
    "\u{a0}",
];

/// The line that the bytes stand for.
pub fn line(bytes: &[u8]) -> String {
    let Some((first, rest)) = bytes.split_first() else { return String::new() };
    let mut maker = Maker { bytes: rest, budget: 40 };
    match first % 4 {
        0 => maker.soup(24),
        1 => {
            // a plan with a few pieces thrown in
            let mut line = maker.list(0);
            for _ in 0..maker.below(4) {
                let mut at = maker.below(line.len() + 1);
                while !line.is_char_boundary(at) {
                    at -= 1;
                }
                line.insert_str(at, maker.piece());
            }
            line
        }
        _ => maker.list(0),
    }
}

struct Maker<'a> {
    bytes: &'a [u8],
    budget: usize,
}

impl Maker<'_> {
    fn next(&mut self) -> usize {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                usize::from(*first)
            }
            None => 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        if end <= 256 { self.next() % end.max(1) } else { (self.next() * 256 + self.next()) % end }
    }

    fn piece(&mut self) -> &'static str {
        PIECES[self.below(PIECES.len())]
    }

    fn soup(&mut self, most: usize) -> String {
        let length = 1 + self.below(most);
        (0..length).map(|_| self.piece()).collect()
    }

    fn list(&mut self, depth: usize) -> String {
        let mut line = self.command(depth);
        for _ in 0..self.below(3) {
            let joint =
                ["; ", " && ", " || ", " | ", "\n", " & ", ";", "|", "\n\n", " && \\\n", " |& ", "\n# a 'comment\n"][self.below(12)];
            line.push_str(joint);
            line.push_str(&self.command(depth));
        }
        line
    }

    fn simple(&mut self) -> String {
        const COMMANDS: &[&str] = &[
            "mark",
            "mark x",
            "ok",
            "ok a",
            "ok mark",
            "echo mark",
            "'mark'",
            "\"ma\"rk",
            "m\\ark",
            "$'\\x6dark' x",
            "true",
            "false",
            "cat f",
            "cat",
            "echo 'mark x'",
            "ok \"$X\"",
            "$X",
            "$X a",
            "${X} a",
            "X=mark",
            "X=ok",
            "printf mark",
            "echo \"a; mark\"",
            "ls",
            "Y=1 mark",
            "Y=1 ok",
            "./mark",
            "ok # mark",
            "ok >f",
            ">f mark",
            "<f mark",
            "mark >f 2>&1",
            "ok 2>&1",
            "ok &>f",
            "{mark,x}",
            "ok {a,b}",
            "ma*",
            "echo *",
            "ok ~",
            ": mark",
        ];
        COMMANDS[self.below(COMMANDS.len())].to_owned()
    }

    fn word_of_code(&mut self, code: &str) -> String {
        match self.below(4) {
            0 | 1 if !code.contains('\'') => format!("'{code}'"),
            2 => format!("$'{}'", code.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n")),
            _ => format!("\"{}\"", code.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$").replace('`', "\\`")),
        }
    }

    fn command(&mut self, depth: usize) -> String {
        if depth > 4 || self.budget == 0 {
            return self.simple();
        }
        self.budget -= 1;
        let kind = self.below(48);
        if kind < 14 {
            return self.simple();
        }
        let inner = self.list(depth + 1);
        let single = inner.replace('\n', ";");
        match kind {
            14 => format!("({inner})"),
            15 => format!("{{ {inner}; }}"),
            16 => format!("{{ {inner}\n}}"),
            17 => format!("echo $({inner})"),
            18 => format!("echo \"a $({inner}) b\""),
            19 if !inner.contains(['`', '\\']) => format!("echo `{inner}`"),
            20 => format!("if {}; then {inner}; fi", self.simple()),
            21 => format!("if {inner}\nthen ok\nelse {}\nfi", self.simple()),
            22 => format!("for i in a b; do {inner}; done"),
            23 => format!("case a in a) {inner};; *) ok;; esac"),
            24 => format!("case a in (a|b)\n{inner}\nesac"),
            25 => format!("g() {{ {inner}; }}; g"),
            26 => format!("function g {{\n{inner}\n}}\ng"),
            27 => format!("! {}", self.simple()),
            28 => format!("sh -c {}", self.word_of_code(&inner)),
            29 => format!("bash -ec {} name arg", self.word_of_code(&inner)),
            30 => format!("eval {}", self.word_of_code(&inner)),
            31 => format!("bash <<'E'\n{inner}\nE"),
            32 => format!("cat <<E\n$({single})\nE"),
            33 => format!("cat <<E | {}\nbody\nE", self.simple()),
            34 => format!("bash <<< {}", self.word_of_code(&inner)),
            35 => format!("cat <({inner})"),
            36 => format!("X=$({inner}) ok"),
            37 => format!("[ -n \"$({single})\" ] && {}", self.simple()),
            38 => format!("[[ -n $({single}) ]]"),
            39 => format!("echo $(( 1 + $({single}) ))"),
            40 => format!("echo ${{Z:-$({single})}}"),
            41 => format!(
                "{} {}",
                [
                    "env",
                    "nice -n 5",
                    "timeout 5",
                    "nohup",
                    "command",
                    "exec",
                    "time",
                    "setsid",
                    "stdbuf -o0",
                    "env -i PATH=bin:tools",
                    "env -S"
                ][self.below(11)],
                self.simple()
            ),
            42 => format!("echo a | xargs {}", self.simple()),
            43 => format!("find f -exec {} {{}} \\;", self.simple()),
            44 => format!("echo {} | sh", self.word_of_code(&inner)),
            45 => format!("trap {} EXIT", self.word_of_code(&inner)),
            46 => format!("coproc {}", self.simple()),
            _ => format!("while {}; do {inner}; break; done", self.simple()),
        }
    }
}

/// A folder with a few tools, in which lines can be tried.
pub struct Ground {
    folder: tempfile::TempDir,
}

impl Ground {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tools = folder.path().join("tools");
        std::fs::create_dir(&tools).expect("a folder for tools");
        for tool in TOOLS {
            let found = ["/bin", "/usr/bin"].iter().map(|place| Path::new(place).join(tool)).find(|path| path.exists());
            if let Some(path) = found {
                symlink(path, tools.join(tool)).expect("a link to a tool");
            }
        }
        Self { folder }
    }

    /// Runs the line in a new folder; whether `mark` has run, and whether anything in the folder is different afterwards.
    pub fn run(&self, line: &str) -> Trace {
        let run = tempfile::tempdir_in(self.folder.path()).expect("a folder");
        let place = run.path().join("place");
        for folder in ["place", "bin", "marks"] {
            std::fs::create_dir(run.path().join(folder)).expect("a folder");
        }
        let mark = run.path().join("marks/mark");
        program(&run.path().join("bin/mark"), &format!("#!/bin/sh\n: > '{}'\n", mark.display()));
        program(&run.path().join("bin/ok"), "#!/bin/sh\nexit 0\n");
        std::fs::write(place.join("f"), "a\n").expect("a file");
        symlink(run.path().join("bin/mark"), place.join("mark")).expect("a link");
        let before = listing(&place);
        let path = format!("{}:{}", run.path().join("bin").display(), self.folder.path().join("tools").display());
        let child = Command::new("/bin/bash")
            .args(["-c", line])
            .env_clear()
            .env("PATH", path)
            .current_dir(&place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let Ok(mut child) = child else { return Trace::default() };
        let group = child.id();
        let mut output = child.stdout.take().expect("an output");
        // the output ends when everything the line started has ended; what takes longer has run what it runs
        let (sender, receiver) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while output.read(&mut buffer).is_ok_and(|count| count > 0) {}
            let _ = sender.send(());
        });
        let _ = receiver.recv_timeout(Duration::from_millis(700));
        let _ = Command::new("/bin/kill").args(["-KILL", "--", &format!("-{group}")]).stderr(Stdio::null()).status();
        let _ = child.wait();
        let _ = receiver.recv_timeout(Duration::from_millis(100));
        drop(reader);
        Trace { marked: mark.exists(), changed: before != listing(&place) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Trace {
    pub marked: bool,
    pub changed: bool,
}

fn program(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a program");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a program's mode");
}

fn listing(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        found.push((entry.path(), std::fs::read(entry.path()).unwrap_or_default()));
    }
    found.sort();
    found
}

/// What is wrong with the decisions about a line, if anything is.
pub fn mistake(ground: &Ground, line: &str) -> Option<String> {
    let denying = Judge::new(Mode::Yolo, &[], &["Bash(mark:*)"]);
    let allowing = Judge::new(Mode::Default, &["Bash(ok:*)", "Bash(echo:*)", "Bash(true)", "Bash(cat:*)"], &[]);
    let reading = Judge::new(Mode::Plan, &[], &[]);
    let denied = denying.verdict(line);
    let allowed = allowing.verdict(line);
    let read = reading.verdict(line);
    let is_safe = matches!(denied, Verdict::Deny { .. }) && allowed != Verdict::Allow && read != Verdict::Allow;
    if is_safe {
        // nothing that runs could contradict
        return None;
    }
    let trace = ground.run(line);
    let mistake = |what: &str| Some(format!("{what}: {line:?}"));
    if trace.marked && !matches!(denied, Verdict::Deny { .. }) {
        return mistake("`mark` ran although a rule denies it");
    }
    if trace.marked && allowed == Verdict::Allow {
        return mistake("`mark` ran although no rule allows it");
    }
    if trace.marked && read == Verdict::Allow {
        return mistake("`mark` ran although the line was called read-only");
    }
    if trace.changed && read == Verdict::Allow {
        return mistake("a file changed although the line was called read-only");
    }
    None
}

struct Judge {
    policy: Policy,
}

impl Judge {
    fn new(mode: Mode, allow: &[&str], deny: &[&str]) -> Self {
        let rules = |texts: &[&str]| texts.iter().map(|text| Rule::parse(text).expect("a rule")).collect();
        let set = RuleSet { allow: rules(allow), ask: Vec::new(), deny: rules(deny) };
        Self { policy: Policy::new(mode, set, PathBuf::from("/nowhere")) }
    }

    fn verdict(&self, line: &str) -> Verdict {
        let tool = CalledTool { name: "Bash", aliases: &[], never_asked: false };
        self.policy.decide(&tool, &Effect::Runs { command: line.to_owned() })
    }
}
