//! `init="optimal"`: for one feature, clusters of the least inertia that there is.
//!
//! H. Wang and M. Song, "Ckmeans.1d.dp: optimal k-means clustering in one dimension by dynamic programming", R Journal 3 (2011).
//!
//! ```text
//! values    = the different values, ascending, with their weights
//! best 1, i = the deviation of the values from i on
//! best j, i = min over t > i: deviation of i..t + best j - 1, t          the least such t if several are equal
//! clusters  = the cuts from i = 0 on, j = k
//! ```
//! Departures from the paper:
//! 1. The least t grows with i, so each layer takes `values * log(values)` deviations instead of `values^2` (Song and Zhong,
//!    "Efficient weighted univariate clustering maps outstanding dysregulated genomic zones in human cancers", Bioinformatics 36,
//!    2020).
//! 2. Layers go from the right to the left. So of several best clusterings the one with the least cuts from the left is found.
//! 3. A deviation is an exact integer that is rounded once (`optimal/deviations.rs`).

mod deviations;
mod wide;

use self::deviations::Deviations;
use crate::backend::{Draw, Picked, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Params;
use crate::statistics::Statistics;

/// The name for the table of cuts in errors.
const CUTS: &str = "the table of optimal cuts";

/// The means of the best clusters, ascending. If there are too few different values, these values.
pub fn seed<T: Float>(session: &mut dyn Seeder<T>, params: &Params, statistics: &Statistics) -> Result<Vec<T>> {
    let Picked { values, weights, .. } = session.pick(&Draw::All)?;
    let deviations = Deviations::new(&values, &weights, statistics)?;
    drop((values, weights));
    let starts = starts(&deviations, params.k.min(deviations.values()))?;
    let ends = starts.iter().skip(1).copied().chain([deviations.values()]);
    let means = starts.iter().zip(ends).map(|(&start, end)| deviations.mean(start..end));
    memory::collected(means, super::CENTROIDS)
}

/// The first value of each of the best `k` clusters.
fn starts(deviations: &Deviations, k: usize) -> Result<Vec<usize>> {
    let m = deviations.values();
    // Cluster j of k starts at value j or later, and leaves a value for each cluster after it. So it has this many possible starts,
    // which are counted from value j.
    let starts_of_cluster = m - k + 1;
    if u32::try_from(m).is_err() {
        return Err(memory::no_memory(CUTS, m as u128 * k as u128 * size_of::<u64>() as u128));
    }
    let mut cuts = memory::with_room(k - 1, CUTS)?;
    let mut best: Vec<f64> = memory::collected((k - 1..m).map(|i| deviations.of(i..m)), CUTS)?;
    for j in (0..k - 1).rev() {
        // The first cluster starts at the first value.
        let count = if j == 0 { 1 } else { starts_of_cluster };
        let (mut next, mut cut) = (memory::zeroed(count, CUTS)?, memory::zeroed(count, CUTS)?);
        let layer = Layer { deviations, first: j, after: &best };
        layer.solve(&mut next, &mut cut, 0, 0..best.len());
        best = next;
        cuts.push(cut);
    }
    let mut starts = memory::with_room(k, CUTS)?;
    starts.push(0);
    for (j, cut) in cuts.iter().rev().enumerate() {
        // The entries of a cut are counted from the least start of its cluster.
        starts.push(cut[starts[j] - j] as usize);
    }
    Ok(starts)
}

/// One cluster before those that are solved already.
struct Layer<'d> {
    deviations: &'d Deviations,
    /// The least start of the cluster. The clusters after it start at this and 1, and so on.
    first: usize,
    /// For each start of the cluster after it, the least deviation of all clusters from there on.
    after: &'d [f64],
}

impl Layer<'_> {
    /// Finds the least deviations and the cuts for consecutive starts, of which `start` is the first. The cuts lie `within` these
    /// starts of the cluster after it.
    fn solve(&self, best: &mut [f64], cuts: &mut [u32], start: usize, within: std::ops::Range<usize>) {
        let middle = best.len() / 2;
        let (least, cut) = self.least(start + middle, within.clone());
        best[middle] = least;
        cuts[middle] = (self.first + 1 + cut) as u32;
        let (best_before, best_after) = best.split_at_mut(middle);
        let (cuts_before, cuts_after) = cuts.split_at_mut(middle);
        if middle > 0 {
            self.solve(best_before, cuts_before, start, within.start..cut + 1);
        }
        if best_after.len() > 1 {
            self.solve(&mut best_after[1..], &mut cuts_after[1..], start + middle + 1, cut..within.end);
        }
    }

    /// The least deviation from a start on, and the start of the cluster after it.
    fn least(&self, start: usize, within: std::ops::Range<usize>) -> (f64, usize) {
        // The share by which roundings may make the deviation of more values smaller.
        const ROUNDING: f64 = 1.0 - 1.0 / (1u64 << 48) as f64;
        let (mut least, mut cut) = (f64::INFINITY, within.end);
        // The cluster after it starts at least one value later. Its starts are counted from one value later too.
        for at in within.start.max(start)..within.end {
            let after = self.after[at];
            if after >= least {
                continue;
            }
            let own = self.deviations.of(self.first + start..self.first + 1 + at);
            if own * ROUNDING > least {
                break;
            }
            if own + after < least {
                (least, cut) = (own + after, at);
            }
        }
        (least, cut)
    }
}
