//! Starts: what the payload finds, and every way a start fails.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;

use zapmyco::supervisor::launch::{Handover, LaunchError, sealed_memory_file};
use zapmyco::supervisor::plan::{Program, StartStage};
use zapmyco::supervisor::record::read_spec;

use super::kit::{Yard, end_of, status_of, stdout_of};
use super::roles;

fn failure(error: LaunchError) -> (StartStage, ErrorKind) {
    match error {
        LaunchError::Payload { stage, source } => (stage, source.kind()),
        other => panic!("{other}"),
    }
}

/// R345, R382
#[test]
fn every_failed_start_is_typed_and_leaves_no_folder() {
    let yard = Yard::new();
    let fails = |change: fn(&mut zapmyco::supervisor::launch::Order)| {
        let mut order = yard.order("one", "true");
        change(&mut order);
        let error = yard.try_launch(order).unwrap_err();
        assert!(!yard.folder("one").path().exists(), "{error}");
        error
    };
    let missing = fails(|order| order.plan.program = Program::At("/nonexistent/program".into()));
    assert_eq!(missing.to_string(), "start of the program: No such file or directory (os error 2)");
    assert!(!missing.is_folder());
    let not_executable = fails(|order| order.plan.program = Program::At("/etc/passwd".into()));
    assert_eq!(failure(not_executable), (StartStage::Program, ErrorKind::PermissionDenied));
    let no_directory = fails(|order| order.plan.cwd = "/nonexistent".into());
    assert_eq!(failure(no_directory), (StartStage::WorkingDirectory, ErrorKind::NotFound));
    let nul = fails(|order| order.plan.argv.push("a\0b".into()));
    assert_eq!(failure(nul).0, StartStage::Program);
    let too_long = fails(|order| order.plan.argv.push("x".repeat(200_000).into()));
    assert_eq!(failure(too_long), (StartStage::Program, ErrorKind::ArgumentListTooLong));
    yard.assert_empty();
}

/// R345
#[test]
fn a_missing_keeper_is_an_error_of_the_start() {
    let yard = Yard::new();
    let launcher = zapmyco::supervisor::launch::Launcher::new(Program::At("/nonexistent/zapmyco".into()));
    let error = launcher.launch(yard.order("one", "true")).unwrap_err();
    assert_eq!(error.to_string(), "start of the keeper: No such file or directory (os error 2)");
    let deaf = zapmyco::supervisor::launch::Launcher::new(Program::At("/bin/true".into()));
    let error = deaf.launch(yard.order("one", "true")).unwrap_err();
    assert!(matches!(error, LaunchError::Keeper { .. }), "{error}");
    assert!(!yard.folder("one").path().exists());
}

/// R346
#[test]
fn a_taken_folder_is_refused_and_left_alone() {
    let yard = Yard::new();
    let first = yard.launch("same", "sleep 600");
    let error = yard.try_launch(yard.order("same", "true")).unwrap_err();
    assert!(matches!(error, LaunchError::FolderTaken { .. }) && error.is_folder());
    assert_ne!(status_of(&first).payload.pid, 0);
}

/// R351, R385
#[test]
fn the_folder_is_the_owners_alone_and_tells_what_was_ordered() {
    let yard = Yard::new();
    let mut order = yard.order("one", "cat \"$TASK\"");
    order.task_file = Some(b"a long task".to_vec());
    order.plan.environment.push(("TASK".into(), order.folder.task().into()));
    let kept = yard.launch_order(order);
    end_of(&kept);
    assert_eq!(stdout_of(&kept), "a long task");
    let mode = |path: std::path::PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(kept.folder().path().to_owned()), 0o700);
    for file in std::fs::read_dir(kept.folder().path()).unwrap() {
        assert_eq!(mode(file.unwrap().path()), 0o600);
    }
    let spec = read_spec(kept.folder()).unwrap().unwrap();
    assert_eq!(spec.owner, serde_json::json!({ "test": "one" }));
    assert!(spec.marker.starts_with("one."));
}

/// R352, fault S25
#[test]
fn the_payload_finds_a_clean_place() {
    let yard = Yard::new();
    let script = "ls /proc/$$/fd > fds; readlink /proc/$$/fd/0; echo $ZAPMYCO_JOB; pwd; \
                  awk '{print \"group\", $5 == $1, \"session\", $6 != $1}' /proc/$$/stat; cat /proc/$$/oom_score_adj";
    let kept = yard.launch("clean", script);
    end_of(&kept);
    assert_eq!(std::fs::read_to_string(yard.path().join("fds")).unwrap(), "0\n1\n2\n");
    let text = stdout_of(&kept);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "/dev/null");
    assert!(lines[1].starts_with("/clean."), "{text}");
    assert_eq!(lines[2], yard.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(lines[3], "group 1 session 1");
    if cfg!(zapmyco_portable) {
        // Without the means of Linux nobody is chosen to go first.
        return;
    }
    let own: i32 = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    assert_eq!(lines[4].parse::<i32>().unwrap(), (own + 300).min(1000));
}

