//! Assigns that compare rows only with the centroids near them: labels, sums and history of those that compare all.

use polars_kmeans::backend::cpu::{CpuSession, UseGroups, UseIntDot};
use polars_kmeans::backend::{Session, Sessions, Sharded, Stop};
use polars_kmeans::base::progress::Watch;
use polars_kmeans::input::tile::{RowBlock, Selection};
use polars_kmeans::{Chunk, Column, Engine, Features, Fitted, Init, KMeans, Metric, NullPolicy, Restarts, Scale, Wanted};
use polars_kmeans::{DotUnit, InstructionSet};

use crate::conformance::{Case, Shapes, Way};
use crate::data::{Random, assert_nearest, clusters_of, columns, from_columns, rows, some_rows};
use crate::sessions::Data;

/// The CPU in every way: with each instruction set, by groups of rows or without, and with integer copies or without.
pub struct OnCpu;

impl Way for OnCpu {
    const SHAPES: Shapes = Shapes {
        seed: 170_000,
        iterations: 12,
        kinds: &[[3_000, 2, 90], [2_500, 3, 31], [1_500, 8, 64], [1_200, 9, 70], [900, 40, 130], [400, 130, 20]],
        per_kind: 6,
        more_kinds: &[],
        // Rows of many features have sums of more than one panel.
        sizes: &[[1, 3, 1], [2, 1, 2], [127, 5, 33], [260, 129, 30], [300, 300, 40], [1_500, 12, 1_100]],
        weighted: &[[2_000, 2, 60], [1_000, 20, 40]],
        between: ([1_000, 50], &[(2, 1e4), (5, 0.0), (12, 1e4), (70, 0.0)]),
        to_the_end: &[("blobs", [3_000, 2, 90], 0.4), ("tight blobs far apart", [1_500, 8, 64], 0.4)],
    };

    fn check<T: Engine>(case: &Case<T>) -> Option<f64> {
        Some(1.0 - every_look(case))
    }
}

/// Changed rows and shift of each iteration, and centroids; then labels and sizes at the end; and the share of the scores that were computed.
type Outcome = ((Vec<(u64, u64)>, Vec<u32>, Vec<u64>), f64);

/// How a session looks at its rows, and how they lie.
#[derive(Debug, Clone, Copy)]
struct Look {
    groups: UseGroups,
    int_dot: UseIntDot,
    set: InstructionSet,
    threads: usize,
    row_by_row: bool,
}

fn outcome<T: Engine>(case: &Case<T>, look: Look) -> Outcome {
    let (data, estimator, k) = (&case.data, case.estimator(), case.start.len() / case.data.d);
    let start: Vec<T> = case.start.iter().map(|c| T::from_f64(*c)).collect();
    let statistics = data.statistics(&estimator);
    let columns = columns(&data.x, data.d);
    let mut part = match look.row_by_row {
        true => <[_; 1]>::try_from(data.parts(&[0, data.rows()])).unwrap().into_iter().next().unwrap(),
        // Column by column, in two chunks.
        false => {
            let half = data.rows() / 2;
            let cut = |c: &[T]| [0..half, half..c.len()];
            let features = columns.iter().map(|c| Column::new(cut(c).map(|range| Chunk::new(&c[range], None).unwrap())));
            let features = Features::new(features.collect()).unwrap();
            RowBlock::new(features, data.weights.as_ref().map(|weights| Column::from_slice(weights)))
        }
    };
    // Some rows are left out.
    if [3, 9, 130].contains(&data.d) {
        let words = data.rows().div_ceil(64);
        part.selection =
            Selection::from_bits((0..words).map(|word| 0x5555_f0f0_ffff_0013u64.rotate_left(word as u32)).collect());
    }
    let kept = (0..data.rows()).filter(|&row| part.selection.contains(row)).count();
    let session = CpuSession::new(part, &statistics, k, look.threads, look.set).unwrap();
    let session = session.forced(look.groups, look.int_dot);
    // One session goes on as several would.
    let mut session = Sharded::new(Sessions::new(vec![Box::new(session)]), &statistics, look.threads).unwrap();
    let (mut history, mut share) = (Vec::new(), 0.0);
    // The second time, the session has labels and groups of the first.
    for limit in [3, case.iterations] {
        let mut centroids = start.clone();
        session.reset().unwrap();
        let stop = Stop { changed: 0.0, shift: 0.0 };
        let advanced = session.advance(&mut centroids, stop, limit, &mut Watch::default()).unwrap();
        history.extend(advanced.done.iter().map(|done| (done.changed, done.shift.to_bits())));
        let done = advanced.done.len().max(1) as f64;
        share = advanced.done.iter().map(|done| done.work_counts.scores.unwrap_or(u64::MAX) as f64).sum::<f64>()
            / (kept * k) as f64
            / done;
        if advanced.assigned.is_none() {
            session.assign(&centroids, false).unwrap();
        }
        history.extend(centroids.iter().map(|c| (0, c.to_f64().to_bits())));
    }
    let sizes = session.sizes().unwrap();
    ((history, session.labels().unwrap(), sizes), share)
}

