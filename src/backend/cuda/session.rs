//! One fit on one GPU.
//!
//! ```text
//! start(centroids): copies of the centroids for the filter, and the bound
//! per iteration, without the host:
//!   assign    labels that the filter is sure of; with few dimensions all labels and the sums  kernels/assign_*.cu
//!   settle    many dimensions: the other labels, by reference distances to two or all         kernels/settle.cu
//!   deltas    many dimensions: the sums                                                       kernels/deltas.cu
//!   update    exact means, shift, whether to stop, copies for the next assign                 kernels/update.cu
//! ```
//! The host queues iterations in batches. If the device has decided to stop, the kernels of later iterations return at once.
//! The host waits once for each batch. It takes over only if a cluster is empty. If the rows stream through the device, assign
//! to deltas run chunk by chunk. The host sends the chunks then, and waits once for each iteration.

mod far;
mod host;
mod inertia;
mod labels;
mod nearest;
mod new;
mod system;

#[cfg(feature = "bench")]
pub use self::host::STAGES;
pub use self::system::{check, launch_rows};

use self::inertia::PendingInertia;
use self::system::Running;
use super::arguments::{
    Assign, Bound, BoundTerms, CONTROL_OF_CHUNK, Contested, Control, Deltas, DistanceArgument, Factors, LabelsArgument, Part,
    Record, STOP_EMPTY, Settle, SumsArgument, Update,
};
use super::chunks::{Chunk, Chunks};
use super::device::{Buffer, Plain, Queue};
use super::draws::{self, Draws, SeedLabels};
use super::plan::{Launch, Plan, Strategy, settle_values};
use crate::answers::Distances;
use crate::backend::{Assigned, Far, Iteration, Progress, Scales, Session, Stop};
use crate::distances::DistanceScale;
use crate::error::Result;
use crate::fixed::power_of_two;
use crate::float::Float;
use crate::memory;
use crate::partial::Partial;
use crate::prepare::Prepared;

/// Iterations of the first batch, and of the longest batch.
const FIRST_BATCH: u32 = 8;
const LONGEST_BATCH: u32 = 32;
/// Pending sums are folded after this many rows. Their two words could hold twice as many values.
const MOST_PENDING: usize = 1 << 31;

/// The rows of one fit on one GPU, and the state of the fit.
pub struct CudaSession<'a, T> {
    rows: Chunks<'a, T>,
    prepared: &'a Prepared,
    plan: Plan,
    k: usize,
    d: usize,
    queue: Queue,
    /// The arrays of labels: one if the assign changes labels in place, otherwise two. `labels[current]` are the current
    /// labels. The other array holds the labels before them.
    labels: Vec<Buffer<u8>>,
    current: usize,
    columns: usize,
    limbs: usize,
    pending: Buffer<u64>,
    pending_rows: Buffer<i64>,
    sums: Buffer<i128>,
    cluster_rows: Buffer<i64>,
    one_limb: Buffer<u8>,
    factors: Buffer<Factors>,
    mean_exponents: Buffer<i32>,
    lows: Buffer<T>,
    highs: Buffer<T>,
    shift: Buffer<T>,
    scale: T,
    terms: BoundTerms,
    centroids: Buffer<T>,
    previous: Buffer<T>,
    column_centroids: Buffer<T>,
    copies: Buffer<f32>,
    half_squares: Buffer<f32>,
    bound: Buffer<Bound>,
    control: Buffer<Control>,
    records: Buffer<Record>,
    parts: Buffer<Part>,
    /// The squared distance that each centroid moved.
    distances: Buffer<f64>,
    contested: Buffer<Contested>,
    seeds: Option<Draws<T>>,
    /// The copy of the sums on the host, if it is up to date.
    partial: Option<Partial>,
    /// The extra state of a system from the papers.
    running: Option<Running<'a, T>>,
}

impl<'a, T: Float + Plain> CudaSession<'a, T> {
    /// The parameter for the labels from row `first` on.
    fn labels_argument(&self, which: usize, first: usize) -> LabelsArgument {
        let bytes = self.plan.label_bytes;
        LabelsArgument { at: self.labels[which % self.labels.len()].at_index(first * bytes), bytes: bytes as i32 }
    }

    fn sums_argument(&self) -> SumsArgument {
        SumsArgument {
            pending: self.pending.at(),
            pending_rows: self.pending_rows.at(),
            sums: self.sums.at(),
            rows: self.cluster_rows.at(),
            one_limb: self.one_limb.at(),
            k: self.k as i32,
            d: self.d as i32,
            columns: self.columns as i32,
            mass_column: if self.columns > self.d { self.d as i32 } else { -1 },
            limbs: self.limbs as i32,
            unused: 0,
        }
    }

