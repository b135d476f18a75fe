//! Jobs from a shell: list, show, output, kill, sweep; for one session or for all. Works from the folders alone, so it
//! needs neither a database nor valid settings.

use clap::{Args, Subcommand};
use serde_json::json;

use super::report::{CommandError, Exit, print_notice, print_out, print_out_bytes};
use super::table::{Column, Cut, stdout_width, table};
use crate::config::{Environment, Layout, Stream};
use crate::ids::{JobId, JobKind, SessionId};
use crate::subagents::agent_folders;
use crate::subagents::answers::{self, Ended};
use crate::subagents::detached::stop_all;
use crate::subagents::folders::{self, Found, JobError, Scan};
use crate::subagents::in_process::partial_in_words;
use crate::subagents::job::{Job, JobList, JobView};
use crate::subagents::output;
use crate::subagents::requests::{self, Wish};
use crate::subagents::sweep::{self, SweepReport};
use crate::text::fold::harmless;
use crate::text::units::{exit_status, one_line, size};

/// Subagents and background commands: what runs and what ran.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct JobsArguments {
    #[command(subcommand)]
    pub command: JobsCommand,
}

const EXAMPLES: &str = "\
Examples:
  zapmyco jobs list                        all sessions, oldest first
  zapmyco jobs list --session ci --json    one session, for scripts
  zapmyco jobs output sa_20260606_a1b2c3d4 --tail 20
  zapmyco jobs kill sa_20260606_a1b2c3d4
  zapmyco jobs background                  the only agent that a run waits for goes on in the background
  zapmyco jobs sweep                       exit 0: nothing was left behind

Exit codes: 0 done; 1 kill left something, or sweep found something; 11 unknown id";

