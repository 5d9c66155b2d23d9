//! The filter: float32 copies of the centroids, the scale of the copies, and the bound on the error of their scores. Fits,
//! predictions and scores of a model all use this one.

use super::difference::FEW;
use super::tree::CentroidTree;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::bounds;
use crate::statistics::unit_exponent;

/// No centroid: what fills up an order.
pub const NOBODY: u32 = u32::MAX;

/// Number of centroids in a packed group of the product kernel. Four row vectors of scores and the operands then fill 32
/// registers.
pub const GROUP: usize = 6;
/// Magnitudes, as powers of two, for which squared differences do not overflow and lose little to underflow.
const SAFE_EXPONENTS: std::ops::RangeInclusive<i32> = -40..=50;

/// The name for the copies in errors.
pub const TABLE: &str = "copies of the centroids";

/// How a filter computes scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Differences, squared and summed: for float32 features with few dimensions.
    Difference,
    /// Scaled, centred products: for everything else.
    Product,
}

impl Form {
    /// The form for `d` features of type `T`.
    pub fn of<T: Float>(d: usize) -> Self {
        if T::IS_F32 && d <= FEW { Self::Difference } else { Self::Product }
    }
}

/// What an assign knows of the centroids before it looks at their reference distances.
#[derive(Debug)]
pub enum Filter<T> {
    Difference(DifferenceTable),
    Product(ProductTable),
    /// Reference distances to the centroids near a row decide its label.
    Tree(CentroidTree<T>),
    /// No filter: reference distances decide every label. Used if there is no finite scale or if all centroids are equal.
    None,
}

impl<T: Float> Filter<T> {
    /// The filter for these centroids (`(k, d)`, row-major). `centre` is near most of them. `extent` is the largest known
    /// magnitude of the rows. Both only cost time where they are wrong. `order`: that in which products are computed, some places
    /// of it [`NOBODY`]'s. Empty: the centroids' own.
    pub fn new(rows: &[T], d: usize, centre: &[f64], extent: f64, order: &[u32]) -> Result<Self> {
        match Form::of::<T>(d) {
            Form::Difference => {
                let (centroids, bound) = (memory::zeroed(rows.len(), TABLE)?, bounds::Difference::new(d));
                let mut filter = Self::Difference(DifferenceTable { centroids, scale: 1.0, bound });
                Ok(if filter.replace(rows, extent) { filter } else { Self::None })
            }
            Form::Product => Self::product(rows, d, centre, order),
        }
    }

    pub fn is_tree(&self) -> bool {
        matches!(self, Self::Tree(_))
    }

    /// Takes as many other centroids in place of those of the difference filter or the tree, without new memory. Returns whether
    /// it did.
    pub fn replace(&mut self, rows: &[T], extent: f64) -> bool {
        let table = match self {
            Self::Difference(table) => table,
            Self::Tree(tree) => {
                tree.replace(rows);
                return true;
            }
            Self::Product(_) | Self::None => return false,
        };
        let Some(exponent) = difference_exponent(rows, extent) else { return false };
        let scale = crate::exact::fixed::power_of_two(exponent);
        table.scale = scale as f32;
        table.centroids.iter_mut().zip(rows).for_each(|(copy, c)| *copy = (c.to_f64() * scale) as f32);
        true
    }

    /// The product filter, whatever the features are. `centre`: a point near the data.
    pub fn product(rows: &[T], d: usize, centre: &[f64], order: &[u32]) -> Result<Self> {
        let k = rows.len() / d;
        // Rows and centroids are compared with the same bits of the centre.
        let centre: Vec<f64> = memory::collected(centre.iter().map(|m| T::from_f64(*m).to_f64()), TABLE)?;
        let largest = (0..k * d).fold(0.0f64, |m, i| m.max((rows[i].to_f64() - centre[i % d]).abs()));
        if largest == 0.0 || !largest.is_finite() {
            return Ok(Self::None);
        }
        let exponent = unit_exponent(largest);
        let scale = crate::exact::fixed::Scale::new(exponent);
        // Values are scaled before they are squared, so norms are at most sqrt(d) for all data.
        let half = exponent / 2;
        let [first, second] = [half, exponent - half].map(|e| T::from_f64(crate::exact::fixed::power_of_two(e)));
        let half_square = |j: usize| {
            let s = (0..d).fold(0.0, |s: f64, f| {
                let t = scale.apply(rows[j * d + f].to_f64() - centre[f]);
                t.mul_add(t, s)
            });
            0.5 * s
        };
        let names = memory::copied(order, TABLE)?;
        let groups = if names.is_empty() { k } else { names.len() }.div_ceil(GROUP);
        // The place of each centroid in the order.
        let mut places: Vec<usize> = memory::collected(0..k, TABLE)?;
        names.iter().enumerate().filter(|(_, j)| **j != NOBODY).for_each(|(place, j)| places[*j as usize] = place);
        let mut packed = memory::zeroed::<f32>(groups * d * GROUP, TABLE)?;
        for j in 0..k {
            let (group, lane) = (places[j] / GROUP, places[j] % GROUP);
            for f in 0..d {
                packed[(group * d + f) * GROUP + lane] = -rows[j * d + f].centred_copy(T::from_f64(centre[f]), first, second);
            }
        }
        // A float32 difference of two finite values may overflow. With such a copy, a score could become plus infinity, which
        // would wrongly rule its centroid out.
        if packed.iter().any(|c| !c.is_finite()) {
            return Ok(Self::None);
        }
        let half_squares: Vec<f64> = memory::collected((0..k).map(half_square), TABLE)?;
        let weighted = |weight| {
            let bound = bounds::Expanded::new(d, exponent, weight);
            let mut own = memory::filled(groups * 2 * GROUP, f32::INFINITY, TABLE)?;
            for (j, half_square) in half_squares.iter().enumerate() {
                let bounds::own::Own { folded, margin } = bound.own(*half_square, d);
                let at = places[j] / GROUP * 2 * GROUP + places[j] % GROUP;
                (own[at], own[at + GROUP]) = (folded, margin);
            }
            Ok(Weighted { bound, own })
        };
        Ok(Self::Product(ProductTable {
            packed,
            names,
            weights: memory::try_collected(bounds::Expanded::WEIGHTS.map(weighted), TABLE)?,
            sizes: memory::collected(half_squares.iter().map(|half| binade(2.0 * *half as f32)), TABLE)?,
            centre,
            scale_exponent: exponent,
        }))
    }
}

