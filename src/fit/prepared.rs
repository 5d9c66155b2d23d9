//! Rows that are prepared where the fit runs: on the host, on a GPU, or on several GPUs, each of which prepares its own share.
//! Sessions for any numbers of clusters are made over them.

#[cfg(feature = "cuda")]
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::backend::cpu::CpuSession;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{CudaSession, Gpu, GpuGroup, GpusInStep, MOST_PENDING, RowChunks, SeveralPasses};
use crate::backend::select::{Choice, Place};
#[cfg(feature = "cuda")]
use crate::backend::select::{Plan, Share};
#[cfg(feature = "bench")]
use crate::backend::timed::Timed;
use crate::backend::{Session, Sessions, Sharded};
#[cfg(all(feature = "bench", feature = "cuda"))]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
#[cfg(feature = "cuda")]
use crate::base::parallel::at_once;
use crate::base::params::Params;
use crate::input::tile::{RowBlock, Selection};
use crate::model::Scaling;
use crate::simd::InstructionSet;
#[cfg(feature = "cuda")]
use crate::statistics::gather_by;
use crate::statistics::{Statistics, gather};

/// What errors call the list of sessions.
const SESSIONS: &str = "the list of sessions";
/// The name of the shares in errors.
#[cfg(feature = "cuda")]
const SHARES: &str = "the rows of several GPUs";

/// The rows of a fit, wherever they are, and what is known about them.
pub(crate) trait PreparedRows<T: Float> {
    fn statistics(&self) -> &Arc<Statistics>;
    /// A session over the rows, for the clusters of these parameters.
    fn session(&self, params: &Params<'_>) -> Result<Box<dyn Session<T> + '_>>;
    /// Where the rows came from, and where they are.
    fn origin(&self, params: &Params<'_>) -> Result<Origin>;
}

/// Where the rows of a fit came from, and where it runs.
pub(crate) struct Origin {
    pub names: Names,
    /// For each part, which of its rows are kept, and how many it has.
    pub selection: Vec<(Selection, usize)>,
    pub scaling: Option<Scaling>,
    pub choice: Choice,
}

/// Prepared rows of this process.
pub(super) struct LocalRows<'a, T> {
    statistics: Arc<Statistics>,
    choice: Choice,
    parts: Vec<RowBlock<'a, T>>,
    /// What a session on the CPU works with.
    set: InstructionSet,
    /// What each GPU has of the rows, in their order. Empty on the CPU.
    #[cfg(feature = "cuda")]
    on_gpus: Vec<OnGpu<'a, T>>,
}

/// The rows of one GPU.
#[cfg(feature = "cuda")]
struct OnGpu<'a, T> {
    chunks: Arc<RowChunks<'a, T>>,
    /// The parts that have these rows.
    parts: Range<usize>,
    share: Share,
}

impl<'a, T: Float> LocalRows<'a, T> {
    /// Prepares rows where the choice says. `ties`: see [`Statistics`].
    pub fn new(
        mut parts: Vec<RowBlock<'a, T>>,
        choice: &Choice,
        params: &Params<'_>,
        set: InstructionSet,
        ties: Option<Arc<AtomicBool>>,
    ) -> Result<Self> {
        match choice.place {
            Place::Cpu => {
                let statistics = Arc::new(Statistics { ties, ..gather(&mut parts, params)? });
                Ok(Self {
                    statistics,
                    choice: choice.clone(),
                    parts,
                    set,
                    #[cfg(feature = "cuda")]
                    on_gpus: Vec::new(),
                })
            }
            #[cfg(feature = "cuda")]
            Place::Cuda(_) | Place::Several(_) => Self::on_gpus(&parts, choice, params, set, ties),
            #[cfg(not(feature = "cuda"))]
            _ => unreachable!("without the feature there is no GPU to choose"),
        }
    }

