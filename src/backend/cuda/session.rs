//! One fit on one GPU.
//!
//! ```text
//! start(centroids): copies of the centroids for the filter, and the bound
//! per iteration, without the host:
//!   step      labels, and the moves of rows to the pending sums; chunk by chunk     step/
//!   exchange  the sums of all GPUs of the fit become one, if there are several      exchange.rs
//!   update    exact means, shift, whether to stop, copies for the next step         update.rs
//! ```
//! The host queues iterations in batches. If the device has decided to stop, the kernels of later iterations return at once.
//! The host waits once for each batch. It takes over only if a cluster is empty, or if the step wants the host to update. If the
//! rows stream through the device, the host sends the chunks and waits once for each iteration.

mod advance;
#[cfg(feature = "bench")]
mod benchmark;
mod draws;
mod far;
mod in_step;
mod labels;
mod nearest;
mod other_rows;
mod priced;

pub use self::in_step::GpusInStep;
pub use self::labels::download;
pub use self::nearest::nearest_bytes;
pub use self::priced::priced_bytes;

use std::ops::Range;
use std::sync::Arc;

use super::arguments::Record;
use super::device::{Plain, product};
use super::exchange::{self, ExchangedSums, GpuGroup, Port};
#[cfg(feature = "papers")]
use super::papers::HostUpdate;
use super::passes::distances::{InertiaPass, InertiaSums, MOST_PENDING};
use super::passes::seeds::{DeviceDraws, positive_rows};
use super::rows::chunks::RowChunks;
use super::rows::download::copy;
use super::shape::FitShape;
use super::state::DeviceState;
use super::step::Step;
use super::step::choice::choose;
use super::update::UpdateLaunches;
use crate::backend::answers::Distances;
use crate::backend::priced::PricedPasses;
use crate::backend::{Advanced, Assigned, Far, Move, Scales, Session, Stop, Updated, WorkCounts};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Init, Params};
use crate::base::progress::Watch;
use crate::base::strategy::Strategy;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::fixed::Limbs;
use crate::input::tile::RowBlock;
use crate::statistics::Statistics;

/// Most iterations of a batch.
pub const LONGEST_BATCH: u32 = 32;

/// The rows of one fit on one GPU, and the state of the fit.
pub struct CudaSession<'a, T> {
    rows: Arc<RowChunks<'a, T>>,
    /// Number of these rows that have a positive weight.
    positive: u64,
    statistics: Arc<Statistics>,
    state: DeviceState<T>,
    step: Box<dyn Step<T>>,
    update: UpdateLaunches<T>,
    /// Looks whether the loop has stopped, if its iterations are long.
    ahead: Option<advance::Ahead>,
    inertia: InertiaPass,
    draws: Option<DeviceDraws<T>>,
    /// The copy of the sums on the host, if it is up to date.
    cluster_sums: Option<ClusterSums>,
    #[cfg(feature = "papers")]
    host: Option<HostUpdate<'a, T>>,
}

