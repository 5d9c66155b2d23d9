//! Steps of k-means++ on the device (`kernels/passes/plus_plus.cu`). The host queues many steps and waits once.
//!
//! ```text
//! per step:   plus_draw                   draws the candidates by the integers of the potential
//!             seed_gains                  gains, and a list of the rows that come nearer      | without copies
//!             plus_filter, plus_settle    the same, from copies of the rows in bytes          | with copies
//!             plus_take                   chooses, and takes by the list
//!             seed_take                   takes by a pass over all rows, if the list was too short; without copies only
//! ```
//! The first steps move most rows, so they go without copies. The device stops where a potential is 0, or where one is not
//! precise: then the host does the next step, in a finer scale. If a list of the filter is too short, some steps go without
//! copies again.

use std::time::Instant;

use super::byte_copies::CopiedRows;
use super::seeds::{DeviceSeeds, MOST_AT_ONCE, TILE, gains_blocks};
use crate::backend::PlusPlus;
use crate::backend::cuda::arguments::{
    self, ByteCopiesArgument, GainsArgument, MOST_TRIALS, Nearer, PlusDrawArgument, PlusFilterArgument, PlusSettleArgument,
    PlusTakeArgument, STOPPED_COARSE, STOPPED_FULL, STOPPED_ZERO, StepArgument, StepControl, TakeArgument,
};
use crate::backend::cuda::device::{Block, Launch, Plain, buffers, product};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::trials;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::distances::DistanceSum;

/// Threads of the blocks of `plus_draw`, of `plus_take` and `plus_filter`, and of `plus_settle`.
const DRAWERS: u32 = 1_024;
const THREADS: u32 = 256;
const SETTLERS: u32 = 128;
/// The most steps that are queued at a time, the first ones, and how long they should take at most: a call can be stopped between
/// them.
const BATCH: usize = 64;
const FIRST_BATCH: usize = 8;
const BATCH_SECONDS: f64 = 0.1;
/// Copies are made when so many seeds are taken. They are worth it if at least so many steps are left.
const FIRST_COPIES: usize = 16;
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

/// The launches of a step that pass over all rows.
type Passes = (Vec<(Launch<GainsArgument>, GainsArgument)>, Option<(Launch<TakeArgument>, TakeArgument)>);

/// The launches of a step.
struct Launches {
    draw: (Launch<PlusDrawArgument>, PlusDrawArgument),
    gains: Vec<(Launch<GainsArgument>, GainsArgument)>,
    filter: Option<(Launch<PlusFilterArgument>, PlusFilterArgument)>,
    settle: Option<(Launch<PlusSettleArgument>, PlusSettleArgument)>,
    take: (Launch<PlusTakeArgument>, PlusTakeArgument),
    take_all: Option<(Launch<TakeArgument>, TakeArgument)>,
}

