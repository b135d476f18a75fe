//! What went wrong before, in or after a run, as a message with remedies and an exit code.

use crate::agent::event::TurnCause;
use crate::agent::session::SessionError;
use crate::app::AppError;
use crate::app::model::ModelChoiceFailure;
use crate::app::session::OpenError;
use crate::cli::config::settings_error;
use crate::cli::report::{CommandError, Exit};
use crate::ids::JobKind;
use crate::store::StoreError;

pub fn of_app(error: &AppError) -> CommandError {
    match error {
        AppError::Settings(error) => settings_error(error),
        AppError::Store(error) => of_store(error),
        AppError::Storage(error) => {
            CommandError::from_error(Exit::StateLost, error).with_hint("set ZAPMYCO_HOME to a folder that can be written")
        }
        AppError::Rule { .. } | AppError::UnknownTool { .. } => {
            CommandError::from_error(Exit::Usage, error).with_hint("for example: Edit, Bash(npm test:*), Read(src/**)")
        }
        AppError::Sandbox(error) => CommandError::from_error(Exit::Usage, error).with_hint(error.remedy()),
        AppError::Root(_) | AppError::WorkingDirectory { .. } | AppError::EmptyRules { .. } => CommandError::from_error(Exit::Usage, error),
    }
}

pub fn of_store(error: &StoreError) -> CommandError {
    let report = CommandError::from_error(Exit::StateLost, error);
    match error.remedy() {
        Some(remedy) => report.with_hint(remedy),
        None => report,
    }
}

pub fn of_model(error: &ModelChoiceFailure) -> CommandError {
    match error {
        ModelChoiceFailure::NothingSet => CommandError::usage(error.to_string())
            .with_hint("a key:           export ANTHROPIC_API_KEY=...   (or OPENAI_API_KEY)")
            .with_hint("a local server:  start Ollama, LM Studio, llama.cpp or vLLM on this machine, or give --base-url URL")
            .with_hint("no model at all: zapmyco demo   (a scripted model; everything else is real)"),
        ModelChoiceFailure::Settings(error) => settings_error(error),
        ModelChoiceFailure::Choice(_)
        | ModelChoiceFailure::Script(_)
        | ModelChoiceFailure::Recording(_)
        | ModelChoiceFailure::OnceNotRemote
        | ModelChoiceFailure::Handover { .. } => CommandError::from_error(Exit::Usage, error),
    }
}

pub fn of_open(error: &OpenError) -> CommandError {
    match error {
        OpenError::Agents(error) => CommandError::from_error(Exit::Usage, error),
        OpenError::Profiles(_) => CommandError::from_error(Exit::Usage, error)
            .with_hint("--agents takes JSON such as {\"reviewer\": {\"description\": \"...\", \"prompt\": \"...\"}}"),
        OpenError::App(error) => of_app(error),
        OpenError::NothingToContinue { .. } => {
            CommandError::from_error(Exit::Usage, error).with_hint("start one: zapmyco run \"what to do\"")
        }
        OpenError::ChildSession { session, parent } => {
            let report = CommandError::from_error(Exit::Usage, error);
            let Some(parent) = parent else { return report.with_hint("`zapmyco sessions list` shows the main sessions") };
            match session.child_job().filter(|job| job.kind() == JobKind::LocalAgent) {
                Some(agent) => report.with_hint(format!(
                    "its parent reaches it with SendMessage: zapmyco run --resume {parent} \"send {agent} the message: ...\""
                )),
                None => report.with_hint(format!("go on in its parent's session: zapmyco run --resume {parent} \"...\"")),
            }
        }
        OpenError::Held { .. } => CommandError::from_error(Exit::Usage, error)
            .with_hint("wait until it has ended, or start a session of your own without --resume"),
        OpenError::NoPrice { model } => CommandError::from_error(Exit::Usage, error)
            .with_hint(format!("set [prices.\"{model}\"] with input and output (dollars per million tokens) in your settings"))
            .with_hint("or bound tokens instead: --max-budget-tokens N"),
        OpenError::Session(SessionError::Store(error)) => of_store(error),
        OpenError::Session(SessionError::History { .. }) | OpenError::Jobs(_) => CommandError::from_error(Exit::StateLost, error),
        OpenError::Session(SessionError::Unknown { .. }) | OpenError::Id(_) => {
            CommandError::from_error(Exit::Usage, error).with_hint("`zapmyco sessions list` shows all there are")
        }
        OpenError::Session(SessionError::NoTurns) | OpenError::Handover(_) => CommandError::from_error(Exit::Usage, error),
    }
}

/// Why a turn gave no whole answer, as one sentence; `None` when it did.
pub fn of_turn(cause: &TurnCause) -> Option<String> {
    match cause {
        TurnCause::Finished => None,
        TurnCause::MaxTurns => Some("the turn limit was reached; the answer is a closing report".to_owned()),
        TurnCause::Budget => Some("the budget was used up; the answer is what there was until then".to_owned()),
        TurnCause::MaxTokens => Some("the answer was cut by the model's limit for one answer".to_owned()),
        TurnCause::Refused => Some("the provider's safety system ended the answer".to_owned()),
        TurnCause::ModelFailed { message, .. } => Some(message.clone()),
        TurnCause::StoreFailed { message } => Some(format!("the session could not be saved: {message}")),
        TurnCause::StoppedByHook { reason } => Some(format!("a hook ended the turn: {reason}")),
        TurnCause::Cancelled => Some("stopped before the answer was there".to_owned()),
    }
}
