//! Passes of a fitted model over rows: labels, distances, inertia. The rows are not prepared. A row that is not finite gets no
//! answer. Every finite row gets an exact one.

use std::ops::Range;

use crate::backend::cpu::{Assigner, CentroidTable, InstructionSet, Task, Vector};
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::backend::select::Place;
use crate::distances::{DistanceScale, DistanceSum};
use crate::error::{KMeansError, Result};
use crate::features::{Column, Features};
use crate::fixed::power_of_two;
use crate::float::Float;
use crate::memory;
use crate::model::{Model, Prediction};
use crate::parallel::{for_each_task, workers_for};
use crate::prepare::survey::check_weight_range;
use crate::reference;
use crate::tile::{Part, Tile, WeightScale};

/// The name for the extents of the rows in errors.
const EXTENTS: &str = "the extents of the columns";
/// Number of rows per task. Smaller inputs stay on the calling thread.
const TASK: usize = 16_384;

/// The rows, the model that they are compared with, and where the pass runs.
#[derive(Clone, Copy)]
pub struct Rows<'p, 'a, T> {
    pub model: &'p Model<T>,
    pub features: &'p Features<'a, T>,
    pub place: Place,
}

/// The labels of the rows.
pub fn labels<T: Float>(rows: Rows<'_, '_, T>) -> Result<Vec<Option<u32>>> {
    match rows.place {
        Place::Cpu => CpuRows::new(rows)?.fill(1, None, Labels),
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => cuda::predict::labels(&*rows.model.device_table(ordinal)?, rows.features),
        #[cfg(not(feature = "cuda"))]
        Place::Cuda(_) => no_gpu(),
    }
}

/// The labels, and the distances to the nearest and the second nearest centroid.
pub fn nearest<T: Float>(rows: Rows<'_, '_, T>) -> Result<Vec<Option<Prediction>>> {
    match rows.place {
        Place::Cpu => CpuRows::new(rows)?.fill(1, None, Nearest),
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => cuda::predict::nearest(&*rows.model.device_table(ordinal)?, rows.features),
        #[cfg(not(feature = "cuda"))]
        Place::Cuda(_) => no_gpu(),
    }
}

/// The distances to all centroids.
pub fn distances<T: Float>(rows: Rows<'_, '_, T>) -> Result<Vec<f64>> {
    match rows.place {
        Place::Cpu => CpuRows::new(rows)?.fill(rows.model.n_clusters(), f64::NAN, Distances),
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => cuda::predict::distances(&*rows.model.device_table(ordinal)?, rows.features),
        #[cfg(not(feature = "cuda"))]
        Place::Cuda(_) => no_gpu(),
    }
}

/// The inertia of the finite rows of positive weight.
pub fn inertia<T: Float>(rows: Rows<'_, '_, T>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
    match rows.place {
        Place::Cpu => CpuRows::new(rows)?.inertia(weights),
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => cuda::predict::inertia(&*rows.model.device_table(ordinal)?, rows.model, rows.features, weights),
        #[cfg(not(feature = "cuda"))]
        Place::Cuda(_) => no_gpu(),
    }
}

#[cfg(not(feature = "cuda"))]
fn no_gpu() -> ! {
    unreachable!("without the feature there is no GPU to choose")
}

/// Room for `width` values per row.
pub fn reserve<R>(n: usize, width: usize) -> Result<Vec<R>> {
    memory::with_room(n.saturating_mul(width), "the answers for all rows")
}

/// The scales that turn the distances and weights of a score into integers.
pub struct ScoreScales {
    pub weights: Option<WeightScale>,
    pub distances: DistanceScale,
}

impl ScoreScales {
    /// `lows` and `highs` are taken over the finite rows of positive weight and the centroids. `largest_weight` is the largest
    /// weight of these rows, if there are weights.
    pub fn new<T: Float>(lows: &[f64], highs: &[f64], largest_weight: Option<f64>) -> Result<Self> {
        match largest_weight {
            Some(0.0) => return Err(KMeansError::NoPositiveWeight),
            Some(got) if !(power_of_two(-64)..=power_of_two(64)).contains(&got) => {
                return Err(KMeansError::WeightOutOfRange { got });
            }
            _ => {}
        }
        let largest = lows.iter().chain(highs).fold(0.0f64, |m, v| m.max(v.abs()));
        crate::prepare::check_magnitude::<T>("feature values", largest)?;
        let weights = largest_weight.map(WeightScale::new);
        let distances = DistanceScale::new(reference::distance(highs, lows), weights.map_or(1.0, |scale| scale.largest));
        Ok(Self { weights, distances })
    }
}

