//! The passes of [`crate::statistics`] over rows on the device: `kernels/passes/statistics.cu`.
//!
//! The device sees values but no validity, and it keeps no bad rows. If there are nulls, the host first selects the good rows
//! and sends only these. If a value is not finite, the host selects the finite rows and sends the rows again. If an error names
//! single values, the host always looks for them.

use crate::backend::chunking::{Chunking, MOST_ROWS};
use crate::backend::cuda::arguments::{
    self, CountSmallArgument, Factors, SurveyArgument, VarianceArgument, WeightFacts, WeightSurveyArgument,
};
use crate::backend::cuda::device::{Argument, Buffer, Entry, Plain, Queue, bytes_of, product, sum};
use crate::backend::cuda::rows::chunks::{DeviceChunk, RowChunks};
use crate::backend::cuda::rows::external::finite_rows;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::{RowBlock, WeightScale};
use crate::statistics::given::{Given, HostRows};
use crate::statistics::passes::{Merge, Passes};
use crate::statistics::quanta::Counts;
use crate::statistics::survey::{EXTENTS, Extent, Survey, select_finite};
use crate::statistics::variance::Moments;

/// The fewest and the most rows of a chunk. The fewest are a multiple of the alignment of rows. The most are as many limbs as
/// an int64 can sum.
const CHUNKS: std::ops::RangeInclusive<usize> = 4_096..=131_072;
/// The number of blocks that a pass aims at. A large GPU runs fewer blocks than this at once.
const BLOCKS: usize = 8_192;

/// The rows of a fit that will run on a GPU.
pub struct DevicePasses<'p, 'a, T> {
    queue: Queue,
    parts: &'p mut [RowBlock<'a, T>],
    chunking: Option<Chunking>,
    /// The rows on the device, from pass 1 on.
    pub(super) chunks: Option<RowChunks<'a, T>>,
}

/// The name of the facts about the weights in errors.
const POSITIVE: &str = "the counts of positive weights";

/// How a pass is cut into chunks. Each block has one chunk of one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChunkGrid {
    /// Rows of a chunk.
    chunk: usize,
    /// Chunks of a column.
    chunks: usize,
}

impl ChunkGrid {
    /// The chunks for `n` rows of `columns` columns. They depend on nothing else. So the order is always the same in which the
    /// sums are added that determine the centring.
    fn new(n: usize, columns: usize) -> Self {
        let (least, most) = CHUNKS.into_inner();
        let chunk = (n.div_ceil(BLOCKS).saturating_mul(columns)).clamp(least, most).next_multiple_of(least);
        Self { chunk, chunks: n.div_ceil(chunk) }
    }

    fn blocks(&self, columns: usize) -> Result<usize> {
        let blocks = self.chunks.checked_mul(columns).filter(|&blocks| i32::try_from(blocks).is_ok());
        blocks.ok_or_else(|| too_many("values"))
    }
}

fn too_many(what: &str) -> KMeansError {
    KMeansError::NoMemory { what: format!("so many {what} on one GPU").into(), bytes: None }
}

