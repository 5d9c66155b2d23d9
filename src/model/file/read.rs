//! Reads a model. The footer comes first, then the parts that it describes. Memory use is limited to what was checked before.
//!
//! ```text
//! the ends            check that the file is a whole Parquet file
//! the footer          read as far as it is sound; then the Parquet reader decodes it
//! header, columns     give k centroids of d features, and so the number of bytes of the columns
//! clusters            checked without keeping them: a file that claims k clusters must hold k numbers
//! the columns         read, and checked for plain pages with the right number of values; then the Parquet reader decodes them
//! the checksum        compared with that of the model
//! ```

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray, PrimitiveArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Fields, Float32Type, Float64Type, Schema, SchemaBuilder, UInt64Type};
use bytes::{Buf, Bytes};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};

use super::super::{AnyModel, Derived, FeatureLayout, HistoryRow, KMeansModel, Model};
use super::size::{Size, check_clusters};
use super::thrift;
use super::{CHECKED, CHECKSUM, FORMAT, Header, KEY, PARQUET, Row, Version, checksum, file_error, invalid};
use crate::error::{KMeansError, Result};
use crate::memory;
use crate::parallel::FloatEnvironment;

/// A source of a file's bytes.
pub trait Input {
    fn len(&self) -> std::io::Result<u64>;
    /// The bytes from `start` to the end.
    fn reader(&self, start: u64) -> std::io::Result<impl Read>;
    /// `len` bytes from `start` on.
    fn bytes(&self, start: u64, len: usize) -> std::io::Result<Bytes>;
}

impl Input for Bytes {
    fn len(&self) -> std::io::Result<u64> {
        Ok(Self::len(self) as u64)
    }

    fn reader(&self, start: u64) -> std::io::Result<impl Read> {
        Ok(self.slice(usize::try_from(start).map_or(Self::len(self), |start| start.min(Self::len(self)))..).reader())
    }

    fn bytes(&self, start: u64, len: usize) -> std::io::Result<Bytes> {
        let range = usize::try_from(start).ok().and_then(|start| Some(start..start.checked_add(len)?));
        let range = range.filter(|range| range.end <= Self::len(self));
        range.map(|range| self.slice(range)).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }
}

/// Why there is no model: the file cannot be read, or its content is not a model.
pub enum Refusal {
    File(std::io::Error),
    Model(KMeansError),
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

impl From<KMeansError> for Refusal {
    fn from(error: KMeansError) -> Self {
        Self::Model(error)
    }
}

impl Refusal {
    /// The error for a file at this path.
    pub fn at(self, path: &Path) -> KMeansError {
        match self {
            Self::Model(error) => error,
            Self::File(error) => match error.kind() {
                std::io::ErrorKind::OutOfMemory => KMeansError::NoMemory { what: "the model of a file".into(), bytes: None },
                // The file became shorter while it was read.
                std::io::ErrorKind::UnexpectedEof => invalid("a whole Parquet file", "one that breaks off"),
                _ => file_error(path, error),
            },
        }
    }
}

fn damaged(error: &dyn std::fmt::Display) -> KMeansError {
    // The message may quote text as long as the file, so it is cut.
    invalid("a readable Parquet file", error.to_string().chars().take(300).collect::<String>())
}

/// Reads the model of a file.
///
/// # Errors
/// If the file is not a whole model of this version or an older one.
pub fn model(input: &impl Input) -> std::result::Result<KMeansModel, Refusal> {
    let _environment = FloatEnvironment::default_rounding();
    let (len, mark) = (input.len()?, PARQUET.len());
    if len < mark as u64 || input.bytes(0, mark)? != PARQUET {
        return Err(invalid("a Parquet file", "something else").into());
    }
    // The file ends with its footer, the footer's length, and the mark. The file also starts with the mark.
    let end = 4 + mark;
    let Some(body) = len.checked_sub(end as u64).filter(|&body| body >= mark as u64) else {
        return Err(invalid("a whole Parquet file", "one that breaks off").into());
    };
    let end = input.bytes(body, end)?;
    if !end.ends_with(PARQUET) {
        return Err(invalid("a whole Parquet file", "one that breaks off").into());
    }
    let footer = u32::from_le_bytes([end[0], end[1], end[2], end[3]]) as usize;
    let unsound = || invalid("sound Parquet metadata", "damaged ones");
    let body = body.checked_sub(footer as u64).filter(|&body| body >= mark as u64).ok_or_else(unsound)?;
    let footer = thrift::sound_footer(input.reader(body)?, footer)?.ok_or_else(unsound)?;
    // The Parquet reader is not our code. If a crafted file makes it panic, the file is refused as one that holds no model.
    catch_unwind(AssertUnwindSafe(|| of_footer(input, body, &footer)))
        .unwrap_or_else(|_| Err(invalid("a readable Parquet file", "one that the Parquet reader gave up on").into()))
}

/// Reads the model that a footer describes. The columns end before byte `body`.
fn of_footer(input: &impl Input, body: u64, footer: &[u8]) -> std::result::Result<KMeansModel, Refusal> {
    let metadata = Arc::new(ParquetMetaDataReader::decode_metadata(footer).map_err(|error| damaged(&error))?);
    let (text, sum, header) = header(&metadata)?;
    // Skip the Arrow schema that the writer adds. Parquet's own schema holds all but the length of the lists.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let arrow = ArrowReaderMetadata::try_new(metadata.clone(), options).map_err(|error| damaged(&error))?;
    let (layout, dtype) = features(arrow.schema().fields())?;
    let size = Size::of(&metadata, header.parameters.k, &layout, &dtype, body)?;
    let Size { k, d, .. } = size;
    check_clusters(input, &metadata, k)?;
    let columns = Columns(input.bytes(PARQUET.len() as u64, size.bytes)?);
    size.check_pages(&metadata, &columns)?;

    let schema = Arc::new(with_width(arrow.schema(), d)?);
    let options = ArrowReaderOptions::new().with_schema(schema.clone());
    let arrow = ArrowReaderMetadata::try_new(metadata.clone(), options).map_err(|error| damaged(&error))?;
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(columns, arrow);
    let batches = reader.with_batch_size(k).build().map_err(|error| damaged(&error))?;
    let batches = batches.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| damaged(&error))?;
    let table = concat_batches(&schema, &batches).map_err(|error| damaged(&error))?;
    if table.num_rows() != k {
        return Err(invalid(&format!("{k} centroids"), table.num_rows()).into());
    }
    let (format, computed) = (header.format, header.computed);
    let model = match dtype {
        DataType::Float32 => AnyModel::F32(engine_model::<Float32Type>(&table, header, &layout, d)?),
        _ => AnyModel::F64(engine_model::<Float64Type>(&table, header, &layout, d)?),
    };
    let model = KMeansModel::new(layout, model).with_computed(computed).check()?;
    match sum {
        Some(sum) if sum == checksum(text, &model) => Ok(model),
        None if format < CHECKED => Ok(model),
        Some(_) => Err(invalid("a model that fits its checksum", "an altered one").into()),
        None => Err(invalid(&format!("a checksum, as files of format {format} have"), "none").into()),
    }
}

