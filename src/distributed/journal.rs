//! What brings a part that has lost its state back to it.

use super::message::Call;
use crate::backend::Move;
use crate::backend::call::Call::{Assign, EndDraws, Lower, Relocate, Reset, Weigh};

/// The state of the parts: the calls that made it, without those that later ones have undone. All parts do the same, but for rows
/// that move to empty clusters.
#[derive(Debug)]
pub struct Journal {
    calls: Vec<Call>,
    /// The rows of each part that have moved since the last assign.
    moves: Vec<Vec<Move>>,
}

impl Journal {
    pub fn new(parts: usize) -> Self {
        Self { calls: Vec::new(), moves: vec![Vec::new(); parts] }
    }

    /// Notes rows of a part that have moved.
    pub fn moved(&mut self, part: usize, more: &[Move]) {
        self.moves[part].extend_from_slice(more);
    }

    /// Notes a call that all parts have done.
    pub fn note(&mut self, call: &Call) {
        let has = |same: fn(&Call) -> bool| self.calls.iter().any(same);
        match call {
            // It is there already. What came after it stays after it.
            Call::Survey | Call::Place if has(|call| matches!(call, Call::Place)) => return,
            Call::SkipBad if has(|call| matches!(call, Call::SkipBad)) => return,
            // The centroids that seeding has taken so far, in the last scale.
            Call::Session(Lower(scale), centroids) => {
                if let Some(Call::Session(Lower(last), taken)) = self.calls.last_mut() {
                    taken.extend_from_slice(centroids);
                    *last = *scale;
                    return;
                }
            }
            _ => {}
        }
        self.calls.retain(|before| !undoes(call, before));
        match call {
            Call::Survey => self.calls.push(Call::Place),
            Call::Session(Assign { .. }, centroids) => {
                self.moves.iter_mut().for_each(Vec::clear);
                self.calls.push(Call::Session(Assign { want_inertia: false }, centroids.clone()));
            }
            Call::Session(EndDraws, _) => {}
            call if call.changes_state() => self.calls.push(call.clone()),
            _ => {}
        }
    }

    /// The calls that make the state of a part from nothing.
    pub fn replay(&self, part: usize) -> Vec<Call> {
        let mut calls = self.calls.clone();
        if let Some(Call::Session(Assign { .. }, _)) = calls.last()
            && !self.moves[part].is_empty()
        {
            calls.push(Call::Session(Relocate(self.moves[part].clone()), Vec::new()));
        }
        calls
    }
}

/// Whether nothing is left of a call after a later one.
fn undoes(call: &Call, before: &Call) -> bool {
    match call {
        Call::Start(_) => true,
        Call::RoundWeights(_) => matches!(before, Call::RoundWeights(_)),
        Call::Begin { .. } => matches!(before, Call::Begin { .. } | Call::Session(..)),
        // Seeding may keep numbers of its own where the labels are, and the loop begins without labels.
        Call::Session(Weigh, _) => matches!(before, Call::Session(..)),
        Call::Session(EndDraws, _) => matches!(before, Call::Session(Weigh | Lower(_), _)),
        Call::Session(Reset, _) => matches!(before, Call::Session(Reset | Assign { .. }, _)),
        Call::Session(Assign { .. }, _) => matches!(before, Call::Session(Assign { .. }, _)),
        _ => false,
    }
}
