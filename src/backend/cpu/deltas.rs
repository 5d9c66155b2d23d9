//! The rows that change cluster: what they take from one sum and add to another.
//!
//! ```text
//! for 16 rows at a time, for 16 features at a time:
//!   a square of values, which lie feature by feature, is transposed
//!   for each row: limbs of its values, added to one cluster's and taken from another's
//! ```
//! Points to note: (1) The sums of a cluster lie side by side, so a vector of limbs is added at once. (2) Values go through a
//! buffer. The processor cannot forward several short stores to one vector load at once, but the square is written long before it
//! is read. (3) Rows without weights whose values lie side by side need no square (`deltas/whole.rs`).

mod whole;

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

pub use self::whole::MoveWholeRows;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::exact::cluster_sums::{ClusterSums, Quantiser, SumsOfRange, UNASSIGNED};
use crate::exact::fixed::{round_to_integer, split};
use crate::input::tile::{ByFeature, WeightScale};
use crate::simd::{SQUARE, Task, Vector};

/// Rows that are moved together, and most features of them that are transposed at a time.
const TOGETHER: usize = SQUARE;
/// From so many features on, registers transpose them.
const FEWEST_TRANSPOSED: usize = 8;
/// Sums that a task adds up, at least and at most.
const FLUSHED: [usize; 2] = [1 << 8, 1 << 12];
/// Threads share the sums of all workers if there are so many.
const FEWEST_SHARED: usize = 1 << 15;

/// A row that moves from one cluster to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Its number among the rows at hand.
    pub row: u32,
    /// The cluster before. May be [`UNASSIGNED`].
    pub from: u32,
    pub to: u32,
}

/// The values of at most 16 rows, and what they are multiplied by.
struct Batch<'b, C> {
    values: C,
    rows: [usize; TOGETHER],
    /// Whether the rows are in order, without gaps.
    in_order: bool,
    /// 1 without weights.
    weights: [f64; TOGETHER],
    moved: &'b [Moved],
}

/// One worker's changes to a [`ClusterSums`], in int64 limbs.
#[derive(Debug)]
pub struct Deltas {
    d: usize,
    /// `(k, d)` each. `lo` is empty where every column has one limb.
    hi: Vec<i64>,
    lo: Vec<i64>,
    /// Empty without weights.
    mass: Vec<i128>,
    counts: Vec<Count>,
}

/// The rows of a cluster since its last flush.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    /// Rows that it got, less those that it lost.
    rows: i32,
    /// Values in its limbs.
    pending: u32,
}

impl Deltas {
    pub fn new(k: usize, quantiser: &Quantiser, weighted: bool) -> Result<Self> {
        const WHAT: &str = "a thread's sums of the clusters";
        let d = quantiser.scales.len();
        let low = if quantiser.two_limbs { d } else { 0 };
        Ok(Self {
            d,
            hi: memory::zeroed(k.saturating_mul(d), WHAT)?,
            lo: memory::zeroed(k.saturating_mul(low), WHAT)?,
            mass: memory::zeroed(if weighted { k } else { 0 }, WHAT)?,
            counts: memory::filled(k, Count::default(), WHAT)?,
        })
    }

    /// Moves F features of a batch of rows, from feature `first` on. Returns F.
    #[inline(always)]
    fn shift<V: Vector, T: Float, C: ByFeature<T>, const F: usize>(
        &mut self,
        quantiser: &Quantiser,
        batch: &Batch<'_, C>,
        first: usize,
    ) -> usize {
        let square = batch.square::<V, T, F>(first);
        let (Some(one), Some(two), Some(low)) = (
            quantiser.first[first..].first_chunk::<F>(),
            quantiser.second[first..].first_chunk::<F>(),
            quantiser.low[first..].first_chunk::<F>(),
        ) else {
            unreachable!("each feature has factors")
        };
        for (i, moved) in batch.moved.iter().enumerate().take(TOGETHER) {
            let Some(values) = square[i].first_chunk() else { unreachable!("a square has room for F values") };
            self.move_row(quantiser, [one, two, low], first, (batch.weights[i], values), *moved);
        }
        F
    }

