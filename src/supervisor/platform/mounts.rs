//! Linux: mounts of a payload's own, so that what it may not change is read-only to it in every respect, and what lies
//! below a writable folder can be kept as it is. Landlock knows neither.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::supervisor::plan::OwnMounts;

/// Everything as the system calls want it, so that nothing is computed in the payload's process.
pub(crate) struct Mounts {
    writable: Vec<CString>,
    pinned: Vec<CString>,
    fixed: Vec<CString>,
    cwd: CString,
    user: UserMap,
}

/// An ordinary user has mounts of its own only as the superuser of a namespace in which it is the only user.
struct UserMap {
    is_root: bool,
    users: String,
    groups: String,
}

impl Mounts {
    /// In the keeper. What does not exist is left out; a place that is read-only already stays so.
    pub(crate) fn prepare<'a>(plan: &OwnMounts, writable: impl Iterator<Item = &'a Path>, cwd: &Path) -> io::Result<Self> {
        let existing = |path: &Path| path.symlink_metadata().is_ok();
        let is_read_only = |path: &Path| statvfs(path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
        let all = |paths: &[crate::supervisor::plan::AnyPath]| -> io::Result<Vec<CString>> {
            paths.iter().map(|path| path.0.as_path()).filter(|path| existing(path)).map(text).collect()
        };
        Ok(Self {
            writable: writable.filter(|path| existing(path) && !is_read_only(path)).map(text).collect::<io::Result<_>>()?,
            pinned: all(&plan.pinned)?,
            fixed: all(&plan.fixed)?,
            cwd: text(cwd)?,
            user: UserMap::own(),
        })
    }

    /// In the payload's process.
    pub(crate) fn enter(&self) -> io::Result<()> {
        self.user.separate()?;
        // What others mount later still arrives here; what is mounted here stays here.
        mount(None, c"/", libc::MS_REC | libc::MS_SLAVE)?;
        for path in &self.writable {
            bind(path)?;
        }
        set_read_only(c"/", true, libc::AT_RECURSIVE)?;
        for path in &self.writable {
            set_read_only(path, false, 0)?;
        }
        for path in &self.pinned {
            bind(path)?;
        }
        for path in &self.fixed {
            bind(path)?;
            set_read_only(path, true, libc::AT_RECURSIVE)?;
        }
        // The old one lies below the mounts.
        Ok(rustix::process::chdir(self.cwd.as_c_str())?)
    }
}

/// Tries all of it in this process, which is good for nothing else afterwards.
pub(crate) fn try_mounts() -> bool {
    let root = Path::new("/");
    Mounts::prepare(&OwnMounts { fixed: Vec::new(), pinned: Vec::new(), absent: Vec::new() }, std::iter::empty(), root)
        .and_then(|mounts| mounts.enter())
        .and_then(|()| bind(c"/tmp"))
        .is_ok()
}

impl UserMap {
    fn own() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Self {
            is_root: user.is_root(),
            users: format!("{user} {user} 1", user = user.as_raw()),
            groups: format!("{group} {group} 1", group = group.as_raw()),
        }
    }

    fn separate(&self) -> io::Result<()> {
        if self.is_root && unshare(libc::CLONE_NEWNS).is_ok() {
            return Ok(());
        }
        unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", &self.users)?;
        std::fs::write("/proc/self/gid_map", &self.groups)
    }
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[expect(unsafe_code, reason = "a system call with numbers only; the process has one thread")]
fn unshare(what: libc::c_int) -> io::Result<()> {
    answer(unsafe { libc::unshare(what) })
}

fn bind(path: &CStr) -> io::Result<()> {
    mount(Some(path), path, libc::MS_BIND | libc::MS_REC)
}

#[expect(unsafe_code, reason = "a system call with texts that end in a zero byte and outlive it")]
fn mount(source: Option<&CStr>, target: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    let source = source.map_or(std::ptr::null(), CStr::as_ptr);
    answer(unsafe { libc::mount(source, target.as_ptr(), std::ptr::null(), flags, std::ptr::null()) })
}

/// Changes this one property and keeps all others, which a remount would have to repeat.
#[expect(unsafe_code, reason = "a system call with a text and a structure of ours that outlive it; no library offers it")]
fn set_read_only(path: &CStr, read_only: bool, flags: libc::c_int) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    const READ_ONLY: u64 = 1;
    let (set, clear) = if read_only { (READ_ONLY, 0) } else { (0, READ_ONLY) };
    let attributes = Attributes { set, clear, propagation: 0, user_namespace: 0 };
    let size = size_of::<Attributes>();
    let result =
        unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, std::ptr::from_ref(&attributes), size) };
    answer(i32::try_from(result).unwrap_or(-1))
}

fn answer(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
