//! A person at a real pseudo-terminal in front of the built program: sees what is shown there, and types.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::pty::{Winsize, openpty};

use super::wait;

/// The program has the terminal as stdin, stderr and controlling terminal; stdout is read apart.
pub struct AtTerminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    /// Bytes of the screen that were seen already.
    seen: usize,
}

pub struct Left {
    pub code: i32,
    pub stdout: String,
    /// Everything that stood on the terminal, escape sequences included.
    pub screen: String,
}

impl AtTerminal {
    /// `command` as `Home::command` makes it, with its arguments.
    pub fn start(command: &Command) -> Self {
        let size = Winsize { ws_row: 50, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        // A program that held its own terminal open would outlive a failed test.
        for side in [&pty.master, &pty.slave] {
            rustix::io::fcntl_setfd(side, rustix::io::FdFlags::CLOEXEC).unwrap();
        }
        let side = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        // `setsid --ctty` makes the terminal the controlling one, which a plain spawn cannot.
        let mut started = Command::new("setsid");
        started.args(["--ctty", "--"]).arg(command.get_program()).args(command.get_args()).env_clear();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                started.env(name, value);
            }
        }
        started.env("TERM", "xterm-256color").current_dir(command.get_current_dir().unwrap());
        let child = started.stdin(side(&pty.slave)).stderr(side(&pty.slave)).stdout(Stdio::piped()).spawn().unwrap();
        drop(started);
        drop(pty.slave);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let keyboard = File::from(pty.master);
        let (mut master, shown) = (keyboard.try_clone().unwrap(), screen.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal is over when its last user has gone: an error on Linux.
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                shown.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { child, keyboard, screen, reader, seen: 0 }
    }

    /// Waits until `text` stands behind what was seen before, and takes everything up to it as seen. Gives what was new.
    pub fn sees(&mut self, text: &str) -> String {
        let (shown, end) = wait::until(&format!("`{text}` on the terminal"), || {
            let screen = self.screen.lock().unwrap();
            let new = &screen[self.seen..];
            let at = new.windows(text.len()).position(|window| window == text.as_bytes());
            if at.is_none() && self.reader.is_finished() {
                panic!("the program has ended without `{text}`: {}", String::from_utf8_lossy(&screen));
            }
            at.map(|at| (String::from_utf8_lossy(&new[..at + text.len()]).into_owned(), self.seen + at + text.len()))
        });
        self.seen = end;
        shown
    }

    /// A question stands there and the cursor is behind its choices.
    pub fn is_asked(&mut self) -> String {
        let question = self.sees("asks");
        question + &self.sees(" > ")
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits for the end of the program.
    pub fn ends(mut self) -> Left {
        use std::os::unix::process::ExitStatusExt;
        let mut stdout = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        self.reader.join().unwrap();
        let screen = String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned();
        Left { code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)), stdout, screen }
    }
}
