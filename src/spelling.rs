//! How far two spellings are apart, for those who say what was probably meant.

/// Letters to insert, delete or replace, and neighbours to swap, to turn one text into the other. The cost is the product
/// of both lengths: whoever compares a text from outside cuts it before.
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    // The rows of the last two letters: a swap looks back over both.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, wanted) in to.iter().enumerate() {
            let replaced = last[j] + usize::from(letter != wanted);
            let least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            let is_swap = i > 0 && j > 0 && from[i - 1] == *wanted && *letter == to[j - 1];
            row.push(if is_swap { least.min(before[j - 1] + 1) } else { least });
        }
        before = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slip_counts_once() {
        for (from, to, steps) in
            [("", "", 0), ("model", "model", 0), ("modle", "model", 1), ("mdel", "model", 1), ("moddel", "model", 1), ("mobel", "model", 1)]
        {
            assert_eq!(distance(from, to), steps, "{from} {to}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "ab"), 2);
        assert_eq!(distance("\u{e4}b", "b\u{e4}"), 1);
    }
}
