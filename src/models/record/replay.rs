//! Plays a recording: finds the conversation by its task, compares what the session says with what was heard then, and
//! answers with the values of this run. It keeps no state, so resumed sessions and child processes need none either.
//!
//! How far a child has got when its parent looks is chance. A look (`poll`, `list`) that shows more than it did in the
//! recording is accepted; one that shows less makes the replay look again before it goes on. When the notice of an end
//! comes is chance as well: answers that the recorded model gave to notices alone are given once those have been seen.
//! Everything else that differs is a mismatch, told as a diff.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use futures_util::stream::{self, BoxStream, StreamExt};
use regex::Regex;
use similar::TextDiff;

use super::file::{self, HeardText, Line, Outcome, RecordingError};
use super::placeholders::Placeholders;
use super::recorder::noted;
use super::transcript::{Call, Heard, Transcript, WAIT_PREFIX};
use super::{RecordContext, with_texts};
use crate::models::{Block, Message, Model, ModelError, ModelErrorKind, ModelEvent, Reply, Request, Role, StopReason, ToolUse, Usage};

/// Looks that a replay makes on its own in one conversation; each waits for seconds.
const WAITS_MAX: usize = 200;
/// Lines of a diff that are shown.
const DIFF_LINES_MAX: usize = 200;
/// Lines around a difference.
const DIFF_CONTEXT: usize = 3;

/// A model that plays a recording.
pub fn replaying(path: &Path, context: RecordContext) -> Result<Arc<dyn Model>, RecordingError> {
    let (head, lines) = file::read(path)?;
    let mut conversations: BTreeMap<u32, Recorded> = BTreeMap::new();
    for line in lines {
        conversations.entry(line.conversation).or_default().lines.push(line);
    }
    let conversations = conversations.into_values().collect();
    Ok(Arc::new(Replay { name: head.model, path: path.to_owned(), context, conversations }))
}

struct Replay {
    name: String,
    path: PathBuf,
    context: RecordContext,
    conversations: Vec<Recorded>,
}

/// One recorded conversation, in the order of its requests.
#[derive(Default)]
struct Recorded {
    lines: Vec<Line>,
}

/// What comparing a request with a recorded one gives.
enum Verdict<'a> {
    Same,
    /// A child has not got as far as it had in the recording.
    Early(Vec<Call<'a>>),
    Different {
        expected: String,
        found: String,
    },
}

impl Model for Replay {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let outcome = self.answer(&request);
        let mut events: Vec<Result<ModelEvent, ModelError>> = Vec::new();
        let shown = match &outcome {
            Ok(reply) => Some(&reply.message),
            Err(error) => error.partial.as_ref(),
        };
        for block in shown.into_iter().flat_map(|message| &message.blocks) {
            match block {
                Block::Text { text } => events.push(Ok(ModelEvent::TextDelta(text.clone()))),
                Block::Thinking { text, .. } => events.push(Ok(ModelEvent::ThinkingDelta(text.clone()))),
                Block::ToolUse { id, name, .. } => {
                    events.push(Ok(ModelEvent::ToolUseStarted { id: id.clone(), name: name.clone() }));
                }
                Block::ToolResult { .. } | Block::Other { .. } => {}
            }
        }
        events.push(outcome.map(ModelEvent::Finished));
        stream::iter(events).boxed()
    }
}

impl Replay {
    fn answer(&self, request: &Request) -> Result<Reply, ModelError> {
        let transcript = Transcript::read(request);
        let task = Placeholders::new(&self.context).note(transcript.task());
        let turn = transcript.turn();
        let of_task: Vec<&Recorded> = self.conversations.iter().filter(|recorded| recorded.task() == task).collect();
        if of_task.is_empty() {
            return Err(self.unknown_task(&task));
        }
        let place = Place::of(&transcript.parts, |heard| matches!(heard, Heard::Notice { .. }));
        let mut first_difference = None;
        for recorded in &of_task {
            let mut best: Option<(Place, &Line, Placeholders<'_>)> = None;
            for (index, line) in recorded.lines.iter().enumerate() {
                let expected = recorded.heard_until(index);
                let recorded_place = Place::of(&expected, |heard| matches!(heard, HeardText::Notice { .. }));
                if recorded_place.act != place.act {
                    continue;
                }
                let mut comparison = Comparison::new(&self.context, recorded);
                match comparison.run(&transcript, request, line, &expected) {
                    Verdict::Same if !comparison.has_seen(&expected[recorded_place.first_part..]) => {}
                    Verdict::Same if best.as_ref().is_some_and(|(best, ..)| best.answer >= recorded_place.answer) => {}
                    Verdict::Same => best = Some((recorded_place, line, comparison.placeholders)),
                    Verdict::Early(calls) => return self.look_again(&calls, transcript.n_waits),
                    Verdict::Different { expected, found } => _ = first_difference.get_or_insert((expected, found)),
                }
            }
            if let Some((recorded_place, line, placeholders)) = best {
                let reply = play(&line.outcome, &placeholders);
                return if recorded_place.answer < place.answer { reply.map(said_before) } else { reply };
            }
        }
        let about: String = task.chars().take(80).collect();
        let named = format!("turn {turn} of the conversation `{}`", about.lines().next().unwrap_or_default());
        Err(self.mismatch(match first_difference {
            Some((expected, found)) => format!("{named} differs\n{}", diff(&expected, &found)),
            None => {
                let n_turns = of_task.iter().flat_map(|recorded| &recorded.lines).map(|line| line.turn + 1).max().unwrap_or_default();
                format!("{named} was asked for, but it has only {n_turns} turns")
            }
        }))
    }

    fn look_again(&self, calls: &[Call<'_>], n_waits: usize) -> Result<Reply, ModelError> {
        if n_waits >= WAITS_MAX {
            return Err(self.mismatch(format!("a child that had ended in the recording has not ended after {WAITS_MAX} looks")));
        }
        let block = |call: &Call<'_>| Block::ToolUse {
            id: format!("{WAIT_PREFIX}{n_waits}_{}", call.id),
            name: call.name.to_owned(),
            input: call.input.clone(),
        };
        let message = Message { role: Role::Assistant, blocks: calls.iter().map(block).collect() };
        Ok(Reply { message, usage: Usage::default(), stop: StopReason::ToolUse })
    }

    fn unknown_task(&self, task: &str) -> ModelError {
        let mut tasks: Vec<&str> = self.conversations.iter().map(Recorded::task).collect();
        tasks.dedup();
        let ratio = |known: &&&str| -> u32 { (TextDiff::from_chars(**known, task).ratio() * 1000.0) as u32 };
        let nearest = tasks.iter().max_by_key(ratio).copied().unwrap_or_default();
        self.mismatch(format!(
            "no conversation has this task; the nearest differs\n{}",
            diff(&format!("{nearest}\n"), &format!("{task}\n"))
        ))
    }

    fn mismatch(&self, message: String) -> ModelError {
        ModelError {
            kind: ModelErrorKind::ScriptMismatch,
            message: format!("recording {}: {message}", self.path.display()),
            partial: None,
            status: None,
            usage: Usage::default(),
        }
    }
}

impl Recorded {
    fn task(&self) -> &str {
        self.lines.first().map(|line| line.task.as_str()).unwrap_or_default()
    }

