//! Linux: Landlock for writing, a seccomp filter for what Landlock does not know, mounts of the payload's own.
//!
//! Everything is prepared in the keeper; the payload's process only enters it, as its last step before its program.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use nix::libc;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

use super::mounts::Mounts;
use crate::supervisor::plan::{Confinement, RefusedCalls};

/// Devices that keep nothing of what is written to them.
const NULL_LIKE: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/tty"];

/// A confinement, ready to be entered by a process.
pub(crate) struct Confined {
    mounts: Option<Mounts>,
    ruleset: Option<RulesetCreated>,
    filter: BpfProgram,
}

impl Confined {
    /// In the keeper. `temporary` exists already.
    pub(crate) fn prepare(plan: &Confinement, temporary: Option<&Path>, cwd: &Path) -> io::Result<Self> {
        let ruleset = ruleset(plan, temporary).map_err(io::Error::other)?;
        let filter = filter(plan).map_err(io::Error::other)?;
        let writable = plan.writable.iter().map(|path| path.0.as_path()).chain(temporary);
        let mounts = plan.mounts.as_ref().map(|mounts| Mounts::prepare(mounts, writable, cwd)).transpose()?;
        Ok(Self { mounts, ruleset: Some(ruleset), filter })
    }

    /// In the payload's process, which has one thread. From here on nothing can be given back.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        // A core file is written by the kernel, with the rights of nobody asked here.
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        // While this process may still mount.
        self.mounts.as_ref().map_or(Ok(()), Mounts::enter)?;
        give_up_powers()?;
        let Some(ruleset) = self.ruleset.take() else { return Err(io::Error::from_raw_os_error(libc::EINVAL)) };
        let last = || match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(0) => io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            error => error,
        };
        let status = ruleset.restrict_self().map_err(|_| last())?;
        if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        seccompiler::apply_filter(&self.filter).map_err(|_| last())
    }
}

/// A superuser's powers over the machine and over other processes: by some of them it would see what Landlock hides.
/// Those over files stay, since everything may be read.
fn give_up_powers() -> io::Result<()> {
    let kept = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID
        | CapabilitySet::SETPCAP
        | CapabilitySet::SETFCAP
        | CapabilitySet::NET_BIND_SERVICE
        | CapabilitySet::NET_RAW
        | CapabilitySet::SYS_CHROOT;
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    if permitted.is_empty() && inheritable.is_empty() {
        return Ok(());
    }
    // Those that this program does not know are given up too.
    let powers = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
    for power in powers.filter(|power| !kept.contains(*power)) {
        match remove_capability_from_bounding_set(power) {
            // Unknown to this kernel, or not this process's to give up: then it cannot be gained by an ordinary user.
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    clear_ambient_capability_set()?;
    Ok(set_capabilities(
        None,
        CapabilitySets { effective: effective & kept, permitted: permitted & kept, inheritable: inheritable & kept },
    )?)
}

/// The version of Landlock, by its system call; `None` where there is none.
#[expect(unsafe_code, reason = "a system call that only answers with a number; no library offers it")]
pub(crate) fn landlock_version() -> Option<u32> {
    const VERSION: u32 = 1;
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Whether filters of system calls can be set that answer with an error.
#[expect(unsafe_code, reason = "a system call that reads one number of ours; no library offers it")]
pub(crate) fn filters_calls() -> bool {
    const ACTION_AVAILABLE: libc::c_uint = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    unsafe { libc::syscall(libc::SYS_seccomp, ACTION_AVAILABLE, 0_u32, std::ptr::from_ref(&action)) == 0 }
}

fn ruleset(plan: &Confinement, temporary: Option<&Path>) -> Result<RulesetCreated, landlock::RulesetError> {
    // Without its first version nothing is held at all; what later versions know is taken where it is there.
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V1))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled(plan))?
        .scope(Scope::Signal)?;
    if plan.calls == RefusedCalls::Everything || !plan.network {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket)?;
    }
    let mut created = ruleset.create()?;
    let mut allow = |path: &Path, access: BitFlags<AccessFs>| -> Result<(), landlock::RulesetError> {
        // What is not there needs no right.
        let Ok(file) = PathFd::new(path) else { return Ok(()) };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(ABI::V10) };
        (&mut created).add_rule(PathBeneath::new(file, access))?;
        Ok(())
    };
    for device in NULL_LIKE {
        allow(Path::new(device), AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev)?;
    }
    // No device may be made: through one, a superuser would write past every file.
    let write = handled(plan) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    for path in temporary.into_iter().chain(plan.writable.iter().map(|path| path.0.as_path())) {
        allow(path, write)?;
    }
    Ok(created)
}

