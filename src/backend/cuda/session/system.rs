//! One of the systems from the papers on one GPU: its kernels, its tables in device memory, and the work of the CPU.
//!
//! ```text
//! per iteration:
//!   clear_sums   if the system adds up all rows again           kernels/mass.cu
//!   labels       certain ones; with sums in a single pass       kernels/assign_{portions,table,fused,tiled}.cu
//!   settle       the others                                     kernels/settle.cu
//!   passes       sums, counts                                   kernels/sum_*.cu, kernels/mass.cu
//!   update, or fold and the update on the CPU (`host_means`)
//! ```

use super::host::{HostRows, Stages};
use super::*;
use crate::backend::chunking::LABELS_IN_PLACE;
use crate::backend::cuda::arguments::{SystemAssign, SystemSums};
use crate::backend::cuda::chooser;
use crate::backend::cuda::device::Gpu;
use crate::backend::cuda::plan::THREADS;
use crate::backend::cuda::systems::{self, FeatureSums, Labels, MOST_SCRATCH, Mass, RowKernel, Shape, System, Tables};
use crate::error::KMeansError;
use crate::params::Params;
use crate::strategy::Strategy as Named;
use crate::tile::Part;

/// In each round, this number times the number of SMs divides the number of groups (Li et al. 2010, algorithm 6: M).
const GROUPS_A_PROCESSOR: usize = 8;
/// Rows and clusters of a block of `sum_adjust` (`kernels/sum_atomics.cu`).
const ADJUST_ROWS: usize = 1_024;
const ADJUST_CLUSTERS: usize = 256;

/// A launch of a kernel that adds up, and its other parameters.
struct Pass {
    launch: Launch,
    /// The place of its tables in `scratch`. None if it has no tables in device memory.
    scratch: Option<usize>,
    scratch_next: usize,
    tables: u32,
    tables_next: u32,
    chunk: u32,
    points: u32,
    from_pairs: bool,
}

impl From<Launch> for Pass {
    fn from(launch: Launch) -> Self {
        Self { launch, scratch: None, scratch_next: 0, tables: 0, tables_next: 0, chunk: 1, points: 1, from_pairs: false }
    }
}

/// A system that was set up for one fit.
pub struct Running<'a, T> {
    system: System,
    /// The kernel that finds labels. None: the system uses the kernel of the plan.
    rows: Option<RowKernel>,
    settle: Option<Launch>,
    clear: Option<Launch>,
    passes: Vec<Pass>,
    /// The tables in device memory, as integers of 8 bytes.
    scratch: Buffer<i64>,
    host: Option<HostRows<'a, T>>,
    /// Whether the host's copy of the labels of the iteration before is out of date.
    stale: bool,
}

/// The strategy for the plan, chosen from the strategy in the parameters, and the system that goes with it.
pub(super) fn set_up<'a, T: Float + Plain>(
    rows: &Chunks<'_, T>,
    params: &Params,
    k: usize,
    columns: usize,
    limbs: usize,
) -> Result<(Strategy, Option<Running<'a, T>>)> {
    let (queue, n, d) = (rows.queue(), rows.longest(), rows.d());
    let (shared, processors, float64) = (queue.gpu.shared_per_block as usize, queue.gpu.processors as usize, !T::IS_F32);
    let narrowed = |strategy| chooser::choose(strategy, &chooser::Shape { n, d, k, float64, shared, processors });
    let chosen = match (params.execution.strategy, rows) {
        // The memory that was planned for a streamed fit has no room for a second array of labels.
        (Named::Default, Chunks::Streamed(_)) if d <= LABELS_IN_PLACE => narrowed(Named::Registers),
        (strategy, _) => narrowed(strategy),
    };
    let Some(system) = System::of(chosen) else { return Ok((Strategy::of(chosen, d, k, shared)?, None)) };
    let shape = Shape { d, k, columns, limbs, value: size_of::<T>(), shared };
    system.check(&shape)?;
    let running = Running::new(queue, system, n, &shape)?;
    let strategy = match &running.rows {
        Some(rows) => Strategy::Rows(*rows),
        None => Strategy::of(narrowed(Named::Tiled), d, k, shared)?,
    };
    Ok((strategy, Some(running)))
}

