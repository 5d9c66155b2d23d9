//! The answering end: a thread that holds the rows of a part, and the requests on their way to it.
//!
//! A session borrows its rows. So it lives on the stack of the worker's thread, which works on one request after the other. The
//! functions in `serve.rs` do what the calls ask for.
//!
//! ```text
//! request: needs another state than the worker is in -> "lost", and nothing is done
//!          was the last one, repeated                -> the same answer
//!          else: its calls, one after the other      -> their replies, and the worker is in the next state
//!                an error                            -> the error, and the worker has lost its state
//! ```

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::message::{ANSWER, Answer, Asked, Call, REQUEST, Replied, Request, RequestStates, State, decode, encode};
use super::serve;
use crate::backend::call::out_of_turn;
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::parallel::{FloatEnvironment, PoolShare};
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::simd::InstructionSet;

/// Rows that a worker can own.
pub trait Owner: Send + 'static {
    /// Calls [`Server::run`] with a view of the rows.
    ///
    /// # Errors
    /// Whatever is wrong with the rows. The worker answers every request with it.
    fn serve(&self, server: Server<'_>) -> Result<()>;

    /// Whether features were computed by expressions.
    fn computed(&self) -> bool {
        false
    }
}

/// Holds one part of the rows of a fit, and answers what a driver asks of them ([`crate::distributed::fit`]).
///
/// Any executor may carry requests to it: a call in the same process, a pipe to another process, a message to another machine.
/// A worker that is made again from the same rows, after its process was lost, is as good as the first: the driver notices and
/// brings it back to where it was.
pub struct Worker {
    line: Mutex<Line>,
    /// The process that the thread is in.
    process: u32,
}

/// The way to the thread of a worker.
struct Line {
    requests: Sender<Vec<u8>>,
    answers: Receiver<Vec<u8>>,
}

impl Worker {
    /// A worker with these rows.
    ///
    /// # Errors
    /// [`KMeansError::Part`] if there is no thread for it.
    pub fn new(rows: impl Owner) -> Result<Self> {
        Self::with_instructions(rows, InstructionSet::detect())
    }

    /// A worker with this instruction set. The answers are the same.
    #[doc(hidden)]
    pub fn with_instructions(rows: impl Owner, set: InstructionSet) -> Result<Self> {
        let (requests, incoming) = channel();
        let (outgoing, answers) = channel();
        let work = move || {
            let _environment = FloatEnvironment::default_rounding();
            let mut feed = Feed::new(incoming, outgoing);
            loop {
                let served =
                    catch_unwind(AssertUnwindSafe(|| rows.serve(Server { feed: &mut feed, set, computed: rows.computed() })));
                let error = match served {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(_) => KMeansError::Part { reason: "a part panicked".into() },
                };
                // What is wrong with the rows is answered, then they are tried again.
                if feed.current.is_none() && feed.next_call().is_none() {
                    return;
                }
                feed.fail(error);
            }
        };
        let started = thread::Builder::new().name("polars-kmeans part".into()).spawn(work);
        started.map_err(|error| KMeansError::Part { reason: format!("no thread for a part: {error}") })?;
        Ok(Self { line: Mutex::new(Line { requests, answers }), process: std::process::id() })
    }

    /// Answers a request. Requests of several threads wait for each other. What is wrong is an answer too.
    pub fn answer(&self, request: &[u8]) -> Vec<u8> {
        let failed = |reason: &str| failure(KMeansError::Part { reason: reason.into() });
        if self.process != std::process::id() {
            return failed("expected a part of this process, got one of the process that this one was forked from");
        }
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let request = match memory::copied(request, "a message of a part") {
            Ok(request) => request,
            Err(error) => return failure(error),
        };
        match line.requests.send(request).ok().and_then(|()| line.answers.recv().ok()) {
            Some(answer) => answer,
            None => failed("the thread of a part has ended"),
        }
    }
}

fn failure(error: KMeansError) -> Vec<u8> {
    // An error can be encoded.
    encode(ANSWER, &Answer::Failed(error)).unwrap_or_default()
}

