//! One page by GET: which address, which redirections, how much and for how long.
//!
//! A name is resolved here, every address it gives is checked, and the connection goes to exactly one of those that were:
//! a name that means something else a moment later changes nothing. Each hop of a redirection is checked anew.

use std::error::Error as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Response, Url, redirect};
use url::Host;

use super::address::{self, AllowList};
use super::error::WebError;
use super::proxy::Proxies;
use crate::config::{Environment, Limits};

/// Fetches pages within the limits and addresses that the settings allow.
pub struct Fetcher {
    allowed: AllowList,
    proxies: Proxies,
    lookup: Lookup,
    connect_timeout: Duration,
    total: Duration,
    page_max: usize,
}

/// Resolves a name; another one stands in for the system's in tests.
pub type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// What came of a request.
#[derive(Debug)]
pub enum Fetched {
    Body(Body),
    /// A redirection that was not followed, since it leads to another host or was not wanted.
    Elsewhere {
        url: Url,
        status: u16,
    },
}

/// What a server sent, unpacked and not read yet.
#[derive(Debug)]
pub struct Body {
    /// After redirections.
    pub url: Url,
    pub status: u16,
    pub content_type: Option<String>,
    pub bytes: Vec<u8>,
    /// The limit cut nothing off.
    pub complete: bool,
}

const URL_MAX: usize = 2000;
const REDIRECTS_MAX: usize = 10;
/// Of the body of an answer that is no page.
const EXCERPT_BYTES_MAX: usize = 4096;
const EXCERPT_CHARACTERS_MAX: usize = 300;
const ACCEPTED: &str = "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/plain;q=0.8, application/json;q=0.8, */*;q=0.5";

/// The URL as it would be asked for, or why it is none that can be. No name is resolved.
pub fn check(text: &str) -> Result<Url, WebError> {
    let text = text.trim();
    if text.len() > URL_MAX {
        return Err(WebError::TooLong { length: text.chars().count(), most: URL_MAX });
    }
    let mut url: Url =
        text.parse().map_err(|error: url::ParseError| WebError::NotAUrl { url: text.to_owned(), reason: error.to_string() })?;
    check_parsed(&url)?;
    url.set_fragment(None);
    Ok(url)
}

fn check_parsed(url: &Url) -> Result<(), WebError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(WebError::Scheme { scheme: url.scheme().to_owned() });
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(WebError::UserInfo);
    }
    Ok(())
}

/// The host in lower case, without brackets and without the dot of the root.
pub fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

impl Fetcher {
    pub fn new(allowed: AllowList, limits: &Limits, environment: &Environment) -> Self {
        Self {
            allowed,
            proxies: Proxies::from(environment),
            lookup: Arc::new(|host| system_lookup(host).boxed()),
            connect_timeout: limits.connect_timeout,
            total: limits.web_timeout,
            page_max: usize::try_from(limits.web_page_max).unwrap_or(usize::MAX),
        }
    }

    /// Resolves names in another way.
    pub fn with_lookup(mut self, lookup: Lookup) -> Self {
        self.lookup = lookup;
        self
    }

    /// Fetches a checked URL. Redirections inside one host are followed where `may_go` agrees; `www.` is no other host.
    pub async fn fetch(&self, url: &Url, may_go: &(dyn Fn(&Url) -> bool + Send + Sync)) -> Result<Fetched, WebError> {
        let progress = AtomicUsize::new(0);
        match tokio::time::timeout(self.total, self.follow(url, may_go, &progress)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(WebError::TimedOut { host: host_of(url), limit: self.total, bytes: progress.load(Ordering::Relaxed) }),
        }
    }

