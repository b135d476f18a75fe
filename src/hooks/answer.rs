//! What one hook has answered: its exit code, and the JSON object on its stdout (R157, R158).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::run::{Ended, OUTPUT_MAX};

/// What a hook wants. Ordered: of several answers the strongest holds (R159).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    Allow,
    Ask,
    /// Also: block, where there is no call to deny.
    Deny,
}

/// What one hook has said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub decision: Option<Decision>,
    /// Why it decided so.
    pub reason: Option<String>,
    pub updated_input: Option<Map<String, Value>>,
    /// For the model.
    pub context: Option<String>,
    /// For the person.
    pub message: Option<String>,
    /// `continue: false`: the turn ends here, with `stopReason`.
    pub stop: Option<String>,
    /// With a denied permission request: the turn ends here.
    pub interrupt: bool,
}

/// What went wrong with a hook. Always told; the session goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    TimedOut {
        after: Duration,
    },
    NotStarted {
        reason: String,
    },
    Exit {
        code: i32,
        stderr: String,
    },
    Signal {
        signal: i32,
    },
    /// The end could not be learned of.
    Lost {
        reason: String,
    },
    /// The object on stdout is not what was asked for.
    Malformed {
        reason: String,
    },
    Cut,
    /// A file that it runs is not the one that was trusted.
    Changed {
        path: PathBuf,
    },
    /// An answer that means nothing for this event.
    Ignored {
        what: &'static str,
    },
    /// Exit code 2 or a block where nothing can be blocked.
    CannotBlock {
        reason: String,
    },
}

/// Bytes of a hook's stderr that a message shows.
const SHOWN_MAX: usize = 2000;

impl Answer {
    /// `Cancelled` says nothing.
    pub(crate) fn of(event: HookEvent, ended: Ended) -> (Self, Option<Trouble>) {
        let none = |trouble| (Self::default(), Some(trouble));
        match ended {
            Ended::Exited { code: 0, stdout, cut, .. } => Self::of_stdout(event, &stdout, cut),
            Ended::Exited { code: 2, stderr, .. } => {
                let reason = text_of(&stderr);
                if !event.can_block() {
                    return none(Trouble::CannotBlock { reason: shown(&reason) });
                }
                (Self { decision: Some(Decision::Deny), reason: Some(reason).filter(|text| !text.is_empty()), ..Self::default() }, None)
            }
            Ended::Exited { code, stderr, .. } => none(Trouble::Exit { code, stderr: shown(&text_of(&stderr)) }),
            Ended::Signalled { signal } => none(Trouble::Signal { signal }),
            Ended::TimedOut { after } => none(Trouble::TimedOut { after }),
            Ended::NotStarted { reason } => none(Trouble::NotStarted { reason }),
            Ended::Lost { reason } => none(Trouble::Lost { reason }),
            Ended::Changed { path } => none(Trouble::Changed { path }),
            Ended::Cancelled => (Self::default(), None),
        }
    }

    fn of_stdout(event: HookEvent, stdout: &[u8], cut: bool) -> (Self, Option<Trouble>) {
        let text = text_of(stdout);
        if !text.starts_with('{') {
            let context = Some(text).filter(|text| event.takes_plain_context() && !text.is_empty());
            let trouble = (cut && context.is_some()).then_some(Trouble::Cut);
            return (Self { context, ..Self::default() }, trouble);
        }
        if cut {
            return (Self::default(), Some(Trouble::Cut));
        }
        match serde_json::from_str::<Map<String, Value>>(&text) {
            Ok(object) => Self::of_object(event, &object),
            Err(error) => (Self::default(), Some(Trouble::Malformed { reason: error.to_string() })),
        }
    }

    fn of_object(event: HookEvent, object: &Map<String, Value>) -> (Self, Option<Trouble>) {
        match read(event, object) {
            Ok(answer) if answer.decision == Some(Decision::Deny) && !event.can_block() => {
                let reason = shown(answer.reason.as_deref().unwrap_or_default());
                (Self { decision: None, reason: None, ..answer }, Some(Trouble::CannotBlock { reason }))
            }
            Ok(answer) if answer.updated_input.is_some() && !takes_input(event) => {
                (Self { updated_input: None, ..answer }, Some(Trouble::Ignored { what: "updatedInput" }))
            }
            Ok(answer) => (answer, None),
            Err(reason) => (Self::default(), Some(Trouble::Malformed { reason })),
        }
    }
}

fn takes_input(event: HookEvent) -> bool {
    matches!(event, HookEvent::PreToolUse | HookEvent::PermissionRequest)
}

