//! Passes of a fitted model over rows, on the CPU. The rows are not prepared. Rows with a null or a value that is not finite have
//! no answer.

use std::sync::Arc;

use super::assign::Assigner;
use super::centroids::TOGETHER;
use super::nearest_clusters::{Several, SeveralSink};
use super::settle::chains;
use super::sinks::{LabelTask, Labeller, NearestSink, Sink};
use super::{CentroidTable, CpuSession};
use crate::backend::answers::{ANSWERS, Answered, Distances, LABELS, Labels, NearestClusters, Predictions, every_row};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::base::params::Metric;
use crate::exact::distances::DistanceSum;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, Tile};
use crate::simd::{Doubles, Vector};
use crate::statistics::passes::HostPasses;
use crate::statistics::score::survey_score;

/// Number of rows per task. Smaller inputs stay on the calling thread. The bits of a task's rows are whole bytes.
const TASK: usize = 16_384;

/// The labels of the rows.
pub fn labels<T: Float>(table: &CentroidTable<T>, features: &Features<'_, T>) -> Result<Labels> {
    let mut values = memory::zeroed(features.n_rows(), LABELS)?;
    let answered = answer(table, features, 0, values.chunks_mut(TASK).map(LabelSink))?;
    Ok(Labels::new(values, answered))
}

/// The labels, and the distances to the nearest and the second nearest centroid.
pub fn nearest<T: Float>(table: &CentroidTable<T>, features: &Features<'_, T>) -> Result<Predictions> {
    let (n, k) = (features.n_rows(), table.k);
    let (mut labels, mut distances) = (memory::zeroed(n, LABELS)?, Distances::zeroed(n, k)?);
    let second = distances.second.as_deref_mut().unwrap_or_default();
    let mut rest = NearestSink { labels: &mut labels, nearest: &mut distances.nearest, second };
    let answered = answer(table, features, 0, (0..n.div_ceil(TASK)).map(move |_| rest.split_off(TASK)))?;
    Ok(Predictions::new(Labels::new(labels, answered), distances))
}

/// The distances to all centroids, or their squares, which are the reference distances: `(n, k)` row-major. NaN for a row without
/// an answer.
pub fn distances<T: Float>(table: &CentroidTable<T>, features: &Features<'_, T>, squared: bool) -> Result<Vec<f64>> {
    let (n, k) = (features.n_rows(), table.k);
    let mut out = memory::zeroed(n.saturating_mul(k), ANSWERS)?;
    let answered = answer(table, features, 0, out.chunks_mut(TASK * k).map(|out| DistanceSink { out, squared }))?;
    for (_, out) in out.chunks_exact_mut(k).enumerate().filter(|(row, _)| !answered.get(*row)) {
        out.fill(f64::NAN);
    }
    Ok(out)
}

/// The inertia of the finite rows of positive weight. It is the inertia of a fit that has these centroids. `table` is made of
/// them. `labels`: those of all rows, if they are not the nearest centroids.
pub fn inertia<T: Float>(
    centroids: &[T],
    metric: Metric,
    table: Arc<CentroidTable<T>>,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
    labels: Option<&[u32]>,
) -> Result<f64> {
    let mut parts = [RowBlock::new(features.clone(), weights.cloned())];
    let statistics = Arc::new(survey_score(&mut HostPasses::new(&mut parts, 0), centroids, features.n_features(), metric)?);
    let [part] = parts;
    let selection = part.selection.clone();
    let mut session = CpuSession::new(part, &statistics, table.k, 0, table.set)?;
    let total = match labels {
        None => session.label(table)?.iter().sum(),
        Some(labels) => {
            let kept = (0..labels.len()).filter(|row| selection.contains(*row)).map(|row| labels[row]);
            session.take_labels(table, &memory::collected(kept, ANSWERS)?, statistics.distances)?
        }
    };
    let first = DistanceSum { total, scale: statistics.distances };
    Ok(first.precise(statistics.n_positive, |finer| session.total_inertia(finer))?.to_f64())
}

