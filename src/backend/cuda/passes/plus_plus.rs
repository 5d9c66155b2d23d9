//! Steps of k-means++ on the device (`kernels/passes/plus_plus.cu`). The host queues many steps and waits once.
//!
//! ```text
//! per step, without copies:
//!     plus_draw                   draws the candidates by the integers of the potential
//!     seed_gains                  gains, and a list of the rows that come nearer
//!     plus_take                   chooses, and takes by the list
//!     seed_take                   takes by a pass over all rows, if the list was too short
//! per step, with copies of the rows in bytes, after a first plus_draw:
//!     plus_near                   which centres of rows a candidate is near to
//!     plus_filter, plus_settle    gains, and the list
//!     plus_next                   chooses, takes by the list, and draws the next candidates
//! ```
//! The first steps move most rows, so they go without copies. The device stops where a potential is 0, or where one is not
//! precise: then the host does the next step, in a finer scale. If a list of the filter is too short, some steps go without
//! copies again.

use std::time::Instant;

use super::byte_copies::{CopiedRows, FIRST_COPIES};
use super::ranges::RANGES;
use super::seeds::DeviceDraws;
use crate::backend::PlusPlus;
use crate::backend::cuda::arguments::{
    self, ByteCopiesArgument, MOST_TRIALS, Nearer, PlusDrawArgument, PlusFilterArgument, PlusNearArgument, PlusNextArgument,
    PlusSettleArgument, PlusTakeArgument, STOPPED_COARSE, STOPPED_FULL, STOPPED_ZERO, StepArgument, StepControl,
};
use crate::backend::cuda::device::{Argument, At, Launch, Plain, Queue, buffers, field, product};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::rows::download::{PIECE, download};
use crate::backend::trials;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::DistanceSum;

/// `OF_NEXT` of the kernel: the totals of ranges that each of these threads has.
const OF_NEXT: usize = 8;
const _: () = assert!(RANGES <= arguments::plus_next::<f32>().block.threads as usize * OF_NEXT);
/// The most steps that are queued at a time, the first ones, and how long they should take at most: a call can be stopped between
/// them.
const BATCH: usize = 64;
const FIRST_BATCH: usize = 8;
const BATCH_SECONDS: f64 = 0.1;
/// Copies are worth it if at least so many steps are left.
const FEWEST_STEPS: usize = 32;

/// A part of the rows for which the list has room.
fn room(n: usize) -> usize {
    (n / 8).max(1_024)
}

buffers! {
    /// What the steps need.
    pub struct StepBuffers<T> = "the steps of k-means++" (n: usize, d: usize, k: usize) {
        control: StepControl [1],
        /// `(m, d)`.
        candidates: T [product([trials(k) as usize, d])],
        /// `(k, d)`.
        seeds: T [product([k, d])],
        list: Nearer [room(n)],
    }
}

impl<T: Float + Plain> StepBuffers<T> {
    /// The bytes that the steps of a fit take on the device.
    pub fn bytes_of_steps(n: usize, d: usize, k: usize) -> u64 {
        if k < 2 || trials(k) as usize > MOST_TRIALS { 0 } else { Self::bytes(n, d, k) }
    }
}

/// A launch of a step, with its argument.
trait Queued {
    /// Queues the kernel. The GPU may prepare it while the kernel before it runs.
    ///
    /// # Safety
    /// The same as for [`Queue::run_behind`].
    unsafe fn run_behind(&self, queue: &Queue) -> Result<()>;
}

impl<A: Argument> Queued for (Launch<A>, A) {
    unsafe fn run_behind(&self, queue: &Queue) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe { queue.run_behind(&self.0, &self.1) }
    }
}

/// A launch that there may be, and those that follow it.
type Launches = (Option<Box<dyn Queued>>, Vec<Box<dyn Queued>>);

