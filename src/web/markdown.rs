//! HTML to Markdown, in bounded time and memory whatever the page holds.
//!
//! The parser and the converter are libraries; what stands here keeps hostile pages from them: parsing has a deadline,
//! and a page that is nested or repeated beyond what people write is given as its text alone. What is no content
//! (scripts, styles, pictures inside the page) is left out, and links are made absolute.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use htmd::element_handler::{HandlerResult, Handlers};
use htmd::options::{BrStyle, Options};
use htmd::{Element, HtmlToMarkdown};
use html5ever::tendril::{StrTendril, TendrilSink};
use html5ever::tree_builder::TreeBuilderOpts;
use html5ever::{Attribute, ParseOpts, parse_document};
use markup5ever_rcdom::{Handle, NodeData, RcDom};
use rustix::time::{ClockId, clock_gettime};
use url::Url;

pub(crate) struct Page {
    pub title: Option<String>,
    pub text: String,
    pub notes: Vec<String>,
}

/// The parser is asked for so many bytes between two looks at the clock.
const CHUNK: usize = 16 * 1024;
/// Time of the processor, so that a busy machine shortens no page.
const PARSE_MAX: Duration = Duration::from_secs(10);
/// The converter goes down the tree by recursion, on a thread of its own.
const DEPTH_MAX: usize = 200;
const STACK: usize = 64 * 1024 * 1024;
/// It joins equal neighbours inside a line in time that grows with the square of their number.
const REPEATS_MAX: usize = 20_000;
const NODES_MAX: usize = 3_000_000;
/// Quotes and lists inside one another repeat their indentation on every line.
const INDENTATION_ALWAYS: usize = 20;
const INDENTED_BYTES_MAX: usize = 16 * 1024 * 1024;
const TITLE_CHARACTERS_MAX: usize = 300;

/// Elements that hold no text for a reader.
const LEFT_OUT: &[&str] = &[
    "applet", "audio", "canvas", "embed", "frame", "frameset", "iframe", "link", "meta", "object", "script", "style", "svg", "template",
    "video",
];

/// Converts a page. Blocking: a large page takes a second or two.
pub(crate) fn convert(html: &str, base: &Url) -> io::Result<Page> {
    // The tree cannot leave the thread that made it, so the whole of the work is done there.
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("html".to_owned()).stack_size(STACK).spawn_scoped(scope, || converted(html, base))?;
        worker.join().map_err(|_| io::Error::other("the converter stopped in the middle of it"))
    })
}

/// The words of a short piece of HTML.
pub(crate) fn text_of(html: &str) -> String {
    plain_text(&parsed(html, PARSE_MAX).0.document)
}

fn converted(html: &str, base: &Url) -> Page {
    let (dom, whole) = parsed(html, PARSE_MAX);
    let survey = survey(&dom.document, base);
    let mut notes = Vec::new();
    if !whole {
        notes.push("the page takes too long to read; this is its beginning".to_owned());
    }
    let text = if survey.is_ordinary(html.len()) {
        converter().tree_to_markdown(&dom.document)
    } else {
        notes.push("the page is too deeply nested or too repetitive for a conversion; this is its text alone".to_owned());
        plain_text(&dom.document)
    };
    Page { title: survey.title, text: text.trim().to_owned(), notes }
}

/// The tree, and whether it is of the whole page.
fn parsed(html: &str, within: Duration) -> (RcDom, bool) {
    let tree_builder = TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() };
    let mut parser = parse_document(RcDom::default(), ParseOpts { tree_builder, ..ParseOpts::default() });
    let since = worked();
    let mut rest = html;
    while !rest.is_empty() && worked().saturating_sub(since) < within {
        let (chunk, later) = rest.split_at(rest.floor_char_boundary(CHUNK));
        parser.process(StrTendril::from_slice(chunk));
        rest = later;
    }
    (parser.finish(), rest.is_empty())
}

