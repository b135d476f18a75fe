//! How long a catalog of 2,500 profiles takes: read for the first time, and looked at again without a change.
//! `cargo bench --bench profiles`; prints the best and the median of a few rounds.

use std::error::Error;
use std::time::{Duration, Instant};

use zapmyco::config::Layout;
use zapmyco::subagents::profiles::{Catalog, LiveCatalog, Sources};

const FILES: usize = 2_500;
const ROUNDS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    for at in 0..FILES {
        let team = folder.path().join(format!("agents/team-{}", at % 25));
        std::fs::create_dir_all(&team)?;
        // Every twentieth file is one that strict YAML refuses.
        let colon = if at % 20 == 0 { "Triggers: bugs, style" } else { "and triggers" };
        let body = "You look at one thing and report what you saw, with file and line.\n".repeat(60);
        let text = format!(
            "---\nname: agent-{at}\ndescription: Looks at part {at}. {colon}\ntools: Read, Grep, Glob, Bash\nmodel: sonnet\n---\n\n{body}"
        );
        std::fs::write(team.join(format!("agent-{at}.md")), text)?;
    }
    let sources = Sources {
        layout: Layout::new(folder.path().to_owned()),
        home: None,
        cwd: folder.path().join("none"),
        plugins: Vec::new(),
        command_line: Vec::new(),
        trust: zapmyco::permissions::trust::Trust::none(std::path::Path::new("/")),
    };
    report("first load", || Catalog::load(&sources).definitions().count());
    let live = LiveCatalog::new(sources);
    live.current();
    report("look again, nothing changed", || live.current().definitions().count());
    Ok(())
}

fn report(what: &str, work: impl Fn() -> usize) {
    let mut times: Vec<Duration> = Vec::with_capacity(ROUNDS);
    let mut count = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        count = work();
        times.push(start.elapsed());
    }
    times.sort();
    println!("{what}: {count} profiles, best {:?}, median {:?}", times[0], times[ROUNDS / 2]);
}
