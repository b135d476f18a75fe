//! Which rules would allow a call for good: what "always" stands for when a person is asked.

use std::path::Path;

use crate::permissions::decide::{CalledTool, Policy, Verdict};
use crate::permissions::rules::{Rule, suggest_command, suggest_path};
use crate::permissions::shell_command::{Carries, Holds, Line, Part};
use crate::permissions::{Effect, fetching};

impl Policy {
    /// Rules that allow the call from now on. Empty when none can: an ask rule stands above them, or the line is too
    /// involved to be written as a rule.
    pub fn lasting_rules(&self, tool: &CalledTool<'_>, effect: &Effect) -> Vec<Rule> {
        let candidates = candidates(tool, effect);
        let helps = |rules: &[Rule]| !rules.is_empty() && self.trial(rules).decide(tool, effect) == Verdict::Allow;
        candidates.into_iter().find(|rules| helps(rules)).unwrap_or_default()
    }
}

/// Sets of rules, the most useful first.
fn candidates(tool: &CalledTool<'_>, effect: &Effect) -> Vec<Vec<Rule>> {
    let parsed = |texts: Vec<String>| -> Vec<Rule> {
        let rules: Option<Vec<Rule>> = texts.iter().map(|text| Rule::parse(text).ok()).collect();
        rules.unwrap_or_default()
    };
    match effect {
        Effect::Internal => vec![parsed(vec![tool.name.to_owned()])],
        Effect::Reads(path) => vec![parsed(vec![of_path("Read", path)])],
        Effect::Writes(path) => vec![parsed(vec![of_path("Edit", path)])],
        Effect::Fetches { url } => vec![parsed(vec![fetching::rule_for(tool.name, &fetching::host_of(url))])],
        Effect::Runs { command } => {
            let mut sets = Vec::new();
            let read = Line::read(command);
            if read.unreadable.is_none() {
                let open = read.parts.iter().filter(|part| needs_rule(part));
                let mut texts: Vec<String> = open.map(of_command).collect();
                texts.sort();
                texts.dedup();
                sets.push(parsed(texts));
            }
            let line = command.trim();
            // A `*` would stand for any text, and a rule is one line.
            if !line.is_empty() && !line.contains(['\n', '*']) {
                sets.push(parsed(vec![format!("{}({line})", tool.name)]));
            }
            sets
        }
    }
}

fn needs_rule(part: &Part) -> bool {
    let is_guess = part.carrier.as_ref().is_some_and(|carrier| carrier.holds == Holds::DenyOnly);
    !is_guess && !part.words.is_empty() && part.carries != Carries::Wraps && !part.is_read_only()
}

/// A subcommand covers its arguments (`git commit:*`); every other command is meant as it stands, since "always" for
/// `rm -r build` is no word about other folders, and a program that runs programs could do anything.
fn of_command(part: &Part) -> String {
    const RUNS_OTHERS: &[&str] = &["run", "exec", "x", "dlx", "start", "create", "install", "add", "npx"];
    let words: Vec<&str> = part.words.iter().take(2).map(|word| word.text.as_str()).collect();
    let runs_others = words.iter().any(|word| RUNS_OTHERS.contains(word));
    let suggested = suggest_command(part).filter(|rule| !runs_others && rule.contains(' '));
    suggested.unwrap_or_else(|| format!("Bash({})", part.text))
}

fn of_path(tool: &str, path: &Path) -> String {
    suggest_path(tool, path)
}
