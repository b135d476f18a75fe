//! What holds the commands of a shell beside the decision to run them: which confinement fits a mode and a setting, and
//! what of it this kernel enforces. File tools inside the process are held by the decision alone, to the same bounds.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::permissions::bounds::WriteBounds;
use crate::permissions::paths::PathForms;
use crate::supervisor::confine::{Kernel, has_own_mounts, kernel};
use crate::supervisor::plan::{AnyPath, Confinement, OwnMounts, Program, RefusedCalls};

/// The section `sandbox` of the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxSettings {
    pub mode: SandboxMode,
    /// What the kernel cannot hold is an error and no warning.
    pub required: bool,
    /// Whether commands reach other machines and the loopback of this one.
    pub network: bool,
    /// Further folders that commands and file tools may write in; `~/` is the home folder.
    pub write: Vec<String>,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self { mode: SandboxMode::Off, required: false, network: true, write: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxMode {
    /// Sessions that only read are held, others are not.
    #[default]
    Off,
    /// Writing inside the working directory only.
    Workspace,
}

impl SandboxMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Workspace => "workspace",
        }
    }
}

/// The sandbox of a session and its children.
#[derive(Clone, Debug)]
pub struct Sandbox {
    settings: Arc<SandboxSettings>,
    /// Given with mode `workspace` only.
    bounds: Option<Arc<WriteBounds>>,
    kernel: Kernel,
    own_mounts: bool,
}

/// A setting that this kernel cannot keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    #[error("the sandbox is required, and this system has {missing}")]
    Required { missing: Missing },
    #[error("commands are to have no network, and this system has {missing}")]
    Network { missing: Missing },
}

/// What a kernel lacks for a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Landlock,
    CallFilter,
    OwnMounts,
}

/// What is enforced upon the commands of a shell, as metadata tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    pub scope: SandboxScope,
    /// The version of Landlock that holds the file system; `null`: not held.
    pub landlock: Option<u32>,
    /// System calls that Landlock does not know are refused by a filter.
    pub call_filter: bool,
    /// The file system is seen through mounts of the command's own.
    #[serde(default)]
    pub own_mounts: bool,
    #[serde(default = "reachable")]
    pub network: bool,
}

fn reachable() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxScope {
    /// Whatever the user may do.
    Off,
    /// Writing nowhere but in a private temporary folder.
    ReadOnly,
    /// Writing in the working directory, the folders of the settings and a private temporary folder.
    Workspace,
    /// Everything but the network.
    NoNetwork,
}

/// How one shell is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellRights {
    pub confinement: Option<Confinement>,
    /// It gets a temporary folder of its own.
    pub private_temporary: bool,
    pub report: SandboxReport,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { settings: Arc::default(), bounds: None, kernel: kernel(), own_mounts: false }
    }
}

impl Sandbox {
    /// `workspace` and `root` (our own storage) are absolute. An error where the settings promise what this kernel cannot
    /// hold. Blocking: with mode `workspace` a process is started to try what it can.
    pub fn new(settings: SandboxSettings, workspace: &Path, root: &Path, home: Option<&Path>) -> Result<Self, SandboxError> {
        let own_mounts = settings.mode == SandboxMode::Workspace && has_own_mounts(&Program::Own);
        Self::on(kernel(), own_mounts, settings, workspace, root, home)
    }

    fn on(
        kernel: Kernel,
        own_mounts: bool,
        settings: SandboxSettings,
        workspace: &Path,
        root: &Path,
        home: Option<&Path>,
    ) -> Result<Self, SandboxError> {
        let missing = match kernel {
            Kernel { landlock: None, .. } => Some(Missing::Landlock),
            Kernel { calls: false, .. } => Some(Missing::CallFilter),
            Kernel { .. } => None,
        };
        let for_workspace = settings.mode == SandboxMode::Workspace && !own_mounts;
        if settings.required
            && let Some(missing) = missing.or(for_workspace.then_some(Missing::OwnMounts))
        {
            return Err(SandboxError::Required { missing });
        }
        if let Some(missing) = missing.filter(|_| !settings.network) {
            return Err(SandboxError::Network { missing });
        }
        let bounds = (settings.mode == SandboxMode::Workspace).then(|| {
            let further = settings.write.iter().filter_map(|text| match (text.strip_prefix("~/"), home) {
                (Some(below), Some(home)) => Some(home.join(below)),
                (Some(_), None) => None,
                (None, _) => Some(workspace.join(text)),
            });
            Arc::new(WriteBounds::new(workspace, further, root))
        });
        Ok(Self { settings: Arc::new(settings), bounds, kernel, own_mounts })
    }

