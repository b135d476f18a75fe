//! The headless run and its end; also the payload of a process subagent (`run --subagent`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use crate::agent::Role;
use crate::agent::event::{Event, EventSink, InputSource, TurnCause};
use crate::agent::inbox::Input;
use crate::app::model::{ChosenModel, ModelSource, OnceChoice};
use crate::app::session::{OpenSession, SessionRequest, Start};
use crate::app::{self, App, Flags};
use crate::cli::approvals::{Keeping, TerminalApprover};
use crate::cli::failure;
use crate::cli::guard;
use crate::cli::headless::{self, Conversation};
use crate::cli::output::{JobLeft, Output, OutputFormat, RunResult, WorkSoFar};
use crate::cli::progress::{Detail, Progress};
use crate::cli::prompt;
use crate::cli::report::{self, CommandError, Exit};
use crate::cli::signals::Shutdown;
use crate::cli::trust;
use crate::cli::values::ModeParser;
use crate::config::Environment;
use crate::config::settings::Refused;
use crate::config::units::{format_duration, parse_duration};
use crate::ids::JobId;
use crate::models::prices::Usd;
use crate::permissions::approval::{Approver, Unattended};
use crate::permissions::{Granted, Mode};
use crate::store::StoreError;
use crate::subagents::handover::Handover;
use crate::subagents::retention::{self, RetentionError};
use crate::text::subagent_replies::{self, LeftJob};

/// Give the agent a task and print its answer.
///
/// The answer alone goes to stdout; progress, notices and errors go to stderr. At a terminal you are asked about what the
/// mode does not allow; without one it is denied, and the message says how to allow it.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, after_long_help = format!("{RUN_EXAMPLES}\n\n{}", report::exit_code_help()))]
pub struct RunArguments {
    /// The task; `-` reads it from stdin, as does leaving it out with a pipe on stdin
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<String>,

    /// Read stdin to its end and put it after the prompt
    #[arg(long)]
    pub stdin: bool,

    #[command(flatten)]
    pub model: ModelArguments,

    #[command(flatten)]
    pub rights: RightsArguments,

    /// What stdout carries
    #[arg(long, alias = "output", value_enum, default_value = "text", value_name = "FORMAT")]
    pub output_format: OutputFormat,

    #[command(flatten)]
    pub once: OnceArguments,

    /// Most model requests of a turn; at the limit the model gives a closing report and the exit code is 5
    #[arg(long, alias = "maxTurns", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_turns: Option<u32>,

    #[command(flatten)]
    pub budget: BudgetArguments,

    /// Text to put after the system prompt
    #[arg(long, value_name = "TEXT")]
    pub append_system_prompt: Option<String>,

    /// Profiles of agents for this run: {"NAME": {"description": "...", "prompt": "..."}}
    #[arg(long, value_name = "JSON")]
    pub agents: Option<String>,

    /// stream-json: show the text of agents in this process too, not only their tool calls
    #[arg(long)]
    pub forward_subagent_text: bool,

    /// Go on with the newest session of this folder
    #[arg(long = "continue", short = 'c', conflicts_with = "resume")]
    pub continue_last: bool,

    /// Go on with this session
    #[arg(long, short = 'r', value_name = "SESSION")]
    pub resume: Option<String>,

    /// What happens at the end to subagents that still run
    #[arg(long, value_enum, default_value = "wait", value_name = "WHAT")]
    pub on_exit: OnExit,

    /// Exit 3 when any call was denied, even if the work was done another way
    #[arg(long, conflicts_with = "ignore_denied")]
    pub fail_on_denied: bool,

    /// Denied calls do not change the exit code
    #[arg(long)]
    pub ignore_denied: bool,

    /// Whether you are asked about calls that the mode does not allow: auto asks on the terminal when stdin and stderr
    /// are one [default: auto]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub permission_prompt: Option<PermissionPrompt>,

    /// Work in this folder
    #[arg(long, short = 'C', value_name = "FOLDER")]
    pub cwd: Option<PathBuf>,

