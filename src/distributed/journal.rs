//! What brings a worker that has lost its state back to it.

use super::message::{Asked, Call};
use crate::backend::Move;
use crate::backend::call::{Effect, Stage};

/// The state of the workers: for each stage that they have reached, the call that led to it. All workers do the same, but for
/// rows that move to empty clusters.
#[derive(Debug)]
pub struct Journal {
    /// In the order of the stages.
    calls: Vec<(Stage, Asked)>,
    /// The rows of each worker that have moved since the last assign.
    moves: Vec<Vec<Move>>,
}

impl Journal {
    pub fn new(workers: usize) -> Self {
        Self { calls: Vec::new(), moves: vec![Vec::new(); workers] }
    }

    /// Notes rows of a worker that have moved.
    pub fn moved(&mut self, worker: usize, more: &[Move]) {
        self.moves[worker].extend_from_slice(more);
    }

    /// Notes a call that all workers have done.
    pub fn note(&mut self, Asked { call, values }: &Asked) {
        let stage = match call.effect() {
            Effect::Asks => return,
            Effect::Once(stage) if self.calls.iter().any(|(before, _)| *before == stage) => return,
            Effect::Ends(stage) => return self.calls.retain(|(before, _)| *before < stage),
            Effect::Adds(stage) => {
                self.calls.retain(|(before, _)| *before <= stage);
                // The centroids that seeding has taken so far, in the last scale.
                if let Some((_, last)) = self.calls.last_mut().filter(|(before, _)| *before == stage) {
                    last.call = call.clone();
                    last.values.extend_from_slice(values);
                    return;
                }
                stage
            }
            Effect::Once(stage) | Effect::Begins(stage) => stage,
        };
        self.calls.retain(|(before, _)| *before < stage);
        let call = match call {
            Call::Survey => Call::Place,
            Call::Assign(_) => {
                self.moves.iter_mut().for_each(Vec::clear);
                Call::Assign(false)
            }
            call => call.clone(),
        };
        self.calls.push((stage, Asked { call, values: values.clone() }));
    }

    /// The calls that make the state of a worker from nothing.
    pub fn replay(&self, worker: usize) -> Vec<Asked> {
        let mut calls: Vec<Asked> = self.calls.iter().map(|(_, asked)| asked.clone()).collect();
        if let Some((Stage::Assigned, _)) = self.calls.last()
            && !self.moves[worker].is_empty()
        {
            calls.push(Call::Relocate(self.moves[worker].clone()).into());
        }
        calls
    }
}