/// The m nearest centroids of each row.
pub fn several<T: Float>(
    table: &CentroidTable<T>,
    features: &Features<'_, T>,
    m: usize,
    squared: bool,
) -> Result<NearestClusters> {
    let (n, len) = (features.n_rows(), features.n_rows().saturating_mul(m));
    let (mut clusters, mut distances) = (memory::zeroed(len, ANSWERS)?, memory::zeroed(len, ANSWERS)?);
    let mut rest = SeveralSink { m, squared, clusters: &mut clusters, distances: &mut distances };
    let answered = answer(table, features, m, (0..n.div_ceil(TASK)).map(move |_| rest.split_off(TASK)))?;
    Ok(NearestClusters { m, clusters, distances, answered })
}

/// Answers task after task of the rows. Each has a sink, which takes `m` centroids a row if that is not 0. Returns which rows have
/// an answer.
fn answer<T: Float, S: Sink<T>>(
    table: &CentroidTable<T>,
    features: &Features<'_, T>,
    m: usize,
    sinks: impl Iterator<Item = S> + Send,
) -> Result<Answered> {
    let (n, d) = (features.n_rows(), features.n_features());
    let tile_rows = Assigner::tile_rows(features);
    let part = &RowBlock::new(features.clone(), None);
    let mut labellers = Labeller::several(workers_for(0, n / TASK + 1), [d, table.k, tile_rows])?;
    if m > 0 {
        for labeller in &mut labellers {
            labeller.several = Some(Several::new(m, table.k, d)?);
        }
    }
    let mut bits = every_row(n)?;
    for_each_task(&mut labellers, bits.chunks_mut(TASK / 8).zip(sinks).enumerate(), |labeller, (index, (bits, sink))| {
        let rows = index * TASK..n.min((index + 1) * TASK);
        table.set.run(LabelTask { part, weights: None, table, rows, labeller, bits: Some(bits), sink });
    })?;
    Ok(Answered::from_bits(n, bits))
}

/// Takes labels.
struct LabelSink<'o>(&'o mut [u32]);

impl<T: Float> Sink<T> for LabelSink<'_> {
    #[inline(always)]
    fn tile<V: Vector>(&mut self, table: &CentroidTable<T>, labeller: &mut Labeller<T>) {
        let Labeller { tile, assigner, places, .. } = labeller;
        let labels = assigner.label_tile::<V, T>(tile, table);
        places.iter().zip(labels).for_each(|(&place, &label)| self.0[place] = label);
    }
}

/// Takes `k` distances of each row, or their squares.
struct DistanceSink<'o> {
    out: &'o mut [f64],
    squared: bool,
}

impl<T: Float> Sink<T> for DistanceSink<'_> {
    #[inline(always)]
    fn tile<V: Vector>(&mut self, table: &CentroidTable<T>, labeller: &mut Labeller<T>) {
        let Labeller { tile, places, .. } = labeller;
        match V::Doubles::LANES {
            8 => all_distances::<V, T, 4, 32>(tile, table, places, self),
            _ => all_distances::<V, T, 2, 8>(tile, table, places, self),
        }
    }
}

