//! Asks the person at the terminal, one question at a time; the others wait in order (R243). A thread of its own reads
//! and writes, so that nothing of the run waits for a keyboard.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};

use super::approval_text::{self as words, Style, Typed};
use super::progress::Progress;
use super::terminal::{Line, Terminal};
use crate::config::answers::keep_allowed;
use crate::config::{Environment, Layout};
use crate::permissions::Granted;
use crate::permissions::approval::{Answer, ApprovalRequest, Approver, CallSubject, Decision, Question, Subject};
use crate::text::fold::escaped_text;
use crate::text::units::one_line;

/// What the answers "always here" need.
pub(super) struct Keeping {
    pub layout: Layout,
    pub project: PathBuf,
    pub granted: Arc<Granted>,
}

/// The approver of a run with a person at its terminal.
pub(super) struct TerminalApprover {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    /// Ends the wait for a line.
    waker: PipeWriter,
    /// Whether a question stands or waits.
    open: watch::Sender<bool>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Ticket>,
    closed: bool,
}

struct Ticket {
    request: ApprovalRequest,
    answer: oneshot::Sender<Decision>,
}

impl TerminalApprover {
    /// `None` when there is no terminal to ask on.
    pub fn open(environment: &Environment, keeping: Keeping, progress: Arc<Progress>) -> Option<Self> {
        let terminal = Terminal::open(environment)?;
        let (reader, waker) = std::io::pipe().ok()?;
        let shared = Arc::new(Shared { queue: Mutex::default(), ready: Condvar::new(), waker, open: watch::Sender::new(false) });
        let desk = Desk { terminal, reader, keeping, progress, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("zapmyco-asks".to_owned()).spawn(move || desk.work()).ok()?;
        Some(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether a person is being waited for, as it changes.
    pub fn waiting(&self) -> watch::Receiver<bool> {
        self.shared.open.subscribe()
    }
}

impl Approver for TerminalApprover {
    fn is_attended(&self) -> bool {
        true
    }

    fn ask(&self, request: ApprovalRequest) -> BoxFuture<'_, Decision> {
        Box::pin(async move {
            let (answer, decided) = oneshot::channel();
            self.shared.queue().waiting.push_back(Ticket { request, answer });
            self.shared.open.send_replace(true);
            self.shared.ready.notify_all();
            // When this future is dropped the channel closes first, and then the terminal looks.
            let _wake = Wake(&self.shared);
            decided.await.unwrap_or(Decision::Unanswered)
        })
    }
}

impl TerminalApprover {
    /// Withdraws what is open and ends the thread.
    pub fn close(&self) {
        self.shared.queue().closed = true;
        self.shared.ready.notify_all();
        self.shared.wake();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for TerminalApprover {
    fn drop(&mut self) {
        self.close();
    }
}

struct Wake<'a>(&'a Shared);

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // The pipe holds far more than there can be questions; were it full, a byte would be there already.
        let _ = (&self.waker).write_all(b"!");
    }
}

/// The thread's side.
struct Desk {
    terminal: Terminal,
    reader: PipeReader,
    keeping: Keeping,
    progress: Arc<Progress>,
    shared: Arc<Shared>,
}

/// A question that is over without an answer.
struct Withdrawn;

impl Desk {
    fn work(mut self) {
        while let Some(ticket) = self.next() {
            if ticket.answer.is_closed() {
                continue;
            }
            if !ticket.request.still_open.check() {
                let _ = ticket.answer.send(Decision::Obsolete);
                continue;
            }
            self.progress.pause();
            match self.put(&ticket) {
                Ok(Decided { decision, then }) => {
                    // The answer first: whoever waits hears it before it hears of new rules.
                    let _ = ticket.answer.send(decision);
                    match then {
                        Then::Nothing => {}
                        Then::Allow(rules) => self.keeping.granted.allow(&rules),
                        Then::Deny(rules) => self.keeping.granted.deny(&rules),
                    }
                }
                Err(Withdrawn) => self
                    .terminal
                    .say(&format!("\n(withdrawn: {}; it has ended, or the answer is no longer needed)\n", words::title(&ticket.request))),
            }
        }
        self.progress.resume();
    }

    /// The next question; `None` when the run is over. With nothing to ask the progress goes on.
    fn next(&self) -> Option<Ticket> {
        let mut queue = self.shared.queue();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(ticket) = queue.waiting.pop_front() {
                return Some(ticket);
            }
            self.shared.open.send_replace(false);
            self.progress.resume();
            queue = self.shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&mut self, ticket: &Ticket) -> Result<Decided, Withdrawn> {
        self.terminal.forget_typed();
        match &ticket.request.subject {
            Subject::Call(subject) => self.put_call(ticket, subject),
            Subject::Questions(questions) => self.put_questions(ticket, questions),
        }
    }

