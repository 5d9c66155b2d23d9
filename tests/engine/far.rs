//! Values, starting centroids and weights that lie far out. Inertia, draws and shift stay within 2^-40 of their exact sums.

use polars_kmeans::{Column, Features, Init, KMeans, KMeansError, Restarts};

use crate::data::{Random, hash, on_gpu, rows};
use crate::exactness::check_task;
use crate::oracle::{Start, Task};

/// What lies far out in a generated fit.
const FAR: [&str; 5] = ["a starting centroid", "a row", "several rows", "a weight", "all but one row close together"];

pub fn task(case: u64) -> (Task<f64>, String) {
    let random = &mut Random(500_000 + case);
    let what = FAR[case as usize % FAR.len()];
    let (n, d) = (5 + random.below(60), 1 + random.below(4));
    let k = 1 + random.below(5.min(n));
    let kind = ["blobs", "uniform", "lattice", "duplicates", "offset 1e6"][random.below(5)];
    let x: Vec<f64> = rows(kind, n, d, random);
    let mut table: Vec<Vec<f64>> = x.chunks_exact(d).map(<[f64]>::to_vec).collect();
    let far = |random: &mut Random| 10f64.powi(6 + random.below(95) as i32) * if random.below(2) == 0 { 1.0 } else { -1.0 };
    let mut weights = (random.below(3) == 0).then(|| (0..n).map(|_| random.unit() * 3.0 + 0.01).collect::<Vec<_>>());
    let mut start = [Start::PlusPlus, Start::Random][random.below(2)].clone();
    match what {
        "a starting centroid" => {
            let mut centroids: Vec<Vec<f64>> = (0..k).map(|_| table[random.below(n)].clone()).collect();
            centroids[k - 1][random.below(d)] = far(random);
            start = Start::Given(centroids);
        }
        "a row" => table[random.below(n)][random.below(d)] = far(random),
        "several rows" => {
            for _ in 0..3 {
                table[random.below(n)][random.below(d)] = far(random);
            }
        }
        "a weight" => {
            let mut heavy = vec![1.0; n];
            heavy[random.below(n)] = 2f64.powi(10 + random.below(54) as i32);
            weights = Some(heavy);
        }
        _ => {
            let (close, centre) = (far(random).abs().recip(), table[0].clone());
            table.iter_mut().flat_map(|row| row.iter_mut().zip(&centre)).for_each(|(x, c)| *x = c + (*x - c) * close);
            table[random.below(n)][0] = 1e3;
        }
    }
    let restarts = if matches!(start, Start::Given(_)) { 1 } else { 1 + random.below(4) as u32 };
    let (max_iter, tol, seed) = (1 + random.below(10), [0.0, 1e-4][random.below(2)], random.next());
    let description = format!("{what}, {kind}, case {case}: n {n}, d {d}, k {k}");
    (Task { weights, restarts, max_iter, tol, seed, ..Task::new(table, k, start) }, description)
}

#[test]
fn far_fits_are_the_oracles() {
    // Both the engine and the oracle refuse the other cases: too wide a range in a column or in the weights, or too few
    // distinct rows.
    let (mut answered, mut cases) = (0, 0);
    while answered < 1_000 {
        let (task, what) = task(cases);
        answered += u32::from(check_task(&task, &what));
        cases += 1;
    }
    println!("{answered} of {cases} fits with something far out had an answer to compare");
    assert!(cases < 3_000, "only {answered} of {cases} fits were answered");
}

/// The inertia of a fit of one feature.
fn inertia(x: &[f64], weights: Option<&[f64]>, estimator: KMeans) -> f64 {
    let features = Features::from_columns([x]).unwrap();
    let weights = weights.map(Column::from_slice);
    let fitted = estimator.fit_features(&features, weights.as_ref()).unwrap();
    if let Some(estimator) = on_gpu(&estimator) {
        assert_eq!(hash(&estimator.fit_features(&features, weights.as_ref()).unwrap()), hash(&fitted), "on the GPU");
    }
    fitted.model.inertia()
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= expected * 1e-12
}

#[test]
fn a_starting_centroid_far_out() {
    let x = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0];
    let one_iteration = KMeans::new(2).init(Init::Given(vec![0.0, 1e15])).tol(0.0);
    assert!(near(inertia(&x, None, one_iteration), 0.04));
}

#[test]
fn a_row_far_out() {
    let x = [280.0, 281.0, 290.0, 291.0, 300.0, 1e20];
    assert!(near(inertia(&x, None, KMeans::new(4).seed(1)), 1.0));
    // The draws must not become nearly uniform, and restarts must not tie.
    let mut wide: Vec<f64> = (0..300).map(|i| f64::from(i % 5) * 1e3 + f64::from(i) * 1e-3).collect();
    wide.push(1e20);
    let best = inertia(&wide, None, KMeans::new(6).n_init(Restarts::Count(5)).tol(0.0));
    // Five groups of 60 values, 0.005 apart.
    let group: f64 = (0..60).map(|i| (f64::from(i) - 29.5) * 0.005).map(|t| t * t).sum();
    assert!((best - 5.0 * group).abs() < 1e-6 * best, "{best} for {}", 5.0 * group);
}

#[test]
fn weights_that_rounding_would_distort_are_refused() {
    let x = [1.0, 2.0, 4.0, 5.0, 9.0];
    let fit = |weights: &[f64]| {
        let column = Column::from_slice(weights);
        KMeans::new(2)
            .fit_features(&Features::from_columns([&x[..]]).unwrap(), Some(&column))
            .map(|fitted| fitted.model.inertia())
    };
    match fit(&[1.0, 1.0, 1.0, 1.0, 2f64.powi(63)]).unwrap_err() {
        KMeansError::WeightRangeTooWide { largest, small, positive } => {
            assert_eq!((largest, small, positive), (2f64.powi(63), 4, 5))
        }
        other => panic!("{other}"),
    }
    assert!(fit(&[1.0, 1.0, 1.0, 1.0, 2f64.powi(43)]).is_ok());
    // A model scores by the same rule.
    let features = Features::from_columns([&x[..]]).unwrap();
    let model = KMeans::new(2).fit_features(&features, None).unwrap().model;
    let error = model.score(&features, Some(&Column::from_slice(&[1.0, 1.0, 1.0, 0.0, 2f64.powi(63)]))).unwrap_err();
    assert!(matches!(error, KMeansError::WeightRangeTooWide { small: 3, positive: 4, .. }), "{error}");
}

#[test]
fn tiny_distances_do_not_underflow_with_tiny_weights() {
    let x: Vec<f64> = [1.0, 1.0 + f64::EPSILON, 3.0].iter().map(|x| x * 2f64.powi(-450)).collect();
    let weights = [2f64.powi(-64); 3];
    let start = Init::Given(vec![x[0], x[2]]);
    // The inertia would be a subnormal, or 0. So the test only checks that there is no error and that a GPU gives the same
    // bits.
    inertia(&x, Some(&weights), KMeans::new(2).init(start).tol(0.0));
}

#[test]
fn a_score_far_from_the_centroids_extent() {
    let x = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0];
    let features = Features::from_columns([&x[..]]).unwrap();
    let far = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0, 1e15];
    let model = KMeans::new(3).init(Init::Given(vec![0.1, 0.9, 1e15])).tol(0.0);
    let model = model.fit_features(&Features::from_columns([&far[..]]).unwrap(), None).unwrap().model;
    assert!(near(-model.score(&features, None).unwrap(), 0.04));
}
