//! What differs between two runs of the same conversation, replaced by placeholders: `⟦sa:1⟧`, `⟦time⟧`, `⟦workspace⟧`.
//!
//! Values that a model may use again (ids, PIDs) are numbered in order of first appearance within their conversation,
//! so that the order in which children run does not matter. Times and durations are not numbered: whether two of them
//! are equal is chance.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use secrecy::ExposeSecret;

use super::RecordContext;

/// Cannot stand in a text by itself: a real one becomes [`ESCAPED_OPEN`].
const OPEN: char = '⟦';
const ESCAPED_OPEN: &str = "⟦open⟧";
const SECRET: &str = "⟦secret⟧";

const UUID: &str = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";

/// Groups whose values are numbered, in the order in which the pattern tries them.
const NUMBERED: [&str; 6] = ["sess", "agent", "sa", "sh", "uuid", "pid"];

#[expect(clippy::expect_used, reason = "a constant pattern, compiled by every test of this file")]
static VARYING: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = format!(
        "(?P<sess>sess_subagent_sa_[0-9]{{8}}_[0-9a-f]{{8}}|sess_subagent_agent_{UUID}|sess_{UUID})\
         |(?P<agent>agent_{UUID})|(?P<sa>sa_[0-9]{{8}}_[0-9a-f]{{8}})|(?P<sh>sh_[0-9a-f]{{8}})|(?P<uuid>{UUID})\
         |(?P<time>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:[.,][0-9]+)?)?(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)\
         |(?P<lead>已等待 |已运行 |耗时 |Duration: |duration_ms: |<duration_ms>)(?P<duration>[0-9]+(?:\\.[0-9]+)? ?(?:ms|s|m|h)?(?: [0-9]+[sm])*)\
         |(?P<pid_lead>\\b(?:PID|pid)[ :=]{{1,2}})(?P<pid>[0-9]+)"
    );
    Regex::new(&pattern).expect("the pattern is constant")
});

#[expect(clippy::expect_used, reason = "a constant pattern, compiled by every test of this file")]
static PLACEHOLDER: LazyLock<Regex> = LazyLock::new(|| Regex::new("⟦[a-z]+(?::[0-9]+)?⟧").expect("the pattern is constant"));

#[expect(clippy::expect_used, reason = "a constant pattern, compiled by every test of this file")]
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new("\\b[0-9]{3,10}\\b").expect("the pattern is constant"));

/// The values of one conversation and their placeholders.
#[derive(Clone)]
pub(super) struct Placeholders<'a> {
    context: &'a RecordContext,
    by_value: HashMap<String, String>,
    by_placeholder: HashMap<String, String>,
    counts: HashMap<&'static str, usize>,
}

impl<'a> Placeholders<'a> {
    pub fn new(context: &'a RecordContext) -> Self {
        Self { context, by_value: HashMap::new(), by_placeholder: HashMap::new(), counts: HashMap::new() }
    }

    /// A text of a request; values seen for the first time get the next number.
    pub fn note(&mut self, text: &str) -> String {
        let text = self.without_places(text);
        replaced(&text, |captures| self.placeholder(captures))
    }

    /// The placeholder of a value, if it has one.
    pub fn known(&self, value: &str) -> Option<&str> {
        self.by_value.get(value).map(String::as_str)
    }

    /// A text of a reply: only what the request has shown becomes a placeholder, all else is the model's own invention.
    pub fn mask(&self, text: &str) -> String {
        let text = self.without_places(text);
        let text = replaced(&text, |captures| {
            let (_, value) = numbered(captures)?;
            let placeholder = self.known(value)?;
            Some(captures.get(0)?.as_str().replace(value, placeholder))
        });
        NUMBER.replace_all(&text, |captures: &Captures<'_>| self.known_pid(&captures[0]).unwrap_or(&captures[0]).to_owned()).into_owned()
    }

    /// A recorded reply with the values of this run.
    pub fn restore(&self, text: &str) -> String {
        let live = |captures: &Captures<'_>| -> String {
            let placeholder = &captures[0];
            if placeholder == ESCAPED_OPEN {
                return OPEN.to_string();
            }
            for (path, name) in self.context.places() {
                if placeholder == format!("⟦{name}⟧") {
                    return path.display().to_string();
                }
            }
            self.by_placeholder.get(placeholder).cloned().unwrap_or_else(|| placeholder.to_owned())
        };
        PLACEHOLDER.replace_all(text, live).into_owned()
    }

    fn placeholder(&mut self, captures: &Captures<'_>) -> Option<String> {
        if let Some(lead) = captures.name("lead") {
            return Some(format!("{}⟦duration⟧", lead.as_str()));
        }
        if captures.name("time").is_some() {
            return Some("⟦time⟧".to_owned());
        }
        let (group, value) = numbered(captures)?;
        let lead = captures.name("pid_lead").map(|lead| lead.as_str()).unwrap_or_default();
        if let Some(placeholder) = self.by_value.get(value) {
            return Some(format!("{lead}{placeholder}"));
        }
        let number = self.counts.entry(group).or_insert(0);
        *number += 1;
        let placeholder = format!("⟦{group}:{number}⟧");
        self.by_value.insert(value.to_owned(), placeholder.clone());
        self.by_placeholder.insert(placeholder.clone(), value.to_owned());
        Some(format!("{lead}{placeholder}"))
    }

