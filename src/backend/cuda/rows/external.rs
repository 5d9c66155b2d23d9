//! Rows that another program has put on the device (`gpu_table.rs`). Where kernels can, they read them where they are. Otherwise
//! the device makes columns of them, once.

use super::DeviceRows;
use crate::backend::cuda::arguments::{self, ExternalArrayArgument, FiniteRowsArgument, KeptRowsArgument};
use crate::backend::cuda::device::{At, Buffer, Gpu, Plain, Queue};
use crate::backend::cuda::shape::ROW_ALIGNMENT;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::Features;
use crate::input::fp16::Half;
use crate::input::gpu_table::{GpuRows, GpuTable, GpuValues, HostCopy};
use crate::input::tile::{self, RowBlock, Selection};

/// The base-2 logarithm of the values in a tile of these kernels.
const TILE_LOG: u32 = 10;

/// The name of the kept rows in errors.
const KEPT: &str = "which rows are kept";

/// The kept rows of a part, on the device: a bit for each row, and the kept rows before each word of 32 rows.
struct KeptBits {
    /// `None` if all rows are kept.
    words: Option<(Buffer<u64>, Buffer<u32>)>,
    count: usize,
}

impl KeptBits {
    fn new(queue: &Queue, selection: &Selection, n: usize) -> Result<Self> {
        let Some(words) = selection.words() else { return Ok(Self { words: None, count: n }) };
        let mut before = memory::with_room(2 * words.len(), KEPT)?;
        let mut count = 0;
        for word in words {
            for half in [*word as u32, (*word >> 32) as u32] {
                before.push(count);
                count += half.count_ones();
            }
        }
        Ok(Self { words: Some((queue.upload(words, KEPT)?, queue.upload(&before, KEPT)?)), count: count as usize })
    }

    fn argument(&self) -> KeptRowsArgument {
        let (bits, before) = self.words.as_ref().map_or((At::NULL, At::NULL), |(bits, before)| (bits.at_of(), before.at()));
        KeptRowsArgument { bits, before }
    }
}

