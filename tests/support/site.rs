//! A real HTTP server on loopback with pages of every kind: whole, endless, dripping, silent.
//!
//! `Site::with(|asked| ..)` decides per request; what was asked is recorded. The server ends when the `Site` is dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

pub struct Site {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// With its query; a whole URL when the server is asked as a proxy.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// What the server does with one request.
#[derive(Clone, Debug)]
pub enum Page {
    Whole {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// The same bytes again and again until the client goes.
    Endless {
        headers: Vec<(String, String)>,
        block: Vec<u8>,
    },
    /// One byte from time to time, without an end.
    Dripping {
        headers: Vec<(String, String)>,
        every: Duration,
    },
    /// The request is read and never answered.
    Silent,
    /// The body is announced longer than it is.
    Cut {
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
}

type Handler = dyn Fn(&Asked) -> Page + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    asked: Mutex<Vec<Asked>>,
    closing: AtomicBool,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Page {
    pub fn of(content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::Whole { status: 200, headers: vec![("Content-Type".into(), content_type.into())], body: body.into() }
    }

    pub fn html(body: impl Into<Vec<u8>>) -> Self {
        Self::of("text/html; charset=utf-8", body)
    }

    pub fn json(value: &Value) -> Self {
        Self::of("application/json", value.to_string())
    }

    pub fn status(status: u16, content_type: &str, body: &str) -> Self {
        Self::Whole { status, headers: vec![("Content-Type".into(), content_type.into())], body: body.into() }
    }

    pub fn redirect(status: u16, target: &str) -> Self {
        Self::Whole { status, headers: vec![("Location".into(), target.into())], body: Vec::new() }
    }

    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        match &mut self {
            Self::Whole { headers, .. } | Self::Endless { headers, .. } | Self::Dripping { headers, .. } | Self::Cut { headers, .. } => {
                headers.push((name.into(), value.into()));
            }
            Self::Silent => {}
        }
        self
    }
}

impl Site {
    pub fn with(handler: impl Fn(&Asked) -> Page + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { handler: Box::new(handler), asked: Mutex::default(), closing: AtomicBool::new(false) });
        let for_thread = shared.clone();
        let acceptor = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for connection in listener.incoming() {
                if for_thread.closing.load(Ordering::Acquire) {
                    break;
                }
                let shared = for_thread.clone();
                connections.push(std::thread::spawn(move || {
                    let _ = serve(connection.unwrap(), &shared);
                }));
            }
            for connection in connections {
                let _ = connection.join();
            }
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// The same page for every request.
    pub fn always(page: Page) -> Self {
        Self::with(move |_| page.clone())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// `http://127.0.0.1:PORT/path`
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve(mut connection: TcpStream, shared: &Shared) -> std::io::Result<()> {
    connection.set_read_timeout(Some(Duration::from_millis(50)))?;
    connection.set_write_timeout(Some(Duration::from_secs(20)))?;
    let mut reader = BufReader::new(Patient { connection: connection.try_clone()?, shared });
    while let Some(asked) = read_request(&mut reader)? {
        shared.asked.lock().unwrap().push(asked.clone());
        let is_open = answer(&mut connection, &mut reader, (shared.handler)(&asked), shared)?;
        if !is_open {
            break;
        }
    }
    Ok(())
}

/// Waits for bytes as long as the server lives.
struct Patient<'s> {
    connection: TcpStream,
    shared: &'s Shared,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.connection.read(buffer) {
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    if self.shared.closing.load(Ordering::Acquire) {
                        return Ok(0);
                    }
                }
                read => return read,
            }
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Asked>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Asked { method, target, headers, body }))
}

/// Whether the connection can be used again.
fn answer(connection: &mut TcpStream, reader: &mut impl Read, page: Page, shared: &Shared) -> std::io::Result<bool> {
    let head = |status: u16, headers: &[(String, String)], length: Option<usize>| {
        let mut head = format!("HTTP/1.1 {status} Status\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match length {
            Some(length) => head.push_str(&format!("Content-Length: {length}\r\n\r\n")),
            None => head.push_str("Connection: close\r\n\r\n"),
        }
        head.into_bytes()
    };
    match page {
        Page::Whole { status, headers, body } => {
            connection.write_all(&head(status, &headers, Some(body.len())))?;
            connection.write_all(&body)?;
            Ok(true)
        }
        Page::Endless { headers, block } => {
            connection.write_all(&head(200, &headers, None))?;
            while !shared.closing.load(Ordering::Acquire) {
                connection.write_all(&block)?;
            }
            Ok(false)
        }
        Page::Dripping { headers, every } => {
            connection.write_all(&head(200, &headers, None))?;
            while !shared.closing.load(Ordering::Acquire) {
                connection.write_all(b"x")?;
                std::thread::sleep(every);
            }
            Ok(false)
        }
        Page::Silent => {
            // Ends when the client goes, or with the server.
            let _ = reader.read(&mut [0])?;
            Ok(false)
        }
        Page::Cut { headers, body } => {
            connection.write_all(&head(200, &headers, Some(body.len() + 1)))?;
            connection.write_all(&body)?;
            Ok(false)
        }
    }
}
