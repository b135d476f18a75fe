//! Whether a request would go through a proxy of the environment (`HTTPS_PROXY`, `NO_PROXY` and the like).
//!
//! With a proxy it is the proxy that resolves names and connects; what the fetcher can check then is the address as it is
//! written, and what the name means here.

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;

use crate::config::Environment;

#[derive(Debug)]
pub(crate) struct Proxies {
    matcher: Matcher,
}

impl Proxies {
    pub(crate) fn from(environment: &Environment) -> Self {
        // Upper and lower case, as other programs read them; a program run as CGI gets HTTP_PROXY from its client.
        let is_cgi = environment.is_set("REQUEST_METHOD");
        let first = |names: &[&str]| names.iter().find_map(|name| environment.get(name)).unwrap_or_default().to_owned();
        let http = if is_cgi { first(&["http_proxy"]) } else { first(&["HTTP_PROXY", "http_proxy"]) };
        let matcher = Matcher::builder()
            .all(first(&["ALL_PROXY", "all_proxy"]))
            .http(http)
            .https(first(&["HTTPS_PROXY", "https_proxy"]))
            .no(first(&["NO_PROXY", "no_proxy"]))
            .build();
        Self { matcher }
    }

    /// The proxy for this address, as reqwest takes it.
    pub(crate) fn of(&self, url: &Url) -> Option<Result<reqwest::Proxy, reqwest::Error>> {
        let intercept = self.matcher.intercept(&url.as_str().parse().ok()?)?;
        let proxy = reqwest::Proxy::all(intercept.uri().to_string());
        Some(proxy.map(|proxy| match (intercept.raw_auth(), intercept.basic_auth()) {
            (Some((user, password)), _) => proxy.basic_auth(user, password),
            (None, Some(header)) => proxy.custom_http_auth(header.clone()),
            (None, None) => proxy,
        }))
    }
}
