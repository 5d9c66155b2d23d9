//! Copies in 8-bit integers: when they prove that a row does not come nearer to a candidate of k-means++.
//! `kernels/passes/bytes.cuh` computes with this bound. Here is its proof, and a model of the kernels that the tests attack.
//!
//! A row x', a candidate c' and a centre m' give `x = s (x' - m')` and `c = s (c' - m')`, exactly, with a power of two s. Their
//! copies are `a X` and `b Y`: integers X and Y from -127 to 127, and float32 steps a and b. All norms are Euclidean.
//!
//! ```text
//! x.c = a b X.Y + x.(c - b Y) + (x - a X).b Y
//! |x.c - a b X.Y| <= |x| q + p (|c| + q) = e          p >= |x - a X|,  q >= |c - b Y|
//! D = |x|^2 + |c|^2 - 2 x.c >= |x|^2 + |c|^2 - 2 (a b X.Y + e)                                  (copies)
//! D >= (|c| - |x|)^2                                                                            (norms)
//! ```
//! X.Y is an exact 32-bit integer for up to 133,000 features. The candidate comes nearer only if its *rounded* reference distance
//! S is below the stored distance `near`. With `g = gamma_(d+2)(v)` and `h = d 2^-1074`, `s^2 S >= D (1 - g) - s^2 h`. So it
//! stays away if a lower bound L of D satisfies `L - s^2 near > g D + s^2 h`.
//!
//! What the kernels keep and how it is rounded, with v = 2^-53, u = 2^-24:
//!
//! - A difference `t = s fl(x' - m')` has a relative error of v. Sums of squares in float64 have one of `gamma_(d+4)(v)`. For up
//!   to 10^5 features both are below `2^-35`. [`ROUNDED`] = 2^-30 covers them where a square is rounded down, and [`NORM`] =
//!   2^-20 where a norm is rounded up.
//! - The error of a copy is measured: `r = t - a X`, with one rounding. Its exact norm is at most `|r| (1 + NORM) + ROUNDED |x|`.
//! - A row keeps `lead = |x|^2 - s^2 near`, rounded down. When `near` falls, the difference is added, rounded down again. A lead
//!   that does not follow is smaller than it could be, which is safe. A row with `near = 0` has lead [`NEVER`]: no S is below 0.
//!
//! The test itself is in float32. Let `M = |lead| + |x|^2 + |c|^2`. Since `p <= 1.01 |x|` and `q <= 1.01 |c|`, `|a b X.Y| <= 2.1
//! (|x|^2 + |c|^2)` and `e <= 1.6 (|x|^2 + |c|^2)`. Each of them goes through at most 5 roundings, and the sum through 4: less
//! than 60 u M in all. `g D <= 2 g M` is below 2^-34 M. [`SLACK`] M = 128 u M covers the sum, and its own roundings. What
//! underflows is below 2^-100, as is `s^2 h` for s up to 2^400. [`LEAST`] covers it. A value that is infinite or NaN is not ruled
//! out, because only a comparison that holds rules out.

//!
//! A centre rules a candidate out for all of its rows ([`REACHED`]). Its reach is `R >= |x| + s sqrt(near)` for each of them, as it was
//! when they were copied: `near` only falls. If `0.99 |c| - 2e-15 > R`, then `|c| - |x| >= s sqrt(near) + e` with `e >= 0.0099 |c| +
//! 1e-15`, so `D >= s^2 near + e^2`. Since `D <= 4 |c|^2` where it is least, `g D <= 2^-33 |c|^2` and `s^2 h <= 2^-100` are less than
//! e^2. The slack also covers that the norm is rounded up by 2^-19. A row with `near = 0` has no reach.

use super::own::down;
use super::up;

/// Relative roundings of float64.
const ROUNDED: f64 = 1.0 / (1u64 << 30) as f64;
/// Added to norms.
const NORM: f64 = 1.0 / (1u64 << 20) as f64;
/// What the roundings of the test in float32 are at most, as a share of M.
const SLACK: f32 = 128.0 / (1u64 << 24) as f32;
/// What underflow is at most.
const LEAST: f32 = 7.888_609e-31;
/// The lead of a row that cannot come nearer to anything.
const NEVER: f32 = 1e30;

/// The share of a distance, and the distance, by which a candidate must be beyond the reach of a centre.
const REACHED: f32 = 0.99;
const APART: f32 = 2e-15;

/// `ByteFacts` of the kernels.
#[derive(Debug, Clone, Copy)]
struct ByteFacts {
    square: f32,
    step: f32,
    norm: f32,
    residual: f32,
}