#[derive(Subcommand, Clone, Debug)]
pub enum JobsCommand {
    /// List jobs by start time
    List {
        #[command(flatten)]
        scope: Scope,
        /// As {"jobs": [...]}
        #[arg(long)]
        json: bool,
    },
    /// Everything about one job
    Show {
        /// As `jobs list` shows it
        id: String,
        #[command(flatten)]
        scope: Scope,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// What a job has written: raw bytes, made harmless when stdout is a terminal
    Output {
        /// As `jobs list` shows it
        id: String,
        /// The other stream
        #[arg(long)]
        stderr: bool,
        /// Only the last N lines
        #[arg(long, value_name = "N")]
        tail: Option<usize>,
        #[command(flatten)]
        scope: Scope,
        /// As one JSON object with the text in it
        #[arg(long)]
        json: bool,
    },
    /// End jobs and everything they started
    Kill {
        /// One or more
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        #[command(flatten)]
        scope: Scope,
        /// As {"jobs": [...], "unknown": [...]}
        #[arg(long)]
        json: bool,
    },
    /// Move an agent that a run waits for to the background: the same agent, without a restart
    Background {
        /// As `jobs list` shows it; may be left out when there is only one
        id: Option<String>,
        #[command(flatten)]
        scope: Scope,
    },
    /// Settle what died hard, end what was left behind, and prove that nothing is left; exit 1 when something was found
    Sweep {
        #[command(flatten)]
        scope: Scope,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Which sessions.
#[derive(Args, Clone, Debug)]
pub struct Scope {
    /// Only this session: a name, or a complete `sess_` id
    #[arg(long, value_name = "SESSION", conflicts_with = "all")]
    pub session: Option<String>,
    /// All sessions (the default)
    #[arg(long)]
    pub all: bool,
}

pub fn run(arguments: &JobsArguments, environment: &Environment) -> Result<Exit, CommandError> {
    let layout = layout(environment)?;
    match &arguments.command {
        JobsCommand::List { scope, json } => list(&layout, scope, *json),
        JobsCommand::Show { id, scope, json } => show(&layout, id, scope, *json),
        JobsCommand::Output { id, stderr, tail, scope, json } => {
            let stream = if *stderr { Stream::Stderr } else { Stream::Stdout };
            output_of(&layout, id, scope, stream, *tail, *json)
        }
        JobsCommand::Kill { ids, scope, json } => kill(&layout, ids, scope, *json),
        JobsCommand::Background { id, scope } => background(&layout, id.as_deref(), scope),
        JobsCommand::Sweep { scope, json } => sweep_jobs(&layout, scope, *json),
    }
}

pub(super) fn layout(environment: &Environment) -> Result<Layout, CommandError> {
    environment.storage_root().map(Layout::new).map_err(|error| CommandError::from_error(Exit::Usage, &error))
}

pub(super) fn state_error(error: &JobError) -> CommandError {
    CommandError::from_error(Exit::StateLost, error)
}

impl Scope {
    fn session(&self) -> Result<Option<SessionId>, CommandError> {
        self.session.as_deref().map(SessionId::from_name).transpose().map_err(|error| CommandError::from_error(Exit::Usage, &error))
    }

    /// Jobs of all kinds by start time, and what could not be understood.
    fn scan(&self, layout: &Layout) -> Result<(Vec<Job>, Vec<JobError>), CommandError> {
        let session = self.session()?;
        let processes = match &session {
            Some(session) => folders::scan_session(layout, session),
            None => folders::scan_all(layout),
        };
        let Scan { found, mut problems } = processes.map_err(|error| state_error(&error))?;
        let agents = agent_folders::scan(layout, session.as_ref()).map_err(|error| state_error(&error))?;
        let mut jobs: Vec<Job> = found.into_iter().map(|found| found.job).chain(agents.jobs).collect();
        jobs.sort_by(|a, b| (a.created_at, a.id()).cmp(&(b.created_at, b.id())));
        problems.extend(agents.problems);
        Ok((jobs, problems))
    }

    /// A local agent by its id.
    fn find_agent(&self, layout: &Layout, text: &str) -> Result<Option<Job>, JobError> {
        let Some(id) = agent_id(text) else { return Ok(None) };
        match self.session.as_deref().map(SessionId::from_name) {
            None => agent_folders::find(layout, None, &id),
            Some(Err(_)) => Ok(None),
            Some(Ok(session)) => agent_folders::find(layout, Some(&session), &id),
        }
    }

    /// A supervised process. A text that is no id is unknown and never becomes a path.
    fn find(&self, layout: &Layout, text: &str) -> Result<Option<Found>, JobError> {
        let Ok(id) = JobId::parse(text) else { return Ok(None) };
        if id.kind() == JobKind::LocalAgent {
            return Ok(None);
        }
        match self.session.as_deref().map(SessionId::from_name) {
            None => folders::find_anywhere(layout, &id),
            Some(Err(_)) => Ok(None),
            Some(Ok(session)) => folders::find(layout, &session, &id),
        }
    }

    fn must_find(&self, layout: &Layout, text: &str) -> Result<Job, CommandError> {
        self.session()?;
        let found = match agent_id(text) {
            Some(_) => self.find_agent(layout, text),
            None => self.find(layout, text).map(|found| found.map(|found| found.job)),
        };
        found.map_err(|error| state_error(&error))?.ok_or_else(|| unknown(text))
    }
}

fn agent_id(text: &str) -> Option<JobId> {
    JobId::parse(text).ok().filter(|id| id.kind() == JobKind::LocalAgent)
}

fn unknown(text: &str) -> CommandError {
    CommandError::new(Exit::UnknownId, format!("there is no job `{}`", one_line(text, 80)))
        .with_hint("`zapmyco jobs list` shows all there are")
}

pub(super) fn print_json(value: &impl serde::Serialize) -> Result<(), CommandError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CommandError::from_error(Exit::Fault, &error))?;
    print_out(&format!("{text}\n"))
}

fn list(layout: &Layout, scope: &Scope, json: bool) -> Result<Exit, CommandError> {
    let (jobs, problems) = scope.scan(layout)?;
    for problem in &problems {
        print_notice(&problem.to_string());
    }
    let jobs: Vec<JobView> = jobs.iter().map(Job::view).collect();
    if json {
        print_json(&JobList { jobs })?;
    } else if jobs.is_empty() {
        print_notice("there are no jobs");
    } else {
        print_out(&listed(&jobs))?;
    }
    Ok(Exit::Done)
}

const COLUMNS: [Column; 6] = [
    Column::new("ID"),
    Column::new("STATUS"),
    Column { is_number: true, ..Column::new("DURATION") },
    Column { left_out: Some(1), ..Column::new("STARTED") },
    // The end of a session's id is what tells it from others.
    Column { least: Some(13), cut: Cut::Beginning, left_out: Some(0), ..Column::new("SESSION") },
    Column { least: Some(16), ..Column::new("TITLE") },
];

fn listed(jobs: &[JobView]) -> String {
    let row = |job: &JobView| {
        vec![
            job.id.to_string(),
            job.status.clone(),
            format!("{:.1}s", job.duration_ms as f64 / 1000.0),
            job.started_at.format("%Y-%m-%d %H:%M:%S").to_string(),
            job.session.to_string(),
            one_line(&job.title, 80),
        ]
    };
    table(&COLUMNS, &jobs.iter().map(row).collect::<Vec<_>>(), stdout_width())
}

fn show(layout: &Layout, id: &str, scope: &Scope, json: bool) -> Result<Exit, CommandError> {
    let job = scope.must_find(layout, id)?;
    if json {
        print_json(&job.view())?;
    } else {
        print_out(&described(&job))?;
    }
    Ok(Exit::Done)
}

fn described(job: &Job) -> String {
    let view = job.view();
    let (code, signal) = job.exit();
    let mut lines = vec![("id", view.id.to_string()), ("session", view.session.to_string()), ("title", view.title.clone())];
    let status = match job.cause().and_then(|cause| cause.detail()) {
        Some(detail) => format!("{} ({detail})", view.status),
        None => view.status.clone(),
    };
    lines.push(("status", status));
    if !job.is_running() {
        lines.push(("exit code", exit_status(code, signal)));
    }
    lines.extend(view.pid.map(|pid| ("pid", pid.to_string())));
    lines.push(("started", view.started_at.to_rfc3339()));
    lines.extend(view.ended_at.map(|at| ("ended", at.to_rfc3339())));
    lines.push(("duration", format!("{:.3}s", view.duration_ms as f64 / 1000.0)));
    for (name, stream) in [("stdout", &view.stdout), ("stderr", &view.stderr)] {
        lines.push((name, format!("{} ({}, {} kept)", stream.path.display(), size(stream.bytes), size(stream.kept))));
    }
    if let Some(agent) = &job.agent {
        lines
            .push(("agent", format!("{}, in the {}", agent.agent_type(), if agent.is_background() { "background" } else { "foreground" })));
        lines.push(("tokens", agent.totals().usage.total().to_string()));
        lines.extend(agent.end().and_then(|end| partial_in_words(&end)).map(|why| ("partial", why)));
        lines.extend(agent.end().and_then(|end| end.error.clone()).map(|error| ("error", one_line(&error, 400))));
    }
    lines.push(("directory", job.owner.cwd.display().to_string()));
    lines.extend(view.sandbox.iter().map(|report| ("sandbox", report.to_string())));
    lines.extend(view.left_over.iter().map(|left| ("left over", format!("PID {} ({}) {}", left.pid, left.state, left.command))));
    lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}

fn output_of(layout: &Layout, id: &str, scope: &Scope, stream: Stream, tail: Option<usize>, json: bool) -> Result<Exit, CommandError> {
    let job = scope.must_find(layout, id)?;
    let whole = output::read_all(&job, stream)
        .map_err(|error| CommandError::state(format!("cannot read {}: {error}", job.folder.output(stream).display())))?;
    let (head, end) = match tail {
        Some(lines) => (Vec::new(), last_lines(&[whole.head, whole.tail].concat(), lines).to_vec()),
        None => (whole.head, whole.tail),
    };
    if json {
        let text = harmless(&[head, end].concat());
        let count = job.count(stream);
        print_json(&json!({
            "schema_version": crate::subagents::job::JOB_VIEW_VERSION,
            "id": job.id(),
            "stream": if stream == Stream::Stdout { "stdout" } else { "stderr" },
            "path": job.folder.output(stream).display().to_string(),
            "bytes": count.bytes,
            "kept": count.kept,
            "left_out": whole.left_out,
            "bad_bytes": text.bad_bytes,
            "text": text.text,
        }))?;
        return Ok(Exit::Done);
    }
    if whole.left_out > 0 && tail.is_none() {
        print_notice(&format!("{} bytes in the middle were not kept", whole.left_out));
    }
    let bytes = [head, end].concat();
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        print_out(&harmless(&bytes).text)?;
    } else {
        print_out_bytes(&bytes)?;
    }
    Ok(Exit::Done)
}