/// Copies for the difference kernel.
#[derive(Debug)]
pub struct DifferenceTable {
    /// `(k, d)`, scaled.
    pub centroids: Vec<f32>,
    /// Rows are multiplied by this power of two; 1 for ordinary data.
    pub scale: f32,
    pub bound: bounds::Difference,
}

/// Copies for the product kernel.
#[derive(Debug)]
pub struct ProductTable {
    /// `(groups, d, GROUP)`: the negated centred, scaled centroids. Zeros are where nobody is.
    pub packed: Vec<f32>,
    /// The centroids in their order, or [`NOBODY`]. Empty if places are numbers of centroids.
    pub names: Vec<u32>,
    /// For each weight of a tile, in the order of [`bounds::Expanded::WEIGHTS`].
    weights: Vec<Weighted>,
    /// `(k)`: the binary logarithms of the squared norms.
    sizes: Vec<f32>,
    /// `(d)`: subtracted from rows in the feature type. The rows are then multiplied by 2^scale_exponent in two steps.
    pub centre: Vec<f64>,
    pub scale_exponent: i32,
}

/// The bound for tiles of one weight, and what it makes of the centroids.
#[derive(Debug)]
pub struct Weighted {
    pub bound: bounds::Expanded,
    /// `(groups, 2, GROUP)`: the folded half squares of a group, then their margins. The padding is infinite, so
    /// it is never nearest.
    pub own: Vec<f32>,
}

/// The binary logarithm of a tile's weight: how much it splits errors between rows and centroids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight(pub i32);

impl ProductTable {
    /// The bound for tiles of this weight.
    #[inline(always)]
    pub fn weighted(&self, weight: Weight) -> &Weighted {
        &self.weights[((weight.0 - bounds::Expanded::WEIGHTS[0]) / 2) as usize]
    }

    /// The weight that suits these rows: their squared norms, and their labels. It takes the mean of the logarithms, so that a
    /// few rows far out do not decide.
    #[inline(always)]
    pub fn weight_of(&self, squares: &[f32], labels: &[u32]) -> Weight {
        const MOST: f32 = 16.0;
        let (mut sum, mut count) = (0.0, 0.0f32);
        for (square, label) in squares.iter().zip(labels) {
            if square.is_finite() {
                sum += (self.sizes[*label as usize] - binade(*square)).clamp(-MOST, MOST);
                count += 1.0;
            }
        }
        let [least, .., most] = bounds::Expanded::WEIGHTS;
        Weight((2 * (0.25 * sum / count.max(1.0)).round() as i32).clamp(least, most))
    }
}

/// The binary logarithm of x >= 0, rounded down.
#[inline(always)]
pub fn binade(x: f32) -> f32 {
    (x.to_bits() >> 23) as f32 - 127.0
}

/// The exponent of the scale of the difference filter. None if there is no such filter.
fn difference_exponent<T: Float>(rows: &[T], extent: f64) -> Option<i32> {
    let largest = rows.iter().fold(extent, |m, c| m.max(c.to_f64().abs()));
    let exponent = (largest != 0.0).then(|| unit_exponent(largest))?;
    let exponent = if SAFE_EXPONENTS.contains(&-exponent) { 0 } else { exponent };
    // float32 has no larger power of two: then all values are subnormal.
    (exponent <= 126).then_some(exponent)
}
