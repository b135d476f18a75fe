//! Rules, modes and shell lines, decided on real folders.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zapmyco::permissions::shell_command::is_read_only;
use zapmyco::permissions::{CalledTool, Effect, Mode, Policy, Rule, RuleSet, Verdict, split_list};

use crate::support::Home;

const BASH: CalledTool<'static> = CalledTool { name: "Bash", aliases: &[], never_asked: false };
const READ: CalledTool<'static> = CalledTool { name: "Read", aliases: &[], never_asked: false };
const WRITE: CalledTool<'static> = CalledTool { name: "Write", aliases: &[], never_asked: false };
const EDIT: CalledTool<'static> = CalledTool { name: "Edit", aliases: &[], never_asked: false };
const SUBAGENT: CalledTool<'static> = CalledTool { name: "subagent", aliases: &[], never_asked: true };
const ALL_MODES: [Mode; 4] = [Mode::Plan, Mode::Default, Mode::AcceptEdits, Mode::Yolo];

/// `allow: ...`, `ask: ...`, `deny: ...`
fn rules(lines: &[&str]) -> RuleSet {
    let mut set = RuleSet::default();
    for line in lines {
        let (list, rule) = line.split_once(": ").unwrap();
        let rule = Rule::parse(rule).unwrap();
        match list {
            "allow" => set.allow.push(rule),
            "ask" => set.ask.push(rule),
            "deny" => set.deny.push(rule),
            other => panic!("no list {other}"),
        }
    }
    set
}

fn policy(mode: Mode, lines: &[&str], workspace: &Path) -> Policy {
    Policy::new(mode, rules(lines), workspace.to_owned())
}

fn run(policy: &Policy, command: &str) -> Verdict {
    policy.decide(&BASH, &Effect::Runs { command: command.to_owned() })
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Ask { .. } => "ask",
        Verdict::Deny { .. } => "deny",
    }
}

