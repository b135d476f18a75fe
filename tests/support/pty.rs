//! A pseudo-terminal with a program in it, and what a person would see on its screen.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::pty::{Winsize, openpty};

use super::wait;

pub struct Terminal {
    keys: File,
    child: Child,
    seen: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    columns: usize,
}

impl Terminal {
    /// Runs the program as the leader of a session of its own whose terminal this is.
    pub fn run(command: &Command, columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).unwrap();
        let stream = || Stdio::from(pair.slave.try_clone().unwrap());
        let mut inside = Command::new("setsid");
        inside.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args()).env_clear();
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        let child = inside.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        drop(inside);
        drop(pair.slave);
        let keys = File::from(pair.master);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut output, all) = (keys.try_clone().unwrap(), Arc::clone(&seen));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last one to close the other side shows as an error.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                all.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        Self { keys, child, seen, reader, columns: usize::from(columns) }
    }

    /// Everything that was written so far, escape sequences included.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    pub fn press(&self, keys: &str) {
        (&self.keys).write_all(keys.as_bytes()).unwrap();
    }

    pub fn wait_for(&self, text: &str) {
        let deadline = std::time::Instant::now() + wait::PATIENCE;
        while !self.text().contains(text) {
            assert!(std::time::Instant::now() < deadline, "waited in vain for {text:?} in:\n{}", self.text());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// How often a text was written.
    pub fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    /// Waits for the program's end; its exit code and the lines that stand on the screen.
    pub fn end(mut self) -> (i32, Vec<String>) {
        let status = self.child.wait().unwrap();
        self.reader.join().unwrap();
        let text = String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned();
        (status.code().unwrap_or(-1), screen(&text, self.columns))
    }
}

/// A terminal that never scrolls: what stands on it after the text was written.
pub fn screen(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{8}' => column = column.saturating_sub(1),
            '\u{1b}' if characters.peek() == Some(&'[') => {
                characters.next();
                let mut number = String::new();
                let kind = loop {
                    match characters.next() {
                        Some(digit) if digit.is_ascii_digit() || matches!(digit, ';' | '?') => number.push(digit),
                        Some(kind) => break kind,
                        None => return shown(lines),
                    }
                };
                let n = number.parse().unwrap_or(1);
                match kind {
                    'A' => row = row.saturating_sub(n),
                    'B' => row += n,
                    'C' => column += n,
                    'D' => column = column.saturating_sub(n),
                    'K' if number == "2" => lines[row].clear(),
                    'K' => lines[row].truncate(column),
                    _ => {}
                }
            }
            '\u{1b}' => {}
            character if character.is_control() => {}
            character => {
                // The cursor waits behind the last column until something is written.
                if column >= columns {
                    row += 1;
                    column = 0;
                }
                while lines.len() <= row {
                    lines.push(Vec::new());
                }
                let line = &mut lines[row];
                while line.len() <= column {
                    line.push(' ');
                }
                line[column] = character;
                column += 1;
            }
        }
        while lines.len() <= row {
            lines.push(Vec::new());
        }
    }
    shown(lines)
}

fn shown(lines: Vec<Vec<char>>) -> Vec<String> {
    let lines = lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}
