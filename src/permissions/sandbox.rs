//! What holds the commands of a shell beside the decision to run them: which confinement fits a mode, and what of it this
//! kernel enforces. Tools inside the process are held by the decision alone.

use serde::{Deserialize, Serialize};

use crate::supervisor::confine::{Kernel, kernel};
use crate::supervisor::plan::{Confinement, RefusedCalls};

/// What is enforced upon the commands of a shell, as metadata tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    pub scope: SandboxScope,
    /// The version of Landlock that holds the file system; `null`: not held.
    pub landlock: Option<u32>,
    /// System calls that Landlock does not know are refused by a filter.
    pub call_filter: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxScope {
    /// Whatever the user may do.
    Off,
    /// Writing nowhere but in a private temporary folder.
    ReadOnly,
}

/// How one shell is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellRights {
    /// With a private temporary folder, when there is one.
    pub confinement: Option<Confinement>,
    pub report: SandboxReport,
}

impl ShellRights {
    pub(crate) fn of(reads_only: bool) -> Self {
        Self::on(kernel(), reads_only)
    }

    fn on(kernel: Kernel, reads_only: bool) -> Self {
        if !reads_only {
            return Self { confinement: None, report: SandboxReport { scope: SandboxScope::Off, landlock: None, call_filter: false } };
        }
        if !kernel.confines() {
            let report = SandboxReport { scope: SandboxScope::ReadOnly, landlock: None, call_filter: false };
            return Self { confinement: None, report };
        }
        let confinement = Confinement { writable: Vec::new(), calls: RefusedCalls::Everything, network: false, mounts: None };
        let report = SandboxReport { scope: SandboxScope::ReadOnly, landlock: kernel.landlock, call_filter: true };
        Self { confinement: Some(confinement), report }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R46, R47
    #[test]
    fn a_session_that_reads_only_gets_what_the_kernel_has() {
        let full = Kernel { landlock: Some(7), calls: true };
        let rights = ShellRights::on(full, true);
        assert_eq!(rights.report, SandboxReport { scope: SandboxScope::ReadOnly, landlock: Some(7), call_filter: true });
        let confinement = rights.confinement.unwrap();
        assert!(confinement.writable.is_empty() && !confinement.network);
        assert_eq!(ShellRights::on(full, false).confinement, None);
        for lacking in [Kernel { landlock: None, calls: true }, Kernel { landlock: Some(7), calls: false }] {
            let rights = ShellRights::on(lacking, true);
            assert_eq!((rights.confinement, rights.report.landlock, rights.report.call_filter), (None, None, false));
        }
    }
}
