//! Labels by tensor cores, where `conformance.rs` does not go: how they add, lengths of a wide range, distances that underflow, centroids
//! far out, vectors of a language model, and what the history says.

use std::path::PathBuf;

use polars_kmeans::{Device, Engine, Half, Init, KMeans, Metric, Restarts, Strategy};

use crate::conformance::gpu::{Family, Tensor, by, same_bits};
use crate::conformance::{Case, Way};
use crate::data::{Random, columns, from_columns, from_some, gpu, hash, on_gpu, rounds, rows, shape, some_rows};
use crate::sessions::Data;
use crate::streaming::limits;

fn check<T: Engine>(x: Vec<T>, d: usize, start: Vec<f64>, iterations: u32, what: &str) {
    Tensor::check(&Case { data: Data { x, weights: None, d }, start, iterations, what: what.to_owned() });
}

/// Directions of rows, from some of the rows.
fn check_directions(x: &[f32], d: usize, k: usize, random: &mut Random, what: &str) {
    let columns = columns(x, d);
    let estimator = from_some(x, d, k, 50, random).max_iter(5).metric(Metric::Cosine);
    same_bits(Tensor::STRATEGIES, &estimator, &from_columns(&columns), None, &format!("directions, {what}"));
}

/// Each instruction adds up in a way that is known. Another one would be used too, with a wider bound: then this test should know of it.
#[test]
fn how_tensor_cores_add() {
    let Some(Device::Cuda(ordinal)) = gpu() else { return };
    let found = polars_kmeans::backend::cuda::how_tensor_cores_add(ordinal.unwrap_or(0)).unwrap();
    println!("{found:?}");
    assert!(found.iter().all(|(_, added)| added.contains("Blocks")), "{found:?}");
}

/// Lengths of a wide range in one group: rows near the centre beside long ones, one row far out, and directions without lengths.
#[test]
fn lengths_of_a_wide_range() {
    let random = &mut Random(74_000);
    let (n, d, k) = (10_000, 33, 150);
    let mut x = Vec::new();
    for i in 0..n {
        let length = if i == 77 { 1e12 } else { (4.0 * random.normal()).exp() };
        x.extend((0..d).map(|_| (length * random.normal()) as f32));
    }
    check_directions(&x, d, k, random, "lengths of a wide range");
    let start = some_rows(&x, d, k, 50, random);
    check(x, d, start, 5, "lengths of a wide range");
}

#[test]
fn directions_of_low_rank() {
    let random = &mut Random(82_000);
    for kind in ["token vectors", "unit vectors", "lattice"] {
        let x: Vec<f32> = rows(kind, 8_000, 128, random);
        check_directions(&x, 128, 300, random, kind);
    }
}

/// Squares of these distances underflow, so reference distances tie where true distances do not: the smallest index wins, though its centroid
/// is farther than the radius of the group allows.
#[test]
fn distances_that_underflow() {
    let (tiny, d) = (2f64.powi(-540), 1_026);
    let point = |y: f64, p: f64| [1.0, y * tiny].into_iter().chain(std::iter::repeat_n(p * tiny, d - 2));
    let rows = (0..4_096).flat_map(|i| {
        let place = 20.0 * f64::from(i / 2 % 4);
        if i % 2 == 0 { point(place, 2.0) } else { point(place + 5.0, -3.0) }
    });
    let x: Vec<f64> = rows.collect();
    let first = (0..4).flat_map(|i| point(20.0 * f64::from(i) - 1.0, 2.0));
    let second = (0..4).flat_map(|i| point(20.0 * f64::from(i) + 6.0, -3.0));
    check(x, d, first.chain(second).collect(), 1, "distances that underflow");
}

