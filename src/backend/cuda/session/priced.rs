//! Passes with a price on each centroid, for rows that are all on one GPU: `kernels/passes/priced.cu`.
//!
//! ```text
//! piece by piece of the rows: the cheapest centroid of each row, and how many are in reach      priced_counts
//! the host adds the counts up: where each list begins
//! as many rows as have room for their lists: the lists, and the distances                       priced_lists
//! ```

use std::ops::Range;

use super::CudaSession;
use crate::backend::cuda::arguments::{
    self, OwnSquaresArgument, PricedCountsArgument, PricedListsArgument, PricedRowsArgument, PricedSampleArgument,
};
use crate::backend::cuda::device::{At, Buffer, Plain, Queue, buffers, bytes_of, product, sum};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::chunks::RowChunks;
use crate::backend::cuda::rows::download::copy;
use crate::backend::priced::{BLOCK, Band, LISTS, MOST_IN_PAIRS, PassRows, PriceRange, PricedPasses, SampleCosts};
use crate::backend::{Move, Session};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::fixed::power_of_two;

/// The most rows of a piece.
const MOST_ROWS: usize = 1 << 20;
/// The most entries of the lists of a launch, and costs of a piece of a sample. One row may need more.
const MOST_ENTRIES: usize = 1 << 22;
/// The exponents of units of a sample.
const UNITS: Range<i32> = -1_000..1_000;

/// The most entries of the lists of `rows` rows.
fn entries(rows: usize, k: usize) -> usize {
    product([rows, k]).min(MOST_ENTRIES.max(k))
}

buffers! {
    /// Prices of k clusters.
    struct PriceBuffers = "the prices of clusters" (k: usize) {
        prices: f64 [k],
        own: f32 [k],
        pairs: f32 [if k <= MOST_IN_PAIRS { product([k, k]) } else { 0 }],
    }
}

buffers! {
    /// What is found in a piece of the rows.
    struct PieceBuffers = "lists of the clusters near each row" (rows: usize, k: usize) {
        numbers: u32 [rows],
        nearest: u32 [rows],
        /// How long the list of each row is, or where it begins.
        places: u32 [rows],
        weights: f64 [rows],
        clusters: u32 [entries(rows, k)],
        squares: f64 [entries(rows, k)],
    }
}

buffers! {
    /// A piece of a sample.
    struct SampleBuffers = "a sample of the rows" (rows: usize, k: usize) {
        numbers: u32 [rows],
        costs: f32 [product([rows, k])],
    }
}

/// The rows of a piece of a sample: whole blocks.
fn sample_rows(rows: usize, k: usize) -> usize {
    (MOST_ENTRIES / k / BLOCK * BLOCK).clamp(BLOCK, rows.next_multiple_of(BLOCK).max(BLOCK))
}

/// The bytes that the passes over `rows` rows take.
pub fn priced_bytes<T: Plain>([rows, d, k]: [usize; 3]) -> u64 {
    let piece = sum([PriceBuffers::bytes(k), PieceBuffers::bytes(rows.min(MOST_ROWS), k)]);
    sum([bytes_of::<T>(product([k, d])), piece.max(SampleBuffers::bytes(sample_rows(rows, k), k))])
}

/// What the kernels of a band read.
struct Priced<'r, T: Plain> {
    rows: &'r DeviceRows<T>,
    columns: Buffer<T>,
    prices: PriceBuffers,
    in_pairs: bool,
    unit: f64,
    k: usize,
}

impl<'r, T: Float + Plain> Priced<'r, T> {
    fn new(rows: &'r DeviceRows<T>, centroids: &[T], range: &PriceRange<'_>) -> Result<Self> {
        let (queue, k) = (&rows.queue, range.prices.len());
        let prices = PriceBuffers::allocate(queue, k)?;
        prices.prices.write(0, range.prices)?;
        prices.own.write(0, &range.widths.own)?;
        prices.pairs.write(0, &range.widths.pairs)?;
        let in_pairs = !range.widths.pairs.is_empty();
        Ok(Self { rows, columns: columns(queue, centroids, rows.d)?, prices, in_pairs, unit: range.widths.unit, k })
    }

    /// Some rows. `numbers`: their numbers, or null for the `count` rows from `first` on.
    fn argument(&self, numbers: At<u32>, first: usize, count: usize) -> PricedRowsArgument {
        PricedRowsArgument {
            rows: self.rows.argument(),
            numbers,
            centroid_columns: self.columns.at(),
            prices: self.prices.prices.at(),
            pairs: if self.in_pairs { self.prices.pairs.at() } else { At::NULL },
            own: self.prices.own.at(),
            unit: self.unit,
            first: first as u32,
            count: count as u32,
            k: self.k as i32,
            unused: 0,
        }
    }

