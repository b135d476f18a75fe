//! A running or ended payload: wait, look, stop; also opened from a folder by a later process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use rustix::process::Signal;
use tokio::sync::watch;

use super::identity::Verified;
use super::plan::lifeline;
use super::platform::{self, Child};
use super::reaper::Progress;
use super::record::{self, EndRecord, ProcessIdentity, RECORD_VERSION, RecordError, Requester, Spec, Status, StopRequest, StreamCount};
use super::recovery;
use crate::clock;
use crate::config::layout::JobFolder;

/// Upper bound between two looks while waiting.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A job, alive or not. Clones share the lifeline: when the last one of the process that started the job is dropped,
/// an attached job is stopped by its keeper.
#[derive(Clone, Debug)]
pub struct Kept {
    folder: JobFolder,
    owned: Option<Arc<Owned>>,
}

/// What the process that started a job holds.
#[derive(Debug)]
pub(crate) struct Owned {
    pub lifeline: OwnedFd,
    pub child: Child,
    pub keeper: ProcessIdentity,
    pub payload: ProcessIdentity,
    /// As it was written into the folder.
    pub spec: Spec,
    pub news: watch::Receiver<Progress>,
}

/// What a look has shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// Before the first `status.json` the payload's pid is 0.
    Running(Status),
    Ended(EndRecord),
}

/// What came of a stop request.
#[expect(clippy::large_enum_variant, reason = "one per request, read and dropped")]
#[derive(Clone, Debug, PartialEq)]
pub enum StopAnswer {
    /// The keeper was told; its record will say how it went.
    Requested,
    AlreadyEnded(EndRecord),
}

impl Kept {
    /// A job of this or another process.
    pub fn open(folder: JobFolder) -> Self {
        Self { folder, owned: None }
    }

    pub(crate) fn owned(folder: JobFolder, owned: Owned) -> Self {
        Self { folder, owned: Some(Arc::new(owned)) }
    }

    pub fn folder(&self) -> &JobFolder {
        &self.folder
    }

    /// What was started, without a look at the folder: a start that went well can be told when no file can be opened.
    /// `None` for a job that another process started.
    pub fn started(&self) -> Option<(&Spec, &ProcessIdentity)> {
        self.owned.as_ref().map(|owned| (&owned.spec, &owned.payload))
    }

    /// How the job stands. Cheap while the keeper lives; a dead keeper's folder is settled first, which may take a second.
    pub fn look(&self) -> Result<Look, RecordError> {
        if let Some(end) = record::read_end(&self.folder)? {
            return Ok(Look::Ended(end));
        }
        if self.keeper_known_alive() {
            return self.running();
        }
        match recovery::settle(&self.folder)? {
            Some(end) => Ok(Look::Ended(end)),
            None => self.running(),
        }
    }

    /// Waits for the end record. Learns of it at once, and looks every 500 ms in any case.
    pub async fn ended(&self) -> Result<EndRecord, RecordError> {
        loop {
            if let Some(end) = record::read_end(&self.folder)? {
                return Ok(end);
            }
            if !self.keeper_known_alive() {
                // Settling a dead keeper's folder may take a while, so it is done aside.
                let kept = self.clone();
                match tokio::task::spawn_blocking(move || kept.look()).await {
                    Ok(Ok(Look::Ended(end))) => return Ok(end),
                    Ok(Ok(Look::Running(_))) => {}
                    Ok(Err(error)) => return Err(error),
                    Err(error) => return Err(self.keeper_error(io::Error::other(error))),
                }
            }
            self.wait_for_news().await;
        }
    }

    /// Asks the keeper to end the tree and returns at once. The first request is polite, with the plan's grace time; any
    /// further one, from whoever, ends the grace.
    pub fn request_stop(&self, requester: Requester) -> Result<StopAnswer, RecordError> {
        if let Look::Ended(end) = self.look()? {
            return Ok(StopAnswer::AlreadyEnded(end));
        }
        let request = StopRequest { requester, at: clock::now() };
        let sent = match self.leave_request(&request) {
            Ok(()) => self.signal_keeper(Signal::TERM),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.signal_keeper(Signal::USR2),
            // A full disk: the owner can say it on the lifeline; from anybody else it is a signal without a name.
            Err(_) => self.send(&[lifeline::STOP, requester.code()]).or_else(|_| self.signal_keeper(Signal::TERM)),
        };
        match sent {
            Ok(()) => Ok(StopAnswer::Requested),
            // The keeper ended between the look and the signal.
            Err(error) => match recovery::settle(&self.folder)? {
                Some(end) => Ok(StopAnswer::AlreadyEnded(end)),
                None => Err(self.keeper_error(error)),
            },
        }
    }

