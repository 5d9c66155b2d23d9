//! The driver's side of the messages: it asks workers, and brings back those that have lost their state.
//!
//! ```text
//! ask:  calls that could wait go first, in the same message
//!       every worker gets its request at the same time, by the executor
//!       a worker that answers "lost": its journal and the calls again, until it answers
//!       what changed its state goes into its journal                                       journal.rs
//! ```
//! A state has a number. A request names the state that it needs, so that a worker cannot answer from another one.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Executor;
use super::journal::Journal;
use super::message::{self, ANSWER, Answer, Asked, Call, Facts, REQUEST, Replied, Reply, RequestStates, Start, State, taken};
use crate::backend::call::{Calls, Effect, other_reply};
use crate::base::error::{KMeansError, Result};
use crate::base::interrupt;
use crate::base::memory;
use crate::input::transform::RowTransform;

/// What errors call the lists of this file.
pub const PARTS: &str = "the list of parts";
/// How often in a row a worker may lose its state in one request.
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
    /// The number of the state that all workers are in.
    state: u64,
    /// What is known of each worker.
    parts: Vec<State>,
    journal: Journal,
    /// Calls for all workers whose replies are not awaited.
    waiting: Vec<Asked>,
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
        let (journal, parts) = (Journal::new(parts), memory::filled(parts, State::default(), PARTS)?);
        let asking = Asking { executor, fit, state: 0, parts, journal, waiting: Vec::new() };
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
    pub fn later(&self, asked: Asked) {
        self.asking().waiting.push(asked);
    }

    /// Asks all parts the same. `take` finds what is wanted in a reply.
    pub fn ask_all<R>(&self, asked: impl Into<Asked>, take: impl Fn(Reply) -> Option<R>) -> Result<Vec<R>> {
        let replies = self.ask(&Calls::All(asked.into()))?.into_iter().flatten();
        memory::try_collected(replies.map(|(reply, _)| take(reply).ok_or_else(other_reply)), PARTS)
    }

    /// Asks some of the parts. There is a reply for each call.
    pub fn ask(&self, calls: &Calls<Asked>) -> Result<Vec<Option<Replied>>> {
        interrupt::check()?;
        self.asking().ask(calls, &self.facts)
    }
}

impl Asking<'_> {
    /// The reply of each part that was asked.
    fn ask(&mut self, calls: &Calls<Asked>, facts: &[Facts]) -> Result<Vec<Option<Replied>>> {
        let (before, parts) = (self.state, self.parts.len());
        let first = std::mem::take(&mut self.waiting);
        let asked = |part: usize| first.iter().chain(calls.of(part));
        let changes = (0..parts).flat_map(asked).any(|asked| asked.call.effect() != Effect::Asks);
        let after = before + u64::from(changes);
        let head = RequestStates { fit: self.fit, before, after };
        // Parts that are asked the same share the bytes.
        let shared = match calls {
            Calls::All(_) => Some(encode(head, asked(0))?),
            Calls::Each(_) => None,
        };
        let mut requests: Vec<(usize, Arc<[u8]>)> = memory::with_room(parts, PARTS)?;
        for part in 0..parts {
            // All parts go to the next state.
            if calls.of(part).is_some() || changes {
                requests.push((part, shared.clone().map_or_else(|| encode(head, asked(part)), Ok)?));
            }
        }
        let mut replies: Vec<Option<Replied>> = (0..parts).map(|_| None).collect();
        // What brings a part back that was lost.
        let mut replays: Vec<Vec<Asked>> = (0..parts).map(|_| Vec::new()).collect();
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
                    Answer::Replies(all) => {
                        let last = self.take(part, &replays[part], asked(part), all, facts.get(part))?;
                        replies[part] = last.filter(|_| calls.of(part).is_some());
                    }
                    Answer::Failed(error) => return Err(error),
                    Answer::Lost if round < MOST_LOSSES => {
                        replays[part] = self.journal.replay(part);
                        let asked = replays[part].iter().chain(asked(part));
                        again.push((part, encode(RequestStates { before: 0, ..head }, asked)?));
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
        first.iter().for_each(|asked| self.journal.note(asked));
        for part in 0..parts {
            match calls.of(part) {
                Some(Asked { call: Call::Relocate(moves), .. }) => self.journal.moved(part, moves),
                // What changes states is asked of all parts.
                Some(asked) if part == 0 => self.journal.note(asked),
                _ => {}
            }
        }
        self.state = after;
        Ok(replies)
    }

    /// Checks the replies of a part to these calls, and notes the state that the part is in. `replay`: what brought it back.
    /// Returns the last reply.
    fn take<'c>(
        &mut self,
        part: usize,
        replay: &'c [Asked],
        asked: impl Iterator<Item = &'c Asked>,
        replies: Vec<Replied>,
        facts: Option<&Facts>,
    ) -> Result<Option<Replied>> {
        let before = &self.parts[part];
        let (mut state, mut last) = (if replay.is_empty() { before.clone() } else { State::default() }, None);
        let mut replies = replies.into_iter();
        for (i, Asked { call, values }) in replay.iter().chain(asked).enumerate() {
            let (reply, found) = replies.next().ok_or_else(other_reply)?;
            if !state.fits(call, values.len(), &reply, &found) {
                return Err(other_reply());
            }
            state.done(call, &reply);
            let same_facts = |now: &Facts| facts.is_none_or(|facts| facts == now);
            if matches!(&reply, Reply::Facts(now) if !same_facts(now)) || i + 1 == replay.len() && !state.has_rows_of(before) {
                return Err(other_rows());
            }
            last = Some((reply, found));
        }
        self.parts[part] = state;
        if replies.next().is_some() { Err(other_reply()) } else { Ok(last) }
    }
}

fn encode<'c>(head: RequestStates, asked: impl Iterator<Item = &'c Asked>) -> Result<Arc<[u8]>> {
    Ok(message::encode(REQUEST, &(head, asked.collect::<Vec<_>>()))?.into())
}

fn other_rows() -> KMeansError {
    KMeansError::Part { reason: "expected the same rows whenever a part is made again, got others (did a file change?)".into() }
}
