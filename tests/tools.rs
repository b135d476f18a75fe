//! The file tools on real files.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use zapmyco::agent::Role;
use zapmyco::agent::state::{SessionState, StateRecord, TodoStatus};
use zapmyco::agent::tool::{FailureKind, ToolBox, ToolContext, ToolFailure, ToolReply};
use zapmyco::ids::SessionId;
use zapmyco::permissions::{Effect, Mode, Policy, Rule, RuleSet};
use zapmyco::tools::toolset::{SessionTools, build};

use crate::support::Home;

/// A session's tools on a project folder.
struct Desk {
    home: Home,
    tools: ToolBox,
    state: Arc<SessionState>,
    cancel: CancellationToken,
}

impl Desk {
    fn new() -> Self {
        Self::with_deny(&[])
    }

    fn with_deny(deny: &[&str]) -> Self {
        let home = Home::new();
        let rules = RuleSet { deny: deny.iter().map(|rule| Rule::parse(rule).unwrap()).collect(), ..RuleSet::default() };
        let policy = Arc::new(Policy::new(Mode::Yolo, rules, home.project()));
        let tools = build(Role::Main, SessionTools::default(), &policy);
        Self { home, tools, state: Arc::default(), cancel: CancellationToken::new() }
    }

    fn context(&self) -> ToolContext {
        ToolContext {
            session: SessionId::new_main(),
            call_id: "call_1".into(),
            cwd: self.home.project(),
            cancel: self.cancel.clone(),
            state: self.state.clone(),
        }
    }

    fn call(&self, tool: &str, input: Value) -> Result<ToolReply, ToolFailure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tool = self.tools.find(tool).unwrap();
        runtime.block_on(tool.call(input, self.context()))
    }

    fn text(&self, tool: &str, input: Value) -> String {
        self.call(tool, input).unwrap_or_else(|failure| panic!("{failure}")).text
    }

    fn failure(&self, tool: &str, input: Value) -> ToolFailure {
        self.call(tool, input).expect_err("the call must fail")
    }

    fn effect(&self, tool: &str, input: Value) -> Result<Effect, ToolFailure> {
        self.tools.find(tool).unwrap().effect(&input, &self.context())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.project().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    fn content(&self, name: &str) -> String {
        String::from_utf8(std::fs::read(self.path(name)).unwrap()).unwrap()
    }

    fn read(&self, name: &str) -> String {
        self.text("Read", json!({"file_path": name}))
    }

    /// Names in a folder of the project, sorted.
    fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> =
            self.path(folder).read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn set_modified(path: &Path, seconds_ago: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds_ago)).unwrap();
}

fn make_fifo(path: &Path) {
    let status = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(status.success());
}

#[test]
fn read_gives_numbered_lines() {
    let desk = Desk::new();
    desk.write("a.txt", "one\ntwo\n\nfour");
    assert_eq!(desk.read("a.txt"), "     1\tone\n     2\ttwo\n     3\t\n     4\tfour");
    assert_eq!(desk.read(desk.path("a.txt").to_str().unwrap()), desk.read("./a.txt"));
    assert_eq!(desk.text("Read", json!({"file_path": "a.txt", "offset": 2, "limit": 2})), "     2\ttwo\n     3\t\n(lines 2 to 3 of 4)");
    assert_eq!(
        desk.text("read", json!({"file_path": "a.txt", "offset": 9})),
        format!("(nothing to show: `offset` is 9, and {} has 4 lines)", desk.path("a.txt").display())
    );
    desk.write("empty", "");
    assert_eq!(desk.read("empty"), format!("({} is empty)", desk.path("empty").display()));
    let reply = desk.call("Read", json!({"file_path": "a.txt"})).unwrap();
    assert_eq!(reply.structured.unwrap()["total_lines"], 4);
}

#[test]
fn read_is_bounded_by_lines_characters_and_bytes() {
    let desk = Desk::new();
    desk.write("many", (1..=5000).map(|n| format!("{n}\n")).collect::<String>());
    let text = desk.read("many");
    assert_eq!(text.lines().count(), 2001);
    assert!(text.ends_with("  2000\t2000\n(lines 1 to 2000 of 5000; go on with `offset`: 2001)"), "{}", &text[text.len() - 100..]);

    desk.write("wide", format!("{}\nend\n", "é".repeat(100_000)));
    let text = desk.read("wide");
    let first = text.lines().next().unwrap();
    assert!(first.ends_with("é [line cut, 200000 bytes in all]"));
    assert_eq!(first.matches('é').count(), 2000);
    assert!(text.contains("     2\tend\n(1 lines were longer than 2000 characters and are cut)"), "{text}");
    assert!(!text.contains("UTF-8"), "a character cut by us is no fault of the file");

    desk.write("heavy", format!("{}\n", "x".repeat(1900)).repeat(1000));
    let text = desk.read("heavy");
    assert!(text.len() < 100 * 1024, "{}", text.len());
    assert!(text.contains("of 1000; the reply is full; go on with `offset`: "), "{}", &text[text.len() - 100..]);
}

