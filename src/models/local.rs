//! Finds model servers on loopback and lists what they have: Ollama, LM Studio, llama.cpp, vLLM, all ports side by side.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::catalog::{ModelChoiceError, ResolvedModel, Why};
use super::{WireFormat, http, remote};

/// A server that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalServer {
    /// Name of the ready-made provider.
    pub program: &'static str,
    pub base_url: String,
    pub wire: WireFormat,
    /// Ids as the server lists them; may be empty.
    pub models: Vec<String>,
}

/// Where one program listens.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub program: &'static str,
    pub port: u16,
}

/// The programs' usual ports, in the order in which they are preferred.
pub const PROBES: &[Probe] = &[
    Probe { program: "ollama", port: 11434 },
    Probe { program: "lmstudio", port: 1234 },
    Probe { program: "llamacpp", port: 8080 },
    Probe { program: "vllm", port: 8000 },
];

/// Every server that answers within the time, in the order of [`PROBES`].
pub async fn find(within: Duration) -> Vec<LocalServer> {
    find_at(PROBES, within).await
}

/// As [`find`], at given ports of 127.0.0.1.
pub async fn find_at(probes: &[Probe], within: Duration) -> Vec<LocalServer> {
    let asked = probes.iter().map(|probe| async move { tokio::time::timeout(within, ask(*probe)).await.ok().flatten() });
    join_all(asked).await.into_iter().flatten().collect()
}

impl LocalServer {
    /// The first model that can hold a conversation, and the line that says so. `None` when the server lists none.
    pub fn choose(&self) -> Option<Result<(ResolvedModel, Why), ModelChoiceError>> {
        let model = self.models.iter().find(|model| !is_embedding(model))?;
        let others = self.models.len() - 1;
        let line = format!(
            "model {}/{model}: no key is set, and {} answers at {}{}",
            self.program,
            self.program,
            self.base_url,
            if others == 0 { String::new() } else { format!(" ({others} more models there; choose with --model {}/<id>)", self.program) }
        );
        let resolved = ResolvedModel::local(self.program, self.wire, self.base_url.clone(), model.clone());
        Some(resolved.map(|resolved| (resolved, Why { line, warnings: Vec::new() })))
    }
}

/// How long a server of one's own has to list its models.
const LIST_WAIT: Duration = Duration::from_secs(5);

/// A base URL was given and no model: the one that the server at that address has, or the first that can hold a
/// conversation. The provider's default stays where the server has it.
pub async fn choose_listed(model: ResolvedModel) -> Result<(ResolvedModel, Why), ModelChoiceError> {
    let url = model.list_address();
    let place = format!("{}{}", http::host_of(&url), url.path());
    let unlisted = |fault: ListFault| ModelChoiceError::NotListed {
        provider: model.provider.clone(),
        place: place.clone(),
        reason: fault.to_string(),
    };
    let client = http::client(&url, LIST_WAIT).map_err(|error| unlisted(ListFault::Unreachable(http::root_cause(&error))))?;
    let asked = ask_list(&client, url, remote::headers(&model), "/data", "id");
    let models = tokio::time::timeout(LIST_WAIT, asked).await.unwrap_or(Err(ListFault::Silent)).map_err(unlisted)?;
    let has_default = models.contains(&model.model);
    let first = models.iter().find(|id| !is_embedding(id)).ok_or_else(|| unlisted(ListFault::NoModel))?;
    let chosen = if has_default { model } else { model.with_model(first.clone()) };
    let others = match models.len() - 1 {
        0 => "the only one there".to_owned(),
        n => format!("{n} more there; choose with --model {}/<id>", chosen.provider),
    };
    let line = format!("model {}: no model was named, and {place} lists it ({others})", chosen.name());
    Ok((chosen, Why { line, warnings: Vec::new() }))
}

fn is_embedding(model: &str) -> bool {
    let name = model.to_lowercase();
    ["embed", "rerank", "bge-", "minilm"].iter().any(|word| name.contains(word))
}

/// Largest list of models read, in bytes.
const LIST_MAX: usize = 4 * 1024 * 1024;

async fn ask(probe: Probe) -> Option<LocalServer> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, probe.port));
    // A closed port is known at once, before any client is built.
    drop(tokio::net::TcpStream::connect(address).await.ok()?);
    let base_url = format!("http://{address}");
    let url: reqwest::Url = format!("{base_url}/v1/models").parse().ok()?;
    let client = http::client(&url, Duration::from_secs(1)).ok()?;
    let mut models = list(&client, url, "/data", "id").await;
    if models.is_none() && probe.program == "ollama" {
        // Releases before the compatible list.
        models = list(&client, format!("{base_url}/api/tags").parse().ok()?, "/models", "name").await;
    }
    Some(LocalServer { program: probe.program, base_url, wire: WireFormat::Openai, models: models? })
}

/// `None` when the answer is not such a list: some other program listens there.
async fn list(client: &reqwest::Client, url: reqwest::Url, pointer: &str, key: &str) -> Option<Vec<String>> {
    ask_list(client, url, HeaderMap::new(), pointer, key).await.ok()
}

/// Why a server gives no list of models.
#[derive(Debug, thiserror::Error)]
enum ListFault {
    #[error("{0}")]
    Unreachable(String),
    #[error("status {0}")]
    Status(u16),
    #[error("a list of more than {LIST_MAX} bytes")]
    TooLarge,
    #[error("the answer is no list of models")]
    NoList,
    #[error("no answer within {} s", LIST_WAIT.as_secs())]
    Silent,
    #[error("it lists no model that can hold a conversation")]
    NoModel,
}

/// The ids of a list of models.
async fn ask_list(
    client: &reqwest::Client,
    url: reqwest::Url,
    headers: HeaderMap,
    pointer: &str,
    key: &str,
) -> Result<Vec<String>, ListFault> {
    let unreachable = |error: reqwest::Error| ListFault::Unreachable(http::root_cause(&error));
    let mut response = client.get(url).headers(headers).send().await.map_err(unreachable)?;
    if !response.status().is_success() {
        return Err(ListFault::Status(response.status().as_u16()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > LIST_MAX {
            return Err(ListFault::TooLarge);
        }
    }
    let value: Value = serde_json::from_slice(&body).map_err(|_| ListFault::NoList)?;
    // Ollama answers null where it has no model.
    let list = value.pointer(pointer).filter(|list| list.is_array() || list.is_null()).ok_or(ListFault::NoList)?;
    let entries = list.as_array().map_or(&[][..], Vec::as_slice);
    Ok(entries.iter().filter_map(|entry| entry[key].as_str()).map(str::to_owned).collect())
}