    /// Everything heard up to this request, put together from the lines before it.
    fn heard_until(&self, index: usize) -> Vec<&[HeardText]> {
        let mut heard: Vec<&[HeardText]> = Vec::new();
        for line in self.lines.iter().take(index + 1) {
            heard.truncate(line.first_part);
            heard.extend(line.heard.iter().map(Vec::as_slice));
        }
        heard
    }
}

fn play(outcome: &Outcome, placeholders: &Placeholders<'_>) -> Result<Reply, ModelError> {
    let live = |message: &Message| with_texts(message, &|text| placeholders.restore(text));
    match outcome {
        Outcome::Reply { message, stop, usage } => Ok(Reply { message: live(message), usage: *usage, stop: stop.clone() }),
        Outcome::Error { kind, message, partial, status, usage } => Err(ModelError {
            kind: *kind,
            message: placeholders.restore(message),
            partial: partial.as_ref().map(live),
            status: *status,
            usage: *usage,
        }),
    }
}

/// Where in a conversation a request stands, when answers to nothing but notices are not counted as steps of their own.
#[derive(Clone, Copy)]
struct Place {
    /// Number of the last part that holds more than notices.
    first_part: usize,
    /// How many such parts there were before it.
    act: usize,
    /// Answers given since then.
    answer: usize,
}

impl Place {
    fn of<T>(parts: &[impl AsRef<[T]>], is_notice: impl Fn(&T) -> bool) -> Self {
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

/// The answer was given already and something came after all: the words once more, but nothing is done twice.
fn said_before(mut reply: Reply) -> Reply {
    reply.message.blocks.retain(|block| matches!(block, Block::Text { .. }));
    if reply.message.blocks.is_empty() {
        reply.message.blocks.push(Block::Text { text: "(nothing new)".to_owned() });
    }
    reply.stop = StopReason::EndTurn;
    reply
}

/// One request against one recorded line.
struct Comparison<'a> {
    placeholders: Placeholders<'a>,
    /// The recorded notice of each job that had one.
    notices: BTreeMap<&'a str, &'a str>,
    /// Jobs whose end this run has seen, by their placeholders.
    ended: BTreeSet<String>,
}

impl<'a> Comparison<'a> {
    fn new(context: &'a RecordContext, recorded: &'a Recorded) -> Self {
        let heard = recorded.lines.iter().flat_map(|line| line.heard.iter().flatten());
        let notices = heard.filter_map(|heard| match heard {
            HeardText::Notice { job, text } => Some((job.as_str(), text.as_str())),
            HeardText::Text(_) | HeardText::Result(_) | HeardText::FailedResult(_) => None,
        });
        Self { placeholders: Placeholders::new(context), notices: notices.collect(), ended: BTreeSet::new() }
    }

    /// Whether every end that the recorded model had been told of in these parts is known here too.
    fn has_seen(&self, parts: &[&[HeardText]]) -> bool {
        parts.iter().skip(1).flat_map(|part| part.iter()).all(|heard| match heard {
            HeardText::Notice { job, .. } => self.ended.contains(job),
            HeardText::Text(_) | HeardText::Result(_) | HeardText::FailedResult(_) => true,
        })
    }

    fn run<'t>(&mut self, transcript: &Transcript<'t>, request: &Request, line: &Line, expected: &[&[HeardText]]) -> Verdict<'t> {
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

fn diff(expected: &str, found: &str) -> String {
    let diff = TextDiff::from_lines(expected, found);
    let text = diff.unified_diff().context_radius(DIFF_CONTEXT).header("recorded", "now").to_string();
    let n_lines = text.lines().count();
    let mut shown: Vec<&str> = text.lines().take(DIFF_LINES_MAX).collect();
    let rest = format!("... {} more lines", n_lines.saturating_sub(DIFF_LINES_MAX));
    if n_lines > DIFF_LINES_MAX {
        shown.push(&rest);
    }
    shown.join("\n")
}