/// Time of the processor that this thread has used.
fn worked() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn converter() -> HtmlToMarkdown {
    let options = Options { ul_bullet_spacing: 1, ol_number_spacing: 1, br_style: BrStyle::Backslash, ..Options::default() };
    HtmlToMarkdown::builder().options(options).add_handler(vec!["table"], table).scripting_enabled(false).build()
}

/// What the tree is like, after it was cleaned.
#[derive(Default)]
struct Survey {
    title: Option<String>,
    depth: usize,
    nodes: usize,
    /// Most equal neighbours of one element.
    repeats: usize,
    /// Quotes and lists inside one another.
    indentation: usize,
}

impl Survey {
    fn is_ordinary(&self, bytes: usize) -> bool {
        self.depth <= DEPTH_MAX
            && self.nodes <= NODES_MAX
            && self.repeats <= REPEATS_MAX
            && (self.indentation <= INDENTATION_ALWAYS || self.indentation.saturating_mul(bytes) <= INDENTED_BYTES_MAX)
    }
}

/// Takes out what is no content, makes links absolute, and measures. Goes without recursion.
fn survey(document: &Handle, base: &Url) -> Survey {
    let mut survey = Survey::default();
    let mut base = base.clone();
    let mut has_base = false;
    let mut waiting: Vec<(Handle, usize, usize)> = vec![(Rc::clone(document), 0, 0)];
    while let Some((node, depth, indentation)) = waiting.pop() {
        survey.nodes += 1;
        survey.depth = survey.depth.max(depth);
        let mut indentation = indentation;
        if let NodeData::Element { name, attrs, .. } = &node.data {
            match &*name.local {
                "title" if survey.title.is_none() => survey.title = title(&node),
                "base" if !has_base => {
                    if let Some(own) = attribute(&attrs.borrow(), "href").and_then(|href| base.join(&href).ok()) {
                        (base, has_base) = (own, true);
                    }
                }
                "blockquote" | "ul" | "ol" | "li" => indentation += 1,
                _ => {}
            }
            mend_links(&mut attrs.borrow_mut(), &base);
        }
        survey.indentation = survey.indentation.max(indentation);
        let mut children = node.children.borrow_mut();
        children.retain(|child| !is_left_out(child));
        survey.repeats = survey.repeats.max(repeats(&children));
        waiting.extend(children.iter().rev().map(|child| (Rc::clone(child), depth + 1, indentation)));
        // The head is read for title and base, and is no part of the text.
        drop(children);
        if is_element(&node, "title") {
            node.children.borrow_mut().clear();
        }
    }
    survey
}

/// Neighbours of the same name with nothing between them, blocks aside.
fn repeats(children: &[Handle]) -> usize {
    const BLOCKS: &[&str] =
        &["p", "div", "li", "tr", "td", "th", "dt", "dd", "section", "article", "option", "pre", "table", "br", "img", "a"];
    let is_equal = |one: &Handle, other: &Handle| match (&one.data, &other.data) {
        (NodeData::Element { name: one, .. }, NodeData::Element { name: other, .. }) => one == other && !BLOCKS.contains(&&*one.local),
        _ => false,
    };
    children.windows(2).filter(|pair| is_equal(&pair[0], &pair[1])).count()
}

fn is_element(node: &Handle, wanted: &str) -> bool {
    matches!(&node.data, NodeData::Element { name, .. } if &*name.local == wanted)
}

fn is_left_out(node: &Handle) -> bool {
    match &node.data {
        NodeData::Element { name, attrs, .. } => {
            let is_hidden = || attrs.borrow().iter().any(|attribute| &*attribute.name.local == "hidden");
            LEFT_OUT.contains(&&*name.local) || is_hidden()
        }
        NodeData::Comment { .. } | NodeData::ProcessingInstruction { .. } => true,
        NodeData::Document | NodeData::Doctype { .. } | NodeData::Text { .. } => false,
    }
}

