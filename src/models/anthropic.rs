//! Wire format: Anthropic Messages.
