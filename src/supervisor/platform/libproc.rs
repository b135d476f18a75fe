//! The table of processes of macOS. The only file with symbols that no other system has.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use nix::libc::{PROC_PIDTBSDINFO, SZOMB, proc_bsdinfo, proc_listallpids, proc_pidinfo};

use crate::supervisor::identity::Stat;

/// More than a machine has processes.
const PIDS_MAX: usize = 1 << 16;
/// Room for those that start between the two calls.
const PIDS_MORE: usize = 64;
/// To be told of ended, unreaped processes as well.
const ZOMBIES_TOO: u64 = 1;

/// `None` when there is no such process, or when it belongs to somebody else.
#[expect(unsafe_code, reason = "the system fills a structure of plain numbers, whose size it is told and gives back")]
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let number = c_int::try_from(pid).ok()?;
    let size = c_int::try_from(size_of::<proc_bsdinfo>()).ok()?;
    let mut info = MaybeUninit::<proc_bsdinfo>::zeroed();
    let filled = unsafe { proc_pidinfo(number, PROC_PIDTBSDINFO, ZOMBIES_TOO, info.as_mut_ptr().cast::<c_void>(), size) };
    if filled != size {
        return None;
    }
    // All fields are numbers, so zeroes were valid before the call, too.
    let info = unsafe { info.assume_init() };
    let long = text(&info.pbi_name);
    Some(Stat {
        pid,
        command: if long.is_empty() { text(&info.pbi_comm) } else { long },
        state: if info.pbi_status == SZOMB { 'Z' } else { 'R' },
        parent: info.pbi_ppid,
        group: info.pbi_pgid,
        // Wall time in microseconds: it also tells apart the starts of the machine.
        start_ticks: info.pbi_start_tvsec.saturating_mul(1_000_000).saturating_add(info.pbi_start_tvusec),
    })
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn children(parent: u32) -> Vec<u32> {
    all_pids().filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent)).collect()
}

/// Every process of this machine.
#[expect(unsafe_code, reason = "the system fills a list of numbers, whose size it is told")]
pub(crate) fn all_pids() -> impl Iterator<Item = u32> {
    let count = unsafe { proc_listallpids(std::ptr::null_mut(), 0) };
    let room = usize::try_from(count).unwrap_or(0).saturating_add(PIDS_MORE).min(PIDS_MAX);
    let mut pids: Vec<c_int> = vec![0; room];
    let bytes = c_int::try_from(size_of_val(pids.as_slice())).unwrap_or(0);
    let filled = unsafe { proc_listallpids(pids.as_mut_ptr().cast::<c_void>(), bytes) };
    pids.truncate(usize::try_from(filled).unwrap_or(0));
    pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}
