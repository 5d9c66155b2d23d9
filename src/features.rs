//! A zero-copy view of the features. The view holds either `d` columns, each with its own chunks, or row-major blocks.
//!
//! The view owns no values. They may also lie at regular distances ([`Features::from_strided`]), or on a GPU
//! ([`Features::on_gpu`]), where only passes on that GPU read them. Engines read it one tile at a time ([`Features::copy_tile`]). A tile holds a few dozen rows of every
//! feature, feature-major. Vector units need this layout, and a tile fits in a cache. Where rows are scaled or normalised, they
//! are so as they are read ([`crate::arrival`]).

mod strided;
mod transpose;
mod values;

use std::ops::Range;
use std::sync::Arc;

use self::strided::Strided;
use crate::arrival::Arrival;
use crate::error::{KMeansError, Result};
use crate::float::Float;
#[cfg(feature = "cuda")]
use crate::gpu_table::{GpuRows, GpuTable};
use crate::half::{FromBFloat16, FromFloat16, Half, Same};
use crate::memory;
use crate::names::Names;

pub(crate) use self::values::Values;

/// An Arrow validity bitmap. Bit `offset + i` (least significant bit first) says whether slot `i` holds a value.
#[derive(Debug, Clone, Copy)]
pub struct Validity<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Validity<'a> {
    /// A bitmap that starts at bit `offset` of `bytes`.
    pub fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    /// Whether slot `i` holds a value.
    ///
    /// # Panics
    /// If the bitmap has no bit for slot `i`.
    #[inline]
    pub fn get(&self, i: usize) -> bool {
        let bit = self.offset + i;
        self.bytes[bit / 8] >> (bit % 8) & 1 == 1
    }

    fn skip(&self, n: usize) -> Self {
        Self { bytes: self.bytes, offset: self.offset + n }
    }

    /// Whether any of the first `len` slots holds no value. Checks eight bytes at a time.
    #[cfg(feature = "cuda")]
    fn has_nulls(&self, len: usize) -> bool {
        let (first, end) = (self.offset, self.offset + len);
        let (whole, last) = (first.div_ceil(8), end / 8);
        if whole >= last {
            return (0..len).any(|i| !self.get(i));
        }
        let (words, rest) = self.bytes[whole..last].as_chunks::<8>();
        (0..whole * 8 - first).any(|i| !self.get(i))
            || words.iter().any(|word| u64::from_ne_bytes(*word) != u64::MAX)
            || rest.iter().any(|byte| *byte != u8::MAX)
            || (last * 8 - first..len).any(|i| !self.get(i))
    }

    fn holds(&self, len: usize) -> bool {
        self.offset.checked_add(len).is_some_and(|bits| bits.div_ceil(8) <= self.bytes.len())
    }
}

/// One contiguous piece of a column.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a, T> {
    values: Values<'a, T>,
    validity: Option<Validity<'a>>,
}

impl<'a, T> Chunk<'a, T> {
    /// `validity` is given where there are nulls. It must have at least as many bits as there are values.
    ///
    /// # Errors
    /// [`KMeansError::LengthMismatch`] if it has fewer.
    pub fn new(values: &'a [T], validity: Option<Validity<'a>>) -> Result<Self> {
        Self::of(Values::Same(values), validity)
    }

    /// As [`Chunk::new`], with the bits of values of 16 bits.
    ///
    /// # Errors
    /// As [`Chunk::new`].
    pub fn from_half(half: Half, bits: &'a [u16], validity: Option<Validity<'a>>) -> Result<Self> {
        Self::of(Values::Half(bits, half), validity)
    }

    fn of(values: Values<'a, T>, validity: Option<Validity<'a>>) -> Result<Self> {
        check_validity(validity, values.len())?;
        Ok(Self { values, validity })
    }

    fn slice(&self, range: Range<usize>) -> Self {
        Self { values: self.values.slice(range.clone()), validity: self.validity.map(|v| v.skip(range.start)) }
    }
}

/// The name for the lists of chunks, blocks and columns in errors.
const VIEW: &str = "a view of the columns";

/// A column of `len` values in chunks. A clone shares the list of chunks.
#[derive(Debug, Clone)]
pub struct Column<'a, T>(Arc<Chunks<'a, T>>);

