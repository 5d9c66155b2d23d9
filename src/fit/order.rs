//! `row_order="values"`: rows are numbered by their values, so that the order in which they are given does not matter.
//!
//! ```text
//! keys    = for each kept row, its first value (two of float32) as an integer that grows with it; both zeros are one value
//! buckets = ranges of keys with about the same number of rows; each is sorted by itself
//! ties    = equal keys go on with the next values, then with the weight, then with the number of the row as given
//! copy    = the kept rows in this order, in chunks of columns; the fit works on the copy
//! labels  = back to the rows as given
//! ```
//! Values are compared after they are scaled and normalised, feature by feature. The copy has the rows as they are given, because
//! they are transformed again as they are read. So draws and ties need no other code for this order, on the CPU and on a GPU, and
//! the loop costs what it costs for rows as given.
//!
//! Given and optimal starting centroids need no draws. Then rows are sorted only if some are equally far when one of them must
//! move to an empty cluster, or if `too_few="fewer"` asks for the distinct rows in their order: the fit starts again.
//!
//! A fit that is refused for its rows is not sorted, so that its error names the rows as given.

mod sort;
mod ties;

use self::sort::{Keyed, sorted};
use crate::backend::answers::{DISTANCES, Distances, LABELS};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::{for_each_task, workers_for};
use crate::base::params::{Init, NullPolicy, Params, RowOrder};
use crate::input::features::{Chunk, Column, Features};
use crate::input::tile::{self, RowBlock, Selection};
use crate::model::Fitted;
use crate::statistics::given::{HostRows, check_overflow};

/// The name for the order in errors.
const ORDER: &str = "the order of the rows by their values";
/// The name for the copy in errors.
const COPY: &str = "the rows in the order of their values";
/// What errors call the buffers of the threads.
const BUFFERS: &str = "the threads' buffers";
/// Values of a chunk of the copy, roughly.
const CHUNK: usize = 1 << 18;

/// The kept rows of a fit in the order of their values.
pub struct Arranged<T> {
    /// For each row of the copy, its number in all rows as given.
    rows: Vec<u32>,
    /// The number of all rows as given.
    given: usize,
    /// `(chunks, d, rows of the chunk)`.
    values: Vec<T>,
    weights: Option<Vec<f64>>,
    /// Rows of each chunk but the last.
    chunk: usize,
}

/// Whether the order of the values only decides which of some rows that are equally far moves to an empty cluster, because
/// seeding draws no rows.
pub fn only_decides_ties(params: &Params) -> bool {
    let draws = match params.seeding.init {
        Init::Given(_) => false,
        Init::Optimal => params.seeding.init_sample.is_some(),
        Init::Random | Init::KMeansPlusPlus | Init::KMeansParallel | Init::AfkMc2 => true,
    };
    params.rows.row_order == RowOrder::Values && !draws
}