fn handled(plan: &Confinement) -> BitFlags<AccessFs> {
    let all = AccessFs::from_write(ABI::V10);
    // A service behind a local socket (an agent for keys, a name service) counts as network.
    if plan.calls == RefusedCalls::System && plan.network { all & !AccessFs::ResolveUnix } else { all }
}

const ERROR_CODE: u32 = libc::EPERM.unsigned_abs();
const REFUSE: SeccompAction = SeccompAction::Errno(ERROR_CODE);

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter(plan: &Confinement) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: Rules = SYSTEM.iter().map(|call| (*call, Vec::new())).collect();
    only_where(&mut rules, libc::SYS_ioctl, INPUT_CALLS.iter().map(|number| argument(1, SeccompCmpOp::Eq, *number)).collect())?;
    if plan.calls == RefusedCalls::Everything {
        rules.extend(FILE_STATE.iter().chain(LASTING).chain(OTHERS).map(|call| (*call, Vec::new())));
        file_commands(&mut rules)?;
        others_by_number(&mut rules)?;
        truncating_reads(&mut rules)?;
        rules.insert(libc::SYS_socket, Vec::new());
    } else if !plan.network {
        let local = [libc::AF_UNIX, libc::AF_NETLINK].map(|family| argument(0, SeccompCmpOp::Ne, family.unsigned_abs().into()));
        let conditions = local.into_iter().collect::<Result<Vec<_>, _>>()?;
        rules.entry(libc::SYS_socket).or_default().push(SeccompRule::new(conditions)?);
    }
    let target: TargetArch = std::env::consts::ARCH.try_into()?;
    let program: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, REFUSE, target)?.try_into()?;
    Ok(native_only(target).into_iter().chain(program).collect())
}

/// Calls of another architecture have other numbers: none is let through.
fn native_only(target: TargetArch) -> Vec<sock_filter> {
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const NOT_BELOW: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const NUMBER_AT: u32 = 0;
    const ARCHITECTURE_AT: u32 = 4;
    let refuse = || sock_filter { code: RETURN, jt: 0, jf: 0, k: u32::from(REFUSE) };
    let native = match target {
        TargetArch::x86_64 => 0xc000_003e,
        TargetArch::aarch64 => 0xc000_00b7,
        TargetArch::riscv64 => 0xc000_00f3,
    };
    let mut program =
        vec![sock_filter { code: LOAD, jt: 0, jf: 0, k: ARCHITECTURE_AT }, sock_filter { code: EQUAL, jt: 1, jf: 0, k: native }, refuse()];
    if target == TargetArch::x86_64 {
        // x32 shares the name of the architecture; its numbers carry this bit.
        const X32: u32 = 0x4000_0000;
        program.extend([
            sock_filter { code: LOAD, jt: 0, jf: 0, k: NUMBER_AT },
            sock_filter { code: NOT_BELOW, jt: 0, jf: 1, k: X32 },
            refuse(),
        ]);
    }
    program
}

fn argument(index: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    // The kernel reads these arguments as 32 bits as well.
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
}

/// The call is refused where one of the conditions holds.
fn only_where(
    rules: &mut Rules,
    call: i64,
    conditions: Vec<Result<SeccompCondition, seccompiler::BackendError>>,
) -> Result<(), seccompiler::BackendError> {
    let list = rules.entry(call).or_default();
    for condition in conditions {
        list.push(SeccompRule::new(vec![condition?])?);
    }
    Ok(())
}

