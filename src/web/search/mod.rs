//! A search at an endpoint of the user's: SearXNG, Brave or Tavily.
//!
//! The endpoint is the user's own word, so it may lie inside the network. It is asked without redirections, and what it
//! answers is bounded like a page.

mod brave;
mod searxng;
mod tavily;

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Method, Url, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;

use super::error::WebError;
use super::fetch::{host_of, root_cause};
use super::proxy::Proxies;
use super::{address, markdown};
use crate::config::{Environment, Limits};
use crate::files;
use crate::secrets::KeyStore;
use crate::secrets::key_store::WEB_SEARCH;

/// `[web.search]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSettings {
    /// Without it the model's own search is used, where its provider has one.
    pub kind: Option<Kind>,
    pub base_url: Option<String>,
    pub api_key_env: Option<String>,
    pub api_key_file: Option<PathBuf>,
    pub api_key: Option<SecretString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Searxng,
    Brave,
    Tavily,
    /// The search of the session's model, also where it is not known to have one.
    Model,
}

/// What is searched for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub text: String,
    /// In lower case; results come from these only, when there are any.
    pub allowed_domains: Vec<String>,
    pub blocked_domains: Vec<String>,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    pub title: String,
    pub url: String,
    pub excerpt: String,
}

/// A place that answers searches.
#[derive(Debug)]
pub struct Endpoint {
    kind: Kind,
    base_url: Url,
    key: Option<SecretString>,
    proxies: Proxies,
    connect_timeout: Duration,
    total: Duration,
}

/// Why a search endpoint cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("[web.search] lacks `base_url`, the address of your SearXNG")]
    NoAddress,
    #[error("the `base_url` of [web.search] is not usable: {reason}")]
    BadAddress { reason: String },
    #[error("no key for {kind}: set {variable}, or `api_key_file` in [web.search], or run `zapmyco config key set {WEB_SEARCH}`")]
    NoKey { kind: &'static str, variable: String },
    #[error("cannot read the key file {path} of [web.search]: {source}", path = path.display())]
    KeyFile { path: PathBuf, source: std::io::Error },
    #[error("the key of [web.search] has line breaks or control characters")]
    BadKey,
    #[error("{host}: {source}")]
    Request { host: String, source: WebError },
    #[error("{host} answered with status {status}{}{}", .said.as_ref().map(|said| format!(": {said}")).unwrap_or_default(), .hint)]
    Status { host: String, status: u16, said: Option<String>, hint: &'static str },
    #[error("{host} did not answer in the way of {kind}: {reason}")]
    Garbled { host: String, kind: &'static str, reason: String },
}

/// What an adapter wants to have sent.
struct Call {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Value>,
}

/// Results asked for and shown.
const HITS_MAX: usize = 10;
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
const EXCERPT_CHARACTERS_MAX: usize = 500;
const TITLE_CHARACTERS_MAX: usize = 200;
const KEY_FILE_MAX: u64 = 64 * 1024;

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Searxng => "searxng",
            Self::Brave => "brave",
            Self::Tavily => "tavily",
            Self::Model => "model",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Brave => "BRAVE_API_KEY",
            Self::Tavily => "TAVILY_API_KEY",
            Self::Searxng | Self::Model => "",
        }
    }

    fn default_address(self) -> Option<&'static str> {
        match self {
            Self::Brave => Some("https://api.search.brave.com/"),
            Self::Tavily => Some("https://api.tavily.com/"),
            Self::Searxng | Self::Model => None,
        }
    }
}

impl SearchSettings {
    /// Names of variables that may hold a key.
    pub fn variables(&self) -> Vec<String> {
        let known = [Kind::Brave, Kind::Tavily].map(|kind| kind.variable().to_owned());
        known.into_iter().chain(self.api_key_env.clone()).collect()
    }

    /// Every key that is set, used or not.
    pub fn keys(&self, environment: &Environment, store: &KeyStore) -> Vec<(String, SecretString)> {
        let set = self.variables().into_iter().filter_map(|name| environment.get(&name).map(SecretString::from));
        let file = self.api_key_file.as_deref().and_then(|path| files::read_text_bounded(path, KEY_FILE_MAX).ok()).map(SecretString::from);
        set.chain(self.api_key.clone()).chain(file).chain(store.get(WEB_SEARCH)).map(|key| (WEB_SEARCH.to_owned(), key)).collect()
    }

