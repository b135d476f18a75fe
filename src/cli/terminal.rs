//! The terminal of a run, for questions: what is written there never mixes with stdout, and what is read does not come
//! from stdin. Line by line, as the terminal itself edits them; Ctrl-C stays the signal it always is.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::termios::{QueueSelector, tcflush, tcgetpgrp, tcgetwinsize};

use crate::config::Environment;

pub(super) struct Terminal {
    file: File,
    colours: bool,
    /// Read already, without the end of its line.
    pending: Vec<u8>,
}

/// What came instead of an answer, or the answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Typed(String),
    /// Ctrl-D, or the terminal is gone.
    End,
    /// Whoever waits for the line was woken.
    Woken,
}

/// Columns when the terminal does not tell.
const WIDTH: usize = 80;
/// A typed line is at most as long as the terminal keeps; a pasted one may come in several reads.
const LINE_MAX: usize = 64 * 1024;
/// How often a run in the background looks whether it has come to the foreground.
const FOREGROUND_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

impl Terminal {
    /// `None` when stdin or stderr is no terminal, or it cannot be opened: then there is nobody to ask.
    pub fn open(environment: &Environment) -> Option<Self> {
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return None;
        }
        // By its own name where it has one: not every system can wait for input on `/dev/tty`.
        let own = rustix::termios::ttyname(std::io::stdin(), Vec::new()).ok();
        let own = own.and_then(|name| name.into_string().ok()).map(PathBuf::from);
        let flags = (OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
        let open = |path: PathBuf| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).ok();
        let file = own.and_then(open).or_else(|| open("/dev/tty".into()))?;
        let colours = !environment.is_set("NO_COLOR") && environment.get("TERM").is_some_and(|term| term != "dumb");
        Some(Self { file, colours, pending: Vec::new() })
    }

    pub fn colours(&self) -> bool {
        self.colours
    }

    pub fn width(&self) -> usize {
        tcgetwinsize(&self.file).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(WIDTH)
    }

    /// A terminal that is gone is noticed when it is read.
    pub fn say(&mut self, text: &str) {
        let _ = self.file.write_all(text.as_bytes());
    }

    /// What was typed before a question stood there is no answer to it.
    pub fn forget_typed(&mut self) {
        self.pending.clear();
        let _ = tcflush(&self.file, QueueSelector::IFlush);
    }

    /// Waits for a line, or until a byte comes through `waker`.
    pub fn line(&mut self, waker: &PipeReader) -> Line {
        let mut told = false;
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Line::Typed(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned());
            }
            // Reading in the background would stop the whole run.
            let in_front = self.is_in_front();
            if !in_front && !told {
                self.say("\n(this run is in the background; bring it to the foreground to answer)\n");
                told = true;
            }
            let mut watched = vec![PollFd::new(waker, PollFlags::IN)];
            if in_front {
                watched.push(PollFd::new(&self.file, PollFlags::IN));
            }
            let timeout = if in_front { None } else { Some(&FOREGROUND_LOOK) };
            match poll(&mut watched, timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Line::End,
            }
            let (woken, typed) = (!watched[0].revents().is_empty(), watched.get(1).is_some_and(|file| !file.revents().is_empty()));
            if woken {
                return Line::Woken;
            }
            if !typed || !self.is_in_front() {
                continue;
            }
            let mut bytes = [0; 4096];
            match self.file.read(&mut bytes) {
                // Ctrl-D behind text gives that text.
                Ok(0) if !self.pending.is_empty() => self.pending.push(b'\n'),
                Ok(0) => return Line::End,
                Ok(count) => self.pending.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Line::End,
            }
            if self.pending.len() > LINE_MAX {
                self.pending.push(b'\n');
            }
        }
    }

    /// Whether what is typed goes to this program. A terminal that does not tell is taken for ours.
    fn is_in_front(&self) -> bool {
        tcgetpgrp(&self.file).map_or(true, |group| group == rustix::process::getpgrp())
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
