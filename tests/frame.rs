//! Polars frames in and out: frames give the same results as slices.

use polars::prelude::*;
use polars_kmeans::{
    FeatureLayout, Features, Init, KMeans, KMeansError, KMeansModel, Metric, NullPolicy, Scale, SortBy, TooFew,
};

fn frame() -> DataFrame {
    let x: Vec<f32> = (0..500).map(|i| ((i * 7919) % 101) as f32).collect();
    let y: Vec<f32> = (0..500).map(|i| ((i * 104_729) % 53) as f32).collect();
    df!("x" => x, "y" => y).unwrap()
}

fn labels(column: &UInt32Chunked) -> Vec<Option<u32>> {
    column.iter().collect()
}

fn values(df: &DataFrame, name: &str) -> Vec<f32> {
    df.column(name).unwrap().f32().unwrap().into_no_null_iter().collect()
}

#[test]
fn a_frame_is_its_slices() {
    let df = frame();
    let (x, y) = (values(&df, "x"), values(&df, "y"));
    let slices = KMeans::new(6).fit_features(&Features::from_columns([&x[..], &y[..]]).unwrap(), None).unwrap();
    let fit = KMeans::new(6).fit_columns(df.columns(), None).unwrap();
    assert_eq!(fit.labels.into_no_null_iter().collect::<Vec<_>>(), slices.labels);
    let centroids = fit.model.centroids().unwrap();
    assert_eq!(centroids.get_column_names(), ["cluster", "size", "inertia", "x", "y"]);
    let expected: Vec<f32> = slices.model.centroids().iter().copied().step_by(2).collect();
    assert_eq!(values(&centroids, "x"), expected);
    assert_eq!(fit.model.inertia(), slices.model.inertia());
    assert_eq!(fit.model.history().unwrap().height(), slices.model.n_iter() as usize);
}

#[test]
fn chunks_and_nulls_arrive() {
    let df = frame();
    let mut chunked = df.slice(0, 100);
    for start in [100, 101, 300] {
        let len = if start == 300 { 200 } else { [1, 199][(start - 100) as usize] };
        chunked.vstack_mut(&df.slice(start, len)).unwrap();
    }
    assert!(chunked.column("x").unwrap().n_chunks() > 1);
    let estimator = KMeans::new(5).seed(3);
    assert_eq!(
        estimator.fit(&chunked, ["x", "y"]).unwrap().centroids().unwrap(),
        estimator.fit(&df, ["x", "y"]).unwrap().centroids().unwrap()
    );

    let hole = df!("x" => [None, Some(1e20f32)], "y" => [Some(f32::NAN), None]).unwrap();
    let dirty = chunked.vstack(&hole).unwrap();
    match estimator.fit(&dirty, ["x", "y"]).unwrap_err() {
        KMeansError::NotFinite { column, nulls, .. } => assert_eq!((column.as_str(), nulls), ("x", 1)),
        other => panic!("{other}"),
    }
    let fit = estimator.clone().null_policy(NullPolicy::Skip).fit_columns(dirty.columns(), None).unwrap();
    assert_eq!(fit.labels.null_count(), 2);
    let clean = estimator.fit_columns(df.columns(), None).unwrap();
    assert_eq!(labels(&fit.labels)[..500], labels(&clean.labels));
    assert_eq!(labels(&fit.model.predict(&dirty).unwrap()), labels(&fit.labels));
}

#[test]
fn structs_of_a_fit_are_those_of_its_model() {
    let clean = frame();
    let dirty = clean.vstack(&df!("x" => [None, Some(1.0f32)], "y" => [Some(2.0f32), Some(f32::NAN)]).unwrap()).unwrap();
    // A row that is left out for its weight has features all the same.
    let weights = |n: usize| Column::new("w".into(), (0..n).map(|i| (i != 3).then_some(i as f64)).collect::<Vec<_>>());
    for (df, weighted, k) in [(&clean, false, 5), (&clean, false, 1), (&dirty, false, 40), (&dirty, true, 5), (&dirty, true, 1)]
    {
        let weights = weighted.then(|| weights(df.height()));
        let estimator = KMeans::new(k).seed(2).null_policy(NullPolicy::Skip);
        let (model, structs) = estimator.fit_structs(df.columns(), weights.as_ref()).unwrap();
        let fit = estimator.fit_columns(df.columns(), weights.as_ref()).unwrap();
        assert_eq!(model.centroids().unwrap(), fit.model.centroids().unwrap());
        let expected = model.predict_structs(df.columns()).unwrap();
        let expected = match weighted {
            false => expected.into_series(),
            true => {
                let kept = fit.labels.is_not_null();
                let nulls = Series::full_null("".into(), df.height(), expected.dtype());
                expected.into_series().zip_with(&kept, &nulls).unwrap()
            }
        };
        let structs = structs.into_series();
        assert!(structs.equals_missing(&expected), "{weighted}, {k}: {structs:?} {expected:?}");
        assert_eq!(structs.null_count(), fit.labels.null_count());
        let cluster = structs.struct_().unwrap().field_by_name("cluster").unwrap();
        assert_eq!(labels(cluster.u32().unwrap()), labels(&fit.labels));
    }
}

