//! What a sample of the rows says of groups and of integer copies.

use super::partition::{self, Group, Partition};
use super::{BLOCK, GROUPS, GroupStep, UseGroups};
use crate::backend::cpu::CpuSession;
use crate::backend::cpu::filter::{GROUP, ScoreForm};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::input::features::rows_to_columns;
use crate::input::fp16::Same;
use crate::input::tile::Tile;
use crate::simd::SQUARE;

/// Rows of the sample, but no more values than this, unless its rows are very few.
const SAMPLE: usize = 2_048;
const SAMPLE_VALUES: usize = 1 << 19;
const FEWEST_SAMPLED: usize = 256;
/// No more than one of so many rows, if there are so many features.
const SAMPLED: usize = 32;
const WIDE: usize = 512;
/// Rows of the sample where no groups are tried.
const WITHOUT_GROUPS: usize = 128;
/// So many rows of the sample lie side by side. Where features are columns, they come together.
const SIDE_BY_SIDE: usize = 4;
/// The distances from a group's point for which centroids are copied, over those of a sample of its rows.
const MORE_RADIUS: f64 = 1.1;
/// Copies in bytes are not worth it for fewer features.
const FEWEST_BYTES: usize = 64;
/// The share of rows in doubt by copies in bytes, for each unit of their coarseness.
const DOUBT: f64 = 5.0;
/// The time of a closer look at a row with a few candidates, in products of bytes, and that to load a row of one feature.
const CLOSER: f64 = 200.0;
const CLOSER_ROW: f64 = 4_096.0;

