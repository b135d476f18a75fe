//! Starts the payload from the keeper: own group, default signals, no descriptor but its own.

use std::ffi::OsString;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::plan::{KeeperOrder, Program, StartStage};
use super::platform::{self, Confined};

/// A start that failed, and where.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub stage: StartStage,
    pub source: io::Error,
}

/// A program file that another process has just written is "busy" for a moment.
const BUSY_TRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// First pause when the system is out of processes; doubled each time.
const PROCESSES_PAUSE: Duration = Duration::from_millis(50);

/// Gives the payload's process number once its program runs. The writers are closed here on return.
pub(crate) fn start(
    order: &KeeperOrder,
    additions: &[(OsString, OsString)],
    handed_over: &[OwnedFd],
    temporary: Option<&Path>,
    stdin: Option<OwnedFd>,
    (stdout, stderr): (OwnedFd, OwnedFd),
) -> Result<u32, StartFailure> {
    let plan = &order.plan;
    let failed = |stage| move |source: io::Error| StartFailure { stage, source };
    // Asked first, since a failed start does not tell a missing directory from a missing program.
    let directory = std::fs::metadata(&plan.cwd).map_err(failed(StartStage::WorkingDirectory))?;
    if !directory.is_dir() {
        return Err(failed(StartStage::WorkingDirectory)(io::ErrorKind::NotADirectory.into()));
    }
    // Everything else is closed on exec; this process has one thread and starts nothing else.
    for file in handed_over {
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).map_err(io::Error::from).map_err(failed(StartStage::Program))?;
    }
    let mut report = None;
    let mut confinement = None;
    if let Some(wanted) = &plan.confinement {
        confinement = Some(Confined::prepare(wanted, temporary, &plan.cwd).map_err(failed(StartStage::Confinement))?);
        report = Some(io::pipe().map_err(failed(StartStage::Confinement))?);
    }
    let (reader, writer) = report.unzip();
    let mut command = command(order, additions, confinement.zip(writer));
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from)).stdout(stdout).stderr(stderr);
    let spawned = spawn_with_retries(&mut command, order.retries);
    drop(command);
    // Waited for by number, without reaping first: the handle of the standard library is of no use.
    spawned.map(|child| child.id()).map_err(|source| {
        let mut told = [0; 1];
        let confining = reader.is_some_and(|mut reader| reader.read(&mut told).is_ok_and(|read| read > 0));
        StartFailure { stage: if confining { StartStage::Confinement } else { StartStage::Program }, source }
    })
}

#[expect(clippy::disallowed_methods, reason = "the supervisor is the one place that starts processes")]
fn command(order: &KeeperOrder, additions: &[(OsString, OsString)], confinement: Option<(Confined, PipeWriter)>) -> Command {
    let plan = &order.plan;
    let program = match &plan.program {
        Program::Own => platform::own_program(),
        Program::At(path) => path.clone(),
    };
    let mut command = Command::new(program);
    let mut arguments = plan.argv.iter();
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let added = |name: &OsString| additions.iter().any(|(other, _)| other == name);
    command
        .args(arguments)
        .env_clear()
        .envs(plan.environment.iter().filter(|(name, _)| !added(name)).map(|(name, value)| (name, value)))
        .envs(additions.iter().map(|(name, value)| (name, value)))
        .current_dir(&plan.cwd)
        .process_group(0);
    prepare_child(&mut command, confinement);
    command
}

/// The step between fork and exec.
#[expect(unsafe_code, reason = "pre_exec; the keeper has one thread, and the step makes only plain system calls")]
fn prepare_child(command: &mut Command, mut confinement: Option<(Confined, PipeWriter)>) {
    let keeper = rustix::process::getpid();
    let own = platform::ChildStep::prepare();
    let step = move || {
        own.end_with_keeper()?;
        // The keeper may have died before the line above.
        if rustix::process::getppid() != Some(keeper) {
            return Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
        }
        for signal in nix::sys::signal::Signal::iterator() {
            // Ignored ones (nohup, a shell's background) would be inherited. KILL and STOP answer with an error.
            let _ = unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl) };
        }
        nix::sys::signal::SigSet::empty().thread_set_mask()?;
        own.go_first();
        // Last: after it even the lines above may be refused.
        let Some((confined, report)) = &mut confinement else { return Ok(()) };
        confined.enter().inspect_err(|_| {
            // Which step failed; the error itself goes the usual way.
            let _ = report.write_all(&[0]);
        })?;
        // A change of rights may have undone the first one.
        own.end_with_keeper()
    };
    unsafe { command.pre_exec(step) };
}

fn spawn_with_retries(command: &mut Command, retries: u32) -> io::Result<std::process::Child> {
    let mut busy = 0;
    let mut scarce = 0;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && busy < BUSY_TRIES => {
                busy += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(error) if error.raw_os_error() == Some(nix::libc::EAGAIN) && scarce < retries => {
                std::thread::sleep(PROCESSES_PAUSE * 2_u32.saturating_pow(scarce));
                scarce += 1;
            }
            other => return other,
        }
    }
}