    /// Asks, and waits until the tree is empty and recorded.
    pub async fn stop(&self, requester: Requester) -> Result<EndRecord, RecordError> {
        match self.request_stop(requester)? {
            StopAnswer::AlreadyEnded(end) => Ok(end),
            StopAnswer::Requested => self.ended().await,
        }
    }

    /// From now on the job outlives this process. For the process that started it only.
    pub fn detach(&self) -> Result<(), RecordError> {
        if self.owned.is_none() {
            return Err(RecordError::NotOwner { path: self.folder.path().to_owned() });
        }
        match self.send(&[lifeline::DETACH]) {
            Ok(()) => Ok(()),
            // Ended meanwhile: then there is nothing to outlive.
            Err(_) if record::read_end(&self.folder)?.is_some() => Ok(()),
            Err(error) => Err(self.keeper_error(error)),
        }
    }

    fn keeper_error(&self, source: io::Error) -> RecordError {
        RecordError::Keeper { path: self.folder.path().to_owned(), source }
    }

    fn keeper_known_alive(&self) -> bool {
        self.owned.as_ref().is_some_and(|owned| *owned.news.borrow() != Progress::KeeperGone)
    }

    fn running(&self) -> Result<Look, RecordError> {
        if let Some(status) = record::read_status(&self.folder)? {
            return Ok(Look::Running(status));
        }
        let nobody = ProcessIdentity { boot_id: String::new(), pid: 0, start_ticks: 0 };
        let (keeper, payload) = match &self.owned {
            Some(owned) => (owned.keeper.clone(), owned.payload.clone()),
            None => (nobody.clone(), nobody),
        };
        let started_at = record::read_spec(&self.folder)?.map_or_else(clock::now, |spec| spec.created_at);
        let none = StreamCount::default();
        Ok(Look::Running(Status { version: RECORD_VERSION, keeper, payload, started_at, stopping: false, stdout: none, stderr: none }))
    }

    async fn wait_for_news(&self) {
        // Running out of time is no failure: the loop looks again.
        match &self.owned {
            Some(owned) => {
                let mut news = owned.news.clone();
                // A record that was announced is there; if it is not, only the keeper's exit is news.
                let known = *news.borrow();
                let _ = tokio::time::timeout(LOOK_INTERVAL, news.wait_for(|progress| *progress > known)).await;
            }
            None => {
                let _ = tokio::time::timeout(LOOK_INTERVAL, self.foreign_keeper_exit()).await;
            }
        }
    }

    /// Waits for the exit of a keeper that another process started; for ever where it cannot be watched.
    async fn foreign_keeper_exit(&self) {
        let status = record::read_status(&self.folder).ok().flatten();
        let verified = status.and_then(|status| Verified::open(&status.keeper));
        match verified {
            Some(verified) => verified.exited().await,
            None => std::future::pending().await,
        }
    }

    /// The request as a file, complete or not there; `AlreadyExists` when somebody asked before.
    fn leave_request(&self, request: &StopRequest) -> io::Result<()> {
        let path = self.folder.stop();
        if path.exists() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut temporary = tempfile::Builder::new().prefix(".new-").tempfile_in(self.folder.path())?;
        serde_json::to_writer(&mut temporary, request)?;
        temporary.persist_noclobber(path).map(drop).map_err(|error| error.error)
    }

    fn signal_keeper(&self, signal: Signal) -> io::Result<()> {
        if let Some(owned) = &self.owned {
            owned.child.signal(signal)?;
            // A stopped keeper would not hear it.
            return owned.child.signal(Signal::CONT);
        }
        let Some(status) = record::read_status(&self.folder).map_err(io::Error::other)? else {
            // The keeper reads the request itself once its payload has started.
            return Ok(());
        };
        let gone = || io::Error::new(io::ErrorKind::NotFound, "its keeper is not the process that it names");
        let verified = Verified::open(&status.keeper).ok_or_else(gone)?;
        verified.signal(signal)?;
        verified.signal(Signal::CONT)
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        let owned = self.owned.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(&owned.lifeline, message, platform::NO_SIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }
}