/// R277: what plan mode and the free commands of default mode rest on.
#[test]
fn shell_lines_proved_read_only() {
    let yes = [
        "ls",
        "ls -la src",
        "ls src/*.rs",
        "cat a.txt b.txt",
        "cat 'a b.txt'",
        "head -n 5 file",
        "tail -f log",
        "tail -5 log 2>/dev/null",
        "wc -l src/main.rs",
        "wc -l < /dev/null",
        "sort -u -k2,2 names",
        "sort --reverse names | uniq -c | sort -rn | head",
        "uniq -f 1 names",
        "cut -d: -f1 /etc/passwd",
        "tr a-z A-Z",
        "grep -rn 'fn main' src",
        "grep -E \"a|b\" x",
        "egrep x y",
        "fgrep x y",
        "rg -n TODO src --pretty",
        "find . -name '*.rs' -type f",
        "find . -type f -newer x -printf '%p\\n'",
        "stat Cargo.toml",
        "file a.out",
        "du -sh .",
        "df -h",
        "pwd",
        "echo hello world",
        "echo 'a; rm b'",
        "echo \"a && rm b\"",
        "echo a\\;b",
        "printf '%s\\n' a b",
        "true",
        "false || true",
        "test -f Cargo.toml && cat Cargo.toml",
        "[ -d src ] && ls src",
        "dirname a/b",
        "basename a/b",
        "realpath .",
        "readlink -f x",
        "nl x",
        "tac x",
        "rev x",
        "comm a b",
        "diff -u a b",
        "cmp a b",
        "md5sum a",
        "sha256sum a",
        "date",
        "date +%s",
        "date -u -d yesterday +%F",
        "whoami",
        "id -u",
        "uname -a",
        "which cargo",
        "command -v cargo",
        "sleep 1",
        "sed -n 1,20p src/main.rs",
        "sed -n '5p;$p' src/main.rs",
        "cd src && ls",
        "git status",
        "git status --porcelain",
        "git --no-pager log --oneline -5",
        "git log -p --stat -- src",
        "git diff HEAD~1",
        "git diff --cached --stat",
        "git show HEAD:src/main.rs",
        "git blame src/main.rs",
        "git branch",
        "git branch -a",
        "git branch --list 'feature/*'",
        "git branch --show-current",
        "git tag -l",
        "git tag -n3",
        "git rev-parse --show-toplevel",
        "git ls-files | wc -l",
        "git stash list",
        "git remote -v",
        "git config --get user.name",
        "git reflog",
        "git grep -n TODO",
        "grep -rn x --include=*.rs src",
        "printf '%s: %d%%\\n' a 1",
        "ls; pwd\ndate",
        "cat x 2>&1 | head -3 >/dev/null",
    ];
    let no = [
        "",
        "rm x",
        "rm -rf /",
        "mv a b",
        "cp a b",
        "touch x",
        "mkdir x",
        "chmod +x a",
        "tee x",
        "ls | tee x",
        "ls && rm x",
        "ls; rm x",
        "ls | xargs rm",
        "ls\nrm x",
        "ls & rm x",
        "ls &",
        "ls > x",
        "ls >> x",
        "ls 2> x",
        "ls &> x",
        "ls>x",
        "cat < x",
        "cat <<EOF\nx\nEOF",
        "cat <(ls)",
        "echo $(rm x)",
        "echo `rm x`",
        "echo \"$(rm x)\"",
        "echo $HOME",
        "echo ${HOME}",
        "(ls)",
        "{ ls; }",
        "! ls",
        "if true; then ls; fi",
        "for f in a; do cat a; done",
        "FOO=1 ls",
        "PATH=. ls",
        "./ls",
        "/tmp/ls",
        "'ls -la'",
        "\"rm\" x",
        "r\\m x",
        "l* x",
        "cat *",
        "cat ?x",
        "find . -name *.rs",
        "ls # comment",
        "ls 'open",
        "ls \\",
        "env",
        "env ls",
        "sudo ls",
        "xargs ls",
        "bash -c ls",
        "sh x",
        "eval ls",
        "exec ls",
        "source x",
        ". x",
        "export A=1",
        "alias ls=rm",
        "awk 1 x",
        "perl -e 1",
        "python3 -c 1",
        "node -e 1",
        "curl http://localhost",
        "wget x",
        "less x",
        "vi x",
        "sed -i s/a/b/ x",
        "sed s/a/b/w x",
        "sed -n '1w x' y",
        "sed -n 1p -i x",
        "sort -o x x",
        "sort -ro x x",
        "sort --output=x x",
        "sort --outp x x",
        "sort --compress-program=./x y",
        "uniq a b",
        "uniq -c a b",
        "uniq a*",
        "find . -delete",
        "find . -exec rm {} +",
        "find . -execdir rm {} +",
        "find . -ok rm {} +",
        "find . -okdir rm {} +",
        "find . -fprint x",
        "find . -fprintf x %p",
        "find . -fprint0 x",
        "find . -fls x",
        "rg --pre ./x y",
        "rg --pre=./x y",
        "rg --hostname-bin ./x y",
        "rg -z x",
        "tree -o x",
        "file -C",
        "date -s 12:00",
        "date --set=12:00",
        "date 010112002030",
        "hostname x",
        "printf -v PATH .",
        "printf -vPATH .",
        "printf 'abc%n' PATH; ls",
        "printf '%s%5ln' abc PATH",
        "printf %s%n abc PATH",
        "git grep -nO./x y",
        "sort -*",
        "sort ''*",
        "sort \"\"{a,-ox}",
        "sort --out*=x y",
        "cat <<< x",
        "ls |& tee x",
        "find . '-exec' rm {} ';'",
        "find . -exe\\c rm {} +",
        "uniq -- a b",
        "uniq - b",
        "uniq -f1 a b",
        "date -u010112002030",
        "sed -n 1p x -e 'w y'",
        "test -v 'a[$(rm x)]'",
        "[ -v 'a[$(rm x)]' ]",
        "test 'a[0]' -eq 1",
        "command rm x",
        "command -v -p",
        "cd -P x",
        "cd x && git status",
        "git",
        "git -c core.pager=./x log",
        "git -C /tmp status",
        "git --git-dir=/tmp/x status",
        "git --exec-path=/tmp log",
        "git -p log",
        "git commit -m x",
        "git add .",
        "git checkout .",
        "git reset --hard",
        "git clean -fd",
        "git push",
        "git pull",
        "git fetch",
        "git stash",
        "git stash pop",
        "git diff --output=x",
        "git diff --outp=x",
        "git log --output x",
        "git diff --ext-diff",
        "git log --textconv",
        "git show --show-signature",
        "git log --format=%GG",
        "git grep -O./x y",
        "git grep -Oless y",
        "git grep --open-files-in-pager=./x y",
        "git cat-file --filters HEAD:x",
        "git branch x",
        "git branch -d x",
        "git branch -D --list x",
        "git branch -l x",
        "git branch -m a b",
        "git tag x",
        "git tag -d x",
        "git tag -l -d x",
        "git remote add a b",
        "git remote show origin",
        "git remote get-url --push",
        "git config user.name x",
        "git config --unset user.name",
        "git config --get user.name --edit",
        "git reflog expire --all",
        "git reflog delete x",
        "git worktree add x",
        "git ls-remote",
        "git submodule update",
        "git status*",
        "git diff --no-index a b > c",
        "npm test",
        "cargo build",
        "make",
        "ls | | cat",
        "| ls",
        "ls &&",
        "ls\u{7}",
    ];
    assert!(yes.len() + no.len() >= 200, "{}", yes.len() + no.len());
    for line in yes {
        assert!(is_read_only(line), "should be read-only: {line:?}");
    }
    for line in no {
        assert!(!is_read_only(line), "must not be called read-only: {line:?}");
    }
}

