//! `zapmyco demo` on generated folders: every number of the report against an independent count.

use std::collections::BTreeMap;
use std::path::Path;

use zapmyco::models::scripted::Script;

use crate::support::{Finished, Home, finish, processes, wait};

#[test]
fn the_script_in_examples_is_well_formed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo.yaml");
    if let Err(error) = Script::load(&path) {
        panic!("{error}");
    }
}

/// What the report says of one part, or what the test counts in it.
#[derive(Debug, Default, PartialEq, Clone, Copy)]
struct Counts {
    files: usize,
    texts: usize,
    lines: usize,
    bytes: usize,
    functions: usize,
    todos: usize,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.files += other.files;
        self.texts += other.texts;
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.functions += other.functions;
        self.todos += other.todos;
    }

    /// Counts a file or everything below a folder, with the generated folder's own ignore rules.
    fn count(path: &Path) -> Counts {
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut counts = Counts::default();
        if name.starts_with('.') || name == "ignored" || name.ends_with(".log") {
            return counts;
        }
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                counts.add(Counts::count(&entry.unwrap().path()));
            }
            return counts;
        }
        counts.files = 1;
        let content = std::fs::read(path).unwrap();
        if content.is_empty() || content.contains(&0) {
            return counts;
        }
        let text = String::from_utf8(content).unwrap();
        counts.texts = 1;
        counts.bytes = text.len();
        counts.lines = text.lines().count();
        counts.functions = text.lines().filter(|line| is_function(line)).count();
        counts.todos =
            text.lines().filter(|line| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == "TODO" || word == "FIXME")).count();
        counts
    }
}

fn is_function(line: &str) -> bool {
    let line = line.trim_start();
    ["fn ", "pub fn ", "pub(crate) async fn ", "def ", "async def ", "func ", "function ", "export function "]
        .iter()
        .any(|start| line.starts_with(start))
}

/// The rows of the report's table by title.
fn table(report: &str) -> BTreeMap<String, Counts> {
    let mut rows = BTreeMap::new();
    for line in report.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let numbers: Vec<usize> = cells[1..].iter().filter_map(|cell| cell.parse().ok()).collect();
        if let [files, texts, lines, bytes, functions, todos] = numbers[..] {
            rows.insert(cells[0].to_owned(), Counts { files, texts, lines, bytes, functions, todos });
        }
    }
    rows
}

fn function(name: &str, n_lines: usize) -> String {
    format!("    pub fn {name}() {{\n{}    }}\n", "        let x = 1;\n".repeat(n_lines - 2))
}

fn fill(home: &Home) {
    home.write(".gitignore", "ignored/\n*.log\n");
    home.write("top.md", "# top\nTODO not in a part\n");
    let mut engine = String::from("//! engine\nimpl A {\n");
    engine.push_str(&function("short", 5));
    engine.push_str(&function("long_one", 42));
    // The widest gap to the next function is not the longest function.
    engine.push_str("    fn tiny() { }\n}\n");
    engine.push_str(&"// filler\n".repeat(60));
    engine.push_str("pub(crate) async fn last(\n    a: u8,\n) -> u8 {\n    // TODO: more\n    a\n}\n");
    home.write("engine/engine.rs", &engine);
    home.write("engine/deep/er/b.rs", "fn main() {\n    todo();\n}\n// FIXME: todo TODOS\n");
    home.write("engine/empty.txt", "");
    home.write("engine/.hidden.rs", "fn hidden() {\n}\n");
    home.write("engine/ignored/c.rs", "fn ignored() {\n}\n");
    home.write("engine/run.log", "TODO in a log\n");
    std::fs::write(home.project().join("engine/data.bin"), b"fn x() {\0}\nTODO\n").unwrap();
    home.write(
        "scripts/it's here/main tool.py",
        "import os\n\ndef first(a):\n    return a\n\n\nasync def second(b):\n    if b:\n        return 1\n\n    return 2\n\nX = {\n}\n",
    );
    home.write("scripts/no newline.txt", "one\ntwo TODO");
    home.write("scripts/[odd] {name}.js", "export function go() {\n  return 1;\n}\nfunction stop() {\n}\n");
    for number in 0..30 {
        home.write(
            &format!("web/pages/{number}.go"),
            &format!("package x\n\nfunc (p *Page) F{number}() {{\n\tg()\n}}\n// TODO: {number}\n"),
        );
    }
    home.write("small/one.txt", "x\n");
}

fn demo(home: &Home, folder: &str) -> Finished {
    let finished = home.run(&["demo", folder]);
    wait::until("no process of the demo is left", || processes::of_home(&home.root()).is_empty().then_some(()));
    finished
}

