//! Model files of any bytes: reading gives a model or an error, and no more memory than the file is worth.
//!
//! Random bytes almost never end in a footer that Parquet accepts, so the input is a recipe for a file:
//!
//! ```text
//! mode 0: the bytes themselves
//! mode 1: a file that the library wrote, edited in its body and its footer
//! mode 2: a file that Parquet's own writer made of any columns, options and metadata, edited or not
//! ```
//! Most of what is edited is of format 1: the checksum of format 2 would refuse nearly all of it in the end.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Range;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, FixedSizeListArray, Float64Array, ListArray, RecordBatch, StructArray, UInt32Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use libfuzzer_sys::arbitrary::{Error, Result, Unstructured};
use libfuzzer_sys::{Corpus, fuzz_target};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use polars_kmeans::{FeatureLayout, History, KMeans, KMeansModel};

/// Bytes that reading may take at a time: so many, and so many for each byte of the file.
const ROOM: (usize, usize) = (4 << 20, 256);
/// Larger models are not predicted with.
const SMALL: usize = 64;
const MAGIC: &[u8] = b"PAR1";

thread_local! {
    /// Whether panics are someone's to catch.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

fuzz_target!(
    init: {
        // libFuzzer's hook aborts at every panic, also at those that are caught.
        let abort = panic::take_hook();
        panic::set_hook(Box::new(move |info| if !QUIET.get() { abort(info) }));
        LazyLock::force(&FILES);
    },
    |data: &[u8]| -> Corpus {
        match file(&mut Unstructured::new(data)) {
            Ok(bytes) => {
                check(bytes);
                Corpus::Keep
            }
            Err(_) => Corpus::Reject,
        }
    }
);

/// Reads a file, and holds a model that comes of it to its word.
fn check(bytes: Vec<u8>) {
    let room = ROOM.0 + ROOM.1 * bytes.len();
    let before = PEAK.restart();
    QUIET.set(true);
    // What escapes from here is libFuzzer's to report.
    let model = KMeansModel::from_parquet(bytes);
    QUIET.set(false);
    let taken = PEAK.highest.load(Relaxed) - before;
    assert!(taken <= room, "reading took {taken} bytes, more than {room}");
    let Ok(model) = model else { return };

    let bytes = model.to_parquet().expect("a model that was read can be written");
    assert_eq!(KMeansModel::from_parquet(bytes).as_ref(), Ok(&model));
    let (k, d) = (model.n_clusters(), model.n_features());
    assert!(k > 0 && d > 0 && model.centroid_values().unwrap().iter().all(|c| c.is_finite()));
    if k <= SMALL && d <= SMALL {
        let rows = rows(&model);
        let labels = model.predict_batch(&rows).expect("rows of the model's columns have labels");
        assert!(labels.iter().flatten().all(|label| (label as usize) < k));
        assert_eq!(labels.null_count(), 1);
        assert_eq!(model.transform_batch(&rows).expect("and distances").len(), labels.len());
        // The score may be refused: rows and centroids together can be out of range.
        let _ = model.score_batches(&[rows], None);
    }
}

/// The model's own first centroid, two other rows and one without an answer, as the model's columns.
fn rows(model: &KMeansModel) -> RecordBatch {
    let dtype = if model.is_f32() { DataType::Float32 } else { DataType::Float64 };
    let first = model.centroid_values().unwrap();
    let column = |f: usize| [first[f], 0.0, -1e9, f64::NAN];
    let arrays: Vec<ArrayRef> = match model.layout() {
        FeatureLayout::Columns(names) => {
            (0..names.len()).map(|f| numbers(column(f).map(Some).to_vec(), &dtype).expect("a float column")).collect()
        }
        FeatureLayout::Array(_) => {
            let d = model.n_features();
            let values = (0..4).flat_map(|i| (0..d).map(move |f| Some(column(f)[i]))).collect();
            vec![lists(numbers(values, &dtype).expect("float values"), Some(d), None).expect("lists")]
        }
    };
    RecordBatch::try_from_iter(model.names().iter().zip(arrays)).expect("columns of one length")
}

// ---- files ----------------------------------------------------------------------------------------------------

/// Files of format 1, which the library reads still.
const OLD: [&[u8]; 2] =
    [include_bytes!("../../tests/data/model-v1-columns.parquet"), include_bytes!("../../tests/data/model-v1-array.parquet")];

/// Files that the library wrote, and the metadata of each.
static FILES: LazyLock<Vec<(Vec<u8>, String)>> = LazyLock::new(|| {
    let x = Float64Array::from(vec![0.0, 0.1, 9.0, 9.1, 5.0]);
    let y = Float64Array::from(vec![1.0, 1.1, 5.0, 5.1, -3.0]);
    let weight = Float64Array::from(vec![1.0, 2.0, 0.5, 0.0, 1.0]);
    let pairs: ArrayRef = Arc::new(Float64Array::from_iter_values((0..10).map(|i| f64::from(i * i % 7))));
    let columns: [(_, ArrayRef); 4] = [
        ("x", Arc::new(x)),
        ("y", Arc::new(y)),
        ("w", Arc::new(weight)),
        ("pairs", lists(pairs, Some(2), None).expect("five pairs")),
    ];
    let double = RecordBatch::try_from_iter(columns).expect("five rows");
    let single = |name| cast(double.column_by_name(name).expect("it is there"), &DataType::Float32).expect("numbers");
    let float = RecordBatch::try_from_iter([("x", single("x")), ("y", single("y"))]).expect("five rows");
    let pair = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Float32, true)), 2);
    let pairs = cast(double.column(3), &pair).expect("pairs of numbers");
    let float_pairs = RecordBatch::try_from_iter([("pairs", pairs)]).expect("five rows");
    let fits = [
        KMeans::new(2).fit_batches(&[float], ["x", "y"], None),
        KMeans::new(3).history(History::Full).fit_batches(std::slice::from_ref(&double), ["x", "y"], None),
        KMeans::new(2).fit_batches(std::slice::from_ref(&double), ["pairs"], None),
        KMeans::new(3).fit_batches(&[float_pairs], ["pairs"], None),
        KMeans::new(1).fit_batches(&[double], ["x"], Some("w")),
    ];
    let files = fits.into_iter().map(|fit| fit.and_then(|fit| fit.model.to_parquet()).expect("five rows can be clustered"));
    let old = OLD.iter().cycle().take(6).map(|file| file.to_vec());
    files
        .chain(old)
        .map(|bytes| {
            let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes.clone())).expect("a Parquet file");
            let pairs = reader.metadata().file_metadata().key_value_metadata().expect("metadata");
            let json = pairs.iter().find(|pair| pair.key == "polars-kmeans").and_then(|pair| pair.value.clone());
            (bytes, json.expect("a model's metadata"))
        })
        .collect()
});

