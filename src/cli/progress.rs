//! What a person sees on stderr while a run goes on: a spinner and one line per child on a terminal, plain lines
//! elsewhere. Never anything on stdout.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::screen;
use crate::agent::event::{Event, EventKind, EventSink, InputSource};
use crate::config::Environment;
use crate::ids::JobId;
use crate::text::units;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Only what a person must know: retries, denials, notices.
    Quiet,
    Normal,
}

/// The sink that draws.
pub struct Progress {
    detail: Detail,
    surface: Mutex<Surface>,
    /// Lines that wait while a question stands on the terminal; `None`: nothing stands there.
    held: Mutex<Option<VecDeque<String>>>,
    /// Denied calls that have not ended yet: their failure has been said already.
    denied: Mutex<HashSet<String>>,
}

enum Surface {
    Plain,
    Terminal { group: MultiProgress, main: ProgressBar, jobs: HashMap<JobId, ProgressBar> },
}

/// Longest text shown of a title or an argument, in characters.
const SHOWN_MAX: usize = 100;
/// Lines held back while a question stands; the oldest go.
const HELD_MAX: usize = 500;

impl Progress {
    pub fn new(detail: Detail, environment: &Environment) -> Self {
        let dumb = environment.get("TERM").is_none_or(|term| term == "dumb");
        let animated = detail == Detail::Normal && !dumb && std::io::stderr().is_terminal();
        let surface = if animated { Self::terminal(environment) } else { Surface::Plain };
        Self { detail, surface: Mutex::new(surface), held: Mutex::default(), denied: Mutex::default() }
    }

    /// Nothing moves and nothing is said until `resume`: a question stands on the terminal.
    pub fn pause(&self) {
        let mut held = self.held();
        if held.is_none() {
            *held = Some(VecDeque::new());
            if let Surface::Terminal { group, .. } = &*self.surface() {
                let _ = group.clear();
                group.set_draw_target(ProgressDrawTarget::hidden());
            }
        }
    }

