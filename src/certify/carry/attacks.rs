//! Attacks on the carried bounds: random values and near ties, exact distances, and careless versions that must be caught.

use super::super::attacks::Random;
use super::*;
use crate::float::Float;
use crate::prepare::unit_exponent;
use crate::reference;

/// The true squared distance, as the sum of two float64 with about 100 bits.
fn exact<T: Float>(x: &[T], c: &[T]) -> [f64; 2] {
    let sum = |a: f64, b: f64| {
        let s = a + b;
        let t = s - a;
        [s, (a - (s - t)) + (b - t)]
    };
    x.iter().zip(c).fold([0.0, 0.0], |[high, low], (x, c)| {
        let [t, rest] = sum(x.to_f64(), -c.to_f64());
        let square = t * t;
        let [s, more] = sum(high, square);
        let low = low + (more + (t.mul_add(t, -square) + 2.0 * t * rest));
        sum(s, low)
    })
}

/// How far a bound's square is above the exact square of a distance, in units of the latter.
fn above(bound: f32, scale: f64, [high, low]: [f64; 2]) -> f64 {
    let square = (f64::from(bound) / scale).powi(2);
    ((square - high) - low) / high
}

fn largest<T: Float>(vectors: &[Vec<T>]) -> f64 {
    vectors.iter().flatten().fold(0.0, |m, v| m.max(v.to_f64().abs()))
}

fn vector<T: Float>(random: &mut Random, d: usize, sort: u64, mixed: bool) -> Vec<T> {
    let value = |_| {
        let other = random.below(7);
        random.value(if mixed { other } else { sort })
    };
    (0..d).map(value).collect()
}

/// Bounds from reference distances enclose true distances, and are not much wider than they have to be.
fn enclose<T: Float>() {
    let random = &mut Random(3);
    let mut checked = 0;
    for case in 0..40_000 {
        let (d, sort) = ([1, 2, 3, 16, 100, 1_000][case % 6], random.below(8));
        let [x, c]: [Vec<T>; 2] = [vector(random, d, sort, case % 3 == 0), vector(random, d, sort, false)];
        let exponent = unit_exponent(largest(&[x.clone(), c.clone()]));
        let (carry, scale) = (Carry::new(d, T::IS_F32, exponent), power_of_two(exponent));
        let s = reference::distance(&x, &c);
        let (lower, upper, truth) = (carry.lower(s), carry.upper(s), exact(&x, &c));
        assert!(lower <= upper && upper.is_finite());
        // Where the parts of products underflow, the exact square is not known. Bounds below 2^-100 are rounded coarsely.
        if truth[0] > 1e-200 && truth[0] < 1e200 && lower > 2f32.powi(-100) {
            checked += 1;
            let [low, high] = [lower, upper].map(|bound| above(bound, scale, truth));
            assert!(low <= 0.0 && high >= 0.0, "d {d}, sort {sort}: {low:e} {high:e}");
            assert!(low > -4.1 * U && high < 4.1 * U, "d {d}, sort {sort}: {low:e} {high:e}");
        }
    }
    assert!(checked > 10_000, "{checked}");
}

#[test]
fn bounds_enclose_true_distances() {
    enclose::<f32>();
    enclose::<f64>();
}

/// One way to carry and compare bounds.
struct Rules {
    farther: fn(f32, f32) -> f32,
    nearer: fn(f32, f32) -> f32,
    keeps: fn(&Carry, f32, f32) -> bool,
}

const SOUND: Rules = Rules { farther: Carry::farther, nearer: Carry::nearer, keeps: Carry::keeps };

/// What an attack found: rows that kept their label, those of them that lost the right one, and the least `1 - U / l` of one that was kept.
#[derive(Default)]
struct Found {
    kept: usize,
    wrong: usize,
    near: usize,
}

