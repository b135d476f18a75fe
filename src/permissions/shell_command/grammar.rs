//! The walk through the syntax tree of a line.
//!
//! tree-sitter makes the best of what it is given and skips what it cannot place; so every node has to be one that is known
//! here, everything between two tokens has to be blank, and what the grammar is known to misread is looked at again.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tree_sitter::{Node, ParseOptions, ParseState, Parser, Tree};

use super::checks;
use super::words::{self, ANY, Word};
use super::{Assignment, Carrier, Carries, Holds, Line, Part, Redirect, Unreadable, carriers, plain};

/// Longer lines are not read; most are below a kilobyte, only whole files in here-documents are long.
const BYTES_MAX: usize = 64 * 1024;
/// A line takes microseconds; one that takes this long was made to, and counts as unreadable.
const PARSE_TIME_MAX: Duration = Duration::from_secs(1);
/// Of syntax nodes in each other.
const DEPTH_MAX: u32 = 200;
/// Of lines of code in words of lines (`sh -c "sh -c '...'"`).
const CODE_DEPTH_MAX: u32 = 8;
/// Commands of one line; beyond it the line is too long.
const PARTS_MAX: usize = 1024;

/// Reads a line and, for plain ones, holds the tree against the narrow reading.
pub(super) fn read(source: &str) -> Line {
    let mut line = Line::default();
    read_code(source, &mut line, None, 0);
    match plain::split(source) {
        Ok(commands) => {
            line.not_plain = None;
            let own = line.parts.iter().filter(|part| part.carrier.is_none());
            let agree = own.clone().count() == commands.len()
                && own.zip(&commands).all(|(part, command)| {
                    part.words.len() == command.words.len()
                        && part.words.iter().zip(&command.words).all(|(a, b)| a.text == b.text && a.expands == b.expands)
                });
            if !agree {
                line.unreadable.get_or_insert(Unreadable::Ambiguous);
            }
        }
        Err(why) => line.not_plain = Some(why),
    }
    line
}

/// Adds the commands of shell code to the line.
fn read_code(source: &str, line: &mut Line, carrier: Option<&Carrier>, code_depth: u32) {
    if source.len() > BYTES_MAX {
        line.unreadable.get_or_insert(Unreadable::Length);
        return;
    }
    if code_depth > CODE_DEPTH_MAX {
        line.unreadable.get_or_insert(Unreadable::Depth);
        return;
    }
    if source.chars().any(checks::is_unusual) {
        line.unreadable.get_or_insert(Unreadable::Character);
    }
    let Some(tree) = tree_of(source) else {
        line.unreadable.get_or_insert(Unreadable::Syntax);
        return;
    };
    if tree.root_node().has_error() {
        line.unreadable.get_or_insert(Unreadable::Syntax);
    }
    Walker { source, line, carrier, depth: 0, code_depth }.statement(tree.root_node());
}

fn tree_of(source: &str) -> Option<Tree> {
    thread_local! {
        /// Making one costs more than parsing a line.
        static PARSER: RefCell<Option<Parser>> = const { RefCell::new(None) };
    }
    PARSER.with_borrow_mut(|slot| {
        if slot.is_none() {
            let mut parser = Parser::new();
            parser.set_language(&tree_sitter_bash::LANGUAGE.into()).ok()?;
            *slot = Some(parser);
        }
        let parser = slot.as_mut()?;
        let since = Instant::now();
        let mut progress =
            |_: &ParseState| if since.elapsed() > PARSE_TIME_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let bytes = source.as_bytes();
        let tree = parser.parse_with_options(
            &mut |at, _| bytes.get(at..).unwrap_or_default(),
            None,
            Some(ParseOptions::new().progress_callback(&mut progress)),
        );
        if tree.is_none() {
            // else it would go on with this line
            parser.reset();
        }
        tree
    })
}

struct Walker<'a> {
    source: &'a str,
    line: &'a mut Line,
    carrier: Option<&'a Carrier>,
    depth: u32,
    code_depth: u32,
}

