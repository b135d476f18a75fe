//! One request compared with a recorded one: on placeholders, and lenient only about how far children have got.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::RecordContext;
use super::file::{HeardText, Line};
use super::placeholders::Placeholders;
use super::recorder::noted;
use super::transcript::{Call, Heard, Transcript};
use crate::models::{Request, ToolUse};

/// What comparing a request with a recorded one gives.
pub(super) enum Verdict<'a> {
    Same,
    /// A child has not got as far as it had in the recording.
    Early(Vec<Call<'a>>),
    Different {
        expected: String,
        found: String,
    },
}

/// Where in a conversation a request stands, when answers to nothing but notices are not counted as steps of their own.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Number of the last part that holds more than notices.
    pub first_part: usize,
    /// How many such parts there were before it.
    pub act: usize,
    /// Answers given since then.
    pub answer: usize,
}

impl Place {
    pub fn of<T>(parts: &[impl AsRef<[T]>], is_notice: impl Fn(&T) -> bool) -> Self {
        let mut place = Self { first_part: 0, act: 0, answer: 0 };
        for (index, part) in parts.iter().enumerate().skip(1) {
            let part = part.as_ref();
            if !part.is_empty() && part.iter().all(&is_notice) {
                place.answer += 1;
            } else {
                place = Self { first_part: index, act: place.act + 1, answer: 0 };
            }
        }
        place
    }
}

/// One request against one recorded line.
pub(super) struct Comparison<'a> {
    pub placeholders: Placeholders<'a>,
    /// The recorded notice of each job that had one.
    notices: BTreeMap<&'a str, &'a str>,
    /// Jobs whose end this run has seen, by their placeholders.
    ended: BTreeSet<String>,
}

impl<'a> Comparison<'a> {
    pub fn new(context: &'a RecordContext, lines: &'a [Line]) -> Self {
        let heard = lines.iter().flat_map(|line| line.heard.iter().flatten());
        let notices = heard.filter_map(|heard| match heard {
            HeardText::Notice { job, text } => Some((job.as_str(), text.as_str())),
            HeardText::Text(_) | HeardText::Result(_) | HeardText::FailedResult(_) => None,
        });
        Self { placeholders: Placeholders::new(context), notices: notices.collect(), ended: BTreeSet::new() }
    }

    /// Whether every end that the recorded model had been told of in these parts is known here too.
    pub fn has_seen(&self, parts: &[&[HeardText]]) -> bool {
        parts.iter().skip(1).flat_map(|part| part.iter()).all(|heard| match heard {
            HeardText::Notice { job, .. } => self.ended.contains(job),
            HeardText::Text(_) | HeardText::Result(_) | HeardText::FailedResult(_) => true,
        })
    }

    pub fn run<'t>(&mut self, transcript: &Transcript<'t>, request: &Request, line: &Line, expected: &[&[HeardText]]) -> Verdict<'t> {
        let tools = request.prefix.tools.iter().map(|tool| tool.name.as_str());
        let mut found_text = header(tools, request.tool_use == ToolUse::Forbidden);
        let mut expected_text = header(line.tools.iter().map(String::as_str), line.closing);
        let mut early = Vec::new();
        let expected_parts = expected.iter().map(|part| part.iter().filter(|heard| !matches!(heard, HeardText::Notice { .. })));
        let mut expected_parts =
            expected_parts.map(Iterator::collect::<Vec<_>>).enumerate().filter(|(index, part)| *index == 0 || !part.is_empty());
        for (index, part) in transcript.parts.iter().enumerate() {
            let heard: Vec<&Heard<'t>> = part.iter().filter(|heard| !matches!(heard, Heard::Notice { .. })).collect();
            if index == 0 || !heard.is_empty() {
                let recorded = expected_parts.next().map(|(_, part)| part).unwrap_or_default();
                for text in [&mut found_text, &mut expected_text] {
                    text.push_str(&format!("--- before answer {index}\n"));
                }
                for (position, heard) in heard.into_iter().enumerate() {
                    found_text.push_str(&shown(&self.now(heard, recorded.get(position).copied(), &mut early)));
                }
                recorded.iter().for_each(|then| expected_text.push_str(&shown(then)));
            }
            for notice in part.iter().filter(|heard| matches!(heard, Heard::Notice { .. })) {
                self.compare_notice(notice, &mut expected_text, &mut found_text);
            }
        }
        if found_text == expected_text {
            return Verdict::Same;
        }
        if early.is_empty() { Verdict::Different { expected: expected_text, found: found_text } } else { Verdict::Early(early) }
    }

    fn now<'t>(&mut self, heard: &Heard<'t>, then: Option<&HeardText>, early: &mut Vec<Call<'t>>) -> HeardText {
        let Some((call, text)) = look_of(heard) else {
            return noted(heard, &mut self.placeholders);
        };
        let Some(HeardText::Result(then)) = then else {
            return noted(heard, &mut self.placeholders);
        };
        let seen = see(text, then, &mut self.placeholders);
        for (id, _) in blocks(text).filter_map(|block| Some((ended(block)?, block))) {
            self.ended.extend(self.placeholders.known(id).map(str::to_owned));
        }
        if seen.is_early {
            early.push(call);
        }
        HeardText::Result(seen.text)
    }

    /// What a notice says must be what it said, whenever it comes.
    fn compare_notice(&mut self, notice: &Heard<'_>, expected_text: &mut String, found_text: &mut String) {
        let HeardText::Notice { job, text } = noted(notice, &mut self.placeholders) else {
            return;
        };
        if let Some(then) = self.notices.get(job.as_str()) {
            expected_text.push_str(&format!("notice: {then}\n"));
            found_text.push_str(&format!("notice: {text}\n"));
        }
        self.ended.insert(job);
    }
}