    /// No progress on stderr, only what must be known
    #[arg(long, short)]
    pub quiet: bool,

    /// Run as a subagent (started by the `subagent` tool)
    #[arg(long, hide = true)]
    pub subagent: bool,

    /// Read the task from this file
    #[arg(long, hide = true, value_name = "FILE", conflicts_with = "prompt")]
    pub task_file: Option<PathBuf>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  zapmyco run \"explain what src/ does\"
  git diff | zapmyco run --stdin \"review this change\"
  zapmyco run --permission-mode acceptEdits \"fix the typos in docs/\"
  zapmyco run --allowedTools 'Bash(cargo test:*)' \"make the tests pass\"
  zapmyco run --model openai/gpt-5.4 --output-format json \"...\" | jq -r .result
  zapmyco run --model script:agent.yaml \"...\"    a scripted model, no key
  zapmyco run --record talk.jsonl \"...\"          record; then, without a key:
  zapmyco run --model replay:talk.jsonl \"...\"    play it back";

/// Which model answers. Shared by every command that starts agents.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArguments {
    /// PROVIDER/MODEL, script:FILE or replay:FILE
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,

    /// Address of the provider, with or without /v1
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,

    /// Record every model request and answer, subagents included, into this file
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// What a run and all its subagents together may use. At the bound no further request is sent, long calls are stopped,
/// what is there is kept, and the exit code is 5.
#[derive(Debug, Clone, Default, Args)]
pub struct BudgetArguments {
    /// Most dollars of the run and all its subagents; the price of the model must be known
    #[arg(long, value_name = "USD")]
    pub max_budget_usd: Option<Usd>,

    /// Most tokens of the run and all its subagents, cache reads included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_budget_tokens: Option<u64>,

    /// Most model requests of the run and all its subagents
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_budget_turns: Option<u64>,

    /// Most time of the run and all its subagents, e.g. 90s or 30m
    #[arg(long, value_name = "TIME", value_parser = |text: &str| parse_duration(text).map(format_duration))]
    pub max_budget_time: Option<String>,
}

impl BudgetArguments {
    fn settings(&self) -> Vec<(String, toml::Value)> {
        let number = |number: u64| toml::Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let values = [
            ("budget.usd", self.max_budget_usd.map(|amount| toml::Value::Float(amount.dollars()))),
            ("budget.tokens", self.max_budget_tokens.map(number)),
            ("budget.turns", self.max_budget_turns.map(number)),
            ("budget.time", self.max_budget_time.clone().map(toml::Value::String)),
        ];
        values.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

/// A model for the first turn of this run alone: for example a cheaper one at night. It and its key are written nowhere.
#[derive(Debug, Clone, Default, Args)]
pub struct OnceArguments {
    /// Answer the prompt with this model, PROVIDER/MODEL; its agents run in the foreground only. Every later turn uses the
    /// session's own model
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["record", "max_budget_usd"])]
    pub once_model: Option<String>,

    /// Address of its provider
    #[arg(long, value_name = "URL", requires = "once_model")]
    pub once_base_url: Option<String>,

    /// Variable that holds its key
    #[arg(long, value_name = "NAME", requires = "once_model", conflicts_with = "once_key_file")]
    pub once_key_env: Option<String>,

    /// File that holds its key
    #[arg(long, value_name = "FILE", requires = "once_model")]
    pub once_key_file: Option<PathBuf>,
}

impl OnceArguments {
    fn choice(&self) -> Option<OnceChoice> {
        Some(OnceChoice {
            model: self.once_model.clone()?,
            base_url: self.once_base_url.clone(),
            key_env: self.once_key_env.clone(),
            key_file: self.once_key_file.clone(),
        })
    }
}

/// What may happen without asking. Shared by every command that starts agents.
#[derive(Debug, Clone, Default, Args)]
pub struct RightsArguments {
    /// plan: reading only; default: the rest is asked; acceptEdits: file edits in the working directory are free; dontAsk,
    /// auto: as default, acceptEdits, and what would be asked is denied; yolo: all that no rule denies
    #[arg(long, value_name = "MODE", value_parser = ModeParser)]
    pub permission_mode: Option<Mode>,