    #[cfg(feature = "cuda")]
    fn on_gpus(
        parts: &[RowBlock<'a, T>],
        choice: &Choice,
        params: &Params<'_>,
        set: InstructionSet,
        ties: Option<Arc<AtomicBool>>,
    ) -> Result<Self> {
        let shares = shares(choice);
        let queue = |share: &Share| Ok(Gpu::get(share.ordinal)?.queue()?.within(share.plan.room));
        let queues = memory::try_collected(shares.iter().map(queue), SHARES)?;
        let (mut parts, ranges) = cut(parts, &shares)?;
        let places = queues.into_iter().zip(&shares).zip(&ranges);
        let places = places.map(|((queue, share), parts)| (queue, share.plan.chunking, parts.len()));
        let mut passes = SeveralPasses::new(places, &mut parts)?;
        let statistics = Arc::new(Statistics { ties, ..gather_by(&mut passes, params)? });
        let on_gpus = passes.into_chunks()?.into_iter().zip(ranges).zip(shares);
        // All rows of a share may have been left out.
        let on_gpus = on_gpus.filter_map(|((chunks, parts), share)| chunks.map(|chunks| OnGpu { chunks, parts, share }));
        let on_gpus = memory::collected(on_gpus, SHARES)?;
        Ok(Self { statistics, choice: choice.clone(), parts, set, on_gpus })
    }

    fn session_on_cpu(&self, part: &RowBlock<'a, T>, params: &Params<'_>) -> Result<CpuSession<'a, T>> {
        CpuSession::new(part.clone(), &self.statistics, params.k, params.execution.threads, self.set)
    }

    #[cfg(feature = "cuda")]
    fn session_on_gpu(&self, rows: &OnGpu<'a, T>, params: &Params<'_>, group: Option<&GpuGroup>) -> Result<CudaSession<'a, T>> {
        let OnGpu { chunks, parts, share: Share { plan: Plan { strategy, more_copies, .. }, .. } } = rows;
        let parts = &self.parts[parts.clone()];
        CudaSession::new(chunks.clone(), parts, &self.statistics, params, *strategy, *more_copies, group)
    }

    /// A session whose passes are timed, on one device.
    #[cfg(feature = "bench")]
    pub fn timed(&self, params: &Params<'_>) -> Result<Box<dyn Timed<T> + 'a>> {
        #[cfg(feature = "cuda")]
        match &self.on_gpus[..] {
            [] => {}
            [rows] => return Ok(Box::new(self.session_on_gpu(rows, params, None)?)),
            _ => {
                let (expected, got) = ("one device to measure".into(), format!("\"{}\"", params.execution.device));
                return Err(KMeansError::InvalidOption { option: "device", expected, got });
            }
        }
        Ok(Box::new(self.session_on_cpu(&self.parts[0], params)?))
    }

    /// One session for all GPUs.
    #[cfg(feature = "cuda")]
    fn session_on_gpus(&self, params: &Params<'_>) -> Result<Box<dyn Session<T> + '_>> {
        // Sums of more rows, and those that a paper's system adds up on the host, are merged there.
        let on_host = self.statistics.n > MOST_PENDING as u64 || self.choice.plan.strategy.is_of_a_paper();
        let queues = memory::collected(self.on_gpus.iter().map(|rows| rows.chunks.queue().clone()), SHARES)?;
        let group = if on_host { None } else { GpuGroup::new(&queues)? };
        let mut sessions = at_once(memory::collected(&self.on_gpus, SHARES)?, |rows| {
            self.session_on_gpu(rows, params, group.as_ref()).map(Box::new)
        })?;
        let threads = params.execution.threads;
        Ok(match group {
            _ if sessions.len() == 1 => sessions.remove(0),
            Some(group) => {
                let gpus = GpusInStep::new(sessions, group, &self.statistics)?;
                Box::new(Sharded::new(gpus, &self.statistics, threads)?)
            }
            None => {
                let sessions = sessions.into_iter().map(|session| -> Box<dyn Session<T> + '_> { session });
                Box::new(Sharded::new(Sessions::new(memory::collected(sessions, SHARES)?), &self.statistics, threads)?)
            }
        })
    }
}

impl<'a, T: Float> PreparedRows<T> for LocalRows<'a, T> {
    fn statistics(&self) -> &Arc<Statistics> {
        &self.statistics
    }

    fn session(&self, params: &Params<'_>) -> Result<Box<dyn Session<T> + '_>> {
        #[cfg(feature = "cuda")]
        if !self.on_gpus.is_empty() {
            return self.session_on_gpus(params);
        }
        let session =
            |part: &RowBlock<'a, T>| -> Result<Box<dyn Session<T> + 'a>> { Ok(Box::new(self.session_on_cpu(part, params)?)) };
        let mut sessions = memory::try_collected(self.parts.iter().map(session), SESSIONS)?;
        Ok(match sessions.len() {
            1 => sessions.remove(0),
            _ => Box::new(Sharded::new(Sessions::new(sessions), &self.statistics, params.execution.threads)?),
        })
    }

    fn origin(&self, params: &Params<'_>) -> Result<Origin> {
        let features = &self.parts[0].features;
        Ok(Origin {
            names: features.names().clone(),
            selection: self.parts.iter().map(|part| (part.selection.clone(), part.features.n_rows())).collect(),
            scaling: Scaling::new(features.row_transform(), params)?,
            choice: self.choice.clone(),
        })
    }
}

/// What each GPU of a choice has of the rows.
#[cfg(feature = "cuda")]
fn shares(choice: &Choice) -> Vec<Share> {
    match choice.place {
        Place::Cuda(ordinal) => vec![Share { ordinal, rows: u64::MAX, plan: choice.plan }],
        _ => choice.shares.clone(),
    }
}

/// The rows of all shares, and which of these parts each share has.
#[cfg(feature = "cuda")]
type Cut<'a, T> = (Vec<RowBlock<'a, T>>, Vec<Range<usize>>);

/// Cuts rows into shares, in order.
#[cfg(feature = "cuda")]
fn cut<'a, T: Float>(parts: &[RowBlock<'a, T>], shares: &[Share]) -> Result<Cut<'a, T>> {
    let (mut all, mut ranges) = (Vec::new(), memory::with_room(shares.len(), SHARES)?);
    // Sorting may have left rows out.
    let there: usize = parts.iter().map(|part| part.features.n_rows()).sum();
    let planned: u64 = shares.iter().map(|share| share.rows).sum();
    let rows_of = |share: &Share| (u128::from(share.rows) * there as u128 / u128::from(planned.max(1))) as usize;
    let mut parts = parts.iter();
    let (mut part, mut start) = (parts.next(), 0usize);
    for (place, share) in shares.iter().enumerate() {
        let before = all.len();
        // The last share has what is left.
        let mut left = if place + 1 == shares.len() { usize::MAX } else { rows_of(share) };
        while let Some(here) = part.filter(|_| left > 0) {
            let n = here.features.n_rows();
            let end = n.min(start.saturating_add(left));
            // A whole part stays as it is, so that rows on a GPU can be read in place.
            let some = if end - start == n { here.clone() } else { here.slice(start..end)? };
            memory::push(&mut all, some, SHARES)?;
            left -= end - start;
            start = end;
            if end == n {
                (part, start) = (parts.next(), 0);
            }
        }
        ranges.push(before..all.len());
    }
    Ok((all, ranges))
}

