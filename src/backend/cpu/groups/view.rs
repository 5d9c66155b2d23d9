//! What the groups read of a session, and what tests and benchmarks may force.

use super::method::PossibleMethods;
use super::tuning;
use crate::backend::cpu::layout::SessionLayout;
use crate::backend::cpu::tasks::TaskRows;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::RowBlock;
use crate::simd::{DotUnit, InstructionSet};
use crate::statistics::Statistics;

/// Whether a session compares groups of rows with the centroids near them only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UseGroups {
    /// Where it pays.
    #[default]
    Auto,
    /// Wherever it is possible. For tests.
    Always,
    /// Wherever it is possible. Rows are sorted for each assign, a few at a time, and belong to the nearest points among the
    /// rows.
    AlwaysSort,
    /// Never. Where rows have few features, a tree finds the centroids near each row. For tests.
    Tree,
    Never,
}

/// Whether the product filter of a session takes integer copies first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UseIntDot {
    /// Where it pays.
    #[default]
    Auto,
    /// Wherever it is possible, by this unit or its emulation. For tests.
    Always(DotUnit),
    /// Wherever it is possible, but copies are given up after two assigns.
    Twice(DotUnit),
    Never,
}

/// What tests and benchmarks demand of a session. The default leaves all to the sample.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forced {
    pub groups: UseGroups,
    pub copies: UseIntDot,
}

/// What the groups read of a session. Nothing of it changes while the session lives.
#[derive(Clone, Copy)]
pub struct SessionView<'s, 'a, T> {
    pub part: &'s RowBlock<'a, T>,
    pub statistics: &'s Statistics,
    pub set: InstructionSet,
    pub layout: &'s SessionLayout,
    pub tasks: &'s [TaskRows],
    /// The number of kept rows.
    pub rows: usize,
    pub tries: PossibleMethods,
    pub forced: Forced,
}

impl<T: Float> SessionView<'_, '_, T> {
    /// How many of these rows a worker sorts together, where sorted rows are not kept.
    pub fn sorted_together(&self, longest: usize) -> usize {
        let SessionLayout { d, tile, .. } = *self.layout;
        match self.forced.groups {
            UseGroups::AlwaysSort => 2 * tile,
            _ => (tuning::SORTED_VALUES / d).max(tuning::FEWEST_SORTED_ROWS).next_multiple_of(tile),
        }
        .min(longest)
    }

    /// The rows that are sorted together: tasks of the session, a few at a time.
    pub fn parts(&self, groups: usize) -> Result<Vec<TaskRows>> {
        let (count, tasks) = (self.layout.count_of_parts::<T>(groups), self.tasks.len());
        let parts = (0..count.min(tasks)).map(|part| {
            let tasks = &self.tasks[part * tasks / count..(part + 1) * tasks / count];
            let (first, last) = (&tasks[0], &tasks[tasks.len() - 1]);
            TaskRows {
                physical: first.physical.start..last.physical.end,
                first: first.first,
                kept: tasks.iter().map(|task| task.kept).sum(),
                positive: tasks.iter().map(|task| task.positive).sum(),
            }
        });
        memory::collected(parts, super::GROUPS)
    }
}