/// Rows and centroids that move, many of them so that they tie with the label. Bounds are carried over some iterations.
fn carried<T: Float>(rules: &Rules, cases: usize) -> Found {
    let random = &mut Random(17);
    let mut found = Found::default();
    for case in 0..cases {
        let (d, k, sort) = (1 + case % 5, 2 + case % 3, random.below(8));
        let x: Vec<T> = vector(random, d, sort, case % 7 == 0);
        let mut centroids: Vec<Vec<T>> = (0..k).map(|_| vector(random, d, sort, case % 5 == 0)).collect();
        let flat = |centroids: &[Vec<T>]| centroids.concat();
        let exponent = unit_exponent(largest(&centroids).max(largest(std::slice::from_ref(&x))));
        let carry = Carry::new(d, T::IS_F32, exponent);
        let start = reference::nearest(&x, &flat(&centroids));
        let (label, mut upper, mut lower) = (start.label as usize, carry.upper(start.distance), carry.lower(start.second));
        for step in 0..12 {
            let before = centroids.clone();
            for (j, c) in centroids.iter_mut().enumerate() {
                let f = random.below(d as u64) as usize;
                let ulps = random.below(9) as f64 - 4.0;
                match (case + step) % 4 {
                    // A few units in the last place, of the centroid or of what is near float32's.
                    0 => c[f] = T::from_f64(c[f].to_f64() * (1.0 + ulps * T::UNIT * 2.0)),
                    1 => c[f] = T::from_f64(c[f].to_f64() * (1.0 + ulps * U)),
                    // The mirror image of the label's centroid, or next to it: a tie.
                    2 if j != label && random.below(3) == 0 => {
                        for f in 0..d {
                            let mirrored = 2.0 * x[f].to_f64() - before[label][f].to_f64();
                            c[f] = T::from_f64(mirrored * (1.0 + ulps * U * [0.0, 1.0, 4.0][case % 3]));
                        }
                    }
                    3 => c[f] = T::from_f64(c[f].to_f64() + 0.1 * (x[f].to_f64() - c[f].to_f64())),
                    _ => {}
                }
            }
            if centroids.iter().flatten().any(|v| !v.to_f64().is_finite() || v.to_f64().abs() > 2f64.powi(451)) {
                break;
            }
            let drifts: Vec<f32> =
                before.iter().zip(&centroids).map(|(old, new)| carry.drift(reference::distance(old, new))).collect();
            let others = drifts.iter().enumerate().filter(|(j, _)| *j != label).fold(0.0f32, |m, (_, drift)| m.max(*drift));
            upper = (rules.farther)(upper, drifts[label]);
            lower = (rules.nearer)(lower, others);
            let now = reference::nearest(&x, &flat(&centroids));
            if (rules.keeps)(&carry, lower, upper) {
                found.kept += 1;
                found.wrong += usize::from(now.label as usize != label);
                let own = reference::distance(&x, &centroids[label]);
                found.near += usize::from(now.second < own * (1.0 + 50.0 * U));
            } else if now.label as usize == label && random.below(2) == 0 {
                (upper, lower) = (carry.upper(now.distance), carry.lower(now.second));
            }
        }
    }
    found
}

#[test]
fn rows_that_are_kept_have_their_label() {
    for found in [carried::<f32>(&SOUND, 60_000), carried::<f64>(&SOUND, 60_000)] {
        assert!(found.kept > 50_000, "{}", found.kept);
        assert_eq!(found.wrong, 0);
        // Some of them are close.
        assert!(found.near > 10, "{}", found.near);
    }
}

/// The same attack finds rows that careless rules lose.
#[test]
fn careless_rules_lose_labels() {
    let careless = [
        ("a comparison without roundings, and ties", Rules { keeps: |_, l, u| l >= u, ..SOUND }),
        (
            "sums rounded to nearest, and no slack",
            Rules { farther: |u, d| u + d, nearer: |l, d| (l - d).max(0.0), keeps: |_, l, u| l > u },
        ),
        ("no drift of the label's centroid", Rules { farther: |u, _| u, ..SOUND }),
        ("no drift of the others", Rules { nearer: |l, _| l, ..SOUND }),
        ("half of the drift", Rules { farther: |u, d| u + 0.5 * d, ..SOUND }),
    ];
    for (what, rules) in careless {
        let wrong = carried::<f32>(&rules, 30_000).wrong + carried::<f64>(&rules, 30_000).wrong;
        assert!(wrong > 0, "{what}");
    }
}