/// Fails unless every way gives the bits of the plainest. Returns the share of the scores that groups compute.
fn every_look<T: Engine>(case: &Case<T>) -> f64 {
    use InstructionSet::{Avx2, Avx512, Portable};
    let all = Look {
        groups: UseGroups::Never,
        int_dot: UseIntDot::Never,
        set: InstructionSet::detect(),
        threads: 0,
        row_by_row: false,
    };
    let (expected, _) = outcome(case, all);
    let check = |look: Look| {
        let (found, computed) = outcome(case, look);
        assert!(found == expected, "{}, {look:?}", case.what);
        computed
    };
    let mut share = 0.0;
    for set in [Portable, Avx2, Avx512] {
        let (threads, row_by_row) = if set == Avx2 { (1, true) } else { (3, false) };
        check(Look { groups: UseGroups::Tree, set, threads, row_by_row, ..all });
        for groups in [UseGroups::AlwaysSort, UseGroups::Always] {
            share = check(Look { groups, set, threads, row_by_row, ..all });
        }
    }
    // Copies in bytes and words, emulated and by the machine's instructions, about one point and about one for each group.
    let (lanes, words, tiles) = (DotUnit::Avx512, DotUnit::Avx512Words, DotUnit::Amx);
    for (set, groups, int_dot, row_by_row) in [
        (Portable, UseGroups::Always, UseIntDot::Always(DotUnit::Emulated), true),
        (Avx2, UseGroups::Never, UseIntDot::Always(DotUnit::EmulatedTiles), false),
        (Avx512, UseGroups::Always, UseIntDot::Always(lanes), true),
        (Avx512, UseGroups::Always, UseIntDot::Always(tiles), true),
        (Avx512, UseGroups::Always, UseIntDot::Always(lanes), false),
        (Avx512, UseGroups::Never, UseIntDot::Always(lanes), true),
        (Avx512, UseGroups::Never, UseIntDot::Always(tiles), true),
        (Portable, UseGroups::Never, UseIntDot::Always(DotUnit::EmulatedWords), false),
        (Avx512, UseGroups::Always, UseIntDot::Always(words), true),
        (Avx512, UseGroups::Never, UseIntDot::Always(words), false),
        (Avx2, UseGroups::Always, UseIntDot::Always(DotUnit::Avx2Pairs), true),
        (Avx512, UseGroups::Always, UseIntDot::Twice(lanes), true),
        (Avx512, UseGroups::Always, UseIntDot::Twice(tiles), false),
    ] {
        check(Look { groups, int_dot, set, threads: 2, row_by_row });
    }
    assert!(share > 0.0, "{}: {share}", case.what);
    share
}

/// Where clusters are apart, some shape needs few scores.
#[test]
fn most_scores_are_left_out() {
    let look = Look {
        groups: UseGroups::Always,
        int_dot: UseIntDot::Never,
        set: InstructionSet::detect(),
        threads: 3,
        row_by_row: false,
    };
    for kind in ["blobs", "tight blobs far apart"] {
        let shares = OnCpu::SHAPES.kinds.iter().map(|&[n, d, k]| {
            let x: Vec<f32> = rows(kind, n, d, &mut Random(77));
            let start = some_rows(&x, d, k, 3, &mut Random(78));
            let data = Data { x, weights: None, d };
            outcome(&Case { data, start, iterations: 12, what: kind.into() }, look).1
        });
        let least = shares.fold(f64::INFINITY, f64::min);
        assert!(least < 0.3, "{kind}: nothing was left out: {least}");
    }
}

/// Ties among more clusters than one panel holds.
#[test]
fn ties_over_several_panels() {
    let (random, d) = (&mut Random(85), 12);
    let x: Vec<f32> = rows("lattice", 1_500, d, random);
    let start = some_rows(&x, d, 1_100, 3, random);
    every_look(&Case { data: Data { x, weights: None, d }, start, iterations: 12, what: "ties over several panels".into() });
}

/// The same fit in parts that have too few rows for groups and for integer copies.
fn compared_with_all(estimator: &KMeans, x: &[f32], d: usize, weights: Option<&[f64]>) -> Fitted<f32> {
    const ROWS: usize = 3_000;
    let mut parts = Vec::new();
    for (i, x) in x.chunks(ROWS * d).enumerate() {
        let weights = weights.map(|weights| Column::from_slice(&weights[i * ROWS..][..x.len() / d]));
        parts.push(RowBlock::new(Features::from_rows(x, d).unwrap(), weights));
    }
    let fit = estimator.fit_parts(parts, InstructionSet::detect(), Wanted::Labels).unwrap();
    assert!(fit.model.history().iter().all(|row| row.skipped.is_none()));
    fit
}

