//! The draws of seedings have the distributions that their papers say: chi-square tests on a few rows.

use polars_kmeans::InstructionSet;
use polars_kmeans::backend::{Draw, Sample};
use polars_kmeans::exact::reference;
use polars_kmeans::seeding::seed;
use polars_kmeans::{Init, KMeans};

use crate::sessions::{Data, on_cpu};

/// Six rows with weights, of one feature.
fn six() -> Data<f64> {
    Data { x: vec![0.0, 1.0, 3.0, 4.0, 9.0, 12.0], weights: Some(vec![1.0, 2.0, 0.0, 1.0, 3.0, 0.5]), d: 1 }
}

/// Fails if counts are too far from those that are expected. All that are expected less than five times are one cell.
fn check(counts: &[u32], expected: &[f64]) {
    let (mut cells, mut rare) = (Vec::new(), (0.0, 0.0));
    for (&count, &expected) in counts.iter().zip(expected) {
        assert!(expected > 0.0 || count == 0, "{counts:?}, {expected:?}");
        if expected >= 5.0 {
            cells.push((f64::from(count), expected));
        } else {
            rare = (rare.0 + f64::from(count), rare.1 + expected);
        }
    }
    if rare.1 > 0.0 {
        cells.push(rare);
    }
    let chi: f64 = cells.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    assert!(chi < bound(cells.len() - 1), "{chi} of {}: {counts:?}, {expected:?}", cells.len());
}

/// A bound that one chi-square in a hundred thousand exceeds (Wilson and Hilferty 1931).
fn bound(degrees: usize) -> f64 {
    let n = degrees as f64;
    n * (1.0 - 2.0 / (9.0 * n) + 4.265 * (2.0 / (9.0 * n)).sqrt()).powi(3)
}

#[test]
fn rows_become_candidates_by_their_distances() {
    let data = six();
    let weights = data.weights.clone().unwrap();
    let estimator = KMeans::new(2);
    let statistics = data.statistics(&estimator);
    let params = estimator.validate(1).unwrap();
    let mut session = on_cpu(&data, &statistics, &params, &[0, 6], InstructionSet::detect());
    session.weigh().unwrap();
    let total = session.lower(&[3.0], statistics.distances).unwrap();
    let distances: Vec<f64> = data.x.iter().zip(&weights).map(|(x, w)| w * (x - 3.0).powi(2)).collect();
    let sum: f64 = distances.iter().sum();
    let (trials, expected) = (20_000u32, 2u32);
    // Each row, and each two rows: they are drawn independently.
    let chance: Vec<f64> = distances.iter().map(|d| (f64::from(expected) * d / sum).min(1.0)).collect();
    let (mut one, mut two) = ([0u32; 6], [[0u32; 6]; 6]);
    for number in 0..trials {
        // Seeds, rounds and restarts all change the numbers.
        let (seed, round, restart) = (u64::from(number / 50), number % 5, number / 5 % 10);
        let sample = Sample { seed, restart, round, total, expected: expected.into(), first: 0, by_values: false };
        let drawn = session.pick(&Draw::Each(sample)).unwrap().rows;
        for (place, &i) in drawn.iter().enumerate() {
            one[i as usize] += 1;
            drawn[place + 1..].iter().for_each(|&j| two[i as usize][j as usize] += 1);
        }
    }
    let n = f64::from(trials);
    let deviation = |count: u32, p: f64| {
        if p == 0.0 || p == 1.0 {
            assert_eq!(f64::from(count), n * p);
            return 0.0;
        }
        (f64::from(count) - n * p).powi(2) / (n * p * (1.0 - p))
    };
    let all: f64 = (0..6).map(|i| deviation(one[i], chance[i])).sum();
    assert!(all < bound(6), "{one:?}, {chance:?}");
    for i in 0..6 {
        for j in i + 1..6 {
            let found = deviation(two[i][j], chance[i] * chance[j]);
            assert!(found < bound(1), "{i} and {j}: {} of {n}, {chance:?}", two[i][j]);
        }
    }
}

/// How often each two rows are the two centroids, in order.
fn counts_of_pairs(estimator: &KMeans, trials: u64) -> Vec<u32> {
    let data = six();
    let statistics = data.statistics(estimator);
    let params = estimator.validate(1).unwrap();
    let mut session = on_cpu(&data, &statistics, &params, &[0, 6], InstructionSet::detect());
    let mut counts = vec![0u32; 36];
    for number in 0..trials {
        let estimator = estimator.clone().seed(number / 4);
        let params = estimator.validate(1).unwrap();
        let seeds = seed(session.as_mut(), &params, &statistics, (number % 4) as u32).unwrap();
        let row = |value: f64| data.x.iter().position(|x| *x == value).unwrap();
        counts[row(seeds[0]) * 6 + row(seeds[1])] += 1;
    }
    counts
}

