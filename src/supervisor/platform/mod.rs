//! The door to what differs between systems. One file per system with the same names, chosen here and nowhere else.
//!
//! `portable` is macOS' file. It is kept free of anything that Linux has not got as well, so that it can be tried there:
//! with `--cfg zapmyco_portable`. Only the table of processes needs symbols that exist on macOS alone (`libproc`).

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("there is no supervisor for this system: only Linux and macOS have one");

#[cfg(all(target_os = "linux", not(zapmyco_portable)))]
mod cgroup;
#[cfg(all(target_os = "linux", not(zapmyco_portable)))]
mod confine;
#[cfg(all(target_os = "linux", not(zapmyco_portable)))]
mod linux;
#[cfg(all(target_os = "linux", not(zapmyco_portable)))]
mod mounts;
#[cfg(all(target_os = "linux", not(zapmyco_portable)))]
pub(crate) use linux::*;

#[cfg(any(target_os = "macos", zapmyco_portable))]
mod portable;
#[cfg(any(target_os = "macos", zapmyco_portable))]
pub(crate) use portable::*;

#[cfg(target_os = "macos")]
mod libproc;
#[cfg(target_os = "linux")]
mod proc_table;