fn last_lines(bytes: &[u8], lines: usize) -> &[u8] {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let feeds = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match lines.checked_sub(1) {
        None => &[],
        Some(skipped) => feeds.map(|(at, _)| at).nth(skipped).map_or(bytes, |at| &bytes[at + 1..]),
    }
}

fn kill(layout: &Layout, ids: &[String], scope: &Scope, json: bool) -> Result<Exit, CommandError> {
    scope.session()?;
    let ids: Vec<&str> = answers::once(ids).collect();
    let (agents, processes): (Vec<&str>, Vec<&str>) = ids.iter().partition(|text| agent_id(text).is_some());
    let mut outcomes = stop_all(processes.into_iter().map(|text| (text, scope.find(layout, text))).collect());
    for text in agents {
        outcomes.push(match scope.find_agent(layout, text) {
            Ok(Some(job)) => requests::stop(layout, job),
            Ok(None) => Ended::Unknown(text.to_owned()),
            Err(error) => Ended::Failed { id: text.to_owned(), reason: error.to_string() },
        });
    }
    report_kill(&outcomes, json)
}

/// R185
fn background(layout: &Layout, id: Option<&str>, scope: &Scope) -> Result<Exit, CommandError> {
    let job = match id {
        Some(text) if agent_id(text).is_some() => scope.must_find(layout, text)?,
        Some(text) => {
            return Err(unknown(text).with_hint("only an agent in the process of a run can be moved: nothing waits for other jobs"));
        }
        None => only_awaited(layout, scope)?,
    };
    requests::ask(layout, &job, Wish::Background).map_err(|error| CommandError::from_error(Exit::Failed, &error))?;
    print_out(&format!("{} goes on in the background\n", job.id()))?;
    Ok(Exit::Done)
}

