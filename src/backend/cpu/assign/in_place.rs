//! Labels of rows that are read where they lie.

use super::{Assigner, label_products, replace};
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::deltas::Moved;
use crate::backend::cpu::difference::assign_difference;
use crate::backend::cpu::filter::Filter;
use crate::backend::cpu::product::{NextRows, PrefetchNext};
use crate::base::float::Float;
use crate::input::tile::{Columns, FewColumns, ManyColumns};
use crate::simd::Vector;

impl Assigner {
    /// As [`Assigner::relabel`], for the difference filter and rows that are read where they lie. There are values up to the next
    /// multiple of 64 rows. Call it only where [`CentroidTable::reads_in_place`] says so.
    #[inline(always)]
    pub fn relabel_few<V: Vector, T: Float>(
        &mut self,
        columns: &FewColumns<'_, T>,
        rows: usize,
        table: &CentroidTable<T>,
        labels: &mut [u32],
        moved: &mut Vec<Moved>,
    ) {
        let (Filter::Difference(copies), Some(x)) = (&table.filter, columns.as_f32s()) else {
            unreachable!("few features are compared by differences")
        };
        self.open.clear();
        assign_difference::<V, false>(&x, [table.d, rows], copies.into(), &mut self.found, &mut []);
        self.open.push_all(self.found.contested.drain(..));
        self.settle_in_place::<V, T>(columns, table, labels, moved);
    }

    /// As [`Assigner::relabel_few`], for the product filter. `next`: the rows that are labelled next.
    #[inline(always)]
    pub fn relabel_many<V: Vector, T: Float>(
        &mut self,
        columns: &ManyColumns<'_, T>,
        next: &NextRows<'_, T>,
        rows: usize,
        table: &CentroidTable<T>,
        labels: &mut [u32],
        moved: &mut Vec<Moved>,
    ) {
        let Self { found, open, product, .. } = self;
        let (Filter::Product(copies), Some(product)) = (&table.filter, product.first_mut()) else {
            unreachable!("more features are compared by products")
        };
        open.clear();
        label_products::<V, T>(product, columns, rows, (copies, table), PrefetchNext::Rows(next), found, open);
        self.settle_in_place::<V, T>(columns, table, labels, moved);
        if let (Filter::Product(copies), Some(product)) = (&table.filter, self.product.first_mut()) {
            product.weigh(copies, &self.found.labels[..rows]);
        }
    }

    #[inline(always)]
    fn settle_in_place<V: Vector, T: Float>(
        &mut self,
        columns: impl Columns<T>,
        table: &CentroidTable<T>,
        labels: &mut [u32],
        moved: &mut Vec<Moved>,
    ) {
        let Self { found, open, .. } = self;
        open.settle::<V, T>(columns, table);
        for (r, answer) in &open.settled {
            found.labels[*r as usize] = answer.label;
        }
        let new = &found.labels[..labels.len()];
        replace(labels, new, moved);
    }
}