impl<T: Float + Plain> DeviceSeeds<T> {
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
        let mut buffers = StepBuffers::allocate(queue, rows.n, d, asked.k)?;
        buffers.seeds.write(0, centroids)?;
        let mut control = StepControl::before(first, potential.total);
        buffers.control.write(0, &[control])?;
        let mut copies: Option<CopiedRows<T>> = None;
        // The number of seeds from which on there are copies, and how many steps go without them if a list is too short.
        let (mut copies_from, mut pause) = (FIRST_COPIES, FIRST_COPIES);
        let mut most = FIRST_BATCH;
        while control.stopped == 0 && (control.step as usize) < asked.k {
            let taken = control.step as usize;
            let mut batch = most.min(asked.k - taken);
            if copies.is_none() && taken >= copies_from {
                copies = self.copies(rows, &buffers, asked, taken)?;
                if copies.is_none() {
                    copies_from = usize::MAX;
                }
            }
            if copies.is_none() {
                batch = batch.min(copies_from.saturating_sub(taken).max(1));
            }
            let launches = self.launches(rows, asked, positive, &buffers, copies.as_ref())?;
            let start = Instant::now();
            for _ in 0..batch {
                // SAFETY: the addresses are those of `buffers`, `copies`, `rows` and `self`, which live until the read below.
                unsafe { launches.queue(rows)? };
            }
            buffers.control.read(0, std::slice::from_mut(&mut control))?;
            let each = start.elapsed().as_secs_f64() / batch as f64;
            most = ((BATCH_SECONDS / each) as usize).clamp(1, (2 * most).min(BATCH));
            if control.stopped == STOPPED_FULL {
                copies = None;
                copies_from = control.step as usize + pause;
                pause *= 2;
                control = StepControl::before(control.step as usize, control.total());
                buffers.control.write(0, &[control])?;
            }
        }
        debug_assert!([0, STOPPED_ZERO, STOPPED_COARSE].contains(&control.stopped));
        let mut new = memory::filled((control.step as usize - first) * d, T::default(), "the starting centroids")?;
        buffers.seeds.read(first * d, &mut new)?;
        memory::extend(centroids, &new, "the starting centroids")?;
        potential.total = control.total();
        self.total = potential.total;
        Ok(())
    }

    /// Copies of the rows, if they are worth it.
    fn copies(
        &self,
        rows: &DeviceRows<T>,
        buffers: &StepBuffers<T>,
        asked: &PlusPlus,
        taken: usize,
    ) -> Result<Option<CopiedRows<T>>> {
        let m = asked.trials as usize;
        let Some(scale) = self.copies_scale.filter(|_| asked.k - taken >= FEWEST_STEPS) else { return Ok(None) };
        if !CopiedRows::are_worth_it(rows, m)? {
            return Ok(None);
        }
        CopiedRows::new(rows, &self.nearest, &buffers.seeds, taken, m, scale).map(Some)
    }

    fn launches(
        &self,
        rows: &DeviceRows<T>,
        asked: &PlusPlus,
        positive: u64,
        buffers: &StepBuffers<T>,
        copied: Option<&CopiedRows<T>>,
    ) -> Result<Launches> {
        let (gpu, m) = (&rows.queue.gpu, asked.trials as usize);
        let step = StepArgument {
            control: buffers.control.at(),
            candidates: buffers.candidates.at(),
            seeds: buffers.seeds.at(),
            list: buffers.list.at(),
            room: buffers.list.len() as u64,
            terms: positive,
            m: m as u32,
            filtered: 0,
        };
        let step = copied.map_or(step, |copied| copied.step(step));
        let copies = copied.map_or(ByteCopiesArgument::NONE, CopiedRows::argument);
        let (rows_argument, nearest, totals, scale) = (rows.argument(), self.nearest.at(), self.totals.at(), self.scale);
        let draw = PlusDrawArgument {
            rows: rows_argument,
            draws: self.draws(rows),
            totals,
            step,
            copies,
            key_low: asked.seed as u32,
            key_high: (asked.seed >> 32) as u32,
            stream: asked.stream.word(),
            restart: asked.restart,
        };
        let draw = (
            Launch::exactly(
                arguments::plus_draw::<T>().half_if(rows.half().is_some()).load(gpu, "")?,
                Block::of(DRAWERS),
                m as u32,
            ),
            draw,
        );
        let range = self.ranges.rows as u64;
        let take = PlusTakeArgument { rows: rows_argument, nearest, totals, scale, range, step, copies };
        let take_kernel = arguments::plus_take::<T>().load(gpu, "")?;
        let take = (Launch::exactly(take_kernel, Block::of(THREADS), gpu.processors), take);
        let mut launches = Launches { draw, gains: Vec::new(), filter: None, settle: None, take, take_all: None };
        if let Some(copied) = copied {
            let kernel = arguments::plus_filter::<T>().load(gpu, "")?;
            let blocks = copied.tiles().div_ceil(THREADS as usize / 32);
            let filter = Launch::resident(gpu, kernel, Block::of(THREADS), blocks)?;
            launches.filter = Some((filter, PlusFilterArgument { step, copies }));
            let kernel = arguments::plus_settle::<T>().load(gpu, "")?;
            let settle = Launch::resident(gpu, kernel, Block::of(SETTLERS), usize::MAX)?;
            launches.settle = Some((settle, PlusSettleArgument { rows: rows_argument, nearest, scale, step, copies }));
            return Ok(launches);
        }
        (launches.gains, launches.take_all) = self.passes(rows, &step, buffers)?;
        Ok(launches)
    }

    /// The launches that pass over all rows: the gains, and the kernel that takes a candidate if the list is too short.
    fn passes(&self, rows: &DeviceRows<T>, step: &StepArgument, buffers: &StepBuffers<T>) -> Result<Passes> {
        let (gpu, m, step) = (&rows.queue.gpu, step.m as usize, *step);
        let mut gains_of_all = Vec::new();
        for first in (0..m).step_by(MOST_AT_ONCE) {
            let here = (m - first).min(MOST_AT_ONCE);
            let kernel = arguments::seed_gains::<T>()
                .half_if(rows.half().is_some())
                .load(gpu, &format!("_{}", here.next_multiple_of(2)))?;
            let launch = Launch::resident(gpu, kernel, Block::of(TILE as u32 / 2), usize::MAX)?;
            let launch = launch.with_blocks(gains_blocks(rows.n, launch.blocks) as usize);
            let gains = GainsArgument {
                rows: rows.argument(),
                nearest: self.nearest.at(),
                candidates: buffers.candidates.at_index(first * rows.d),
                gains: step.control + (std::mem::offset_of!(StepControl, gains) + first * size_of::<u128>()) as u64,
                scale: self.scale,
                m: here as i32,
                first: first as u32,
                step,
            };
            memory::push(&mut gains_of_all, (launch, gains), "the launches of k-means++")?;
        }
        let kernel = arguments::seed_take::<T>().half_if(rows.half().is_some()).load(gpu, "")?;
        let launch = Launch::resident(gpu, kernel, Block::of(TILE as u32 / 2), self.ranges.count)?;
        let take_all = TakeArgument {
            rows: rows.argument(),
            nearest: self.nearest.at(),
            centroids: step.candidates,
            totals: self.totals.at(),
            total: 0,
            scale: self.scale,
            range: self.ranges.rows as u64,
            ranges: self.ranges.count as u32,
            first: 0,
            step,
        };
        Ok((gains_of_all, Some((launch, take_all))))
    }
}

impl Launches {
    /// Queues a step.
    ///
    /// # Safety
    /// Every address in the arguments is that of a live buffer of the queue of these rows, with room for what the kernels read
    /// and write there.
    unsafe fn queue<T: Float + Plain>(&self, rows: &DeviceRows<T>) -> Result<()> {
        let queue = &rows.queue;
        // SAFETY: the caller promises it, and every one of these kernels begins with `wait_for_kernel_before`. Targets are below
        // the total, so the rows that are drawn exist. Lists are written up to their room only.
        unsafe {
            queue.run_behind(&self.draw.0, &self.draw.1)?;
            for (launch, argument) in &self.gains {
                queue.run_behind(launch, argument)?;
            }
            if let Some((launch, argument)) = &self.filter {
                queue.run_behind(launch, argument)?;
            }
            if let Some((launch, argument)) = &self.settle {
                queue.run_behind(launch, argument)?;
            }
            queue.run_behind(&self.take.0, &self.take.1)?;
            if let Some((launch, argument)) = &self.take_all {
                queue.run_behind(launch, argument)?;
            }
            Ok(())
        }
    }
}
