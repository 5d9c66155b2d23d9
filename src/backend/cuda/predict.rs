//! Passes of a fitted model over rows, on one GPU.
//!
//! ```text
//! once a model:  the centroids and the filter's copies of them go to the device, and stay there
//! per batch of rows, of bounded size:
//!   upload
//!   labels       what the filter is sure of, then the others              kernels/assign_tiled.cu, kernels/settle.cu
//!   distances    to the two nearest centroids, or to all                  kernels/predict.cu
//!   blank        no answer for a row with a value that is not finite      kernels/predict.cu
//!   download; rows with nulls have no answer either: the host sees to that, because the device does not know nulls
//! ```
//! The scale of the inertia depends on the extents of all rows. So `inertia` has all rows on the device at once, as a fit does.

mod copies;

use std::fmt;
use std::ops::Range;

use self::copies::{Copies, PADDING};
use super::arguments::{Assign, Bound, Contested, Control, DistanceArgument, Inertia, LabelsArgument, Settle, SumsArgument};
use super::device::{Buffer, Gpu, Kernel, Plain, Queue};
use super::plan::{MOST_TABLE_BYTES, SETTLE_PAIRS_THREADS, TABLE_BYTES, THREADS, Tiled, copies, settle_values};
use super::prepare::DevicePasses;
use super::rows::{DeviceRows, RowsArgument};
use super::upload::upload;
use crate::answers::{Answered, Distances, LABELS, Labels, Predictions, every_row};
use crate::backend::select::{Job, Shape};
use crate::distances::{DistanceScale, DistanceSum};
use crate::error::Result;
use crate::features::{Column, Features};
use crate::float::Float;
use crate::memory;
use crate::model::Model;
use crate::predict::{ScoreScales, centroid_extents, reserve};
use crate::prepare::passes::Passes;
use crate::prepare::survey::{check_weight_range, count_weights_below, first_negative_weight};
use crate::tile::Part;

/// Names of the allocations in errors.
const CENTROIDS: &str = "the centroids and copies of them";
const ANSWERS: &str = "the answers for a batch of rows";
const INERTIA: &str = "the inertia of the clusters";
/// The label of a row that has no cluster.
const UNASSIGNED: u32 = u32::MAX;
/// Threads of a block of the kernels in `kernels/predict.cu`. This is also the number of rows of their tiles.
pub const ROWS: u32 = 128;
/// Centroids of a tile of these kernels.
const WIDTH: usize = 16;

/// The centroids of one model on one GPU. They do not change after the upload, so all queues may read them.
pub struct DeviceTable<T> {
    k: usize,
    d: usize,
    /// `(k, d)`.
    centroids: Buffer<T>,
    /// `(d, k)`: the same centroids.
    columns: Buffer<T>,
    /// None if the filter could not rule out any centroid.
    filter: Option<Filter<T>>,
    /// The variant of `assign_tiled` that the filter uses.
    tiled: Tiled,
    queue: Queue,
}

impl<T> fmt::Debug for DeviceTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTable {{ k: {}, d: {}, ordinal: {} }}", self.k, self.d, self.queue.gpu.ordinal)
    }
}

/// [`Copies`] on the device.
struct Filter<T> {
    shift: Buffer<T>,
    scale: T,
    copies: Buffer<f32>,
    half_squares: Buffer<f32>,
    bound: Buffer<Bound>,
}

// ---- the arguments, as `kernels/predict.cu` declares them ------------------------------------------------------------------

/// `Nearest`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NearestArgument {
    pub rows: RowsArgument,
    pub columns: u64,
    pub labels: u64,
    pub distances: u64,
    pub seconds: u64,
    pub k: i32,
    pub unused: i32,
}

/// `Distances`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DistancesArgument {
    rows: RowsArgument,
    columns: u64,
    out: u64,
    k: i32,
    unused: i32,
}

/// `Blank`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BlankArgument {
    rows: RowsArgument,
    labels: u64,
    distances: u64,
    k: i32,
    unused: i32,
}

