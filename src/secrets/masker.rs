//! Secret values in a stream of bytes, covered by asterisks of the same length, so that no count and no offset changes.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use memchr::memmem::Finder;
use secrecy::{ExposeSecret, SecretString};

/// Masks one stream. What may be the beginning of a value is held back until the rest has come.
pub struct Masker {
    finders: Vec<Finder<'static>>,
    /// As they came: a value that begins in them may hold another one that is complete.
    held: Vec<u8>,
    /// How many of the first held bytes are the end of a value that began before them.
    covered: usize,
}

impl Masker {
    pub fn new(values: &[SecretString]) -> Self {
        let finders = values.iter().filter(|value| !value.expose_secret().is_empty());
        Self { finders: finders.map(|value| Finder::new(value.expose_secret()).into_owned()).collect(), held: Vec::new(), covered: 0 }
    }

    /// The next bytes, perhaps fewer or more than came. Borrowed when there was nothing to do.
    pub fn mask<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        if self.finders.is_empty() {
            return Cow::Borrowed(bytes);
        }
        let mut ready = if self.held.is_empty() {
            Cow::Borrowed(bytes)
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(bytes);
            Cow::Owned(joined)
        };
        let values = self.values_in(&ready);
        let hold = self.finders.iter().map(|finder| beginning_at_end(&ready, finder.needle())).max().unwrap_or(0);
        let keep = ready.len() - hold;
        self.held = ready[keep..].to_vec();
        self.covered = values.iter().filter(|value| value.start < keep).map(|value| value.end.saturating_sub(keep)).max().unwrap_or(0);
        match &mut ready {
            Cow::Borrowed(bytes) => *bytes = &bytes[..keep],
            Cow::Owned(bytes) => bytes.truncate(keep),
        }
        cover(&mut ready, &values);
        ready
    }

    /// What is still held back when the stream has ended.
    pub fn rest(&mut self) -> Vec<u8> {
        let values = self.values_in(&self.held);
        self.covered = 0;
        let mut rest = Cow::Owned(std::mem::take(&mut self.held));
        cover(&mut rest, &values);
        rest.into_owned()
    }

    /// Where values stand, also one in the other, in bytes that begin with the held ones.
    fn values_in(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut values: Vec<Range<usize>> = (self.covered > 0).then_some(0..self.covered).into_iter().collect();
        for finder in &self.finders {
            let mut from = 0;
            while let Some(at) = finder.find(&bytes[from..]) {
                values.push(from + at..from + at + finder.needle().len());
                from += at + 1;
            }
        }
        values
    }
}

fn cover(bytes: &mut Cow<'_, [u8]>, values: &[Range<usize>]) {
    let length = bytes.len();
    for value in values.iter().filter(|value| value.start < length) {
        bytes.to_mut()[value.start..value.end.min(length)].fill(b'*');
    }
}

/// Length of the longest proper beginning of `value` with which `bytes` end.
fn beginning_at_end(bytes: &[u8], value: &[u8]) -> usize {
    let most = bytes.len().min(value.len().saturating_sub(1));
    (1..=most).rev().find(|length| bytes.ends_with(&value[..*length])).unwrap_or(0)
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker").field("values", &self.finders.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn masked(values: &[&str], chunks: &[&[u8]]) -> Vec<u8> {
        let values: Vec<SecretString> = values.iter().map(|value| SecretString::from(*value)).collect();
        let mut masker = Masker::new(&values);
        let mut all = Vec::new();
        for chunk in chunks {
            all.extend_from_slice(&masker.mask(chunk));
        }
        all.extend(masker.rest());
        all
    }

    #[test]
    fn a_value_is_covered_however_it_is_cut() {
        assert_eq!(masked(&["secret"], &[b"a secret b"]), b"a ****** b");
        assert_eq!(masked(&["secret"], &[b"a sec", b"r", b"et b"]), b"a ****** b");
        assert_eq!(masked(&["secret"], &[b"a sec", b"ond b sec"]), b"a second b sec");
        assert_eq!(
            masked(&["secret", "longer-secret"], &[b"longer-sec", b"ret"]),
            b"*******".iter().chain(b"******").copied().collect::<Vec<_>>()
        );
        assert_eq!(masked(&["ret", "secret-x"], &[b"secret"]), b"sec***");
        assert_eq!(masked(&["ret", "secret-x"], &[b"secret", b"-", b"x"]), b"********");
        assert_eq!(masked(&["abc", "cde"], &[b"abc", b"de"]), b"*****");
        assert_eq!(masked(&[], &[b"secret"]), b"secret");
    }

    proptest! {
        /// Cutting changes nothing, and no length changes.
        #[test]
        fn cuts_do_not_matter(text in "[ab ]{0,40}", cuts in proptest::collection::vec(0_usize..40, 0..6)) {
            let values = ["abab", "bba"];
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                chunks.push(&bytes[from..cut]);
                from = cut;
            }
            let result = masked(&values, &chunks);
            prop_assert_eq!(result.len(), bytes.len());
            let whole = String::from_utf8(result).unwrap();
            prop_assert!(!whole.contains("abab") && !whole.contains("bba"), "{}", whole);
        }
    }
}
