//! A column in chunks: values as they lie in memory, of the feature type or of 16 bits, and which of them are nulls.

use std::ops::Range;
use std::sync::Arc;

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::input::fp16::Half;
#[cfg(feature = "cuda")]
use crate::input::gpu_table::{GpuRows, GpuTable};

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

    pub(super) fn skip(&self, n: usize) -> Self {
        Self { bytes: self.bytes, offset: self.offset + n }
    }

    /// Whether any of the first `len` slots holds no value. Checks eight bytes at a time.
    #[cfg(feature = "cuda")]
    pub(super) fn has_nulls(&self, len: usize) -> bool {
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

    pub(super) fn holds(&self, len: usize) -> bool {
        self.offset.checked_add(len).is_some_and(|bits| bits.div_ceil(8) <= self.bytes.len())
    }
}

/// Consecutive values.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a, T> {
    /// Values of the feature type.
    Same(&'a [T]),
    /// The bits of values of 16 bits.
    Half(&'a [u16], Half),
}

impl<T> Values<'_, T> {
    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Same(values) => values.len(),
            Self::Half(bits, _) => bits.len(),
        }
    }

    /// The type of the values, if they have 16 bits.
    pub fn half(&self) -> Option<Half> {
        match self {
            Self::Same(_) => None,
            Self::Half(_, half) => Some(*half),
        }
    }

    /// Some of the values.
    pub fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Same(values) => Self::Same(&values[range]),
            Self::Half(bits, half) => Self::Half(&bits[range], *half),
        }
    }
}

impl<T: Float> Values<'_, T> {
    /// Copies all values to `out`, which has as many.
    #[inline]
    pub fn copy(&self, out: &mut [T]) {
        match self {
            Self::Same(values) => out.copy_from_slice(values),
            Self::Half(bits, half) => half.widen(bits, out),
        }
    }

    /// Value `i`.
    #[inline]
    pub fn get(&self, i: usize) -> T {
        match self {
            Self::Same(values) => values[i],
            Self::Half(bits, half) => T::from_f32(half.to_f32(bits[i])),
        }
    }

    /// Copies the bits of values of 16 bits.
    ///
    /// # Panics
    /// If the values have more bits.
    #[cfg(feature = "cuda")]
    pub fn copy_bits(&self, out: &mut [u16]) {
        let Self::Half(bits, _) = self else { unreachable!("all values have 16 bits") };
        out.copy_from_slice(bits);
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

    pub(crate) fn of(values: Values<'a, T>, validity: Option<Validity<'a>>) -> Result<Self> {
        check_validity(validity, values.len())?;
        Ok(Self { values, validity })
    }

    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        Self { values: self.values.slice(range.clone()), validity: self.validity.map(|v| v.skip(range.start)) }
    }
}

/// The name for the lists of chunks, blocks and columns in errors.
pub(super) const VIEW: &str = "a view of the columns";

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
        let there = chunks.into_iter().filter(|chunk| chunk.as_ref().map_or(true, |chunk| chunk.values.len() > 0));
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
    pub(super) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Chunk<'a, T>)> + '_ {
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

    /// The values of these rows, if they lie side by side and have the column's type.
    pub(super) fn in_one_piece(&self, range: Range<usize>) -> Option<&'a [T]> {
        match self.pieces(range.clone()).next()?.1.values {
            Values::Same(values) if values.len() == range.len() => Some(values),
            _ => None,
        }
    }

    /// Calls `null(i)` for each null in the rows of `range`. `i` counts from the start of the range.
    pub fn for_each_null(&self, range: Range<usize>, mut null: impl FnMut(usize)) {
        for (at, piece) in self.pieces(range) {
            if let Some(validity) = piece.validity {
                (0..piece.values.len()).filter(|&i| !validity.get(i)).for_each(|i| null(at + i));
            }
        }
    }

    /// Whether a chunk has a bitmap.
    pub(super) fn may_have_nulls(&self) -> bool {
        self.0.chunks.iter().any(|chunk| chunk.validity.is_some())
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
    pub(super) fn half(&self) -> Option<Half> {
        let half = self.0.chunks.first()?.values.half()?;
        self.0.chunks.iter().all(|chunk| chunk.values.half() == Some(half)).then_some(half)
    }

    pub(crate) fn slice(&self, range: Range<usize>) -> Result<Self> {
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
        let (mut rest, mut out) = (rows, out);
        while let Some(&row) = rest.first() {
            // Most rows are in the same chunk as the row before.
            let index = starts.partition_point(|&start| start <= row) - 1;
            let (values, first) = (chunks[index].values, starts[index]);
            let outside = |row: &usize| row.wrapping_sub(first) >= values.len();
            let (here, later) = rest.split_at(rest[1..].iter().position(outside).map_or(rest.len(), |at| at + 1));
            let (to, left) = std::mem::take(&mut out).split_at_mut(here.len());
            match values {
                Values::Same(values) => here.iter().zip(to).for_each(|(row, to)| *to = values[row - first]),
                Values::Half(..) => here.iter().zip(to).for_each(|(row, to)| *to = values.get(row - first)),
            }
            (rest, out) = (later, left);
        }
    }

    /// Copies the rows of `range`, each to its own place: row i of the range to `out[to[i]]`.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub fn scatter(&self, range: Range<usize>, to: &[u32], out: &mut [T]) {
        for (at, piece) in self.pieces(range) {
            let to = &to[at..at + piece.values.len()];
            match piece.values {
                Values::Same(values) => to.iter().zip(values).for_each(|(to, value)| out[*to as usize] = *value),
                Values::Half(..) => (0..).zip(to).for_each(|(i, to)| out[*to as usize] = piece.values.get(i)),
            }
        }
    }
}

pub(super) fn check_validity(validity: Option<Validity<'_>>, len: usize) -> Result<()> {
    match validity {
        Some(v) if !v.holds(len) => Err(KMeansError::LengthMismatch {
            what: "validity bits".into(),
            expected: len,
            got: (v.bytes.len() * 8).saturating_sub(v.offset),
        }),
        _ => Ok(()),
    }
}
