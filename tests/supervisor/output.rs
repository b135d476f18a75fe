//! What payloads write, and what of it is kept.

use std::time::{Duration, Instant};

use zapmyco::config::layout::Stream;
use zapmyco::supervisor::handle::Look;
use zapmyco::supervisor::plan::OutputCaps;
use zapmyco::supervisor::record::{EndedBy, LeftOver, Requester, StreamCount, WaitStatus};

use super::kit::{Yard, end_of, ends_of, runtime, status_of, stdout_of, wait_for_stdout};
use super::roles;
use crate::support::wait;

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
    assert!(end.left_over.iter().all(LeftOver::is_of_system));
    assert_eq!((end.swept, end.signals.len(), end.output_error), (0, 0, None));
    yard.assert_empty();
}

/// fault B1, fault S1, fault M3
#[test]
fn a_left_over_that_holds_a_pipe_is_ended_and_counted() {
    let yard = Yard::new();
    for (id, redirection) in [("both", ""), ("stderr", "> /dev/null"), ("stdout", "2> /dev/null"), ("none", "> /dev/null 2>&1")] {
        let started = Instant::now();
        let kept = yard.launch(id, &format!("echo before; sleep 600 {redirection} & exit 0"));
        let end = end_of(&kept);
        yard.assert_empty();
        assert_eq!((end.cause, end.wait.unwrap().code), (EndedBy::Itself, Some(0)), "{id}");
        assert_eq!(end.swept, 1, "{id}");
        assert_eq!(stdout_of(&kept), "before\n");
        assert!(end.left_over.iter().all(LeftOver::is_of_system));
        // The sleep of ten minutes was not waited for.
        assert!(started.elapsed() < wait::PATIENCE);
    }
}

/// fault S3
#[test]
fn a_process_substitution_is_read_to_its_end() {
    let yard = Yard::new();
    let kept = yard.launch("s3", "exec > >(tee -a log) 2>&1; echo ok");
    let end = end_of(&kept);
    assert_eq!((end.wait.unwrap().code, stdout_of(&kept)), (Some(0), "ok\n".to_owned()));
    assert_eq!(end.swept, 0);
}

/// fault B2, fault M1, fault M17, R363
#[test]
fn neither_stream_blocks_the_payload() {
    let yard = Yard::new();
    let kept = yard.launch("b2", "head -c 5M /dev/zero >&2; echo ok");
    let end = end_of(&kept);
    assert_eq!(end.wait.unwrap().code, Some(0));
    assert_eq!(stdout_of(&kept), "ok\n");
    assert_eq!(end.stderr, StreamCount { bytes: 5 << 20, kept: 5 << 20, lines: 0 });
}

/// fault B3, fault M16, R386
#[test]
fn output_beyond_the_cap_is_drained_counted_and_its_end_kept() {
    let yard = Yard::new();
    let mut order = yard.order("b3", "yes | head -c 30M; echo ANSWER");
    order.plan.output = OutputCaps { kept_max: 1 << 20, tail_max: 64 << 10 };
    let kept = yard.launch_order(order);
    let end = end_of(&kept);
    assert_eq!(end.wait.unwrap().code, Some(0));
    assert_eq!(end.stdout, StreamCount { bytes: (30 << 20) + 7, kept: 1 << 20, lines: (15 << 20) + 1 });
    let files =
        [kept.folder().output(Stream::Stdout), kept.folder().output_tail(Stream::Stdout, 0), kept.folder().output_tail(Stream::Stdout, 1)];
    assert_eq!(files.iter().map(|file| file.metadata().unwrap().len()).sum::<u64>(), 1 << 20);
    let ends = ends_of(&kept, end.stdout, 2048);
    assert_eq!((ends.head.len(), ends.tail.len()), (2048, 2048));
    assert!(ends.head.starts_with(b"y\ny\n") && ends.tail.ends_with(b"y\nANSWER\n"));
    assert_eq!(ends.left_out, (30 << 20) + 7 - 4096);
}

