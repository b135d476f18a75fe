//! Reaps keepers the moment they exit and tells whoever waits: one thread with one epoll, started with the first job.
//!
//! The thread holds no lifeline, so dropping the last handle of a job still closes it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::sync::watch;

/// What is known of a keeper without reading its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    Running,
    /// The keeper said that its end record stands, or let go of the lifeline.
    Recorded,
    /// The keeper has exited and was reaped.
    KeeperGone,
}

/// Events taken from the kernel at once.
const EVENTS: usize = 64;
/// Wakes the thread for its own end.
const WAKE: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Reaper {
    shared: Arc<Shared>,
    thread_runs: Mutex<bool>,
}

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    wake: OwnedFd,
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
    pidfd: Arc<OwnedFd>,
    news: watch::Sender<Progress>,
}

impl Reaper {
    pub(crate) fn create() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self { shared: Arc::new(Shared { epoll, wake, table: Mutex::default() }), thread_runs: Mutex::new(false) })
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
    pub(crate) fn watch(&self, pidfd: Arc<OwnedFd>, lifeline: impl AsFd) -> io::Result<watch::Receiver<Progress>> {
        let (news, receiver) = watch::channel(Progress::Running);
        let mut table = self.shared.lock();
        let key = table.next;
        table.next += 1;
        epoll::add(
            &self.shared.epoll,
            &lifeline,
            EventData::new_u64(key * 2 + 1),
            EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT,
        )?;
        epoll::add(&self.shared.epoll, &*pidfd, EventData::new_u64(key * 2), EventFlags::IN)?;
        table.keepers.insert(key, Entry { pidfd, news });
        Ok(receiver)
    }
}

impl Drop for Reaper {
    /// The thread stays until the last keeper is reaped.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Cannot happen with descriptors of our own; without events there is nothing to do.
                Err(_) => return,
            }
            for event in &events {
                self.take(event.data.u64());
            }
            let table = self.lock();
            if table.closed && table.keepers.is_empty() {
                return;
            }
        }
    }

    fn take(&self, data: u64) {
        if data == WAKE {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            return;
        }
        let mut table = self.lock();
        let key = data / 2;
        let Some(entry) = table.keepers.get(&key) else { return };
        if data % 2 == 1 {
            entry.news.send_if_modified(|progress| std::mem::replace(progress, Progress::Recorded) != Progress::Recorded);
            return;
        }
        // An error means that somebody else has reaped it, or that the system does so by itself.
        if let Ok(None) = waitid(WaitId::PidFd(entry.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            return;
        }
        if let Some(entry) = table.keepers.remove(&key) {
            let _ = epoll::delete(&self.epoll, &*entry.pidfd);
            entry.news.send_replace(Progress::KeeperGone);
        }
    }
}