/// A launch with as many blocks as run at once, but at most `most`.
fn launch<T: Float>(gpu: &Gpu, module: &'static str, name: &str, tables: Tables, most: usize) -> Result<Launch> {
    let kernel = gpu.kernel(module, &name.replace('*', if T::IS_F32 { "f32" } else { "f64" }))?;
    if tables.shared > 0 {
        gpu.prefer_shared_memory(kernel)?;
    }
    let blocks = gpu.resident_blocks(kernel, tables.threads, tables.shared as u32)?;
    let blocks = blocks.min(u32::try_from(most.max(1)).unwrap_or(u32::MAX));
    Ok(Launch { kernel, blocks, threads: tables.threads, shared: tables.shared as u32 })
}

/// A block with this many threads and bytes of shared memory.
fn block(threads: u32, shared: usize) -> Tables {
    Tables { threads, shared, bytes: 0 }
}

/// The launch of a kernel that finds labels, with one row for each thread.
pub fn launch_rows<T: Float>(gpu: &Gpu, rows: &RowKernel, n: usize) -> Result<Launch> {
    launch::<T>(gpu, rows.module, &rows.name(), block(rows.threads, rows.shared), n.div_ceil(rows.threads as usize))
}

/// The passes that add up, and the number of 8-byte values that they need in device memory.
fn passes<T: Float>(gpu: &Gpu, system: System, n: usize, shape: &Shape) -> Result<(Vec<Pass>, usize)> {
    let mut passes: Vec<Pass> = Vec::new();
    let mut values = 0;
    // One pass. Its tables are in shared memory if they fit. Otherwise each block has a table in device memory. These tables
    // stay within `MOST_SCRATCH`, but there is always room for `unit` of them.
    let mut tabled = |name: &'static str, tables: Tables, blocks: usize, unit: usize| -> Result<Pass> {
        if tables.fits(shape) {
            return Ok(launch::<T>(gpu, name, &format!("{name}_*"), tables, blocks)?.into());
        }
        let room = MOST_SCRATCH / tables.bytes.max(1) / unit * unit;
        let mut pass: Pass =
            launch::<T>(gpu, name, &format!("{name}_*_device"), block(tables.threads, 0), blocks.min(room.max(unit)))?.into();
        values = values.max(pass.launch.blocks.max(unit as u32) as usize * tables.bytes / 8);
        pass.scratch = Some(0);
        Ok(pass)
    };
    match system.sums {
        FeatureSums::InPass | FeatureSums::Host => {}
        FeatureSums::Merge => {
            let tables = systems::merge(shape);
            passes.push(tabled("sum_merge", tables, n.div_ceil(tables.threads as usize), 1)?);
        }
        FeatureSums::Features => {
            let systems::Features { tables, points, chunk } = systems::features(shape);
            let chunks = shape.columns.div_ceil(chunk);
            let mut pass = tabled("sum_features", tables, n.div_ceil(512) * chunks, chunks)?;
            let blocks = pass.launch.blocks as usize;
            pass.launch.blocks = (blocks / chunks * chunks).max(chunks) as u32;
            passes.push(Pass { points, chunk: chunk as u32, ..pass });
        }
        FeatureSums::Groups => {
            let all = block(256, 0);
            let (unit, entries) = (gpu.processors as usize * GROUPS_A_PROCESSOR, systems::entries(shape));
            let mut tables = n.div_ceil(unit).clamp(1, (MOST_SCRATCH / 8 / entries).max(1));
            let first = tables.div_ceil(256) * (shape.columns + 1);
            let name = |round| format!("sum_groups_{round}_*");
            let pass: Pass = launch::<T>(gpu, "sum_groups", &name("first"), all, first)?.into();
            passes.push(Pass { scratch: Some(0), tables: tables as u32, ..pass });
            // The rounds alternate between two places.
            let other = entries * tables;
            values = other;
            let mut from = 0;
            while tables > unit {
                let next = tables.div_ceil(unit);
                let pass: Pass = launch::<T>(gpu, "sum_groups", &name("next"), all, (entries * next).div_ceil(256))?.into();
                let from_pairs = passes.len() > 1;
                let (tables_now, tables_next) = (tables as u32, next as u32);
                passes.push(Pass {
                    scratch: Some(from),
                    scratch_next: other - from,
                    tables: tables_now,
                    tables_next,
                    from_pairs,
                    ..pass
                });
                values = values.max(other + entries * next * 2);
                (from, tables) = (other - from, next);
            }
            let pass: Pass = launch::<T>(gpu, "sum_groups", &name("last"), all, entries.div_ceil(8))?.into();
            passes.push(Pass { scratch: Some(from), tables: tables as u32, from_pairs: passes.len() > 1, ..pass });
        }
        FeatureSums::Atomics => {
            let tables = block(256, systems::block_sums(shape));
            passes.push(launch::<T>(gpu, "sum_atomics", "sum_shared_*", tables, n.div_ceil(256))?.into());
        }
        FeatureSums::Adjust => {
            let across = shape.k.div_ceil(ADJUST_CLUSTERS);
            let mut adjust = launch::<T>(gpu, "sum_atomics", "sum_adjust_*", block(256, 0), n.div_ceil(ADJUST_ROWS) * across)?;
            adjust.blocks = (adjust.blocks as usize / across * across).max(across) as u32;
            passes.push(adjust.into());
        }
    }
    let rows = n.div_ceil(256);
    match system.mass {
        Mass::WithFeatures => {}
        Mass::Atomic => passes.push(launch::<T>(gpu, "mass", "mass_atomic_*", block(256, 0), rows)?.into()),
        Mass::Global => {
            let room = MOST_SCRATCH / (shape.k * 4);
            let pass: Pass = launch::<T>(gpu, "mass", "mass_global_*", block(256, 0), rows.min(room))?.into();
            values = values.max((pass.launch.blocks as usize * shape.k).div_ceil(2));
            passes.push(Pass { scratch: Some(0), ..pass });
        }
        Mass::Local => passes.push(launch::<T>(gpu, "mass", "mass_local_*", block(256, shape.k * 4), rows)?.into()),
        Mass::Private => {
            let tables = systems::private(shape);
            passes.push(launch::<T>(gpu, "mass", "mass_private_*", tables, n.div_ceil(tables.threads as usize))?.into());
        }
    }
    Ok((passes, values))
}

