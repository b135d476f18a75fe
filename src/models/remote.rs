//! A model behind HTTP: gate, request, retries, and the reading of the answer, the same for both wire formats.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use super::catalog::ResolvedModel;
use super::emit::{self, Emitter};
use super::gate::{Gate, Pass};
use super::http::{self, Http};
use super::retry::{self, Next};
use super::sse::{Frame, Parser};
use super::wire::{Decoder, Fault, Progress};
use super::{Model, ModelError, ModelErrorKind, ModelEvent, Reply, Request, WireFormat, anthropic, openai};
use crate::config::Limits;

/// Connects a chosen model. Nothing is sent and no client is built before the first request.
pub fn open(model: ResolvedModel, limits: &Limits, gate: Gate) -> Arc<dyn Model> {
    let name = model.name();
    let http = Http::new(model.endpoint(), headers(&model), limits, gate.clone());
    Arc::new(Remote { name, connection: Arc::new(Connection { model, http, gate, limits: limits.clone() }) })
}

/// What every request to the provider carries, the key included.
pub(super) fn headers(model: &ResolvedModel) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if model.wire == WireFormat::Anthropic {
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static(anthropic::VERSION));
    }
    if let Some(key) = &model.key {
        let (header, value) = match model.wire {
            WireFormat::Anthropic => (HeaderName::from_static("x-api-key"), key.expose_secret().to_owned()),
            WireFormat::Openai => (reqwest::header::AUTHORIZATION, format!("Bearer {}", key.expose_secret())),
        };
        // `catalog::select` refuses a key that no header can carry.
        headers.extend(http::secret_header(&value).map(|value| (header, value)));
    }
    headers
}

struct Remote {
    name: String,
    connection: Arc<Connection>,
}

struct Connection {
    model: ResolvedModel,
    http: Http,
    gate: Gate,
    limits: Limits,
}

/// Largest answer as it comes over the wire, in bytes.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// Largest single event of a stream, in bytes.
const EVENT_MAX: usize = 32 * 1024 * 1024;
/// How long counts and the end mark are awaited once the provider has said why the answer ends.
const END_MARK_WAIT: Duration = Duration::from_secs(1);
/// How long the end of the body is awaited after the end mark, so that the connection can be used again.
const BODY_END_WAIT: Duration = Duration::from_millis(20);

impl Model for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let connection = self.connection.clone();
        emit::stream(move |emitter| async move { connection.run(&request, &emitter).await })
    }
}

/// One try: its decoder, and whether the reader of the stream has seen anything of it.
struct Attempt {
    decoder: Box<dyn Decoder>,
    has_output: bool,
    /// The refusal could be written where other processes see it.
    gate_closed: bool,
}