/// The claim tried on a real shell: no line called read-only changes a folder that has something to lose.
#[test]
fn read_only_lines_change_nothing_in_a_real_folder() {
    let home = Home::new();
    home.write("names", "b\na\na\n");
    home.write("sub/deep.txt", "x\n");
    let before = snapshot(&home.project());
    for line in [
        "sort -u names | uniq -c | head -n 1; find . -name '*.txt'; grep -rn x . ; wc -l names; cat sub/*",
        "cd sub && ls; test -f deep.txt && cat deep.txt; [ -d sub ] || echo 'no; > x'; date +%s; sed -n '1p;$p' deep.txt 2>/dev/null",
        "echo 'a > b' \"c; touch d\" e\\;f; tac names | nl; diff names names && cmp names names; printf '%s\\n' x >/dev/null 2>&1",
    ] {
        assert!(is_read_only(line), "{line}");
        let status = std::process::Command::new("bash").args(["-c", line]).current_dir(home.project()).output().unwrap().status;
        assert!(status.success(), "{line}");
        assert_eq!(snapshot(&home.project()), before, "{line}");
    }
}

fn snapshot(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            files.extend(snapshot(&entry.path()));
        } else {
            files.push((entry.path(), std::fs::read(entry.path()).unwrap()));
        }
    }
    files.sort();
    files
}

/// R277
#[test]
fn each_mode_has_its_own_freedom() {
    let home = Home::new();
    let inside = Effect::Writes(home.project().join("src/new.rs"));
    let outside = Effect::Writes(home.root().join("settings.toml"));
    let cases = [
        ("read inside", READ, Effect::Reads(home.project()), ["allow", "allow", "allow", "allow"]),
        ("read outside", READ, Effect::Reads("/etc/passwd".into()), ["allow", "allow", "allow", "allow"]),
        ("internal", SUBAGENT, Effect::Internal, ["allow", "allow", "allow", "allow"]),
        ("write inside", WRITE, inside.clone(), ["deny", "ask", "allow", "allow"]),
        ("edit inside", EDIT, inside, ["deny", "ask", "allow", "allow"]),
        ("write outside", WRITE, outside, ["deny", "ask", "ask", "allow"]),
        ("read-only line", BASH, Effect::Runs { command: "ls | wc -l".into() }, ["allow", "allow", "allow", "allow"]),
        ("other line", BASH, Effect::Runs { command: "npm test".into() }, ["deny", "ask", "ask", "allow"]),
        ("line with expansion", BASH, Effect::Runs { command: "ls $X".into() }, ["deny", "ask", "ask", "allow"]),
    ];
    for (name, tool, effect, expected) in cases {
        for (mode, expected) in ALL_MODES.into_iter().zip(expected) {
            let verdict = policy(mode, &[], &home.project()).decide(&tool, &effect);
            assert_eq!(word(&verdict), expected, "{name} in {mode}: {verdict:?}");
        }
    }
}

/// R277: what decides about rights or later commands is asked for even where edits are free.
#[test]
fn accept_edits_stops_at_the_workspace_and_at_what_decides() {
    let home = Home::new();
    std::fs::create_dir_all(home.project().join("sub")).unwrap();
    symlink(home.root(), home.project().join("escape")).unwrap();
    symlink("../root/new", home.project().join("dangling")).unwrap();
    home.write(".git/config", "");
    symlink(".git", home.project().join("alias")).unwrap();
    let policy = policy(Mode::AcceptEdits, &[], &home.project());
    for (path, expected) in [
        ("a.rs", "allow"),
        ("sub/../a.rs", "allow"),
        ("new/deep/a.rs", "allow"),
        (".gitignore", "allow"),
        ("../outside", "ask"),
        ("sub/../../outside", "ask"),
        ("escape/a", "ask"),
        ("dangling", "ask"),
        (".git/config", "ask"),
        ("sub/.git/hooks/pre-commit", "ask"),
        (".GIT/config", "ask"),
        ("alias/config", "ask"),
        (".zapmyco/settings.toml", "ask"),
        (".mcp.json", "ask"),
        ("HEAD", "ask"),
    ] {
        let verdict = policy.decide(&WRITE, &Effect::Writes(home.project().join(path)));
        assert_eq!(word(&verdict), expected, "{path}: {verdict:?}");
    }
}

