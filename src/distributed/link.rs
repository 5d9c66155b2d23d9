//! The driver's side of the messages: it asks parts, and brings back those that have lost their state.
//!
//! ```text
//! ask:  calls that could wait go first, in the same message
//!       every part gets its request at the same time, by the executor
//!       a part that answers "lost": its journal and the calls again, until it answers
//!       what changed its state goes into its journal                                       journal.rs
//! ```
//! A state has a number. A request names the state that it needs, so that a part cannot answer from another one.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Executor;
use super::journal::Journal;
use super::message::{self, ANSWER, Answer, Call, Facts, REQUEST, Reply, RequestStates, Start, refused, taken};
use crate::backend::call::{self, Calls};
use crate::base::error::{KMeansError, Result};
use crate::base::interrupt;
use crate::base::memory;
use crate::input::transform::RowTransform;

/// What errors call the lists of this file.
pub const PARTS: &str = "the list of parts";
/// How often in a row a part may lose its state in one request.
const MOST_LOSSES: usize = 100;

/// The parts of a fit.
pub struct Link<'e> {
    /// What the parts said of their rows.
    pub facts: Vec<Facts>,
    pub row_transform: Option<Arc<RowTransform>>,
    asking: Mutex<Asking<'e>>,
}

struct Asking<'e> {
    executor: &'e mut dyn Executor,
    fit: u64,
    /// The number of the state that all parts are in.
    state: u64,
    parts: usize,
    journal: Journal,
    /// Calls for all parts whose answers are not awaited.
    waiting: Vec<Call>,
}

impl<'e> Link<'e> {
    /// Starts all parts and asks what rows they have.
    pub fn new(executor: &'e mut dyn Executor, start: &Start) -> Result<Self> {
        let parts = executor.parts();
        if parts == 0 {
            return Err(KMeansError::Part { reason: "expected at least one part, got none".into() });
        }
        // It only has to differ from the numbers of other fits of the same parts.
        let fit = RandomState::new().build_hasher().finish();
        let asking = Asking { executor, fit, state: 0, parts, journal: Journal::new(parts), waiting: Vec::new() };
        let mut link = Self { facts: Vec::new(), row_transform: None, asking: Mutex::new(asking) };
        link.facts = link.facts_of(start)?;
        let first = &link.facts[0];
        for (part, facts) in link.facts.iter().enumerate() {
            if facts.names != first.names || facts.float64 != first.float64 || facts.weighted != first.weighted {
                let describe = |facts: &Facts| {
                    let names: Vec<String> = (0..facts.names.len().min(20)).filter_map(|f| facts.names.get(f)).collect();
                    let weights = if facts.weighted { "weights" } else { "no weights" };
                    format!("{names:?} of {} with {weights}", if facts.float64 { "float64" } else { "float32" })
                };
                let reason =
                    format!("expected the columns of part 0, {}, got {} in part {part}", describe(first), describe(facts));
                return Err(KMeansError::Part { reason });
            }
        }
        Ok(link)
    }

    /// Starts all parts again: rows are transformed in another way.
    pub fn restart(&mut self, start: &Start, row_transform: Option<Arc<RowTransform>>) -> Result<()> {
        let facts = self.facts_of(start)?;
        self.row_transform = row_transform;
        if facts == self.facts { Ok(()) } else { Err(other_rows()) }
    }

    fn facts_of(&self, start: &Start) -> Result<Vec<Facts>> {
        self.ask_all(Call::Start(start.clone()), taken!(Facts))
    }

    fn asking(&self) -> MutexGuard<'_, Asking<'e>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call for all parts wait until they are asked something. It must be one that gives nothing new.
    pub fn later(&self, call: Call) {
        self.asking().waiting.push(call);
    }

    /// Asks all parts the same. `take` finds what is wanted in a reply.
    pub fn ask_all<R>(&self, call: Call, take: impl Fn(Reply) -> Option<R>) -> Result<Vec<R>> {
        memory::collected(self.ask(&Calls::All(call), take)?.into_iter().flatten(), PARTS)
    }