impl<'p, 'a, T: Float + Plain> DevicePasses<'p, 'a, T> {
    /// The passes over these parts. Nothing is sent before pass 1.
    pub fn new(queue: &Queue, parts: &'p mut [RowBlock<'a, T>], chunking: Option<Chunking>) -> Self {
        Self { queue: queue.clone(), parts, chunking, chunks: None }
    }

    /// The kept rows after all passes, if there are any. Their weights are `w^`.
    pub fn into_chunks(self) -> Option<RowChunks<'a, T>> {
        self.chunks
    }

    fn chunks(&self) -> &RowChunks<'a, T> {
        let Some(chunks) = &self.chunks else { unreachable!("pass 1 comes first") };
        chunks
    }

    fn n_features(&self) -> usize {
        self.parts[0].features.n_features()
    }

    /// Launches a pass with one block for each chunk of each column.
    ///
    /// # Safety
    /// The same as for [`Queue::run`].
    unsafe fn launch<A: Argument>(&self, entry: Entry<A>, cut: ChunkGrid, d: usize, argument: &A) -> Result<()> {
        let launch = entry.exactly(&self.queue.gpu, "", cut.blocks(d)?)?;
        // SAFETY: the caller promises it.
        unsafe { self.queue.run(&launch, argument) }
    }

    /// Sends the kept rows and surveys them.
    fn send(&mut self) -> Result<Survey> {
        self.chunks = None;
        let kept: usize = self.parts.iter().map(|part| part.selection.count(0..part.features.n_rows())).sum();
        if kept == 0 {
            return Survey::empty(self.n_features());
        }
        if self.chunking.is_none() && kept as u64 > MOST_ROWS {
            return Err(too_many("rows"));
        }
        self.chunks = Some(RowChunks::new(&self.queue, self.parts, self.chunking)?);
        let mut survey = Survey::empty(self.n_features())?;
        self.chunks().visit(|chunk| {
            let (columns, largest, columns_finite) = self.extents(chunk.rows.entry(arguments::survey::<T>()), chunk)?;
            let (mut here, weights_finite) = self.survey_weights(chunk)?;
            here.largest = columns.iter().fold(largest, |m, column| m.max(column.largest));
            here.columns = columns;
            // This only says whether there are bad rows. The host counts them.
            here.bad = u64::from(!(columns_finite && weights_finite));
            survey.merge(&here);
            Ok(())
        })?;
        if let Some(RowChunks::Streamed(stream)) = &mut self.chunks {
            stream.positive = survey.positive;
        }
        Ok(survey)
    }

    /// The extents of the columns, the largest magnitude (over all rows, even if they are weighted), and whether all values are
    /// finite.
    fn extents(&self, kernel: Entry<SurveyArgument>, chunk: &DeviceChunk<'_, T>) -> Result<(Vec<Extent>, f64, bool)> {
        let rows = chunk.rows;
        let cut = ChunkGrid::new(rows.n, rows.d);
        let pieces: Buffer<arguments::Extent> = self.queue.alloc(cut.chunks.saturating_mul(rows.d), EXTENTS)?;
        let argument = SurveyArgument { rows: rows.argument(), extents: pieces.at(), chunk: cut.chunk as u64 };
        // SAFETY: each block writes one extent. It reads only rows below the stride.
        unsafe { self.launch(kernel, cut, rows.d, &argument)? };
        merge(&pieces.to_vec()?, rows.d)
    }

    /// The survey of the weights, and whether all of them are finite.
    fn survey_weights(&self, chunk: &DeviceChunk<'_, T>) -> Result<(Survey, bool)> {
        let rows = chunk.rows;
        let empty = Survey::empty(0)?;
        let Some(w) = &rows.weights else { return Ok((Survey { positive: rows.n as u64, ..empty }, true)) };
        let cut = ChunkGrid::new(rows.n, 1);
        let pieces: Buffer<WeightFacts> = self.queue.alloc(cut.chunks, POSITIVE)?;
        let argument = WeightSurveyArgument { w: w.at(), facts: pieces.at(), n: rows.n as u64, chunk: cut.chunk as u64 };
        // SAFETY: each block writes the facts of its own chunk.
        unsafe { self.launch(arguments::weight_survey(), cut, 1, &argument)? };
        let facts = pieces.to_vec()?;
        let survey = Survey {
            largest_weight: facts.iter().fold(0.0, |m, facts| m.max(facts.largest)),
            smallest_weight: facts.iter().fold(f64::INFINITY, |m, facts| m.min(facts.smallest)),
            all_weights_one: facts.iter().all(|facts| facts.other_than_one == 0),
            any_negative_weight: facts.iter().any(|facts| facts.negative != 0),
            positive: facts.iter().map(|facts| facts.positive).sum(),
            ..empty
        };
        Ok((survey, facts.iter().all(|facts| facts.not_finite == 0)))
    }
}