/// For kernels that do not change any sums here.
const NO_SUMS: SumsArgument = SumsArgument {
    pending: 0,
    pending_rows: 0,
    sums: 0,
    rows: 0,
    one_limb: 0,
    k: 0,
    d: 0,
    columns: 0,
    mass_column: -1,
    limbs: 0,
    unused: 0,
};

impl<T: Float + Plain> DeviceTable<T> {
    /// Uploads the centroids. `centroids`: `(k, d)`, row-major. `centre`: a point near the data.
    pub fn new(ordinal: u32, centroids: &[T], d: usize, centre: &[f64]) -> Result<Self> {
        let queue = Gpu::get(ordinal)?.queue()?;
        let k = centroids.len() / d;
        let mut columns = memory::zeroed::<T>(k * d, CENTROIDS)?;
        for (j, row) in centroids.chunks_exact(d).enumerate() {
            row.iter().enumerate().for_each(|(f, c)| columns[f * k + j] = *c);
        }
        let tiled = Tiled::of(d, k, queue.gpu.shared_per_block as usize);
        let filter = match Copies::new(centroids, d, centre, tiled.chains())? {
            None => None,
            Some(made) => Some(Filter {
                shift: queue.upload(&made.shift, CENTROIDS)?,
                scale: made.scale,
                copies: queue.upload(&made.values, CENTROIDS)?,
                half_squares: queue.upload(&made.half_squares, CENTROIDS)?,
                bound: queue.upload(&[made.bound], CENTROIDS)?,
            }),
        };
        let (centroids, columns) = (queue.upload(centroids, CENTROIDS)?, queue.upload(&columns, CENTROIDS)?);
        let table = Self { k, d, centroids, columns, filter, tiled, queue };
        table.queue.wait()?;
        Ok(table)
    }

    /// A new queue for one call, so that several calls can run at the same time.
    fn queue(&self) -> Result<Queue> {
        self.queue.gpu.queue()
    }

    /// The ranges of rows of the batches, in order.
    fn batches(&self, job: Job, n: usize) -> impl Iterator<Item = Range<usize>> + use<T> {
        let (features, clusters) = (self.d, self.k);
        let shape = Shape { job, rows: n as u64, features, clusters, float64: !T::IS_F32, weighted: false };
        let rows = shape.batch().max(1) as usize;
        (0..n).step_by(rows).map(move |start| start..(start + rows).min(n))
    }

    fn kernel(&self, module: &'static str, name: &str) -> Result<Kernel> {
        let suffix = if T::IS_F32 { "f32" } else { "f64" };
        self.queue.gpu.kernel(module, &name.replace('*', suffix))
    }

    /// Launches a kernel with as many blocks as the device runs at once, but at most `most`.
    ///
    /// # Safety
    /// The same as for [`Queue::launch`].
    unsafe fn launch<A: Copy>(
        &self,
        queue: &Queue,
        kernel: Kernel,
        [threads, shared]: [u32; 2],
        most: usize,
        argument: &A,
    ) -> Result<()> {
        let blocks = (queue.gpu.resident_blocks(kernel, threads, shared)? as usize).min(most) as u32;
        // SAFETY: the caller promises it.
        unsafe { queue.launch(kernel, blocks, threads, shared, argument) }
    }

