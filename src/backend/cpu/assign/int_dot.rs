//! Labels of a block of rows by integer copies. The caller loads only those rows that it turns out to need.

use super::Assigner;
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::filter::{Filter, GROUP};
use crate::backend::cpu::groups::Scores;
use crate::backend::cpu::product::{self, DotRows, DotTable};
use crate::base::float::Float;
use crate::input::tile::Values;
use crate::simd::{DotUnit, Vector};

/// Integer copies of a block of rows and of the centroids near its group.
pub struct DotBlock<'r> {
    pub rows: DotRows<'r>,
    /// How many of them count.
    pub count: usize,
    pub table: &'r DotTable,
    /// The panels of centroids that the rows are compared with.
    pub listed: &'r [u32],
    /// Whether the values of a row lie side by side, for a closer look.
    pub closer: bool,
    pub unit: DotUnit,
}

impl Assigner {
    /// Finds the labels that are certain, and the candidates of the other rows. Returns whether that is enough. If not, the rows
    /// should be compared in float32.
    #[inline(always)]
    pub fn filter_by_int_dot<V: Vector, T: Float>(
        &mut self,
        block: &DotBlock<'_>,
        table: &CentroidTable<T>,
        scores: &mut Scores,
    ) -> bool {
        let (Filter::Product(copies), Some(product)) = (&table.filter, self.product.first_mut()) else { return false };
        let &DotBlock { rows, count, table: dot_table, listed, closer, unit } = block;
        product.find_candidates_by_int_dot::<V>(rows, count, dot_table, copies, listed, unit);
        let centroids = listed.len() * GROUP;
        scores.by_int_dot += count as u64;
        if product.is_in_doubt(count, [centroids, table.k, table.d], closer) {
            scores.again += count as u64;
            return false;
        }
        scores.needed += (count * centroids.min(table.k)) as u64;
        scores.computed += (product::computed_rows::<V>(count) * centroids) as u64;
        true
    }

    /// Looks closer at the rows in doubt, and labels the rows of the block. `row`: the values of a row, if they lie side by side.
    #[inline(always)]
    pub fn look_closer<'v, V: Vector, T: Float>(
        &mut self,
        count: usize,
        table: &CentroidTable<T>,
        row: impl Fn(usize) -> Option<&'v [T]>,
    ) {
        let Some(product) = self.product.first_mut() else { return };
        product.look_closer::<V, T>(count, table, row);
        for r in 0..count {
            // A row in doubt has the label of its first candidate until it is settled.
            self.found.labels[r] = product.candidates(r).map_or(0, |candidates| candidates[0]);
        }
    }

    /// Lists the rows of the block that must be loaded: those in doubt, and those whose label changes. `own`: the labels before.
    #[inline(always)]
    pub fn needed(&self, own: impl Iterator<Item = u32>, needed: &mut Vec<u32>) {
        let Some(product) = self.product.first() else { return };
        needed.clear();
        for (r, (own, new)) in own.zip(&self.found.labels).enumerate() {
            if own != *new || product.is_open(r) {
                needed.push(r as u32);
            }
        }
    }

    /// Settles the rows in doubt among the needed ones. `is_gathered`: whether the values are those of the needed rows, else
    /// those of the whole block. Returns the labels of the whole block.
    #[inline(always)]
    pub fn settle_needed<V: Vector, T: Float>(
        &mut self,
        values: Values<'_, T>,
        needed: &[u32],
        is_gathered: bool,
        table: &CentroidTable<T>,
    ) -> &[u32] {
        let Self { open, found, product, .. } = self;
        let Some(product) = product.first() else { return &[] };
        open.clear();
        for (i, r) in needed.iter().enumerate() {
            let r = *r as usize;
            if product.is_open(r) {
                open.push(if is_gathered { i } else { r }, product.candidates(r), values, table);
            }
        }
        open.settle::<V, T>(values, table);
        for (at, answer) in &open.settled {
            let r = if is_gathered { needed[*at as usize] } else { *at };
            found.labels[r as usize] = answer.label;
        }
        &found.labels
    }
}
