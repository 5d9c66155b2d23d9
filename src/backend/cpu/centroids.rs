//! The centroids of one assign, in the layouts that the kernels read.

use crate::certify;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::prepare::unit_exponent;
use crate::reference::{self, Nearest};

/// Number of centroids in a packed group of the product kernel. Four row vectors of scores and the operands then fill 32
/// registers.
pub const GROUP: usize = 6;
/// Most dimensions that the difference kernel is compiled for.
pub const MAX_DIFFERENCE_D: usize = 8;
/// Magnitudes, as powers of two, for which squared differences do not overflow and lose little to underflow.
const SAFE_EXPONENTS: std::ops::RangeInclusive<i32> = -40..=50;

/// The name for the copies in errors.
const TABLE: &str = "copies of the centroids";

/// Which filter the assign runs.
#[derive(Debug)]
pub enum Filter {
    /// Differences, squared and summed: for float32 features with few dimensions.
    Difference(DifferenceTable),
    /// Scaled, centred products: for everything else.
    Product(ProductTable),
    /// No filter: reference distances decide every label. Used if there is no finite scale or if all centroids are equal.
    None,
}

/// The centroids, and the filter's copy of them.
#[derive(Debug)]
pub struct CentroidTable<T> {
    pub k: usize,
    pub d: usize,
    /// `(k, d)`: the centroids themselves.
    pub rows: Vec<T>,
    /// `(d, k)`: the same values in float64, for scans over all centroids.
    columns: Vec<f64>,
    pub filter: Filter,
}

/// Copies for the difference kernel.
#[derive(Debug)]
pub struct DifferenceTable {
    /// `(k, d)`, scaled.
    pub centroids: Vec<f32>,
    /// Rows are multiplied by this power of two; 1 for ordinary data.
    pub scale: f32,
    pub bound: certify::Difference,
}

/// Copies for the product kernel.
#[derive(Debug)]
pub struct ProductTable {
    /// `(ceil(k / GROUP), d, GROUP)`: the negated centred, scaled centroids. Zeros pad the last group.
    pub packed: Vec<f32>,
    /// `(ceil(k / GROUP) * GROUP)`: half the squared norms. The padding is infinite, so it is never nearest.
    pub half_squares: Vec<f32>,
    /// `(d)`: subtracted from rows in the feature type. The rows are then multiplied by 2^scale_exponent in two steps.
    pub centre: Vec<f64>,
    pub scale_exponent: i32,
    pub bound: certify::Expanded,
}

impl<T: Float> CentroidTable<T> {
    /// `centre` is near the data and representable in `T`. `extent` is the largest known magnitude of the rows. It is a hint for
    /// scaling: larger rows only cost time.
    pub fn new(rows: &[T], d: usize, centre: &[f64], extent: f64) -> Result<Self> {
        let k = rows.len() / d;
        let mut columns = memory::zeroed(k * d, TABLE)?;
        for (j, row) in rows.chunks_exact(d).enumerate() {
            row.iter().enumerate().for_each(|(f, c)| columns[f * k + j] = c.to_f64());
        }
        let filter = if T::IS_F32 && d <= MAX_DIFFERENCE_D { difference(rows, d, extent)? } else { product(rows, d, centre)? };
        Ok(Self { k, d, rows: memory::copied(rows, TABLE)?, columns, filter })
    }

    /// Centroid `j`.
    #[inline(always)]
    pub fn row(&self, j: usize) -> &[T] {
        &self.rows[j * self.d..][..self.d]
    }

    /// The nearest of all centroids by reference distances. Vector lanes compute a block of centroids at a time.
    #[inline(always)]
    pub fn nearest(&self, x: &[f64]) -> Nearest {
        const BLOCK: usize = 32;
        let mut best = Nearest { label: 0, distance: f64::INFINITY, second: f64::INFINITY };
        for start in (0..self.k).step_by(BLOCK) {
            let len = BLOCK.min(self.k - start);
            let mut s = [0.0f64; BLOCK];
            for (f, x) in x.iter().enumerate() {
                let column = &self.columns[f * self.k + start..][..len];
                if len == BLOCK {
                    for i in 0..BLOCK {
                        let t = x - column[i];
                        s[i] = t.mul_add(t, s[i]);
                    }
                } else {
                    for (s, c) in s.iter_mut().zip(column) {
                        let t = x - c;
                        *s = t.mul_add(t, *s);
                    }
                }
            }
            for (i, &s) in s[..len].iter().enumerate() {
                if s < best.distance {
                    best = Nearest { label: (start + i) as u32, distance: s, second: best.distance };
                } else if s < best.second {
                    best.second = s;
                }
            }
        }
        best
    }