#[test]
fn dtypes_become_the_contracts() {
    let integers = df!("a" => [1i16, 2, 8, 9], "b" => [true, false, true, false]).unwrap();
    assert!(KMeans::new(2).fit(&integers, ["a", "b"]).unwrap().is_f32());
    let wide = df!("a" => [1i16, 2, 8, 9], "b" => [1i64, 2, 3, 4]).unwrap();
    assert!(!KMeans::new(2).fit(&wide, ["a", "b"]).unwrap().is_f32());
    let text = df!("a" => ["x", "y"]).unwrap();
    assert!(matches!(KMeans::new(1).fit(&text, ["a"]), Err(KMeansError::UnsupportedDtype { .. })));
    let reserved = df!("size" => [1.0, 2.0]).unwrap();
    assert!(matches!(KMeans::new(1).fit(&reserved, ["size"]), Err(KMeansError::ReservedName { .. })));
    assert!(matches!(KMeans::new(1).fit(&reserved, ["size", "size"]), Err(KMeansError::DuplicateName { .. })));
    assert!(matches!(KMeans::new(1).fit(&reserved, ["nowhere"]), Err(KMeansError::MissingColumn { .. })));
    assert!(matches!(KMeans::new(1).fit(&reserved, [] as [&str; 0]), Err(KMeansError::NoFeatures)));
}

/// The columns of the frame as Float16, in several chunks, with a null.
fn float16_frame() -> DataFrame {
    let one = |name: &str| frame().column(name).unwrap().cast(&DataType::Float16).unwrap();
    let df = DataFrame::new(500, vec![one("x"), one("y")]).unwrap();
    let hole = df!("x" => [None::<f32>], "y" => [1.0f32]).unwrap();
    let hole = DataFrame::new(1, hole.columns().iter().map(|column| column.cast(&DataType::Float16).unwrap()).collect());
    df.slice(0, 123).vstack(&hole.unwrap()).unwrap().vstack(&df.slice(123, 377)).unwrap()
}

#[test]
fn float16_columns_give_the_bits_of_float32() {
    let narrow = float16_frame();
    assert_eq!((narrow.column("x").unwrap().dtype(), narrow.column("x").unwrap().n_chunks()), (&DataType::Float16, 3));
    let cast = |dtype: DataType| {
        let columns = narrow.columns().iter().map(|column| column.cast(&dtype).unwrap()).collect();
        DataFrame::new(501, columns).unwrap()
    };
    let estimator = KMeans::new(5).seed(3).null_policy(NullPolicy::Skip);
    for (wide, other) in [(cast(DataType::Float32), None), (cast(DataType::Float64), Some("z"))] {
        // With a float64 column all features are float64.
        let with = |df: &DataFrame| match other {
            Some(name) => df.hstack(&[Column::new(name.into(), (0..501).map(f64::from).collect::<Vec<_>>())]).unwrap(),
            None => df.clone(),
        };
        let (narrow, wide) = (with(&narrow), with(&wide));
        let [a, b] = [&narrow, &wide].map(|df| estimator.fit_columns(df.columns(), None).unwrap());
        assert_eq!(labels(&a.labels), labels(&b.labels));
        assert_eq!(a.model.centroids().unwrap(), b.model.centroids().unwrap());
        assert_eq!(a.model.inertia(), b.model.inertia());
        assert_eq!(a.model.is_f32(), other.is_none());
        assert_eq!(labels(&a.model.predict(&narrow).unwrap()), labels(&a.labels));
        assert_eq!(a.model.transform(&narrow, false).unwrap(), b.model.transform(&wide, false).unwrap());
        let [narrow, wide] = [&narrow, &wide].map(|df| df.slice(0, 123));
        assert_eq!(a.model.score(&narrow).unwrap(), b.model.score(&wide).unwrap());
        let error = |df: &DataFrame| KMeans::new(2).fit(&df.slice(100, 50), ["x", "y"]).unwrap_err().to_string();
        let whole = [cast(DataType::Float16), cast(DataType::Float32)];
        assert_eq!(error(&whole[0]), error(&whole[1]));
    }
}

