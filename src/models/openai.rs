//! Wire format: OpenAI Chat Completions.