    fn mass_to_integer(&self) -> f64 {
        self.prepared.weights.map_or(1.0, |scale| power_of_two(53 - scale.exponent))
    }

    fn update_argument(&self, stop: Stop, iterations: u32, first_iteration: u32) -> Update<T> {
        let (half_squares, strides, half_stride) = match self.plan.strategy {
            Strategy::Registers { dimensions, .. } => {
                (self.copies.at_index(dimensions), (self.plan.copy_width, 1), self.plan.copy_width)
            }
            Strategy::Tiled(_) => (self.half_squares.at(), (1, self.plan.k_padded), 1),
            Strategy::Rows(_) => (self.half_squares.at(), (self.plan.copy_width, 1), 1),
        };
        Update {
            sums: self.sums_argument(),
            mean_exponents: self.mean_exponents.at(),
            lows: self.lows.at(),
            highs: self.highs.at(),
            centroids: self.centroids.at(),
            previous: self.previous.at(),
            columns: self.column_centroids.at(),
            shift: self.shift.at(),
            scale: self.scale,
            copies: self.copies.at(),
            half_squares,
            copy_stride_j: strides.0 as u64,
            copy_stride_f: strides.1 as u64,
            half_stride: half_stride as u64,
            terms: self.terms,
            bound: self.bound.at(),
            control: self.control.at(),
            records: self.records.at(),
            parts: self.parts.at(),
            distances: self.distances.at(),
            shifts: DistanceArgument::from(&self.prepared.shifts),
            largest_changed: stop.changed,
            largest_shift: stop.shift,
            iterations,
            first_iteration,
            team: self.plan.team,
            unused: 0,
        }
    }

    /// Launches a kernel of the plan.
    fn run<A: Copy>(&self, launch: Launch, arguments: &A) -> Result<()> {
        // SAFETY: every struct of `arguments.rs` has the layout of the parameter of its kernel. All addresses belong to buffers
        // of this session and of this queue. The sizes are those that the kernels index: (k, columns, limbs), (k, d), the
        // stride or n.
        unsafe { self.queue.launch(launch.kernel, launch.blocks, launch.threads, launch.shared, arguments) }
    }

    /// Like `run`, for kernels that wait for the kernel before them.
    fn run_behind<A: Copy>(&self, launch: Launch, arguments: &A) -> Result<()> {
        // SAFETY: as in `run`. The kernels of the loop begin with the wait.
        unsafe { self.queue.launch_behind(launch.kernel, launch.blocks, launch.threads, launch.shared, arguments) }
    }

    /// Sets the centroids, and computes everything that the next assign reads.
    fn start(&mut self, centroids: &[T]) -> Result<()> {
        self.centroids.write(0, centroids)?;
        self.run(self.plan.start, &self.update_argument(Stop { changed: 0.0, shift: 0.0 }, 0, 0))
    }

    /// Launches one assign. Its sums stay pending. If `inertia` is given, it also adds the inertia under the new labels.
    /// Afterwards `labels[current]` are the new labels.
    fn launch_assign(&mut self, mut inertia: Option<&mut PendingInertia>) -> Result<()> {
        if !self.running.as_ref().is_some_and(Running::adds_on_host) {
            self.partial = None;
        }
        let mut pending = 0;
        self.rows.visit(|chunk| {
            if pending > MOST_PENDING.saturating_sub(chunk.rows.n) {
                self.fold()?;
                pending = 0;
            }
            pending += chunk.rows.n;
            if let Chunks::Streamed(_) = &self.rows {
                // Clear the counters of the chunk before.
                self.control_of_chunk()?;
            }
            self.assign_chunk(chunk)?;
            inertia.as_mut().map_or(Ok(()), |inertia| self.add_inertia(chunk, self.current + 1, inertia))
        })?;
        self.current = (self.current + 1) % self.labels.len();
        Ok(())
    }

