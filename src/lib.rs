//! zapmyco: a coding agent for the command line whose subagents never get lost.
//!
//! `ARCHITECTURE.md` at the top of the repository says where things live and who may use whom. In reading order:

pub mod clock;
pub mod files;
mod footprint;
pub mod frontmatter;
pub mod ids;
pub mod secrets;
mod spelling;

pub mod config;
pub mod supervisor;
pub mod text;

pub mod models;
pub mod permissions;
pub mod skills;
pub mod store;
pub mod web;

pub mod hooks;

pub mod agent;
pub mod mcp;
pub mod subagents;
pub mod tools;

pub mod app;
pub mod cli;