    /// Says what was held back, and goes on.
    pub fn resume(&self) {
        let Some(lines) = self.held().take() else { return };
        if let Surface::Terminal { group, .. } = &*self.surface() {
            group.set_draw_target(screen::draw_target());
        }
        for line in lines {
            self.say(&line);
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<VecDeque<String>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn surface(&self) -> MutexGuard<'_, Surface> {
        self.surface.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn terminal(environment: &Environment) -> Surface {
        let group = MultiProgress::with_draw_target(screen::draw_target());
        let template =
            if environment.is_set("NO_COLOR") { "{spinner} {elapsed:>4} {wide_msg}" } else { "{spinner:.cyan} {elapsed:>4} {wide_msg}" };
        let main = group.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template(template) {
            main.set_style(style);
        }
        main.enable_steady_tick(Duration::from_millis(120));
        Surface::Terminal { group, main, jobs: HashMap::new() }
    }

    /// Takes the moving lines away, so that the answer stands alone.
    pub fn clear(&self) {
        let mut surface = self.surface.lock().unwrap_or_else(PoisonError::into_inner);
        if let Surface::Terminal { group, main, jobs } = &mut *surface {
            for (_, bar) in jobs.drain() {
                bar.finish_and_clear();
            }
            main.finish_and_clear();
            let _ = group.clear();
        }
        *surface = Surface::Plain;
    }

    /// A line that stays.
    fn say(&self, line: &str) {
        if let Some(lines) = &mut *self.held() {
            if lines.len() >= HELD_MAX {
                lines.pop_front();
            }
            lines.push_back(line.to_owned());
            return;
        }
        let surface = self.surface.lock().unwrap_or_else(PoisonError::into_inner);
        match &*surface {
            Surface::Plain => {
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            Surface::Terminal { group, .. } => {
                let _ = group.println(line);
            }
        }
    }

    /// What goes on now: the spinner's text, or a plain line.
    fn doing(&self, text: String) {
        if let Surface::Terminal { main, .. } = &*self.surface() {
            main.set_message(text);
            return;
        }
        self.say(&format!("- {text}"));
    }

    fn thinking(&self) {
        if let Surface::Terminal { main, .. } = &*self.surface.lock().unwrap_or_else(PoisonError::into_inner) {
            main.set_message("waiting for the model");
        }
    }

    fn job_started(&self, job: &JobId, title: &str) {
        let mut surface = self.surface.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *surface {
            Surface::Plain => {
                drop(surface);
                self.say(&format!("- {job} started: {}", shown(title)));
            }
            Surface::Terminal { group, jobs, .. } => {
                let bar = group.add(ProgressBar::new_spinner());
                if let Ok(style) = ProgressStyle::with_template("  {spinner} {elapsed:>4} {wide_msg}") {
                    bar.set_style(style);
                }
                bar.enable_steady_tick(Duration::from_millis(200));
                bar.set_message(format!("{job}  {}", shown(title)));
                jobs.insert(job.clone(), bar);
            }
        }
    }

    fn was_denied(&self, call_id: &str) -> bool {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner).remove(call_id)
    }

    fn job_ended(&self, job: &JobId, line: &str) {
        if let Surface::Terminal { jobs, .. } = &mut *self.surface.lock().unwrap_or_else(PoisonError::into_inner)
            && let Some(bar) = jobs.remove(job)
        {
            bar.finish_and_clear();
        }
        self.say(line);
    }
}

impl EventSink for Progress {
    fn send(&self, event: &Event) {
        let normal = self.detail == Detail::Normal;
        match &event.kind {
            EventKind::RequestRetried { attempt, wait_ms, reason } => {
                self.say(&format!("- trying again in {} (try {attempt}): {}", wait(*wait_ms), shown(reason)));
            }
            EventKind::RequestWaiting { wait_ms, reason } if *wait_ms >= 1000 => {
                self.say(&format!("- waiting {}: {}", wait(*wait_ms), shown(reason)));
            }
            EventKind::PermissionDenied { call_id, name, message, .. } => {
                self.denied.lock().unwrap_or_else(PoisonError::into_inner).insert(call_id.clone());
                self.say(&denial(name, message));
            }
            EventKind::Subagent { agent, event } if normal => {
                if let EventKind::PermissionDenied { name, message, .. } = event.as_ref() {
                    self.say(&format!("- {}, {}", agent.agent_id, denial(name, message).trim_start_matches("- ")));
                }
            }
            EventKind::Notice { text } => self.say(&format!("- {text}")),
            EventKind::TurnStarted { source: InputSource::SubagentReply, text }
            | EventKind::InputJoined { source: InputSource::SubagentReply, text }
                if normal =>
            {
                self.say(&format!("- {}", reported(text)));
            }
            EventKind::TurnStarted { .. } if normal => self.thinking(),
            EventKind::ToolStarted { name, input, .. } if normal => self.doing(format!("{name} {}", argument(input))),
            EventKind::ToolEnded { call_id, name, is_error: true, preview, .. } if normal && !self.was_denied(call_id) => {
                self.say(&format!("- {name} failed: {}", shown(preview)));
            }
            EventKind::ToolResults { .. } if normal => self.thinking(),
            EventKind::InputJoined { source: InputSource::TaskNotification, .. } if normal => {
                self.doing("reading the notice of an ended job".to_owned());
            }
            EventKind::JobStarted { job, title, .. } if normal => self.job_started(job, title),
            EventKind::JobEnded { job, title, status, duration_ms, .. } if normal => {
                self.job_ended(job, &format!("- {job} {status} ({}): {}", wait(*duration_ms), shown(title)));
            }
            _ => {}
        }
    }
}

/// What a person needs of the words that the model is told: the reason, and what would allow the call.
fn denial(name: &str, message: &str) -> String {
    let reason = message.lines().next().unwrap_or_default();
    let known = [format!("No permission client configured for {name}: "), format!("{name} was denied: ")];
    let reason = known.iter().find_map(|start| reason.strip_prefix(start.as_str())).unwrap_or(reason);
    let line = format!("- {name} denied: {reason}");
    match message.rsplit_once("To allow it next time: ") {
        Some((_, how)) => format!("{line}\n  to allow it: {how}"),
        None => line,
    }
}

/// Tenths matter to a person only below ten seconds.
fn wait(milliseconds: u64) -> String {
    if milliseconds < 10_000 {
        return format!("{:.1}s", milliseconds as f64 / 1000.0);
    }
    units::seconds(Duration::from_millis(milliseconds))
}

/// One line for a reply of a subagent: who, and its summary (R220).
fn reported(reply: &str) -> String {
    let part = |tag: &str| reply.lines().find_map(|line| line.strip_prefix(&format!("<{tag}>"))?.strip_suffix(&format!("</{tag}>")));
    let (id, summary) = (part("agent-id").unwrap_or("a subagent"), part("summary").unwrap_or(""));
    format!("{} reported: {}", shown(id), shown(summary))
}

/// The most telling argument of a call, in one line.
fn argument(input: &Value) -> String {
    let telling = ["action", "command", "file_path", "pattern", "task_id", "path"];
    let text = telling.iter().find_map(|key| input.get(key)).and_then(Value::as_str).unwrap_or("");
    shown(text)
}

/// One line without control characters, shortened.
fn shown(text: &str) -> String {
    units::one_line(text, SHOWN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_gives_a_person_the_reason_and_the_flag() {
        let asked = "No permission client configured for Bash: mode `default` asks\nNobody can. To allow it next time: --x 'Bash(a:*)'";
        assert_eq!(denial("Bash", asked), "- Bash denied: mode `default` asks\n  to allow it: --x 'Bash(a:*)'");
        assert_eq!(denial("Bash", "Bash was denied: a rule\nDo not repeat the call."), "- Bash denied: a rule");
        assert_eq!(denial("Edit", "anything else"), "- Edit denied: anything else");
    }
}