    /// The cheapest centroid of each row, and how many are in reach.
    fn counts(&self, pass: PassRows<'_>, piece: &PieceBuffers) -> Result<[Vec<u32>; 2]> {
        let count = pass.count(self.rows.n);
        let (mut nearest, mut counts) = (memory::zeroed(count, LISTS)?, memory::zeroed(count, LISTS)?);
        let queue = &self.rows.queue;
        let launch = self.rows.entry(arguments::priced_counts::<T>()).resident(&queue.gpu, "", usize::MAX)?;
        for first in (0..count).step_by(MOST_ROWS) {
            let here = first..count.min(first + MOST_ROWS);
            let numbers = match pass {
                PassRows::All => At::NULL,
                PassRows::These(_) => write_numbers(&piece.numbers, pass, here.clone())?,
            };
            let priced = self.argument(numbers, first, here.len());
            let argument = PricedCountsArgument { priced, nearest: piece.nearest.at(), counts: piece.places.at() };
            let blocks = here.len().div_ceil(launch.threads as usize).min(launch.blocks as usize);
            // SAFETY: the rows exist, and the piece has room for the answers of `count` rows. There are k prices, k widths or a
            // width for each pair, and k centroids of d values.
            unsafe { queue.run(&launch.with_blocks(blocks), &argument)? };
            copy(&piece.nearest, &mut nearest[here.clone()])?;
            copy(&piece.places, &mut counts[here])?;
        }
        Ok([nearest, counts])
    }

    /// The lists of the rows that have several centroids in reach.
    fn lists(&self, pass: PassRows<'_>, counts: &[u32], piece: &PieceBuffers, band: &mut Band) -> Result<()> {
        let listed = counts.iter().filter(|&&count| count > 1).count();
        let weighted = self.rows.weights.is_some();
        (band.rows, band.ends) = (memory::with_room(listed, LISTS)?, memory::with_room(listed, LISTS)?);
        let mut all = 0;
        for (place, count) in (0..).zip(counts).filter(|(_, count)| **count > 1) {
            all += *count as usize;
            band.rows.push(place);
            band.ends.push(all);
        }
        (band.clusters, band.squares) = (memory::zeroed(all, LISTS)?, memory::zeroed(all, LISTS)?);
        band.weights = memory::zeroed(if weighted { listed } else { 0 }, LISTS)?;
        let queue = &self.rows.queue;
        let launch = self.rows.entry(arguments::priced_lists::<T>()).resident(&queue.gpu, "", usize::MAX)?;
        let (room, most_rows) = (piece.clusters.len(), piece.nearest.len());
        let mut numbers = memory::with_room(most_rows.min(listed), LISTS)?;
        let (mut nearest, mut starts) = (memory::copied(&numbers, LISTS)?, memory::copied(&numbers, LISTS)?);
        let mut first = 0;
        while first < listed {
            let start = band.list(first).start;
            let last = band.ends[first..].partition_point(|end| *end <= start + room);
            let here = first..(first + last.max(1)).min(first + most_rows);
            numbers.clear();
            nearest.clear();
            starts.clear();
            for row in here.clone() {
                let place = band.rows[row] as usize;
                numbers.push(pass.row(place) as u32);
                nearest.push(band.nearest[place]);
                starts.push((band.list(row).start - start) as u32);
            }
            piece.numbers.write(0, &numbers)?;
            piece.nearest.write(0, &nearest)?;
            piece.places.write(0, &starts)?;
            let argument = PricedListsArgument {
                priced: self.argument(piece.numbers.at(), 0, here.len()),
                nearest: piece.nearest.at(),
                starts: piece.places.at(),
                clusters: piece.clusters.at(),
                squares: piece.squares.at(),
                weights: if weighted { piece.weights.at() } else { At::NULL },
            };
            let blocks = here.len().div_ceil(launch.threads as usize).min(launch.blocks as usize);
            // SAFETY: as in `counts`. The lists are as long as the counts say, since both kernels compare the same numbers. They
            // fit: a list has at most k entries, and the piece has room for k, and for all lists of these rows.
            unsafe { queue.run(&launch.with_blocks(blocks), &argument)? };
            let end = band.ends[here.end - 1];
            copy(&piece.clusters, &mut band.clusters[start..end])?;
            copy(&piece.squares, &mut band.squares[start..end])?;
            if weighted {
                copy(&piece.weights, &mut band.weights[here.clone()])?;
            }
            first = here.end;
        }
        Ok(())
    }
}

/// The centroids (`(k, d)`) column by column, on the device.
fn columns<T: Float + Plain>(queue: &Queue, centroids: &[T], d: usize) -> Result<Buffer<T>> {
    const WHAT: &str = "the centroids of a pass with prices";
    let columns = (0..d).flat_map(|f| centroids.iter().skip(f).step_by(d).copied());
    queue.upload(&memory::collected(columns, WHAT)?, WHAT)
}

/// Uploads the numbers of some rows of a pass.
fn write_numbers(to: &Buffer<u32>, pass: PassRows<'_>, places: Range<usize>) -> Result<At<u32>> {
    to.write(0, &memory::collected(places.map(|place| pass.row(place) as u32), LISTS)?)?;
    Ok(to.at())
}