/// The requests to a worker, for its rows.
pub struct Server<'f> {
    pub(super) feed: &'f mut Feed,
    pub(super) set: InstructionSet,
    pub(super) computed: bool,
}

impl Server<'_> {
    /// Answers requests with these rows until there are no more.
    pub fn run<T: Engine>(self, features: &Features<'_, T>, weights: Option<&Column<'_, f64>>) {
        serve::serve(self, features, weights);
    }
}

/// The calls of the requests that come in, one after the other, and their replies on the way out.
pub struct Feed {
    incoming: Receiver<Vec<u8>>,
    outgoing: Sender<Vec<u8>>,
    /// The fit and the number of the state that the worker is in.
    at: Option<(u64, u64)>,
    state: State,
    /// The request that is worked on.
    current: Option<RequestStates>,
    calls: VecDeque<Asked>,
    replies: Vec<Replied>,
    /// The last request that changed the state, and its answer.
    last: Option<(RequestStates, Vec<u8>)>,
    /// The worker takes its share of the threads while it works.
    share: Option<PoolShare>,
}

impl Feed {
    fn new(incoming: Receiver<Vec<u8>>, outgoing: Sender<Vec<u8>>) -> Self {
        let (state, calls, replies) = (State::default(), VecDeque::new(), Vec::new());
        Self { incoming, outgoing, at: None, state, current: None, calls, replies, last: None, share: None }
    }

    /// The next call that the state allows. The calls before it must have replies. `None` if there are no more requests.
    pub fn next_call(&mut self) -> Option<Asked> {
        loop {
            if let Some(asked) = self.calls.pop_front() {
                if self.state.allows(&asked.call, asked.values.len()) {
                    return Some(asked);
                }
                self.fail(out_of_turn(&asked.call));
            }
            if let Some(head) = self.current.take() {
                let answer = Answer::Replies(std::mem::take(&mut self.replies));
                match encode(ANSWER, &answer) {
                    Ok(bytes) => {
                        self.at = Some((head.fit, head.after));
                        if head.before != head.after {
                            self.last = Some((head, bytes.clone()));
                        }
                        self.send(bytes);
                    }
                    Err(error) => self.fail(error),
                }
            }
            let bytes = self.incoming.recv().ok()?;
            self.take(&bytes);
        }
    }

    /// Takes a request, or answers it at once.
    fn take(&mut self, bytes: &[u8]) {
        let (head, calls): Request = match decode(REQUEST, bytes) {
            Ok(request) => request,
            Err(error) => return self.send(failure(error)),
        };
        let repeated = self.last.as_ref().filter(|(last, _)| *last == head && self.at == Some((head.fit, head.after)));
        if let Some((_, answer)) = repeated.filter(|_| head.before != 0) {
            let answer = answer.clone();
            return self.send(answer);
        }
        if head.before != 0 && self.at != Some((head.fit, head.before)) {
            return self.send(encode(ANSWER, &Answer::Lost).unwrap_or_else(failure));
        }
        (self.current, self.calls, self.share) = (Some(head), calls.into(), Some(PoolShare::enter()));
        self.replies.clear();
    }

    fn send(&mut self, answer: Vec<u8>) {
        self.share = None;
        // If no thread waits for the answer, there will be no more requests either.
        let _ = self.outgoing.send(answer);
    }

    /// Gives back a call for the function that called the present one.
    pub fn give_back(&mut self, asked: Asked) {
        self.calls.push_front(asked);
    }

    /// Takes the reply to a call.
    pub fn reply(&mut self, call: &Call, reply: Result<Replied>) {
        match reply {
            Ok(reply) => {
                self.state.done(call, &reply.0);
                self.replies.push(reply);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Ends the present request with an error.
    fn fail(&mut self, error: KMeansError) {
        (self.current, self.at, self.state, self.last) = (None, None, State::default(), None);
        self.calls.clear();
        self.replies.clear();
        self.send(failure(error));
    }
}
