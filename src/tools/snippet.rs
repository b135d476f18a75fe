//! A few numbered lines of a file: what a change looks like, and what was probably meant by text that is not there.

/// Lines shown before and after the place.
const CONTEXT_LINES: usize = 3;
/// Of one snippet.
const LINES_MAX: usize = 30;
const LINE_CHARACTERS_MAX: usize = 200;
/// Work of the search for similar lines.
const SEARCHED_LINES_MAX: usize = 50_000;

/// Lines `first` to `last` (from 1) with their neighbours, as `Read` numbers them.
pub(crate) fn around(content: &str, first: usize, last: usize) -> String {
    let start = first.saturating_sub(CONTEXT_LINES + 1);
    let wanted = (last + CONTEXT_LINES).saturating_sub(start);
    let mut shown: Vec<String> = content
        .lines()
        .enumerate()
        .skip(start)
        .take(wanted.min(LINES_MAX))
        .map(|(index, line)| format!("{:>6}\t{}", index + 1, cut(line.trim_end_matches('\r'))))
        .collect();
    if wanted > LINES_MAX {
        shown.push(format!("   ...\t({} more changed lines)", wanted - LINES_MAX));
    }
    shown.join("\n")
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARACTERS_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_owned(),
    }
}

/// Why `wanted` is not in `content`, as far as it can be seen, and the nearest place.
pub(crate) fn explain_missing(content: &str, wanted: &str) -> String {
    let has_line_numbers = wanted.lines().all(|line| {
        let rest = line.trim_start();
        rest.split_once(['\t', '→']).is_some_and(|(number, _)| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
    });
    if has_line_numbers {
        return "`old_string` seems to hold the line numbers of Read; leave out the number and the tab of each line".to_owned();
    }
    let Some(probe) = wanted.lines().map(str::trim).max_by_key(|line| line.len()).filter(|line| !line.is_empty()) else {
        return "`old_string` is white space only; take some text with it".to_owned();
    };
    let Some((line, likeness)) = most_similar(content, probe) else {
        return "no line of the file is similar to it; read the file again".to_owned();
    };
    let above = wanted.lines().position(|candidate| candidate.trim() == probe).unwrap_or(0);
    let first = line.saturating_sub(above).max(1);
    let last = first + wanted.lines().count().saturating_sub(1);
    let what = if likeness >= 1.0 {
        "this place has the same text, so white space or the lines around it differ"
    } else {
        "the most similar place is this"
    };
    format!("{what}; copy `old_string` exactly from it:\n{}", around(content, first, last))
}

/// Line number (from 1) and likeness (1.0: equal but for outer white space).
fn most_similar(content: &str, probe: &str) -> Option<(usize, f64)> {
    const LIKENESS_MIN: f64 = 0.5;
    let wanted = pairs(probe);
    let mut best: Option<(usize, f64)> = None;
    for (index, line) in content.lines().take(SEARCHED_LINES_MAX).enumerate() {
        let line = line.trim();
        if line == probe {
            return Some((index + 1, 1.0));
        }
        // lengths too far apart cannot reach the minimum
        if line.len() > probe.len() * 3 || line.len() * 3 < probe.len() {
            continue;
        }
        let likeness = dice(&wanted, &pairs(line));
        if likeness >= LIKENESS_MIN && best.is_none_or(|(_, before)| likeness > before) {
            best = Some((index + 1, likeness));
        }
    }
    best
}

/// Neighbouring bytes, sorted; of a bounded part of the line.
fn pairs(text: &str) -> Vec<[u8; 2]> {
    let bytes = text.as_bytes();
    let mut pairs: Vec<[u8; 2]> = bytes.windows(2).take(LINE_CHARACTERS_MAX).map(|pair| [pair[0], pair[1]]).collect();
    pairs.sort_unstable();
    pairs
}

/// Twice the common pairs by all pairs.
fn dice(a: &[[u8; 2]], b: &[[u8; 2]]) -> f64 {
    let (mut i, mut j, mut common) = (0, 0, 0_u32);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                common += 1;
                i += 1;
                j += 1;
            }
        }
    }
    if a.is_empty() && b.is_empty() { 0.0 } else { 2.0 * f64::from(common) / (a.len() + b.len()) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_place_is_found() {
        let content = "fn a() {\n    let value = 1;\n    run(value);\n}\n";
        assert!(explain_missing(content, "let value = 2;").contains("     2\t    let value = 1;"));
        assert!(explain_missing(content, "  run(value);\n}\n\n").starts_with("this place has the same text"));
        assert!(explain_missing(content, "     3\t    run(value);").contains("line numbers"));
        assert!(explain_missing(content, "zzzzqqqq").contains("no line"));
        assert!(explain_missing(content, " \n ").contains("white space only"));
    }

    #[test]
    fn snippets_are_bounded() {
        let content = "x\n".repeat(1000);
        assert_eq!(around(&content, 10, 900).lines().count(), LINES_MAX + 1);
        assert_eq!(around(&content, 1, 1).lines().count(), 1 + CONTEXT_LINES);
        assert!(around(&"y".repeat(5000), 1, 1).len() < 300);
    }
}
