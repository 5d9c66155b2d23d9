//! Reference distances over tiles. Latency limits the chain of one row, so the chains of a few rows overlap.

use super::centroids::CentroidTable;
use crate::float::Float;
use crate::tile::{Columns, Tile};

/// Number of rows whose chains are computed together.
const LANES: usize = 8;

/// The reference distance of every row to the centroid of its label.
#[inline(always)]
pub fn own_distances<T: Float>(tile: &Tile<T>, table: &CentroidTable<T>, labels: &[u32], out: &mut [f64]) {
    own_distances_from(tile.values(), 0, table, &labels[..tile.rows], out);
}

/// The same for the rows from `first` on that have a label in the list.
#[inline(always)]
pub fn own_distances_from<T: Float>(
    values: impl Columns<T>,
    first: usize,
    table: &CentroidTable<T>,
    labels: &[u32],
    out: &mut [f64],
) {
    let d = table.d;
    for start in (0..labels.len()).step_by(LANES) {
        let mut s = [0.0f64; LANES];
        let (mut rows, mut centroids) = ([0; LANES], [table.row(0); LANES]);
        for i in 0..LANES {
            let place = (start + i).min(labels.len() - 1);
            rows[i] = first + place;
            centroids[i] = table.row(labels[place] as usize);
        }
        for f in 0..d {
            let x = values.column(f);
            for i in 0..LANES {
                let t = x[rows[i]].to_f64() - centroids[i][f].to_f64();
                s[i] = t.mul_add(t, s[i]);
            }
        }
        let len = LANES.min(labels.len() - start);
        out[start..start + len].copy_from_slice(&s[..len]);
    }
}