/// The vectors of a language model, if `POLARS_KMEANS_EMBEDDINGS` names the file that `benches/embeddings.py` writes.
#[test]
fn real_token_vectors() {
    const D: usize = 256;
    let Some(path) = std::env::var_os("POLARS_KMEANS_EMBEDDINGS").map(PathBuf::from) else { return };
    let bytes = std::fs::read(path).unwrap();
    let values = bytes.chunks_exact(2).map(|two| Half::Float16.to_f32(u16::from_le_bytes([two[0], two[1]])));
    let x: Vec<f32> = values.collect();
    let random = &mut Random(83_000);
    check_directions(&x, D, 1_000, random, "real token vectors");
    let doubles: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let start = some_rows(&x, D, 1_000, 50, random);
    check(doubles, D, start[..500 * D].to_vec(), 3, "real token vectors, float64");
    check(x, D, start, 5, "real token vectors");
}

/// One centroid starts far from all rows. It takes no row, so the row that is farthest from its centroid becomes its cluster.
#[test]
fn a_centroid_far_out() {
    for (round, far) in [1e4, 1e9, 1e15, 1e30].into_iter().enumerate().take(rounds(4)) {
        let random = &mut Random(84_000 + round as u64);
        let (n, d, k) = (9_000, 70, 280);
        let x: Vec<f32> = rows("one blob", n, d, random);
        let mut start = some_rows(&x, d, k, usize::MAX, random);
        start[17 * d..18 * d].fill(far);
        check(x, d, start, 3, &format!("a centroid at {far:e}"));
    }
}

#[test]
fn twenty_fits_have_one_hash() {
    let random = &mut Random(86_000);
    for kind in ["token vectors", "lognormal"] {
        let (n, d, k) = (60_000, 64, 500);
        let x: Vec<f32> = rows(kind, n, d, random);
        let columns = columns(&x, d);
        let estimator = from_some(&x, d, k, 50, random).max_iter(6);
        let fit = || by(Strategy::Tensor, &estimator, &from_columns(&columns), None);
        let Some(first) = fit() else { return };
        (1..rounds(20)).for_each(|_| assert_eq!(hash(&fit().unwrap()), hash(&first), "{kind}"));
    }
}

/// A hundred natural clusters: with enough rows, each has a group. With fewer rows than groups want, the rows of several clusters share a centre.
/// So most are in doubt, and a second product labels them.
#[test]
fn natural_clusters() {
    if gpu().is_none() {
        return;
    }
    let random = &mut Random(88_000);
    for (n, d, k, apart) in [(120_000, 40, 400, true), (20_000, 64, 3_000, false)] {
        let x: Vec<f32> = rows("hundred clusters", n, d, random);
        let columns = columns(&x, d);
        let estimator = from_some(&x, d, k, usize::MAX >> 1, random).max_iter(4);
        for &strategy in Tensor::STRATEGIES {
            let Some(fit) = same_bits(&[strategy], &estimator, &from_columns(&columns), None, "natural clusters") else {
                continue;
            };
            let last = fit.model.history().last().unwrap();
            let (groups, rescored) = (last.groups.unwrap(), last.rescored.unwrap());
            if apart {
                assert!(
                    (90..=256).contains(&groups) && last.skipped.unwrap() > 0.9 && last.settled.unwrap() < 0.1,
                    "{strategy}: {last:?}"
                );
            } else {
                assert!(rescored > 0.1 && last.settled.unwrap() < 0.9, "{strategy}: {last:?}");
            }
        }
        if apart {
            continue;
        }
        // The second product of float64 rows, of directions, and of rows that stream.
        let doubles: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        let start = some_rows(&doubles, d, k, usize::MAX >> 1, random);
        check(doubles, d, start, 3, "natural clusters");
        check_directions(&x, d, k, random, "natural clusters");
        let resident = by(Strategy::Default, &estimator, &from_columns(&columns), None).unwrap();
        for chunking in limits(shape::<f32>([n, d, k], false)).iter().step_by(5) {
            let limited = estimator.clone().device_memory_limit(Some(chunking.room));
            let streamed = by(Strategy::Default, &limited, &from_columns(&columns), None).unwrap();
            assert_eq!(hash(&streamed), hash(&resident), "natural clusters, {chunking:?}");
        }
    }
}

