//! What the parent's model reads of an in-process subagent: the capsule of its result, its launch in the background, and
//! how it failed.

use crate::text::imitation;
use std::fmt::Write;

/// Everything about the end of a run that its parent's model is told.
#[derive(Clone, Debug, Default)]
pub struct Capsule {
    pub agent_id: String,
    pub agent_type: String,
    pub text: String,
    /// Why the text is no whole answer, in words.
    pub partial: Option<String>,
    /// What was asked for and does not hold.
    pub notes: Vec<String>,
    /// Absent when the provider told none.
    pub tokens: Option<u64>,
    pub tool_uses: u64,
    pub duration_ms: u64,
    pub output_file: String,
}

/// In place of an empty text (R20).
pub const NO_OUTPUT: &str = "The subagent completed without output.";
/// What the files of a stopped run begin with (R8).
pub const STOPPED: &str = "The background agent task was stopped.";
/// A foreground call whose turn was cancelled (R34).
pub const CANCELLED: &str = "The agent was cancelled before it returned findings.";

/// A foreground result of at most `max` bytes: text, hint and numbers (R17 to R20).
pub fn finished(capsule: &Capsule, max: usize) -> String {
    let mut head = String::new();
    if let Some(partial) = &capsule.partial {
        // Writing into a string cannot fail.
        let _ = writeln!(head, "[Partial result: {partial}]\n");
    }
    let mut tail = String::from("\n\n");
    for note in &capsule.notes {
        let _ = writeln!(tail, "(note: {note})");
    }
    let id = &capsule.agent_id;
    let _ = writeln!(tail, "agentId: {id} (use SendMessage with to: '{id}' to continue this agent)");
    tail.push_str(&usage(capsule));
    // R232
    let report = imitation::marked(&capsule.text);
    let text = if report.trim().is_empty() { NO_OUTPUT } else { &report };
    let room = max.saturating_sub(head.len() + tail.len());
    format!("{head}{}{tail}", both_ends(text, room, &capsule.output_file))
}

/// A failed or cancelled run: cause first, then what was found (R26, R34).
pub fn failed(capsule: &Capsule, cause: &str, max: usize) -> String {
    let head = format!("Agent {} ({}) failed: {cause}", capsule.agent_type, capsule.agent_id);
    with_found(&head, capsule, max)
}

/// R34
pub fn cancelled(capsule: &Capsule, max: usize) -> String {
    with_found(CANCELLED, capsule, max)
}

fn with_found(head: &str, capsule: &Capsule, max: usize) -> String {
    let tail = format!("\n\noutput_file: {}\n{}", capsule.output_file, usage(capsule));
    if capsule.text.trim().is_empty() {
        return format!("{head}{tail}");
    }
    let middle = "\n\nWhat it had found until then (incomplete):\n";
    let room = max.saturating_sub(head.len() + middle.len() + tail.len());
    format!("{head}{middle}{}{tail}", both_ends(&imitation::marked(&capsule.text), room, &capsule.output_file))
}

/// R19
fn usage(capsule: &Capsule) -> String {
    let mut block = String::from("<usage>");
    if let Some(tokens) = capsule.tokens {
        let _ = writeln!(block, "subagent_tokens: {tokens}");
    }
    let _ = write!(block, "tool_uses: {}\nduration_ms: {}</usage>", capsule.tool_uses, capsule.duration_ms);
    block
}

/// A launch in the background (R24). `readable`: the caller has a tool that can read the file.
pub fn launched(agent_id: &str, output_file: &str, readable: bool, waiting: bool) -> String {
    let mut text = String::from(if waiting {
        "Agent launched in the background; it waits for a free place and starts by itself."
    } else {
        "Agent launched in the background."
    });
    let _ = write!(
        text,
        "\nagentId: {agent_id} (internal: do not show it to the user; SendMessage with to: '{agent_id}' reaches this agent)\n\
         A notification arrives by itself when it has ended. Go on with other work meanwhile: do not do the agent's work a \
         second time, and do not poll or wait for it."
    );
    if readable {
        let _ = write!(text, "\noutput_file: {output_file} (its text so far can be read there when that is really needed)");
    }
    text
}

/// `text` as it is when it fits into `max` bytes, else head and tail with a note that names the whole (R17).
pub fn both_ends(text: &str, max: usize, whole: &str) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let note =
        |left_out: usize| format!("\n\n[... {left_out} of {} bytes left out here; the whole text is in {whole} ...]\n\n", text.len());
    let room = max.saturating_sub(note(text.len()).len()) / 2;
    let head = &text[..text.floor_char_boundary(room)];
    let tail = &text[text.ceil_char_boundary(text.len() - room.min(text.len()))..];
    format!("{head}{}{tail}", note(text.len() - head.len() - tail.len()))
}

/// The beginning of a text with its size, for observers (R250).
pub fn preview(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    format!("{}\n[... {} bytes in all]", &text[..text.floor_char_boundary(max)], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn capsule(text: &str) -> Capsule {
        Capsule {
            agent_id: "agent_x".into(),
            agent_type: "reviewer".into(),
            text: text.into(),
            tokens: Some(1234),
            tool_uses: 7,
            duration_ms: 48211,
            output_file: "/r/output.txt".into(),
            ..Capsule::default()
        }
    }

    /// R18, R19, R20
    #[test]
    fn the_last_lines_have_their_fixed_form() {
        let fixed = "agentId: agent_x (use SendMessage with to: 'agent_x' to continue this agent)\n\
                     <usage>subagent_tokens: 1234\ntool_uses: 7\nduration_ms: 48211</usage>";
        assert_eq!(finished(&capsule("done"), 1000), format!("done\n\n{fixed}"));
        assert_eq!(finished(&capsule(" \n"), 1000), format!("{NO_OUTPUT}\n\n{fixed}"));
        let unknown = Capsule { tokens: None, ..capsule("done") };
        assert!(finished(&unknown, 1000).ends_with("<usage>tool_uses: 7\nduration_ms: 48211</usage>"));
    }

    /// R26, R34
    #[test]
    fn failures_name_type_id_cause_and_what_was_found() {
        let text = failed(&capsule("half of it"), "the provider is down", 1000);
        assert!(text.starts_with("Agent reviewer (agent_x) failed: the provider is down\n"), "{text}");
        assert!(text.contains("half of it") && text.contains("output_file: /r/output.txt"), "{text}");
        let text = cancelled(&capsule(""), 1000);
        assert!(text.starts_with(CANCELLED) && text.contains("/r/output.txt"), "{text}");
    }

    proptest! {
        /// R17: never longer than the limit, both ends kept, no character split.
        #[test]
        fn a_long_result_keeps_both_ends(text in "(a|ß|界|😀){0,900}", max in 600usize..900) {
            let whole = finished(&capsule(&format!("HEAD{text}TAIL")), max);
            prop_assert!(whole.len() <= max);
            prop_assert!(whole.starts_with("HEAD"));
            prop_assert!(whole.contains("TAIL\n\nagentId: agent_x"));
            if text.len() > max { prop_assert!(whole.contains("the whole text is in /r/output.txt")) }
        }
    }
}
