//! How long the decision about one shell line takes. `cargo bench --bench permissions`; the goal is a median below 50 µs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use zapmyco::permissions::{CalledTool, Effect, Mode, Policy, Rule, RuleError, RuleSet};

const ROUNDS: usize = 20_000;

/// Lines as agents write them, from the shortest to a whole file in a here-document.
const LINES: &[&str] = &[
    "ls -la src",
    "git status --porcelain && git diff --stat",
    "cargo test --workspace 2>&1 | tail -20",
    "cd sub && npm ci && npm run build -- --mode production",
    "for f in src/*.rs; do wc -l \"$f\"; done | sort -n",
    "git commit -m \"$(cat <<'EOF'\nparser: read numbers\n\nThey were text before.\nEOF\n)\"",
    "find . -name '*.tmp' -print0 | xargs -0 rm -f",
    "bash -c 'set -e; make; make install' > build.log 2>&1",
    "if [ -f a ]; then echo \"$(date): $USER\" >> log; else timeout 5 curl -s http://localhost/; fi",
    "python3 - <<'EOF'\nimport json\nprint(json.dumps({'a': 1}))\nEOF",
];

fn main() -> Result<(), RuleError> {
    let rules = |texts: &[&str]| texts.iter().map(|text| Rule::parse(text)).collect::<Result<Vec<Rule>, RuleError>>();
    let set = RuleSet {
        allow: rules(&["Bash(cargo:*)", "Bash(npm:*)", "Bash(git commit:*)", "Bash(make:*)", "Bash(find:*)", "Edit(src/**)"])?,
        ask: rules(&["Bash(git push:*)", "Bash(npm publish:*)"])?,
        deny: rules(&["Bash(sudo:*)", "Bash(rm -rf /:*)", "Bash(curl *evil*)", "Bash(dd:*)"])?,
    };
    let policy = Policy::new(Mode::Default, set, PathBuf::from("/nowhere"));
    let tool = CalledTool { name: "Bash", aliases: &[], never_asked: false };
    let mut all = Vec::with_capacity(ROUNDS);
    for line in LINES {
        let effect = Effect::Runs { command: (*line).to_owned() };
        let mut times: Vec<Duration> = (0..ROUNDS / LINES.len())
            .map(|_| {
                let start = Instant::now();
                std::hint::black_box(policy.decide(&tool, std::hint::black_box(&effect)));
                start.elapsed()
            })
            .collect();
        times.sort();
        println!("{:>8.1?} median, {:>8.1?} at 99 %  {}", times[times.len() / 2], times[times.len() * 99 / 100], shown(line));
        all.extend(times);
    }
    all.sort();
    println!("{:>8.1?} median, {:>8.1?} at 99 %  all lines", all[all.len() / 2], all[all.len() * 99 / 100]);
    Ok(())
}

fn shown(line: &str) -> String {
    line.replace('\n', "\\n").chars().take(60).collect()
}
