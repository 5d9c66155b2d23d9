//! Rows that use up most of what a bound allows: roundings that all add up in one direction, where two distances are as good as
//! equal. Each bound is tried through whole sessions and predictions. If a bound allowed half as much, a label or a gain would be
//! wrong: the names of tests with roundings and residuals say which.
//!
//! No rows use half of some allowances. Where a test uses less than half, it says so. The others:
//!
//! - Reference distances, in the bounds of products: for all numbers of features and weights, they are less than a 60th of the
//!   thousandth that is added to the float32 errors beside them.
//! - Copies, in the bound of float32 products: a search found no rows that need this. A chain of products has most roundings
//!   where the row and both centroids have one direction. Then the error of the row's copy is the same for both.
//! - The sums of scores of integer copies: they are less than what rows leave of the norms of the residuals, of which a test uses
//!   99.6 %.

use polars_kmeans::backend::Session;
use polars_kmeans::backend::cpu::{CpuSession, UseGroups, UseIntDot};
use polars_kmeans::exact::reference;
use polars_kmeans::{DotUnit, Engine, Features, Init, InstructionSet, KMeans};

use crate::sessions::{Data, on_cpu};

/// 2^-23, the distance from 1 to the next float32. A rounding near 1 is wrong by at most half of it.
const ULP: f32 = f32::EPSILON;
/// The square root of half of that distance. The square of a number just above it makes 1 round up, that of one just below not.
const ROOT: f32 = 1.0 / 4_096.0;
const SETS: [InstructionSet; 3] = [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512];

/// Number of the rows of a case, which are given again and again.
const ROWS: usize = 70;

/// Rows and centroids.
struct Case<T> {
    d: usize,
    rows: Vec<Vec<T>>,
    centroids: Vec<Vec<T>>,
}

impl<T: Engine> Case<T> {
    fn data(&self) -> Data<T> {
        let x = (0..ROWS).flat_map(|r| self.rows[r % self.rows.len()].clone()).collect();
        Data { x, weights: None, d: self.d }
    }

    fn centroids(&self) -> Vec<T> {
        self.centroids.concat()
    }

    /// The reference distances of the first row to two centroids.
    fn distances(&self, [a, b]: [usize; 2]) -> [f64; 2] {
        [a, b].map(|j| reference::distance(&self.rows[0], &self.centroids[j]))
    }

    fn check_labels(&self, found: &[u32], what: &str) {
        let centroids = self.centroids();
        for (r, found) in found.iter().enumerate() {
            let nearest = reference::nearest(&self.rows[r % self.rows.len()], &centroids);
            assert_eq!(*found, nearest.label, "{what}, {}, row {}", T::NAME, r % self.rows.len());
        }
    }

    /// The predictions by a model with exactly these centroids: labels, and distances to the two nearest centroids.
    fn check_predictions(&self) {
        let (data, centroids) = (self.data(), self.centroids());
        let given = centroids.iter().map(|c| c.to_f64()).collect();
        let own = Features::from_rows(&centroids, self.d).unwrap();
        let estimator = KMeans::new(self.centroids.len()).init(Init::Given(given)).max_iter(1);
        let model = estimator.fit_features(&own, None).unwrap().model;
        assert!(model.centroids() == centroids, "the centroids are their own means");
        let features = Features::from_rows(&data.x, self.d).unwrap();
        let labels: Vec<u32> = model.predict(&features).unwrap().iter().flatten().collect();
        self.check_labels(&labels, "predicted");
        for (x, found) in data.x.chunks_exact(self.d).zip(model.predict_distances(&features).unwrap().iter().flatten()) {
            let nearest = reference::nearest(x, &centroids);
            assert_eq!((found.label, found.second_distance), (nearest.label, Some(nearest.second.sqrt())), "{}", T::NAME);
        }
    }

