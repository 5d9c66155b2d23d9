//! Exact sums of rows by their labels, in quanta that are known before: the update step as a group-by aggregation.
//!
//! ```text
//! for each tile of a task:
//!   rows with a label and a positive weight count
//!   for each feature: sums[label][feature] += quantise(w^ * x)
//! ```
//! Values may be up to 16 times as large as those that the quanta were made for. So they do not go through the limbs of
//! `deltas.rs`, which have room for less. The integers are the same.

use crate::backend::answers::LABELS;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::exact::cluster_sums::{ClusterSums, UNASSIGNED};
use crate::exact::fixed::{BEYOND, ColumnScale, power_of_two};
use crate::input::tile::{RowBlock, Tile, WeightScale};

/// Rows of a task.
const TASK: usize = 16_384;
/// Rows of a tile.
const TILE: usize = 256;

/// A row that no sum takes.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct RefusedRow {
    pub row: usize,
    /// `None`: its weight.
    pub feature: Option<usize>,
    pub got: f64,
}

/// What was found in rows.
#[derive(Debug)]
pub struct RowSums {
    pub sums: ClusterSums,
    /// Whether a row that has a label holds a null or a value that is not finite.
    pub bad: bool,
    /// The first row whose weight is negative, or that is beyond the quanta.
    pub refused: Option<RefusedRow>,
    /// For each feature, and last for the weights: the largest magnitude beyond the quanta, or 0.
    pub beyond: Vec<f64>,
}

/// What a thread adds up.
struct SumWorker<T> {
    tile: Tile<T>,
    /// Rows of the tile that count, and their clusters.
    rows: Vec<(usize, usize)>,
    found: RowSums,
}

/// How values and weights become integers.
type SumScales<'q> = (&'q [ColumnScale], Option<WeightScale>);

/// The sums of the rows of `k` clusters. `labels`: one a row, [`UNASSIGNED`] for rows that do not count.
pub fn sums<T: Float>(part: &RowBlock<'_, T>, labels: &[u32], k: usize, quanta: SumScales<'_>) -> Result<RowSums> {
    let (n, d) = (labels.len(), quanta.0.len());
    let limits: Vec<f64> = memory::collected(quanta.0.iter().map(ColumnScale::limit), LABELS)?;
    let worker = |_| {
        let beyond = memory::zeroed(d + 1, LABELS)?;
        let found = RowSums { sums: ClusterSums::new(k, d)?, bad: false, refused: None, beyond };
        Ok(SumWorker { tile: Tile::new(d, TILE)?, rows: memory::with_room(TILE, LABELS)?, found })
    };
    let mut workers = memory::try_collected((0..workers_for(0, n.div_ceil(TASK))).map(worker), "the threads' sums")?;
    for_each_task(&mut workers, 0..n.div_ceil(TASK), |worker, task| {
        for start in (task * TASK..n.min((task + 1) * TASK)).step_by(TILE) {
            let end = n.min(start + TILE).min((task + 1) * TASK);
            worker.add(part, start, &labels[start..end], quanta, &limits);
        }
    })?;
    let mut all = workers.swap_remove(0).found;
    for SumWorker { found, .. } in workers {
        all.sums.merge(&found.sums);
        all.bad |= found.bad;
        all.refused = first(all.refused, found.refused);
        all.beyond.iter_mut().zip(&found.beyond).for_each(|(all, one)| *all = all.max(*one));
    }
    Ok(all)
}

/// The refusal of the earlier row.
fn first(one: Option<RefusedRow>, other: Option<RefusedRow>) -> Option<RefusedRow> {
    [one, other].into_iter().flatten().min_by_key(|refused| refused.row)
}

impl<T: Float> SumWorker<T> {
    fn add(&mut self, part: &RowBlock<'_, T>, start: usize, labels: &[u32], quanta: SumScales<'_>, limits: &[f64]) {
        let Self { tile, rows, found: RowSums { sums, bad, refused, beyond } } = self;
        let (d, mut kept) = (limits.len(), 0);
        tile.load_checked(part, start..start + labels.len());
        rows.clear();
        let mut refuse = |row, feature: Option<usize>, got: f64| {
            *refused = first(*refused, Some(RefusedRow { row: start + row, feature, got }));
            let largest = &mut beyond[feature.unwrap_or(limits.len())];
            *largest = largest.max(got.abs());
        };
        for (row, &label) in labels.iter().enumerate() {
            if tile.bad[row] {
                *bad |= label != UNASSIGNED;
                continue;
            }
            let (r, w) = (kept, tile.weights[kept]);
            kept += 1;
            if label == UNASSIGNED || w == 0.0 {
                continue;
            }
            let j = label as usize;
            sums.rows[j] += 1;
            sums.mass[j] += match quanta.1 {
                None => 1,
                Some(scale) if w > 0.0 && w <= power_of_two(scale.exponent + BEYOND) => {
                    tile.weights[r] = scale.round(w);
                    scale.integer(tile.weights[r])
                }
                Some(_) => {
                    refuse(row, None, w);
                    continue;
                }
            };
            rows.push((r, j));
        }
        for (f, (scale, limit)) in quanta.0.iter().zip(limits).enumerate() {
            let column = tile.column(f);
            for &(r, j) in &*rows {
                let value = tile.weights[r] * column[r].to_f64();
                if value.abs() <= *limit {
                    sums.sums[j * d + f] += scale.quantise_beyond(value);
                } else {
                    // The place of the row among all rows of the tile.
                    let place = (0..labels.len()).filter(|&i| !tile.bad[i]).nth(r).unwrap_or(r);
                    refuse(place, Some(f), value);
                }
            }
        }
    }
}