/// A simple command while its pieces are collected.
#[derive(Default)]
struct Simple {
    assignments: Vec<Assignment>,
    words: Vec<Word>,
    raw_assignments: Vec<String>,
    /// What is given on standard input as text.
    input: Option<Word>,
}

impl<'a> Walker<'a> {
    fn text(&self, node: Node<'_>) -> &'a str {
        self.source.get(node.byte_range()).unwrap_or("")
    }

    fn fail(&mut self, why: Unreadable) {
        self.line.unreadable.get_or_insert(why);
    }

    /// Calls for each child, after a look at what lies between them.
    fn each_child(&mut self, node: Node<'_>, newlines: bool, mut visit: impl FnMut(&mut Self, Node<'_>)) {
        if self.depth >= DEPTH_MAX {
            self.fail(Unreadable::Depth);
            return;
        }
        self.depth += 1;
        let mut at = node.start_byte();
        let mut cursor = node.walk();
        let mut more = cursor.goto_first_child();
        while more {
            let child = cursor.node();
            self.check_gap(at, child.start_byte(), newlines);
            at = at.max(child.end_byte());
            visit(self, child);
            more = cursor.goto_next_sibling();
        }
        self.check_gap(at, node.end_byte(), newlines);
        self.depth -= 1;
    }

    fn check_gap(&mut self, from: usize, to: usize, newlines: bool) {
        if from < to && !self.source.get(from..to).is_some_and(|gap| checks::is_blank(gap, newlines, self.source, from)) {
            self.fail(Unreadable::Ambiguous);
        }
    }

    /// Whatever runs: a command or a construct of commands.
    fn statement(&mut self, node: Node<'_>) {
        match node.kind() {
            "program" => {
                self.check_gap(0, node.start_byte(), true);
                self.check_gap(node.end_byte(), self.source.len(), true);
                self.each_child(node, true, Self::statement);
            }
            "list" | "pipeline" | "subshell" | "do_group" | "if_statement" | "elif_clause" | "else_clause" | "while_statement" => {
                self.each_child(node, true, Self::statement);
            }
            "negated_command" => self.each_child(node, false, Self::statement),
            "compound_statement" if self.text(node).starts_with("((") => self.arithmetic(node),
            "compound_statement" => self.each_child(node, true, Self::statement),
            "for_statement" => self.each_child(node, true, |walker, child| match child.kind() {
                "do_group" => walker.statement(child),
                "variable_name" if checks::may_steer(walker.text(child)) => walker.fail(Unreadable::Construct),
                "variable_name" => {}
                _ if child.is_named() => drop(walker.word(child)),
                _ => walker.token(child),
            }),
            "c_style_for_statement" => self.c_style_for(node),
            "case_statement" => self.each_child(node, true, |walker, child| match child.kind() {
                "case_item" => walker.case_item(child),
                _ if child.is_named() => drop(walker.word(child)),
                _ => walker.token(child),
            }),
            "function_definition" => self.each_child(node, true, |walker, child| match child.kind() {
                "word" => {}
                "file_redirect" | "herestring_redirect" => walker.only_redirect(child),
                _ => walker.statement(child),
            }),
            "redirected_statement" => self.redirected(node),
            "command" | "variable_assignment" | "variable_assignments" | "declaration_command" | "unset_command" => {
                let mut simple = Simple::default();
                self.simple(node, &mut simple);
                self.close(simple);
            }
            "test_command" => self.test_command(node),
            "command_substitution" | "process_substitution" => self.substitution(node),
            "comment" => self.comment(node),
            _ if node.is_named() || node.is_error() || node.is_missing() => self.unknown(node),
            _ => self.token(node),
        }
    }

