//! The ready-made providers: wire format, address, names of the key in the environment, one default model.
//! Looked up on 2026-11-30; a default is a pinned id where the provider has one.

use super::WireFormat;
use crate::config::environment;

/// One ready-made provider.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) wire: WireFormat,
    pub(crate) base_url: &'static str,
    /// Environment names of the key, the first that is set counts. Empty: a server of one's own, no key needed.
    pub(crate) key_names: &'static [&'static str],
    /// Environment name that replaces `base_url`.
    pub(crate) base_url_name: Option<&'static str>,
    /// `None` for servers that run whatever their owner has loaded.
    pub(crate) default: Option<Known>,
}

/// A model with its limits in tokens, where they are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) id: &'static str,
    pub(crate) context: Option<u64>,
    pub(crate) max_output: Option<u32>,
}

const fn known(id: &'static str, context: u64, max_output: u32) -> Option<Known> {
    Some(Known { id, context: Some(context), max_output: Some(max_output) })
}

const fn named(id: &'static str) -> Option<Known> {
    Some(Known { id, context: None, max_output: None })
}

/// In the order in which a key in the environment is looked for.
pub(crate) const ENTRIES: &[Entry] = &[
    Entry {
        name: "anthropic",
        wire: WireFormat::Anthropic,
        base_url: "https://api.anthropic.com",
        key_names: &[environment::ANTHROPIC_API_KEY],
        base_url_name: Some(environment::ANTHROPIC_BASE_URL),
        default: known("claude-sonnet-5", 200_000, 64_000),
    },
    Entry {
        name: "openai",
        wire: WireFormat::Openai,
        base_url: "https://api.openai.com/v1",
        key_names: &[environment::OPENAI_API_KEY],
        base_url_name: Some(environment::OPENAI_BASE_URL),
        default: known("gpt-5.4", 1_050_000, 128_000),
    },
    entry("zai", "https://api.z.ai/api/paas/v4", &[environment::ZAI_API_KEY, environment::ZHIPUAI_API_KEY], named("glm-5.2")),
    entry("deepseek", "https://api.deepseek.com/v1", &[environment::DEEPSEEK_API_KEY], named("deepseek-v4-pro")),
    entry(
        "qwen",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        &[environment::DASHSCOPE_API_KEY, environment::QWEN_API_KEY],
        named("qwen3.5-plus"),
    ),
    entry("moonshot", "https://api.moonshot.ai/v1", &[environment::MOONSHOT_API_KEY, environment::KIMI_API_KEY], named("kimi-k2.6")),
    entry("openrouter", "https://openrouter.ai/api/v1", &[environment::OPENROUTER_API_KEY], named("anthropic/claude-sonnet-5")),
    entry("ollama", "http://127.0.0.1:11434/v1", &[], None),
    entry("lmstudio", "http://127.0.0.1:1234/v1", &[], None),
    entry("llamacpp", "http://127.0.0.1:8080/v1", &[], None),
    entry("vllm", "http://127.0.0.1:8000/v1", &[], None),
];

const fn entry(name: &'static str, base_url: &'static str, key_names: &'static [&'static str], default: Option<Known>) -> Entry {
    Entry { name, wire: WireFormat::Openai, base_url, key_names, base_url_name: None, default }
}

pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}