    /// The labels of a session, at first by the centroids `before`. `int_dot`: by integer copies, else by float32.
    fn check_session(&self, set: InstructionSet, groups: UseGroups, int_dot: UseIntDot, before: &[T]) {
        let (data, centroids) = (self.data(), self.centroids());
        let k = self.centroids.len();
        let estimator = KMeans::new(k).init(Init::Given(centroids.iter().map(|c| c.to_f64()).collect()));
        let statistics = data.statistics(&estimator);
        let part = data.parts(&[0, ROWS]).remove(0);
        let session = CpuSession::new(part, &statistics, k, 1, set).unwrap();
        let mut session = session.forced(groups, int_dot);
        session.assign(before, false).unwrap();
        for time in ["first", "second"] {
            session.assign(&centroids, false).unwrap();
            self.check_labels(&session.labels().unwrap(), &format!("{set:?}, {groups:?}, {int_dot:?}, {time} assign"));
        }
    }

    fn check(&self) {
        self.check_predictions();
        for set in SETS {
            self.check_session(set, UseGroups::Never, UseIntDot::Never, &self.centroids());
        }
    }

    /// The same where a further centroid is nearest to the first row, and one of the first two is second nearest.
    fn check_second(mut self, nearest: Vec<T>) {
        let [a, b] = self.distances([0, 1]);
        assert!(a != b, "the distances say which one was found");
        self.centroids.push(nearest);
        self.check();
    }
}

/// A row, and two centroids at the same distance from it, or nearly. By float32 differences the second one seems nearer, by all
/// roundings that there are. Only the first feature and those that are `rounded` are not 0. The others make a sum of squares that
/// is just above 1 round up for the first centroid, and down for the second one.
///
/// In the first feature the differences round: to 1 + 2,049 ulps up and to 1 + 2,048 ulps down. So do their squares. The first
/// centroid has one rounding less than the second, so that it is nearer.
fn by_differences(d: usize, rounded: &[usize]) -> Case<f32> {
    let (mut x, mut a, mut b) = (vec![0.0f32; d], vec![0.0f32; d], vec![0.0f32; d]);
    // Half an ulp of 1 is a float32 there, and a little more of it, too.
    x[0] = (2_048.5 * ULP).next_up();
    (a[0], b[0]) = (-1.0, 1.0 + 4_097.0 * ULP);
    for f in rounded {
        (a[*f], b[*f]) = (ROOT.next_up(), ROOT.next_down());
    }
    if let Some(last) = rounded.last() {
        a[*last] = 0.0;
    }
    let case = Case { d, rows: vec![x], centroids: vec![b, a] };
    let [far, near] = case.distances([0, 1]);
    assert!(near < far && far < near + f64::from(ULP), "{near} {far}");
    case
}

/// Differences of float32 rows of few features: 9 roundings of one centroid and 10 of the other. That is three quarters of what
/// is allowed.
#[test]
fn roundings_of_few_differences() {
    let mut case = by_differences(8, &[1, 2, 3, 4, 5, 6, 7]);
    case.check();
    let nearest = case.rows[0].clone();
    by_differences(8, &[1, 2, 3, 4, 5, 6, 7]).check_second(nearest);
    // More centroids than one pass compares.
    case.centroids.extend((0..20).map(|j| vec![100.0 + j as f32; 8]));
    case.check();
}

/// Sums of squared differences of many float32 features, where integer copies leave two centroids: a rounding for each feature of
/// the longest chain, and for each sum of two partial sums.
#[test]
fn roundings_of_a_closer_look() {
    for (set, lanes, units) in [
        (InstructionSet::Portable, 8usize, [DotUnit::Emulated, DotUnit::EmulatedWords]),
        (InstructionSet::Avx2, 8, [DotUnit::Avx2, DotUnit::Avx2Words]),
        (InstructionSet::Avx2, 8, [DotUnit::Avx2Pairs; 2]),
        (InstructionSet::Avx512, 16, [DotUnit::Avx512, DotUnit::Amx]),
    ] {
        let d = 512;
        // Four vectors of partial sums: the chain of the first lane of the first vector, then the sums of two.
        let chain = (1..d / (4 * lanes)).map(|i| i * 4 * lanes);
        let halves = (0..lanes.ilog2()).rev().map(|i| 1 << i);
        let rounded: Vec<usize> = chain.chain([lanes, 2 * lanes]).chain(halves).collect();
        let mut case = by_differences(d, &rounded);
        // Most rows leave no doubt, so that copies are used.
        let clear = case.centroids[0].clone();
        case.rows.extend(std::iter::repeat_n(clear, 9));
        for unit in units {
            case.check_session(set, UseGroups::Never, UseIntDot::Always(unit), &case.centroids());
        }
    }
}