impl<T: Float + Plain> CudaSession<'_, T> {
    /// Whether all rows are here, so that there are passes with prices.
    pub(super) fn has_priced_passes(&self) -> bool {
        self.is_resident() && self.state.port.is_none()
    }

    fn resident(&self) -> &DeviceRows<T> {
        match &*self.rows {
            RowChunks::Resident(rows) => rows,
            RowChunks::Streamed(_) => unreachable!("passes with prices need rows on the device"),
        }
    }
}

impl<T: Float + Plain> PricedPasses<T> for CudaSession<'_, T> {
    fn counted_rows(&mut self) -> Result<Option<Vec<u64>>> {
        let rows = self.resident();
        let Some(on_device) = rows.weights.as_ref().filter(|_| self.positive < rows.n as u64) else { return Ok(None) };
        let mut weights = memory::zeroed(rows.n, LISTS)?;
        copy(on_device, &mut weights)?;
        let mut numbers = memory::with_room(self.positive as usize, LISTS)?;
        numbers.extend((0..).zip(&weights).filter_map(|(row, weight)| (*weight > 0.0).then_some(row)));
        Ok(Some(numbers))
    }

    fn sample(&mut self, centroids: &[T], pass: PassRows<'_>, mut values: Vec<f32>) -> Result<SampleCosts> {
        let (rows, k) = (self.resident(), self.state.shape.k);
        let (count, queue) = (pass.count(rows.n), &rows.queue);
        let exponent = self.statistics.distances.column().map_or(0, |column| column.quantum_exponent() + 90);
        if !UNITS.contains(&exponent) {
            return Ok(SampleCosts { values, rows: 0, unit: 0.0 });
        }
        let needed = product([count.next_multiple_of(BLOCK), k]);
        let more = needed.saturating_sub(values.len());
        memory::reserve(&mut values, more, LISTS)?;
        values.resize(needed, 0.0);
        let piece = sample_rows(count, k);
        let (columns, buffers) = (columns(queue, centroids, rows.d)?, SampleBuffers::allocate(queue, piece, k)?);
        let launch = rows.entry(arguments::priced_sample::<T>()).resident(&queue.gpu, "", usize::MAX)?;
        for (first, values) in (0..count).step_by(piece).zip(values.chunks_mut(piece * k)) {
            let here = first..count.min(first + piece);
            let argument = PricedSampleArgument {
                rows: rows.argument(),
                numbers: write_numbers(&buffers.numbers, pass, here.clone())?,
                centroid_columns: columns.at(),
                costs: buffers.costs.at(),
                factor: power_of_two(-exponent),
                count: here.len() as u32,
                k: k as i32,
            };
            let blocks = here.len().div_ceil(launch.threads as usize).min(launch.blocks as usize);
            // SAFETY: the rows exist. There is room for k costs of each row of whole blocks, and there are k centroids of d values.
            unsafe { queue.run(&launch.with_blocks(blocks), &argument)? };
            copy(&buffers.costs, values)?;
        }
        Ok(SampleCosts { values, rows: count, unit: power_of_two(exponent) })
    }

    fn band(&mut self, centroids: &[T], pass: PassRows<'_>, range: &PriceRange<'_>) -> Result<Band> {
        let rows = self.resident();
        let priced = Priced::new(rows, centroids, range)?;
        let piece = PieceBuffers::allocate(&rows.queue, pass.count(rows.n).clamp(1, MOST_ROWS), priced.k)?;
        let [nearest, counts] = priced.counts(pass, &piece)?;
        let mut band = Band { nearest, ..Band::default() };
        priced.lists(pass, &counts, &piece, &mut band)?;
        Ok(band)
    }

    fn relabel(&mut self, labels: &[u32]) -> Result<()> {
        const WHAT: &str = "the rows whose label changes";
        let before = self.labels()?;
        let rows = (0..).zip(before.iter().zip(labels)).filter(|(_, (before, now))| before != now);
        let moves = memory::collected(rows.map(|(row, (_, to))| Move { row, to: *to }), WHAT)?;
        moves.chunks(MOST_ROWS).try_for_each(|moves| self.relocate(moves))
    }

    fn own_squares(&mut self) -> Result<Vec<f64>> {
        const WHAT: &str = "distances to the centroids of labels";
        self.step.write_labels(&self.state)?;
        let (rows, state) = (self.resident(), &self.state);
        let (queue, entry) = (&rows.queue, rows.entry(arguments::own_squares::<T>()));
        let mut squares = memory::zeroed(rows.n, WHAT)?;
        let out = queue.alloc(rows.n.clamp(1, MOST_ROWS), WHAT)?;
        for (first, squares) in (0..rows.n).step_by(MOST_ROWS).zip(squares.chunks_mut(MOST_ROWS)) {
            let launch = entry.resident(&queue.gpu, "", entry.blocks_of(squares.len()))?;
            let argument = OwnSquaresArgument {
                rows: rows.argument_of(first..first + squares.len()),
                labels: state.labels.now(first),
                centroids: state.centroids.now.at(),
                out: out.at(),
            };
            // SAFETY: every row has a label, and a place in `out`. The centroids are those of the state.
            unsafe { queue.run(&launch, &argument)? };
            copy(&out, squares)?;
        }
        Ok(squares)
    }
}