#[test]
fn every_number_of_the_report_is_what_the_folder_holds() {
    let home = Home::new();
    fill(&home);
    let finished = demo(&home, ".");
    assert_eq!(finished.code, 0, "{finished:?}");
    let report = &finished.stdout;
    let rows = table(report);
    let mut all = Counts::default();
    for part in ["engine", "scripts", "web"] {
        let counts = Counts::count(&home.project().join(part));
        assert_eq!(rows.get(&format!("{part}/")), Some(&counts), "{report}");
        all.add(counts);
    }
    assert_eq!(rows.get("all"), Some(&all), "{report}");
    assert_eq!(rows.len(), 4, "{report}");
    for line in [
        "3 of 3 subagents reported.",
        "- 42 lines: long_one (engine/engine.rs:8)",
        "- 6 lines: last (engine/engine.rs:112)",
        "- 5 lines: second (scripts/it's here/main tool.py:7)",
        "- 3 lines: go (scripts/[odd] {name}.js:1)",
        "- 2 lines: first (scripts/it's here/main tool.py:3)",
        "- scripts/no newline.txt:2:two TODO",
        "- engine/engine.rs:115: // TODO: more",
    ] {
        assert!(report.lines().any(|shown| shown == line), "{line} is not in\n{report}");
    }
    assert!(!report.contains("hidden") && !report.contains("ignored") && !report.contains("top.md"), "{report}");
}

#[test]
fn it_says_what_is_scripted_and_how_to_set_a_model() {
    let home = Home::new();
    fill(&home);
    let finished = demo(&home, ".");
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stderr.starts_with("zapmyco demo: a script stands in for the model.\nEverything else is real"), "{}", finished.stderr);
    let end: Vec<&str> = finished.stderr.lines().rev().take(4).collect();
    assert!(end[3].starts_with("The model was scripted") && end[3].contains("everything else was real"), "{}", finished.stderr);
    assert!(end[2].contains("export ANTHROPIC_API_KEY="), "{}", finished.stderr);
    assert!(end[1].contains("zapmyco run "), "{}", finished.stderr);
}

#[test]
fn few_files_are_split_among_fewer_subagents() {
    let home = Home::new();
    home.write("a.rs", "fn a() {\n}\n");
    home.write("only/b.txt", "TODO\n");
    let finished = demo(&home, ".");
    assert_eq!(finished.code, 0, "{finished:?}");
    let rows = table(&finished.stdout);
    assert_eq!(rows.keys().map(String::as_str).collect::<Vec<_>>(), ["a.rs", "all", "only/b.txt"]);
    assert_eq!(rows["a.rs"], Counts { files: 1, texts: 1, lines: 2, bytes: 11, functions: 1, todos: 0 });
    assert_eq!(rows["only/b.txt"], Counts { files: 1, texts: 1, lines: 1, bytes: 5, functions: 0, todos: 1 });
}

#[test]
fn another_folder_than_the_current_one() {
    let home = Home::new();
    for name in ["x", "y", "z"] {
        home.write(&format!("elsewhere/{name}/f.txt"), "1\n2\n3\n");
    }
    let finished = demo(&home, "elsewhere");
    assert_eq!(finished.code, 0, "{finished:?}");
    let all = Counts { files: 3, texts: 3, lines: 9, bytes: 18, functions: 0, todos: 0 };
    assert_eq!(table(&finished.stdout).get("all"), Some(&all), "{}", finished.stdout);
    let heading = format!("# {}", home.project().join("elsewhere").canonicalize().unwrap().display());
    assert_eq!(finished.stdout.lines().next(), Some(heading.as_str()));
}

#[test]
fn nothing_to_read_is_said() {
    let home = Home::new();
    home.write(".gitignore", "*.log\n");
    home.write("a.log", "x\n");
    home.write("empty.txt", "");
    let finished = demo(&home, ".");
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stdout.starts_with("There is nothing to read in "), "{}", finished.stdout);
}

#[test]
fn a_missing_folder_a_bad_home_and_a_subagent_are_refused() {
    let home = Home::new();
    home.write("a.txt", "x\n");
    let missing = demo(&home, "no/such/folder");
    assert_eq!((missing.code, missing.stdout.as_str()), (2, ""), "{missing:?}");
    assert!(missing.stderr.contains("no/such/folder"), "{}", missing.stderr);
    let file = demo(&home, "a.txt");
    assert_eq!(file.code, 2, "{file:?}");
    let inside = finish(home.command().arg("demo").env("ZAPMYCO_SUBAGENT", "sa_20260606_00000001"));
    assert_eq!(inside.code, 2, "{inside:?}");
    assert!(inside.stderr.contains("not available inside a subagent, do not retry"), "{}", inside.stderr);
    let unwritable = finish(home.command().arg("demo").env("ZAPMYCO_HOME", "/proc/no-such-home"));
    assert_eq!(unwritable.code, 8, "{unwritable:?}");
    assert!(unwritable.stderr.contains("ZAPMYCO_HOME"), "{}", unwritable.stderr);
}