/// A row amid two centroids, next to each other, by products: the first product is `size`, and those of the `rounded` features
/// are just below or above half an ulp of it. So the sum of one centroid rounds down every time, and that of the other one up.
/// The other centroids only bring the centre of the filter to the origin.
fn by_products<T: Engine>(d: usize, size: f32, rounded: impl Iterator<Item = usize>) -> Case<T> {
    let (mut x, mut centroids) = (vec![T::from_f32(0.0); d], vec![vec![T::from_f32(0.0); d]; 5]);
    let mut fill = |f: usize, row: f32, values: [f32; 4]| {
        x[f] = T::from_f32(row);
        centroids.iter_mut().zip(values).for_each(|(c, value)| c[f] = T::from_f32(value));
    };
    fill(0, size, [1.0, 1.0, -0.5, -0.75]);
    let root = ROOT * size.sqrt();
    rounded.for_each(|f| fill(f, root, [root - root * ROOT, root + root * ROOT, -0.5, -0.5]));
    let case = Case { d, rows: vec![x], centroids };
    let [a, b] = case.distances([0, 1]);
    assert_eq!(a, b);
    case
}

/// 64 features are one chain: nine tenths of what is allowed, half of which is for the row and half for both centroids.
fn one_chain<T: Engine>() {
    let d = 64;
    by_products::<T>(d, 1.0, 1..d).check();
    let mut case = by_products::<T>(d, 1.0, 1..d);
    // Two roots more, so that this centroid is a little farther.
    case.centroids[1][d - 1] = T::from_f32(ROOT + 2.0 * ROOT * ROOT);
    case.centroids.push(vec![T::from_f32(-0.25); d]);
    // This one's sum rounds up, too.
    let mut nearest = vec![T::from_f32(ROOT + 0.5 * ROOT * ROOT); d];
    nearest[0] = T::from_f32(1.0);
    case.check_second(nearest);
    // Rows that are longer than centroids, or shorter. Their weights in the bound follow in the second assign. The origin is no
    // centroid, because it would be nearer.
    for size in [1.0 / 16.0, 0.25, 4.0] {
        let mut case = by_products::<T>(d, size, 1..d);
        let mut before = case.centroids.clone();
        before[..2].fill(case.centroids[4].clone());
        case.centroids[4] = case.centroids[3].clone();
        for set in SETS {
            case.check_session(set, UseGroups::Never, UseIntDot::Never, &before.concat());
        }
    }
}

#[test]
fn roundings_of_a_chain_of_products() {
    one_chain::<f32>();
    one_chain::<f64>();
}

/// More features are several chains, whose sums are added one after another.
#[test]
fn roundings_of_sums_of_chains() {
    let (d, panel) = (1_536, 64);
    by_products::<f32>(d, 1.0, (1..panel).chain((panel..d).step_by(panel))).check();
    by_products::<f64>(d, 1.0, (1..panel).chain((panel..d).step_by(panel))).check();
}

/// A row near the centre, whose products are next to nothing. The half squares of both centroids round when they are added, and
/// so does what a threshold adds. A search found no rows that use more than this: a quarter of what is allowed for both together.
/// A score is a float32, and a sum that is not below it does not fall below it by rounding to nearest.
#[test]
fn last_roundings_of_products() {
    let centroids = vec![vec![1.000000198136135, 0.0], vec![-0.9999999005489713, 0.0], vec![0.0, 5.0]];
    let case = Case::<f64> { d: 2, rows: vec![vec![1.4879358190000858e-7, 0.0]], centroids };
    let [a, b] = case.distances([0, 1]);
    assert_eq!(a, b);
    case.check();
}

