//! Process children of the built program: their memory while they wait for the model, and many at once.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use zapmyco::subagents::Requester;

use crate::agent::{parent, runtime, until};
use crate::server::{Answer, Block, Server};
use crate::start::zapmyco;
use crate::table::Table;
use crate::{Bench, process};

const MANY: usize = 64;

pub fn memory(bench: &Bench, table: &mut Table) {
    let alone = (0..bench.rounds(10)).map(|_| waiting_memory(bench, 1)).collect();
    table.row("keeper and payload that waits for its model, PSS", 8.0, "MB", alone);
    let together = (0..bench.rounds(5)).map(|_| waiting_memory(bench, MANY)).collect();
    table.row("64 keepers and payloads that wait, PSS", 120.0, "MB", together);
}

/// PSS of all processes below this one while `count` children wait for an answer.
fn waiting_memory(bench: &Bench, count: usize) -> f64 {
    let server = Server::start(|_| Answer::text("never", Duration::from_secs(3600)));
    let home = Bench::home();
    runtime().block_on(async {
        let parent = parent(bench, home.path(), None, server.environment());
        for _ in 0..count {
            parent.spawn("wait").await;
        }
        until("all requests", || server.arrivals().len() == count);
        // They wait for long: what is meant is not the memory of the first moment.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let processes = process::descendants_of(std::process::id());
        assert_eq!(processes.len(), 2 * count);
        let memory = processes.into_iter().map(process::pss).sum();
        parent.delegation.stop_all(Requester::Person).await;
        memory
    })
}

/// A whole run of the program that starts 64 children in one step and polls them; each makes one request of 200 ms.
pub fn at_once(bench: &Bench, table: &mut Table) {
    let server = Server::start(|body| {
        let mut ids: Vec<String> =
            body.match_indices("sa_").filter_map(|(at, _)| body.get(at..at + 20)).filter(|id| is_id(id)).map(str::to_owned).collect();
        ids.sort();
        ids.dedup();
        let call = |input| Block::Call("subagent".to_owned(), input);
        if body.contains("CHILD TASK") && !body.contains("START THEM") {
            return Answer::text("done", Duration::from_millis(200));
        }
        if body.contains("\"poll\\\"") || body.contains("{\"action\":\"poll\"") {
            return Answer::text("all ended", Duration::ZERO);
        }
        let blocks = if ids.is_empty() {
            (0..MANY).map(|_| call(json!({"action": "spawn", "task": "CHILD TASK"}))).collect()
        } else {
            assert_eq!(ids.len(), MANY);
            vec![call(json!({"action": "poll", "subagent_ids": ids, "wait_secs": 20}))]
        };
        Answer { after: Duration::ZERO, blocks }
    });
    let home = Bench::home();
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds(10) {
        let mut command = zapmyco(bench, home.path(), &server);
        command.args(["run", "--permission-mode", "yolo", "START THEM"]);
        let (requests, cpu, since) = (server.arrivals().len(), process::children_cpu(), Instant::now());
        let done = command.stdin(Stdio::null()).output().unwrap();
        walls.push(since.elapsed().as_secs_f64());
        cpus.push((process::children_cpu() - cpu).as_secs_f64());
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.contains("all ended"), "{said}{}", String::from_utf8_lossy(&done.stderr));
        assert!(server.arrivals().len() >= requests + MANY + 3);
    }
    table.row("64 children at once, wall", 1.2, "s", walls);
    table.row("64 children at once, CPU of all processes", 1.5, "s", cpus);
}

/// `sa_YYYYMMDD_xxxxxxxx`
fn is_id(text: &str) -> bool {
    text.bytes().skip(3).enumerate().all(|(at, byte)| if at == 8 { byte == b'_' } else { byte.is_ascii_alphanumeric() })
}
