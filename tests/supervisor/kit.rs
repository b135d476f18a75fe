//! Orders for shell scripts, and looks at what they left.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zapmyco::config::layout::{JobFolder, Stream};
use zapmyco::supervisor::capture::{Ends, read_ends};
use zapmyco::supervisor::handle::{Kept, Look};
use zapmyco::supervisor::launch::{LaunchError, Launcher, Order};
use zapmyco::supervisor::plan::{LaunchPlan, OnOwnerDeath, OutputCaps, PLAN_VERSION, Program};
use zapmyco::supervisor::record::{EndRecord, Status, StreamCount};

use crate::support::{binary, processes, wait};

/// A private folder with jobs; whatever they left alive is a failure when it is dropped.
pub struct Yard {
    folder: tempfile::TempDir,
    pub launcher: Launcher,
}

impl Yard {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("zapmyco-yard-").tempdir().unwrap();
        Self { folder, launcher: launcher() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn folder(&self, id: &str) -> JobFolder {
        JobFolder::new(self.path().join("jobs").join(id))
    }

    pub fn order(&self, id: &str, script: &str) -> Order {
        order(self.path(), id, script)
    }

    pub fn launch(&self, id: &str, script: &str) -> Kept {
        self.launch_order(self.order(id, script))
    }

    pub fn launch_order(&self, order: Order) -> Kept {
        self.try_launch(order).unwrap()
    }

    pub fn try_launch(&self, order: Order) -> Result<Kept, LaunchError> {
        self.launcher.launch(order)
    }

    /// Runs a script to its end.
    pub fn run(&self, id: &str, script: &str) -> EndRecord {
        end_of(&self.launch(id, script))
    }

    /// Living processes of the jobs of this yard, keepers included.
    pub fn living(&self) -> Vec<processes::Process> {
        living(self.path())
    }

    pub fn assert_empty(&self) {
        assert_eq!(self.living().iter().map(|process| format!("{process:?}")).collect::<Vec<_>>(), Vec::<String>::new());
    }
}

pub fn launcher() -> Launcher {
    Launcher::new(Program::At(binary()))
}

/// Processes of payloads below this yard.
pub fn living(yard: &Path) -> Vec<processes::Process> {
    processes::with_environment("YARD", yard).into_iter().filter(|process| process.state != 'Z').collect()
}

pub fn order(yard: &Path, id: &str, script: &str) -> Order {
    Order {
        plan: plan(yard, script),
        folder: JobFolder::new(yard.join("jobs").join(id)),
        owner: serde_json::json!({ "test": id }),
        id: id.to_owned(),
        task_file: None,
        stdin: None,
        handover: Vec::new(),
        ack_max: Duration::from_secs(30),
        retries: 3,
    }
}

pub fn plan(yard: &Path, script: &str) -> LaunchPlan {
    let path = std::env::var_os("PATH").unwrap_or_default();
    LaunchPlan {
        version: PLAN_VERSION,
        program: Program::At("bash".into()),
        argv: ["bash", "-c", script].map(OsString::from).to_vec(),
        environment: vec![("PATH".into(), path), ("YARD".into(), yard.into())],
        cwd: yard.to_owned(),
        output: OutputCaps { kept_max: 64 << 20, tail_max: 1 << 20 },
        time_limit: None,
        grace: Duration::from_secs(5),
        drain: Duration::from_millis(500),
        on_owner_death: OnOwnerDeath::Stop,
        temporary_below: None,
        confinement: None,
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub fn end_of(kept: &Kept) -> EndRecord {
    runtime().block_on(async { tokio::time::timeout(wait::PATIENCE, kept.ended()).await }).expect("an end").unwrap()
}

pub fn status_of(kept: &Kept) -> Status {
    match kept.look().unwrap() {
        Look::Running(status) => status,
        Look::Ended(end) => panic!("ended: {end:?}"),
    }
}

pub fn stdout_of(kept: &Kept) -> String {
    String::from_utf8_lossy(&std::fs::read(kept.folder().output(Stream::Stdout)).unwrap()).into_owned()
}

/// Waits until the payload has written this to stdout.
pub fn wait_for_stdout(kept: &Kept, text: &str) {
    wait::until_true(text, || stdout_of(kept).contains(text));
}

pub fn ends_of(kept: &Kept, count: StreamCount, each: u64) -> Ends {
    read_ends(kept.folder(), Stream::Stdout, count, each).unwrap()
}

/// Waits for a file that a payload makes, and reads the numbers in it.
pub fn pids_in(path: &PathBuf, count: usize) -> Vec<u32> {
    wait::until("process numbers", || {
        let pids: Vec<u32> = std::fs::read_to_string(path).ok()?.lines().filter_map(|line| line.parse().ok()).collect();
        (pids.len() >= count).then_some(pids)
    })
}