    /// Calls to allow, e.g. `Edit` or `Bash(npm test:*)`; may be repeated or comma-separated
    #[arg(long = "allowed-tools", alias = "allowedTools", visible_alias = "allowedTools", value_name = "RULES")]
    pub allowed_tools: Vec<String>,

    /// Tools to take away, or calls to deny, e.g. `Bash` or `Bash(rm:*)`
    #[arg(long = "disallowed-tools", visible_alias = "disallowedTools", value_name = "RULES")]
    pub disallowed_tools: Vec<String>,

    /// workspace: commands and file tools write inside the working directory only, never git's hooks and configuration
    #[arg(long, value_parser = ["off", "workspace"], value_name = "WHAT")]
    pub sandbox: Option<String>,

    /// Whether commands reach the network, this machine's loopback included
    #[arg(long, value_parser = ["on", "off"], value_name = "ON_OR_OFF")]
    pub sandbox_network: Option<String>,

    /// End with exit 2 where this system cannot hold what the sandbox promises
    #[arg(long)]
    pub sandbox_required: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnExit {
    /// Wait for them, at most ten minutes, and let the model read their results
    Wait,
    /// Stop them; their output so far is kept
    Stop,
    /// Let process subagents finish without this run; everything else is stopped
    Detach,
}

/// When a person is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PermissionPrompt {
    /// When there is a terminal to ask on
    #[default]
    Auto,
    /// Never: what would need a person's word is denied at once
    Never,
}

/// What is run, after the arguments are understood. The demo builds one of its own.
pub struct Work {
    pub app: App,
    pub prompt: String,
    pub model: ModelSource,
    pub role: Role,
    pub start: Start,
    pub options: RunOptions,
}

/// How a run behaves, apart from what it works on.
pub struct RunOptions {
    pub output_format: OutputFormat,
    pub detail: Detail,
    pub record: Option<PathBuf>,
    pub max_turns: Option<u32>,
    pub append_system_prompt: Option<String>,
    pub forward_subagent_text: bool,
    /// A model for the first turn alone.
    pub once: Option<OnceChoice>,
    pub on_exit: OnExit,
    pub denied: DeniedCalls,
    pub prompt: PermissionPrompt,
    /// What the answer must hold, or the work has failed; for runs that know what they are for.
    pub success_text: Option<String>,
}

/// What denied calls mean for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeniedCalls {
    /// 3 when the same tool had no later successful call.
    FailUnlessDone,
    AlwaysFail,
    Ignore,
}

impl PermissionPrompt {
    fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Never => "never",
        }
    }
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            output_format: OutputFormat::Text,
            detail: Detail::Normal,
            record: None,
            max_turns: None,
            append_system_prompt: None,
            forward_subagent_text: false,
            once: None,
            on_exit: OnExit::Wait,
            denied: DeniedCalls::FailUnlessDone,
            prompt: PermissionPrompt::Never,
            success_text: None,
        }
    }
}

/// `zapmyco run`.
pub fn run(arguments: RunArguments, environment: Environment) -> Result<Exit, CommandError> {
    let format = arguments.output_format;
    prepare(arguments, environment).and_then(execute).or_else(|error| {
        // Scripts that asked for JSON get the failure in the same form as any other end.
        let closed_pipe = error.message.is_empty();
        if format != OutputFormat::Text && !closed_pipe {
            report::print_out(&format!("{}\n", RunResult::failed_early(&error).to_json()))?;
        }
        Err(error)
    })
}