/// Clusters of clusters, more than there are groups. So each group reaches all centroids of an outer cluster, and the copies of all groups have no
/// room. Those that save the most have it.
#[test]
fn groups_without_room_for_their_copies() {
    if gpu().is_none() {
        return;
    }
    let random = &mut Random(90_000);
    let (n, d, k, outer, inner) = (20_000, 64, 8_192, 10, 30);
    let outers: Vec<f64> = (0..outer * d).map(|_| 400.0 * random.unit() - 200.0).collect();
    let inners: Vec<f64> = (0..outer * inner * d).map(|i| outers[i / d / inner * d + i % d] + 20.0 * random.normal()).collect();
    let mut x: Vec<f32> = Vec::new();
    for _ in 0..n {
        let of = random.below(outer * inner);
        x.extend(inners[of * d..][..d].iter().map(|v| (v + 3.0 * random.normal()) as f32));
    }
    let columns = columns(&x, d);
    let estimator = from_some(&x, d, k, usize::MAX >> 1, random).max_iter(2);
    for &strategy in Tensor::STRATEGIES {
        let Some(fit) = same_bits(&[strategy], &estimator, &from_columns(&columns), None, "no room") else { continue };
        let first = fit.model.history().first().unwrap();
        assert!((2..=50).contains(&first.groups.unwrap()) && first.skipped.unwrap() > 0.1, "{strategy}: {first:?}");
    }
}

/// Every row lies in the middle between two of eight near centroids. The first product leaves most rows in doubt among the eight, and the second
/// product leaves pairs: as many as there are rows on the list that they are written to.
#[test]
fn pairs_of_the_second_product() {
    if gpu().is_none() {
        return;
    }
    let random = &mut Random(89_000);
    let (n, d, clusters, near) = (80_000, 64, 500, 8);
    let mut start = Vec::new();
    for _ in 0..clusters {
        let centre: Vec<f64> = (0..d).map(|_| 2.0 * random.unit() - 1.0).collect();
        for _ in 0..near {
            start.extend(centre.iter().map(|c| f64::from((c + 0.02 * [-1.0, 1.0][random.below(2)]) as f32)));
        }
    }
    let mut x: Vec<f32> = Vec::new();
    for _ in 0..n {
        let (cluster, one) = (random.below(clusters), random.below(near));
        let other = (one + 1 + random.below(near - 1)) % near;
        let [one, other] = [one, other].map(|j| &start[(cluster * near + j) * d..][..d]);
        x.extend(one.iter().zip(other).map(|(a, b)| ((a + b) / 2.0) as f32));
    }
    let columns = columns(&x, d);
    let estimator = KMeans::new(clusters * near).init(Init::Given(start)).n_init(Restarts::Count(1)).max_iter(2).tol(0.0);
    for &strategy in Tensor::STRATEGIES {
        let Some(fit) = same_bits(&[strategy], &estimator, &from_columns(&columns), None, "pairs") else { continue };
        let first = fit.model.history().first().unwrap();
        assert!(first.rescored.unwrap() > 0.5 && first.settled.unwrap() > 0.9, "{strategy}: {first:?}");
    }
}

