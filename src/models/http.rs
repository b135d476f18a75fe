//! One HTTP request to a provider: the client, time-outs, statuses, the byte stream of the answer.
//!
//! The client is built on first use. For `http://` addresses it is built without certificates (loading them costs 3 ms
//! and 1 MB); addresses of this machine never go through a proxy. Keys are never part of an error.

use std::error::Error as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::redirect;

use super::wire::{ErrorBody, Fault};
use super::{Gate, ModelErrorKind};
use crate::config::Limits;
use crate::footprint;

/// Requests to one provider.
#[derive(Debug)]
pub(crate) struct Http {
    url: reqwest::Url,
    headers: HeaderMap,
    connect_timeout: Duration,
    first_byte_timeout: Duration,
    stream_idle_timeout: Duration,
    gate: Gate,
    client: OnceLock<reqwest::Client>,
}

/// An answer whose status says success; its body has not been read.
pub(crate) struct Answer {
    response: reqwest::Response,
    idle: Duration,
}

/// Largest error body read, in bytes; people see far less of it.
const ERROR_BODY_MAX: usize = 64 * 1024;

impl Http {
    pub(crate) fn new(url: reqwest::Url, headers: HeaderMap, limits: &Limits, gate: Gate) -> Self {
        Self {
            url,
            headers,
            connect_timeout: limits.connect_timeout,
            first_byte_timeout: limits.first_byte_timeout,
            stream_idle_timeout: limits.stream_idle_timeout,
            gate,
            client: OnceLock::new(),
        }
    }

    /// Sends a JSON body. `refused` is told a waiting time as soon as the status line has come, before the body.
    pub(crate) async fn post(&self, body: Bytes, refused: impl FnOnce(Duration)) -> Result<Answer, Fault> {
        let request = self.client()?.post(self.url.clone()).headers(self.headers.clone()).body(body).send();
        let response = tokio::time::timeout(self.first_byte_timeout, footprint::waiting(request))
            .await
            .map_err(|_| {
                let message = format!("no answer within {} s (limit `first_byte_timeout`)", self.first_byte_timeout.as_secs_f64());
                Fault::new(ModelErrorKind::TimedOut, message)
            })?
            .map_err(|error| self.failed(&error))?;
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(Answer { response, idle: self.stream_idle_timeout });
        }
        if response.status().is_redirection() {
            let target = response.headers().get("location").and_then(|value| value.to_str().ok()).unwrap_or("another address");
            let message =
                format!("status {status}: a redirection to {}; set the base URL to the final address", super::wire::excerpt(target));
            return Err(Fault { status: Some(status), ..Fault::new(ModelErrorKind::NotFound, message) });
        }
        let retry_after = matches!(status, 429 | 503 | 529).then(|| retry_after(response.headers(), chrono::Utc::now())).flatten();
        if let Some(wait) = retry_after.filter(|wait| !wait.is_zero()) {
            refused(wait);
        }
        let body = ErrorBody::read(&error_body(response, self.stream_idle_timeout).await);
        let mut message = if body.message.is_empty() { format!("status {status}") } else { format!("status {status}: {}", body.message) };
        if status == 404 {
            // The path is ours but for the base URL; a query, which may hold a secret, is left out.
            let asked = format!("{}{}", host_of(&self.url), self.url.path());
            message.push_str(&format!(" (asked {asked}; the address or the name of the model may be wrong)"));
        }
        Err(Fault { status: Some(status), retry_after, ..Fault::new(body.kind(status), message) })
    }

    fn failed(&self, error: &reqwest::Error) -> Fault {
        let root = root_cause(error);
        if was_held_back(error) {
            return Fault { held_back: true, ..Fault::new(ModelErrorKind::RateLimited, root) };
        }
        if error.is_connect() {
            let limit = self.connect_timeout.as_secs_f64();
            let reason = if error.is_timeout() { format!("timed out after {limit} s (limit `connect_timeout`)") } else { root };
            return Fault::new(ModelErrorKind::Connect, format!("no connection to {}: {reason}", host_of(&self.url)));
        }
        Fault::new(ModelErrorKind::Interrupted, format!("the connection broke before the answer: {root}"))
    }

    fn client(&self) -> Result<&reqwest::Client, Fault> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        // The start is over: what it needed is not needed beside what a conversation needs.
        footprint::give_back_code();
        let client = builder(&self.url, self.connect_timeout)
            .connector_layer(AtGate { gate: self.gate.clone() })
            .build()
            .map_err(|error| Fault::new(ModelErrorKind::Connect, format!("cannot set up the HTTP client: {}", root_cause(&error))))?;
        Ok(self.client.get_or_init(|| client))
    }
}

impl Answer {
    /// The next bytes; `None` at a clean end of the body. `hurry` bounds the wait below the idle limit.
    pub(crate) async fn chunk(&mut self, hurry: Option<Duration>) -> Result<Option<Bytes>, Fault> {
        let limit = hurry.map_or(self.idle, |hurry| hurry.min(self.idle));
        match tokio::time::timeout(limit, self.response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => Err(Fault::new(ModelErrorKind::Interrupted, format!("the answer broke off: {}", root_cause(&error)))),
            Err(_) => {
                let message = format!("silence inside the answer for {} s (limit `stream_idle_timeout`)", limit.as_secs_f64());
                Err(Fault::new(ModelErrorKind::TimedOut, message))
            }
        }
    }
}

/// A client that fits the address, without a gate.
pub(crate) fn client(url: &reqwest::Url, connect_timeout: Duration) -> Result<reqwest::Client, reqwest::Error> {
    builder(url, connect_timeout).build()
}

