//! Reaps keepers the moment they exit and tells whoever waits: one thread, started with the first job.
//!
//! The thread holds no lifeline, so dropping the last handle of a job still closes it.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::platform::{Child, Seen, Watch};

/// What is known of a keeper without reading its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    Running,
    /// The keeper said that its end record stands, or let go of the lifeline.
    Recorded,
    /// The keeper has exited and was reaped.
    KeeperGone,
}

#[derive(Debug)]
pub(crate) struct Reaper {
    shared: Arc<Shared>,
    thread_runs: Mutex<bool>,
}

#[derive(Debug)]
struct Shared {
    watch: Watch,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    keepers: HashMap<u64, Entry>,
    next: u64,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    child: Child,
    news: watch::Sender<Progress>,
}

impl Reaper {
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self { shared: Arc::new(Shared { watch: Watch::create()?, table: Mutex::default() }), thread_runs: Mutex::new(false) })
    }

    /// Starts the thread if it does not run yet. Called before anything that would need it exists.
    pub(crate) fn ensure_thread(&self) -> io::Result<()> {
        let mut runs = self.thread_runs.lock().unwrap_or_else(PoisonError::into_inner);
        if !*runs {
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new().name("zapmyco-reaper".to_owned()).stack_size(64 * 1024).spawn(move || shared.run())?;
            *runs = true;
        }
        Ok(())
    }

    /// From now on the keeper is reaped when it exits.
    pub(crate) fn watch(&self, child: Child, lifeline: impl AsFd) -> io::Result<watch::Receiver<Progress>> {
        let (news, receiver) = watch::channel(Progress::Running);
        let mut table = self.shared.lock();
        let key = table.next;
        table.next += 1;
        self.shared.watch.add(key, &child, lifeline)?;
        table.keepers.insert(key, Entry { child, news });
        Ok(receiver)
    }
}

impl Drop for Reaper {
    /// The thread stays until the last keeper is reaped.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.watch.wake();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // An error cannot happen with descriptors of our own; without events there is nothing to do.
        while let Ok(seen) = self.watch.wait() {
            for seen in seen {
                self.take(seen);
            }
            let table = self.lock();
            if table.closed && table.keepers.is_empty() {
                return;
            }
        }
    }

    fn take(&self, seen: Seen) {
        let mut table = self.lock();
        match seen {
            Seen::Recorded(key) => {
                let Some(entry) = table.keepers.get(&key) else { return };
                entry.news.send_if_modified(|progress| std::mem::replace(progress, Progress::Recorded) != Progress::Recorded);
            }
            Seen::Exited(key) => {
                if table.keepers.get(&key).is_some_and(|entry| entry.child.try_reap())
                    && let Some(entry) = table.keepers.remove(&key)
                {
                    self.watch.remove(key, &entry.child);
                    entry.news.send_replace(Progress::KeeperGone);
                }
            }
        }
    }
}