/// A copy: the integers and the facts. The square is that of the norm, rounded down.
fn copy(t: &[f64]) -> (Vec<i32>, ByteFacts, f64) {
    let largest = t.iter().fold(0.0f64, |m, t| m.max(t.abs()));
    let square = t.iter().fold(0.0f64, |sum, t| t.mul_add(*t, sum));
    let step = up(largest / 127.0);
    let step = if step > 1e-30 { step } else { 0.0 };
    let inverse = if step > 0.0 { 1.0 / f64::from(step) } else { 0.0 };
    let mut residual = 0.0f64;
    let integers = t.iter().map(|t| {
        let q = (t * inverse).round_ties_even().clamp(-127.0, 127.0);
        let rest = (-q).mul_add(f64::from(step), *t);
        residual = rest.mul_add(rest, residual);
        q as i32
    });
    let integers = integers.collect();
    // The kernels round these towards infinity. One step up is at least that.
    let norm = up((square.sqrt().next_up() * (1.0 + NORM)).next_up());
    let residual = up((residual.sqrt().next_up() * (1.0 + NORM)).next_up() + f64::from(norm) * ROUNDED);
    (integers, ByteFacts { square: down((square * (1.0 - ROUNDED)).next_down()), step, norm, residual }, square)
}

fn lead(square: f64, near: f64, scale: f64) -> f32 {
    if near == 0.0 {
        return NEVER;
    }
    down(((square * (1.0 - ROUNDED)).next_down() - (near * scale * scale).next_up()).next_down())
}

fn reach(norm: f32, near: f64, scale: f64) -> f32 {
    if near == 0.0 {
        return 0.0;
    }
    up((f64::from(norm) + (near * scale * scale).next_up().sqrt().next_up()).next_up())
}

fn beyond_reach(norm: f32, reach: f32) -> bool {
    norm.mul_add(REACHED, -APART) > reach && norm < NEVER
}

fn slack(row: &ByteFacts, c: &ByteFacts) -> f32 {
    SLACK.mul_add(row.square.abs() + row.norm.mul_add(row.norm, c.norm * c.norm), LEAST)
}

fn far_by_norms(row: &ByteFacts, c: &ByteFacts) -> bool {
    let apart = c.norm.mul_add(1.0 - 2.0 * SLACK, -row.norm);
    let near = row.norm.mul_add(row.norm, -row.square);
    row.square == NEVER || apart > 0.0 && apart * apart > near + slack(row, c)
}

fn far_by_bytes(row: &ByteFacts, c: &ByteFacts, product: i32) -> bool {
    let error = row.norm.mul_add(c.residual, row.residual * (c.norm + c.residual));
    let both = (row.step * c.step).mul_add(product as f32, error);
    (-2.0f32).mul_add(both, row.square + c.square) > slack(row, c)
}

mod tests {
    use super::*;
    use crate::base::float::Float;
    use crate::base::random::Random;
    use crate::exact::fixed::power_of_two;
    use crate::exact::reference;

    fn typed<T: Float>(values: impl IntoIterator<Item = f64>) -> Vec<T> {
        values.into_iter().map(T::from_f64).collect()
    }

    /// A row, a candidate and a centre of some kind.
    fn case<T: Float>(kind: usize, d: usize, random: &mut Random) -> [Vec<T>; 3] {
        let size = power_of_two(random.index(if T::IS_F32 { 40 } else { 200 }) as i32 - 20);
        let offset = [0.0, 0.0, 1e6, -3e7][random.index(4)];
        let centre: Vec<f64> = (0..d).map(|_| offset + size * random.sign()).collect();
        let x: Vec<f64> = match kind {
            // Halves of a step, so that the errors of the copy are as large as they can be.
            0 => (0..d)
                .map(|f| centre[f] + if f == 0 { 127.0 } else { (random.index(200) as f64 - 100.0) + 0.5 } * size)
                .collect(),
            1 => (0..d).map(|f| centre[f] + size * random.sign()).collect(),
            // One large value.
            2 => (0..d).map(|f| centre[f] + size * if f == d / 2 { 1e4 } else { random.unit() }).collect(),
            _ => centre.clone(),
        };
        let rounded = |t: f64| (t / size).round() * size;
        let c: Vec<f64> = match random.index(4) {
            // Along the error of the row's copy.
            0 => (0..d).map(|f| centre[f] + 40.0 * (x[f] - centre[f] - rounded(x[f] - centre[f]))).collect(),
            1 => (0..d).map(|f| centre[f] + size * random.sign()).collect(),
            2 => x.iter().map(|x| x + size * random.sign() * 0.1).collect(),
            _ => (0..d).map(|f| 2.0 * centre[f] - x[f]).collect(),
        };
        [typed(x), typed(c), typed(centre)]
    }

    fn scaled<T: Float>(x: &[T], centre: &[T], scale: f64) -> Vec<f64> {
        x.iter().zip(centre).map(|(x, m)| (x.to_f64() - m.to_f64()) * scale).collect()
    }

