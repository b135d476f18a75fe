//! Start-up: the version, and one turn against a server on loopback.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::{Answer, Server};
use crate::table::Table;
use crate::{Bench, process};

pub fn version(bench: &Bench, table: &mut Table) {
    let mut command = Command::new(&bench.binary);
    command.arg("--version").env_clear();
    let times = (0..bench.rounds(100)).map(|_| {
        let since = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
        assert!(status.success());
        milliseconds(since.elapsed())
    });
    table.row("`--version`, wall", 3.0, "ms", times.collect());
    let resident = (0..bench.rounds(20)).map(|_| process::cost(&command).resident_mb);
    table.row("`--version`, resident", 6.0, "MB", resident.collect());
}

pub fn turn(bench: &Bench, table: &mut Table) {
    let server = Server::start(|_| Answer::text("done", Duration::ZERO));
    let home = Bench::home();
    let mut command = zapmyco(bench, home.path(), &server);
    command.args(["run", "say done"]);
    // The first run makes the database.
    process::cost(&command);
    let costs: Vec<process::Cost> = (0..bench.rounds(50)).map(|_| process::cost(&command)).collect();
    assert!(costs.iter().all(|cost| cost.output.starts_with("done")), "no answer: {}", costs[0].output);
    table.row("one turn, CPU", 10.0, "ms", costs.iter().map(|cost| cost.cpu_ms).collect());
    table.row("one turn, resident", 12.0, "MB", costs.iter().map(|cost| cost.resident_mb).collect());
    let to_request = (0..bench.rounds(50)).map(|_| {
        let before = server.arrivals().len();
        let since = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(status.success());
        milliseconds(server.arrivals()[before].duration_since(since))
    });
    table.row("one turn, exec to first request", 12.0, "ms", to_request.collect());
}

/// The program with a clean environment, pointed at this server.
pub fn zapmyco(bench: &Bench, home: &Path, server: &Server) -> Command {
    let mut command = Command::new(&bench.binary);
    command.env_clear().envs(environment(home)).current_dir(home.join("project"));
    server.configure(&mut command);
    command
}

pub fn environment(home: &Path) -> Vec<(String, String)> {
    vec![
        ("PATH".into(), std::env::var("PATH").unwrap_or_default()),
        ("HOME".into(), home.display().to_string()),
        ("ZAPMYCO_HOME".into(), home.join("root").display().to_string()),
        ("LANG".into(), "C.UTF-8".into()),
    ]
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
