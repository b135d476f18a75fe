//! Server-sent events to frames, as the HTML standard reads them: CR, LF and CRLF, a byte order mark, comments, unknown
//! fields and lines without a colon. Chunks may be cut anywhere, inside a character too. An event has a size limit.

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Empty when the stream named none.
    pub event: String,
    pub data: String,
}

/// An event was larger than the limit.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("an event of the stream is larger than {limit} bytes")]
pub struct EventTooLarge {
    pub limit: usize,
}

/// Takes chunks, gives frames. An event without its closing blank line is never given.
#[derive(Debug)]
pub struct Parser {
    /// Bytes of the line that is not yet complete.
    line: Vec<u8>,
    event: Vec<u8>,
    data: Vec<u8>,
    limit: usize,
    /// The last byte was CR: a following LF belongs to it.
    after_carriage_return: bool,
    first_line: bool,
}

impl Parser {
    /// `limit`: largest event in bytes.
    pub fn new(limit: usize) -> Self {
        Self { line: Vec::new(), event: Vec::new(), data: Vec::new(), limit, after_carriage_return: false, first_line: true }
    }

    /// Reads a chunk and appends the frames it completes.
    pub fn push(&mut self, chunk: &[u8], frames: &mut Vec<Frame>) -> Result<(), EventTooLarge> {
        let mut rest = chunk;
        if self.after_carriage_return && !rest.is_empty() {
            self.after_carriage_return = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend_line(&rest[..end])?;
            let carriage_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if carriage_return {
                match rest.first() {
                    Some(b'\n') => rest = &rest[1..],
                    Some(_) => {}
                    None => self.after_carriage_return = true,
                }
            }
            self.end_line(frames);
        }
        self.extend_line(rest)
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), EventTooLarge> {
        if self.line.len() + self.data.len() + self.event.len() + bytes.len() > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, frames: &mut Vec<Frame>) {
        let line = std::mem::take(&mut self.line);
        let mut text = line.as_slice();
        if std::mem::take(&mut self.first_line) {
            text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        }
        if text.is_empty() {
            self.dispatch(frames);
        } else {
            let (name, value) = match text.iter().position(|byte| *byte == b':') {
                Some(colon) => (&text[..colon], text[colon + 1..].strip_prefix(b" ").unwrap_or(&text[colon + 1..])),
                None => (text, &b""[..]),
            };
            match name {
                b"data" => {
                    self.data.extend_from_slice(value);
                    self.data.push(b'\n');
                }
                b"event" => self.event = value.to_vec(),
                // Comments have an empty name; `id`, `retry` and unknown fields mean nothing for one answer.
                _ => {}
            }
        }
        // The buffer is kept for the next line.
        self.line = line;
        self.line.clear();
    }

    fn dispatch(&mut self, frames: &mut Vec<Frame>) {
        let event = std::mem::take(&mut self.event);
        let mut data = std::mem::take(&mut self.data);
        if data.pop().is_none() {
            return;
        }
        frames.push(Frame { event: text_of(event), data: text_of(data) });
    }
}

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use proptest::prelude::*;

    fn parse(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = Parser::new(1 << 20);
        let mut frames = Vec::new();
        for chunk in chunks {
            parser.push(chunk, &mut frames).unwrap();
        }
        frames.into_iter().map(|frame| (frame.event, frame.data)).collect()
    }

    fn frame(event: &str, data: &str) -> (String, String) {
        (event.to_owned(), data.to_owned())
    }

    #[test]
    fn every_line_end_and_oddity_of_the_standard() {
        assert_eq!(parse(&[b"\xef\xbb\xbfdata: a\n\n"]), [frame("", "a")]);
        assert_eq!(parse(&[b"data: a\r\rdata:b\r\n\r\n"]), [frame("", "a"), frame("", "b")]);
        assert_eq!(parse(&[b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"]), [frame("", "a\nb")]);
        assert_eq!(parse(&[b": comment\nwhat: ever\nno colon\nevent: x\nevent: y\nid: 1\ndata\ndata: z\n\n"]), [frame("y", "\nz")]);
        assert_eq!(parse(&[b"event: lonely\n\ndata: a\n\n"]), [frame("", "a")]);
        assert_eq!(parse(&[b"data: no end\n"]), []);
        assert_eq!(parse(&[b"data:  two spaces\n\n"]), [frame("", " two spaces")]);
        assert_eq!(parse(&[b"data: \xff\n\n"]), [frame("", "\u{fffd}")]);
    }

    #[test]
    fn an_event_has_a_size_limit() {
        let mut parser = Parser::new(10);
        let mut frames = Vec::new();
        parser.push(b"data: abc\n\n", &mut frames).unwrap();
        assert_eq!(parser.push(b"data: abcdefgh", &mut frames), Err(EventTooLarge { limit: 10 }));
        assert_eq!(frames.len(), 1);
    }

    proptest! {
        /// Against two parsers written by others, over texts cut at random places, inside characters too.
        #[test]
        fn agrees_with_others_wherever_the_chunks_are_cut(
            lines in proptest::collection::vec("(data|event|x|id|retry|)(:| |: |)[a-z你好😀 :]{0,8}", 0..12),
            blank in proptest::collection::vec(any::<bool>(), 12),
            ends in proptest::collection::vec(0..3_usize, 24),
            cuts in proptest::collection::vec(1..9_usize, 1..40),
        ) {
            let mut text = String::new();
            for (index, line) in lines.iter().enumerate() {
                // By the standard `event` alone empties the type; sseer passes over it.
                text.push_str(if line == "event" { "event:" } else { line });
                text.push_str(["\n", "\r\n", "\r"][ends[index]]);
                if blank[index] {
                    text.push_str(["\n", "\r\n", "\r"][ends[index + 12]]);
                }
            }
            text.push_str("\n\n");
            let mut chunks: Vec<&[u8]> = Vec::new();
            let mut rest = text.as_bytes();
            for size in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (head, tail) = rest.split_at((*size).min(rest.len()));
                chunks.push(head);
                rest = tail;
            }
            let ours: Vec<_> = parse(&chunks)
                .into_iter()
                .map(|(event, data)| (if event.is_empty() { "message".to_owned() } else { event }, data))
                // The two others differ from the standard (and from each other) on events whose data is empty.
                .filter(|(_, data)| !data.is_empty())
                .collect();
            let chunks: Vec<Result<Vec<u8>, std::io::Error>> = chunks.into_iter().map(|chunk| Ok(chunk.to_vec())).collect();
            let again: Vec<Result<Vec<u8>, std::io::Error>> = chunks.iter().map(|chunk| Ok(chunk.as_ref().unwrap().clone())).collect();
            let sseer: Vec<_> = futures_executor(sseer::EventStream::new(futures_util::stream::iter(chunks)).collect::<Vec<_>>())
                .into_iter()
                .map(Result::unwrap)
                .map(|event| (if event.event.is_empty() { "message".to_owned() } else { event.event.to_string() }, event.data.to_string()))
                .filter(|(_, data)| !data.is_empty())
                .collect();
            let other: Vec<_> = futures_executor(
                eventsource_stream::EventStream::new(futures_util::stream::iter(again)).collect::<Vec<_>>(),
            )
                .into_iter()
                .map(Result::unwrap)
                .map(|event| (if event.event.is_empty() { "message".to_owned() } else { event.event }, event.data))
                .filter(|(_, data)| !data.is_empty())
                .collect();
            prop_assert_eq!(&ours, &sseer, "sseer");
            prop_assert_eq!(&ours, &other, "eventsource-stream");
        }
    }

    fn futures_executor<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }
}