fn attribute(attributes: &[Attribute], wanted: &str) -> Option<String> {
    attributes.iter().find(|attribute| &*attribute.name.local == wanted).map(|attribute| attribute.value.to_string())
}

/// Links that lead somewhere are made whole, others (scripts, data inside the page) are taken away.
fn mend_links(attributes: &mut Vec<Attribute>, base: &Url) {
    attributes.retain_mut(|attribute| {
        if !matches!(&*attribute.name.local, "href" | "src") {
            return true;
        }
        let Ok(link) = base.join(attribute.value.trim()) else { return false };
        if !matches!(link.scheme(), "http" | "https" | "mailto") {
            return false;
        }
        attribute.value = StrTendril::from_slice(link.as_str());
        true
    });
}

fn title(node: &Handle) -> Option<String> {
    let text: String = node
        .children
        .borrow()
        .iter()
        .filter_map(|child| match &child.data {
            NodeData::Text { contents } => Some(contents.borrow().to_string()),
            _ => None,
        })
        .collect();
    let title: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(TITLE_CHARACTERS_MAX).collect();
    (!title.is_empty()).then_some(title)
}

/// All text in the order of the page, a line for each block.
fn plain_text(document: &Handle) -> String {
    const INLINE: &[&str] =
        &["a", "abbr", "b", "code", "em", "font", "i", "kbd", "mark", "s", "small", "span", "strong", "sub", "sup", "u"];
    let mut text = String::new();
    let mut waiting = vec![Rc::clone(document)];
    while let Some(node) = waiting.pop() {
        match &node.data {
            NodeData::Text { contents } => {
                for word in contents.borrow().split_ascii_whitespace() {
                    if !text.is_empty() && !text.ends_with('\n') {
                        text.push(' ');
                    }
                    text.push_str(word);
                }
            }
            NodeData::Element { name, .. } if !INLINE.contains(&&*name.local) && !text.is_empty() && !text.ends_with('\n') => {
                text.push('\n')
            }
            _ => {}
        }
        waiting.extend(node.children.borrow().iter().rev().map(Rc::clone));
    }
    text
}

/// A table without padding: one wide cell would otherwise widen every row.
fn table(handlers: &dyn Handlers, element: Element) -> Option<HandlerResult> {
    let rows = rows(element.node);
    let is_layout = is_inside_cell(element.node) || !rows.iter().flatten().any(|cell| is_element(cell, "th"));
    if is_layout {
        let content = handlers.walk_children(element.node).content;
        return Some(format!("\n\n{}\n\n", content.trim_matches('\n')).into());
    }
    let mut text = String::from("\n\n");
    for (index, row) in rows.iter().enumerate() {
        for cell in row {
            let content = handlers.walk_children(cell).content;
            let words: Vec<&str> = content.split_whitespace().collect();
            text.push_str(&format!("| {} ", words.join(" ").replace('|', "\\|")));
        }
        text.push_str("|\n");
        if index == 0 {
            text.push_str(&"| --- ".repeat(row.len()));
            text.push_str("|\n");
        }
    }
    text.push('\n');
    Some(text.into())
}

/// The cells of each row that has any.
fn rows(table: &Handle) -> Vec<Vec<Handle>> {
    let elements = |node: &Handle, wanted: &[&str]| -> Vec<Handle> {
        node.children.borrow().iter().filter(|child| wanted.iter().any(|name| is_element(child, name))).map(Rc::clone).collect()
    };
    let mut rows = Vec::new();
    for part in elements(table, &["thead", "tbody", "tfoot", "tr"]) {
        let of_part = if is_element(&part, "tr") { vec![part] } else { elements(&part, &["tr"]) };
        rows.extend(of_part.iter().map(|row| elements(row, &["td", "th"])).filter(|cells| !cells.is_empty()));
    }
    rows
}

