//! A real HTTP server on loopback that speaks the providers' wire formats from a script.
//!
//! `Provider::answers([..])` gives one answer per request, `Provider::with(|request| ..)` decides per request. The wire
//! format follows the path: `/v1/messages` (Anthropic), `/v1/chat/completions` (OpenAI), `/v1/models` lists models.
//! Every request is recorded with its arrival. The server ends when the `Provider` is dropped.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

type Handler = dyn Fn(&RecordedRequest) -> Answer + Send + Sync;

pub struct Provider {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// Number of the request, from 0, in order of arrival.
    pub index: usize,
    /// When the last byte of the request had been read.
    pub at: Instant,
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// `Null` when the body is not JSON.
    pub json: Value,
}

/// What the server does with one request.
#[derive(Clone, Debug)]
pub struct Answer {
    kind: Kind,
    parts: Vec<Part>,
    usage: Usage,
    stop: Option<&'static str>,
    delay: Duration,
    gate: Option<Gate>,
    split: usize,
    break_after: Option<(usize, Break)>,
}

/// Holds answers back until it is opened.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

#[derive(Clone, Debug)]
enum Kind {
    /// A well-formed answer, streamed when the request asks for it.
    Reply,
    /// As `Reply`, but as one JSON object whatever the request says.
    Whole,
    Raw {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// The request is read and never answered.
    Stall,
    /// The connection is reset without an answer.
    Reset,
    /// The connection is closed without an answer.
    Close,
    /// A stream of exactly these events (`event` may be empty).
    Events(Vec<(String, String)>),
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Thinking(String, String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    /// An Anthropic block sent as it is, without deltas.
    Block(Value),
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
}

/// How a stream breaks after some of its events.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Break {
    /// The body ends as if it were complete.
    End,
    /// The connection closes inside the body.
    Cut,
    Reset,
    /// Nothing more comes, the connection stays open.
    Silence,
}

struct Shared {
    handler: Box<Handler>,
    requests: Mutex<Vec<RecordedRequest>>,
    closing: AtomicBool,
    /// Clients that went away while an answer was held back or being written.
    hung_up: AtomicUsize,
    connections: AtomicUsize,
    connections_made: AtomicUsize,
    models: Mutex<Vec<String>>,
}

impl Provider {
    /// Decides per request; the closure may hold state behind a mutex.
    pub fn with(handler: impl Fn(&RecordedRequest) -> Answer + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0".parse().unwrap(), handler)
    }

    /// As [`Provider::with`], on a given address.
    pub fn on(address: SocketAddr, handler: impl Fn(&RecordedRequest) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            requests: Mutex::new(Vec::new()),
            closing: AtomicBool::new(false),
            hung_up: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            connections_made: AtomicUsize::new(0),
            models: Mutex::new(vec!["test-model".to_owned()]),
        });
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// One answer per request, in order of arrival; a request beyond them gets 500 `script exhausted`.
    pub fn answers(answers: impl IntoIterator<Item = Answer>) -> Self {
        let answers = Mutex::new(answers.into_iter().collect::<VecDeque<_>>());
        Self::with(move |_| answers.lock().unwrap().pop_front().unwrap_or_else(|| Answer::error(500, "script exhausted")))
    }

    /// The same answer to every request.
    pub fn always(answer: Answer) -> Self {
        Self::with(move |_| answer.clone())
    }

    /// `http://127.0.0.1:PORT`, without `/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set_models(&self, models: &[&str]) {
        *self.shared.models.lock().unwrap() = models.iter().map(|model| (*model).to_owned()).collect();
    }

    /// Every model request so far (`/v1/models` is not one), in order of arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub fn request_count(&self) -> usize {
        self.shared.requests.lock().unwrap().len()
    }

    /// How many clients went away before their answer was complete.
    pub fn hung_up(&self) -> usize {
        self.shared.hung_up.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Connections accepted so far.
    pub fn connections_made(&self) -> usize {
        self.shared.connections_made.load(Ordering::SeqCst)
    }

    /// Points a `zapmyco` command at this server as provider `anthropic`.
    pub fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("ANTHROPIC_BASE_URL", self.base_url()).env("ANTHROPIC_API_KEY", "test-key")
    }

    /// Points a `zapmyco` command at this server as provider `openai`.
    pub fn configure_openai<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("OPENAI_BASE_URL", self.base_url()).env("OPENAI_API_KEY", "test-key")
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// An address that refuses connections as long as it lives: the port is taken, and nobody listens.
pub struct Refusing {
    _socket: std::os::fd::OwnedFd,
    pub address: SocketAddr,
}

