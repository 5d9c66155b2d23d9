//! Labels by bounds that are carried from iteration to iteration, where `conformance.rs` does not go: fits that end before the rows are put
//! in order, and values at the ends of the types.

use polars_kmeans::{Column, Features, History, Init, KMeans, Restarts, Strategy};

use crate::conformance::gpu::same_bits;
use crate::data::{Random, from_some, rows};

const YINYANG: &[Strategy] = &[Strategy::Yinyang];

/// Fits of one and two iterations: the rows are put in order in the launch after the first, whether the fit goes on or not.
#[test]
fn short_fits() {
    let random = &mut Random(108_000);
    let [n, d, k] = [4_000, 6, 70];
    let x: Vec<f32> = rows("blobs", n, d, random);
    let features = Features::from_rows(&x, d).unwrap();
    for iterations in [1, 2, 3] {
        let several = KMeans::new(k).init(Init::Random).n_init(Restarts::Count(4)).seed(9).max_iter(iterations);
        same_bits(YINYANG, &several, &features, None, &format!("{iterations} iterations"));
        let several = several.history(History::Full);
        same_bits(YINYANG, &several, &features, None, &format!("{iterations} iterations, full history"));
    }
    // It stops after its first iteration, when further ones are queued already.
    let apart: Vec<f32> = rows("tight blobs far apart", n, d, random);
    let features = Features::from_rows(&apart, d).unwrap();
    let estimator = from_some(&apart, d, 10, 50, random).max_iter(50);
    same_bits(YINYANG, &estimator.clone().tol_labels(1.0), &features, None, "stops at once");
    same_bits(YINYANG, &estimator.tol(1e9), &features, None, "stops at once by shift");
}

/// A weightless row and a starting centroid are farther out than all rows that count, and distances may be too large or too small for float32.
#[test]
fn values_far_out_and_tiny() {
    let mut x: Vec<f64> = (0..600).map(|i| f64::from(i % 37)).collect();
    x[17] = 1e130;
    let mut weights = vec![1.0; 300];
    weights[8] = 0.0;
    let weights = Column::from_slice(&weights);
    let start = KMeans::new(4).init(Init::Given(vec![0.0, 1.0, 5.0, 5.0, 30.0, 1.0, 1e60, 3.0])).tol(0.0);
    same_bits(YINYANG, &start, &Features::from_rows(&x, 2).unwrap(), Some(&weights), "far out");
    let random = &mut Random(107_000);
    let tiny: Vec<f64> = (0..12_000).map(|_| (random.normal() * 2f64.powi(60)).round() * 2f64.powi(-500)).collect();
    let estimator = from_some(&tiny, 3, 40, 50, random).max_iter(15);
    same_bits(YINYANG, &estimator, &Features::from_rows(&tiny, 3).unwrap(), None, "tiny");
}
