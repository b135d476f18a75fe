//! Pipes to files: head and tail up to a cap; keeps draining, counts everything.
//!
//! The first bytes go to the stream's file. What comes after the head goes round and round through two segment files
//! of equal size, overwritten in place, so that the last bytes survive the keeper too and the disk stays at the cap.
//! A failed write (full disk) is noted once and draining goes on: a payload is never blocked by its output.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::plan::OutputCaps;
use super::platform;
use super::record::StreamCount;
use crate::config::layout::{JobFolder, Stream};
use crate::files;
use crate::secrets::Masker;

/// The first and the last bytes of a stream, as the payload wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    pub head: Vec<u8>,
    /// Never overlaps `head`: empty when the whole stream is in `head`.
    pub tail: Vec<u8>,
    /// Bytes of the stream between the two.
    pub left_out: u64,
}

/// Reads at most `each_end` bytes from each end of a stream. A stream of at most twice that comes back whole.
///
/// `count` is the status' or the end record's. For an ended job the tail is exact; while the payload writes beyond the
/// head it may already be newer than `count`.
pub fn read_ends(folder: &JobFolder, stream: Stream, count: StreamCount, each_end: u64) -> io::Result<Ends> {
    let parts = kept_parts(folder, stream, count.bytes)?;
    let kept: u64 = parts.iter().map(|part| part.length).sum();
    let total = kept.max(count.bytes);
    let first = parts.first().map_or(0, |part| part.length);
    if total <= each_end.saturating_mul(2) && total == kept {
        let head = read_span(&parts, 0, kept)?;
        let tail = Vec::new();
        return Ok(Ends { head, tail, left_out: 0 });
    }
    let head_length = each_end.min(first);
    let tail_length = each_end.min(kept - head_length);
    let head = read_span(&parts, 0, head_length)?;
    let tail = read_span(&parts, kept - tail_length, tail_length)?;
    let left_out = total.saturating_sub((head.len() + tail.len()) as u64);
    Ok(Ends { head, tail, left_out })
}

/// A run of kept bytes.
struct Part {
    path: PathBuf,
    offset: u64,
    length: u64,
}

/// The pieces on disk, oldest bytes first.
fn kept_parts(folder: &JobFolder, stream: Stream, total: u64) -> io::Result<Vec<Part>> {
    let size = |path: &PathBuf| match path.metadata() {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    };
    let head = folder.output(stream);
    let head_size = size(&head)?;
    let [first, second] = [0, 1].map(|segment| folder.output_tail(stream, segment));
    let (first_size, second_size) = (size(&first)?, size(&second)?);
    let mut parts = vec![Part { path: head, offset: 0, length: head_size }];
    let segment = first_size.max(second_size);
    let beyond = total.saturating_sub(head_size);
    if segment == 0 || beyond == 0 {
        return Ok(parts);
    }
    // The segment written last holds its first `fill` bytes from this round; the other one is full, or was never used.
    let fill = (beyond - 1) % segment + 1;
    let last_is_first = ((beyond - 1) / segment).is_multiple_of(2);
    let (older, older_size, last, last_size) =
        if last_is_first { (second, second_size, first, first_size) } else { (first, first_size, second, second_size) };
    parts.push(Part { path: older, offset: 0, length: older_size });
    parts.push(Part { path: last, offset: 0, length: fill.min(last_size) });
    Ok(parts)
}

/// Bytes `from..from + length` of the parts put together; fewer when a file is shorter than it was.
fn read_span(parts: &[Part], from: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut skip = from;
    for part in parts {
        let wanted = length - bytes.len() as u64;
        if skip >= part.length {
            skip -= part.length;
            continue;
        }
        let take = wanted.min(part.length - skip);
        if take == 0 {
            break;
        }
        let start = bytes.len();
        bytes.resize(start + usize::try_from(take).map_err(io::Error::other)?, 0);
        let read = read_at_most(&File::open(&part.path)?, &mut bytes[start..], part.offset + skip)?;
        bytes.truncate(start + read);
        skip = 0;
    }
    Ok(bytes)
}

fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Bytes read at once. Big enough that the system calls do not count.
pub(crate) const READ_BYTES: usize = 256 * 1024;
/// The pipe is enlarged only once a payload writes in bulk: an account may hold only so much pipe memory.
const BULK_PIPE_BYTES: usize = 1024 * 1024;
/// A read of at least this much means that the payload writes in bulk.
const BULK_READ_BYTES: usize = 32 * 1024;
/// Reads of one stream before the other things get their turn.
const READS_PER_TURN: usize = 8;
/// How often the rate of a stream is looked at, and from which rate on (here 100 MB/s) its payload writes in bulk.
const RATE_WINDOW: Duration = Duration::from_millis(10);
const BULK_WINDOW_BYTES: u64 = 1024 * 1024;
/// A payload that writes in bulk is left alone this long when its pipe is nearly empty: it then fills the pipe in one go,
/// where it would otherwise be followed write by write, at the price of two switches of the processor each. Too short
/// for the enlarged pipe to fill up.
const BULK_PAUSE: Duration = Duration::from_micros(100);

/// One stream being read.
pub(crate) struct Capture {
    /// `None` after the end of the stream.
    pipe: Option<OwnedFd>,
    files: StreamFiles,
    masker: Masker,
    enlarged: bool,
    rate: Rate,
}

impl Capture {
    /// Makes the pipe and the head file; gives the end that the payload writes to.
    pub(crate) fn create(folder: &JobFolder, stream: Stream, caps: OutputCaps, masker: Masker) -> io::Result<(Self, OwnedFd)> {
        let files = StreamFiles::create(folder, stream, caps)?;
        let (reader, writer) = io::pipe().map(|(reader, writer)| (OwnedFd::from(reader), OwnedFd::from(writer)))?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok((Self { pipe: Some(reader), files, masker, enlarged: false, rate: Rate::new() }, writer))
    }

    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    pub(crate) fn count(&self) -> StreamCount {
        self.files.count
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.files.error.as_deref()
    }

    /// Reads what is there, a bounded number of times. Never blocks.
    pub(crate) fn read_some(&mut self, buffer: &mut [u8]) {
        for _ in 0..READS_PER_TURN {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut *buffer) {
                Ok(0) => {
                    self.close();
                    return;
                }
                Ok(read) => {
                    self.files.take(&self.masker.mask(&buffer[..read]));
                    let bulk = self.rate.is_bulk(self.files.count.bytes);
                    if !self.enlarged && (bulk || read >= BULK_READ_BYTES) {
                        self.enlarged = true;
                        platform::enlarge_pipe(pipe, BULK_PIPE_BYTES);
                    }
                    if read < BULK_READ_BYTES {
                        if !bulk {
                            return;
                        }
                        std::thread::sleep(BULK_PAUSE);
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    self.files.note(&io::Error::from(error), "reading");
                    self.close();
                    return;
                }
            }
        }
    }

    /// Reads what is left in the pipe and closes it, whoever else may still hold it open.
    pub(crate) fn finish(&mut self, buffer: &mut [u8]) {
        // Bounded: a stranger may write for ever, and a pipe holds no more than this at a time.
        for _ in 0..BULK_PIPE_BYTES / READ_BYTES + 1 {
            let before = self.files.count.bytes;
            self.read_some(buffer);
            if self.pipe.is_none() || self.files.count.bytes == before {
                break;
            }
        }
        self.close();
    }

    /// What was held back is written; nothing comes any more.
    fn close(&mut self) {
        self.pipe = None;
        let rest = self.masker.rest();
        self.files.take(&rest);
    }
}

/// How fast a stream flows.
struct Rate {
    since: Instant,
    bytes: u64,
    bulk: bool,
}

impl Rate {
    fn new() -> Self {
        Self { since: Instant::now(), bytes: 0, bulk: false }
    }

    /// Whether it flowed in bulk when last looked at. `total`: bytes of the stream so far.
    fn is_bulk(&mut self, total: u64) -> bool {
        let passed = self.since.elapsed();
        if passed >= RATE_WINDOW {
            // Also right after a pause of the payload, whatever its length: then the window is long and the rate low.
            self.bulk = u128::from(total - self.bytes) * RATE_WINDOW.as_nanos() >= u128::from(BULK_WINDOW_BYTES) * passed.as_nanos();
            (self.since, self.bytes) = (Instant::now(), total);
        }
        self.bulk
    }
}

/// Where the bytes of one stream go.
struct StreamFiles {
    head: File,
    head_max: u64,
    head_length: u64,
    /// Made when first needed.
    segments: [Option<File>; 2],
    paths: [PathBuf; 2],
    segment_size: u64,
    /// Sizes so far; a segment is overwritten in place after the first round.
    segment_lengths: [u64; 2],
    /// Bytes given to the segments so far.
    beyond: u64,
    count: StreamCount,
    error: Option<String>,
}

