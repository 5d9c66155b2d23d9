//! A model as a Parquet file: the table is the centroid frame, and the file's metadata hold everything else as JSON. If values are
//! scaled, the table holds the scaled centroids, bit for bit, and the metadata the factors.
//!
//! Any Parquet reader sees a table with the columns `cluster`, `size`, `inertia` and the features. Values are written plain and
//! uncompressed. A reader then knows from the length of the file how many values there can be, so a few crafted bytes cannot
//! make it reserve gigabytes. The Parquet reader trusts parts of a file without a check, so [`thrift`] checks them first.
//! [`read`] reads no more bytes than the model in the footer needs.
//! Wall times are not saved: equal fits give equal files.
//!
//! # Versions
//!
//! Format 2 has a [`mod@checksum`] over the whole model, in the metadata next to the header. Format 1 has none.
//!
//! A later version may add an option (other ways of seeding). It needs no third format for that. `scaling` came so:
//!
//! - It writes the option as one more field of the header or of its parameters, and only if the value is not the default. The
//!   checksum covers this text as it is.
//! - If the field is missing, it takes the default. So it reads every file of format 2.
//! - This version reads files of the later version that use nothing new. It refuses an unknown field or value, and names it in
//!   the error. For instance, a model that was fitted by angles must not predict by Euclidean distances.

mod checksum;
mod disk;
mod read;
mod size;
mod thrift;

use std::path::Path;

use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use serde::{Deserialize, Serialize};

use self::checksum::checksum;
use super::{HistoryRow, KMeansModel, Scaling, Settings};
use crate::error::{KMeansError, Result};
use crate::memory;
use crate::parallel::FloatEnvironment;

/// The version of the file format that is written. Older versions can be read.
pub const FORMAT: u32 = 2;
/// The first version with a checksum.
const CHECKED: u32 = 2;
/// The key of the header in the metadata. The checksum has its own key.
const KEY: &str = "polars-kmeans";
const CHECKSUM: &str = "polars-kmeans-checksum";
/// The name of the table in errors.
const TABLE: &str = "the table of the centroids";
/// A Parquet file starts and ends with these bytes.
const PARQUET: &[u8] = b"PAR1";

/// The part of the header that every version has.
#[derive(Deserialize)]
struct Version {
    format: u32,
    creator: String,
}

/// The header: everything in a model that is not in the table.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    creator: String,
    parameters: Settings,
    n_iter: u32,
    inertia: f64,
    /// Whether the features were computed by expressions.
    computed: bool,
    /// How values are scaled before rows are compared with the centroids in the table. Left out if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scaling: Option<Scaling>,
    history: Vec<Row>,
}

/// A history row without what depends on the device.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    iteration: u32,
    changed: u64,
    shift: f64,
    inertia: Option<f64>,
}

impl KMeansModel {
    /// Writes the model to a file. An existing file is replaced only after the whole model has been written. Links are
    /// followed.
    ///
    /// # Errors
    /// [`KMeansError::File`] if it cannot be written. If the mode of an existing file lets nobody write, the file is not
    /// replaced, not even by root.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let bytes = self.to_parquet()?;
        disk::replace(path, &bytes).map_err(|error| file_error(path, error))
    }

    /// Reads a model from a file that [`KMeansModel::save`] wrote.
    ///
    /// # Errors
    /// [`KMeansError::File`] if it cannot be read, [`KMeansError::InvalidModel`] if it does not hold a model.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = disk::open(path).map_err(|error| file_error(path, error))?;
        read::model(&file).map_err(|refusal| refusal.at(path))
    }

    /// The bytes of the file that [`KMeansModel::save`] writes.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if it cannot be encoded.
    pub fn to_parquet(&self) -> Result<Vec<u8>> {
        let _environment = FloatEnvironment::default_rounding();
        let row =
            |row: &HistoryRow| Row { iteration: row.iteration, changed: row.changed, shift: row.shift, inertia: row.inertia };
        let header = Header {
            format: FORMAT,
            creator: concat!("polars-kmeans ", env!("CARGO_PKG_VERSION")).into(),
            parameters: self.settings().clone(),
            n_iter: self.n_iter(),
            inertia: self.inertia(),
            computed: self.computed,
            scaling: self.scaling().map(Scaling::copy).transpose()?,
            history: self.history_rows().iter().map(row).collect(),
        };
        let encode = || {
            let json = serde_json::to_string(&header).map_err(|error| error.to_string())?;
            let properties = WriterProperties::builder()
                .set_writer_version(WriterVersion::PARQUET_1_0)
                .set_compression(Compression::UNCOMPRESSED)
                .set_dictionary_enabled(false)
                .set_statistics_enabled(EnabledStatistics::None)
                .set_key_value_metadata(Some(vec![
                    KeyValue::new(CHECKSUM.into(), checksum(&json, self)),
                    KeyValue::new(KEY.into(), json),
                ]))
                .build();
            // The bits that rows are compared with, which are in the scaled space.
            let table = self
                .table_of(|model| memory::copied(model.centroids(), TABLE), |model| memory::copied(model.centroids(), TABLE));
            let table = table.map_err(|error| error.to_string())?;
            let write = || {
                let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties))?;
                writer.write(&table)?;
                writer.into_inner()
            };
            let bytes: parquet::errors::Result<Vec<u8>> = write();
            bytes.map(with_type_order).map_err(|error| error.to_string())
        };
        encode().map_err(|error: String| invalid("a model that can be written", error))
    }

    /// A model from the bytes of a file.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if the bytes are not a whole model of this version or an older one.
    pub fn from_parquet(bytes: Vec<u8>) -> Result<Self> {
        read::model(&bytes::Bytes::from(bytes)).map_err(|refusal| refusal.at(Path::new("")))
    }
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

fn invalid(expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidModel { expected: expected.into(), got: got.to_string() }
}
