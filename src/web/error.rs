//! Why a page or a search result could not be had, told so that a model knows what to do about it.

use std::io;
use std::time::Duration;

use super::address::Scope;

#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("`{url}` is no URL: {reason}")]
    NotAUrl { url: String, reason: String },
    #[error("only http:// and https:// can be fetched, not {scheme}:")]
    Scheme { scheme: String },
    #[error("the URL holds a user name or password, which would go into records and to the server")]
    UserInfo,
    #[error("the URL is {length} characters long; at most {most} are sent")]
    TooLong { length: usize, most: usize },
    #[error("{host} is {scope}: only public addresses are fetched")]
    NotPublic { host: String, scope: Scope },
    #[error("{host} leads to {address}, {scope}: only public addresses are fetched")]
    LeadsInside { host: String, address: String, scope: Scope },
    #[error("cannot find {host}: {source}")]
    Lookup { host: String, source: io::Error },
    #[error("{host} has no address")]
    NoAddress { host: String },
    #[error("cannot set up the connection: {reason}")]
    Client { reason: String },
    #[error("no connection to {host}: {reason}")]
    Connect { host: String, reason: String },
    #[error("{host} was not done within {} s; {bytes} bytes of the page had come", .limit.as_secs_f64())]
    TimedOut { host: String, limit: Duration, bytes: usize },
    #[error("the connection to {host} broke: {reason}")]
    Broken { host: String, reason: String },
    #[error("more than {most} redirections, the last one to {url}")]
    TooManyRedirects { most: usize, url: String },
    #[error("{host} redirects with status {status}, but its target cannot be read: {reason}")]
    BadRedirect { host: String, status: u16, reason: String },
    #[error("status {status}{}", .excerpt.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status { status: u16, excerpt: Option<String> },
    #[error("the page is encoded as `{encoding}`, which was not asked for and cannot be read")]
    Encoding { encoding: String },
    #[error("the address holds {what}, which is no text")]
    NotText { what: String },
    #[error("the page says that its characters are encoded as `{charset}`, which cannot be read safely")]
    Charset { charset: String },
    #[error("the page could not be converted: {reason}")]
    Conversion { reason: String },
}

impl WebError {
    /// What to do instead, if there is something.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Scheme { .. } => Some("read local files with Read"),
            Self::UserInfo => Some("leave the part before `@` out"),
            Self::NotPublic { .. } | Self::LeadsInside { .. } => Some(
                "do not look for a way around it; the user can allow the address in their own settings: [web] allow_private = \
                 [\"HOST:PORT\"]",
            ),
            Self::NotText { .. } => Some("if it is needed, say so; a shell command can download it to a file and convert it there"),
            Self::NotAUrl { .. } => Some("write it whole, like https://example.com/page"),
            Self::TooLong { .. }
            | Self::Lookup { .. }
            | Self::NoAddress { .. }
            | Self::Client { .. }
            | Self::Connect { .. }
            | Self::TimedOut { .. }
            | Self::Broken { .. }
            | Self::TooManyRedirects { .. }
            | Self::BadRedirect { .. }
            | Self::Status { .. }
            | Self::Encoding { .. }
            | Self::Charset { .. }
            | Self::Conversion { .. } => None,
        }
    }
}