    fn assign_chunk(&self, chunk: &Chunk<'_, T>) -> Result<()> {
        let [before, after] = [self.current, self.current + 1].map(|which| self.labels_argument(which, chunk.first));
        let (rows, sums) = (chunk.rows.argument(), self.sums_argument());
        let mass_to_integer = self.mass_to_integer();
        let assign = Assign {
            rows,
            labels: before,
            next: after,
            shift: self.shift.at(),
            scale: self.scale,
            copies: self.copies.at(),
            half_squares: self.half_squares.at(),
            bound: self.bound.at(),
            contested: self.contested.at(),
            control: self.control.at(),
            k: self.k as i32,
            k_padded: self.plan.k_padded as i32,
            sums,
            factors: self.factors.at(),
            mass_to_integer,
            table_copies: self.plan.assign_copies as i32,
            portion: i32::from(self.plan.fits),
            columns: self.column_centroids.at(),
            run: self.plan.run,
            even: self.plan.even,
        };
        if let Some(running) = &self.running {
            return self.launch_system(running, assign);
        }
        // If rows stay on the device, this launch follows a kernel. If they stream, it follows copies.
        match self.rows {
            Chunks::Resident(_) => self.run_behind(self.plan.assign, &assign)?,
            Chunks::Streamed(_) => self.run(self.plan.assign, &assign)?,
        }
        let Some([settle, deltas]) = self.plan.rest else { return Ok(()) };
        let arguments = Settle {
            rows,
            next: after,
            columns: self.column_centroids.at(),
            centroids: self.centroids.at(),
            contested: self.contested.at(),
            control: self.control.at(),
            k: self.k as i32,
            values: settle_values(self.d, self.k) as i32,
        };
        self.run_behind(settle, &arguments)?;
        if let Some(pairs) = self.plan.pairs {
            self.run_behind(pairs, &arguments)?;
        }
        let arguments = Deltas {
            rows,
            labels: before,
            next: after,
            sums,
            factors: self.factors.at(),
            mass_to_integer,
            control: self.control.at(),
            table_copies: self.plan.deltas_copies as i32,
            chunk: self.plan.deltas_chunk as i32,
            chunks: self.columns.div_ceil(self.plan.deltas_chunk) as i32,
            few: self.plan.deltas_few as i32,
        };
        self.run_behind(deltas, &arguments)
    }

    /// Sets the counters of a chunk's kernels to zero.
    fn control_of_chunk(&self) -> Result<()> {
        self.control.fill_bytes(CONTROL_OF_CHUNK, 0)
    }

    /// Adds the pending sums to the canonical sums.
    fn fold(&self) -> Result<()> {
        self.run(self.plan.fold, &self.update_argument(Stop { changed: 0.0, shift: 0.0 }, 0, 0))
    }

    fn control(&self) -> Result<Control> {
        let mut control = [Control::default()];
        self.control.read(0, &mut control)?;
        Ok(control[0])
    }
}

