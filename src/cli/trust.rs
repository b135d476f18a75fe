//! `zapmyco trust`: what a project asks for that needs a person's word, and that word. Also the question before a run.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::app::trust::{Asking, Grant};
use crate::app::{self, App, Flags};
use crate::cli::agents_text::plain;
use crate::cli::report::{self, CommandError, Exit};
use crate::cli::terminal::{Line, Terminal};
use crate::cli::{failure, guard};
use crate::config::Environment;
use crate::permissions::trust::{Content, Decision, Trust, decide, revoke};

/// Trust what a project asks for: its hooks, its allow rules, profiles with your own memory.
///
/// A repository can bring settings that run programs of its own (hooks) or that allow calls without asking. None of it
/// has any effect before you have seen and trusted it. Trust is for the exact content of each file in this folder: after
/// any change you are asked again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TrustArguments {
    /// The project; the current folder when left out
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,

    /// Only show what is asked for and what is trusted
    #[arg(long, conflicts_with_all = ["revoke", "yes"])]
    pub show: bool,

    /// Forget everything that was trusted or refused here
    #[arg(long, conflicts_with = "yes")]
    pub revoke: bool,

    /// Trust it without a question
    #[arg(long)]
    pub yes: bool,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  zapmyco trust               show what this project asks for, then ask
  zapmyco trust --show        only show it
  zapmyco trust --yes ~/work  trust it as it is now
  zapmyco trust --revoke      trust nothing of it any more";

const SCHEMA_VERSION: u32 = 1;

/// `zapmyco trust`.
pub fn run(arguments: &TrustArguments, environment: Environment) -> Result<Exit, CommandError> {
    if !arguments.show {
        refuse_inside_session(&environment)?;
    }
    let cwd = app::working_directory(arguments.folder.as_deref()).map_err(|error| failure::of_app(&error))?;
    let app = App::load(environment, cwd, Flags::default(), None).map_err(|error| failure::of_app(&error))?;
    if arguments.revoke {
        let forgotten = revoke(&app.layout, &app.cwd).map_err(|error| CommandError::from_error(Exit::StateLost, &error))?;
        let project = app.trust.project().display().to_string();
        report::print_out(&if arguments.json {
            format!("{}\n", json!({ "schema_version": SCHEMA_VERSION, "project": project, "forgotten": forgotten }))
        } else {
            format!("{forgotten} decisions about {project} are forgotten; nothing of it is trusted\n")
        })?;
        return Ok(Exit::Done);
    }
    if let Some(problem) = &app.trust_problem {
        report::print_notice(&format!("nothing of this project is trusted: {problem}"));
    }
    let asking = app.asking();
    let open: Vec<Content> = asking.iter().filter(|asking| !asking.is_trusted()).filter_map(|asking| asking.content.clone()).collect();
    let decided = if arguments.show || open.is_empty() {
        None
    } else if arguments.yes {
        Some(Decision::Trusted)
    } else {
        Some(question(&app.environment, &as_text(&app.trust, &asking))?.ok_or_else(|| {
            CommandError::usage("there is no terminal to ask on")
                .with_hint("`zapmyco trust --yes` trusts it as it is now, `--show` only shows it")
        })?)
    };
    let shown_already = decided.is_some() && !arguments.yes;
    let asking = match decided {
        None => asking,
        Some(decision) => {
            let trust =
                decide(&app.layout, &app.cwd, &open, decision).map_err(|error| CommandError::from_error(Exit::StateLost, &error))?;
            asking.into_iter().map(|asking| redecided(asking, &trust, &open, decision)).collect()
        }
    };
    if arguments.json {
        report::print_out(&format!("{}\n", as_json(&app.trust, &asking)))?;
    } else if !shown_already {
        report::print_out(&as_text(&app.trust, &asking))?;
    } else if decided == Some(Decision::Trusted) {
        report::print_out("trusted\n")?;
    }
    Ok(if decided == Some(Decision::Refused) { Exit::Denied } else { Exit::Done })
}

fn redecided(asking: Asking, _: &Trust, open: &[Content], decision: Decision) -> Asking {
    let is_new = asking.content.as_ref().is_some_and(|content| open.contains(content));
    Asking { decision: if is_new { Some(decision) } else { asking.decision }, ..asking }
}

/// A model must not trust for its user: not below a shell or a hook of ours, however it hides that.
fn refuse_inside_session(environment: &Environment) -> Result<(), CommandError> {
    if guard::is_inside_session(environment) {
        return Err(CommandError::usage("trust is a person's to give: this is not available inside a session, do not retry")
            .with_hint("tell the user to run `zapmyco trust` in a terminal of their own"));
    }
    Ok(())
}

/// One line about everything that waits for trust; `None` when nothing does.
pub fn untrusted_line(app: &App) -> Option<String> {
    let untrusted: Vec<Asking> = app.asking().into_iter().filter(|asking| !asking.is_trusted()).collect();
    if untrusted.is_empty() {
        return app.trust_problem.as_ref().map(|problem| format!("nothing of this project is trusted: {problem}"));
    }
    let files: Vec<String> = untrusted.iter().map(|asking| relative(app.trust.project(), &asking.path)).collect();
    Some(format!(
        "skipped, because nobody has trusted it as it is now: {} in {}; `zapmyco trust` shows it and asks",
        summary(&untrusted),
        plain(&files.join(", "))
    ))
}

