//! A model as a file: the bytes of the model for this library, and a Parquet table for other programs.
//!
//! ```text
//! PAR1            how every Parquet file starts
//! the model       as `wire.rs` writes it, without the figures of iterations that depend on the device
//! the table       Parquet's pages and footer: cluster, size, inertia and the features, as in the centroid frame
//! PAR1            how every Parquet file ends
//! ```
//!
//! Parquet's footer says where the pages are. So its readers do not see what stands between.
//!
//! [`KMeansModel::load`] reads the model and its checksum, and the two marks. **It does not look at the table**: a file whose
//! table was changed in place still gives the model that was saved. A file that was cut or added to has no mark at its end, and
//! is refused. If it happens to end in these four bytes, only its table is damaged, because the checksum covers the whole model.
//! Memory and time are in proportion to the length that the model says it has, which is never more than that of the file.
//!
//! If values are scaled, the table has the centroids in the units of the columns, and the metadata have the factors. The model
//! has the scaled centroids, bit for bit. So a reader of the table gets labels as in [`FileMetadata`]. The metadata are JSON for people
//! and programs to read. They say who wrote the file, the parameters, the iterations and the inertia. Values are plain and
//! uncompressed, which all readers know. Equal fits give equal files.

mod disk;

use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use serde::Serialize;

use super::groups::GROUPS;
use super::wire::{self, Encoded, Head, MODEL, TREES, breaks_off};
use super::{AnyModel, KMeansModel, Scaling, Settings, invalid};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::parallel::FloatEnvironment;

/// The key of the JSON in the metadata of the table.
const KEY: &str = "polars-kmeans";
/// A Parquet file starts and ends with these bytes.
const PARQUET: &[u8; 4] = b"PAR1";
/// Bytes before the body of the model.
const START: usize = PARQUET.len() + Head::BYTES;

/// What the metadata of the table say.
#[derive(Serialize)]
pub(crate) struct FileMetadata<'m> {
    creator: &'static str,
    parameters: &'m Settings,
    n_iter: u32,
    inertia: f64,
    /// What multiplies the difference of a row and a centroid of the table, for each feature. The label is the centroid for which
    /// the sum of the squared products is least, also with `metric="cosine"`. Left out if values are not scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<&'m Scaling>,
}

impl<'m> FileMetadata<'m> {
    pub(crate) fn of(model: &'m KMeansModel) -> Self {
        Self {
            creator: concat!("polars-kmeans ", env!("CARGO_PKG_VERSION")),
            parameters: model.settings(),
            n_iter: model.n_iter(),
            inertia: model.inertia(),
            scaling: model.scaling(),
        }
    }
}

impl KMeansModel {
    /// Writes the model to a file. An existing file is replaced only after the whole model has been written. Links are
    /// followed.
    ///
    /// # Errors
    /// [`KMeansError::File`] if it cannot be written. If the mode of an existing file lets no user write, the file is not
    /// replaced, not even by root.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        replace(path.as_ref(), &self.to_bytes()?)
    }

    /// Reads a model from a file that [`KMeansModel::save`] wrote.
    ///
    /// # Errors
    /// [`KMeansError::File`] if it cannot be read, [`KMeansError::InvalidModel`] if it does not hold a model.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        read_file(path.as_ref(), &MODEL, wire::decode)
    }

    /// The bytes of the file that [`KMeansModel::save`] writes. Python's `to_bytes` gives the same bytes.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if it cannot be encoded, [`KMeansError::NoMemory`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let _environment = FloatEnvironment::default_rounding();
        let model = self.to_saved_wire()?;
        let table = self.centroids_batch()?;
        with_table(&model, &table.schema(), &[table], (KEY, &FileMetadata::of(self)))
    }

    /// A model from the bytes of a file.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if they are not the bytes of a whole file that [`KMeansModel::save`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (head, body) = read(&mut Cursor::new(bytes), &MODEL, |error| invalid("bytes that can be read", error))?;
        wire::decode(head, &body)
    }

    /// The model as its file holds it: [`KMeansModel::to_wire`] without the figures of iterations that depend on the device.
    ///
    /// # Errors
    /// As [`KMeansModel::to_wire`].
    #[doc(hidden)]
    pub fn to_saved_wire(&self) -> Result<Vec<u8>> {
        self.without_costs()?.to_wire()
    }

    /// A copy without the figures of iterations that depend on the device.
    fn without_costs(&self) -> Result<Self> {
        let model = match self.as_any() {
            AnyModel::F32(model) => AnyModel::F32(model.without_costs()?),
            AnyModel::F64(model) => AnyModel::F64(model.without_costs()?),
        };
        Ok(Self::new(self.layout().copy()?, model).with_computed(self.computed).with_metadata(self.metadata.clone()))
    }
}

