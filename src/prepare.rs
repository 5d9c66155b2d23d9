//! What is learnt about the data before fitting: validity, extents, quanta, the scale of distances, the variance.
//!
//! ```text
//! pass 1   rows with nulls or non-finite values; lows, highs, largest weight; a centring vector near the means
//! pass 2   extents of the weighted contributions                     (only with weights other than 1)
//! pass 3   how many values are tiny beside their column's largest    (only where the smallest one is)
//! pass 4   the mean variance of the features                         (only if `tol` is positive)
//! ```
//! Everything that reaches a result is an extremum, a count or a fixed-point sum, so it merges over tasks, chunks and parts
//! in any order. The centring vector is a plain float sum; it never reaches the bits.

use std::ops::Range;

use crate::error::{KMeansError, Result};
use crate::fixed::{ColumnScale, DistanceScale, Limbs, frexp, power_of_two, round_quotient};
use crate::float::Float;
use crate::parallel::{for_each_task, workers_for};
use crate::params::{Init, NullPolicy, Params};
use crate::reference;
use crate::tile::{Part, Selection, Tile, WeightScale};

/// Most rows of a fit.
const MAX_ROWS: u64 = 1 << 36;
/// Rows of a tile of these passes; a multiple of 64 so that a task's rows fill whole words of a bitmap.
const TILE: usize = 256;
/// Rows of a task.
const TASK: usize = 16 * TILE;
/// Independent accumulators, so that loops vectorise.
const LANES: usize = 16;

/// What the fit knows about its data.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// Kept rows.
    pub n: u64,
    /// Kept rows of positive weight.
    pub n_positive: u64,
    /// Column extents over rows of positive weight, `d` values each.
    pub lows: Vec<f64>,
    pub highs: Vec<f64>,
    /// One quantum a column.
    pub scales: Vec<ColumnScale>,
    /// Scale of the integer distances in inertia and draws.
    pub distances: DistanceScale,
    /// Scale of the centroid shift: that of distances of weight 1.
    pub shifts: DistanceScale,
    /// Mean variance of the features; 0 if `tol` is 0.
    pub variance: f64,
    /// Near the column means, representable in the feature type. Never reaches the bits.
    pub centre: Vec<f64>,
    /// How weights become integers; none where all weights are 1.
    pub weights: Option<WeightScale>,
}

/// What a worker learns about one column.
#[derive(Debug, Clone)]
struct Extent {
    low: f64,
    high: f64,
    /// Largest and smallest nonzero magnitude.
    largest: f64,
    smallest: f64,
    sum: f64,
}

impl Extent {
    const EMPTY: Self = Self { low: f64::INFINITY, high: f64::NEG_INFINITY, largest: 0.0, smallest: f64::INFINITY, sum: 0.0 };

    fn merge(&mut self, other: &Self) {
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
        self.largest = self.largest.max(other.largest);
        self.smallest = self.smallest.min(other.smallest);
        self.sum += other.sum;
    }

    /// Takes in values; written over lanes so that it vectorises.
    fn add(&mut self, values: impl Fn(usize) -> f64, len: usize) {
        let (mut low, mut high) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
        let (mut smallest, mut sum) = ([f64::INFINITY; LANES], [0.0; LANES]);
        let mut step = |r: usize, i: usize| {
            let v = values(r);
            let magnitude = v.abs();
            low[i] = if v < low[i] { v } else { low[i] };
            high[i] = if v > high[i] { v } else { high[i] };
            let nonzero = if magnitude > 0.0 { magnitude } else { f64::INFINITY };
            smallest[i] = if nonzero < smallest[i] { nonzero } else { smallest[i] };
            sum[i] += v;
        };
        let whole = len - len % LANES;
        for start in (0..whole).step_by(LANES) {
            for i in 0..LANES {
                step(start + i, i);
            }
        }
        (whole..len).for_each(|r| step(r, 0));
        for i in 0..LANES {
            let largest = if low[i] <= high[i] { low[i].abs().max(high[i].abs()) } else { 0.0 };
            self.merge(&Self { low: low[i], high: high[i], largest, smallest: smallest[i], sum: sum[i] });
        }
    }
}

/// What a worker learns in pass 1.
struct Survey<T> {
    tile: Tile<T>,
    columns: Vec<Extent>,
    /// Largest magnitude over all kept rows, those of weight 0 too.
    largest: f64,
    largest_weight: f64,
    all_weights_one: bool,
    any_negative_weight: bool,
    bad: u64,
    positive: u64,
}