impl<'a, T: Float + Plain> CudaSession<'a, T> {
    /// A session for rows whose weights are rounded already. `parts`: the same rows in host memory. `strategy`: the kernel that
    /// was chosen for the fit. `more_copies`: whether there is memory for optional copies of the rows. `group`:
    /// the GPUs that exchange their sums, if the fit has several.
    pub fn new(
        rows: impl Into<Arc<RowChunks<'a, T>>>,
        #[cfg_attr(not(feature = "papers"), expect(unused_variables, reason = "only a paper's system adds up on the host"))]
        parts: &[RowBlock<'a, T>],
        statistics: &Arc<Statistics>,
        params: &Params,
        strategy: Strategy,
        more_copies: bool,
        group: Option<&GpuGroup>,
    ) -> Result<Self> {
        let rows = rows.into();
        let queue = rows.queue().clone();
        let shape = FitShape { more_copies, ..shape_of(&rows, statistics, params.k) };
        let chosen = choose::<T>(strategy, &shape, queue.gpu.size())?;
        let needs = chosen.candidate.needs(&shape, queue.gpu.size());
        let update = UpdateLaunches::new(&queue, &shape, statistics, LONGEST_BATCH as usize, group)?;
        let state = DeviceState::new(
            &queue,
            &shape,
            &needs,
            statistics,
            largest_distance(statistics, params),
            update.control(),
            group,
        )?;
        let step = chosen.candidate.make(&shape, &queue)?;
        let inertia = InertiaPass::new::<T>(&queue, shape.chunk, shape.k, shape.half)?;
        let positive = positive_rows(&rows)?;
        Ok(Self {
            rows,
            positive,
            statistics: statistics.clone(),
            state,
            step,
            update,
            ahead: None,
            inertia,
            draws: None,
            cluster_sums: None,
            #[cfg(feature = "papers")]
            host: HostUpdate::of(chosen.candidate.strategy(), parts, statistics)?,
        })
    }

    /// Sets the centroids, and computes everything that the next step reads.
    fn start(&mut self, centroids: &[T]) -> Result<()> {
        self.state.centroids.now.write(0, centroids)?;
        self.state.filter.centre(centroids)?;
        self.step.restart();
        self.update.start(&self.state)
    }

    /// Downloads the centroids.
    fn read_centroids(&self, centroids: &mut [T]) -> Result<()> {
        copy(&self.state.centroids.now, centroids)
    }

    /// Whether [`Session::means`] can compute the means.
    fn has_means(&self) -> bool {
        #[cfg(feature = "papers")]
        if self.host.is_some() {
            return false;
        }
        self.own_clusters().is_none()
    }

    /// The clusters whose sums this session has, if it does not have those of all.
    fn own_clusters(&self) -> Option<Range<usize>> {
        self.state.port.as_ref().and_then(Port::own_clusters)
    }

    /// Queues the update by the sums that the session has.
    fn launch_means(&mut self) -> Result<()> {
        self.forget();
        self.update.start(&self.state)?;
        self.update.launch(&self.state, Stop::NEVER, u32::MAX, 0)
    }

    /// Downloads what [`launch_means`](Self::launch_means) has made.
    fn read_means(&self, centroids: &mut [T]) -> Result<Updated> {
        let mut record = [Record::ZERO];
        self.update.read_records(&mut record)?;
        self.read_centroids(centroids)?;
        Ok(Updated { shift: record[0].shift, moved: record[0].moved != 0 })
    }

    /// Queues one step over all rows. Its sums stay pending. If `inertia` is given, it also adds the inertia under the new
    /// labels. Afterwards the new labels are the current ones.
    fn launch_step(&mut self, mut inertia: Option<&mut InertiaSums>) -> Result<()> {
        self.cluster_sums = None;
        let Self { rows, state, step, update, inertia: pass, .. } = self;
        let mut pending = 0;
        rows.visit(|chunk| {
            if pending > MOST_PENDING.saturating_sub(chunk.rows.n) {
                update.fold(state)?;
                pending = 0;
            }
            pending += chunk.rows.n;
            if !chunk.after_kernel {
                update.end_chunk(&state.queue)?;
            }
            step.launch(chunk, state)?;
            let Some(inertia) = inertia.as_mut() else { return Ok(()) };
            step.write_labels(state)?;
            let [_, after] = state.labels.before_and_after(chunk.first);
            // SAFETY: the step has labelled the rows of the chunk. The centroids are those of the state.
            unsafe { pass.add(&state.queue, chunk.rows.argument(), after, state.centroids.now.at(), inertia) }
        })?;
        self.state.labels.advance();
        Ok(())
    }

    /// Makes the sums after a step. Returns how many rows changed, if the host has added them up.
    fn finish_sums(&mut self) -> Result<Option<u64>> {
        #[cfg(feature = "papers")]
        if let Some(host) = &mut self.host
            && let Some((cluster_sums, changed)) = host.add(&mut self.state)?
        {
            self.cluster_sums = Some(cluster_sums);
            return Ok(Some(changed));
        }
        self.update.fold(&self.state)?;
        Ok(None)
    }

    /// What an assign took: settled rows, and scores if the step counts them. Other steps compute all scores.
    fn work_counts(&self, settled: u64, scores: u64, rescored: u32, groups: u32) -> WorkCounts {
        // Where several GPUs exchange their sums, the counts are already those of all of them.
        let all = if self.state.port.is_some() { 0 } else { self.scores_of_step() };
        WorkCounts {
            settled: Some(settled),
            scores: Some(if all == 0 { scores } else { all }),
            rescored: (groups > 0).then_some(u64::from(rescored)),
            groups: (groups > 0).then_some(groups),
        }
    }

    /// Downloads the canonical sums of some clusters.
    fn read_sums(&self, clusters: Range<usize>, into: &mut ClusterSums) -> Result<()> {
        let DeviceState { sums, shape: FitShape { d, weighted, .. }, .. } = &self.state;
        let columns = self.state.shape.columns();
        let mut read = memory::zeroed(product([clusters.len(), columns]), "the sums of the clusters")?;
        sums.canonical.read(clusters.start * columns, &mut read)?;
        sums.rows.read(clusters.start, &mut into.rows[clusters.clone()])?;
        for (j, row) in clusters.zip(read.chunks_exact(columns)) {
            into.sums[j * d..][..*d].copy_from_slice(&row[..*d]);
            into.mass[j] = if *weighted { row[*d] } else { i128::from(into.rows[j]) };
            // All clusters count as changed. Computing a mean again gives the same mean.
            into.dirty[j] = true;
        }
        Ok(())
    }

    /// Whether all rows are on the GPU.
    fn is_resident(&self) -> bool {
        matches!(*self.rows, RowChunks::Resident(_))
    }

    /// The last `steps` steps did nothing: what was before them is current.
    fn go_back(&mut self, steps: u32) {
        self.state.labels.go_back(steps);
        if let Some(port) = &mut self.state.port {
            port.go_back(steps);
        }
    }

    /// Queues the first part of the exchange with the other GPUs of the fit, if there are any.
    fn arrive(&self, of: ExchangedSums) -> Result<()> {
        exchange::arrive(&self.state, of, self.scores_of_step())
    }

    /// Queues the second part of the exchange.
    fn share(&self, of: ExchangedSums) -> Result<()> {
        exchange::share(&self.state, of)
    }

    /// Queues the last part of the exchange.
    fn total(&mut self, of: ExchangedSums) -> Result<()> {
        exchange::total(&mut self.state, self.update.new_centroids(), of)
    }

    /// The scores of a step over all rows, or 0 if the step counts them.
    fn scores_of_step(&self) -> u64 {
        let FitShape { rows, k, .. } = self.state.shape;
        if self.step.counts_scores() { 0 } else { (rows as u64).saturating_mul(k as u64) }
    }

    /// The host's copies of sums and labels are out of date, and so is the state that the step keeps.
    fn forget(&mut self) {
        self.cluster_sums = None;
        self.step.forget();
        #[cfg(feature = "papers")]
        self.host.iter_mut().for_each(HostUpdate::forget);
    }
}

/// The shape of a fit.
fn shape_of<T: Float + Plain>(rows: &RowChunks<'_, T>, statistics: &Statistics, k: usize) -> FitShape {
    let weighted = statistics.weights.is_some();
    let two = weighted || statistics.scales.iter().any(|scale| scale.limbs == Limbs::Two);
    let limbs = 1 + usize::from(two);
    FitShape {
        rows: rows.n(),
        chunk: rows.longest(),
        d: rows.d(),
        k,
        weighted,
        float64: !T::IS_F32,
        half: rows.half().is_some(),
        limbs,
        more_copies: false,
    }
}

/// The largest distance of rows from each other and of starting centroids from rows, in any feature.
fn largest_distance(statistics: &Statistics, params: &Params) -> f64 {
    let d = statistics.lows.len();
    let starting = if let Init::Given(centroids) = &params.seeding.init { &centroids[..] } else { &[] };
    let extents = || statistics.lows.iter().zip(&statistics.highs);
    let rows = starting.chunks_exact(d).map(|row| {
        let distances = row.iter().zip(extents()).map(|(x, (low, high))| (x - low).max(high - x));
        distances.fold(0.0f64, f64::max)
    });
    rows.fold(extents().map(|(low, high)| high - low).fold(0.0, f64::max), f64::max)
}

impl<T: Float + Plain> Session<T> for CudaSession<'_, T> {
    fn rows(&self) -> u64 {
        self.rows.n() as u64
    }