#[cfg(all(feature = "tests", feature = "cuda"))]
mod tests {
    use super::*;
    use crate::input::features::Features;

    unit_test!(rows_are_cut_in_order);
    fn rows_are_cut_in_order() {
        let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let part = |range: std::ops::Range<usize>| RowBlock::new(Features::from_rows(&x[range], 1).unwrap(), None);
        let parts = [part(0..3), part(3..3), part(3..11), part(11..20)];
        let share = |rows| Share { ordinal: 0, rows, plan: Plan::within(0) };
        let lengths = |shares: &[u64]| {
            let shares: Vec<Share> = shares.iter().map(|rows| share(*rows)).collect();
            let (cut, ranges) = cut(&parts, &shares).unwrap();
            let rows: Vec<usize> = cut.iter().map(|part| part.features.n_rows()).collect();
            assert_eq!(rows.iter().sum::<usize>(), 20);
            let mut first = 0;
            for part in &cut {
                let n = part.features.n_rows();
                let mut values = vec![0.0; n];
                part.features.copy_tile(0..n, n, &mut values);
                assert_eq!(values, &x[first..first + n]);
                first += n;
            }
            ranges.into_iter().map(|range| rows[range].iter().sum::<usize>()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[20]), [20]);
        assert_eq!(lengths(&[10, 10]), [10, 10]);
        assert_eq!(lengths(&[3, 1, 7, 9]), [3, 1, 7, 9]);
        assert_eq!(lengths(&[1, 19]), [1, 19]);
    }
}