impl<'a, T: Float + Plain> Running<'a, T> {
    /// Sets up a system for `n` rows.
    pub fn new(queue: &Queue, system: System, n: usize, shape: &Shape) -> Result<Self> {
        let gpu = &*queue.gpu;
        let (passes, values) = passes::<T>(gpu, system, n, shape)?;
        let in_pass = matches!(system.labels, Labels::Fused | Labels::Rows { sums: true, .. });
        let cells = (shape.k * shape.columns).div_ceil(256);
        let settle = block(THREADS, 8 * settle_values(shape.d, shape.k));
        Ok(Self {
            system,
            rows: (!system.tiled(shape.d)).then(|| system.row_kernel(shape)),
            settle: if in_pass { None } else { Some(launch::<T>(gpu, "settle", "settle_*", settle, n)?) },
            clear: if system.adds_all() { Some(launch::<T>(gpu, "mass", "clear_sums_*", block(256, 0), cells)?) } else { None },
            passes,
            scratch: queue.alloc(values, "the tables of sums")?,
            host: None,
            stale: true,
        })
    }

    /// Whether the CPU adds up the rows.
    pub fn adds_on_host(&self) -> bool {
        self.host.is_some()
    }

    /// Whether the CPU computes the means.
    pub fn host_means(&self) -> bool {
        self.system.host_means
    }
}