    fn put_call(&mut self, ticket: &Ticket, subject: &CallSubject) -> Result<Decided, Withdrawn> {
        let kept_in = self.keeping.layout.user_settings_for(&self.keeping.project);
        let mut style = self.style();
        self.terminal.say(&words::call(&ticket.request, subject, &kept_in, style));
        loop {
            let waiting = self.shared.queue().waiting.len();
            self.terminal.say(&words::choices(subject, waiting, style));
            let Some(line) = self.line(ticket)? else {
                self.terminal.say("\ndenied (end of input)\n");
                return Ok(Decided::only(Decision::Deny { comment: None }));
            };
            match words::typed(&line, subject) {
                Typed::Once => return Ok(Decided::only(Decision::Once)),
                Typed::Always => return Ok(self.always(subject)),
                Typed::Deny => return Ok(Decided::only(Decision::Deny { comment: None })),
                Typed::DenyWithComment(Some(comment)) => return Ok(Decided::only(Decision::Deny { comment: Some(comment) })),
                Typed::DenyWithComment(None) => {
                    self.terminal.say("What should the model know? (Ctrl-D: back) > ");
                    if let Some(comment) = self.line(ticket)? {
                        let comment = Some(comment.trim().to_owned()).filter(|comment| !comment.is_empty());
                        return Ok(Decided::only(Decision::Deny { comment }));
                    }
                    self.terminal.say("\n");
                }
                Typed::DenyForSession => {
                    let rules: Vec<String> = subject.lasting.iter().map(|rule| format!("`{rule}`")).collect();
                    self.terminal.say(&format!(
                        "denied; {} stays denied until the session ends, for its subagents too\n",
                        one_line(&escaped_text(&rules.join(", ")), 400)
                    ));
                    return Ok(Decided { decision: Decision::Deny { comment: None }, then: Then::Deny(subject.lasting.clone()) });
                }
                Typed::ShowAll => {
                    style = Style { whole: true, ..self.style() };
                    self.terminal.say(&words::call(&ticket.request, subject, &kept_in, style));
                }
                Typed::Unknown => self.terminal.say(&words::unknown(&line, subject)),
            }
        }
    }

    /// Keeps the rules on disk; they hold from now on for the session and all its subagents (R243).
    fn always(&mut self, subject: &CallSubject) -> Decided {
        let rules: Vec<String> = subject.lasting.iter().map(ToString::to_string).collect();
        let shown = one_line(&escaped_text(&rules.iter().map(|rule| format!("`{rule}`")).collect::<Vec<_>>().join(", ")), 400);
        let kept = match keep_allowed(&self.keeping.layout, &self.keeping.project, &rules) {
            Ok(path) => format!("written to {}", escaped_text(&path.display().to_string())),
            Err(error) => format!("NOT kept for later runs: {}", escaped_text(&error.to_string())),
        };
        self.terminal.say(&format!("{shown} is allowed from now on, in this session and its subagents at once; {kept}\n"));
        Decided { decision: Decision::Always, then: Then::Allow(subject.lasting.clone()) }
    }

    fn put_questions(&mut self, ticket: &Ticket, questions: &[Question]) -> Result<Decided, Withdrawn> {
        let mut answers = Vec::new();
        for (place, question) in questions.iter().enumerate() {
            let style = Style { whole: true, ..self.style() };
            self.terminal.say(&words::question(&ticket.request, place + 1, questions.len(), question, style));
            let answer = loop {
                self.terminal.say(&words::question_choices(question, style));
                let Some(line) = self.line(ticket)? else {
                    self.terminal.say("\ndeclined\n");
                    return Ok(Decided::only(Decision::Deny { comment: None }));
                };
                match words::answer(&line, question) {
                    Ok(answer) => break answer,
                    Err(problem) => self.terminal.say(&problem),
                }
            };
            answers.push(Answer { question: question.question.clone(), answer });
        }
        Ok(Decided::only(Decision::Answered(answers)))
    }

    /// A line, or `None` at the end of input.
    fn line(&mut self, ticket: &Ticket) -> Result<Option<String>, Withdrawn> {
        loop {
            match self.terminal.line(&self.reader) {
                Line::Typed(line) => return Ok(Some(line)),
                Line::End => return Ok(None),
                Line::Woken => {
                    // One byte per wake-up: none is lost, and one too many only looks once more.
                    let _ = (&self.reader).read(&mut [0]);
                    if ticket.answer.is_closed() || self.shared.queue().closed {
                        return Err(Withdrawn);
                    }
                }
            }
        }
    }

    fn style(&self) -> Style {
        Style { width: self.terminal.width(), colours: self.terminal.colours(), whole: false }
    }
}

/// An answer, and what follows from it for later calls.
struct Decided {
    decision: Decision,
    then: Then,
}

enum Then {
    Nothing,
    Allow(Vec<crate::permissions::Rule>),
    Deny(Vec<crate::permissions::Rule>),
}

impl Decided {
    fn only(decision: Decision) -> Self {
        Self { decision, then: Then::Nothing }
    }
}
