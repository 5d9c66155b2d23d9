//! Bad input gives its own error. The error says what was expected and what was got.

use polars_kmeans::{
    Chunk, Column, Device, ErrorKind, Features, Init, KMeans, KMeansError, NullPolicy, Place, Restarts, RowOrder, Validity,
};

fn refused(estimator: &KMeans, x: &[f64], weights: Option<&[f64]>) -> KMeansError {
    let weights = weights.map(Column::from_slice);
    estimator.fit_features(&Features::from_columns([x]).unwrap(), weights.as_ref()).unwrap_err()
}

#[test]
fn every_refusal_names_what_is_wrong() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let two = KMeans::new(2);
    for (estimator, option) in [
        (KMeans::new(0), "k"),
        (two.clone().max_iter(0), "max_iter"),
        (two.clone().tol(-1.0), "tol"),
        (two.clone().tol(f64::NAN), "tol"),
        (two.clone().tol_labels(f64::INFINITY), "tol_labels"),
        (two.clone().n_init(Restarts::Count(0)), "n_init"),
        (two.clone().init(Init::Given(vec![1.0, f64::NAN])), "init"),
    ] {
        let error = refused(&estimator, &x, None);
        assert!(matches!(&error, KMeansError::InvalidOption { option: name, .. } if *name == option), "{error}");
        assert!(error.to_string().contains("expected") && error.to_string().contains("got"), "{error}");
    }
    assert!(matches!(refused(&KMeans::new(5), &x, None), KMeansError::TooFewDistinct { k: 5, rows: 4 }));
    assert!(matches!(refused(&KMeans::new(3), &[1.0, 1.0, 2.0, 1.0], None), KMeansError::TooFewDistinct { k: 3, rows: 4 }));
    assert!(matches!(refused(&two, &[], None), KMeansError::NoRows { skipped: None }));
    assert!(matches!(refused(&two, &x, Some(&[1.0; 3])), KMeansError::LengthMismatch { expected: 4, got: 3, .. }));
    assert!(matches!(refused(&two, &x, Some(&[1.0, -2.0, 1.0, -3.0])), KMeansError::NegativeWeight { row: 1, .. }));
    assert!(matches!(refused(&two, &x, Some(&[0.0; 4])), KMeansError::NoPositiveWeight));
    assert!(matches!(refused(&two, &x, Some(&[1e30; 4])), KMeansError::WeightOutOfRange { .. }));
    assert!(matches!(refused(&two, &x, Some(&[1.0, 0.0, 0.0, 0.0])), KMeansError::TooFewDistinct { .. }));
    assert!(matches!(refused(&two.clone().init(Init::Given(vec![1.0; 3])), &x, None), KMeansError::LengthMismatch { .. }));
    for name in Init::METHODS {
        assert_eq!(name.parse::<Init>().unwrap().word(), *name);
    }
    assert!(matches!("best".parse::<Init>(), Err(KMeansError::InvalidOption { .. })));
    let error = "sorted".parse::<RowOrder>().unwrap_err().to_string();
    assert_eq!(error, "row_order: expected \"given\" or \"values\", got \"sorted\"");
}

#[test]
fn devices_are_named_or_refused() {
    for name in ["auto", "cpu", "cuda", "cuda:0", "cuda:17", "cuda:4294967295"] {
        assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
    }
    for name in ["", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "cuda: 1", "cuda:4294967296", "cuda:0 "] {
        let error = name.parse::<Device>().unwrap_err();
        assert!(matches!(&error, KMeansError::InvalidOption { option: "device", .. }), "{error}");
        assert!(error.to_string().contains(&format!("got {name:?}")), "{error}");
    }
}

