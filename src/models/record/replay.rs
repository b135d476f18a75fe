//! Plays a recording: finds the conversation by its task, compares what the session says with what was heard then, and
//! answers with the values of this run. It keeps no state, so resumed sessions and child processes need none either.
//!
//! How far a child has got when its parent looks is chance. A look (`poll`, `list`) that shows more than it did in the
//! recording is accepted; one that shows less makes the replay look again before it goes on. When the notice of an end
//! comes is chance as well: answers that the recorded model gave to notices alone are given once those have been seen.
//! Everything else that differs is a mismatch, told as a diff.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use similar::TextDiff;

use super::comparison::{Comparison, Place, Verdict};
use super::file::{self, HeardText, Line, Outcome, RecordingError};
use super::placeholders::Placeholders;
use super::transcript::{Call, Heard, Transcript, WAIT_PREFIX};
use super::{RecordContext, with_texts};
use crate::models::{Block, Message, Model, ModelError, ModelErrorKind, ModelEvent, Reply, Request, Role, StopReason, Usage};

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
    let conversations: Vec<Recorded> = conversations.into_values().collect();
    if let Some(turn) = conversations.iter().filter_map(|recorded| recorded.lines.first()).map(|line| line.turn).find(|turn| *turn > 0) {
        return Err(RecordingError::Headless { path: path.to_owned(), turn });
    }
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
                let mut comparison = Comparison::new(&self.context, &recorded.lines);
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

/// The answer was given already and something came after all: the words once more, but nothing is done twice.
fn said_before(mut reply: Reply) -> Reply {
    reply.message.blocks.retain(|block| matches!(block, Block::Text { .. }));
    if reply.message.blocks.is_empty() {
        reply.message.blocks.push(Block::Text { text: "(nothing new)".to_owned() });
    }
    reply.stop = StopReason::EndTurn;
    reply
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