fn header<'a>(tools: impl Iterator<Item = &'a str>, closing: bool) -> String {
    let tools: Vec<&str> = tools.collect();
    let closing = if closing { "closing report\n" } else { "" };
    format!("tools: {}\n{closing}", tools.join(", "))
}

fn shown(heard: &HeardText) -> String {
    match heard {
        HeardText::Text(text) => format!("user: {text}\n"),
        HeardText::Notice { text, .. } => format!("notice: {text}\n"),
        HeardText::Result(text) => format!("result: {text}\n"),
        HeardText::FailedResult(text) => format!("failed result: {text}\n"),
    }
}

/// A result that shows how far children have got.
fn look_of<'a>(heard: &Heard<'a>) -> Option<(Call<'a>, &'a str)> {
    match heard {
        Heard::Result { call, text, is_error: false } if call.name == "subagent" => {
            let action = call.input.get("action").and_then(|action| action.as_str());
            matches!(action, Some("poll" | "list")).then_some((*call, text))
        }
        Heard::Result { .. } | Heard::Text(_) | Heard::Notice { .. } => None,
    }
}

struct Seen {
    /// As the recorded text, where the difference is only how far a child has got.
    text: String,
    is_early: bool,
}

/// Between the blocks of a poll; the entries of a list have a blank line and begin with an id.
const POLL_SEPARATOR: &str = "\n---\n";

#[expect(clippy::expect_used, reason = "a constant pattern, compiled by every test that replays a poll")]
static ENDED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(?:>>> (\S+) <<<|(\S+): (?:completed|error|timeout|cancelled|lost) \()").expect("the pattern is constant")
});

/// Compares a look with the recorded one, block by block.
fn see(now: &str, then: &str, placeholders: &mut Placeholders<'_>) -> Seen {
    let ended_then: Vec<(String, &str)> = blocks(then).filter_map(|block| Some((ended(block)?.to_owned(), block))).collect();
    let ended_now: Vec<(&str, &str)> = blocks(now).filter_map(|block| Some((ended(block)?, block))).collect();
    if ended_then.is_empty() && ended_now.is_empty() {
        return Seen { text: placeholders.note(now), is_early: false };
    }
    let mut is_early = false;
    let mut text = then.to_owned();
    for (id, block_then) in &ended_then {
        let same = |live: &&(&str, &str)| placeholders.known(live.0) == Some(id);
        match ended_now.iter().find(same) {
            None => is_early = true,
            Some((_, block_now)) => text = text.replacen(block_then, &placeholders.note(block_now), 1),
        }
    }
    if is_early { Seen { text: placeholders.note(now), is_early } } else { Seen { text, is_early } }
}

fn blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split(POLL_SEPARATOR).flat_map(|part| {
        let mut starts: Vec<usize> = part.match_indices("\n\n").map(|(at, _)| at + 2).collect();
        starts.retain(|at| part[*at..].starts_with("sa_") || part[*at..].starts_with("⟦sa:"));
        starts.insert(0, 0);
        let ends: Vec<usize> = starts.iter().skip(1).map(|start| start - 2).chain([part.len()]).collect();
        starts.into_iter().zip(ends).map(move |(start, end)| &part[start..end]).collect::<Vec<_>>()
    })
}

/// The id of the child whose end this block tells.
fn ended(block: &str) -> Option<&str> {
    let captures = ENDED.captures(block)?;
    captures.get(1).or_else(|| captures.get(2)).map(|id| id.as_str())
}
