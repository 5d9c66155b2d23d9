//! How tensor cores add up products, and how that is found out: they are given vectors whose sums tell one way from another.
//!
//! # What is assumed
//!
//! A sum begins with a float32. Products are added in blocks, and the sum before takes part in each block. All products are
//! exact. The numbers of a block are aligned to the largest exponent among them, and each is cut towards zero at
//! `2^(largest - 23 - extra)`. Their sum is cut to the 24 bits of a float32. A product's exponent is the sum of its factors'
//! exponents, and that of a factor below 2^-14 counts as -14.
//!
//! Let `M = |beginning| + sum max(|x|, 2^-14) max(|c|, 2^-14)`. Then the largest power of two of a block is at most M and what has been lost
//! before. In a block of b products, b + 1 numbers lose less than `2^-(23 + extra) M` each, and the sum loses less than `2^-23
//! M`. So
//!
//! ```text
//! A = ceil(d / b) ((b + 1) 2^-(23 + extra) + 2^-23)        error <= A / (1 - A) M <= A / (1 - A) (|beginning| + (|x| + w) (|c| + w))
//! ```
//! where the last step is the inequality of Cauchy and Schwarz, with `w = sqrt(d) 2^-14`. The factor `1 / (1 - A)` covers that
//! partial sums may be larger than M by what was lost.
//!
//! # The wide bound
//!
//! Nothing in this depends on the order of the products, nor on which of them share a block. So `A = (d + 4 ceil(d / 4)) 2^-23`
//! is enough for every way of adding whose numbers are aligned with at least 24 bits (`extra >= 0`) and whose blocks, all but the
//! last, have at least four products, of any lengths: a block of b products loses at most `(b + 2) 2^-23 M`, or `(b + 4) 2^-23 M`
//! if it is cut alone and then once more with the accumulator. All b together are d, and there are at most `ceil(d / 4)` blocks.
//! A chain of single products with one rounding each, of any kind, loses `d 2^-23 M` at most. The beginning takes part as the sum
//! before the first block. A kernel may add further blocks of zeros: they lose nothing, since the sum was cut before.
//!
//! # What the vectors can show
//!
//! Some thousand sums do not prove how a unit works. They tell apart the ways that were seen or are likely: each of [`ways`]
//! gives other bits for some of the vectors. If all bits are those of one way, the unit gets its A. If not, it gets the wide
//! bound, but only if all sums are within that. Among the vectors are those that lose nearly all that a block can lose, so a unit
//! that aligns with 23 bits is found out. If some sum is outside, nothing is known, and the unit is not used.

/// How tensor cores add up products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// In blocks of `length` products, with `extra` bits below those of a float32.
    Blocks { length: u32, extra: u32 },
    /// In another way. Some thousand sums were within the wide bound.
    Otherwise,
}

impl Added {
    /// As seen on an H200, by `wgmma` and by cuBLAS.
    #[cfg(feature = "tests")]
    pub const HOPPER: Self = Self::Blocks { length: 16, extra: 2 };

    /// A: the error of a sum beside the norms of its factors.
    pub fn error(self, d: usize) -> f64 {
        let unit = 2f64.powi(-23);
        match self {
            Self::Blocks { length, extra } => {
                let block = f64::from(length + 1) * 2f64.powi(-(extra as i32)) + 1.0;
                d.div_ceil(length as usize) as f64 * block * unit
            }
            Self::Otherwise => (d + 4 * d.div_ceil(4)) as f64 * unit,
        }
    }
}

/// A way of adding that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    length: usize,
    extra: i32,
    /// Whether a product with a factor 0 has an exponent, as if that factor were subnormal.
    zeros: bool,
}

/// All ways, the most likely ones first: generations 9.0 and later, 8.0 to 8.9, and what else there may be.
pub(super) fn ways() -> impl Iterator<Item = Way> {
    let likely = [(16, 2), (8, 1), (16, 1), (8, 2), (4, 0), (4, 1), (4, 2), (8, 0), (16, 0), (16, 3), (8, 3), (4, 3)];
    likely.into_iter().flat_map(|(length, extra)| [false, true].map(|zeros| Way { length, extra, zeros }))
}