    /// The endpoint that is set up; `None` when there is none, or the model is to search.
    pub fn endpoint(&self, limits: &Limits, environment: &Environment, store: &KeyStore) -> Result<Option<Endpoint>, SearchError> {
        let Some(kind) = self.kind.filter(|kind| *kind != Kind::Model) else { return Ok(None) };
        let address = self.base_url.as_deref().or(kind.default_address()).ok_or(SearchError::NoAddress)?;
        let bad = |reason: &str| SearchError::BadAddress { reason: reason.to_owned() };
        let mut base_url: Url = address.trim().parse().map_err(|error: url::ParseError| bad(&error.to_string()))?;
        if !matches!(base_url.scheme(), "http" | "https") || base_url.host_str().is_none() {
            return Err(bad("write it like http://127.0.0.1:8888 or https://search.example.com"));
        }
        if !base_url.path().ends_with('/') {
            base_url.set_path(&format!("{}/", base_url.path()));
        }
        let key = self.key(kind, environment, store)?;
        if key.as_ref().is_some_and(|key| HeaderValue::from_str(key.expose_secret()).is_err()) {
            return Err(SearchError::BadKey);
        }
        let proxies = Proxies::from(environment);
        Ok(Some(Endpoint { kind, base_url, key, proxies, connect_timeout: limits.connect_timeout, total: limits.web_timeout }))
    }

    /// Environment, key file, settings, the system's key store.
    fn key(&self, kind: Kind, environment: &Environment, store: &KeyStore) -> Result<Option<SecretString>, SearchError> {
        let variable = self.api_key_env.as_deref().unwrap_or(kind.variable());
        if let Some(key) = environment.get(variable) {
            return Ok(Some(key.trim().into()));
        }
        if let Some(path) = &self.api_key_file {
            let text =
                files::read_text_bounded(path, KEY_FILE_MAX).map_err(|source| SearchError::KeyFile { path: path.clone(), source })?;
            return Ok(Some(text.trim().into()));
        }
        if let Some(key) = self.api_key.clone().or_else(|| store.get(WEB_SEARCH)) {
            return Ok(Some(key));
        }
        match kind {
            Kind::Searxng | Kind::Model => Ok(None),
            Kind::Brave | Kind::Tavily => Err(SearchError::NoKey { kind: kind.name(), variable: variable.to_owned() }),
        }
    }
}

impl Endpoint {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where a query goes.
    pub fn url(&self) -> &Url {
        &self.base_url
    }

    pub async fn search(&self, query: &Query) -> Result<Vec<Hit>, SearchError> {
        let call = match self.kind {
            Kind::Searxng | Kind::Model => searxng::call(&self.base_url, self.key.as_ref(), query),
            Kind::Brave => brave::call(&self.base_url, self.key.as_ref(), query),
            Kind::Tavily => tavily::call(&self.base_url, self.key.as_ref(), query),
        };
        let host = host_of(&self.base_url);
        let failed = |source| SearchError::Request { host: host.clone(), source };
        let answer = match tokio::time::timeout(self.total, self.ask(call)).await {
            Ok(answer) => answer.map_err(failed)?,
            Err(_) => return Err(failed(WebError::TimedOut { host: host.clone(), limit: self.total, bytes: 0 })),
        };
        if !(200..300).contains(&answer.status) {
            return Err(self.refusal(&answer));
        }
        let garbled = |reason: String| SearchError::Garbled { host: host.clone(), kind: self.kind.name(), reason };
        let answer: Value = serde_json::from_slice(&answer.bytes).map_err(|error| garbled(error.to_string()))?;
        let hits = match self.kind {
            Kind::Searxng | Kind::Model => searxng::hits(&answer),
            Kind::Brave => brave::hits(&answer),
            Kind::Tavily => tavily::hits(&answer),
        };
        Ok(chosen(hits.ok_or_else(|| garbled("there is no list of results".to_owned()))?, query))
    }

    fn refusal(&self, answer: &Answer) -> SearchError {
        let hint = match (self.kind, answer.status) {
            (Kind::Searxng, 403) => "; `json` has to be among the `search.formats` of its settings.yml",
            (_, 401 | 403) => "; the key may be wrong",
            (_, 429) => "; too many searches, try later",
            (_, 300..=399) => "; set `base_url` to the final address",
            _ => "",
        };
        let text = String::from_utf8_lossy(&answer.bytes);
        let words: Vec<&str> = text.split_whitespace().collect();
        let said: String = words.join(" ").chars().filter(|c| !c.is_control()).take(EXCERPT_CHARACTERS_MAX).collect();
        let said = match self.key.as_ref().map(ExposeSecret::expose_secret).filter(|key| !key.is_empty()) {
            Some(key) => said.replace(key, "[key]"),
            None => said,
        };
        let said = Some(said).filter(|said| !said.is_empty() && !said.starts_with('<'));
        SearchError::Status { host: host_of(&self.base_url), status: answer.status, said, hint }
    }

