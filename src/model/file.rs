//! A model as a Parquet file: the centroid frame, and everything else as JSON in the file's metadata.
//!
//! Any Parquet reader sees a table of `cluster`, `size`, `inertia` and the features. Values are written plain and uncompressed,
//! so that a reader knows from the file's length how many there can be: a few crafted bytes cannot ask for gigabytes. What the
//! Parquet reader would believe without a check is checked before it reads: see [`thrift`].
//! Wall times are not saved: equal fits give equal files.

mod thrift;

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray, PrimitiveArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float32Type, Float64Type, Schema, SchemaBuilder, UInt32Type, UInt64Type};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use serde::{Deserialize, Serialize};

use super::{AnyModel, Derived, FeatureLayout, HistoryRow, KMeansModel, Model, Settings};
use crate::error::{KMeansError, Result};

/// The version of the file format that is written; older ones are read.
pub const FORMAT: u32 = 1;
/// The metadata's key.
const KEY: &str = "polars-kmeans";
/// What a Parquet file starts and ends with.
const PARQUET: &[u8] = b"PAR1";
/// Bytes that the names of a list column's features may take, whatever the file's length, and for each byte of it.
const NAMES: (usize, usize) = (1 << 20, 64);

/// What every version's metadata holds.
#[derive(Deserialize)]
struct Version {
    format: u32,
    creator: String,
}

/// The metadata.
#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    creator: String,
    parameters: Settings,
    n_iter: u32,
    inertia: f64,
    /// Whether the features were computed by expressions.
    computed: bool,
    history: Vec<Row>,
}

/// A history row without its wall time.
#[derive(Serialize, Deserialize)]
struct Row {
    iteration: u32,
    changed: u64,
    shift: f64,
    inertia: Option<f64>,
}

impl KMeansModel {
    /// Writes the model to a file, which is replaced only when the whole model has been written.
    ///
    /// # Errors
    /// [`KMeansError::File`] if it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let bytes = self.to_parquet()?;
        replace(path, &bytes).map_err(|error| file_error(path, error))
    }

    /// Reads a model from a file that [`KMeansModel::save`] wrote.
    ///
    /// # Errors
    /// [`KMeansError::File`] if it cannot be read, [`KMeansError::InvalidModel`] if it holds no model.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::from_parquet(read_file(path).map_err(|error| file_error(path, error))?)
    }

    /// The bytes of the file that [`KMeansModel::save`] writes.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if it cannot be encoded.
    pub fn to_parquet(&self) -> Result<Vec<u8>> {
        let row =
            |row: &HistoryRow| Row { iteration: row.iteration, changed: row.changed, shift: row.shift, inertia: row.inertia };
        let header = Header {
            format: FORMAT,
            creator: concat!("polars-kmeans ", env!("CARGO_PKG_VERSION")).into(),
            parameters: self.settings().clone(),
            n_iter: self.n_iter(),
            inertia: self.inertia(),
            computed: self.computed,
            history: self.history_rows().iter().map(row).collect(),
        };
        let encode = || {
            let json = serde_json::to_string(&header).map_err(|error| error.to_string())?;
            let properties = WriterProperties::builder()
                .set_writer_version(WriterVersion::PARQUET_1_0)
                .set_compression(Compression::UNCOMPRESSED)
                .set_dictionary_enabled(false)
                .set_statistics_enabled(EnabledStatistics::None)
                .set_key_value_metadata(Some(vec![KeyValue::new(KEY.into(), json)]))
                .build();
            let table = self.centroids_batch().map_err(|error| error.to_string())?;
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
    /// [`KMeansError::InvalidModel`] for anything but a whole model of this version or an older one.
    pub fn from_parquet(bytes: Vec<u8>) -> Result<Self> {
        if !bytes.starts_with(PARQUET) {
            return Err(invalid("a Parquet file", "something else"));
        }
        if bytes.len() < 12 || !bytes.ends_with(PARQUET) {
            return Err(invalid("a whole Parquet file", "one that breaks off"));
        }
        // The Parquet reader is not ours: should a crafted file make it panic, that is one more file that is no model.
        catch_unwind(AssertUnwindSafe(|| read(bytes)))
            .unwrap_or_else(|_| Err(invalid("a readable Parquet file", "one that the Parquet reader gave up on")))
    }
}

/// Declares the order of every column's values to be that of its type.
///
/// The footer ends with one order a column, then the end of the structure (0), the footer's length and `PAR1`. The Parquet writer
/// declares IEEE 754's total order for floats, a member that readers built before 2026 do not know, and some of them (Polars
/// 1.28) then refuse the whole file. Orders say how to read statistics, of which this file has none.
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

fn read(bytes: Vec<u8>) -> Result<KMeansModel> {
    let damaged = |error: &dyn std::fmt::Display| invalid("a readable Parquet file", error);
    if !thrift::is_sound(&bytes) {
        return Err(invalid("sound Parquet metadata", "damaged ones"));
    }
    let bytes = bytes::Bytes::from(bytes);
    // Not the Arrow schema that the writer adds: Parquet's own says all but how long lists are.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(&bytes, options).map_err(|error| damaged(&error))?;
    let header = header(metadata.metadata())?;
    let (layout, dtype) = features(metadata.schema().fields())?;
    let (k, d) = check_size(metadata.metadata(), &header.parameters, &layout, &bytes)?;
    let schema = Arc::new(with_width(metadata.schema(), d)?);
    let options = ArrowReaderOptions::new().with_schema(schema.clone());
    let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options).map_err(|error| damaged(&error))?;
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, metadata);
    let batches = reader.with_batch_size(k).build().map_err(|error| damaged(&error))?;
    let batches = batches.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| damaged(&error))?;
    let table = concat_batches(&schema, &batches).map_err(|error| damaged(&error))?;
    if table.num_rows() != k {
        return Err(invalid(&format!("{k} centroids"), table.num_rows()));
    }
    if !values::<UInt32Type>(&table, 0)?.into_iter().eq(0..k as u32) {
        return Err(invalid("clusters numbered from 0", "others"));
    }
    let computed = header.computed;
    let model = match dtype {
        DataType::Float32 => AnyModel::F32(model::<Float32Type>(&table, header, &layout, d)?),
        _ => AnyModel::F64(model::<Float64Type>(&table, header, &layout, d)?),
    };
    KMeansModel::new(layout, model).with_computed(computed).check()
}