/// Surveys the parts, fills in their selections, and fixes every scale of the fit.
///
/// # Errors
/// Everything that is wrong with the values: see [`KMeansError`].
pub fn prepare<T: Float>(parts: &mut [Part<'_, T>], params: &Params) -> Result<Prepared> {
    let d = parts[0].features.n_features();
    let total: u64 = parts.iter().map(|part| part.features.n_rows() as u64).sum();
    for part in &*parts {
        if let Some(weights) = &part.weights
            && weights.len() != part.features.n_rows()
        {
            return Err(KMeansError::LengthMismatch {
                what: "weights".into(),
                expected: part.features.n_rows(),
                got: weights.len(),
            });
        }
    }
    if total > MAX_ROWS {
        return Err(KMeansError::TooManyRows { got: total });
    }
    let survey = survey(parts, params.threads);
    if let Some(error) = survey.any_negative_weight.then(|| first_negative_weight(parts)).flatten() {
        return Err(error);
    }
    if survey.bad > 0 {
        match params.null_policy {
            NullPolicy::Raise => return Err(count_bad(parts)),
            NullPolicy::Skip => parts.iter_mut().for_each(|part| part.selection = select_finite(part)),
        }
    }
    let n = total - survey.bad;
    if n == 0 {
        return Err(KMeansError::NoRows { skipped: (survey.bad > 0).then_some(survey.bad) });
    }
    let weighted = parts.iter().any(|part| part.weights.is_some());
    if weighted && survey.positive == 0 {
        return Err(KMeansError::NoPositiveWeight);
    }
    if weighted && !(power_of_two(-64)..=power_of_two(64)).contains(&survey.largest_weight) {
        return Err(KMeansError::WeightOutOfRange { got: survey.largest_weight });
    }
    if params.k as u64 > survey.positive {
        return Err(KMeansError::TooFewDistinct { k: params.k });
    }
    let positive_largest = survey.columns.iter().fold(0.0, |m: f64, column| m.max(column.largest));
    check_magnitude::<T>("feature values", survey.largest)?;
    check_magnitude::<T>("feature values", positive_largest)?;
    let weights = (weighted && survey.largest_weight > 0.0).then(|| WeightScale::new(survey.largest_weight));

    let contributions = match weights {
        Some(scale) if !survey.all_weights_one => weighted_extents(parts, scale, d, params.threads),
        _ => survey.columns.clone(),
    };
    let contribution_weights = weights.filter(|_| !survey.all_weights_one);
    let scales = quanta(parts, &contributions, contribution_weights, weights, params.threads)?;

    // -0.0 + 0.0 is 0.0: which zero is met first must not show.
    let lows: Vec<f64> = survey.columns.iter().map(|column| column.low + 0.0).collect();
    let highs: Vec<f64> = survey.columns.iter().map(|column| column.high + 0.0).collect();
    let (mut box_lows, mut box_highs) = (lows.clone(), highs.clone());
    if let Init::Given(centroids) = &params.init {
        let mut largest = 0.0f64;
        for row in centroids.chunks_exact(d) {
            for (f, &value) in row.iter().enumerate() {
                let value = T::from_f64(value).to_f64() + 0.0;
                if !value.is_finite() {
                    return Err(KMeansError::MagnitudeOutOfRange { what: "starting centroids".into(), got: row[f] });
                }
                largest = largest.max(value.abs());
                box_lows[f] = box_lows[f].min(value);
                box_highs[f] = box_highs[f].max(value);
            }
        }
        check_magnitude::<T>("starting centroids", largest)?;
    }
    let s = reference::distance(&box_highs, &box_lows);
    let variance =
        if params.tol > 0.0 { variance(parts, &lows, &highs, survey.positive, weights, params.threads) } else { 0.0 };
    let centre = survey.columns.iter().map(|column| T::from_f64(column.sum / survey.positive as f64).to_f64()).collect();
    Ok(Prepared {
        n,
        n_positive: survey.positive,
        distances: DistanceScale::new(s, weights.map_or(1.0, |w| w.largest)),
        shifts: DistanceScale::new(s, 1.0),
        lows,
        highs,
        scales,
        variance,
        centre,
        weights,
    })
}

/// float64 magnitudes must be 0 or in `[2^-450, 2^450]`; every finite float32 is accepted.
pub fn check_magnitude<T: Float>(what: &str, largest: f64) -> Result<()> {
    if T::IS_F32 || largest == 0.0 || (power_of_two(-450)..=power_of_two(450)).contains(&largest) {
        Ok(())
    } else {
        Err(KMeansError::MagnitudeOutOfRange { what: what.into(), got: largest })
    }
}

/// Visits every tile of every part, in parallel; returns the workers.
fn for_each_tile<T: Float, W: Send>(
    parts: &[Part<'_, T>],
    threads: usize,
    worker: impl Fn() -> W,
    visit: impl Fn(&mut W, &Part<'_, T>, Range<usize>) + Sync,
) -> Vec<W> {
    let tasks: Vec<_> = parts
        .iter()
        .flat_map(|part| {
            let n = part.features.n_rows();
            (0..n).step_by(TASK).map(move |start| (part, start..(start + TASK).min(n)))
        })
        .collect();
    let mut workers: Vec<W> = (0..workers_for(threads, tasks.len())).map(|_| worker()).collect();
    for_each_task(&mut workers, tasks.into_iter(), |worker, (part, range)| {
        for start in range.clone().step_by(TILE) {
            visit(worker, part, start..(start + TILE).min(range.end));
        }
    });
    workers
}

/// Visits every tile of kept rows of positive weight.
fn for_each_positive_tile<T: Float, W: Send>(
    parts: &[Part<'_, T>],
    weights: Option<WeightScale>,
    threads: usize,
    worker: impl Fn() -> W,
    visit: impl Fn(&mut W, &Tile<T>) + Sync,
) -> Vec<W> {
    let d = parts[0].features.n_features();
    let visit = |(tile, worker): &mut (Tile<T>, W), part: &Part<'_, T>, range: Range<usize>| {
        tile.load(part, weights, range);
        tile.drop_weightless();
        visit(worker, tile);
    };
    for_each_tile(parts, threads, || (Tile::new(d, TILE), worker()), visit).into_iter().map(|(_, worker)| worker).collect()
}

/// Pass 1.
fn survey<T: Float>(parts: &[Part<'_, T>], threads: usize) -> Survey<T> {
    let d = parts[0].features.n_features();
    let new = || Survey {
        tile: Tile::new(d, TILE),
        columns: vec![Extent::EMPTY; d],
        largest: 0.0,
        largest_weight: 0.0,
        all_weights_one: true,
        any_negative_weight: false,
        bad: 0,
        positive: 0,
    };
    let workers = for_each_tile(parts, threads, new, |survey: &mut Survey<T>, part, range| {
        let tile = &mut survey.tile;
        survey.bad += tile.load_checked(part, range) as u64;
        if part.weights.is_some() {
            let weights_here = &tile.weights[..tile.rows];
            survey.any_negative_weight |= weights_here.iter().any(|w| *w < 0.0);
            survey.largest_weight = weights_here.iter().fold(survey.largest_weight, |m, w| m.max(*w));
            survey.all_weights_one &= weights_here.iter().all(|w| *w == 0.0 || *w == 1.0);
            for column in tile.x.chunks_exact(tile.stride) {
                survey.largest = column[..tile.rows].iter().fold(survey.largest, |m, v| m.max(v.to_f64().abs()));
            }
            tile.drop_weightless();
        }
        survey.positive += tile.rows as u64;
        for (f, extent) in survey.columns.iter_mut().enumerate() {
            let column = tile.column(f);
            extent.add(|r| column[r].to_f64(), column.len());
        }
    });
    let mut workers = workers.into_iter();
    let Some(mut survey) = workers.next() else { return new() };
    for other in workers {
        survey.columns.iter_mut().zip(&other.columns).for_each(|(a, b)| a.merge(b));
        survey.largest = survey.largest.max(other.largest);
        survey.largest_weight = survey.largest_weight.max(other.largest_weight);
        survey.all_weights_one &= other.all_weights_one;
        survey.any_negative_weight |= other.any_negative_weight;
        survey.bad += other.bad;
        survey.positive += other.positive;
    }
    survey.largest = survey.columns.iter().fold(survey.largest, |m, column| m.max(column.largest));
    survey
}

/// The first negative weight, and its row.
fn first_negative_weight<T: Float>(parts: &[Part<'_, T>]) -> Option<KMeansError> {
    let mut first = 0;
    for part in parts {
        if let Some(weights) = &part.weights {
            let mut values = vec![0.0; weights.len()];
            weights.copy(0..weights.len(), &mut values);
            weights.for_each_null(0..weights.len(), |i| values[i] = 0.0);
            if let Some(row) = values.iter().position(|w| *w < 0.0) {
                return Some(KMeansError::NegativeWeight { row: first + row as u64, got: values[row] });
            }
        }
        first += part.features.n_rows() as u64;
    }
    None
}

/// Counts what is wrong with the first bad column; weights come last.
fn count_bad<T: Float>(parts: &[Part<'_, T>]) -> KMeansError {
    let d = parts[0].features.n_features();
    let mut counts = vec![[0u64; 3]; d + 1];
    let mut tile = Tile::<T>::new(d, TILE);
    let mut nulls = vec![false; (d + 1) * TILE];
    for part in parts {
        let n = part.features.n_rows();
        for start in (0..n).step_by(TILE) {
            let range = start..(start + TILE).min(n);
            nulls.fill(false);
            part.features.copy_tile(range.clone(), TILE, &mut tile.x);
            part.features.for_each_null(range.clone(), |f, i| nulls[f * TILE + i] = true);
            if let Some(weights) = &part.weights {
                weights.copy(range.clone(), &mut tile.weights);
                weights.for_each_null(range.clone(), |i| nulls[d * TILE + i] = true);
            }
            for (f, count) in counts.iter_mut().enumerate() {
                for i in 0..range.len() {
                    let value = if f < d { tile.x[f * TILE + i].to_f64() } else { tile.weights[i] };
                    match value {
                        _ if nulls[f * TILE + i] => count[0] += 1,
                        v if v.is_nan() => count[1] += 1,
                        v if v.is_infinite() => count[2] += 1,
                        _ => {}
                    }
                }
            }
        }
    }
    let f = counts.iter().position(|count| *count != [0; 3]).unwrap_or(d);
    let column = parts[0].features.names().get(f).cloned().unwrap_or_else(|| "weight".into());
    let [nulls, nans, infinities] = counts[f];
    KMeansError::NotFinite { column, nulls, nans, infinities }
}

/// The rows of a part without nulls and with finite values only.
fn select_finite<T: Float>(part: &Part<'_, T>) -> Selection {
    let n = part.features.n_rows();
    let mut bits = vec![0u64; n.div_ceil(64)];
    let mut tile = Tile::new(part.features.n_features(), TILE);
    for start in (0..n).step_by(TILE) {
        let range = start..(start + TILE).min(n);
        tile.load_checked(part, range.clone());
        for i in range.clone().filter(|i| !tile.bad[i - start]) {
            bits[i / 64] |= 1 << (i % 64);
        }
    }
    Selection::from_bits(bits)
}

/// Pass 2: extents of `fl(w^ * x)`.
fn weighted_extents<T: Float>(parts: &[Part<'_, T>], scale: WeightScale, d: usize, threads: usize) -> Vec<Extent> {
    let workers = for_each_positive_tile(
        parts,
        Some(scale),
        threads,
        || vec![Extent::EMPTY; d],
        |extents, tile| {
            for (f, extent) in extents.iter_mut().enumerate() {
                let column = tile.column(f);
                extent.add(|r| tile.weights[r] * column[r].to_f64(), column.len());
            }
        },
    );
    merge_columns(workers, Extent::merge)
}

fn merge_columns<C>(workers: Vec<Vec<C>>, merge: impl Fn(&mut C, &C)) -> Vec<C> {
    workers
        .into_iter()
        .reduce(|mut all, other| {
            all.iter_mut().zip(&other).for_each(|(a, b)| merge(a, b));
            all
        })
        .unwrap_or_default()
}

/// Pass 3, where needed, and the scale of each column.
fn quanta<T: Float>(
    parts: &[Part<'_, T>],
    extents: &[Extent],
    contribution_weights: Option<WeightScale>,
    weights: Option<WeightScale>,
    threads: usize,
) -> Result<Vec<ColumnScale>> {
    /// Nonzero values, those below 2^-26 of the largest, those below 2^-66.
    type Counts = [u64; 3];
    let is_small = |v: f64, bits: i32, largest: f64| v * power_of_two(bits) < largest;
    // One limb is possible for unweighted float32 only; elsewhere only the second count decides anything.
    let bits = if T::IS_F32 && contribution_weights.is_none() { 26 } else { 66 };
    let needs_counts = |e: &Extent| is_small(e.smallest, bits, e.largest);
    let counts: Vec<Counts> = if extents.iter().any(needs_counts) {
        let workers = for_each_positive_tile(
            parts,
            weights,
            threads,
            || vec![[0; 3]; extents.len()],
            |counts: &mut Vec<Counts>, tile| {
                for (f, (count, extent)) in
                    counts.iter_mut().zip(extents).enumerate().filter(|(_, (_, extent))| needs_counts(extent))
                {
                    for (r, x) in tile.column(f).iter().enumerate() {
                        let w = if contribution_weights.is_some() { tile.weights[r] } else { 1.0 };
                        let v = (w * x.to_f64()).abs();
                        count[0] += u64::from(v > 0.0);
                        count[1] += u64::from(v > 0.0 && is_small(v, 26, extent.largest));
                        count[2] += u64::from(v > 0.0 && is_small(v, 66, extent.largest));
                    }
                }
            },
        );
        merge_columns(workers, |a, b| a.iter_mut().zip(b).for_each(|(a, b)| *a += b))
    } else {
        vec![[0; 3]; extents.len()]
    };
    let scale = |(f, (extent, [nonzero, small, tiny])): (usize, (&Extent, &Counts))| {
        if tiny * 2 > *nonzero {
            let column = parts[0].features.names()[f].clone();
            return Err(KMeansError::RangeTooWide { column, largest: extent.largest });
        }
        let one = T::IS_F32 && contribution_weights.is_none() && small * 1000 <= *nonzero;
        Ok(ColumnScale::for_extent::<T>(extent.largest, if one { Limbs::One } else { Limbs::Two }))
    };
    extents.iter().zip(&counts).enumerate().map(scale).collect()
}

/// Pass 4: the mean over the features of `max(0, m2 - m1 * m1)`, m1 and m2 the means of t and t^2, `t = x - midrange`.
fn variance<T: Float>(
    parts: &[Part<'_, T>],
    lows: &[f64],
    highs: &[f64],
    n: u64,
    weights: Option<WeightScale>,
    threads: usize,
) -> f64 {
    let d = lows.len();
    let middle: Vec<f64> = lows.iter().zip(highs).map(|(low, high)| 0.5 * (low + high)).collect();
    let scales: Vec<[ColumnScale; 2]> = (0..d)
        .map(|f| {
            let t = (lows[f] - middle[f]).abs().max((highs[f] - middle[f]).abs());
            [t, t * t].map(|extent| ColumnScale::for_extent::<f64>(extent, Limbs::Two))
        })
        .collect();
    let workers = for_each_positive_tile(
        parts,
        weights,
        threads,
        || vec![[0i128; 2]; d],
        |sums: &mut Vec<[i128; 2]>, tile| {
            for f in 0..d {
                let ([first, second], middle) = (scales[f], middle[f]);
                // A tile has far fewer rows than an int64 has room for.
                let mut limbs = [0i64; 4];
                for x in tile.column(f) {
                    let t = x.to_f64() - middle;
                    let ((a, b), (c, e)) = (first.limbs_of(t), second.limbs_of(t * t));
                    limbs[0] += a;
                    limbs[1] += b;
                    limbs[2] += c;
                    limbs[3] += e;
                }
                sums[f][0] += first.join(limbs[0], limbs[1]);
                sums[f][1] += second.join(limbs[2], limbs[3]);
            }
        },
    );
    let sums = merge_columns(workers, |a, b| {
        a[0] += b[0];
        a[1] += b[1];
    });
    let mut total = 0.0;
    for (sums, scales) in sums.iter().zip(&scales) {
        let [m1, m2]: [f64; 2] = [0, 1].map(|i| round_quotient(sums[i], u128::from(n), scales[i].quantum_exponent()));
        total += (m2 - m1 * m1).max(0.0);
    }
    total / d as f64
}

/// The power of two that brings a positive number into `[1/2, 1)`; for scaling copies.
pub fn unit_exponent(m: f64) -> i32 {
    if m > 0.0 && m.is_finite() { -frexp(m).1 } else { 0 }
}
