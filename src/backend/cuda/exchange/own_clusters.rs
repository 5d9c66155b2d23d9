//! The exchange where sums are large: each GPU has some clusters, whose sums and means it makes, and takes the other means
//! (`share_sums` and `take_means` of `kernels/passes/exchange.cu`).
//!
//! ```text
//! every GPU:   touched (which clusters have pending sums), arrive; meet, share_sums, arrive; meet, take_means
//! ```
//! So a GPU reads the sums of its own clusters, and the means of all: a fraction of all sums. Clusters that a GPU has not touched
//! are not read from it. Each GPU has the canonical sums of its own clusters, and the numbers of rows of all
//! clusters.

use std::ops::Range;
#[cfg(feature = "tests")]
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ExchangedSums, MOST_GPUS, Port, each};
use crate::backend::cuda::arguments::{self, ShareSumsArgument, TakeMeansArgument, TouchedArgument};
use crate::backend::cuda::device::peers::Pool;
use crate::backend::cuda::device::{At, Buffer, Launch, Plain, Queue, bytes_of, product};
use crate::backend::cuda::shape::FitShape;
use crate::backend::cuda::state::DeviceState;
use crate::base::error::Result;
use crate::base::float::Float;

/// Bytes of sums that each GPU would read from the others, from which on each has clusters of its own: `LARGE_SUMS` of
/// `backend/select.rs`, which imports this module.
const LARGE: u64 = 16 << 20;
/// The name of this memory in errors.
const WHAT: &str = "the means that the GPUs share";

/// Whether GPUs have clusters of their own even if sums are small: for fits that begin while this is set.
#[cfg(feature = "tests")]
pub static ALWAYS_OWN_CLUSTERS: AtomicBool = AtomicBool::new(false);

/// The bytes of sums that a GPU would read, from which on it has clusters of its own.
pub fn least_bytes() -> u64 {
    #[cfg(feature = "tests")]
    if ALWAYS_OWN_CLUSTERS.load(Ordering::Relaxed) {
        return 0;
    }
    LARGE
}

/// The bytes of sums that each of these GPUs would read from the others.
pub fn bytes_read(shape: &FitShape, gpus: usize) -> u64 {
    bytes_of::<u64>(product([shape.accumulators(), 2])).saturating_mul(gpus.saturating_sub(1) as u64)
}

/// What one GPU has of the clusters.
pub struct OwnClusters {
    /// `(k)`: which clusters have pending sums.
    touched: Buffer<u8>,
    /// `(k, d)` values of the rows' type: those of the own clusters are written.
    means: Buffer<u8>,
    /// `(k)`: those of the own clusters are written.
    rows: Buffer<i64>,
    /// The number of clusters of each GPU. The last GPU may have fewer.
    share: usize,
    /// The own clusters.
    own: Range<usize>,
    find: Launch<TouchedArgument>,
    sum: Launch<ShareSumsArgument>,
    take: Launch<TakeMeansArgument>,
}

/// What other GPUs read of it.
#[derive(Clone, Copy)]
pub struct OwnAddresses {
    touched: At<u8>,
    means: u64,
    rows: At<i64>,
}

impl OwnAddresses {
    const NULL: Self = Self { touched: At::NULL, means: 0, rows: At::NULL };

    pub fn of(own: Option<&OwnClusters>) -> Self {
        own.map_or(Self::NULL, |own| Self { touched: own.touched.at(), means: own.means.at(), rows: own.rows.at() })
    }
}

impl OwnClusters {
    /// The clusters of GPU `place` of so many.
    pub fn new<T: Float + Plain>(queue: &Queue, pool: &Pool, shape: &FitShape, place: usize, gpus: usize) -> Result<Self> {
        let (gpu, share) = (&queue.gpu, shape.k.div_ceil(gpus));
        let find = arguments::touched();
        Ok(Self {
            touched: pool.zeros(queue, shape.k, WHAT)?,
            means: pool.zeros(queue, product([shape.k, shape.d, size_of::<T>()]), WHAT)?,
            rows: pool.zeros(queue, shape.k, WHAT)?,
            share,
            own: (place * share).min(shape.k)..((place + 1) * share).min(shape.k),
            find: find.resident(gpu, "", find.blocks_of(shape.k.saturating_mul(32)))?,
            sum: arguments::share_sums::<T>().resident(gpu, "", share)?,
            take: arguments::take_means::<T>().resident(gpu, "", shape.k)?,
        })
    }