fn is_inside_cell(node: &Handle) -> bool {
    let parent_of = |node: &Handle| {
        let parent = node.parent.take();
        let found = parent.as_ref().and_then(std::rc::Weak::upgrade);
        node.parent.set(parent);
        found
    };
    let mut above = parent_of(node);
    while let Some(parent) = above {
        if is_element(&parent, "td") || is_element(&parent, "th") {
            return true;
        }
        above = parent_of(&parent);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(html: &str) -> Page {
        convert(html, &"https://example.com/docs/a.html".parse().unwrap()).unwrap()
    }

    #[test]
    fn what_a_reader_sees_is_kept_and_the_rest_is_not() {
        let page = page(
            "<!doctype html><html><head><title> The\n title </title><style>p{}</style><script>alert('x')</script></head><body>\
             <!-- secret --><h1>Head</h1><p>One <b>two</b> <a href='../x?y=1'>link</a> <a href='javascript:alert(1)'>bad</a></p>\
             <ul><li>a<ul><li>b</li></ul></li></ul><ol><li>c</li></ol><pre><code class='language-rust'>fn main() {}\n</code></pre>\
             <img src='data:image/png;base64,AAAA' alt='inline'><img src='/pic.png' alt='pic'><div hidden>unseen</div>\
             <noscript>needs scripts</noscript><iframe src='/f'></iframe><svg><text>drawn</text></svg></body></html>",
        );
        assert_eq!(page.title.as_deref(), Some("The title"));
        assert_eq!(
            page.text,
            "# Head\n\nOne **two** [link](https://example.com/x?y=1) bad\n\n* a\n  * b\n\n1. c\n\n```rust\nfn main() {}\n```\n\n\
             ![pic](https://example.com/pic.png)needs scripts"
        );
        assert!(page.notes.is_empty());
    }

    #[test]
    fn tables_are_not_padded() {
        let table = page("<table><tr><th>A</th><th>B|C</th></tr><tr><td>1</td><td>two<br>lines</td></tr></table>").text;
        assert_eq!(table, "| A | B\\|C |\n| --- | --- |\n| 1 | two\\ lines |");
        assert_eq!(page("<table><tr><td><p>lay</p></td><td>out</td></tr></table>").text, "lay\n\nout");
    }

    #[test]
    fn a_base_of_the_page_holds_for_its_links() {
        assert_eq!(page("<base href='https://other.example/d/'><a href='e'>x</a>").text, "[x](https://other.example/d/e)");
    }

    /// Each of these would take a converter hours, gigabytes or its stack.
    #[test]
    fn hostile_pages_end_as_text() {
        let n = 60_000;
        for (name, html) in [
            ("nested blocks", format!("{}deep", "<div>".repeat(n))),
            ("nested quotes", format!("{}{}", "<blockquote>".repeat(150), "x<br>".repeat(n * 2))),
            ("neighbours", "<b>x</b>".repeat(n)),
            ("nested formats", format!("{}deep", "<b><i><u><a>".repeat(n / 20))),
            ("nested tables", format!("{}deep", "<table><tr><td>".repeat(n / 20))),
            ("a wide cell", format!("<table><tr><th>{}</th></tr>{}</table>", "w".repeat(n), "<tr><td>x</td></tr>".repeat(n / 20))),
            ("open tags", "<".repeat(n)),
            ("attributes", format!("<p {}>deep", "a=b ".repeat(n))),
        ] {
            let page = page(&html);
            assert!(page.text.len() <= 4 * html.len(), "{name}: {} bytes of text", page.text.len());
        }
    }

    #[test]
    fn a_page_that_takes_too_long_is_given_in_part() {
        let (dom, whole) = parsed(&"<p>x".repeat(100_000), Duration::ZERO);
        assert!(!whole);
        assert_eq!(plain_text(&dom.document), "");
        assert!(parsed("<p>x", Duration::from_secs(60)).1);
    }
}