/// The exponent of a float64 that is 0 or normal.
fn exponent(v: f64) -> i32 {
    (v.to_bits() >> 52 & 0x7ff) as i32 - 1_023
}

/// A power of two. The exponent is that of a normal float64.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1_023) as u64) << 52)
}

impl Way {
    pub(super) fn added(self) -> Added {
        Added::Blocks { length: self.length as u32, extra: self.extra as u32 }
    }

    /// The sum of the products of float16 values.
    pub(super) fn sum(self, beginning: f64, x: &[f64], c: &[f64]) -> f64 {
        let none = -10_000;
        let factor = |v: f64| if v == 0.0 && !self.zeros { none } else { exponent(v).max(-14) };
        let mut sum = beginning;
        for (x, c) in x.chunks(self.length).zip(c.chunks(self.length)) {
            let products = x.iter().zip(c).map(|(&x, &c)| factor(x) + factor(c));
            let largest = products.chain([if sum == 0.0 { none } else { exponent(sum) }]).max().unwrap_or(none);
            if largest < none / 2 {
                continue;
            }
            // Exact: at most 2^30 quanta are added up.
            let cut = |v: f64, last: i32| (v * power(-last)).trunc() * power(last);
            let last = largest - 23 - self.extra;
            let all = x.iter().zip(c).map(|(x, c)| cut(x * c, last)).sum::<f64>() + cut(sum, last);
            sum = if all == 0.0 { 0.0 } else { cut(all, exponent(all) - 23) };
        }
        sum
    }
}

/// Features of a vector: four steps of 16, as in a chunk of the copies.
pub const FEATURES: usize = 64;
/// Vectors on each side. All pairs are multiplied, and a quarter of the sums is looked at.
pub const ROWS: usize = 64;
pub const CENTROIDS: usize = 256;

/// Beside it all products are nothing.
const HUGE: f32 = 1e38;

/// The vectors, as bits of float16.
pub struct Vectors {
    /// `(ROWS, FEATURES)`.
    pub rows: Vec<u16>,
    /// `(CENTROIDS, FEATURES)`.
    pub centroids: Vec<u16>,
    /// What the sums of a centroid begin with.
    pub starts: Vec<f32>,
}

/// The value of a finite float16.
fn value(bits: u16) -> f64 {
    let (exponent, digits) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = if exponent == 0 { digits * power(-24) } else { (1_024.0 + digits) * power(exponent - 25) };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// The values of many.
fn values(bits: &[u16]) -> Vec<f64> {
    bits.iter().map(|&bits| value(bits)).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u16 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as u32 % n) as u16
    }
}

/// The bits of `1.digits 2^exponent`, for exponents from -14 to 15.
fn normal(exponent: i32, digits: u16) -> u16 {
    ((exponent + 15) as u16) << 10 | digits
}

const SIGN: u16 = 1 << 15;

/// A vector of one of eight kinds.
fn of_kind(kind: usize, random: &mut Random) -> [u16; FEATURES] {
    let sign = |random: &mut Random| if random.below(2) == 0 { SIGN } else { 0 };
    let large = random.below(FEATURES as u32) as usize;
    let common = i32::from(random.below(8));
    let mut vector: [u16; FEATURES] = std::array::from_fn(|f| {
        let digits = random.below(1_024);
        let wide = i32::from(random.below(30)) - 14;
        match kind {
            // Of one size.
            0 => normal(i32::from(random.below(4)), digits) | sign(random),
            // Of every size, of both signs and of one.
            1 => normal(wide, digits) | sign(random),
            2 => normal(wide, digits),
            // One large value, and many whose lowest bits are all lost.
            3 => normal(if f == large { 14 } else { common - 14 }, 1_023 - digits % 4),
            // Of two sizes.
            4 => normal(if random.below(8) == 0 { common } else { common - 11 }, digits) | sign(random),
            // Some are subnormal, some are 0.
            5 if random.below(3) == 0 => digits | sign(random),
            6 if random.below(2) == 0 => 0,
            5 | 6 => normal(wide, digits) | sign(random),
            _ => normal(common, digits),
        }
    });
    if kind == 7 {
        // Neighbours cancel.
        (1..FEATURES).step_by(2).for_each(|f| vector[f] = vector[f - 1] ^ SIGN ^ random.below(2));
    }
    vector
}

