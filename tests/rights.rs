//! Rules from files and flags as a command sees them: `zapmyco permissions explain`, and rules that name no tool.

use serde_json::{Value, json};

use crate::support::Home;

fn explained(home: &Home, arguments: &[&str]) -> (i32, Value) {
    let finished = home.run(&[&["permissions", "explain", "--json"], arguments].concat());
    assert_eq!(finished.stderr, "", "{arguments:?}");
    (finished.code, serde_json::from_str(&finished.stdout).unwrap())
}

/// R282: the parts, the rules that spoke, the mode, the verdict and the flag that would allow it.
#[test]
fn explain_takes_a_line_apart() {
    let home = Home::new();
    std::fs::write(home.root().join("settings.toml"), "[permissions]\nallow = [\"Bash(npm:*)\"]\ndeny = [\n  \"Bash(rm:*)\",\n]\n")
        .unwrap();
    let settings = home.root().join("settings.toml");
    let shown = home.run(&["permissions", "explain", "--", "npm ci && git commit -m x | sudo wc > log"]);
    assert_eq!(shown.code, 12, "{}", shown.stderr);
    assert_eq!(
        shown.stdout,
        format!(
            "mode     default (default)\n\
             part 1   npm ci\n         allowed by Bash(npm:*)\n\
             part 2   git commit -m x\n         not allowed by a rule\n\
             part 3   sudo wc\n         not allowed by a rule\n\
             part 4   wc\n         reads only, started by part 3\n\
             file     log is written; not allowed by a rule\n\
             rule     allow Bash(npm:*): part 1 ({}:2)\n\
             verdict  ask\n\
             because  mode `default` asks before running `git commit -m x`, which is not known to be read-only\n\
             to allow --allowedTools 'Bash(git commit:*),Bash(sudo:*),Edit(/{}/log)'\n",
            settings.display(),
            home.project().display(),
        )
    );
    let flag = shown.stdout.lines().last().unwrap().split_once('\'').unwrap().1.trim_end_matches('\'').to_owned();
    let again = home.run(&["permissions", "explain", "--allowedTools", &flag, "--", "npm ci && git commit -m x | sudo wc > log"]);
    assert_eq!(again.code, 0, "{}{}", again.stdout, again.stderr);

    let denied = home.run(&["permissions", "explain", "--mode", "yolo", "--", "sh -c 'rm -r $X'"]);
    assert_eq!(
        (denied.code, denied.stdout.as_str()),
        (
            3,
            format!(
                "mode     yolo (flag --permission-mode)\n\
                 part 1   sh -c 'rm -r $X'\n         only starts what follows\n\
                 part 2   rm -r $X\n         not allowed by a rule, started by part 1\n\
                 rule     deny Bash(rm:*): part 2 ({}:4)\n\
                 verdict  deny\n\
                 because  denied by the rule `Bash(rm:*)`, which holds in every mode; do not retry\n",
                settings.display()
            )
            .as_str()
        )
    );
    let (code, line) = explained(&home, &["--", "coproc $X"]);
    assert_eq!((code, &line["verdict"], &line["unreadable"]), (3, &json!("deny"), &json!("it starts a coprocess")));
    assert!(!home.root().join("zapmyco.db").exists(), "nothing is created");
}

/// R280, R281: rules of user, project and private project files and of flags, each with its place; a project's allow rules
/// have no effect before it is trusted.
#[test]
fn rules_come_from_every_level_and_say_where_they_stand() {
    let home = Home::new();
    std::fs::write(home.root().join("settings.toml"), "[permissions]\nallow = [\"Bash(make:*)\"]\n").unwrap();
    home.write(".zapmyco/settings.toml", "[permissions]\nask = [\"Bash(make deploy:*)\"]\nallow = [\"Bash(curl:*)\"]\n");
    home.write(".zapmyco/settings.local.toml", "[permissions]\ndeny = [\"Read(.env)\"]\n");
    let of = |line: &str, flags: &[&str]| {
        let finished = home.run(&[&["permissions", "explain", "--json"], flags, &["--", line]].concat());
        let read: Value = serde_json::from_str(&finished.stdout).unwrap();
        let rules: Vec<String> = read["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| {
                let source = rule["source"].as_str().unwrap();
                let place = source.rsplit('/').next().unwrap();
                format!("{} {} {place}", rule["list"].as_str().unwrap(), rule["rule"].as_str().unwrap())
            })
            .collect();
        (finished.code, rules, finished.stderr)
    };
    assert_eq!(of("make", &[]).0, 0);
    let (code, rules, notice) = of("make deploy", &[]);
    assert_eq!((code, rules), (12, vec!["ask Bash(make deploy:*) settings.toml:2".into(), "allow Bash(make:*) settings.toml:2".into()]));
    assert!(notice.contains("permissions.allow") && notice.contains("trust"), "{notice}");
    assert_eq!(of("curl h", &[]).0, 12, "nobody has trusted the project");
    let (code, rules, _) = of("cat .env", &[]);
    assert_eq!((code, rules), (3, vec!["deny Read(.env) settings.local.toml:2".into()]));
    let (code, rules, _) = of("curl h", &["--allowedTools", "Bash(curl:*)", "--disallowedTools", "Bash(curl evil:*)"]);
    assert_eq!((code, rules), (0, vec!["allow Bash(curl:*) flag --allowedTools".into()]));
    assert_eq!(home.run(&["trust", "--yes"]).code, 0);
    let (code, rules, notice) = of("curl h", &[]);
    assert_eq!((code, rules, notice.as_str()), (0, vec!["allow Bash(curl:*) settings.toml:3".into()], ""));
}

