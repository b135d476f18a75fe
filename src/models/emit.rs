//! A stream of events from one async function, without a task of its own: the function runs only while the stream is
//! polled, and dropping the stream drops it. At most the events of one network chunk wait unread.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::stream::{BoxStream, Stream, StreamExt};

use super::{ModelError, ModelEvent, Reply};

type Queue = Arc<Mutex<VecDeque<ModelEvent>>>;

/// The sending side, given to the function.
pub(crate) struct Emitter {
    queue: Queue,
}

impl Emitter {
    /// Hands events over and waits until the reader has taken them.
    pub(crate) async fn send(&self, events: impl IntoIterator<Item = ModelEvent>) {
        lock(&self.queue).extend(events);
        let queue = &self.queue;
        // No waker is needed: the stream polls the function again exactly when the queue is empty.
        std::future::poll_fn(|_| if lock(queue).is_empty() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// Runs `function` as a stream that ends with its result.
pub(crate) fn stream<F, Running>(function: F) -> BoxStream<'static, Result<ModelEvent, ModelError>>
where
    F: FnOnce(Emitter) -> Running,
    Running: Future<Output = Result<Reply, ModelError>> + Send + 'static,
{
    let queue = Queue::default();
    let running = function(Emitter { queue: queue.clone() });
    Events { queue, running: Some(Box::pin(running)) }.boxed()
}

struct Events<Running> {
    queue: Queue,
    running: Option<Pin<Box<Running>>>,
}

impl<Running> Stream for Events<Running>
where
    Running: Future<Output = Result<Reply, ModelError>>,
{
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(event) = lock(&self.queue).pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        let Some(running) = &mut self.running else { return Poll::Ready(None) };
        match running.as_mut().poll(context) {
            Poll::Ready(end) => {
                self.running = None;
                Poll::Ready(Some(end.map(ModelEvent::Finished)))
            }
            Poll::Pending => match lock(&self.queue).pop_front() {
                Some(event) => Poll::Ready(Some(Ok(event))),
                None => Poll::Pending,
            },
        }
    }
}

fn lock(queue: &Queue) -> std::sync::MutexGuard<'_, VecDeque<ModelEvent>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}