/// The distances of a tile's rows to all centroids. Row r of the tile is row `places[r]` of the sink. R vectors hold ROWS rows.
#[inline(always)]
fn all_distances<V: Vector, T: Float, const R: usize, const ROWS: usize>(
    tile: &Tile<T>,
    table: &CentroidTable<T>,
    places: &[usize],
    sink: &mut DistanceSink<'_>,
) {
    assert!(R * V::Doubles::LANES == ROWS && tile.stride.is_multiple_of(ROWS) && tile.rows <= tile.stride);
    for start in (0..tile.rows).step_by(ROWS) {
        let places = &places[start..tile.rows.min(start + ROWS)];
        for (group, centroids) in table.groups().enumerate() {
            let first = group * TOGETHER;
            let mut distances = [[0.0f64; ROWS]; TOGETHER];
            // SAFETY: start and the stride are multiples of ROWS, so the tile has ROWS rows from `start` on. The array holds R
            // vectors of each centroid.
            unsafe {
                let s = chains::<V, T, R>(tile.x.as_ptr().add(start), tile.stride, centroids);
                for c in 0..TOGETHER {
                    for v in 0..R {
                        let distance = if sink.squared { s[c][v] } else { s[c][v].sqrt() };
                        distance.store(distances[c].as_mut_ptr().add(v * V::Doubles::LANES));
                    }
                }
            }
            let count = TOGETHER.min(table.k - first);
            for (r, &place) in places.iter().enumerate() {
                let out = &mut sink.out[place * table.k + first..][..count];
                for (out, distances) in out.iter_mut().zip(&distances) {
                    *out = distances[r];
                }
            }
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cpu::product::attacks::Random;
    use crate::exact::reference;
    use crate::simd::InstructionSet;

    /// All answers for rows on a coarse lattice, of which every seventh has a value that is not finite.
    fn check<T: Float>(set: InstructionSet, [n, d, k]: [usize; 3], levels: usize) {
        let mut random = Random((n * d + k) as u64);
        let mut values = |count: usize| (0..count).map(|_| T::from_f64(random.below(levels as u64) as f64)).collect::<Vec<T>>();
        let (mut x, centroids) = (values(n * d), values(k * d));
        (3..n).step_by(7).for_each(|row| x[row * d + row % d] = T::from_f64([f64::NAN, f64::INFINITY][row % 2]));
        let table = CentroidTable::new(&centroids, d, &vec![1.0; d], levels as f64, set, 1).unwrap();
        let features = Features::from_rows(&x, d).unwrap();
        let (labels, predictions) = (labels(&table, &features).unwrap(), nearest(&table, &features).unwrap());
        let (of_rows, two) = predictions.into_parts();
        let [plain, squares] = [false, true].map(|squared| distances(&table, &features, squared).unwrap());
        let m = k.min(3);
        let several = several(&table, &features, m, true).unwrap();
        for (row, x) in x.chunks_exact(d).enumerate() {
            let place = format!("{set:?} n {n} d {d} k {k} row {row}");
            let of_row = row * k..(row + 1) * k;
            if x.iter().any(|v| !v.to_f64().is_finite()) {
                assert_eq!((labels.get(row), of_rows.get(row), several.answered.get(row)), (None, None, false), "{place}");
                assert!(plain[of_row.clone()].iter().chain(&squares[of_row]).all(|s| s.is_nan()), "{place}");
                continue;
            }
            let expected: Vec<f64> = centroids.chunks_exact(d).map(|c| reference::distance(x, c)).collect();
            let roots: Vec<f64> = expected.iter().map(|s| s.sqrt()).collect();
            assert_eq!((&squares[of_row.clone()], &plain[of_row]), (&expected[..], &roots[..]), "{place}");
            let mut order: Vec<u32> = (0..k as u32).collect();
            order.sort_by(|a, b| expected[*a as usize].total_cmp(&expected[*b as usize]).then(a.cmp(b)));
            assert_eq!((labels.get(row), of_rows.get(row)), (Some(order[0]), Some(order[0])), "{place}");
            assert_eq!(two.nearest[row], roots[order[0] as usize], "{place}");
            if let Some(second) = &two.second {
                assert_eq!(second[row], roots[order[1] as usize], "{place}");
            }
            assert_eq!(several.clusters[row * m..][..m], order[..m], "{place}");
        }
    }

    unit_test!(answers_of_every_instruction_set_are_the_oracles);
    fn answers_of_every_instruction_set_are_the_oracles() {
        for set in InstructionSet::ALL {
            for (sizes, levels) in
                [([1, 1, 1], 5), ([65, 2, 9], 3), ([70, 3, 40], 1 << 20), ([129, 9, 6], 4), ([200, 17, 33], 1 << 20)]
            {
                check::<f32>(set, sizes, levels);
                check::<f64>(set, sizes, levels);
            }
            check::<f32>(set, [300, 12, 1_100], 1 << 20);
        }
    }
}
