//! Which programs start others, and where in their words the others stand.

use super::super::Carries;

/// A program that starts the command in its words.
pub(super) struct Wrapper {
    pub names: &'static [&'static str],
    /// Short options whose value is the next word when it is not glued.
    pub short_with_value: &'static str,
    pub long_with_value: &'static [&'static str],
    /// Words before the command.
    pub operands: usize,
    pub carries: Carries,
}

const fn wrapper(
    names: &'static [&'static str],
    short_with_value: &'static str,
    long_with_value: &'static [&'static str],
    operands: usize,
    carries: Carries,
) -> Wrapper {
    Wrapper { names, short_with_value, long_with_value, operands, carries }
}

const SUDO_LONG: &[&str] =
    &["user", "group", "prompt", "close-from", "role", "type", "host", "chdir", "chroot", "command-timeout", "other-user"];

pub(super) const WRAPPERS: &[Wrapper] = &[
    wrapper(&["command", "builtin", "nohup", "setsid"], "", &[], 0, Carries::Wraps),
    wrapper(&["exec"], "a", &[], 0, Carries::Wraps),
    wrapper(&["nice"], "n", &["adjustment"], 0, Carries::Wraps),
    wrapper(&["ionice"], "cnpPu", &["class", "classdata", "pid", "pgid", "uid"], 0, Carries::Wraps),
    wrapper(&["timeout"], "ks", &["kill-after", "signal"], 1, Carries::Wraps),
    wrapper(&["stdbuf"], "ioe", &["input", "output", "error"], 0, Carries::Wraps),
    wrapper(&["time"], "fo", &["format", "output"], 0, Carries::Runs),
    wrapper(&["busybox", "toybox", "catchsegv", "chronic", "ifne", "jobs"], "", &[], 0, Carries::Runs),
    wrapper(&["chrt"], "TPD", &["sched-runtime", "sched-period", "sched-deadline"], 1, Carries::Runs),
    wrapper(&["taskset", "chroot"], "", &[], 1, Carries::Runs),
    wrapper(&["sudo", "doas", "pkexec"], "ugpCrthDRTU", SUDO_LONG, 0, Carries::Runs),
];

/// Programs that start others, in ways too many to follow: any later word may be the program.
pub(super) const LAUNCHERS: &[&str] = &[
    "bunx",
    "bwrap",
    "caffeinate",
    "coproc",
    "cpulimit",
    "daemonize",
    "dbus-run-session",
    "direnv",
    "dotenv",
    "entr",
    "fakeroot",
    "fd",
    "fdfind",
    "firejail",
    "flock",
    "gdb",
    "inotifywait",
    "ld.so",
    "lldb",
    "ltrace",
    "nsenter",
    "numactl",
    "npx",
    "parallel",
    "perf",
    "pipx",
    "prlimit",
    "proot",
    "proxychains",
    "proxychains4",
    "rlwrap",
    "runuser",
    "screen",
    "setarch",
    "setpriv",
    "start-stop-daemon",
    "strace",
    "systemd-run",
    "tmux",
    "torsocks",
    "unbuffer",
    "unshare",
    "uvx",
    "valgrind",
    "watchexec",
    "xvfb-run",
];

/// The same after one of their subcommands.
pub(super) const LAUNCHING: &[(&str, &[&str])] = &[
    ("bundle", &["exec"]),
    ("bun", &["x"]),
    ("conda", &["run"]),
    ("docker", &["exec", "run"]),
    ("git", &["bisect"]),
    ("kubectl", &["exec"]),
    ("mamba", &["run"]),
    ("mise", &["exec", "x"]),
    ("nix", &["run", "shell", "develop"]),
    ("npm", &["exec", "x"]),
    ("pdm", &["run"]),
    ("pipenv", &["run"]),
    ("pnpm", &["exec", "dlx"]),
    ("podman", &["exec", "run"]),
    ("poetry", &["run"]),
    ("rustup", &["run"]),
    ("rye", &["run"]),
    ("uv", &["run"]),
    ("yarn", &["exec", "dlx"]),
];

pub(super) const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish"];

/// Programs that take code of their own language, and the options that it stands behind.
pub(super) const INTERPRETERS: &[(&str, &[&str])] = &[
    ("bun", &["-e"]),
    ("deno", &["eval"]),
    ("ed", &[]),
    ("emacs", &["--eval"]),
    ("ex", &["-c", "+"]),
    ("expect", &["-c"]),
    ("lua", &["-e"]),
    ("node", &["-e", "-p", "--eval", "--print"]),
    ("nvim", &["-c", "+"]),
    ("osascript", &["-e"]),
    ("perl", &["-e", "-E", "-n", "-p", "-l", "-i"]),
    ("php", &["-r"]),
    ("pypy", &["-c"]),
    ("python", &["-c"]),
    ("R", &["-e"]),
    ("Rscript", &["-e"]),
    ("ruby", &["-e", "-n", "-p"]),
    ("socat", &["EXEC", "SYSTEM", "exec", "system"]),
    ("tclsh", &[]),
    ("vi", &["-c", "+"]),
    ("vim", &["-c", "+"]),
];

