//! Passes of a fitted model over rows: labels, distances, inertia. Rows are taken as they come: what is not finite gives no
//! answer, whatever is finite an exact one.

use crate::backend::cpu::{Assigner, CentroidTable, InstructionSet, Task, Vector};
use crate::error::{KMeansError, Result};
use crate::features::{Column, Features};
use crate::fixed::DistanceScale;
use crate::float::Float;
use crate::model::Prediction;
use crate::parallel::{for_each_task, workers_for};
use crate::reference;
use crate::tile::{Part, Tile, WeightScale};

/// Rows of a task; smaller inputs stay on the calling thread.
const TASK: usize = 16_384;

/// Rows, and what they are compared with.
#[derive(Clone, Copy)]
pub struct Rows<'p, 'a, T> {
    pub features: &'p Features<'a, T>,
    pub table: &'p CentroidTable<T>,
    pub set: InstructionSet,
    pub tile_rows: usize,
}

impl<T: Float> Rows<'_, '_, T> {
    /// Fills `out`, `width` entries a row, tile by tile: `visit(assigner, tile, bad, out)`.
    fn fill<R: Send + Clone>(self, width: usize, empty: R, visit: impl Visit<T, R>) -> Result<Vec<R>> {
        let (n, d) = (self.features.n_rows(), self.features.n_features());
        let len = n.checked_mul(width);
        let mut out = Vec::new();
        if len.is_none_or(|len| out.try_reserve_exact(len).is_err()) {
            return Err(KMeansError::NoMemory { what: format!("{n} rows of {width} values") });
        }
        out.resize(n * width, empty);
        let part = Part::new(self.features.clone(), None);
        let mut workers: Vec<_> = (0..workers_for(0, n / TASK + 1))
            .map(|_| (Tile::new(d, self.tile_rows), Assigner::new::<T>(d, self.table.k, self.tile_rows)))
            .collect();
        let tasks = out.chunks_mut((TASK * width).max(1)).enumerate();
        for_each_task(&mut workers, tasks, |(tile, assigner), (index, out)| {
            self.set.run(Fill { part: &part, rows: self, width, start: index * TASK, tile, assigner, visit: &visit, out });
        });
        Ok(out)
    }
}

/// What is written for one tile: one entry of `out` a row (or `width` of them), bad rows left as they are.
trait Visit<T, R>: Sync {
    fn tile<V: Vector>(
        &self,
        table: &CentroidTable<T>,
        assigner: &mut Assigner,
        tile: &Tile<T>,
        places: &[usize],
        out: &mut [R],
    );
}

struct Fill<'p, 'a, T, R, F> {
    part: &'p Part<'a, T>,
    rows: Rows<'p, 'a, T>,
    width: usize,
    start: usize,
    tile: &'p mut Tile<T>,
    assigner: &'p mut Assigner,
    visit: &'p F,
    out: &'p mut [R],
}

impl<T: Float, R, F: Visit<T, R>> Task for Fill<'_, '_, T, R, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut places = Vec::with_capacity(self.tile.stride);
        for (index, out) in self.out.chunks_mut(self.tile.stride * self.width).enumerate() {
            let (start, len) = (self.start + index * self.tile.stride, out.len() / self.width);
            self.tile.load_checked(self.part, start..start + len);
            places.clear();
            places.extend((0..len).filter(|&i| !self.tile.bad[i]));
            self.visit.tile::<V>(self.rows.table, self.assigner, self.tile, &places, out);
        }
    }
}

struct Labels;

impl<T: Float> Visit<T, Option<u32>> for Labels {
    #[inline(always)]
    fn tile<V: Vector>(
        &self,
        table: &CentroidTable<T>,
        assigner: &mut Assigner,
        tile: &Tile<T>,
        places: &[usize],
        out: &mut [Option<u32>],
    ) {
        let labels = assigner.assign::<V, T>(tile, table);
        places.iter().zip(labels).for_each(|(&place, &label)| out[place] = Some(label));
    }
}

struct Nearest;

impl<T: Float> Visit<T, Option<Prediction>> for Nearest {
    #[inline(always)]
    fn tile<V: Vector>(
        &self,
        table: &CentroidTable<T>,
        _: &mut Assigner,
        tile: &Tile<T>,
        places: &[usize],
        out: &mut [Option<Prediction>],
    ) {
        for_each_row(tile, table.d, places, |place, x| {
            let nearest = table.nearest(x);
            out[place] = Some(Prediction {
                label: Some(nearest.label),
                distance: nearest.distance.sqrt(),
                second_distance: (table.k > 1).then(|| nearest.second.sqrt()),
            });
        });
    }
}

struct Distances;