/// fault B7, fault M8
#[test]
fn bytes_are_kept_raw() {
    let yard = Yard::new();
    let kept = yard.launch("b7", "printf 'start\\377\\000end\\n'; head -c 1M /dev/urandom | tee copy; exit 6");
    let end = end_of(&kept);
    let copy = std::fs::read(yard.path().join("copy")).unwrap();
    assert_eq!(std::fs::read(kept.folder().output(Stream::Stdout)).unwrap(), [b"start\xff\0end\n".as_slice(), &copy].concat());
    assert_eq!(end.wait.unwrap().code, Some(6));
}

/// fault C1, fault M6
#[test]
fn a_signal_is_recorded_as_what_it_is() {
    let yard = Yard::new();
    for (id, name, number) in [("kill", "KILL", 9), ("segv", "SEGV", 11), ("term", "TERM", 15)] {
        let end = yard.run(id, &format!("ulimit -c 0; kill -{name} $$"));
        assert_eq!(end.cause, EndedBy::Itself);
        assert_eq!(end.wait, Some(WaitStatus { code: None, signal: Some(number), core_dumped: false }));
        assert!(end.signals.is_empty());
    }
}

/// fault D1, fault M2, R378, R379
#[test]
fn a_time_limit_keeps_what_was_written() {
    let yard = Yard::new();
    let mut order = yard.order("d1", "for i in 1 2 3; do echo step $i; done; sleep 600");
    order.plan.time_limit = Some(Duration::from_millis(500));
    let kept = yard.launch_order(order);
    let end = end_of(&kept);
    assert_eq!(end.cause, EndedBy::TimeLimit);
    assert_eq!(stdout_of(&kept), "step 1\nstep 2\nstep 3\n");
    assert_eq!(end.signals, ["SIGTERM"]);
    yard.assert_empty();
}

/// fault M5, R376
#[test]
fn a_stop_keeps_what_was_written_for_ever() {
    let yard = Yard::new();
    let kept = yard.launch("m5", "seq 10; sleep 600");
    wait_for_stdout(&kept, "10\n");
    let end = runtime().block_on(kept.stop(Requester::Model)).unwrap();
    assert_eq!(end.stdout, StreamCount { bytes: 21, kept: 21, lines: 10 });
    assert_eq!(kept.look().unwrap(), Look::Ended(end));
}

/// R363, fault S21
#[test]
fn counts_grow_while_an_endless_payload_runs() {
    let yard = Yard::new();
    let mut order = yard.order("s21", "yes");
    order.plan.output = OutputCaps { kept_max: 1 << 20, tail_max: 64 << 10 };
    let kept = yard.launch_order(order);
    let mut last = 0;
    for _ in 0..2 {
        last = wait::until("a larger count", || Some(status_of(&kept).stdout.bytes).filter(|bytes| *bytes > last.max(2 << 20)));
    }
    let keeper = status_of(&kept).keeper.pid;
    let memory = std::fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
    let resident = memory.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap().split_whitespace().next().unwrap().parse::<u64>();
    assert!(resident.unwrap() < 4 * 1024, "{memory}");
    let end = runtime().block_on(kept.stop(Requester::Person)).unwrap();
    assert!(end.stdout.bytes >= last && end.stdout.kept == 1 << 20);
}

/// fault S22, fault M18
#[test]
fn the_output_never_passes_through_the_agent() {
    let yard = Yard::new();
    assert!(roles::play("much output", yard.path(), &[]));
}

/// fault K5, R385
#[test]
fn a_full_disk_is_said_and_the_end_recorded() {
    let yard = Yard::new();
    roles::play("full disk", yard.path(), &["unshare", "-rm"]);
}

/// fault S24, R385
#[test]
fn a_home_without_space_fails_the_start_at_once() {
    let yard = Yard::new();
    roles::play("no space at all", yard.path(), &["unshare", "-rm"]);
}