/// R352, fault S16
#[test]
fn signals_are_neither_blocked_nor_ignored() {
    let yard = Yard::new();
    let mut order = yard.order("signals", "");
    order.plan.program = Program::At("grep".into());
    order.plan.argv = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"].map(Into::into).to_vec();
    let kept = yard.launch_order(order);
    end_of(&kept);
    let text = stdout_of(&kept);
    let mask = |name: &str| u64::from_str_radix(text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim(), 16).unwrap();
    // 32 and 33 are the C library's own, which every process that it spawns finds ignored.
    assert_eq!((mask("SigBlk:"), mask("SigIgn:") & 0x7fff_ffff), (0, 0), "{text}");
}

/// R343, decision 12
#[test]
fn a_memory_file_reaches_the_payload_and_nothing_else_does() {
    let yard = Yard::new();
    let mut order = yard.order("handover", "cat /proc/self/fd/$PRIVATE; ls /proc/$$/fd > fds");
    let file = sealed_memory_file("private", b"secret\n").unwrap();
    assert!(rustix::io::write(&file, b"x").is_err());
    order.handover.push(Handover { variable: "PRIVATE", file });
    let kept = yard.launch_order(order);
    end_of(&kept);
    assert_eq!(stdout_of(&kept), "secret\n");
    assert_eq!(std::fs::read_to_string(yard.path().join("fds")).unwrap().lines().count(), 4);
    let leaked = |folder: &std::path::Path| {
        std::fs::read_dir(folder).unwrap().flatten().any(|file| {
            let name = file.file_name();
            name != "stdout" && std::fs::read(file.path()).unwrap().windows(6).any(|bytes| bytes == b"secret")
        })
    };
    assert!(!leaked(kept.folder().path()));
}

/// fault S25
#[test]
fn fresh_programs_start_while_others_are_written() {
    let yard = Yard::new();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let yard = &yard;
            scope.spawn(move || {
                for round in 0..6 {
                    let id = format!("t{thread}-{round}");
                    let program = yard.path().join(&id);
                    std::fs::write(&program, "#!/bin/sh\nls /proc/$$/fd\nexit 0\n").unwrap();
                    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
                    let mut order = yard.order(&id, "");
                    order.plan.argv = vec![id.clone().into()];
                    order.plan.program = Program::At(program);
                    let kept = yard.launch_order(order);
                    assert_eq!(end_of(&kept).wait.unwrap().code, Some(0));
                    // The script itself is descriptor 10 of a `dash`, 255 of a `bash`.
                    let listed = stdout_of(&kept);
                    let numbers: Vec<u32> = listed.split_whitespace().map(|number| number.parse().unwrap()).collect();
                    assert!(numbers.iter().filter(|number| **number < 10).eq([0, 1, 2].iter()), "{listed}");
                }
            });
        }
    });
}

/// fault S13
#[test]
fn out_of_descriptors_is_an_error_and_no_child_is_lost() {
    let yard = Yard::new();
    assert!(roles::play("few descriptors", yard.path(), &[]));
    crate::support::wait::until_true("nothing left", || yard.living().is_empty());
}

/// fault S14
#[test]
fn out_of_processes_is_tried_again_and_names_the_limit() {
    let yard = Yard::new();
    std::fs::set_permissions(yard.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    if !can_become_another_user() {
        eprintln!("SKIPPED: another user could not run the built binary");
        return;
    }
    assert!(roles::play("few processes", yard.path(), &[]));
    crate::support::wait::until_true("nothing left", || yard.living().is_empty());
}

/// As root the limit must be met as somebody else, who must be able to reach the binary.
fn can_become_another_user() -> bool {
    if !rustix::process::getuid().is_root() {
        return true;
    }
    let mut path = crate::support::binary();
    while path.pop() {
        if path.metadata().is_ok_and(|folder| folder.permissions().mode() & 0o001 == 0) {
            return false;
        }
    }
    true
}

/// fault S18
#[test]
fn a_first_process_that_never_reaps_sees_the_ends() {
    let yard = Yard::new();
    roles::play("first process", yard.path(), &["unshare", "-rpf", "--mount-proc"]);
}

/// fault S16, fault A2: Ctrl-C, Ctrl-Z and a hang-up during starts reach the agent's group, never a keeper
#[test]
fn signals_of_the_terminal_during_a_start_miss_the_keeper() {
    let yard = Yard::new();
    let group = ["setsid", "bash", "-c", "trap '' INT TSTP HUP; exec \"$@\"", "group"];
    assert!(roles::play("signalled group", yard.path(), &group));
}

/// Architecture 3: the hidden argument typed by hand
#[test]
fn a_keeper_without_a_launcher_ends_at_once() {
    let ended =
        crate::support::finish(std::process::Command::new(crate::support::binary()).arg("__keep").stdin(std::process::Stdio::null()));
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (1, "", ""));
}