    pub fn settings(&self) -> &SandboxSettings {
        &self.settings
    }

    /// Why a file tool must not write this path, if so.
    pub(crate) fn refuses(&self, path: &PathForms) -> Option<String> {
        self.bounds.as_ref().and_then(|bounds| bounds.refuses(path))
    }

    /// What a person should know: which promise this kernel keeps only in part or not at all.
    pub fn warning(&self, reads_only: bool) -> Option<String> {
        let what = match (reads_only, self.settings.mode) {
            (false, SandboxMode::Off) => return None,
            (true, _) => "this system cannot hold commands that only read: only the analysis of each command holds them",
            (false, SandboxMode::Workspace) if !self.kernel.confines() => {
                "this system has no sandbox for commands: only the file tools are kept inside the working directory"
            }
            (false, SandboxMode::Workspace) if !self.own_mounts => {
                "this system allows no mounts of a command's own: commands write only what already lies in the working directory, \
                 not its git directory, and can change modes and times of files elsewhere"
            }
            (false, SandboxMode::Workspace) => return None,
        };
        (!reads_only || !self.kernel.confines()).then(|| what.to_owned())
    }

    /// Looks at the working directory as it is now.
    pub(crate) fn shell(&self, reads_only: bool) -> ShellRights {
        let confined = |confinement: Confinement, scope| ShellRights {
            private_temporary: scope != SandboxScope::NoNetwork,
            report: SandboxReport {
                scope,
                landlock: self.kernel.landlock,
                call_filter: self.kernel.calls,
                own_mounts: confinement.mounts.is_some(),
                network: confinement.network,
            },
            confinement: Some(confinement),
        };
        let network = self.settings.network;
        let free = |scope| ShellRights {
            confinement: None,
            private_temporary: false,
            report: SandboxReport { scope, landlock: None, call_filter: false, own_mounts: false, network: true },
        };
        match (reads_only, &self.bounds) {
            (true, _) if !self.kernel.confines() => free(SandboxScope::ReadOnly),
            (true, _) => {
                let nothing = Confinement { writable: Vec::new(), calls: RefusedCalls::Everything, network: false, mounts: None };
                confined(nothing, SandboxScope::ReadOnly)
            }
            (false, Some(_)) if !self.kernel.confines() => free(SandboxScope::Workspace),
            (false, Some(bounds)) => {
                let (writable, mounts) = self.workspace(bounds);
                confined(Confinement { writable, calls: RefusedCalls::System, network, mounts }, SandboxScope::Workspace)
            }
            (false, None) if network => free(SandboxScope::Off),
            (false, None) => {
                let writable = vec![AnyPath("/".into())];
                confined(Confinement { writable, calls: RefusedCalls::System, network, mounts: None }, SandboxScope::NoNetwork)
            }
        }
    }

    fn workspace(&self, bounds: &WriteBounds) -> (Vec<AnyPath>, Option<OwnMounts>) {
        let paths = |paths: Vec<PathBuf>| paths.into_iter().map(AnyPath).collect();
        if !self.own_mounts {
            return (paths(bounds.entries()), None);
        }
        let kept = bounds.kept();
        let mounts = OwnMounts { fixed: paths(kept.fixed), pinned: paths(kept.pinned), absent: paths(kept.absent) };
        (paths(kept.writable), Some(mounts))
    }
}

impl std::fmt::Display for SandboxReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.scope {
            SandboxScope::Off => "off",
            SandboxScope::ReadOnly => "reading only",
            SandboxScope::Workspace => "workspace",
            SandboxScope::NoNetwork => "no network",
        })?;
        let mut held = Vec::new();
        held.extend(self.landlock.map(|version| format!("Landlock {version}")));
        held.extend(self.call_filter.then(|| "filter of system calls".to_owned()));
        held.extend(self.own_mounts.then(|| "own mounts".to_owned()));
        match (held.is_empty(), self.scope) {
            (true, SandboxScope::Off) => Ok(()),
            (true, _) => f.write_str(" (not held by this system)"),
            (false, _) => write!(f, " ({})", held.join(", ")),
        }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Landlock => "no Landlock",
            Self::CallFilter => "no filter for system calls (seccomp)",
            Self::OwnMounts => "no mounts of a command's own (user namespaces)",
        })
    }
}

