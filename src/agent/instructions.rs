//! AGENTS.md of user and project, date, git state: context messages after the prompt.
