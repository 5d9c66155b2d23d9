//! The nearest of many candidates for every row, piece by piece, by the kernels that label rows for a model. k-means|| has tens
//! of thousands of candidates: reference distances to all of them would take many times longer.

use std::ops::Range;

use crate::backend::cuda::arguments::{self, LowerArgument, WeighArgument, weight_to_integer};
use crate::backend::cuda::device::{Buffer, Plain, Queue, product, sum};
use crate::backend::cuda::predict::DeviceTable;
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::rows::upload::upload;
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::backend::select::Job;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;
use crate::input::features::Features;
use crate::input::tile::{RowBlock, WeightScale};

/// The most rows of a piece: whole tiles of all kernels.
const MOST_ROWS: usize = 1 << 20;
/// The least arithmetic (rows x centroids x features) for which it pays to send the rows.
const LEAST: usize = 1 << 26;

/// The least arithmetic for which tensor cores may pay: the table is used once, and centres of groups take about a millisecond.
const LEAST_FOR_TENSOR: usize = 1 << 36;

/// The bytes that this takes on the device for `m` candidates.
pub fn bytes<T: Float + Plain>(shape: &FitShape, m: usize, gpu: GpuSize) -> u64 {
    let piece = shape.chunk.min(MOST_ROWS);
    sum([DeviceTable::<T>::bytes(shape.d, m, gpu), DeviceTable::<T>::answer_bytes(Job::Labels, [piece, shape.d, m], gpu)])
}

/// Calls `work` with a queue, a piece of the rows, and for each of its rows the number of the nearest candidate.
fn visit<T: Float + Plain>(
    table: &DeviceTable<T>,
    rows: &DeviceRows<T>,
    work: impl Fn(&Queue, Range<usize>, &Buffer<u32>) -> Result<()>,
) -> Result<()> {
    // The queue of the table does not wait for the queue of the rows, so all work on the rows is done first. The queue of the
    // table is empty when that queue is dropped. Then the table may be dropped too.
    rows.queue.wait()?;
    let queue = table.queue()?;
    // Copies of rows are optional memory, within the limit of the fit. The table and the labels are not taken from this queue's
    // room.
    let much = product([rows.n, table.k, table.d]) >= LEAST_FOR_TENSOR;
    let piece = rows.n.min(MOST_ROWS);
    let answers = DeviceTable::<T>::answer_bytes(Job::Labels, [piece, table.d, table.k], queue.gpu.size());
    let bytes = sum([table.tensor_bytes(piece), DeviceTable::<T>::bytes(table.d, table.k, queue.gpu.size()), answers]);
    let may = much && rows.queue.has_room(bytes)?;
    let strategy = if may { Strategy::Default } else { Strategy::Tiled };
    for first in (0..rows.n).step_by(MOST_ROWS) {
        let piece = first..rows.n.min(first + MOST_ROWS);
        let labels = table.assign_some(&queue, rows, piece.clone(), strategy)?;
        work(&queue, piece, labels.labels())?;
    }
    queue.wait()
}

/// Lowers the distances of the rows of a chunk by those to the candidates. `first`: whether there are no distances yet.
pub fn lower<T: Float + Plain>(
    table: &DeviceTable<T>,
    chunk: &DeviceChunk<'_, T>,
    nearest: &Buffer<f64>,
    first: bool,
) -> Result<()> {
    let rows = chunk.rows;
    let entry = rows.entry(arguments::seed_lower::<T>());
    visit(table, rows, |queue, piece, labels| {
        let launch = entry.resident(&queue.gpu, "", entry.blocks_of(piece.len()))?;
        let argument = LowerArgument {
            rows: rows.argument_of(piece.clone()),
            nearest: nearest.at_index(chunk.first + piece.start),
            labels: labels.at(),
            candidates: table.centroids_at(),
            first: i32::from(first),
            unused: 0,
        };
        // SAFETY: each row of the piece has a label below m and a distance. The table has m candidates of d values.
        unsafe { queue.run(&launch, &argument) }
    })
}

/// Adds the weight of each row to the mass of its nearest candidate. The smaller candidate wins ties.
pub fn add_masses<T: Float + Plain>(
    table: &DeviceTable<T>,
    rows: &DeviceRows<T>,
    weights: Option<WeightScale>,
    masses: &Buffer<u128>,
) -> Result<()> {
    assert_eq!(masses.len(), table.k);
    let entry = arguments::seed_weigh();
    visit(table, rows, |queue, piece, labels| {
        let launch = entry.resident(&queue.gpu, "", entry.blocks_of(piece.len()))?;
        let argument = WeighArgument {
            w: rows.argument_of(piece.clone()).w,
            labels: labels.at(),
            masses: masses.at_of(),
            weight_to_integer: weight_to_integer(weights),
            n: piece.len() as u64,
        };
        // SAFETY: each row of the piece has a label, which is below the number of masses (asserted), and a weight if there are
        // any.
        unsafe { queue.run(&launch, &argument) }
    })
}

/// The nearest centroid of each of some rows in host memory (both row-major), if it pays. The plan of the GPU's memory does not
/// count this. If there is no room, the answer is None.
pub fn nearest_of<T: Float + Plain>(queue: &Queue, rows: &[T], centroids: &[T], d: usize) -> Option<Vec<u32>> {
    let find = || {
        let table = DeviceTable::new(queue.gpu.ordinal, centroids, d)?;
        let queue = table.queue()?;
        let rows = upload(&queue, &[RowBlock::new(Features::from_rows(rows, d)?, None)])?;
        // Copies of the rows would be more memory that the plan does not count.
        table.assign_some(&queue, &rows, 0..rows.n, Strategy::Tiled)?.labels().to_vec()
    };
    let pays = rows.len().saturating_mul(centroids.len() / d) >= LEAST;
    pays.then(find)?.ok()
}
