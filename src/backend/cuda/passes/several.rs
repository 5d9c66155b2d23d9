//! The passes before a fit on several GPUs: each GPU passes over its own rows, all at the same time, and the results are merged.

use std::sync::Arc;

use super::statistics::DevicePasses;
use crate::backend::chunking::Chunking;
use crate::backend::cuda::device::{Plain, Queue};
use crate::backend::cuda::rows::chunks::RowChunks;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::at_once;
use crate::input::tile::{RowBlock, WeightScale};
use crate::statistics::given::{Given, HostRows};
use crate::statistics::passes::{Passes, merged};
use crate::statistics::quanta::Counts;
use crate::statistics::survey::{Extent, Survey};
use crate::statistics::variance::Moments;

/// The name of the GPUs in errors.
const GPUS: &str = "the GPUs of a fit";

/// The rows of a fit that will run on several GPUs.
pub struct SeveralPasses<'p, 'a, T> {
    /// In the order of the GPUs.
    parts: &'p mut [RowBlock<'a, T>],
    shares: Vec<RowsOfGpu<'a, T>>,
}

/// What one GPU has of the rows.
struct RowsOfGpu<'a, T> {
    queue: Queue,
    chunking: Option<Chunking>,
    /// The number of its parts.
    parts: usize,
    /// Its rows, from pass 1 on. None if it has none.
    chunks: Option<RowChunks<'a, T>>,
}

impl<'p, 'a, T: Float + Plain> SeveralPasses<'p, 'a, T> {
    /// The passes over these parts. `shares`: for each GPU its queue, how rows pass through it, and the number of its parts.
    pub fn new(
        shares: impl IntoIterator<Item = (Queue, Option<Chunking>, usize)>,
        parts: &'p mut [RowBlock<'a, T>],
    ) -> Result<Self> {
        let shares = shares.into_iter().map(|(queue, chunking, parts)| RowsOfGpu { queue, chunking, parts, chunks: None });
        Ok(Self { parts, shares: memory::collected(shares, GPUS)? })
    }

    /// The kept rows of each GPU after all passes.
    pub fn into_chunks(self) -> Result<Vec<Option<Arc<RowChunks<'a, T>>>>> {
        memory::collected(self.shares.into_iter().map(|share| share.chunks.map(Arc::new)), GPUS)
    }

    /// Calls `work` for each GPU, or for each that has rows.
    fn each<R: Send>(&mut self, all: bool, work: impl Fn(&mut DevicePasses<'_, 'a, T>) -> Result<R> + Sync) -> Result<Vec<R>> {
        let mut rest = &mut *self.parts;
        let mut tasks = memory::with_room(self.shares.len(), GPUS)?;
        for share in &mut self.shares {
            let (own, others) = rest.split_at_mut(share.parts);
            rest = others;
            // Sorting may have left out so many rows that a share has none.
            if share.parts > 0 && (all || share.chunks.is_some()) {
                tasks.push((share, own));
            }
        }
        at_once(tasks, |(share, parts)| {
            let mut passes = DevicePasses::new(&share.queue, parts, share.chunking);
            passes.chunks = share.chunks.take();
            let result = work(&mut passes);
            share.chunks = passes.into_chunks();
            result
        })
    }
}

impl<T: Float + Plain> Passes<T> for SeveralPasses<'_, '_, T> {
    fn given(&self) -> Box<dyn Given + '_> {
        Box::new(HostRows(self.parts))
    }

    fn survey(&mut self) -> Result<Survey> {
        let d = self.parts[0].features.n_features();
        Survey::of_all(self.each(true, |passes| passes.survey())?, d)
    }

    fn skip_bad(&mut self, _: Survey) -> Result<Survey> {
        let d = self.parts[0].features.n_features();
        Survey::of_all(self.each(true, |passes| passes.skip_bad(Survey::empty(d)?))?, d)
    }

    fn round_weights(&mut self, scale: WeightScale) -> Result<()> {
        self.each(false, |passes| passes.round_weights(scale)).map(drop)
    }

    fn weighted_extents(&mut self) -> Result<Vec<Extent>> {
        Ok(merged(self.each(false, |passes| passes.weighted_extents())?).unwrap_or_default())
    }

    fn count_small(&mut self, largest: &[Option<f64>], weighted: bool) -> Result<Vec<Counts>> {
        Ok(merged(self.each(false, |passes| passes.count_small(largest, weighted))?).unwrap_or_default())
    }

    fn variance_sums(&mut self, moments: &[Moments]) -> Result<Vec<[i128; 2]>> {
        Ok(merged(self.each(false, |passes| passes.variance_sums(moments))?).unwrap_or_default())
    }
}