impl Refusing {
    pub fn new() -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { _socket: socket, address }
    }
}

impl RecordedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == &name.to_lowercase()).map(|(_, value)| value.as_str())
    }

    pub fn is_anthropic(&self) -> bool {
        self.path.ends_with("/messages")
    }

    pub fn messages(&self) -> &[Value] {
        self.json["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Every text a model would read in the messages with this role, in order.
    pub fn texts(&self, role: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for message in self.messages().iter().filter(|message| message["role"] == role) {
            collect_texts(&message["content"], &mut texts);
        }
        texts
    }

    /// The first user text that is not context: what the session was asked to do. Tells sessions apart.
    pub fn task(&self) -> String {
        self.texts("user").into_iter().find(|text| !text.starts_with("<context name=")).unwrap_or_default()
    }

    /// All texts of user messages joined by newlines: what scripts look for a task in.
    pub fn user_text(&self) -> String {
        self.texts("user").join("\n")
    }

    /// The text of the last message.
    pub fn last_text(&self) -> String {
        let mut texts = Vec::new();
        if let Some(message) = self.messages().last() {
            collect_texts(&message["content"], &mut texts);
        }
        texts.join("\n")
    }

    /// How many answers of the model this conversation holds: the number of the turn to play.
    pub fn turn(&self) -> usize {
        self.messages().iter().filter(|message| message["role"] == "assistant").count()
    }

    /// Tool results of the whole conversation in order: call id and text.
    pub fn tool_results(&self) -> Vec<(String, String)> {
        let mut results = Vec::new();
        for message in self.messages() {
            if message["role"] == "tool" {
                let mut texts = Vec::new();
                collect_texts(&message["content"], &mut texts);
                results.push((message["tool_call_id"].as_str().unwrap_or_default().to_owned(), texts.join("\n")));
            }
            for block in message["content"].as_array().into_iter().flatten().filter(|block| block["type"] == "tool_result") {
                let mut texts = Vec::new();
                collect_texts(&block["content"], &mut texts);
                results.push((block["tool_use_id"].as_str().unwrap_or_default().to_owned(), texts.join("\n")));
            }
        }
        results
    }

    pub fn tool_names(&self) -> Vec<String> {
        let tools = self.json["tools"].as_array().map_or(&[][..], Vec::as_slice);
        tools.iter().filter_map(|tool| tool["name"].as_str().or(tool["function"]["name"].as_str())).map(str::to_owned).collect()
    }

    /// The system prompt.
    pub fn system(&self) -> String {
        let mut texts = Vec::new();
        collect_texts(&self.json["system"], &mut texts);
        texts.extend(self.texts("system"));
        texts.join("\n")
    }
}

fn collect_texts(content: &Value, texts: &mut Vec<String>) {
    match content {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(blocks) => {
            for block in blocks {
                match block["type"].as_str() {
                    Some("text") => texts.extend(block["text"].as_str().map(str::to_owned)),
                    Some("tool_result") => collect_texts(&block["content"], texts),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

impl Answer {
    /// An answer without content; add parts to it.
    pub fn new() -> Self {
        Self::of(Kind::Reply)
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self::new().and_text(text)
    }

    pub fn call(id: &str, name: &str, input: Value) -> Self {
        Self::new().and_call(id, name, input)
    }

    pub fn thinking(text: &str, signature: &str) -> Self {
        let mut answer = Self::new();
        answer.parts.push(Part::Thinking(text.to_owned(), signature.to_owned()));
        answer
    }

    /// Any status with a body; `content-type` is JSON unless a header says otherwise.
    pub fn status(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::of(Kind::Raw { status, headers: Vec::new(), body: body.into() })
    }

    /// A status with the provider's JSON error shape (read by both wire formats).
    pub fn error(status: u16, message: &str) -> Self {
        Self::status(status, json!({"type": "error", "error": {"type": "test_error", "message": message}}).to_string())
    }

    /// 429 with `Retry-After` in seconds.
    pub fn rate_limited(seconds: u64) -> Self {
        Self::error(429, "slow down").with_header("retry-after", &seconds.to_string())
    }

    pub fn stall() -> Self {
        Self::of(Kind::Stall)
    }

    pub fn reset() -> Self {
        Self::of(Kind::Reset)
    }

    pub fn close() -> Self {
        Self::of(Kind::Close)
    }

    /// 200 without a body.
    pub fn empty() -> Self {
        Self::status(200, "")
    }

    /// 200 with a web page.
    pub fn garbage() -> Self {
        Self::status(200, "<html><body>captive portal</body></html>").with_header("content-type", "text/html")
    }

    /// A stream of exactly these data lines.
    pub fn data<S: Into<String>>(data: impl IntoIterator<Item = S>) -> Self {
        Self::of(Kind::Events(data.into_iter().map(|data| (String::new(), data.into())).collect()))
    }

    pub fn and_text(mut self, text: impl Into<String>) -> Self {
        self.parts.push(Part::Text(text.into()));
        self
    }

    pub fn and_call(mut self, id: &str, name: &str, input: Value) -> Self {
        self.parts.push(Part::Call { id: id.to_owned(), name: name.to_owned(), arguments: input.to_string() });
        self
    }

    /// A call whose arguments are these characters, JSON or not.
    pub fn and_raw_call(mut self, id: &str, name: &str, arguments: &str) -> Self {
        self.parts.push(Part::Call { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() });
        self
    }

    /// An Anthropic content block sent as it is.
    pub fn and_block(mut self, block: Value) -> Self {
        self.parts.push(Part::Block(block));
        self
    }

    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        match &mut self.kind {
            Kind::Raw { headers, .. } => headers.push((name.to_owned(), value.to_owned())),
            _ => panic!("headers are for raw answers"),
        }
        self
    }

    pub fn with_usage(mut self, input: u64, output: u64) -> Self {
        self.usage.input = input;
        self.usage.output = output;
        self
    }

    pub fn with_cache(mut self, read: u64, write: u64) -> Self {
        self.usage.cache_read = read;
        self.usage.cache_write = write;
        self
    }

    /// The wire format's own word, for example `max_tokens` or `length`.
    pub fn with_stop(mut self, stop: &'static str) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Sent as one JSON object although a stream was asked for.
    pub fn whole(mut self) -> Self {
        self.kind = Kind::Whole;
        self
    }

    /// Server time before the first byte.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Held back until the gate opens (or the client goes away).
    pub fn when(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// Body in pieces of so many bytes, without regard to characters or lines.
    pub fn split(mut self, bytes: usize) -> Self {
        self.split = bytes.max(1);
        self
    }

    /// After so many events the connection closes inside the body.
    pub fn cut_after(self, events: usize) -> Self {
        self.broken(events, Break::Cut)
    }

    /// After so many events the body ends in good form, as if that had been all.
    pub fn end_after(self, events: usize) -> Self {
        self.broken(events, Break::End)
    }

    pub fn reset_after(self, events: usize) -> Self {
        self.broken(events, Break::Reset)
    }

    pub fn silence_after(self, events: usize) -> Self {
        self.broken(events, Break::Silence)
    }

    fn broken(mut self, events: usize, how: Break) -> Self {
        self.break_after = Some((events, how));
        self
    }

    fn of(kind: Kind) -> Self {
        let usage = Usage { input: 10, output: 5, cache_read: 0, cache_write: 0 };
        Self { kind, parts: Vec::new(), usage, stop: None, delay: Duration::ZERO, gate: None, split: usize::MAX, break_after: None }
    }

    fn has_calls(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Call { .. }))
    }
}

impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap()
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut workers = Vec::new();
    for stream in listener.incoming() {
        if shared.closing.load(Ordering::SeqCst) {
            break;
        }
        let Ok(stream) = stream else { continue };
        let shared = shared.clone();
        workers.push(std::thread::spawn(move || {
            shared.connections.fetch_add(1, Ordering::SeqCst);
            shared.connections_made.fetch_add(1, Ordering::SeqCst);
            // A broken connection is the client's business.
            let _ = serve(stream, &shared);
            shared.connections.fetch_sub(1, Ordering::SeqCst);
        }));
        workers.retain(|worker| !worker.is_finished());
    }
    for worker in workers {
        let _ = worker.join();
    }
}

/// Serves the requests of one connection until it closes.
fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TICK))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = read_request(&mut reader, shared)? {
        let reply = if request.method == "GET" && request.path.ends_with("/models") {
            let models = shared.models.lock().unwrap().clone();
            let data: Vec<_> = models.iter().map(|id| json!({"id": id, "object": "model"})).collect();
            Answer::status(200, json!({"object": "list", "data": data}).to_string())
        } else if request.method == "GET" && request.path == "/api/tags" {
            Answer::error(404, "not here")
        } else {
            let request = {
                let mut requests = shared.requests.lock().unwrap();
                let request = RecordedRequest { index: requests.len(), ..request.clone() };
                requests.push(request.clone());
                request
            };
            (shared.handler)(&request)
        };
        if !respond(&stream, &request, &reply, shared)? {
            return Ok(());
        }
    }
    Ok(())
}

/// How often a waiting thread looks whether the server closes or the client has gone.
const TICK: Duration = Duration::from_millis(10);

/// `None` at the end of the connection or of the server.
fn read_request(reader: &mut BufReader<TcpStream>, shared: &Shared) -> std::io::Result<Option<RecordedRequest>> {
    let Some(first) = read_line(reader, shared)?.filter(|line| !line.is_empty()) else { return Ok(None) };
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = Vec::new();
    while let Some(line) = read_line(reader, shared)?.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or((line.as_str(), ""));
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let find = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let length = find("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match reader.read(&mut body[filled..]) {
            Ok(0) => return Ok(None),
            Ok(read) => filled += read,
            Err(error) if is_tick(&error) && !shared.closing.load(Ordering::SeqCst) => {}
            Err(error) => return Err(error),
        }
    }
    let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(RecordedRequest { index: 0, at: Instant::now(), method, path, headers, body, json }))
}