#[derive(Debug)]
struct Chunks<'a, T> {
    chunks: Vec<Chunk<'a, T>>,
    /// `starts[i]` is the first row of chunk `i`; the last entry is the length.
    starts: Vec<usize>,
    /// Where the values are, if they are on a GPU. Then there are no chunks.
    #[cfg(feature = "cuda")]
    gpu: Option<GpuRows<'a, T>>,
}

impl<'a, T: Copy> Column<'a, T> {
    /// A column of these chunks, in this order.
    ///
    /// # Panics
    /// If there is not enough memory for a list of the chunks.
    pub fn new(chunks: impl IntoIterator<Item = Chunk<'a, T>>) -> Self {
        Self::of(chunks.into_iter().map(Ok)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Column::new`]. Returns the first error of a chunk, or an error if there is not enough memory for the list.
    pub(crate) fn of(chunks: impl IntoIterator<Item = Result<Chunk<'a, T>>>) -> Result<Self> {
        let there = chunks.into_iter().filter(|chunk| chunk.as_ref().map_or(true, |chunk| !chunk.values.is_empty()));
        let chunks = memory::try_collected(there, VIEW)?;
        let mut starts = memory::with_room(chunks.len() + 1, VIEW)?;
        let mut end = 0;
        starts.push(end);
        for chunk in &chunks {
            end += chunk.values.len();
            starts.push(end);
        }
        Ok(Self(Arc::new(Chunks {
            chunks,
            starts,
            #[cfg(feature = "cuda")]
            gpu: None,
        })))
    }

    /// A column whose values are on a GPU: a table of one feature.
    ///
    /// # Errors
    /// [`KMeansError::WidthMismatch`] if the table has several features.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(table: &'a GpuTable<T>) -> Result<Self> {
        if table.n_features() != 1 {
            return Err(KMeansError::WidthMismatch { what: "a column", expected: 1, got: table.n_features() });
        }
        let mut starts = memory::with_room(2, VIEW)?;
        starts.extend([0, table.n_rows()]);
        Ok(Self(Arc::new(Chunks { chunks: Vec::new(), starts, gpu: Some(table.all()) })))
    }

    /// Where the values are, if they are on a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn gpu_rows(&self) -> Option<GpuRows<'a, T>> {
        self.0.gpu.clone()
    }

    /// The number of the GPU that the values are on. `None`: they are on the host.
    pub(crate) fn gpu(&self) -> Option<u32> {
        #[cfg(feature = "cuda")]
        return self.0.gpu.as_ref().map(|rows| rows.table.ordinal());
        #[cfg(not(feature = "cuda"))]
        return None;
    }

    /// A column of one chunk without nulls.
    pub fn from_slice(values: &'a [T]) -> Self {
        Self::new([Chunk { values: Values::Same(values), validity: None }])
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.0.starts[self.0.starts.len() - 1]
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces of chunks that make up the rows of `range`, each with its position in the range.
    fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Chunk<'a, T>)> + '_ {
        let mut at = range.start;
        let Chunks { chunks, starts, .. } = &*self.0;
        let mut index = starts.partition_point(|&start| start <= at) - 1;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (first, end) = (starts[index], starts[index + 1].min(range.end));
            let piece = (at - range.start, chunks[index].slice(at - first..end - first));
            (at, index) = (end, index + 1);
            Some(piece)
        })
    }

    /// Calls `null(i)` for each null in the rows of `range`. `i` counts from the start of the range.
    pub fn for_each_null(&self, range: Range<usize>, mut null: impl FnMut(usize)) {
        for (at, piece) in self.pieces(range) {
            if let Some(validity) = piece.validity {
                (0..piece.values.len()).filter(|&i| !validity.get(i)).for_each(|i| null(at + i));
            }
        }
    }

    /// Whether there are nulls. Does not read the values.
    #[cfg(feature = "cuda")]
    pub(crate) fn has_nulls(&self) -> bool {
        self.0.chunks.iter().any(|chunk| chunk.validity.is_some_and(|v| v.has_nulls(chunk.values.len())))
    }

    /// The values of the rows of `range`: one slice per chunk, each with its position in the range.
    #[cfg(feature = "cuda")]
    pub(crate) fn slices(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Values<'a, T>)> + '_ {
        self.pieces(range).map(|(at, piece)| (at, piece.values))
    }

    /// The type of all values, if it is one of 16 bits.
    fn half(&self) -> Option<Half> {
        let half = self.0.chunks.first()?.values.half()?;
        self.0.chunks.iter().all(|chunk| chunk.values.half() == Some(half)).then_some(half)
    }

    fn slice(&self, range: Range<usize>) -> Result<Self> {
        Self::of(self.pieces(range).map(|(_, piece)| Ok(piece)))
    }
}

impl<T: Float> Column<'_, T> {
    /// The same column with values on the host. If they are on a GPU, they are copied.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`], [`KMeansError::Device`].
    pub(crate) fn on_host(&self) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(GpuRows { table, rows }) = self.gpu_rows() {
            let (values, validity) = table.host()?.column(0);
            return Self::of([Chunk::new(values, validity).map(|chunk| chunk.slice(rows))]);
        }
        Ok(self.clone())
    }

