//! Brave Search: `GET /res/v1/web/search`, the key in a header of its own.

use reqwest::header::{ACCEPT, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{Call, HITS_MAX, Hit, Query, hit, secret, with_sites};

const KEY_HEADER: HeaderName = HeaderName::from_static("x-subscription-token");

pub(super) fn call(base: &Url, key: Option<&SecretString>, query: &Query) -> Call {
    let mut url = base.clone();
    url.set_path(&format!("{}res/v1/web/search", url.path()));
    url.query_pairs_mut().append_pair("q", &with_sites(query)).append_pair("count", &HITS_MAX.to_string());
    let key = key.and_then(|key| secret(key.expose_secret())).map(|value| (KEY_HEADER, value));
    let headers = key.into_iter().chain([(ACCEPT, HeaderValue::from_static("application/json"))]).collect();
    Call { method: Method::GET, url, headers, body: None }
}

/// No `web` at all is how it says that nothing was found.
pub(super) fn hits(answer: &Value) -> Option<Vec<Hit>> {
    let Some(web) = answer.get("web") else { return answer.is_object().then(Vec::new) };
    Some(web.get("results")?.as_array()?.iter().filter_map(|result| hit(result, "title", "description")).collect())
}
