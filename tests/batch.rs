//! arrow-rs record batches in and out: batches give the same results as slices. Also models as files.

#[path = "common/child.rs"]
mod child;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, FixedSizeListArray, Float32Array, Float64Array, Int16Array,
    Int64Array, ListArray, NullArray, RecordBatch, StringArray, UInt32Array, new_null_array,
};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use parquet::basic::ColumnOrder;
use parquet::file::reader::{FileReader, SerializedFileReader};
use polars_kmeans::{FeatureLayout, Features, KMeans, KMeansError, KMeansModel, NullPolicy};

use crate::child::in_child;

fn columns() -> [Vec<f32>; 2] {
    [7_919, 104_729].map(|prime| (0..500u32).map(|i| ((i * prime) % 101) as f32).collect())
}

fn batch(columns: impl IntoIterator<Item = (&'static str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

/// The columns as one batch, cut into three batches that share its buffers.
fn batches() -> Vec<RecordBatch> {
    let [x, y] = columns().map(|column| Arc::new(Float32Array::from(column)) as ArrayRef);
    let whole = batch([("x", x), ("y", y)]);
    vec![whole.slice(0, 77), whole.slice(77, 0), whole.slice(77, 423)]
}

fn values(array: &UInt32Array) -> Vec<Option<u32>> {
    array.iter().collect()
}

#[test]
fn float16_arrays_give_the_bits_of_float32() {
    // Multiples of 1/8 are values of float16.
    let wide = columns().map(|column| column.into_iter().map(|x| x / 8.0).collect::<Vec<_>>());
    let cast = |array: &dyn Array, dtype: DataType| arrow::compute::cast(array, &dtype).unwrap();
    let of = |dtype: DataType| {
        let [x, y] = wide.clone().map(|column| cast(&Float32Array::from(column), dtype.clone()));
        let whole = batch([("x", x), ("y", y)]);
        vec![whole.slice(0, 77), whole.slice(77, 0), whole.slice(77, 423)]
    };
    let mixed = vec![of(DataType::Float16)[0].clone(), of(DataType::Float32)[2].clone()];
    let estimator = KMeans::new(6).seed(2);
    let brief = |batches: &[RecordBatch]| {
        let fit = estimator.fit_batches(batches, ["x", "y"], None).unwrap();
        let labels: Vec<u32> = fit.labels.iter().flat_map(|labels| labels.values().to_vec()).collect();
        assert!(fit.model.is_f32());
        for (batch, labels) in batches.iter().zip(&fit.labels) {
            assert_eq!(&fit.model.predict_batch(batch).unwrap(), labels);
        }
        (labels, fit.model.inertia(), fit.model.centroids_batch().unwrap())
    };
    let expected = brief(&of(DataType::Float32));
    assert_eq!(brief(&of(DataType::Float16)), expected);
    assert_eq!(brief(&mixed), expected);

    // Rows as fixed-size lists, in two batches, the second with an offset.
    let rows = |dtype: DataType| {
        let values = (0..500).flat_map(|i| [wide[0][i], wide[1][i]]).collect::<Vec<f32>>();
        let item = Arc::new(arrow::datatypes::Field::new("item", dtype.clone(), true));
        let lists = FixedSizeListArray::new(item, 2, cast(&Float32Array::from(values), dtype), None);
        let whole = batch([("v", Arc::new(lists) as ArrayRef)]);
        vec![whole.slice(0, 100), whole.slice(100, 400)]
    };
    let brief = |batches: &[RecordBatch]| {
        let fit = estimator.fit_batches(batches, ["v"], None).unwrap();
        let labels: Vec<u32> = fit.labels.iter().flat_map(|labels| labels.values().to_vec()).collect();
        (labels, fit.model.inertia())
    };
    assert_eq!(brief(&rows(DataType::Float16)), (expected.0, expected.1));
    let mixed = vec![rows(DataType::Float16)[0].clone(), rows(DataType::Float32)[1].clone()];
    assert_eq!(brief(&mixed), brief(&rows(DataType::Float32)));
}

#[test]
fn batches_are_their_slices() {
    let [x, y] = columns();
    let slices = KMeans::new(6).fit_features(&Features::from_columns([&x[..], &y[..]]).unwrap(), None).unwrap();
    let fit = KMeans::new(6).fit_batches(&batches(), ["x", "y"], None).unwrap();
    let labels: Vec<u32> = fit.labels.iter().flat_map(|labels| labels.values().to_vec()).collect();
    assert_eq!(labels, slices.labels);
    assert_eq!(fit.labels.iter().map(Array::len).collect::<Vec<_>>(), [77, 0, 423]);
    assert_eq!(fit.model.inertia(), slices.model.inertia());
    for (batch, labels) in batches().iter().zip(&fit.labels) {
        assert_eq!(&fit.model.predict_batch(batch).unwrap(), labels);
        let distances = fit.model.transform_batch(batch, false).unwrap();
        assert_eq!((distances.len(), distances.value_length()), (batch.num_rows(), 6));
        let squared = fit.model.transform_batch(batch, true).unwrap();
        let [roots, squared] = [&distances, &squared].map(|lists| lists.values().as_primitive::<Float64Type>().values());
        assert!(roots.iter().copied().eq(squared.iter().map(|s| s.sqrt())));
    }
    let score = fit.model.score_batches(&batches(), None).unwrap();
    assert!((score + fit.model.inertia()).abs() <= 1e-12 * fit.model.inertia());
    let centroids = fit.model.centroids_batch().unwrap();
    let names: Vec<String> = centroids.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["cluster", "size", "inertia", "x", "y"]);
}

#[test]
fn arrays_are_viewed_not_copied() {
    // The peak is that of a whole process: other tests must not run in it.
    in_child("arrays_are_viewed_not_copied", || {
        // A fit of many rows and one iteration allocates memory for labels, but not for a second copy of 32 MB of features.
        let n = 4_000_000;
        let x: ArrayRef = Arc::new(Float64Array::from_iter_values((0..n).map(|i| f64::from(i % 1000))));
        let whole = batch([("x", x)]);
        let peak = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = peak();
        KMeans::new(2)
            .max_iter(1)
            .init(polars_kmeans::Init::Random)
            .n_init(polars_kmeans::Restarts::Count(1))
            .fit_batches(&[whole], ["x"], None)
            .unwrap();
        assert!(peak() - before < 26_000, "{} KiB more", peak() - before);
    });
}

#[test]
fn nulls_weights_and_lists() {
    let x: ArrayRef = Arc::new(Float32Array::from(vec![Some(0.0), None, Some(9.0), Some(f32::NAN), Some(9.5), Some(0.5)]));
    let w: ArrayRef = Arc::new(Int64Array::from(vec![1, 1, 2, 1, 1, 0]));
    let holes = batch([("x", x), ("w", w)]).slice(0, 6);
    match KMeans::new(2).fit_batches(std::slice::from_ref(&holes), ["x"], None).unwrap_err() {
        KMeansError::NotFinite { column, nulls, nans, .. } => assert_eq!((column.as_str(), nulls, nans), ("x", 1, 1)),
        other => panic!("{other}"),
    }
    let estimator = KMeans::new(2).null_policy(NullPolicy::Skip);
    let fit = estimator.fit_batches(&[holes.slice(0, 2), holes.slice(2, 4)], ["x"], Some("w")).unwrap();
    let labels: Vec<_> = fit.labels.iter().flat_map(values).collect();
    assert_eq!(labels.iter().map(Option::is_none).collect::<Vec<_>>(), [false, true, false, true, false, false]);
    assert_eq!(labels[0], labels[5]);
    let mut sizes = fit.model.sizes().to_vec();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 2], "a row of weight 0 has a label and does not count");
    // Nothing but nulls, of no type: a model answers as for numbers, and a fit refuses the column.
    let [untyped, typed] =
        [Arc::new(NullArray::new(3)) as ArrayRef, new_null_array(&DataType::Float32, 3)].map(|array| batch([("x", array)]));
    assert_eq!(fit.model.predict_batch(&untyped).unwrap(), fit.model.predict_batch(&typed).unwrap());
    assert_eq!(fit.model.predict_batch(&untyped).unwrap().null_count(), 3);
    let both = [holes.project(&[0]).unwrap(), untyped.clone()];
    assert_eq!(fit.model.score_batches(&both, None).unwrap(), fit.model.score_batches(&both[..1], None).unwrap());
    assert!(matches!(estimator.fit_batches(&[untyped], ["x"], None).unwrap_err(), KMeansError::UnsupportedDtype { .. }));

    let rows = vec![Some(vec![Some(0.0f32), Some(1.0)]), None, Some(vec![Some(5.0), Some(5.0)]), Some(vec![None, Some(1.0)])];
    let fixed: ArrayRef = Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows.clone(), 2));
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows));
    let [fixed, list] = [fixed, list].map(|array| {
        let table = batch([("e", array)]);
        let fit = estimator.fit_batches(&[table.slice(0, 1), table.slice(1, 3)], ["e"], None).unwrap();
        assert_eq!(fit.model.layout(), &FeatureLayout::Array("e".into()));
        assert_eq!(fit.model.transform_batch(&table, false).unwrap().null_count(), 2);
        (fit.labels.iter().flat_map(values).collect::<Vec<_>>(), fit.model.centroid_values().unwrap())
    });
    assert_eq!(fixed, list);
    assert_eq!(fixed.0.iter().filter(|label| label.is_none()).count(), 2);
    let uneven = ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(1.0)]), Some(vec![Some(1.0), Some(2.0)])]);
    let error = KMeans::new(1).fit_batches(&[batch([("e", Arc::new(uneven) as ArrayRef)])], ["e"], None).unwrap_err();
    assert!(matches!(error, KMeansError::LengthMismatch { expected: 1, got: 2, .. }), "{error}");
}