    /// Copies the rows of `range` to `out`.
    #[inline]
    pub fn copy(&self, range: Range<usize>, out: &mut [T]) {
        for (at, piece) in self.pieces(range) {
            piece.values.copy(&mut out[at..at + piece.values.len()]);
        }
    }

    /// Copies these rows to `out`, in this order.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn gather(&self, rows: &[usize], out: &mut [T]) {
        let Chunks { chunks, starts, .. } = &*self.0;
        let (mut here, mut first): (Values<'_, T>, usize) = (Values::Same(&[]), 0);
        for (out, &row) in out.iter_mut().zip(rows) {
            // Most rows are in the same chunk as the row before.
            if row.wrapping_sub(first) >= here.len() {
                let index = starts.partition_point(|&start| start <= row) - 1;
                (here, first) = (chunks[index].values, starts[index]);
            }
            *out = here.get(row - first);
        }
    }
}

/// Consecutive rows, each of `d` consecutive values.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a, T> {
    values: Values<'a, T>,
    rows: usize,
    row_validity: Option<Validity<'a>>,
    value_validity: Option<Validity<'a>>,
}

#[derive(Debug)]
enum Layout<'a, T> {
    Columns(Vec<Column<'a, T>>),
    /// Blocks, and the first row of each block. The last entry is the number of rows. The values of all blocks have one type.
    Blocks(Vec<Block<'a, T>>, Vec<usize>),
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
    arrival: Option<Arc<Arrival>>,
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
        Ok(Self { layout: Arc::new(Layout::Columns(columns)), n, d, names: default_names(d)?, arrival: None, half })
    }

    /// One slice per column.
    ///
    /// # Errors
    /// As [`Features::new`].
    pub fn from_columns(columns: impl IntoIterator<Item = &'a [T]>) -> Result<Self> {
        let column = |values| Column::of([Chunk::new(values, None)]);
        Self::new(memory::try_collected(columns.into_iter().map(column), VIEW)?)
    }

    /// One slice per column: the bits of its values of 16 bits.
    ///
    /// # Errors
    /// As [`Features::new`].
    pub fn from_half_columns(half: Half, columns: impl IntoIterator<Item = &'a [u16]>) -> Result<Self> {
        let column = |bits| Column::of([Chunk::from_half(half, bits, None)]);
        Self::new(memory::try_collected(columns.into_iter().map(column), VIEW)?)
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
        Self::from_half_blocks(half, [(bits, None, None)], d)
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
        let blocks = blocks.into_iter().map(|(values, rows, each)| (Values::Same(values), rows, each));
        Self::of_blocks(blocks, None, d)
    }

    /// As [`Features::from_blocks`], with the bits of values of 16 bits.
    ///
    /// # Errors
    /// As [`Features::from_rows`].
    pub fn from_half_blocks(
        half: Half,
        blocks: impl IntoIterator<Item = (&'a [u16], Option<Validity<'a>>, Option<Validity<'a>>)>,
        d: usize,
    ) -> Result<Self> {
        let blocks = blocks.into_iter().map(|(bits, rows, each)| (Values::Half(bits, half), rows, each));
        Self::of_blocks(blocks, Some(half), d)
    }

    /// Blocks of values of one type.
    fn of_blocks(
        blocks: impl Iterator<Item = (Values<'a, T>, Option<Validity<'a>>, Option<Validity<'a>>)>,
        half: Option<Half>,
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
                memory::push(&mut list, Block { values, rows, row_validity, value_validity }, VIEW)?;
                let end = starts[starts.len() - 1] + rows;
                memory::push(&mut starts, end, VIEW)?;
            }
        }
        let n = starts[starts.len() - 1];
        let half = half.filter(|_| T::IS_F32);
        Ok(Self { layout: Arc::new(Layout::Blocks(list, starts)), n, d, names: default_names(d)?, arrival: None, half })
    }

    /// Values at regular distances in a slice: value `f` of row `r` is `values[first + r * row_step + f * column_step]`. Steps may
    /// be negative.
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
            let column = |f| Column::of([Ok(Chunk { values: Values::Same(strided.column(f, n)), validity: None })]);
            return Self::new(memory::try_collected((0..d).map(column), VIEW)?);
        }
        let layout = Arc::new(Layout::Strided(strided));
        Ok(Self { layout, n, d, names: default_names(d)?, arrival: None, half: None })
    }

    /// Rows in the memory of a GPU. Fits and predictions of these features run on that GPU.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`] if there is not enough memory for the names.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(table: &'a GpuTable<T>) -> Result<Self> {
        let (n, d) = (table.n_rows(), table.n_features());
        Ok(Self {
            layout: Arc::new(Layout::Gpu(table.all())),
            n,
            d,
            names: default_names(d)?,
            arrival: None,
            half: table.half(),
        })
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

    /// The same view with another arrival of its rows. Rows that are scaled or normalised have more than 16 bits.
    pub(crate) fn arriving(&self, arrival: Option<Arc<Arrival>>) -> Self {
        let half = if arrival.is_none() { self.half } else { None };
        Self { arrival, half, ..self.clone() }
    }

    /// The same view, whose rows a GPU keeps in the feature type.
    pub(crate) fn widened(&self) -> Self {
        Self { half: None, ..self.clone() }
    }

    /// The type in which a GPU keeps the rows, if it is one of 16 bits.
    pub(crate) fn half(&self) -> Option<Half> {
        self.half
    }

    /// What happens to rows as they are read. `None`: nothing.
    pub(crate) fn arrival(&self) -> Option<&Arrival> {
        self.arrival.as_deref()
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
        Ok(Self {
            layout: Arc::new(layout),
            n,
            d: self.d,
            names: self.names.clone(),
            arrival: self.arrival.clone(),
            half: self.half,
        })
    }

    /// The columns. `None` if the rows lie in row-major blocks.
    #[cfg(feature = "cuda")]
    pub(crate) fn columns(&self) -> Option<&[Column<'a, T>]> {
        match &*self.layout {
            Layout::Columns(columns) => Some(columns),
            _ => None,
        }
    }

    /// Where the values are, if they lie at regular distances.
    #[cfg(feature = "cuda")]
    pub(crate) fn strided(&self) -> Option<&Strided<'a, T>> {
        if let Layout::Strided(strided) = &*self.layout { Some(strided) } else { None }
    }

    /// The rows of `range` as they lie in row-major blocks. Each slice holds whole rows and comes with the position of its first
    /// row in the range. Yields nothing for other layouts.
    #[cfg(feature = "cuda")]
    pub(crate) fn row_slices(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Values<'a, T>)> + '_ {
        let (blocks, starts): (&[_], &[_]) = match &*self.layout {
            Layout::Blocks(blocks, starts) => (blocks, starts),
            _ => (&[], &[0]),
        };
        block_pieces(blocks, starts, self.d, range).map(|(at, block)| (at, block.values))
    }

    /// Copies the rows of `range` to `out[f * stride + i]`. `i` counts from the start of the range.
    #[inline]
    pub fn copy_tile(&self, range: Range<usize>, stride: usize, out: &mut [T]) {
        let rows = range.len();
        match &*self.layout {
            Layout::Columns(columns) => {
                for (column, out) in columns.iter().zip(out.chunks_exact_mut(stride)) {
                    column.copy(range.clone(), out);
                }
            }
            Layout::Blocks(blocks, starts) => {
                for (at, block) in block_pieces(blocks, starts, self.d, range) {
                    match block.values {
                        Values::Same(values) => {
                            transpose::rows_to_columns::<_, _, Same>(values.chunks_exact(self.d), at, stride, out)
                        }
                        Values::Half(bits, Half::Float16) => {
                            transpose::rows_to_columns::<_, _, FromFloat16>(bits.chunks_exact(self.d), at, stride, out);
                        }
                        Values::Half(bits, Half::BFloat16) => {
                            transpose::rows_to_columns::<_, _, FromBFloat16>(bits.chunks_exact(self.d), at, stride, out);
                        }
                    }
                }
            }
            Layout::Strided(strided) => strided.copy_rows(range, self.d, stride, out),
            #[cfg(feature = "cuda")]
            Layout::Gpu(_) => unreachable!("{NOT_HERE}"),
        }
        self.arrive(rows, stride, out);
    }

    /// Copies these rows, in this order, to `out[f * stride + i]`. `i` is the position in the list.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn gather_tile(&self, rows: &[usize], stride: usize, out: &mut [T]) {
        match &*self.layout {
            Layout::Columns(columns) => {
                for (column, out) in columns.iter().zip(out.chunks_exact_mut(stride)) {
                    column.gather(rows, out);
                }
            }
            Layout::Blocks(blocks, starts) => {
                let place = |&row: &usize| {
                    let index = starts.partition_point(|&start| start <= row) - 1;
                    let first = (row - starts[index]) * self.d;
                    (blocks[index].values, first..first + self.d)
                };
                let bits = |row: &usize| match place(row) {
                    (Values::Half(bits, _), range) => &bits[range],
                    _ => unreachable!("all blocks have one type"),
                };
                match blocks.first().and_then(|block| block.values.half()) {
                    None => {
                        let values = |row: &usize| match place(row) {
                            (Values::Same(values), range) => &values[range],
                            _ => unreachable!("all blocks have one type"),
                        };
                        transpose::rows_to_columns::<_, _, Same>(rows.iter().map(values), 0, stride, out);
                    }
                    Some(Half::Float16) => {
                        transpose::rows_to_columns::<_, _, FromFloat16>(rows.iter().map(bits), 0, stride, out);
                    }
                    Some(Half::BFloat16) => {
                        transpose::rows_to_columns::<_, _, FromBFloat16>(rows.iter().map(bits), 0, stride, out);
                    }
                }
            }
            Layout::Strided(strided) => strided.copy_rows(rows.iter().copied(), self.d, stride, out),
            #[cfg(feature = "cuda")]
            Layout::Gpu(_) => unreachable!("{NOT_HERE}"),
        }
        self.arrive(rows.len(), stride, out);
    }

    #[inline]
    fn arrive(&self, rows: usize, stride: usize, tile: &mut [T]) {
        if let Some(arrival) = &self.arrival {
            arrival.tile(rows, stride, &mut tile[..self.d * stride]);
        }
    }

    /// Calls `null(f, i)` for each null in the rows of `range`. In a null row every feature is null.
    pub fn for_each_null(&self, range: Range<usize>, mut null: impl FnMut(usize, usize)) {
        match &*self.layout {
            Layout::Columns(columns) => {
                for (f, column) in columns.iter().enumerate() {
                    column.for_each_null(range.clone(), |i| null(f, i));
                }
            }
            Layout::Blocks(blocks, starts) => {
                for (at, block) in block_pieces(blocks, starts, self.d, range) {
                    if block.row_validity.is_none() && block.value_validity.is_none() {
                        continue;
                    }
                    for i in 0..block.rows {
                        let row_is_null = block.row_validity.is_some_and(|v| !v.get(i));
                        for f in 0..self.d {
                            if row_is_null || block.value_validity.is_some_and(|v| !v.get(i * self.d + f)) {
                                null(f, at + i);
                            }
                        }
                    }
                }
            }
            // On a GPU, a null has become NaN.
            _ => {}
        }
    }

    /// Whether there are nulls. Does not read the values.
    #[cfg(feature = "cuda")]
    pub(crate) fn has_nulls(&self) -> bool {
        match &*self.layout {
            Layout::Columns(columns) => columns.iter().any(Column::has_nulls),
            Layout::Blocks(blocks, _) => blocks.iter().any(|block| {
                block.row_validity.is_some_and(|v| v.has_nulls(block.rows))
                    || block.value_validity.is_some_and(|v| v.has_nulls(block.values.len()))
            }),
            _ => false,
        }
    }

    /// Whether any piece has a validity bitmap.
    pub fn may_have_nulls(&self) -> bool {
        match &*self.layout {
            Layout::Columns(columns) => {
                columns.iter().any(|column| column.0.chunks.iter().any(|chunk| chunk.validity.is_some()))
            }
            Layout::Blocks(blocks, _) => {
                blocks.iter().any(|block| block.row_validity.is_some() || block.value_validity.is_some())
            }
            _ => false,
        }
    }
}