/// R281: other tools by their input; what is wrong with an input is said.
#[test]
fn explain_knows_other_tools() {
    let home = Home::new();
    home.write("a", "b");
    let edit = r#"{"file_path": "a", "old_string": "b", "new_string": "c"}"#;
    for (flags, tool, input, expected) in [
        (&["--mode", "acceptEdits"][..], "Edit", edit, 0),
        (&[], "Edit", edit, 12),
        (&["--mode", "plan"], "Edit", edit, 3),
        (&["--mode", "auto"], "edit", edit, 0),
        (&["--disallowedTools", "Edit(a)"], "Edit", edit, 3),
        (&["--disallowedTools", "Read(a)"], "Read", r#"{"file_path": "a"}"#, 3),
        (&[], "Read", r#"{"file_path": "a"}"#, 0),
        (&["--allowedTools", "WebFetch(domain:docs.rs)"], "WebFetch", r#"{"url": "https://docs.rs/x"}"#, 0),
        (&["--mode", "dontAsk"], "WebFetch", r#"{"url": "https://docs.rs/x"}"#, 3),
        (&["--disallowedTools", "mcp__files"], "mcp__files__read", "{}", 3),
        (&[], "TodoWrite", r#"{"todos": []}"#, 0),
    ] {
        let arguments = [flags, &["--tool", tool, "--input", input]].concat();
        let (code, read) = explained(&home, &arguments);
        assert_eq!(code, expected, "{arguments:?}: {read}");
        assert_eq!(read["schema_version"], 1);
    }
    for (arguments, message) in [
        (&["--tool", "Bash", "--input", "{}"][..], "zapmyco: Bash: `command` is missing\n"),
        (&["--tool", "Edit", "--input", "{"], "zapmyco: --input is no JSON: "),
        (&["--tool", "Edit", "--input", "{}"], "zapmyco: Edit: "),
    ] {
        let finished = home.run(&[&["permissions", "explain"], arguments].concat());
        assert_eq!(finished.code, 2, "{arguments:?}");
        assert!(finished.stderr.starts_with(message), "{}", finished.stderr);
    }
}

/// R280, R287: a rule that names no tool does not pass silently.
#[test]
fn a_rule_that_names_no_tool_is_refused_or_said() {
    let home = Home::new();
    for (flag, rule, message) in [
        ("--allowedTools", "Bogus", "zapmyco: --allowedTools: `Bogus` names no tool\n"),
        ("--disallowedTools", "Bahs(rm:*)", "zapmyco: --disallowedTools: `Bahs` takes no specifier"),
        ("--disallowedTools", "Bahs", "zapmyco: --disallowedTools: `Bahs` names no tool; did you mean `Bash`?\n"),
        ("--disallowedTools", "", "zapmyco: --disallowedTools: the list is empty; leave the flag out, or name a tool\n"),
        ("--allowedTools", " , ", "zapmyco: --allowedTools: the list is empty; leave the flag out, or name a tool\n"),
    ] {
        let finished = home.run(&["permissions", "explain", flag, rule, "--", "ls"]);
        assert_eq!((finished.code, finished.stdout.as_str()), (2, ""), "{flag} {rule}");
        let is_said = finished.stderr.starts_with(message) || rule.contains('(');
        assert!(is_said, "{flag} {rule}: {}", finished.stderr);
        let run = home.run(&["run", flag, rule, "--model", "script:none", "x"]);
        assert_eq!(run.code, 2, "{}", run.stderr);
    }
    let elsewhere = home.run(&["permissions", "explain", "--disallowedTools", "LS,mcp__x__y,Task", "--", "ls"]);
    assert_eq!(
        (elsewhere.code, elsewhere.stderr.as_str()),
        (0, "zapmyco: --disallowedTools: the rule `LS` has no effect: there is no tool `LS` here\n")
    );
    let path = home.root().join("settings.toml");
    std::fs::write(&path, "[permissions]\ndeny = [\"Raed\"]\n").unwrap();
    let setting = home.run(&["permissions", "explain", "--", "ls"]);
    let expected = format!("zapmyco: {}:2: the rule `Raed` has no effect: there is no tool `Raed`; did you mean `Read`?\n", path.display());
    assert_eq!((setting.code, setting.stderr), (0, expected));
}
