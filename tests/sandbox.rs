//! Flow: the sandbox of shells, through the real binary with scripted models. Where this kernel holds nothing, the tests say
//! so on stderr; what happens then is tried with a filter that takes the kernel's abilities away.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use seccompiler::{SeccompAction, SeccompFilter};
use serde_json::Value;
use zapmyco::supervisor::confine::{has_own_mounts, kernel};
use zapmyco::supervisor::plan::Program;

use crate::support::{Finished, Home, binary, finish};

fn can(what: &str, able: bool) -> bool {
    if !able {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED: this system has no {what}");
    }
    able
}

fn confines() -> bool {
    can("Landlock or no seccomp filters", kernel().confines())
}

fn mounts() -> bool {
    can("mounts for a command of its own", has_own_mounts(&Program::At(binary())))
}

/// A model that runs one line after the other and gives what they said.
fn script(home: &Home, name: &str, calls: &[(&str, Value)]) {
    let calls: Vec<Value> = calls.iter().map(|(name, input)| serde_json::json!({"name": name, "input": input})).collect();
    let turns = serde_json::json!([{"calls": calls}, {"text": "{{ results | join('\n--\n') }}"}]);
    home.write(name, &serde_json::json!({"version": 1, "scripts": [{"turns": turns}]}).to_string());
}

fn bash(line: &str) -> (&'static str, Value) {
    ("Bash", serde_json::json!({"command": line}))
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

fn run(home: &Home, arguments: &[&str]) -> Finished {
    home.run(&[&["run", "--model", "script:s.json", "--permission-mode", "yolo"], arguments, &["go"]].concat())
}

/// R46, R47: the shells of a session in plan mode are held by the kernel, and the result says so.
#[test]
fn shells_of_plan_mode_are_held() {
    if !confines() {
        return;
    }
    let home = Home::new();
    script(&home, "s.json", &[bash("grep -E 'NoNewPrivs|Seccomp:' /proc/self/status")]);
    let finished = home.run(&["run", "--model", "script:s.json", "--permission-mode", "plan", "--output-format", "json", "go"]);
    let result = json(&finished);
    assert_eq!(result["result"], "NoNewPrivs:\t1\nSeccomp:\t2", "{finished:?}");
    assert_eq!(result["sandbox"]["scope"], "read_only");
    assert_eq!(result["sandbox"]["landlock"], kernel().landlock.unwrap());
    assert_eq!(result["sandbox"]["call_filter"], true);
    let free = home.run(&["run", "--model", "script:s.json", "--output-format", "json", "go"]);
    assert_eq!(json(&free)["result"], "NoNewPrivs:\t0\nSeccomp:\t0", "{free:?}");
    assert_eq!(json(&free)["sandbox"]["scope"], "off");
}

/// R45, R46, R47, R285: Explore's shells are held in every mode of its parent, and its metadata says by what.
#[test]
fn shells_of_explore_are_held_and_its_metadata_says_so() {
    if !confines() {
        return;
    }
    let home = Home::new();
    home.write(
        "s.json",
        r#"{"version": 1, "scripts": [
            {"match": "^look", "turns": [{"calls": [{"name": "Bash", "input": {"command": "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status"}}]}, {"text": "{{ results[0] }}"}]},
            {"turns": [{"calls": [{"name": "Agent", "input": {"description": "d", "prompt": "look", "subagent_type": "Explore"}}]}, {"text": "{{ results[0] }}"}]}]}"#,
    );
    let finished = run(&home, &[]);
    assert!(finished.stdout.contains("NoNewPrivs:\t1\nSeccomp:\t2"), "{finished:?}");
    let metadata = find(&home.root().join("cli/agents"), "metadata.json").unwrap();
    let metadata: Value = serde_json::from_slice(&std::fs::read(metadata).unwrap()).unwrap();
    let told = metadata["readOnlyEnforcement"].as_str().unwrap();
    assert!(told.starts_with("command analysis, Landlock (version "), "{told}");
}

/// R47, R353: a process child of a session in plan mode: its shells are held too.
#[test]
fn shells_of_a_process_child_in_plan_mode_are_held() {
    if !confines() {
        return;
    }
    let home = Home::new();
    home.write(
        "s.json",
        r#"{"version": 1, "scripts": [
            {"match": "^look", "turns": [{"calls": [{"name": "Bash", "input": {"command": "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status"}}]}, {"text": "{{ results[0] }}"}]},
            {"turns": [{"calls": [{"name": "subagent", "input": {"action": "spawn", "task": "look"}}]},
                {"calls": [{"name": "subagent", "input": {"action": "poll", "wait_secs": 30, "subagent_ids": ["{{ results[0] | regex_find('sa_[0-9_a-f]+') }}"]}}]},
                {"text": "{{ results[0] }}"}]}]}"#,
    );
    let finished = home.run(&["run", "--model", "script:s.json", "--permission-mode", "plan", "go"]);
    assert!(finished.stdout.contains("NoNewPrivs:\t1\nSeccomp:\t2"), "{finished:?}");
}

fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.into_iter().find_map(|entry| if entry.file_name() == name { Some(entry.path()) } else { find(&entry.path(), name) })
}

/// `name: line` per try; each says whether it worked.
fn tries(tries: &[(&str, &str)]) -> String {
    tries
        .iter()
        .map(|(name, line)| format!("if ( {line} ) >/dev/null 2>&1; then echo '{name}: done'; else echo '{name}: refused'; fi\n"))
        .collect()
}

fn repository(home: &Home) {
    let project = home.project();
    let line = "git init -q . && git config user.email a@b && git config user.name a && echo a >a && git add a && git commit -qm a";
    let done = Command::new("sh").args(["-c", line]).current_dir(&project).env("HOME", &project).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// The workspace is written in, git commits; what git runs and obeys, our own settings and everything outside stay.
#[test]
fn a_workspace_sandbox_writes_inside_only() {
    if !mounts() {
        return;
    }
    let home = Home::new();
    repository(&home);
    home.write(".zapmyco/settings.toml", "");
    let outside = home.root().parent().unwrap().join("outside");
    std::fs::write(&outside, "mine").unwrap();
    std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = std::fs::read(home.project().join(".git/config")).unwrap();
    let lines = tries(&[
        ("a new file", "echo x >new"),
        ("a new folder", "mkdir -p deep/er && mv new deep/er/"),
        ("a mode inside", "chmod 600 a"),
        ("a commit", "git commit -qam b --allow-empty"),
        ("a branch", "git checkout -qb other"),
        ("the private folder", "echo x >\"$TMPDIR/x\""),
        ("a hook", "echo x >.git/hooks/post-commit"),
        ("the folder of hooks", "mv .git/hooks .git/old"),
        ("the configuration by git", "git config core.hooksPath /tmp"),
        ("the configuration by another name", "echo x >>.git/config"),
        ("the directory of git", "mv .git old"),
        ("our settings", "echo 'permission_mode = \"yolo\"' >.zapmyco/settings.toml"),
        ("the folder of our settings", "mv .zapmyco old"),
        ("a file outside", "echo x >../outside"),
        ("a new file outside", "echo x >../new"),
        ("a mode outside", "chmod 644 ../outside"),
        ("times outside", "touch ../outside"),
        ("a file in /tmp", "echo x >/tmp/zapmyco-sandbox-$$"),
        ("a mount", "mount --bind /tmp deep"),
        ("back through another process", "echo x >/proc/$PPID/root$PWD/../outside"),
    ]);
    script(&home, "s.json", &[bash(&format!("{lines}echo \"$TMPDIR\""))]);
    let finished = run(&home, &["--sandbox", "workspace", "--output-format", "json"]);
    let result = json(&finished);
    assert_eq!(result["sandbox"]["scope"], "workspace");
    assert_eq!((&result["sandbox"]["own_mounts"], &result["sandbox"]["network"]), (&true.into(), &true.into()));
    let text = result["result"].as_str().unwrap();
    let (refused, done): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|line| line.contains(": ")).partition(|line| line.ends_with("refused"));
    let names = |lines: Vec<&str>| -> Vec<String> { lines.iter().map(|line| line.split(": ").next().unwrap().to_owned()).collect() };
    assert_eq!(names(done), ["a new file", "a new folder", "a mode inside", "a commit", "a branch", "the private folder"], "{text}");
    assert_eq!(names(refused).len(), 14, "{text}");
    assert_eq!(std::fs::read(home.project().join(".git/config")).unwrap(), config);
    assert_eq!(std::fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o600);
    let private = text.lines().last().unwrap();
    assert!(private.contains("/zapmyco-sh_") && !Path::new(private).exists(), "{private}");
}

/// What git would obey if it were there cannot be covered by a mount: it is renamed when the command has ended.
#[test]
fn what_must_not_come_to_be_is_renamed_and_named() {
    if !mounts() {
        return;
    }
    let home = Home::new();
    repository(&home);
    script(&home, "s.json", &[bash("echo /elsewhere >.git/commondir; echo made")]);
    let finished = run(&home, &["--sandbox", "workspace"]);
    assert!(finished.stdout.contains("was made against the sandbox"), "{finished:?}");
    let git = home.project().join(".git");
    assert!(!git.join("commondir").exists());
    assert!(
        std::fs::read_dir(&git).unwrap().any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("commondir.refused-sh_"))
    );
}

