//! Every way to pass data gives one hash, and it is the hash of the Python package: slices, frames, record batches, Array and
//! List columns, files.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Float64Array, RecordBatch};
use arrow::datatypes::{DataType as ArrowType, Field};
use polars::prelude::*;
use polars_kmeans::{Column as Values, Engine, Features, History, Init, KMeans, KMeansModel, Metric, RowOrder, Scale, SortBy};
use sha2::{Digest, Sha256};

const N: usize = 30_000;

/// Integers mixed by arithmetic: three features, and weights. tests/python/test_same_bits.py makes the same data.
fn data() -> ([Vec<f64>; 3], Vec<f64>) {
    let feature = |f: u64| {
        let value = |i: u64| {
            let mixed = (i + f * 1_000_003).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            (mixed >> 40) as f64 / (1u64 << 20) as f64 + (i % 7) as f64 * 4.0
        };
        (0..N as u64).map(value).collect()
    };
    ([feature(0), feature(1), feature(2)], (0..N).map(|i| (i % 5) as f64 / 4.0).collect())
}

/// The estimator of a golden line. tests/python/test_same_bits.py has the same options.
fn estimator(options: &str) -> KMeans {
    let plain = KMeans::new(9).seed(5).history(History::Full);
    match options {
        "plain" => plain,
        "cosine" => plain.metric(Metric::Cosine),
        "standard" => plain.scale(Scale::Standard),
        "robust-cosine" => plain.scale(Scale::Robust).metric(Metric::Cosine),
        "factors" => plain.scale(Scale::Factors([("x".to_owned(), 0.25), ("z".to_owned(), 3.0)].into())),
        "kmeans-parallel" => plain.init(Init::KMeansParallel).rounds(3),
        "afk-mc2" => plain.init(Init::AfkMc2).chain_length(50),
        "optimal" => plain.init(Init::Optimal),
        "init-sample" => plain.init_sample(Some(2_000)),
        "order-of-values" => plain.row_order(RowOrder::Values),
        "sorted-by-size" => plain.sort_by(SortBy::Size),
        _ => panic!("{options}"),
    }
}

