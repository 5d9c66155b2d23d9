//! The filter: float32 copies of the centroids, the scale of the copies, and the bound on the error of their scores. Fits,
//! predictions and scores of a model all use this one.

use super::difference::FEW;
use super::groups::largest;
use super::tree::CentroidTree;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::for_each_task;
use crate::bounds;
use crate::bounds::own::CentroidBound;
use crate::simd::{InstructionSet, Task, Vector};
use crate::statistics::unit_exponent;

/// No centroid: what fills up an order.
pub const NO_CENTROID: u32 = u32::MAX;

/// Number of centroids in a packed group of the product kernel. Four row vectors of scores and the operands then fill 32
/// registers.
pub const GROUP: usize = 6;
/// Magnitudes, as powers of two, for which squared differences do not overflow and lose little to underflow.
const SAFE_EXPONENTS: std::ops::RangeInclusive<i32> = -40..=50;

/// Values of centroids that are copied in one task.
pub const TASK: usize = 1 << 14;
/// The name for the copies in errors.
pub const TABLE: &str = "copies of the centroids";

/// How a filter computes scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreForm {
    /// Differences, squared and summed: for float32 features with few dimensions.
    Difference,
    /// Scaled, centred products: for everything else.
    Product,
}

impl ScoreForm {
    /// The form for `d` features of type `T`.
    pub fn of<T: Float>(d: usize) -> Self {
        if T::IS_F32 && d <= FEW { Self::Difference } else { Self::Product }
    }
}

/// What is prepared for the centroids of an assign, to decide most labels without reference distances.
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
    /// magnitude of the rows. If either is wrong, only time is lost. `order`: that in which products are computed, with
    /// [`NO_CENTROID`] at some places. Empty: the centroids' own. `threads`: how many may share the work.
    pub fn new(
        rows: &[T],
        d: usize,
        centre: &[f64],
        extent: f64,
        order: &[u32],
        set: InstructionSet,
        threads: usize,
    ) -> Result<Self> {
        match ScoreForm::of::<T>(d) {
            ScoreForm::Difference => {
                let (centroids, bound) = (memory::zeroed(rows.len(), TABLE)?, bounds::Difference::new(d));
                let mut filter = Self::Difference(DifferenceTable { centroids, scale: 1.0, bound });
                Ok(if filter.replace(rows, centre, extent, order, set, threads)? { filter } else { Self::None })
            }
            ScoreForm::Product => Self::product(rows, d, centre, order, set, threads),
        }
    }

    pub fn is_tree(&self) -> bool {
        matches!(self, Self::Tree(_))
    }

    /// Replaces the centroids by as many others, in the same memory. Returns false if another filter must be made: products need
    /// another centre or order, or there is no finite scale. See [`Filter::new`].
    pub fn replace(
        &mut self,
        rows: &[T],
        centre: &[f64],
        extent: f64,
        order: &[u32],
        set: InstructionSet,
        threads: usize,
    ) -> Result<bool> {
        let table = match self {
            Self::Difference(table) => table,
            Self::Tree(tree) => {
                tree.replace(rows);
                return Ok(true);
            }
            Self::Product(table) => return Ok(table.suits::<T>(centre, order) && table.fill(rows, set, threads)?),
            Self::None => return Ok(false),
        };
        let Some(exponent) = difference_exponent(rows, extent) else { return Ok(false) };
        let scale = crate::exact::fixed::power_of_two(exponent);
        table.scale = scale as f32;
        table.centroids.iter_mut().zip(rows).for_each(|(copy, c)| *copy = (c.to_f64() * scale) as f32);
        Ok(true)
    }

    /// The product filter, whatever the features are. `centre`: a point near the data.
    pub fn product(rows: &[T], d: usize, centre: &[f64], order: &[u32], set: InstructionSet, threads: usize) -> Result<Self> {
        let mut table = ProductTable::new::<T>(rows.len() / d, centre, order)?;
        Ok(if table.fill(rows, set, threads)? { Self::Product(table) } else { Self::None })
    }
}

/// The largest distance of a value from its centre. A NaN counts as none. Compiled for each instruction set.
struct Largest<'p, T> {
    rows: &'p [T],
    centre: &'p [f64],
    most: f64,
}