/// Asks once on the terminal about what is new. Whether something was trusted.
pub fn ask_before_run(app: &App) -> Result<bool, CommandError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    let new: Vec<Asking> = app.asking().into_iter().filter(|asking| asking.decision.is_none() && asking.content.is_some()).collect();
    if new.is_empty() {
        return Ok(false);
    }
    let Some(decision) = question(&app.environment, &as_text(&app.trust, &new))? else { return Ok(false) };
    let contents: Vec<Content> = new.into_iter().filter_map(|asking| asking.content).collect();
    decide(&app.layout, &app.cwd, &contents, decision).map_err(|error| CommandError::from_error(Exit::StateLost, &error))?;
    Ok(decision == Decision::Trusted)
}

/// On the terminal, after what is asked about. `None` when there is none, or it is gone.
fn question(environment: &Environment, shown: &str) -> Result<Option<Decision>, CommandError> {
    let Some(mut terminal) = Terminal::open(environment) else { return Ok(None) };
    // Nothing else wakes this question.
    let (never, _held) = io::pipe().map_err(|error| CommandError::state(format!("cannot ask on the terminal: {error}")))?;
    terminal.say(shown);
    terminal.forget_typed();
    loop {
        terminal.say("Trust this content? It can run programs and allow calls without asking. [y/N] > ");
        let Line::Typed(line) = terminal.line(&never) else { return Ok(None) };
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(Some(Decision::Trusted)),
            "n" | "no" | "" => return Ok(Some(Decision::Refused)),
            _ => {}
        }
    }
}

/// `2 hooks, 1 allow rule`.
fn summary(asking: &[Asking]) -> String {
    let mut counts = [(0, "hook"), (0, "allow rule"), (0, "profile with your memory"), (0, "server"), (0, "script of a hook")];
    for grant in asking.iter().flat_map(|asking| &asking.grants) {
        let place = match grant {
            Grant::Hook { .. } | Grant::ProfileHook { .. } => 0,
            Grant::AllowRule { .. } => 1,
            Grant::UserMemory { .. } => 2,
            Grant::Server { .. } => 3,
            Grant::Script { .. } => 4,
        };
        counts[place].0 += 1;
    }
    let named = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {}", if *count == 1 { (*what).to_owned() } else { plural(what) }));
    let named: Vec<String> = named.collect();
    if named.is_empty() { "settings that cannot be read".to_owned() } else { named.join(", ") }
}

fn plural(what: &str) -> String {
    // What it is comes first: "profiles with your memory".
    match what.split_once(' ').filter(|(first, _)| *first != "allow") {
        Some((first, rest)) => format!("{first}s {rest}"),
        None => format!("{what}s"),
    }
}

fn as_text(trust: &Trust, asking: &[Asking]) -> String {
    let project = trust.project();
    if asking.is_empty() {
        return format!("{} asks for nothing that needs trust\n", project.display());
    }
    let mut text = format!("{} asks for:\n", project.display());
    for file in asking {
        text.push_str(&format!("\n{}  ({})\n  sha256 {}\n", plain(&relative(project, &file.path)), state(file), file.sha256));
        for grant in &file.grants {
            text.push_str(&format!("  {}\n", plain(&line_of(grant))));
        }
    }
    text
}

fn state(asking: &Asking) -> &'static str {
    match (asking.content.is_some(), asking.decision) {
        (false, _) => "cannot be trusted: a link leads out of the project",
        (true, Some(Decision::Trusted)) => "trusted",
        (true, Some(Decision::Refused)) => "refused",
        (true, None) => "not trusted",
    }
}

fn line_of(grant: &Grant) -> String {
    let matching = |matcher: &Option<String>| matcher.as_ref().map(|matcher| format!(" ({matcher})")).unwrap_or_default();
    match grant {
        Grant::Hook { event, matcher, command } => format!("hook {event}{}: {command}", matching(matcher)),
        Grant::AllowRule { rule } => format!("allow {rule}"),
        Grant::UserMemory { profile } => format!("profile {profile}: reads and writes your own notes (memory: user)"),
        Grant::ProfileHook { profile, event, matcher, command } => {
            format!("profile {profile}: hook {event}{}: {command}", matching(matcher))
        }
        Grant::Server { profile, name } => format!("profile {profile}: server {name}"),
        Grant::Script { command } => format!("run by the hook: {command}"),
    }
}

fn relative(project: &Path, path: &Path) -> String {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real.strip_prefix(project).map_or_else(|_| path.display().to_string(), |below| below.display().to_string())
}

fn as_json(trust: &Trust, asking: &[Asking]) -> Value {
    let grant = |grant: &Grant| match grant {
        Grant::Hook { event, matcher, command } => json!({ "kind": "hook", "event": event, "matcher": matcher, "command": command }),
        Grant::AllowRule { rule } => json!({ "kind": "allow_rule", "rule": rule }),
        Grant::UserMemory { profile } => json!({ "kind": "user_memory", "profile": profile }),
        Grant::ProfileHook { profile, event, matcher, command } => {
            json!({ "kind": "profile_hook", "profile": profile, "event": event, "matcher": matcher, "command": command })
        }
        Grant::Server { profile, name } => json!({ "kind": "server", "profile": profile, "name": name }),
        Grant::Script { command } => json!({ "kind": "script", "command": command }),
    };
    let file = |asking: &Asking| {
        json!({
            "path": asking.path.display().to_string(),
            "sha256": asking.sha256,
            "state": match (asking.content.is_some(), asking.decision) {
                (false, _) => "outside",
                (true, Some(Decision::Trusted)) => "trusted",
                (true, Some(Decision::Refused)) => "refused",
                (true, None) => "unknown",
            },
            "grants": asking.grants.iter().map(grant).collect::<Vec<_>>(),
        })
    };
    json!({
        "schema_version": SCHEMA_VERSION,
        "project": trust.project().display().to_string(),
        "files": asking.iter().map(file).collect::<Vec<_>>(),
    })
}