/// This holds on a machine without a GPU, and on one with fewer than a hundred GPUs.
#[test]
fn a_device_that_is_not_there_is_refused_before_the_data() {
    let error = refused(&KMeans::new(2).device(Device::Cuda(Some(99))), &[1.0, f64::NAN], None);
    assert!(matches!(&error, KMeansError::DeviceNotAvailable { requested, .. } if requested == "cuda:99"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("device=\"auto\""), "{error}");
    match polars_kmeans::devices() {
        Ok(devices) => assert!(devices.iter().all(|device| error.to_string().contains(&device.name)), "{error}"),
        Err(why) => assert!(error.to_string().contains(&why), "{error}"),
    }
    let x = [1.0, 2.0, 9.0];
    let features = Features::from_columns([&x[..]]).unwrap();
    for device in [Device::Auto, Device::Cpu] {
        let fitted = KMeans::new(2).device(device).fit_features(&features, None).unwrap();
        assert_eq!(fitted.choice.place, Place::Cpu);
        assert!(!fitted.choice.reason.is_empty());
    }
}

#[test]
fn what_is_not_finite_is_counted() {
    let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, f64::NAN, f64::INFINITY, f64::NAN, 3.0]);
    let column = Column::new([Chunk::new(&b, Some(Validity::new(&[0b0_1111], 0))).unwrap()]);
    let features =
        Features::new(vec![Column::from_slice(&a), column]).unwrap().with_names(vec!["a".into(), "b".into()]).unwrap();
    let error = KMeans::new(1).fit_features(&features, None).unwrap_err();
    assert_eq!(error, KMeansError::NotFinite { column: "b".into(), nulls: 1, nans: 2, infinities: 1 });
    let fitted = KMeans::new(1).null_policy(NullPolicy::Skip).fit_features(&features, None).unwrap();
    assert!(fitted.expand().unwrap().iter().eq([Some(0), None, None, None, None]));
    let all_bad = Features::from_columns([&b[1..4]]).unwrap();
    let error = KMeans::new(1).null_policy(NullPolicy::Skip).fit_features(&all_bad, None).unwrap_err();
    assert_eq!(error, KMeansError::NoRows { skipped: Some(3) });
    let error =
        KMeans::new(1).fit_features(&Features::from_columns([&a[..]]).unwrap(), Some(&Column::from_slice(&b))).unwrap_err();
    assert_eq!(error, KMeansError::NotFinite { column: "weight".into(), nulls: 0, nans: 2, infinities: 1 });
}

#[test]
fn views_check_their_shapes() {
    let (a, b) = ([1.0f32, 2.0], [1.0f32]);
    assert!(matches!(Features::from_columns([&a[..], &b[..]]), Err(KMeansError::LengthMismatch { .. })));
    assert!(matches!(Features::<f32>::new(vec![]), Err(KMeansError::NoFeatures)));
    assert!(matches!(Features::from_rows(&a, 0), Err(KMeansError::NoFeatures)));
    assert!(matches!(Features::from_rows(&[1.0f32; 5], 2), Err(KMeansError::LengthMismatch { .. })));
    let fitted = KMeans::new(1).fit_features(&Features::from_columns([&a[..]]).unwrap(), None).unwrap();
    let wide = Features::from_rows(&a, 2).unwrap();
    assert!(matches!(fitted.model.predict(&wide), Err(KMeansError::WidthMismatch { expected: 1, got: 2, .. })));
}

#[test]
fn predicting_rows_without_an_answer() {
    let x = [1.0, 2.0, 9.0];
    let fitted = KMeans::new(2).fit_features(&Features::from_columns([&x[..]]).unwrap(), None).unwrap();
    let odd = [f64::NAN, 1.0, f64::INFINITY];
    let column = Column::new([Chunk::new(&odd, Some(Validity::new(&[0b110], 0))).unwrap()]);
    let features = Features::new(vec![column]).unwrap();
    let labels = fitted.model.predict(&features).unwrap();
    assert!(labels.iter().map(|label| label.is_some()).eq([false, true, false]));
    let nan: Vec<bool> = fitted.model.transform(&features, false).unwrap().iter().map(|d| d.is_nan()).collect();
    assert_eq!(nan, [true, true, false, false, true, true]);
    assert!(fitted.model.predict(&Features::from_columns([&[][..]]).unwrap()).unwrap().is_empty());
}