    async fn follow(&self, url: &Url, may_go: &(dyn Fn(&Url) -> bool + Send + Sync), progress: &AtomicUsize) -> Result<Fetched, WebError> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.request(&url).await?;
            let status = response.status().as_u16();
            if !response.status().is_redirection() || !response.headers().contains_key(LOCATION) {
                return self.body(response, url, progress).await.map(Fetched::Body);
            }
            let target = target(&url, status, response.headers())?;
            let downgrades = url.scheme() == "https" && target.scheme() == "http";
            if !is_same_host(&url, &target) || downgrades || !may_go(&target) {
                return Ok(Fetched::Elsewhere { url: target, status });
            }
            url = target;
        }
        Err(WebError::TooManyRedirects { most: REDIRECTS_MAX, url: url.to_string() })
    }

    async fn request(&self, url: &Url) -> Result<Response, WebError> {
        let host = host_of(url);
        let client = self.client(url).await?;
        let failed = |error: &reqwest::Error| {
            let reason = root_cause(error);
            if error.is_connect() {
                let reason = if error.is_timeout() { "timed out".to_owned() } else { reason };
                return WebError::Connect { host: host.clone(), reason };
            }
            WebError::Broken { host: host.clone(), reason }
        };
        client.get(url.clone()).send().await.map_err(|error| failed(&error))
    }

    /// A client for this one request, bound to the addresses that were checked.
    async fn client(&self, url: &Url) -> Result<reqwest::Client, WebError> {
        let unusable = |error: &reqwest::Error| WebError::Client { reason: root_cause(error) };
        // reqwest wants a provider even where no TLS is spoken. An error means that one is set.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .default_headers(HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(ACCEPTED))]))
            .user_agent(concat!("zapmyco/", env!("CARGO_PKG_VERSION")));
        if url.scheme() == "http" {
            // Loading certificates costs time and memory.
            builder = builder.tls_certs_only([]);
        }
        let proxy = if is_named_inside(url) { None } else { self.proxies.of(url) };
        let builder = match proxy {
            Some(proxy) => {
                self.check_before_proxy(url).await?;
                builder.proxy(proxy.map_err(|error| unusable(&error))?)
            }
            None => builder.resolve_to_addrs(url.host_str().unwrap_or_default(), &self.addresses(url).await?),
        };
        builder.build().map_err(|error| unusable(&error))
    }

    /// The addresses of the URL's host that may be connected to; at least one.
    async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, WebError> {
        let host = host_of(url);
        let port = url.port_or_known_default().unwrap_or(80);
        let found = match url.host() {
            Some(Host::Ipv4(address)) => vec![IpAddr::V4(address)],
            Some(Host::Ipv6(address)) => vec![IpAddr::V6(address)],
            Some(Host::Domain(_)) | None if address::is_local_name(&host) => {
                vec![[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()]
            }
            Some(Host::Domain(_)) | None => {
                (self.lookup)(host.clone()).await.map_err(|source| WebError::Lookup { host: host.clone(), source })?
            }
        };
        let mut refused = None;
        let mut addresses = Vec::new();
        for address in found {
            match self.allowed.admits(&host, address, port) {
                Ok(()) => addresses.push(SocketAddr::new(address, port)),
                Err(scope) => refused = refused.or(Some((address, scope))),
            }
        }
        match refused {
            _ if !addresses.is_empty() => Ok(addresses),
            Some((address, scope)) if host.parse() == Ok(address) => Err(WebError::NotPublic { host: address.to_string(), scope }),
            Some((address, scope)) => Err(WebError::LeadsInside { host, address: address.to_string(), scope }),
            None => Err(WebError::NoAddress { host }),
        }
    }

    /// Before a proxy the check is as good as this machine's knowledge: a name that leads inside from here is refused, one
    /// that only the proxy knows is the proxy's business.
    async fn check_before_proxy(&self, url: &Url) -> Result<(), WebError> {
        match self.addresses(url).await {
            Ok(_) | Err(WebError::Lookup { .. } | WebError::NoAddress { .. }) => Ok(()),
            Err(refused) => Err(refused),
        }
    }

    async fn body(&self, mut response: Response, url: Url, progress: &AtomicUsize) -> Result<Body, WebError> {
        let status = response.status().as_u16();
        let text_of = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
        let content_type = text_of(CONTENT_TYPE);
        // Taken away by the client when it could unpack the body.
        if let Some(encoding) = text_of(CONTENT_ENCODING).filter(|encoding| !encoding.trim().eq_ignore_ascii_case("identity")) {
            return Err(WebError::Encoding { encoding });
        }
        let is_page = response.status().is_success();
        let most = if is_page { self.page_max } else { EXCERPT_BYTES_MAX.min(self.page_max) };
        let mut bytes = Vec::new();
        let mut complete = true;
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                // The status is what counts.
                Err(_) if !is_page => break,
                Err(error) => return Err(WebError::Broken { host: host_of(&url), reason: root_cause(&error) }),
            };
            let room = most - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            progress.store(bytes.len(), Ordering::Relaxed);
            if chunk.len() > room {
                complete = false;
                break;
            }
        }
        if !is_page {
            return Err(WebError::Status { status, excerpt: excerpt(content_type.as_deref(), &bytes) });
        }
        Ok(Body { url, status, content_type, bytes, complete })
    }
}

