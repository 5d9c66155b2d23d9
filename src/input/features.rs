//! A view of the features, without a copy. The view holds `d` columns, each with its own chunks, or row-major blocks.
//!
//! Values may also lie at regular distances ([`Features::from_strided`]), or on a GPU ([`Features::on_gpu`]). Only passes on that
//! GPU read values that are there. Other engines read one tile at a time ([`Features::copy_tile`]). A tile holds a few dozen rows
//! of every feature, feature-major. Vector units need this layout, and a tile fits in a cache. Rows are scaled or normalised as
//! they are read (`transform.rs`).
//!
//! `column.rs` has a column, its chunks and the types of their values, `read.rs` the passes over tiles.

mod column;
mod read;
mod strided;
mod transpose;

use std::ops::Range;
use std::sync::Arc;

use self::column::{VIEW, check_validity};
use self::read::block_pieces;
use self::strided::Strided;
pub(crate) use self::transpose::rows_to_columns;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::input::fp16::Half;
#[cfg(feature = "cuda")]
use crate::input::gpu_table::{GpuRows, GpuTable};
use crate::input::transform::RowTransform;

pub(crate) use self::column::Values;
pub use self::column::{Chunk, Column, Validity};

/// Consecutive rows, each of `d` consecutive values.
#[derive(Debug, Clone, Copy)]
pub struct RowMajorBlock<'a, T> {
    values: Values<'a, T>,
    rows: usize,
    row_validity: Option<Validity<'a>>,
    value_validity: Option<Validity<'a>>,
}

