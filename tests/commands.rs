//! The table of shell lines with their verdicts, and lines that are run to see what a decision let through.

use std::fmt::Write;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use zapmyco::permissions::{CalledTool, Effect, Mode, Policy, Rule, RuleSet, Verdict, split_list};

use crate::support::Home;
use crate::support::lines::{Ground, line, mistake};

const TABLE: &str = include_str!("data/commands.tsv");

/// R46, R278, R282: every line of the table.
#[test]
fn the_table_of_commands() {
    let home = Home::new();
    let mut wrong = String::new();
    let mut count = 0;
    for (number, row) in TABLE.lines().enumerate().filter(|(_, row)| !row.is_empty() && !row.starts_with('#')) {
        let [mode, rules, expected, command] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("row {}: {row}", number + 1) };
        let command = plain(command);
        let policy = Policy::new(mode.parse::<Mode>().unwrap(), rule_set(rules), home.project());
        let tool = CalledTool { name: "Bash", aliases: &[], never_asked: false };
        let verdict = policy.decide(&tool, &Effect::Runs { command });
        let got = match &verdict {
            Verdict::Allow => "allow",
            Verdict::Ask { .. } => "ask",
            Verdict::Deny { .. } => "deny",
        };
        count += 1;
        if got != expected {
            writeln!(wrong, "row {}: {row}\n    {verdict:?}", number + 1).unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(count >= 300, "{count} rows");
}

fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.push(match chars.next().unwrap() {
                'n' => '\n',
                't' => '\t',
                other => other,
            }),
            c => plain.push(c),
        }
    }
    plain
}

fn rule_set(text: &str) -> RuleSet {
    let mut set = RuleSet::default();
    for rule in split_list(text).iter().filter(|rule| *rule != ".") {
        let list = match rule.chars().next() {
            Some('+') => &mut set.allow,
            Some('?') => &mut set.ask,
            Some('-') => &mut set.deny,
            other => panic!("{other:?}"),
        };
        list.push(Rule::parse(&rule[1..]).unwrap());
    }
    set
}

/// R46, R282: what runs in a real shell was not denied, was allowed, and changed nothing where it was called read-only.
#[test]
fn no_line_runs_what_the_decision_about_it_did_not_see() {
    let ground = Ground::new();
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let bytes = proptest::collection::vec(any::<u8>(), 1..90);
    runner
        .run(&bytes, |bytes| {
            let found = mistake(&ground, &line(&bytes));
            prop_assert!(found.is_none(), "{}", found.unwrap_or_default());
            Ok(())
        })
        .unwrap();
}

/// R282: the hunt above can find something: a line that no rule denies leaves its mark.
#[test]
fn a_mark_is_seen() {
    let ground = Ground::new();
    for line in ["mark", "echo $(mark)", "sh -c 'ls | mark' &", "X=mark; $X"] {
        assert!(ground.run(line).marked, "{line}");
    }
    assert!(ground.run("echo a > made").changed);
    let quiet = ground.run("ok; echo mark");
    assert!(!quiet.marked && !quiet.changed);
}

/// R327, R334: what is asked says how to allow it, and that really does.
#[test]
fn every_suggestion_of_the_table_helps() {
    let home = Home::new();
    let tool = CalledTool { name: "Bash", aliases: &[], never_asked: false };
    let mut wrong = String::new();
    for row in TABLE.lines().filter(|row| row.split('\t').nth(2) == Some("ask")) {
        let [mode, rules, _, command] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let effect = Effect::Runs { command: plain(command) };
        let policy = Policy::new(mode.parse::<Mode>().unwrap(), rule_set(rules), home.project());
        let Verdict::Ask { suggestion, .. } = policy.decide(&tool, &effect) else { continue };
        let (flag, value) = suggestion.split_once(' ').unwrap();
        let again = match flag {
            "--allowedTools" => {
                let text = value.trim_matches('\'').replace(r"'\''", "'");
                let more = split_list(&text).iter().map(|rule| Rule::parse(rule).unwrap()).collect();
                Policy::new(mode.parse().unwrap(), rule_set(rules).joined(RuleSet { allow: more, ..RuleSet::default() }), home.project())
            }
            "--permission-mode" => Policy::new(value.parse().unwrap(), rule_set(rules), home.project()),
            // an ask rule stands above every flag
            _ => continue,
        };
        let verdict = again.decide(&tool, &effect);
        if verdict != Verdict::Allow {
            writeln!(wrong, "{row}\n    {suggestion}: {verdict:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
