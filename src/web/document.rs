//! What a server sent, as text: which kind it is, which characters, and whether it can be read at all.

use encoding_rs::{Encoding, REPLACEMENT, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252, X_USER_DEFINED};

use super::error::WebError;
use super::fetch::Body;
use super::markdown;

/// A page as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub media: Media,
    pub title: Option<String>,
    pub text: String,
    /// Name of the encoding its characters were read in.
    pub charset: &'static str,
    /// What was lost or left out, one sentence each.
    pub notes: Vec<String>,
}

/// The kinds of content that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Html,
    /// XML, SVG, feeds: as it is.
    Xml,
    /// JSON, program text, Markdown and the like: as it is.
    Text,
}

/// Bytes looked at for a declared charset, as browsers do.
const PRESCAN: usize = 1024;
/// Bytes looked at to tell text from other content.
const SNIFFED: usize = 4096;

impl Document {
    /// Reads the body. Takes as long as converting a large page takes.
    pub fn read(body: &Body) -> Result<Self, WebError> {
        let declared = body.content_type.as_deref().map(ContentType::parse);
        let media = media(declared.as_ref(), &body.bytes)?;
        let encoding = encoding(declared.as_ref(), media, &body.bytes)?;
        let bytes = &body.bytes;
        // A cut inside a character would show as a fault of the page.
        let (text, had_errors) = decoded(encoding, bytes, body.complete);
        if text.contains('\0') {
            return Err(WebError::NotText { what: "binary content".to_owned() });
        }
        let mut notes = Vec::new();
        if had_errors {
            notes.push(format!("some bytes are no {} and are shown as \u{fffd}", encoding.name()));
        }
        if !body.complete {
            notes.push(format!("the page is larger than the limit `web_page_max`; this is made from its first {} bytes", bytes.len()));
        }
        let (title, text) = match media {
            Media::Html => {
                let page = markdown::convert(&text, &body.url).map_err(|source| WebError::Conversion { reason: source.to_string() })?;
                notes.extend(page.notes);
                (page.title, page.text)
            }
            Media::Xml | Media::Text => (None, text),
        };
        Ok(Self { media, title, text, charset: encoding.name(), notes })
    }
}

impl Media {
    pub fn name(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Xml => "xml",
            Self::Text => "text",
        }
    }
}

/// `type/subtype; charset=..`, in lower case.
struct ContentType {
    essence: String,
    charset: Option<String>,
}

impl ContentType {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(';');
        let essence = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let charset = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches(['"', '\'']).to_ascii_lowercase())
        });
        Self { essence, charset: charset.filter(|charset| !charset.is_empty()) }
    }
}

fn media(declared: Option<&ContentType>, bytes: &[u8]) -> Result<Media, WebError> {
    if let Some(what) = magic(bytes) {
        return Err(WebError::NotText { what: what.to_owned() });
    }
    let essence = declared.map(|declared| declared.essence.as_str()).unwrap_or_default();
    let (kind, subtype) = essence.split_once('/').unwrap_or((essence, ""));
    let is_unknown = matches!(essence, "" | "application/octet-stream" | "binary/octet-stream" | "application/unknown" | "unknown/unknown");
    match (kind, subtype) {
        _ if is_unknown => sniffed(bytes, essence),
        ("text", "html") | ("application", "xhtml+xml") => Ok(Media::Html),
        ("text" | "application", "xml") => Ok(Media::Xml),
        (_, subtype) if subtype.ends_with("+xml") => Ok(Media::Xml),
        ("text", "rtf") => Err(WebError::NotText { what: "a document (text/rtf)".to_owned() }),
        ("text", _) => Ok(Media::Text),
        (_, subtype) if subtype.ends_with("+json") || subtype.ends_with("+yaml") => Ok(Media::Text),
        ("application", subtype) if TEXT_SUBTYPES.contains(&subtype) => Ok(Media::Text),
        ("image" | "audio" | "video" | "font", _) => Err(WebError::NotText { what: format!("{kind} data ({essence})") }),
        _ => Err(WebError::NotText { what: format!("content of the type {essence}") }),
    }
}

