//! Rows as aligned columns: as wide as their content in pipes and files, fitted to the terminal on a terminal.
//!
//! What is given up first: the ends of long columns, down to what still tells something; then whole columns that another
//! command shows as well. Ids are never cut, since people copy them.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// One column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub heading: &'static str,
    pub is_number: bool,
    /// Columns of the terminal it keeps at least; `None`: it is never cut.
    pub least: Option<usize>,
    pub cut: Cut,
    /// The lowest is left out first; `None`: it stays.
    pub left_out: Option<u8>,
}

/// Which part of a long text is cut away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Beginning,
    End,
}

impl Column {
    pub(super) const fn new(heading: &'static str) -> Self {
        Self { heading, is_number: false, least: None, cut: Cut::End, left_out: None }
    }
}

const GAP: usize = 2;

/// Columns and rows of a terminal; `None` when it is none or does not say.
pub(super) fn size_of(stream: impl AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// How wide a table on stdout may be; `None`: as wide as it likes.
pub(super) fn stdout_width() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    size_of(&stdout).map(|(columns, _)| usize::from(columns))
}

/// Headings and rows as text; every row has one cell per column.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let natural: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(place, column)| rows.iter().map(|row| row[place].width()).chain([column.heading.width()]).max().unwrap_or(0))
        .collect();
    let shown = fitted(columns, &natural, width);
    let mut text = String::new();
    let headings: Vec<String> = columns.iter().map(|column| column.heading.to_owned()).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (place, width) in &shown {
            let column = &columns[*place];
            let cell = cut(&row[*place], *width, column.cut);
            let fill = " ".repeat(width - cell.width());
            line.push_str(&if column.is_number { fill + &cell } else { cell + &fill });
            line.push_str(&" ".repeat(GAP));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The columns that are shown, by place, and how wide each is.
fn fitted(columns: &[Column], natural: &[usize], width: Option<usize>) -> Vec<(usize, usize)> {
    let mut places: Vec<usize> = (0..columns.len()).collect();
    loop {
        let mut widths: Vec<(usize, usize)> = places.iter().map(|place| (*place, natural[*place])).collect();
        let total = |widths: &[(usize, usize)]| widths.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP);
        let Some(room) = width else { return widths };
        // The last column is the one whose end matters least.
        for at in (0..widths.len()).rev() {
            let too_wide = total(&widths).saturating_sub(room);
            let (place, width) = widths[at];
            if let Some(least) = columns[place].least {
                widths[at].1 = width.saturating_sub(too_wide).max(least.min(width));
            }
        }
        let least_wanted = places.iter().filter_map(|place| columns[*place].left_out.map(|order| (order, *place))).min();
        match least_wanted {
            Some((_, place)) if total(&widths) > room => places.retain(|other| *other != place),
            _ => return widths,
        }
    }
}

fn cut(text: &str, width: usize, end: Cut) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let mut kept = String::new();
    let mut used = 0;
    let mut take = |character: char| {
        used += character.width().unwrap_or(0);
        (used <= room).then_some(character)
    };
    match end {
        Cut::End => {
            kept.extend(text.chars().map_while(&mut take));
            kept.push('…');
        }
        Cut::Beginning => {
            let reversed: Vec<char> = text.chars().rev().map_while(&mut take).collect();
            kept.push('…');
            kept.extend(reversed.into_iter().rev());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::new("ID"),
        Column { is_number: true, ..Column::new("SIZE") },
        Column { least: Some(6), cut: Cut::Beginning, left_out: Some(0), ..Column::new("SESSION") },
        Column { least: Some(8), ..Column::new("TITLE") },
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        vec![
            row(["sa_20260606_a1b2c3d4", "7", "sess_0123456789", "看看 src 里的所有文件 and then some"]),
            row(["bash_1", "1000", "name_ci", "short"]),
        ]
    }

    #[test]
    fn without_a_width_nothing_is_cut() {
        assert_eq!(
            table(&COLUMNS, &rows(), None),
            "ID                    SIZE  SESSION          TITLE\n\
             sa_20260606_a1b2c3d4     7  sess_0123456789  看看 src 里的所有文件 and then some\n\
             bash_1                1000  name_ci          short\n"
        );
    }

    #[test]
    fn every_width_is_kept_as_far_as_ids_allow() {
        for width in 0..120 {
            let text = table(&COLUMNS, &rows(), Some(width));
            let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
            // Id, size and eight columns of the title are the least.
            assert!(widest <= width.max(20 + 2 + 4 + 2 + 8), "{width}:\n{text}");
            assert!(text.contains("sa_20260606_a1b2c3d4"));
        }
        let narrow = table(&COLUMNS, &rows(), Some(50));
        assert!(narrow.contains("…456789  看看 src…\n") || narrow.contains("…"), "{narrow}");
        assert!(!table(&COLUMNS, &rows(), Some(37)).contains("SESSION"));
    }

    #[test]
    fn the_chosen_end_is_cut_at_whole_characters() {
        assert_eq!(cut("sess_0123456789", 6, Cut::Beginning), "…56789");
        assert_eq!(cut("字字字字", 6, Cut::End), "字字…");
        assert_eq!(cut("ab", 2, Cut::End), "ab");
        assert_eq!(cut("abc", 1, Cut::End), "…");
    }
}
