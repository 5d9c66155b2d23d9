//! What happens to a row between the user's columns and everything else: its values are multiplied by factors (`scale`), then the
//! row gets the length 1 (`metric="cosine"`).
//!
//! ```text
//! x[f] = x[f] * factor[f]                                      float64, rounded once to the type of the row
//! cosine: y[f] = x[f] * 2^-e, where 1 <= max |y| < 2           float64, exact but for values that vanish
//!         norm = sqrt(s),  s = 0; for f in 0..d { s = fma(y[f], y[f], s) }
//!         x[f] = y[f] / norm                                   float64, rounded once to the type of the row
//! ```
//! [`Features`](crate::Features) apply it where rows are read, so all compute code sees transformed rows. On a GPU,
//! `kernels/passes/transform.cu` does the same with rows that were sent. A row without a direction (all zeros) becomes NaN, so it
//! is left out where rows that are not finite are. The model keeps the transformation: predictions take raw rows.

use std::sync::Arc;

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::params::{Init, Metric, Seeding};
use crate::exact::fixed::{frexp, power_of_two};
use crate::simd::{InstructionSet, Task, Vector};

/// Rows that are normalised together. Their chains overlap.
const LANES: usize = 16;

/// What happens to each row. Shared by all views of the rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RowTransform {
    /// One factor per feature, or none: positive and finite.
    factors: Vec<f64>,
    /// Whether rows are normalised.
    directions: bool,
}

impl RowTransform {
    /// `None` if rows stay as they are.
    pub fn new(factors: Option<Vec<f64>>, metric: Metric) -> Option<Arc<Self>> {
        let directions = metric == Metric::Cosine;
        let some = factors.is_some() || directions;
        some.then(|| Arc::new(Self { factors: factors.unwrap_or_default(), directions }))
    }

    /// One factor per feature. Empty if values are not scaled.
    pub fn factors(&self) -> &[f64] {
        &self.factors
    }

    /// Whether rows are normalised.
    pub fn directions(&self) -> bool {
        self.directions
    }

    /// Transforms the first `rows` rows of a tile: feature f of row r is `x[f * stride + r]`.
    #[inline]
    pub fn tile<T: Float>(&self, rows: usize, stride: usize, x: &mut [T]) {
        InstructionSet::detect().run(TransformRows { row_transform: self, rows, stride, x });
    }

    /// Transforms one row.
    #[cfg(any(feature = "tests", feature = "cuda"))]
    pub fn row<T: Float>(&self, row: &mut [T]) {
        self.tile(1, 1, row);
    }

    /// Multiplies the rows of a tile by the factors, and does nothing else.
    #[inline(always)]
    pub(crate) fn scale<T: Float>(&self, rows: usize, stride: usize, x: &mut [T]) {
        for (column, factor) in x.chunks_exact_mut(stride).zip(&self.factors) {
            column[..rows].iter_mut().for_each(|x| *x = T::from_f64(x.to_f64() * factor));
        }
    }

    /// How starting centroids are found: given ones are transformed as rows are. `None` if they are not given.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] if a value is not finite then, or if a centroid has no direction.
    pub fn seeding<T: Float>(&self, seeding: &Seeding, names: &Names) -> Result<Option<Seeding>> {
        const WHAT: &str = "the starting centroids";
        let Init::Given(given) = &seeding.init else { return Ok(None) };
        let refused = |expected: String, got: String| KMeansError::InvalidOption { option: "init", expected, got };
        let mut transformed: Vec<T> = memory::collected(given.iter().map(|c| T::from_f64(*c)), WHAT)?;
        let finite = |centroids: &[T], how: &str| match centroids.iter().position(|c| !c.is_finite()) {
            None => Ok(()),
            Some(place) => {
                let name = names.get(place % names.len()).unwrap_or_default();
                let got = format!("{:e} in column {name:?}", given[place]);
                Err(refused(format!("starting centroids that are finite as {}{how}", T::NAME), got))
            }
        };
        finite(&transformed, "")?;
        for centroid in transformed.chunks_exact_mut(names.len()) {
            self.scale(1, 1, centroid);
        }
        finite(&transformed, " after their scaling")?;
        if self.directions {
            for (j, centroid) in transformed.chunks_exact_mut(names.len()).enumerate() {
                if centroid.iter().all(|c| c.to_f64() == 0.0) {
                    return Err(refused(
                        "starting centroids with a direction (metric=\"cosine\")".into(),
                        format!("zeros in centroid {j}"),
                    ));
                }
                normalise::<T, 1>(0, 1, centroid);
            }
        }
        let init = Init::Given(memory::collected(transformed.iter().map(|c| c.to_f64()), WHAT)?);
        // Not a copy of all of it: the given centroids may be many.
        let &Seeding { n_init, seed, oversampling, rounds, chain_length, init_sample, .. } = seeding;
        Ok(Some(Seeding { init, n_init, seed, oversampling, rounds, chain_length, init_sample }))
    }
}