    /// Moves F features of a row, from feature `first` on. `one`, `two`, `low`: the quantiser's factors of these features.
    #[inline(always)]
    fn move_row<T: Float, const F: usize>(
        &mut self,
        quantiser: &Quantiser,
        [one, two, low]: [&[f64; F]; 3],
        first: usize,
        (weight, values): (f64, &[T; F]),
        moved: Moved,
    ) {
        let place = |j: u32| j as usize * quantiser.scales.len() + first;
        let (mut hi, mut lo) = ([0i64; F], [0i64; F]);
        if quantiser.two_limbs {
            for f in 0..F {
                (hi[f], lo[f]) = split(weight * values[f].to_f64() * one[f] * two[f], low[f]);
            }
            add::<F, false>(&mut self.lo, place(moved.to), &lo);
            if moved.from != UNASSIGNED {
                add::<F, true>(&mut self.lo, place(moved.from), &lo);
            }
        } else {
            for f in 0..F {
                hi[f] = round_to_integer(weight * values[f].to_f64() * one[f] * two[f]);
            }
        }
        add::<F, false>(&mut self.hi, place(moved.to), &hi);
        if moved.from != UNASSIGNED {
            add::<F, true>(&mut self.hi, place(moved.from), &hi);
        }
    }

    #[inline(always)]
    fn count(&mut self, quantiser: &Quantiser, j: u32, rows: i32, target: &Mutex<&mut ClusterSums>) {
        let count = &mut self.counts[j as usize];
        count.rows += rows;
        count.pending += 1;
        if count.pending >= quantiser.capacity {
            let mut cluster_sums = target.lock().unwrap_or_else(PoisonError::into_inner);
            self.flush_cluster(quantiser, j as usize, &mut cluster_sums);
        }
    }

    #[cold]
    fn flush_cluster(&mut self, quantiser: &Quantiser, j: usize, cluster_sums: &mut ClusterSums) {
        let d = self.d;
        for (f, scale) in quantiser.scales.iter().enumerate() {
            let hi = std::mem::take(&mut self.hi[j * d + f]);
            let lo = self.lo.get_mut(j * d + f).map_or(0, std::mem::take);
            cluster_sums.sums[j * d + f] += scale.join(hi, lo);
        }
        let Count { rows, .. } = std::mem::take(&mut self.counts[j]);
        cluster_sums.mass[j] += self.mass.get_mut(j).map_or(i128::from(rows), std::mem::take);
        cluster_sums.rows[j] += i64::from(rows);
        cluster_sums.dirty[j] = true;
    }

    /// Adds all pending values to `cluster_sums`.
    pub fn flush(&mut self, quantiser: &Quantiser, cluster_sums: &mut ClusterSums) {
        for j in 0..self.counts.len() {
            if self.counts[j].pending > 0 {
                self.flush_cluster(quantiser, j, cluster_sums);
            }
        }
    }

    /// The same for several workers. If there are many sums, threads share the clusters: else the time would grow with the number
    /// of workers.
    pub fn flush_all(all: &mut [&mut Self], quantiser: &Quantiser, cluster_sums: &mut ClusterSums) -> Result<()> {
        const WHAT: &str = "the threads' sums";
        let (workers, d, k) = (all.len(), quantiser.scales.len(), cluster_sums.rows.len());
        if workers < 2 || workers * k * (d + 1) < FEWEST_SHARED {
            all.iter_mut().for_each(|deltas| deltas.flush(quantiser, cluster_sums));
            return Ok(());
        }
        let clusters = k.div_ceil(2 * workers).clamp(FLUSHED[0].div_ceil(d), (FLUSHED[1] / d).max(FLUSHED[0].div_ceil(d)));
        let ranges = k.div_ceil(clusters);
        let mut of_ranges = memory::with_room(ranges * workers, WHAT)?;
        let mut of_workers = memory::collected(all.iter_mut().map(|deltas| deltas.ranges(clusters)), WHAT)?;
        for _ in 0..ranges {
            of_ranges.extend(of_workers.iter_mut().filter_map(Iterator::next));
        }
        let mut threads = memory::filled(workers, (), WHAT)?;
        let tasks = cluster_sums.ranges(clusters).zip(of_ranges.chunks_mut(workers));
        for_each_task(&mut threads, tasks, |(), (mut sums, deltas)| {
            deltas.iter_mut().for_each(|deltas| deltas.move_to(quantiser, &mut sums));
        })
    }

    /// The clusters, so many at a time.
    fn ranges(&mut self, clusters: usize) -> impl Iterator<Item = DeltasOfRange<'_>> {
        let Self { d, hi, lo, mass, counts } = self;
        let (mut lo, mut mass) = (lo.chunks_mut(clusters * *d), mass.chunks_mut(clusters));
        hi.chunks_mut(clusters * *d).zip(counts.chunks_mut(clusters)).map(move |(hi, counts)| {
            let (lo, mass) = (lo.next().unwrap_or_default(), mass.next().unwrap_or_default());
            DeltasOfRange { hi, lo, mass, counts }
        })
    }
}