/// A whole fit decides by itself to compare integer copies first, with groups and without, where the machine multiplies them fast.
#[test]
fn whole_fits_of_many_features() {
    let (n, d, k) = (9_000, 70, 100);
    for kind in ["blobs", "uniform", "a row far out"] {
        let x: Vec<f32> = rows(kind, n, d, &mut Random(86));
        let start = some_rows(&x, d, k, usize::MAX >> 1, &mut Random(87));
        let usual = KMeans::new(k).init(Init::Given(start)).max_iter(5).device(polars_kmeans::Device::Cpu).threads(2);
        let columns = columns(&x, d);
        let by_columns = from_columns(&columns);
        let expected = compared_with_all(&usual, &x, d, None);
        for features in [by_columns, Features::from_rows(&x, d).unwrap()] {
            let found = usual.fit_features(&features, None).unwrap();
            assert!(found.labels == expected.labels, "{kind}");
            assert_eq!(found.model.inertia().to_bits(), expected.model.inertia().to_bits(), "{kind}");
            assert_eq!(found.model.centroids(), expected.model.centroids(), "{kind}");
        }
    }
}

/// Rows in a wider table, or every second value of one: neither row by row nor column by column.
#[test]
fn strided_rows() {
    let (n, d, k) = (40_000, 70, 240);
    let x: Vec<f32> = rows("blobs", n, 2 * d, &mut Random(81));
    let every_second: Vec<f32> = x.iter().step_by(2).copied().collect();
    let start = some_rows(&every_second, d, k, usize::MAX >> 1, &mut Random(82));
    let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(4).device(polars_kmeans::Device::Cpu).threads(2);
    let fit = |features| estimator.fit_features(&features, None).unwrap();
    let strided = fit(Features::from_strided(&x, 0, [n, d], [2 * d as isize, 2]).unwrap());
    let rows = fit(Features::from_rows(&every_second, d).unwrap());
    assert_eq!((strided.labels, strided.model.inertia().to_bits()), (rows.labels, rows.model.inertia().to_bits()));
    assert!(strided.model.history().iter().all(|row| row.skipped.is_some_and(|share| share > 0.5)));
}

/// A whole fit decides by itself: separated clusters are left out, and the history says so.
#[test]
fn whole_fits_leave_out_what_is_far() {
    let (n, d, k) = (20_000, 16, 200);
    let x: Vec<f32> = rows("blobs", n, d, &mut Random(79));
    let start = some_rows(&x, d, k, usize::MAX >> 1, &mut Random(80));
    let features = Features::from_rows(&x, d).unwrap();
    let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(5).device(polars_kmeans::Device::Cpu).threads(2);
    let fit = estimator.fit_features(&features, None).unwrap();
    let skipped: Vec<f64> = fit.model.history().iter().filter_map(|row| row.skipped).collect();
    assert!(skipped.len() == 5 && skipped.iter().all(|share| *share > 0.7), "{skipped:?}");
    assert_nearest(&x, &fit, "whole fits leave out what is far");
}

/// Whole fits beside those that compare rows with all centroids: directions, scaled columns, weights, rows that are left out, and
/// two restarts.
#[test]
fn every_kind_of_fit() {
    let (n, d, k) = (24_000, 12, 150);
    let mut random = Random(83);
    let x: Vec<f32> = rows("blobs", n, d, &mut random);
    let with_holes: Vec<f32> = x.iter().enumerate().map(|(i, x)| if i % 997 == 0 { f32::NAN } else { *x }).collect();
    let weights: Vec<f64> = (0..n).map(|_| [0.0, 1.0, 2.5][random.below(3)]).collect();
    let start = || Init::Given(some_rows(&x, d, k, usize::MAX >> 1, &mut Random(84)));
    let usual = || KMeans::new(k).init(start()).max_iter(6).device(polars_kmeans::Device::Cpu).threads(2);
    let kinds = [
        ("directions", usual().metric(Metric::Cosine), &x, false),
        ("scaled", usual().scale(Scale::Standard), &x, false),
        ("weights", usual(), &x, true),
        ("rows that are left out", usual().null_policy(NullPolicy::Skip), &with_holes, false),
        ("restarts", usual().init(Init::Random).n_init(Restarts::Count(2)).seed(5), &x, true),
    ];
    for (what, estimator, x, weighted) in kinds {
        let columns = columns(x, d);
        let by_columns = from_columns(&columns);
        let weights = weighted.then_some(&weights[..]);
        let expected = compared_with_all(&estimator, x, d, weights);
        for features in [by_columns, Features::from_rows(x, d).unwrap()] {
            let found = estimator.fit_features(&features, weights.map(Column::from_slice).as_ref()).unwrap();
            assert!(found.labels == expected.labels, "{what}");
            assert_eq!(found.model.inertia().to_bits(), expected.model.inertia().to_bits(), "{what}");
            let skipped = found.model.history().iter().filter_map(|row| row.skipped).fold(0.0, f64::max);
            assert!(skipped > 0.5, "{what}: {skipped}");
        }
    }
}

