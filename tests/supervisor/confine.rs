//! Confined payloads: what a payload that may only read can still change. Nothing but its own temporary folder.
//!
//! Each attempt runs twice: unconfined on a tree of its own, to prove that it is an attempt at all, and confined. Where the
//! kernel cannot confine, the tests say so on stderr and prove only that the start fails.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use zapmyco::supervisor::confine::kernel;
use zapmyco::supervisor::launch::{LaunchError, Order};
use zapmyco::supervisor::plan::{Confinement, RefusedCalls, StartStage};
use zapmyco::supervisor::record::EndedBy;

use super::attempts::{ATTEMPTS, Attempt, Needs};
use super::kit::{Yard, end_of, order, stdout_of, wait_for_stdout};
use crate::support::{processes, wait};

/// Everything may be read, nothing may be written.
fn reading_only() -> Confinement {
    Confinement { writable: Vec::new(), calls: RefusedCalls::Everything, network: false, mounts: None }
}

/// Says so aloud and gives false where nothing can be proved.
fn kernel_confines() -> bool {
    let confines = kernel().confines();
    if !confines {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED: this kernel has no Landlock or no seccomp filters: {:?}", kernel());
    }
    confines
}

fn confined(yard: &Yard, id: &str, script: &str) -> Order {
    let mut order = order(yard.path(), id, script);
    order.plan.confinement = Some(reading_only());
    order.plan.temporary_below = Some(yard.path().join("temporary"));
    order
}

