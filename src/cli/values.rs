//! Values of flags that are words of a closed set which another folder owns: what completions and help list, and what is
//! accepted beyond that.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use crate::permissions::Mode;

/// Lists the modes and takes their foreign names too.
#[derive(Clone, Debug)]
pub(super) struct ModeParser;

fn meaning(mode: Mode) -> &'static str {
    match mode {
        Mode::Plan => "reading only",
        Mode::DontAsk => "as default, and what would be asked is denied",
        Mode::Default => "reading is free, the rest is asked",
        Mode::Auto => "as acceptEdits, and what would be asked is denied",
        Mode::AcceptEdits => "file edits in the working directory are free too",
        Mode::Yolo => "all that no rule denies",
    }
}

impl TypedValueParser for ModeParser {
    type Value = Mode;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<Mode, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, argument, value)?;
        text.parse().map_err(|_| {
            let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(command);
            if let Some(argument) = argument {
                error.insert(ContextKind::InvalidArg, ContextValue::String(argument.to_string()));
            }
            error.insert(ContextKind::InvalidValue, ContextValue::String(text));
            let known = Mode::ALL.iter().map(|mode| mode.as_str().to_owned()).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(known));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Mode::ALL.into_iter().map(|mode| PossibleValue::new(mode.as_str()).help(meaning(mode)))))
    }
}