/// Arranges the rows, if they are to be numbered by their values and the fit is not refused for its rows.
///
/// # Errors
/// [`KMeansError::InvalidOption`] for more rows than can be sorted, [`KMeansError::NoMemory`], and a value that overflows.
pub fn arranged<T: Float>(parts: &[RowBlock<'_, T>], params: &Params) -> Result<Option<Arranged<T>>> {
    if params.rows.row_order == RowOrder::Given {
        return Ok(None);
    }
    let given: usize = parts.iter().map(|part| part.features.n_rows()).sum();
    check_count(given)?;
    let parts = &tile::on_host(parts)?; // rows on a GPU are sorted here too
    // Preparation says what is wrong with the lengths.
    if parts.iter().any(|part| part.weights.as_ref().is_some_and(|weights| weights.len() != part.features.n_rows())) {
        return Ok(None);
    }
    let threads = params.execution.threads;
    let Keyed { entries, bad, negative } = Keyed::new(parts, given, threads)?;
    let refused = negative || bad == given || (bad > 0 && params.rows.null_policy == NullPolicy::Raise);
    if refused {
        return Ok(None);
    }
    if bad > 0 {
        check_overflow(&HostRows(parts))?;
    }
    let rows = sorted(parts, entries, given - bad, threads)?;
    Arranged::new(parts, rows, given, threads).map(Some)
}

/// Refuses rows that are too many for the numbers of an order.
fn check_count(rows: usize) -> Result<()> {
    if u32::try_from(rows).is_ok() {
        return Ok(());
    }
    let expected = "\"given\" for more than 4,294,967,295 rows, which are not sorted".into();
    Err(KMeansError::InvalidOption { option: "row_order", expected, got: format!("\"values\" for {rows} rows") })
}

impl<T: Float> Arranged<T> {
    /// Copies rows in this order.
    fn new(parts: &[RowBlock<'_, T>], rows: Vec<u32>, given: usize, threads: usize) -> Result<Self> {
        let d = parts[0].features.n_features();
        // Values are copied as they are given.
        let raw = parts.iter().map(|part| RowBlock { features: part.features.transformed_by(None), ..part.clone() });
        let raw = memory::collected(raw, COPY)?;
        // SAFETY: `Float` is sealed: its types are floating-point numbers, for which zero bytes are 0.
        let mut values = unsafe { memory::zero_bytes::<T>(rows.len().saturating_mul(d), COPY) }?;
        let weighted = parts.iter().any(|part| part.weights.is_some());
        let mut weights = memory::filled(if weighted { rows.len() } else { 0 }, 1.0, COPY)?;
        let chunk = (CHUNK / d).clamp(1 << 10, 1 << 16).next_multiple_of(1 << 10);
        let workers = (0..workers_for(threads, rows.len().div_ceil(chunk))).map(|_| ties::Loader::new(&raw));
        let mut workers = memory::try_collected(workers, BUFFERS)?;
        let (mut rest, mut rest_weights) = (values.as_mut_slice(), weights.as_mut_slice());
        let work = rows.chunks(chunk).map(|rows| {
            let (own, tail) = std::mem::take(&mut rest).split_at_mut(rows.len() * d);
            let (own_weights, tail_weights) =
                std::mem::take(&mut rest_weights).split_at_mut(if weighted { rows.len() } else { 0 });
            (rest, rest_weights) = (tail, tail_weights);
            (rows, own, own_weights)
        });
        for_each_task(&mut workers, work, |loader, (rows, values, weights)| {
            let most = loader.stride;
            for (at, some) in (0..).step_by(most).zip(rows.chunks(most)) {
                loader.load(some.iter().copied());
                for (f, column) in values.chunks_exact_mut(rows.len()).enumerate() {
                    column[at..at + some.len()].copy_from_slice(&loader.column(f)[..some.len()]);
                }
                if weighted {
                    weights[at..at + some.len()].copy_from_slice(&loader.weights[..some.len()]);
                }
            }
        })?;
        Ok(Self { rows, given, values, weights: weighted.then_some(weights), chunk })
    }

    /// The copy as a part. Its rows have the names of those as given, and arrive as they do.
    pub fn part(&self, given: &Features<'_, T>) -> Result<RowBlock<'_, T>> {
        let d = given.n_features();
        let column = |f: usize| {
            let chunks = self.values.chunks(self.chunk * d).map(move |chunk| {
                let rows = chunk.len() / d;
                Chunk::new(&chunk[f * rows..][..rows], None)
            });
            Column::of(chunks)
        };
        let features = Features::new(memory::try_collected((0..d).map(column), COPY)?)?.with_names(given.names().clone())?;
        let weights = self.weights.as_ref().map(|weights| Chunk::new(weights, None));
        let weights = weights.map(|chunk| Column::of([chunk])).transpose()?;
        Ok(RowBlock::new(features.transformed_as(given), weights))
    }

    /// What a fit of the copy says of its rows becomes what it says of the rows as given.
    pub fn as_given(&self, fitted: Fitted<T>) -> Result<Fitted<T>> {
        let selection = self.selection()?;
        let Fitted { mut labels, mut distances, .. } = fitted;
        // There are none if the caller wants none.
        if !labels.is_empty() {
            labels = self.reordered(&labels, &selection, LABELS)?;
        }
        if let Some(Distances { nearest, second }) = &mut distances {
            *nearest = self.reordered(nearest, &selection, DISTANCES)?;
            if let Some(second) = second {
                *second = self.reordered(second, &selection, DISTANCES)?;
            }
        }
        let selection = memory::filled(1, (selection, self.given), ORDER)?;
        Ok(Fitted { labels, distances, selection, ..fitted })
    }

    /// Which rows as given are in the copy.
    fn selection(&self) -> Result<Selection> {
        if self.rows.len() == self.given {
            return Ok(Selection::default());
        }
        let mut bits = memory::zeroed::<u64>(self.given.div_ceil(64), ORDER)?;
        self.rows.iter().for_each(|row| bits[*row as usize / 64] |= 1 << (row % 64));
        Ok(Selection::from_bits(bits))
    }

    /// Values in the order of the copy, in the order of the kept rows as given.
    fn reordered<V: memory::Zero>(&self, values: &[V], kept: &Selection, what: &'static str) -> Result<Vec<V>> {
        let mut all = memory::zeroed::<V>(self.given, what)?;
        self.rows.iter().zip(values).for_each(|(row, value)| all[*row as usize] = *value);
        if !kept.is_all() {
            let mut next = 0;
            for row in (0..self.given).filter(|row| kept.contains(*row)) {
                all[next] = all[row];
                next += 1;
            }
            all.truncate(next);
        }
        Ok(all)
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(too_many_rows_are_refused);
    fn too_many_rows_are_refused() {
        assert!(check_count(u32::MAX as usize).is_ok());
        let error = check_count(1 << 32).unwrap_err().to_string();
        let expected = "row_order: expected \"given\" for more than 4,294,967,295 rows, which are not sorted, got \"values\" for \
            4294967296 rows";
        assert_eq!(error, expected);
    }
}