/// The lowest and the highest value of each feature over the centroids.
pub fn centroid_extents<T: Float>(model: &Model<T>) -> Result<[Vec<f64>; 2]> {
    let [mut lows, mut highs] =
        [memory::filled(model.d, f64::INFINITY, EXTENTS)?, memory::filled(model.d, f64::NEG_INFINITY, EXTENTS)?];
    for row in model.centroids.chunks_exact(model.d) {
        for (f, c) in row.iter().enumerate() {
            lows[f] = lows[f].min(c.to_f64());
            highs[f] = highs[f].max(c.to_f64());
        }
    }
    Ok([lows, highs])
}

// ---- on the CPU ------------------------------------------------------------------------------------------------------------

/// Rows, and the model that they are compared with.
#[derive(Clone, Copy)]
struct CpuRows<'p, 'a, T> {
    model: &'p Model<T>,
    features: &'p Features<'a, T>,
    table: &'p CentroidTable<T>,
    set: InstructionSet,
    tile_rows: usize,
}

impl<'p, 'a, T: Float> CpuRows<'p, 'a, T> {
    fn new(rows: Rows<'p, 'a, T>) -> Result<Self> {
        let Rows { model, features, .. } = rows;
        let tile_rows = Assigner::tile_rows::<T>(model.d, features.n_rows());
        Ok(Self { model, features, table: model.host_table()?, set: InstructionSet::detect(), tile_rows })
    }

    /// Fills `out` tile by tile, with `width` entries per row: `visit(assigner, tile, bad, out)`.
    fn fill<R: Send + Clone>(self, width: usize, empty: R, visit: impl Visit<T, R>) -> Result<Vec<R>> {
        let (n, d) = (self.features.n_rows(), self.features.n_features());
        let mut out = reserve(n, width)?;
        out.resize(n * width, empty);
        let part = Part::new(self.features.clone(), None);
        let worker = |_| {
            let places = memory::with_room(self.tile_rows, "a tile of rows")?;
            Ok((Tile::new(d, self.tile_rows)?, Assigner::new::<T>(d, self.table.k, self.tile_rows)?, places))
        };
        let mut workers = memory::try_collected((0..workers_for(0, n / TASK + 1)).map(worker), "the threads' buffers")?;
        let tasks = out.chunks_mut((TASK * width).max(1)).enumerate();
        for_each_task(&mut workers, tasks, |(tile, assigner, places), (index, out)| {
            let start = index * TASK;
            self.set.run(Fill { part: &part, rows: self, width, start, tile, assigner, places, visit: &visit, out });
        });
        Ok(out)
    }

    fn inertia(self, weights: Option<&Column<'_, f64>>) -> Result<f64> {
        let part = Part::new(self.features.clone(), weights.cloned());
        let mut tile = Tile::new(self.features.n_features(), self.tile_rows)?;
        let facts = self.score_facts(&part, &mut tile)?;
        let largest_weight = weights.map(|_| facts.weights[1]);
        let scales = ScoreScales::new::<T>(&facts.lows, &facts.highs, largest_weight)?;
        if weights.is_some() {
            check_weight_range(facts.weights, facts.positive, |bound| Ok(self.count_below(&part, &mut tile, bound)))?;
        }
        let mut assigner = Assigner::new::<T>(self.model.d, self.table.k, self.tile_rows)?;
        let mut x = memory::zeroed(self.model.d, "a row")?;
        let mut total = |scale: DistanceScale| {
            let mut total = 0u128;
            for range in self.ranges() {
                tile.load_checked(&part, range);
                let labels = self.set.run(AssignTile { assigner: &mut assigner, tile: &tile, table: self.table });
                for (r, &label) in labels.iter().enumerate() {
                    tile.row(r, &mut x);
                    let weight = scales.weights.map_or(1.0, |scale| scale.round(tile.weights[r]));
                    total += scale.quantise(weight, reference::distance(&x, self.table.row(label as usize)));
                }
            }
            total
        };
        let first = DistanceSum { total: total(scales.distances), scale: scales.distances };
        Ok(first.precise(facts.positive, |finer| Ok(total(finer)))?.to_f64())
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        let (n, rows) = (self.features.n_rows(), self.tile_rows);
        (0..n).step_by(rows).map(move |start| start..(start + rows).min(n))
    }

