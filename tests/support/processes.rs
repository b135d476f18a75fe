//! Looking at processes from outside, through `/proc`.

use std::path::Path;

/// A living process (zombies are told apart by `state`).
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub state: char,
    pub command: String,
}

/// Every process whose initial environment has the variable with exactly this value.
pub fn with_environment(name: &str, value: &Path) -> Vec<Process> {
    let wanted = format!("{name}={}", value.display());
    all()
        .into_iter()
        .filter(|process| {
            std::fs::read(format!("/proc/{}/environ", process.pid))
                .is_ok_and(|environ| environ.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes()))
        })
        .collect()
}

/// Every process started, directly or not, with this storage root: what a test may have left behind.
pub fn of_home(root: &Path) -> Vec<Process> {
    with_environment("ZAPMYCO_HOME", root)
}

pub fn all() -> Vec<Process> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            processes.extend(read(pid));
        }
    }
    processes
}

/// `None` when there is no such process any more.
pub fn read(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let command = head.split_once('(')?.1.to_owned();
    Some(Process { pid, parent, state, command })
}

pub fn is_alive(pid: u32) -> bool {
    read(pid).is_some_and(|process| process.state != 'Z')
}