fn prepare(arguments: RunArguments, environment: Environment) -> Result<Work, CommandError> {
    let handover = Handover::receive(&environment).map_err(|error| CommandError::from_error(Exit::Usage, &error))?;
    guard::refuse_inside_subagent(&environment, handover.is_some(), "zapmyco run")?;
    if arguments.model.record.is_some() && (arguments.continue_last || arguments.resume.is_some()) {
        let message = "a recording begins with its session: what was said before would be missing, and it could not be played";
        return Err(CommandError::usage(message).with_hint("leave out --continue and --resume, or record the first run already"));
    }
    let cwd = app::working_directory(arguments.cwd.as_deref()).map_err(|error| failure::of_app(&error))?;
    let prompt = prompt::of_run(&arguments)?;
    let max_turns = arguments.max_turns.or(handover.as_ref().and_then(|handover| handover.max_turns));
    let mut flags = flags(&arguments.model, &arguments.rights);
    flags.agents.clone_from(&arguments.agents);
    flags.settings.extend(arguments.budget.settings());
    if let Some(prompt) = arguments.permission_prompt {
        flags.settings.push(("permission_prompt".to_owned(), toml::Value::String(prompt.word().to_owned())));
    }
    let role = if arguments.subagent { Role::ProcessChild } else { Role::Main };
    let load = || App::load(environment.clone(), cwd.clone(), flags.clone(), handover.clone()).map_err(|error| failure::of_app(&error));
    let mut app = load()?;
    let asked = app.settings.check_as::<PermissionPrompt>("permission_prompt");
    let asked = asked.and_then(|()| app.settings.section::<PermissionPrompt>("permission_prompt"));
    let asked = asked.map_err(|error| failure::of_app(&error.into()))?.unwrap_or_default();
    // A process subagent has nobody to ask, whatever it inherits (R244).
    let asked = if role == Role::Main { asked } else { PermissionPrompt::Never };
    // Read again after a new decision, so that what is used is what was trusted.
    if asked == PermissionPrompt::Auto && !arguments.quiet && trust::ask_before_run(&app)? {
        app = load()?;
    }
    Ok(Work {
        app,
        prompt,
        model: ModelSource::Configured,
        role,
        start: start(&arguments),
        options: RunOptions {
            output_format: arguments.output_format,
            // A child's stderr is read by its parent: only what must be known stands there.
            detail: if arguments.quiet || arguments.subagent { Detail::Quiet } else { Detail::Normal },
            record: arguments.model.record,
            max_turns,
            append_system_prompt: arguments.append_system_prompt,
            forward_subagent_text: arguments.forward_subagent_text,
            once: arguments.once.choice(),
            on_exit: arguments.on_exit,
            denied: match (arguments.fail_on_denied, arguments.ignore_denied) {
                (true, _) => DeniedCalls::AlwaysFail,
                (false, true) => DeniedCalls::Ignore,
                (false, false) => DeniedCalls::FailUnlessDone,
            },
            prompt: asked,
            success_text: None,
        },
    })
}

/// Flags as settings, which rank above files and environment.
pub fn flags(model: &ModelArguments, rights: &RightsArguments) -> Flags {
    let text = |key: &str, value: &Option<String>| value.clone().map(|value| (key.to_owned(), toml::Value::String(value)));
    let mode = rights.permission_mode.map(|mode| mode.as_str().to_owned());
    let switch = |key: &str, value: Option<bool>| value.map(|value| (key.to_owned(), toml::Value::Boolean(value)));
    let settings = [
        text("model", &model.model),
        text("base_url", &model.base_url),
        text("permission_mode", &mode),
        text("sandbox.mode", &rights.sandbox),
        switch("sandbox.network", rights.sandbox_network.as_deref().map(|word| word == "on")),
        switch("sandbox.required", rights.sandbox_required.then_some(true)),
    ];
    Flags {
        settings: settings.into_iter().flatten().collect(),
        allow: rights.allowed_tools.clone(),
        deny: rights.disallowed_tools.clone(),
        agents: None,
    }
}