/// The file of a recipe.
fn file(u: &mut Unstructured) -> Result<Vec<u8>> {
    let file = match u.int_in_range(0..=3)? {
        0 => return Ok(u.bytes(u.len())?.to_vec()),
        1 | 2 => u.choose(&FILES)?.0.clone(),
        _ => written(u)?,
    };
    if u.is_empty() { Ok(file) } else { edited(file, u) }
}

/// A file whose body and footer have been edited; its end tells the footer's new length, or does not.
fn edited(file: Vec<u8>, u: &mut Unstructured) -> Result<Vec<u8>> {
    let (rest, end) = file.split_at(file.len() - 8);
    let footer_len = u32::from_le_bytes([end[0], end[1], end[2], end[3]]) as usize;
    let (body, footer) = rest.split_at(rest.len() - footer_len);
    let (mut body, mut footer, mut end) = (body.to_vec(), footer.to_vec(), end.to_vec());
    let repair = u.ratio(7, 8)?;
    while !u.is_empty() {
        match u.int_in_range(0..=7)? {
            0..=3 => edit(&mut footer, u)?,
            4..=6 => edit(&mut body, u)?,
            _ => edit(&mut end, u)?,
        }
    }
    if repair {
        end = (footer.len() as u32).to_le_bytes().into_iter().chain(MAGIC.iter().copied()).collect();
    }
    Ok([body, footer, end].concat())
}

/// One edit anywhere.
fn edit(bytes: &mut Vec<u8>, u: &mut Unstructured) -> Result<()> {
    let range = range(bytes.len(), u)?;
    let at = range.start;
    match u.int_in_range(0..=6)? {
        // Other bytes.
        0 => {
            let new = u.bytes(range.len().min(u.len()).min(8))?;
            bytes[at..][..new.len()].copy_from_slice(new);
        }
        // A number, as Thrift writes it, in the place of one.
        1 | 2 => {
            let old = bytes[at..].iter().position(|byte| byte & 128 == 0).map_or(bytes.len() - at, |len| len + 1);
            let new = varint(*u.choose(&[0, 1, 2, 3, 4, 127, 128, 1 << 14, 1 << 31, (1 << 32) - 2, 1 << 33, u64::MAX])?);
            bytes.splice(at..at + old, new);
        }
        3 => {
            let new = u.bytes(u.len().min(8))?.to_vec();
            bytes.splice(at..at, new);
        }
        4 => drop(bytes.drain(range)),
        5 => {
            // Many times over: nested structs, long lists.
            let times = u.int_in_range(1..=64)?;
            let new = bytes[range].repeat(times);
            bytes.splice(at..at, new);
        }
        _ => bytes.truncate(at),
    }
    Ok(())
}

