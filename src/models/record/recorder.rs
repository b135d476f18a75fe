//! Writes down each request of a model and what came of it, before the session sees the answer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{BoxStream, StreamExt};

use super::RecordContext;
use super::file::{self, HeardText, Line, Outcome, RecordingError};
use super::placeholders::Placeholders;
use super::transcript::{Heard, Transcript};
use crate::ids::SessionId;
use crate::models::{Block, Message, Model, ModelError, ModelErrorKind, ModelEvent, Request, ToolUse, Usage};

/// A recording that is being written, by this process and by its children.
#[derive(Clone)]
pub struct Recorder {
    path: PathBuf,
    context: RecordContext,
    /// What the file has of each session of this process.
    sessions: Arc<Mutex<HashMap<SessionId, Progress>>>,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    conversation: u32,
    n_parts: usize,
}

impl Recorder {
    /// Makes the file; an older recording at this path is replaced, any other file is left alone. `model` is the name
    /// of the model that is recorded.
    pub fn create(path: &Path, model: &str, context: RecordContext) -> Result<Self, RecordingError> {
        file::create(path, model)?;
        Ok(Self::join(path, context))
    }

    /// For a child: appends to the file that its parent has made.
    pub fn join(path: &Path, context: RecordContext) -> Self {
        Self { path: path.to_owned(), context, sessions: Arc::default() }
    }

    /// Blocking: waits for the lock of the file.
    fn write(&self, request: &Request, outcome: &Result<crate::models::Reply, ModelError>) -> Result<(), RecordingError> {
        let transcript = Transcript::read(request);
        let mut placeholders = Placeholders::new(&self.context);
        let mut heard: Vec<Vec<HeardText>> = Vec::with_capacity(transcript.parts.len());
        for part in &transcript.parts {
            heard.push(part.iter().map(|item| noted(item, &mut placeholders)).collect());
        }
        let progress = self.progress(&request.session);
        let first_part = progress.n_parts.min(transcript.turn());
        let line = Line {
            conversation: progress.conversation,
            turn: transcript.turn(),
            task: Placeholders::new(&self.context).note(transcript.task()),
            tools: request.prefix.tools.iter().map(|tool| tool.name.clone()).collect(),
            closing: request.tool_use == ToolUse::Forbidden,
            first_part,
            heard: heard.split_off(first_part),
            outcome: outcome_of(outcome, &placeholders),
        };
        let n_parts = transcript.parts.len();
        let conversation = file::append(&self.path, line)?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.insert(request.session.clone(), Progress { conversation, n_parts });
        Ok(())
    }

    fn progress(&self, session: &SessionId) -> Progress {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(session).copied().unwrap_or_default()
    }
}

/// The same model, with every answer written down.
pub fn recording(inner: Arc<dyn Model>, recorder: Recorder) -> Arc<dyn Model> {
    Arc::new(Recording { inner, recorder })
}

struct Recording {
    inner: Arc<dyn Model>,
    recorder: Recorder,
}

impl Model for Recording {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let recorder = self.recorder.clone();
        let events = self.inner.stream(request.clone());
        let request = Arc::new(request);
        events
            .then(move |item| {
                let recorder = recorder.clone();
                let request = request.clone();
                async move {
                    let outcome = match item {
                        Ok(ModelEvent::Finished(reply)) => Ok(reply),
                        Err(error) => Err(error),
                        Ok(event) => return Ok(event),
                    };
                    keep(recorder, request, outcome).await.map(ModelEvent::Finished)
                }
            })
            .boxed()
    }
}

/// An answer that could not be written down is an error: a recording with holes cannot be played.
async fn keep(
    recorder: Recorder,
    request: Arc<Request>,
    outcome: Result<crate::models::Reply, ModelError>,
) -> Result<crate::models::Reply, ModelError> {
    let written = outcome.clone();
    let task = tokio::task::spawn_blocking(move || recorder.write(&request, &written));
    let failure = match task.await {
        Ok(Ok(())) => return outcome,
        Ok(Err(error)) => error.to_string(),
        Err(error) => format!("cannot write the recording: {error}"),
    };
    let partial = outcome.ok().map(|reply| reply.message);
    Err(ModelError { kind: ModelErrorKind::ScriptMismatch, message: failure, partial, status: None, usage: Usage::default() })
}

pub(super) fn noted(heard: &Heard<'_>, placeholders: &mut Placeholders<'_>) -> HeardText {
    match heard {
        Heard::Text(text) => HeardText::Text(placeholders.note(text)),
        // A notice comes when it comes: it must not change the numbers of what is heard after it.
        Heard::Notice { job, text } => {
            let mut aside = placeholders.clone();
            HeardText::Notice { job: aside.note(job), text: aside.note(text) }
        }
        Heard::Result { text, is_error: false, .. } => HeardText::Result(placeholders.note(text)),
        Heard::Result { text, is_error: true, .. } => HeardText::FailedResult(placeholders.note(text)),
    }
}

fn outcome_of(outcome: &Result<crate::models::Reply, ModelError>, placeholders: &Placeholders<'_>) -> Outcome {
    let masked = |message: &Message| super::with_texts(message, &|text| placeholders.mask(text));
    match outcome {
        Ok(reply) => Outcome::Reply { message: unsigned(masked(&reply.message)), stop: reply.stop.clone(), usage: reply.usage },
        Err(error) => Outcome::Error {
            kind: error.kind,
            message: placeholders.mask(&error.message),
            partial: error.partial.as_ref().map(masked).map(unsigned),
            status: error.status,
            usage: error.usage,
        },
    }
}

/// The provider's proofs of origin are of use to the provider alone.
fn unsigned(mut message: Message) -> Message {
    for block in &mut message.blocks {
        if let Block::Thinking { signature, .. } = block {
            *signature = None;
        }
    }
    message
}