/// `application/...` that is text.
const TEXT_SUBTYPES: &[&str] = &[
    "ecmascript",
    "graphql",
    "javascript",
    "json",
    "json5",
    "jsonl",
    "jsonlines",
    "ndjson",
    "sql",
    "toml",
    "typescript",
    "x-httpd-php",
    "x-javascript",
    "x-ndjson",
    "x-php",
    "x-sh",
    "x-shellscript",
    "x-tex",
    "x-toml",
    "x-yaml",
    "yaml",
];

/// Formats whose beginning says that they are no text, whatever the server claims.
fn magic(bytes: &[u8]) -> Option<&'static str> {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"%PDF-", "a PDF document"),
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"GIF87a", "a GIF image"),
        (b"GIF89a", "a GIF image"),
        (b"PK\x03\x04", "a ZIP archive or office document"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"\x7fELF", "a program"),
        (b"\xd0\xcf\x11\xe0", "an office document"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
        (b"BZh", "a bzip2 archive"),
        (b"\xfd7zXZ\0", "an xz archive"),
        (b"\0asm", "a WebAssembly program"),
    ];
    KNOWN.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, what)| *what)
}

/// The kind of content that nobody declared.
fn sniffed(bytes: &[u8], essence: &str) -> Result<Media, WebError> {
    let start = &bytes[..bytes.len().min(SNIFFED)];
    let has_mark = Encoding::for_bom(start).is_some();
    let is_text = has_mark || is_utf8_but_for_a_cut(start) && !start.contains(&0);
    if !is_text {
        let what = if essence.is_empty() { "binary content of an unknown type".to_owned() } else { format!("binary content ({essence})") };
        return Err(WebError::NotText { what });
    }
    let text = String::from_utf8_lossy(start).trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']).to_ascii_lowercase();
    if text.starts_with("<!doctype html") || text.starts_with("<html") || text.starts_with("<head") || text.starts_with("<body") {
        return Ok(Media::Html);
    }
    Ok(if text.starts_with("<?xml") { Media::Xml } else { Media::Text })
}

fn is_utf8_but_for_a_cut(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// A byte order mark, the header, what the page says of itself, else UTF-8.
fn encoding(declared: Option<&ContentType>, media: Media, bytes: &[u8]) -> Result<&'static Encoding, WebError> {
    if let Some((marked, _)) = Encoding::for_bom(bytes) {
        return Ok(marked);
    }
    let by_header = declared.and_then(|declared| declared.charset.as_deref()).and_then(known);
    let own = || {
        let start = &bytes[..bytes.len().min(PRESCAN)];
        let label = match media {
            Media::Html => declared_in_html(start).or_else(|| declared_in_xml(start)),
            Media::Xml => declared_in_xml(start),
            Media::Text => None,
        }?;
        // Whoever could read the declaration byte by byte has no UTF-16 before them.
        let encoding = known(&label)?;
        Some(if encoding == UTF_16LE || encoding == UTF_16BE { UTF_8 } else { encoding })
    };
    let encoding = by_header.or_else(own).unwrap_or(UTF_8);
    if encoding == REPLACEMENT {
        let charset = declared.and_then(|declared| declared.charset.clone()).unwrap_or_else(|| "unknown".to_owned());
        return Err(WebError::Charset { charset });
    }
    Ok(encoding)
}

fn known(label: &str) -> Option<&'static Encoding> {
    let encoding = Encoding::for_label(label.as_bytes())?;
    Some(if encoding == X_USER_DEFINED { WINDOWS_1252 } else { encoding })
}

/// `<meta charset=..>` or `<meta http-equiv=content-type content="..; charset=..">`, outside comments.
fn declared_in_html(start: &[u8]) -> Option<String> {
    let text: String = start.iter().map(|byte| char::from(*byte).to_ascii_lowercase()).collect();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('<') {
        rest = &rest[at..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end..]);
            continue;
        }
        let end = rest.find('>').unwrap_or(rest.len());
        if let Some(tag) = rest[..end].strip_prefix("<meta")
            && tag.starts_with(|c: char| c.is_whitespace() || c == '/')
            && let Some(label) = charset_of_meta(tag)
        {
            return Some(label);
        }
        rest = &rest[end.max(1)..];
    }
    None
}

