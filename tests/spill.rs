//! Frames that follow one another, whose rows go to a file: the same models as those of one frame in memory.

use std::path::Path;

use polars::prelude::*;
use polars_kmeans::{Cancel, ErrorKind, KMeans, KMeansError, KMeansModel, NullPolicy, RowOrder, Spill};

const N: i32 = 4_000;

fn frame() -> DataFrame {
    let number = |i: i32, by: i32, of: i32| (i.wrapping_mul(by)).rem_euclid(of);
    let column = |by, of| (0..N).map(|i| number(i, by, of)).collect::<Vec<_>>();
    let floats = |by, of| column(by, of).into_iter().map(|v| v as f32 / 8.0).collect::<Vec<_>>();
    let gaps: Vec<Option<f64>> = column(7_919, 101).into_iter().map(|v| (v != 5).then(|| f64::from(v) / 3.0)).collect();
    let mut frame = df!(
        "x" => floats(7_919, 101), "y" => floats(104_729, 53), "gaps" => gaps, "i" => column(31_337, 1_000), "w" => column(3, 4)
    )
    .unwrap();
    let lists = |from: i32| {
        let list = |i: i32| (i >= from).then(|| Series::new("".into(), [i as f32, number(i, 13, 29) as f32]));
        Series::new("list".into(), (0..N).map(list).collect::<Vec<_>>())
    };
    frame.with_column(lists(0).into_column()).unwrap();
    frame.with_column(lists(N / 2).with_name("late".into()).into_column()).unwrap();
    let array = DataType::Array(Box::new(DataType::Float32), 2);
    let arrays = lists(0).cast(&array).unwrap().with_name("array".into());
    frame.with_column(arrays.into_column()).unwrap();
    let half = frame.column("x").unwrap().cast(&DataType::Float16).unwrap().with_name("half".into());
    frame.with_column(half).unwrap();
    frame
}

/// Batches of very different sizes, some of them empty.
fn batches(frame: &DataFrame) -> Vec<PolarsResult<DataFrame>> {
    let (mut start, mut batches) = (0, Vec::new());
    for size in [0, 1, 700, 0, 30, 1_269, 5, 1_000].into_iter().cycle() {
        if start >= frame.height() {
            return batches;
        }
        batches.push(Ok(frame.slice(start as i64, size)));
        start += size;
    }
    batches
}

fn nothing_is_left(folder: &Path) -> bool {
    folder.read_dir().unwrap().next().is_none()
}

#[test]
fn same_model_in_memory_and_from_a_file() {
    let (frame, folder) = (frame(), tempfile::tempdir().unwrap());
    let estimator = KMeans::new(4).seed(3).max_iter(5);
    let skip = estimator.clone().null_policy(NullPolicy::Skip);
    let cases: [(&[&str], Option<&str>, &KMeans); 9] = [
        (&["x", "y"], None, &estimator),
        (&["x", "i"], Some("w"), &estimator),
        (&["gaps", "x"], Some("w"), &skip),
        (&["list"], None, &estimator),
        (&["late"], Some("w"), &skip),
        (&["array"], None, &estimator),
        (&["half"], None, &estimator),
        (&["half", "i"], None, &estimator),
        (&["x"], Some("x"), &estimator),
    ];
    for (columns, weight, estimator) in cases {
        let expected = match weight {
            Some(weight) => estimator.fit_weighted(&frame, columns, weight),
            None => estimator.fit(&frame, columns),
        };
        let expected = expected.unwrap();
        for limit in [0, 10_000, 1 << 40] {
            let spill = Spill::new().memory_limit(limit).directory(folder.path());
            let model = estimator.fit_frames(batches(&frame), columns, weight, &spill).unwrap();
            assert!(same(&model, &expected), "{columns:?}, {weight:?}, {limit}");
            assert!(nothing_is_left(folder.path()));
        }
        assert!(same(&estimator.fit_frames(batches(&frame), columns, weight, &Spill::new()).unwrap(), &expected));
    }
}

fn same(a: &KMeansModel, b: &KMeansModel) -> bool {
    a.centroids().unwrap().equals(&b.centroids().unwrap()) && a.n_iter() == b.n_iter() && a.inertia() == b.inertia()
}

#[test]
fn errors_are_those_of_one_frame() {
    let frame = frame();
    let spill = Spill::new().memory_limit(0);
    let estimator = KMeans::new(4);
    for columns in [&["gaps"][..], &["late"], &["x", "list"], &["x", "x"], &["none"]] {
        let expected = estimator.fit(&frame, columns).unwrap_err();
        assert_eq!(estimator.fit_frames(batches(&frame), columns, None, &spill).unwrap_err(), expected);
    }
    let empty = frame.clear();
    for columns in [&["x"][..], &["list"]] {
        let expected = estimator.fit(&empty, columns).unwrap_err();
        assert_eq!(estimator.fit_frames([Ok(empty.clone())], columns, None, &spill).unwrap_err(), expected);
    }
    let ragged = |values: &[f32]| df!("list" => [Series::new("".into(), values)]);
    let uneven = [ragged(&[1.0, 2.0]), ragged(&[1.0])];
    let what = "every list of column \"list\"".into();
    let expected = KMeansError::LengthMismatch { what, expected: 2, got: 1 };
    assert_eq!(estimator.fit_frames(uneven, ["list"], None, &spill).unwrap_err(), expected);
    let none: [PolarsResult<DataFrame>; 0] = [];
    assert_eq!(estimator.fit_frames(none, ["x"], None, &spill).unwrap_err(), KMeansError::NoRows { skipped: None });
    let failing = [Ok(frame.clone()), Err(PolarsError::ComputeError("the query failed".into()))];
    assert!(estimator.fit_frames(failing, ["x"], None, &spill).unwrap_err().to_string().contains("the query failed"));
    let other = [Ok(frame.clone()), df!("x" => ["text"])];
    assert!(matches!(estimator.fit_frames(other, ["x"], None, &spill).unwrap_err(), KMeansError::UnsupportedDtype { .. }));
}

#[test]
fn what_cannot_be_in_a_file_is_refused() {
    let frame = frame();
    let spill = Spill::new().memory_limit(0);
    let sorted = KMeans::new(4).row_order(RowOrder::Values);
    let error = sorted.fit_frames(batches(&frame), ["x"], None, &spill).unwrap_err();
    assert!(matches!(error, KMeansError::InvalidOption { option: "row_order", .. }), "{error}");
    let held = sorted.fit_frames(batches(&frame), ["x"], None, &Spill::new()).unwrap();
    assert!(same(&held, &sorted.fit(&frame, ["x"]).unwrap()));
    let missing = Spill::new().directory("no such folder");
    let error = KMeans::new(4).fit_frames(batches(&frame), ["x"], None, &missing).unwrap_err();
    assert_eq!(error.to_string(), "spill_directory: expected a folder, got \"no such folder\"");
}

#[test]
fn a_cancelled_query_leaves_nothing() {
    let (frame, folder, cancel) = (frame(), tempfile::tempdir().unwrap(), Cancel::new());
    let endless = (0..).map(|i| {
        if i == 100 {
            cancel.cancel();
        }
        Ok(frame.clone())
    });
    let spill = Spill::new().memory_limit(0).directory(folder.path());
    let error = KMeans::new(4).cancel(&cancel).fit_frames(endless, ["x"], None, &spill).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(nothing_is_left(folder.path()));
}