    fn score_facts(&self, part: &Part<'_, T>, tile: &mut Tile<T>) -> Result<ScoreFacts> {
        let [lows, highs] = centroid_extents(self.model)?;
        let mut facts = ScoreFacts { lows, highs, weights: [f64::INFINITY, 0.0], positive: 0 };
        for range in self.ranges() {
            tile.load_checked(part, range.clone());
            if let Some((row, got)) = tile.first_negative_weight() {
                return Err(KMeansError::NegativeWeight { row: (range.start + row) as u64, got });
            }
            tile.drop_weightless();
            facts.positive += tile.rows as u64;
            let weights = tile.weights[..tile.rows].iter();
            facts.weights = weights.fold(facts.weights, |[least, most], w| [least.min(*w), most.max(*w)]);
            for f in 0..self.model.d {
                for x in tile.column(f) {
                    facts.lows[f] = facts.lows[f].min(x.to_f64());
                    facts.highs[f] = facts.highs[f].max(x.to_f64());
                }
            }
        }
        Ok(facts)
    }

    /// Counts the positive weights of finite rows that are below a bound.
    fn count_below(&self, part: &Part<'_, T>, tile: &mut Tile<T>, bound: f64) -> u64 {
        let mut count = 0;
        for range in self.ranges() {
            tile.load_checked(part, range);
            count += tile.weights[..tile.rows].iter().filter(|w| **w > 0.0 && **w < bound).count() as u64;
        }
        count
    }
}

/// What a score needs to know about the finite rows of positive weight.
struct ScoreFacts {
    /// Lowest values over these rows and the centroids.
    lows: Vec<f64>,
    highs: Vec<f64>,
    /// The smallest and the largest weight.
    weights: [f64; 2],
    positive: u64,
}

/// What is written for one tile: one entry (or `width` entries) of `out` per row. Entries of bad rows do not change.
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
    rows: CpuRows<'p, 'a, T>,
    width: usize,
    start: usize,
    tile: &'p mut Tile<T>,
    assigner: &'p mut Assigner,
    places: &'p mut Vec<usize>,
    visit: &'p F,
    out: &'p mut [R],
}

impl<T: Float, R, F: Visit<T, R>> Task for Fill<'_, '_, T, R, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (index, out) in self.out.chunks_mut(self.tile.stride * self.width).enumerate() {
            let (start, len) = (self.start + index * self.tile.stride, out.len() / self.width);
            self.tile.load_checked(self.part, start..start + len);
            // There is room for all rows of a tile.
            self.places.clear();
            self.places.extend((0..len).filter(|&i| !self.tile.bad[i]));
            self.visit.tile::<V>(self.rows.table, self.assigner, self.tile, self.places, out);
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
        assigner: &mut Assigner,
        tile: &Tile<T>,
        places: &[usize],
        out: &mut [Option<Prediction>],
    ) {
        for_each_row(tile, &mut assigner.row, places, |place, x| {
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
    fn tile<V: Vector>(
        &self,
        table: &CentroidTable<T>,
        assigner: &mut Assigner,
        tile: &Tile<T>,
        places: &[usize],
        out: &mut [f64],
    ) {
        for_each_row(tile, &mut assigner.row, places, |place, x| {
            let out = &mut out[place * table.k..][..table.k];
            table.distances(x, out);
            out.iter_mut().for_each(|s| *s = s.sqrt());
        });
    }
}

/// Gathers each row of a tile in `x` and calls `visit(its place in the output, its values)`.
#[inline(always)]
fn for_each_row<T: Float>(tile: &Tile<T>, x: &mut [f64], places: &[usize], mut visit: impl FnMut(usize, &[f64])) {
    for (r, &place) in places.iter().enumerate() {
        tile.row(r, x);
        visit(place, x);
    }
}

struct AssignTile<'p, T> {
    assigner: &'p mut Assigner,
    tile: &'p Tile<T>,
    table: &'p CentroidTable<T>,
}

impl<'p, T: Float> Task for AssignTile<'p, T> {
    type Output = &'p [u32];

    #[inline(always)]
    fn run<V: Vector>(self) -> &'p [u32] {
        self.assigner.assign::<V, T>(self.tile, self.table)
    }
}
