//! Flow: profiles of agents, from files in every place to what the commands print.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use zapmyco::config::Layout;
use zapmyco::subagents::profiles::parse::parse_command_line;
use zapmyco::subagents::profiles::{Catalog, Code, Level, LiveCatalog, Plugin, Severity, Sources};

use crate::support::{Finished, Home};

fn profile(name: &str, rest: &str) -> String {
    format!("---\nname: {name}\ndescription: does {name}\n{rest}---\n\nYou are {name}.\n")
}

fn put(path: &Path, content: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn user_home(home: &Home) -> std::path::PathBuf {
    home.root().parent().unwrap().to_owned()
}

fn sources(home: &Home) -> Sources {
    Sources {
        layout: Layout::new(home.root()),
        home: Some(user_home(home)),
        cwd: home.project(),
        plugins: Vec::new(),
        command_line: Vec::new(),
        trust: zapmyco::permissions::trust::Trust::none(&home.project()),
    }
}

fn prompt_of<'a>(catalog: &'a Catalog, name: &str) -> &'a str {
    &catalog.get(name).unwrap_or_else(|| panic!("no {name}")).profile.prompt
}

fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// R40, R56, R57, R58, R59, R60, fault H7
#[test]
fn the_level_decides_then_the_folder() {
    let home = Home::new();
    let places = [
        user_home(&home).join(".claude/agents"),
        user_home(&home).join(".zcode/agents"),
        home.root().join("agents/deep/er"),
        home.project().join(".claude/agents"),
        home.project().join(".zcode/agents"),
        home.project().join(".zapmyco/agents"),
    ];
    for (at, place) in places.iter().enumerate() {
        put(&place.join("who.markdown"), profile("who", "").replace("You are who.", &format!("place {at}")));
        assert_eq!(prompt_of(&Catalog::load(&sources(&home)), "who"), format!("place {at}"));
    }
    let mut all = sources(&home);
    all.command_line = parse_command_line(r#"{"who": {"description": "d", "prompt": "typed"}}"#).unwrap();
    let catalog = Catalog::load(&all);
    assert_eq!(prompt_of(&catalog, "who"), "typed");
    assert_eq!(catalog.replaced().len(), places.len());
    assert!(catalog.replaced().iter().all(|replaced| replaced.reason.starts_with("replaced by ")), "{:?}", catalog.replaced());

    put(&home.root().join("agents/explore.md"), profile("Explore", "tools: '*'\n"));
    let replaced = Catalog::load(&sources(&home));
    let explore = &replaced.get("Explore").unwrap().profile;
    assert!(explore.origin.level == Level::User && !explore.is_built_in_explore());
}

/// R57
#[test]
fn folders_up_to_the_repository_root_are_read_and_the_nearest_wins() {
    let home = Home::new();
    let inner = home.project().join("a/b");
    std::fs::create_dir_all(&inner).unwrap();
    put(&user_home(&home).join(".zapmyco/agents/out.md"), profile("out", ""));
    put(&home.project().join(".zapmyco/agents/x.md"), profile("x", "").replace("You are x.", "root"));
    put(&home.project().join("a/.claude/agents/x.md"), profile("x", "").replace("You are x.", "a"));
    let from = |folder: &Path| Catalog::load(&Sources { cwd: folder.to_owned(), ..sources(&home) });
    assert!(from(&inner).get("x").is_none(), "without a repository only the working directory counts");
    std::fs::create_dir(home.project().join(".git")).unwrap();
    assert_eq!(prompt_of(&from(&inner), "x"), "a");
    assert_eq!(prompt_of(&from(&home.project()), "x"), "root");
    assert!(from(&inner).get("out").is_none(), "nothing above the repository is read");
}

/// R66, fault H7
#[test]
fn equal_names_in_one_folder_name_both_files() {
    let home = Home::new();
    for file in ["b.md", "a/z.md", "c.md"] {
        put(&home.root().join("agents").join(file), profile("who", "").replace("You are who.", file));
    }
    let catalog = Catalog::load(&sources(&home));
    assert_eq!(prompt_of(&catalog, "who"), "c.md");
    let notes: Vec<String> =
        catalog.diagnostics().iter().filter(|note| note.code == Code::DuplicateName).map(ToString::to_string).collect();
    assert_eq!(notes.len(), 2);
    assert!(notes[1].contains("b.md") && notes[1].contains("c.md"), "{notes:?}");
}

/// R63, R65, R89, fault H2, fault H6
#[test]
fn broken_neighbours_are_told_and_hide_nobody() {
    let home = Home::new();
    let folder = home.root().join("agents");
    for name in ["one", "two", "three"] {
        put(&folder.join(format!("{name}.md")), profile(name, ""));
    }
    put(&folder.join("broken.md"), "---\n: : [\n---\nx");
    put(&folder.join("utf16.md"), [0xff, 0xfe, b'-', 0, b'-', 0]);
    put(&folder.join("latin.md"), b"---\nname: a\ndescription: caf\xe9\n---\n");
    put(&folder.join("nul.md"), b"---\nname: a\0\n---\n");
    put(&folder.join("large.md"), vec![b'a'; 1024 * 1024 + 1]);
    put(&folder.join("README.md"), "# About\n");
    symlink("nowhere", folder.join("gone.md")).unwrap();
    symlink("self.md", folder.join("self.md")).unwrap();
    symlink(&folder, folder.join("loop")).unwrap();
    nix::unistd::mkfifo(&folder.join("pipe.md"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    std::fs::create_dir(folder.join("folder.md")).unwrap();

    let catalog = Catalog::load(&sources(&home));
    assert_eq!(catalog.definitions().filter(|definition| definition.profile.origin.level == Level::User).count(), 3);
    let told = |file: &str, code: Code, severity: Severity, part: &str| {
        let path = folder.join(file);
        let found = catalog.diagnostics().iter().find(|note| note.path.as_ref() == Some(&path) && note.code == code);
        let found = found.unwrap_or_else(|| panic!("nothing about {file}: {:?}", catalog.diagnostics()));
        assert!(found.severity == severity && found.reason.contains(part) && !found.remedy.is_empty(), "{found}");
    };
    told("broken.md", Code::MissingRequired, Severity::Error, "name");
    told("utf16.md", Code::ReadFailed, Severity::Error, "not UTF-8");
    told("latin.md", Code::ReadFailed, Severity::Error, "not UTF-8");
    told("nul.md", Code::ReadFailed, Severity::Error, "NUL");
    told("large.md", Code::ReadFailed, Severity::Error, "1048576");
    told("README.md", Code::MissingFrontmatter, Severity::Info, "no frontmatter");
    told("gone.md", Code::ReadFailed, Severity::Error, "leads nowhere");
    told("self.md", Code::ReadFailed, Severity::Error, "leads to itself");
    told("loop", Code::ReadFailed, Severity::Error, "leads back");
    told("pipe.md", Code::ReadFailed, Severity::Error, "not an ordinary file");
}

/// R61, R62
#[test]
fn plugins_have_full_names_and_free_short_ones() {
    let home = Home::new();
    let plugin = |name: &str| Plugin { name: name.to_owned(), root: home.project().join("plugins").join(name) };
    for (kit, agent) in [("kit", "lint"), ("kit", "both"), ("box", "both"), ("box", "Explore"), ("box", "mine")] {
        put(&plugin(kit).root.join(format!("agents/{agent}.md")), profile(agent, "permissionMode: plan\nhooks: {Stop: []}\n"));
    }
    put(&home.root().join("agents/mine.md"), profile("mine", ""));
    let catalog = Catalog::load(&Sources { plugins: vec![plugin("kit"), plugin("box")], ..sources(&home) });
    let resolved = |name: &str| catalog.resolve(name).map(|definition| definition.profile.name.clone());
    assert_eq!(resolved("lint").unwrap(), "kit:lint");
    assert_eq!(resolved("kit:both").unwrap(), "kit:both");
    assert!(resolved("both").unwrap_err().to_string().starts_with("Agent type 'both' not found. Available agents: "));
    assert_eq!((resolved("Explore").unwrap().as_str(), resolved("mine").unwrap().as_str()), ("Explore", "mine"));
    let lint = &catalog.get("kit:lint").unwrap().profile;
    assert!(lint.hooks.is_none() && lint.permission_mode.is_some() && lint.withheld.len() == 1);
}

/// R38, R64, fault H11
#[test]
fn names_that_fold_to_one_key_are_told() {
    let home = Home::new();
    put(&home.root().join("agents/a.md"), profile("code-reviewer", ""));
    put(&home.root().join("agents/b.md"), profile("Code Reviewer", ""));
    let catalog = Catalog::load(&sources(&home));
    assert!(catalog.diagnostics().iter().any(|note| note.code == Code::AmbiguousName));
    let error = catalog.resolve("code_reviewer").unwrap_err().to_string();
    assert_eq!(
        error,
        "Agent type 'code_reviewer' is ambiguous — matches Code Reviewer, code-reviewer — Use the exact name: Code Reviewer or code-reviewer"
    );
}

/// R67
#[test]
fn a_live_catalog_sees_every_change() {
    let home = Home::new();
    let live = LiveCatalog::new(sources(&home));
    assert!(live.current().get("late").is_none());
    let path = home.project().join(".zapmyco/agents/late.md");
    put(&path, profile("late", ""));
    assert_eq!(prompt_of(&live.current(), "late"), "You are late.");
    let unchanged = live.current();
    assert!(std::sync::Arc::ptr_eq(&unchanged, &live.current()), "nothing changed, so nothing is read");
    put(&path, profile("late", "").replace("You are late.", "You are LATE."));
    assert_eq!(prompt_of(&live.current(), "late"), "You are LATE.");
    std::fs::remove_file(&path).unwrap();
    assert!(live.current().get("late").is_none());
}

/// R68, R69, R70, R108
#[test]
fn the_state_file_disables_user_profiles_only() {
    let home = Home::new();
    put(&home.root().join("agents/explore.md"), profile("Explore", ""));
    put(&home.project().join(".zapmyco/agents/ours.md"), profile("ours", ""));
    let state = r#"{"disabledAgentIds": ["Explore", "ours", "general-purpose"], "builtInModelSelectionOverrides": {"Explore": "zai/air"}}"#;
    put(&home.root().join("v2/agents-state.json"), state);
    let catalog = Catalog::load(&sources(&home));
    let explore = &catalog.get("Explore").unwrap().profile;
    assert!(explore.is_built_in_explore(), "the built-in holds again");
    assert_eq!(catalog.model_override(explore), Some("zai/air"));
    assert!(catalog.get("ours").is_some() && catalog.get("general-purpose").is_some());
    assert!(catalog.replaced()[0].disabled);
}

/// A collection as people write them: most sound, each of the others odd in one of these ways.
fn odd_file(at: usize) -> (String, Vec<u8>) {
    let name = format!("agent-{at}");
    let text = match at % 12 {
        0 => format!("---\nname: {name}\ndescription: Reviews code. Triggers: bugs, style\nmodel: sonnet\n---\nBody"),
        1 => format!(
            "---\nname: {name}\ndescription: Use when: <example>\nContext: x\nuser: \"go: now\"\n</example>\ntools: Read, Grep\n---\nBody"
        ),
        2 => format!("\u{feff}\n\n---\r\nname: {name}\r\ndescription: b\r\n---\r\nBody"),
        3 => format!("---\nname: {name}\ndescription: \"stray \"quotes\" here\"\n\tcolor: red\n---\nBody"),
        4 => format!("-----\nname: {name}\ndescription: b\ntools: [Read, Bash(git:*)\n-----\nBody"),
        5 => format!("---\nname: {name}\ndescription: b\n\nYou are: somebody.\n"),
        6 => format!("---\nname: {name}\rdescription: 'it's: here'\r---\rBody"),
        7 => format!("---\ndescription: nameless {at}\n---\nBody"),
        8 => format!("# Readme {at}\n"),
        9 => format!("---\nname: {name}\nname: {name}\ndescription: b\nmaxTurns: 0\n---\nBody"),
        10 => {
            return (format!("{name}.md"), format!("---\nname: {name}\ndescription: caf\u{e9}\n---\n").chars().map(|c| c as u8).collect());
        }
        _ => format!("---\nname: {name}\ndescription: sound\ntools: Read\n---\nBody"),
    };
    (format!("{name}.md"), text.into_bytes())
}

/// R65, R71
#[test]
fn a_check_of_2500_odd_files_loses_none() {
    const FILES: usize = 2_500;
    let home = Home::new();
    let folder = home.project().join("collection");
    for at in 0..FILES {
        let (name, content) = odd_file(at);
        put(&folder.join(format!("team-{}", at % 25)).join(name), content);
    }
    let finished = home.run(&["agents", "check", "collection", "--json"]);
    assert_eq!(finished.code, 1);
    let report = json_of(&finished);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), FILES);
    let silent: Vec<&Value> =
        results.iter().filter(|file| file["name"].is_null() && file["diagnostics"].as_array().unwrap().is_empty()).collect();
    assert!(silent.is_empty(), "{silent:?}");
    // Nameless, README and Latin-1 files are the only ones that give no profile.
    let lost = (0..FILES).filter(|at| matches!(at % 12, 7 | 8 | 10)).count();
    assert_eq!(report["profiles"], FILES - lost);
    for file in results.iter().filter(|file| file["path"].as_str().unwrap().ends_with("agent-12.md")) {
        assert_eq!(file["diagnostics"][0]["code"], "agent_lenient_yaml");
        assert_eq!(file["diagnostics"][0]["line"], 3);
    }
}

/// R71
#[test]
fn check_gates_on_errors_and_strictly_on_warnings() {
    let home = Home::new();
    home.write("good/a.md", &profile("a", "tools: Read\n"));
    home.write("warned/a.md", &profile("a", "color: beige\n"));
    home.write("bad/a.md", "---\nname: a\n---\nx");
    assert_eq!(home.run(&["agents", "check", "good"]).code, 0);
    assert_eq!(home.run(&["agents", "check", "warned"]).code, 0);
    assert_eq!(home.run(&["agents", "check", "warned", "--strict"]).code, 1);
    let bad = home.run(&["agents", "check", "good", "bad/a.md"]);
    assert_eq!(bad.code, 1);
    assert!(bad.stdout.contains("bad/a.md:2: error[agent_missing_required_frontmatter]: "), "{bad:?}");
    assert!(bad.stdout.ends_with("2 files, 1 profiles; 1 errors, 0 warnings, 0 notes\n"), "{bad:?}");
    assert_eq!(home.run(&["agents", "check", "nothing-here"]).code, 1);
    assert_eq!(home.run(&["agents", "check"]).code, 0);
}

/// R71
#[test]
fn list_and_show_tell_sources_tools_and_model() {
    let home = Home::new();
    put(&home.root().join("agents/explore.md"), profile("Explore", "model: sonnet\ntools: Bash(git:*), Foo\ndisallowedTools: Write\n"));
    put(&home.root().join("settings.toml"), "model = \"ollama/x\"\n[agents.models]\nsonnet = \"ollama/qwen$low\"\n");
    let list = json_of(&home.run(&["agents", "list", "--json"]));
    assert_eq!(list["schema_version"], 1);
    let names: Vec<&str> = list["agents"].as_array().unwrap().iter().map(|agent| agent["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Explore", "Plan", "general-purpose"]);
    assert_eq!((&list["agents"][0]["level"], &list["agents"][0]["replaces"]), (&Value::from("user"), &Value::from(1)));
    assert_eq!(list["replaced"][0]["level"], "built-in");
    assert_eq!(list["agents"][0]["diagnostics"]["warning"], 1);

    let shown = home.run(&["agents", "show", "explore", "--json"]);
    let show = json_of(&shown);
    assert_eq!(show["resolved"]["tools"]["tools"], serde_json::json!(["Bash", "RespondToCoordinator"]));
    assert_eq!(show["resolved"]["tools"]["rules"][0]["scopes"][0], "git:*");
    assert_eq!(show["resolved"]["model"]["model"], "qwen", "{shown:?}");
    assert_eq!(show["resolved"]["model"]["source"], "settings, agents.models");
    assert!(show["sources"]["tools"].as_str().unwrap().ends_with("agents/explore.md:5"), "{show}");
    assert_eq!(show["sources"]["color"], "default");
    let text = home.run(&["agents", "show", "Explore"]).stdout;
    assert!(text.contains("Bash: only calls matching git:*") && text.contains("ollama/qwen$low"), "{text}");
    let listed = home.run(&["agents", "list"]).stdout;
    assert!(listed.contains("Not in effect:") && listed.contains("user wins over built-in"), "{listed}");

    let typed = home.run(&["agents", "show", "t", "--json", "--agents", r#"{"t": {"description": "d", "prompt": "p"}}"#]);
    assert_eq!(json_of(&typed)["profile"]["origin"]["level"], "command-line");
    let unknown = home.run(&["agents", "show", "Explor"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("Did you mean 'Explore'?"), "{unknown:?}");
    assert_eq!(home.run(&["agents", "list", "--agents", r#"{"t": {"toolz": 1}}"#]).code, 2);
}

/// R104, R105
#[test]
fn show_names_a_model_that_cannot_be_used() {
    let home = Home::new();
    put(&home.root().join("agents/a.md"), profile("a", "model: nobody/x\n"));
    let show = json_of(&home.run(&["agents", "show", "a", "--json"]));
    let error = show["resolved"]["model_error"].as_str().unwrap();
    assert!(error.starts_with("Cannot start subagent: ") && error.ends_with("[reason=provider-not-found; selection=nobody/x]"), "{error}");
}

/// R72
#[test]
fn create_edit_and_remove_write_the_users_files_and_the_projects_only_on_request() {
    let home = Home::new();
    let created = home.run(&[
        "agents",
        "create",
        "rev",
        "--description",
        "Reviews: all",
        "--set",
        "tools=Read, Grep",
        "--prompt",
        "You review.",
        "--json",
    ]);
    assert_eq!(created.code, 0, "{created:?}");
    let path = home.root().join("agents/rev.md");
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "---\nname: rev\ndescription: \"Reviews: all\"\ntools: Read, Grep\n---\n\nYou review.\n"
    );
    assert_eq!(home.run(&["agents", "create", "rev", "--description", "d", "--prompt", "p"]).code, 2);

    std::fs::write(&path, "---\n# mine\nname: rev\nx-own: 1 # kept\ndescription: d\n---\n\n<!-- kept -->\nYou review.\n").unwrap();
    assert_eq!(home.run(&["agents", "edit", "Rev", "--set", "color=red", "--set", "maxTurns=3"]).code, 0);
    let edited = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        edited,
        "---\n# mine\nname: rev\nx-own: 1 # kept\ndescription: d\ncolor: red\nmaxTurns: 3\n---\n\n<!-- kept -->\nYou review.\n"
    );
    let refused = home.run(&["agents", "edit", "rev", "--set", "maxTurns=0"]);
    assert!(refused.code == 2 && std::fs::read_to_string(&path).unwrap() == edited, "{refused:?}");

    home.write(".zapmyco/agents/ours.md", &profile("ours", ""));
    let project = home.run(&["agents", "edit", "ours", "--set", "color=red"]);
    assert!(project.code == 2 && project.stderr.contains("--project"), "{project:?}");
    assert_eq!(home.run(&["agents", "edit", "ours", "--set", "color=red", "--project"]).code, 0);
    assert_eq!(home.run(&["agents", "create", "new", "--description", "d", "--prompt", "p", "--project"]).code, 0);
    assert!(home.project().join(".zapmyco/agents/new.md").is_file());
    let built_in = home.run(&["agents", "edit", "Explore", "--set", "color=red"]);
    assert!(built_in.code == 2 && built_in.stderr.contains("agents create Explore"), "{built_in:?}");
    assert_eq!(home.run(&["agents", "remove", "rev"]).code, 0);
    assert!(!path.exists());
    assert_eq!(home.run(&["agents", "create", "../x", "--description", "d", "--prompt", "p"]).code, 2);
}

/// R68
#[test]
fn disable_and_enable_write_the_state_file_for_user_profiles() {
    let home = Home::new();
    put(&home.root().join("agents/a.md"), profile("a", ""));
    assert_eq!(home.run(&["agents", "disable", "a"]).stdout, "a: disabled\n");
    assert_eq!(home.run(&["agents", "disable", "a"]).stdout, "a: already disabled\n");
    let list = json_of(&home.run(&["agents", "list", "--json"]));
    assert!(list["agents"].as_array().unwrap().iter().all(|agent| agent["name"] != "a"));
    assert_eq!(list["replaced"][0]["disabled"], true);
    let enabled = json_of(&home.run(&["agents", "enable", "a", "--json"]));
    assert_eq!((&enabled["disabled"], &enabled["changed"]), (&Value::from(false), &Value::from(true)));
    let other = home.run(&["agents", "disable", "Explore"]);
    assert!(other.code == 2 && other.stderr.contains("Agent(Explore)"), "{other:?}");
}
