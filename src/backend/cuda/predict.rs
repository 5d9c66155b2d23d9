//! Passes of a fitted model over rows, on one GPU.
//!
//! ```text
//! once a model:  the centroids and the filter's copies of them go to the device, and stay there
//! per batch of rows, of bounded size; while the device works on a batch, the next one is sent:
//!   upload
//!   labels       what a filter is sure of, then the rows in doubt         step/tiled.rs, or predict/tensor.rs
//!   distances    to the two nearest centroids, or to all                  predict/table.rs
//!   blank        no answer for a row with a value that is not finite      predict/table.rs
//!   download; rows with nulls have no answer either: the host sees to that, because the device does not know nulls
//! ```
//! The scale of the inertia depends on the extents of all rows. So `inertia` has all rows on the device at once, as a fit does.

mod table;
mod tensor;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use self::table::CallQueue;
pub use self::table::{DeviceTable, NearestBuffers, ROWS};
use super::device::{Buffer, Plain, Queue, product};
use super::passes::statistics::DevicePasses;
use super::rows::DeviceRows;
use super::rows::download::{PIECE, download};
use super::rows::external::is_in_place;
use super::rows::upload::upload;
use crate::backend::answers::{ANSWERS, Answered, Distances, LABELS, Labels, NearestClusters, Predictions, every_row};
use crate::backend::cuda::array::{GpuArray, GpuPredictions};
use crate::backend::select::Job;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::at_once;
use crate::base::params::Metric;
use crate::base::strategy::Strategy;
use crate::exact::cluster_sums::UNASSIGNED;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::input::features::{Column, Features};
use crate::input::tile::RowBlock;
use crate::statistics::score::survey_score;

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

/// A batch of rows on the device, and the answers that are computed for them.
struct RowBatch<'t, 'a, T: Plain, B> {
    answers: B,
    /// Kernels may still read them.
    _rows: DeviceRows<T>,
    features: Features<'a, T>,
    range: Range<usize>,
    /// Dropped last: waits for the kernels.
    _queue: CallQueue<'t>,
}

/// Sends the rows batch by batch. Each of the tables' GPUs takes the next batch when it is ready. `launch` queues the kernels of
/// a batch. `finish` downloads the answers for the rows of a batch. It is called when the GPU's next batch has been sent, so the
/// GPU computes while the bus is busy.
fn in_batches<'a, T: Float + Plain, B>(
    tables: &[&DeviceTable<T>],
    job: Job,
    features: &Features<'a, T>,
    launch: impl Fn(&DeviceTable<T>, &Queue, &DeviceRows<T>) -> Result<B> + Sync,
    finish: impl FnMut(&B, &Features<'a, T>, Range<usize>) -> Result<()> + Send,
) -> Result<()> {
    let in_place = is_in_place(features);
    let count = tables[0].batches(job, features.n_rows(), in_place).take(tables.len() + 1).count();
    let batches = Mutex::new(tables[0].batches(job, features.n_rows(), in_place));
    let next = || batches.lock().unwrap_or_else(PoisonError::into_inner).next();
    let finish = Mutex::new(finish);
    let finish = |batch: RowBatch<'_, 'a, T, B>| {
        let mut finish = finish.lock().unwrap_or_else(PoisonError::into_inner);
        finish(&batch.answers, &batch.features, batch.range.clone())
    };
    let tables = memory::copied(&tables[..tables.len().min(count.max(1))], ANSWERS)?;
    at_once(tables, |table| {
        let _kept = (count > 1).then(|| table.gpu().keep_memory());
        let mut before = None;
        while let Some(range) = next() {
            let (features, queue) = (features.slice(range.clone())?, table.queue()?);
            let rows = upload(&queue, &[RowBlock::new(features.clone(), None)])?;
            let answers = launch(table, &queue, &rows)?;
            let batch = RowBatch { answers, _rows: rows, features, range, _queue: queue };
            before.replace(batch).map_or(Ok(()), &finish)?;
        }
        before.map_or(Ok(()), &finish)
    })
    .map(drop)
}

/// Downloads labels to `out`. Returns whether there may be rows without one.
fn download_labels(labels: &Buffer<u32>, out: &mut [u32]) -> Result<bool> {
    let blanks = AtomicBool::new(false);
    download(labels, out.len(), PIECE, out.chunks_mut(PIECE), |values, out| {
        out.copy_from_slice(values);
        if values.iter().fold(false, |any, label| any | (*label == UNASSIGNED)) {
            blanks.store(true, Ordering::Relaxed);
        }
    })?;
    Ok(blanks.into_inner())
}

