//! Clusters of bounded size: Lloyd's loop with assignments that are optimal within bounds on the number of rows of each cluster.
//!
//! ```text
//! for it in 1..=max_iter:
//!   assign: of all labelings that keep the bounds the one of least total distance          assignment.rs
//!   stop before the update if a bound is or was active, and the total did not fall
//!   update: exact means; no cluster is empty
//!   stop if changed <= tol_labels * n or shift <= tol * variance
//! one assign more if the centroids moved
//! ```
//! What an assignment is. n rows of positive weight count. `D(i, j)` is the integer of the weighted reference distance
//! (`exact/distances.rs`). If the nearest centroids keep the bounds, they are the labels. Otherwise, of all labelings within the
//! bounds:
//!
//! 1. the least sum of `D(i, l_i)`;
//! 2. of these, the least sum of `(N - r_i) l_i`, where `r_i` is the number of the row among the N kept rows;
//! 3. of these, the smallest labels in the order of the rows.
//!
//! These are integers, so the labels do not depend on how they were found. The proof is a price for each cluster: every row has a
//! label of least `D + price`, a cluster of positive price is full, one of negative price has as few rows as it may have. Then
//! for any other labeling within the bounds the sum is at least as large (F. Aurenhammer, F. Hoffmann & B. Aronov,
//! "Minkowski-type theorems and least-squares clustering", Algorithmica 20 (1998), doi:10.1007/PL00009187). With bounds as the
//! only change, this is the loop of P. S. Bradley, K. P. Bennett & A. Demiriz, "Constrained k-means clustering", MSR-TR-2000-65.
//!
//! The session is asked for passes with prices (`backend/priced.rs`). It does not know what a size is.

pub mod assignment;
mod laplacian;
mod lists;
mod newton;
mod random;
mod sample;
mod search;
mod ties;
mod transport;
#[cfg(feature = "tests")]
pub mod trial;
mod widths;

use std::time::Instant;

use self::assignment::{Bounded, BoundedAssigner};
use self::transport::SizeRange;
use super::{Run, kept_sums, precise_inertia, record};
use crate::backend::answers::Distances;
use crate::backend::priced::MOST_IN_PAIRS;
use crate::backend::{Iteration, Session, update};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::interrupt;
use crate::base::memory;
use crate::base::params::{History, Params, SizeLimit, Sizes, Wanted};
use crate::base::progress::Watch;
use crate::exact::distances::ExactSum;
use crate::model::HistoryRow;
use crate::statistics::Statistics;

/// Bytes that a fit is expected to take for bounds on sizes, beside those of a fit without: labels, lists of one row in three, a
/// sample, and what is known of each pair of clusters.
pub(super) fn expected_bytes(rows: u64, k: usize) -> u64 {
    const ROW: u64 = 72;
    const PAIR: u64 = 96;
    let clusters = k as u64;
    let pairs = if k <= MOST_IN_PAIRS { clusters * clusters * PAIR } else { 0 };
    let sample = rows.min(search::sample_rows(k) as u64).saturating_mul(4 * clusters);
    rows.saturating_mul(ROW).saturating_add(sample).saturating_add(pairs)
}

/// The rows of positive weight that each cluster may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeBounds {
    pub least: u64,
    pub most: u64,
}

impl SizeBounds {
    /// The bounds of a fit of so many rows of positive weight. None if sizes are free.
    ///
    /// # Errors
    /// [`KMeansError::InfeasibleSizes`], or [`KMeansError::InvalidOption`] for a share of the rows.
    pub fn of(params: &Params, rows: u64) -> Result<Option<Self>> {
        let (Sizes { min_size, max_size, balanced }, k) = (params.sizes, params.k);
        if balanced {
            return Ok(Some(Self { least: rows / k as u64, most: rows.div_ceil(k as u64) }));
        }
        let limit = |option: &'static str, limit: SizeLimit| match limit {
            SizeLimit::None => Ok(None),
            SizeLimit::Rows(rows) => Ok(Some(rows)),
            SizeLimit::Share(share) => {
                let all = share * rows as f64 / k as f64;
                let expected = format!("rows, not a share: {share} n / k is {all}");
                Err(KMeansError::InvalidOption { option, expected, got: share.to_string() })
            }
        };
        let (least, most) = (limit("min_size", min_size)?, limit("max_size", max_size)?);
        if least.is_none() && most.is_none() {
            return Ok(None);
        }
        let fewest = u64::from(!params.may_be_empty);
        let bounds = Self { least: least.unwrap_or(fewest).max(fewest), most: most.unwrap_or(rows) };
        let (all, too_many) = (u128::from(rows), u128::from(bounds.least) * k as u128);
        if too_many > all || u128::from(bounds.most) * (k as u128) < all || bounds.least > bounds.most {
            return Err(KMeansError::InfeasibleSizes { k, rows, min_size: bounds.least, max_size: bounds.most });
        }
        Ok(Some(Self { most: bounds.most.min(rows), ..bounds }))
    }

    /// Whether a cluster may have so many rows.
    fn allow(self, size: u64) -> bool {
        (self.least..=self.most).contains(&size)
    }

    /// The same for each of k clusters, in proportion to a part of the rows.
    fn range(self, k: usize, [some, all]: [u128; 2]) -> Result<SizeRange> {
        const WHAT: &str = "the bounds of the clusters";
        let least = (u128::from(self.least) * some / all) as i64;
        let most = (u128::from(self.most) * some).div_ceil(all) as i64;
        Ok(SizeRange { least: memory::filled(k, least, WHAT)?, most: memory::filled(k, most, WHAT)? })
    }
}

