//! What a session has decided about groups, and when that changes. Each transition consumes the state before.
//!
//! ```text
//! Undecided --plan--> Without: all centroids, or a tree                                    the end, unless there is a reset
//!           --plan--> Grouped, rows Unsorted, or Fleeting if sorted rows are not kept
//! Grouped  --assign--> Grouped, rows Sorted or Fleeting                                    what is left out pays
//!          --assign--> Outdated                                     less is left out than before, or too little
//!          --assign--> Without             the first assign by these groups did not pay, or there is one group
//! Outdated --plan---> Grouped around other points: rows are Unsorted again. Around the same points they stay Sorted
//!          --plan---> Without: a tree.    As from Undecided, if other groups do not pay or need more room
//! any      --no memory--> Without: all centroids
//! Without  --reset--> Undecided.    Groups outlive a reset: labels do not depend on groups
//! ```
//! The states of the rows are those of [`RowOrder`](super::grouped::RowOrder). An assign that ends early, by an error other
//! than a lack of memory, leaves the session undecided.

use super::grouped::{AssignByGroups, Grouped};
use super::method::MethodDecision;
use super::plan::Planner;
use super::view::SessionView;
use crate::backend::cpu::pass::WorkerBuffers;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;

#[allow(clippy::large_enum_variant)] // a session has one
pub enum State<T> {
    Undecided,
    /// Rows are compared with all centroids, or with those that a tree finds.
    Without(MethodDecision),
    Grouped(Grouped<T>),
    /// Other groups are looked for before the next assign.
    Outdated(Grouped<T>),
}

/// How a session finds labels, and the sample that decides it.
pub struct Grouping<T> {
    state: State<T>,
    /// A sample of the rows, `(rows, d)`, taken once. Empty until then.
    sample: Vec<T>,
}

impl<T: Float> Grouping<T> {
    pub const UNDECIDED: Self = Self { state: State::Undecided, sample: Vec::new() };

    fn grouped(&self) -> Option<&Grouped<T>> {
        match &self.state {
            State::Grouped(grouped) | State::Outdated(grouped) => Some(grouped),
            State::Undecided | State::Without(_) => None,
        }
    }

    /// What was decided, and why.
    pub fn plan(&self) -> MethodDecision {
        match &self.state {
            State::Undecided => MethodDecision::ALL,
            State::Without(plan) => *plan,
            State::Grouped(grouped) | State::Outdated(grouped) => grouped.plan,
        }
    }

    /// The order in which centroids are copied. Empty: their own.
    pub fn centroid_order(&self) -> &[u32] {
        self.grouped().map_or(&[], |grouped| &grouped.groups.order)
    }

    /// The number of groups, if there are some.
    pub fn count(&self) -> Option<u32> {
        self.grouped().map(|grouped| grouped.groups.count() as u32)
    }

    /// Another fit of the same rows begins.
    pub fn reset(&mut self) {
        if let State::Without(_) = self.state {
            self.state = State::Undecided;
        }
    }

    /// Decides how the next assign, by these centroids, finds labels.
    pub fn prepare(&mut self, view: SessionView<'_, '_, T>, workers: &mut [WorkerBuffers<T>], centroids: &[T]) -> Result<()> {
        self.change(|state, sample| {
            let state = match (state, view.plan_without_sample()) {
                (State::Undecided, Some(plan)) => State::Without(plan),
                (State::Undecided, None) => {
                    if sample.is_empty() {
                        *sample = view.take_sample()?;
                    }
                    Planner { view, centroids, sample }.plan(workers)?
                }
                (State::Outdated(grouped), _) => grouped.planned_again(&Planner { view, centroids, sample }, workers)?,
                (state, _) => state,
            };
            Ok((state, None))
        })
        .map(drop)
    }

    /// Assigns by the centroids near each row, if that was decided. Returns the number of scores. None if the assign must compare
    /// all, also where there is no memory for the lists of near centroids.
    pub fn assign(&mut self, view: SessionView<'_, '_, T>, run: AssignByGroups<'_, T>) -> Result<Option<u64>> {
        let Some(table) = run.table else { return Ok(None) };
        self.change(|state, sample| match state {
            State::Grouped(grouped) | State::Outdated(grouped) => grouped.assign(view, run, table, sample),
            State::Undecided | State::Without(_) => Ok((state, None)),
        })
    }

    /// Replaces the state. Without memory for another one, all centroids are compared, and nothing is returned.
    fn change(&mut self, next: impl FnOnce(State<T>, &mut Vec<T>) -> Result<(State<T>, Option<u64>)>) -> Result<Option<u64>> {
        let changed = next(std::mem::replace(&mut self.state, State::Undecided), &mut self.sample);
        let (state, scores) = match changed {
            Err(KMeansError::NoMemory { .. }) => (State::Without(MethodDecision::NoMemory), None),
            changed => changed?,
        };
        self.state = state;
        Ok(scores)
    }
}
