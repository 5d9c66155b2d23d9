//! A system of the papers as a step: its kernels, and its tables in device memory.
//!
//! ```text
//! clear_sums   if the system adds up all rows again           kernels/papers/mass.cu
//! labels       certain ones; with sums in a single pass       kernels/papers/assign_*.cu, or step/tiled.rs
//! settle       the rows in doubt                              kernels/step/settle.cu
//! passes       sums, counts                                   kernels/papers/sum_*.cu, kernels/papers/mass.cu
//! ```

use super::passes::{PLAIN, SumPass, passes, scratch_values};
use super::systems::{LabelMethod, RowKernel, System};
use crate::backend::cuda::arguments::{self, AssignArgument, SystemAssignArgument, SystemSumsArgument};
use crate::backend::cuda::device::{At, Block, Buffer, Launch, Plain, Queue, bytes_of, sum};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::backend::cuda::state::DeviceState;
use crate::backend::cuda::step::choice::tiled_for;
use crate::backend::cuda::step::shares::Shares;
use crate::backend::cuda::step::tiled::{Doubt, SettleLaunches, TiledLabels};
use crate::backend::cuda::step::{Candidate, LabelArrays, Needs, Step, Supported};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;

impl<T: Float + Plain> Candidate<T> for System {
    fn strategy(&self) -> Strategy {
        self.strategy
    }

    fn supports(&self, shape: &FitShape, gpu: GpuSize) -> Supported {
        self.check(shape, gpu)
    }

    fn streams(&self) -> bool {
        false
    }

    fn needs(&self, shape: &FitShape, gpu: GpuSize) -> Needs {
        let (filter, shares) = if self.tiled(shape.d) {
            let (variant, FitShape { chunk, d, k, .. }) = (tiled_for::<T>(shape, gpu), *shape);
            (variant.filter(d, k, gpu), Shares::bytes(variant.tiles([chunk, d, k], gpu)))
        } else {
            (self.row_kernel(shape).filter(), 0)
        };
        let scratch = bytes_of::<i64>(scratch_values::<T>(*self, shape, gpu));
        let bytes = sum([Doubt::bytes(shape.chunk), scratch, shares]);
        Needs { filter, label_arrays: LabelArrays::BeforeAndAfter, bytes }
    }

    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>> {
        Ok(Box::new(SystemStep::new(*self, shape, queue)?))
    }
}

/// How the labels are found.
enum Labelling<T> {
    Tiled(TiledLabels<T>),
    /// A kernel that goes through the centroids one by one. `settle`: for the rows in doubt, unless the kernel settles them.
    Rows {
        kernel: RowKernel,
        launch: Launch<SystemAssignArgument<T>>,
        settle: Option<SettleLaunches<T>>,
    },
}

impl<T: Float + Plain> Labelling<T> {
    fn new(system: System, shape: &FitShape, queue: &Queue) -> Result<Self> {
        let FitShape { chunk, d, k, .. } = *shape;
        let (gpu, size) = (&queue.gpu, queue.gpu.size());
        if system.tiled(d) {
            return Ok(Self::Tiled(TiledLabels::new(tiled_for::<T>(shape, size), [chunk, d, k], false, queue)?));
        }
        let kernel = system.row_kernel(shape);
        let entry = match system.labels {
            LabelMethod::PortionsOfOne | LabelMethod::Portions => arguments::assign_portions::<T>(),
            LabelMethod::Rows { .. } | LabelMethod::RowsOrTiles => arguments::assign_table::<T>(),
            LabelMethod::Fused => arguments::assign_fused::<T>(),
        };
        let entry = entry.with_block(Block { threads: kernel.threads, shared: kernel.shared });
        let launch = entry.resident(gpu, &kernel.variant, entry.blocks_of(chunk))?;
        let in_pass = matches!(system.labels, LabelMethod::Fused | LabelMethod::Rows { sums: true, .. });
        let settle = if in_pass { None } else { Some(SettleLaunches::new([chunk, d, k], false, false, queue)?) };
        Ok(Self::Rows { kernel, launch, settle })
    }

    fn launch(&self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>, assign: &AssignArgument<T>) -> Result<()> {
        let (queue, centroids) = (&state.queue, state.centroids.now.at());
        match self {
            // SAFETY: the addresses are those of the state's buffers and of the list, which has a place for each row of a chunk.
            Self::Tiled(labels) => unsafe { labels.launch(queue, chunk.after_kernel, assign, centroids) },
            Self::Rows { kernel, launch, settle } => {
                let argument = SystemAssignArgument {
                    assign: *assign,
                    width: kernel.width as i32,
                    features: kernel.features as i32,
                    across: kernel.across as i32,
                    points: kernel.points as i32,
                    slots: kernel.slots as i32,
                    unused: 0,
                };
                // SAFETY: as above. The tables in shared memory have the sizes of `RowKernel`.
                unsafe {
                    queue.run(launch, &argument)?;
                    settle.as_ref().map_or(Ok(()), |settle| settle.launch(queue, assign, centroids, 1))
                }
            }
        }
    }
}

/// A system that was set up for one fit.
struct SystemStep<T> {
    labels: Labelling<T>,
    doubt: Doubt,
    clear: Option<Launch<SystemSumsArgument>>,
    passes: Vec<SumPass>,
    /// The tables in device memory, as integers of 8 bytes.
    scratch: Buffer<i64>,
}

impl<T: Float + Plain> SystemStep<T> {
    fn new(system: System, shape: &FitShape, queue: &Queue) -> Result<Self> {
        let gpu = &*queue.gpu;
        let clear = if system.adds_all() {
            let entry = arguments::clear_sums::<T>();
            Some(entry.resident(gpu, "", entry.blocks_of(shape.k * shape.columns()))?)
        } else {
            None
        };
        Ok(Self {
            labels: Labelling::new(system, shape, queue)?,
            doubt: Doubt::allocate(queue, shape.chunk)?,
            clear,
            passes: passes::<T>(system, shape, gpu)?,
            scratch: queue.alloc(scratch_values::<T>(system, shape, gpu.size()), "the tables of sums")?,
        })
    }

    fn sums_argument(&self, assign: &AssignArgument<T>, pass: Option<&SumPass>) -> SystemSumsArgument {
        let settings = pass.map_or(PLAIN, |pass| pass.settings);
        SystemSumsArgument {
            rows: assign.rows,
            labels: assign.labels,
            next: assign.next,
            sums: assign.sums,
            factors: assign.factors,
            mass_to_integer: assign.mass_to_integer,
            control: assign.control,
            scratch: settings.scratch.map_or(At::NULL, |at| self.scratch.at_index(at)),
            scratch_next: self.scratch.at_index(settings.scratch_next),
            tables: settings.tables,
            tables_next: settings.tables_next,
            chunk: settings.chunk,
            points: settings.points,
            from_pairs: u32::from(settings.from_pairs),
            unused: 0,
        }
    }
}

impl<T: Float + Plain> Step<T> for SystemStep<T> {
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        let assign = state.assign_argument(chunk, self.doubt.in_doubt.at());
        if let Some(clear) = &self.clear {
            // SAFETY: the addresses are those of the state's buffers.
            unsafe { state.queue.run(clear, &self.sums_argument(&assign, None))? };
        }
        self.labels.launch(chunk, state, &assign)?;
        for pass in &self.passes {
            // SAFETY: as above. The tables have the sizes of `Settings`, within the scratch memory.
            unsafe { state.queue.run(&pass.launch, &self.sums_argument(&assign, Some(pass)))? };
        }
        Ok(())
    }
}
