//! A session's queue of incoming messages: bounded, ordered by urgency and then by arrival, with wake-up.
//!
//! Anyone may post from anywhere. What is taken out is a [`Delivery`]: it goes back to its old place unless the session
//! confirms that the text is saved, so a failed save loses nothing.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::agent::event::InputSource;
use crate::ids::JobId;

/// Messages that are read at once; more wait for the next step. Notices share the room of one, and each must keep at
/// least its head, which says where the whole is.
const DELIVERY_MAX: usize = 100;

/// How soon a message wants to be read (R260). A running turn takes entries up to `Next` between its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    Now,
    Next,
    /// Waits for a turn of its own.
    Later,
}

/// One message for a session.
#[derive(Clone)]
pub struct Input {
    pub source: InputSource,
    pub text: String,
    /// The job whose end this announces. Stored with the message, so that a later process knows what was delivered.
    pub about: Option<JobId>,
    pub receipt: Option<Arc<dyn Receipt>>,
}

/// What the sender of a message wants to decide and to hear. Called without any lock of the inbox.
pub trait Receipt: Send + Sync {
    /// Asked when the message would be read; `false` drops it (its news was read on another way meanwhile).
    fn still_wanted(&self) -> bool;

    /// The text stands in the saved history (R257).
    fn delivered(&self);
}

impl Input {
    pub fn new(source: InputSource, text: impl Into<String>) -> Self {
        Self { source, text: text.into(), about: None, receipt: None }
    }

    pub fn user(text: impl Into<String>) -> Self {
        Self::new(InputSource::User, text)
    }

    pub fn about(mut self, job: JobId) -> Self {
        self.about = Some(job);
        self
    }

    pub fn with_receipt(mut self, receipt: Arc<dyn Receipt>) -> Self {
        self.receipt = Some(receipt);
        self
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("source", &self.source).field("text", &self.text).field("about", &self.about).finish_non_exhaustive()
    }
}

/// Why a message was not taken; the sender keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboxRefusal {
    #[error("the inbox is full ({capacity} messages wait)")]
    Full { capacity: usize },
    #[error("the session has ended and takes no more messages")]
    Closed,
}

/// A session's inbox; clones share it.
#[derive(Clone, Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
}

/// Messages on their way into the history. Dropped unconfirmed, they go back into the inbox they came from.
#[derive(Debug)]
pub struct Delivery {
    entries: Vec<Entry>,
    origin: Option<Inbox>,
}

#[derive(Debug)]
struct Shared {
    capacity: usize,
    queue: Mutex<Queue>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Sorted by urgency, then by number.
    entries: VecDeque<Entry>,
    next_number: u64,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    urgency: Urgency,
    /// Order of arrival.
    number: u64,
    input: Input,
}

impl Inbox {
    /// `capacity`: messages that may wait at once; at least one.
    pub fn new(capacity: u32) -> Self {
        let capacity = usize::try_from(capacity.max(1)).unwrap_or(usize::MAX);
        Self { shared: Arc::new(Shared { capacity, queue: Mutex::default(), arrived: Notify::new() }) }
    }

    pub fn post(&self, urgency: Urgency, input: Input) -> Result<(), InboxRefusal> {
        let mut queue = self.queue();
        if queue.closed {
            return Err(InboxRefusal::Closed);
        }
        if queue.entries.len() >= self.shared.capacity {
            return Err(InboxRefusal::Full { capacity: self.shared.capacity });
        }
        let number = queue.next_number;
        queue.next_number += 1;
        queue.put(Entry { urgency, number, input });
        drop(queue);
        self.shared.arrived.notify_waiters();
        Ok(())
    }

    /// The most urgent messages, all of one urgency, which are neighbours by construction (R256); at most a hundred.
    /// `None` when empty.
    pub fn take(&self) -> Option<Delivery> {
        self.prune();
        let mut queue = self.queue();
        let urgency = queue.entries.front()?.urgency;
        self.delivery(&mut queue, urgency)
    }

    /// What may join a running turn: everything up to `urgency`, in order; at most a hundred.
    pub fn take_up_to(&self, urgency: Urgency) -> Option<Delivery> {
        self.prune();
        self.delivery(&mut self.queue(), urgency)
    }

