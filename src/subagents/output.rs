//! Reads what is shown of a job's output: both ends, never the whole.

use crate::config::layout::Stream;
use crate::supervisor::capture::{Ends, read_ends};
use crate::text::fold::{Excerpt, Output};

use super::job::Job;

/// The ends of one stream with its counts. An output that cannot be read is shown as empty, with the reason beside it.
pub fn read(job: &Job, stream: Stream, each_end: u64) -> (Output, Option<String>) {
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

fn line_feeds(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Everything that is kept of one stream, for a command that hands it on; at most `output_kept_max` bytes.
pub fn read_all(job: &Job, stream: Stream) -> std::io::Result<Ends> {
    read_ends(&job.folder, stream, job.count(stream), u64::MAX)
}
