//! What this system can take away from a payload, and the private temporary folder that a confined payload writes in.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::plan::{AnyPath, LaunchPlan, Program};
use super::platform;
use super::record::LeftOver;
use crate::files;

/// What the kernel enforces, looked at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The version of Landlock; `None` where there is none.
    pub landlock: Option<u32>,
    /// Filters of system calls.
    pub calls: bool,
}

/// The hidden argument by which the binary tells whether it can have mounts of its own.
pub const TRY_ARGUMENT: &str = "__mounts";
/// A program start takes milliseconds.
const TRY_MAX: Duration = Duration::from_secs(10);

/// Whether a payload can be given mounts of its own, by trying it in a process that ends at once. Looked at once.
pub fn has_own_mounts(keeper: &Program) -> bool {
    static OWN_MOUNTS: OnceLock<bool> = OnceLock::new();
    *OWN_MOUNTS.get_or_init(|| kernel().confines() && try_in_a_process(keeper).unwrap_or(false))
}

#[expect(clippy::disallowed_methods, reason = "the supervisor is the one place that starts processes")]
fn try_in_a_process(keeper: &Program) -> io::Result<bool> {
    let program = match keeper {
        Program::Own => platform::own_program(),
        Program::At(path) => path.clone(),
    };
    let mut command = Command::new(program);
    command.arg(TRY_ARGUMENT).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let deadline = Instant::now() + TRY_MAX;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The process of [`TRY_ARGUMENT`].
pub fn try_main() -> ExitCode {
    if platform::try_mounts() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Kernel {
    /// Both, without which nothing can be promised.
    pub fn confines(&self) -> bool {
        self.landlock.is_some() && self.calls
    }
}

pub fn kernel() -> Kernel {
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    *KERNEL.get_or_init(|| Kernel { landlock: platform::landlock_version(), calls: platform::filters_calls() })
}

impl LaunchPlan {
    /// What the payload must not make.
    pub(crate) fn absent(&self) -> &[AnyPath] {
        self.confinement.as_ref().and_then(|confinement| confinement.mounts.as_ref()).map_or(&[], |mounts| &mounts.absent)
    }

    /// After the payload's end: renames what it made although it must not, and says so.
    pub(crate) fn refuse_new(&self, marker: &str) -> Vec<LeftOver> {
        self.absent().iter().filter_map(|path| refuse_new(&path.0, marker)).collect()
    }

    /// The payload's private temporary folder; the marker is used once.
    pub(crate) fn temporary_folder(&self, marker: &str) -> Option<PathBuf> {
        self.temporary_below.as_ref().map(|below| below.join(format!("zapmyco-{marker}")))
    }
}

/// Renames rather than removes: it may be somebody else's after all.
pub(crate) fn refuse_new(path: &Path, marker: &str) -> Option<LeftOver> {
    path.symlink_metadata().ok()?;
    let mut name = path.file_name()?.to_owned();
    name.push(format!(".refused-{marker}"));
    let moved = path.with_file_name(name);
    Some(LeftOver::not_provable(match std::fs::rename(path, &moved) {
        Ok(()) => format!("{} was made against the sandbox; it is now {}", path.display(), moved.display()),
        Err(error) => format!("{} was made against the sandbox and could not be renamed: {error}", path.display()),
    }))
}

pub(crate) fn make_temporary(path: &Path) -> io::Result<()> {
    files::create_new_private_folder(path).map_err(|error| error.source)
}

/// Also where the payload has taken its own rights to folders away.
pub(crate) fn remove_temporary(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => {
            open_folders(path);
            std::fs::remove_dir_all(path)
        }
    }
}

/// Deeper than this nothing is opened; the removal then says what it could not do.
const DEPTH_MAX: usize = 64;

fn open_folders(path: &Path) {
    let mut waiting = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = waiting.pop() {
        // The payload's tree has ended: nobody changes a folder into a link any more.
        let _ = std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700));
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()));
        waiting.extend(folders.map(|entry| (entry.path(), depth + 1)));
    }
}