/// A worker's changes to some clusters, as in [`Deltas`].
struct DeltasOfRange<'d> {
    hi: &'d mut [i64],
    lo: &'d mut [i64],
    mass: &'d mut [i128],
    counts: &'d mut [Count],
}

impl DeltasOfRange<'_> {
    /// Adds the pending values to the sums of these clusters, and sets them to 0.
    fn move_to(&mut self, quantiser: &Quantiser, to: &mut SumsOfRange<'_>) {
        let d = quantiser.scales.len();
        for (i, sums) in to.sums.chunks_exact_mut(d).enumerate() {
            let Count { rows, pending } = std::mem::take(&mut self.counts[i]);
            if pending == 0 {
                continue;
            }
            let hi = &mut self.hi[i * d..][..d];
            match self.lo.get_mut(i * d..(i + 1) * d) {
                Some(lo) => {
                    for (((sum, hi), lo), scale) in sums.iter_mut().zip(&*hi).zip(&*lo).zip(&quantiser.scales) {
                        *sum += scale.join(*hi, *lo);
                    }
                    lo.fill(0);
                }
                None => {
                    for ((sum, hi), scale) in sums.iter_mut().zip(&*hi).zip(&quantiser.scales) {
                        *sum += scale.join(*hi, 0);
                    }
                }
            }
            hi.fill(0);
            to.mass[i] += self.mass.get_mut(i).map_or(i128::from(rows), std::mem::take);
            to.rows[i] += i64::from(rows);
            to.dirty[i] = true;
        }
    }
}

impl<C> Batch<'_, C> {
    /// F features of the rows, row by row.
    #[inline(always)]
    fn square<V: Vector, T: Float, const F: usize>(&self, first: usize) -> [[T; TOGETHER]; TOGETHER]
    where
        C: ByFeature<T>,
    {
        let mut square = [[T::default(); TOGETHER]; TOGETHER];
        if T::IS_F32 && self.in_order && F >= FEWEST_TRANSPOSED {
            let mut columns = [std::ptr::null(); TOGETHER];
            for f in 0..TOGETHER {
                columns[f] = self.values.column(first + f.min(F - 1))[self.rows[0]..][..TOGETHER].as_ptr().cast();
            }
            // SAFETY: sixteen values of 32 bits lie at each pointer, and the square has room for sixteen times as many.
            unsafe { V::transpose(columns, square.as_mut_ptr().cast(), TOGETHER) };
        } else {
            for f in 0..F {
                let column = self.values.column(first + f);
                for i in 0..TOGETHER {
                    square[i][f] = column[self.rows[i]];
                }
            }
        }
        square
    }
}

#[inline(always)]
fn add<const F: usize, const NEGATIVE: bool>(sums: &mut [i64], place: usize, limbs: &[i64; F]) {
    let Some(sums) = sums[place..].first_chunk_mut::<F>() else { unreachable!("each cluster has a sum for each feature") };
    for f in 0..F {
        sums[f] = if NEGATIVE { sums[f] - limbs[f] } else { sums[f] + limbs[f] };
    }
}