/// Products of less than the least float32: half of it is lost each time. Bounds have room for more: this uses a ninth.
#[test]
fn products_that_underflow() {
    let (d, size) = (64, 2f32.powi(-75));
    let centroids = [size - size * ROOT, size + size * ROOT, 0.0, -0.5, -0.75].map(|c| vec![c; d]).to_vec();
    let case = Case { d, rows: vec![vec![size; d], vec![-0.5; d]], centroids };
    let [a, b] = case.distances([0, 1]);
    assert_eq!(a, b);
    case.check();
}

/// Squares of less than the least float32. Half of it is lost each time, a fifth of what is allowed: this uses a seventh.
#[test]
fn squares_that_underflow() {
    let (d, size) = (8, 2f32.powi(-75));
    // These squares become 0, and those the least float32, but for the last one.
    let (below, mut above) = (vec![size.next_down(); d], vec![size.next_up(); d]);
    above[d - 1] = 0.0;
    // Values of this size are not scaled.
    let largest = vec![2f32.powi(-38); d];
    let mut case = Case { d, rows: vec![vec![0.0; d], largest.clone()], centroids: vec![below, above, largest.clone()] };
    let [far, near] = case.distances([0, 1]);
    assert!(near < far);
    case.check();
    case.centroids.extend((1..20).map(|j| vec![largest[0] / (j + 1) as f32; d]));
    case.check();
}

/// Integer copies: most of what is copied lies halfway between two integers. What is lost of the row lies in the direction from
/// one centroid to the other, what is lost of each centroid in the direction of the row. `largest` makes the steps of copies 1.
/// Signs of the row and the second centroid agree in so many features, and differ in others. `exact`: numbers of both, for a tie.
fn residuals<T: Engine>(
    [largest, middle]: [f32; 2],
    [agree, differ]: [usize; 2],
    exact: [f32; 2],
    units: &[(InstructionSet, DotUnit)],
) {
    // Both round to the middle: of two integers, the even one is taken.
    let (down, up) = (middle + 0.5, middle - 0.5);
    let (mut x, mut c) = (vec![largest, 0.0, exact[0]], vec![0.0, largest, exact[1]]);
    for f in 0..agree + differ {
        let sign = if f % 2 == 0 { 1.0 } else { -1.0 };
        x.push(if f < agree { sign * down } else { sign * up });
        c.push(if f < agree { sign * down } else { -sign * up });
    }
    let vector = |v: &[f32], sign: f32| v.iter().map(|v| T::from_f32(sign * v)).collect::<Vec<T>>();
    let [x, opposite] = [1.0, -1.0].map(|sign| vector(&x, sign));
    let centroids = vec![vector(&c, -1.0), vector(&c, 1.0)];
    // Most rows leave no doubt, so that copies are used.
    let rows = vec![x, opposite, centroids[0].clone(), centroids[1].clone(), centroids[0].clone(), centroids[1].clone()];
    let case = Case { d: c.len(), rows, centroids };
    let [a, b] = case.distances([0, 1]);
    assert_eq!(a, b);
    for (set, unit) in units {
        case.check_session(*set, UseGroups::Never, UseIntDot::Always(*unit), &case.centroids());
    }
}

/// In bytes, this uses 99.6 % of what the norms of the residuals allow. If centroids' own errors were 0.992 times as large, a
/// label would be wrong.
#[test]
fn residuals_of_bytes() {
    let units = [
        (InstructionSet::Portable, DotUnit::Emulated),
        (InstructionSet::Portable, DotUnit::EmulatedTiles),
        (InstructionSet::Avx2, DotUnit::Avx2),
        (InstructionSet::Avx512, DotUnit::Avx512),
        (InstructionSet::Avx512, DotUnit::Amx),
    ];
    // The products of halves leave -1: 250 * 126.5^2 - 254 * 125.5^2.
    residuals::<f32>([127.0, 126.0], [250, 254], [1.0, 1.0], &units);
    residuals::<f64>([127.0, 126.0], [250, 254], [1.0, 1.0], &units);
}

/// In words, a vector of equal numbers has a smaller step. So one number has to be large, and this uses 68 %.
#[test]
fn residuals_of_words() {
    let units = [
        (InstructionSet::Portable, DotUnit::EmulatedWords),
        (InstructionSet::Avx2, DotUnit::Avx2Words),
        (InstructionSet::Avx2, DotUnit::Avx2Pairs),
        (InstructionSet::Avx512, DotUnit::Avx512Words),
    ];
    residuals::<f32>([32_767.0, 3_880.0], [31, 31], [3_880.0, -62.0], &units);
    residuals::<f64>([32_767.0, 3_880.0], [31, 31], [3_880.0, -62.0], &units);
}

