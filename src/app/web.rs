//! The web tools of a session and its children, made from the section `[web]` of the settings.

use std::sync::Arc;

use crate::agent::tool::Tool;
use crate::app::{App, AppError};
use crate::permissions::Policy;
use crate::tools::web_fetch::WebFetch;
use crate::web::{Fetcher, WebSettings};

/// What the web tools of all sessions of this process share.
#[derive(Clone)]
pub(super) struct Web {
    fetcher: Arc<Fetcher>,
}

impl App {
    pub(super) fn web(&self) -> Result<Web, AppError> {
        let settings: WebSettings = self.settings.section("web")?.unwrap_or_default();
        Ok(Web { fetcher: Arc::new(Fetcher::new(settings.allow_private, &self.limits, &self.environment)) })
    }
}

impl Web {
    pub(super) fn tools(&self, policy: &Arc<Policy>) -> Vec<Arc<dyn Tool>> {
        vec![Arc::new(WebFetch::new(Arc::clone(&self.fetcher), Arc::clone(policy)))]
    }
}