#[test]
fn dtypes_become_the_contracts() {
    let narrow = batch([
        ("a", Arc::new(Int16Array::from(vec![1, 2, 8, 9])) as ArrayRef),
        ("b", Arc::new(BooleanArray::from(vec![true, false, true, false]))),
        ("c", Arc::new(Int64Array::from(vec![1, 2, 3, 4]))),
        ("d", Arc::new(Decimal128Array::from(vec![150, 250, 350, 450]).with_precision_and_scale(10, 2).unwrap())),
        ("s", Arc::new(StringArray::from(vec!["a", "b", "c", "d"]))),
    ]);
    let fit = |columns: &[&str]| KMeans::new(2).fit_batches(std::slice::from_ref(&narrow), columns, None);
    assert!(fit(&["a", "b"]).unwrap().model.is_f32());
    assert!(!fit(&["a", "c"]).unwrap().model.is_f32());
    let decimals = fit(&["d"]).unwrap().model;
    assert!(decimals.centroid_values().unwrap().iter().all(|c| (1.5..=4.5).contains(c)));
    assert!(matches!(fit(&["a", "s"]), Err(KMeansError::UnsupportedDtype { .. })));
    assert!(matches!(fit(&["a", "z"]), Err(KMeansError::MissingColumn { .. })));
    assert!(matches!(fit(&[]), Err(KMeansError::NoFeatures)));
    assert!(matches!(KMeans::new(1).fit_batches(&[], ["a"], None), Err(KMeansError::NoRows { .. })));
}