fn read(event: HookEvent, object: &Map<String, Value>) -> Result<Answer, String> {
    let mut answer = Answer { message: text(object, "systemMessage")?, reason: text(object, "reason")?, ..Answer::default() };
    if truth(object, "continue")? == Some(false) {
        answer.stop = Some(text(object, "stopReason")?.unwrap_or_default());
    }
    answer.decision = match text(object, "decision")?.as_deref() {
        None => None,
        Some("approve" | "allow") => Some(Decision::Allow),
        Some("ask") => Some(Decision::Ask),
        Some("block" | "deny") => Some(Decision::Deny),
        Some(other) => return Err(format!("`decision` is `{other}`, expected approve or block")),
    };
    let Some(specific) = table(object, "hookSpecificOutput")? else { return Ok(answer) };
    if let Some(named) = text(specific, "hookEventName")?
        && named != event.name()
    {
        return Err(format!("`hookSpecificOutput` is for {named}"));
    }
    answer.context = text(specific, "additionalContext")?.filter(|text| !text.trim().is_empty());
    answer.updated_input = table(specific, "updatedInput")?.cloned();
    match text(specific, "permissionDecision")?.as_deref() {
        None => {}
        Some("allow") => answer.decision = Some(Decision::Allow),
        Some("ask") => answer.decision = Some(Decision::Ask),
        Some("deny") => answer.decision = Some(Decision::Deny),
        Some(other) => return Err(format!("`permissionDecision` is `{other}`, expected allow, ask or deny")),
    }
    if let Some(reason) = text(specific, "permissionDecisionReason")? {
        answer.reason = Some(reason);
    }
    if let Some(decision) = table(specific, "decision")? {
        read_permission(decision, &mut answer)?;
    }
    Ok(answer)
}

/// `hookSpecificOutput.decision` of a permission request.
fn read_permission(decision: &Map<String, Value>, answer: &mut Answer) -> Result<(), String> {
    answer.decision = match text(decision, "behavior")?.as_deref() {
        Some("allow") => Some(Decision::Allow),
        Some("deny") => Some(Decision::Deny),
        Some(other) => return Err(format!("`decision.behavior` is `{other}`, expected allow or deny")),
        None => return Err("`decision` has no `behavior`".to_owned()),
    };
    if let Some(input) = table(decision, "updatedInput")? {
        answer.updated_input = Some(input.clone());
    }
    if let Some(message) = text(decision, "message")? {
        answer.reason = Some(message);
    }
    answer.interrupt = truth(decision, "interrupt")?.unwrap_or(false);
    Ok(())
}