fn range(len: usize, u: &mut Unstructured) -> Result<Range<usize>> {
    let start = u.int_in_range(0..=len)?;
    Ok(start..start + u.int_in_range(0..=64.min(len - start))?)
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

// ---- files of Parquet's own writer ------------------------------------------------------------------------------

/// What a model's file might be mistaken for: mostly as a model has it, here and there not.
fn written(u: &mut Unstructured) -> Result<Vec<u8>> {
    let k = u.int_in_range(0..=5)?;
    let json = metadata(k, u)?;
    let cluster: ArrayRef = if odd(u)? { column(k, u)? } else { Arc::new(UInt32Array::from_iter_values(0..k as u32)) };
    let size = if odd(u)? { column(k, u)? } else { numbers(vec![Some(1.0); k], &DataType::UInt64)? };
    let inertia = if odd(u)? { column(k, u)? } else { numbers(vec![Some(0.5); k], &DataType::Float64)? };
    let mut columns = vec![("cluster", cluster), ("size", size), ("inertia", inertia)];
    if odd(u)? {
        columns.truncate(u.int_in_range(0..=2)?);
    }
    let dtype = if u.arbitrary()? { DataType::Float32 } else { DataType::Float64 };
    if u.arbitrary()? {
        let d = u.int_in_range(0..=4)?;
        let values = numbers(values(k * d, u)?, &dtype)?;
        let nulls = if odd(u)? { Some(NullBuffer::from((0..k).map(|i| i % 2 == 0).collect::<Vec<_>>())) } else { None };
        columns.push(("pairs", lists(values, if odd(u)? { None } else { Some(d) }, nulls)?));
    } else {
        for _ in 0..u.int_in_range(0..=4)? {
            let name = *u.choose(&["a", "b", "c", "d", "e", "", "cluster", "\u{1F980}"])?;
            columns.push((name, if odd(u)? { column(k, u)? } else { numbers(values(k, u)?, &dtype)? }));
        }
    }
    let nullable: bool = odd(u)?;
    let fields: Vec<Field> =
        columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), nullable || a.null_count() > 0)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let table = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).map_err(refused)?;

    let encoding =
        *u.choose(&[Encoding::PLAIN, Encoding::PLAIN, Encoding::BYTE_STREAM_SPLIT, Encoding::DELTA_BINARY_PACKED])?;
    let mut properties = WriterProperties::builder()
        .set_key_value_metadata(Some(vec![KeyValue::new("polars-kmeans".into(), json)]))
        .set_dictionary_enabled(odd(u)?)
        .set_compression(if odd(u)? { Compression::SNAPPY } else { Compression::UNCOMPRESSED })
        .set_statistics_enabled(if odd(u)? { EnabledStatistics::Page } else { EnabledStatistics::None })
        .set_writer_version(if odd(u)? { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 })
        .set_offset_index_disabled(odd(u)?);
    if odd(u)? {
        properties = properties.set_encoding(encoding);
    }
    if odd(u)? {
        properties = properties.set_data_page_row_count_limit(1).set_write_batch_size(1);
    }
    if odd(u)? {
        properties = properties.set_max_row_group_row_count(Some(2));
    }
    let options = ArrowWriterOptions::new().with_properties(properties.build()).with_skip_arrow_metadata(odd(u)?);
    let write = || {
        let mut writer = ArrowWriter::try_new_with_options(Vec::new(), table.schema(), options)?;
        writer.write(&table)?;
        writer.into_inner()
    };
    // The writer panics at encodings that do not fit a column.
    QUIET.set(true);
    let file = panic::catch_unwind(panic::AssertUnwindSafe(write));
    QUIET.set(false);
    file.ok().and_then(parquet::errors::Result::ok).ok_or(Error::IncorrectFormat)
}

/// One time in eight.
fn odd(u: &mut Unstructured) -> Result<bool> {
    u.ratio(1, 8)
}