    fn known_pid(&self, number: &str) -> Option<&str> {
        self.known(number).filter(|placeholder| placeholder.starts_with("⟦pid:"))
    }

    fn without_places(&self, text: &str) -> String {
        let mut text = text.replace(OPEN, ESCAPED_OPEN);
        for secret in &self.context.secrets {
            let secret = secret.expose_secret();
            if secret.len() >= crate::secrets::SECRET_MIN {
                text = text.replace(secret, SECRET);
            }
        }
        let mut places = self.context.places();
        // The longer first: one may lie inside the other.
        places.sort_by_key(|(path, _)| std::cmp::Reverse(path.as_os_str().len()));
        for (path, name) in places {
            text = replace_path(&text, &path.display().to_string(), &format!("⟦{name}⟧"));
        }
        text
    }
}

/// Replaces a path where it stands whole or is followed by a component, not as the beginning of a longer name.
fn replace_path(text: &str, path: &str, placeholder: &str) -> String {
    if path.len() < 2 {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(path) {
        let after = &rest[at + path.len()..];
        let continues = after.starts_with(|next: char| next.is_alphanumeric() || matches!(next, '_' | '-'));
        out.push_str(&rest[..at]);
        out.push_str(if continues { path } else { placeholder });
        rest = after;
    }
    out.push_str(rest);
    out
}

fn numbered<'t>(captures: &Captures<'t>) -> Option<(&'static str, &'t str)> {
    NUMBERED.iter().find_map(|group| captures.name(group).map(|found| (*group, found.as_str())))
}

fn replaced(text: &str, mut replacement: impl FnMut(&Captures<'_>) -> Option<String>) -> String {
    VARYING.replace_all(text, |captures: &Captures<'_>| replacement(captures).unwrap_or_else(|| captures[0].to_owned())).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> RecordContext {
        RecordContext::new("/home/u/.zapmyco", "/home/u/project")
    }

    #[test]
    fn what_varies_is_numbered_in_order_of_first_appearance() {
        let context = context();
        let mut placeholders = Placeholders::new(&context);
        let text =
            "sa_20260606_0000000b: running\nsa_20260606_0000000a\nsa_20260606_0000000b (已等待 23s)\nCreated: 2026-06-06T15:30:00.123456";
        let expected = "⟦sa:1⟧: running\n⟦sa:2⟧\n⟦sa:1⟧ (已等待 ⟦duration⟧)\nCreated: ⟦time⟧";
        assert_eq!(placeholders.note(text), expected);
        assert_eq!(placeholders.note("sh_00112233, SIGTERM → PID 4711, pid=4711"), "⟦sh:1⟧, SIGTERM → PID ⟦pid:1⟧, pid=⟦pid:1⟧");
        let session = "sess_subagent_sa_20260606_0000000b";
        assert_eq!(placeholders.note(session), "⟦sess:1⟧");
        assert_eq!(placeholders.note("耗时 45s, exit 0 · duration_ms: 48211"), "耗时 ⟦duration⟧, exit 0 · duration_ms: ⟦duration⟧");
    }

    #[test]
    fn places_are_replaced_as_whole_paths_only() {
        let context = context();
        let mut placeholders = Placeholders::new(&context);
        let text = "/home/u/project/a.rs /home/u/project. /home/u/projects /home/u/.zapmyco/x";
        assert_eq!(placeholders.note(text), "⟦workspace⟧/a.rs ⟦workspace⟧. /home/u/projects ⟦root⟧/x");
    }

    #[test]
    fn a_reply_gets_the_values_of_the_run_it_is_played_in() {
        let context = context();
        let mut first = Placeholders::new(&context);
        first.note("sa_20260606_0000000b PID 4711");
        let masked = first.mask("kill 4711 of sa_20260606_0000000b in /home/u/project, new 2f6f2a3c-0000-4000-8000-000000000000 ⟦");
        assert_eq!(masked, "kill ⟦pid:1⟧ of ⟦sa:1⟧ in ⟦workspace⟧, new 2f6f2a3c-0000-4000-8000-000000000000 ⟦open⟧");
        let other = RecordContext::new("/r", "/elsewhere");
        let mut second = Placeholders::new(&other);
        second.note("sa_20270101_cafecafe PID 99");
        let live = second.restore(&masked);
        assert_eq!(live, "kill 99 of sa_20270101_cafecafe in /elsewhere, new 2f6f2a3c-0000-4000-8000-000000000000 ⟦");
    }

    #[test]
    fn a_secret_is_left_out() {
        let context = context().hiding("sk-very-secret".to_owned().into());
        let mut placeholders = Placeholders::new(&context);
        assert_eq!(placeholders.note("KEY=sk-very-secret"), "KEY=⟦secret⟧");
        assert_eq!(placeholders.mask("use sk-very-secret"), "use ⟦secret⟧");
    }
}