/// The kept rows of all parts, in order, and their weights. Everything has arrived when the queue's work is done.
pub fn take_in<T: Float + Plain>(queue: &Queue, parts: &[RowBlock<'_, T>]) -> Result<DeviceRows<T>> {
    let d = parts[0].features.n_features();
    let weighted = parts.iter().any(|part| part.weights.is_some());
    let kept = parts.iter().map(|part| KeptBits::new(queue, &part.selection, part.features.n_rows()));
    let kept = memory::try_collected(kept, KEPT)?;
    let n = kept.iter().map(|kept| kept.count).sum();
    let rows = match in_place(parts) {
        Some(values) => DeviceRows::in_place(queue, values, n, d, weighted)?,
        None => DeviceRows::new(queue, n, d, weighted, tile::half(parts))?,
    };
    let mut first = 0;
    for (part, kept) in parts.iter().zip(&kept) {
        if !rows.x.is_external() {
            let view = part.features.gpu_rows().ok_or_else(elsewhere)?;
            to_columns(
                queue,
                view,
                kept,
                ColumnTargets { at: rows.x.at_index(first), stride: rows.stride, half: rows.half() },
            )?;
        }
        if let Some(weights) = &rows.weights {
            take_in_weights(weights, part, kept, first)?;
        }
        first += kept.count;
    }
    if !rows.x.is_external() {
        rows.transform(parts[0].features.row_transform())?;
    }
    // The kernels read the bits of the kept rows and, where the caller's memory ends, that of the caller.
    queue.wait()?;
    Ok(rows)
}

/// Whether kernels read these rows where they are.
pub fn is_in_place<T: Float>(features: &Features<'_, T>) -> bool {
    in_place(&[RowBlock::new(features.clone(), None)]).is_some()
}

/// The values of the only part, if kernels can read them where they are. Tiles of some of a table's rows end within the tiles of
/// the table.
fn in_place<T: Float>(parts: &[RowBlock<'_, T>]) -> Option<GpuValues> {
    let [part] = parts else { return None };
    let GpuRows { table, rows } = part.features.gpu_rows()?;
    let whole = rows.start.is_multiple_of(ROW_ALIGNMENT) && part.selection.is_all() && part.features.row_transform().is_none();
    let stored = part.features.half() == table.half();
    let values = (whole && stored && table.is_read_in_place()).then(|| table.pieces[0])?;
    Some(GpuValues { first: values.first + rows.start as i64 * values.row_pitch, ..values })
}

/// Weights may be on the host, or missing. Then they are 1.
fn take_in_weights<T: Float + Plain>(to: &Buffer<f64>, part: &RowBlock<'_, T>, kept: &KeptBits, first: usize) -> Result<()> {
    const WHAT: &str = "the weights";
    let n = part.features.n_rows();
    if let Some(view) = part.weights.as_ref().and_then(|weights| weights.gpu_rows()) {
        return to_columns(to.queue(), view, kept, ColumnTargets { at: to.at_index(first), stride: 0, half: None });
    }
    let mut all = memory::filled(n, 1.0, WHAT)?;
    if let Some(weights) = &part.weights {
        weights.copy(0..n, &mut all);
    }
    let mut row = 0;
    all.retain(|_| {
        row += 1;
        part.selection.contains(row - 1)
    });
    to.write(first, &all)
}

/// The error for parts that are not all on the GPU.
fn elsewhere() -> KMeansError {
    KMeansError::InvalidOption {
        option: "device",
        expected: "parts that are all on the GPU, or all on the host".into(),
        got: "parts in both places".into(),
    }
}

/// Where columns go.
struct ColumnTargets {
    /// The address of the first column's value of the first row.
    at: u64,
    /// Values from one column to the next.
    stride: usize,
    /// Their type, if it is one of 16 bits. All values of the view have it too.
    half: Option<Half>,
}

/// Makes columns of the kept rows of a view.
fn to_columns<T: Float + Plain>(queue: &Queue, view: GpuRows<'_, T>, kept: &KeptBits, to: ColumnTargets) -> Result<()> {
    let GpuRows { table, rows } = view;
    let size = if to.half.is_some() { size_of::<u16>() } else { size_of::<T>() };
    let entry = arguments::external_to_columns::<T>().half_if(to.half.is_some());
    let launch = entry.exactly(&queue.gpu, "", 1)?;
    let mut f = 0;
    for values in &table.pieces {
        // Threads that are neighbours read values that are neighbours.
        let along_rows = values.column_pitch.abs() < values.row_pitch.abs();
        let log_width = if along_rows { values.columns.next_power_of_two().trailing_zeros().min(5) } else { 0 };
        let tiles_across = values.columns.div_ceil(1 << log_width);
        let tiles = tiles_across.saturating_mul(rows.len().div_ceil(1 << (TILE_LOG - log_width)));
        i32::try_from(tiles).map_err(|_| memory::no_memory("so many values on one GPU", tiles as u128))?;
        let argument = ExternalArrayArgument {
            from: values.address,
            validity: values.validity.map_or(At::NULL, |(address, _)| At::new(address)),
            kept: kept.argument(),
            to: to.at + (f * to.stride * size) as u64,
            stride: to.stride as u64,
            first: values.first + rows.start as i64 * values.row_pitch,
            row_pitch: values.row_pitch,
            column_pitch: values.column_pitch,
            validity_first: values.validity.map_or(0, |(_, bit)| bit) as i64 + rows.start as i64,
            rows: rows.len() as u32,
            columns: values.columns as u32,
            log_width,
            tiles_across: tiles_across as u32,
            kind: values.value_type as i32,
            unused: 0,
        };
        // SAFETY: the kernel reads the values of these rows, whose place the maker of the table has promised. It writes the kept
        // rows of these columns, for which the matrix has room. The bits of the kept rows stay until the queue was waited for.
        unsafe { queue.run(&launch.with_blocks(tiles), &argument)? };
        f += values.columns;
    }
    Ok(())
}

/// The rows that have only finite values, and a finite weight.
pub fn finite_rows<T: Float + Plain>(rows: &DeviceRows<T>) -> Result<Selection> {
    let queue = &rows.queue;
    let words = rows.n.div_ceil(64);
    let bits = queue.zeros::<u64>(words, KEPT)?;
    let argument = FiniteRowsArgument { rows: rows.argument(), bits: bits.at_of() };
    let entry = rows.entry(arguments::finite_rows::<T>());
    let launch = entry.resident(&queue.gpu, "", entry.blocks_of(rows.n))?;
    // SAFETY: the kernel reads the rows, and writes a word for each 32 of them. There is room for two words for each 64.
    unsafe { queue.run(&launch, &argument)? };
    Ok(Selection::from_bits(bits.to_vec()?))
}

/// Copies a table to the host.
pub fn host_copy<T: Float>(table: &GpuTable<T>) -> Result<HostCopy<T>> {
    const WHAT: &str = "a copy of the rows on the host";
    let queue = Gpu::get(table.ordinal())?.queue()?;
    let (n, d) = (table.n_rows(), table.n_features());
    let rows = DeviceRows::<T>::new(&queue, n, d, false, table.half())?;
    let to = ColumnTargets { at: rows.x.at(), stride: rows.stride, half: rows.half() };
    to_columns(&queue, table.all(), &KeptBits { words: None, count: n }, to)?;
    let mut values = memory::zeroed(rows.stride * d, WHAT)?;
    rows.x.read(0, &mut values)?;
    let mut validity = memory::with_room(d, WHAT)?;
    for piece in &table.pieces {
        for _ in 0..piece.columns {
            validity.push(piece.validity.map(|(at, first)| bitmap(&queue, at, first, n)).transpose()?);
        }
    }
    Ok(HostCopy { values, stride: rows.stride, rows: n, validity })
}

/// The bytes of a bitmap that hold the bits of `n` rows, and the bit of row 0 in them.
fn bitmap(queue: &Queue, at: u64, first: u64, n: usize) -> Result<(Vec<u8>, usize)> {
    let (byte, bit) = (first / 8, (first % 8) as usize);
    // SAFETY: the maker of the table has promised that the bitmap is there.
    let bits = unsafe { Buffer::<u8>::external(at + byte, (bit + n).div_ceil(8), queue.clone()) };
    Ok((bits.to_vec()?, bit))
}
