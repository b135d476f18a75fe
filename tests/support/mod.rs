//! Builders for homes, projects, providers and faults. Every test has its own temporary home; none changes the
//! environment of the test process, so all run in parallel.
#![allow(dead_code)]

pub mod delegating;
pub mod lines;
pub mod local;
pub mod processes;
pub mod provider;
pub mod pty;
pub mod site;
pub mod terminal;
pub mod wait;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The built binary.
pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_zapmyco"))
}

/// A private storage root and a private project folder, removed when dropped.
pub struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("zapmyco-test-").tempdir().unwrap();
        std::fs::create_dir(folder.path().join("root")).unwrap();
        std::fs::create_dir(folder.path().join("project")).unwrap();
        Self { folder }
    }

    /// `ZAPMYCO_HOME` of the commands.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Working directory of the commands.
    pub fn project(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    /// Writes a file below the project folder, its folders included.
    pub fn write(&self, path: &str, content: &str) -> PathBuf {
        let path = self.project().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// `zapmyco` with a clean environment (PATH, HOME, ZAPMYCO_HOME, LANG), the project as working directory, empty stdin.
    pub fn command(&self) -> Command {
        self.command_in(&self.project())
    }

    pub fn command_in(&self, cwd: &Path) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("ZAPMYCO_HOME", self.root())
            .env("LANG", "C.UTF-8")
            .current_dir(cwd)
            .stdin(std::process::Stdio::null());
        command
    }

    /// Runs to the end and gives code, stdout, stderr as text.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        finish(self.command().args(arguments))
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code, or 128 + signal.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn finish(command: &mut Command) -> Finished {
    use std::os::unix::process::ExitStatusExt;
    let output = command.output().unwrap();
    Finished {
        code: output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0)),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