/// Moves rows of positive weight from sums to others.
pub struct MoveRows<'m, 'p, T, C> {
    pub deltas: &'m mut Deltas,
    pub quantiser: &'m Quantiser,
    pub values: C,
    /// The `w^` of all rows at hand, if there are weights.
    pub weights: Option<(&'m [f64], WeightScale)>,
    /// In ascending order.
    pub moved: &'m [Moved],
    pub target: &'m Mutex<&'p mut ClusterSums>,
    pub of: PhantomData<T>,
}

impl<T: Float, C: ByFeature<T>> Task for MoveRows<'_, '_, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { deltas, quantiser, values, weights, moved, target, .. } = self;
        for moved in moved.chunks(TOGETHER) {
            let mut rows = [moved[0].row as usize; TOGETHER];
            for (row, moved) in rows.iter_mut().zip(moved) {
                *row = moved.row as usize;
            }
            let in_order = rows[TOGETHER - 1] == rows[0] + TOGETHER - 1;
            let mut batch = Batch { values, rows, in_order, weights: [1.0; TOGETHER], moved };
            if let Some((weights, _)) = weights {
                for i in 0..TOGETHER {
                    batch.weights[i] = weights[rows[i]];
                }
            }
            let mut first = 0;
            while first < deltas.d {
                first += match deltas.d - first {
                    1 => deltas.shift::<V, T, C, 1>(quantiser, &batch, first),
                    2 => deltas.shift::<V, T, C, 2>(quantiser, &batch, first),
                    3 => deltas.shift::<V, T, C, 3>(quantiser, &batch, first),
                    4 => deltas.shift::<V, T, C, 4>(quantiser, &batch, first),
                    5 => deltas.shift::<V, T, C, 5>(quantiser, &batch, first),
                    6 => deltas.shift::<V, T, C, 6>(quantiser, &batch, first),
                    7 => deltas.shift::<V, T, C, 7>(quantiser, &batch, first),
                    8..TOGETHER => deltas.shift::<V, T, C, 8>(quantiser, &batch, first),
                    _ => deltas.shift::<V, T, C, TOGETHER>(quantiser, &batch, first),
                };
            }
            if let Some((weights, scale)) = weights {
                for (i, moved) in moved.iter().enumerate() {
                    let mass = scale.integer(weights[rows[i]]);
                    deltas.mass[moved.to as usize] += mass;
                    if moved.from != UNASSIGNED {
                        deltas.mass[moved.from as usize] -= mass;
                    }
                }
            }
            // The limbs of a batch are far fewer than those that still fit.
            for moved in moved {
                deltas.count(quantiser, moved.to, 1, target);
                if moved.from != UNASSIGNED {
                    deltas.count(quantiser, moved.from, -1, target);
                }
            }
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::exact::fixed::{ColumnScale, Limbs};
    use crate::input::tile::FeatureValues;
    use crate::simd::InstructionSet;

    /// Rows go to clusters, and some of them to others, in batches of every length. The sums are those of single values.
    fn check<T: Float>(set: InstructionSet, d: usize, limbs: Limbs, weight: Option<WeightScale>) {
        let (n, k) = (75, 3);
        let x: Vec<T> = (0..d * n).map(|i| T::from_f64(((i * 7919) % 1_009) as f64 / 63.0 - 8.0)).collect();
        let weights: Vec<f64> = (0..n).map(|r| weight.map_or(1.0, |scale| scale.round(0.1 + (r % 7) as f64))).collect();
        let scales = vec![ColumnScale::new(7, limbs); d];
        let quantiser = Quantiser::new(&scales).unwrap();
        let (mut deltas, mut cluster_sums) =
            (Deltas::new(k, &quantiser, weight.is_some()).unwrap(), ClusterSums::new(k, d).unwrap());
        let mut expected = ClusterSums::new(k, d).unwrap();
        let rows: Vec<T> = (0..d * n).map(|i| x[i % d * n + i / d]).collect();
        let mut labels = vec![UNASSIGNED; n];
        for step in 1..7 {
            let there = (0..n).filter(|r| step == 1 || r % step == 0 || (20..37 + step).contains(r));
            let moved: Vec<Moved> =
                there.map(|r| Moved { row: r as u32, from: labels[r], to: ((r * step) % k) as u32 }).collect();
            for Moved { row, from, to } in &moved {
                let (r, mass) = (*row as usize, weight.map_or(1, |scale| scale.integer(weights[*row as usize])));
                labels[r] = *to;
                for (j, sign) in [(*to, 1), (*from, -1)].into_iter().filter(|(j, _)| *j != UNASSIGNED) {
                    let j = j as usize;
                    expected.mass[j] += sign * mass;
                    expected.rows[j] += sign as i64;
                    expected.dirty[j] = true;
                    for f in 0..d {
                        expected.sums[j * d + f] += sign * scales[f].quantise(weights[r] * x[f * n + r].to_f64());
                    }
                }
            }
            let (values, weights) = (FeatureValues::new(&x, n), weight.map(|scale| (&weights[..], scale)));
            let target = Mutex::new(&mut cluster_sums);
            let (deltas, quantiser, moved, target, of) = (&mut deltas, &quantiser, &moved[..], &target, PhantomData::<T>);
            if weights.is_none() && step > 4 {
                let row = |r: u32| &rows[r as usize * d..][..d];
                set.run(MoveWholeRows { deltas, quantiser, row, moved, target, of });
            } else {
                set.run(MoveRows { deltas, quantiser, values, weights, moved, target, of });
            }
        }
        deltas.flush(&quantiser, &mut cluster_sums);
        assert_eq!(cluster_sums, expected, "{set:?} d {d} {limbs:?} {weight:?}");
    }

    unit_test!(sums_are_those_of_single_values);
    fn sums_are_those_of_single_values() {
        for set in InstructionSet::ALL {
            for d in (1..=17).chain([24, 31, 32, 50]) {
                for limbs in [Limbs::One, Limbs::Two] {
                    check::<f32>(set, d, limbs, None);
                    check::<f64>(set, d, limbs, None);
                }
                check::<f32>(set, d, Limbs::Two, Some(WeightScale::new(6.1)));
                check::<f64>(set, d, Limbs::Two, Some(WeightScale::new(6.1)));
            }
        }
    }

    unit_test!(several_workers_are_flushed_at_once);
    /// Each worker has rows of some clusters. With many clusters, threads share them.
    fn several_workers_are_flushed_at_once() {
        for (limbs, weight) in [(Limbs::One, None), (Limbs::Two, None), (Limbs::Two, Some(WeightScale::new(2.5)))] {
            for (k, d) in [(3, 2), (FEWEST_SHARED / 50, 50)] {
                let (n, workers) = (90, 3);
                let x: Vec<f32> = (0..d * n).map(|i| ((i * 7919) % 1_009) as f32 / 63.0 - 8.0).collect();
                let weights: Vec<f64> =
                    (0..n).map(|r| weight.map_or(1.0, |scale| scale.round(0.3 + (r % 7) as f64 / 4.0))).collect();
                let quantiser = Quantiser::new(&vec![ColumnScale::new(7, limbs); d]).unwrap();
                let new = || Deltas::new(k, &quantiser, weight.is_some()).unwrap();
                let mut all: Vec<Deltas> = (0..workers).map(|_| new()).collect();
                let mut one = new();
                let [mut sums, mut expected] = [0; 2].map(|_| ClusterSums::new(k, d).unwrap());
                let move_rows = |deltas: &mut Deltas, moved: &[Moved], target: &mut ClusterSums| {
                    let (values, weights) = (FeatureValues::new(&x, n), weight.map(|scale| (&weights[..], scale)));
                    let (quantiser, target, of) = (&quantiser, &Mutex::new(target), PhantomData::<f32>);
                    InstructionSet::detect().run(MoveRows { deltas, quantiser, values, weights, moved, target, of });
                };
                for round in 0..2u32 {
                    for (worker, deltas) in (0..).zip(&mut all) {
                        let label = |row: u32, round: u32| (row * 31 + round * 7) % k as u32;
                        let from = |row| if round == 0 { UNASSIGNED } else { label(row, round - 1) };
                        let rows = (worker * 30..(worker + 1) * 30).filter(|row| round == 0 || row % 3 == 0);
                        let moved: Vec<Moved> = rows.map(|row| Moved { row, from: from(row), to: label(row, round) }).collect();
                        move_rows(deltas, &moved, &mut sums);
                        move_rows(&mut one, &moved, &mut expected);
                    }
                    Deltas::flush_all(&mut all.iter_mut().collect::<Vec<_>>(), &quantiser, &mut sums).unwrap();
                    one.flush(&quantiser, &mut expected);
                    assert_eq!(sums, expected, "{k} x {d} {limbs:?} {weight:?} {round}");
                }
            }
        }
    }

    unit_test!(full_limbs_are_flushed_in_time);
    fn full_limbs_are_flushed_in_time() {
        for limbs in [Limbs::One, Limbs::Two] {
            // The largest value of either sign, many times in one cluster.
            let (n, value) = (1_000, [128.0f32, -128.0]);
            let x: Vec<f32> = (0..2 * n).map(|i| value[i / n]).collect();
            let scales = [ColumnScale::new(7, limbs); 2];
            let quantiser = Quantiser::new(&scales).unwrap();
            let (mut deltas, mut cluster_sums) = (Deltas::new(1, &quantiser, false).unwrap(), ClusterSums::new(1, 2).unwrap());
            let moved: Vec<Moved> = (0..n).map(|r| Moved { row: r as u32, from: UNASSIGNED, to: 0 }).collect();
            let rounds = 300;
            for _ in 0..rounds {
                let (values, target) = (FeatureValues::new(&x, n), Mutex::new(&mut cluster_sums));
                let (deltas, quantiser, moved, target, of) = (&mut deltas, &quantiser, &moved[..], &target, PhantomData::<f32>);
                InstructionSet::detect().run(MoveRows { deltas, quantiser, values, weights: None, moved, target, of });
            }
            deltas.flush(&quantiser, &mut cluster_sums);
            let total = (rounds * n) as i128;
            assert_eq!(cluster_sums.sums, [total * scales[0].quantise(128.0), total * scales[1].quantise(-128.0)], "{limbs:?}");
            assert_eq!((cluster_sums.rows[0], cluster_sums.mass[0]), (total as i64, total));
        }
    }
}
