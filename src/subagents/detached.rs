//! The four actions for scripts: the jobs of a named session belong to no process and are kept by their keepers alone.
//! Blocking, without a runtime and without a database.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answers::{Asked, Ended, once};
use super::delegation::{SpawnError, Started, check_task, launch_agent};
use super::folders::{self, Found, JobError, LOOK_PAUSE, Scan};
use super::handover::ChildSettings;
use super::poll::longest_wait;
use super::process::Starter;
use crate::agent::Role;
use crate::config::{Environment, Layout, Limits};
use crate::ids::{JobId, JobKind, SessionId};
use crate::supervisor::handle::StopAnswer;
use crate::supervisor::launch::Launcher;
use crate::supervisor::plan::{OnOwnerDeath, Program};
use crate::supervisor::record::Requester;

/// A session seen from outside.
pub struct Detached {
    pub(super) layout: Layout,
    pub(super) limits: Arc<Limits>,
    pub(super) session: SessionId,
}

impl Detached {
    pub fn new(layout: Layout, limits: Arc<Limits>, session: SessionId) -> Self {
        Self { layout, limits, session }
    }

    /// Starts a child that goes on when the caller ends. With `process_agents_max` set it first waits its turn.
    pub fn spawn(&self, task: &str, cwd: PathBuf, environment: Environment, child: ChildSettings) -> Result<Started, SpawnError> {
        check_task(task)?;
        let _turn = self.take_turn()?;
        let starter = Starter {
            layout: self.layout.clone(),
            limits: self.limits.clone(),
            session: self.session.clone(),
            cwd,
            environment,
            child,
            child_program: Program::Own,
            mode_page: None,
            budget: None,
            role: Role::Main,
            hidden_variables: Vec::new(),
            on_owner_death: OnOwnerDeath::Finish,
        };
        launch_agent(&Launcher::new(Program::Own), &starter, task, None).map(|(started, _)| started)
    }

    /// Process agents, by start time.
    pub fn list(&self) -> Result<Scan, JobError> {
        let mut scan = folders::scan_session(&self.layout, &self.session)?;
        scan.found.retain(|found| found.job.owner.kind == JobKind::ProcessAgent);
        Ok(scan)
    }

    /// Waits as `poll` of the tool does; one answer per id, repeated ids once.
    pub fn poll(&self, ids: &[String], extra: Duration) -> Vec<Asked> {
        let deadline = Instant::now() + longest_wait(extra, &self.limits);
        loop {
            let answers: Vec<Asked> = once(ids).map(|id| self.ask(id)).collect();
            let running = answers.iter().any(|answer| matches!(answer, Asked::Found(job) if job.is_running()));
            if !running || Instant::now() >= deadline {
                return answers;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn ask(&self, text: &str) -> Asked {
        match self.find(text) {
            Ok(Some(found)) => Asked::Found(Box::new(found.job)),
            Ok(None) => Asked::Unknown(text.to_owned()),
            Err(error) => Asked::Broken { id: text.to_owned(), reason: error.to_string() },
        }
    }

    /// Ends all at once and waits until every tree is empty.
    pub fn kill(&self, ids: &[String]) -> Vec<Ended> {
        let found: Vec<(&str, Result<Option<Found>, JobError>)> = once(ids).map(|id| (id, self.find(id))).collect();
        stop_all(found)
    }

    /// Texts that are no id, and ids of other sessions, are unknown by construction (R365, R366).
    fn find(&self, text: &str) -> Result<Option<Found>, JobError> {
        let Some(id) = JobId::parse(text).ok().filter(|id| id.kind() == JobKind::ProcessAgent) else { return Ok(None) };
        folders::find(&self.layout, &self.session, &id)
    }
}

/// Requests first, then the waiting: the grace times run side by side.
pub fn stop_all(found: Vec<(&str, Result<Option<Found>, JobError>)>) -> Vec<Ended> {
    let asked: Vec<Result<Found, Ended>> = found.into_iter().map(|(text, found)| request(text, found)).collect();
    let wait = |asked: Result<Found, Ended>| match asked {
        Err(answer) => answer,
        Ok(found) => match folders::wait_blocking(&found) {
            Ok(job) => Ended::now_or_before(job),
            Err(error) => Ended::Failed { id: found.job.id().to_string(), reason: error.to_string() },
        },
    };
    asked.into_iter().map(wait).collect()
}

/// `Err`: answered already, nothing to wait for.
fn request(text: &str, found: Result<Option<Found>, JobError>) -> Result<Found, Ended> {
    let failed = |reason: String| Ended::Failed { id: text.to_owned(), reason };
    let found = found.map_err(|error| failed(error.to_string()))?.ok_or_else(|| Ended::Unknown(text.to_owned()))?;
    if !found.job.is_running() {
        return Err(Ended::Before(Box::new(found.job)));
    }
    match found.kept.request_stop(Requester::Person) {
        Ok(StopAnswer::Requested | StopAnswer::AlreadyEnded(_)) => Ok(found),
        Err(error) => Err(failed(error.to_string())),
    }
}
