//! `zapmyco config key`: keys of providers in the system's key store. A key is read from stdin or typed without echo, and
//! never printed.

use std::io::{IsTerminal, Read, Write};

use clap::Subcommand;
use nix::sys::termios::{self, LocalFlags, SetArg};
use secrecy::SecretString;

use super::config::load;
use super::report::{CommandError, Exit, print_notice, print_out};
use crate::config::{Environment, Settings};
use crate::models::catalog;
use crate::secrets::key_store::{LASTS, WEB_SEARCH};
use crate::secrets::{KeyStore, KeyStoreError};

/// What to do with stored keys.
#[derive(Subcommand, Clone, Debug)]
pub enum KeyCommand {
    /// Store the key of a provider; it is read from stdin, or typed without being shown
    #[command(
        after_help = "Example: zapmyco config key set openai < key.txt\n\nThe kernel keeps the key until the machine restarts, or some days \
                            without use. A key in the environment, a key file and the settings come before a stored one."
    )]
    Set {
        /// Name of the provider, or `web-search`
        provider: String,
    },
    /// Forget the key of a provider
    Unset {
        /// Name of the provider, or `web-search`
        provider: String,
    },
    /// Which providers have a stored key; the keys are not shown
    List,
}

/// A key is far shorter.
const KEY_MAX: u64 = 16 * 1024;

pub fn run(command: &KeyCommand) -> Result<Exit, CommandError> {
    let environment = Environment::read();
    let settings = load(&environment)?;
    let root = environment.storage_root().map_err(|error| CommandError::from_error(Exit::Usage, &error))?;
    let store = KeyStore::of(&root);
    match command {
        KeyCommand::Set { provider } => {
            known(&settings, provider)?;
            let key = read_key(provider)?;
            store.set(provider, &key).map_err(|error| store_error(&error))?;
            print_notice(&format!("the key of {provider} is stored, {LASTS}"));
        }
        KeyCommand::Unset { provider } => store.unset(provider).map_err(|error| store_error(&error))?,
        KeyCommand::List => {
            let stored: Vec<String> = names(&settings)?.into_iter().filter(|name| store.get(name).is_some()).collect();
            print_out(&stored.iter().map(|name| format!("{name}\n")).collect::<String>())?;
            if stored.is_empty() {
                print_notice("no key is stored");
            }
        }
    }
    Ok(Exit::Done)
}

fn names(settings: &Settings) -> Result<Vec<String>, CommandError> {
    let providers = settings.section("providers").map_err(|error| super::config::settings_error(&error))?.unwrap_or_default();
    Ok(catalog::names(&providers).into_iter().chain([WEB_SEARCH.to_owned()]).collect())
}

fn known(settings: &Settings, provider: &str) -> Result<(), CommandError> {
    let names = names(settings)?;
    if names.iter().any(|name| name == provider) {
        return Ok(());
    }
    Err(CommandError::usage(format!("no provider is called `{provider}`; known are {}", names.join(", "))))
}

fn store_error(error: &KeyStoreError) -> CommandError {
    CommandError::new(Exit::Failed, error.to_string())
}

fn read_key(provider: &str) -> Result<SecretString, CommandError> {
    let unreadable = |error: std::io::Error| CommandError::usage(format!("cannot read the key from stdin: {error}"));
    let stdin = std::io::stdin();
    let text = if stdin.is_terminal() {
        eprint_prompt(&format!("Key of {provider} (not shown): "));
        let typed = Silent::begin().map_err(unreadable)?.line();
        eprint_prompt("\n");
        typed.map_err(unreadable)?
    } else {
        let mut text = String::new();
        stdin.lock().take(KEY_MAX).read_to_string(&mut text).map_err(unreadable)?;
        text
    };
    let text = text.trim();
    if text.is_empty() || text.chars().any(|c| c.is_control()) || text.len() as u64 >= KEY_MAX {
        return Err(CommandError::usage("that is no key: it is empty, too long, or has line breaks or control characters"));
    }
    Ok(SecretString::from(text))
}

fn eprint_prompt(text: &str) {
    // A prompt that cannot be shown stops nobody from typing.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct Silent {
    before: termios::Termios,
}

impl Silent {
    fn begin() -> std::io::Result<Self> {
        let before = termios::tcgetattr(std::io::stdin())?;
        let mut silent = before.clone();
        // Ctrl-C comes as a character, so that the terminal is put right again before this ends.
        silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ISIG | LocalFlags::ICANON);
        termios::tcsetattr(std::io::stdin(), SetArg::TCSAFLUSH, &silent)?;
        Ok(Self { before })
    }

    fn line(&self) -> std::io::Result<String> {
        const END_OF_TEXT: u8 = 3;
        const END_OF_TRANSMISSION: u8 = 4;
        const BACKSPACE: [u8; 2] = [8, 127];
        let mut line = Vec::new();
        for byte in std::io::stdin().lock().bytes() {
            match byte? {
                b'\n' | b'\r' | END_OF_TRANSMISSION => break,
                END_OF_TEXT => return Err(std::io::ErrorKind::Interrupted.into()),
                byte if BACKSPACE.contains(&byte) => drop(line.pop()),
                byte => line.push(byte),
            }
        }
        String::from_utf8(line).map_err(|_| std::io::ErrorKind::InvalidData.into())
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSAFLUSH, &self.before);
    }
}
