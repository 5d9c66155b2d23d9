//! What brings a part that has lost its state back to it.

use super::message::{Call, Start};
use crate::backend::Move;
use crate::backend::call;
use crate::backend::call::Call::{Assign, EndDraws, Relocate, Reset, StartDraws, TakeSeeds};
use crate::exact::distances::DistanceScale;

/// The state of the parts: the calls that made it, without those that later ones have undone. All parts do the same, but for rows
/// that move to empty clusters.
#[derive(Debug, Default)]
pub struct Journal {
    parts: usize,
    start: Option<Start>,
    placed: bool,
    skips: bool,
    weights: Option<Call>,
    begin: Option<Call>,
    /// The centroids that seeding has taken so far, and the scale of their distances. An empty list: only weights count.
    seeds: Option<(Vec<f64>, Option<DistanceScale>)>,
    labels: Labels,
}

/// What made the labels.
#[derive(Debug, Default)]
enum Labels {
    #[default]
    None,
    Reset,
    /// The centroids of the last assign, and the rows of each part that moved after it.
    Assigned(Vec<f64>, Vec<Vec<Move>>),
}

impl Journal {
    pub fn new(parts: usize) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Notes rows of a part that have moved.
    pub fn moved(&mut self, part: usize, more: &[Move]) {
        if let Labels::Assigned(_, moves) = &mut self.labels {
            moves[part].extend_from_slice(more);
        }
    }

    /// Notes a call that all parts have done.
    pub fn note(&mut self, call: &Call) {
        match call {
            Call::Start(start) => *self = Self { start: Some(start.clone()), ..Self::new(self.parts) },
            Call::Survey | Call::Place => self.placed = true,
            Call::SkipBad => self.skips = true,
            Call::RoundWeights(_) => self.weights = Some(call.clone()),
            Call::Begin { .. } => (self.begin, self.seeds, self.labels) = (Some(call.clone()), None, Labels::None),
            Call::Session(call, values) => self.note_of_session(call, values),
            _ => {}
        }
    }

    fn note_of_session(&mut self, call: &call::Call, values: &[f64]) {
        match call {
            // Seeding may keep numbers of its own where the labels are, and the loop begins without labels.
            StartDraws => (self.seeds, self.labels) = (Some((Vec::new(), None)), Labels::None),
            TakeSeeds(scale) => {
                if let Some((taken, last)) = &mut self.seeds {
                    taken.extend_from_slice(values);
                    *last = Some(*scale);
                }
            }
            EndDraws => self.seeds = None,
            Reset => self.labels = Labels::Reset,
            Assign { .. } => self.labels = Labels::Assigned(values.to_vec(), vec![Vec::new(); self.parts]),
            _ => {}
        }
    }

    /// The calls that make the state of a part from nothing.
    pub fn replay(&self, part: usize) -> Vec<Call> {
        let mut calls = Vec::new();
        calls.extend(self.start.clone().map(Call::Start));
        calls.extend(self.placed.then_some(Call::Place));
        calls.extend(self.skips.then_some(Call::SkipBad));
        calls.extend(self.weights.clone());
        calls.extend(self.begin.clone());
        if let Some((centroids, scale)) = &self.seeds {
            calls.push(Call::Session(StartDraws, Vec::new()));
            calls.extend(scale.map(|scale| Call::Session(TakeSeeds(scale), centroids.clone())));
        }
        match &self.labels {
            Labels::None => {}
            Labels::Reset => calls.push(Call::Session(Reset, Vec::new())),
            Labels::Assigned(centroids, moves) => {
                calls.push(Call::Session(Reset, Vec::new()));
                calls.push(Call::Session(Assign { want_inertia: false }, centroids.clone()));
                if !moves[part].is_empty() {
                    calls.push(Call::Session(Relocate(moves[part].clone()), Vec::new()));
                }
            }
        }
        calls
    }
}
