//! What was left behind by processes that died hard, and what is old enough to go.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::agent_folders;
use super::folders::{JobError, all_ids};
use crate::config::Layout;
use crate::files::shown_paths;
use crate::ids::{JobId, SessionId};
use crate::supervisor::record::{RecordError, read_end, read_spec};
use crate::supervisor::recovery;

/// What a sweep found and did.
#[derive(Debug, Default, serde::Serialize)]
pub struct SweepReport {
    /// Jobs whose keeper, or whose process, had died without a record; now recorded as lost.
    pub settled: Vec<JobId>,
    /// Folders of starts that were never completed; removed.
    #[serde(serialize_with = "shown_paths::serialize")]
    pub removed: Vec<PathBuf>,
    /// Processes that carried a marker of ours without a living keeper; ended.
    pub ended: Vec<SweptProcess>,
    /// What could not be ended.
    pub left_over: Vec<SweptProcess>,
    /// Folders that could not be understood.
    pub problems: Vec<String>,
    /// What this system cannot prove, if anything: then an empty `left_over` is no proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_provable: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SweptProcess {
    pub pid: u32,
    pub command: String,
}

impl SweepReport {
    /// Nothing was found: nothing had been left behind.
    pub fn is_clean(&self) -> bool {
        self.settled.is_empty() && self.removed.is_empty() && self.ended.is_empty() && self.left_over.is_empty() && self.problems.is_empty()
    }
}

/// Settles dead keepers, ends what carries a marker of this root without a living keeper, removes folders whose start was
/// never completed, and looks again. `only`: the jobs of this session; otherwise of all.
pub fn sweep(layout: &Layout, only: Option<&SessionId>) -> Result<SweepReport, JobError> {
    let mut report = SweepReport { not_provable: unproved(), ..SweepReport::default() };
    let mut markers = Markers::default();
    for (session, id) in all_ids(layout)?.into_iter().filter(|(session, _)| only.is_none_or(|only| only == session)) {
        let folder = layout.job(&session, &id);
        let before = read_spec(&folder).ok().flatten().map(|spec| spec.marker);
        let had_end = matches!(read_end(&folder), Ok(Some(_)));
        // Before settling: that ends the processes, and they are to be named.
        let marked = if had_end { Vec::new() } else { before.as_deref().map(carrying).unwrap_or_default() };
        match recovery::settle(&folder) {
            Ok(None) => markers.living.extend(before),
            Ok(Some(_)) => {
                if !had_end {
                    report.settled.push(id);
                    report.ended.extend(marked);
                }
                markers.dead.extend(before);
            }
            Err(RecordError::NeverStarted { path } | RecordError::NoJob { path }) => report.removed.push(path),
            Err(error) => report.problems.push(error.to_string()),
        }
    }
    for (session, id) in agent_folders::all_ids(layout, only)? {
        match agent_folders::settle(layout, &session, &id) {
            Ok(true) => report.settled.push(id),
            Ok(false) => {}
            Err(error) => report.problems.push(error.to_string()),
        }
    }
    for process in markers.orphans() {
        let left = recovery::sweep_marker(&process.marker);
        report.left_over.extend(left.into_iter().map(|left| SweptProcess { pid: left.pid, command: left.command }));
        report.ended.push(process.process);
    }
    // The proof: nothing of ours without a keeper is there any more.
    for process in markers.orphans() {
        if !report.left_over.contains(&process.process) {
            report.left_over.push(process.process);
        }
    }
    report.ended.retain(|process| !report.left_over.iter().any(|left| left.pid == process.pid));
    report.ended.sort_by_key(|process| process.pid);
    report.ended.dedup();
    Ok(report)
}

fn unproved() -> Option<String> {
    (!recovery::FINDS_MARKED).then(|| "this system does not show which processes a dead keeper left behind".to_owned())
}

fn carrying(marker: &str) -> Vec<SweptProcess> {
    recovery::find_marked()
        .into_iter()
        .filter(|marked| marked.components.iter().any(|component| component == marker))
        .map(|marked| SweptProcess { pid: marked.pid, command: marked.command })
        .collect()
}

/// Markers of this storage root by whether their keeper lives. Those of other roots are not ours to judge.
#[derive(Default)]
struct Markers {
    living: BTreeSet<String>,
    dead: BTreeSet<String>,
}

struct Orphan {
    process: SweptProcess,
    marker: String,
}

impl Markers {
    fn orphans(&self) -> Vec<Orphan> {
        recovery::find_marked()
            .into_iter()
            .filter(|marked| !marked.components.iter().any(|component| self.living.contains(component)))
            .filter_map(|marked| {
                let marker = marked.components.iter().find(|component| self.dead.contains(*component))?.clone();
                Some(Orphan { process: SweptProcess { pid: marked.pid, command: marked.command }, marker })
            })
            .collect()
    }
}