fn builder(url: &reqwest::Url, connect_timeout: Duration) -> reqwest::ClientBuilder {
    // reqwest wants a provider even where no TLS is spoken; ring's is a table of pointers. An error means that one is set.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .connect_timeout(connect_timeout)
        .redirect(redirect::Policy::none())
        .no_gzip()
        .tcp_nodelay(true)
        .user_agent(concat!("zapmyco/", env!("CARGO_PKG_VERSION")));
    if url.scheme() == "http" {
        builder = builder.tls_certs_only([]).http1_only();
    }
    if is_loopback(url) {
        // Resolved here, since looking `localhost` up starts a thread.
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let port = url.port_or_known_default().unwrap_or(80);
        builder = builder.no_proxy().resolve_to_addrs("localhost", &addresses.map(|address| SocketAddr::new(address, port)));
    }
    builder
}

/// Looks at the gate once more when a new connection is ready: a TLS handshake takes longer than a refusal needs to
/// reach the others.
#[derive(Clone)]
struct AtGate {
    gate: Gate,
}

#[derive(Clone)]
struct Gated<Connector> {
    connector: Connector,
    gate: Gate,
}

#[derive(Debug, thiserror::Error)]
#[error("the provider asked all requests with this key to wait")]
struct HeldBack;

impl<Connector> tower_layer::Layer<Connector> for AtGate {
    type Service = Gated<Connector>;

    fn layer(&self, connector: Connector) -> Self::Service {
        Gated { connector, gate: self.gate.clone() }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<Connector, Target> tower_service::Service<Target> for Gated<Connector>
where
    Connector: tower_service::Service<Target, Error = BoxError>,
    Connector::Future: Send + 'static,
{
    type Response = Connector::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, target: Target) -> Self::Future {
        let connecting = self.connector.call(target);
        let gate = self.gate.clone();
        Box::pin(async move {
            let connection = connecting.await?;
            if gate.is_closed() { Err(HeldBack.into()) } else { Ok(connection) }
        })
    }
}

fn was_held_back(error: &reqwest::Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if error.is::<HeldBack>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Whether an address is this machine by its own words, without asking a name server.
pub(crate) fn is_loopback(url: &reqwest::Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Scheme, host and port: what people may see of an address.
pub(crate) fn host_of(url: &reqwest::Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// A header value that is hidden in every debug output. `None` when a key has characters no header may have.
pub(crate) fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The waiting time a refusal names, in milliseconds, seconds or as a date. A date in the past is no wait.
fn retry_after(headers: &HeaderMap, now: chrono::DateTime<chrono::Utc>) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(milliseconds) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok();
    }
    let value = text("retry-after")?;
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = chrono::DateTime::parse_from_rfc2822(value).ok()?;
    Some((date.with_timezone(&chrono::Utc) - now).to_std().unwrap_or_default())
}

async fn error_body(mut response: reqwest::Response, idle: Duration) -> Vec<u8> {
    let mut body = Vec::new();
    // A body that breaks or stalls leaves its beginning; the status is told either way.
    while let Ok(Ok(Some(chunk))) = tokio::time::timeout(idle.min(ERROR_BODY_WAIT), response.chunk()).await {
        let room = ERROR_BODY_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == ERROR_BODY_MAX {
            break;
        }
    }
    body
}

const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

/// The innermost reason; reqwest's own sentences repeat the address, which may hold a password.
pub(crate) fn root_cause(error: &reqwest::Error) -> String {
    let mut source = error.source();
    let mut text = None;
    while let Some(error) = source {
        text = Some(error.to_string());
        source = error.source();
    }
    super::wire::excerpt(&text.unwrap_or_else(|| "unknown reason".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeZone;

    #[test]
    fn a_waiting_time_comes_in_three_forms() {
        let now = chrono::Utc.with_ymd_and_hms(2026, 11, 30, 12, 0, 0).unwrap();
        let read = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(read("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(read("retry-after", "0.5"), Some(Duration::from_millis(500)));
        assert_eq!(read("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        assert_eq!(read("retry-after", "Mon, 30 Nov 2026 12:00:30 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(read("retry-after", "Mon, 30 Nov 2026 11:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(read("retry-after", "soon"), None);
        assert_eq!(read("retry-after", "-1"), None);
    }

    /// A request whose connection was being made when another process read a refusal is not sent.
    #[tokio::test]
    async fn a_gate_that_closed_meanwhile_holds_the_request_back() {
        let folder = tempfile::tempdir().unwrap();
        let gate = || Gate::shared(folder.path(), "p", None);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/messages", listener.local_addr().unwrap()).parse().unwrap();
        let http = Http::new(url, HeaderMap::new(), &Limits { first_byte_timeout: Duration::from_secs(20), ..Limits::default() }, gate());
        gate().close(Duration::from_secs(60)).unwrap();
        let fault = http.post(Bytes::from_static(b"{}"), |_| ()).await.err().unwrap();
        assert!(fault.held_back, "{fault:?}");
        let (mut connection, _) = listener.accept().unwrap();
        assert_eq!(std::io::Read::read(&mut connection, &mut [0; 1]).unwrap(), 0, "closed without a byte");
    }

    #[test]
    fn loopback_is_known_without_a_name_server() {
        for (url, expected) in [
            ("http://127.0.0.1:1/", true),
            ("http://127.8.8.8/", true),
            ("http://[::1]:2/v1", true),
            ("http://localhost:3", true),
            ("http://localhost.example.com", false),
            ("https://example.com", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(&url.parse().unwrap()), expected, "{url}");
        }
    }
}