    /// The clusters whose canonical sums this GPU has.
    pub fn range(&self) -> Range<usize> {
        self.own.clone()
    }
}

/// The `u64` words of a cluster's pending sums.
fn words(shape: &FitShape) -> i32 {
    (shape.columns() * shape.limbs * 2) as i32
}

/// Queues the search for the clusters with pending sums, before this GPU says that its sums are there.
pub fn find_touched<T: Float + Plain>(state: &DeviceState<T>, port: &Port, of: ExchangedSums) -> Result<()> {
    let Some(own) = &port.own else { return Ok(()) };
    let (pending, rows) = port.pending();
    let argument = TouchedArgument {
        pending,
        rows,
        touched: own.touched.at(),
        control: state.control,
        k: state.shape.k as i32,
        words: words(&state.shape),
        moves: i32::from(of == ExchangedSums::Moves),
        unused: 0,
    };
    // SAFETY: the addresses are those of the control and of this port, whose sums have (k, words) values, and rows and `touched`
    // k. The kernel begins with the wait.
    unsafe { state.queue.run_behind(&own.find, &argument) }
}

/// Queues the sums and the means of the own clusters. The GPU has met the others.
pub fn share_sums<T: Float + Plain>(state: &DeviceState<T>, port: &Port, own: &OwnClusters, of: ExchangedSums) -> Result<()> {
    let argument = ShareSumsArgument {
        pending: each(&port.all, |other| other.turns[port.turn].pending),
        pending_rows: each(&port.all, |other| other.turns[port.turn].rows),
        touched: each(&port.all, |other| other.own.touched),
        counts: each(&port.all, |other| other.turns[port.turn].counts),
        sums: state.sums.argument(&state.shape),
        mean_exponents: state.columns.mean_exponents.at(),
        lows: state.columns.lows.at(),
        highs: state.columns.highs.at(),
        means: own.means.at(),
        rows: own.rows.at(),
        control: state.control,
        first: own.own.start as i32,
        end: own.own.end as i32,
        gpus: port.all.len() as i32,
        moves: i32::from(of == ExchangedSums::Moves),
    };
    // SAFETY: the addresses are those of this state, of this port and of the other ports of the group. They live until all GPUs
    // have done their work. All sums have equal lengths, and the own clusters are below k. The kernel before has waited until the
    // other GPUs have written theirs. The kernel begins with the wait.
    unsafe { state.queue.run_behind(&own.sum, &argument) }
}

/// Queues the copies of all means, to `centroids`, and of the numbers of rows of all clusters. The pending sums of this GPU become 0. The GPU has met the others again.
pub fn take_means<T: Float + Plain>(
    state: &DeviceState<T>,
    port: &Port,
    own: &OwnClusters,
    centroids: &Buffer<T>,
    of: ExchangedSums,
) -> Result<()> {
    let (pending, pending_rows) = port.pending();
    let mut means = [0; MOST_GPUS];
    means.iter_mut().zip(&port.all).for_each(|(place, other)| *place = other.own.means);
    let argument = TakeMeansArgument {
        means,
        rows: each(&port.all, |other| other.own.rows),
        pending,
        pending_rows,
        touched: own.touched.at(),
        centroids: centroids.at(),
        all_rows: state.sums.rows.at(),
        control: state.control,
        k: state.shape.k as i32,
        d: state.shape.d as i32,
        words: words(&state.shape),
        share: own.share as i32,
        moves: i32::from(of == ExchangedSums::Moves),
        unused: 0,
    };
    // SAFETY: as above. `centroids` has room for (k, d) values.
    unsafe { state.queue.run_behind(&own.take, &argument) }
}