    /// Says that a node is not understood, and looks into it for commands all the same.
    fn unknown(&mut self, node: Node<'_>) {
        self.fail(if node.is_error() || node.is_missing() { Unreadable::Syntax } else { Unreadable::Construct });
        let mut words: Vec<Word> = Vec::new();
        self.each_child(node, true, |walker, child| match child.kind() {
            "word" | "string" | "raw_string" | "ansi_c_string" | "number" | "concatenation" | "simple_expansion" | "expansion" => {
                words.push(walker.word(child));
            }
            "command_name" => {
                walker.guess(std::mem::take(&mut words));
                words.extend(child.child(0).map(|name| walker.word(name)));
            }
            _ if child.is_named() => {
                walker.guess(std::mem::take(&mut words));
                walker.statement(child);
            }
            _ => walker.guess(std::mem::take(&mut words)),
        });
        self.guess(words);
    }

    /// Words of something that is not understood, as if they were a command.
    fn guess(&mut self, words: Vec<Word>) {
        if !words.is_empty() {
            self.close(Simple { words, ..Simple::default() });
        }
    }

    fn token(&mut self, node: Node<'_>) {
        const KNOWN: &[&str] = &[
            "\n", "!", "&", "&&", "(", "()", ")", ";", ";&", ";;", ";;&", "case", "do", "done", "elif", "else", "esac", "fi", "for",
            "function", "if", "in", "select", "then", "until", "while", "{", "|", "|&", "||", "}",
        ];
        if node.is_missing() || !KNOWN.contains(&node.kind()) {
            self.fail(Unreadable::Construct);
        }
    }

