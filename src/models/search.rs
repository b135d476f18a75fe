//! The search of the web that a provider offers beside its models: one request to the session's model with the provider's
//! own search tool, apart from the conversation. Anthropic Messages has one; Chat Completions has none in general.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::catalog::ResolvedModel;
use super::http::Http;
use super::wire::Fault;
use super::{Gate, ModelErrorKind, Usage, WireFormat, providers, remote};
use crate::config::Limits;
use crate::secrets::SECRET_MIN;

/// Asks a model's provider to search.
pub struct ModelSearch {
    model: ResolvedModel,
    http: Http,
    gate: Gate,
}

/// What a search gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Searched {
    /// What the model says about the results.
    pub text: String,
    pub sources: Vec<Source>,
    /// Tokens the request has used.
    pub usage: Usage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub title: String,
    pub url: String,
    pub age: Option<String>,
}

/// Why a search gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ModelSearchError {
    #[error("{provider}: {message}")]
    Request { provider: String, message: String },
    #[error("{provider}: the search failed: {code}")]
    Search { provider: String, code: String },
    #[error("{provider}: the answer is no search: {reason}")]
    Garbled { provider: String, reason: String },
}

const TOOL: &str = "web_search_20250305";
const ANSWER_TOKENS: u32 = 2048;
const SEARCHES_MAX: u32 = 3;
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

impl ModelSearch {
    /// The search of this model's provider: where it is known to have one, or where the user says so (`said`).
    pub fn of(model: ResolvedModel, limits: &Limits, gate: Gate, said: bool) -> Option<Self> {
        let is_own_address = providers::find(&model.provider).is_some_and(|entry| entry.base_url == model.base_url);
        let is_known = model.provider == "anthropic" && is_own_address;
        match model.wire {
            WireFormat::Anthropic if is_known || said => {
                let http = Http::new(model.endpoint(), remote::headers(&model), limits, gate.clone());
                Some(Self { model, http, gate })
            }
            WireFormat::Anthropic | WireFormat::Openai => None,
        }
    }

    /// `provider/model-id`
    pub fn name(&self) -> String {
        self.model.name()
    }

    /// Where the query goes.
    pub fn url(&self) -> String {
        self.model.endpoint().to_string()
    }

    pub async fn search(&self, query: &str, allowed: &[String], blocked: &[String]) -> Result<Searched, ModelSearchError> {
        let mut tool = json!({"type": TOOL, "name": "web_search", "max_uses": SEARCHES_MAX});
        // The provider takes one of the two lists.
        if !allowed.is_empty() {
            tool["allowed_domains"] = json!(allowed);
        } else if !blocked.is_empty() {
            tool["blocked_domains"] = json!(blocked);
        }
        let task = format!("Search the web for: {query}\n\nThen say in a few sentences what the results tell about it, and nothing else.");
        let body = json!({
            "model": self.model.model,
            "max_tokens": ANSWER_TOKENS,
            "messages": [{"role": "user", "content": task}],
            "tools": [tool],
        });
        let refused = |wait| {
            // A gate that cannot be written holds back nobody else; this request has failed anyway.
            let _ = self.gate.close(wait);
        };
        let mut answer = self.http.post(Bytes::from(body.to_string()), refused).await.map_err(|fault| self.failed(&fault))?;
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk(None).await.map_err(|fault| self.failed(&fault))? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(self.garbled("it is too large"));
            }
            bytes.extend_from_slice(&chunk);
        }
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|error| self.garbled(&error.to_string()))?;
        self.read(answer)
    }

    fn read(&self, answer: Answer) -> Result<Searched, ModelSearchError> {
        let mut searched = Searched { usage: answer.usage, ..Searched::default() };
        let mut has_searched = false;
        for block in answer.content {
            let text = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
            match text("type") {
                "text" => searched.text.push_str(text("text")),
                "web_search_tool_result" => match &block["content"] {
                    Value::Array(results) => {
                        has_searched = true;
                        searched.sources.extend(results.iter().filter_map(source));
                    }
                    error => {
                        let code = error.get("error_code").and_then(Value::as_str).unwrap_or("unknown").to_owned();
                        return Err(ModelSearchError::Search { provider: self.model.provider.clone(), code });
                    }
                },
                _ => {}
            }
        }
        if has_searched { Ok(searched) } else { Err(self.garbled("the model did not search")) }
    }

    fn failed(&self, fault: &Fault) -> ModelSearchError {
        let key = self.model.key.as_ref().map(secrecy::ExposeSecret::expose_secret);
        let message = match key.filter(|key| key.len() >= SECRET_MIN) {
            Some(key) => fault.message.replace(key, "[key]"),
            None => fault.message.clone(),
        };
        let hint = match fault.kind {
            ModelErrorKind::InvalidRequest => " (this model or account may have no search; set up [web.search])",
            _ => "",
        };
        ModelSearchError::Request { provider: self.model.provider.clone(), message: format!("{message}{hint}") }
    }

    fn garbled(&self, reason: &str) -> ModelSearchError {
        ModelSearchError::Garbled { provider: self.model.provider.clone(), reason: reason.to_owned() }
    }
}

#[derive(Deserialize)]
struct Answer {
    content: Vec<Value>,
    #[serde(default)]
    usage: Usage,
}

fn source(result: &Value) -> Option<Source> {
    let text = |key: &str| result.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(Source { title: text("title").unwrap_or_default(), url: text("url")?, age: text("page_age") })
}