/// The metadata, of this version or an older one.
fn header(metadata: &ParquetMetaData) -> Result<Header> {
    let pairs = metadata.file_metadata().key_value_metadata().map_or(&[][..], |pairs| pairs);
    let json = pairs.iter().find(|pair| pair.key == KEY).and_then(|pair| pair.value.as_deref());
    let json = json.ok_or_else(|| invalid("a Parquet file with a model's metadata", "one without it"))?;
    let version: Version = serde_json::from_str(json).map_err(|error| invalid("a model's metadata", error))?;
    if !(1..=FORMAT).contains(&version.format) {
        let got = format!("format {}, written by {:?}", version.format, version.creator);
        return Err(invalid(&format!("a model file of format {FORMAT} or older"), got));
    }
    serde_json::from_str(json).map_err(|error| invalid("a model's metadata", error))
}

/// The columns after cluster, size and inertia: how they stand, and their type.
fn features(fields: &arrow::datatypes::Fields) -> Result<(FeatureLayout, DataType)> {
    let own = [("cluster", DataType::UInt32), ("size", DataType::UInt64), ("inertia", DataType::Float64)];
    let got = || fields.iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect::<Vec<_>>().join(", ");
    let other = || invalid("columns cluster, size, inertia and features of one float type", got());
    let starts_so = fields.len() > own.len()
        && fields.iter().zip(&own).all(|(field, (name, dtype))| field.name() == name && field.data_type() == dtype);
    if !starts_so {
        return Err(other());
    }
    let features = &fields[own.len()..];
    let (layout, dtype) = match features[0].data_type() {
        DataType::List(item) if features.len() == 1 => (FeatureLayout::Array(features[0].name().clone()), item.data_type()),
        dtype => (FeatureLayout::Columns(features.iter().map(|f| f.name().clone()).collect()), dtype),
    };
    let same = matches!(layout, FeatureLayout::Array(_)) || features.iter().all(|field| field.data_type() == dtype);
    if !same || !matches!(dtype, DataType::Float32 | DataType::Float64) {
        return Err(other());
    }
    Ok((layout, dtype.clone()))
}

/// The schema, with lists as lists of `d` values.
fn with_width(schema: &Schema, d: usize) -> Result<Schema> {
    let width = i32::try_from(d).map_err(|_| invalid("lists of at most 2^31 - 1 values", d))?;
    let mut fields = SchemaBuilder::new();
    for field in schema.fields() {
        fields.push(match field.data_type() {
            DataType::List(item) => {
                Arc::new(field.as_ref().clone().with_data_type(DataType::FixedSizeList(item.clone(), width)))
            }
            _ => field.clone(),
        });
    }
    Ok(fields.finish())
}