impl StreamFiles {
    fn create(folder: &JobFolder, stream: Stream, caps: OutputCaps) -> io::Result<Self> {
        let head = files::create_new(&folder.output(stream)).map_err(|error| error.source)?;
        let segment_size = caps.tail_max.min(caps.kept_max) / 2;
        Ok(Self {
            head,
            head_max: caps.kept_max - segment_size * 2,
            head_length: 0,
            segments: [None, None],
            paths: [0, 1].map(|segment| folder.output_tail(stream, segment)),
            segment_size,
            segment_lengths: [0, 0],
            beyond: 0,
            count: StreamCount::default(),
            error: None,
        })
    }

    fn take(&mut self, bytes: &[u8]) {
        self.count.bytes += bytes.len() as u64;
        self.count.lines += memchr::memchr_iter(b'\n', bytes).count() as u64;
        let room = usize::try_from(self.head_max - self.head_length).unwrap_or(usize::MAX);
        let (head, beyond) = bytes.split_at(room.min(bytes.len()));
        if !head.is_empty() {
            self.write_head(head);
        }
        if !beyond.is_empty() && self.segment_size > 0 {
            self.write_tail(beyond);
        }
        self.count.kept = self.head_length + self.segment_lengths[0] + self.segment_lengths[1];
    }

    fn write_head(&mut self, bytes: &[u8]) {
        match self.head.write_all_at(bytes, self.head_length) {
            Ok(()) => self.head_length += bytes.len() as u64,
            Err(error) => {
                self.note(&error, "writing");
                // What was not kept must not be followed by later bytes: the head ends here.
                self.head_length = self.head.metadata().map_or(self.head_length, |metadata| metadata.len());
                self.head_max = self.head_length;
            }
        }
    }

    fn write_tail(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let index = usize::from(!(self.beyond / self.segment_size).is_multiple_of(2));
            let offset = self.beyond % self.segment_size;
            let room = usize::try_from(self.segment_size - offset).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Err(error) = self.write_segment(index, now, offset) {
                self.note(&error, "writing");
                self.segment_size = 0;
                return;
            }
            self.segment_lengths[index] = self.segment_lengths[index].max(offset + now.len() as u64);
            self.beyond += now.len() as u64;
            bytes = later;
        }
    }

    fn write_segment(&mut self, index: usize, bytes: &[u8], offset: u64) -> io::Result<()> {
        let file = match &mut self.segments[index] {
            Some(file) => file,
            none => none.insert(files::create_new(&self.paths[index]).map_err(|error| error.source)?),
        };
        file.write_all_at(bytes, offset)
    }

    /// The first failure is the one that explains the rest.
    fn note(&mut self, error: &io::Error, doing: &str) {
        self.error.get_or_insert_with(|| format!("{doing} failed after {} bytes: {error}", self.count.kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(input: &[u8], caps: OutputCaps, piece: usize) -> (tempfile::TempDir, JobFolder, StreamCount) {
        let home = tempfile::tempdir().unwrap();
        let folder = JobFolder::new(home.path().to_owned());
        let mut files = StreamFiles::create(&folder, Stream::Stdout, caps).unwrap();
        input.chunks(piece).for_each(|bytes| files.take(bytes));
        let count = files.count;
        (home, folder, count)
    }

    /// fault B3, M16, R386
    #[test]
    fn head_and_tail_are_exact_for_every_length_around_the_caps() {
        let caps = OutputCaps { kept_max: 40, tail_max: 16 };
        for length in 0..150_u8 {
            for piece in [1, 3, 7, 64] {
                let input: Vec<u8> = (0..length).collect();
                let (_home, folder, count) = captured(&input, caps, piece);
                assert_eq!(count.bytes, u64::from(length));
                assert!(count.kept <= caps.kept_max);
                let ends = read_ends(&folder, Stream::Stdout, count, 8).unwrap();
                let whole = input.len() <= 16;
                let head: &[u8] = if whole { &input } else { &input[..8] };
                let tail: &[u8] = if whole { &[] } else { &input[input.len() - ends.tail.len()..] };
                assert_eq!((ends.head.as_slice(), ends.tail.as_slice()), (head, tail), "length {length} in pieces of {piece}");
                assert!(whole || ends.tail.len() == 8, "length {length}: tail of {}", ends.tail.len());
                assert_eq!(ends.head.len() + ends.tail.len() + usize::try_from(ends.left_out).unwrap(), input.len());
            }
        }
    }

    #[test]
    fn lines_and_bytes_are_counted_beyond_the_caps() {
        let caps = OutputCaps { kept_max: 10, tail_max: 4 };
        let (_home, _folder, count) = captured(&b"ab\n".repeat(100), caps, 5);
        assert_eq!((count.bytes, count.lines, count.kept), (300, 100, 10));
    }
}