fn read_line(reader: &mut BufReader<TcpStream>, shared: &Shared) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    loop {
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(None),
            Ok(_) if line.ends_with(b"\n") => return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned())),
            Ok(_) => return Ok(None),
            Err(error) if is_tick(&error) && !shared.closing.load(Ordering::SeqCst) => {}
            Err(error) if is_tick(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

fn is_tick(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// Whether the connection may serve another request.
fn respond(mut stream: &TcpStream, request: &RecordedRequest, answer: &Answer, shared: &Shared) -> std::io::Result<bool> {
    let started = Instant::now();
    let held = || started.elapsed() < answer.delay || answer.gate.as_ref().is_some_and(|gate| !gate.is_open());
    if !hold(stream, shared, held)? {
        return Ok(false);
    }
    let anthropic = request.is_anthropic();
    let streamed = request.json["stream"] == true;
    let events = match &answer.kind {
        Kind::Raw { status, headers, body } => {
            send_raw(stream, *status, headers, body)?;
            return Ok(true);
        }
        Kind::Stall => {
            hold(stream, shared, || true)?;
            return Ok(false);
        }
        Kind::Reset => {
            reset(stream)?;
            return Ok(false);
        }
        Kind::Close => return Ok(false),
        Kind::Reply if streamed => {
            if anthropic {
                anthropic_events(answer, request)
            } else {
                openai_events(answer, request)
            }
        }
        Kind::Reply | Kind::Whole => {
            let body = if anthropic { anthropic_whole(answer, request) } else { openai_whole(answer, request) };
            send_raw(stream, 200, &[], body.to_string().as_bytes())?;
            return Ok(true);
        }
        Kind::Events(events) => events.clone(),
    };
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    let n_sent = answer.break_after.map_or(events.len(), |(n, _)| n.min(events.len()));
    for (name, data) in &events[..n_sent] {
        let event = if name.is_empty() { format!("data: {data}\n\n") } else { format!("event: {name}\ndata: {data}\n\n") };
        for piece in event.as_bytes().chunks(answer.split) {
            let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
            chunk.extend_from_slice(piece);
            chunk.extend_from_slice(b"\r\n");
            if let Err(error) = write_patiently(stream, &chunk, shared) {
                shared.hung_up.fetch_add(1, Ordering::SeqCst);
                return Err(error);
            }
        }
    }
    match answer.break_after.map(|(_, how)| how) {
        None | Some(Break::End) => {
            stream.write_all(b"0\r\n\r\n")?;
            Ok(true)
        }
        Some(Break::Cut) => Ok(false),
        Some(Break::Reset) => {
            reset(stream)?;
            Ok(false)
        }
        Some(Break::Silence) => {
            hold(stream, shared, || true)?;
            Ok(false)
        }
    }
}

fn write_patiently(mut stream: &TcpStream, bytes: &[u8], shared: &Shared) -> std::io::Result<()> {
    stream.set_write_timeout(Some(TICK))?;
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(n) => written += n,
            Err(error) if is_tick(&error) && !shared.closing.load(Ordering::SeqCst) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits while `held`; `false` when the client went away or the server closes.
fn hold(stream: &TcpStream, shared: &Shared, held: impl Fn() -> bool) -> std::io::Result<bool> {
    while held() {
        if shared.closing.load(Ordering::SeqCst) {
            return Ok(false);
        }
        match stream.peek(&mut [0]) {
            Ok(0) => {
                shared.hung_up.fetch_add(1, Ordering::SeqCst);
                return Ok(false);
            }
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) if is_tick(&error) => {}
            Err(_) => {
                shared.hung_up.fetch_add(1, Ordering::SeqCst);
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn reset(stream: &TcpStream) -> std::io::Result<()> {
    // Closing with zero linger time sends RST instead of FIN.
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
    Ok(())
}

fn send_raw(mut stream: &TcpStream, status: u16, headers: &[(String, String)], body: &[u8]) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        head.push_str("content-type: application/json\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes)
}

/// A text in at most 64 deltas, cut at characters.
fn deltas(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let size = characters.len().div_ceil(64).max(5);
    characters.chunks(size).map(|piece| piece.iter().collect()).collect()
}

fn anthropic_usage(usage: Usage) -> Value {
    json!({"input_tokens": usage.input, "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read, "cache_creation_input_tokens": usage.cache_write})
}

fn anthropic_stop(answer: &Answer) -> &'static str {
    answer.stop.unwrap_or(if answer.has_calls() { "tool_use" } else { "end_turn" })
}

fn anthropic_events(answer: &Answer, request: &RecordedRequest) -> Vec<(String, String)> {
    let mut events = Vec::new();
    let mut push = |value: Value| events.push((value["type"].as_str().unwrap().to_owned(), value.to_string()));
    let mut usage = anthropic_usage(answer.usage);
    usage["output_tokens"] = json!(1);
    push(json!({"type": "message_start", "message": {"id": format!("msg_{}", request.index), "type": "message", "role": "assistant",
        "model": request.json["model"], "content": [], "stop_reason": null, "usage": usage}}));
    push(json!({"type": "ping"}));
    for (index, part) in answer.parts.iter().enumerate() {
        let (block, pieces) = match part {
            Part::Text(text) => (
                json!({"type": "text", "text": ""}),
                deltas(text).into_iter().map(|text| json!({"type": "text_delta", "text": text})).collect(),
            ),
            Part::Thinking(text, signature) => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                deltas(text)
                    .into_iter()
                    .map(|text| json!({"type": "thinking_delta", "thinking": text}))
                    .chain([json!({"type": "signature_delta", "signature": signature})])
                    .collect(),
            ),
            Part::Call { id, name, arguments } => (
                json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                deltas(arguments).into_iter().map(|json| json!({"type": "input_json_delta", "partial_json": json})).collect(),
            ),
            Part::Block(block) => (block.clone(), Vec::new()),
        };
        push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        for delta in pieces {
            push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        push(json!({"type": "content_block_stop", "index": index}));
    }
    push(json!({"type": "message_delta", "delta": {"stop_reason": anthropic_stop(answer), "stop_sequence": null},
        "usage": {"output_tokens": answer.usage.output}}));
    push(json!({"type": "message_stop"}));
    events
}

fn anthropic_whole(answer: &Answer, request: &RecordedRequest) -> Value {
    let content: Vec<Value> = answer
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => json!({"type": "text", "text": text}),
            Part::Thinking(text, signature) => json!({"type": "thinking", "thinking": text, "signature": signature}),
            Part::Call { id, name, arguments } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": serde_json::from_str::<Value>(arguments).unwrap()})
            }
            Part::Block(block) => block.clone(),
        })
        .collect();
    json!({"id": format!("msg_{}", request.index), "type": "message", "role": "assistant", "model": request.json["model"],
        "content": content, "stop_reason": anthropic_stop(answer), "usage": anthropic_usage(answer.usage)})
}

fn openai_stop(answer: &Answer) -> &'static str {
    answer.stop.unwrap_or(if answer.has_calls() { "tool_calls" } else { "stop" })
}

fn openai_usage(usage: Usage) -> Value {
    json!({"prompt_tokens": usage.input + usage.cache_read, "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.cache_read + usage.output, "prompt_tokens_details": {"cached_tokens": usage.cache_read}})
}

fn openai_events(answer: &Answer, request: &RecordedRequest) -> Vec<(String, String)> {
    let mut events = Vec::new();
    let mut push = |choices: Value, usage: Value| {
        let chunk = json!({"id": format!("chatcmpl-{}", request.index), "object": "chat.completion.chunk", "created": 1,
            "model": request.json["model"], "choices": choices, "usage": usage});
        events.push((String::new(), chunk.to_string()));
    };
    let choice = |delta: Value, finish: Value| json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    push(choice(json!({"role": "assistant", "content": ""}), Value::Null), Value::Null);
    let mut n_calls = 0;
    for part in &answer.parts {
        match part {
            Part::Text(text) => {
                for text in deltas(text) {
                    push(choice(json!({"content": text}), Value::Null), Value::Null);
                }
            }
            Part::Thinking(text, _) => {
                for text in deltas(text) {
                    push(choice(json!({"reasoning_content": text}), Value::Null), Value::Null);
                }
            }
            Part::Call { id, name, arguments } => {
                let start = json!([{"index": n_calls, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]);
                push(choice(json!({"tool_calls": start}), Value::Null), Value::Null);
                for piece in deltas(arguments) {
                    let piece = json!([{"index": n_calls, "function": {"arguments": piece}}]);
                    push(choice(json!({"tool_calls": piece}), Value::Null), Value::Null);
                }
                n_calls += 1;
            }
            Part::Block(_) => panic!("a raw block is for the Anthropic wire format"),
        }
    }
    push(choice(json!({}), json!(openai_stop(answer))), Value::Null);
    if request.json["stream_options"]["include_usage"] == true {
        push(json!([]), openai_usage(answer.usage));
    }
    events.push((String::new(), "[DONE]".to_owned()));
    events
}

fn openai_whole(answer: &Answer, request: &RecordedRequest) -> Value {
    let (mut text, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for part in &answer.parts {
        match part {
            Part::Text(piece) => text.push_str(piece),
            Part::Thinking(piece, _) => thinking.push_str(piece),
            Part::Call { id, name, arguments } => {
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
            }
            Part::Block(_) => panic!("a raw block is for the Anthropic wire format"),
        }
    }
    let mut message = json!({"role": "assistant", "content": text});
    if !thinking.is_empty() {
        message["reasoning_content"] = json!(thinking);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    json!({"id": format!("chatcmpl-{}", request.index), "object": "chat.completion", "model": request.json["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": openai_stop(answer)}], "usage": openai_usage(answer.usage)})
}