/// Options whose value is shell code, or a program: short letters and long names.
pub(super) const CODE_OPTIONS: &[(&str, &str, &[&str])] = &[
    ("bind", "x", &[]),
    ("compgen", "CF", &[]),
    ("complete", "CF", &[]),
    ("flock", "c", &["command"]),
    ("man", "PH", &["pager", "html"]),
    ("mapfile", "C", &[]),
    ("nc", "ec", &["exec", "sh-exec"]),
    ("ncat", "ec", &["exec", "sh-exec"]),
    ("nix-shell", "", &["run", "command"]),
    ("readarray", "C", &[]),
    ("rg", "", &["pre", "hostname-bin"]),
    ("rsync", "e", &["rsh", "rsync-path"]),
    ("runuser", "c", &["command", "session-command"]),
    ("scp", "S", &[]),
    ("script", "c", &["command"]),
    ("sftp", "S", &[]),
    ("sg", "c", &[]),
    ("sort", "", &["compress-program"]),
    ("split", "", &["filter"]),
    ("su", "c", &["command", "session-command"]),
    ("tar", "IF", &["to-command", "use-compress-program", "info-script", "new-volume-script", "rmt-command", "rsh-command"]),
    ("tcpdump", "z", &[]),
    ("zip", "", &["unzip-command"]),
];

/// Options before the subcommand that take the next word as their value.
pub(super) const GLOBAL_OPTIONS: &[(&str, &str, &[&str])] = &[
    ("cargo", "CZ", &["color", "config", "manifest-path"]),
    ("docker", "cHl", &["config", "context", "host", "log-level"]),
    ("gh", "R", &["repo"]),
    ("git", "Cc", &["exec-path", "git-dir", "work-tree", "namespace", "super-prefix", "config-env", "attr-source"]),
    ("kubectl", "ns", &["namespace", "context", "cluster", "kubeconfig", "user", "server", "token", "as"]),
    ("make", "CfIjlo", &["directory", "file", "makefile", "include-dir", "jobs"]),
    ("npm", "", &["prefix", "workspace", "userconfig", "loglevel"]),
    ("pnpm", "CF", &["dir", "filter"]),
    ("systemctl", "HMtpno", &["host", "machine", "type", "property"]),
    ("uv", "", &["directory", "project", "config-file"]),
    ("yarn", "", &["cwd"]),
];

/// Options of git, with or without its subcommand, whose value is code.
pub(super) const GIT_CODE_OPTIONS: &[&str] = &[
    "--exec",
    "-x",
    "--extcmd",
    "--upload-pack",
    "--receive-pack",
    "--env-filter",
    "--tree-filter",
    "--index-filter",
    "--parent-filter",
    "--msg-filter",
    "--commit-filter",
    "--tag-name-filter",
    "--open-files-in-pager",
];

/// Keys of git's configuration whose value is code: whole keys, and last names below `filter.`, `diff.` and the like.
pub(super) const GIT_CODE_KEYS: &[&str] = &[
    "core.alternaterefscommand",
    "core.askpass",
    "core.editor",
    "core.fsmonitor",
    "core.gitproxy",
    "core.pager",
    "core.sshcommand",
    "credential.helper",
    "diff.external",
    "gc.recentobjectshook",
    "gpg.program",
    "gpg.ssh.defaultkeycommand",
    "interactive.difffilter",
    "sendemail.smtpserver",
    "sequence.editor",
    "uploadpack.packobjectshook",
    "web.browser",
];
pub(super) const GIT_CODE_ENDINGS: &[&str] =
    &[".clean", ".cmd", ".command", ".driver", ".helper", ".process", ".program", ".smudge", ".textconv", ".uploadpack", ".receivepack"];

/// Variables whose value programs run as code.
pub(super) const CODE_VARIABLES: &[&str] = &[
    "BROWSER",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "DIFFPROG",
    "EDITOR",
    "GIT_ASKPASS",
    "GIT_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "LESSCLOSE",
    "LESSOPEN",
    "MANPAGER",
    "PAGER",
    "PROMPT_COMMAND",
    "RUSTC_WRAPPER",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "SYSTEMD_PAGER",
    "TAR_OPTIONS",
    "VISUAL",
];