    fn comment(&mut self, node: Node<'_>) {
        let before = self.source[..node.start_byte()].chars().next_back();
        if !before.is_none_or(|c| c.is_ascii_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')')) {
            self.fail(Unreadable::Ambiguous);
        }
    }

    fn case_item(&mut self, node: Node<'_>) {
        let mut in_pattern = true;
        self.each_child(node, true, |walker, child| {
            if child.kind() == ")" {
                in_pattern = false;
            }
            if in_pattern && child.is_named() { drop(walker.word(child)) } else { walker.statement(child) }
        });
    }

    fn c_style_for(&mut self, node: Node<'_>) {
        let mut head = String::new();
        self.each_child(node, true, |walker, child| match child.kind() {
            "do_group" | "compound_statement" => walker.statement(child),
            "for" => {}
            _ => {
                walker.substitutions(child);
                head.push_str(walker.text(child));
            }
        });
        if !checks::is_plain_arithmetic(&head) {
            self.fail(Unreadable::Arithmetic);
        }
    }

    fn redirected(&mut self, node: Node<'_>) {
        let mut simple = Simple::default();
        let mut has_body = false;
        let mut is_simple = true;
        self.each_child(node, false, |walker, child| match child.kind() {
            "command" | "variable_assignment" | "variable_assignments" | "declaration_command" | "unset_command" => {
                has_body = true;
                walker.simple(child, &mut simple);
            }
            "file_redirect" | "herestring_redirect" | "heredoc_redirect" => walker.redirect(child, &mut simple),
            _ => {
                (has_body, is_simple) = (true, false);
                walker.statement(child);
            }
        });
        let is_empty = simple.words.is_empty() && simple.assignments.is_empty();
        if !is_simple && !is_empty {
            self.fail(Unreadable::Ambiguous);
        }
        if is_simple || !simple.words.is_empty() {
            self.close(simple);
        }
    }

    /// Collects one simple command from the node's children, in the order in which they stand.
    fn simple(&mut self, node: Node<'_>, simple: &mut Simple) {
        if node.kind() == "variable_assignment" {
            self.assignment(node, simple);
            return;
        }
        let is_declaration = matches!(node.kind(), "declaration_command" | "unset_command");
        let mut last_word_end = None;
        self.each_child(node, false, |walker, child| {
            if last_word_end == Some(child.start_byte()) {
                walker.fail(Unreadable::Ambiguous);
            }
            match child.kind() {
                "variable_assignment" if is_declaration || !simple.words.is_empty() => {
                    // `export PATH=x`: an argument that is an assignment as well
                    let before = simple.words.len();
                    walker.assignment(child, simple);
                    simple.raw_assignments.pop();
                    if let Some(assignment) = simple.assignments.pop() {
                        let raw = walker.text(child).to_owned();
                        let text = format!("{}={}", assignment.name, assignment.value.text);
                        simple.words.push(Word { text, raw, ..assignment.value });
                    }
                    if before == 0 {
                        walker.fail(Unreadable::Ambiguous);
                    }
                }
                "variable_assignment" => walker.assignment(child, simple),
                "file_redirect" | "herestring_redirect" => walker.redirect(child, simple),
                "subshell" => {
                    // only `time` takes one
                    if simple.words.first().is_none_or(|word| word.raw != "time") {
                        walker.fail(Unreadable::Syntax);
                    }
                    walker.statement(child);
                }
                "command_name" => {
                    walker.check_gap(child.start_byte(), child.start_byte(), false);
                    let name = match child.child(0) {
                        Some(name) => walker.word(name),
                        None => Word::unknown(walker.text(child)),
                    };
                    if simple.words.is_empty() {
                        walker.check_program(&name);
                    }
                    simple.words.push(name);
                    last_word_end = Some(child.end_byte());
                }
                _ => {
                    let word = walker.word(child);
                    simple.words.push(word);
                    last_word_end = Some(child.end_byte());
                }
            }
        });
    }

    /// Words that the grammar takes for programs although the shell does not.
    fn check_program(&mut self, name: &Word) {
        const RESERVED: &[&str] = &[
            "!", "[[", "]]", "case", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "until",
            "while", "{", "}",
        ];
        match name.raw.as_str() {
            "coproc" => self.fail(Unreadable::Coprocess),
            raw if RESERVED.contains(&raw) => self.fail(Unreadable::Syntax),
            _ => {}
        }
    }

    fn assignment(&mut self, node: Node<'_>, simple: &mut Simple) {
        let mut name = String::new();
        let mut value: Option<Word> = None;
        self.each_child(node, false, |walker, child| match child.kind() {
            "variable_name" => name = walker.text(child).to_owned(),
            "subscript" => {
                name = walker.text(child).to_owned();
                walker.arithmetic(child);
            }
            "=" | "+=" => {}
            _ if value.is_some() => walker.fail(Unreadable::Ambiguous),
            _ => value = Some(walker.word(child)),
        });
        simple.raw_assignments.push(self.text(node).to_owned());
        simple.assignments.push(Assignment { name, value: value.unwrap_or_default() });
    }

    /// A redirection of a construct, where words beside the file would have no command to go to.
    fn only_redirect(&mut self, node: Node<'_>) {
        let mut simple = Simple::default();
        self.redirect(node, &mut simple);
        if !simple.words.is_empty() {
            self.fail(Unreadable::Ambiguous);
        }
    }

    fn redirect(&mut self, node: Node<'_>, simple: &mut Simple) {
        match node.kind() {
            "heredoc_redirect" => self.here_document(node, simple),
            "herestring_redirect" => self.each_child(node, false, |walker, child| match child.kind() {
                "file_descriptor" | "<<<" => {}
                _ => simple.input = Some(walker.word(child)),
            }),
            _ => self.file_redirect(node, simple),
        }
    }

    /// The grammar takes all words behind the operator for files, the shell only the first.
    fn file_redirect(&mut self, node: Node<'_>, simple: &mut Simple) {
        let mut operator = String::new();
        let mut target: Option<Word> = None;
        let mut last_end = None;
        self.each_child(node, false, |walker, child| match child.kind() {
            "file_descriptor" => {}
            "<" | ">" | ">>" | "&>" | "&>>" | "<&" | ">&" | ">|" | "<&-" | ">&-" => operator = walker.text(child).to_owned(),
            _ => {
                if last_end == Some(child.start_byte()) {
                    walker.fail(Unreadable::Ambiguous);
                }
                last_end = Some(child.end_byte());
                let word = walker.word(child);
                let closes = operator.ends_with('-');
                if target.is_none() && !closes { target = Some(word) } else { simple.words.push(word) }
            }
        });
        let Some(target) = target else {
            if !operator.ends_with('-') {
                self.fail(Unreadable::Syntax);
            }
            return;
        };
        let is_descriptor = operator.ends_with('&') && target.is_fixed() && checks::is_descriptor(&target.text);
        if !is_descriptor {
            self.line.redirects.push(Redirect { target, writes: operator.contains('>') });
        }
    }

    fn here_document(&mut self, node: Node<'_>, simple: &mut Simple) {
        let mut plain = true;
        let mut delimiter = None;
        let mut inner_end = None;
        let mut body = None;
        let mut end = None;
        let mut strips = false;
        // what stands between the operator and the body is looked at by hand
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.children(&mut cursor).collect();
        for child in children {
            match child.kind() {
                "<<" => {}
                "<<-" => strips = true,
                "heredoc_start" => {
                    delimiter = Some(child);
                    inner_end = Some(child.end_byte());
                }
                "file_redirect" if body.is_none() => {
                    if inner_end.is_some_and(|end| !self.source[end..child.start_byte()].trim_matches([' ', '\t']).is_empty()) {
                        plain = false;
                    }
                    inner_end = Some(child.end_byte());
                    self.redirect(child, simple);
                }
                "heredoc_body" => body = Some(child),
                "heredoc_end" => end = Some(child),
                "\n" => {}
                "file_descriptor" => plain = false,
                _ => {
                    plain = false;
                    if child.is_named() {
                        self.statement(child);
                    }
                }
            }
        }
        let text = match (delimiter, inner_end, end) {
            (Some(delimiter), Some(inner_end), Some(end)) if plain && simple.input.is_none() => {
                let delimiter = self.text(delimiter);
                checks::here_document(self.source, delimiter, strips, inner_end, end.byte_range())
            }
            _ => None,
        };
        match text {
            Some(text) => simple.input = Some(text),
            None => self.fail(Unreadable::HereDocument),
        }
        let is_quoted = delimiter.is_some_and(|delimiter| self.text(delimiter).contains(['\'', '"', '\\']));
        if let Some(body) = body.filter(|_| !is_quoted) {
            self.substitutions(body);
        }
    }

    /// `[ ... ]` is a command like any other, `[[ ... ]]` an expression; the grammar reads both as expressions.
    fn test_command(&mut self, node: Node<'_>) {
        let text = self.text(node);
        self.substitutions(node);
        let words = match text.starts_with("[[") {
            true => checks::is_plain_condition(text).then(|| {
                let word = Word { text: text.to_owned(), raw: text.to_owned(), expands: false, dynamic: text.contains(['$', '`']) };
                vec![Word::literal("[["), word]
            }),
            false => checks::test_words(text),
        };
        let Some(words) = words else {
            self.fail(Unreadable::Ambiguous);
            return;
        };
        let part =
            Part { text: text.to_owned(), words, assignments: Vec::new(), carrier: self.carrier.cloned(), carries: Carries::Nothing };
        self.line.parts.push(part);
    }

    fn arithmetic(&mut self, node: Node<'_>) {
        let rest = self.substitutions(node);
        if !checks::is_plain_arithmetic(&rest) {
            self.fail(Unreadable::Arithmetic);
        }
    }

    /// Finds the substitutions below a node; gives its text without them.
    fn substitutions(&mut self, node: Node<'_>) -> String {
        let mut rest = String::new();
        self.collect_substitutions(node, &mut rest);
        if checks::hides_substitution(&rest) {
            self.fail(Unreadable::Ambiguous);
        }
        rest
    }

    fn collect_substitutions(&mut self, node: Node<'_>, rest: &mut String) {
        if matches!(node.kind(), "command_substitution" | "process_substitution") {
            self.substitution(node);
            rest.push(ANY);
            return;
        }
        if node.is_error() || node.is_missing() {
            self.fail(Unreadable::Syntax);
        }
        if self.depth >= DEPTH_MAX {
            self.fail(Unreadable::Depth);
            return;
        }
        self.depth += 1;
        let mut at = node.start_byte();
        let mut cursor = node.walk();
        let mut more = cursor.goto_first_child();
        while more {
            let child = cursor.node();
            rest.push_str(self.source.get(at..child.start_byte()).unwrap_or(""));
            self.collect_substitutions(child, rest);
            at = child.end_byte();
            more = cursor.goto_next_sibling();
        }
        rest.push_str(self.source.get(at..node.end_byte()).unwrap_or(""));
        self.depth -= 1;
    }

    fn substitution(&mut self, node: Node<'_>) {
        let text = self.text(node);
        // escapes and quotes are read twice between backticks
        if text.contains('`') && !text.starts_with(['<', '>']) && !text.starts_with("$(") && text.contains(['\\', '"', '\'']) {
            self.fail(Unreadable::Ambiguous);
        }
        self.each_child(node, true, |walker, child| match child.kind() {
            "$(" | "`" | "$`" | "<(" | ">(" | ")" => {}
            "file_redirect" => walker.only_redirect(child),
            _ => walker.statement(child),
        });
    }

    /// The word that a node stands for; substitutions in it are commands of the line.
    fn word(&mut self, node: Node<'_>) -> Word {
        let mut word = Word { raw: self.text(node).to_owned(), ..Word::default() };
        self.add_to_word(node, &mut word, true);
        if word.text.contains("$(") || word.text.contains('`') {
            self.line.loose.push(word.text.clone());
        }
        word
    }

    fn add_to_word(&mut self, node: Node<'_>, word: &mut Word, at_start: bool) {
        let raw = self.text(node);
        match node.kind() {
            "word"
            | "number"
            | "test_operator"
            | "regex"
            | "extglob_pattern"
            | "variable_name"
            | "special_variable_name"
            | "=~"
            | "=="
            | "$"
            | "["
            | "]"
            | "{"
            | "}"
                if node.child_count() == 0 =>
            {
                if checks::holds_operator(raw) {
                    self.fail(Unreadable::Ambiguous);
                }
                let (text, expands) = words::unescaped(raw, at_start);
                word.text.push_str(&text);
                // the test program is no pattern
                word.expands |= expands && word.raw != "[";
            }
            "raw_string" => word.text.push_str(raw.strip_prefix('\'').and_then(|raw| raw.strip_suffix('\'')).unwrap_or(raw)),
            "ansi_c_string" => match words::ansi_c(raw) {
                Some(text) => word.text.push_str(&text),
                None => self.unknown_text(word),
            },
            "string" => self.add_quoted(node, word),
            "translated_string" => {
                for index in 0..node.named_child_count() {
                    if let Some(child) = node.named_child(index as _) {
                        self.add_quoted(child, word);
                    }
                }
            }
            "concatenation" => self.add_concatenation(node, word),
            "simple_expansion" | "expansion" | "number" | "process_substitution" | "command_substitution" => {
                self.substitutions(node);
                word.text.push(ANY);
                word.dynamic = true;
            }
            "arithmetic_expansion" => {
                self.arithmetic(node);
                word.text.push(ANY);
                word.dynamic = true;
            }
            "brace_expression" => {
                word.text.push_str(raw);
                word.expands = true;
            }
            "array" => {
                self.each_child(node, true, |walker, child| {
                    if child.is_named() && child.kind() != "comment" {
                        drop(walker.word(child));
                    }
                });
                word.text.push(ANY);
                word.dynamic = true;
            }
            _ => {
                self.unknown_text(word);
                self.unknown(node);
            }
        }
    }

    fn unknown_text(&mut self, word: &mut Word) {
        self.fail(Unreadable::Ambiguous);
        word.text.push(ANY);
        word.dynamic = true;
    }

    fn add_concatenation(&mut self, node: Node<'_>, word: &mut Word) {
        let mut at = node.start_byte();
        self.each_child(node, false, |walker, child| {
            if child.start_byte() != at {
                walker.fail(Unreadable::Ambiguous);
            }
            at = child.end_byte();
            // an empty substitution
            if child.kind() == "``" {
                walker.fail(Unreadable::Construct);
                return;
            }
            walker.add_to_word(child, word, child.start_byte() == node.start_byte());
        });
    }

    /// Text in double quotes is read here by hand; the grammar drops blanks and newlines in it.
    fn add_quoted(&mut self, node: Node<'_>, word: &mut Word) {
        let whole = self.text(node);
        if whole.len() < 2 || !whole.starts_with('"') || !whole.ends_with('"') {
            self.unknown_text(word);
            return;
        }
        let mut at = node.start_byte() + 1;
        let mut cursor = node.walk();
        let dynamic: Vec<Node<'_>> = node.named_children(&mut cursor).filter(|child| child.kind() != "string_content").collect();
        for child in dynamic {
            self.add_quoted_text(at, child.start_byte(), word);
            at = child.end_byte();
            self.add_to_word(child, word, false);
        }
        self.add_quoted_text(at, node.end_byte() - 1, word);
    }

    fn add_quoted_text(&mut self, from: usize, to: usize, word: &mut Word) {
        match self.source.get(from..to).and_then(words::unescaped_in_quotes) {
            Some(text) => word.text.push_str(&text),
            None => self.unknown_text(word),
        }
    }

    /// Ends a simple command: it becomes a part, and what it carries becomes parts after it.
    fn close(&mut self, simple: Simple) {
        if simple.words.is_empty() && simple.assignments.is_empty() {
            return;
        }
        let mut texts = simple.raw_assignments;
        texts.extend(simple.words.iter().map(|word| word.raw.clone()));
        let carrier = self.carrier.cloned();
        self.add_part(texts.join(" "), simple.words, simple.assignments, simple.input.as_ref(), carrier, self.code_depth);
    }

    fn add_part(
        &mut self,
        text: String,
        words: Vec<Word>,
        assignments: Vec<Assignment>,
        input: Option<&Word>,
        carrier: Option<Carrier>,
        code_depth: u32,
    ) {
        if self.line.parts.len() >= PARTS_MAX {
            self.fail(Unreadable::Length);
            return;
        }
        if code_depth > CODE_DEPTH_MAX {
            self.fail(Unreadable::Depth);
            return;
        }
        let load = carriers::load(&words, &assignments, input);
        let part = self.line.parts.len();
        let inherited = carrier.as_ref().map_or(Holds::Always, |carrier| carrier.holds);
        self.line.parts.push(Part { text, words, assignments, carrier, carries: load.carries });
        self.line.loose.extend(load.loose);
        for item in load.items {
            let holds = if inherited == Holds::DenyOnly { Holds::DenyOnly } else { item.holds };
            let carrier = Carrier { part, head: item.head, holds };
            match item.what {
                carriers::What::Command(words, assignments) => {
                    let raw = |assignment: &Assignment| format!("{}={} ", assignment.name, assignment.value.raw);
                    let text = assignments.iter().map(raw).collect::<String>() + &words::joined_raw(&words);
                    self.add_part(text, words, assignments, None, Some(carrier), code_depth + 1);
                }
                carriers::What::Code(code) if !code.contains(ANY) => {
                    read_code(&code, self.line, Some(&carrier), code_depth + 1);
                }
                carriers::What::Code(code) => {
                    self.line.loose.push(code.clone());
                    let shown = code.replace(ANY, "...");
                    self.add_part(shown.clone(), vec![Word::unknown(&shown)], Vec::new(), None, Some(carrier), code_depth + 1);
                }
            }
        }
    }
}
