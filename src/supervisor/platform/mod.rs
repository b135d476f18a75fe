//! The door to what differs between systems. One file per system with the same names, chosen here and nowhere else.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod proc_table;
