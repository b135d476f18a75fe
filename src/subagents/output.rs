//! Reads what is shown of a job's output: both ends, never the whole.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::config::layout::Stream;
use crate::ids::JobKind;
use crate::supervisor::capture::{Ends, read_ends};
use crate::text::fold::{Excerpt, Output};

use super::job::Job;

/// The ends of one stream with its counts. An output that cannot be read is shown as empty, with the reason beside it.
pub fn read(job: &Job, stream: Stream, each_end: u64) -> (Output, Option<String>) {
    if job.owner.kind == JobKind::LocalAgent {
        return read_agent(job, stream, each_end);
    }
    let count = job.count(stream);
    let path = job.folder.output(stream).display().to_string();
    let write_failed = job.output_error().is_some();
    match read_ends(&job.folder, stream, count, each_end) {
        Ok(ends) => {
            let seen = (ends.head.len() + ends.tail.len()) as u64 + ends.left_out;
            let bytes = count.bytes.max(seen);
            let whole = ends.left_out == 0 && ends.tail.is_empty();
            // The count of a running job may be older than the file.
            let kept = if count.kept == count.bytes { bytes } else { count.kept };
            let lines = if whole { line_feeds(&ends.head) } else { count.lines };
            let excerpt = if whole { Excerpt::Whole(ends.head) } else { Excerpt::Ends { head: ends.head, tail: ends.tail } };
            (Output { excerpt, bytes, kept, write_failed, lines, path }, None)
        }
        Err(error) => {
            let reason = format!("cannot read {path}: {error}");
            let excerpt = Excerpt::Whole(Vec::new());
            (Output { excerpt, bytes: count.bytes, kept: count.kept, write_failed, lines: count.lines, path }, Some(reason))
        }
    }
}

/// A local agent's text stands in one file; it has no second stream.
fn read_agent(job: &Job, stream: Stream, each_end: u64) -> (Output, Option<String>) {
    let path = job.folder.agent_output();
    let shown = path.display().to_string();
    let nothing = |shown| Output { excerpt: Excerpt::Whole(Vec::new()), bytes: 0, kept: 0, write_failed: false, lines: 0, path: shown };
    if stream == Stream::Stderr {
        return (nothing(shown), None);
    }
    match ends_of(&path, each_end) {
        Ok((excerpt, bytes)) => {
            let lines = match &excerpt {
                Excerpt::Whole(whole) => line_feeds(whole),
                Excerpt::Ends { head, tail } => line_feeds(head) + line_feeds(tail),
            };
            (Output { excerpt, bytes, kept: bytes, write_failed: false, lines, path: shown }, None)
        }
        // Nothing was written yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (nothing(shown), None),
        Err(error) => {
            let reason = format!("cannot read {shown}: {error}");
            (nothing(shown), Some(reason))
        }
    }
}

/// The whole of a short file, the two ends of a long one, and its length.
fn ends_of(path: &Path, each_end: u64) -> io::Result<(Excerpt, u64)> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes <= each_end.saturating_mul(2) {
        let mut whole = Vec::new();
        file.take(bytes).read_to_end(&mut whole)?;
        return Ok((Excerpt::Whole(whole), bytes));
    }
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    (&mut file).take(each_end).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(bytes - each_end))?;
    file.take(each_end).read_to_end(&mut tail)?;
    Ok((Excerpt::Ends { head, tail }, bytes))
}

fn line_feeds(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Everything that is kept of one stream, for a command that hands it on; at most `output_kept_max` bytes.
pub fn read_all(job: &Job, stream: Stream) -> std::io::Result<Ends> {
    if job.owner.kind == JobKind::LocalAgent {
        let head = match (stream, std::fs::read(job.folder.agent_output())) {
            (Stream::Stderr, _) => Vec::new(),
            (Stream::Stdout, Ok(bytes)) => bytes,
            // Nothing was written yet.
            (Stream::Stdout, Err(error)) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            (Stream::Stdout, Err(error)) => return Err(error),
        };
        return Ok(Ends { head, tail: Vec::new(), left_out: 0 });
    }
    read_ends(&job.folder, stream, job.count(stream), u64::MAX)
}