impl<T: Float> Task for Largest<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn run<V: Vector>(self) -> f64 {
        const LANES: usize = 8;
        let Self { rows, centre, most } = self;
        let mut lanes = [most; LANES];
        for row in rows.chunks_exact(centre.len()) {
            let ((row, row_rest), (centre, centre_rest)) = (row.as_chunks::<LANES>(), centre.as_chunks::<LANES>());
            for (row, centre) in row.iter().zip(centre) {
                for i in 0..LANES {
                    lanes[i] = lanes[i].max((row[i].to_f64() - centre[i]).abs());
                }
            }
            for (c, centre) in row_rest.iter().zip(centre_rest) {
                lanes[0] = lanes[0].max((c.to_f64() - centre).abs());
            }
        }
        lanes.into_iter().fold(0.0, f64::max)
    }
}

/// Makes the copies of a group of centroids. Compiled for each instruction set.
struct Pack<'p, T> {
    rows: &'p [T],
    centre: &'p [f64],
    /// The centroids of the group, or [`NO_CENTROID`].
    names: [u32; GROUP],
    /// Copies are multiplied by two to this.
    exponent: i32,
    /// `(d, GROUP)`.
    packed: &'p mut [f32],
    /// Infinite where a copy is not finite, and at places without a centroid.
    half_squares: &'p mut [f64; GROUP],
}

impl<T: Float> Task for Pack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { rows, centre, names, exponent, packed, half_squares } = self;
        let d = centre.len();
        // Values are scaled before they are squared, so norms are at most sqrt(d) for all data.
        let scale = crate::exact::fixed::PowerOfTwo::new(exponent);
        let half = exponent / 2;
        let [first, second] = [half, exponent - half].map(|e| T::from_f64(crate::exact::fixed::power_of_two(e)));
        // A place without a centroid takes the copy of some centroid of the group. Below, its values are set to 0.
        let Some(substitute) = names.iter().find(|name| **name != NO_CENTROID) else { return };
        let members = names.map(|name| &rows[if name == NO_CENTROID { *substitute } else { name } as usize * d..][..d]);
        let (mut squares, mut finite) = ([0.0f64; GROUP], [true; GROUP]);
        for (f, (copies, m)) in packed.as_chunks_mut::<GROUP>().0.iter_mut().zip(centre).enumerate() {
            for c in 0..GROUP {
                let t = scale.apply(members[c][f].to_f64() - m);
                squares[c] = t.mul_add(t, squares[c]);
                let copy = -members[c][f].centred_copy(T::from_f64(*m), first, second);
                finite[c] &= copy.is_finite();
                copies[c] = if names[c] == NO_CENTROID { 0.0 } else { copy };
            }
        }
        for c in 0..GROUP {
            let is_known = names[c] != NO_CENTROID && finite[c];
            half_squares[c] = if is_known { 0.5 * squares[c] } else { f64::INFINITY };
        }
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
    /// `(groups, d, GROUP)`: the negated centred, scaled centroids. Zeros are at places without a centroid.
    pub packed: Vec<f32>,
    /// The centroids in their order, or [`NO_CENTROID`]. Empty if places are numbers of centroids.
    pub names: Vec<u32>,
    /// `(groups, GROUP)`: the half squares of the copies. Infinite at places without a centroid.
    half_squares: Vec<f64>,
    /// For each weight of a tile, in the order of [`bounds::Expanded::WEIGHTS`].
    weights: Box<[Weighted; WEIGHTS]>,
    /// `(k)`: the binary logarithms of the squared norms.
    sizes: Vec<f32>,
    /// `(d)`: subtracted from rows in the feature type. The rows are then multiplied by 2^scale_exponent in two steps.
    pub centre: Vec<f64>,
    pub scale_exponent: i32,
}

/// Number of weights.
const WEIGHTS: usize = bounds::Expanded::WEIGHTS.len();

/// The bound for tiles of one weight, and the values of the centroids under this bound.
#[derive(Debug)]
pub struct Weighted {
    pub bound: bounds::Expanded,
    /// `(groups, 2, GROUP)`: the lowered half squares of a group, then their slacks. The padding is infinite, so
    /// it is never nearest.
    pub own: Vec<f32>,
}

/// The binary logarithm of a tile's weight: how much it splits errors between rows and centroids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight(pub i32);