    /// The exact labels of all finite rows. Other rows get any label.
    fn assign(&self, queue: &Queue, rows: &DeviceRows<T>) -> Result<Buffer<u32>> {
        let Some(filter) = &self.filter else {
            let labels = queue.alloc(rows.n, ANSWERS)?;
            self.nearest(queue, rows, &labels, None)?;
            return Ok(labels);
        };
        let labels: Buffer<u32> = queue.zeros(rows.n, ANSWERS)?;
        let (contested, control): (Buffer<Contested>, Buffer<Control>) =
            (queue.alloc(rows.n, "the rows in doubt")?, queue.zeros(1, "the rows in doubt")?);
        let argument = LabelsArgument { at: labels.at(), bytes: 4 };
        let assign = Assign {
            rows: rows.argument(),
            labels: argument,
            next: argument,
            shift: filter.shift.at(),
            scale: filter.scale,
            copies: filter.copies.at(),
            half_squares: filter.half_squares.at(),
            bound: filter.bound.at(),
            contested: contested.at(),
            control: control.at(),
            k: self.k as i32,
            k_padded: self.k.next_multiple_of(PADDING) as i32,
            sums: NO_SUMS,
            factors: 0,
            mass_to_integer: 1.0,
            table_copies: 0,
            portion: 0,
            columns: self.columns.at(),
            run: 1,
            even: 0,
        };
        let (kernel, shared) = (self.kernel("assign_tiled", &self.tiled.name())?, self.tiled.shared() as u32);
        if shared > 0 {
            queue.gpu.prefer_shared_memory(kernel)?;
        }
        // SAFETY: the argument mirrors the kernel's. The table was made for this kernel. Each row has a label and a place in
        // the list. The kernel does not touch sums.
        unsafe { self.launch(queue, kernel, [self.tiled.threads(), shared], rows.n.div_ceil(128), &assign)? };
        let values = settle_values(self.d, self.k);
        let settle = Settle {
            rows: rows.argument(),
            next: argument,
            columns: self.columns.at(),
            centroids: self.centroids.at(),
            contested: contested.at(),
            control: control.at(),
            k: self.k as i32,
            values: values as i32,
        };
        // SAFETY: the argument mirrors the kernel's. Otherwise as above. The shared memory has room for the values.
        unsafe { self.launch(queue, self.kernel("settle", "settle_*")?, [THREADS, 8 * values as u32], rows.n, &settle)? };
        if self.tiled.has_pairs() {
            let kernel = self.kernel("settle", "settle_pairs_*")?;
            // SAFETY: as above.
            unsafe { self.launch(queue, kernel, [SETTLE_PAIRS_THREADS, 0], rows.n, &settle)? };
        }
        Ok(labels)
    }

    /// Writes the labels and, if `distances` is given, the distances to the nearest and the second nearest centroid.
    fn nearest(
        &self,
        queue: &Queue,
        rows: &DeviceRows<T>,
        labels: &Buffer<u32>,
        distances: Option<[&Buffer<f64>; 2]>,
    ) -> Result<()> {
        let [distances, seconds] = distances.map_or([0, 0], |both| both.map(Buffer::at));
        let argument = NearestArgument {
            rows: rows.argument(),
            columns: self.columns.at(),
            labels: labels.at(),
            distances,
            seconds,
            k: self.k as i32,
            unused: 0,
        };
        let kernel = self.kernel("predict", "nearest_*")?;
        // SAFETY: the argument mirrors the kernel's. The outputs have one entry for each row. Rows may be read up to the
        // stride, which is a multiple of the tile.
        unsafe { self.launch(queue, kernel, [ROWS, 0], rows.n.div_ceil(ROWS as usize), &argument) }
    }

    /// Removes the answers for rows that are not finite: their labels, or their `k` distances.
    fn blank(
        &self,
        queue: &Queue,
        rows: &DeviceRows<T>,
        labels: Option<&Buffer<u32>>,
        distances: Option<&Buffer<f64>>,
    ) -> Result<()> {
        let argument = BlankArgument {
            rows: rows.argument(),
            labels: labels.map_or(0, Buffer::at),
            distances: distances.map_or(0, Buffer::at),
            k: self.k as i32,
            unused: 0,
        };
        let kernel = self.kernel("predict", "blank_*")?;
        // SAFETY: the argument mirrors the kernel's. Each row has a label or k distances.
        unsafe { self.launch(queue, kernel, [ROWS, 0], rows.n.div_ceil(ROWS as usize), &argument) }
    }
}

/// Clears the bits and the answers of the rows of a batch that have none. The device has marked rows with values that are not
/// finite. It does not know nulls. Row i of the batch has bit `first + i`. There may be fewer distances than rows.
fn blank_here<T: Float>(
    batch: &Features<'_, T>,
    labels: &mut [u32],
    mut distances: [&mut [f64]; 2],
    first: usize,
    bits: &mut [u8],
) {
    batch.for_each_null(0..labels.len(), |_, i| labels[i] = UNASSIGNED);
    for (i, label) in labels.iter_mut().enumerate().filter(|(_, label)| **label == UNASSIGNED) {
        *label = 0;
        bits[(first + i) / 8] &= !(1 << ((first + i) % 8));
        distances.iter_mut().filter_map(|distances| distances.get_mut(i)).for_each(|distance| *distance = 0.0);
    }
}

