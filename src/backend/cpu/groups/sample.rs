//! What a sample of the rows says of groups and of integer copies.

use super::partition::{self, Group, Partition};
use super::plan::Planner;
use super::tuning::{self, SIDE_BY_SIDE, WIDE};
use super::view::{SessionView, UseGroups};
use super::{BLOCK, GROUPS, GroupStep};
use crate::backend::cpu::filter::{GROUP, ScoreForm};
use crate::backend::cpu::layout::SessionLayout;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::input::features::rows_to_columns;
use crate::input::fp16::Same;
use crate::input::tile::Tile;
use crate::simd::SQUARE;

impl<T: Float> SessionView<'_, '_, T> {
    /// A sample of the rows: `(rows, d)`.
    pub fn take_sample(&self) -> Result<Vec<T>> {
        let (Self { part, layout, .. }, rows) = (self, self.rows_of_sample()?);
        let SessionLayout { d, workers, .. } = **layout;
        // Few rows at a time make tasks for many threads.
        let stride = if d < WIDE { BLOCK } else { SQUARE };
        let mut values = memory::zeroed(rows.len() * d, GROUPS)?;
        let threads = workers.min(rows.len().div_ceil(stride));
        let tasks = rows.chunks(stride).zip(values.chunks_mut(stride * d));
        if rows.first().is_some_and(|first| part.features.row(*first).is_some()) {
            for_each_task(&mut memory::filled(threads, (), GROUPS)?, tasks, |(), (rows, values)| {
                for (row, values) in rows.iter().zip(values.chunks_exact_mut(d)) {
                    values.copy_from_slice(part.features.row(*row).unwrap_or_default());
                }
            })?;
            return Ok(values);
        }
        let mut tiles = memory::try_collected((0..threads).map(|_| Tile::new(d, stride)), GROUPS)?;
        for_each_task(&mut tiles, tasks, |tile, (rows, values)| {
            tile.load_list(part, self.statistics.weights, rows);
            // The columns of the tile are its rows.
            let columns = tile.x.chunks_exact(stride).map(|column| &column[..rows.len()]);
            rows_to_columns::<T, T, Same>(columns, 0, d, values);
        })?;
        Ok(values)
    }

    /// The physical rows of the sample: short runs at uneven, fixed distances. At equal distances, rows that repeat with a period
    /// would make the sample one-sided.
    fn rows_of_sample(&self) -> Result<Vec<usize>> {
        let (n, d, kept) = (self.part.features.n_rows(), self.layout.d, self.rows);
        // A row of wide columns takes a line of memory for every feature.
        let most = if d < WIDE { tuning::SAMPLE } else { kept / tuning::SAMPLED };
        let most = (tuning::SAMPLE_VALUES / d).min(most).clamp(tuning::FEWEST_SAMPLED, tuning::SAMPLE);
        let groups = self.tries.groups || self.forced.groups != UseGroups::Auto;
        let apart = (kept / if groups { most } else { tuning::WITHOUT_GROUPS } * SIDE_BY_SIDE).max(SIDE_BY_SIDE);
        let first = |run: usize| (run.wrapping_mul(0x9E37_79B1) >> 16) % (apart - SIDE_BY_SIDE + 1);
        let start = |run: usize| run * apart + first(run);
        if self.part.selection.is_all() {
            let runs = (0..n.div_ceil(apart)).map(start);
            return memory::collected(runs.flat_map(|row| row..n.min(row + SIDE_BY_SIDE)), GROUPS);
        }
        let kept = (0..n).filter(|row| self.part.selection.contains(*row)).enumerate();
        let chosen = kept.filter(|(i, _)| (start(i / apart)..start(i / apart) + SIDE_BY_SIDE).contains(i));
        memory::collected(chosen.map(|(_, row)| row), GROUPS)
    }
}

impl<T: Float> Planner<'_, '_, T> {
    /// About the largest distance of each group's rows from its point. The share of the scores that rows of a sample need, and
    /// about the sum of their squared distances from the points.
    pub fn look_at_sample(&self, step: &GroupStep<'_, T>) -> Result<(Vec<f64>, [f64; 2])> {
        let nearest = self.nearest_points(step.groups)?;
        // The largest distance of each group's rows so far, and their number.
        let mut seen = memory::filled(step.groups(), (0.0f64, 0usize), GROUPS)?;
        for (group, square) in &nearest {
            let (most, count) = &mut seen[usize::from(*group)];
            *most = most.max(step.most(&[f64::from(*square)]));
            *count += 1;
        }
        let largest = seen.iter().fold(0.0f64, |most, (radius, _)| most.max(*radius));
        // A group of which no row was seen may have any rows.
        let radius = |(most, count): &(f64, usize)| tuning::MORE_RADIUS * if *count == 0 { largest } else { *most };
        let radii = memory::collected(seen.iter().map(radius), GROUPS)?;
        if nearest.is_empty() {
            return Ok((radii, [1.0, 0.0]));
        }
        let listed = seen.iter().enumerate().map(|(group, (most, count))| {
            // With few features, rows are much nearer to their labels than to the ends of their group.
            let own = (ScoreForm::of::<T>(step.groups.d) == ScoreForm::Difference).then_some(most / 2.0);
            (step.listed(group, *most, own).len() * count * GROUP) as f64
        });
        let squares = nearest.iter().map(|(_, square)| f64::from(*square)).sum();
        Ok((radii, [listed.sum::<f64>() / (self.view.layout.k * nearest.len()) as f64, squares]))
    }

    /// For each row of the sample, the nearest point of some groups, and about the squared distance.
    fn nearest_points(&self, groups: &Partition<T>) -> Result<Vec<(Group, f32)>> {
        partition::nearest(self.sample, groups.d, &groups.points, self.view.set, self.view.layout.workers)
    }

    /// Whether copies in bytes leave so much doubt that copies in words, with half of the products in an instruction, take less
    /// time. `compared`: the centroids that a row is compared with.
    pub fn suits_words(&self, groups: &Partition<T>, compared: f64) -> Result<bool> {
        let d = groups.d as f64;
        let (mut coarseness, mut count) = (0.0, 0.0);
        for ((group, square), row) in self.nearest_points(groups)?.iter().zip(self.sample.chunks_exact(groups.d)) {
            let (point, square) = (groups.point(usize::from(*group)), f64::from(*square));
            let largest = largest_difference(row, point);
            // What rounding leaves, over what remains of the row: scores of centroids differ by the square root of d less than
            // norms do.
            if square > 0.0 && square.is_finite() {
                coarseness += largest / 127.0 * (d / 12.0).sqrt() * d.sqrt() / square.sqrt();
                count += 1.0;
            }
        }
        let doubt = (tuning::DOUBT * coarseness / f64::max(count, 1.0)).min(1.0);
        // A closer look, and loading the row for it, in products of bytes.
        Ok(groups.d < tuning::FEWEST_BYTES || compared < doubt * (tuning::CLOSER + tuning::CLOSER_ROW / d))
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