/// Downloads distances to `out`.
fn download_distances(distances: &Buffer<f64>, out: &mut [f64]) -> Result<()> {
    download(distances, out.len(), PIECE, out.chunks_mut(PIECE), |values, out| out.copy_from_slice(values))
}

/// The labels of rows that are on the GPU, as an array there. -1 for rows with a null or a value that is not finite.
pub fn labels_on_device<T: Float + Plain>(
    table: &DeviceTable<T>,
    features: &Features<'_, T>,
    strategy: Strategy,
) -> Result<GpuArray<i32>> {
    let out = room::<T, i32>(table, features.n_rows())?;
    let launch = |table: &DeviceTable<T>, queue: &Queue, rows: &DeviceRows<T>| table.assign_finite(queue, rows, strategy);
    in_batches(&[table], Job::Labels, features, launch, |labels, _, range| out.copy_from(range.start, labels.labels()))?;
    Ok(GpuArray::new(out))
}

/// The labels of rows that are on the GPU, and their distances to the nearest and the second nearest centroid, as arrays there.
/// Rows without an answer have label -1 and distances of NaN. With one centroid there are no second distances.
pub fn nearest_on_device<T: Float + Plain>(table: &DeviceTable<T>, features: &Features<'_, T>) -> Result<GpuPredictions> {
    let n = features.n_rows();
    let (labels, nearest, seconds) = (room::<T, i32>(table, n)?, room::<T, f64>(table, n)?, room::<T, f64>(table, n)?);
    let launch = |table: &DeviceTable<T>, queue: &Queue, rows: &DeviceRows<T>| table.nearest(queue, rows, true);
    in_batches(&[table], Job::Nearest, features, launch, |near, _, range| {
        labels.copy_from(range.start, &near.labels)?;
        nearest.copy_from(range.start, &near.distances)?;
        seconds.copy_from(range.start, &near.seconds)
    })?;
    let seconds = (table.k > 1).then(|| GpuArray::new(seconds));
    Ok(GpuPredictions { labels: GpuArray::new(labels), nearest: GpuArray::new(nearest), seconds })
}

/// The distances of rows that are on the GPU to all centroids, or their squares, `(n, k)`, row-major, as an array there. They are
/// NaN for rows with a null or a value that is not finite.
pub fn distances_on_device<T: Float + Plain>(
    table: &DeviceTable<T>,
    features: &Features<'_, T>,
    squared: bool,
) -> Result<GpuArray<f64>> {
    let out = room::<T, f64>(table, product([features.n_rows(), table.k]))?;
    let launch = |table: &DeviceTable<T>, queue: &Queue, rows: &DeviceRows<T>| table.distances(queue, rows, squared);
    in_batches(&[table], Job::Distances, features, launch, |distances, _, range| {
        out.copy_from(range.start * table.k, distances)
    })?;
    Ok(GpuArray::new(out))
}

/// Room for answers that stay on the GPU. It is there when this returns, so every queue may write to it.
fn room<T: Float + Plain, V: Plain>(table: &DeviceTable<T>, len: usize) -> Result<Buffer<V>> {
    let room = table.queue()?.alloc(len, ANSWERS)?;
    room.queue().wait()?;
    Ok(room)
}

/// The labels of the rows. None for rows with a null or a value that is not finite.
pub fn labels<T: Float + Plain>(tables: &[&DeviceTable<T>], features: &Features<'_, T>, strategy: Strategy) -> Result<Labels> {
    let n = features.n_rows();
    let (mut out, mut bits) = (memory::zeroed(n, LABELS)?, every_row(n)?);
    let launch = |table: &DeviceTable<T>, queue: &Queue, rows: &DeviceRows<T>| table.assign_finite(queue, rows, strategy);
    in_batches(tables, Job::Labels, features, launch, |labels, features, range| {
        let out = &mut out[range.clone()];
        if download_labels(labels.labels(), out)? | features.has_nulls() {
            blank_here(features, out, [&mut [], &mut []], range.start, &mut bits);
        }
        Ok(())
    })?;
    Ok(Labels::new(out, Answered::from_bits(n, bits)))
}

