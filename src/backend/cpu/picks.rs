//! The rows that a draw names, and their values. Targets are sorted, so one pass over the rows finds the rows of all of them.

use super::CpuSession;
use super::seeds::table::DrawTable;
use super::tasks::{for_each_weight, pieces, split_off};
use crate::backend::sweep::Sweep;
use crate::backend::{DRAWN as ROWS, DrawBy, Picked, Sample};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::exact::rng::{NO_VALUES, hash_value};
use crate::input::tile::Tile;

/// Rows that are loaded together.
const TOGETHER: usize = 256;

/// The rows that the targets draw.
pub fn by_totals<T: Float>(session: &CpuSession<'_, T>, by: DrawBy, targets: &[u128]) -> Result<Vec<u64>> {
    match (by, &session.seeds) {
        (DrawBy::Weight | DrawBy::Positive, _) if session.statistics.weights.is_none() => {
            memory::collected(targets.iter().map(|&target| target as u64), ROWS)
        }
        (_, Some(seeds)) if seeds.table.is_by(by) => from_table(&seeds.table, targets),
        (DrawBy::Distance, _) => unreachable!("centroids were taken"),
        (DrawBy::Weight, _) => by_weight(session, targets, |integer| integer),
        (DrawBy::Positive, _) => by_weight(session, targets, |integer| u128::from(integer > 0)),
    }
}

/// All rows, and their `w^`.
pub fn all<T: Float>(session: &CpuSession<'_, T>) -> Result<Picked<T>> {
    let n = session.labels.len();
    let (mut values, mut weights) = (memory::with_room(n.saturating_mul(session.d), ROWS)?, memory::with_room(n, ROWS)?);
    let mut tile = Tile::new(session.d, TOGETHER)?;
    for rows in pieces(0..session.part.features.n_rows(), TOGETHER) {
        tile.load(&session.part, session.statistics.weights, rows);
        // There is room for all rows.
        (0..tile.rows).for_each(|r| values.extend((0..session.d).map(|f| tile.column(f)[r])));
        weights.extend_from_slice(&tile.weights[..tile.rows]);
    }
    Ok(Picked { rows: Vec::new(), values, weights })
}

/// The rows that targets draw by the draw weights of a table.
fn from_table(table: &DrawTable, targets: &[u128]) -> Result<Vec<u64>> {
    let mut sweep = Sweep::new(targets)?;
    for (rows, total) in table.ranges.with_totals() {
        if sweep.stops_in(total) {
            rows.for_each(|row| sweep.visit(row, table.draw_weight(row)));
        }
    }
    Ok(sweep.rows())
}

/// The rows that targets draw, where `number` says what the integer of a weight counts.
fn by_weight<T: Float>(session: &CpuSession<'_, T>, targets: &[u128], number: impl Fn(u128) -> u128) -> Result<Vec<u64>> {
    let (mut sweep, mut row) = (Sweep::new(targets)?, 0);
    let Some(scale) = session.statistics.weights else { unreachable!("there are weights") };
    for task in &session.tasks {
        if sweep.is_done() {
            break;
        }
        for_each_weight(&session.part, task.physical.clone(), |weight| {
            sweep.visit(row, number(scale.integer(scale.round(weight)) as u128));
            row += 1;
        });
    }
    Ok(sweep.rows())
}

/// The numbers of the rows of a sample, in ascending order.
pub fn each<T: Float>(session: &mut CpuSession<'_, T>, sample: &Sample) -> Result<Vec<u64>> {
    let CpuSession { part, statistics, tasks, workers, seeds, labels, .. } = session;
    let Some(seeds) = seeds else { unreachable!("draws were started") };
    let mut drawn = memory::zeroed::<bool>(labels.len(), ROWS)?;
    let mut rest = drawn.as_mut_slice();
    let work = tasks.iter().map(|task| (task, split_off(&mut rest, task.kept)));
    for_each_task(workers, work, |worker, (task, drawn)| {
        let mut rows = (task.first..).zip(drawn);
        if !sample.by_values {
            rows.for_each(|(row, drawn)| *drawn = sample.has(sample.first + row as u64, seeds.table.draw_weight(row)));
            return;
        }
        let tile = &mut worker.tile;
        for range in pieces(task.physical.clone(), tile.stride) {
            tile.load(part, statistics.weights, range);
            for (r, (row, drawn)) in (0..tile.rows).zip(&mut rows) {
                let value = |f: usize| tile.x[f * tile.stride + r].to_f64();
                let hash = (0..part.features.n_features()).fold(NO_VALUES, |hash, f| hash_value(hash, value(f)));
                *drawn = sample.has(hash, seeds.table.draw_weight(row));
            }
        }
    })?;
    memory::collected((0..).zip(&drawn).filter(|(_, drawn)| **drawn).map(|(row, _)| row), ROWS)
}

/// The values and the `w^` of these rows.
pub fn load<T: Float>(session: &CpuSession<'_, T>, rows: &[u64]) -> Result<(Vec<T>, Vec<f64>)> {
    let (d, part) = (session.d, &session.part);
    let (mut values, mut weights) = (memory::zeroed(rows.len().saturating_mul(d), ROWS)?, memory::zeroed(rows.len(), ROWS)?);
    let mut order: Vec<usize> = memory::collected(0..rows.len(), ROWS)?;
    order.sort_unstable_by_key(|&index| rows[index]);
    let (mut tile, mut physical) = (Tile::new(d, TOGETHER)?, memory::with_room(TOGETHER, ROWS)?);
    let mut walk = Walk::default();
    for indices in order.chunks(TOGETHER) {
        physical.clear();
        physical.extend(indices.iter().map(|&index| walk.physical(session, rows[index] as usize)));
        tile.load_list(part, session.statistics.weights, &physical);
        for (r, &index) in indices.iter().enumerate() {
            let row = &mut values[index * d..][..d];
            row.iter_mut().enumerate().for_each(|(f, x)| *x = tile.x[f * tile.stride + r]);
            weights[index] = tile.weights[r];
        }
    }
    Ok((values, weights))
}

/// Finds the physical rows of kept rows in ascending order.
#[derive(Default)]
pub struct Walk {
    /// The next physical row, and the number of kept rows before it.
    physical: usize,
    kept: usize,
}

impl Walk {
    pub fn physical<T: Float>(&mut self, session: &CpuSession<'_, T>, row: usize) -> usize {
        let selection = &session.part.selection;
        if selection.is_all() {
            return row;
        }
        let task = &session.tasks[session.tasks.partition_point(|task| task.first <= row) - 1];
        if self.physical < task.physical.start {
            (self.physical, self.kept) = (task.physical.start, task.first);
        }
        while self.kept <= row {
            self.kept += usize::from(selection.contains(self.physical));
            self.physical += 1;
        }
        self.physical - 1
    }
}