/// A model's metadata for `k` centroids, edited or not.
fn metadata(k: usize, u: &mut Unstructured) -> Result<String> {
    let json = u.choose(&FILES)?.1.replace("\"format\":2", if odd(u)? { "\"format\":2" } else { "\"format\":1" });
    let (start, rest) = json.split_once("\"k\":").unwrap_or((&json, ""));
    let mut json = format!("{start}\"k\":{k}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit())).into_bytes();
    for _ in 0..u.int_in_range(0..=7u32)?.saturating_sub(4) {
        // A word, a number or a mark in the place of another.
        let range = range(json.len(), u)?;
        let new = *u.choose(&[
            "",
            "0",
            "1",
            "-1",
            "-0.0",
            "1e308",
            "1e999",
            "5e-324",
            "4294967296",
            "18446744073709551616",
            "null",
            "true",
            "\"\"",
            "\"k\":",
            "\"format\":",
            "\"inertia\":",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\\ud800",
            "[[[[[[[[",
            "{\"a\":{\"a\":",
        ])?;
        json.splice(range, new.bytes());
    }
    Ok(String::from_utf8_lossy(&json).into_owned())
}

/// A column of some type that is not the one that is wanted there.
fn column(k: usize, u: &mut Unstructured) -> Result<ArrayRef> {
    use DataType::*;
    let dtype = u.choose(&[UInt32, UInt64, Int32, Int64, UInt8, Float16, Float32, Float64, Boolean, Utf8, Binary, Date32])?;
    let array = numbers(values(k, u)?, dtype)?;
    if !odd(u)? {
        return Ok(array);
    }
    let field = Field::new("inner", array.data_type().clone(), true);
    Ok(Arc::new(StructArray::try_new(vec![field].into(), vec![array], None).map_err(refused)?))
}

fn values(n: usize, u: &mut Unstructured) -> Result<Vec<Option<f64>>> {
    let odd_values: bool = odd(u)?;
    let value = |i: usize, u: &mut Unstructured| match odd_values {
        false => Ok(Some(i as f64)),
        true => {
            Ok(*u.choose(&[None, Some(0.0), Some(-1e9), Some(1e300), Some(5e-324), Some(f64::NAN), Some(f64::INFINITY)])?)
        }
    };
    (0..n).map(|i| value(i, u)).collect()
}

fn numbers(values: Vec<Option<f64>>, dtype: &DataType) -> Result<ArrayRef> {
    let text = DataType::Utf8;
    let array: ArrayRef = Arc::new(Float64Array::from(values));
    let array = match dtype {
        DataType::Binary => cast(&array, &text).and_then(|array| cast(&array, dtype)),
        DataType::Date32 => cast(&array, &DataType::Int32).and_then(|array| cast(&array, dtype)),
        _ => cast(&array, dtype),
    };
    array.map_err(refused)
}

/// Lists of `width` values, or of 0, 1, 2 values and so on.
fn lists(values: ArrayRef, width: Option<usize>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let field = Arc::new(Field::new("item", values.data_type().clone(), values.null_count() > 0));
    match (width, nulls) {
        (Some(width @ 1..), nulls) => {
            let nulls = nulls.filter(|nulls| nulls.len() * width == values.len());
            Ok(Arc::new(FixedSizeListArray::try_new(field, width as i32, values, nulls).map_err(refused)?))
        }
        (_, nulls) => {
            let n = nulls.as_ref().map_or(2, NullBuffer::len);
            let lengths = (0..n).map(|i| if i + 1 == n { values.len() } else { 0 });
            Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), values, nulls).map_err(refused)?))
        }
    }
}

fn refused(_: arrow::error::ArrowError) -> Error {
    Error::IncorrectFormat
}

// ---- memory ---------------------------------------------------------------------------------------------------

#[global_allocator]
static PEAK: Peak = Peak { now: AtomicUsize::new(0), highest: AtomicUsize::new(0) };

/// The system's allocator, with a note of the most that was taken at a time.
struct Peak {
    now: AtomicUsize,
    highest: AtomicUsize,
}

impl Peak {
    /// Forgets what was; gives the bytes that are taken now.
    fn restart(&self) -> usize {
        let now = self.now.load(Relaxed);
        self.highest.store(now, Relaxed);
        now
    }

    fn add(&self, bytes: usize) {
        self.highest.fetch_max(self.now.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    }
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Peak {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.now.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size);
        self.now.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}
