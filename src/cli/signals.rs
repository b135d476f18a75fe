//! Signals and a closed stdout as one thing: the wish that the run end.
//!
//! Once is a request: the turn is cancelled and jobs are stopped, with what they have kept. Twice is hard: jobs are
//! killed. Three times ends the program at once; the keepers then see its end and stop what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::report::Exit;

/// Watches the signals that end a run. Clones share the state.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Fires at the first wish.
    pub requested: CancellationToken,
    /// Fires at the second.
    pub hard: CancellationToken,
    /// Fires when the reader of stdout has gone.
    pub reader_gone: CancellationToken,
    first_signal: Arc<AtomicU8>,
}

const INTERRUPT: u8 = nix::libc::SIGINT as u8;
const TERMINATE: u8 = nix::libc::SIGTERM as u8;
const HANG_UP: u8 = nix::libc::SIGHUP as u8;
const QUIT: u8 = nix::libc::SIGQUIT as u8;
const CLOSED_PIPE: u8 = nix::libc::SIGPIPE as u8;

impl Shutdown {
    /// Starts to watch. Must be called inside a runtime.
    pub fn watch() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let mut quit = signal(SignalKind::quit())?;
        let watcher = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let number = tokio::select! {
                    () = next(&mut interrupt) => INTERRUPT,
                    () = next(&mut terminate) => TERMINATE,
                    () = next(&mut hang_up) => HANG_UP,
                    () = next(&mut quit) => QUIT,
                    () = watcher.reader_gone.cancelled(), if !watcher.requested.is_cancelled() => CLOSED_PIPE,
                };
                watcher.wish(number);
            }
        });
        Ok(shutdown)
    }

    fn wish(&self, number: u8) {
        if self.hard.is_cancelled() {
            std::process::exit(i32::from(Exit::Signal(number).code()));
        }
        if self.requested.is_cancelled() {
            self.hard.cancel();
            return;
        }
        self.first_signal.store(number, Ordering::Release);
        self.requested.cancel();
    }

    /// How a run that was asked to end exits.
    pub fn exit(&self) -> Option<Exit> {
        match self.first_signal.load(Ordering::Acquire) {
            0 => None,
            number => Some(Exit::Signal(number)),
        }
    }
}

/// A signal stream never ends; should it, nothing more comes from it.
async fn next(stream: &mut Signal) {
    if stream.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}