/// A tree with everything that can be changed.
fn plant(tree: &Path) {
    std::fs::create_dir_all(tree.join("folder/inner")).unwrap();
    std::fs::create_dir(tree.join("empty")).unwrap();
    for name in ["file", "folder/file", "folder/inner/deep", "other"] {
        std::fs::write(tree.join(name), format!("content of {name}\n")).unwrap();
    }
    std::fs::write(tree.join("program"), "#!/bin/sh\necho hello\n").unwrap();
    std::fs::set_permissions(tree.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("file", tree.join("link")).unwrap();
    symlink("missing", tree.join("dangling")).unwrap();
    std::fs::hard_link(tree.join("file"), tree.join("second-name")).unwrap();
    // Not everywhere, for example not on every tmpfs.
    let _ = rustix::fs::setxattr(tree.join("file"), "user.known", b"value", rustix::fs::XattrFlags::empty());
}

/// Names, kinds, bytes, modes, owners, times of change and extended attributes. The time of the last reading is left out.
fn snapshot(tree: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![tree.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = path.symlink_metadata().unwrap();
        assert!(found.len() < 1000, "{} has grown", tree.display());
        let content = if metadata.is_file() {
            String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned()
        } else if metadata.is_symlink() {
            std::fs::read_link(&path).unwrap().display().to_string()
        } else {
            String::new()
        };
        let mut attributes = vec![0; 4096];
        let length = rustix::fs::llistxattr(&path, &mut attributes[..]).unwrap_or(0);
        attributes.truncate(length);
        let facts = format!(
            "mode {:o} owner {}:{} links {} size {} mtime {}.{} ctime {}.{} device {} attributes {} content {content:?}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.nlink(),
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
            metadata.rdev(),
            String::from_utf8_lossy(&attributes).replace('\0', " "),
        );
        if metadata.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(path, facts);
    }
    found
}

fn differences(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let gone = before.iter().filter(|(path, facts)| after.get(*path) != Some(facts));
    let came = after.keys().filter(|path| !before.contains_key(*path));
    gone.map(|(path, facts)| format!("{}: {facts} -> {:?}", path.display(), after.get(path)))
        .chain(came.map(|path| format!("{} is new", path.display())))
        .collect()
}

/// The real file of an interpreter: a wrapper in `PATH` may write for itself.
fn interpreter(ask: &[&str]) -> Option<OsString> {
    let output = std::process::Command::new(ask[0]).args(&ask[1..]).output().ok()?;
    let path = output.stdout.trim_ascii();
    (output.status.success() && !path.is_empty()).then(|| std::ffi::OsStr::from_bytes(path).to_owned())
}

struct Tools {
    python: Option<OsString>,
    perl: Option<OsString>,
    root: bool,
}

impl Tools {
    fn find() -> Self {
        Self {
            python: interpreter(&["python3", "-c", "import sys; print(sys.executable)"]),
            perl: interpreter(&["perl", "-e", "print $^X"]),
            root: rustix::process::geteuid().is_root(),
        }
    }

    fn has(&self, attempt: &Attempt) -> bool {
        match attempt.needs {
            Needs::Shell => true,
            Needs::Perl => self.perl.is_some(),
            Needs::Python => self.python.is_some(),
        }
    }

    fn give(&self, order: &mut Order, tree: &Path) {
        let token = tree.parent().and_then(Path::file_name).unwrap_or_default();
        let variables = [
            ("TREE", Some(tree.as_os_str().to_owned())),
            ("TOKEN", Some(token.to_owned())),
            ("PYTHON", self.python.clone()),
            ("PERL", self.perl.clone()),
            // Byte code and the like would be written beside what is run.
            ("PYTHONDONTWRITEBYTECODE", Some("1".into())),
        ];
        let known = variables.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
        order.plan.environment.extend(known);
        order.plan.cwd = tree.to_owned();
        order.plan.time_limit = Some(std::time::Duration::from_secs(30));
    }
}

fn script(attempt: &Attempt) -> String {
    match attempt.needs {
        Needs::Shell => attempt.script.to_owned(),
        Needs::Perl => format!("\"$PERL\" - <<'END'\n{}\nEND", attempt.script),
        Needs::Python => format!("\"$PYTHON\" - <<'END'\n{}{}\nEND", super::attempts::PYTHON, attempt.script),
    }
}

/// R46, R47
#[test]
fn a_hundred_ways_to_write_change_nothing() {
    assert!(ATTEMPTS.len() >= 100, "{} attempts", ATTEMPTS.len());
    if !kernel_confines() {
        return;
    }
    let tools = Tools::find();
    let (mut proved, mut without_control, mut lacking) = (0, Vec::new(), Vec::new());
    for (index, attempt) in ATTEMPTS.iter().enumerate() {
        if !tools.has(attempt) {
            lacking.push(attempt.name);
            continue;
        }
        let yard = Yard::new();
        std::fs::create_dir(yard.path().join("temporary")).unwrap();
        let free = yard.path().join("free");
        let held = yard.path().join("held");
        plant(&free);
        plant(&held);

        let before = snapshot(&free);
        if attempt.control {
            let mut control = yard.order(&format!("control-{index}"), &script(attempt));
            tools.give(&mut control, &free);
            let end = end_of(&yard.launch_order(control));
            assert_eq!(end.cause, EndedBy::Itself, "{}, unconfined", attempt.name);
        }
        let is_attempt = !differences(&before, &snapshot(&free)).is_empty();

        let before = snapshot(&held);
        let mut order = confined(&yard, &format!("held-{index}"), &script(attempt));
        tools.give(&mut order, &held);
        let kept = yard.launch_order(order);
        let end = end_of(&kept);
        let errors = std::fs::read_to_string(kept.folder().output(zapmyco::config::layout::Stream::Stderr)).unwrap_or_default();
        assert_eq!(end.cause, EndedBy::Itself, "{}\n{errors}", attempt.name);
        let changed = differences(&before, &snapshot(&held));
        assert!(changed.is_empty(), "{}: {}\n{errors}", attempt.name, changed.join("\n"));
        assert!(end.left_over.is_empty(), "{}: {:?}", attempt.name, end.left_over);
        assert_eq!(std::fs::read_dir(yard.path().join("temporary")).unwrap().count(), 0, "{}", attempt.name);
        yard.assert_empty();
        if is_attempt {
            proved += 1;
        } else {
            without_control.push(attempt.name);
        }
    }
    let mut stderr = std::io::stderr();
    if !lacking.is_empty() {
        let _ = writeln!(stderr, "\nSKIPPED for want of an interpreter: {}", lacking.join(", "));
    }
    if !without_control.is_empty() {
        let _ = writeln!(stderr, "\nchange nothing here even without confinement (root: {}): {}", tools.root, without_control.join(", "));
    }
    let tried = ATTEMPTS.len() - lacking.len();
    assert!(proved * 10 >= tried * 8, "only {proved} of {tried} attempts change anything without confinement: {without_control:?}");
}

/// R47: reading, running, and writing where nothing is kept.
#[test]
fn reading_and_the_private_folder_still_work() {
    if !kernel_confines() {
        return;
    }
    let yard = Yard::new();
    std::fs::create_dir(yard.path().join("temporary")).unwrap();
    std::fs::write(yard.path().join("seen"), "seen\n").unwrap();
    let script = "cat seen; ls / >/dev/null && echo listed; echo x 2>/dev/zero >/dev/null && echo null; \
                  echo kept >\"$TMPDIR/a\" && mkdir \"$TMPDIR/b\" && mv \"$TMPDIR/a\" \"$TMPDIR/b/\" && cat \"$TMPDIR/b/a\"; \
                  sort <<<$'2\\n1' | head -n 1; (exit 3) & wait $! ; echo \"child $?\"; stat -c %a \"$TMPDIR\"; \
                  ( : >\"$TMPDIR/../beside\" ) 2>/dev/null || echo refused";
    let kept = yard.launch_order(confined(&yard, "reading", script));
    let end = end_of(&kept);
    assert_eq!(stdout_of(&kept), "seen\nlisted\nnull\nkept\n1\nchild 3\n700\nrefused\n");
    assert_eq!(end.wait.unwrap().code, Some(0));
    assert_eq!(std::fs::read_dir(yard.path().join("temporary")).unwrap().count(), 0);
    yard.assert_empty();
}

/// R47: a keeper is not confined: it stops what it keeps, records it, and leaves nothing.
#[test]
fn a_confined_payload_is_stopped_like_any_other() {
    if !kernel_confines() {
        return;
    }
    let yard = Yard::new();
    std::fs::create_dir(yard.path().join("temporary")).unwrap();
    let script = "trap '' TERM; mkdir -p \"$TMPDIR/a/b\"; (setsid sleep 600 &) ; echo ready; sleep 600";
    let mut order = confined(&yard, "stopped", script);
    order.plan.grace = std::time::Duration::from_millis(100);
    let kept = yard.launch_order(order);
    wait_for_stdout(&kept, "ready");
    kept.request_stop(zapmyco::supervisor::record::Requester::Person).unwrap();
    let end = end_of(&kept);
    assert!(end.left_over.is_empty(), "{end:?}");
    assert_eq!(std::fs::read_dir(yard.path().join("temporary")).unwrap().count(), 0);
    yard.assert_empty();
}

/// R47: when the keeper is killed, whoever settles for it removes the temporary folder.
#[test]
fn the_temporary_folder_of_a_killed_keeper_is_removed() {
    if !kernel_confines() {
        return;
    }
    let yard = Yard::new();
    std::fs::create_dir(yard.path().join("temporary")).unwrap();
    let kept = yard.launch_order(confined(&yard, "orphan", "echo x >\"$TMPDIR/x\"; echo ready; sleep 600"));
    wait_for_stdout(&kept, "ready");
    let keeper = super::kit::status_of(&kept).keeper.pid;
    rustix::process::kill_process(rustix::process::Pid::from_raw(keeper.cast_signed()).unwrap(), rustix::process::Signal::KILL).unwrap();
    end_of(&kept);
    wait::until_true("the folder is gone", || std::fs::read_dir(yard.path().join("temporary")).unwrap().count() == 0);
    wait::until_true("the payload is gone", || yard.living().is_empty());
}

/// R47: processes outside are neither signalled nor looked into.
#[test]
fn processes_outside_are_left_alone() {
    if !kernel_confines() {
        return;
    }
    let yard = Yard::new();
    std::fs::create_dir(yard.path().join("temporary")).unwrap();
    let victim = yard.launch("victim", "trap 'echo signalled' USR1 TERM; echo ready; while :; do sleep 0.05; done");
    wait_for_stdout(&victim, "ready");
    let pid = super::kit::status_of(&victim).payload.pid;
    let attempts = format!(
        "kill -USR1 {pid} && echo signal; kill -STOP {pid} && echo stop; prlimit --pid {pid} --nofile=3 && echo limit; \
         renice 19 -p {pid} && echo priority; cat /proc/{pid}/environ >/dev/null && echo environment; \
         ls /proc/{pid}/root/ && echo root; echo 500 >/proc/{pid}/oom_score_adj && echo score; echo end"
    );
    let kept = yard.launch_order(confined(&yard, "attacker", &attempts));
    end_of(&kept);
    let told = stdout_of(&kept);
    // Before its sixth version Landlock does not know signals.
    let signals = kernel().landlock.is_some_and(|version| version >= 6);
    if signals {
        assert_eq!(told, "end\n");
        assert!(!stdout_of(&victim).contains("signalled"));
    } else {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED in part: this kernel's Landlock does not know signals");
    }
    assert!(processes::read(pid).is_some_and(|process| process.state != 'T'));
    victim.request_stop(zapmyco::supervisor::record::Requester::Person).unwrap();
    victim.request_stop(zapmyco::supervisor::record::Requester::Person).unwrap();
    end_of(&victim);
    yard.assert_empty();
}

/// R47: what cannot be held is not started, and nothing of the start is left.
#[test]
fn a_start_that_cannot_be_confined_fails_at_that_stage() {
    let yard = Yard::new();
    // No such folder for the temporary one.
    let mut order = confined(&yard, "failing", "echo started");
    order.plan.temporary_below = Some(yard.path().join("missing"));
    let error = yard.try_launch(order).unwrap_err();
    assert!(matches!(error, LaunchError::Payload { stage: StartStage::Confinement, .. }), "{error:?}");
    assert!(error.to_string().starts_with("confinement of the program: "), "{error}");
    assert!(!yard.folder("failing").path().exists());
    yard.assert_empty();
}
