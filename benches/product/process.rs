//! Processes from outside: time, CPU and memory of one, and who descends from whom.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Usage, UsageWho, getrusage};

/// First argument that makes this program measure one child.
pub const ONE_CHILD: &str = "--one-child";

/// What one finished process has cost, its own children included.
pub struct Cost {
    pub cpu_ms: f64,
    pub resident_mb: f64,
    pub output: String,
}

/// Runs a command through a small process in between: the highest residency that the system tells for children is that
/// of all children so far, and a large parent's would count as theirs.
pub fn cost(command: &Command) -> Cost {
    let mut outer = Command::new("/proc/self/exe");
    outer.arg(ONE_CHILD).arg(command.get_program()).args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        outer.envs(value.map(|value| (name, value)));
    }
    if let Some(cwd) = command.get_current_dir() {
        outer.current_dir(cwd);
    }
    let done = outer.stdin(Stdio::null()).stderr(Stdio::null()).output().unwrap();
    let output = String::from_utf8_lossy(&done.stdout).into_owned();
    let line = output.lines().last().unwrap_or_default().to_owned();
    let mut numbers = line.split(' ').map(|number| number.parse::<f64>().unwrap_or(f64::NAN));
    Cost { cpu_ms: numbers.next().unwrap_or(f64::NAN), resident_mb: numbers.next().unwrap_or(f64::NAN), output }
}

pub fn run_one_child(program: &str, arguments: &[String]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    assert!(status.success(), "{program} failed: {status}");
    println!("\n{} {}", cpu(&usage).as_secs_f64() * 1e3, usage.max_rss() as f64 / 1024.0);
}

/// CPU time of all children of this process that have been waited for, with theirs.
pub fn children_cpu() -> Duration {
    cpu(&getrusage(UsageWho::RUSAGE_CHILDREN).unwrap())
}

fn cpu(usage: &Usage) -> Duration {
    let (user, system) = (usage.user_time(), usage.system_time());
    let micros = (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec();
    Duration::from_micros(micros as u64)
}

/// The living children of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// A process' children, theirs, and so on.
pub fn descendants_of(pid: u32) -> Vec<u32> {
    let children = children_of(pid);
    let further: Vec<u32> = children.iter().flat_map(|child| descendants_of(*child)).collect();
    children.into_iter().chain(further).collect()
}

/// A field of `/proc/PID/FILE` in MB.
pub fn memory(pid: u32, file: &str, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()).map_or(f64::NAN, |kib| kib / 1024.0)
}

pub fn pss(pid: u32) -> f64 {
    memory(pid, "smaps_rollup", "Pss")
}
