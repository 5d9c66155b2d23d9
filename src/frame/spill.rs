//! Columns in a file, for a fit of more rows than memory holds: uncompressed Arrow IPC, which is mapped and not read.
//!
//! ```text
//! create : a file without a name. The system frees it when the process ends, however it ends.
//! write  : batches as they come, cut so that each is some megabytes. A full disk is an error of a write.
//! finish : what was written reaches the disk, and becomes columns whose values are in the mapped file
//! ```

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use polars::prelude::*;
use polars_arrow::array::Array;
use polars_arrow::datatypes::{ArrowSchema, ArrowSchemaRef, Field as ArrowField};
use polars_arrow::io::ipc::read::read_file_metadata;
use polars_arrow::io::ipc::write::{FileWriter, WriteOptions};
use polars_arrow::mmap::{mmap_dictionaries_unchecked, mmap_unchecked};
use polars_arrow::record_batch::RecordBatchT;

use crate::base::error::{KMeansError, Result};
use crate::base::memory;

/// Bytes of a batch in the file.
const BATCH: usize = 16 << 20;
/// Bytes of each column in a batch of many columns, and most bytes of a batch.
const COLUMN: usize = 64 << 10;
const MOST: usize = 256 << 20;

/// A list of columns or chunks in errors.
const LISTS: &str = "the lists of columns in a file";

/// A file of columns that is written.
pub struct SpillFile {
    directory: PathBuf,
    file: Arc<File>,
    writer: FileWriter<Arc<File>>,
    schema: ArrowSchemaRef,
    /// The columns without their rows.
    empty: DataFrame,
    /// Rows of a batch in the file.
    rows: usize,
    /// Rows that are too few for a batch.
    waiting: DataFrame,
}

impl SpillFile {
    /// A file for columns such as those of `empty`, a frame without rows. `row_bytes`: bytes of one row.
    pub fn create(directory: &Path, empty: DataFrame, row_bytes: usize) -> Result<Self> {
        let file = tempfile::tempfile_in(directory).map_err(|error| failed(directory, None, "make a file", &error))?;
        let file = Arc::new(file);
        // Names in the file are numbers, so that any names of columns will do.
        let fields = empty.columns().iter().enumerate().map(|(c, column)| {
            let name = PlSmallStr::from_string(c.to_string());
            (name.clone(), ArrowField::new(name, column.dtype().to_arrow(CompatLevel::newest()), true))
        });
        let schema = Arc::new(fields.collect::<ArrowSchema>());
        let writer = FileWriter::try_new(file.clone(), schema.clone(), None, WriteOptions { compression: None });
        let writer = writer.map_err(|error| failed(directory, Some(&file), "write", &error))?;
        let bytes = (empty.width() * COLUMN).clamp(BATCH, MOST);
        let rows = (bytes / row_bytes.max(1)).max(1);
        let waiting = empty.clone();
        Ok(Self { directory: directory.into(), file, writer, schema, empty, rows, waiting })
    }

    /// Writes rows behind those that are there. It is an error if the disk is full.
    pub fn write(&mut self, rows: &DataFrame) -> Result<()> {
        if self.waiting.height() == 0 {
            self.waiting = rows.clone();
        } else {
            self.waiting.vstack_mut(rows)?;
        }
        while self.waiting.height() >= self.rows {
            let batch = self.waiting.slice(0, self.rows);
            self.waiting = self.waiting.slice(self.rows as i64, usize::MAX);
            self.write_batch(batch)?;
        }
        Ok(())
    }

    fn write_batch(&mut self, mut batch: DataFrame) -> Result<()> {
        batch.rechunk_mut();
        let arrays = batch.columns().iter().map(|column| column.as_materialized_series().to_arrow(0, CompatLevel::newest()));
        let batch = RecordBatchT::try_new(batch.height(), self.schema.clone(), arrays.collect())?;
        self.writer.write(&batch, None).map_err(|error| failed(&self.directory, Some(&self.file), "write", &error))
    }

    /// The columns. Their values are in the mapped file.
    pub fn finish(mut self) -> Result<DataFrame> {
        let rest = std::mem::replace(&mut self.waiting, self.empty.clone());
        if rest.height() > 0 {
            self.write_batch(rest)?;
        }
        let Self { directory, file, mut writer, empty, .. } = self;
        let failed = |what: &str, error: &dyn std::fmt::Display| failed(&directory, Some(&file), what, error);
        writer.finish().map_err(|error| failed("write", &error))?;
        // Some file systems find out only now that there is no room. A page that was not written must not be read as if it were.
        file.sync_data().map_err(|error| failed("write", &error))?;
        // SAFETY: no other process can change the file or cut it short, because the file has no name. This process only reads it
        // from now on.
        let map = unsafe { Mmap::map(&*file) }.map_err(|error| failed("map the file", &error))?;
        mapped(map, &empty)
    }
}

/// The columns of a file that [`SpillFile`] wrote.
fn mapped(map: Mmap, empty: &DataFrame) -> Result<DataFrame> {
    let metadata = read_file_metadata(&mut Cursor::new(&map[..]))?;
    let map = Arc::new(map);
    // SAFETY: the file was written here, by the same library.
    let dictionaries = unsafe { mmap_dictionaries_unchecked(&metadata, map.clone()) }?;
    let batches = metadata.blocks.len();
    let lists = (0..empty.width()).map(|_| memory::with_room(batches, LISTS));
    let mut columns: Vec<Vec<Box<dyn Array>>> = memory::try_collected(lists, LISTS)?;
    let mut height = 0;
    for batch in 0..batches {
        // SAFETY: as above. Numbers and lists of fixed length have no offsets that could be wrong.
        let batch = unsafe { mmap_unchecked(&metadata, &dictionaries, map.clone(), batch) }?;
        height += batch.len();
        columns.iter_mut().zip(batch.into_arrays()).for_each(|(chunks, array)| chunks.push(array));
    }
    let columns = columns.into_iter().zip(empty.columns()).map(|(chunks, column)| {
        // SAFETY: the arrays were made of columns of this type.
        let series = unsafe { Series::from_chunks_and_dtype_unchecked(column.name().clone(), chunks, column.dtype()) };
        series.into_column()
    });
    Ok(DataFrame::new(height, memory::collected(columns, LISTS)?)?)
}

/// What could not be done with a file in this folder. Its length is what was written to it.
fn failed(directory: &Path, file: Option<&File>, what: &str, error: &dyn std::fmt::Display) -> KMeansError {
    let written = file.and_then(|file| file.metadata().ok()).map_or(0, |file| file.len());
    KMeansError::Spill { directory: directory.display().to_string(), written, message: format!("could not {what}: {error}") }
}