/// A tie: the label is the smaller number, so the larger one must not be kept.
#[test]
fn ties_are_not_kept() {
    let carry = Carry::new(1, true, 0);
    assert_eq!(reference::nearest(&[0.0f32], &[1.0f32, -1.0]).label, 0);
    let (upper, lower) = (carry.upper(1.0), carry.lower(1.0));
    assert!(lower >= 1.0 - 2e-7 && upper <= 1.0 + 2e-7 && !carry.keeps(lower, upper));
    assert!(!carry.keeps(1.0, 1.0) && !carry.keeps(0.0, 0.0) && carry.keeps(1.0 + 2f32.powi(-20), 1.0));
}

/// x = 0, c = (2^-540, 0): both reference distances are 0, so the label is 0. Without tau, a row would stay with 1.
#[test]
fn distances_that_underflow_are_not_kept() {
    assert_eq!(reference::nearest(&[0.0f64], &[2f64.powi(-540), 0.0]).label, 0);
    let carry = Carry::new(1, false, 450);
    let (lower, upper) = (2f32.powi(-91), 0.0);
    assert!(!carry.keeps(lower, upper) && lower * (1.0 - 8.0 * U as f32) > upper);
    assert!(carry.upper(0.0) > 0.0 && carry.lower(2f64.powi(-1074)) == 0.0);
    assert!(Carry::new(1, true, 120).upper(0.0) == 0.0);
}

/// x = 0: the label's centroid moves by 2^-25 of its distance, 20 times. Sums that are rounded to nearest do not see it.
#[test]
fn small_drifts_add_up() {
    let (carry, other) = (Carry::new(1, false, 0), -(1.0 + 2f64.powi(-23)));
    let (mut upper, mut careless, mut own) = (carry.upper(1.0), 1.0f32, 1.0f64);
    for _ in 0..20 {
        let moved = own + 2f64.powi(-25);
        let drift = carry.drift(reference::distance(&[own], &[moved]));
        (upper, careless, own) = (Carry::farther(upper, drift), careless + drift, moved);
    }
    assert_eq!(reference::nearest(&[0.0], &[own, other]).label, 1);
    let lower = carry.lower(other * other);
    assert!(f64::from(upper) >= own && !carry.keeps(lower, upper));
    assert!(f64::from(careless) < own && (1.0 + 2f32.powi(-23)) > careless, "the careless sum keeps the row");
}

/// The mean of c_0 moves by 2^-49 over a border between two float32: the float32 moves by 2^-23.
#[test]
fn drifts_are_those_of_rounded_centroids() {
    let (x, own) = ([0.0f32], [-(1.0 + 2f32.powi(-23))]);
    let border = 1.0 + 1.5 * 2f64.powi(-23);
    let (before, after) = ([(border + 2f64.powi(-50)) as f32], [(border - 2f64.powi(-50)) as f32]);
    assert_eq!(reference::nearest(&x, &[after[0], own[0]]).label, 0);
    let carry = Carry::new(1, true, 0);
    let drift = carry.drift(reference::distance(&before, &after));
    assert!(f64::from(drift) >= 2f64.powi(-23));
    let careless = Carry::nearer(before[0], 2f32.powi(-49));
    assert!(careless > 1.0 + 2f32.powi(-23) - 2.5e-7 && Carry::nearer(before[0], drift) < 1.0 + 2f32.powi(-23));
}

#[test]
fn what_is_not_known_keeps_nothing() {
    let carry = Carry::new(3, false, 0);
    for unknown in [f32::INFINITY, f32::NAN] {
        assert!(!carry.keeps(1.0, unknown) && !carry.keeps(f32::NAN, 1.0) && !carry.keeps(f32::NAN, unknown));
        assert_eq!(Carry::nearer(1.0, unknown), 0.0);
        assert!(!carry.keeps(f32::MAX, Carry::farther(1.0, unknown)));
    }
    assert!(carry.drift(f64::NAN) == f32::INFINITY && carry.lower(f64::INFINITY) == 0.0 && carry.lower(f64::NAN) == 0.0);
    assert!(Carry::new(2, true, 0).lower(1e300) <= f32::MAX);
    let copies = Copies::new(3);
    assert!(copies.lower(9.0, copies.of_row(f32::INFINITY)) == 0.0 && copies.lower(9.0, copies.of_row(f32::NAN)) == 0.0);
    assert!(copies.threshold(&carry, 1.0, f32::INFINITY) == f32::INFINITY);
    assert!(copies.threshold(&carry, f32::INFINITY, 0.0) == f32::INFINITY);
    assert!(copies.lower(f32::INFINITY, 0.0).is_finite() && copies.upper(f32::INFINITY, 0.0) == f32::INFINITY);
    assert!(copies.upper(1.0, f32::INFINITY) == f32::INFINITY && !carry.keeps(1.0, copies.upper(f32::NAN, 0.0)));
    assert!(Copies::new(1 << 30).upper(1.0, 0.0) == f32::INFINITY && Copies::new(1 << 30).lower(1.0, 0.0) == 0.0);
}

