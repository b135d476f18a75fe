//! Finds model servers on loopback and lists what they have: Ollama, LM Studio, llama.cpp, vLLM, all ports side by side.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use super::catalog::{ModelChoiceError, ResolvedModel, Why};
use super::{WireFormat, http};

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
    let mut response = client.get(url).send().await.ok().filter(|response| response.status().is_success())?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        body.extend_from_slice(&chunk);
        if body.len() > LIST_MAX {
            return None;
        }
    }
    let value: Value = serde_json::from_slice(&body).ok()?;
    // Ollama answers null where it has no model.
    let list = value.pointer(pointer)?;
    let entries = list.as_array().map_or(&[][..], Vec::as_slice);
    (list.is_array() || list.is_null()).then(|| entries.iter().filter_map(|entry| entry[key].as_str()).map(str::to_owned).collect())
}