/// Transforms the rows of a tile. Compiled for each instruction set.
struct TransformRows<'a, T> {
    row_transform: &'a RowTransform,
    rows: usize,
    stride: usize,
    x: &'a mut [T],
}

impl<T: Float> Task for TransformRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { row_transform, rows, stride, x } = self;
        row_transform.scale(rows, stride, x);
        if row_transform.directions {
            let whole = rows - rows % LANES;
            (0..whole).step_by(LANES).for_each(|first| normalise::<T, LANES>(first, stride, x));
            (whole..rows).for_each(|row| normalise::<T, 1>(row, stride, x));
        }
    }
}

/// Two factors whose product is the power of two that takes m into [1, 2). 1 and 1 for zero.
#[inline(always)]
fn unit_factors(m: f64) -> [f64; 2] {
    let exponent = match m {
        0.0 => 0,
        _ if m >= f64::MIN_POSITIVE => 1023 - (m.to_bits() >> 52) as i32,
        _ => 1 - frexp(m).1,
    };
    [exponent / 2, exponent - exponent / 2].map(power_of_two)
}

/// Normalises L rows of a tile, from row `first` on.
#[inline(always)]
fn normalise<T: Float, const L: usize>(first: usize, stride: usize, x: &mut [T]) {
    let mut largest = [0.0f64; L];
    for column in x.chunks_exact(stride) {
        let values = &column[first..first + L];
        for i in 0..L {
            let magnitude = values[i].to_f64().abs();
            largest[i] = if magnitude > largest[i] { magnitude } else { largest[i] };
        }
    }
    let (mut a, mut b) = ([0.0f64; L], [0.0f64; L]);
    for i in 0..L {
        [a[i], b[i]] = unit_factors(largest[i]);
    }
    let mut norms = [0.0f64; L];
    for column in x.chunks_exact(stride) {
        let values = &column[first..first + L];
        for i in 0..L {
            let y = values[i].to_f64() * a[i] * b[i];
            norms[i] = y.mul_add(y, norms[i]);
        }
    }
    for i in 0..L {
        norms[i] = norms[i].sqrt();
    }
    for column in x.chunks_exact_mut(stride) {
        let values = &mut column[first..first + L];
        for i in 0..L {
            values[i] = T::from_f64(values[i].to_f64() * a[i] * b[i] / norms[i]);
        }
    }
}

/// The centroid of the direction of a mean. A mean of zero leaves the centroid as it is.
pub fn finish_centroid<T: Float>(mean: &mut [f64], centroid: &mut [T]) {
    if mean.iter().any(|m| *m != 0.0) {
        normalise::<f64, 1>(0, 1, mean);
        centroid.iter_mut().zip(mean).for_each(|(c, m)| *c = T::from_f64(*m));
    }
}