/// The labels of the rows. None for rows with a null or a value that is not finite.
pub fn labels<T: Float + Plain>(table: &DeviceTable<T>, features: &Features<'_, T>) -> Result<Labels> {
    let n = features.n_rows();
    let (queue, mut out, mut bits) = (table.queue()?, memory::zeroed(n, LABELS)?, every_row(n)?);
    for range in table.batches(Job::Labels, n) {
        let features = features.slice(range.clone())?;
        let rows = upload(&queue, &[Part::new(features.clone(), None)])?;
        let labels = table.assign(&queue, &rows)?;
        table.blank(&queue, &rows, Some(&labels), None)?;
        let out = &mut out[range.clone()];
        labels.read(0, out)?;
        blank_here(&features, out, [&mut [], &mut []], range.start, &mut bits);
    }
    Ok(Labels::new(out, Answered::from_bits(n, bits)))
}

/// The labels, and the distances to the two nearest centroids. None for rows with a null or a value that is not finite.
pub fn nearest<T: Float + Plain>(table: &DeviceTable<T>, features: &Features<'_, T>) -> Result<Predictions> {
    let n = features.n_rows();
    let (queue, mut out, mut bits) = (table.queue()?, memory::zeroed(n, LABELS)?, every_row(n)?);
    let mut all = Distances::zeroed(n, table.k)?;
    for range in table.batches(Job::Nearest, n) {
        let (features, len) = (features.slice(range.clone())?, range.len());
        let rows = upload(&queue, &[Part::new(features.clone(), None)])?;
        let labels = queue.alloc(len, ANSWERS)?;
        let (distances, seconds) = (queue.alloc(len, ANSWERS)?, queue.alloc(len, ANSWERS)?);
        table.nearest(&queue, &rows, &labels, Some([&distances, &seconds]))?;
        table.blank(&queue, &rows, Some(&labels), None)?;
        let (out, nearest) = (&mut out[range.clone()], &mut all.nearest[range.clone()]);
        let second = all.second.as_mut().map_or(&mut [][..], |second| &mut second[range.clone()]);
        labels.read(0, out)?;
        distances.read(0, nearest)?;
        seconds.read(0, second)?;
        blank_here(&features, out, [nearest, second], range.start, &mut bits);
    }
    Ok(Predictions::new(Labels::new(out, Answered::from_bits(n, bits)), all))
}

/// The distances to all centroids, `(n, k)`, row-major. They are NaN for rows with a null or a value that is not finite.
pub fn distances<T: Float + Plain>(table: &DeviceTable<T>, features: &Features<'_, T>) -> Result<Vec<f64>> {
    let (n, k) = (features.n_rows(), table.k);
    let (queue, mut out) = (table.queue()?, reserve(n, k)?);
    out.resize(n * k, f64::NAN);
    for range in table.batches(Job::Distances, n) {
        let features = features.slice(range.clone())?;
        let rows = upload(&queue, &[Part::new(features.clone(), None)])?;
        let distances: Buffer<f64> = queue.alloc(range.len() * k, ANSWERS)?;
        let (rows_argument, columns) = (rows.argument(), table.columns.at());
        let argument = DistancesArgument { rows: rows_argument, columns, out: distances.at(), k: k as i32, unused: 0 };
        let tiles = range.len().div_ceil(ROWS as usize).saturating_mul(k.div_ceil(WIDTH));
        let kernel = table.kernel("predict", "distances_*")?;
        // SAFETY: the argument mirrors the kernel's. The output has k entries for each row. Rows may be read up to the stride,
        // which is a multiple of the tile.
        unsafe { table.launch(&queue, kernel, [ROWS, 0], tiles, &argument)? };
        table.blank(&queue, &rows, None, Some(&distances))?;
        let out = &mut out[range.start * k..range.end * k];
        distances.read(0, out)?;
        features.for_each_null(0..range.len(), |_, i| out[i * k..][..k].fill(f64::NAN));
    }
    Ok(out)
}