/// A workspace reached through a link is still the workspace.
#[test]
fn a_linked_workspace_counts() {
    let home = Home::new();
    let link = home.root().join("link");
    symlink(home.project(), &link).unwrap();
    let policy = policy(Mode::AcceptEdits, &["deny: Edit(secret/**)"], &link);
    assert_eq!(word(&policy.decide(&WRITE, &Effect::Writes(link.join("a")))), "allow");
    assert_eq!(word(&policy.decide(&WRITE, &Effect::Writes(home.project().join("a")))), "allow");
    assert_eq!(word(&policy.decide(&WRITE, &Effect::Writes(home.project().join("secret/a")))), "deny");
}

/// R279, R99
#[test]
fn deny_holds_in_every_mode() {
    let home = Home::new();
    for mode in ALL_MODES {
        let policy = policy(mode, &["allow: Bash", "deny: Bash(rm:*)", "deny: web_fetch", "deny: edit"], &home.project());
        assert_eq!(word(&run(&policy, "rm -rf x")), "deny", "{mode}");
        let fetch = CalledTool { name: "WebFetch", aliases: &[], never_asked: false };
        assert_eq!(word(&policy.decide(&fetch, &Effect::Internal)), "deny", "{mode}");
        assert_eq!(word(&policy.decide(&EDIT, &Effect::Writes(home.project().join("x")))), "deny", "{mode}");
        assert_eq!(word(&policy.decide(&WRITE, &Effect::Writes(home.project().join("x")))), "deny", "{mode}");
    }
}

/// R392
#[test]
fn a_tool_that_needs_no_approval_is_only_refused_by_deny() {
    let home = Home::new();
    for mode in ALL_MODES {
        for (rule, expected) in
            [("allow: Read", "allow"), ("ask: subagent", "allow"), ("deny: subagent", "deny"), ("deny: Subagent", "deny")]
        {
            let verdict = policy(mode, &[rule], &home.project()).decide(&SUBAGENT, &Effect::Internal);
            assert_eq!(word(&verdict), expected, "{rule} in {mode}");
        }
    }
}

/// R280
#[test]
fn deny_before_ask_before_allow_before_mode() {
    let home = Home::new();
    let set = ["allow: Bash(git:*)", "ask: Bash(git push:*)", "deny: Bash(git push --force:*)"];
    let default = policy(Mode::Default, &set, &home.project());
    let yolo = policy(Mode::Yolo, &set, &home.project());
    for (line, in_default, in_yolo) in [
        ("git commit -m x", "allow", "allow"),
        ("git push", "ask", "ask"),
        ("git push --force", "deny", "deny"),
        ("npm test", "ask", "allow"),
    ] {
        assert_eq!(word(&run(&default, line)), in_default, "{line}");
        assert_eq!(word(&run(&yolo, line)), in_yolo, "{line}");
    }
    // specificity does not matter
    let wide_deny = policy(Mode::Yolo, &["deny: Bash(git:*)", "allow: Bash(git status)"], &home.project());
    assert_eq!(word(&run(&wide_deny, "git status")), "deny");
}

/// Plan mode is a ceiling: allow rules open nothing that changes something.
#[test]
fn allow_rules_do_not_open_plan_mode() {
    let home = Home::new();
    let policy = policy(Mode::Plan, &["allow: Bash", "allow: Edit"], &home.project());
    assert_eq!(word(&run(&policy, "npm test")), "deny");
    assert_eq!(word(&policy.decide(&EDIT, &Effect::Writes(home.project().join("a")))), "deny");
    assert_eq!(word(&run(&policy, "ls")), "allow");
}

/// R281
#[test]
fn command_specifiers() {
    let home = Home::new();
    for (rule, line, expected) in [
        ("Bash(npm test)", "npm test", "allow"),
        ("Bash(npm test)", "  npm test ", "allow"),
        ("Bash(npm test)", "npm test -- x", "ask"),
        ("Bash(npm test:*)", "npm test", "allow"),
        ("Bash(npm test:*)", "npm test -- x", "allow"),
        ("Bash(npm test:*)", "npm testx", "ask"),
        ("Bash(npm test:*)", "npx npm test", "ask"),
        ("Bash(npm * --dry-run)", "npm publish --dry-run", "allow"),
        ("Bash(npm * --dry-run)", "npm publish", "ask"),
        ("Bash(make *)", "make", "allow"),
        ("Bash(make *)", "make all", "allow"),
        ("Bash(make*)", "makefoo", "allow"),
        ("Bash(*)", "anything $X > y", "allow"),
        ("Bash", "anything $X > y", "allow"),
        ("bash(npm:*)", "npm x", "allow"),
        ("Bash(npm:*)", "npm x 2>&1 | tail -5", "allow"),
        ("Bash(npm:*)", "/tmp/npm x", "ask"),
        ("Bash(npm:*)", "PATH=. npm x", "ask"),
    ] {
        let verdict = run(&policy(Mode::Default, &[&format!("allow: {rule}")], &home.project()), line);
        assert_eq!(word(&verdict), expected, "{rule} on {line}: {verdict:?}");
    }
}

