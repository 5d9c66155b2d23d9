//! Reference distances over tiles. Latency limits the chain of one row, so the chains of a few rows overlap.

use super::centroids::CentroidTable;
use crate::base::float::Float;
use crate::input::tile::ByFeature;
use crate::simd::{SQUARE, Vector};

/// Number of rows whose chains are computed together.
const LANES: usize = 8;

/// The reference distance of every row that has a label in the list to the centroid of its label.
#[inline(always)]
pub fn own_distances<V: Vector, T: Float>(
    values: impl ByFeature<T>,
    table: &CentroidTable<T>,
    labels: &[u32],
    out: &mut [f64],
) {
    match T::IS_F32 && table.d >= SQUARE && labels.len() >= SQUARE {
        true => by_squares::<V, T>(values, table, labels, out),
        false => one_by_one(values, table, labels, out),
    }
}

/// As [`own_distances`], for sixteen rows of float32 at a time. Registers transpose the values of their centroids, sixteen
/// features at a time.
#[inline(always)]
fn by_squares<V: Vector, T: Float>(values: impl ByFeature<T>, table: &CentroidTable<T>, labels: &[u32], out: &mut [f64]) {
    let whole = table.d / SQUARE * SQUARE;
    for start in (0..labels.len()).step_by(SQUARE) {
        // The last rows are those of a whole square.
        let from = start.min(labels.len() - SQUARE);
        let mut centroids = [table.row(0); SQUARE];
        for i in 0..SQUARE {
            centroids[i] = table.row(labels[from + i] as usize);
        }
        let mut s = [0.0f64; SQUARE];
        for first in (0..whole).step_by(SQUARE) {
            let mut square = [[T::default(); SQUARE]; SQUARE];
            let mut rows = [std::ptr::null(); SQUARE];
            for i in 0..SQUARE {
                rows[i] = centroids[i][first..first + SQUARE].as_ptr().cast();
            }
            // SAFETY: sixteen values of 32 bits lie at each pointer, and the square has room for sixteen times as many.
            unsafe { V::transpose(rows, square.as_mut_ptr().cast(), SQUARE) };
            for (f, centroid) in square.iter().enumerate() {
                add(values.column(first + f), from, centroid, &mut s);
            }
        }
        for f in whole..table.d {
            let mut centroid = [T::default(); SQUARE];
            for i in 0..SQUARE {
                centroid[i] = centroids[i][f];
            }
            add(values.column(f), from, &centroid, &mut s);
        }
        out[from..from + SQUARE].copy_from_slice(&s);
    }
}

/// Adds the squares of a feature's differences.
#[inline(always)]
fn add<T: Float>(column: &[T], from: usize, centroid: &[T; SQUARE], s: &mut [f64; SQUARE]) {
    let Some(row) = column[from..].first_chunk::<SQUARE>() else { unreachable!("each row has a value") };
    for i in 0..SQUARE {
        let t = row[i].to_f64() - centroid[i].to_f64();
        s[i] = t.mul_add(t, s[i]);
    }
}

#[inline(always)]
fn one_by_one<T: Float>(values: impl ByFeature<T>, table: &CentroidTable<T>, labels: &[u32], out: &mut [f64]) {
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