    /// Returns when something waits or the inbox is closed; at once if that is so already (R259).
    pub async fn wait(&self) {
        loop {
            let arrived = self.shared.arrived.notified();
            tokio::pin!(arrived);
            // Registered before the look, so that a message between look and wait is not missed.
            arrived.as_mut().enable();
            self.prune();
            {
                let queue = self.queue();
                if queue.closed || !queue.entries.is_empty() {
                    return;
                }
            }
            arrived.await;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.prune();
        self.queue().entries.is_empty()
    }

    pub fn len(&self) -> usize {
        self.prune();
        self.queue().entries.len()
    }

    /// From now on every post is refused. What waits can still be taken.
    pub fn close(&self) {
        self.queue().closed = true;
        self.shared.arrived.notify_waiters();
    }

    /// Drops what its sender no longer wants read. The senders are asked outside the lock, since they have locks too.
    fn prune(&self) {
        let asked: Vec<(u64, Arc<dyn Receipt>)> =
            self.queue().entries.iter().filter_map(|entry| Some((entry.number, entry.input.receipt.clone()?))).collect();
        let unwanted: Vec<u64> = asked.into_iter().filter(|(_, receipt)| !receipt.still_wanted()).map(|(number, _)| number).collect();
        if !unwanted.is_empty() {
            self.queue().entries.retain(|entry| !unwanted.contains(&entry.number));
        }
    }

    fn delivery(&self, queue: &mut Queue, urgency: Urgency) -> Option<Delivery> {
        let count = queue.entries.partition_point(|entry| entry.urgency <= urgency).min(DELIVERY_MAX);
        let entries: Vec<Entry> = queue.entries.drain(..count).collect();
        (!entries.is_empty()).then(|| Delivery { entries, origin: Some(self.clone()) })
    }

    /// The queue is whole between any two statements that may panic, so a poisoned lock is still good.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn put(&mut self, entry: Entry) {
        let place = self.entries.partition_point(|other| (other.urgency, other.number) < (entry.urgency, entry.number));
        self.entries.insert(place, entry);
    }
}

impl Delivery {
    /// The messages in order.
    pub fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.entries.iter().map(|entry| &entry.input)
    }

    /// For whoever has saved the texts: receipts are given, nothing goes back.
    pub fn confirm(mut self) {
        for entry in self.entries.drain(..) {
            if let Some(receipt) = entry.input.receipt {
                receipt.delivered();
            }
        }
    }
}

