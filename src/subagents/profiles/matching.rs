//! The name a model wrote to a profile: exact first, then folded; one hit, several, or none (R35 to R39). No I/O.

use unicode_normalization::UnicodeNormalization;

use crate::spelling::distance;

/// A name that can be called, and other spellings that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    pub aliases: Vec<String>,
}

/// Written for the model that chose the name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MatchError {
    #[error("Agent type '{wanted}' is ambiguous — matches {} — Use the exact name: {}", names.join(", "), names.join(" or "))]
    Ambiguous { wanted: String, names: Vec<String> },
    #[error("Agent type '{wanted}' not found. Available agents: {available}{}", hint(nearest))]
    NotFound { wanted: String, available: String, nearest: Option<String> },
}

/// Names shown in one error; a collection may hold thousands.
const NAMES_SHOWN_MAX: usize = 200;
/// Characters of the wanted name that are repeated in an error.
const WANTED_SHOWN_MAX: usize = 100;

/// The canonical name that `wanted` means.
pub fn resolve<'a>(candidates: &'a [Candidate], wanted: &str) -> Result<&'a str, MatchError> {
    if let Some(exact) = candidates.iter().find(|candidate| candidate.name == wanted) {
        return Ok(&exact.name);
    }
    if let Some(exact) = candidates.iter().find(|candidate| candidate.aliases.iter().any(|alias| alias == wanted)) {
        return Ok(&exact.name);
    }
    let key = fold(wanted);
    let hits: Vec<&str> = candidates
        .iter()
        .filter(|candidate| !key.is_empty() && spellings(candidate).any(|spelling| fold(spelling) == key))
        .map(|candidate| candidate.name.as_str())
        .collect();
    match hits.as_slice() {
        [one] => Ok(one),
        [] => Err(not_found(candidates, wanted, &key)),
        several => Err(MatchError::Ambiguous { wanted: shown(wanted), names: several.iter().map(|&name| name.to_owned()).collect() }),
    }
}

/// NFKC, lower case, without white space, dashes of any kind and underscores (R36).
pub fn fold(name: &str) -> String {
    name.nfkc().flat_map(char::to_lowercase).nfkc().filter(|&c| !c.is_whitespace() && c != '_' && !is_dash(c)).collect()
}

/// The name nearest to `wanted`, when it is near enough to be meant.
pub fn nearest<'a>(names: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let compared = |name: &str| fold(name).chars().take(WANTED_SHOWN_MAX).collect::<String>();
    let key = compared(wanted);
    let (steps, name) = names.map(|name| (distance(&key, &compared(name)), name)).min_by_key(|(steps, _)| *steps)?;
    (steps * 5 <= key.chars().count().max(3) * 2).then_some(name)
}

fn spellings(candidate: &Candidate) -> impl Iterator<Item = &str> {
    std::iter::once(candidate.name.as_str()).chain(candidate.aliases.iter().map(String::as_str))
}

/// Unicode class Pd.
fn is_dash(c: char) -> bool {
    matches!(
        c,
        '\u{2d}' | '\u{58a}' | '\u{5be}' | '\u{1400}' | '\u{1806}' | '\u{2010}'
            ..='\u{2015}'
                | '\u{2e17}'
                | '\u{2e1a}'
                | '\u{2e3a}'
                | '\u{2e3b}'
                | '\u{2e40}'
                | '\u{2e5d}'
                | '\u{301c}'
                | '\u{3030}'
                | '\u{30a0}'
                | '\u{fe31}'
                | '\u{fe32}'
                | '\u{fe58}'
                | '\u{fe63}'
                | '\u{ff0d}'
                | '\u{10d6e}'
                | '\u{10ead}'
    )
}

fn not_found(candidates: &[Candidate], wanted: &str, key: &str) -> MatchError {
    let names = || candidates.iter().map(|candidate| candidate.name.as_str());
    let mut available = names().take(NAMES_SHOWN_MAX).collect::<Vec<_>>().join(", ");
    if candidates.len() > NAMES_SHOWN_MAX {
        available.push_str(&format!(" and {} more", candidates.len() - NAMES_SHOWN_MAX));
    }
    let nearest = if key.is_empty() { None } else { nearest(names(), wanted).map(str::to_owned) };
    MatchError::NotFound { wanted: shown(wanted), available, nearest }
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("\nDid you mean '{name}'?")).unwrap_or_default()
}

/// A text from a model, on one line and bounded.
fn shown(wanted: &str) -> String {
    let mut text: String = wanted.chars().take(WANTED_SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if wanted.chars().nth(WANTED_SHOWN_MAX).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(names: &[&str]) -> Vec<Candidate> {
        names.iter().map(|name| Candidate { name: (*name).to_owned(), aliases: Vec::new() }).collect()
    }

    /// R35, R36, R37, fault H11
    #[test]
    fn loose_spellings_lead_to_the_canonical_name() {
        let known = candidates(&["code-reviewer", "Explore", "general-purpose"]);
        for wanted in [
            "code-reviewer",
            "Code Reviewer",
            "code_reviewer",
            "  CODE–REVIEWER\n",
            "ｃｏｄｅ－ｒｅｖｉｅｗｅｒ",
            "code\u{2014}reviewer",
            "code\u{30a0}reviewer",
            "code\u{301c}reviewer",
            "code\u{3000}reviewer",
        ] {
            assert_eq!(resolve(&known, wanted), Ok("code-reviewer"), "{wanted:?}");
        }
        assert_eq!(resolve(&known, "explore"), Ok("Explore"));
    }

    /// R35
    #[test]
    fn an_exact_name_wins_over_folded_ones() {
        let known = candidates(&["code-reviewer", "code_reviewer"]);
        assert_eq!(resolve(&known, "code_reviewer"), Ok("code_reviewer"));
    }

    /// R38, fault H11
    #[test]
    fn several_folded_hits_are_ambiguous() {
        let known = candidates(&["code-reviewer", "code_reviewer"]);
        assert_eq!(
            resolve(&known, "Code Reviewer").unwrap_err().to_string(),
            "Agent type 'Code Reviewer' is ambiguous — matches code-reviewer, code_reviewer — Use the exact name: code-reviewer or code_reviewer"
        );
    }

    /// R39, fault H11
    #[test]
    fn an_unknown_name_lists_what_exists_and_the_nearest() {
        let known = candidates(&["a", "code-reviewer"]);
        assert_eq!(
            resolve(&known, "code-reviwer").unwrap_err().to_string(),
            "Agent type 'code-reviwer' not found. Available agents: a, code-reviewer\nDid you mean 'code-reviewer'?"
        );
        assert_eq!(resolve(&known, "zzz").unwrap_err().to_string(), "Agent type 'zzz' not found. Available agents: a, code-reviewer");
        assert_eq!(resolve(&known, " -_ ").unwrap_err().to_string(), "Agent type ' -_ ' not found. Available agents: a, code-reviewer");
    }

    /// R62
    #[test]
    fn an_alias_leads_to_the_canonical_name() {
        let known = vec![Candidate { name: "kit:lint".into(), aliases: vec!["lint".into()] }];
        assert_eq!(resolve(&known, "lint"), Ok("kit:lint"));
        assert_eq!(resolve(&known, "Lint"), Ok("kit:lint"));
    }

    #[test]
    fn a_long_name_is_bounded_in_the_error() {
        let error = resolve(&candidates(&["a"]), &"x\n".repeat(100_000)).unwrap_err().to_string();
        assert!(error.len() < 500 && !error.contains('\n'), "{error}");
    }
}
