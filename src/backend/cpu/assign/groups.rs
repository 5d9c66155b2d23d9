//! Labels of rows of one group, which are compared with the centroids near the group.

use super::Assigner;
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::difference::{Copies, assign_difference};
use crate::backend::cpu::distances::own_distances_from;
use crate::backend::cpu::filter::{Filter, Form, GROUP, NOBODY};
use crate::backend::cpu::groups::{BLOCK, GroupStep, Scores, largest};
use crate::backend::cpu::product::{self, PrefetchNext};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::{FewColumns, Values};
use crate::simd::Vector;

/// Blocks of near rows after which their weight is taken again. It takes as long as some centroids.
const WEIGHED: u32 = 8;

/// Some rows of one group: those from `first` on.
pub struct GroupRows<'r, T> {
    pub values: Values<'r, T>,
    pub first: usize,
    /// At most as many as an assigner's tiles have.
    pub rows: usize,
    pub group: usize,
    /// For each block: at least the largest distance from the group's point.
    pub radii: &'r [f64],
    /// The labels so far, if there are some.
    pub own: Option<&'r [u32]>,
}

impl Assigner {
    /// Room for [`Assigner::label_group`].
    pub fn reserve_groups<T: Float>(&mut self, k: usize, d: usize) -> Result<()> {
        const WHAT: &str = "the centroids near a tile";
        let most = if Form::of::<T>(d) == Form::Difference { k } else { 0 };
        self.names.clear();
        self.listed.clear();
        self.marks = memory::zeroed(most.div_ceil(64), WHAT)?;
        memory::reserve(&mut self.names, most, WHAT)?;
        memory::reserve(&mut self.listed, most * d, WHAT)
    }

    /// As [`Assigner::label`], for rows of one group. They are compared with the centroids near the group. `distances` is written
    /// over. Adds to the number of scores.
    #[inline(always)]
    pub fn label_group<V: Vector, T: Float>(
        &mut self,
        group_rows: &GroupRows<'_, T>,
        table: &CentroidTable<T>,
        step: &GroupStep<'_, T>,
        distances: &mut [f64],
        scores: &mut Scores,
    ) -> &[u32] {
        let GroupRows { values, first, rows, group, radii, own } = *group_rows;
        let Self { found, open, listed, names, marks, .. } = self;
        open.clear();
        match (&table.filter, T::as_f32s(values.x), self.product.first_mut()) {
            (Filter::Difference(copies), Some(x), _) => {
                let own = own.map(|own| {
                    own_distances_from(values, first, table, own, distances);
                    step.most(&distances[..rows])
                });
                names.clear();
                listed.clear();
                let near = step.listed(group, largest(radii.iter().copied()), own);
                // In ascending order, so that the first of two equal scores has the smaller number.
                for j in near.iter().flat_map(|panel| step.members(*panel)).filter(|j| *j != NOBODY) {
                    marks[j as usize / 64] |= 1 << (j % 64);
                }
                for (first, marks) in (0..).step_by(64).zip(&mut *marks) {
                    while *marks != 0 {
                        let j = first + marks.trailing_zeros();
                        *marks &= *marks - 1;
                        names.push(j);
                        listed.extend_from_slice(&copies.centroids[j as usize * table.d..][..table.d]);
                    }
                }
                scores.needed += (names.len() * rows) as u64;
                scores.computed += (names.len() * rows.next_multiple_of(BLOCK)) as u64;
                let (mut x, mut stride) = (&x[first..], values.stride);
                if copies.scale != 1.0 {
                    // `Assigner::new` reserved the room.
                    stride = rows.next_multiple_of(BLOCK);
                    self.scaled.clear();
                    for column in x.chunks(values.stride) {
                        self.scaled.extend(column[..stride].iter().map(|x| x * copies.scale));
                    }
                    x = &self.scaled;
                }
                let x = FewColumns::of_tile(x, stride, table.d);
                let copies = Copies { centroids: listed, bound: copies.bound };
                assign_difference::<V, false>(&x, [table.d, rows], copies, found, &mut []);
                for label in &mut found.labels[..rows] {
                    // A row for which the filter found nothing is contested.
                    *label = names.get(*label as usize).copied().unwrap_or(0);
                }
                open.push_all(found.contested.drain(..).map(|r| first as u32 + r));
            }
            (Filter::Product(copies), _, Some(product)) => {
                for (at, radius) in (0..rows).step_by(product::ROWS).zip(radii) {
                    let near = step.listed(group, *radius, None);
                    let here = product::ROWS.min(rows - at);
                    scores.needed += (here * (near.len() * GROUP).min(table.k)) as u64;
                    scores.computed += (product::computed_rows::<V>(here) * near.len() * GROUP) as u64;
                    let rows = first + at..first + at + here;
                    let behind = if values.stride == product::ROWS { values.x } else { &[] };
                    product.find_candidates::<V, T, false>(
                        values,
                        rows,
                        copies,
                        table.k,
                        Some(near),
                        PrefetchNext::Blocks(behind),
                    );
                    for r in 0..here {
                        match product.candidates(r) {
                            Some([label]) => found.labels[at + r] = *label,
                            candidates => open.push(first + at + r, candidates, values, table),
                        }
                    }
                }
            }
            _ => {
                scores.needed += (rows * table.k) as u64;
                scores.computed += (rows * table.k) as u64;
                for r in first..first + rows {
                    open.push(r, None, values, table);
                }
            }
        }
        open.settle::<V, T>(values, table);
        for (r, answer) in &open.settled {
            found.labels[*r as usize - first] = answer.label;
        }
        self.unweighed += 1;
        if let (true, Filter::Product(copies), Some(product)) =
            (self.unweighed >= WEIGHED, &table.filter, self.product.first_mut())
        {
            product.weigh(copies, &found.labels[..rows]);
            self.unweighed = 0;
        }
        &found.labels[..rows]
    }
}
