//! The caller's thread may round in any way, and may flush subnormals: the bits are the same. The setting of the thread does
//! not change.

#![cfg(target_arch = "x86_64")]

use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch};
use polars::prelude::*;
use polars_kmeans::frame::row_major;
use polars_kmeans::{History, Init, KMeans, KMeansModel};

fn mxcsr() -> u32 {
    let mut mode = 0u32;
    // SAFETY: stores 4 bytes, and the variable has 4 bytes.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack));
    }
    mode & 0xFFC0 // without the exception flags
}

fn set_mxcsr(mode: u32) {
    // SAFETY: loads the 4 bytes of the variable. They hold a valid setting.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack));
    }
}

const DEFAULT: u32 = 0x1F80;

/// Every rounding mode, with each way to treat subnormals in inputs and in results.
fn modes() -> Vec<u32> {
    (0..4).flat_map(|rounding| [0, 0x8040].map(|flush| DEFAULT | rounding << 13 | flush)).collect()
}

/// Data that must be rounded when they are read, and data that are lost if subnormals are flushed.
struct Data {
    mixed: DataFrame,
    subnormal: DataFrame,
    /// The same in float64.
    wide: Column,
    rows: DataFrame,
    weights: Column,
    batch: RecordBatch,
    starts: DataFrame,
}

impl Data {
    fn new() -> Self {
        const N: i64 = 2_000;
        let integer = |i: i64| (i.wrapping_mul(7_919) % 101) * ((1 << 55) + 3) / 17 + i;
        let integers: Vec<i64> = (0..N).map(integer).collect();
        let thirds: Vec<f64> = (0..N).map(|i| (i % 23) as f64 / 3.0).collect();
        let decimals: Vec<i128> = (0..N).map(|i| i128::from(i * i % 977) * 1_000_000_000_000_007_i128 + 1).collect();
        let decimal = Int128Chunked::from_vec("c".into(), decimals).into_decimal_unchecked(38, 20).into_column();
        let mixed = df!("a" => integers.clone(), "b" => thirds).unwrap();
        let mixed = mixed.hstack(std::slice::from_ref(&decimal)).unwrap();
        let tiny: Vec<f32> = (0..N).map(|i| f32::from_bits((i % 97) as u32 * 1_001)).collect();
        let lists = Series::new("e".into(), tiny.clone())
            .reshape_array(&[ReshapeDimension::new_dimension(N as u64 / 2), ReshapeDimension::new_dimension(2)]);
        let lists = lists.unwrap().cast(&DataType::List(Box::new(DataType::Float32))).unwrap();
        // From 0.1 to 0.7. Each has a last digit that float64 rounds.
        let weights: Vec<i128> = (0..N).map(|i| i128::from(i % 7 + 1) * 10_000_000_000_000_000_003 + 1).collect();
        let columns: [(_, ArrayRef); 3] = [
            ("a", Arc::new(Int64Array::from(integers))),
            ("b", Arc::new(Float64Array::from_iter_values((0..N).map(|i| (i % 11) as f64 / 7.0)))),
            ("c", Arc::new(Decimal128Array::from(weights.clone()).with_precision_and_scale(38, 20).unwrap())),
        ];
        let weights = Int128Chunked::from_vec("w".into(), weights).into_decimal_unchecked(38, 20).into_column();
        Self {
            starts: mixed.slice(5, 4),
            mixed,
            wide: Column::new("s".into(), tiny.iter().map(|value| f64::from(*value)).collect::<Vec<_>>()),
            subnormal: df!("s" => tiny).unwrap(),
            rows: DataFrame::new(N as usize / 2, vec![lists.into_column()]).unwrap(),
            weights,
            batch: RecordBatch::try_from_iter(columns).unwrap(),
        }
    }

    /// The bits of all results.
    fn results(&self) -> Vec<(&'static str, Vec<u64>)> {
        fn bits(values: impl IntoIterator<Item = f64>) -> Vec<u64> {
            values.into_iter().map(f64::to_bits).collect()
        }
        fn model(model: &KMeansModel) -> Vec<u64> {
            let file = model.to_bytes().unwrap();
            let loaded = KMeansModel::from_bytes(&file).unwrap();
            let history = loaded.history_rows().iter().flat_map(|row| [row.shift, row.inertia.unwrap_or(-1.0)]);
            let mut all = bits(loaded.centroid_values().unwrap().into_iter().chain(history).chain([loaded.inertia()]));
            all.extend(bits([loaded.settings().tol, loaded.settings().tol_labels]));
            all.extend(file.into_iter().map(u64::from));
            all
        }
        let flat = |distances: Series| -> Vec<u64> {
            let values = distances.array().unwrap().get_inner();
            values.f64().unwrap().iter().map(|value| value.map_or(u64::MAX, f64::to_bits)).collect()
        };
        let estimator = KMeans::new(4).seed(9).history(History::Full).tol(1.1e-7);
        let columns = self.mixed.columns();
        let fit = estimator.fit_columns(columns, Some(&self.weights)).unwrap();
        let given = row_major(&self.starts).unwrap();
        let from_given = estimator.clone().init(Init::Given(given.values.clone())).fit_columns(columns, None).unwrap();
        let narrow = estimator.fit_columns(self.subnormal.columns(), None).unwrap();
        let lists = estimator.fit_columns(self.rows.columns(), None).unwrap();
        let names = ["a", "b", "c"];
        let batches = estimator.fit_batches(std::slice::from_ref(&self.batch), names, Some("c")).unwrap();
        let distances = fit.model.predict_distances(columns).unwrap();
        let distance = distances.column("distance").unwrap().f64().unwrap().into_no_null_iter();
        let labels = |labels: &UInt32Chunked| labels.iter().map(|label| label.map_or(9, u64::from)).collect::<Vec<_>>();
        vec![
            ("model", model(&fit.model)),
            ("labels", labels(&fit.labels)),
            ("distances", bits(distance)),
            ("transform", flat(fit.model.transform_columns(columns, false).unwrap())),
            ("score", bits([fit.model.score_columns(columns, Some(&self.weights)).unwrap()])),
            ("given values", bits(given.values)),
            ("given", model(&from_given.model)),
            ("subnormals", model(&narrow.model)),
            ("widened subnormals", flat(narrow.model.transform_columns(std::slice::from_ref(&self.wide), false).unwrap())),
            ("labels of widened subnormals", labels(&narrow.model.predict_columns(std::slice::from_ref(&self.wide)).unwrap())),
            ("lists", model(&lists.model)),
            ("batches", model(&batches.model)),
            ("score of batches", bits([batches.model.score_batches(std::slice::from_ref(&self.batch), Some("c")).unwrap()])),
            ("transform of batches", {
                let distances = batches.model.transform_batch(&self.batch, false).unwrap();
                let values: &Float64Array = distances.values().as_any().downcast_ref().unwrap();
                bits(values.values().iter().copied())
            }),
        ]
    }
}

#[test]
fn results_do_not_depend_on_the_callers_mode() {
    let data = Data::new();
    assert_eq!(mxcsr(), DEFAULT);
    let expected = data.results();
    for mode in modes() {
        set_mxcsr(mode);
        let got = data.results();
        let after = mxcsr();
        set_mxcsr(DEFAULT);
        assert_eq!(after, mode, "the caller's setting stays");
        for ((what, expected), (_, got)) in expected.iter().zip(got) {
            assert!(*expected == got, "{what} under {mode:#x}");
        }
    }
}
