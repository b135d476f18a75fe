//! Which pages a `WebFetch(domain:host)` rule is about (R281).

/// A host, or every host below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// In lower case.
    name: String,
    /// Written with `*.` before it.
    only_below: bool,
}

impl Domain {
    /// `domain:example.com`, `domain:*.example.com`, `domain:127.0.0.1`, `domain:::1`.
    pub(crate) fn parse(specifier: &str) -> Option<Self> {
        let host = specifier.strip_prefix("domain:")?.trim().trim_start_matches('[').trim_end_matches([']', '.']).to_lowercase();
        let (name, only_below) = match host.strip_prefix("*.") {
            Some(name) => (name.to_owned(), true),
            None => (host, false),
        };
        let is_host = !name.is_empty() && !name.contains(['/', '@', '*', '?', '#', ' ']) && !name.starts_with('.');
        is_host.then_some(Self { name, only_below })
    }

    /// For allow: exactly the host, or one below it where the rule says so.
    pub(crate) fn covers(&self, host: &str) -> bool {
        if self.only_below { self.is_above(host) } else { host == self.name }
    }

    /// For deny and ask: what is below a host counts too, since a doubt must not open what a rule closes.
    pub(crate) fn restricts(&self, host: &str) -> bool {
        self.covers(host) || self.is_above(host)
    }

    fn is_above(&self, host: &str) -> bool {
        host.strip_suffix(&self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
    }
}

/// The host a URL names, as rules compare it; the whole text when it is no URL.
pub(crate) fn host_of(url: &str) -> String {
    let Ok(parsed) = url.parse::<url::Url>() else { return url.to_lowercase() };
    let host = parsed.host_str().unwrap_or_default();
    host.trim_start_matches('[').trim_end_matches([']', '.']).to_lowercase()
}

/// The rule that allows a tool to fetch from this host; only pages are told apart by host.
pub(crate) fn rule_for(tool: &str, host: &str) -> String {
    if tool == "WebFetch" { format!("WebFetch(domain:{host})") } else { tool.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allow_is_exact_and_a_deny_covers_what_is_below() {
        for (rule, host, covers, restricts) in [
            ("domain:example.com", "example.com", true, true),
            ("domain:Example.com.", "example.com", true, true),
            ("domain:example.com", "www.example.com", false, true),
            ("domain:example.com", "notexample.com", false, false),
            ("domain:example.com", "example.com.evil.net", false, false),
            ("domain:*.example.com", "www.example.com", true, true),
            ("domain:*.example.com", "a.b.example.com", true, true),
            ("domain:*.example.com", "example.com", false, false),
            ("domain:127.0.0.1", "127.0.0.1", true, true),
            ("domain:[::1]", "::1", true, true),
        ] {
            let domain = Domain::parse(rule).unwrap();
            assert_eq!((domain.covers(host), domain.restricts(host)), (covers, restricts), "{rule} {host}");
        }
        for rule in ["example.com", "domain:", "domain:https://example.com", "domain:a.com/b", "domain:*", "domain:*.*"] {
            assert_eq!(Domain::parse(rule), None, "{rule}");
        }
    }

    #[test]
    fn the_host_is_what_is_connected_to() {
        for (url, host) in [
            ("https://Example.com:8443/x?y", "example.com"),
            ("http://user@evil.example/@good.example", "evil.example"),
            ("http://[::1]:80/", "::1"),
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://b\u{fc}cher.example/", "xn--bcher-kva.example"),
        ] {
            assert_eq!(host_of(url), host);
        }
    }
}
