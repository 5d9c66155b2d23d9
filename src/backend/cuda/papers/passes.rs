//! The passes with which a system adds up features and counts rows, and their tables in device memory.

use super::sizes::{self, MOST_SCRATCH, SumFeatures, SumTables};
use super::systems::{FeatureSums, Mass, System};
use crate::backend::cuda::arguments::{self, SystemSumsArgument};
use crate::backend::cuda::device::{Block, Entry, Gpu, Launch};
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::base::error::Result;
use crate::base::float::Float;

/// In each round, this number times the number of SMs divides the number of groups (Li et al. 2010, algorithm 6: M).
const GROUPS_A_PROCESSOR: usize = 8;
/// Rows and clusters of a block of `sum_adjust` (`kernels/papers/sum_atomics.cu`).
const ADJUST_ROWS: usize = 1_024;
const ADJUST_CLUSTERS: usize = 256;
/// The most threads that one SM runs at once.
const THREADS_A_PROCESSOR: usize = 2_048;

/// A pass before its kernel is loaded.
#[derive(Clone, Copy)]
struct Spec {
    entry: Entry<SystemSumsArgument>,
    /// The end of the kernel's name.
    variant: &'static str,
    /// At most this many blocks, in multiples of `unit`.
    most: usize,
    unit: usize,
    settings: SumSettings,
}

/// The other parameters of a pass.
#[derive(Clone, Copy)]
pub struct SumSettings {
    /// The place of its tables in the scratch memory. None if it has no tables in device memory.
    pub scratch: Option<usize>,
    pub scratch_next: usize,
    pub tables: u32,
    pub tables_next: u32,
    pub chunk: u32,
    pub points: u32,
    pub from_pairs: bool,
}

/// Those of a pass without tables in device memory.
pub const PLAIN: SumSettings =
    SumSettings { scratch: None, scratch_next: 0, tables: 0, tables_next: 0, chunk: 1, points: 1, from_pairs: false };

/// A launch of a kernel that adds up, and its other parameters.
pub struct SumPass {
    pub launch: Launch<SystemSumsArgument>,
    pub settings: SumSettings,
}

/// All passes of a system, and the number of 8-byte values that they need in device memory. Both depend only on the shape and on
/// the size of the GPU.
struct SumPlan {
    specs: Vec<Spec>,
    values: usize,
    gpu: GpuSize,
}

/// The number of 8-byte values that the passes of a system need in device memory.
pub fn scratch_values<T: Float>(system: System, shape: &FitShape, gpu: GpuSize) -> usize {
    SumPlan::new::<T>(system, shape, gpu).values
}

/// The passes of a system.
pub fn passes<T: Float>(system: System, shape: &FitShape, gpu: &Gpu) -> Result<Vec<SumPass>> {
    let plan = SumPlan::new::<T>(system, shape, gpu.size());
    let pass = |spec: Spec| {
        let launch = spec.entry.resident(gpu, spec.variant, spec.most)?;
        let blocks = (launch.blocks as usize / spec.unit * spec.unit).max(spec.unit);
        Ok(SumPass { launch: launch.with_blocks(blocks), settings: spec.settings })
    };
    plan.specs.into_iter().map(pass).collect()
}

impl SumPlan {
    fn new<T: Float>(system: System, shape: &FitShape, gpu: GpuSize) -> Self {
        let mut plan = Self { specs: Vec::new(), values: 0, gpu };
        plan.sum_features::<T>(system.sums, shape);
        plan.count_rows::<T>(system.mass, shape);
        plan
    }

    /// Adds a pass without tables in device memory.
    fn add(&mut self, entry: Entry<SystemSumsArgument>, most: usize) {
        self.specs.push(Spec { entry, variant: "", most, unit: 1, settings: PLAIN });
    }

    /// Adds a pass. Its tables are in shared memory if they fit. Otherwise each block has a table in device memory. These tables
    /// stay within `MOST_SCRATCH`, but there is always room for `unit` of them.
    fn add_tabled(
        &mut self,
        entry: Entry<SystemSumsArgument>,
        tables: SumTables,
        most: usize,
        unit: usize,
        settings: SumSettings,
    ) {
        let SumTables { threads, shared, bytes } = tables;
        if tables.fits(self.gpu) {
            let entry = entry.with_block(Block { threads, shared });
            self.specs.push(Spec { entry, variant: "", most, unit, settings });
            return;
        }
        let room = MOST_SCRATCH / bytes.max(1) / unit * unit;
        let at_once = self.gpu.processors * (THREADS_A_PROCESSOR / threads as usize);
        let most = most.min(room).min(at_once).max(unit);
        self.values = self.values.max(most * bytes / 8);
        let settings = SumSettings { scratch: Some(0), ..settings };
        let entry = entry.with_block(Block { threads, shared: 0 });
        self.specs.push(Spec { entry, variant: "_device", most, unit, settings });
    }