/// Labels, centroid frame, inertia, iterations and history, as in tests/python/test_same_bits.py.
fn digest(labels: impl IntoIterator<Item = u32>, model: &KMeansModel) -> String {
    let mut hash = Sha256::new();
    labels.into_iter().for_each(|label| hash.update(label.to_le_bytes()));
    let mut add = |values: &mut dyn Iterator<Item = f64>| values.for_each(|value| hash.update(value.to_le_bytes()));
    add(&mut model.sizes().iter().map(|size| *size as f64));
    add(&mut model.inertias().iter().copied());
    let (centroids, d) = (model.centroid_values().unwrap(), model.n_features());
    for f in 0..d {
        add(&mut centroids.iter().copied().skip(f).step_by(d));
    }
    add(&mut [model.inertia(), f64::from(model.n_iter())].into_iter());
    for row in model.history_rows() {
        let inertia = row.inertia.unwrap_or(0.0);
        add(&mut [f64::from(row.iteration), row.changed as f64, row.shift, inertia].into_iter());
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn all(labels: &UInt32Chunked) -> Vec<u32> {
    labels.into_no_null_iter().collect()
}

/// The columns, the rows as lists in a column `e`, and the weights in a column `w`.
fn record_batch<'a, T: Engine>(
    dtype: &DataType,
    columns: impl ExactSizeIterator<Item = (&'static str, &'a Vec<f64>)>,
    rows: &[T],
    weights: &[f64],
) -> RecordBatch {
    let to_arrow = |values: Vec<f64>| -> ArrayRef {
        match dtype {
            DataType::Float32 => Arc::new(Float32Array::from_iter_values(values.into_iter().map(|v| v as f32))),
            _ => Arc::new(Float64Array::from(values)),
        }
    };
    let d = columns.len() as i32;
    let mut table: Vec<(&str, ArrayRef)> = columns.map(|(name, column)| (name, to_arrow(column.clone()))).collect();
    let flat = to_arrow(rows.iter().map(|v| v.to_f64()).collect());
    let item = Arc::new(Field::new("item", flat.data_type().clone(), true));
    assert!(matches!(item.data_type(), ArrowType::Float32 | ArrowType::Float64));
    table.push(("e", Arc::new(FixedSizeListArray::try_new(item, d, flat, None).unwrap())));
    table.push(("w", Arc::new(Float64Array::from(weights.to_vec()))));
    RecordBatch::try_from_iter(table).unwrap()
}

/// The hash of every way to pass the data, by name.
fn ways<T: Engine>(options: &str, weighted: bool, dtype: &DataType) -> Vec<(&'static str, String)> {
    let (columns, weights) = data();
    let names = if options == "optimal" { &["x"][..] } else { &["x", "y", "z"] };
    let d = names.len();
    // A factor is given for a column by its name.
    let lists = options != "factors";
    let estimator = || estimator(options);
    let columns = &columns[..d];
    let slices: Vec<Vec<T>> = columns.iter().map(|column| column.iter().map(|v| T::from_f64(*v)).collect()).collect();
    let rows: Vec<T> = (0..N).flat_map(|i| slices.iter().map(|column| column[i]).collect::<Vec<_>>()).collect();
    let mut ways = Vec::new();

    // Polars: columns, one Array column, one List column.
    let column = |(name, values): (&&str, &Vec<f64>)| Column::new((*name).into(), values).cast(dtype).unwrap();
    let mut frame: Vec<Column> = names.iter().zip(columns).map(column).collect();
    let w = Column::new("w".into(), &weights);
    let weight = weighted.then_some(&w);
    let fit = estimator().fit_columns(&frame, weight).unwrap();
    ways.push(("frame", digest(all(&fit.labels), &fit.model)));
    let flat = Series::new("e".into(), rows.iter().map(|v| v.to_f64()).collect::<Vec<_>>()).cast(dtype).unwrap();
    let shape = [ReshapeDimension::new_dimension(N as u64), ReshapeDimension::new_dimension(d as u64)];
    let array = flat.reshape_array(&shape).unwrap().into_column();
    let list = array.cast(&DataType::List(Box::new(dtype.clone()))).unwrap();
    for (name, column) in [("Array column", array), ("List column", list)].into_iter().filter(|_| lists) {
        let fit = estimator().fit_columns(&[column], weight).unwrap();
        ways.push((name, digest(all(&fit.labels), &fit.model)));
    }

    // A file: the model from it labels the rows again.
    let loaded = KMeansModel::from_bytes(&fit.model.to_bytes().unwrap()).unwrap();
    ways.push(("file", digest(all(&loaded.predict_columns(&frame).unwrap()), &loaded)));

    // Slices, by columns and by rows. They go straight to the engine, which knows no names.
    let weight_values = Values::from_slice(&weights);
    let weight = weighted.then_some(&weight_values);
    for (name, features) in [
        ("columns", Features::from_columns(slices.iter().map(|c| &c[..])).unwrap()),
        ("rows", Features::from_rows(&rows, d).unwrap()),
    ] {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let features = features.with_names(names).unwrap();
        let fitted = estimator().fit_features(&features, weight).unwrap();
        assert_eq!(
            fitted.model.centroids_in_units().unwrap().iter().map(|c| c.to_f64()).collect::<Vec<_>>(),
            fit.model.centroid_values().unwrap()
        );
        assert_eq!((fitted.model.sizes(), fitted.model.inertias()), (fit.model.sizes(), fit.model.inertias()));
        // Check that the slices' results equal those of the frame. Their model has no names, so it has no hash of its own.
        let (labels, own) = (fitted.labels.clone(), &fitted.model);
        assert_eq!((own.inertia(), own.n_iter()), (fit.model.inertia(), fit.model.n_iter()));
        for (own, framed) in own.history().iter().zip(fit.model.history_rows()) {
            assert_eq!((own.changed, own.shift, own.inertia), (framed.changed, framed.shift, framed.inertia));
        }
        ways.push((name, digest(labels, &fit.model)));
    }

    // Record batches of columns and of lists, cut at any place.
    let whole = record_batch(dtype, names.iter().copied().zip(columns), &rows, &weights);
    let batches = [whole.slice(0, 11_111), whole.slice(11_111, 1), whole.slice(11_112, N - 11_112)];
    let of_lists = lists.then_some(("batches of lists", &["e"][..]));
    for (name, names) in [("batches", names)].into_iter().chain(of_lists) {
        let fit = estimator().fit_batches(&batches, names, weighted.then_some("w")).unwrap();
        let labels: Vec<u32> = fit.labels.iter().flat_map(|labels| labels.values().to_vec()).collect();
        ways.push((name, digest(labels, &fit.model)));
    }

    // A feature is a feature wherever it stands in its chunk.
    frame.iter_mut().for_each(|column| {
        let mut cut = column.slice(0, 5);
        cut.append(&column.slice(5, N - 5)).unwrap();
        *column = cut;
    });
    let fit = estimator().fit_columns(&frame, weighted.then_some(&w)).unwrap();
    ways.push(("chunked frame", digest(all(&fit.labels), &fit.model)));
    ways
}

#[test]
fn every_way_in_gives_the_python_packages_hash() {
    let golden = include_str!("golden/python.txt");
    for line in golden.lines() {
        let (options, dtype, weight, hash) = match line.split(' ').collect::<Vec<_>>()[..] {
            [dtype, weight, hash] => ("plain", dtype, weight, hash),
            [dtype, weight, options, hash] => (options, dtype, weight, hash),
            _ => panic!("{line}"),
        };
        let ways = match dtype {
            "Float32" => ways::<f32>(options, weight == "w", &DataType::Float32),
            _ => ways::<f64>(options, weight == "w", &DataType::Float64),
        };
        for (way, got) in ways {
            assert_eq!(got, hash, "{way}: {line}");
        }
    }
}