/// A row in the middle between the point of its group and another centroid. Both reference distances round down for each feature.
/// The distance between the point and the other centroid has fewer roundings, and seems larger than twice the row's: by a 30th of
/// what is allowed. No rows use more than a sixth: the bound allows six times `(d + 16) 2^-52` on both sides together, and the
/// roundings of two reference distances and of the three measured ones add up to `(d + 2) 2^-52`.
fn between_groups<T: Engine>() {
    let (d, root) = (300, 2f32.powf(-26.5).next_down());
    let vector = |first: f32, others: f32| (0..d).map(|f| T::from_f32(if f == 0 { first } else { others })).collect::<Vec<T>>();
    let (left, right) = (vector(-1.0, -root), vector(1.0, root));
    // Three centroids make a group.
    let centroids = [&right, &left, &right, &right, &left, &left].map(Vec::clone).to_vec();
    let case = Case { d, rows: vec![vector(0.0, 0.0)], centroids };
    assert_eq!(case.distances([0, 1]), [1.0, 1.0]);
    // At first the other centroids are farther.
    let before = case.centroids.iter().map(|c| if c[0] == right[0] { vector(1.5, root) } else { c.clone() });
    let before = before.collect::<Vec<_>>().concat();
    for set in SETS {
        for groups in [UseGroups::Always, UseGroups::AlwaysSort] {
            case.check_session(set, groups, UseIntDot::Never, &before);
        }
    }
}

#[test]
fn roundings_of_distances_between_groups() {
    between_groups::<f32>();
    between_groups::<f64>();
}

/// The gain of a candidate of k-means++ that is a little nearer to a row than the seed, which is another row.
fn check_gain(row: Vec<f32>, seed: Vec<f32>, candidate: Vec<f32>) {
    // Where the filter leaves many rows, the distances of all are computed. It may leave those of the seed.
    let rows = std::iter::repeat_n(row, 9).chain([seed.clone()]).collect();
    let case = Case { d: seed.len(), rows, centroids: vec![seed.clone(), candidate.clone()] };
    let [far, near] = case.distances([0, 1]);
    let (data, estimator) = (case.data(), KMeans::new(2).threads(1));
    let statistics = data.statistics(&estimator);
    let params = estimator.validate(case.d).unwrap();
    let total = |s: f64| ROWS as u128 / 10 * 9 * statistics.distances.quantise(1.0, s);
    assert!(near < far && total(near) < total(far));
    for set in SETS {
        let mut session = on_cpu(&data, &statistics, &params, &[0, ROWS], set);
        session.weigh().unwrap();
        assert_eq!(session.lower(&seed, statistics.distances).unwrap(), total(far));
        assert_eq!(session.gains(&candidate).unwrap(), [total(far) - total(near)], "{} features, {set:?}", case.d);
        assert_eq!(session.lower(&candidate, statistics.distances).unwrap(), total(near), "{} features, {set:?}", case.d);
    }
}

/// Float32 differences to a candidate of k-means++: d + 2 of d + 5 roundings.
#[test]
fn roundings_of_a_candidates_differences() {
    for d in [9, 64, 300] {
        let (mut x, mut candidate) = (vec![0.0f32; d], vec![ROOT.next_up(); d]);
        x[0] = (2_048.5 * ULP).next_up();
        candidate[0] = -1.0;
        let mut seed = candidate.clone();
        seed[d - 1] *= 1.25;
        check_gain(x, seed, candidate);
    }
}

/// Squares that become the least float32, twice as much as they are: a quarter of what is allowed, and no rows use more.
#[test]
fn a_candidates_squares_that_underflow() {
    let d = 300;
    let candidate = vec![2f32.powi(-75).next_up(); d];
    let mut seed = candidate.clone();
    seed[0] *= 2.0;
    check_gain(vec![0.0; d], seed, candidate);
}