/// The numbers of centroids and of features, if a file of these bytes holds them and is written as we write it.
fn check_size(metadata: &ParquetMetaData, settings: &Settings, layout: &FeatureLayout, bytes: &[u8]) -> Result<(usize, usize)> {
    let len = bytes.len();
    let k = usize::try_from(metadata.file_metadata().num_rows()).ok().filter(|&k| k > 0 && k as u64 == settings.k);
    let k = k.ok_or_else(|| invalid(&format!("{} centroids", settings.k), metadata.file_metadata().num_rows()))?;
    let last = metadata.file_metadata().schema_descr().num_columns() - 1;
    let d = match layout {
        FeatureLayout::Columns(names) => names.len(),
        FeatureLayout::Array(_) => {
            let lists = metadata.row_groups().iter().map(|group| group.column(last).num_values());
            usize::try_from(lists.fold(0i64, i64::saturating_add)).unwrap_or(0) / k
        }
    };
    let needed = d.checked_mul(4).and_then(|row| row.checked_add(20)).and_then(|row| row.checked_mul(k));
    if d == 0 || needed.is_none_or(|needed| needed > len) {
        return Err(invalid(&format!("{k} centroids of {d} features"), format!("a file of {len} bytes")));
    }
    // Features of a list are named after the column, whose name the file holds once.
    if let FeatureLayout::Array(name) = layout
        && name.len().saturating_mul(d) > len.saturating_mul(NAMES.1).max(NAMES.0)
    {
        return Err(invalid("a column name in proportion to the file", format!("{} bytes of it", name.len())));
    }
    let (mut rows, mut taken) = (0usize, 0usize);
    for group in metadata.row_groups() {
        let group_rows = usize::try_from(group.num_rows()).unwrap_or(usize::MAX);
        rows = rows.saturating_add(group_rows);
        for (i, column) in group.columns().iter().enumerate() {
            let plain = column.compression() == Compression::UNCOMPRESSED && column.dictionary_page_offset().is_none();
            let width = if i == last && matches!(layout, FeatureLayout::Array(_)) { d } else { 1 };
            let size = usize::try_from(column.compressed_size()).unwrap_or(usize::MAX);
            let start = usize::try_from(column.data_page_offset()).unwrap_or(usize::MAX);
            let pages = bytes.get(start..).and_then(|bytes| bytes.get(..size));
            // All columns together: else many could be made of the same bytes.
            taken = taken.saturating_add(size);
            let values = pages.filter(|_| plain && taken <= len).and_then(thrift::plain_values);
            if values.is_none() || values != group_rows.checked_mul(width) {
                return Err(invalid("plain, uncompressed columns", "others: save the model with polars-kmeans"));
            }
        }
    }
    if rows != k {
        return Err(invalid(&format!("{k} centroids"), rows));
    }
    Ok((k, d))
}

fn model<P: ArrowPrimitiveType>(
    table: &RecordBatch,
    header: Header,
    layout: &FeatureLayout,
    d: usize,
) -> Result<Model<P::Native>> {
    let centroids = match layout {
        FeatureLayout::Array(_) => {
            let rows = table.column(3).as_fixed_size_list();
            if rows.null_count() > 0 {
                return Err(invalid("centroids without nulls", format!("{} nulls", rows.null_count())));
            }
            no_nulls(rows.values().as_primitive::<P>())?
        }
        FeatureLayout::Columns(_) => {
            let columns = (0..d).map(|f| values::<P>(table, 3 + f)).collect::<Result<Vec<_>>>()?;
            (0..table.num_rows()).flat_map(|j| columns.iter().map(move |column| column[j])).collect()
        }
    };
    let row = |row: Row| HistoryRow {
        iteration: row.iteration,
        changed: row.changed,
        shift: row.shift,
        inertia: row.inertia,
        seconds: None,
    };
    Ok(Model {
        d,
        names: layout.feature_names(d)?,
        centroids,
        sizes: values::<UInt64Type>(table, 1)?,
        inertias: values::<Float64Type>(table, 2)?,
        inertia: header.inertia,
        n_iter: header.n_iter,
        history: header.history.into_iter().map(row).collect(),
        settings: header.parameters,
        table: Derived::default(),
    })
}

fn values<P: ArrowPrimitiveType>(table: &RecordBatch, column: usize) -> Result<Vec<P::Native>> {
    no_nulls(table.column(column).as_primitive::<P>())
}

fn no_nulls<P: ArrowPrimitiveType>(array: &PrimitiveArray<P>) -> Result<Vec<P::Native>> {
    match array.null_count() {
        0 => Ok(array.values().to_vec()),
        nulls => Err(invalid("centroids without nulls", format!("{nulls} nulls"))),
    }
}

/// The bytes of a file; of one that does not begin and end as a Parquet file only these, however long it is.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    check_kind(&metadata)?;
    let mut ends = vec![0; 2 * PARQUET.len()];
    if metadata.len() >= ends.len() as u64 {
        let (first, last) = ends.split_at_mut(PARQUET.len());
        file.read_exact(first)?;
        file.seek(SeekFrom::End(-(PARQUET.len() as i64)))?;
        file.read_exact(last)?;
        if first != PARQUET || last != PARQUET {
            return Ok(ends);
        }
        file.rewind()?;
    }
    let mut bytes = Vec::new();
    file.take(metadata.len()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Refuses devices, pipes and folders.
fn check_kind(metadata: &Metadata) -> std::io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false if metadata.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
        false => Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Puts a whole new file in the place of an old one, whose permissions it keeps; a link is followed.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let old = match std::fs::canonicalize(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let path = old.as_deref().unwrap_or(path);
    let metadata = old.as_ref().map(std::fs::metadata).transpose()?;
    metadata.as_ref().map(check_kind).transpose()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    // As for any new file, the process's mask decides who may read it.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.prefix(".polars-kmeans-").tempfile_in(folder)?;
    if let Some(metadata) = metadata {
        file.as_file().set_permissions(metadata.permissions())?;
    }
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

fn file_error(path: &Path, error: std::io::Error) -> KMeansError {
    KMeansError::File { path: path.display().to_string(), message: error.kind().to_string() }
}

fn invalid(expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidModel { expected: expected.into(), got: got.to_string() }
}
