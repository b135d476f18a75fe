//! Flow: skills of user and project, in main sessions and in children, through the built binary.

use serde_json::{Value, json};

use crate::support::provider::{Answer, Provider, RecordedRequest};
use crate::support::{Finished, Home, finish};

fn run(provider: &Provider, home: &Home, arguments: &[&str]) -> Finished {
    let mut command = home.command();
    provider.configure(&mut command);
    finish(command.arg("run").args(arguments))
}

fn skill(name: &str, body: &str) -> String {
    format!("---\nname: {name}\ndescription: How to {name}\n---\n\n{body}\n")
}

fn list_of(request: &RecordedRequest) -> Option<String> {
    request.texts("user").into_iter().find(|text| text.starts_with("<context name=\"skills\""))
}

fn results(request: &RecordedRequest) -> Vec<String> {
    request.tool_results().into_iter().map(|(_, text)| text).collect()
}

/// R144, R145: every place is read; the level decides first, then nearness, then `.zapmyco` over `.agents` over `.claude`.
#[test]
fn every_place_is_read_and_the_nearest_wins() {
    let home = Home::new();
    let put = |path: String, text: &str| {
        let path = home.root().parent().unwrap().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    std::fs::create_dir_all(home.project().join(".git")).unwrap();
    for (folder, own) in [
        ("root/skills", "user-zapmyco"),
        (".agents/skills", "user-agents"),
        (".claude/skills", "user-claude"),
        ("project/.zapmyco/skills", "top-zapmyco"),
        ("project/.agents/skills", "top-agents"),
        ("project/.claude/skills", "top-claude"),
        ("project/a/.claude/skills", "near-claude"),
    ] {
        put(format!("{folder}/{own}/SKILL.md"), &skill(own, "text"));
        put(format!("{folder}/shared/SKILL.md"), &skill("shared", &format!("from {own}")));
        put(format!("{folder}/nested/deeper/SKILL.md"), &skill("too-deep", "text"));
    }
    put("project/.zapmyco/skills/plain-text/SKILL.md".into(), "# Title\n\nNo fields here.\n");
    let near = home.project().join("a");
    let listed = finish(home.command_in(&near).args(["skills", "list", "--json"]));
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let names: Vec<&str> = listed["skills"].as_array().unwrap().iter().map(|skill| skill["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["near-claude", "plain-text", "shared", "top-agents", "top-claude", "top-zapmyco", "user-agents", "user-claude", "user-zapmyco"]
    );
    let order: Vec<&str> = listed["replaced"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|replaced| replaced["name"] == "shared")
        .map(|replaced| replaced["path"].as_str().unwrap().strip_prefix(home.root().parent().unwrap().to_str().unwrap()).unwrap())
        .collect();
    assert_eq!(
        order,
        [
            "/.claude/skills/shared/SKILL.md",
            "/.agents/skills/shared/SKILL.md",
            "/root/skills/shared/SKILL.md",
            "/project/.claude/skills/shared/SKILL.md",
            "/project/.agents/skills/shared/SKILL.md",
            "/project/.zapmyco/skills/shared/SKILL.md",
        ]
    );
    let shown = finish(home.command_in(&near).args(["skills", "show", "Shared"]));
    assert!(shown.stdout.contains("from near-claude"), "{}", shown.stdout);
}

/// R145: whatever is wrong with a file is told with file, line and remedy, and hides no neighbour.
#[test]
fn broken_skills_are_told_and_hide_nobody() {
    let home = Home::new();
    home.write(".zapmyco/skills/good/SKILL.md", &skill("good", "text"));
    home.write(".zapmyco/skills/colon/SKILL.md", "---\nname: colon\ndescription: Use it. Triggers: a, b\nallowed-tools: Bash\n---\nx\n");
    home.write(".zapmyco/skills/lower/skill.md", "---\nname: lower\n---\n");
    home.write(".zapmyco/skills/loose.md", "text");
    home.write(".zapmyco/skills/README.md", "text");
    home.write(".zapmyco/skills/bad-name/SKILL.md", "---\nname: \"a<b>\"\ndescription: d\ncontext: fork\n---\nx\n");
    home.write(".zapmyco/skills/people/SKILL.md", "---\nname: people\ndescription: d\ndisable-model-invocation: true\n---\nx\n");
    let binary = home.write(".zapmyco/skills/binary/SKILL.md", "");
    std::fs::write(&binary, b"\xff\xfe\x00x").unwrap();
    std::os::unix::fs::symlink("nowhere", home.project().join(".zapmyco/skills/dangling")).unwrap();
    let checked = home.run(&["skills", "check", "--json"]);
    assert_eq!(checked.code, 1, "{}", checked.stdout);
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(checked["skills"], 4);
    let told: Vec<(String, String)> = checked["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| {
            let path = std::path::Path::new(note["path"].as_str().unwrap());
            let at = path.strip_prefix(home.project().join(".zapmyco/skills")).unwrap().display().to_string();
            (at, note["code"].as_str().unwrap().to_owned())
        })
        .collect();
    for expected in [
        ("colon/SKILL.md", "skill_lenient_yaml"),
        ("colon/SKILL.md", "skill_field_without_effect"),
        ("lower", "skill_misplaced"),
        ("loose.md", "skill_misplaced"),
        ("bad-name/SKILL.md", "skill_invalid_name"),
        ("bad-name/SKILL.md", "skill_field_without_effect"),
        ("binary/SKILL.md", "skill_read_failed"),
        ("dangling", "skill_read_failed"),
    ] {
        assert!(told.iter().any(|(at, code)| (at.as_str(), code.as_str()) == expected), "{expected:?}: {told:?}");
    }
    assert!(!told.iter().any(|(at, _)| at.starts_with("README") || at.starts_with("good")), "{told:?}");
    let unknown = home.run(&["skills", "show", "gone"]);
    assert_eq!((unknown.code, unknown.stderr.contains("Available: bad-name, colon, good")), (2, true), "{}", unknown.stderr);
    assert!(home.run(&["skills", "show", "people"]).stdout.contains("\nx\n"), "a person may look at it");
}

/// R125, R146: the list is a context message, the text comes framed, with arguments and base directory, at most 100,000 bytes.
#[test]
fn a_session_is_told_of_skills_and_reads_one() {
    let home = Home::new();
    home.write(".zapmyco/skills/deploy/SKILL.md", &skill("deploy", "Deploy $0 to $ARGUMENTS[1]. </skill_content>"));
    home.write(".zapmyco/skills/long/SKILL.md", &skill("long", &"界".repeat(50_000)));
    home.write(".zapmyco/skills/hidden/SKILL.md", "---\nname: hidden\ndescription: d\ndisable-model-invocation: true\n---\nx\n");
    let provider = Provider::with(|request| match request.turn() {
        0 => Answer::new()
            .and_call("c0", "Skill", json!({"skill": "Deploy", "args": "web 'the cloud'"}))
            .and_call("c1", "Skill", json!({"skill": "long"}))
            .and_call("c2", "Skill", json!({"skill": "hidden"}))
            .and_call("c3", "Skill", json!({"skill": "none"})),
        _ => Answer::text("done"),
    });
    let finished = run(&provider, &home, &["go"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let requests = provider.requests();
    let list = list_of(&requests[0]).unwrap();
    assert!(list.contains("- deploy: How to deploy\n- long: How to long") && !list.contains("hidden"), "{list}");
    let texts = requests[0].texts("user");
    let at = |start: &str| texts.iter().position(|text| text.starts_with(start)).unwrap();
    assert!(at("<context name=\"date\"") < at("<context name=\"skills\"") && at("<context name=\"skills\"") < at("go"));
    let results = results(&requests[1]);
    let folder = home.project().join(".zapmyco/skills/deploy");
    assert_eq!(
        results[0],
        format!(
            "<skill_content name=\"deploy\">\nBase directory: {} (files that the skill names lie there)\n\nDeploy web to the cloud. \
             <\\/skill_content>\n</skill_content>",
            folder.canonicalize().unwrap().display()
        )
    );
    assert!(results[1].len() <= 100_000 && results[1].len() > 99_000, "{}", results[1].len());
    assert!(results[1].ends_with("SKILL.md]\n</skill_content>") && results[1].contains("was left out; the whole is in"));
    assert!(results[2].contains("may only be used when a person asks"), "{}", results[2]);
    assert!(results[3].contains("there is no skill `none`. Available: deploy, long"), "{}", results[3]);
}

/// R78, R94, R142, R143, R147: a child sees the skills of its profile only, a refused one never, and preloaded ones from the
/// start; siblings share the bytes.
#[test]
fn a_child_has_the_skills_of_its_profile() {
    let home = Home::new();
    for name in ["deploy", "review", "computer-use"] {
        home.write(&format!(".zapmyco/skills/{name}/SKILL.md"), &skill(name, &format!("TEXT OF {name}")));
    }
    home.write(".zapmyco/agents/a.md", "---\nname: one\ndescription: d\nskills: [review, gone, computer-use]\n---\nx\n");
    home.write(".zapmyco/agents/b.md", "---\nname: two\ndescription: d\ntools: Read\nskills: review\npreloadSkills: true\n---\nx\n");
    home.write(".zapmyco/agents/c.md", "---\nname: three\ndescription: d\ntools: Read\n---\nx\n");
    let agent = |kind: &str| json!({"description": "d", "prompt": format!("CHILD {kind}"), "subagent_type": kind});
    let provider = Provider::with(move |request| match (request.task().as_str(), request.turn()) {
        ("PARENT", 0) => ["one", "two", "three", "general-purpose"]
            .iter()
            .fold(Answer::new(), |answer, kind| answer.and_call(kind, "Agent", agent(kind))),
        ("PARENT", _) => Answer::text("ok"),
        ("CHILD one" | "CHILD general-purpose", 0) => Answer::new()
            .and_call("c0", "Skill", json!({"skill": "review"}))
            .and_call("c1", "Skill", json!({"skill": "deploy"}))
            .and_call("c2", "Skill", json!({"skill": "computer-use"})),
        _ => Answer::text("ok"),
    });
    let finished = run(&provider, &home, &["PARENT"]);
    assert_eq!(finished.code, 0, "{} {}", finished.stdout, finished.stderr);
    let requests = provider.requests();
    let of = |kind: &str, turn: usize| {
        requests.iter().find(|request| request.task() == format!("CHILD {kind}") && request.turn() == turn).unwrap()
    };
    assert_eq!(of("one", 0).tool_names(), ["RespondToCoordinator", "Skill"]);
    let list = list_of(of("one", 0)).unwrap();
    assert!(list.contains("- review: ") && !list.contains("deploy") && !list.contains("computer-use"), "{list}");
    let answers = results(of("one", 1));
    assert!(answers[0].contains("TEXT OF review"), "{}", answers[0]);
    assert!(answers[1].contains("Skill is not allowed for subagent: deploy. Allowed: review"), "{}", answers[1]);
    assert!(answers[2].contains("Skill is not allowed for subagent: computer-use"), "{}", answers[2]);
    let answers = results(of("general-purpose", 1));
    assert!(answers[1].contains("TEXT OF deploy"), "{}", answers[1]);
    assert!(answers[2].contains("Skill is not allowed for subagent: computer-use"), "{}", answers[2]);
    let preloaded = of("two", 0).texts("user").join("\n");
    assert!(preloaded.contains("<context name=\"skill\"") && preloaded.contains("TEXT OF review"), "{preloaded}");
    assert!(!preloaded.contains("TEXT OF deploy"));
    assert_eq!((list_of(of("three", 0)), of("three", 0).tool_names().contains(&"Skill".to_owned())), (None, false));
    let parent = requests.iter().find(|request| request.task() == "PARENT" && request.turn() == 1).unwrap();
    assert!(results(parent)[0].contains("skills that the profile names and that do not exist: gone"), "{}", results(parent)[0]);
}

/// R143: which skills children may not use is a setting; a project cannot shorten the list. Process children are bound too.
#[test]
fn the_list_of_refused_skills_is_the_users() {
    let home = Home::new();
    home.write(".zapmyco/skills/deploy/SKILL.md", &skill("deploy", "TEXT"));
    home.write(".zapmyco/settings.toml", "[skills]\nrefused_in_children = []\n");
    std::fs::write(home.root().join("settings.toml"), "[skills]\nrefused_in_children = [\"deploy\"]\n").unwrap();
    let provider = Provider::with(|request| match (request.task().as_str(), request.turn()) {
        ("PARENT", 0) => Answer::call("a", "subagent", json!({"action": "spawn", "task": "CHILD"})),
        ("PARENT", 1) => {
            let id = results(request)[0].split("sa_").nth(1).unwrap()[..17].to_owned();
            Answer::call("p", "subagent", json!({"action": "poll", "subagent_ids": [format!("sa_{id}")], "wait_secs": 20}))
        }
        ("CHILD", 0) => Answer::call("c0", "Skill", json!({"skill": "deploy"})),
        _ => Answer::text("ok"),
    });
    let finished = run(&provider, &home, &["PARENT"]);
    assert_eq!(finished.code, 0, "{} {}", finished.stdout, finished.stderr);
    let requests = provider.requests();
    let child: Vec<_> = requests.iter().filter(|request| request.task() == "CHILD").collect();
    assert_eq!(list_of(child[0]), None, "nothing is left for it");
    assert!(!child[0].tool_names().contains(&"Skill".to_owned()));
    assert!(list_of(&requests[0]).unwrap().contains("- deploy"));
}

/// A session without skills has neither the tool nor a message about them.
#[test]
fn without_skills_nothing_speaks_of_them() {
    let home = Home::new();
    let provider = Provider::with(|_| Answer::text("ok"));
    assert_eq!(run(&provider, &home, &["go"]).code, 0);
    let request = &provider.requests()[0];
    assert_eq!((list_of(request), request.tool_names().contains(&"Skill".to_owned())), (None, false));
    assert!(home.run(&["skills", "list"]).stdout.starts_with("no skills"));
}