fn start(arguments: &RunArguments) -> Start {
    match (&arguments.resume, arguments.continue_last) {
        (Some(id), _) => Start::Resume(id.clone()),
        (None, true) => Start::Continue,
        (None, false) => Start::New,
    }
}

/// Runs the work to its end. Errors are those before the first turn; everything later is in the result and the exit code.
pub fn execute(work: Work) -> Result<Exit, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::new(Exit::Fault, format!("cannot start the runtime: {error}")))?;
    runtime.block_on(work.run())
}

impl Work {
    async fn run(self) -> Result<Exit, CommandError> {
        let since = Instant::now();
        let shutdown = Shutdown::watch().map_err(|error| CommandError::new(Exit::Fault, format!("cannot watch signals: {error}")))?;
        self.say_ignored();
        let mut chosen =
            self.app.choose_model(&self.model, self.options.record.as_deref()).await.map_err(|error| failure::of_model(&error))?;
        let once = match &self.options.once {
            Some(wanted) => Some(self.app.choose_once(wanted, &mut chosen).map_err(|error| failure::of_model(&error))?),
            None => None,
        };
        if self.role == Role::Main {
            chosen.why.iter().for_each(|line| report::print_notice(line));
        }
        let observers = Observers::new(&self, &shutdown);
        let asking = self.asking(&observers);
        let mut open = self.open(&chosen, &observers, &asking).await?;
        let clearing = self.clear_away_old_jobs(&open);
        let prompt = match self.role {
            Role::Main => Input::user(self.prompt.clone()),
            Role::ProcessChild | Role::LocalChild => Input::new(InputSource::Subagent, self.prompt.clone()),
        };
        let conversation =
            headless::converse(&mut open, prompt, once, self.options.on_exit, &self.app.limits, &shutdown, asking.waiting()).await;
        asking.close();
        let mut result = self.result(&open, &conversation, &shutdown, since);
        self.end_session(&mut open, &result, &shutdown).await;
        if let Some(Ok(Err(error))) = join(clearing).await {
            report::print_notice(&format!("old jobs could not be cleared away: {error}"));
        }
        let unsaved = open.store.flush().await.err();
        if let Some(error) = &unsaved {
            self.note_unsaved(error, &mut result);
        }
        observers.progress.clear();
        if let Some(news) = open.store.saving_news() {
            report::print_notice(&news.to_string());
        }
        self.say(&result);
        observers.output.finish(&self.answer(&result, &observers.work), &result)?;
        Ok(result.exit)
    }

    /// What the project's files ask for without effect. What waits for trust is one line: the command that shows it.
    fn say_ignored(&self) {
        self.app.notices.iter().for_each(|notice| report::print_notice(notice));
        let told = self.app.settings.ignored().iter().filter(|diagnostic| diagnostic.reason != Refused::Untrusted);
        told.for_each(|diagnostic| report::print_notice(&diagnostic.to_string()));
        if self.role == Role::Main
            && let Some(line) = trust::untrusted_line(&self.app)
        {
            report::print_notice(&line);
        }
    }

    /// Tells the hooks. After a stop they have as long as any other process to end by itself; a second one skips them.
    async fn end_session(&self, open: &mut OpenSession, result: &RunResult, shutdown: &Shutdown) {
        let reason = match result.exit {
            _ if shutdown.requested.is_cancelled() => "stopped",
            Exit::Done | Exit::Denied | Exit::JobsLeft | Exit::Partial => "finished",
            _ => "failed",
        };
        let cancel = shutdown.hard.child_token();
        let hurry = async {
            shutdown.requested.cancelled().await;
            tokio::time::sleep(self.app.limits.stop_grace).await;
            cancel.cancel();
            std::future::pending().await
        };
        let ended = tokio::select! {
            ended = open.session.end(reason, &cancel) => ended,
            () = hurry => Ok(()),
        };
        if let Err(error) = ended {
            report::print_notice(&format!("the end of the session could not be logged: {error}"));
        }
    }