fn text(object: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{key}` is not a text")),
    }
}

fn truth(object: &Map<String, Value>, key: &str) -> Result<Option<bool>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(format!("`{key}` is not true or false")),
    }
}

fn table<'o>(object: &'o Map<String, Value>, key: &str) -> Result<Option<&'o Map<String, Value>>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(_) => Err(format!("`{key}` is not an object")),
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

impl Trouble {
    /// A guard that could not do its work; what it would have said is not known.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::TimedOut { .. }
            | Self::NotStarted { .. }
            | Self::Exit { .. }
            | Self::Signal { .. }
            | Self::Lost { .. }
            | Self::Malformed { .. }
            | Self::Cut
            | Self::Changed { .. } => true,
            Self::Ignored { .. } | Self::CannotBlock { .. } => false,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = |reason: &str| if reason.is_empty() { String::new() } else { format!(": {reason}") };
        match self {
            Self::TimedOut { after } => write!(f, "gave no answer within {} ms and was ended", after.as_millis()),
            Self::NotStarted { reason } => write!(f, "could not be started: {reason}"),
            Self::Exit { code, stderr } => write!(f, "exited with {code}{}", after(stderr)),
            Self::Signal { signal } => write!(f, "was ended by signal {signal}"),
            Self::Lost { reason } => write!(f, "ended in an unknown way: {reason}"),
            Self::Malformed { reason } => write!(f, "gave an answer that cannot be used: {reason}"),
            Self::Cut => write!(f, "wrote more than {OUTPUT_MAX} bytes, the rest was not read"),
            Self::Changed { path } => {
                write!(f, "was not run: {} has changed since it was trusted; `zapmyco trust` shows it and asks", path.display())
            }
            Self::Ignored { what } => write!(f, "gave `{what}`, which means nothing here"),
            Self::CannotBlock { reason } => write!(f, "wanted to block, which this event cannot{}", after(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn exited(code: i32, stdout: &str, stderr: &str) -> Ended {
        Ended::Exited { code, stdout: stdout.into(), stderr: stderr.into(), cut: false }
    }

    fn answer(event: HookEvent, stdout: impl ToString) -> Answer {
        let (answer, trouble) = Answer::of(event, exited(0, &stdout.to_string(), ""));
        assert_eq!(trouble, None);
        answer
    }

    /// R157
    #[test]
    fn the_exit_code_decides_how_the_output_is_read() {
        let pre = HookEvent::PreToolUse;
        let (denied, trouble) = Answer::of(pre, exited(2, r#"{"continue": false}"#, " no rm here\n"));
        assert_eq!((denied.decision, denied.reason.as_deref()), (Some(Decision::Deny), Some("no rm here")));
        assert_eq!((denied.stop, trouble), (None, None), "stdout is not read");
        let (nothing, trouble) = Answer::of(pre, exited(1, r#"{"decision": "block"}"#, "broken"));
        assert_eq!((nothing, trouble), (Answer::default(), Some(Trouble::Exit { code: 1, stderr: "broken".into() })));
        assert_eq!(answer(pre, "all is well {}"), Answer::default());
        assert_eq!(answer(pre, " \n {\"decision\": \"block\"}").decision, Some(Decision::Deny));
        let (_, trouble) = Answer::of(pre, exited(0, "{\"decision\": ", ""));
        assert!(matches!(trouble, Some(Trouble::Malformed { .. })));
        let (answer, trouble) = Answer::of(HookEvent::SessionEnd, exited(2, "", "stay"));
        assert_eq!((answer, trouble), (Answer::default(), Some(Trouble::CannotBlock { reason: "stay".into() })));
    }

    /// R158
    #[test]
    fn every_field_is_read() {
        let full = json!({
            "continue": false, "stopReason": "enough", "systemMessage": "look", "decision": "block", "reason": "old",
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse", "permissionDecision": "ask", "permissionDecisionReason": "new",
                "updatedInput": {"command": "ls"}, "additionalContext": "be careful",
            },
        });
        let read = answer(HookEvent::PreToolUse, full);
        assert_eq!((read.stop.as_deref(), read.message.as_deref()), (Some("enough"), Some("look")));
        assert_eq!((read.decision, read.reason.as_deref()), (Some(Decision::Ask), Some("new")));
        assert_eq!(Value::Object(read.updated_input.unwrap()), json!({"command": "ls"}));
        assert_eq!(read.context.as_deref(), Some("be careful"));
        let request = json!({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {
            "behavior": "deny", "message": "not today", "interrupt": true}}});
        let read = answer(HookEvent::PermissionRequest, request);
        assert_eq!((read.decision, read.reason.as_deref(), read.interrupt), (Some(Decision::Deny), Some("not today"), true));
        let request = json!({"hookSpecificOutput": {"decision": {"behavior": "allow", "updatedInput": {"a": 1}}}});
        let read = answer(HookEvent::PermissionRequest, request);
        assert_eq!((read.decision, read.updated_input.is_some()), (Some(Decision::Allow), true));
    }

    #[test]
    fn an_answer_of_wrong_shape_is_told_and_decides_nothing() {
        for (event, output) in [
            (HookEvent::PreToolUse, json!({"decision": "maybe"})),
            (HookEvent::PreToolUse, json!({"continue": "no"})),
            (HookEvent::PreToolUse, json!({"hookSpecificOutput": {"permissionDecision": "yes"}})),
            (HookEvent::PreToolUse, json!({"hookSpecificOutput": {"updatedInput": "ls"}})),
            (HookEvent::PreToolUse, json!({"hookSpecificOutput": {"hookEventName": "Stop", "permissionDecision": "allow"}})),
            (HookEvent::PermissionRequest, json!({"hookSpecificOutput": {"decision": {"message": "x"}}})),
        ] {
            let (answer, trouble) = Answer::of(event, exited(0, &output.to_string(), ""));
            assert_eq!(answer, Answer::default(), "{output}");
            assert!(matches!(trouble, Some(Trouble::Malformed { .. })), "{output}");
        }
    }

    #[test]
    fn plain_text_is_context_only_where_a_prompt_begins() {
        assert_eq!(answer(HookEvent::SessionStart, "branch is red\n").context.as_deref(), Some("branch is red"));
        assert_eq!(answer(HookEvent::UserPromptSubmit, "note").context.as_deref(), Some("note"));
        assert_eq!(answer(HookEvent::PostToolUse, "note").context, None);
    }
}
