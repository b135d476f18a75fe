//! The speed and memory goals of zapmyco, measured on the built program. `scripts/bench` runs it.
//!
//! Nothing here fails on a slow machine: the table says `ok` or `over`, and people judge. `--quick` takes fewer rounds;
//! any other argument is a filter on the measures' names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Rules of the product, which a benchmark is no part of.
#![allow(clippy::disallowed_methods)]

mod agent;
mod children;
mod in_process;
mod jobs;
mod process;
mod server;
mod start;
mod table;

use std::path::PathBuf;

use table::Table;

/// What all measures share.
pub struct Bench {
    pub binary: PathBuf,
    pub quick: bool,
}

impl Bench {
    /// Rounds of a measure: `full`, or a fifth of it.
    pub fn rounds(&self, full: usize) -> usize {
        if self.quick { (full / 5).max(3) } else { full }
    }

    /// A private storage root and working directory, removed when dropped.
    pub fn home() -> tempfile::TempDir {
        let home = tempfile::Builder::new().prefix("zapmyco-bench-").tempdir().unwrap();
        std::fs::create_dir(home.path().join("root")).unwrap();
        std::fs::create_dir(home.path().join("project")).unwrap();
        home
    }
}

type Measure = fn(&Bench, &mut Table);

const MEASURES: &[(&str, Measure)] = &[
    ("version", start::version),
    ("turn", start::turn),
    ("keeper", children::memory),
    ("spawn", jobs::spawn),
    ("end", jobs::end_seen),
    ("64-children", children::at_once),
    ("in-process-memory", in_process::memory),
    ("1000-agents", in_process::many),
    ("per-turn", in_process::per_turn),
    ("list", jobs::list),
    ("output", jobs::output),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, program, rest @ ..] = arguments.as_slice()
        && first == process::ONE_CHILD
    {
        return process::run_one_child(program, rest);
    }
    let binary = std::env::var_os("ZAPMYCO_BENCH_BINARY").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_zapmyco")), PathBuf::from);
    let bench = Bench { binary, quick: arguments.iter().any(|argument| argument == "--quick") };
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let mut table = Table::start();
    for (name, measure) in MEASURES {
        if filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())) {
            measure(&bench, &mut table);
        }
    }
    table.finish();
}
