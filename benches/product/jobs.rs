//! Inside a running session: starting, seeing an end, listing, and much output.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_util::sync::CancellationToken;
use zapmyco::clock;
use zapmyco::config::layout::JobFolder;
use zapmyco::ids::{JobId, JobKind, SessionId};
use zapmyco::store::JobRow;
use zapmyco::subagents::Requester;
use zapmyco::supervisor::confine::kernel;
use zapmyco::supervisor::launch::Order;
use zapmyco::supervisor::plan::{Confinement, LaunchPlan, OnOwnerDeath, OutputCaps, PLAN_VERSION, Program, RefusedCalls};

use crate::agent::{launcher, parent, runtime, until};
use crate::server::{Answer, Server};
use crate::start::milliseconds;
use crate::table::{Table, quantile};
use crate::{Bench, process};

pub fn spawn(bench: &Bench, table: &mut Table) {
    let home = Bench::home();
    let launcher = launcher(bench);
    let runtime = runtime();
    let times = (0..bench.rounds(100)).map(|round| {
        let order = order(home.path(), &format!("spawn{round}"), "exec sleep 100");
        let since = Instant::now();
        let kept = launcher.launch(order).unwrap();
        let time = milliseconds(since.elapsed());
        runtime.block_on(kept.stop(Requester::Person)).unwrap();
        time
    });
    table.row("spawn acknowledged, supervisor alone", 10.0, "ms", times.collect());
    confined_spawn(bench, table);

    let server = Server::start(|_| Answer::text("never", Duration::from_secs(3600)));
    let times = runtime.block_on(async {
        let parent = parent(bench, home.path(), None, server.environment());
        let mut times = Vec::new();
        for _ in 0..bench.rounds(50) {
            let since = Instant::now();
            parent.spawn("wait").await;
            times.push(milliseconds(since.elapsed()));
            parent.delegation.stop_all(Requester::Person).await;
        }
        times
    });
    table.row("spawn of a subagent acknowledged", 10.0, "ms", times);
}

/// What a shell that only reads costs more than any other: pairs of starts, one after the other.
fn confined_spawn(bench: &Bench, table: &mut Table) {
    if !kernel().confines() {
        return;
    }
    let home = Bench::home();
    let (launcher, runtime) = (launcher(bench), runtime());
    let start = |id: String, confinement: Option<Confinement>| {
        let mut order = order(home.path(), &id, "exec sleep 100");
        order.plan.temporary_below = confinement.is_some().then(|| home.path().to_owned());
        order.plan.confinement = confinement;
        let since = Instant::now();
        let kept = launcher.launch(order).unwrap();
        let time = milliseconds(since.elapsed());
        runtime.block_on(kept.stop(Requester::Person)).unwrap();
        time
    };
    let times = (0..bench.rounds(100)).map(|round| {
        let reading = Confinement { writable: Vec::new(), calls: RefusedCalls::Everything, network: false, mounts: None };
        let free = start(format!("free{round}"), None);
        start(format!("held{round}"), Some(reading)) - free
    });
    table.row("the same confined to reading, more than free", 1.0, "ms", times.collect());
}

pub fn end_seen(bench: &Bench, table: &mut Table) {
    let home = Bench::home();
    // `sh run --subagent -- TASK` reads this file.
    std::fs::write(home.path().join("project/run"), "exec sleep 1000\n").unwrap();
    let times = runtime().block_on(async {
        let parent = parent(bench, home.path(), Some("/bin/sh".into()), Vec::new());
        let mut times = Vec::new();
        for _ in 0..bench.rounds(100) {
            let id = parent.spawn("wait").await.id.to_string();
            let payload = payload();
            let killer = std::thread::spawn(move || {
                // The poll stands by then.
                std::thread::sleep(Duration::from_millis(30));
                let at = Instant::now();
                kill(payload, Signal::SIGKILL).unwrap();
                at
            });
            parent.delegation.poll(&[id], Duration::from_secs(20), &CancellationToken::new()).await;
            let seen = Instant::now();
            times.push(milliseconds(seen - killer.join().unwrap()));
            parent.delegation.settled().await;
            until("the keeper's end", || process::children_of(std::process::id()).is_empty());
        }
        times
    });
    table.row("end of a child seen by a waiting poll", 5.0, "ms", times);
}

/// The one payload that runs, once it is what it is to be.
fn payload() -> Pid {
    let find = || {
        let keeper = *process::children_of(std::process::id()).first()?;
        let payload = *process::children_of(keeper).first()?;
        let name = std::fs::read_to_string(format!("/proc/{payload}/comm")).ok()?;
        (name.trim() == "sleep").then_some(payload)
    };
    until("the payload", || find().is_some());
    Pid::from_raw(find().unwrap() as i32)
}