/// R282
#[test]
fn compound_lines_need_every_part_to_be_allowed_and_one_to_be_denied() {
    let home = Home::new();
    let allow = policy(Mode::Default, &["allow: Bash(npm:*)", "allow: Bash(cargo build)", "allow: Bash(echo $X)"], &home.project());
    for (line, expected) in [
        ("npm a && cargo build", "allow"),
        ("npm a; cargo build | cat", "allow"),
        ("npm a && rm x", "ask"),
        ("npm a | sh", "ask"),
        ("npm a\nrm x", "ask"),
        ("npm 'a && rm x'", "allow"),
        ("npm $(rm x)", "ask"),
        ("npm `rm x`", "ask"),
        ("npm a > x", "ask"),
        ("npm a & rm x", "ask"),
        ("echo $X", "allow"),
        ("echo $X $Y", "ask"),
    ] {
        assert_eq!(word(&run(&allow, line)), expected, "{line}");
    }
    let deny = policy(Mode::Yolo, &["deny: Bash(rm:*)"], &home.project());
    for line in [
        "rm",
        "rm x",
        "ls && rm x",
        "ls | rm x",
        "ls\nrm x",
        "'rm' x",
        "\"r\"m x",
        "/bin/rm x",
        "A=1 rm x",
        "sudo rm x",
        "timeout 5 rm x",
        "echo $(rm x)",
        "echo `rm x`",
        "(rm x)",
        "{ rm x; }",
        "if true; then rm x; fi",
        "bash -c 'rm x'",
        "find . | xargs -n1 rm x",
        "rm $X",
        "rm x > y",
    ] {
        assert_eq!(word(&run(&deny, line)), "deny", "{line}");
    }
    for line in ["ls", "rmdir x", "echo warm", "cargo rm-x"] {
        assert_eq!(word(&run(&deny, line)), "allow", "{line}");
    }
}

/// R281
#[test]
fn path_specifiers_and_their_anchors() {
    let home = Home::new();
    let user_home = home.root();
    let at = |path: &str| match path.strip_prefix("~/") {
        Some(below) => user_home.join(below),
        None if path.starts_with('/') => path.into(),
        None => home.project().join(path),
    };
    for (rule, path, expected) in [
        ("Edit(src/**)", "src/a/b.rs", "allow"),
        ("Edit(src/**)", "lib/src/b.rs", "ask"),
        ("Edit(/src/**)", "src/a.rs", "allow"),
        ("Edit(./src)", "src/a.rs", "allow"),
        ("Edit(*.md)", "docs/deep/a.md", "allow"),
        ("Edit(/*.md)", "docs/a.md", "ask"),
        ("Edit(*.md)", "/elsewhere/a.md", "ask"),
        ("Edit(docs/)", "docs/a.md", "allow"),
        ("Edit(//tmp/x/**)", "/tmp/x/y", "allow"),
        ("Edit(//tmp/x/**)", "/tmp/y", "ask"),
        ("Edit(//tmp/x)", "/tmp/x/../z", "ask"),
        ("Edit(~/notes/*.md)", "~/notes/a.md", "allow"),
        ("Edit(~/notes/*.md)", "~/other/a.md", "ask"),
        ("Edit(~)", "~/other/a.md", "allow"),
        ("Edit(\\#a)", "#a", "allow"),
        ("Edit(#a)", "#a", "allow"),
        ("Edit", "/anything", "allow"),
        ("Write(src/**)", "src/a", "allow"),
        ("Read(src/**)", "src/a", "ask"),
    ] {
        let policy = policy(Mode::Default, &[&format!("allow: {rule}")], &home.project()).with_home(&user_home);
        let verdict = policy.decide(&WRITE, &Effect::Writes(at(path)));
        assert_eq!(word(&verdict), expected, "{rule} on {path}: {verdict:?}");
    }
}

