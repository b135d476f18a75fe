//! All integration tests as one binary: one module per flow, `support` for builders.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod support;

mod agent;
mod agent_control;
mod agent_runs;
mod agents;
mod approvals;
mod budgets;
mod cli;
mod commands;
mod config;
mod damaged_calls;
mod demo;
mod examples;
mod hooks;
mod imports;
mod job_ends;
mod jobs;
mod lending;
mod local_agents;
mod memory;
mod messages;
mod models;
mod output;
mod outside;
mod permissions;
mod rights;
mod run;
mod sandbox;
mod scripts;
mod secrets;
mod sessions;
mod shells;
mod skills;
mod store;
mod subagent;
mod supervisor;
mod terminal;
mod tools;
mod trust;
mod usage;
mod web;
mod worktrees;