    /// Returns the largest share of the allowed error that a case used.
    fn attack<T: Float>(rounds: u64) -> f64 {
        let mut used = 0.0f64;
        let (mut ruled_out, mut beyonds) = (0, 0);
        for round in 0..rounds {
            let random = &mut Random(round * 77 + u64::from(T::IS_F32));
            let d = [1, 2, 3, 16, 17, 100, 408][random.index(7)];
            let [x, c, centre] = case::<T>(random.index(4), d, random);
            let distance = reference::distance(&x, &c);
            let exponent = [0, -20, 15, -300, 300][random.index(5)];
            let scale = power_of_two(exponent);
            let (row, mut facts, square) = copy(&scaled(&x, &centre, scale));
            let (candidate, of_c, _) = copy(&scaled(&c, &centre, scale));
            let product: i32 = row.iter().zip(&candidate).map(|(a, b)| a * b).sum();
            let mut far = |near: f64| {
                facts.square = lead(square, near, scale);
                let beyond = beyond_reach(of_c.norm, reach(facts.norm, near, scale));
                // Where squares overflow, norms rule nothing out.
                assert!(
                    !beyond || of_c.norm > 1e18 || far_by_norms(&facts, &of_c),
                    "round {round}: the reach says more than the norms"
                );
                beyonds += usize::from(beyond && near > 0.0);
                (beyond || far_by_norms(&facts, &of_c), far_by_bytes(&facts, &of_c, product))
            };
            // The candidate comes nearer, by as little as it can.
            let nearer = distance.next_up();
            assert_eq!(far(nearer), (false, false), "round {round}, {}, d {d}, s {distance}", T::NAME);
            assert_eq!(far(nearer * 1.5), (false, false), "round {round}, {}, d {d}, s {distance}", T::NAME);
            // It does not if it is much farther than the row's norm, or so near that nothing is nearer.
            ruled_out += usize::from(far(distance * 1e-3).1);
            assert!(far(0.0).0, "round {round}");
            // How near to the error of the product the copies came.
            let (t, tc) = (scaled(&x, &centre, scale), scaled(&c, &centre, scale));
            let exact: f64 = t.iter().zip(&tc).map(|(a, b)| a * b).sum();
            let error = (exact - f64::from(facts.step) * f64::from(of_c.step) * f64::from(product)).abs();
            let [n, p, m, q] = [facts.norm, facts.residual, of_c.norm, of_c.residual].map(f64::from);
            let allowed = n * q + p * (m + q);
            if exponent.abs() < 100 && allowed > 0.0 && allowed.is_finite() {
                assert!(error <= allowed, "round {round}: {error} of {allowed}");
                used = used.max(error / allowed);
            }
        }
        assert!(ruled_out as u64 > rounds / 5, "{ruled_out} of {rounds} were ruled out");
        assert!(beyonds as u64 > rounds / 50, "{beyonds} of {rounds} were beyond reach");
        used
    }

    unit_test!(what_comes_nearer_is_never_ruled_out);
    fn what_comes_nearer_is_never_ruled_out() {
        for used in [attack::<f32>(40_000), attack::<f64>(40_000)] {
            assert!(used > 0.7 && used <= 1.0, "the largest error is {used} of what is allowed");
        }
    }

    unit_test!(a_lead_that_follows_stays_below);
    fn a_lead_that_follows_stays_below() {
        let random = &mut Random(5);
        for _ in 0..2_000 {
            let square = random.unit();
            let mut near = 2.0 * random.unit();
            let mut followed = lead(square, near, 1.0);
            for _ in 0..20 {
                let after = near * (0.5 + 0.5 * random.unit());
                followed = down((f64::from(followed) + (near - after).next_down()).next_down());
                near = after;
                assert!(f64::from(followed) <= square - near, "{followed} {square} {near}");
            }
        }
    }

    unit_test!(nothing_infinite_is_ruled_out);
    fn nothing_infinite_is_ruled_out() {
        let c = ByteFacts { square: 1.0, step: 0.1, norm: 1.0, residual: 0.01 };
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for row in
                [ByteFacts { square: value, ..c }, ByteFacts { norm: value.abs(), ..c }, ByteFacts { residual: value, ..c }]
            {
                let far = (far_by_norms(&row, &c), far_by_bytes(&row, &c, 0));
                // A residual is not part of the test by norms, and that of a row is never negative.
                assert!(far == (false, false) || row.residual == f32::NEG_INFINITY, "{row:?}: {far:?}");
            }
        }
    }

    unit_test!(constants_are_those_of_the_kernels);
    /// The kernels have the same constants.
    fn constants_are_those_of_the_kernels() {
        let source = include_str!("../../kernels/passes/bytes.cuh");
        let constant = |name: &str| -> f64 {
            let line = source.lines().find_map(|line| line.strip_prefix(&format!("#define {name} "))).unwrap();
            line.split(' ').next().unwrap().trim_end_matches('f').parse().unwrap()
        };
        assert_eq!((constant("ROUNDED"), constant("NORM")), (ROUNDED, NORM));
        let floats = ["SLACK", "LEAST", "NEVER", "REACHED", "APART"].map(|name| constant(name) as f32);
        assert_eq!(floats, [SLACK, LEAST, NEVER, REACHED, APART]);
    }
}