/// R283
#[test]
fn links_need_both_to_be_allowed_and_one_to_be_denied() {
    let home = Home::new();
    home.write("secret/key", "k");
    home.write("open/a", "a");
    symlink("../secret/key", home.project().join("open/link")).unwrap();
    let allow = policy(Mode::Default, &["allow: Edit(open/**)"], &home.project());
    assert_eq!(word(&allow.decide(&EDIT, &Effect::Writes(home.project().join("open/a")))), "allow");
    assert_eq!(word(&allow.decide(&EDIT, &Effect::Writes(home.project().join("open/link")))), "ask");
    assert_eq!(word(&allow.decide(&EDIT, &Effect::Writes(home.project().join("open/../secret/key")))), "ask");

    let deny = policy(Mode::Yolo, &["deny: Read(secret/**)"], &home.project());
    for path in ["secret/key", "open/link", "open/../secret/key", "secret/new"] {
        assert_eq!(word(&deny.decide(&READ, &Effect::Reads(home.project().join(path)))), "deny", "{path}");
        assert_eq!(word(&deny.decide(&EDIT, &Effect::Writes(home.project().join(path)))), "deny", "{path}: a Read deny blocks editing");
        assert!(deny.hides(&home.project().join(path)), "{path}");
    }
    assert_eq!(word(&deny.decide(&READ, &Effect::Reads(home.project().join("open/a")))), "allow");
    assert!(!deny.hides(&home.project().join("open/a")));
    // an Edit deny leaves reading free
    let edit = policy(Mode::Yolo, &["deny: Edit(secret/**)"], &home.project());
    assert_eq!(word(&edit.decide(&READ, &Effect::Reads(home.project().join("secret/key")))), "allow");
    assert!(!edit.hides_files());
}

/// R283: a shell line that is free otherwise does not go around a `Read` rule.
#[test]
fn read_denies_hold_for_shell_lines() {
    let home = Home::new();
    home.write("secret/key", "k");
    symlink("secret/key", home.project().join("link")).unwrap();
    for mode in ALL_MODES {
        let policy = policy(mode, &["deny: Read(secret/**)", "deny: Read(.env)"], &home.project());
        for line in [
            "cat secret/key",
            "cat 'secret/key'",
            "cat ./secret/../secret/key",
            "cat link",
            "head -n1 .env",
            "ls; cat .env | wc",
            "grep --file=.env x",
            "cat .env > x",
            "echo $(cat .env)",
            "diff a .env",
        ] {
            assert_eq!(word(&run(&policy, line)), "deny", "{line} in {mode}");
        }
        assert_eq!(word(&run(&policy, "cat open")), "allow");
    }
    let policy = policy(Mode::Default, &["deny: Read(.env)"], &home.project());
    for line in ["grep -r x .", "rg x", "git show HEAD", "cd secret && cat key", "cat secret/*"] {
        assert_eq!(word(&run(&policy, line)), "ask", "{line}: what it shows is not told by its words");
    }
}

/// R287
#[test]
fn a_bare_disallow_removes_the_tool_and_a_scoped_one_does_not() {
    let set = rules(&["deny: Bash(rm:*)", "deny: Edit", "deny: task"]);
    assert!(!set.removes("Bash", &[]));
    assert!(set.removes("Edit", &[]));
    assert!(set.removes("Write", &[]));
    assert!(set.removes("Agent", &[]));
    assert!(set.removes("X", &["Task"]));
    assert!(!set.removes("Read", &[]));
}

/// R285
#[test]
fn a_stricter_parent_counts_at_the_next_call() {
    let home = Home::new();
    let strict = Arc::new(AtomicBool::new(false));
    let seen = strict.clone();
    let policy = policy(Mode::AcceptEdits, &[], &home.project())
        .with_parent(Arc::new(move || Some(if seen.load(Ordering::Acquire) { Mode::Plan } else { Mode::Yolo })));
    let write = Effect::Writes(home.project().join("a"));
    assert_eq!(policy.mode(), Mode::AcceptEdits, "a wider parent widens nothing");
    assert_eq!(word(&policy.decide(&WRITE, &write)), "allow");
    strict.store(true, Ordering::Release);
    assert_eq!(policy.mode(), Mode::Plan);
    assert_eq!(word(&policy.decide(&WRITE, &write)), "deny");
    policy.set_mode(Mode::Yolo);
    assert_eq!(word(&policy.decide(&WRITE, &write)), "deny", "its own mode does not lift the parent's");
}