    /// All reference distances of a row, `k` values.
    #[inline(always)]
    pub fn distances(&self, x: &[f64], out: &mut [f64]) {
        for (j, out) in out.iter_mut().enumerate() {
            *out = reference::distance(x, self.row(j));
        }
    }
}

fn difference<T: Float>(rows: &[T], d: usize, extent: f64) -> Result<Filter> {
    let largest = rows.iter().fold(extent, |m, c| m.max(c.to_f64().abs()));
    if largest == 0.0 {
        return Ok(Filter::None);
    }
    let exponent = unit_exponent(largest);
    let exponent = if SAFE_EXPONENTS.contains(&-exponent) { 0 } else { exponent };
    if exponent > 126 {
        // float32 has no such power of two, because all values are subnormal.
        return Ok(Filter::None);
    }
    let scale = crate::fixed::power_of_two(exponent);
    Ok(Filter::Difference(DifferenceTable {
        centroids: memory::collected(rows.iter().map(|c| (c.to_f64() * scale) as f32), TABLE)?,
        scale: scale as f32,
        bound: certify::Difference::new(d),
    }))
}

fn product<T: Float>(rows: &[T], d: usize, centre: &[f64]) -> Result<Filter> {
    let k = rows.len() / d;
    let largest = (0..k * d).fold(0.0f64, |m, i| m.max((rows[i].to_f64() - centre[i % d]).abs()));
    if largest == 0.0 || !largest.is_finite() {
        return Ok(Filter::None);
    }
    let exponent = unit_exponent(largest);
    let scale = crate::fixed::Scale::new(exponent);
    // Values are scaled before they are squared, so norms are at most sqrt(d) for all data.
    let half = exponent / 2;
    let [first, second] = [half, exponent - half].map(|e| T::from_f64(crate::fixed::power_of_two(e)));
    let half_square = |j: usize| {
        let s = (0..d).fold(0.0, |s: f64, f| {
            let t = scale.apply(rows[j * d + f].to_f64() - centre[f]);
            t.mul_add(t, s)
        });
        0.5 * s
    };
    let groups = k.div_ceil(GROUP);
    let mut packed = memory::zeroed::<f32>(groups * d * GROUP, TABLE)?;
    let mut half_squares = memory::filled(groups * GROUP, f32::INFINITY, TABLE)?;
    let mut largest_half_square = 0.0f64;
    for j in 0..k {
        let (group, lane) = (j / GROUP, j % GROUP);
        for f in 0..d {
            packed[(group * d + f) * GROUP + lane] = -rows[j * d + f].centred_copy(T::from_f64(centre[f]), first, second);
        }
        let half = half_square(j);
        half_squares[j] = half as f32;
        largest_half_square = largest_half_square.max(half);
    }
    // A float32 difference of two finite values may overflow. With such a copy, a score could become plus infinity, which would
    // wrongly rule its centroid out.
    if packed.iter().any(|c| !c.is_finite()) {
        return Ok(Filter::None);
    }
    let bound = certify::Expanded::new(d, (2.0 * largest_half_square).sqrt() * (1.0 + 1e-6), exponent);
    let centre = memory::copied(centre, TABLE)?;
    Ok(Filter::Product(ProductTable { packed, half_squares, centre, scale_exponent: exponent, bound }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scanning_in_lanes_is_the_oracle() {
        for (k, d) in [(1, 1), (31, 3), (32, 2), (33, 5), (100, 1)] {
            let rows: Vec<f32> = (0..k * d).map(|i| ((i * 7919) % 13) as f32).collect();
            let table = CentroidTable::new(&rows, d, &vec![0.0; d], 13.0).unwrap();
            for x in 0..20 {
                let x: Vec<f64> = (0..d).map(|f| f64::from((x * 31 + f) as u32 % 17)).collect();
                assert_eq!(table.nearest(&x), reference::nearest(&x, &rows));
            }
        }
    }
}
