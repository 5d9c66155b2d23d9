//! Groups of centroids that lie together.

use std::sync::{Mutex, PoisonError, RwLock};

use super::GROUPS;
use super::tuning::{DROP, FEW_GROUPS, FEW_MEMBERS, MEMBERS};
use crate::backend::cpu::filter::{GROUP, NO_CENTROID};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, in_rounds};
use crate::simd::{InstructionSet, Task, Vector};

/// A number that names a group.
pub type Group = u16;

/// Values of rows that are compared with points at a time, at least.
const PICKED: usize = 1 << 13;
/// Most rows whose nearest points are found in one task.
const TASK: usize = 64;

/// Points, which are means of centroids or of rows of the sample, and the centroids near each of them.
pub struct Partition<T> {
    /// For each centroid, its group.
    pub of: Vec<Group>,
    /// Whether points are means of centroids. Then rows go with their centroid, else to the nearest point.
    pub are_of_centroids: bool,
    /// `(groups, d)`: the points m.
    pub points: Vec<T>,
    /// The centroids, [`GROUP`] at a time, those of a group one after the other. What fills up a group is [`NO_CENTROID`].
    pub order: Vec<u32>,
    pub d: usize,
}

/// The sum of the squared differences, in any order.
#[inline(always)]
pub fn square<T: Float>(a: &[T], b: &[T]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0f64; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for i in 0..LANES {
            let t = a[i].to_f64() - b[i].to_f64();
            sums[i] += t * t;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a.to_f64() - b.to_f64()).map(|t| t * t);
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

/// The sum of the squared differences in float32, for what needs no exact distances.
#[inline(always)]
pub fn rough_square<T: Float>(a: &[T], b: &[T]) -> f32 {
    const LANES: usize = 16;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            let t = (a[i].to_f64() as f32) - (b[i].to_f64() as f32);
            sums[i] += t * t;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| (a.to_f64() - b.to_f64()) as f32).map(|t| t * t);
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

/// Rows or centroids that are far apart: each is the farthest one from those before (Gonzalez 1985), apart from rounding.
pub struct FarApart {
    /// For each row, the nearest pick.
    pub of: Vec<Group>,
    /// For each pick, the squared distance of the farthest row after it.
    farthest: Vec<f32>,
}

impl FarApart {
    /// Picks so many of these rows. `workers`: so many threads may share the work.
    pub fn new<T: Float>(rows: &[T], d: usize, picks: usize, set: InstructionSet, workers: usize) -> Result<Self> {
        let count = rows.len() / d;
        let mut of = memory::zeroed::<Group>(count, GROUPS)?;
        let mut nearest = memory::filled(count, f32::INFINITY, GROUPS)?;
        let mut farthest = memory::with_room(picks, GROUPS)?;
        let mut picked = memory::with_room(picks, GROUPS)?;
        let round = RwLock::new(Round { picks: 0, pick: 0, apart: memory::zeroed(picks, GROUPS)? });
        let together = count.div_ceil(workers).max(PICKED / d).max(1);
        let pieces = rows.chunks(together * d).zip(of.chunks_mut(together).zip(nearest.chunks_mut(together)));
        let pieces = pieces.map(|(rows, (of, nearest))| Mutex::new(PartitionSlice { rows, of, nearest, most: (0.0, 0) }));
        let pieces = memory::collected(pieces, GROUPS)?;
        let row = |row: usize| &rows[row * d..][..d];
        let work = |piece: usize| {
            let round = round.read().unwrap_or_else(PoisonError::into_inner);
            let mut piece = pieces[piece].lock().unwrap_or_else(PoisonError::into_inner);
            set.run(Pick { round: &round, point: row(round.pick), piece: &mut piece });
        };
        let before = || {
            let mut round = round.write().unwrap_or_else(PoisonError::into_inner);
            let Round { picks: picked_so_far, pick, apart } = &mut *round;
            if !picked.is_empty() {
                let mut most = (0.0, 0);
                for (first, piece) in (0..).step_by(together).zip(&pieces) {
                    let here = piece.lock().unwrap_or_else(PoisonError::into_inner).most;
                    most = if here.0 > most.0 { (here.0, first + here.1) } else { most };
                }
                farthest.push(most.0);
                *pick = most.1;
            }
            if picked.len() == picks {
                return false;
            }
            for (apart, other) in apart.iter_mut().zip(&picked) {
                *apart = rough_square(row(*other), row(*pick));
            }
            picked.push(*pick);
            *picked_so_far = picked.len();
            true
        };
        in_rounds(workers, pieces.len(), work, before)?;
        drop(pieces);
        Ok(Self { of, farthest })
    }

    /// The number of natural clusters, if the rows lie in some: after so many picks, no row is far from them.
    pub fn natural(&self) -> Option<usize> {
        let drops = self.farthest.windows(2).zip(2..).filter(|(after, _)| after[1] > 0.0 && after[0] > DROP * after[1]);
        drops.max_by(|(a, _), (b, _)| (a[0] / a[1]).total_cmp(&(b[0] / b[1]))).map(|(_, picks)| picks)
    }

    /// The means of the rows of each pick: `(picks, d)`.
    pub fn means<T: Float>(&self, rows: &[T], d: usize) -> Result<Vec<T>> {
        let picks = self.farthest.len();
        let mut sums = memory::zeroed::<f64>(picks * d, GROUPS)?;
        let mut counts = memory::zeroed::<f64>(picks, GROUPS)?;
        for (row, group) in rows.chunks_exact(d).zip(&self.of) {
            let group = usize::from(*group);
            counts[group] += 1.0;
            sums[group * d..][..d].iter_mut().zip(row).for_each(|(sum, x)| *sum += x.to_f64());
        }
        let means = sums.chunks_exact(d).zip(&counts).flat_map(|(sums, count)| sums.iter().map(|sum| sum / count.max(1.0)));
        memory::collected(means.map(T::from_f64), GROUPS)
    }
}

/// What all threads read of a pick.
struct Round {
    /// The number of picks, with this one.
    picks: usize,
    /// The row.
    pick: usize,
    /// For each pick before, the squared distance to this one.
    apart: Vec<f32>,
}

/// Some of the rows.
struct PartitionSlice<'p, T> {
    rows: &'p [T],
    of: &'p mut [Group],
    /// For each row, its squared distance to the nearest pick.
    nearest: &'p mut [f32],
    /// The largest of these distances, and its row.
    most: (f32, usize),
}