/// The bytes of the columns. They are found by their offsets in the file, where they start right after the mark.
struct Columns(Bytes);

impl Columns {
    fn from(&self, start: u64) -> parquet::errors::Result<Bytes> {
        let start = start.checked_sub(PARQUET.len() as u64).and_then(|start| usize::try_from(start).ok());
        let start = start.filter(|&start| start <= self.0.len());
        start.map(|start| self.0.slice(start..)).ok_or_else(|| ParquetError::EOF("outside of the columns".into()))
    }
}

impl Length for Columns {
    fn len(&self) -> u64 {
        (PARQUET.len() + self.0.len()) as u64
    }
}

impl ChunkReader for Columns {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let mut bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF("outside of the columns".into()));
        }
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// The text of the header, the checksum if there is one, and the parsed header. The format is this version's or an older one.
fn header(metadata: &ParquetMetaData) -> Result<(&str, Option<&str>, Header)> {
    let pairs = metadata.file_metadata().key_value_metadata().map_or(&[][..], |pairs| pairs);
    let find = |key| pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
    let json = find(KEY).ok_or_else(|| {
        invalid(
            "a Parquet file with a model's metadata",
            "one without it (KMeansModel.from_centroids of Python makes a model of the table)",
        )
    })?;
    let short = |text: String| text.chars().take(300).collect::<String>();
    let version: Version =
        serde_json::from_str(json).map_err(|error| invalid("a model's metadata", short(error.to_string())))?;
    let creator = short(format!("{:?}", version.creator));
    if !(1..=FORMAT).contains(&version.format) {
        let got = format!("format {}, written by {creator}", version.format);
        return Err(invalid(&format!("a model file of format {FORMAT} or older"), got));
    }
    let header: Header = serde_json::from_str(json).map_err(|error| {
        let error = error.to_string().replace('`', "\"");
        // Drop the list of expected fields: it names every field there is.
        let error = error.split_once(", expected one of").map_or(&error[..], |(error, _)| error);
        invalid("a header that this version knows", format!("one written by {creator}: {}", short(error.into())))
    })?;
    header.parameters.check()?;
    Ok((json, find(CHECKSUM), header))
}

/// The layout and the float type of the columns after cluster, size and inertia.
fn features(fields: &Fields) -> Result<(FeatureLayout, DataType)> {
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

/// The schema with every list type as a list of exactly `d` values.
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

fn engine_model<P: ArrowPrimitiveType>(
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
            let mut rows = memory::with_room(table.num_rows() * d, "the centroids of a file")?;
            (0..table.num_rows()).for_each(|j| rows.extend(columns.iter().map(|column| column[j])));
            rows
        }
    };
    let row = |row: Row| HistoryRow {
        iteration: row.iteration,
        changed: row.changed,
        shift: row.shift,
        inertia: row.inertia,
        settled: None,
        skipped: None,
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
        scaling: header.scaling,
        table: Derived::default(),
    })
}

fn values<P: ArrowPrimitiveType>(table: &RecordBatch, column: usize) -> Result<Vec<P::Native>> {
    no_nulls(table.column(column).as_primitive::<P>())
}

fn no_nulls<P: ArrowPrimitiveType>(array: &PrimitiveArray<P>) -> Result<Vec<P::Native>> {
    match array.null_count() {
        0 => memory::copied(array.values(), "the centroids of a file"),
        nulls => Err(invalid("centroids without nulls", format!("{nulls} nulls"))),
    }
}
