//! A model that is given for one turn only (R314, R317). Everything that could be written down sees it under a fixed name;
//! its real name, address and key are taken out of every message that comes from it.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use secrecy::{ExposeSecret, SecretString};

use super::{Model, ModelError, ModelEvent, Request, ResolvedModel};

/// The name under which a one-off model appears in events, metadata and the store.
pub const ONE_OFF_NAME: &str = "override/one-off";

/// What a turn alone uses instead of the session's model.
#[derive(Clone)]
pub struct OneOff {
    pub model: Arc<dyn Model>,
    pub reasoning: Option<String>,
}

struct Hidden {
    inner: Arc<dyn Model>,
    secrets: Arc<Secrets>,
}

/// Texts that are not to be written, the longest first.
struct Secrets {
    texts: Vec<SecretString>,
}

impl OneOff {
    /// `inner`: opened from `resolved`.
    pub fn new(inner: Arc<dyn Model>, resolved: &ResolvedModel) -> Self {
        let key = resolved.key.as_ref().map(|key| key.expose_secret().to_owned());
        let host = resolved.endpoint().host_str().map(str::to_owned);
        let address = resolved.base_url.trim_end_matches('/').to_owned();
        let mut texts: Vec<String> =
            [Some(resolved.name()), Some(resolved.model.clone()), Some(address), host, key].into_iter().flatten().collect();
        texts.retain(|text| !text.is_empty());
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let secrets = Arc::new(Secrets { texts: texts.into_iter().map(SecretString::from).collect() });
        Self { model: Arc::new(Hidden { inner, secrets }), reasoning: resolved.reasoning.clone() }
    }
}

impl Secrets {
    fn hide(&self, text: &str) -> String {
        self.texts.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), "[one-off]"))
    }

    fn hide_in(&self, event: ModelEvent) -> ModelEvent {
        match event {
            ModelEvent::Retrying { attempt, wait, reason } => ModelEvent::Retrying { attempt, wait, reason: self.hide(&reason) },
            ModelEvent::Waiting { wait, reason } => ModelEvent::Waiting { wait, reason: self.hide(&reason) },
            // What the model says is its own.
            event @ (ModelEvent::TextDelta(_)
            | ModelEvent::ThinkingDelta(_)
            | ModelEvent::ToolUseStarted { .. }
            | ModelEvent::Finished(_)) => event,
        }
    }
}

impl Model for Hidden {
    fn name(&self) -> &str {
        ONE_OFF_NAME
    }

    fn stream(&self, request: Request) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let secrets = Arc::clone(&self.secrets);
        let hide = move |event: Result<ModelEvent, ModelError>| match event {
            Ok(event) => Ok(secrets.hide_in(event)),
            Err(error) => Err(ModelError { message: secrets.hide(&error.message), ..error }),
        };
        self.inner.stream(request).map(hide).boxed()
    }
}
