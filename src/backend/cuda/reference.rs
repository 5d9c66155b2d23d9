//! Labels by reference distances to all centroids, on one GPU: `kernels/bench/reference.cu`. Benches and tests check all labels
//! of large fits with them (feature `bench`). They use no filter, and no other code that labels.

use super::arguments::{self, ReferenceArgument};
use super::device::{Gpu, Plain};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// Rows of a block of the kernel.
const TILE: usize = 128;
/// Rows are sent in slices of so many bytes, so that a fit may have the rest of the device.
const SLICE_BYTES: usize = 1 << 31;
const ROWS: &str = "the rows of a check";
const CENTROIDS: &str = "the centroids of a check";
const LABELS: &str = "the labels of a check";

/// The label of every row: the smallest number of the centroids of least reference distance. `centroids`: `(k, d)`, row-major.
pub fn reference_labels<T: Float + Plain>(ordinal: u32, columns: &[&[T]], centroids: &[T]) -> Result<Vec<u32>> {
    let (n, d) = (columns.first().map_or(0, |column| column.len()), columns.len());
    let k = centroids.len() / d.max(1);
    assert!(columns.iter().all(|column| column.len() == n) && centroids.len() == k * d, "whole rows");
    let gpu = Gpu::get(ordinal)?;
    let queue = gpu.queue()?;
    let by_column = (0..d).flat_map(|f| (0..k).map(move |j| centroids[j * d + f]));
    let centroids = queue.upload(&memory::collected(by_column, CENTROIDS)?, CENTROIDS)?;
    let slice = (SLICE_BYTES / (d.max(1) * size_of::<T>())).clamp(TILE, 1 << 28);
    let rows = queue.alloc::<T>(slice.min(n) * d, ROWS)?;
    let answers = queue.alloc::<u32>(slice.min(n), LABELS)?;
    let launch = arguments::reference::<T>().exactly(&gpu, "", 1)?;
    let mut labels = memory::zeroed(n, LABELS)?;
    for (i, part) in labels.chunks_mut(slice).enumerate() {
        let (first, rows_here) = (i * slice, part.len());
        for (f, column) in columns.iter().enumerate() {
            rows.write(f * rows_here, &column[first..first + rows_here])?;
        }
        let argument = ReferenceArgument {
            x: rows.at(),
            centroids: centroids.at(),
            labels: answers.at(),
            n: rows_here as u32,
            k: k as u32,
            d: d as u32,
            unused: 0,
        };
        // SAFETY: the buffers hold `rows_here` rows of d values, k centroids of d values, and a label for each row.
        unsafe { queue.run(&launch.with_blocks(rows_here.div_ceil(TILE)), &argument)? };
        answers.read(0, part)?;
    }
    Ok(labels)
}