    /// Asks some of the parts. There is a reply for each call.
    pub fn ask<R>(&self, calls: &Calls<Call>, take: impl Fn(Reply) -> Option<R>) -> Result<Vec<Option<R>>> {
        interrupt::check()?;
        let replies = self.asking().ask(calls, &self.facts)?;
        let reply = |(part, reply): (usize, Option<Reply>)| match calls.of(part) {
            Some(_) => reply.and_then(&take).map(Some).ok_or_else(other_reply),
            None => Ok(None),
        };
        memory::try_collected(replies.into_iter().enumerate().map(reply), PARTS)
    }
}

impl Asking<'_> {
    /// The last reply of each part that was asked.
    fn ask(&mut self, calls: &Calls<Call>, facts: &[Facts]) -> Result<Vec<Option<Reply>>> {
        let before = self.state;
        let first = std::mem::take(&mut self.waiting);
        let own = (0..self.parts).filter_map(|part| calls.of(part));
        let changes = own.chain(&first).any(Call::changes_state);
        let after = before + u64::from(changes);
        let head = RequestStates { fit: self.fit, before, after };
        // Parts that are asked the same share the bytes.
        let shared = match calls {
            Calls::All(call) => Some(encode(head, &in_order(&first, Some(call)))?),
            Calls::Each(_) => None,
        };
        let mut requests: Vec<(usize, Arc<[u8]>)> = memory::with_room(self.parts, PARTS)?;
        for part in 0..self.parts {
            let own = calls.of(part);
            // All parts go to the next state.
            if own.is_some() || changes {
                requests.push((part, shared.clone().map_or_else(|| encode(head, &in_order(&first, own)), Ok)?));
            }
        }
        let mut replies: Vec<Option<Reply>> = (0..self.parts).map(|_| None).collect();
        for round in 0.. {
            let answers = self.executor.ask(&requests)?;
            if answers.len() != requests.len() {
                let reason = format!("expected {} answers of the executor, got {}", requests.len(), answers.len());
                return Err(KMeansError::Part { reason });
            }
            let mut again = Vec::new();
            for ((part, _), answer) in requests.iter().zip(answers) {
                let part = *part;
                match message::decode(ANSWER, &answer)? {
                    Answer::Replies(mut all) => {
                        let expected = first.len() + usize::from(calls.of(part).is_some());
                        if let Some(Reply::Facts(now)) = all.iter().find(|reply| matches!(reply, Reply::Facts(_)))
                            && facts.get(part).is_some_and(|facts| facts != now)
                        {
                            return Err(other_rows());
                        }
                        if all.len() < expected {
                            return Err(other_reply());
                        }
                        replies[part] = all.pop();
                    }
                    Answer::Failed(error) => return Err(error),
                    Answer::Lost if round < MOST_LOSSES => {
                        let replay = self.journal.replay(part);
                        let calls: Vec<_> = replay.iter().chain(in_order(&first, calls.of(part))).collect();
                        again.push((part, encode(RequestStates { before: 0, ..head }, &calls)?));
                    }
                    Answer::Lost => {
                        let reason = format!("part {part} has lost its state {MOST_LOSSES} times in one request");
                        return Err(KMeansError::Part { reason });
                    }
                }
            }
            if again.is_empty() {
                break;
            }
            requests = again;
        }
        first.iter().for_each(|call| self.journal.note(call));
        for part in 0..self.parts {
            match calls.of(part) {
                Some(Call::Session(call::Call::Relocate(moves), _)) => self.journal.moved(part, moves),
                // What changes states is asked of all parts.
                Some(call) if part == 0 => self.journal.note(call),
                _ => {}
            }
        }
        self.state = after;
        Ok(replies)
    }
}

/// The calls for all parts, and then that for one.
fn in_order<'c>(first: &'c [Call], own: Option<&'c Call>) -> Vec<&'c Call> {
    first.iter().chain(own).collect()
}

fn encode(head: RequestStates, calls: &[&Call]) -> Result<Arc<[u8]>> {
    Ok(message::encode(REQUEST, &(head, calls))?.into())
}

fn other_reply() -> KMeansError {
    refused("a reply to another call".into())
}

fn other_rows() -> KMeansError {
    KMeansError::Part { reason: "expected the same rows whenever a part is made again, got others (did a file change?)".into() }
}
