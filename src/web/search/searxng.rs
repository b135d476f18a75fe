//! SearXNG: `GET /search?format=json`. It needs no key; one is sent as a bearer token for whoever put a guard before it.

use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Method, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{Call, Hit, Query, hit, secret, with_sites};

pub(super) fn call(base: &Url, key: Option<&SecretString>, query: &Query) -> Call {
    let mut url = base.clone();
    if !url.path().ends_with("/search/") {
        url.set_path(&format!("{}search", url.path()));
    }
    url.query_pairs_mut().append_pair("q", &with_sites(query)).append_pair("format", "json");
    let bearer = key.and_then(|key| secret(&format!("Bearer {}", key.expose_secret())));
    Call { method: Method::GET, url, headers: HeaderMap::from_iter(bearer.map(|value| (AUTHORIZATION, value))), body: None }
}

pub(super) fn hits(answer: &Value) -> Option<Vec<Hit>> {
    Some(answer.get("results")?.as_array()?.iter().filter_map(|result| hit(result, "title", "content")).collect())
}
