//! Sessions over some rows, in every way that a fit can hold them.

use std::sync::Arc;

use polars_kmeans::InstructionSet;
use polars_kmeans::backend::cpu::CpuSession;
use polars_kmeans::backend::{Session, Sessions, Sharded};
use polars_kmeans::base::params::Params;
use polars_kmeans::input::tile::RowBlock;
use polars_kmeans::statistics::{Statistics, gather};
use polars_kmeans::{Column, Features, Float, KMeans};

/// Rows of `d` features, row-major, with their weights.
pub struct Data<T> {
    pub x: Vec<T>,
    pub weights: Option<Vec<f64>>,
    pub d: usize,
}

impl<T: Float> Data<T> {
    pub fn rows(&self) -> usize {
        self.x.len() / self.d
    }

    /// The rows between consecutive cuts, each as one part.
    pub fn parts(&self, cuts: &[usize]) -> Vec<RowBlock<'_, T>> {
        let part = |range: &[usize]| {
            let (first, last) = (range[0], range[1]);
            let weights = self.weights.as_ref().map(|weights| Column::from_slice(&weights[first..last]));
            RowBlock::new(Features::from_rows(&self.x[first * self.d..last * self.d], self.d).unwrap(), weights)
        };
        cuts.windows(2).map(part).collect()
    }

    /// What a fit knows about all rows.
    pub fn statistics(&self, estimator: &KMeans) -> Arc<Statistics> {
        Arc::new(gather(&mut self.parts(&[0, self.rows()]), &estimator.validate(self.d).unwrap()).unwrap())
    }
}

/// A session on the CPU for each part, joined if there are several.
pub fn on_cpu<'a, T: Float>(
    data: &'a Data<T>,
    statistics: &Arc<Statistics>,
    params: &Params<'_>,
    cuts: &[usize],
    set: InstructionSet,
) -> Box<dyn Session<T> + 'a> {
    let session = |part| -> Box<dyn Session<T> + 'a> {
        Box::new(CpuSession::new(part, statistics, params.k, params.execution.threads, set).unwrap())
    };
    joined(data.parts(cuts).into_iter().map(session).collect(), statistics)
}

fn joined<'a, T: Float>(mut sessions: Vec<Box<dyn Session<T> + 'a>>, statistics: &Arc<Statistics>) -> Box<dyn Session<T> + 'a> {
    if sessions.len() == 1 {
        sessions.remove(0)
    } else {
        Box::new(Sharded::new(Sessions::new(sessions), statistics, 2).unwrap())
    }
}

/// A session on the GPU for each part, joined if there are several. With `chunk`, the rows stream in chunks of so many rows. All
/// parts must have the same largest weight.
#[cfg(feature = "cuda")]
pub fn on_gpu<'a, T: Float>(
    data: &'a Data<T>,
    statistics: &Arc<Statistics>,
    params: &Params<'_>,
    cuts: &[usize],
    chunk: Option<u64>,
) -> Box<dyn Session<T> + 'a> {
    use polars_kmeans::Strategy;
    use polars_kmeans::backend::chunking::Chunking;
    use polars_kmeans::backend::cuda::{CudaSession, DevicePasses, Gpu};
    use polars_kmeans::statistics::gather_by;

    let devices = polars_kmeans::devices().unwrap();
    let device = devices.iter().find(|device| device.usable).unwrap();
    let gpu = Gpu::get(device.ordinal).unwrap();
    let session = |part: RowBlock<'a, T>| -> Box<dyn Session<T> + 'a> {
        let rows = part.features.n_rows() as u64;
        let chunking = chunk.map(|chunk| Chunking { rows: chunk, chunks: rows.div_ceil(chunk), buffers: 2, room: u64::MAX });
        let mut part = [part];
        let mut passes = DevicePasses::new(&gpu.queue().unwrap(), &mut part, chunking);
        // This sends the rows. Their own facts are not those of all rows, except for the scale of the weights.
        let own = gather_by(&mut passes, params).unwrap();
        assert_eq!(own.weights, statistics.weights);
        Box::new(
            CudaSession::new(passes.into_chunks().unwrap(), &[], statistics, params, Strategy::Default, true, None).unwrap(),
        )
    };
    joined(data.parts(cuts).into_iter().map(session).collect(), statistics)
}

/// Sessions over the same rows in every way: whole and in parts, on the CPU and, where there is one, on the GPU. `check` gets what
/// the way is called.
pub fn every_way<T: Float>(
    data: &Data<T>,
    statistics: &Arc<Statistics>,
    estimator: &KMeans,
    mut check: impl FnMut(&str, &mut dyn Session<T>),
) {
    let n = data.rows();
    let whole = [0, n];
    let sets = [InstructionSet::Avx512, InstructionSet::Avx2, InstructionSet::Neon, InstructionSet::Portable];
    let cuts: [&[usize]; 3] = [&whole, &[0, n / 3, n], &[0, 1, n / 5, n / 5 + 64, n - 1, n]];
    for threads in [1, 3] {
        let estimator = estimator.clone().threads(threads);
        let params = estimator.validate(data.d).unwrap();
        for cuts in cuts {
            for set in sets.into_iter().filter(|set| set.is_available()) {
                let what = format!("{threads} threads, {} parts, {set:?}", cuts.len() - 1);
                check(&what, on_cpu(data, statistics, &params, cuts, set).as_mut());
            }
        }
    }
    #[cfg(feature = "cuda")]
    if crate::data::gpu().is_some() {
        let params = estimator.validate(data.d).unwrap();
        let two = [0, n / 3, n];
        let whole_ways = [None, Some(1_024), Some(5_120)].map(|chunk| (&whole[..], chunk));
        for (cuts, chunk) in whole_ways.into_iter().chain([None, Some(2_048)].map(|chunk| (&two[..], chunk))) {
            let what = format!("on the GPU, {} parts, in chunks of {chunk:?}", cuts.len() - 1);
            check(&what, on_gpu(data, statistics, &params, cuts, chunk).as_mut());
        }
    }
}