/// Compares some rows with a pick. Compiled for each instruction set.
struct Pick<'p, 'r, T> {
    round: &'p Round,
    point: &'p [T],
    piece: &'p mut PartitionSlice<'r, T>,
}

impl<T: Float> Task for Pick<'_, '_, T> {
    type Output = ();

    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN is not above a limit
    #[inline(always)]
    fn run<V: Vector>(self) {
        /// If another pick is more than twice as far from a row's nearest pick as the row is, it is not nearer to the row, by the
        /// triangle inequality. These are squared distances, so 2 becomes 4, with some room for rounding.
        const FAR: f32 = 4.1;
        let Self { round: Round { picks, apart, .. }, point, piece: PartitionSlice { rows, of, nearest, most } } = self;
        *most = (0.0, 0);
        for (j, row) in rows.chunks_exact(point.len()).enumerate() {
            // Before the first pick, the distances are infinite.
            if !(apart[usize::from(of[j])] > FAR * nearest[j]) {
                let s = rough_square(row, point);
                if s < nearest[j] {
                    (nearest[j], of[j]) = (s, (picks - 1) as Group);
                }
            }
            if nearest[j] > most.0 {
                *most = (nearest[j], j);
            }
        }
    }
}

/// The nearest of some points to each row, and the squared distance in float32.
pub fn nearest<T: Float>(rows: &[T], d: usize, points: &[T], set: InstructionSet, workers: usize) -> Result<Vec<(Group, f32)>> {
    let task = (PICKED / d).clamp(1, TASK);
    let mut nearest = memory::filled(rows.len() / d, (0, 0.0), GROUPS)?;
    let mut workers = memory::filled(workers.min(nearest.len().div_ceil(task)), (), GROUPS)?;
    let tasks = rows.chunks(task * d).zip(nearest.chunks_mut(task));
    for_each_task(&mut workers, tasks, |(), (rows, of)| set.run(NearestPoints { rows, d, points, of }))?;
    Ok(nearest)
}

/// Compiled for each instruction set.
struct NearestPoints<'p, T> {
    rows: &'p [T],
    d: usize,
    points: &'p [T],
    of: &'p mut [(Group, f32)],
}

impl<T: Float> Task for NearestPoints<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { rows, d, points, of } = self;
        for (of, row) in of.iter_mut().zip(rows.chunks_exact(d)) {
            *of = (0, f32::INFINITY);
            for (group, point) in points.chunks_exact(d).enumerate() {
                let s = rough_square(row, point);
                *of = if s < of.1 { (group as Group, s) } else { *of };
            }
        }
    }
}

/// The numbers of few and of many groups of these clusters.
pub fn few_and_many(k: usize, most: usize) -> [usize; 2] {
    let most = most.min(k).max(1);
    [(k / MEMBERS).max((k / FEW_MEMBERS).min(FEW_GROUPS / 2)).clamp(1, FEW_GROUPS).min(most), most]
}