    fn asking(&self, observers: &Observers) -> Asking {
        let granted = Arc::<Granted>::default();
        let keeping = || Keeping { layout: self.app.layout.clone(), project: self.app.cwd.clone(), granted: Arc::clone(&granted) };
        let terminal = match self.options.prompt {
            PermissionPrompt::Auto => TerminalApprover::open(&self.app.environment, keeping(), Arc::clone(&observers.progress)),
            PermissionPrompt::Never => None,
        };
        Asking { terminal: terminal.map(Arc::new), granted }
    }

    /// The work is done and its answer is there; what is missing is the stored conversation (fault K5). A child's answer
    /// is all that its parent wants of it.
    fn note_unsaved(&self, error: &StoreError, result: &mut RunResult) {
        result.errors.push(format!("the conversation could not be saved to its end, so it cannot be resumed: {error}"));
        match self.role {
            Role::Main if result.exit == Exit::Done => result.exit = Exit::StateLost,
            Role::Main | Role::ProcessChild | Role::LocalChild => {}
        }
    }

    async fn open(&self, chosen: &ChosenModel, observers: &Observers, asking: &Asking) -> Result<OpenSession, CommandError> {
        let request = SessionRequest {
            role: self.role,
            start: &self.start,
            events: observers.sink(),
            approver: asking.approver(),
            granted: Arc::clone(&asking.granted),
            max_turns: self.options.max_turns,
            append_system_prompt: self.options.append_system_prompt.as_deref(),
            forward_subagent_text: self.options.forward_subagent_text,
        };
        self.app.open_session(chosen, request).await.map_err(|error| failure::of_open(&error))
    }

    /// Once a day, beside the work (R333).
    fn clear_away_old_jobs(&self, open: &OpenSession) -> Option<JoinHandle<Result<Vec<JobId>, RetentionError>>> {
        if self.role != Role::Main || !retention::is_due(&self.app.layout) {
            return None;
        }
        let (layout, limits, store) = (self.app.layout.clone(), Arc::clone(&self.app.limits), open.store.clone());
        Some(tokio::spawn(async move { retention::apply(&layout, &limits, Some(&store)).await }))
    }

    fn result(&self, open: &OpenSession, conversation: &Conversation, shutdown: &Shutdown, since: Instant) -> RunResult {
        let end = &conversation.end;
        let mut denials = open.session.denials();
        denials.extend(open.delegation.agent_denials());
        let mut usage_by_model = open.session.usage_by_model().clone();
        let mut usage = open.session.usage();
        for (model, used) in open.delegation.agent_usage() {
            usage += used;
            *usage_by_model.entry(model).or_default() += used;
        }
        let refused = match self.options.denied {
            DeniedCalls::FailUnlessDone => denials.iter().any(|denial| !denial.succeeded_later),
            DeniedCalls::AlwaysFail => !denials.is_empty(),
            DeniedCalls::Ignore => false,
        };
        let exit = match &end.cause {
            _ if shutdown.exit().is_some() => shutdown.exit().unwrap_or(Exit::Failed),
            TurnCause::ModelFailed { kind, .. } => Exit::of_model_error(*kind),
            TurnCause::StoreFailed { .. } => Exit::StateLost,
            TurnCause::MaxTurns | TurnCause::Budget | TurnCause::MaxTokens => Exit::Partial,
            TurnCause::Refused => Exit::ProviderRefused,
            TurnCause::StoppedByHook { .. } => Exit::Denied,
            TurnCause::Cancelled => Exit::Failed,
            TurnCause::Finished if conversation.ceiling_reached => Exit::JobsLeft,
            TurnCause::Finished if refused => Exit::Denied,
            TurnCause::Finished if self.options.success_text.as_ref().is_some_and(|text| !end.text.contains(text)) => Exit::Failed,
            TurnCause::Finished => Exit::Done,
        };
        RunResult {
            session: Some(open.session.id().clone()),
            exit,
            cause: Some(end.cause.clone()),
            text: end.text.clone(),
            errors: failure::of_turn(&end.cause).into_iter().collect(),
            duration: since.elapsed(),
            steps: open.session.steps(),
            usage,
            usage_by_model,
            cost: open.budget.cost(),
            denials,
            jobs_left: conversation.jobs_left.clone(),
            sandbox: Some(open.sandbox.clone()),
        }
    }