/// Commands to file systems that change a file, or all of them, through a descriptor for reading.
fn file_commands(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    /// Kind and number, whatever the size and direction.
    const NUMBER: u64 = 0xffff;
    const KIND: u64 = 0xff00;
    let numbers = FILE_COMMANDS.iter().map(|number| argument(1, SeccompCmpOp::MaskedEq(NUMBER), *number));
    // btrfs (and clones, and deduplication), bcachefs, f2fs: subvolumes are made through a folder opened for reading.
    let kinds = [0x9400, 0xbc00, 0xf500].map(|kind| argument(1, SeccompCmpOp::MaskedEq(KIND), kind));
    only_where(rules, libc::SYS_ioctl, numbers.chain(kinds).collect())?;
    // xfs, whose only command for reading that programs use is that for the attributes.
    const XFS_READ_ATTRIBUTES: u64 = 0x801c_581f;
    let xfs = vec![argument(1, SeccompCmpOp::MaskedEq(KIND), 0x5800)?, argument(1, SeccompCmpOp::Ne, XFS_READ_ATTRIBUTES)?];
    rules.entry(libc::SYS_ioctl).or_default().push(SeccompRule::new(xfs)?);
    Ok(())
}

/// Limits and priorities of a process that is named by its number; those of the caller itself have the number 0.
fn others_by_number(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    let calls = [
        (libc::SYS_prlimit64, 0),
        (libc::SYS_sched_setaffinity, 0),
        (libc::SYS_sched_setattr, 0),
        (libc::SYS_sched_setparam, 0),
        (libc::SYS_sched_setscheduler, 0),
        (libc::SYS_setpriority, 1),
        (libc::SYS_ioprio_set, 1),
    ];
    calls.into_iter().try_for_each(|(call, index)| only_where(rules, call, vec![argument(index, SeccompCmpOp::Ne, 0)]))
}

/// Opening for reading with the wish to truncate: before its third version Landlock sees only the reading.
fn truncating_reads(rules: &mut Rules) -> Result<(), seccompiler::BackendError> {
    const TRUNCATE_VERSION: u32 = 3;
    if landlock_version().is_some_and(|version| version >= TRUNCATE_VERSION) {
        return Ok(());
    }
    let mask = u64::from((libc::O_ACCMODE | libc::O_TRUNC).unsigned_abs());
    let wanted = u64::from((libc::O_RDONLY | libc::O_TRUNC).unsigned_abs());
    only_where(rules, libc::SYS_openat, vec![argument(2, SeccompCmpOp::MaskedEq(mask), wanted)])?;
    #[cfg(target_arch = "x86_64")]
    only_where(rules, libc::SYS_open, vec![argument(1, SeccompCmpOp::MaskedEq(mask), wanted)])?;
    // Its flags are behind a pointer.
    rules.extend([libc::SYS_openat2, libc::SYS_truncate].map(|call| (call, Vec::new())));
    Ok(())
}

/// Input put into a terminal as if typed (TIOCSTI, TIOCLINUX).
const INPUT_CALLS: &[u64] = &[0x5412, 0x541c];

/// Attributes and versions of files, keys and seals, and the commands of ext4; freezing and trimming of a file system.
const FILE_COMMANDS: &[u64] = &[
    0x6602, 0x7602, 0x5820, 0x6613, 0x6617, 0x6618, 0x6619, 0x6685, 0x6604, 0x6606, 0x6607, 0x6608, 0x6609, 0x660c, 0x660f, 0x6610, 0x6611,
    0x6628, 0x662b, 0x662c, 0x5877, 0x5878, 0x5879,
];

/// What changes the system, or leads around a confinement. Numbers above 424 are the same everywhere.
const SYSTEM: &[i64] = &[
    // Work done by the kernel in nobody's name.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_open_by_handle_at,
    // The file system's shape.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_bpf,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Mode, owner, times and attributes of a file.
const FILE_STATE: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
    libc::SYS_mknodat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
];

/// Objects that stay when their maker is gone.
const LASTING: &[i64] = &[
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// What acts on other processes, or makes rooms to hide in.
const OTHERS: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
];

// Too new for the library's list of every architecture.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;