/// The most bytes that a pass takes on the device, for chunks of `n` rows.
pub fn statistics_bytes(n: usize, d: usize) -> u64 {
    let survey = bytes_of::<arguments::Extent>(ChunkGrid::new(n, d).chunks.saturating_mul(d));
    let weights = bytes_of::<WeightFacts>(ChunkGrid::new(n, 1).chunks);
    let small = sum([bytes_of::<f64>(d), bytes_of::<u64>(product([3, d]))]);
    let variance = sum([bytes_of::<arguments::Moments>(d), bytes_of::<i128>(product([2, d]))]);
    survey.max(weights).max(small).max(variance)
}

/// Merges the chunks of `d` columns, column by column. Returns the extents, the largest magnitude of all columns, and whether
/// all values are finite.
fn merge(chunks: &[arguments::Extent], d: usize) -> Result<(Vec<Extent>, f64, bool)> {
    let mut columns = memory::filled(d, Extent::EMPTY, EXTENTS)?;
    let (mut largest, mut finite) = (0.0f64, true);
    for chunks in chunks.chunks_exact(d) {
        for (column, chunk) in columns.iter_mut().zip(chunks) {
            let &arguments::Extent { low, high, smallest, .. } = chunk;
            let within = if low <= high { low.abs().max(high.abs()) } else { 0.0 };
            column.merge(&Extent { low, high, largest: within, smallest });
            largest = largest.max(chunk.largest);
            finite &= chunk.not_finite == 0;
        }
    }
    Ok((columns, largest, finite))
}

