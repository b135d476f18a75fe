//! Tavily: `POST /search`, the key as a bearer token; it takes places as lists.

use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Method, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{Call, HITS_MAX, Hit, Query, hit, secret};

pub(super) fn call(base: &Url, key: Option<&SecretString>, query: &Query) -> Call {
    let mut url = base.clone();
    url.set_path(&format!("{}search", url.path()));
    let bearer = key.and_then(|key| secret(&format!("Bearer {}", key.expose_secret())));
    let body = json!({
        "query": query.text,
        "max_results": HITS_MAX,
        "include_domains": query.allowed_domains,
        "exclude_domains": query.blocked_domains,
    });
    Call { method: Method::POST, url, headers: HeaderMap::from_iter(bearer.map(|value| (AUTHORIZATION, value))), body: Some(body) }
}

pub(super) fn hits(answer: &Value) -> Option<Vec<Hit>> {
    Some(answer.get("results")?.as_array()?.iter().filter_map(|result| hit(result, "title", "content")).collect())
}
