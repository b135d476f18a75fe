//! A cgroup of version 2, from which no child of a process is born outside.

use std::path::PathBuf;

/// Made for one kill.
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Below the own cgroup; `None` where there is no version 2 or no right to make one.
    pub(crate) fn create() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(path))
        })?;
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let path = mount.join(own).join(format!("zapmyco-kill-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        Some(Self { path })
    }

    pub(crate) fn adopt(&self, pid: u32) {
        let _ = std::fs::write(self.path.join("cgroup.procs"), pid.to_string());
    }

    pub(crate) fn kill(&self) {
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    /// Succeeds only when it is empty, which is the case once the tree is.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}
