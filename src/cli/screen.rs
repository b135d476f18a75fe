//! The terminal that the moving lines are drawn on.
//!
//! What a person types while a line is drawn is echoed behind it (`^C`). The drawing library fills its last line to the
//! full width, so that the echo would go to the next line and the drawn one could never be taken away again. So it is told
//! of fewer columns than there are, and whatever is echoed into the rest goes with the line.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressDrawTarget, TermLike};
use unicode_width::UnicodeWidthChar;

use super::table;

/// Columns kept free for echoed keys: `^C`, twice.
const ECHO_COLUMNS: u16 = 4;
/// Where the terminal does not say how large it is.
const COLUMNS: u16 = 80;
const ROWS: u16 = 24;
const REDRAWS_PER_SECOND: u8 = 10;

/// Standard error as a terminal; one write per redraw.
///
/// The library writes no line ends: it fills each line and relies on the terminal to go on in the next one. Since the real
/// one is wider, the line ends are put in here.
#[derive(Debug, Default)]
struct Screen {
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    text: String,
    /// Where the cursor stands, in columns of the narrower terminal.
    column: usize,
}

pub(super) fn draw_target() -> ProgressDrawTarget {
    ProgressDrawTarget::term_like_with_hz(Box::new(Screen::default()), REDRAWS_PER_SECOND)
}

impl Screen {
    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self, n: usize, direction: char) -> io::Result<()> {
        if n > 0 {
            let _ = write!(self.pending().text, "\x1b[{n}{direction}");
        }
        Ok(())
    }
}

impl Pending {
    /// Text with colours in it, broken where a terminal of this width would break it.
    fn add(&mut self, text: &str, width: usize) {
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '\r' | '\n' => self.column = 0,
                '\x1b' => {
                    self.text.push(character);
                    // Up to the letter that ends the sequence.
                    for part in characters.by_ref() {
                        self.text.push(part);
                        if part.is_ascii_alphabetic() {
                            break;
                        }
                    }
                    continue;
                }
                character => {
                    let columns = character.width().unwrap_or(0);
                    if self.column + columns > width {
                        self.text.push_str("\r\n");
                        self.column = 0;
                    }
                    self.column += columns;
                }
            }
            self.text.push(character);
        }
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        let (columns, _) = table::size_of(io::stderr()).unwrap_or((COLUMNS, ROWS));
        columns.saturating_sub(ECHO_COLUMNS).max(1)
    }

    fn height(&self) -> u16 {
        table::size_of(io::stderr()).map_or(ROWS, |(_, rows)| rows)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.write_str("\r\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let width = usize::from(self.width());
        self.pending().add(text, width);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let text = std::mem::take(&mut self.pending().text);
        let mut stderr = io::stderr().lock();
        stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_the_narrower_terminal_ends() {
        let mut pending = Pending::default();
        pending.add("\x1b[36mab\x1b[0m  ", 4);
        pending.add("cdef", 4);
        pending.add("\r\x1b[2K字字字", 4);
        assert_eq!(pending.text, "\x1b[36mab\x1b[0m  \r\ncdef\r\x1b[2K字字\r\n字");
        assert_eq!(pending.column, 2);
    }
}
