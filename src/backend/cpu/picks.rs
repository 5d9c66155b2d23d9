//! Many drawn rows at once. The targets are sorted, so one look over the rows finds all of them.

use super::CpuSession;
use super::tasks::{for_each_weight, pieces};
use crate::backend::sweep::Sweep;
use crate::backend::{DrawBy, Picked};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::Tile;

/// The name for the rows in errors.
const ROWS: &str = "the rows drawn";
/// Rows that are loaded together.
const TOGETHER: usize = 256;

/// The rows that the targets draw.
pub fn pick<T: Float>(session: &CpuSession<'_, T>, by: DrawBy, targets: &[u128]) -> Result<Picked<T>> {
    let rows = match by {
        DrawBy::Weight | DrawBy::Positive if session.statistics.weights.is_none() => {
            memory::collected(targets.iter().map(|&target| target as u64), ROWS)?
        }
        DrawBy::Distance => by_distance(session, targets)?,
        DrawBy::Weight => by_weight(session, targets, |integer| integer)?,
        DrawBy::Positive => by_weight(session, targets, |integer| u128::from(integer > 0))?,
    };
    let (values, weights) = load(session, &rows)?;
    Ok(Picked { rows, values, weights })
}

/// All rows, and their `w^`.
pub fn all<T: Float>(session: &CpuSession<'_, T>) -> Result<(Vec<T>, Vec<f64>)> {
    let n = session.labels.len();
    let (mut values, mut weights) = (memory::with_room(n.saturating_mul(session.d), ROWS)?, memory::with_room(n, ROWS)?);
    let mut tile = Tile::new(session.d, TOGETHER)?;
    for rows in pieces(0..session.part.features.n_rows(), TOGETHER) {
        tile.load(&session.part, session.statistics.weights, rows);
        // There is room for all rows.
        (0..tile.rows).for_each(|r| values.extend((0..session.d).map(|f| tile.column(f)[r])));
        weights.extend_from_slice(&tile.weights[..tile.rows]);
    }
    Ok((values, weights))
}

/// The rows that targets draw by their distances.
pub fn by_distance<T: Float>(session: &CpuSession<'_, T>, targets: &[u128]) -> Result<Vec<u64>> {
    let Some(seeds) = &session.seeds else { unreachable!("draws were started") };
    let mut sweep = Sweep::new(targets)?;
    for (rows, total) in seeds.ranges() {
        if sweep.is_in(total) {
            rows.for_each(|row| sweep.visit(row, seeds.weight(row, &session.statistics)));
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

/// The values and the `w^` of these rows.
pub fn load<T: Float>(session: &CpuSession<'_, T>, rows: &[u64]) -> Result<(Vec<T>, Vec<f64>)> {
    let (d, part) = (session.d, &session.part);
    let (mut values, mut weights) = (memory::zeroed(rows.len().saturating_mul(d), ROWS)?, memory::zeroed(rows.len(), ROWS)?);
    let mut order: Vec<usize> = memory::collected(0..rows.len(), ROWS)?;
    order.sort_unstable_by_key(|&place| rows[place]);
    let (mut tile, mut physical) = (Tile::new(d, TOGETHER)?, memory::with_room(TOGETHER, ROWS)?);
    let mut walk = Walk::default();
    for places in order.chunks(TOGETHER) {
        physical.clear();
        physical.extend(places.iter().map(|&place| walk.physical(session, rows[place] as usize)));
        tile.load_list(part, session.statistics.weights, &physical);
        for (r, &place) in places.iter().enumerate() {
            let row = &mut values[place * d..][..d];
            row.iter_mut().enumerate().for_each(|(f, x)| *x = tile.x[f * tile.stride + r]);
            weights[place] = tile.weights[r];
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
