//! Model files of any bytes: reading gives a model or an error, and no more memory than the file is worth.
//!
//! Random bytes almost never have the right checksum, so the input is a recipe for a file:
//!
//! ```text
//! mode 0: the bytes themselves
//! mode 1: a file that the library wrote, edited in its head, its model and its table; the length and the checksum of the model
//!         are mostly set right afterwards
//! ```
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, FixedSizeListArray, Float64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::{Corpus, fuzz_target};
use polars_kmeans::{FeatureLayout, History, KMeans, KMeansModel, Metric, Scale};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes that reading may take at a time: so many, and so many for each byte of the file.
const ROOM: (usize, usize) = (4 << 20, 256);
/// Larger models are not predicted with.
const SMALL: usize = 64;
/// Where the parts of a file begin: the length of the model's body, its checksum, the body.
const LENGTH: usize = 4 + 13 + 1;
const CHECKSUM: usize = LENGTH + 8;
const BODY: usize = CHECKSUM + 16;

fuzz_target!(
    init: {
        LazyLock::force(&FILES);
    },
    |data: &[u8]| -> Corpus {
        match file(&mut Unstructured::new(data)) {
            Ok(bytes) => {
                check(&bytes);
                Corpus::Keep
            }
            Err(_) => Corpus::Reject,
        }
    }
);

/// Reads a file, and holds a model that comes of it to its word.
fn check(bytes: &[u8]) {
    let room = ROOM.0 + ROOM.1 * bytes.len();
    let before = PEAK.restart();
    let model = KMeansModel::from_bytes(bytes);
    let taken = PEAK.highest.load(Relaxed) - before;
    assert!(taken <= room, "reading took {taken} bytes, more than {room}");
    let Ok(model) = model else { return };

    // The first file may hold figures that are not saved.
    let bytes = model.to_bytes().expect("a model that was read can be written");
    let again = KMeansModel::from_bytes(&bytes).expect("and read again");
    assert_eq!(again.to_bytes().as_ref(), Ok(&bytes));
    let (k, d) = (model.n_clusters(), model.n_features());
    assert!(k > 0 && d > 0 && model.centroid_values().unwrap().iter().all(|c| c.is_finite()));
    if k <= SMALL && d <= SMALL {
        // A model of expressions does not say which columns it wants.
        let rows = rows(&model);
        let Ok(labels) = model.predict_batch(&rows) else {
            assert!(model.columns_to_find().is_err(), "rows of the model's columns have labels");
            return;
        };
        assert!(labels.iter().flatten().all(|label| (label as usize) < k));
        // Rows of zeros have no direction, so they may have no label either.
        assert!(labels.is_null(3));
        assert_eq!(model.transform_batch(&rows, false).expect("and distances").len(), labels.len());
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
        FeatureLayout::Columns(names) => (0..names.len()).map(|f| numbers(column(f), &dtype)).collect(),
        FeatureLayout::Array(_) => {
            let d = model.n_features();
            vec![lists(numbers((0..4).flat_map(|i| (0..d).map(move |f| column(f)[i])), &dtype), d)]
        }
    };
    RecordBatch::try_from_iter(model.names().iter().zip(arrays)).expect("columns of one length")
}

fn numbers(values: impl IntoIterator<Item = f64>, dtype: &DataType) -> ArrayRef {
    cast(&Float64Array::from_iter_values(values), dtype).expect("numbers")
}

fn lists(values: ArrayRef, width: usize) -> ArrayRef {
    let field = Arc::new(Field::new("item", values.data_type().clone(), false));
    Arc::new(FixedSizeListArray::try_new(field, width as i32, values, None).expect("lists"))
}

// ---- files ----------------------------------------------------------------------------------------------------