/// A run, and the reference distance of each kept row to the centroid of its label, if distances are wanted.
pub(super) type BoundedRun<T> = (Run<T>, Vec<f64>);

/// Lloyd's loop within bounds, from given centroids (`(k, d)`, row-major). `fixed`: the centroids stay as they are.
pub(super) fn bounded_lloyd<T: Float>(
    session: &mut dyn Session<T>,
    mut centroids: Vec<T>,
    bounds: SizeBounds,
    params: &Params,
    statistics: &Statistics,
    watch: &mut Watch<'_>,
) -> Result<BoundedRun<T>> {
    let is_fixed = params.fixed.is_some();
    let full = params.output.history == History::Full;
    let stop = super::stop(params, statistics);
    let extent = [session.rows(), params.k as u64];
    let mut history: Vec<HistoryRow> = Vec::new();
    let mut scratch = update::Scratch::default();
    session.reset()?;
    let mut assigner = BoundedAssigner::new(session, bounds, statistics, [params.k, params.execution.threads])?;
    let (mut last, mut was_active): (Option<ExactSum>, bool) = (None, false);
    loop {
        interrupt::check()?;
        let start = Instant::now();
        let Bounded { changed, is_active, passes, work_counts, inertia: totals } = assigner.assign(session, &centroids)?;
        let mut inertia = precise_inertia(session, totals, statistics)?;
        let total: ExactSum = inertia.iter().collect();
        let has_stalled = (is_active || was_active) && last.as_ref().is_some_and(|last| total >= *last);
        let (mut shift, mut moved) = (0.0, false);
        if !has_stalled && !is_fixed {
            let updated = update::update(session, &mut centroids, statistics, params.execution.threads, &mut scratch)?;
            (shift, moved) = (updated.shift, updated.moved);
        }
        let seconds = start.elapsed().as_secs_f64();
        let shown = full.then(|| total.to_f64());
        record(&mut history, &Iteration { changed, shift, moved, seconds, work_counts }, shown, extent)?;
        if let Some(row) = history.last_mut() {
            row.passes = Some(passes);
        }
        watch.show(changed, shift, shown, Some(&centroids))?;
        let done = history.len() as u32 == params.stopping.max_iter || watch.stopped();
        if !(has_stalled || is_fixed || stop.after(changed, shift) || done) {
            (last, was_active) = (Some(total), is_active);
            continue;
        }
        if moved {
            let totals = assigner.assign(session, &centroids)?.inertia;
            inertia = precise_inertia(session, totals, statistics)?;
        }
        let sizes = session.sizes()?;
        let (sums, weights) = kept_sums(session, params, statistics)?;
        let (emptied, method) = (scratch.emptied, session.method());
        let squares = match params.wanted {
            Wanted::Distances => lists::priced_passes(session)?.own_squares()?,
            Wanted::Nothing | Wanted::Labels => Vec::new(),
        };
        return Ok((Run { centroids, sizes, inertia, history, emptied, method, sums, weights }, squares));
    }
}

/// Gives the clusters of a session other numbers: cluster `order[j]` becomes j. `labels`: those of the rows before.
pub(super) fn renumber<T: Float>(session: &mut dyn Session<T>, mut labels: Vec<u32>, order: &[u32]) -> Result<()> {
    let mut numbers = memory::zeroed::<u32>(order.len(), "the numbers of the clusters")?;
    (0..).zip(order).for_each(|(new, old)| numbers[*old as usize] = new);
    labels.iter_mut().for_each(|label| *label = numbers[*label as usize]);
    lists::priced_passes(session)?.relabel(&labels)
}

/// The distances of rows whose label may not be the nearest centroid: to the centroid of the label, and to the nearest other one.
/// `squares`: see [`BoundedRun`].
pub(super) fn own_distances(labels: &[u32], nearest: &[u32], mut distances: Distances, squares: &[f64]) -> Distances {
    for row in (0..labels.len()).filter(|&row| labels[row] != nearest[row]) {
        if let Some(second) = &mut distances.second {
            second[row] = distances.nearest[row];
        }
        distances.nearest[row] = squares[row].sqrt();
    }
    distances
}