/// The labels, and the distances to the two nearest centroids. None for rows with a null or a value that is not finite.
pub fn nearest<T: Float + Plain>(tables: &[&DeviceTable<T>], features: &Features<'_, T>) -> Result<Predictions> {
    let n = features.n_rows();
    let (mut out, mut bits) = (memory::zeroed(n, LABELS)?, every_row(n)?);
    let mut all = Distances::zeroed(n, tables[0].k)?;
    let launch = |table: &DeviceTable<T>, queue: &Queue, rows: &DeviceRows<T>| table.nearest(queue, rows, false);
    in_batches(tables, Job::Nearest, features, launch, |answers, features, range| {
        let (out, nearest) = (&mut out[range.clone()], &mut all.nearest[range.clone()]);
        let second = all.second.as_mut().map_or(&mut [][..], |second| &mut second[range.clone()]);
        let blanks = download_labels(&answers.labels, out)?;
        download_distances(&answers.distances, nearest)?;
        download_distances(&answers.seconds, second)?;
        if blanks | features.has_nulls() {
            blank_here(features, out, [nearest, second], range.start, &mut bits);
        }
        Ok(())
    })?;
    Ok(Predictions::new(Labels::new(out, Answered::from_bits(n, bits)), all))
}

/// The `m` nearest centroids of each row.
pub fn nearest_clusters<T: Float + Plain>(
    tables: &[&DeviceTable<T>],
    features: &Features<'_, T>,
    m: usize,
    squared: bool,
) -> Result<NearestClusters> {
    let (n, len) = (features.n_rows(), features.n_rows().saturating_mul(m));
    let (mut clusters, mut distances) = (memory::zeroed(len, ANSWERS)?, memory::zeroed(len, ANSWERS)?);
    let mut bits = every_row(n)?;
    let launch = |table: &DeviceTable<T>, queue: &Queue, rows: &DeviceRows<T>| table.nearest_clusters(queue, rows, m, squared);
    in_batches(tables, Job::NearestClusters, features, launch, |(near, _), features, range| {
        let places = range.start * m..range.end * m;
        let (clusters, distances) = (&mut clusters[places.clone()], &mut distances[places]);
        let blanks = download_labels(&near.clusters, clusters)?;
        download_distances(&near.distances, distances)?;
        features.for_each_null(0..range.len(), |_, i| clusters[i * m] = UNASSIGNED);
        if blanks | features.has_nulls() {
            let rows = range.zip(clusters.chunks_exact_mut(m).zip(distances.chunks_exact_mut(m)));
            for (row, (clusters, distances)) in rows.filter(|(_, (clusters, _))| clusters[0] == UNASSIGNED) {
                clusters.fill(0);
                distances.fill(0.0);
                bits[row / 8] &= !(1 << (row % 8));
            }
        }
        Ok(())
    })?;
    Ok(NearestClusters { m, clusters, distances, answered: Answered::from_bits(n, bits) })
}

/// The distances to all centroids, or their squares, `(n, k)`, row-major. They are NaN for rows with a null or a value that is
/// not finite.
pub fn distances<T: Float + Plain>(tables: &[&DeviceTable<T>], features: &Features<'_, T>, squared: bool) -> Result<Vec<f64>> {
    let (n, k) = (features.n_rows(), tables[0].k);
    let mut out = memory::zeroed(n.saturating_mul(k), ANSWERS)?;
    let launch = |table: &DeviceTable<T>, queue: &Queue, rows: &DeviceRows<T>| table.distances(queue, rows, squared);
    in_batches(tables, Job::Distances, features, launch, |distances, features, range| {
        let out = &mut out[range.start * k..range.end * k];
        download_distances(distances, out)?;
        features.for_each_null(0..range.len(), |_, i| out[i * k..][..k].fill(f64::NAN));
        Ok(())
    })?;
    Ok(out)
}

/// The inertia of the finite rows of positive weight.
pub fn inertia<T: Float + Plain>(
    table: &DeviceTable<T>,
    centroids: &[T],
    metric: Metric,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
) -> Result<f64> {
    let queue = table.queue()?;
    let mut parts = [RowBlock::new(features.clone(), weights.cloned())];
    let mut passes = DevicePasses::new(&queue, &mut parts, None);
    let statistics = survey_score(&mut passes, centroids, features.n_features(), metric)?;
    if statistics.n == 0 {
        return Ok(0.0);
    }
    let Some(chunks) = passes.into_chunks() else { unreachable!("rows are prepared") };
    let rows = chunks.into_resident()?;
    let labels = table.assign_some(&queue, &rows, 0..rows.n, Strategy::Default)?;
    let total = |scale: DistanceScale| table.total_distance(&queue, &rows, labels.labels(), scale);
    let first = DistanceSum { total: total(statistics.distances)?, scale: statistics.distances };
    Ok(first.precise(statistics.n_positive, total)?.to_f64())
}