    /// What a person must hear beside the answer.
    fn say(&self, result: &RunResult) {
        for error in &result.errors {
            report::print_error(&CommandError::new(result.exit, error.clone()));
        }
        if self.role == Role::ProcessChild {
            return;
        }
        let is_text = self.options.output_format == OutputFormat::Text;
        if is_text && result.is_broken() && !result.text.is_empty() {
            report::print_notice(&format!("what had arrived of the answer:\n{}", result.text));
        }
        let left: Vec<LeftJob> = result.jobs_left.iter().map(JobLeft::line).collect();
        if !left.is_empty() {
            report::print_plain(&subagent_replies::still_in_background(&left));
        }
        if let (true, Some(session), true) = (is_text, &result.session, !matches!(result.exit, Exit::Done | Exit::StateLost)) {
            report::print_notice(&format!("go on with: zapmyco run --resume {session} \"...\""));
        }
    }

    /// What text output prints: the answer. A broken one is none; but a stopped child leaves what it had found, since its
    /// parent has nothing else of it (faults D1, M2, M5).
    fn answer(&self, result: &RunResult, work: &WorkSoFar) -> String {
        match (result.is_broken(), self.role) {
            (false, _) => result.text.clone(),
            (true, Role::Main) => String::new(),
            (true, Role::ProcessChild | Role::LocalChild) => {
                let why = result.errors.first().map_or("it was stopped", String::as_str);
                format!("[incomplete: {why}. What was found so far:]\n{}", work.text_with(&result.text))
            }
        }
    }
}

async fn join<T>(task: Option<JoinHandle<T>>) -> Option<Result<T, JoinError>> {
    match task {
        Some(task) => Some(task.await),
        None => None,
    }
}

/// Who is asked in a run.
struct Asking {
    terminal: Option<Arc<TerminalApprover>>,
    granted: Arc<Granted>,
}

impl Asking {
    fn approver(&self) -> Arc<dyn Approver> {
        match &self.terminal {
            Some(terminal) => Arc::clone(terminal) as Arc<dyn Approver>,
            None => Arc::new(Unattended),
        }
    }

    /// Whether a person is being waited for, as it changes.
    fn waiting(&self) -> watch::Receiver<bool> {
        match &self.terminal {
            Some(terminal) => terminal.waiting(),
            None => watch::Sender::new(false).subscribe(),
        }
    }

    /// From here on nothing is asked.
    fn close(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.close();
        }
    }
}

/// Everything that listens to a run.
struct Observers {
    output: Arc<Output>,
    progress: Arc<Progress>,
    work: Arc<WorkSoFar>,
}

impl Observers {
    fn new(work: &Work, shutdown: &Shutdown) -> Self {
        let backlog = usize::try_from(work.app.limits.event_backlog).unwrap_or(usize::MAX);
        Self {
            output: Arc::new(Output::new(work.options.output_format, backlog, shutdown.reader_gone.clone())),
            progress: Arc::new(Progress::new(work.options.detail, &work.app.environment)),
            work: Arc::new(WorkSoFar::default()),
        }
    }

    fn sink(&self) -> Arc<dyn EventSink> {
        Arc::new(All(vec![
            Arc::clone(&self.progress) as Arc<dyn EventSink>,
            Arc::clone(&self.work) as Arc<dyn EventSink>,
            Arc::clone(&self.output) as Arc<dyn EventSink>,
        ]))
    }
}

/// Hands an event to each of several observers, in order.
struct All(Vec<Arc<dyn EventSink>>);

impl EventSink for All {
    fn send(&self, event: &Event) {
        for observer in &self.0 {
            observer.send(event);
        }
    }
}
