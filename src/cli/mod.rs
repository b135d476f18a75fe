//! The command line: one file per command.

pub mod args;
pub mod config;
pub mod demo;
pub mod guard;
pub mod jobs;
pub mod manual;
pub mod output;
pub mod progress;
pub mod report;
pub mod run;
pub mod subagent;