impl Missing {
    /// What can be done about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Landlock => "use a Linux kernel from 5.13 on with Landlock switched on (boot parameter lsm=...,landlock)",
            Self::CallFilter => "use a Linux kernel with seccomp filters",
            Self::OwnMounts => "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)",
        }
    }
}

impl SandboxError {
    pub fn remedy(self) -> String {
        let (setting, missing) = match self {
            Self::Required { missing } => ("set sandbox.required = false", missing),
            Self::Network { missing } => ("set sandbox.network = true", missing),
        };
        format!("{}; or {setting} to go on without", missing.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Kernel = Kernel { landlock: Some(7), calls: true };
    const NONE: Kernel = Kernel { landlock: None, calls: true };

    fn sandbox(kernel: Kernel, own_mounts: bool, settings: SandboxSettings) -> Result<Sandbox, SandboxError> {
        Sandbox::on(kernel, own_mounts, settings, Path::new("/work"), Path::new("/root-folder"), Some(Path::new("/home/me")))
    }

    fn workspace() -> SandboxSettings {
        SandboxSettings { mode: SandboxMode::Workspace, ..SandboxSettings::default() }
    }

    /// R46, R47
    #[test]
    fn a_session_that_reads_only_gets_what_the_kernel_has() {
        let full = sandbox(FULL, false, SandboxSettings::default()).unwrap();
        let rights = full.shell(true);
        assert_eq!((rights.report.scope, rights.report.landlock, rights.report.call_filter), (SandboxScope::ReadOnly, Some(7), true));
        let confinement = rights.confinement.unwrap();
        assert!(confinement.writable.is_empty() && !confinement.network);
        assert_eq!((full.shell(false).confinement, full.warning(true)), (None, None));
        for lacking in [NONE, Kernel { landlock: Some(7), calls: false }] {
            let sandbox = sandbox(lacking, false, SandboxSettings::default()).unwrap();
            let rights = sandbox.shell(true);
            assert_eq!((rights.confinement, rights.report.landlock, rights.report.call_filter), (None, None, false));
            assert!(sandbox.warning(true).unwrap().contains("only the analysis"));
        }
    }

    #[test]
    fn what_is_required_and_missing_is_an_error() {
        let required = SandboxSettings { required: true, ..workspace() };
        assert_eq!(sandbox(NONE, true, required.clone()).unwrap_err(), SandboxError::Required { missing: Missing::Landlock });
        assert_eq!(sandbox(FULL, false, required.clone()).unwrap_err(), SandboxError::Required { missing: Missing::OwnMounts });
        assert!(sandbox(FULL, true, required).is_ok());
        let reading = SandboxSettings { required: true, ..SandboxSettings::default() };
        assert!(sandbox(FULL, false, reading.clone()).is_ok() && sandbox(NONE, false, reading).is_err());
        let silent = SandboxSettings { network: false, ..SandboxSettings::default() };
        assert!(matches!(sandbox(NONE, false, silent.clone()), Err(SandboxError::Network { .. })));
        let rights = sandbox(FULL, false, silent).unwrap().shell(false);
        assert_eq!((rights.report.scope, rights.private_temporary), (SandboxScope::NoNetwork, false));
    }

    #[test]
    fn a_kernel_without_own_mounts_warns_once_and_holds_what_it_can() {
        let part = sandbox(FULL, false, workspace()).unwrap();
        assert!(part.warning(false).unwrap().contains("mounts"));
        assert_eq!(part.shell(false).confinement.unwrap().mounts, None);
        let whole = sandbox(FULL, true, workspace()).unwrap();
        assert_eq!(whole.warning(false), None);
        assert!(whole.shell(false).confinement.unwrap().mounts.is_some());
        assert!(sandbox(NONE, false, workspace()).unwrap().warning(false).unwrap().contains("no sandbox"));
    }
}
