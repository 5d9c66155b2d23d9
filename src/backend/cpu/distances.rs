//! Reference distances over tiles. Latency limits the chain of one row, so the chains of a few rows overlap.

use super::centroids::CentroidTable;
use crate::base::float::Float;
use crate::input::tile::Columns;

/// Number of rows whose chains are computed together.
const LANES: usize = 8;

/// The reference distance of every row that has a label in the list to the centroid of its label.
#[inline(always)]
pub fn own_distances<T: Float>(values: impl Columns<T>, table: &CentroidTable<T>, labels: &[u32], out: &mut [f64]) {
    let d = table.d;
    for start in (0..labels.len()).step_by(LANES) {
        let mut s = [0.0f64; LANES];
        let len = LANES.min(labels.len() - start);
        // The last rows are those of a whole vector, where there is one.
        let from = if labels.len() < LANES { 0 } else { start - (LANES - len) };
        let mut centroids = [table.row(0); LANES];
        for i in 0..LANES {
            centroids[i] = table.row(labels[(from + i).min(labels.len() - 1)] as usize);
        }
        for f in 0..d {
            let x = &values.column(f)[from..];
            let (mut row, mut centroid) = ([T::default(); LANES], [T::default(); LANES]);
            match x.first_chunk() {
                Some(x) => row = *x,
                None => row[..x.len()].copy_from_slice(x),
            }
            for i in 0..LANES {
                centroid[i] = centroids[i][f];
            }
            for i in 0..LANES {
                let t = row[i].to_f64() - centroid[i].to_f64();
                s[i] = t.mul_add(t, s[i]);
            }
        }
        out[from..from + LANES.min(labels.len())].copy_from_slice(&s[..LANES.min(labels.len())]);
    }
}