impl<T: Float + Plain> Session<T> for CudaSession<'_, T> {
    fn rows(&self) -> u64 {
        self.rows.n() as u64
    }

    fn positive_rows(&self) -> u64 {
        self.prepared.n_positive
    }

    fn row(&self, row: u64) -> Result<Vec<T>> {
        draws::row(&self.rows, row)
    }

    fn start_draws(&mut self) -> Result<u128> {
        let seeds = Draws::start(&self.rows, self.prepared, self.k)?;
        Ok(self.seeds.insert(seeds).total())
    }

    fn positive_row(&self, rank: u64) -> Result<u64> {
        draws::positive_row(&self.rows, rank)
    }

    fn draw(&self, target: u128) -> Result<u64> {
        let Some(seeds) = &self.seeds else { unreachable!("draws were started") };
        seeds.draw(&self.rows, &seed_labels(&self.labels, &self.plan), target)
    }

    fn gains(&mut self, candidates: &[T]) -> Result<Vec<u128>> {
        let Some(seeds) = &mut self.seeds else { unreachable!("draws were started") };
        seeds.gains(&self.rows, &seed_labels(&self.labels, &self.plan), candidates)
    }

    fn trials(&mut self, targets: &[u128]) -> Result<(Vec<T>, Vec<u128>)> {
        let Some(seeds) = &mut self.seeds else { unreachable!("draws were started") };
        seeds.trials(&self.rows, &seed_labels(&self.labels, &self.plan), targets)
    }

    fn take_seed(&mut self, centroid: &[T], scale: DistanceScale) -> Result<u128> {
        let Some(seeds) = &mut self.seeds else { unreachable!("draws were started") };
        seeds.take(&self.rows, &seed_labels(&self.labels, &self.plan), centroid, scale)
    }

    fn end_draws(&mut self) {
        self.seeds = None;
    }

    fn reset(&mut self) -> Result<()> {
        self.current = 0;
        self.forget_host();
        self.labels.iter_mut().try_for_each(|labels| labels.fill(0xff))?;
        self.pending.fill(0)?;
        self.pending_rows.fill(0)?;
        self.sums.fill(0)?;
        self.cluster_rows.fill(0)
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        let base = Scales::Same(self.prepared.distances);
        let mut inertia = if want_inertia { Some(PendingInertia::new(&self.queue, self.k, base)?) } else { None };
        self.start(centroids)?;
        self.launch_assign(inertia.as_mut())?;
        let changed = self.gather()?;
        Ok(Assigned { changed, inertia: inertia.map(PendingInertia::total).transpose()? })
    }

    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32) -> Result<Progress> {
        if self.running.as_ref().is_some_and(Running::host_means) {
            return Ok(Progress { done: Vec::new(), assigned: Some(self.assign(centroids, false)?) });
        }
        self.start(centroids)?;
        let mut progress = Progress::default();
        let resident = matches!(self.rows, Chunks::Resident(_));
        let mut batch = if resident { FIRST_BATCH } else { 1 };
        loop {
            let first = progress.done.len() as u32;
            let size = batch.min(limit - first);
            let update = self.update_argument(stop, limit, first);
            let current = self.current;
            for _ in 0..size {
                self.launch_assign(None)?;
                self.run_behind(self.plan.update, &update)?;
            }
            let control = self.control()?;
            let done = control.iteration - first;
            let mut records = memory::filled(done as usize, Record::default(), "the history")?;
            self.records.read(0, &mut records)?;
            memory::reserve(&mut progress.done, records.len(), "the history")?;
            progress.done.extend(records.iter().map(|record| Iteration {
                changed: record.changed,
                shift: record.shift,
                moved: record.moved != 0,
                seconds: record.nanoseconds as f64 * 1e-9,
            }));
            // The number of assigns that really ran. After the stop, kernels did nothing.
            let assigns = done + u32::from(control.stop == STOP_EMPTY);
            self.current = (current + assigns as usize) % self.labels.len();
            if control.stop != 0 || progress.done.len() as u32 == limit {
                if control.stop == STOP_EMPTY {
                    // The clusters that are not empty have already moved. Go back to the centroids that the rows were assigned
                    // to.
                    std::mem::swap(&mut self.centroids, &mut self.previous);
                }
                self.centroids.read(0, centroids)?;
                if control.stop == STOP_EMPTY {
                    progress.assigned = Some(Assigned { changed: control.changed, inertia: None });
                }
                return Ok(progress);
            }
            batch = if resident { (batch * 2).min(LONGEST_BATCH) } else { 1 };
        }
    }

    fn partial(&mut self) -> Result<&Partial> {
        if self.partial.is_none() {
            let sums = self.sums.to_vec()?;
            let mut partial = Partial::new(self.k, self.d)?;
            partial.rows = self.cluster_rows.to_vec()?;
            for (j, row) in sums.chunks_exact(self.columns).enumerate() {
                partial.sums[j * self.d..][..self.d].copy_from_slice(&row[..self.d]);
                partial.mass[j] = if self.columns > self.d { row[self.d] } else { i128::from(partial.rows[j]) };
            }
            // All clusters count as changed. Computing a mean again gives the same mean.
            partial.dirty.fill(true);
            self.partial = Some(partial);
        }
        let Some(partial) = &self.partial else { unreachable!("it was just made") };
        Ok(partial)
    }

    fn sizes(&mut self) -> Result<Vec<u64>> {
        memory::collected(self.cluster_rows.to_vec()?.into_iter().map(|rows| rows as u64), "the sizes of the clusters")
    }

    fn clear_dirty(&mut self) {}

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        self.farthest_rows(count, donors)
    }

    fn relocate(&mut self, row: u64, to: u32) -> Result<()> {
        self.forget_host();
        self.move_row(row, to)
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        let mut inertia = PendingInertia::new(&self.queue, self.k, scales)?;
        self.rows.visit(|chunk| self.add_inertia(chunk, self.current, &mut inertia))?;
        inertia.total()
    }

    fn labels(&self) -> Result<Vec<u32>> {
        self.labels_of(self.current)
    }

    fn into_labels(self: Box<Self>) -> Result<Vec<u32>> {
        self.labels()
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        self.nearest_rows(centroids)
    }
}

impl<T: Float + Plain> CudaSession<'_, T> {
    /// Downloads one of the arrays of labels and widens it to 32 bits. All ones stay all ones.
    fn labels_of(&self, which: usize) -> Result<Vec<u32>> {
        labels::download(&self.labels[which], self.rows.n(), self.plan.label_bytes)
    }
}

fn seed_labels<'s>(labels: &'s [Buffer<u8>], plan: &Plan) -> SeedLabels<'s> {
    SeedLabels { labels: &labels[0], bytes: plan.label_bytes }
}