/// Sums of squared differences of copies give lower bounds and rule out nothing that is nearer.
fn copies<T: Float>(careless: bool) -> [usize; 3] {
    let random = &mut Random(29);
    let (mut wrong, mut ruled_out, mut close) = (0, 0, 0);
    for case in 0..40_000 {
        let (d, sort) = ([1, 2, 3, 16, 100, 700][case % 6], random.below(8));
        let x: Vec<T> = vector(random, d, sort, case % 4 == 0);
        let own: Vec<T> = vector(random, d, sort, case % 9 == 0);
        let mut other: Vec<T> = vector(random, d, sort, false);
        if case % 2 == 0 {
            // The mirror image of the label's centroid, a little nearer or farther.
            let away = (random.below(60) as f64 - 30.0) * U;
            for f in 0..d {
                let [x, c] = [x[f], own[f]].map(T::to_f64);
                other[f] = T::from_f64(x - (c - x) * (1.0 + away));
            }
        }
        let centre: Vec<T> = if case % 3 == 0 { vec![T::from_f64(0.0); d] } else { vector(random, d, sort, false) };
        let all = [x.clone(), own.clone(), other.clone()];
        if all.iter().flatten().any(|v| !v.to_f64().is_finite() || v.to_f64().abs() > 2f64.powi(451)) {
            continue;
        }
        let exponent = unit_exponent(largest(&all));
        let half = exponent / 2;
        let [up, more] = [half, exponent - half].map(|e| T::from_f64(power_of_two(e)));
        let copy = |v: &[T]| v.iter().zip(&centre).map(|(v, m)| v.centred_copy(*m, up, more)).collect::<Vec<f32>>();
        let (copied, scale) = (copy(&x), power_of_two(exponent));
        let (bound, carry) = (Copies::new(d), Carry::new(d, T::IS_F32, exponent));
        let square = copied.iter().fold(0.0f32, |s, x| x.mul_add(*x, s));
        let of_row = if careless { 0.0 } else { bound.of_row(square) };
        for (a, j) in [(&own, &other), (&other, &own)] {
            let [s_a, s_j] = [a, j].map(|c| reference::distance(&x, c));
            let c = copy(j);
            if c.iter().any(|c| !c.is_finite()) {
                continue;
            }
            for fused in [false, true] {
                let sum = copied.iter().zip(&c).fold(0.0f32, |s, (x, c)| {
                    let t = c - x;
                    if fused { t.mul_add(t, s) } else { s + t * t }
                });
                let truth = exact(&x, j);
                let [lower, upper] = [bound.lower(sum, of_row), bound.upper(sum, of_row)];
                if truth[0] > 1e-200 && truth[0] < 1e200 {
                    wrong += usize::from(above(lower, scale, truth) > 0.0 || above(upper, scale, truth) < 0.0);
                }
                if sum > bound.threshold(&carry, carry.upper(s_a), of_row) {
                    ruled_out += 1;
                    wrong += usize::from(s_j <= s_a);
                    close += usize::from(s_j < s_a * (1.0 + 100.0 * (d + 10) as f64 * U));
                }
            }
        }
    }
    [wrong, ruled_out, close]
}

#[test]
fn copies_bound_distances_from_below() {
    for [wrong, ruled_out, close] in [copies::<f32>(false), copies::<f64>(false)] {
        assert!(wrong == 0 && ruled_out > 20_000 && close > 1_000, "{wrong} {ruled_out} {close}");
    }
}

#[test]
fn copies_need_the_error_of_the_row() {
    assert!(copies::<f32>(true)[0] > 0 && copies::<f64>(true)[0] > 0);
}