impl ProductTable {
    /// Room for the copies of k centroids, in this order. See [`Filter::new`].
    fn new<T: Float>(k: usize, centre: &[f64], order: &[u32]) -> Result<Self> {
        let centre: Vec<f64> = memory::collected(centre.iter().map(|m| of_type::<T>(*m)), TABLE)?;
        let names = memory::copied(order, TABLE)?;
        let (d, groups) = (centre.len(), if names.is_empty() { k } else { names.len() }.div_ceil(GROUP));
        let weighted = |weight| Weighted { bound: bounds::Expanded::new(d, 0, weight), own: Vec::new() };
        let mut weights = bounds::Expanded::WEIGHTS.map(weighted);
        for weighted in &mut weights {
            weighted.own = memory::zeroed(groups * 2 * GROUP, TABLE)?;
        }
        Ok(Self {
            packed: memory::zeroed(groups * d * GROUP, TABLE)?,
            names,
            half_squares: memory::zeroed(groups * GROUP, TABLE)?,
            weights: Box::new(weights),
            sizes: memory::zeroed(k, TABLE)?,
            centre,
            scale_exponent: 0,
        })
    }

    /// Whether the copies are those about this centre, in this order.
    fn suits<T: Float>(&self, centre: &[f64], order: &[u32]) -> bool {
        self.names == order && centre.iter().map(|m| of_type::<T>(*m)).eq(self.centre.iter().copied())
    }

    /// Makes the copies. Returns false if there is no finite scale, or all centroids are equal.
    fn fill<T: Float>(&mut self, rows: &[T], set: InstructionSet, threads: usize) -> Result<bool> {
        let Self { packed, names, half_squares, weights, sizes, centre, scale_exponent } = self;
        let (d, k) = (centre.len(), sizes.len());
        let values = (TASK / d).max(1);
        let mut threads = memory::filled(threads.min(k.div_ceil(values)), 0.0f64, TABLE)?;
        for_each_task(&mut threads, rows.chunks(values * d), |most, rows| {
            *most = set.run(Largest { rows, centre, most: *most });
        })?;
        let largest = largest(threads.iter().copied());
        if largest == 0.0 || !largest.is_finite() {
            return Ok(false);
        }
        *scale_exponent = unit_exponent(largest);
        let (exponent, names) = (*scale_exponent, &names[..]);
        // A place has a centroid or [`NO_CENTROID`].
        let name = |place: usize| match names.get(place) {
            Some(name) => *name,
            None if names.is_empty() && place < k => place as u32,
            None => NO_CENTROID,
        };
        let bounds = bounds::Expanded::WEIGHTS.map(|weight| bounds::Expanded::new(d, exponent, weight));
        let of_task = (values / GROUP).max(1);
        let mut own = weights.each_mut().map(|weighted| weighted.own.chunks_mut(of_task * 2 * GROUP));
        let tasks = packed.chunks_mut(of_task * d * GROUP).zip(half_squares.chunks_mut(of_task * GROUP)).enumerate();
        let tasks = tasks.map(|task| (task, own.each_mut().map(|own| own.next().unwrap_or_default())));
        for_each_task(&mut threads, tasks, |_, ((task, (packed, half_squares)), mut own)| {
            let of_groups = packed.chunks_exact_mut(d * GROUP).zip(half_squares.as_chunks_mut().0).enumerate();
            for (group, (packed, half_squares)) in of_groups {
                let names = std::array::from_fn(|c| name((task * of_task + group) * GROUP + c));
                set.run(Pack { rows, centre, names, exponent, packed, half_squares });
                for (bound, own) in bounds.iter().zip(&mut own) {
                    let (lowered, slacks) = own[group * 2 * GROUP..][..2 * GROUP].split_at_mut(GROUP);
                    for c in 0..GROUP {
                        let infinite = CentroidBound { lowered: f32::INFINITY, slack: f32::INFINITY };
                        let own = if names[c] == NO_CENTROID { infinite } else { bound.own(half_squares[c], d) };
                        (lowered[c], slacks[c]) = (own.lowered, own.slack);
                    }
                }
            }
        })?;
        for (weighted, bound) in weights.iter_mut().zip(bounds) {
            weighted.bound = bound;
        }
        // A float32 difference of two finite values may overflow. With such a copy, a score could become plus infinity, which
        // would wrongly rule its centroid out.
        let mut all_finite = true;
        for (place, half) in half_squares.iter().enumerate().filter(|(place, _)| name(*place) != NO_CENTROID) {
            all_finite &= half.is_finite();
            sizes[name(place) as usize] = binade(2.0 * *half as f32);
        }
        Ok(all_finite)
    }

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

/// A value as it is in the feature type. Rows and centroids are compared with the same bits of the centre.
fn of_type<T: Float>(value: f64) -> f64 {
    T::from_f64(value).to_f64()
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
