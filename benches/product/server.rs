//! A provider on loopback that costs next to no CPU: one thread per connection, one write per answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// One block of an answer.
pub enum Block {
    Text(&'static str),
    Call(String, Value),
}

/// An answer and how long the model takes for it.
pub struct Answer {
    pub after: Duration,
    pub blocks: Vec<Block>,
}

impl Answer {
    pub fn text(text: &'static str, after: Duration) -> Self {
        Self { after, blocks: vec![Block::Text(text)] }
    }
}

type Handler = dyn Fn(&str) -> Answer + Send + Sync;

pub struct Server {
    address: SocketAddr,
    arrivals: Arc<Mutex<Vec<Instant>>>,
}

impl Server {
    /// `handler` is given the body of each request. The server lives as long as the process.
    pub fn start(handler: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let (handler, seen): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&arrivals));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, seen) = (Arc::clone(&handler), Arc::clone(&seen));
                // A client that goes away ends its connection only.
                std::thread::spawn(move || serve(&stream, &*handler, &seen));
            }
        });
        Self { address, arrivals }
    }

    /// When each request had arrived, in order.
    pub fn arrivals(&self) -> Vec<Instant> {
        self.arrivals.lock().unwrap().clone()
    }

    /// The environment of a process that talks to this server.
    pub fn environment(&self) -> Vec<(String, String)> {
        vec![("ANTHROPIC_BASE_URL".into(), format!("http://{}", self.address)), ("ANTHROPIC_API_KEY".into(), "bench".into())]
    }

    pub fn configure(&self, command: &mut Command) {
        command.envs(self.environment());
    }
}

fn serve(stream: &TcpStream, handler: &Handler, seen: &Mutex<Vec<Instant>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        seen.lock().unwrap().push(Instant::now());
        let answer = handler(&String::from_utf8_lossy(&body));
        std::thread::sleep(answer.after);
        let events = events(&answer.blocks);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n", events.len());
        let mut writer = stream;
        writer.write_all(format!("{head}{events}").as_bytes())?;
    }
}

/// The stream of events of one answer in the Anthropic wire format.
fn events(blocks: &[Block]) -> String {
    let mut text = String::new();
    let mut push = |event: Value| text.push_str(&format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()));
    push(json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "bench",
        "content": [], "stop_reason": null, "usage": {"input_tokens": 1, "output_tokens": 1}}}));
    for (index, block) in blocks.iter().enumerate() {
        let (start, delta) = match block {
            Block::Text(text) => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text})),
            Block::Call(name, input) => (
                json!({"type": "tool_use", "id": format!("call_{index}"), "name": name, "input": {}}),
                json!({"type": "input_json_delta", "partial_json": input.to_string()}),
            ),
        };
        push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        push(json!({"type": "content_block_stop", "index": index}));
    }
    let calls = blocks.iter().any(|block| matches!(block, Block::Call(..)));
    let reason = if calls { "tool_use" } else { "end_turn" };
    push(json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null}, "usage": {"output_tokens": 1}}));
    push(json!({"type": "message_stop"}));
    text
}