/// Written as an address that is not public, or as a name of this machine: no proxy is asked for those.
fn is_named_inside(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address::scope(IpAddr::V4(address)).is_some(),
        Some(Host::Ipv6(address)) => address::scope(IpAddr::V6(address)).is_some(),
        Some(Host::Domain(_)) | None => address::is_local_name(&host_of(url)),
    }
}

async fn system_lookup(host: String) -> io::Result<Vec<IpAddr>> {
    // The port is of no interest to the resolver.
    Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
}

fn target(from: &Url, status: u16, headers: &HeaderMap) -> Result<Url, WebError> {
    let bad = |reason: String| WebError::BadRedirect { host: host_of(from), status, reason };
    let location = headers.get(LOCATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let location = std::str::from_utf8(location).map_err(|error| bad(error.to_string()))?;
    let mut target = from.join(location).map_err(|error| bad(error.to_string()))?;
    if target.as_str().len() > URL_MAX {
        return Err(bad(format!("it is longer than {URL_MAX} characters")));
    }
    check_parsed(&target)?;
    target.set_fragment(None);
    Ok(target)
}

fn is_same_host(one: &Url, other: &Url) -> bool {
    let bare = |url: &Url| {
        let host = host_of(url);
        host.strip_prefix("www.").unwrap_or(&host).to_owned()
    };
    bare(one) == bare(other)
}

/// What a server says about its refusal, where it says it in plain words.
fn excerpt(content_type: Option<&str>, bytes: &[u8]) -> Option<String> {
    let is_words = content_type.is_some_and(|kind| kind.starts_with("text/plain") || kind.starts_with("application/json"));
    let text = is_words.then(|| String::from_utf8_lossy(bytes))?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let text: String = words.join(" ").chars().filter(|c| !c.is_control()).take(EXCERPT_CHARACTERS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

/// The innermost reason; reqwest's own sentences repeat the address.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut source = error.source();
    let mut text = None;
    while let Some(error) = source {
        text = Some(error.to_string());
        source = error.source();
    }
    text.unwrap_or_else(|| "unknown reason".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_for_is_told_before_anything_is_sent() {
        for (text, expected) in [
            ("example.com", "`example.com` is no URL: relative URL without a base"),
            ("file:///etc/passwd", "only http:// and https:// can be fetched, not file:"),
            ("javascript:alert(1)", "only http:// and https:// can be fetched, not javascript:"),
            ("https://me:secret@example.com/", "the URL holds a user name or password, which would go into records and to the server"),
            ("http://", "`http://` is no URL: empty host"),
        ] {
            assert_eq!(check(text).unwrap_err().to_string(), expected);
        }
        assert!(matches!(check(&format!("https://e.com/{}", "a".repeat(2000))), Err(WebError::TooLong { .. })));
        assert_eq!(check(" https://Example.com/a#part ").unwrap().as_str(), "https://example.com/a");
    }

    #[test]
    fn a_host_is_the_same_with_and_without_www() {
        let same = |one: &str, other: &str| is_same_host(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(same("http://example.com", "https://www.example.com/x") && same("http://a.com.", "http://A.com:8080"));
        assert!(!same("http://example.com", "http://example.org") && !same("http://a.example.com", "http://b.example.com"));
    }
}
