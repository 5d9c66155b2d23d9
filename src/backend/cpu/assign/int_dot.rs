//! Labels of a block of rows by integer copies. The caller loads only rows in doubt and rows whose label changes.

use super::Assigner;
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::filter::{Filter, GROUP};
use crate::backend::cpu::product::{self, DotBlock};
use crate::base::float::Float;
use crate::input::tile::FeatureValues;
use crate::simd::Vector;

impl Assigner {
    /// Finds the labels that are certain, and the candidates of the other rows. Returns whether that is enough. If not, the rows
    /// should be compared in float32. `closer`: whether the values of a row lie side by side, for a closer look.
    #[inline(always)]
    pub fn filter_by_int_dot<V: Vector, T: Float>(
        &mut self,
        block: &DotBlock<'_>,
        closer: bool,
        table: &CentroidTable<T>,
    ) -> bool {
        let Self { product, scores, .. } = self;
        let (Filter::Product(copies), Some(product)) = (&table.filter, product.first_mut()) else { return false };
        product.find_candidates_by_int_dot::<V>(block, copies);
        let (count, centroids) = (block.count, block.listed.len() * GROUP);
        scores.by_int_dot += count as u64;
        if product.is_in_doubt(count, [centroids, table.k, table.d], closer) {
            scores.again += count as u64;
            return false;
        }
        scores.see(Some(centroids), table.k, [count, product::computed_rows::<V>(count)]);
        true
    }

    /// Looks closer at the rows in doubt, and labels the rows of the block. Lists those that must be loaded: those still in
    /// doubt, and those whose label changes. `row`: the values of a row, if they lie side by side. `own`: the labels before.
    #[inline(always)]
    pub fn look_closer<'v, V: Vector, T: Float>(
        &mut self,
        count: usize,
        table: &CentroidTable<T>,
        row: impl Fn(usize) -> Option<&'v [T]>,
        own: impl Iterator<Item = u32>,
        needed: &mut Vec<u32>,
    ) {
        let Some(product) = self.product.first_mut() else { return };
        product.look_closer::<V, T>(count, table, row);
        product.sort_candidates(count);
        needed.clear();
        for (r, (label, own)) in self.found.labels[..count].iter_mut().zip(own).enumerate() {
            // A row in doubt has the label of its first candidate until it is settled.
            *label = product.candidates(r).map_or(0, |candidates| candidates[0]);
            if own != *label || product.is_open(r) {
                needed.push(r as u32);
            }
        }
    }

    /// Lists those of the needed rows that are in doubt.
    #[inline(always)]
    pub fn list_open(&self, needed: &[u32], open: &mut Vec<u32>) {
        let Some(product) = self.product.first() else { return };
        open.clear();
        open.extend(needed.iter().filter(|r| product.is_open(**r as usize)));
    }

    /// Settles the rows in doubt among the needed ones. `is_gathered`: whether the values are those of the needed rows, else
    /// those of the whole block. Returns the labels of the whole block.
    #[inline(always)]
    pub fn settle_needed<V: Vector, T: Float>(
        &mut self,
        values: FeatureValues<'_, T>,
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