#[test]
fn float16_arrays_and_lists_give_the_bits_of_float32() {
    // Whole numbers up to 101, nulls and an infinity: all of them are values of Float16.
    let df = frame().vstack(&df!("x" => [Some(1.0f32), None], "y" => [Some(f32::INFINITY), Some(2.0)]).unwrap()).unwrap();
    let estimator = KMeans::new(5).seed(1).null_policy(NullPolicy::Skip);
    let half = Box::new(DataType::Float16);
    for (wide, dtype) in rows_of(&df).into_iter().zip([DataType::Array(half.clone(), 2), DataType::List(half)]) {
        let narrow = vec![wide.column("e").unwrap().cast(&dtype).unwrap()];
        assert_eq!(narrow[0].dtype(), &dtype);
        let [fit, expected] = [&narrow[..], wide.columns()].map(|columns| estimator.fit_columns(columns, None).unwrap());
        assert_eq!(labels(&fit.labels), labels(&expected.labels), "{dtype}");
        assert_eq!(fit.model.inertia(), expected.model.inertia());
        assert_eq!(fit.model.centroids().unwrap(), expected.model.centroids().unwrap());
        assert_eq!(labels(&fit.model.predict_columns(&narrow).unwrap()), labels(&fit.labels));
    }
}

#[test]
fn float64_rows_under_a_float32_model_are_not_cast_down() {
    let df = df!("x" => [0.0f32, 1.0]).unwrap();
    let model = KMeans::new(2).fit(&df, ["x"]).unwrap();
    // Just above and just below the midpoint. Float32 cannot tell them apart.
    let close = df!("x" => [0.5 - 1e-12, 0.5 + 1e-12]).unwrap();
    let labels: Vec<u32> = model.predict(&close).unwrap().into_no_null_iter().collect();
    let ends: Vec<u32> = model.predict(&df).unwrap().into_no_null_iter().collect();
    assert_eq!(labels, ends);
}

#[test]
fn a_model_survives_its_bytes() {
    // One row is zero, so it has no direction.
    let (df, plain) = (frame(), KMeans::new(4).null_policy(NullPolicy::Skip));
    for estimator in [
        plain.clone(),
        plain.clone().metric(Metric::Cosine).scale(Scale::Standard),
        plain.clone().init(Init::KMeansParallel).rounds(2),
        plain.clone().init(Init::AfkMc2).init_sample(Some(9)),
    ] {
        let model = estimator.fit(&df, ["x", "y"]).unwrap();
        let bytes = model.to_wire().unwrap();
        assert_eq!(*KMeansModel::from_wire(&bytes).unwrap(), model);
        for cut in [0, 5, 20, bytes.len() - 1] {
            assert!(matches!(KMeansModel::from_wire(&bytes[..cut]), Err(KMeansError::InvalidModel { .. })));
        }
    }
}

#[test]
fn transform_is_an_array_of_distances() {
    let df = frame();
    let model = KMeans::new(4).fit(&df, ["x", "y"]).unwrap();
    let hole = df.vstack(&df!("x" => [None::<f32>], "y" => [1.0f32]).unwrap()).unwrap();
    let distances = model.transform(&hole, false).unwrap();
    assert_eq!(distances.dtype(), &DataType::Array(Box::new(DataType::Float64), 4));
    assert_eq!((distances.len(), distances.null_count()), (501, 1));
    let flat = |series: &Series| series.array().unwrap().get_inner().f64().unwrap().clone();
    let squared = model.transform(&hole, true).unwrap();
    assert_eq!((squared.name().as_str(), squared.null_count()), ("squared_distances", 1));
    let roots: Vec<_> = flat(&squared).iter().map(|s| s.map(f64::sqrt)).collect();
    assert_eq!(roots, flat(&distances).iter().collect::<Vec<_>>());
    let score = model.score(&df).unwrap();
    assert!((score + model.inertia()).abs() <= 1e-12 * model.inertia());
}