/// Pairs whose sums say most. They are on the diagonal: row i with centroid i.
fn of_diagonal(i: usize) -> Option<[[u16; FEATURES]; 2]> {
    let one = normal(0, 0);
    match i {
        // 1, and products of nearly 2^(1 - k) before and after it: if numbers are cut there, nothing is left of them.
        0..24 => {
            let (place, k) = ([0, 7, 15, 40][i % 4], 21 + i as i32 / 4);
            let mut pair = [[normal(-12, 0); FEATURES], [normal(12 - k, 1_022); FEATURES]];
            pair.iter_mut().for_each(|side| side[place] = one);
            Some(pair)
        }
        // 2^-9 - 2^-9 + 2^-26. The first one has a subnormal factor, so it is aligned like 2. If the last one is in its block, it
        // is lost.
        24..28 => {
            let mut pair = [[0; FEATURES]; 2];
            let last = [2, 5, 9, 16][i - 24];
            (pair[0][0], pair[1][0]) = (1, normal(15, 0));
            (pair[0][1], pair[1][1]) = (normal(-10, 0) | SIGN, normal(1, 0));
            (pair[0][last], pair[1][last]) = (normal(-13, 0), normal(-13, 0));
            Some(pair)
        }
        // The largest values, and the smallest.
        28 => Some([[normal(15, 1_023); FEATURES]; 2]),
        29 => Some([[1; FEATURES]; 2]),
        30 => Some([[1; FEATURES], [normal(15, 1_023); FEATURES]]),
        _ => None,
    }
}

impl Vectors {
    pub fn given() -> Self {
        let random = &mut Random(5);
        let mut side = |count: usize, which: usize| -> Vec<u16> {
            let vector = |i: usize| of_diagonal(i).map_or_else(|| of_kind(i / (count / 8), random), |pair| pair[which]);
            (0..count).flat_map(vector).collect()
        };
        let (rows, centroids) = (side(ROWS, 0), side(CENTROIDS, 1));
        // Of every size that sums have. Half of the sums begin with 0, and so do those of pairs that say most.
        let mut start = |j: usize| match of_diagonal(j) {
            // As places without a centroid have.
            None if j < 40 => [HUGE, -HUGE][j % 2],
            None if j % 2 == 1 => {
                let digits = (1_024.0 + f64::from(random.below(1_024))) * 8_192.0 + f64::from(random.below(8_192));
                let size = digits * power(i32::from(random.below(90)) - 43);
                (if random.below(2) == 0 { -size } else { size }) as f32
            }
            _ => 0.0,
        };
        let starts = (0..CENTROIDS).map(&mut start).collect();
        Self { rows, centroids, starts }
    }

    /// How a unit adds up that gives these sums: `(ROWS, CENTROIDS)`. None if its sums are outside of every bound.
    pub fn added(&self, sums: &[f32]) -> Option<Added> {
        let (rows, centroids) = (values(&self.rows), values(&self.centroids));
        let pairs = || {
            let pairs = (0..ROWS).flat_map(|i| (0..CENTROIDS).map(move |j| (i, j)));
            pairs.filter(|(i, j)| i == j || (i + j) % 4 == 0).map(|(i, j)| {
                let of = |all: &[f64], at: usize| -> [f64; FEATURES] { std::array::from_fn(|f| all[at * FEATURES + f]) };
                (f64::from(self.starts[j]), of(&rows, i), of(&centroids, j), f64::from(sums[i * CENTROIDS + j]))
            })
        };
        if !pairs().all(|(start, x, c, sum)| is_within(start, &x, &c, sum)) {
            return None;
        }
        // The sign of 0 does not matter.
        let found = ways().find(|way| pairs().all(|(start, x, c, sum)| way.sum(start, &x, &c) == sum));
        Some(found.map_or(Added::Otherwise, Way::added))
    }
}