/// Files that the library wrote.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let batch = |dtype: &DataType| {
        let pairs = lists(numbers((0..10).map(|i| f64::from(i * i % 7)), dtype), 2);
        let columns: [(_, ArrayRef); 4] = [
            ("x", numbers([0.0, 0.1, 9.0, 9.1, 5.0], dtype)),
            ("y", numbers([1.0, 1.1, 5.0, 5.1, -3.0], dtype)),
            ("w", numbers([1.0, 2.0, 0.5, 0.0, 1.0], dtype)),
            ("pairs", pairs),
        ];
        RecordBatch::try_from_iter(columns).expect("five rows")
    };
    let [double, float] = [[batch(&DataType::Float64)], [batch(&DataType::Float32)]];
    let fits = [
        KMeans::new(2).fit_batches(&float, ["x", "y"], None),
        KMeans::new(3).history(History::Full).fit_batches(&double, ["x", "y"], None),
        KMeans::new(2).fit_batches(&double, ["pairs"], None),
        KMeans::new(3).fit_batches(&float, ["pairs"], None),
        KMeans::new(1).fit_batches(&double, ["x"], Some("w")),
        KMeans::new(2).scale(Scale::Standard).fit_batches(&double, ["x", "y"], None),
        KMeans::new(2).metric(Metric::Cosine).fit_batches(&float, ["x", "y"], None),
    ];
    let file = |model: KMeansModel| model.to_bytes();
    fits.into_iter().map(|fit| fit.and_then(|fit| file(fit.model)).expect("five rows can be clustered")).collect()
});

/// The file of a recipe.
fn file(u: &mut Unstructured) -> Result<Vec<u8>> {
    match u.int_in_range(0..=3)? {
        0 => Ok(u.bytes(u.len())?.to_vec()),
        _ => edited(u.choose(&FILES)?, u),
    }
}

/// A file that has been edited. The head tells the new length and the new checksum of the body, or does not.
fn edited(file: &[u8], u: &mut Unstructured) -> Result<Vec<u8>> {
    let length = u64::from_le_bytes(file[LENGTH..CHECKSUM].try_into().expect("8 bytes")) as usize;
    let (head, rest) = file.split_at(BODY);
    let (body, table) = rest.split_at(length);
    let (mut head, mut body, mut table) = (head.to_vec(), body.to_vec(), table.to_vec());
    let repair = u.ratio(7, 8)?;
    while !u.is_empty() {
        match u.int_in_range(0..=15)? {
            0 if !repair => edit(&mut head, u)?,
            1 => edit(&mut table, u)?,
            _ => edit(&mut body, u)?,
        }
    }
    if repair {
        head[LENGTH..CHECKSUM].copy_from_slice(&(body.len() as u64).to_le_bytes());
        head[CHECKSUM..].copy_from_slice(&xxh3_128(&body).to_le_bytes());
    }
    Ok([head, body, table].concat())
}

/// One edit anywhere.
fn edit(bytes: &mut Vec<u8>, u: &mut Unstructured) -> Result<()> {
    let range = range(bytes.len(), u)?;
    let at = range.start;
    match u.int_in_range(0..=7)? {
        // Other bytes.
        0 => {
            let new = u.bytes(range.len().min(u.len()).min(8))?;
            bytes[at..][..new.len()].copy_from_slice(new);
        }
        // A number, as postcard writes whole ones, in the place of one.
        1 | 2 => {
            let old = bytes[at..].iter().position(|byte| byte & 128 == 0).map_or(bytes.len() - at, |len| len + 1);
            let new = varint(*u.choose(&[0, 1, 2, 3, 4, 127, 128, 1 << 14, 1 << 31, (1 << 32) - 2, 1 << 33, u64::MAX])?);
            bytes.splice(at..at + old, new);
        }
        // A float in the place of one.
        3 => {
            let new = *u.choose(&[0.0, -0.0, -1.0, 1e300, 5e-324, f64::NAN, f64::INFINITY])?;
            let end = bytes.len().min(at + 8);
            bytes.splice(at..end, new.to_le_bytes());
        }
        4 => {
            let new = u.bytes(u.len().min(8))?.to_vec();
            bytes.splice(at..at, new);
        }
        5 => drop(bytes.drain(range)),
        // Many times over: long lists.
        6 => {
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