pub fn list(bench: &Bench, table: &mut Table) {
    let (sessions, each) = (if bench.quick { 100 } else { 1000 }, 100);
    let home = Bench::home();
    std::fs::write(home.path().join("project/run"), "exit 0\n").unwrap();
    let times = runtime().block_on(async {
        let parent = parent(bench, home.path(), Some("/bin/sh".into()), Vec::new());
        for _ in 0..sessions {
            let session = SessionId::new_main();
            let rows: Vec<JobRow> = (0..each).map(|_| old_job(&parent.layout, &session)).collect();
            for row in &rows {
                std::fs::create_dir_all(&row.folder).unwrap();
                std::fs::write(JobFolder::new(row.folder.clone()).end(), "{}").unwrap();
            }
            parent.store.replace_jobs_of(&session, rows).await.unwrap();
        }
        for _ in 0..10 {
            let id = parent.spawn("end").await.id.to_string();
            parent.delegation.poll(&[id], Duration::from_secs(20), &CancellationToken::new()).await;
        }
        let mut times = Vec::new();
        for _ in 0..bench.rounds(200) {
            let since = Instant::now();
            let jobs = parent.delegation.list().await.unwrap();
            times.push(milliseconds(since.elapsed()));
            assert_eq!(jobs.len(), 10);
        }
        times
    });
    table.row(&format!("list in a session, beside {} old jobs of others", sessions * each), 2.0, "ms", times);
}

fn old_job(layout: &zapmyco::config::Layout, session: &SessionId) -> JobRow {
    let (id, now) = (JobId::new_process_agent(clock::now()), clock::now());
    let folder = layout.session_jobs(JobKind::ProcessAgent, session).join(id.as_str());
    JobRow {
        session: session.clone(),
        id,
        kind: "process_agent".into(),
        title: "old".into(),
        status: "done".into(),
        created_at: now,
        started_at: Some(now),
        ended_at: Some(now),
        end: None,
        notified: true,
        folder,
    }
}

pub fn output(bench: &Bench, table: &mut Table) {
    let bytes: u64 = if bench.quick { 1 << 28 } else { 1 << 30 };
    let producer = format!("head -c {bytes} /dev/zero");
    let home = Bench::home();
    let launcher = launcher(bench);
    let runtime = runtime();
    let (mut through, mut bare, mut growth) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.rounds(10) {
        let since = Instant::now();
        let piped = Command::new("sh").args(["-c", &format!("{producer} | cat > /dev/null")]).stdin(Stdio::null()).status().unwrap();
        assert!(piped.success());
        bare.push(since.elapsed().as_secs_f64());

        let since = Instant::now();
        let kept = launcher.launch(order(home.path(), &format!("output{round}"), &format!("exec {producer}"))).unwrap();
        let keeper = process::children_of(std::process::id())[0];
        let resident = || process::memory(keeper, "status", "VmRSS");
        let (first, mut high) = (resident(), 0_f64);
        let end = runtime.block_on(async {
            let ended = kept.ended();
            tokio::pin!(ended);
            loop {
                tokio::select! {
                    end = &mut ended => return end.unwrap(),
                    () = tokio::time::sleep(Duration::from_millis(20)) => high = high.max(resident()),
                }
            }
        });
        through.push(since.elapsed().as_secs_f64());
        growth.push((high - first).max(0.0));
        assert_eq!(end.stdout.bytes, bytes);
        std::fs::remove_dir_all(kept.folder().path()).unwrap();
    }
    let ratio = quantile(through, 0.5) / quantile(bare, 0.5);
    table.row(&format!("{} MB of output, time against a bare pipe", bytes >> 20), 1.2, "times", vec![ratio]);
    table.row("the same, growth of the keeper's memory", 4.0, "MB", growth);
}

fn order(home: &Path, id: &str, script: &str) -> Order {
    let environment = crate::start::environment(home).into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    Order {
        plan: LaunchPlan {
            version: PLAN_VERSION,
            program: Program::At("/bin/sh".into()),
            argv: ["sh", "-c", script].map(OsString::from).to_vec(),
            environment,
            cwd: home.join("project"),
            output: OutputCaps { kept_max: 64 << 20, tail_max: 1 << 20 },
            time_limit: None,
            grace: Duration::from_secs(1),
            drain: Duration::from_millis(500),
            on_owner_death: OnOwnerDeath::Stop,
            temporary_below: None,
            confinement: None,
        },
        folder: JobFolder::new(home.join("jobs").join(id)),
        owner: serde_json::Value::Null,
        id: id.to_owned(),
        task_file: None,
        stdin: None,
        handover: Vec::new(),
        ack_max: Duration::from_secs(30),
        retries: 3,
    }
}
