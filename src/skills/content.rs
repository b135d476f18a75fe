//! The text of a skill as a model reads it: without its fields, arguments filled in, in a frame, bounded (R146).

use super::find::Skill;
use super::library::SkillError;
use crate::frontmatter::{Code, reading};

/// Bytes of the whole answer.
pub const CONTENT_MAX: usize = 100_000;
const CLOSING: &str = "\n</skill_content>";

/// The skill's text with `args` in it. Blocking.
pub fn content(skill: &Skill, args: Option<&str>) -> Result<String, SkillError> {
    let text = reading::read(Code::SkillReadFailed, &skill.path).map_err(|fault| SkillError::Unreadable(Box::new(fault)))?;
    let filled = with_arguments(body(&text), args.map(str::trim).filter(|args| !args.is_empty()));
    let folder = skill.path.parent().unwrap_or(&skill.path);
    let head = format!(
        "<skill_content name=\"{}\">\nBase directory: {} (files that the skill names lie there)\n\n",
        skill.name,
        folder.display().to_string().replace(['\n', '\r', '<', '>'], "_")
    );
    // The text cannot end its own frame.
    let filled = filled.replace("</skill_content", "<\\/skill_content");
    let note = |left: usize| format!("\n[The rest of this skill, {left} bytes, was left out; the whole is in {}]", skill.path.display());
    let room = CONTENT_MAX.saturating_sub(head.len() + CLOSING.len() + note(filled.len()).len());
    if filled.len() <= CONTENT_MAX.saturating_sub(head.len() + CLOSING.len()) {
        return Ok(format!("{head}{filled}{CLOSING}"));
    }
    let end = filled.floor_char_boundary(room);
    Ok(format!("{head}{}{}{CLOSING}", &filled[..end], note(filled.len() - end)))
}

/// What stands below the fields.
fn body(text: &str) -> &str {
    let text = text.trim_start_matches('\u{feff}');
    let is_fence = |line: &str| line.trim_end().len() >= 3 && line.trim_end().bytes().all(|byte| byte == b'-');
    let mut offset = 0;
    let mut is_open = false;
    for line in text.split_inclusive('\n') {
        offset += line.len();
        match (is_open, is_fence(line)) {
            (false, true) => is_open = true,
            (true, true) => return text[offset..].trim(),
            (false, false) if !line.trim().is_empty() => return text.trim(),
            (false | true, false) => {}
        }
    }
    text.trim()
}

/// `$ARGUMENTS`, `$ARGUMENTS[N]` and `$N` (counted from 0) filled in; without any of them the arguments are appended.
/// What there is no argument for stays as it is: skills hold shell and awk lines too.
pub fn with_arguments(text: &str, args: Option<&str>) -> String {
    let parts = args.map(split).unwrap_or_default();
    let mut filled = String::with_capacity(text.len());
    let mut has_placeholder = false;
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        match placeholder(rest) {
            Some((length, Placeholder::All)) => {
                has_placeholder = true;
                filled.push_str(args.unwrap_or_default());
                rest = &rest[length..];
            }
            Some((length, Placeholder::One(index))) if parts.len() > index => {
                has_placeholder = true;
                filled.push_str(&parts[index]);
                rest = &rest[length..];
            }
            Some(_) | None => {
                filled.push('$');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    match args {
        Some(args) if !has_placeholder => format!("{filled}\n\nARGUMENTS: {args}"),
        Some(_) | None => filled,
    }
}

enum Placeholder {
    All,
    One(usize),
}

/// What a text that starts with `$` begins with, and its length.
fn placeholder(text: &str) -> Option<(usize, Placeholder)> {
    const ALL: &str = "$ARGUMENTS";
    const DIGITS_MAX: usize = 4;
    let number = |text: &str| -> Option<(usize, usize)> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let value = text.get(..digits).filter(|_| digits <= DIGITS_MAX)?.parse().ok()?;
        Some((digits, value))
    };
    let ends_word = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    if let Some(rest) = text.strip_prefix(ALL) {
        if let Some(inner) = rest.strip_prefix('[')
            && let Some((digits, index)) = number(inner)
            && inner[digits..].starts_with(']')
        {
            return Some((ALL.len() + digits + 2, Placeholder::One(index)));
        }
        return ends_word(rest).then_some((ALL.len(), Placeholder::All));
    }
    let rest = &text[1..];
    let (digits, index) = number(rest)?;
    ends_word(&rest[digits..]).then_some((digits + 1, Placeholder::One(index)))
}

/// At white space, with quotes as a shell has them.
fn split(args: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = args.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), close) if open == close => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                part.get_or_insert_default();
            }
            (None | Some('"'), '\\') => part.get_or_insert_default().extend(letters.next()),
            (None, space) if space.is_whitespace() => parts.extend(part.take()),
            (Some(_) | None, letter) => part.get_or_insert_default().push(letter),
        }
    }
    parts.extend(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R146
    #[test]
    fn arguments_are_filled_in_or_appended() {
        for (text, args, expected) in [
            ("do $ARGUMENTS now", Some("a \"b c\""), "do a \"b c\" now"),
            ("$ARGUMENTS[1], $0 and $1.", Some("a 'b c'"), "b c, a and b c."),
            ("no place", Some("a b"), "no place\n\nARGUMENTS: a b"),
            ("no place", None, "no place"),
            ("[$ARGUMENTS]", None, "[]"),
            ("awk '{print $1}' $ARGUMENTS", Some("x"), "awk '{print $1}' x"),
            ("costs $5 or $5x, $ARGUMENTSX, $HOME, $", None, "costs $5 or $5x, $ARGUMENTSX, $HOME, $"),
            ("$0", Some("$ARGUMENTS"), "$ARGUMENTS"),
            ("$0|$1", Some(r#"a\ b """#), "a b|"),
        ] {
            assert_eq!(with_arguments(text, args), expected, "{text} {args:?}");
        }
    }

    #[test]
    fn fields_are_no_part_of_the_text() {
        assert_eq!(body("---\nname: a\n---\n\nText\n---\nmore\n"), "Text\n---\nmore");
        assert_eq!(body("\u{feff}\n---\r\nname: a\r\n---\r\nText"), "Text");
        assert_eq!(body("# Title\n---\nText"), "# Title\n---\nText");
        assert_eq!(body("---\nname: a\n"), "---\nname: a");
    }

    proptest::proptest! {
        #[test]
        fn any_text_and_arguments_are_taken(text in "[$A-Z\\[\\]0-9 ü]{0,40}", args in "[a-z\"'\\\\ ü]{0,20}") {
            let _ = with_arguments(&text, Some(&args));
        }
    }
}