#[test]
fn a_model_survives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.parquet");
    let rows = FixedSizeListArray::from_iter_primitive::<Float64Type, _, _>(
        (0..50).map(|i| Some(vec![Some(f64::from(i * i % 17) / 7.0), Some(f64::from(i % 5))])),
        2,
    );
    let rows = batch([("e", Arc::new(rows) as ArrayRef)]);
    let fits = [
        KMeans::new(6).seed(u64::MAX).tol(1e-3).fit_batches(&batches(), ["x", "y"], None).unwrap(),
        KMeans::new(4).fit_batches(&[rows], ["e"], None).unwrap(),
    ];
    for fit in fits {
        fit.model.save(&path).unwrap();
        let loaded = KMeansModel::load(&path).unwrap();
        assert_eq!(loaded.centroids_batch().unwrap(), fit.model.centroids_batch().unwrap());
        assert_eq!((loaded.layout(), loaded.settings()), (fit.model.layout(), fit.model.settings()));
        assert_eq!((loaded.inertia(), loaded.n_iter()), (fit.model.inertia(), fit.model.n_iter()));
        assert_eq!(loaded.history_rows().len(), fit.model.history_rows().len());
        for (loaded, saved) in loaded.history_rows().iter().zip(fit.model.history_rows()) {
            assert_eq!((loaded.changed, loaded.shift, loaded.inertia), (saved.changed, saved.shift, saved.inertia));
            assert_eq!(loaded.seconds, None);
        }
        assert_eq!(loaded.to_bytes().unwrap(), fit.model.to_bytes().unwrap(), "equal models are equal files");
    }
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let orders = reader.metadata().file_metadata().column_orders().unwrap();
    // Older readers know only this order.
    assert!(orders.iter().all(|order| matches!(order, ColumnOrder::TYPE_DEFINED_ORDER(_))), "{orders:?}");
    assert!(matches!(KMeansModel::load(folder.path().join("none")), Err(KMeansError::File { .. })));
    let nowhere = folder.path().join("none/model.parquet");
    let model = KMeansModel::load(&path).unwrap();
    assert!(matches!(model.save(nowhere), Err(KMeansError::File { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
    assert_eq!(model.centroids_batch().unwrap().column(3).data_type().to_string(), {
        let item = arrow::datatypes::Field::new("item", DataType::Float64, false);
        DataType::FixedSizeList(Arc::new(item), 2).to_string()
    });
}
