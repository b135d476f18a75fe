//! Where the text of a task comes from: an argument, a file, stdin, or argument and stdin. Never more than fits.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use super::report::CommandError;
use super::run::RunArguments;
use crate::config::limits::MIB;

/// Largest text taken from stdin or a file, in bytes.
const TEXT_MAX: u64 = 64 * MIB;

/// The whole prompt of `zapmyco run`.
///
/// With a prompt given, stdin is never waited for, unless `--stdin` asks for it (fault J1).
pub(super) fn of_run(arguments: &RunArguments) -> Result<String, CommandError> {
    let typed = arguments.prompt.as_deref().filter(|prompt| *prompt != "-");
    let wants_stdin = arguments.stdin || arguments.prompt.as_deref() == Some("-");
    let text = match (&arguments.task_file, typed) {
        (Some(path), _) => of_file(path)?,
        (None, Some(prompt)) if wants_stdin => format!("{prompt}\n\n{}", of_stdin()?),
        (None, Some(prompt)) => prompt.to_owned(),
        (None, None) if wants_stdin || !io::stdin().is_terminal() => of_stdin()?,
        (None, None) => {
            return Err(CommandError::usage("no prompt was given").with_hint("zapmyco run \"what to do\", or pipe a text into it"));
        }
    };
    if text.trim().is_empty() {
        return Err(CommandError::usage("the prompt is empty").with_hint("zapmyco run \"what to do\""));
    }
    Ok(text)
}

pub(super) fn of_file(path: &Path) -> Result<String, CommandError> {
    let unreadable = |error: io::Error| CommandError::usage(format!("cannot read the task from {}: {error}", path.display()));
    let bytes = bounded(File::open(path).map_err(unreadable)?).map_err(unreadable)?;
    let bytes = bytes.ok_or_else(|| too_large(&path.display().to_string()))?;
    String::from_utf8(bytes).map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error)))
}

pub(super) fn of_stdin() -> Result<String, CommandError> {
    let bytes = bounded(io::stdin().lock()).map_err(|error| CommandError::usage(format!("cannot read stdin: {error}")))?;
    let bytes = bytes.ok_or_else(|| too_large("stdin"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `None` when there is more. Pipes and devices have no length that could be asked before.
fn bounded(source: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    source.take(TEXT_MAX + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= TEXT_MAX).then_some(bytes))
}

fn too_large(place: &str) -> CommandError {
    let message = format!("{place} has more than {} MB", TEXT_MAX / MIB);
    CommandError::usage(message).with_hint("name a file in the prompt instead; the agent can read it")
}