/// The rows of a frame as one Array column, in chunks of which some are empty, and as one List column.
fn rows_of(df: &DataFrame) -> [DataFrame; 2] {
    let d = df.width() as u64;
    let values: Vec<Option<f32>> = {
        let columns: Vec<_> = df.columns().iter().map(|c| c.f32().unwrap().clone()).collect();
        (0..df.height()).flat_map(|i| columns.iter().map(move |c| c.get(i)).collect::<Vec<_>>()).collect()
    };
    let series = Series::new("e".into(), values);
    let shape = [ReshapeDimension::new_dimension(df.height() as u64), ReshapeDimension::new_dimension(d)];
    let array = series.reshape_array(&shape).unwrap();
    let mut chunked = array.slice(0, 0);
    for (start, len) in [(0, 3), (3, 0), (3, 200), (203, df.height() - 203)] {
        chunked.append(&array.slice(start as i64, len)).unwrap();
    }
    let list = chunked.cast(&DataType::List(Box::new(DataType::Float32))).unwrap();
    [chunked, list].map(|series| DataFrame::new(series.len(), vec![series.into_column()]).unwrap())
}

#[test]
fn one_column_of_rows_is_the_columns() {
    let df = frame().vstack(&df!("x" => [Some(1.0f32), None], "y" => [Some(f32::INFINITY), Some(2.0)]).unwrap()).unwrap();
    let estimator = KMeans::new(5).null_policy(NullPolicy::Skip);
    let columns = estimator.fit_columns(df.columns(), None).unwrap();
    for rows in rows_of(&df) {
        let fit = estimator.fit_columns(rows.columns(), None).unwrap();
        assert_eq!(labels(&fit.labels), labels(&columns.labels));
        assert_eq!(fit.model.layout(), &FeatureLayout::Array("e".into()));
        let centroids = fit.model.centroids().unwrap();
        assert_eq!(centroids.get_column_names(), ["cluster", "size", "inertia", "e"]);
        assert_eq!(centroids.column("e").unwrap().dtype(), &DataType::Array(Box::new(DataType::Float32), 2));
        assert_eq!(fit.model.centroid_values().unwrap(), columns.model.centroid_values().unwrap());
        assert_eq!(labels(&fit.model.predict(&rows).unwrap()), labels(&fit.labels));
        assert_eq!(labels(&columns.model.predict_columns(rows.columns()).unwrap()), labels(&fit.labels));
        assert_eq!(fit.model.transform(&rows, false).unwrap().null_count(), 2);
    }
    match KMeans::new(2).fit_columns(rows_of(&df)[0].columns(), None).unwrap_err() {
        KMeansError::NotFinite { column, nulls, .. } => assert_eq!((column.as_str(), nulls), ("e[0]", 1)),
        other => panic!("{other}"),
    }
}

#[test]
fn null_rows_and_uneven_lists() {
    let lists = |rows: &[Option<&[f64]>]| {
        let rows: ListChunked = rows.iter().map(|row| row.map(|row| Series::new("".into(), row))).collect();
        DataFrame::new(rows.len(), vec![rows.with_name("e".into()).into_column()]).unwrap()
    };
    let holes = lists(&[Some(&[0.0, 1.0]), None, Some(&[9.0, 9.0]), Some(&[0.0, 1.5])]);
    let fit = KMeans::new(2).null_policy(NullPolicy::Skip).fit_columns(holes.columns(), None).unwrap();
    assert_eq!(fit.labels.null_count(), 1);
    assert_eq!(labels(&fit.model.predict(&holes).unwrap()), labels(&fit.labels));
    let nulls = lists(&[None, None]).column("e").unwrap().cast(&DataType::List(Box::new(DataType::Float64))).unwrap();
    assert_eq!(fit.model.predict_columns(std::slice::from_ref(&nulls)).unwrap().null_count(), 2);
    let uneven = lists(&[Some(&[0.0, 1.0]), Some(&[2.0])]);
    let error = KMeans::new(1).fit(&uneven, ["e"]).unwrap_err();
    assert!(matches!(error, KMeansError::LengthMismatch { expected: 2, got: 1, .. }), "{error}");
    let error = fit.model.predict(&uneven).unwrap_err();
    assert!(matches!(error, KMeansError::WidthMismatch { expected: 2, got: 1, .. }), "{error}");
    let wide = lists(&[Some(&[0.0, 1.0, 2.0])]);
    assert!(matches!(fit.model.predict(&wide), Err(KMeansError::WidthMismatch { expected: 2, got: 3, .. })));
    let beside = df!("x" => [1.0, 2.0]).unwrap().hstack(uneven.columns()).unwrap();
    assert!(matches!(KMeans::new(1).fit(&beside, ["x", "e"]), Err(KMeansError::UnsupportedDtype { .. })));
}