    fn on_device(&self) -> bool {
        true
    }

    fn reset(&mut self) -> Result<()> {
        self.forget();
        self.state.clear()
    }

    fn assign(&mut self, centroids: &[T], want_inertia: bool) -> Result<Assigned> {
        advance::assign(&mut [self], centroids, want_inertia)
    }

    fn advance(&mut self, centroids: &mut [T], stop: Stop, limit: u32, watch: &mut Watch<'_>) -> Result<Advanced> {
        #[cfg(feature = "papers")]
        if self.host.is_some() {
            return Ok(Advanced { assigned: Some(self.assign(centroids, false)?), ..Advanced::default() });
        }
        advance::advance(&mut [self], centroids, stop, limit, watch)
    }

    fn cluster_sums(&mut self) -> Result<&ClusterSums> {
        if self.cluster_sums.is_none() {
            let FitShape { d, k, .. } = self.state.shape;
            let mut cluster_sums = ClusterSums::new(k, d)?;
            self.read_sums(0..k, &mut cluster_sums)?;
            self.cluster_sums = Some(cluster_sums);
        }
        let Some(cluster_sums) = &self.cluster_sums else { unreachable!("it was just made") };
        Ok(cluster_sums)
    }

    fn sizes(&mut self) -> Result<Vec<u64>> {
        let rows = self.state.sums.rows.to_vec()?;
        memory::collected(rows.into_iter().map(|rows| rows as u64), "the sizes of the clusters")
    }

