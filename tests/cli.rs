//! Flow: the command line itself: help, exit codes, completions, manual.

use std::process::Stdio;

use crate::support::{Home, binary, finish};

/// R326: the table in the README and in `--help` is the one the program uses.
#[test]
fn exit_codes_are_documented_alike_everywhere() {
    let home = Home::new();
    let help = home.run(&["--help"]).stdout;
    let readme = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    for (code, meaning) in zapmyco::cli::report::EXIT_CODES {
        assert!(help.contains(&format!("{code:<6} {meaning}")), "{code} in --help");
        assert!(readme.contains(&format!("| {code} | {meaning} |")), "{code} in README.md");
    }
}

#[test]
fn every_command_has_help_with_its_own_text() {
    let home = Home::new();
    for command in ["run", "demo", "jobs", "subagent", "config", "completions", "man"] {
        let finished = home.run(&[command, "--help"]);
        assert_eq!(finished.code, 0, "{command}");
        assert!(finished.stdout.contains("Usage: zapmyco") && finished.stderr.is_empty(), "{command}");
    }
    assert_eq!(home.run(&["--version"]).stdout, format!("zapmyco {}\n", env!("CARGO_PKG_VERSION")));
}

/// Longer lines would be broken without their indentation.
#[test]
fn the_overview_fits_a_narrow_terminal() {
    let help = Home::new().run(&["-h"]).stdout;
    let (_, written_by_hand) = help.split_once("Examples:").unwrap();
    for line in written_by_hand.lines() {
        assert!(line.chars().count() <= 60, "{line}");
    }
}

/// R352
#[test]
fn the_payload_flag_is_not_in_the_help() {
    let home = Home::new();
    assert!(!home.run(&["run", "--help"]).stdout.contains("--subagent"));
}

#[test]
fn wrong_usage_is_exit_2_on_stderr() {
    let home = Home::new();
    for arguments in [vec![], vec!["no-such-command"], vec!["run", "--no-such-flag", "x"], vec!["jobs"], vec!["run", "--on-exit", "x", "y"]]
    {
        let finished = home.run(&arguments);
        assert_eq!((finished.code, finished.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(!finished.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn completions_and_manual_are_made_for_every_shell() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let finished = home.run(&["completions", shell]);
        assert!(finished.code == 0 && finished.stdout.contains("zapmyco"), "{shell}");
    }
    assert!(home.run(&["man"]).stdout.contains(".TH zapmyco"));
    assert_eq!(home.run(&["man", "--dir", "pages"]).code, 0);
    assert!(home.project().join("pages/zapmyco-run.1").exists());
}

/// A reader that has enough: quiet, 141.
#[test]
fn a_closed_pipe_is_no_error_message() {
    let home = Home::new();
    let mut command = home.command();
    let mut child = command.args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    // The script may fit into the pipe before it is closed.
    assert!(matches!(output.status.code(), Some(0 | 141)));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// fault J8: no colour and no cursor movement where nobody asked for them.
#[test]
fn output_that_is_no_terminal_has_no_escapes() {
    let home = Home::new();
    home.write("a.txt", "x\n");
    for (name, value) in [("TERM", "dumb"), ("NO_COLOR", "1"), ("LANG", "C")] {
        let finished = finish(home.command().env(name, value).args(["demo", "."]));
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        assert!(!finished.stdout.contains('\u{1b}') && !finished.stderr.contains('\u{1b}'), "{name}");
    }
    assert!(!home.run(&["--help"]).stdout.contains('\u{1b}'));
}

/// R1, fault J8: a relative or empty root is refused; without HOME the user database knows.
#[test]
fn the_storage_root_is_absolute() {
    let home = Home::new();
    for bad in ["", "relative/folder"] {
        let finished = finish(home.command().env("ZAPMYCO_HOME", bad).args(["jobs", "list"]));
        assert_eq!(finished.code, 2, "{bad:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("ZAPMYCO_HOME"), "{}", finished.stderr);
    }
    assert!(!home.project().join("relative").exists());
}

/// A closed stdout, stderr or stdin does no harm.
#[test]
fn closed_descriptors_do_no_harm() {
    let home = Home::new();
    home.write("a.txt", "x\n");
    for closing in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let line = format!("'{}' demo . {closing}", binary().display());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("ZAPMYCO_HOME", home.root());
        let finished = finish(command.current_dir(home.project()));
        assert!(finished.code == 0 || (closing.contains(">&-") && finished.code == 1), "{closing}: {} {}", finished.code, finished.stderr);
    }
}