#[test]
fn names_are_no_patterns() {
    let df = df!("^b.*$" => [0.0, 0.1, 5.0, 5.1], "b1" => [9.0, 0.0, 9.0, 0.0], "*" => [1.0, 1.5, 0.5, 1.1]).unwrap();
    let model = KMeans::new(2).fit_weighted(&df, ["^b.*$"], "*").unwrap();
    assert_eq!(model.names(), ["^b.*$"]);
    let column = df.column("^b.*$").unwrap().clone();
    assert_eq!(labels(&model.predict(&df).unwrap()), labels(&model.predict_columns(&[column]).unwrap()));
    let gone = df.drop("^b.*$").unwrap();
    assert!(matches!(model.predict(&gone), Err(KMeansError::MissingColumn { .. })));
    let nul = df!("a\0b" => [0.0, 1.0]).unwrap();
    assert!(matches!(KMeans::new(1).fit(&nul, ["a\0b"]), Err(KMeansError::NulInName { .. })));
}

#[test]
fn rows_without_an_answer_are_null_structs() {
    let df = df!("x" => [Some(0.0), None, Some(5.0), Some(f64::NAN)]).unwrap();
    let model = KMeans::new(2).null_policy(NullPolicy::Skip).fit(&df, ["x"]).unwrap();
    let structs = model.predict_structs(df.columns()).unwrap().into_series();
    assert_eq!(structs.is_null().iter().map(Option::unwrap).collect::<Vec<_>>(), [false, true, false, true]);
    let frame = structs.struct_().unwrap().clone().unnest();
    assert_eq!(frame, model.predict_distances(df.columns()).unwrap());
}

#[test]
fn clusters_of_a_frame_are_numbered() {
    let x: Vec<f64> = (0..90).map(|i| f64::from([7, 1, 1, 4, 4, 4][i % 6]) + f64::from(i as u32 % 5) / 16.0).collect();
    let df = df!("x" => &x, "y" => x.iter().map(|x| -x).collect::<Vec<_>>()).unwrap();
    for (by, column) in [(SortBy::Size, "size"), (SortBy::Feature("y".into()), "y")] {
        let estimator = KMeans::new(3).seed(4).sort_by(by);
        let fit = estimator.fit_columns(df.columns(), None).unwrap();
        let keys = fit.model.centroids().unwrap().column(column).unwrap().cast(&DataType::Float64).unwrap();
        let keys: Vec<f64> = keys.f64().unwrap().into_no_null_iter().collect();
        assert!(keys.is_sorted(), "{column}: {keys:?}");
        assert_eq!(
            fit.model.predict(&df).unwrap().into_no_null_iter().collect::<Vec<_>>(),
            fit.labels.into_no_null_iter().collect::<Vec<_>>()
        );
        assert_eq!(fit.model.settings().sort_by.as_deref(), Some(column));
        let again = KMeansModel::from_wire(&fit.model.clone().into_wire().unwrap()).unwrap();
        assert_eq!(*again, fit.model);
    }
    let few = df!("x" => [3.0, 1.0, 3.0]).unwrap();
    let model = KMeans::new(9).too_few(TooFew::Fewer).fit(&few, ["x"]).unwrap();
    assert_eq!(
        model.centroids().unwrap().column("x").unwrap().f64().unwrap().into_no_null_iter().collect::<Vec<_>>(),
        [3.0, 1.0]
    );
    assert!(model.seconds().is_some_and(|seconds| seconds.total() > 0.0));
}

#[test]
fn columns_that_are_no_numbers_say_what_to_do() {
    let refused = |column: Column| KMeans::new(1).fit_columns(&[column], None).unwrap_err().to_string();
    let integers = Column::new("t".into(), [1i64, 2]);
    for (column, what) in [
        (integers.cast(&DataType::Int32).unwrap().cast(&DataType::Date).unwrap(), "dt.epoch"),
        (integers.cast(&DataType::Datetime(TimeUnit::Microseconds, None)).unwrap(), "dt.epoch"),
        (integers.cast(&DataType::Duration(TimeUnit::Microseconds)).unwrap(), "dt.total_seconds()"),
        (integers.cast(&DataType::Time).unwrap(), "cast(pl.Int64)"),
        (integers.cast(&DataType::String).unwrap(), "frame.to_dummies(\"t\")"),
    ] {
        let error = refused(column);
        assert!(error.contains(what), "{error}");
    }
}