    async fn ask(&self, call: Call) -> Result<Answer, WebError> {
        let host = host_of(&self.base_url);
        let broken = |error: &reqwest::Error| match error.is_connect() {
            true => WebError::Connect { host: host.clone(), reason: root_cause(error) },
            false => WebError::Broken { host: host.clone(), reason: root_cause(error) },
        };
        let mut request = self.client()?.request(call.method, call.url).headers(call.headers);
        if let Some(body) = call.body {
            request = request.json(&body);
        }
        let mut response = request.send().await.map_err(|error| broken(&error))?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
            let room = ANSWER_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                break;
            }
        }
        Ok(Answer { status, bytes })
    }

    fn client(&self) -> Result<reqwest::Client, WebError> {
        let unusable = |error: &reqwest::Error| WebError::Client { reason: root_cause(error) };
        // reqwest wants a provider even where no TLS is spoken. An error means that one is set.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("zapmyco/", env!("CARGO_PKG_VERSION")));
        if self.base_url.scheme() == "http" {
            builder = builder.tls_certs_only([]);
        }
        let host = host_of(&self.base_url);
        let is_inside = host.parse().is_ok_and(|address| address::scope(address).is_some()) || address::is_local_name(&host);
        if let Some(proxy) = self.proxies.of(&self.base_url).filter(|_| !is_inside) {
            builder = builder.proxy(proxy.map_err(|error| unusable(&error))?);
        }
        builder.build().map_err(|error| unusable(&error))
    }
}

struct Answer {
    status: u16,
    bytes: Vec<u8>,
}

/// A header that no debug output shows. The value was checked when the endpoint was set up.
fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The query with what narrows it, in the words that search engines know.
fn with_sites(query: &Query) -> String {
    let mut text = query.text.clone();
    match query.allowed_domains.as_slice() {
        [] => {}
        [one] => text.push_str(&format!(" site:{one}")),
        several => {
            let sites: Vec<String> = several.iter().map(|domain| format!("site:{domain}")).collect();
            text.push_str(&format!(" ({})", sites.join(" OR ")));
        }
    }
    for domain in &query.blocked_domains {
        text.push_str(&format!(" -site:{domain}"));
    }
    text
}

/// The fields of a result by their names.
fn hit(result: &Value, title: &str, excerpt: &str) -> Option<Hit> {
    let text = |key: &str| result.get(key).and_then(Value::as_str).unwrap_or_default();
    let url = text("url");
    if url.is_empty() {
        return None;
    }
    Some(Hit {
        title: plain(text(title), TITLE_CHARACTERS_MAX),
        url: url.to_owned(),
        excerpt: plain(text(excerpt), EXCERPT_CHARACTERS_MAX),
    })
}

/// Some engines mark words in their excerpts with HTML.
fn plain(text: &str, most: usize) -> String {
    let text: String = text.chars().take(4 * most).collect();
    let text = if text.contains(['<', '&']) { markdown::text_of(&text) } else { text };
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(most).collect()
}

/// Results from the wanted places, each page once. Not every engine obeys.
fn chosen(hits: Vec<Hit>, query: &Query) -> Vec<Hit> {
    let lies_in =
        |host: &str, domain: &String| host == domain || host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'));
    let mut chosen: Vec<Hit> = Vec::new();
    for hit in hits {
        let Ok(url) = hit.url.parse::<Url>() else { continue };
        let host = host_of(&url);
        let is_wanted = query.allowed_domains.is_empty() || query.allowed_domains.iter().any(|domain| lies_in(&host, domain));
        let is_blocked = query.blocked_domains.iter().any(|domain| lies_in(&host, domain));
        let is_new = !chosen.iter().any(|known| known.url == hit.url);
        if matches!(url.scheme(), "http" | "https") && is_wanted && !is_blocked && is_new && chosen.len() < HITS_MAX {
            chosen.push(hit);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(allowed: &[&str], blocked: &[&str]) -> Query {
        let owned = |domains: &[&str]| domains.iter().map(|domain| (*domain).to_owned()).collect();
        Query { text: "rust async".into(), allowed_domains: owned(allowed), blocked_domains: owned(blocked) }
    }

    #[test]
    fn places_are_written_as_engines_know_them() {
        assert_eq!(with_sites(&query(&[], &[])), "rust async");
        assert_eq!(with_sites(&query(&["a.com"], &["b.com"])), "rust async site:a.com -site:b.com");
        assert_eq!(with_sites(&query(&["a.com", "c.org"], &[])), "rust async (site:a.com OR site:c.org)");
    }

    #[test]
    fn results_are_held_against_the_places_all_the_same() {
        let hit = |url: &str| Hit { title: String::new(), url: url.into(), excerpt: String::new() };
        let urls = |query: &Query| -> Vec<String> {
            let hits = ["https://a.com/1", "https://x.a.com/2", "https://nota.com/3", "https://b.com/4", "https://a.com/1", "ftp://a.com/"];
            chosen(hits.map(hit).into(), query).into_iter().map(|hit| hit.url).collect()
        };
        assert_eq!(urls(&query(&["a.com"], &[])), ["https://a.com/1", "https://x.a.com/2"]);
        assert_eq!(urls(&query(&[], &["a.com"])), ["https://nota.com/3", "https://b.com/4"]);
    }

    #[test]
    fn marked_words_are_plain_text() {
        assert_eq!(plain("the <strong>best</strong> &amp; last\n word", 100), "the best & last word");
        assert_eq!(plain("a < b", 100), "a < b");
    }
}