impl From<Input> for Delivery {
    fn from(input: Input) -> Self {
        Self { entries: vec![Entry { urgency: Urgency::Now, number: 0, input }], origin: None }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(origin) = self.origin.take() else { return };
        if self.entries.is_empty() {
            return;
        }
        let mut queue = origin.queue();
        for entry in self.entries.drain(..) {
            queue.put(entry);
        }
        drop(queue);
        origin.shared.arrived.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use proptest::prelude::*;

    fn texts(delivery: &Delivery) -> Vec<&str> {
        delivery.inputs().map(|input| input.text.as_str()).collect()
    }

    /// R256, R260
    #[test]
    fn urgency_comes_first_and_order_of_arrival_second() {
        let inbox = Inbox::new(10);
        for (urgency, text) in [
            (Urgency::Later, "l1"),
            (Urgency::Next, "n1"),
            (Urgency::Now, "w1"),
            (Urgency::Next, "n2"),
            (Urgency::Later, "l2"),
            (Urgency::Now, "w2"),
        ] {
            inbox.post(urgency, Input::user(text)).unwrap();
        }
        let first = inbox.take().unwrap();
        assert_eq!(texts(&first), ["w1", "w2"], "neighbours of one urgency are one delivery");
        first.confirm();
        inbox.post(Urgency::Now, Input::user("w3")).unwrap();
        let joining = inbox.take_up_to(Urgency::Next).unwrap();
        assert_eq!(texts(&joining), ["w3", "n1", "n2"]);
        joining.confirm();
        assert!(inbox.take_up_to(Urgency::Next).is_none(), "`later` waits for a turn of its own");
        assert_eq!(texts(&inbox.take().unwrap()), ["l1", "l2"]);
    }

    #[test]
    fn a_delivery_that_is_not_saved_goes_back_to_its_place() {
        let inbox = Inbox::new(10);
        inbox.post(Urgency::Next, Input::user("first")).unwrap();
        inbox.post(Urgency::Next, Input::user("second")).unwrap();
        let delivery = inbox.take().unwrap();
        inbox.post(Urgency::Next, Input::user("third")).unwrap();
        drop(delivery);
        assert_eq!(texts(&inbox.take().unwrap()), ["first", "second", "third"]);
    }

    #[test]
    fn a_full_or_closed_inbox_refuses_and_says_which() {
        let inbox = Inbox::new(2);
        inbox.post(Urgency::Next, Input::user("a")).unwrap();
        inbox.post(Urgency::Now, Input::user("b")).unwrap();
        assert_eq!(inbox.post(Urgency::Now, Input::user("c")), Err(InboxRefusal::Full { capacity: 2 }));
        inbox.close();
        assert_eq!(inbox.post(Urgency::Now, Input::user("c")), Err(InboxRefusal::Closed));
        assert_eq!(inbox.len(), 2, "what waited before can still be taken");
    }

    #[derive(Default)]
    struct Sender {
        read_elsewhere: AtomicBool,
        delivered: AtomicBool,
    }

    impl Receipt for Sender {
        fn still_wanted(&self) -> bool {
            !self.read_elsewhere.load(Ordering::SeqCst)
        }
        fn delivered(&self) {
            self.delivered.store(true, Ordering::SeqCst);
        }
    }

    /// R257
    #[test]
    fn the_sender_hears_of_the_save_and_can_take_back_before_it() {
        let inbox = Inbox::new(3);
        let senders: Vec<Arc<Sender>> = (0..3).map(|_| Arc::default()).collect();
        for sender in &senders {
            inbox.post(Urgency::Next, Input::user("end").with_receipt(sender.clone())).unwrap();
        }
        senders[1].read_elsewhere.store(true, Ordering::SeqCst);
        let delivery = inbox.take().unwrap();
        assert_eq!(delivery.inputs().count(), 2);
        assert!(!senders[0].delivered.load(Ordering::SeqCst), "not before it is saved");
        delivery.confirm();
        let delivered: Vec<bool> = senders.iter().map(|sender| sender.delivered.load(Ordering::SeqCst)).collect();
        assert_eq!(delivered, [true, false, true]);
        assert!(inbox.is_empty());
    }

    /// R259
    #[tokio::test]
    async fn a_message_wakes_whoever_waits() {
        let inbox = Inbox::new(2);
        let waiting = tokio::spawn({
            let inbox = inbox.clone();
            async move {
                inbox.wait().await;
                inbox.take().map(|delivery| texts(&delivery).join(","))
            }
        });
        tokio::task::yield_now().await;
        inbox.post(Urgency::Later, Input::user("hello")).unwrap();
        assert_eq!(waiting.await.unwrap().as_deref(), Some("hello"));
        inbox.close();
        inbox.wait().await;
    }

    proptest! {
        /// R260: order within one urgency is the order of arrival, whatever is taken, saved or put back in between.
        #[test]
        fn order_within_an_urgency_is_kept(steps in proptest::collection::vec((0u8..5, any::<bool>()), 0..60)) {
            let inbox = Inbox::new(1000);
            let mut posted: [Vec<String>; 3] = Default::default();
            let mut read: [Vec<String>; 3] = Default::default();
            let mut number = 0;
            let note = |delivery: Delivery, save: bool, read: &mut [Vec<String>; 3]| {
                if save {
                    for input in delivery.inputs() {
                        let (urgency, _) = input.text.split_once('-').unwrap();
                        read[urgency.parse::<usize>().unwrap()].push(input.text.clone());
                    }
                    delivery.confirm();
                }
            };
            for (step, save) in steps {
                match step {
                    0..=2 => {
                        let urgency = [Urgency::Now, Urgency::Next, Urgency::Later][usize::from(step)];
                        let text = format!("{step}-{number}");
                        number += 1;
                        inbox.post(urgency, Input::user(text.clone())).unwrap();
                        posted[usize::from(step)].push(text);
                    }
                    3 => if let Some(delivery) = inbox.take() { note(delivery, save, &mut read) },
                    _ => if let Some(delivery) = inbox.take_up_to(Urgency::Next) { note(delivery, save, &mut read) },
                }
            }
            while let Some(delivery) = inbox.take() { note(delivery, true, &mut read) }
            prop_assert_eq!(posted, read);
        }
    }
}