/// The bytes of a file: the payload for us, then a table for everybody else, with facts in its metadata.
pub(crate) fn with_table(
    payload: &[u8],
    schema: &SchemaRef,
    table: &[RecordBatch],
    (key, facts): (&str, &impl Serialize),
) -> Result<Vec<u8>> {
    let refused = |error: &dyn std::fmt::Display| invalid("a model that can be written", error);
    let facts = serde_json::to_string(facts).map_err(|error| refused(&error))?;
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_key_value_metadata(Some(vec![KeyValue::new(key.into(), facts)]))
        .build();
    let write = || {
        // The writer starts the file with the mark.
        let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties))?;
        writer.write_all(payload)?;
        table.iter().try_for_each(|batch| writer.write(batch))?;
        writer.into_inner()
    };
    let bytes: parquet::errors::Result<Vec<u8>> = write();
    bytes.map(with_type_order).map_err(|error| refused(&error))
}

/// Replaces a file by a new one with these bytes, or creates it.
///
/// # Errors
/// As [`KMeansModel::save`].
#[doc(hidden)]
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    disk::replace(path, bytes).map_err(|error| file_error(path, error))
}

/// Reads a file. Errors about what it holds say its name.
pub(crate) fn read_file<M>(path: &Path, what: &Encoded, decode: impl FnOnce(Head, &[u8]) -> Result<M>) -> Result<M> {
    let mut file = disk::open(path).map_err(|error| file_error(path, error))?;
    match read(&mut file, what, |error| file_error(path, error)).and_then(|(head, body)| decode(head, &body)) {
        Err(KMeansError::InvalidModel { expected, got }) => {
            Err(KMeansError::InvalidModel { expected, got: format!("{got} (file \"{}\")", path.display()) })
        }
        done => done,
    }
}

/// Reads the payload of a file: its head, and its body after a check. `refused` makes the error if the system cannot read it.
pub(crate) fn read(
    input: &mut (impl Read + Seek),
    what: &Encoded,
    refused: impl Fn(std::io::Error) -> KMeansError,
) -> Result<(Head, Vec<u8>)> {
    let length = input.seek(SeekFrom::End(0)).map_err(&refused)?;
    let mut start = [0; START];
    let start = &mut start[..usize::try_from(length).map_or(START, |length| length.min(START))];
    input.rewind().and_then(|()| input.read_exact(start)).map_err(&refused)?;
    let other = |got: &str| invalid(&format!("a file that {}.save wrote", what.class), got);
    let head = start.strip_prefix(PARQUET).ok_or_else(|| other("something that is no Parquet file"))?;
    let head = Head::read(head, what)?.ok_or_else(|| {
        match [MODEL, GROUPS, TREES].iter().find(|what| head.starts_with(&what.magic)) {
            Some(Encoded { class, .. }) => other(&format!("one of another kind: {class}.load reads it")),
            None if *what == MODEL => {
                other("a Parquet file of another program (KMeansModel.from_centroids of Python makes a model of its table)")
            }
            None => other("a Parquet file of another program"),
        }
    })?;
    // The file is as long as the body and the two marks need, at the least. So no claim of the head asks for more memory.
    let room = length.checked_sub((START + PARQUET.len()) as u64).filter(|&room| head.length <= room);
    room.ok_or_else(breaks_off)?;
    let mut end = [0; PARQUET.len()];
    input.seek(SeekFrom::End(-(PARQUET.len() as i64))).and_then(|_| input.read_exact(&mut end)).map_err(&refused)?;
    if end != *PARQUET {
        return Err(invalid("a whole file", "one that was cut or added to"));
    }
    let bytes = usize::try_from(head.length).map_err(|_| memory::no_memory(wire::BYTES, head.length.into()))?;
    let mut body = memory::zeroed(bytes, wire::BYTES)?;
    input.seek(SeekFrom::Start(START as u64)).and_then(|_| input.read_exact(&mut body)).map_err(&refused)?;
    head.check(&body)?;
    Ok((head, body))
}

/// Declares that the values of every column are ordered as their type defines.
///
/// The footer ends with one order per column, the end of the structure (0), the length of the footer, and `PAR1`. The Parquet
/// writer declares IEEE 754's total order for floats. Readers built before 2026 do not know this order, and some of them
/// (Polars 1.28) refuse the whole file because of it. An order says how to read statistics, and this file has none.
fn with_type_order(mut bytes: Vec<u8>) -> Vec<u8> {
    const TYPE_ORDER: [u8; 3] = [0x1C, 0, 0];
    const IEEE_754_TOTAL_ORDER: [u8; 3] = [0x2C, 0, 0];
    let mut end = bytes.len() - PARQUET.len() - 4 - 1;
    while let Some(order) = bytes[..end].last_chunk_mut::<3>()
        && (*order == TYPE_ORDER || *order == IEEE_754_TOTAL_ORDER)
    {
        *order = TYPE_ORDER;
        end -= 3;
    }
    bytes
}

fn file_error(path: &Path, error: std::io::Error) -> KMeansError {
    let message = match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or folder".to_owned(),
        kind => kind.to_string(),
    };
    KMeansError::File { path: path.display().to_string(), message }
}
