//! What a decision rests on, for a person who asks: the parts, the rules that spoke, and what covers each part.

use super::commands::Coverage;
use super::{CalledTool, Policy, Verdict};
use crate::permissions::paths::PathForms;
use crate::permissions::rules::{CompiledRule, Named, Target};
use crate::permissions::shell_command::{Holds, Line};
use crate::permissions::{Effect, Mode, fetching};

/// A decision about one call, with its grounds.
#[derive(Clone, Debug)]
pub struct Explanation {
    pub mode: Mode,
    pub verdict: Verdict,
    /// The commands of a shell line; empty for every other call.
    pub parts: Vec<PartView>,
    /// The files that redirections name.
    pub files: Vec<FileView>,
    /// Why a shell line cannot be read safely, if it cannot.
    pub unreadable: Option<String>,
    pub rules: Vec<RuleView>,
}

#[derive(Clone, Debug)]
pub struct PartView {
    pub text: String,
    /// The place of the command that starts this one.
    pub started_by: Option<usize>,
    pub standing: Standing,
}

#[derive(Clone, Debug)]
pub struct FileView {
    pub name: String,
    pub writes: bool,
    pub is_free: bool,
}

/// What lets one command run, if anything does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    ReadsOnly,
    ByRule(String),
    /// It only starts the parts that follow.
    OnlyStarts,
    /// It edits files that may be edited freely.
    Edits,
    OnlySetsVariables,
    /// Looked at for deny and ask rules only; its carrier decides.
    Guess,
    Open,
}

/// A rule that speaks of the call.
#[derive(Clone, Debug)]
pub struct RuleView {
    pub list: List,
    pub rule: String,
    /// The place of the part it speaks of; `None` for the whole call.
    pub part: Option<usize>,
    /// Else what it is about may only come to be when the line runs.
    pub is_certain: bool,
    /// Given as an answer in this session, not written anywhere.
    pub is_answer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Deny,
    Ask,
    Allow,
}

impl List {
    pub fn as_str(self) -> &'static str {
        match self {
            List::Deny => "deny",
            List::Ask => "ask",
            List::Allow => "allow",
        }
    }
}

impl Policy {
    /// The decision about a call as [`Policy::decide`] makes it, and what it rests on.
    pub fn explain(&self, tool: &CalledTool<'_>, effect: &Effect) -> Explanation {
        let mode = self.mode();
        let named = Named { name: tool.name, aliases: tool.aliases };
        let verdict = self.decide(tool, effect);
        let mut explanation =
            Explanation { mode, verdict, parts: Vec::new(), files: Vec::new(), unreadable: None, rules: self.rules_about(named, effect) };
        if let Effect::Runs { command } = effect {
            let line = Line::read(command);
            explanation.unreadable = line.unreadable.map(|why| why.to_string());
            let standing = |coverage: Option<Coverage>| match coverage {
                Some(Coverage::ReadsOnly) => Standing::ReadsOnly,
                Some(Coverage::Rule(rule)) => Standing::ByRule(rule),
                Some(Coverage::Wraps) => Standing::OnlyStarts,
                Some(Coverage::Edits) => Standing::Edits,
                Some(Coverage::Variables) => Standing::OnlySetsVariables,
                None => Standing::Open,
            };
            explanation.parts = line
                .parts
                .iter()
                .map(|part| PartView {
                    text: part.text.clone(),
                    started_by: part.carrier.as_ref().map(|carrier| carrier.part),
                    standing: match &part.carrier {
                        Some(carrier) if carrier.holds == Holds::DenyOnly => Standing::Guess,
                        Some(_) | None => standing(self.coverage(named, mode, &line, part)),
                    },
                })
                .collect();
            explanation.files = line
                .redirects
                .iter()
                .map(|redirect| FileView {
                    name: redirect.target.raw.clone(),
                    writes: redirect.writes,
                    is_free: self.is_file_covered(mode, &line, redirect),
                })
                .collect();
        }
        explanation
    }

    fn rules_about(&self, named: Named<'_>, effect: &Effect) -> Vec<RuleView> {
        let answers = self.answers();
        let lists = [
            (List::Deny, &self.deny, false),
            (List::Deny, &answers.deny, true),
            (List::Ask, &self.ask, false),
            (List::Allow, &self.allow, false),
            (List::Allow, &answers.allow, true),
        ];
        let mut views = Vec::new();
        for (list, rules, is_answer) in lists {
            for rule in rules {
                let found = self.places_of(list, rule, named, effect);
                views.extend(found.into_iter().map(|(part, is_certain)| RuleView {
                    list,
                    rule: rule.rule.to_string(),
                    part,
                    is_certain,
                    is_answer,
                }));
            }
        }
        views
    }

    /// Where a rule speaks of the call: the parts, or `None` for the whole, and how surely.
    fn places_of(&self, list: List, rule: &CompiledRule, named: Named<'_>, effect: &Effect) -> Vec<(Option<usize>, bool)> {
        let speaks = |target: &Target<'_>| match list {
            List::Deny | List::Ask => rule.restricts(named, target),
            List::Allow => rule.allows(named, target),
        };
        let whole = |speaks: bool| if speaks { vec![(None, true)] } else { Vec::new() };
        match effect {
            Effect::Internal => whole(speaks(&Target::Nothing)),
            Effect::Reads(path) => whole(speaks(&Target::Reading(&PathForms::of(path)))),
            Effect::Writes(path) => whole(speaks(&Target::Writing(&PathForms::of(path)))),
            Effect::Fetches { url } => whole(speaks(&Target::Fetching { host: &fetching::host_of(url) })),
            Effect::Runs { command } => {
                let line = Line::read(command);
                match list {
                    List::Deny | List::Ask => {
                        self.found_by(rule, named, command, &line).map(|found| (found.part, found.is_certain)).into_iter().collect()
                    }
                    List::Allow if rule.allows(named, &Target::Command { text: command }) => vec![(None, true)],
                    List::Allow => {
                        let parts = line.parts.iter().enumerate();
                        parts.filter(|(_, part)| rule.allows_part(named, part)).map(|(at, _)| (Some(at), true)).collect()
                    }
                }
            }
        }
    }
}