/// R327, R334: what is asked says how to allow it, and the suggestion really does.
#[test]
fn suggestions_allow_what_was_asked() {
    let home = Home::new();
    let project = home.project();
    for (effect, tool, suggestion) in [
        (Effect::Runs { command: "npm test --all".into() }, BASH, Some("--allowedTools 'Bash(npm test:*)'")),
        (Effect::Runs { command: "ls && cargo build 2>&1".into() }, BASH, Some("--allowedTools 'Bash(cargo build:*)'")),
        (Effect::Runs { command: "npm ci && npm test; npm ci".into() }, BASH, Some("--allowedTools 'Bash(npm ci:*),Bash(npm test:*)'")),
        (Effect::Runs { command: "cd x && git status".into() }, BASH, None),
        (Effect::Runs { command: "./run.sh x".into() }, BASH, Some("--allowedTools 'Bash(./run.sh:*)'")),
        (Effect::Runs { command: "echo $HOME".into() }, BASH, Some("--allowedTools 'Bash(echo $HOME)'")),
        (Effect::Runs { command: "echo 'it' > x".into() }, BASH, None),
        (Effect::Runs { command: "for i in *; do x; done".into() }, BASH, None),
        (Effect::Writes(project.join("a")), WRITE, Some("--permission-mode acceptEdits")),
        (Effect::Writes("/etc/x[1]".into()), WRITE, Some("--allowedTools 'Edit(//etc/x\\[1\\])'")),
        (Effect::Writes(project.join(".git/config")), EDIT, None),
    ] {
        let Verdict::Ask { suggestion: got, reason } = policy(Mode::Default, &[], &project).decide(&tool, &effect) else {
            panic!("{effect:?} is not asked for");
        };
        if let Some(suggestion) = suggestion {
            assert_eq!(got, suggestion, "{reason}");
        }
        let again = match got.split_once(' ').unwrap() {
            ("--allowedTools", quoted) => {
                let text = quoted.trim_matches('\'').replace(r"'\''", "'");
                let lines: Vec<String> = split_list(&text).iter().map(|rule| format!("allow: {rule}")).collect();
                policy(Mode::Default, &lines.iter().map(String::as_str).collect::<Vec<_>>(), &project)
            }
            ("--permission-mode", mode) => policy(mode.parse().unwrap(), &[], &project),
            other => panic!("{other:?}"),
        };
        assert_eq!(again.decide(&tool, &effect), Verdict::Allow, "{got}");
    }
}

/// R325, R334
#[test]
fn rules_are_read_strictly() {
    assert_eq!(split_list("Bash(git log:*), Read  Edit(a b/**),,"), ["Bash(git log:*)", "Read", "Edit(a b/**)"]);
    for (text, error) in [
        ("", "the rule is empty; write `Tool` or `Tool(specifier)`"),
        ("Bash(git", "`Bash(git` is no rule: the bracket is not closed; write `Tool(specifier)`"),
        ("Ba sh", "`Ba sh` is no rule: the name of a tool holds letters, digits, `_` and `-` only; write `Tool` or `Tool(specifier)`"),
        (
            "TodoWrite(x)",
            "`TodoWrite(x)`: TodoWrite takes no specifier; it is known for Agent, Bash, Read, Edit, Write, Glob, Grep and WebFetch; write `TodoWrite`",
        ),
        ("Read(!a)", "`Read(!a)`: `!` does not turn a pattern round; put the exception into another list"),
        ("Read(../a)", "`Read(../a)`: bad path pattern: `..` does not match; write the folder as `//absolute/path`"),
    ] {
        assert_eq!(Rule::parse(text).unwrap_err().to_string(), error);
    }
    assert!(Rule::parse("Read(a[z-a])").unwrap_err().to_string().starts_with("`Read(a[z-a])`: bad path pattern: "));
    assert_eq!(Rule::parse(" Bash(*) ").unwrap().to_string(), "Bash(*)");
    let set: RuleSet = toml::from_str("allow = [\"Read\"]\ndeny = [\"Bash(rm:*)\"]").unwrap();
    assert_eq!(set.allow.len() + set.deny.len(), 2);
    assert!(toml::from_str::<RuleSet>("deny = [\"Bash(rm\"]").unwrap_err().to_string().contains("bracket is not closed"));
    assert!(toml::from_str::<RuleSet>("denied = []").is_err());
}