    /// The centroids are those that the rows were assigned to.
    fn means(&mut self, centroids: &mut [T]) -> Result<Option<Updated>> {
        if !self.has_means() {
            return Ok(None);
        }
        self.launch_means()?;
        self.read_means(centroids).map(Some)
    }

    fn clear_dirty(&mut self) {}

    fn farthest(&mut self, count: usize, donors: &[bool]) -> Result<Vec<Far>> {
        self.step.write_labels(&self.state)?;
        self.farthest_rows(count, donors)
    }

    fn relocate(&mut self, moves: &[Move]) -> Result<()> {
        advance::relocate(&mut [self], moves)
    }

    fn inertia(&mut self, scales: Scales<'_>) -> Result<Vec<u128>> {
        self.step.write_labels(&self.state)?;
        let DeviceState { queue, shape, labels, centroids, .. } = &self.state;
        let mut inertia = InertiaSums::new(queue, shape.k, scales)?;
        // SAFETY: every row has a label, and the centroids are those of the state.
        self.rows.visit(|chunk| unsafe {
            self.inertia.add(queue, chunk.rows.argument(), labels.now(chunk.first), centroids.now.at(), &mut inertia)
        })?;
        inertia.total()
    }

    fn copy_labels(&mut self, out: &mut [u32]) -> Result<()> {
        self.step.write_labels(&self.state)?;
        download(self.state.labels.array(), self.state.labels.bytes, out)
    }

    fn nearest(&mut self, centroids: &[T]) -> Result<(Vec<u32>, Distances)> {
        self.nearest_rows(centroids)
    }

    fn priced(&mut self) -> Option<&mut dyn PricedPasses<T>> {
        if self.has_priced_passes() { Some(self) } else { None }
    }
}