impl<T: Float + Plain> DeviceDraws<T> {
    /// Does steps of k-means++, as many as it can. `positive`: the number of rows of positive weight.
    pub fn plus_plus_steps(
        &mut self,
        rows: &DeviceRows<T>,
        asked: &PlusPlus,
        positive: u64,
        potential: &mut DistanceSum,
        centroids: &mut Vec<T>,
    ) -> Result<()> {
        let (queue, d, m, first) = (&rows.queue, rows.d, asked.trials as usize, centroids.len() / rows.d);
        if m > MOST_TRIALS || potential.total == 0 || first >= asked.k {
            return Ok(());
        }
        let buffers = StepBuffers::allocate(queue, rows.n, d, asked.k)?;
        buffers.seeds.write(0, centroids)?;
        let mut control = StepControl::before(first, potential.total);
        buffers.control.write(0, &[control])?;
        if self.copied.is_none()
            && let Some(scale) = self.copies_scale
            && asked.k.saturating_sub(first.max(FIRST_COPIES)) >= FEWEST_STEPS
            && CopiedRows::are_worth_it(rows, m)?
        {
            self.copied = Some(CopiedRows::new(rows, m, scale)?);
        }
        let mut most = FIRST_BATCH;
        while control.stopped == 0 && (control.step as usize) < asked.k {
            let taken = control.step as usize;
            let mut batch = most.min(asked.k - taken);
            if let Some(copied) = &mut self.copied {
                if copied.are_due(taken, control.total()) && asked.k - taken >= FEWEST_STEPS {
                    copied.copy(queue, &self.nearest, &buffers.seeds, taken, control.total())?;
                }
                // Copies that were due and are not worth it any more never come.
                let left = copied.steps_left(taken);
                batch = if left == 0 { batch } else { batch.min(left) };
            }
            let (start_of_batch, launches) = self.launches(rows, asked, positive, &buffers)?;
            let start = Instant::now();
            let steps = (0..batch).flat_map(|_| &launches);
            for launch in start_of_batch.iter().chain(steps) {
                // SAFETY: the addresses are those of `buffers`, `rows` and `self`, which live until the read below,
                // with room for what the kernels read and write there. Targets are below the total, so the rows that are
                // drawn exist. Lists are written up to their room only. Each of these kernels begins with
                // `wait_for_kernel_before`.
                unsafe { launch.run_behind(queue)? };
            }
            buffers.control.read(0, std::slice::from_mut(&mut control))?;
            let each = start.elapsed().as_secs_f64() / batch as f64;
            most = ((BATCH_SECONDS / each) as usize).clamp(1, (2 * most).min(BATCH));
            if control.stopped == STOPPED_FULL {
                if let Some(copied) = &mut self.copied {
                    copied.rest(control.step as usize);
                }
                control = StepControl::before(control.step as usize, control.total());
                buffers.control.write(0, &[control])?;
            }
        }
        debug_assert!([0, STOPPED_ZERO, STOPPED_COARSE].contains(&control.stopped));
        let len = control.step as usize * d;
        memory::reserve(centroids, len - centroids.len(), "the starting centroids")?;
        centroids.resize(len, T::default());
        let pieces = centroids.chunks_mut(PIECE);
        download(&buffers.seeds, len, PIECE, pieces, |values, out| out.copy_from_slice(values))?;
        potential.total = control.total();
        self.total = potential.total;
        Ok(())
    }

    /// What is launched before the first of some steps, and the launches of a step, in order.
    fn launches(&self, rows: &DeviceRows<T>, asked: &PlusPlus, positive: u64, buffers: &StepBuffers<T>) -> Result<Launches> {
        let (gpu, m, all) = (&rows.queue.gpu, asked.trials as usize, DeviceChunk::of_all(rows));
        let step = StepArgument {
            control: buffers.control.at(),
            candidates: buffers.candidates.at(),
            seeds: buffers.seeds.at(),
            list: buffers.list.at(),
            owners: At::NULL,
            owned: 0,
            room: buffers.list.len() as u64,
            terms: positive,
            m: m as u32,
            filtered: 0,
            unused: 0,
        };
        let step = self.copied.as_ref().map_or(step, |copied| copied.step(step));
        let copied = self.copied.as_ref().filter(|copied| copied.ready);
        let copies = copied.map_or(ByteCopiesArgument::NONE, CopiedRows::argument);
        let (rows_argument, nearest, totals, scale) =
            (rows.argument(), self.nearest.at(), self.totals.at(), (&self.scale).into());
        let (key_low, key_high) = (asked.seed as u32, (asked.seed >> 32) as u32);
        let (stream, restart, draws) = (asked.stream.word(), asked.restart, self.argument(&all));
        let argument =
            PlusDrawArgument { rows: rows_argument, draws, totals, step, copies, key_low, key_high, stream, restart };
        let entry = rows.entry(arguments::plus_draw::<T>());
        let draw: Box<dyn Queued> = Box::new((entry.exactly(gpu, "", m)?, argument));
        let range = self.ranges.rows as u64;
        let take = PlusTakeArgument { rows: rows_argument, nearest, totals, scale, range, step, copies };
        let mut launches: Vec<Box<dyn Queued>> = Vec::new();
        if let Some(copied) = copied {
            let near = arguments::plus_near::<T>();
            let launch = near.resident(gpu, "", near.blocks_of_warps(copied.comparisons()))?;
            launches.push(Box::new((launch, PlusNearArgument { step, copies, d: rows.d as i32, unused: 0 })));
            let filter = arguments::plus_filter::<T>();
            let launch = filter.resident(gpu, "", filter.blocks_of_warps(copied.tiles()))?;
            launches.push(Box::new((launch, PlusFilterArgument { step, copies })));
            let argument = PlusSettleArgument { rows: rows_argument, nearest, scale, step, copies };
            let launch = arguments::plus_settle::<T>().resident(gpu, "", usize::MAX)?;
            launches.push(Box::new((launch, argument)));
            let argument = PlusNextArgument { take, draws, key_low, key_high, stream, restart };
            let blocks = gpu.processors as usize;
            let launch = arguments::plus_next::<T>().exactly(gpu, "", blocks)?;
            launches.push(Box::new((launch, argument)));
            Ok((Some(draw), launches))
        } else {
            launches.push(draw);
            let gains = field!(step.control, StepControl, gains).cast();
            for gains in self.gains_launches(&all, 0..rows.n, &buffers.candidates, m, gains, step)? {
                launches.push(Box::new(gains));
            }
            let launch = arguments::plus_take::<T>().exactly(gpu, "", gpu.processors as usize)?;
            launches.push(Box::new((launch, take)));
            launches.push(Box::new(self.take_launch(&all, step.candidates, At::NULL, step)?));
            Ok((None, launches))
        }
    }
}