/// R281: the tools of a server, one by one or all at once.
#[test]
fn rules_for_tools_of_servers() {
    let home = Home::new();
    for (rule, tool, expected) in [
        ("mcp__files__read", "mcp__files__read", "deny"),
        ("mcp__Files__Read", "mcp__files__read", "deny"),
        ("mcp__files__read", "mcp__files__write", "allow"),
        ("mcp__files", "mcp__files__write", "deny"),
        ("mcp__files__*", "mcp__files__write", "deny"),
        ("mcp__files", "mcp__files2__write", "allow"),
        ("mcp__a__b", "mcp__a__b__c", "allow"),
        ("mcp__a_b__c", "mcp__a__b_c", "allow"),
        ("Bash", "mcp__bash__run", "allow"),
    ] {
        let called = CalledTool { name: tool, aliases: &[], never_asked: false };
        let verdict = policy(Mode::Default, &[&format!("deny: {rule}")], &home.project()).decide(&called, &Effect::Internal);
        assert_eq!(word(&verdict), expected, "{rule} on {tool}");
    }
    assert!(rules(&["deny: mcp__files"]).removes("mcp__files__read", &[]));
}

/// R278: never asks; what rules allow, edits inside the workspace and commands that only make or move files there run.
#[test]
fn auto_never_asks() {
    let home = Home::new();
    let set = ["allow: Bash(npm test:*)", "ask: Bash(git push:*)", "allow: WebFetch(domain:docs.rs)"];
    let policy = policy(Mode::Auto, &set, &home.project());
    let fetch = CalledTool { name: "WebFetch", aliases: &[], never_asked: false };
    let page = |url: &str| Effect::Fetches { url: url.into() };
    for (tool, effect, expected) in [
        (WRITE, Effect::Writes(home.project().join("src/a.rs")), "allow"),
        (WRITE, Effect::Writes(home.project().join(".git/config")), "deny"),
        (WRITE, Effect::Writes(home.root().join("a")), "deny"),
        (READ, Effect::Reads("/etc/passwd".into()), "allow"),
        (BASH, Effect::Runs { command: "npm test && ls".into() }, "allow"),
        (BASH, Effect::Runs { command: "mkdir -p src/new && cp a src/new/a".into() }, "allow"),
        (BASH, Effect::Runs { command: "npm install".into() }, "deny"),
        (BASH, Effect::Runs { command: "git push".into() }, "deny"),
        (fetch, page("https://docs.rs/x"), "allow"),
        (fetch, page("https://example.com/"), "deny"),
    ] {
        assert_eq!(word(&policy.decide(&tool, &effect)), expected, "{effect:?}");
    }
    let Verdict::Deny { reason } = run(&policy, "npm install") else { panic!() };
    assert_eq!(
        reason,
        "mode `auto` never asks and refuses running `npm install`, which is not known to be read-only; do it another way, or report what \
         is missing (--allowedTools 'Bash(npm install:*)' would allow it)"
    );
    let Verdict::Deny { reason } = run(&policy, "git push") else { panic!() };
    assert!(reason.starts_with("the rule `Bash(git push:*)` asks before this call, and mode `auto` never asks; "), "{reason}");
}

/// R282: a rule that cannot be held against what is decided only when the line runs says so.
#[test]
fn a_doubt_is_denied_and_named() {
    let home = Home::new();
    let policy = policy(Mode::Yolo, &["deny: Bash(rm:*)"], &home.project());
    for (line, reason) in [
        ("$X a", "what `$X a` will be is decided only when it runs, and the rule `Bash(rm:*)` may deny it"),
        ("coproc $X", "the line cannot be read safely (it starts a coprocess), and the rule"),
        ("cat <<E | xargs rm\nx\nE", "denied by the rule `Bash(rm:*)`, which holds in every mode"),
        ("r\\\nm x", "the line cannot be read safely (it can be read in two ways), and the rule `Bash(rm:*)` may deny it"),
    ] {
        let Verdict::Deny { reason: got } = run(&policy, line) else { panic!("{line}") };
        assert!(got.starts_with(reason), "{line}: {got}");
    }
}

/// R75: every command of a line must lie in the scope, those that others start included; a match is no approval.
#[test]
fn a_scope_holds_for_every_command_of_a_line() {
    let home = Home::new();
    let scopes = ["Bash(git:*)", "Bash(npx eslint:*)"].map(|rule| Rule::parse(rule).unwrap()).to_vec();
    let policy = policy(Mode::Yolo, &[], &home.project()).only_matching("Bash", scopes);
    for line in
        ["git log", "git log; git show", "(git log)", "timeout 5 git log", "sh -c 'git log'", "npx eslint src", "CI=1 git log 2>/dev/null"]
    {
        assert_eq!(word(&run(&policy, line)), "allow", "{line}");
    }
    for line in [
        "ls",
        "git log; ls",
        "git log $(ls)",
        "git log > f",
        "git -c core.pager=ls log",
        "PATH=. git log",
        "$X",
        "npx other",
        "coproc git log",
    ] {
        assert_eq!(word(&run(&policy, line)), "deny", "{line}");
    }
}