/// A linked work tree commits into its repository, whose hooks and configuration stay.
#[test]
fn a_linked_work_tree_commits() {
    if !mounts() {
        return;
    }
    let home = Home::new();
    repository(&home);
    let linked = home.root().parent().unwrap().join("linked");
    let done = Command::new("git").args(["worktree", "add", "-q"]).arg(&linked).current_dir(home.project()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let git = home.project().join(".git");
    let lines = tries(&[
        ("a commit", "echo x >new && git add new && git commit -qm new"),
        ("a hook", &format!("echo x >{}/hooks/post-commit", git.display())),
        ("the configuration", "git config a.b c"),
        ("the name of the repository", "echo 'gitdir: /elsewhere' >.git"),
        ("the main work tree", &format!("echo x >{}/a", home.project().display())),
    ]);
    script(&home, "s.json", &[bash(&lines)]);
    std::fs::rename(home.project().join("s.json"), linked.join("s.json")).unwrap();
    let arguments = ["run", "--model", "script:s.json", "--permission-mode", "yolo", "--sandbox", "workspace", "go"];
    let finished = finish(home.command_in(&linked).args(arguments));
    let expected =
        "a commit: done\na hook: refused\nthe configuration: refused\nthe name of the repository: refused\nthe main work tree: refused";
    assert_eq!(finished.stdout.trim(), expected, "{finished:?}");
}

/// File tools are held to the same bounds by the decision, in every mode; further folders come from the user only.
#[test]
fn file_tools_obey_the_workspace() {
    let home = Home::new();
    let outside = home.root().parent().unwrap().join("outside");
    let further = home.root().parent().unwrap().join("further");
    std::fs::create_dir(&further).unwrap();
    let write = |path: &Path| ("Write", serde_json::json!({"file_path": path, "content": "x"}));
    let hook = home.project().join(".git/hooks/post-commit");
    script(&home, "s.json", &[write(&home.project().join("inside")), write(&outside), write(&hook), write(&further.join("x"))]);
    std::fs::write(home.root().join("settings.toml"), "[sandbox]\nwrite = [\"~/further\"]\n").unwrap();
    let finished = run(&home, &["--sandbox", "workspace", "--ignore-denied", "--output-format", "json"]);
    let result = json(&finished);
    let text = result["result"].as_str().unwrap();
    assert!(text.contains("the sandbox (workspace) writes only inside"), "{text}");
    assert!(text.contains("decides about rights or later commands, and the sandbox keeps it as it is"), "{text}");
    assert_eq!(result["permission_denials"].as_array().unwrap().len(), 2, "{result}");
    assert!(home.project().join("inside").exists() && further.join("x").exists() && !outside.exists() && !hook.exists());
}

/// No connection leaves a command, not even to this machine; the rest works.
#[test]
fn commands_without_network_reach_nobody() {
    if !confines() {
        return;
    }
    let home = Home::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let lines = tries(&[
        ("tcp", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}")),
        ("udp", "exec 3<>/dev/udp/127.0.0.1/9"),
        ("a file", "echo x >new"),
    ]);
    script(&home, "s.json", &[bash(&lines)]);
    for sandbox in ["off", "workspace"] {
        let finished = run(&home, &["--sandbox-network", "off", "--sandbox", sandbox]);
        let new = if sandbox == "off" || has_own_mounts(&Program::At(binary())) { "done" } else { "refused" };
        assert_eq!(finished.stdout.trim(), format!("tcp: refused\nudp: refused\na file: {new}"), "{finished:?}");
    }
    let finished = run(&home, &[]);
    assert_eq!(finished.stdout.trim(), "tcp: done\nudp: done\na file: done", "{finished:?}");
}

/// A project makes the sandbox stricter, never looser.
#[test]
fn a_project_only_makes_it_stricter() {
    let home = Home::new();
    let show = || home.run(&["config", "show"]);
    home.write(".zapmyco/settings.toml", "[sandbox]\nmode = \"workspace\"\nrequired = true\nnetwork = false\nwrite = [\"/\"]\n");
    let shown = show();
    for line in ["sandbox.mode = \"workspace\"", "sandbox.required = true", "sandbox.network = false", "sandbox.write = []"] {
        assert!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    assert!(shown.stderr.contains("`sandbox.write` is ignored"), "{shown:?}");
    std::fs::write(home.root().join("settings.toml"), "[sandbox]\nmode = \"workspace\"\nrequired = true\nnetwork = false\n").unwrap();
    home.write(".zapmyco/settings.toml", "[sandbox]\nmode = \"off\"\nrequired = false\nnetwork = true\n");
    let shown = show();
    for line in ["sandbox.mode = \"workspace\"", "sandbox.required = true", "sandbox.network = false"] {
        assert!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    for key in ["mode", "required", "network"] {
        assert!(shown.stderr.contains(&format!("`sandbox.{key}` is ignored")), "{key}: {shown:?}");
    }
}

/// The command under a filter that answers as an older kernel, or a stricter one, would.
#[expect(unsafe_code, reason = "a filter is set between fork and exec")]
fn lacking(command: &mut Command, calls: &[i64], errno: i32) -> Finished {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, std::env::consts::ARCH.try_into().unwrap()).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    unsafe { command.pre_exec(move || seccompiler::apply_filter(&program).map_err(std::io::Error::other)) };
    finish(command)
}

/// R47: without Landlock the analysis alone holds, a warning says so once, and what is required ends the run.
#[test]
fn a_kernel_without_landlock_is_said_aloud() {
    let home = Home::new();
    script(&home, "s.json", &[bash("cat s.json"), bash("wc -c s.json")]);
    let old = |arguments: &[&str]| {
        let mut command = home.command();
        command.args([&["run", "--model", "script:s.json", "--output-format", "json"], arguments, &["go"]].concat());
        lacking(&mut command, &[nix::libc::SYS_landlock_create_ruleset], nix::libc::ENOSYS)
    };
    let plan = old(&["--permission-mode", "plan"]);
    assert_eq!((plan.code, json(&plan)["sandbox"]["landlock"].clone()), (0, Value::Null), "{plan:?}");
    assert_eq!(plan.stderr.matches("only the analysis of each command holds them").count(), 1, "{plan:?}");
    home.write(
        "s.json",
        r#"{"version": 1, "scripts": [{"match": "^look", "turns": [{"text": "seen"}]},
            {"turns": [{"calls": [
                {"name": "Agent", "input": {"description": "d", "prompt": "look", "subagent_type": "Explore"}},
                {"name": "Agent", "input": {"description": "d", "prompt": "look", "subagent_type": "Explore"}}]}, {"text": "done"}]}]}"#,
    );
    let explored = old(&[]);
    assert_eq!(explored.stderr.matches("only the analysis of each command holds them").count(), 1, "{explored:?}");
    let metadata = find(&home.root().join("cli/agents"), "metadata.json").unwrap();
    let metadata: Value = serde_json::from_slice(&std::fs::read(metadata).unwrap()).unwrap();
    assert_eq!(metadata["readOnlyEnforcement"], "command analysis");
    let workspace = old(&["--sandbox", "workspace"]);
    assert_eq!(workspace.stderr.matches("this system has no sandbox for commands").count(), 1, "{workspace:?}");
    let required = old(&["--sandbox", "workspace", "--sandbox-required"]);
    assert_eq!(required.code, 2, "{required:?}");
    assert!(required.stderr.contains("the sandbox is required, and this system has no Landlock"), "{required:?}");
    assert!(required.stderr.contains("sandbox.required = false"), "{required:?}");
    let silent = old(&["--sandbox-network", "off"]);
    assert_eq!(silent.code, 2, "{silent:?}");
    assert!(silent.stderr.contains("commands are to have no network"), "{silent:?}");
}

