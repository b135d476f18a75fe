//! Agents in the process of their parent: what each adds to its memory while it waits, a thousand that end, and what a turn
//! costs beside its request when the history grows.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::agent::until;
use crate::server::{Answer, Block, Server};
use crate::start::zapmyco;
use crate::table::Table;
use crate::{Bench, process};

const MANY: usize = 1_000;

/// A parent that starts `count` agents in one message and then waits for them; children are answered after `after`.
fn parent_of(count: usize, after: Duration) -> Server {
    Server::start(move |body| {
        if body.contains("JUST ONE TOOL") && !body.contains("tool_result") {
            return todo();
        }
        if !body.contains("START THEM") {
            return Answer::text("done", after);
        }
        if !body.contains("launched in the background") {
            let call =
                || Block::Call("Agent".to_owned(), json!({"description": "wait", "prompt": "CHILD TASK", "run_in_background": true}));
            return Answer { after: Duration::ZERO, blocks: (0..count).map(|_| call()).collect() };
        }
        Answer::text("going on", Duration::ZERO)
    })
}

fn todo() -> Answer {
    let input = json!({"todos": [{"content": "go on", "status": "pending", "activeForm": "going on"}]});
    Answer { after: Duration::ZERO, blocks: vec![Block::Call("TodoWrite".to_owned(), input)] }
}

/// Resident memory of a program whose `count` agents all wait for their model, in KiB; without one, of a program that called
/// another tool and waits for the next answer.
fn resident(bench: &Bench, count: usize) -> f64 {
    let server = parent_of(count, Duration::from_secs(3600));
    let home = Bench::home();
    let mut command = zapmyco(bench, home.path(), &server);
    command.args(["run", if count == 0 { "JUST ONE TOOL" } else { "START THEM" }]).env("ZAPMYCO_LIMITS_LOCAL_AGENTS_MAX", "100000");
    let mut program = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let requests = count + 2;
    until("all requests", || server.arrivals().len() == requests);
    // What follows a request is done a moment later.
    std::thread::sleep(Duration::from_millis(300));
    let memory = process::memory(program.id(), "status", "VmRSS") * 1024.0;
    program.kill().unwrap();
    program.wait().unwrap();
    memory
}

pub fn memory(bench: &Bench, table: &mut Table) {
    let rounds = bench.rounds(15);
    let alone: Vec<f64> = (0..rounds).map(|_| resident(bench, 0)).collect();
    let none = crate::table::quantile(alone, 0.5);
    for (count, rounds) in [(1, rounds), (100, bench.rounds(5)), (MANY, 3)] {
        let each = (0..rounds).map(|_| (resident(bench, count) - none) / count as f64).collect();
        table.row(&format!("{count} agents in the process that wait, resident per agent"), 300.0, "KiB", each);
    }
}

pub fn many(bench: &Bench, table: &mut Table) {
    let server = parent_of(MANY, Duration::from_millis(200));
    let mut cpus = Vec::new();
    for _ in 0..bench.rounds(5) {
        let home = Bench::home();
        let mut command = zapmyco(bench, home.path(), &server);
        command.args(["run", "--output-format", "stream-json", "START THEM"]).env("ZAPMYCO_LIMITS_LOCAL_AGENTS_MAX", "100000");
        let before = process::children_cpu();
        let done = command.stdin(Stdio::null()).output().unwrap();
        cpus.push((process::children_cpu() - before).as_secs_f64());
        let said = String::from_utf8_lossy(&done.stdout);
        let mut announced: Vec<&str> = said.lines().filter(|line| line.contains("\"subtype\":\"task_notification\"")).collect();
        assert_eq!(announced.len(), MANY, "{}", String::from_utf8_lossy(&done.stderr));
        announced.sort_unstable();
        announced.dedup();
        assert!(announced.len() == MANY && announced.iter().all(|line| line.contains("\"status\":\"completed\"")));
    }
    table.row("1000 agents in the background of 200 ms each, CPU", 2.0, "s", cpus);
}

/// CPU per turn of a session with `turns` turns, request and answer included.
fn turns(bench: &Bench, turns: usize) -> f64 {
    let count = AtomicUsize::new(0);
    let server = Server::start(move |_| {
        let turn = count.fetch_add(1, Ordering::SeqCst);
        if turn + 1 < turns { todo() } else { Answer::text("done", Duration::ZERO) }
    });
    let home = Bench::home();
    let mut command = zapmyco(bench, home.path(), &server);
    command.args(["run", "go"]);
    let before = process::children_cpu();
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(server.arrivals().len(), turns);
    (process::children_cpu() - before).as_secs_f64() * 1e3 / turns as f64
}

pub fn per_turn(bench: &Bench, table: &mut Table) {
    for (count, goal) in [(20, 3.0), (100, 3.0), (400, 4.0), (2_000, 10.0)] {
        let rounds = if count > 400 { 3 } else { bench.rounds(5) };
        let times = (0..rounds).map(|_| turns(bench, count)).collect();
        table.row(&format!("CPU per turn over {count} turns"), goal, "ms", times);
    }
}