impl<T: Float> Visit<T, f64> for Distances {
    #[inline(always)]
    fn tile<V: Vector>(&self, table: &CentroidTable<T>, _: &mut Assigner, tile: &Tile<T>, places: &[usize], out: &mut [f64]) {
        for_each_row(tile, table.d, places, |place, x| {
            let out = &mut out[place * table.k..][..table.k];
            table.distances(x, out);
            out.iter_mut().for_each(|s| *s = s.sqrt());
        });
    }
}

/// Gathers each row of a tile: `visit(its place in the output, its values)`.
#[inline(always)]
fn for_each_row<T: Float>(tile: &Tile<T>, d: usize, places: &[usize], mut visit: impl FnMut(usize, &[f64])) {
    let mut x = vec![0.0; d];
    for (r, &place) in places.iter().enumerate() {
        tile.row(r, &mut x);
        visit(place, &x);
    }
}

pub fn labels<T: Float>(rows: Rows<'_, '_, T>) -> Result<Vec<Option<u32>>> {
    rows.fill(1, None, Labels)
}

pub fn nearest<T: Float>(rows: Rows<'_, '_, T>) -> Result<Vec<Option<Prediction>>> {
    rows.fill(1, None, Nearest)
}

pub fn distances<T: Float>(rows: Rows<'_, '_, T>) -> Result<Vec<f64>> {
    rows.fill(rows.table.k, f64::NAN, Distances)
}

/// The inertia of the finite rows of positive weight; `scale` gives the scale of distances from the lows and highs over these
/// rows and the centroids, and the largest `w^`.
pub fn inertia<T: Float>(
    rows: Rows<'_, '_, T>,
    weights: Option<&Column<'_, f64>>,
    scale: impl Fn(&[f64], &[f64], f64) -> DistanceScale,
) -> Result<f64> {
    let d = rows.table.d;
    let part = Part::new(rows.features.clone(), weights.cloned());
    let n = rows.features.n_rows();
    let mut tile = Tile::new(d, rows.tile_rows);
    let ranges = || (0..n).step_by(rows.tile_rows).map(|start| start..(start + rows.tile_rows).min(n));

    let centroid_values = |f: usize| rows.table.rows.iter().skip(f).step_by(d).map(|c| c.to_f64());
    let mut lows: Vec<f64> = (0..d).map(|f| centroid_values(f).fold(f64::INFINITY, f64::min)).collect();
    let mut highs: Vec<f64> = (0..d).map(|f| centroid_values(f).fold(f64::NEG_INFINITY, f64::max)).collect();
    let mut largest_weight = if weights.is_some() { 0.0f64 } else { 1.0 };
    for range in ranges() {
        tile.load_checked(&part, range.clone());
        if let Some((row, got)) = tile.first_negative_weight() {
            return Err(KMeansError::NegativeWeight { row: (range.start + row) as u64, got });
        }
        tile.drop_weightless();
        if weights.is_some() {
            largest_weight = tile.weights[..tile.rows].iter().fold(largest_weight, |m, w| m.max(*w));
        }
        for f in 0..d {
            for x in tile.column(f) {
                lows[f] = lows[f].min(x.to_f64());
                highs[f] = highs[f].max(x.to_f64());
            }
        }
    }
    if largest_weight == 0.0 {
        return Err(KMeansError::NoPositiveWeight);
    }
    if weights.is_some() && !(2f64.powi(-64)..=2f64.powi(64)).contains(&largest_weight) {
        return Err(KMeansError::WeightOutOfRange { got: largest_weight });
    }
    let largest = lows.iter().chain(&highs).fold(0.0f64, |m, v| m.max(v.abs()));
    crate::prepare::check_magnitude::<T>("feature values", largest)?;
    let weight_scale = weights.map(|_| WeightScale::new(largest_weight));
    let scale = scale(&lows, &highs, weight_scale.map_or(1.0, |scale| scale.largest));

    let mut assigner = Assigner::new::<T>(d, rows.table.k, rows.tile_rows);
    let mut total = 0u128;
    let mut x = vec![0.0; d];
    for range in ranges() {
        tile.load_checked(&part, range);
        let labels = rows.set.run(AssignTile { assigner: &mut assigner, tile: &tile, table: rows.table });
        for (r, label) in labels.into_iter().enumerate() {
            tile.row(r, &mut x);
            let weight = weight_scale.map_or(1.0, |scale| scale.round(tile.weights[r]));
            total += scale.quantise(weight, reference::distance(&x, rows.table.row(label as usize)));
        }
    }
    Ok(scale.to_f64(total))
}

struct AssignTile<'p, T> {
    assigner: &'p mut Assigner,
    tile: &'p Tile<T>,
    table: &'p CentroidTable<T>,
}

impl<T: Float> Task for AssignTile<'_, T> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<V: Vector>(self) -> Vec<u32> {
        self.assigner.assign::<V, T>(self.tile, self.table).to_vec()
    }
}
