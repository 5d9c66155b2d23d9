//! Model files of any bytes: reading gives a model or an error, and no more memory than the file is worth.
//!
//! The input is a recipe for a file: see `recipe.rs`.
#![no_main]

mod recipe;

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, FixedSizeListArray, Float64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::{Corpus, fuzz_target};
use polars_kmeans::{FeatureLayout, History, KMeans, KMeansModel, Metric, Scale};

/// Larger models are not predicted with.
const SMALL: usize = 64;

fuzz_target!(
    init: {
        LazyLock::force(&FILES);
    },
    |data: &[u8]| -> Corpus {
        match recipe::file(&FILES, &mut Unstructured::new(data)) {
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
    let Ok(model) = recipe::in_room(bytes, KMeansModel::from_bytes) else { return };

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