/// The inertia of the finite rows of positive weight.
pub fn inertia<T: Float + Plain>(
    table: &DeviceTable<T>,
    model: &Model<T>,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
) -> Result<f64> {
    let queue = table.queue()?;
    let mut parts = [Part::new(features.clone(), weights.cloned())];
    let mut passes = DevicePasses::new(&queue, &mut parts, None);
    let mut survey = passes.survey()?;
    if let Some(error) = survey.any_negative_weight.then(|| first_negative_weight(passes.parts())).flatten() {
        return Err(error);
    }
    if survey.bad > 0 {
        survey = passes.skip_bad(survey)?;
    }
    let [mut lows, mut highs] = centroid_extents(model)?;
    for (f, column) in survey.columns.iter().enumerate() {
        lows[f] = lows[f].min(column.low);
        highs[f] = highs[f].max(column.high);
    }
    let scales = ScoreScales::new::<T>(&lows, &highs, weights.map(|_| survey.largest_weight))?;
    if weights.is_some() {
        let range = [survey.smallest_weight, survey.largest_weight];
        check_weight_range(range, survey.positive, |bound| count_weights_below(passes.parts(), bound, 0))?;
    }
    if survey.bad == features.n_rows() as u64 {
        return Ok(0.0);
    }
    if let Some(scale) = scales.weights {
        passes.round_weights(scale)?;
    }
    let rows = passes.into_chunks().into_resident()?;
    let labels = table.assign(&queue, &rows)?;
    let centroids = queue.upload(&model.centroids, CENTROIDS)?;
    let total = |scale: DistanceScale| table.total_distance(&queue, &rows, &labels, &centroids, scale);
    let first = DistanceSum { total: total(scales.distances)?, scale: scales.distances };
    Ok(first.precise(survey.positive, total)?.to_f64())
}

impl<T: Float + Plain> DeviceTable<T> {
    /// The sum over all rows of the integer distance to the centroid of the row's label.
    fn total_distance(
        &self,
        queue: &Queue,
        rows: &DeviceRows<T>,
        labels: &Buffer<u32>,
        centroids: &Buffer<T>,
        scale: DistanceScale,
    ) -> Result<u128> {
        let pending = queue.zeros::<u64>(4 * self.k, INERTIA)?;
        let table_copies = copies(self.k * 2, TABLE_BYTES, MOST_TABLE_BYTES);
        let argument = Inertia {
            rows: rows.argument(),
            labels: LabelsArgument { at: labels.at(), bytes: 4 },
            centroids: centroids.at(),
            scale: DistanceArgument::from(&scale),
            scales: 0,
            pending: pending.at(),
            k: self.k as i32,
            table_copies: table_copies as i32,
        };
        let shared = (table_copies * self.k * 16) as u32;
        let kernel = self.kernel("distances", "inertia_*")?;
        let blocks = rows.n.div_ceil(THREADS as usize);
        // SAFETY: the argument mirrors the kernel's. Each row has a label below k. The shared memory holds `table_copies` cells
        // of 8 bytes for each of the 2 k limbs.
        unsafe { self.launch(queue, kernel, [THREADS, shared], blocks, &argument)? };
        let limb = |halves: &[u64]| (i128::from(halves[1] as i64) << 32) + i128::from(halves[0]);
        let totals = pending.to_vec()?;
        Ok(totals.chunks_exact(4).map(|p| ((limb(&p[..2]) << 45) + limb(&p[2..])) as u128).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_sizes_of_the_kernels() {
        assert_eq!(size_of::<NearestArgument>(), 32 + 5 * 8);
        assert_eq!(size_of::<DistancesArgument>(), 32 + 3 * 8);
        assert_eq!(size_of::<BlankArgument>(), 32 + 3 * 8);
    }
}