/// Without mounts of a command's own: what is there is written, nothing beside it, and not what git runs or obeys.
#[test]
fn a_kernel_without_own_mounts_holds_what_it_can() {
    if !confines() {
        return;
    }
    let home = Home::new();
    repository(&home);
    home.write("folder/x", "x");
    let lines = tries(&[
        ("an old file", "echo x >>a"),
        ("a new file in a folder", "echo x >folder/new"),
        ("a new file at the top", "echo x >new"),
        ("a commit", "git commit -qam b"),
        ("a hook", "echo x >.git/hooks/post-commit"),
        ("outside", "echo x >../outside"),
    ]);
    script(&home, "s.json", &[bash(&lines)]);
    let without = |arguments: &[&str]| {
        let mut command = home.command();
        command.args(
            [&["run", "--model", "script:s.json", "--permission-mode", "yolo", "--sandbox", "workspace"], arguments, &["go"]].concat(),
        );
        lacking(&mut command, &[nix::libc::SYS_unshare], nix::libc::EPERM)
    };
    let finished = without(&[]);
    let expected = "an old file: done\na new file in a folder: done\na new file at the top: refused\na commit: refused\na hook: refused\noutside: refused";
    assert_eq!(finished.stdout.trim(), expected, "{finished:?}");
    assert_eq!(finished.stderr.matches("this system allows no mounts").count(), 1, "{finished:?}");
    let required = without(&["--sandbox-required"]);
    assert_eq!(required.code, 2, "{required:?}");
    assert!(required.stderr.contains("user namespaces"), "{required:?}");
}