impl<T: Float> Partition<T> {
    /// At most so many groups of centroids that lie together.
    pub fn new(centroids: &[T], d: usize, count: usize, set: InstructionSet, workers: usize) -> Result<Self> {
        let picked = FarApart::new(centroids, d, count.clamp(1, centroids.len() / d), set, workers)?;
        let points = picked.means(centroids, d)?;
        Self::around(points, picked.of, centroids, d, true)
    }

    /// Groups around means of rows. Centroids belong to the nearest of these points.
    pub fn of_rows(points: Vec<T>, centroids: &[T], d: usize, set: InstructionSet, workers: usize) -> Result<Self> {
        let nearest = nearest(centroids, d, &points, set, workers)?;
        let of = memory::collected(nearest.iter().map(|(group, _)| *group), GROUPS)?;
        Self::around(points, of, centroids, d, false)
    }

    fn around(points: Vec<T>, of: Vec<Group>, centroids: &[T], d: usize, are_of_centroids: bool) -> Result<Self> {
        let (k, groups) = (centroids.len() / d, points.len() / d);
        let mut members: Vec<u32> = memory::collected(0..k as u32, GROUPS)?;
        members.sort_unstable_by_key(|j| (of[*j as usize], *j));
        let mut order = memory::with_room(k + groups * GROUP, GROUPS)?;
        let mut rest = &mut members[..];
        let mut ranges = memory::filled(d, [T::default(); 2], GROUPS)?;
        for group in 0..groups {
            let count = rest.partition_point(|j| usize::from(of[*j as usize]) <= group);
            let (members, others) = rest.split_at_mut(count);
            rest = others;
            halve(members, centroids, &mut ranges, [GROUP; 2]);
            order.extend_from_slice(members);
            order.resize(order.len().next_multiple_of(GROUP), NO_CENTROID);
        }
        Ok(Self { of, are_of_centroids, points, order, d })
    }

    pub fn count(&self) -> usize {
        self.points.len() / self.d
    }

    #[inline(always)]
    pub fn point(&self, group: usize) -> &[T] {
        &self.points[group * self.d..][..self.d]
    }
}

/// Puts centroids near each other next to each other: halves them along the feature of the widest range, at multiples of the
/// width. Pieces of this width are halved at multiples of `width / leaf`, and so on. `ranges`: room for the range of each feature.
pub fn halve<T: Float>(members: &mut [u32], centroids: &[T], ranges: &mut [[T; 2]], [width, leaf]: [usize; 2]) {
    let d = ranges.len();
    if members.len() <= leaf {
        return;
    }
    if members.len() <= width {
        return halve(members, centroids, ranges, [width / leaf, leaf]);
    }
    let row = |j: u32| &centroids[j as usize * d..][..d];
    ranges.iter_mut().zip(row(members[0])).for_each(|(range, v)| *range = [*v; 2]);
    for j in &members[1..] {
        for ([low, high], v) in ranges.iter_mut().zip(row(*j)) {
            *low = if *v < *low { *v } else { *low };
            *high = if *v > *high { *v } else { *high };
        }
    }
    let (mut widest, mut range) = (0, -1.0);
    for (f, [low, high]) in ranges.iter().enumerate() {
        let here = high.to_f64() - low.to_f64();
        if here > range {
            (widest, range) = (f, here);
        }
    }
    let half = (members.len().div_ceil(width) / 2) * width;
    members.select_nth_unstable_by(half, |a, b| {
        let [a, b] = [a, b].map(|j| centroids[*j as usize * d + widest].to_f64());
        a.total_cmp(&b)
    });
    let (one, other) = members.split_at_mut(half);
    halve(one, centroids, ranges, [width, leaf]);
    halve(other, centroids, ranges, [width, leaf]);
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::random::Random;

    unit_test!(natural_clusters_are_counted);
    /// A hundred clusters are counted if they are apart. Uniform rows and equal rows have no clusters.
    fn natural_clusters_are_counted() {
        let random = &mut Random(31);
        for d in [12, 70] {
            let centres: Vec<f64> = (0..100 * d).map(|_| 200.0 * random.unit()).collect();
            let clusters: Vec<f32> = (0..2_000 * d).map(|i| (centres[i % (100 * d)] + random.unit()) as f32).collect();
            let uniform: Vec<f32> = (0..2_000 * d).map(|_| random.unit() as f32).collect();
            let counted = |rows: &[f32]| FarApart::new(rows, d, 250, InstructionSet::detect(), 3).unwrap().natural();
            assert_eq!([counted(&clusters), counted(&uniform), counted(&vec![1.0; 2_000 * d])], [Some(100), None, None]);
        }
    }
}