fn block_pieces<'s, 'a, T>(
    blocks: &'s [Block<'a, T>],
    starts: &'s [usize],
    d: usize,
    range: Range<usize>,
) -> impl Iterator<Item = (usize, Block<'a, T>)> + 's {
    let first = starts.partition_point(|&start| start <= range.start).saturating_sub(1);
    blocks[first.min(blocks.len())..]
        .iter()
        .zip(&starts[first..])
        .take_while({
            let end = range.end;
            move |(_, start)| **start < end
        })
        .filter_map(move |(block, &start)| {
            let rows = range.start.max(start) - start..range.end.min(start + block.rows) - start;
            let piece = Block {
                values: block.values.slice(rows.start * d..rows.end * d),
                rows: rows.len(),
                row_validity: block.row_validity.map(|v| v.skip(rows.start)),
                value_validity: block.value_validity.map(|v| v.skip(rows.start * d)),
            };
            (!rows.is_empty()).then(|| (start + rows.start - range.start, piece))
        })
}

fn default_names(d: usize) -> Result<Names> {
    const WHAT: &str = "the names of the columns";
    Ok(memory::try_collected((0..d).map(|f| memory::text(format_args!("column_{f}"), WHAT)), WHAT)?.into())
}

fn check_validity(validity: Option<Validity<'_>>, len: usize) -> Result<()> {
    match validity {
        Some(v) if !v.holds(len) => Err(KMeansError::LengthMismatch {
            what: "validity bits".into(),
            expected: len,
            got: (v.bytes.len() * 8).saturating_sub(v.offset),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cross_chunks_and_blocks() {
        let x: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let y: Vec<f32> = (0..10).map(|i| 100.0 + i as f32).collect();
        let chunked = |v: &'static [usize], s: &'static [f32]| {
            Column::new(v.windows(2).map(|w| Chunk::new(&s[w[0]..w[1]], None).unwrap()).collect::<Vec<_>>())
        };
        let (x, y): (&'static [f32], &'static [f32]) = (x.leak(), y.leak());
        let columns = Features::new(vec![chunked(&[0, 3, 3, 7, 10], x), chunked(&[0, 1, 10], y)]).unwrap();
        let rows: Vec<f32> = (0..10).flat_map(|i| [i as f32, 100.0 + i as f32]).collect();
        let blocks =
            Features::from_blocks([(&rows[..6], None, None), (&rows[6..6], None, None), (&rows[6..], None, None)], 2).unwrap();
        for view in [columns.clone(), blocks.clone(), columns.slice(0..10).unwrap().slice(0..10).unwrap()] {
            let mut tile = [-1.0; 10];
            view.copy_tile(2..7, 5, &mut tile);
            assert_eq!(tile, [2.0, 3.0, 4.0, 5.0, 6.0, 102.0, 103.0, 104.0, 105.0, 106.0]);
            view.gather_tile(&[0, 2, 3, 9], 5, &mut tile);
            assert_eq!(tile, [0.0, 2.0, 3.0, 9.0, 6.0, 100.0, 102.0, 103.0, 109.0, 106.0]);
            view.gather_tile(&[7, 6, 0], 5, &mut tile);
            assert_eq!(tile, [7.0, 6.0, 0.0, 9.0, 6.0, 107.0, 106.0, 100.0, 109.0, 106.0]);
        }
        for view in [columns, blocks].map(|view| view.slice(1..9).unwrap().slice(1..6).unwrap()) {
            let mut tile = [-1.0; 10];
            view.copy_tile(0..5, 5, &mut tile);
            assert_eq!(tile, [2.0, 3.0, 4.0, 5.0, 6.0, 102.0, 103.0, 104.0, 105.0, 106.0]);
        }
    }

    #[test]
    fn nulls_are_found_through_slices() {
        let values = [0.0f64; 8];
        let bits = [0b1101_1011u8, 0b1];
        let column = Column::new([Chunk::new(&values, Some(Validity::new(&bits, 1))).unwrap()]);
        let view = Features::new(vec![column.clone(), column]).unwrap();
        let mut nulls = Vec::new();
        view.slice(1..8).unwrap().for_each_null(0..7, |f, i| nulls.push((f, i)));
        assert_eq!(nulls, [(0, 0), (0, 3), (1, 0), (1, 3)]);
        assert!(Chunk::new(&values, Some(Validity::new(&bits, 9))).is_err());
    }

    #[cfg(feature = "cuda")]
    #[test]
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