/// A hundred natural clusters are found, also those without a centroid at the start, and their rows are compared with few
/// centroids.
#[test]
fn natural_clusters_are_groups() {
    for [n, d, k] in [[24_000, 12, 150], [16_000, 40, 130], [12_000, 70, 300]] {
        let x: Vec<f32> = rows("hundred clusters", n, d, &mut Random(94));
        let start = some_rows(&x, d, k, usize::MAX >> 1, &mut Random(95));
        let usual = KMeans::new(k).init(Init::Given(start)).max_iter(6).device(polars_kmeans::Device::Cpu).threads(2);
        let columns = columns(&x, d);
        let expected = compared_with_all(&usual, &x, d, None);
        assert_nearest(&x, &expected, "compared with all");
        for features in [from_columns(&columns), Features::from_rows(&x, d).unwrap()] {
            let found = usual.fit_features(&features, None).unwrap();
            assert!(found.labels == expected.labels, "{n} x {d} x {k}");
            assert_eq!(found.model.inertia().to_bits(), expected.model.inertia().to_bits(), "{n} x {d} x {k}");
            let skipped: Vec<f64> = found.model.history().iter().filter_map(|row| row.skipped).collect();
            assert!(skipped.len() == 6 && skipped.iter().all(|share| *share > 0.6), "{n} x {d} x {k}: {skipped:?}");
            let method = found.method.unwrap().to_string();
            assert!(method.starts_with("rows lie in 100 groups"), "{method}");
        }
    }
}

/// The columns of 9 to 64 features are read where they lie, in float64 all of up to 64. Tasks end within a block of rows, or with it.
fn check_columns_in_place<T: Engine>() {
    let random = &mut Random(91);
    for (n, d, k) in [(2_048, 9, 7), (5_000, 34, 12), (1_111, 64, 20), (1_088, 65, 9), (130, 20, 3), (640, 3, 8)] {
        for kind in ["blobs", "lattice", "a row far out"] {
            let x: Vec<T> = rows(kind, n, d, random);
            let k = clusters_of(kind, d, k);
            let start = some_rows(&x, d, k, 3, random);
            let columns = columns(&x, d);
            let fit = |features: Features<'_, T>, set| {
                let estimator = KMeans::new(k).init(Init::Given(start.clone())).max_iter(6).device(polars_kmeans::Device::Cpu);
                let fitted = estimator.threads(2).fit_parts(vec![RowBlock::new(features, None)], set, Wanted::Labels).unwrap();
                let model = fitted.model;
                (fitted.labels, model.inertia().to_bits(), model.centroids().to_vec(), model.sizes().to_vec())
            };
            let expected = fit(Features::from_rows(&x, d).unwrap(), InstructionSet::Portable);
            for set in [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512] {
                let by_columns = from_columns(&columns);
                assert!(fit(by_columns, set) == expected, "{kind} {n} x {d} x {k} {set}");
            }
        }
    }
}

in_both_types!(columns_in_place, T => check_columns_in_place::<T>());

/// A fit says how rows were compared.
#[test]
fn fits_say_how_rows_were_compared() {
    let said = |kind, [n, d, k]: [usize; 3]| {
        let x: Vec<f32> = rows(kind, n, d, &mut Random(92));
        let start = some_rows(&x, d, k, usize::MAX >> 1, &mut Random(93));
        let estimator = KMeans::new(k).init(Init::Given(start)).max_iter(3).device(polars_kmeans::Device::Cpu);
        estimator.fit_features(&Features::from_rows(&x, d).unwrap(), None).unwrap().method.unwrap().to_string()
    };
    let near = said("blobs", [40_000, 3, 300]);
    assert!(near.starts_with("rows lie in ") && near.contains(" % of the distances in a sample"), "{near}");
    let few = said("blobs", [40, 3, 5]);
    assert!(few.starts_with("rows are compared with all centroids, because there are few rows or few clusters; "), "{few}");
    let uniform = said("uniform", [9_000, 20, 40]);
    assert!(uniform.starts_with("rows are compared with all centroids, because groups of rows would leave "), "{uniform}");
}