impl<T: Float> CpuSession<'_, T> {
    /// A sample of the rows: `(rows, d)`. It is taken once.
    pub(super) fn sample(&self) -> Result<&[T]> {
        match self.sample.get() {
            Some(sample) => Ok(sample),
            None => self.take_sample().map(|sample| &self.sample.get_or_init(|| sample)[..]),
        }
    }

    fn take_sample(&self) -> Result<Vec<T>> {
        // Few rows at a time make tasks for many threads.
        let (n, stride) = (self.part.features.n_rows(), if self.d < WIDE { BLOCK } else { SQUARE });
        let groups = self.tries.groups || self.use_groups != UseGroups::Auto;
        // A row of wide columns takes a line of memory for every feature.
        let most = if self.d < WIDE { SAMPLE } else { self.labels.len() / SAMPLED };
        let most = (SAMPLE_VALUES / self.d).min(most).clamp(FEWEST_SAMPLED, SAMPLE);
        let sample = if groups { most } else { WITHOUT_GROUPS };
        let apart = (self.labels.len() / sample * SIDE_BY_SIDE).max(SIDE_BY_SIDE);
        // Neither at equal distances, which rows of a period would make one-sided, nor one by one.
        let first = |piece: usize| (piece.wrapping_mul(0x9E37_79B1) >> 16) % (apart - SIDE_BY_SIDE + 1);
        let start = |piece: usize| piece * apart + first(piece);
        let rows = match self.part.selection.is_all() {
            true => {
                let pieces = (0..n.div_ceil(apart)).map(start);
                memory::collected(pieces.flat_map(|row| row..n.min(row + SIDE_BY_SIDE)), GROUPS)?
            }
            false => {
                let kept = (0..n).filter(|row| self.part.selection.contains(*row)).enumerate();
                let chosen = kept.filter(|(i, _)| (start(i / apart)..start(i / apart) + SIDE_BY_SIDE).contains(i));
                memory::collected(chosen.map(|(_, row)| row), GROUPS)?
            }
        };
        let mut values = memory::zeroed(rows.len() * self.d, GROUPS)?;
        if let Some(first) = rows.first()
            && self.part.features.row(*first).is_some()
        {
            let mut threads = memory::filled(self.workers.len().min(rows.len().div_ceil(stride)), (), GROUPS)?;
            let tasks = rows.chunks(stride).zip(values.chunks_mut(stride * self.d));
            for_each_task(&mut threads, tasks, |(), (rows, values)| {
                for (row, values) in rows.iter().zip(values.chunks_exact_mut(self.d)) {
                    values.copy_from_slice(self.part.features.row(*row).unwrap_or_default());
                }
            })?;
            return Ok(values);
        }
        let tiles = (0..self.workers.len().min(rows.len().div_ceil(stride))).map(|_| Tile::new(self.d, stride));
        let mut tiles = memory::try_collected(tiles, GROUPS)?;
        let tasks = rows.chunks(stride).zip(values.chunks_mut(stride * self.d));
        for_each_task(&mut tiles, tasks, |tile, (rows, values)| {
            tile.load_list(&self.part, self.statistics.weights, rows);
            // The columns of the tile are its rows.
            let columns = tile.x.chunks_exact(stride).map(|column| &column[..rows.len()]);
            rows_to_columns::<T, T, Same>(columns, 0, self.d, values);
        })?;
        Ok(values)
    }

    /// About the largest distance of each group's rows from its point. The share of the scores that rows of a sample need, and
    /// about the sum of their squared distances from the points.
    pub(super) fn look_at_sample(&self, step: &GroupStep<'_, T>, sample: &[T]) -> Result<(Vec<f64>, [f64; 2])> {
        let nearest = self.nearest_points(step.groups, sample)?;
        // The largest distance of each group's rows so far, and their number.
        let mut seen = memory::filled(step.groups(), (0.0f64, 0usize), GROUPS)?;
        for (group, square) in &nearest {
            let (most, count) = &mut seen[usize::from(*group)];
            *most = most.max(step.most(&[f64::from(*square)]));
            *count += 1;
        }
        let largest = seen.iter().fold(0.0f64, |most, (radius, _)| most.max(*radius));
        // A group of which no row was seen may have any rows.
        let radius = |(most, count): &(f64, usize)| MORE_RADIUS * if *count == 0 { largest } else { *most };
        let radii = memory::collected(seen.iter().map(radius), GROUPS)?;
        if nearest.is_empty() {
            return Ok((radii, [1.0, 0.0]));
        }
        let listed = seen.iter().enumerate().map(|(group, (most, count))| {
            // With few features, rows are much nearer to their labels than to the ends of their group.
            let own = (ScoreForm::of::<T>(self.d) == ScoreForm::Difference).then_some(most / 2.0);
            (step.listed(group, *most, own).len() * count * GROUP) as f64
        });
        let squares = nearest.iter().map(|(_, square)| f64::from(*square)).sum();
        Ok((radii, [listed.sum::<f64>() / (self.k * nearest.len()) as f64, squares]))
    }

    /// For each row of a sample, the nearest point of some groups, and about the squared distance.
    fn nearest_points(&self, groups: &Partition<T>, sample: &[T]) -> Result<Vec<(Group, f32)>> {
        partition::nearest(sample, self.d, &groups.points, self.set, self.workers.len())
    }

    /// Whether copies in bytes leave so much doubt that copies in words, with half of the products in an instruction, take less
    /// time. `compared`: the centroids that a row is compared with.
    pub(super) fn suits_words(&self, groups: &Partition<T>, compared: f64, sample: &[T]) -> Result<bool> {
        let d = self.d as f64;
        let (mut coarseness, mut count) = (0.0, 0.0);
        for ((group, square), row) in self.nearest_points(groups, sample)?.iter().zip(sample.chunks_exact(self.d)) {
            let (point, square) = (groups.point(usize::from(*group)), f64::from(*square));
            let largest = largest_difference(row, point);
            // What rounding leaves, over what remains of the row: scores of centroids differ by the square root of d less than
            // norms do.
            if square > 0.0 && square.is_finite() {
                coarseness += largest / 127.0 * (d / 12.0).sqrt() * d.sqrt() / square.sqrt();
                count += 1.0;
            }
        }
        let doubt = (DOUBT * coarseness / f64::max(count, 1.0)).min(1.0);
        // A closer look, and loading the row for it, in products of bytes.
        Ok(self.d < FEWEST_BYTES || compared < doubt * (CLOSER + CLOSER_ROW / d))
    }
}

/// The largest magnitude of the differences. A NaN counts as none.
fn largest_difference<T: Float>(row: &[T], point: &[T]) -> f64 {
    const LANES: usize = 8;
    let ((row, row_rest), (point, point_rest)) = (row.as_chunks::<LANES>(), point.as_chunks::<LANES>());
    let mut most = [0.0f64; LANES];
    for (row, point) in row.iter().zip(point) {
        for i in 0..LANES {
            most[i] = most[i].max((row[i].to_f64() - point[i].to_f64()).abs());
        }
    }
    let rest = row_rest.iter().zip(point_rest).map(|(x, m)| (x.to_f64() - m.to_f64()).abs());
    most.into_iter().chain(rest).fold(0.0, f64::max)
}