/// The probabilities of the second centroid by a step of greedy k-means++ with two trials.
fn greedy(data: &Data<f64>, first: usize) -> [f64; 6] {
    let weights = data.weights.as_ref().unwrap();
    let potential = |centroids: &[usize]| -> f64 {
        let near = |x: f64| centroids.iter().map(|&c| (x - data.x[c]).powi(2)).fold(f64::INFINITY, f64::min);
        data.x.iter().zip(weights).map(|(x, w)| w * near(*x)).sum()
    };
    let chance = |i: usize| weights[i] * (data.x[i] - data.x[first]).powi(2) / potential(&[first]);
    let mut all = [0.0; 6];
    for a in 0..6 {
        for b in 0..6 {
            let better = if potential(&[first, b]) < potential(&[first, a]) { b } else { a };
            all[better] += chance(a) * chance(b);
        }
    }
    all
}

/// How often each two rows are expected as the two centroids of greedy k-means++.
fn greedy_pairs(trials: u64) -> Vec<f64> {
    let data = six();
    let weights = data.weights.as_ref().unwrap();
    let all: f64 = weights.iter().sum();
    let of_first = |first: usize| greedy(&data, first).map(|step| weights[first] / all * step * trials as f64);
    (0..6).flat_map(of_first).collect()
}

#[test]
fn chains_of_one_row_end_where_rows_are_proposed() {
    let (data, trials) = (six(), 40_000);
    let weights = data.weights.clone().unwrap();
    let all: f64 = weights.iter().sum();
    let mut expected = vec![0.0; 36];
    for first in 0..6 {
        let distance = |i: usize| weights[i] * (data.x[i] - data.x[first]).powi(2);
        let sum: f64 = (0..6).map(distance).sum();
        let steps = greedy(&data, first);
        for second in 0..6 {
            let proposed = |i: usize| 0.5 * distance(i) / sum + 0.5 * weights[i] / all;
            // The first centroid is no second one: a step of k-means++ finds another.
            let own = if second == first { 0.0 } else { proposed(second) };
            expected[first * 6 + second] = weights[first] / all * (own + proposed(first) * steps[second]) * trials as f64;
        }
    }
    let counts = counts_of_pairs(&KMeans::new(2).init(Init::AfkMc2).chain_length(1), trials);
    check(&counts, &expected);
}

#[test]
fn long_chains_draw_like_k_means_plus_plus() {
    let (data, trials) = (six(), 20_000);
    let weights = data.weights.clone().unwrap();
    let all: f64 = weights.iter().sum();
    let mut expected = vec![0.0; 36];
    for first in 0..6 {
        let distance = |i: usize| weights[i] * reference::distance(&data.x[i..i + 1], &data.x[first..first + 1]);
        let sum: f64 = (0..6).map(distance).sum();
        for second in 0..6 {
            expected[first * 6 + second] = weights[first] / all * distance(second) / sum * trials as f64;
        }
    }
    let counts = counts_of_pairs(&KMeans::new(2).init(Init::AfkMc2).chain_length(60), trials);
    check(&counts, &expected);
    // k-means++ itself chooses the better of two.
    check(&counts_of_pairs(&KMeans::new(2), trials), &greedy_pairs(trials));
}

/// Masses are counts, so k-means++ among all rows as candidates is k-means++ over rows.
#[test]
fn candidates_are_chosen_by_the_rows_near_them() {
    let trials = 10_000;
    // So many candidates that every row is one.
    let counts = counts_of_pairs(&KMeans::new(2).init(Init::KMeansParallel).oversampling(1e6), trials);
    check(&counts, &greedy_pairs(trials));
}

#[test]
fn samples_hold_every_row_equally_often() {
    // From one row, every seeding takes this row.
    let x: Vec<f64> = (0..20).map(f64::from).collect();
    let data = Data { x, weights: Some((0..20).map(|i| f64::from(i % 4) * 0.3).collect()), d: 1 };
    for init in [Init::KMeansPlusPlus, Init::Random, Init::KMeansParallel, Init::AfkMc2, Init::Optimal] {
        let estimator = KMeans::new(1).init(init).init_sample(Some(1));
        let statistics = data.statistics(&estimator);
        let params = estimator.validate(1).unwrap();
        let mut session = on_cpu(&data, &statistics, &params, &[0, 20], InstructionSet::detect());
        let mut counts = vec![0u32; 20];
        for number in 0..3_000 {
            let estimator = estimator.clone().seed(number);
            let seeds = seed(session.as_mut(), &estimator.validate(1).unwrap(), &statistics, 0).unwrap();
            counts[seeds[0] as usize] += 1;
        }
        let expected: Vec<f64> = (0..20).map(|i| if i % 4 == 0 { 0.0 } else { 200.0 }).collect();
        check(&counts, &expected);
    }
}