    fn sum_features<T: Float>(&mut self, sums: FeatureSums, shape: &FitShape) {
        let n = shape.chunk;
        match sums {
            FeatureSums::InPass | FeatureSums::Host => {}
            FeatureSums::Merge => {
                let tables = sizes::merge(shape);
                self.add_tabled(arguments::sum_merge::<T>(), tables, n.div_ceil(tables.threads as usize), 1, PLAIN);
            }
            FeatureSums::Features => {
                let SumFeatures { tables, points, chunk } = sizes::features(shape, self.gpu);
                let chunks = shape.columns().div_ceil(chunk);
                let settings = SumSettings { points, chunk: chunk as u32, ..PLAIN };
                self.add_tabled(arguments::sum_features::<T>(), tables, n.div_ceil(512) * chunks, chunks, settings);
            }
            FeatureSums::Groups => self.sum_groups::<T>(shape),
            FeatureSums::Atomics => {
                let entry = arguments::sum_shared::<T>().with_shared(sizes::block_sums(shape));
                self.add(entry, entry.blocks_of(n));
            }
            FeatureSums::Adjust => {
                let across = shape.k.div_ceil(ADJUST_CLUSTERS);
                let most = n.div_ceil(ADJUST_ROWS) * across;
                let entry = arguments::sum_adjust::<T>();
                self.specs.push(Spec { entry, variant: "", most, unit: across, settings: PLAIN });
            }
        }
    }

    /// Sums of groups, reduced round by round.
    fn sum_groups<T: Float>(&mut self, shape: &FitShape) {
        let (unit, entries) = (self.gpu.processors * GROUPS_A_PROCESSOR, sizes::entries(shape));
        let spec = |entry, most, settings| Spec { entry, variant: "", most, unit: 1, settings };
        let mut tables = shape.chunk.div_ceil(unit).clamp(1, (MOST_SCRATCH / 8 / entries).max(1));
        let first = SumSettings { scratch: Some(0), tables: tables as u32, ..PLAIN };
        self.specs.push(spec(arguments::sum_groups_first::<T>(), tables.div_ceil(256) * (shape.columns() + 1), first));
        // The rounds alternate between two places.
        let other = entries * tables;
        self.values = self.values.max(other);
        let (mut from, mut from_pairs) = (0, false);
        while tables > unit {
            let next = tables.div_ceil(unit);
            let settings = SumSettings {
                scratch: Some(from),
                scratch_next: other - from,
                tables: tables as u32,
                tables_next: next as u32,
                from_pairs,
                ..PLAIN
            };
            self.specs.push(spec(arguments::sum_groups_next::<T>(), (entries * next).div_ceil(256), settings));
            self.values = self.values.max(other + entries * next * 2);
            (from, tables, from_pairs) = (other - from, next, true);
        }
        let settings = SumSettings { scratch: Some(from), tables: tables as u32, from_pairs, ..PLAIN };
        self.specs.push(spec(arguments::sum_groups_last::<T>(), entries.div_ceil(8), settings));
    }

    fn count_rows<T: Float>(&mut self, mass: Mass, shape: &FitShape) {
        let rows = shape.chunk.div_ceil(256);
        match mass {
            Mass::WithFeatures => {}
            Mass::Atomic => self.add(arguments::mass_atomic::<T>(), rows),
            Mass::Global => {
                let room = MOST_SCRATCH / (shape.k * 4);
                let most = rows.min(room).min(self.gpu.processors * (THREADS_A_PROCESSOR / 256)).max(1);
                self.values = self.values.max((most * shape.k).div_ceil(2));
                let (entry, settings) = (arguments::mass_global::<T>(), SumSettings { scratch: Some(0), ..PLAIN });
                self.specs.push(Spec { entry, variant: "", most, unit: 1, settings });
            }
            Mass::Local => self.add(arguments::mass_local::<T>().with_shared(shape.k * 4), rows),
            Mass::Private => {
                let SumTables { threads, shared, .. } = sizes::private(shape);
                let entry = arguments::mass_private::<T>().with_block(Block { threads, shared });
                self.add(entry, entry.blocks_of(shape.chunk));
            }
        }
    }
}