/// Each row is as far from two to five centroids, but for a few roundings: their differences from the row are the same values in another
/// order, with the last bits of one value changed. Sums in float32 order them wrongly. Some of the 16 lanes have one feature more.
#[test]
fn near_ties_of_a_few_centroids() {
    if gpu().is_none() {
        return;
    }
    for d in [33, 96, 250, 771] {
        let random = &mut Random(90_000 + d as u64);
        let (mut x, mut start) = (Vec::new(), Vec::new());
        for site in 0..64usize {
            let row: Vec<f32> = (0..d).map(|_| (4.0 * random.unit()) as f32).collect();
            let away: Vec<f32> = (0..d).map(|_| (random.unit() - 0.5) as f32).collect();
            for j in 0..2 + site % 4 {
                let changed = random.below(d);
                start.extend((0..d).map(|f| {
                    let one = away[(f + 7 * j) % d] * if f == changed { 1.0 + random.below(4) as f32 * 3e-7 } else { 1.0 };
                    f64::from(row[f] - one)
                }));
            }
            (0..50).for_each(|_| x.extend_from_slice(&row));
        }
        check(x, d, start, 1, &format!("near ties, {d} features"));
    }
}

/// The history says how many rows were settled and how many scores were left out.
#[test]
fn the_history_has_the_cost() {
    let random = &mut Random(87_000);
    let (n, d, k) = (60_000, 40, 300);
    let history_of = |kernel, kind: &str, streamed: bool, random: &mut Random| {
        let x: Vec<f32> = rows(kind, n, d, random);
        let columns = columns(&x, d);
        let features = from_columns(&columns);
        let mut estimator = from_some(&x, d, k, usize::MAX, random).max_iter(5);
        if streamed {
            estimator = estimator.device_memory_limit(Some(16 << 20));
        }
        let fit = by(kernel, &estimator, &features, None)?;
        let tiled = on_gpu(&estimator)?.strategy(Strategy::Tiled).fit_features(&features, None).unwrap();
        for row in tiled.model.history() {
            assert_eq!(row.skipped, Some(0.0), "{row:?}");
            assert!((0.0..=1.0).contains(&row.settled.unwrap()), "{row:?}");
        }
        Some(fit.model.history().to_vec())
    };
    for (&kernel, streamed) in Tensor::STRATEGIES.iter().flat_map(|kernel| [(kernel, false), (kernel, true)]) {
        let Some(apart) = history_of(kernel, "tight blobs far apart", streamed, random) else { continue };
        let one = history_of(kernel, "one blob", streamed, random).unwrap();
        assert_eq!((apart.len(), one.len()), (5, 5));
        for row in apart.iter().chain(&one) {
            assert!((0.0..=1.0).contains(&row.settled.unwrap()) && (0.0..=1.0).contains(&row.skipped.unwrap()), "{row:?}");
        }
        // Nine of ten blobs are too far from a row.
        assert!(apart.iter().all(|row| row.skipped.unwrap() > 0.5), "{apart:?}");
        assert!(one.iter().all(|row| row.skipped.unwrap() < 0.5 && row.settled.unwrap() < 0.5), "{one:?}");
    }
}

/// Labels of every iteration of a loop, which come from what the step carries from one iteration to the next. The reference labels are made on the GPU,
/// so the shapes are larger.
#[cfg(feature = "bench")]
#[test]
fn labels_of_every_iteration() {
    use crate::looped::{labels_of_loop, wrong_rows};
    use polars_kmeans::backend::cuda::reference_labels;

    for (seed, kind) in (88_000..).zip(["blobs", "uniform", "lognormal", "token vectors"]) {
        let random = &mut Random(seed);
        let (n, d, k) = (150_000, 40, 1_000);
        let x: Vec<f32> = rows(kind, n, d, random);
        let columns = columns(&x, d);
        let slices: Vec<&[f32]> = columns.iter().map(|c| &c[..]).collect();
        let features = from_columns(&columns);
        let Some(estimator) = on_gpu(&from_some(&x, d, k, 50, random).max_iter(8).strategy(Strategy::Tensor)) else { return };
        for iterations in [1, 2, 3, 5, 8, 12].into_iter().take(rounds(6)) {
            let looped = labels_of_loop(&estimator, &features, iterations).unwrap();
            let right = reference_labels(0, &slices, &looped.centroids).unwrap();
            assert_eq!(wrong_rows(&looped.labels, &right).next(), None, "{kind}, iteration {iterations}");
        }
    }
}
