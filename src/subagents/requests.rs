//! What another process asks of the one that runs a session's local agents: to stop one, or to move one to the background
//! (R185). A request is a small file in a folder of the session, its answer another one; the running process looks there
//! while it has agents.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::agent_folders::{self, is_held};
use super::answers::Ended;
use super::delegation::Delegation;
use super::folders::{JobError, LOOK_PAUSE, names_in};
use super::job::Job;
use crate::config::Layout;
use crate::files::{self, FileError, Sync};
use crate::ids::{JobId, SessionId};
use crate::supervisor::record::Requester;

/// What is wished of a running local agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    Background,
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    wish: Wish,
    agent: JobId,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    version: u32,
    /// Absent: done.
    error: Option<String>,
}

/// Why a wish was not fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("agent {id} has ended already ({status})")]
    Ended { id: JobId, status: &'static str },
    #[error("the process that runs agent {id} does not answer")]
    NoAnswer { id: JobId },
    /// In the words of the process that runs it.
    #[error("{reason}")]
    Refused { reason: String },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Jobs(#[from] JobError),
}

const REQUEST_VERSION: u32 = 1;
/// Bytes of a request or an answer; more is none.
const REQUEST_MAX: u64 = 16 * 1024;
/// How often the running process looks.
const LOOK: Duration = Duration::from_millis(200);
/// How long an answer may take: a stop waits for the agent's tools.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const REQUEST_END: &str = ".request.json";
const ANSWER_END: &str = ".answer.json";

/// Asks the process that runs this agent, and waits until it has answered. Without a runtime.
pub fn ask(layout: &Layout, job: &Job, wish: Wish) -> Result<(), RequestError> {
    let (session, id) = (&job.owner.session, job.id());
    if !job.is_running() {
        return Err(RequestError::Ended { id: id.clone(), status: job.word() });
    }
    let folder = layout.agent_requests(session);
    files::create_private_folder(&folder)?;
    // A random name: several may ask at once.
    let name = JobId::new_local_agent().to_string();
    let (request, answer) = (folder.join(format!("{name}{REQUEST_END}")), folder.join(format!("{name}{ANSWER_END}")));
    let wished = Request { version: REQUEST_VERSION, wish, agent: id.clone() };
    files::replace(&request, &serde_json::to_vec(&wished).unwrap_or_default(), Sync::Process)?;
    let outcome = wait_for(layout, session, id, &answer);
    for file in [&request, &answer] {
        let _ = std::fs::remove_file(file);
    }
    let _ = std::fs::remove_dir(&folder);
    outcome
}

fn wait_for(layout: &Layout, session: &SessionId, id: &JobId, answer: &Path) -> Result<(), RequestError> {
    let until = Instant::now() + ANSWER_MAX;
    loop {
        // Looked at before the answer is, so that an answer given last is not missed.
        let held = is_held(layout, session);
        if let Some(Answer { error, .. }) = read::<Answer>(answer) {
            return error.map_or(Ok(()), |reason| Err(RequestError::Refused { reason }));
        }
        match agent_folders::find(layout, Some(session), id)? {
            Some(job) if !job.is_running() => return Err(RequestError::Ended { id: id.clone(), status: job.word() }),
            Some(_) | None => {}
        }
        if !held || Instant::now() >= until {
            return Err(RequestError::NoAnswer { id: id.clone() });
        }
        std::thread::sleep(LOOK_PAUSE * 5);
    }
}

/// Ends a local agent of whatever process, and waits for its end.
pub fn stop(layout: &Layout, job: Job) -> Ended {
    let (session, id) = (job.owner.session.clone(), job.id().clone());
    if !job.is_running() {
        return Ended::Before(Box::new(job));
    }
    let asked = ask(layout, &job, Wish::Stop);
    let failed = |reason: String| Ended::Failed { id: id.to_string(), reason };
    match (asked, agent_folders::find(layout, Some(&session), &id)) {
        (Ok(()) | Err(RequestError::Ended { .. }), Ok(Some(job))) => Ended::now_or_before(job),
        (Err(error), _) => failed(error.to_string()),
        (Ok(()), Ok(None)) => failed("it is gone".to_owned()),
        (Ok(()), Err(error)) => failed(error.to_string()),
    }
}

impl Delegation {
    /// Looks for requests as long as an agent of this process runs. Without effect while another look-out does.
    pub(crate) fn answer_requests(&self) {
        let Some(host) = &self.inner.host else { return };
        if host.answers_requests.swap(true, Ordering::SeqCst) {
            return;
        }
        let (delegation, host) = (self.clone(), host.clone());
        let folder = self.inner.starter.layout.agent_requests(&self.inner.starter.session);
        drop(self.inner.registry.spawn(async move {
            loop {
                for request in waiting(&folder) {
                    delegation.take_up_request(request);
                }
                if delegation.agents().iter().all(|agent| agent.is_ended()) {
                    host.answers_requests.store(false, Ordering::SeqCst);
                    // One that started in between has seen the mark of this look-out.
                    if delegation.agents().iter().all(|agent| agent.is_ended()) || host.answers_requests.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        }));
    }

    /// Each in a task of its own: a stop takes its time.
    fn take_up_request(&self, path: PathBuf) {
        let request = read::<Request>(&path).filter(|request| request.version == REQUEST_VERSION);
        let _ = std::fs::remove_file(&path);
        // What is not understood gets no answer; whoever asked stops waiting by itself.
        let Some(Request { wish, agent, .. }) = request else { return };
        let delegation = self.clone();
        drop(self.inner.registry.spawn(async move {
            let error = match wish {
                Wish::Background => delegation.move_to_background(&agent).await.err().map(|error| error.to_string()),
                Wish::Stop => match delegation.stop_job(&agent, Requester::Person).await {
                    Ended::Now(_) | Ended::Before(_) => None,
                    Ended::Unknown(_) => Some(format!("there is no agent {agent} in this session")),
                    Ended::Failed { reason, .. } => Some(reason),
                },
            };
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().replace(REQUEST_END, ANSWER_END);
            let answer = serde_json::to_vec(&Answer { version: REQUEST_VERSION, error }).unwrap_or_default();
            if let Err(error) = files::replace(&path.with_file_name(name), &answer, Sync::Process) {
                delegation.inner.registry.notice(format!("a request for agent {agent} could not be answered: {error}"));
            }
        }));
    }
}

fn waiting(folder: &Path) -> Vec<PathBuf> {
    let names = names_in(folder).unwrap_or_default();
    names.iter().filter(|name| name.ends_with(REQUEST_END)).map(|name| folder.join(name)).collect()
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let bytes = files::read_bounded(path, REQUEST_MAX).ok()?;
    let value: Value = serde_json::from_slice(&bytes).ok()?;
    serde_json::from_value(value).ok()
}