impl Connection {
    async fn run(&self, request: &Request, emitter: &Emitter) -> Result<Reply, ModelError> {
        let body = Bytes::from(self.body(request)?);
        let mut failures = 0;
        let mut quiet = false;
        loop {
            self.pass_gate(emitter, quiet).await?;
            let mut attempt = Attempt { decoder: self.decoder(), has_output: false, gate_closed: false };
            let fault = match self.attempt(&body, emitter, &mut attempt).await {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            if fault.held_back {
                continue;
            }
            failures += 1;
            if attempt.has_output {
                return Err(self.broken(fault, &attempt));
            }
            let wait = match retry::next(&fault, failures, &self.limits, rand::random()) {
                Next::Again(wait) => wait,
                Next::GiveUp if failures > 1 => {
                    let message = format!("{} (after {failures} tries)", fault.message);
                    return Err(self.error(Fault { message, ..fault }));
                }
                Next::GiveUp => return Err(self.error(fault)),
                Next::TooLong(wait) => return Err(self.error(Fault { message: self.too_long(&fault.message, wait), ..fault })),
            };
            let reason = self.text(&fault.message);
            emitter.send([ModelEvent::Retrying { attempt: failures, wait, reason }]).await;
            // A closed gate gives a slot of its own; without one the wait is spread here.
            quiet = attempt.gate_closed;
            if !quiet {
                let spread = if fault.retry_after.is_some() { wait.mul_f64(rand::random::<f64>() / 4.0) } else { Duration::ZERO };
                tokio::time::sleep(wait + spread).await;
            }
        }
    }

    /// Waits until the gate lets a request through. `quiet`: the wait has been announced.
    async fn pass_gate(&self, emitter: &Emitter, mut quiet: bool) -> Result<(), ModelError> {
        while let Pass::At { slot, closed } = self.gate.pass().await {
            let reason = "the provider asked all requests with this key to wait";
            if closed > self.limits.retry_wait_max {
                return Err(self.error(Fault::new(ModelErrorKind::RateLimited, self.too_long(reason, closed))));
            }
            if !std::mem::take(&mut quiet) {
                emitter.send([ModelEvent::Waiting { wait: slot, reason: self.text(reason) }]).await;
            }
            tokio::time::sleep(slot).await;
            if !self.gate.is_closed() {
                break;
            }
        }
        Ok(())
    }

    async fn attempt(&self, body: &Bytes, emitter: &Emitter, attempt: &mut Attempt) -> Result<Reply, Fault> {
        let gate_closed = &mut attempt.gate_closed;
        let answer = self.http.post(body.clone(), |wait| *gate_closed = self.gate.close(wait).is_ok_and(|()| self.gate.is_shared()));
        let mut answer = answer.await?;
        let mut input = Input::Unknown(Vec::new());
        let (mut size, mut n_frames) = (0_usize, 0_usize);
        let (mut frames, mut events) = (Vec::new(), VecDeque::new());
        loop {
            let hurry = attempt.decoder.has_stop_reason().then_some(END_MARK_WAIT);
            let chunk = match answer.chunk(hurry).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(fault) if fault.kind == ModelErrorKind::TimedOut && attempt.decoder.has_stop_reason() => break,
                Err(fault) => return Err(fault),
            };
            size += chunk.len();
            if size > ANSWER_MAX {
                return Err(Fault::new(ModelErrorKind::Garbled, format!("an answer of more than {ANSWER_MAX} bytes")));
            }
            input.push(&chunk, &mut frames)?;
            n_frames += frames.len();
            let progress = take_frames(&mut frames, attempt.decoder.as_mut(), &mut events);
            self.announce(&mut events, emitter, attempt).await;
            if progress? == Progress::Ended {
                // What comes after the end mark means nothing.
                while let Ok(Some(_)) = answer.chunk(Some(BODY_END_WAIT)).await {}
                break;
            }
        }
        match input {
            Input::Unknown(_) => return Err(Fault::new(ModelErrorKind::Empty, "status 200 without any content")),
            Input::Object(bytes) => {
                let value = serde_json::from_slice(&bytes)
                    .map_err(|error| Fault::new(ModelErrorKind::Garbled, format!("the answer is not valid JSON ({error})")))?;
                attempt.decoder.whole(&value, &mut events)?;
                self.announce(&mut events, emitter, attempt).await;
            }
            Input::Stream(_) if n_frames == 0 => {
                return Err(Fault::new(ModelErrorKind::Garbled, "the answer is not a stream of events"));
            }
            Input::Stream(_) => {}
        }
        attempt.decoder.finish()
    }

    async fn announce(&self, events: &mut VecDeque<ModelEvent>, emitter: &Emitter, attempt: &mut Attempt) {
        if !events.is_empty() {
            attempt.has_output = true;
            emitter.send(events.drain(..)).await;
        }
    }