/// The one agent that a run waits for now.
fn only_awaited(layout: &Layout, scope: &Scope) -> Result<Job, CommandError> {
    let (mut jobs, _) = scope.scan(layout)?;
    jobs.retain(|job| job.is_running() && job.agent.is_some() && !job.owner.background);
    if jobs.len() > 1 {
        let ids: Vec<String> = jobs.iter().map(|job| format!("{} ({})", job.id(), job.owner.title)).collect();
        return Err(CommandError::usage(format!("several agents are waited for: {}", ids.join(", "))).with_hint("name one of them"));
    }
    jobs.pop().ok_or_else(|| CommandError::new(Exit::UnknownId, "no run waits for an agent now"))
}

/// Prints what became of each and gives the exit code of decision 20.
pub(super) fn report_kill(outcomes: &[Ended], json: bool) -> Result<Exit, CommandError> {
    if json {
        let jobs: Vec<JobView> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                Ended::Before(job) | Ended::Now(job) => Some(job.view()),
                Ended::Unknown(_) | Ended::Failed { .. } => None,
            })
            .collect();
        print_json(&json!({"jobs": jobs, "unknown": unknown_ids(outcomes)}))?;
    } else {
        print_out(&format!("{}\n", answers::kill_text(outcomes)))?;
    }
    if !unknown_ids(outcomes).is_empty() {
        return Ok(Exit::UnknownId);
    }
    let all_gone = outcomes.iter().all(|outcome| match outcome {
        Ended::Before(job) | Ended::Now(job) => job.left_over().is_empty(),
        Ended::Unknown(_) | Ended::Failed { .. } => false,
    });
    Ok(if all_gone { Exit::Done } else { Exit::Failed })
}

fn unknown_ids(outcomes: &[Ended]) -> Vec<&str> {
    outcomes.iter().filter_map(|outcome| if let Ended::Unknown(text) = outcome { Some(text.as_str()) } else { None }).collect()
}

fn sweep_jobs(layout: &Layout, scope: &Scope, json: bool) -> Result<Exit, CommandError> {
    let report = sweep::sweep(layout, scope.session()?.as_ref()).map_err(|error| state_error(&error))?;
    if json {
        print_json(&report)?;
    } else {
        print_out(&swept(&report))?;
    }
    Ok(if report.is_clean() { Exit::Done } else { Exit::Failed })
}

fn swept(report: &SweepReport) -> String {
    if report.is_clean() {
        let reason = report.not_provable.as_ref().map(|reason| format!(", as far as can be seen: {reason}"));
        return format!("nothing was left behind{}\n", reason.unwrap_or_default());
    }
    let mut lines = Vec::new();
    lines.extend(report.settled.iter().map(|id| {
        let who = if id.kind() == JobKind::LocalAgent { "process" } else { "keeper" };
        format!("settled: {id} is lost; its {who} had died without a record")
    }));
    lines.extend(report.ended.iter().map(|process| format!("ended: PID {} ({})", process.pid, one_line(&process.command, 80))));
    lines.extend(report.removed.iter().map(|path| format!("removed: {} (never started)", path.display())));
    lines.extend(report.problems.iter().map(|problem| format!("not understood: {problem}")));
    lines.extend(report.left_over.iter().map(|process| format!("STILL THERE: PID {} ({})", process.pid, one_line(&process.command, 80))));
    match &report.not_provable {
        Some(reason) => lines.push(format!("not provable: {reason}")),
        None if report.left_over.is_empty() => lines.push("nothing is left now".to_owned()),
        None => {}
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(last_lines(b"a\nb\nc", 1), b"c");
        assert_eq!(last_lines(b"a\n", 5), b"a\n");
        assert_eq!(last_lines(b"a\n", 0), b"");
        assert_eq!(last_lines(b"", 3), b"");
    }
}
