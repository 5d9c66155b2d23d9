//! The parts of the rows that are sorted together, their bytes, and what a session tries. All of it follows from the shape of the
//! fit, so it is known before there are rows.

use super::int_dot::ByCopies;
use super::method::PossibleMethods;
use super::sorted::Sorted;
use super::tuning::{self, MOST_BYTES, Sorting, fewest_dot_centroids, pays};
use super::{BLOCK, MOST_GROUPS};
use crate::backend::cpu::filter::{GROUP, ScoreForm};
use crate::backend::cpu::layout::{MAX_WORK, MemoryOrder, SessionLayout};
use crate::backend::cpu::tree;
use crate::base::float::Float;
use crate::bounds::int_dot::MOST_FEATURES;
use crate::simd::{DotUnit, InstructionSet};

/// The most groups of a part of the rows.
pub fn most_groups<T: Float>(d: usize) -> usize {
    if ScoreForm::of::<T>(d) == ScoreForm::Difference { tuning::MOST_SMALL_GROUPS } else { MOST_GROUPS }
}

impl SessionLayout {
    /// How rows are put in order. `copied`: whether they have integer copies. `kept`: whether an order is kept without copies.
    pub fn sorting(&self, copied: bool, kept: bool) -> Sorting {
        match (copied, kept) {
            // With few rows, to choose groups as for copies takes longer than it saves.
            (true, _) if self.n / self.workers >= tuning::FEWEST_TO_COPY => Sorting::ToCopy,
            (false, false) => Sorting::ForOneAssign,
            _ => Sorting::ToKeep,
        }
    }

    /// How many rows are sorted together, where this is not limited otherwise. A group should have two blocks of them.
    pub fn rows_of_part<T: Float>(&self, groups: usize) -> usize {
        let most =
            if ScoreForm::of::<T>(self.d) == ScoreForm::Difference { tuning::MOST_SHORT_ROWS } else { tuning::MOST_ROWS };
        let of_worker = self.n / self.workers;
        most.min((of_worker / tuning::PARTS).max(of_worker.min(tuning::LEAST_ROWS))).max((2 * BLOCK * groups).min(of_worker))
    }

    /// The most rows that are sorted together. Half of a task more is allowed.
    fn most_of_part<T: Float>(&self, groups: usize) -> usize {
        let (of_worker, most) = (self.n / self.workers, self.rows_of_part::<T>(groups));
        // About as many, and the same number for each worker, so that they end together.
        let most = of_worker.div_ceil((of_worker + most / 2).checked_div(most).unwrap_or(1).max(1));
        // With one group, nothing is left out.
        let times_work = if groups == 1 { 1 } else { tuning::TIMES_WORK };
        most.min(times_work * MAX_WORK / self.d.saturating_mul(self.k).max(1))
    }

    /// The number of parts, each of some tasks. Each worker gets as many, if there are enough for all.
    pub fn count_of_parts<T: Float>(&self, groups: usize) -> usize {
        let tasks = self.n.div_ceil(self.task).max(1);
        let most = self.most_of_part::<T>(groups).saturating_sub(self.task / 2) / self.task + 1;
        let least = tasks.div_ceil(most);
        if least < self.workers { least } else { least.next_multiple_of(self.workers).min(tasks) }
    }

    /// Bytes of all sorted rows in so many groups. `unit`: that of their integer copies, if they have some.
    fn sorted_bytes<T: Float>(&self, unit: Option<DotUnit>, groups: usize) -> usize {
        let (count, d) = (self.count_of_parts::<T>(groups), self.d);
        let longest = self.n.min(self.n.div_ceil(self.task).div_ceil(count) * self.task).max(1);
        let layout = Sorted::<T>::layout([true, unit.is_some(), self.memory_order == MemoryOrder::Columns], d);
        let of_part = Sorted::<T>::bytes([d, longest, groups], layout, unit.map(|unit| unit.lanes(d)));
        count.saturating_mul(of_part)
    }

    /// The most bytes of sorted rows and of the centroids near their groups.
    pub fn bytes_of_groups<T: Float>(&self, tries: PossibleMethods) -> f64 {
        let PossibleMethods { groups, copies, .. } = tries;
        if !groups && !copies {
            return 0.0;
        }
        let (d, k, size) = (self.d as f64, self.k as f64, size_of::<T>() as f64);
        let count = if groups { most_groups::<T>(self.d) } else { 1 };
        let units = DotUnit::detect().map(|unit| unit.filter(|_| copies));
        // The rows are kept if there is room. Many groups take more room than few.
        let sorted = [None, units[0], units[1]].into_iter().filter(|unit| self.sorted_bytes::<T>(*unit, 1) <= MOST_BYTES);
        let kept = sorted.map(|unit| self.sorted_bytes::<T>(unit, count).min(MOST_BYTES)).max().unwrap_or(0) as f64;
        let at_a_time = self.workers as f64
            * (tuning::SORTED_VALUES.max(tuning::FEWEST_SORTED_ROWS * self.d) as f64 * size + (4 << 20) as f64);
        let count = count as f64;
        let lists = count * (k / GROUP as f64 + 2.0) * 24.0 + k * (d * size + 64.0);
        kept.max(at_a_time) + lists + if copies { ByCopies::most_bytes(count * k, 2.0 * d) } else { 0.0 }
    }

    /// What a session tries for so many kept rows.
    pub fn tries<T: Float>(&self, kept: usize, set: InstructionSet) -> PossibleMethods {
        let (d, k, form) = (self.d, self.k, ScoreForm::of::<T>(self.d));
        let tree = tree::pays(k, d).then(|| tree::is_certain(k, d) || kept < tuning::FEWEST_ROWS);
        let is_small = kept < tuning::FEWEST_ROWS && kept.saturating_mul(d) < tuning::FEWEST_VALUES;
        if is_small || tree == Some(true) {
            return PossibleMethods { form, groups: false, copies: false, tree };
        }
        let fits = |unit| self.sorted_bytes::<T>(unit, 1) <= MOST_BYTES;
        let suits = form == ScoreForm::Product && (tuning::FEWEST_DOT_FEATURES..=MOST_FEATURES).contains(&d);
        let enough = k as f64 >= fewest_dot_centroids(d) && set == InstructionSet::detect();
        let copies = suits && enough && DotUnit::fastest().is_some_and(|unit| fits(Some(unit)));
        let sorting = self.sorting(copies, fits(None));
        let groups = k >= tuning::FEWEST_CLUSTERS && self.n.div_ceil(self.workers) >= 2 * tuning::FEWEST_IN_GROUP;
        PossibleMethods {
            form,
            groups: groups && pays(1.0, [k, d], sorting, self.memory_order == MemoryOrder::Columns),
            copies,
            tree,
        }
    }
}