#[derive(Debug)]
enum Layout<'a, T> {
    Columns(Vec<Column<'a, T>>),
    /// Blocks, and the first row of each block. The last entry is the number of rows. The values of all blocks have one type.
    Blocks(Vec<RowMajorBlock<'a, T>>, Vec<usize>),
    Strided(Strided<'a, T>),
    #[cfg(feature = "cuda")]
    Gpu(GpuRows<'a, T>),
}

/// The values are on a GPU. Only passes on that GPU run then, and whatever else reads values asks for a copy on the host first.
#[cfg(feature = "cuda")]
const NOT_HERE: &str = "values on a GPU are read there";

/// The features of `n` rows: a view of `d` columns or of row-major blocks. A clone shares the list of columns or blocks.
#[derive(Debug, Clone)]
pub struct Features<'a, T> {
    layout: Arc<Layout<'a, T>>,
    n: usize,
    d: usize,
    names: Names,
    /// What happens to rows as they are read. Row slices and columns are read as they are.
    row_transform: Option<Arc<RowTransform>>,
    /// The type in which a GPU keeps the rows, if it is one of 16 bits.
    half: Option<Half>,
}

impl<'a, T: Float> Features<'a, T> {
    /// Columns of equal length. Each may have its own chunks.
    ///
    /// # Errors
    /// [`KMeansError::NoFeatures`] without columns, [`KMeansError::LengthMismatch`] if their lengths differ.
    pub fn new(columns: Vec<Column<'a, T>>) -> Result<Self> {
        let n = columns.first().ok_or(KMeansError::NoFeatures)?.len();
        let d = columns.len();
        for (f, column) in columns.iter().enumerate() {
            if column.len() != n {
                return Err(KMeansError::LengthMismatch { what: format!("column {f}"), expected: n, got: column.len() });
            }
        }
        let half = columns[0].half().filter(|half| T::IS_F32 && columns.iter().all(|column| column.half() == Some(*half)));
        Self::of(Layout::Columns(columns), n, d, half)
    }

    fn of(layout: Layout<'a, T>, n: usize, d: usize, half: Option<Half>) -> Result<Self> {
        Ok(Self { layout: Arc::new(layout), n, d, names: Names::numbered(d)?, row_transform: None, half })
    }

    /// Columns of one chunk without nulls.
    fn of_slices(columns: impl IntoIterator<Item = Values<'a, T>>) -> Result<Self> {
        let columns = columns.into_iter().map(|values| Column::of([Chunk::of(values, None)]));
        Self::new(memory::try_collected(columns, VIEW)?)
    }

    /// One slice per column.
    ///
    /// # Errors
    /// As [`Features::new`].
    pub fn from_columns(columns: impl IntoIterator<Item = &'a [T]>) -> Result<Self> {
        Self::of_slices(columns.into_iter().map(Values::Same))
    }

    /// One slice per column: the bits of its values of 16 bits.
    ///
    /// # Errors
    /// As [`Features::new`].
    pub fn from_half_columns(half: Half, columns: impl IntoIterator<Item = &'a [u16]>) -> Result<Self> {
        Self::of_slices(columns.into_iter().map(|bits| Values::Half(bits, half)))
    }

    /// One row-major block: `values` is `(n, d)`.
    ///
    /// # Errors
    /// [`KMeansError::NoFeatures`] if `d` is 0, [`KMeansError::LengthMismatch`] if `d` does not divide the length.
    pub fn from_rows(values: &'a [T], d: usize) -> Result<Self> {
        Self::from_blocks([(values, None, None)], d)
    }

    /// One row-major block: `bits` is `(n, d)`, the bits of values of 16 bits.
    ///
    /// # Errors
    /// As [`Features::from_rows`].
    pub fn from_half_rows(half: Half, bits: &'a [u16], d: usize) -> Result<Self> {
        Self::of_blocks([(Values::Half(bits, half), None, None)].into_iter(), d)
    }

    /// Row-major blocks of `d` features, as in an Arrow fixed-size list. A block has values, validity of the rows and validity of
    /// the values.
    ///
    /// # Errors
    /// As [`Features::from_rows`].
    pub fn from_blocks(
        blocks: impl IntoIterator<Item = (&'a [T], Option<Validity<'a>>, Option<Validity<'a>>)>,
        d: usize,
    ) -> Result<Self> {
        Self::of_blocks(blocks.into_iter().map(|(values, rows, each)| (Values::Same(values), rows, each)), d)
    }

    /// Blocks of values of one type.
    pub(crate) fn of_blocks(
        blocks: impl Iterator<Item = (Values<'a, T>, Option<Validity<'a>>, Option<Validity<'a>>)>,
        d: usize,
    ) -> Result<Self> {
        if d == 0 {
            return Err(KMeansError::NoFeatures);
        }
        let (mut list, mut starts) = (Vec::new(), memory::filled(1, 0, VIEW)?);
        for (values, row_validity, value_validity) in blocks {
            let rows = values.len() / d;
            if rows * d != values.len() {
                return Err(KMeansError::LengthMismatch {
                    what: format!("row-major block of {d} features"),
                    expected: (rows + 1) * d,
                    got: values.len(),
                });
            }
            check_validity(row_validity, rows)?;
            check_validity(value_validity, values.len())?;
            if rows > 0 {
                memory::push(&mut list, RowMajorBlock { values, rows, row_validity, value_validity }, VIEW)?;
                let end = starts[starts.len() - 1] + rows;
                memory::push(&mut starts, end, VIEW)?;
            }
        }
        let n = starts[starts.len() - 1];
        let half = list.first().and_then(|block| block.values.half()).filter(|_| T::IS_F32);
        Self::of(Layout::Blocks(list, starts), n, d, half)
    }

    /// Values at regular distances in a slice: value `f` of row `r` is `values[first + r * row_step + f * column_step]`. Steps
    /// may be negative.
    ///
    /// # Errors
    /// [`KMeansError::NoFeatures`] if `d` is 0, [`KMeansError::LengthMismatch`] if a value lies outside of the slice.
    pub fn from_strided(
        values: &'a [T],
        first: usize,
        [n, d]: [usize; 2],
        [row_step, column_step]: [isize; 2],
    ) -> Result<Self> {
        if d == 0 {
            return Err(KMeansError::NoFeatures);
        }
        let strided = Strided::new(values, first, [n, d], [row_step, column_step])?;
        if n == 0 || ((column_step == 1 || d == 1) && row_step == d as isize) {
            return Self::from_rows(&values[first.min(values.len())..][..n * d], d);
        }
        if row_step == 1 || n == 1 {
            return Self::of_slices((0..d).map(|f| Values::Same(strided.column(f, n))));
        }
        Self::of(Layout::Strided(strided), n, d, None)
    }

    /// Rows in the memory of a GPU. Fits and predictions of these features run on that GPU.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`] if there is not enough memory for the names.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(table: &'a GpuTable<T>) -> Result<Self> {
        Self::of(Layout::Gpu(table.all()), table.n_rows(), table.n_features(), table.half())
    }

    /// Where the values are, if they are on a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn gpu_rows(&self) -> Option<GpuRows<'a, T>> {
        match &*self.layout {
            Layout::Gpu(rows) => Some(rows.clone()),
            _ => None,
        }
    }

    /// The number of the GPU that the values are on. `None`: they are on the host.
    pub fn gpu(&self) -> Option<u32> {
        #[cfg(feature = "cuda")]
        return self.gpu_rows().map(|rows| rows.table.ordinal());
        #[cfg(not(feature = "cuda"))]
        return None;
    }

    /// Whether the values are on a GPU, and passes there read them where they are.
    pub(crate) fn is_read_in_place(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.gpu_rows().is_some_and(|GpuRows { table, rows }| {
            rows.len() == table.n_rows() && table.half() == self.half && table.is_read_in_place()
        });
        #[cfg(not(feature = "cuda"))]
        return false;
    }

    /// The same view of values on the host. If they are on a GPU, they are copied.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`], [`KMeansError::Device`].
    pub(crate) fn on_host(&self) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(GpuRows { table, rows }) = self.gpu_rows() {
            let copy = table.host()?;
            let column = |f| {
                let (values, validity) = copy.column(f);
                Column::of([Chunk::new(values, validity).map(|chunk| chunk.slice(rows.clone()))])
            };
            let columns = memory::try_collected((0..self.d).map(column), VIEW)?;
            return Ok(Self { layout: Arc::new(Layout::Columns(columns)), half: None, ..self.clone() });
        }
        Ok(self.clone())
    }

    /// The same view with names for errors to use.
    ///
    /// # Errors
    /// [`KMeansError::LengthMismatch`] unless there is one name per feature.
    pub fn with_names(mut self, names: impl Into<Names>) -> Result<Self> {
        let names = names.into();
        if names.len() != self.d {
            return Err(KMeansError::LengthMismatch { what: "feature names".into(), expected: self.d, got: names.len() });
        }
        self.names = names;
        Ok(self)
    }

    /// The same view with another transformation of its rows. Rows that are scaled or normalised have more than 16 bits.
    pub(crate) fn transformed_by(&self, row_transform: Option<Arc<RowTransform>>) -> Self {
        let half = if row_transform.is_none() { self.half } else { None };
        Self { row_transform, half, ..self.clone() }
    }

    /// The same view, whose rows a GPU keeps in the feature type.
    pub(crate) fn widened(&self) -> Self {
        Self { half: None, ..self.clone() }
    }

    /// The type in which a GPU keeps the rows, if it is one of 16 bits.
    pub(crate) fn half(&self) -> Option<Half> {
        self.half
    }

    /// The same view, whose rows are transformed as those of another one.
    pub(crate) fn transformed_as(&self, other: &Features<'_, T>) -> Self {
        self.transformed_by(other.row_transform.clone())
    }

    /// What happens to rows as they are read. `None`: nothing.
    pub(crate) fn row_transform(&self) -> Option<&RowTransform> {
        self.row_transform.as_deref()
    }

    /// The number of rows, nulls included.
    pub fn n_rows(&self) -> usize {
        self.n
    }

    /// The number of features.
    pub fn n_features(&self) -> usize {
        self.d
    }

    /// Whether the rows lie in row-major blocks.
    pub(crate) fn is_row_by_row(&self) -> bool {
        matches!(*self.layout, Layout::Blocks(..))
    }

    /// Whether every feature lies in an array of its own, or in several.
    pub(crate) fn is_by_columns(&self) -> bool {
        matches!(*self.layout, Layout::Columns(..))
    }

    /// One name per feature. The default is `column_0`, `column_1`, ...
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The rows of `range`, as a view.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`] if there is not enough memory for the lists of the new columns.
    ///
    /// # Panics
    /// If the range is not within the rows.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        assert!(range.start <= range.end && range.end <= self.n, "rows {range:?} of {}", self.n);
        let n = range.len();
        let layout = match &*self.layout {
            Layout::Columns(columns) => {
                Layout::Columns(memory::try_collected(columns.iter().map(|column| column.slice(range.clone())), VIEW)?)
            }
            Layout::Blocks(blocks, starts) => {
                let pieces = block_pieces(blocks, starts, self.d, range).map(|(_, piece)| piece);
                let pieces = memory::collected(pieces, VIEW)?;
                let mut ends = memory::with_room(pieces.len() + 1, VIEW)?;
                let mut end = 0;
                ends.push(end);
                for piece in &pieces {
                    end += piece.rows;
                    ends.push(end);
                }
                Layout::Blocks(pieces, ends)
            }
            Layout::Strided(strided) => Layout::Strided(strided.starting_at(range.start)),
            #[cfg(feature = "cuda")]
            Layout::Gpu(rows) => Layout::Gpu(rows.slice(range)),
        };
        Ok(Self { layout: Arc::new(layout), n, ..self.clone() })
    }
}

#[cfg(all(feature = "tests", feature = "cuda"))]
mod tests {
    use super::*;

    unit_test!(nulls_are_found_by_words);
    fn nulls_are_found_by_words() {
        let mut bits = vec![u8::MAX; 40];
        for (offset, len) in [(0, 320), (3, 1), (3, 4), (3, 5), (3, 6), (7, 200), (64, 128), (5, 315), (1, 0), (8, 8)] {
            for null in 0..320 {
                bits[null / 8] ^= 1 << (null % 8);
                let validity = Validity::new(&bits, offset);
                assert_eq!(validity.has_nulls(len), (offset..offset + len).contains(&null), "{null} in {offset} + {len}");
                bits[null / 8] ^= 1 << (null % 8);
            }
        }
        let values = [0.0f32; 6];
        let (all, some) = (Some(Validity::new(&bits, 1)), Some(Validity::new(&[0b1011_1111], 1)));
        for (rows, each, nulls) in [(None, None, false), (all, all, false), (None, some, true), (some, all, false)] {
            let view = Features::from_blocks([(&values[..], rows, each)], 3).unwrap();
            assert_eq!(view.has_nulls(), nulls);
        }
        let column = Column::new([Chunk::new(&values, all).unwrap(), Chunk::new(&values, some).unwrap()]);
        assert!(column.has_nulls() && !column.slice(0..11).unwrap().has_nulls());
    }
}