/// A file of any size is read in bounded memory, and one too large to digest is not read beyond what is shown.
#[test]
fn read_takes_the_start_of_a_huge_file() {
    let desk = Desk::new();
    let path = desk.write("huge", "first\nsecond\n".repeat(3000));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(40 * 1024 * 1024 * 1024).unwrap();
    let text = desk.text("Read", json!({"file_path": "huge", "limit": 2}));
    assert_eq!(text, "     1\tfirst\n     2\tsecond\n(lines 1 to 2)");
    let failure = desk.failure("Edit", json!({"file_path": "huge", "old_string": "first", "new_string": "x"}));
    assert!(failure.message.contains("Edit takes files up to"), "{failure}");
    // its mark is good enough to see a change
    file.set_len(41 * 1024 * 1024 * 1024).unwrap();
    let failure = desk.failure("Write", json!({"file_path": "huge", "content": "x"}));
    assert!(failure.message.contains("has changed since it was read"), "{failure}");
}

#[test]
fn read_says_what_is_no_text() {
    let desk = Desk::new();
    desk.write("latin1", b"caf\xe9\nok\n");
    assert_eq!(
        desk.read("latin1"),
        "     1\tcaf\u{fffd}\n     2\tok\n(the file is not valid UTF-8: what could not be read shows as \u{fffd})"
    );
    desk.write("crlf", "\u{feff}a\r\nb\r\n");
    assert_eq!(desk.read("crlf"), "     1\ta\n     2\tb\n(lines end with CRLF; Edit keeps that)");
    desk.write("late-nul", format!("{}\0b\n", "a\n".repeat(5000)));
    assert!(desk.text("Read", json!({"file_path": "late-nul", "offset": 5001})).starts_with("  5001\t\u{fffd}b"));
    for (name, bytes, what) in [
        ("x.png", &b"\x89PNG\r\n\x1a\n\0\0"[..], "an image"),
        ("x.jpg", b"\xff\xd8\xff\xe0\0", "an image"),
        ("x.pdf", b"%PDF-1.7\n...", "a PDF"),
        ("x.bin", b"\x7fELF\0\0", "binary"),
        ("x.txt", b"\xff\xfea\0b\0", "UTF-16 text"),
    ] {
        desk.write(name, bytes);
        let failure = desk.failure("Read", json!({"file_path": name}));
        assert_eq!(failure.kind, FailureKind::InvalidInput, "{name}");
        assert!(failure.message.contains(&format!("is {what} and cannot be read as text")), "{name}: {failure}");
        assert!(failure.hint.is_some(), "{name}");
        assert!(desk.state.record().files_seen.keys().all(|path| !path.ends_with(name)), "{name} was not seen");
    }
}

/// R334: a wrong path is answered with what to do.
#[test]
fn read_refuses_what_is_no_file_with_the_remedy() {
    let desk = Desk::new();
    desk.write("src/config.rs", "x");
    desk.write("src/readme.md", "x");
    for (path, kind, message, hint) in [
        ("src", FailureKind::InvalidInput, "is a folder, not a file", "list it with Glob"),
        ("src/confg.rs", FailureKind::NotFound, "does not exist", "did you mean"),
        ("src/readme.txt", FailureKind::NotFound, "does not exist", "readme.md?"),
        ("scr/config.rs", FailureKind::NotFound, "does not exist", "did you mean"),
        ("src/zzz", FailureKind::NotFound, "does not exist", "look with Glob"),
        ("", FailureKind::InvalidInput, "`file_path` is empty", "give the path"),
        ("~/x", FailureKind::InvalidInput, "`~` is not expanded here", "absolute path"),
        ("/dev/null", FailureKind::InvalidInput, "is a device", "regular files"),
    ] {
        let failure = desk.failure("Read", json!({"file_path": path}));
        assert_eq!(failure.kind, kind, "{path}");
        assert!(failure.message.contains(message), "{path}: {failure}");
        assert!(failure.hint.as_deref().unwrap_or_default().contains(hint), "{path}: {failure}");
    }
    let failure = desk.failure("Read", json!({"file_path": "a\u{0}b"}));
    assert!(failure.message.contains("NUL"), "{failure}");
    assert!(desk.failure("Read", json!({"file_path": "src/config.rs/x"})).message.contains("cannot read"));
    // a folder named `~` can still be reached
    desk.write("~/x", "here");
    assert_eq!(desk.read("./~/x"), "     1\there");
}

