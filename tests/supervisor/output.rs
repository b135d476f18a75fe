//! What payloads write, and what of it is kept.

use zapmyco::config::layout::Stream;
use zapmyco::supervisor::record::{EndedBy, StreamCount, WaitStatus};

use super::kit::{Yard, end_of, stdout_of};

/// R363, R351
#[test]
fn a_payload_runs_and_its_end_is_recorded() {
    let yard = Yard::new();
    let kept = yard.launch("one", "echo out; echo err >&2; exit 3");
    let end = end_of(&kept);
    assert_eq!(end.cause, EndedBy::Itself);
    assert_eq!(end.wait, Some(WaitStatus { code: Some(3), signal: None, core_dumped: false }));
    assert_eq!(end.stdout, StreamCount { bytes: 4, kept: 4, lines: 1 });
    assert_eq!(stdout_of(&kept), "out\n");
    assert_eq!(std::fs::read(kept.folder().output(Stream::Stderr)).unwrap(), b"err\n");
    assert_eq!((end.swept, end.left_over.len(), end.signals.len(), end.output_error), (0, 0, 0, None));
    yard.assert_empty();
}