/// The error of a sum, as a share of M. Its own rounding is far below what bounds leave.
fn lost(start: f64, x: &[f64], c: &[f64], sum: f64) -> f64 {
    // A float16 is a multiple of 2^-24 below 2^16. So a sum of 64 products has at most 86 bits. Beginnings have at most 118.
    let integer = |v: f64| (v * power(24)) as i128;
    let products: i128 = x.iter().zip(c).map(|(&x, &c)| integer(x) * integer(c)).sum();
    let exact =
        if start.abs() < f64::from(HUGE) { (products + (start * power(48)) as i128) as f64 * power(-48) } else { start };
    let magnitude = |v: f64| v.abs().max(power(-14));
    let all: f64 = x.iter().zip(c).map(|(&x, &c)| magnitude(x) * magnitude(c)).sum();
    (exact - sum).abs() / (start.abs() + all)
}

/// Whether a sum is within the wide bound, with a margin: that of blocks which are cut once. NaN is not within.
fn is_within(start: f64, x: &[f64], c: &[f64], sum: f64) -> bool {
    let a = (x.len() + 2 * x.len().div_ceil(4)) as f64 * power(-23);
    lost(start, x, c, sum) <= a / (1.0 - a) * (1.0 - 1e-9)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    /// The sums of a unit that is simulated.
    fn sums(of: impl Fn(f64, &[f64], &[f64]) -> f64) -> Vec<f32> {
        let vectors = Vectors::given();
        let (rows, centroids) = (values(&vectors.rows), values(&vectors.centroids));
        let (of, starts) = (&of, &vectors.starts);
        let sums_of = |x| centroids.chunks(FEATURES).zip(starts).map(move |(c, &start)| of(f64::from(start), x, c) as f32);
        rows.chunks(FEATURES).flat_map(sums_of).collect()
    }

    fn found(of: impl Fn(f64, &[f64], &[f64]) -> f64) -> Option<Added> {
        Vectors::given().added(&sums(of))
    }

    unit_test!(every_way_is_told_from_the_others);
    fn every_way_is_told_from_the_others() {
        for way in ways() {
            assert_eq!(found(|start, x, c| way.sum(start, x, c)), Some(way.added()), "{way:?}");
        }
    }

    unit_test!(bounds_cover_what_is_lost);
    /// The bound of a way holds for its sums, and it is not much wider than the worst of them.
    fn bounds_cover_what_is_lost() {
        let vectors = Vectors::given();
        let (rows, centroids) = (values(&vectors.rows), values(&vectors.centroids));
        for way in ways() {
            let (mut worst, mut worst_of_wide) = (0.0f64, 0.0f64);
            for x in rows.chunks(FEATURES) {
                for (c, start) in centroids.chunks(FEATURES).zip(&vectors.starts) {
                    let start = f64::from(*start);
                    let lost = lost(start, x, c, way.sum(start, x, c));
                    let bound = |added: Added| added.error(FEATURES) / (1.0 - added.error(FEATURES));
                    worst = worst.max(lost / bound(way.added()));
                    worst_of_wide = worst_of_wide.max(lost / bound(Added::Otherwise));
                }
            }
            assert!(worst <= 1.0 && worst_of_wide <= 1.0, "{way:?}: {worst} {worst_of_wide}");
            assert!(worst > 0.4, "{way:?}: {worst}");
        }
    }

    unit_test!(units_that_round_get_the_wide_bound);
    /// A chain with one rounding for each product, to nearest.
    fn units_that_round_get_the_wide_bound() {
        let chain =
            |start: f64, x: &[f64], c: &[f64]| x.iter().zip(c).fold(start, |sum, (&x, &c)| f64::from((x * c + sum) as f32));
        assert_eq!(found(chain), Some(Added::Otherwise));
        let pairs = |start: f64, x: &[f64], c: &[f64]| {
            let both = |(x, c): (&[f64], &[f64])| f64::from((x[0] * c[0] + x[1] * c[1]) as f32);
            x.chunks(2).zip(c.chunks(2)).map(both).fold(start, |sum: f64, v| f64::from((sum + v) as f32))
        };
        assert_eq!(found(pairs), Some(Added::Otherwise));
        // Blocks in another order.
        let mixed = |start: f64, x: &[f64], c: &[f64]| {
            let order = |v: &[f64]| -> Vec<f64> { (0..FEATURES).map(|f| v[f ^ 6]).collect() };
            Way { length: 4, extra: 1, zeros: false }.sum(start, &order(x), &order(c))
        };
        assert_eq!(found(mixed), Some(Added::Otherwise));
    }

    unit_test!(units_that_lose_more_are_refused);
    fn units_that_lose_more_are_refused() {
        for length in [4, 8, 16] {
            let way = Way { length, extra: -1, zeros: false };
            assert_eq!(found(|start, x, c| way.sum(start, x, c)), None, "{way:?}");
        }
        // Sums in half precision, subnormal factors that count as 0, a product that is left out, NaN.
        let way = Way { length: 16, extra: 2, zeros: false };
        assert_eq!(found(|start, x, c| way.sum(start, x, c) * (1.0 + power(-11))), None);
        let flushed = |v: &[f64]| -> Vec<f64> { v.iter().map(|&v| if v.abs() < power(-14) { 0.0 } else { v }).collect() };
        assert_eq!(found(|start, x, c| way.sum(start, &flushed(x), &flushed(c))), None);
        assert_eq!(found(|start, x, c| way.sum(start, &x[1..], &c[1..])), None);
        assert_eq!(found(|_, _, _| f64::NAN), None);
        // What sums begin with is left out.
        assert_eq!(found(|_, x, c| way.sum(0.0, x, c)), None);
    }

    unit_test!(sums_are_cut);
    /// What tensor cores lose is more than 2^-22 of a block: the counterexample to the simpler bound.
    fn sums_are_cut() {
        let x = [vec![1.0; 16], vec![1.0; 16]].concat();
        let c = [vec![1.0], vec![0.0; 15], vec![1.875 * 2f64.powi(-26); 16]].concat();
        assert_eq!(Way { length: 16, extra: 2, zeros: false }.sum(0.0, &x, &c), 1.0);
        let lost = 16.0 * 1.875 * 2f64.powi(-26);
        assert!(lost > 2f64.powi(-22) && lost < Added::HOPPER.error(32) * (1.0 + lost));
        assert!(Added::Otherwise.error(32) > Added::HOPPER.error(32));
        assert_eq!(Added::HOPPER.error(1_024), 64.0 * 21.0 * 2f64.powi(-25));
    }

    unit_test!(subnormal_factors_count_as_larger);
    /// Subnormal factors are aligned as if they were larger: the sum is 0 where it should be 2^-26.
    fn subnormal_factors_count_as_larger() {
        let way = Way { length: 16, extra: 2, zeros: false };
        for (i, expected) in [(24, 0.0), (27, power(-26))] {
            let [x, c] = of_diagonal(i).unwrap().map(|bits| bits.map(value));
            let exact: f64 = x.iter().zip(&c).map(|(x, c)| x * c).sum();
            assert_eq!((exact, way.sum(0.0, &x, &c)), (power(-26), expected));
        }
    }
}