    fn body(&self, request: &Request) -> Result<Vec<u8>, ModelError> {
        let model = self.model.model.as_str();
        let reasoning = self.model.reasoning.as_deref();
        let body = match self.model.wire {
            WireFormat::Anthropic => {
                let max_output = self.model.max_output.unwrap_or_else(|| anthropic::default_max_output(model));
                anthropic::body(request, anthropic::Settings { model, max_output, reasoning })
            }
            WireFormat::Openai => openai::body(request, openai::Settings { model, reasoning, is_openai: self.model.provider == "openai" }),
        };
        body.map_err(|error| self.error(Fault::new(ModelErrorKind::InvalidRequest, format!("the request cannot be written: {error}"))))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        match self.model.wire {
            WireFormat::Anthropic => Box::new(anthropic::Reader::default()),
            WireFormat::Openai => Box::new(openai::Reader::default()),
        }
    }

    /// A failure after output: whatever the provider calls it, the answer was interrupted.
    fn broken(&self, mut fault: Fault, attempt: &Attempt) -> ModelError {
        fault.kind = match fault.kind {
            kind @ (ModelErrorKind::TimedOut | ModelErrorKind::Garbled | ModelErrorKind::Empty) => kind,
            _ => ModelErrorKind::Interrupted,
        };
        ModelError { partial: attempt.decoder.partial(), usage: attempt.decoder.usage(), ..self.error(fault) }
    }

    fn error(&self, fault: Fault) -> ModelError {
        ModelError {
            kind: fault.kind,
            message: self.text(&fault.message),
            partial: None,
            status: fault.status,
            usage: super::Usage::default(),
        }
    }

    fn too_long(&self, reason: &str, wait: Duration) -> String {
        let longest = self.limits.retry_wait_max.as_secs_f64();
        format!("{reason}; it asks to wait {:.0} s, longer than {longest:.0} s (limit `retry_wait_max`)", wait.as_secs_f64())
    }

    /// With the provider's name and without the key, which some servers repeat in their errors.
    fn text(&self, message: &str) -> String {
        let key = self.model.key.as_ref().map(SecretString::expose_secret);
        let message = match key.filter(|key| key.len() >= crate::secrets::SECRET_MIN) {
            Some(key) => message.replace(key, "[key]"),
            None => message.to_owned(),
        };
        format!("{}: {message}", self.model.provider)
    }
}

fn take_frames(frames: &mut Vec<Frame>, decoder: &mut dyn Decoder, events: &mut VecDeque<ModelEvent>) -> Result<Progress, Fault> {
    for frame in frames.drain(..) {
        if decoder.frame(&frame, events)? == Progress::Ended {
            return Ok(Progress::Ended);
        }
    }
    Ok(Progress::More)
}

/// What the body turns out to be; its first character tells, since the declared type often does not.
enum Input {
    Unknown(Vec<u8>),
    Object(Vec<u8>),
    Stream(Parser),
}

impl Input {
    fn push(&mut self, chunk: &[u8], frames: &mut Vec<Frame>) -> Result<(), Fault> {
        let too_large = |error: super::sse::EventTooLarge| Fault::new(ModelErrorKind::Garbled, error.to_string());
        match self {
            Self::Object(bytes) => bytes.extend_from_slice(chunk),
            Self::Stream(parser) => parser.push(chunk, frames).map_err(too_large)?,
            Self::Unknown(before) => {
                before.extend_from_slice(chunk);
                let first = before.strip_prefix(b"\xef\xbb\xbf").unwrap_or(before).trim_ascii_start().first().copied();
                let bytes = match first {
                    None => return Ok(()),
                    Some(b'<') => return Err(Fault::new(ModelErrorKind::Garbled, "a web page instead of an answer")),
                    Some(_) => std::mem::take(before),
                };
                if first == Some(b'{') || first == Some(b'[') {
                    *self = Self::Object(bytes);
                } else {
                    let mut parser = Parser::new(EVENT_MAX);
                    parser.push(&bytes, frames).map_err(too_large)?;
                    *self = Self::Stream(parser);
                }
            }
        }
        Ok(())
    }
}