/// The largest squared distance between a row and the centroid of rows that are all equal to it. Only cosine has one above 0: a
/// centroid is normalised again.
///
/// Let `|e| <= u` (2^-24 or 2^-53) for every rounding, and x a row that has arrived. Its values are those of an exact unit vector
/// with a relative error of at most `e_1 = u` (float32: one rounding, the rest is far smaller) or `(d / 2 + 2) u` (float64: the
/// chain, halved by the root, the root and the division). So `||x| - 1| <= e_1`. The mean of equal rows is x but for the rounding
/// of its contribution and of the mean, at most `2 u` in float64, which changes the norm by as much. The division by the new norm
/// then changes a value relatively by at most
///
/// ```text
/// float32: e_1 + u                               = 2 u         the squared distance is at most 4 u^2 (1 + ..)        < 2^-45
/// float64: 2 u + e_1 + 2 u + (d / 2 + 1) u + u   = (d + 8) u   it is at most (d + 8)^2 u^2 (1 + ..)    < (2 d + 8)^2 u^2
/// ```
/// `d u` is left for the quantum in float64. It is enough if the weight of the rows is at least 2^-37 of the largest: then the
/// mean moves by at most 2^-54 in each feature.
pub fn same_direction<T: Float>(d: usize) -> f64 {
    if T::IS_F32 { power_of_two(-45) } else { (d as f64 + 4.0) * (d as f64 + 4.0) * power_of_two(-104) }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::exact::reference;

    /// A value of any magnitude.
    fn value(state: &mut u64, spread: i32) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let exponent = (*state >> 40) as i32 % (2 * spread + 1) - spread;
        ((*state >> 33) as f64 / 2f64.powi(30) - 1.0) * 2f64.powi(exponent)
    }

    fn rows_of_length_one<T: Float>(d: usize, spread: i32) {
        let row_transform = RowTransform::new(None, Metric::Cosine).unwrap();
        let mut state = d as u64;
        let rows: Vec<Vec<T>> = (0..37).map(|_| (0..d).map(|_| T::from_f64(value(&mut state, spread))).collect()).collect();
        let mut tile = vec![T::default(); d * 40];
        rows.iter().enumerate().for_each(|(r, row)| (0..d).for_each(|f| tile[f * 40 + r] = row[f]));
        row_transform.tile(37, 40, &mut tile);
        for (r, row) in rows.iter().enumerate() {
            let mut alone = row.clone();
            row_transform.row(&mut alone);
            let of_tile: Vec<T> = (0..d).map(|f| tile[f * 40 + r]).collect();
            assert_eq!(alone, of_tile);
            let zeros = vec![T::default(); d];
            assert!((reference::distance(&alone, &zeros) - 1.0).abs() < if T::IS_F32 { 1e-6 } else { 1e-12 }, "{row:?}");
            // A row that has a power of two as a factor has the same direction.
            let mut larger: Vec<T> = row.iter().map(|x| T::from_f64(x.to_f64() * 4.0)).collect();
            row_transform.row(&mut larger);
            assert_eq!(larger, alone);
            // Its centroid is as near as `same_direction` says.
            let mut centroid = alone.clone();
            finish_centroid(&mut alone.iter().map(|x| x.to_f64()).collect::<Vec<_>>(), &mut centroid);
            assert!(reference::distance(&alone, &centroid) <= same_direction::<T>(d));
        }
    }

    unit_test!(rows_get_the_length_one_whatever_their_magnitudes);
    fn rows_get_the_length_one_whatever_their_magnitudes() {
        for d in [1, 2, 3, 16, 300] {
            rows_of_length_one::<f32>(d, 0);
            rows_of_length_one::<f32>(d, 100);
            rows_of_length_one::<f64>(d, 0);
            rows_of_length_one::<f64>(d, 900);
        }
    }

    unit_test!(the_ends_of_the_range_have_directions);
    fn the_ends_of_the_range_have_directions() {
        let direction = |row: [f64; 2]| {
            let mut row = row;
            normalise::<f64, 1>(0, 1, &mut row);
            row
        };
        assert_eq!(direction([f64::MAX, -f64::MAX]), direction([1.0, -1.0]));
        assert_eq!(direction([5e-324, 5e-324]), direction([1.0, 1.0]));
        assert_eq!(direction([0.0, -3e-310]), [0.0, -1.0]);
        assert!(direction([0.0, -0.0]).iter().all(|x| x.is_nan()));
        assert!(direction([f64::INFINITY, 1.0])[0].is_nan() && direction([f64::NAN, 1.0])[1].is_nan());
        let mut kept = [3.0f32, 4.0];
        finish_centroid(&mut [0.0, -0.0], &mut kept);
        assert_eq!(kept, [3.0, 4.0]);
        finish_centroid(&mut [0.0, -2.0], &mut kept);
        assert_eq!(kept, [0.0, -1.0]);
    }
}