fn charset_of_meta(tag: &str) -> Option<String> {
    let at = tag.find("charset")?;
    let value = tag[at + "charset".len()..].trim_start().strip_prefix('=')?.trim_start();
    let value = value.trim_start_matches(['"', '\'']);
    let label: String = value.chars().take_while(|c| !c.is_whitespace() && !matches!(c, '"' | '\'' | ';' | '>' | '/')).collect();
    (!label.is_empty()).then_some(label)
}

/// `<?xml version="1.0" encoding="..."?>`
fn declared_in_xml(start: &[u8]) -> Option<String> {
    let text: String = start.iter().map(|byte| char::from(*byte)).collect();
    let declaration = text.strip_prefix("<?xml")?.split("?>").next()?;
    let value = declaration.split("encoding").nth(1)?.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let label = value[1..].split(quote).next()?;
    (!label.is_empty()).then(|| label.to_owned())
}

/// The text, and whether bytes were replaced. Half a character at a cut is left out.
fn decoded(encoding: &'static Encoding, bytes: &[u8], complete: bool) -> (String, bool) {
    let mut decoder = encoding.new_decoder_with_bom_removal();
    let room = decoder.max_utf8_buffer_length(bytes.len()).unwrap_or(bytes.len().saturating_mul(3));
    let mut text = String::with_capacity(room.min(bytes.len().saturating_mul(3)).max(16));
    let mut rest = bytes;
    let mut had_errors = false;
    loop {
        let (result, read, replaced) = decoder.decode_to_string(rest, &mut text, complete);
        had_errors |= replaced;
        rest = &rest[read..];
        match result {
            encoding_rs::CoderResult::InputEmpty => break,
            encoding_rs::CoderResult::OutputFull => text.reserve(rest.len().saturating_mul(3).max(64)),
        }
    }
    (text, had_errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(content_type: Option<&str>, bytes: &[u8]) -> Body {
        Body {
            url: "https://example.com/".parse().unwrap(),
            status: 200,
            content_type: content_type.map(str::to_owned),
            bytes: bytes.to_vec(),
            complete: true,
        }
    }

    /// Mark before header before the page's own word before UTF-8.
    #[test]
    fn characters_are_read_as_they_were_written() {
        let cases: &[(&str, &[u8], &str, &str)] = &[
            ("text/plain", "Grüße 你好".as_bytes(), "UTF-8", "Grüße 你好"),
            ("text/plain; charset=utf-8", "é".as_bytes(), "UTF-8", "é"),
            ("text/plain; charset=ISO-8859-1", b"Gr\xfc\xdfe \x80", "windows-1252", "Grüße €"),
            ("text/plain; charset=\"gbk\"", b"\xc4\xe3\xba\xc3", "GBK", "你好"),
            ("text/plain; charset=shift_jis", b"\x93\xfa\x96{", "Shift_JIS", "日本"),
            ("text/plain; charset=euc-kr", b"\xc7\xd1", "EUC-KR", "한"),
            ("text/plain; charset=koi8-r", b"\xf0\xd2", "KOI8-R", "Пр"),
            ("text/plain; charset=utf-16le", b"h\0i\0", "UTF-16LE", "hi"),
            ("text/plain; charset=iso-8859-1", b"\xef\xbb\xbf\xc3\xa9", "UTF-8", "é"),
            ("text/plain", b"\xff\xfeh\0i\0", "UTF-16LE", "hi"),
            ("text/plain", b"\xfe\xff\0h\0i", "UTF-16BE", "hi"),
            ("text/plain; charset=no-such-thing", "é".as_bytes(), "UTF-8", "é"),
            ("text/plain; charset=utf-7", b"a", "UTF-8", "a"),
            ("text/html", b"<meta charset=windows-1251><p>\xcf\xf0", "windows-1251", "Пр"),
            (
                "text/html",
                b"<!-- <meta charset=gbk> --><META http-equiv=Content-Type content='text/html; charset=big5'><p>\xa7A",
                "Big5",
                "你",
            ),
            ("text/html; charset=utf-8", "<meta charset=gbk><p>é".as_bytes(), "UTF-8", "é"),
            ("text/html", "<meta charset=utf-16><p>é".as_bytes(), "UTF-8", "é"),
            (
                "application/xml",
                b"<?xml version='1.0' encoding='iso-8859-1'?><a>\xe9</a>",
                "windows-1252",
                "<?xml version='1.0' encoding='iso-8859-1'?><a>é</a>",
            ),
        ];
        for (content_type, bytes, charset, text) in cases {
            let document = Document::read(&body(Some(content_type), bytes)).unwrap();
            assert_eq!((document.charset, document.text.trim()), (*charset, *text), "{content_type}");
            assert!(document.notes.is_empty(), "{content_type}: {:?}", document.notes);
        }
    }

    #[test]
    fn bytes_that_are_no_characters_are_replaced_and_told() {
        let document = Document::read(&body(Some("text/plain"), b"a\xff\xfeb")).unwrap();
        assert_eq!(document.text, "a\u{fffd}\u{fffd}b");
        assert_eq!(document.notes, ["some bytes are no UTF-8 and are shown as \u{fffd}"]);
        let cut = Body { complete: false, ..body(Some("text/plain"), &"aé".as_bytes()[..2]) };
        let document = Document::read(&cut).unwrap();
        assert_eq!((document.text.as_str(), document.notes.len()), ("a", 1));
    }

    #[test]
    fn what_is_no_text_is_refused_by_name() {
        for (content_type, bytes, expected) in [
            (Some("application/pdf"), b"%PDF-1.7".as_slice(), "the address holds a PDF document, which is no text"),
            (Some("text/html"), b"%PDF-1.7", "the address holds a PDF document, which is no text"),
            (Some("application/pdf"), b"x", "the address holds content of the type application/pdf, which is no text"),
            (Some("image/png"), b"x", "the address holds image data (image/png), which is no text"),
            (Some("text/plain"), b"a\0b", "the address holds binary content, which is no text"),
            (Some("application/octet-stream"), b"a\0b", "the address holds binary content (application/octet-stream), which is no text"),
            (None, b"\xc0\xc0", "the address holds binary content of an unknown type, which is no text"),
            (Some("application/zip"), b"PK\x03\x04", "the address holds a ZIP archive or office document, which is no text"),
            (
                Some("text/plain; charset=iso-2022-kr"),
                b"a",
                "the page says that its characters are encoded as `iso-2022-kr`, which cannot be read safely",
            ),
        ] {
            assert_eq!(Document::read(&body(content_type, bytes)).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn text_is_taken_as_it_is() {
        for (content_type, bytes, media) in [
            (Some("application/json; charset=utf-8"), b"{\"a\": \"<b>\"}".as_slice(), Media::Text),
            (Some("application/problem+json"), b"{}", Media::Text),
            (Some("text/markdown"), b"# <T>", Media::Text),
            (Some("application/x-yaml"), b"a: 1", Media::Text),
            (Some("application/octet-stream"), b"fn main() {}", Media::Text),
            (None, b"plain", Media::Text),
            (Some("image/svg+xml"), b"<svg/>", Media::Xml),
            (Some("application/atom+xml"), b"<feed/>", Media::Xml),
        ] {
            let document = Document::read(&body(content_type, bytes)).unwrap();
            assert_eq!((document.media, document.text.as_bytes()), (media, bytes));
        }
        let undeclared = Document::read(&body(None, b"\n<!DOCTYPE html><title>T</title><h1>H</h1>")).unwrap();
        assert_eq!((undeclared.media, undeclared.title.as_deref(), undeclared.text.as_str()), (Media::Html, Some("T"), "# H"));
    }
}