impl<T: Float + Plain> Passes<T> for DevicePasses<'_, '_, T> {
    fn given(&self) -> Box<dyn Given + '_> {
        Box::new(HostRows(self.parts))
    }

    fn survey(&mut self) -> Result<Survey> {
        let nulls = |part: &RowBlock<'_, T>| part.features.has_nulls() || part.weights.as_ref().is_some_and(|w| w.has_nulls());
        if self.parts.iter().any(nulls) {
            let weighted = self.parts.iter().any(|part| part.weights.is_some());
            return Ok(Survey { bad: 1, any_negative_weight: weighted, ..Survey::empty(self.n_features())? });
        }
        self.send()
    }

    fn skip_bad(&mut self, _: Survey) -> Result<Survey> {
        match &self.chunks {
            // The device has the values, and nulls among them are NaN.
            Some(RowChunks::Resident(rows)) if self.parts[0].features.gpu().is_some() => {
                let [part] = &mut *self.parts else {
                    let reason = "expected one part on the GPU, got several".into();
                    return Err(KMeansError::Device { what: "the rows that are left out".into(), reason });
                };
                part.selection = finite_rows(rows)?;
            }
            _ => select_finite(self.parts, 0)?,
        }
        let survey = self.send()?;
        debug_assert_eq!(survey.bad, 0);
        let kept = self.chunks.as_ref().map_or(0, |chunks| chunks.n() as u64);
        let all: u64 = self.parts.iter().map(|part| part.features.n_rows() as u64).sum();
        Ok(Survey { bad: all - kept, ..survey })
    }

    fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        let Some(chunks) = &mut self.chunks else { unreachable!("pass 1 comes first") };
        chunks.round_weights(scale)
    }

    fn weighted_extents(&mut self) -> Result<Vec<Extent>> {
        let mut all = memory::filled(self.n_features(), Extent::EMPTY, EXTENTS)?;
        self.chunks().visit(|chunk| {
            let (here, ..) = self.extents(arguments::weighted_extents::<T>().half_if(chunk.rows.half().is_some()), chunk)?;
            all.merge(&here);
            Ok(())
        })?;
        Ok(all)
    }

    /// If there are weights, the kernel always counts `fl(w^ * x)`. So it can ignore `_weighted`: if that is false, all weights
    /// are 1 or 0, and values and contributions are the same.
    fn count_small(&mut self, largest: &[Option<f64>], _weighted: bool) -> Result<Vec<Counts>> {
        const WHAT: &str = "the ranges of the columns";
        let largest = memory::collected(largest.iter().map(|largest| largest.unwrap_or(-1.0)), WHAT)?;
        let (largest, counts) = (self.queue.upload(&largest, WHAT)?, self.queue.zeros::<u64>(3 * self.n_features(), WHAT)?);
        self.chunks().visit(|DeviceChunk { rows, .. }| {
            let cut = ChunkGrid::new(rows.n, rows.d);
            let chunk = cut.chunk as u64;
            let argument = CountSmallArgument { rows: rows.argument(), largest: largest.at(), counts: counts.at(), chunk };
            // SAFETY: the kernel reads d thresholds and adds to 3 d counts. It reads only rows below the stride.
            unsafe { self.launch(rows.entry(arguments::count_small::<T>()), cut, rows.d, &argument) }
        })?;
        memory::copied(counts.to_vec()?.as_chunks().0, WHAT)
    }

    fn variance_sums(&mut self, moments: &[Moments]) -> Result<Vec<[i128; 2]>> {
        const WHAT: &str = "the variances of the columns";
        let moments = moments.iter().map(|m| arguments::Moments {
            middle: m.middle,
            first: Factors::from(&m.first),
            second: Factors::from(&m.second),
        });
        let moments = self.queue.upload(&memory::collected(moments, WHAT)?, WHAT)?;
        let sums = self.queue.zeros::<i128>(2 * self.n_features(), WHAT)?;
        self.chunks().visit(|DeviceChunk { rows, .. }| {
            let cut = ChunkGrid::new(rows.n, rows.d);
            let chunk = cut.chunk as u64;
            let argument = VarianceArgument { rows: rows.argument(), moments: moments.at(), sums: sums.at_of(), chunk };
            // SAFETY: the kernel reads d moments and adds to 2 d sums. It reads only rows below the stride.
            unsafe { self.launch(rows.entry(arguments::variance::<T>()), cut, rows.d, &argument) }
        })?;
        memory::copied(sums.to_vec()?.as_chunks().0, WHAT)
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cuda::shape::ROW_ALIGNMENT;

    unit_test!(every_row_is_in_one_chunk);
    fn every_row_is_in_one_chunk() {
        let (least, most) = CHUNKS.into_inner();
        for n in [1, 255, 4_096, 4_097, 1_000_003, 134_217_728, u32::MAX as usize] {
            for d in [1, 2, 3, 16, 1_000, 100_000] {
                let ChunkGrid { chunk, chunks } = ChunkGrid::new(n, d);
                assert!(chunk % ROW_ALIGNMENT == 0 && (least..=most).contains(&chunk), "{n} {d}");
                assert!((chunks - 1) * chunk < n && n <= chunks * chunk, "{n} {d}");
            }
        }
        assert!(ChunkGrid::new(u32::MAX as usize, 1 << 20).blocks(1 << 20).is_err());
    }

    unit_test!(chunks_merge_by_column);
    fn chunks_merge_by_column() {
        let chunk = |low: f64, high: f64, largest: f64, not_finite: u64| arguments::Extent {
            low,
            high,
            smallest: 0.5,
            largest,
            not_finite,
        };
        let none = arguments::Extent {
            low: f64::INFINITY,
            high: f64::NEG_INFINITY,
            smallest: f64::INFINITY,
            ..chunk(0.0, 0.0, 0.0, 0)
        };
        let (columns, largest, finite) = merge(&[chunk(-3.0, 1.0, 9.0, 0), none, chunk(2.0, 2.5, 2.5, 0), none], 2).unwrap();
        assert_eq!((columns[0].low, columns[0].high, columns[0].largest), (-3.0, 2.5, 3.0));
        assert_eq!((columns[1].largest, columns[1].smallest), (0.0, f64::INFINITY));
        assert!(largest == 9.0 && finite);
        assert!(!merge(&[none, chunk(0.0, 1.0, 1.0, 1)], 2).unwrap().2);
    }
}