/// Nothing that could wait for another program is opened.
#[test]
fn pipes_sockets_and_devices_never_block() {
    let desk = Desk::new();
    make_fifo(&desk.path("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(desk.path("socket")).unwrap();
    symlink("pipe", desk.path("link")).unwrap();
    desk.write("plain", "needle\n");
    for (name, what) in [("pipe", "a named pipe"), ("socket", "a socket"), ("link", "a named pipe"), ("/dev/tty", "a device")] {
        for (tool, input) in [
            ("Read", json!({"file_path": name})),
            ("Write", json!({"file_path": name, "content": "x"})),
            ("Edit", json!({"file_path": name, "old_string": "a", "new_string": "b"})),
            ("Grep", json!({"pattern": "x", "path": name})),
        ] {
            let failure = desk.failure(tool, input);
            assert!(failure.message.contains(what), "{tool} {name}: {failure}");
        }
    }
    assert_eq!(desk.text("Grep", json!({"pattern": "needle"})), "plain");
    assert_eq!(desk.text("Glob", json!({"pattern": "*"})), "plain");
}

/// Issue 2: writing a file that was not read, or changed since, is refused.
#[test]
fn a_file_must_be_seen_as_it_is_before_it_is_changed() {
    let desk = Desk::new();
    desk.write("a", "one\n");
    for (tool, input) in [
        ("Write", json!({"file_path": "a", "content": "new"})),
        ("Edit", json!({"file_path": "a", "old_string": "one", "new_string": "two"})),
    ] {
        let failure = desk.failure(tool, input);
        assert!(failure.message.contains("was not read in this session; nothing was written"), "{tool}: {failure}");
        assert_eq!(failure.hint.as_deref(), Some("call Read on it first, then repeat this call"));
    }
    desk.read("a");
    desk.write("a", "changed\n");
    for (tool, input) in [
        ("Write", json!({"file_path": "a", "content": "new"})),
        ("Edit", json!({"file_path": "a", "old_string": "changed", "new_string": "two"})),
    ] {
        let failure = desk.failure(tool, input);
        assert!(failure.message.contains("has changed since it was read"), "{tool}: {failure}");
    }
    assert_eq!(desk.content("a"), "changed\n");
    // after a write of our own the mark is renewed, so that further changes need no further read
    desk.read("a");
    desk.text("Edit", json!({"file_path": "a", "old_string": "changed", "new_string": "two"}));
    desk.text("Edit", json!({"file_path": "a", "old_string": "two", "new_string": "three"}));
    desk.text("Write", json!({"file_path": "a", "content": "four"}));
    desk.text("Edit", json!({"file_path": "a", "old_string": "four", "new_string": "five"}));
    assert_eq!(desk.content("a"), "five");
    // the same bytes again are the same file
    desk.write("a", "six");
    desk.write("a", "five");
    desk.text("Write", json!({"file_path": "a", "content": "seven"}));
    // marks survive in the stored state
    let stored = serde_json::to_string(&desk.state.record()).unwrap();
    let restored: StateRecord = serde_json::from_str(&stored).unwrap();
    let resumed = Desk { state: Arc::new(SessionState::restored(restored)), ..desk };
    resumed.text("Write", json!({"file_path": "a", "content": "eight"}));
    assert_eq!(resumed.content("a"), "eight");
}

/// A file seen through one name is seen through every other.
#[test]
fn marks_belong_to_the_file_not_to_the_name() {
    let desk = Desk::new();
    desk.write("real/a", "one\n");
    symlink("real", desk.path("folder")).unwrap();
    desk.read("folder/a");
    desk.text("Edit", json!({"file_path": "real/../real/a", "old_string": "one", "new_string": "two"}));
    assert_eq!(desk.content("real/a"), "two\n");
}

#[test]
fn write_makes_folders_and_keeps_mode_and_links() {
    let desk = Desk::new();
    let text = desk.text("Write", json!({"file_path": "new/deep/a.txt", "content": "one\ntwo\n"}));
    assert_eq!(text, format!("created {} (2 lines, 8 bytes)\nit begins:\n     1\tone\n     2\ttwo", desk.path("new/deep/a.txt").display()));
    // a new file has the rights the umask leaves, as if an editor had made it
    let umask = u32::from_str_radix(
        std::fs::read_to_string("/proc/self/status").unwrap().lines().find_map(|line| line.strip_prefix("Umask:")).unwrap().trim(),
        8,
    )
    .unwrap();
    let mode = |name: &str| desk.path(name).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("new/deep/a.txt"), 0o666 & !umask);

    let script = desk.write("run.sh", "echo 1\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o751)).unwrap();
    symlink("run.sh", desk.path("link")).unwrap();
    desk.read("link");
    desk.text("Edit", json!({"file_path": "link", "old_string": "1", "new_string": "2"}));
    assert_eq!(desk.content("run.sh"), "echo 2\n");
    assert!(desk.path("link").is_symlink(), "the link stays");
    assert_eq!(mode("run.sh"), 0o751);
    assert!(desk.text("Write", json!({"file_path": "link", "content": "echo 3\n"})).starts_with("replaced "));
    assert_eq!((desk.content("run.sh").as_str(), mode("run.sh")), ("echo 3\n", 0o751));

    // a link to nothing makes what it points to
    symlink("target/new", desk.path("dangling")).unwrap();
    desk.text("Write", json!({"file_path": "dangling", "content": "x"}));
    assert_eq!(desk.content("target/new"), "x");
    assert!(desk.path("dangling").is_symlink());
    assert_eq!(desk.names(""), ["dangling", "link", "new", "run.sh", "target"], "no temporary file is left");
}

#[test]
fn a_failed_write_leaves_everything_as_it_was() {
    let desk = Desk::new();
    desk.write("file", "old");
    desk.read("file");
    let failure = desk.failure("Write", json!({"file_path": "file/below/x", "content": "x"}));
    assert!(failure.message.contains("a part of the path is a file"), "{failure}");
    let failure = desk.failure("Write", json!({"file_path": "folder/", "content": "x"}));
    assert!(failure.message.contains("names a folder"), "{failure}");
    // the name is too long for the file system, its folders are not
    let failure = desk.failure("Write", json!({"file_path": format!("made/for/it/{}", "n".repeat(300)), "content": "x"}));
    assert!(failure.message.contains("cannot write"), "{failure}");
    std::fs::set_permissions(desk.path("file"), std::fs::Permissions::from_mode(0o444)).unwrap();
    for (tool, input) in [
        ("Write", json!({"file_path": "file", "content": "new"})),
        ("Edit", json!({"file_path": "file", "old_string": "old", "new_string": "new"})),
    ] {
        let failure = desk.failure(tool, input);
        assert!(failure.message.contains("is write-protected (mode 444)"), "{tool}: {failure}");
    }
    desk.cancel.cancel();
    let failure = desk.failure("Write", json!({"file_path": "other", "content": "new"}));
    assert_eq!(failure.kind, FailureKind::Cancelled);
    assert_eq!(desk.names(""), ["file"]);
    assert_eq!(desk.content("file"), "old");
}

const LIMITED_FOLDER: &str = "ZAPMYCO_TEST_LIMITED_FOLDER";

/// The inner half of the next test: runs where no file may grow beyond 64 KiB.
#[test]
fn inside_a_file_size_limit() {
    let Some(folder) = std::env::var_os(LIMITED_FOLDER).map(PathBuf::from) else { return };
    let policy = Arc::new(Policy::new(Mode::Yolo, RuleSet::default(), folder.clone()));
    let tools = build(Role::Main, SessionTools::default(), &policy);
    let state: Arc<SessionState> = Arc::default();
    let context = || ToolContext {
        session: SessionId::new_main(),
        call_id: "c".into(),
        cwd: folder.clone(),
        cancel: CancellationToken::new(),
        state: state.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let call = |tool: &str, input: Value| runtime.block_on(tools.find(tool).unwrap().call(input, context()));
    call("Read", json!({"file_path": "file"})).unwrap();
    let big = "x".repeat(200_000);
    let failure = call("Write", json!({"file_path": "file", "content": big})).unwrap_err();
    assert!(failure.message.contains("nothing was changed"), "{failure}");
    let failure = call("Edit", json!({"file_path": "file", "old_string": "old", "new_string": big})).unwrap_err();
    assert!(failure.message.contains("nothing was changed"), "{failure}");
    let failure = call("Write", json!({"file_path": "new/folder/file", "content": big})).unwrap_err();
    assert!(failure.message.contains("nothing was changed"), "{failure}");
    // small changes still work
    call("Edit", json!({"file_path": "file", "old_string": "old", "new_string": "new"})).unwrap();
}

/// A full disk, played by a limit on file size: the original stays whole and nothing is left behind.
#[test]
fn a_full_disk_is_told_and_harms_nothing() {
    let desk = Desk::new();
    desk.write("file", "old\n");
    let status = std::process::Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact tools::inside_a_file_size_limit"])
        .arg(std::env::current_exe().unwrap())
        .env(LIMITED_FOLDER, desk.home.project())
        .output()
        .unwrap();
    assert!(status.status.success(), "{}{}", String::from_utf8_lossy(&status.stdout), String::from_utf8_lossy(&status.stderr));
    assert_eq!(desk.content("file"), "new\n");
    assert_eq!(desk.names(""), ["file"]);
}

#[test]
fn edit_needs_one_exact_place() {
    let desk = Desk::new();
    desk.write("a.rs", "fn one() {\n    run(1);\n}\nfn two() {\n    run(2);\n}\n");
    desk.read("a.rs");
    let text = desk.text("Edit", json!({"file_path": "a.rs", "old_string": "    run(2);", "new_string": "    run(3);\n    done();"}));
    assert_eq!(
        text,
        format!(
            "changed {} (1 place); now:\n     2\t    run(1);\n     3\t}}\n     4\tfn two() {{\n     5\t    run(3);\n     6\t    done();\n     7\t}}",
            desk.path("a.rs").display()
        )
    );
    let failure = desk.failure("Edit", json!({"file_path": "a.rs", "old_string": "run(", "new_string": "go("}));
    assert!(failure.message.contains("is 2 times in") && failure.message.contains("(lines 2, 5); nothing was changed"), "{failure}");
    assert!(failure.hint.unwrap().contains("`replace_all`"));
    let text = desk.text("Edit", json!({"file_path": "a.rs", "old_string": "run(", "new_string": "go(", "replace_all": true}));
    assert!(text.contains("(2 places); the first of them now:\n     1\tfn one() {\n     2\t    go(1);"), "{text}");
    assert_eq!(desk.content("a.rs"), "fn one() {\n    go(1);\n}\nfn two() {\n    go(3);\n    done();\n}\n");

    let failure = desk.failure("Edit", json!({"file_path": "a.rs", "old_string": "go(4);", "new_string": "x"}));
    assert_eq!(failure.kind, FailureKind::NotFound);
    assert!(failure.hint.unwrap().contains("     2\t    go(1);"));
    let failure = desk.failure("Edit", json!({"file_path": "a.rs", "old_string": "\tgo(3);", "new_string": "x"}));
    assert!(failure.hint.unwrap().contains("white space"));
    let failure = desk.failure("Edit", json!({"file_path": "a.rs", "old_string": "     2\t    go(1);", "new_string": "x"}));
    assert!(failure.hint.unwrap().contains("line numbers"));
    let failure = desk.failure("Edit", json!({"file_path": "a.rs", "old_string": "go(1)", "new_string": "go(1)"}));
    assert!(failure.message.contains("are equal"), "{failure}");
    let failure = desk.failure("Edit", json!({"file_path": "a.rs", "old_string": "", "new_string": "x"}));
    assert!(failure.message.contains("`old_string` is empty"), "{failure}");
    let failure = desk.failure("Edit", json!({"file_path": "b.rs", "old_string": "x", "new_string": "y"}));
    assert_eq!(failure.kind, FailureKind::NotFound);
    assert!(failure.hint.unwrap().contains("a.rs?"));
    // places that overlap are not one place
    desk.write("b", "aaa");
    desk.read("b");
    assert!(desk.failure("Edit", json!({"file_path": "b", "old_string": "aa", "new_string": "x"})).message.contains("2 times"));
}

#[test]
fn edit_keeps_line_ends_marks_and_foreign_bytes() {
    let desk = Desk::new();
    let edit = |name: &str, content: &[u8], old: &str, new: &str| {
        desk.write(name, content);
        desk.read(name);
        desk.text("Edit", json!({"file_path": name, "old_string": old, "new_string": new}));
        std::fs::read(desk.path(name)).unwrap()
    };
    assert_eq!(edit("crlf", b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz"), b"x\r\ny\r\nz\r\nc\r\n");
    assert_eq!(edit("crlf1", b"a\r\nb\r\n", "b", "x\ny"), b"a\r\nx\r\ny\r\n");
    assert_eq!(edit("crlf2", b"a\r\nb\r\n", "a\r\nb", "x\ny"), b"x\ny\r\n");
    assert_eq!(edit("lf", b"a\nb\n", "a", "x\ny"), b"x\ny\nb\n");
    assert_eq!(edit("mixed", b"a\r\nb\nc\n", "b\nc", "x\ny"), b"a\r\nx\ny\n");
    assert_eq!(edit("bom", b"\xef\xbb\xbfa\n", "a", "b"), b"\xef\xbb\xbfb\n");
    assert_eq!(edit("latin1", b"caf\xe9 one\n\xff", "one", "two"), b"caf\xe9 two\n\xff");
    assert_eq!(edit("unicode", "über ☃ alles".as_bytes(), "☃", "→"), "über → alles".as_bytes());
    assert_eq!(edit("delete", b"a\nb\n", "a\n", ""), b"b\n");
    assert_eq!(edit("all gone", b"a", "a", ""), b"");
}

#[test]
fn glob_finds_newest_first_and_obeys_ignore_files() {
    let desk = Desk::new();
    for (age, name) in [(30, "src/a.rs"), (10, "src/deep/b.rs"), (20, "c.rs"), (5, "target/d.rs"), (4, ".hidden/e.rs"), (1, ".git/f.rs")] {
        set_modified(&desk.write(name, "x"), age);
    }
    desk.write(".gitignore", "target/\n");
    let glob = |input: Value| desk.text("Glob", input).lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(glob(json!({"pattern": "**/*.rs"})), ["src/deep/b.rs", "c.rs", "src/a.rs"]);
    assert_eq!(glob(json!({"pattern": "*.rs"})), ["c.rs"]);
    assert_eq!(glob(json!({"pattern": "src/*.rs"})), ["src/a.rs"]);
    assert_eq!(glob(json!({"pattern": "src/**"})), ["src/deep/b.rs", "src/a.rs"]);
    assert_eq!(glob(json!({"pattern": "**/{a,c}.rs"})), ["c.rs", "src/a.rs"]);
    assert_eq!(glob(json!({"pattern": "*.rs", "path": "src"})), ["src/a.rs"]);
    assert_eq!(glob(json!({"pattern": "src/a.rs"})), ["src/a.rs"]);
    assert_eq!(glob(json!({"pattern": format!("{}/src/*.rs", desk.home.project().display())})), ["src/a.rs"]);
    assert_eq!(glob(json!({"pattern": "../project/src/*.rs"})).len(), 1);
    assert_eq!(glob(json!({"pattern": "**/*.rs", "include_ignored": true}))[0], "target/d.rs");
    assert_eq!(glob(json!({"pattern": "**/*.rs", "hidden": true}))[0], ".hidden/e.rs", ".git stays out");
    assert_eq!(glob(json!({"pattern": ".hidden/*"})), [".hidden/e.rs"]);
    assert_eq!(glob(json!({"pattern": "*", "path": ".git"})), [".git/f.rs"]);
    assert_eq!(
        desk.text("Glob", json!({"pattern": "a.rs"})),
        format!("(no file matches \"a.rs\" in {})\n(1 file further down would match \"**/a.rs\")", desk.home.project().display())
    );
    assert!(desk.text("Glob", json!({"pattern": "**/d.rs"})).contains("set `include_ignored`"));
}

#[test]
fn glob_says_what_is_wrong_or_left_out() {
    let desk = Desk::new();
    for n in 0..450 {
        desk.write(&format!("many/{n}"), "");
    }
    let text = desk.text("Glob", json!({"pattern": "many/*"}));
    assert_eq!(text.lines().count(), 201);
    assert!(text.ends_with("(the newest 200 of 450 files; narrow the pattern or the path to see others)"));
    for (input, message) in [
        (json!({"pattern": "a[", "path": "many"}), "is no valid pattern"),
        (json!({"pattern": "{a"}), "is no valid pattern"),
        (json!({"pattern": ""}), "`pattern` is empty"),
        (json!({"pattern": "*", "path": "none"}), "does not exist"),
        (json!({"pattern": "*", "path": "many/1"}), "is not a folder"),
        (json!({"pattern": "*", "path": "~/x"}), "`~` is not expanded"),
        (json!({"pattern": "~/x/*"}), "`~` is not expanded"),
    ] {
        let failure = desk.failure("Glob", input);
        assert!(failure.message.contains(message), "{failure}");
    }
    // names that are no text are shown as far as they can be
    use std::os::unix::ffi::OsStrExt;
    std::fs::write(desk.home.project().join(std::ffi::OsStr::from_bytes(b"odd\xff")), "").unwrap();
    assert_eq!(desk.text("Glob", json!({"pattern": "odd*"})), "odd\u{fffd}");
}

#[test]
fn grep_has_three_modes() {
    let desk = Desk::new();
    set_modified(&desk.write("a.rs", "fn main() {\n    todo();\n}\n// TODO later\n"), 20);
    set_modified(&desk.write("sub/b.py", "x = 1\n# todo\n# todo\n"), 10);
    desk.write("skipped.rs", "todo");
    desk.write(".gitignore", "skipped.rs\n");
    desk.write("data.bin", b"todo\0todo\n");
    desk.write("late.bin", [b"todo\n".repeat(10_000), b"\0".to_vec()].concat());
    let grep = |input: Value| desk.text("Grep", input);
    let lines = |input: Value| grep(input).lines().map(str::to_owned).collect::<Vec<_>>();
    let without_late = |lines: Vec<String>| lines.into_iter().filter(|line| !line.starts_with("late.bin")).collect::<Vec<_>>();
    assert_eq!(without_late(lines(json!({"pattern": "todo"}))), ["sub/b.py", "a.rs"]);
    assert_eq!(
        lines(json!({"pattern": "todo", "output_mode": "content"})),
        ["a.rs:2:    todo();", "sub/b.py:2:# todo", "sub/b.py:3:# todo"]
    );
    assert_eq!(
        lines(json!({"pattern": "todo", "output_mode": "count"})),
        ["a.rs:1", "sub/b.py:2", "(3 matches in 2 files)"],
        "binary files count for nothing"
    );
    assert_eq!(lines(json!({"pattern": "TODO", "-i": true, "output_mode": "count", "type": "rust"}))[0], "a.rs:2");
    assert_eq!(without_late(lines(json!({"pattern": "todo", "glob": "*.py"}))), ["sub/b.py"]);
    assert_eq!(without_late(lines(json!({"pattern": "todo", "glob": "!*.py"}))), ["a.rs"]);
    assert_eq!(lines(json!({"pattern": "todo", "glob": "sub/**"})), ["sub/b.py"]);
    assert_eq!(lines(json!({"pattern": "todo", "path": "sub", "output_mode": "content", "-n": false}))[0], "sub/b.py:# todo");
    assert_eq!(
        lines(json!({"pattern": "todo\\(", "output_mode": "content", "-C": 1})),
        ["a.rs-1-fn main() {", "a.rs:2:    todo();", "a.rs-3-}"]
    );
    assert_eq!(
        lines(json!({"pattern": "main|TODO", "output_mode": "content", "-A": 1, "-B": 0, "path": "a.rs"})),
        ["a.rs:1:fn main() {", "a.rs-2-    todo();", "--", "a.rs:4:// TODO later"]
    );
    assert_eq!(
        lines(json!({"pattern": "main.*?\\}", "multiline": true, "output_mode": "content"})),
        ["a.rs:1:fn main() {", "a.rs:2:    todo();", "a.rs:3:}"]
    );
    assert!(grep(json!({"pattern": "todo", "include_ignored": true})).contains("skipped.rs"));
    assert_eq!(grep(json!({"pattern": "absent"})), format!("(no match for \"absent\" in {})", desk.home.project().display()));
    assert!(grep(json!({"pattern": "todo", "path": "data.bin"})).contains("the file is binary and was not searched"));
    desk.write("utf16", b"\xff\xfew\0i\0d\0e\0\n\0");
    assert_eq!(lines(json!({"pattern": "wide", "output_mode": "content"})), ["utf16:1:wide"]);
}

#[test]
fn grep_is_bounded_and_says_so() {
    let desk = Desk::new();
    desk.write("many", "match\n".repeat(1000));
    let text = desk.text("Grep", json!({"pattern": "match", "output_mode": "content"}));
    assert_eq!(text.lines().count(), 251);
    assert!(text.contains("(stopped after 250 lines or a full reply; there is more"), "{}", &text[text.len() - 200..]);
    assert_eq!(desk.text("Grep", json!({"pattern": "match", "output_mode": "content", "head_limit": 3})).lines().count(), 4);
    assert_eq!(desk.text("Grep", json!({"pattern": "match", "output_mode": "content", "head_limit": 0})).lines().count(), 1000);
    desk.write("wide", format!("match{}", "x".repeat(100_000)));
    let text = desk.text("Grep", json!({"pattern": "match", "output_mode": "content", "path": "wide"}));
    assert!(text.len() < 700 && text.ends_with(" [line cut]"), "{}", text.len());
    desk.write("heavy", format!("match{}\n", "y".repeat(400)).repeat(2000));
    let text = desk.text("Grep", json!({"pattern": "match", "output_mode": "content", "path": "heavy", "head_limit": 0}));
    assert!(text.len() < 100 * 1024, "{}", text.len());
    for n in 0..300 {
        desk.write(&format!("files/{n}"), "match");
    }
    let text = desk.text("Grep", json!({"pattern": "match", "path": "files"}));
    assert!(text.ends_with("(the newest 250 of 300 files (`head_limit`))"), "{}", &text[text.len() - 100..]);
    let text = desk.text("Grep", json!({"pattern": "match", "path": "files", "output_mode": "count", "head_limit": 5}));
    assert_eq!(text.lines().count(), 6, "{text}");
}

/// R334
#[test]
fn grep_names_bad_arguments() {
    let desk = Desk::new();
    for (input, message, hint) in [
        (json!({"pattern": "a("}), "`pattern` is no valid regular expression", "escape characters"),
        (json!({"pattern": "(?=a)"}), "`pattern` is no valid regular expression", "look-around"),
        (json!({"pattern": "a\\nb"}), "`pattern` is no valid regular expression", "set `multiline` to true"),
        (json!({"pattern": ""}), "`pattern` is empty", "write the regular expression"),
        (json!({"pattern": "a", "type": "rustt"}), "\"rustt\" is not a known file type", "did you mean \"rust\"?"),
        (json!({"pattern": "a", "glob": "a[z-a]"}), "is no valid pattern", "write e.g."),
        (json!({"pattern": "a", "output_mode": "lines"}), "`output_mode` must be one of", "expected arguments"),
        (json!({"pattern": "a", "path": "none"}), "does not exist", ""),
    ] {
        let failure = desk.failure("Grep", input);
        assert!(failure.message.contains(message), "{failure}");
        assert!(failure.hint.as_deref().unwrap_or_default().contains(hint), "{failure}");
    }
}

/// A cancelled search ends, whether it stands in a walk or has not begun.
#[test]
fn a_search_ends_on_cancel() {
    let desk = Desk::new();
    for n in 0..2000 {
        desk.write(&format!("{}/{n}", n % 50), "text\n".repeat(50));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (tool, input) in [("Grep", json!({"pattern": "(a|b|t)+x$"})), ("Glob", json!({"pattern": "**/*"}))] {
        let context = ToolContext { cancel: CancellationToken::new(), ..desk.context() };
        let cancel = context.cancel.clone();
        let tool = desk.tools.find(tool).unwrap();
        let failure = runtime.block_on(async {
            let call = tool.call(input, context);
            tokio::pin!(call);
            assert!(futures_util::poll!(&mut call).is_pending());
            cancel.cancel();
            call.await.unwrap_err()
        });
        assert_eq!(failure.kind, FailureKind::Cancelled);
    }
}

/// Architecture rule 12: deny rules hold for what a search would show, too.
#[test]
fn searches_leave_out_what_a_rule_denies_to_read() {
    let desk = Desk::with_deny(&["Read(secret/**)", "Read(.env)"]);
    desk.write("secret/key", "needle");
    desk.write("sub/.env", "needle");
    desk.write("open", "needle");
    symlink("secret/key", desk.path("link")).unwrap();
    let text = desk.text("Grep", json!({"pattern": "needle", "hidden": true}));
    assert_eq!(text.lines().next(), Some("open"));
    assert!(!text.contains("secret/key") && !text.contains(".env"), "{text}");
    assert!(text.contains("left out by a permission rule"), "{text}");
    let text = desk.text("Glob", json!({"pattern": "**/*", "hidden": true}));
    assert!(!text.contains("secret") && !text.contains(".env") && !text.contains("link"), "{text}");
}

#[test]
fn todo_write_keeps_the_list_in_the_session() {
    let desk = Desk::new();
    let todo = |content: &str, status: &str| json!({"content": content, "status": status, "activeForm": "Doing"});
    let text = desk.text("TodoWrite", json!({"todos": [todo("a", "completed"), todo("b", "in_progress"), todo("c", "pending")]}));
    assert_eq!(text, "3 tasks: 1 completed, 1 in progress, 1 pending");
    let kept = desk.state.todos();
    assert_eq!(kept.iter().map(|todo| todo.content.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(kept[1].status, TodoStatus::InProgress);
    for (todos, message) in [
        (json!([{"content": "a", "status": "done"}]), "`todos[0].status` must be one of"),
        (json!([{"content": " ", "status": "pending"}]), "`todos[0].content` is empty"),
        (json!([{"status": "pending"}]), "missing required argument `todos[0].content`"),
        (json!(vec![todo("a", "pending"); 201]), "`todos` has 201 entries; at most 200 are kept"),
        (json!([todo(&"x".repeat(1001), "pending")]), "has 1001 characters"),
    ] {
        let failure = desk.failure("TodoWrite", json!({"todos": todos}));
        assert!(failure.message.contains(message), "{failure}");
    }
    assert_eq!(desk.state.todos(), kept, "a refused list changes nothing");
    assert!(desk.text("TodoWrite", json!({"todos": [todo("a", "in_progress"), todo("b", "in_progress")]})).contains("one at a time"));
    assert_eq!(desk.text("TodoWrite", json!({"todos": []})), "the list of tasks is empty now");
}

/// Decision 15: a process child has no way to start agents; a bare deny rule takes a tool away (R287, R349).
#[test]
fn the_toolset_follows_role_and_rules() {
    let names = |role: Role, deny: &[&str]| {
        let rules = RuleSet { deny: deny.iter().map(|rule| Rule::parse(rule).unwrap()).collect(), ..RuleSet::default() };
        let policy = Arc::new(Policy::new(Mode::Default, rules, "/work".into()));
        let session = SessionTools {
            shells: vec![Arc::new(Named::new("Bash"))],
            delegation: vec![Arc::new(Named::new("subagent"))],
            ..SessionTools::default()
        };
        build(role, session, &policy).names()
    };
    assert_eq!(names(Role::Main, &[]), ["AskUserQuestion", "Bash", "Edit", "Glob", "Grep", "Read", "TodoWrite", "Write", "subagent"]);
    assert_eq!(names(Role::LocalChild, &[]), ["AskUserQuestion", "Bash", "Edit", "Glob", "Grep", "Read", "TodoWrite", "Write"]);
    assert_eq!(names(Role::ProcessChild, &[]), ["Bash", "Edit", "Glob", "Grep", "Read", "TodoWrite", "Write"]);
    assert_eq!(names(Role::Main, &["bash", "Edit", "Read(x)", "subagent"]), ["AskUserQuestion", "Glob", "Grep", "Read", "TodoWrite"]);
    let policy = Arc::new(Policy::new(Mode::Default, RuleSet::default(), "/work".into()));
    let smuggled =
        SessionTools { shells: vec![Arc::new(Named::new("Agent")), Arc::new(Named::new("subagent"))], ..SessionTools::default() };
    assert_eq!(build(Role::ProcessChild, smuggled, &policy).names(), ["Edit", "Glob", "Grep", "Read", "TodoWrite", "Write"]);
}

/// A tool of another part, here only by its name.
struct Named {
    spec: zapmyco::agent::tool::ToolSpec,
}

impl Named {
    fn new(name: &str) -> Self {
        let declaration = zapmyco::models::ToolDeclaration { name: name.into(), description: String::new(), input_schema: json!({}) };
        let approval = zapmyco::agent::tool::ApprovalNeed::ByEffect;
        Self { spec: zapmyco::agent::tool::ToolSpec { declaration, aliases: &[], concurrent: true, approval } }
    }
}

impl zapmyco::agent::tool::Tool for Named {
    fn spec(&self) -> &zapmyco::agent::tool::ToolSpec {
        &self.spec
    }

    fn effect(&self, _input: &Value, _context: &ToolContext) -> Result<Effect, ToolFailure> {
        Ok(Effect::Internal)
    }

    fn call<'a>(&'a self, _input: Value, _context: ToolContext) -> futures_util::future::BoxFuture<'a, Result<ToolReply, ToolFailure>> {
        Box::pin(async { Ok(ToolReply::text("done")) })
    }
}

/// What the permission check is told before a call, and how tools are found (R99).
#[test]
fn effects_name_absolute_paths() {
    let desk = Desk::new();
    assert_eq!(desk.effect("Read", json!({"file_path": "a/../b"})), Ok(Effect::Reads(desk.path("a/../b"))));
    assert_eq!(desk.effect("todo_write", json!({"todos": []})), Ok(Effect::Internal));
    assert_eq!(desk.effect("WRITE", json!({"file_path": "/x", "content": ""})), Ok(Effect::Writes("/x".into())));
    assert_eq!(desk.effect("Edit", json!({"file_path": "x", "old_string": "", "new_string": ""})), Ok(Effect::Writes(desk.path("x"))));
    assert_eq!(desk.effect("Glob", json!({"pattern": "../other/**/*.rs"})), Ok(Effect::Reads(desk.path("../other"))));
    assert_eq!(desk.effect("Glob", json!({"pattern": "/etc/*"})), Ok(Effect::Reads("/etc".into())));
    assert_eq!(desk.effect("Grep", json!({"pattern": "x"})), Ok(Effect::Reads(desk.home.project())));
    assert!(desk.effect("Read", json!({})).is_err());
}

/// R10: unknown arguments are named in the reply and do not fail the call.
#[test]
fn unknown_arguments_are_named() {
    let desk = Desk::new();
    desk.write("a", "x");
    let text = desk.text("Read", json!({"file_path": "a", "limits": 3}));
    assert_eq!(text, "(ignored unknown argument `limits` (did you mean `limit`?); known: file_path, offset, limit)\n     1\tx");
}

/// Files that change or vanish while they are read give an answer, not a panic, and a torn read does not allow a write.
#[test]
fn a_file_that_changes_while_it_is_read_is_safe() {
    let desk = Desk::new();
    desk.write("log", "line\n".repeat(20_000));
    let path = desk.path("log");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = std::thread::spawn(move || {
        let mut length = 0_u64;
        while !stopped.load(std::sync::atomic::Ordering::Acquire) {
            length = (length + 77_777) % 1_000_000;
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
        }
    });
    for _ in 0..30 {
        // cut files grow with NUL bytes, so "binary" is a possible answer
        match desk.call("Read", json!({"file_path": "log"})) {
            Ok(reply) => assert!(reply.text.len() < 200_000),
            Err(failure) => assert!(failure.message.contains("binary"), "{failure}"),
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Release);
    writer.join().unwrap();
    desk.write("log", "final\n");
    assert!(desk.call("Write", json!({"file_path": "log", "content": "x"})).is_err());
    desk.read("log");
    desk.text("Write", json!({"file_path": "log", "content": "x"}));
}