impl<'a, T: Float + Plain> CudaSession<'a, T> {
    /// If the CPU computes the sums of this strategy, lends it the rows in host memory.
    pub fn with_host_rows(mut self, parts: &'a [Part<'a, T>]) -> Result<Self> {
        if let Some(running) = self.running.as_mut().filter(|running| running.system.sums == FeatureSums::Host) {
            running.host = Some(HostRows::new(parts)?);
        }
        Ok(self)
    }

    /// Launches the kernels of the running system for labels and sums. Sums of the GPU stay pending.
    pub(super) fn launch_system(&self, running: &Running<'a, T>, assign: Assign<T>) -> Result<()> {
        let (rows, sums, labels, next) = (assign.rows, assign.sums, assign.labels, assign.next);
        let argument = |pass: Option<&Pass>| SystemSums {
            rows,
            labels,
            next,
            sums,
            factors: assign.factors,
            mass_to_integer: assign.mass_to_integer,
            control: assign.control,
            scratch: pass.and_then(|pass| pass.scratch).map_or(0, |at| running.scratch.at_index(at)),
            scratch_next: pass.map_or(0, |pass| running.scratch.at_index(pass.scratch_next)),
            tables: pass.map_or(0, |pass| pass.tables),
            tables_next: pass.map_or(0, |pass| pass.tables_next),
            chunk: pass.map_or(1, |pass| pass.chunk),
            points: pass.map_or(1, |pass| pass.points),
            from_pairs: pass.map_or(0, |pass| u32::from(pass.from_pairs)),
            unused: 0,
        };
        if let Some(clear) = running.clear {
            self.run(clear, &argument(None))?;
        }
        match &running.rows {
            None => self.run(self.plan.assign, &assign)?,
            Some(kernel) => {
                let arguments = SystemAssign {
                    assign,
                    width: kernel.width as i32,
                    features: kernel.features as i32,
                    across: kernel.across as i32,
                    points: kernel.points as i32,
                    slots: kernel.slots as i32,
                    unused: 0,
                };
                self.run(self.plan.assign, &arguments)?;
            }
        }
        if let Some(settle) = running.settle {
            let values = settle_values(self.d, self.k) as i32;
            let arguments = Settle {
                rows,
                next,
                columns: assign.columns,
                centroids: self.centroids.at(),
                contested: assign.contested,
                control: assign.control,
                k: self.k as i32,
                values,
            };
            self.run_behind(settle, &arguments)?;
            if let Some(pairs) = self.plan.pairs {
                self.run_behind(pairs, &arguments)?;
            }
        }
        for pass in &running.passes {
            self.run(pass.launch, &argument(Some(pass)))?;
        }
        Ok(())
    }

    /// Adds the pending sums to the canonical sums, or lets the CPU add up all rows. Returns how many labels changed.
    pub(super) fn gather(&mut self) -> Result<u64> {
        let host = self.running.as_mut().and_then(|running| running.host.take().map(|host| (host, running.stale)));
        let Some((mut host, stale)) = host else {
            self.fold()?;
            return Ok(self.control()?.changed);
        };
        if stale {
            host.remember(self.labels_of(1 - self.current)?);
        }
        let mut stages = Stages::begin();
        self.queue.wait()?;
        stages.end(0);
        let labels = self.labels_of(self.current)?;
        stages.end(1);
        let (partial, changed) = host.add(labels, self.k, self.prepared)?;
        stages.end(2);
        let mut sums = memory::with_room(self.k * self.columns, "the sums of the clusters")?;
        for j in 0..self.k {
            sums.extend_from_slice(partial.sums_of(j));
            sums.extend((self.columns > self.d).then_some(partial.mass[j]));
        }
        self.sums.write(0, &sums)?;
        self.cluster_rows.write(0, &partial.rows)?;
        self.partial = Some(partial);
        if let Some(running) = &mut self.running {
            running.host = Some(host);
            running.stale = false;
        }
        Ok(changed)
    }

    /// Marks the host's copies of the sums and labels as out of date.
    pub(super) fn forget_host(&mut self) {
        self.partial = None;
        if let Some(running) = &mut self.running {
            running.stale = true;
        }
    }
}

/// Checks, before anything is uploaded, whether a strategy can do a shape at all. Limits that depend on the data are checked
/// with the plan.
///
/// # Errors
/// [`KMeansError::InvalidOption`](crate::KMeansError::InvalidOption) with the limit.
pub fn check<T: Float>(params: &Params, gpu: &Gpu, d: usize, weighted: bool, streams: bool) -> Result<()> {
    // Tiles need two arrays of labels, before and after. With few dimensions, no memory was planned for the second one.
    use Named::{Default, Registers, RegistersGroups8, RegistersGroups16, RegistersSingle};
    let in_place =
        matches!(params.execution.strategy, Default | Registers | RegistersSingle | RegistersGroups8 | RegistersGroups16);
    if streams && (System::of(params.execution.strategy).is_some() || d <= LABELS_IN_PLACE && !in_place) {
        return Err(KMeansError::InvalidOption {
            option: "strategy",
            expected: format!("rows that fit on the GPU for \"{}\": \"default\" streams them", params.execution.strategy),
            got: "rows that do not, or a limit that they exceed".into(),
        });
    }
    let limbs = if weighted || !T::IS_F32 { 2 } else { 1 };
    let shared = gpu.shared_per_block as usize;
    let shape = Shape { d, k: params.k, columns: d + usize::from(weighted), limbs, value: size_of::<T>(), shared };
    match (System::of(params.execution.strategy), params.execution.strategy) {
        (Some(system), _) => system.check(&shape),
        (None, Named::Default) => Ok(()),
        (None, ours) => Strategy::of(ours, d, params.k, shared).map(drop),
    }
}
