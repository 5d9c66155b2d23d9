//! Checks the sizes that a footer gives against the columns themselves, before the Parquet reader sees them.

use arrow::datatypes::DataType;
use parquet::basic::Compression;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::ChunkReader;

use super::super::FeatureLayout;
use super::read::{Input, Refusal};
use super::thrift::{self, Page};
use super::{PARQUET, invalid};
use crate::error::{KMeansError, Result};

/// Bytes of cluster numbers that are read at a time.
const STEP: usize = 1 << 16;
/// The most bytes that the header of a page may have.
const PAGE_HEADER: usize = 128;

fn not_plain() -> KMeansError {
    invalid("plain, uncompressed columns", "others: save the model with polars-kmeans")
}

/// The sizes that a footer gives.
pub struct Size {
    pub k: usize,
    pub d: usize,
    /// Values per row of the last column. A column of lists has more than one.
    width: usize,
    /// Bytes of all columns.
    pub bytes: usize,
}

impl Size {
    /// The size of a model of `k` centroids. The columns must be stored as we write them: one after the other, before byte
    /// `body`, with only a few more bytes than their values take.
    pub fn of(metadata: &ParquetMetaData, k: u64, layout: &FeatureLayout, dtype: &DataType, body: u64) -> Result<Self> {
        let rows = metadata.file_metadata().num_rows();
        let k = usize::try_from(rows).ok().filter(|&rows| rows > 0 && rows as u64 == k);
        let k = k.ok_or_else(|| invalid("a centroid for each of the parameter k", rows))?;
        let last = metadata.file_metadata().schema_descr().num_columns() - 1;
        let (d, width) = match layout {
            FeatureLayout::Columns(names) => (names.len(), 1),
            FeatureLayout::Array(_) => {
                let lists = metadata.row_groups().iter().map(|group| group.column(last).num_values());
                let d = usize::try_from(lists.fold(0i64, i64::saturating_add)).unwrap_or(0) / k;
                (d, d)
            }
        };
        if d == 0 {
            return Err(invalid("centroids of at least one feature", "none"));
        }
        let number = if *dtype == DataType::Float32 { 4 } else { 8 };
        let (mut rows, mut end) = (0usize, PARQUET.len() as u64);
        for group in metadata.row_groups() {
            let group_rows = usize::try_from(group.num_rows()).unwrap_or(usize::MAX);
            rows = rows.saturating_add(group_rows);
            for (i, column) in group.columns().iter().enumerate() {
                let plain = column.compression() == Compression::UNCOMPRESSED && column.dictionary_page_offset().is_none();
                let value = [4, 8, 8].get(i).copied().unwrap_or(number);
                let values = group_rows.checked_mul(if i == last { width } else { 1 });
                let least = values.and_then(|values| values.checked_mul(value)).ok_or_else(not_plain)? as u64;
                // A column also holds the headers of its pages, and two bits for each value of a list.
                let most = least.saturating_add(least / 4).saturating_add(256);
                let (start, bytes) = place(column).filter(|_| plain).ok_or_else(not_plain)?;
                let after = start.checked_add(bytes).filter(|&after| after <= body);
                end = after.filter(|_| start == end && (least..=most).contains(&bytes)).ok_or_else(not_plain)?;
            }
        }
        if rows != k {
            return Err(invalid(&format!("{k} centroids"), rows));
        }
        let bytes = usize::try_from(end - PARQUET.len() as u64).map_err(|_| not_plain())?;
        Ok(Self { k, d, width, bytes })
    }

    /// Refuses columns with pages that are not plain, or with another number of values.
    pub fn check_pages(&self, metadata: &ParquetMetaData, columns: &impl ChunkReader) -> Result<()> {
        let last = metadata.file_metadata().schema_descr().num_columns() - 1;
        for group in metadata.row_groups() {
            for (i, column) in group.columns().iter().enumerate() {
                let pages =
                    place(column).and_then(|(start, bytes)| columns.get_bytes(start, usize::try_from(bytes).ok()?).ok());
                let values = pages.and_then(|pages| thrift::plain_values(&pages));
                let rows = usize::try_from(group.num_rows()).ok();
                if values.is_none() || values != rows.and_then(|rows| rows.checked_mul(if i == last { self.width } else { 1 }))
                {
                    return Err(not_plain());
                }
            }
        }
        Ok(())
    }
}

/// The offset of a column's pages, and their length in bytes.
fn place(column: &ColumnChunkMetaData) -> Option<(u64, u64)> {
    Some((u64::try_from(column.data_page_offset()).ok()?, u64::try_from(column.compressed_size()).ok()?))
}

/// Refuses clusters that are not numbered from 0 to `k - 1`. It needs only a small, constant amount of memory.
pub fn check_clusters(input: &impl Input, metadata: &ParquetMetaData, k: usize) -> std::result::Result<(), Refusal> {
    let mut next = 0u32;
    for group in metadata.row_groups() {
        let (mut at, bytes) = place(group.column(0)).ok_or_else(not_plain)?;
        let end = at.saturating_add(bytes);
        while at < end {
            let left = usize::try_from(end - at).map_err(|_| not_plain())?;
            let page = Page::read(&input.bytes(at, left.min(PAGE_HEADER))?).ok_or_else(not_plain)?;
            let fits = page.values.checked_mul(4) == Some(page.bytes) && page.bytes <= left - page.header;
            fits.then_some(()).ok_or_else(not_plain)?;
            at += page.header as u64;
            let mut left = page.bytes;
            while left > 0 {
                let numbers = input.bytes(at, left.min(STEP))?;
                for number in numbers.as_chunks::<4>().0 {
                    if u32::from_le_bytes(*number) != next || next as usize >= k {
                        return Err(invalid("clusters numbered from 0", "others").into());
                    }
                    next += 1;
                }
                at += numbers.len() as u64;
                left -= numbers.len();
            }
        }
    }
    Ok(())
}
