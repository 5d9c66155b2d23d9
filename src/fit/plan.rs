//! What a fit is expected to take, before there are rows: see [`KMeans::plan`].

use crate::backend::cpu::{Forecast, MemoryOrder, SessionLayout};
use crate::backend::select::{self, Choice, DeviceRequest, Job, Place, Shape};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::params::{Init, KMeans, Params, TooFew};
use crate::fit::rows::device_of;
use crate::fit::sizes;

/// Bytes of memory that carry rows to a GPU.
const LANES: u64 = 64 << 20;
/// Seconds of a step of k-means++ on a GPU for its launches, and multiply-adds a second of candidates of k-means||.
const GPU_STEP: f64 = 55e-6;
const GPU_CANDIDATES: f64 = 5e12;

/// The shape of rows that are planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRows {
    pub rows: u64,
    pub features: usize,
    /// Whether features are float64.
    pub float64: bool,
    /// Whether features are all of one type of 16 bits.
    pub half: bool,
    /// Whether rows have weights.
    pub weighted: bool,
    /// Whether each feature lies in a column of its own. Else the features of a row lie side by side.
    pub by_columns: bool,
    /// Bytes of columns, also of weights, that are computed or cast before the fit.
    pub copied: u64,
}

/// Where a fit is expected to run, and what memory it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct FitPlan {
    /// The device, and why.
    pub choice: Choice,
    /// What the fit tries to find labels by: see [`MethodExplanation::tries`](crate::MethodExplanation). On a GPU, its kernel.
    pub method: String,
    /// The most bytes of the host's memory, without the rows that are given.
    pub host_bytes: u64,
    /// Bytes of all GPUs.
    pub device_bytes: u64,
    /// Seconds for the starting centroids of all restarts. Rough, as the next: expect a third to three times as long.
    pub seconds_seeding: f64,
    /// Seconds for an iteration, on the average.
    pub seconds_iteration: f64,
}

impl KMeans {
    /// Says what a fit of such rows is expected to take. Nothing is allocated or sent.
    ///
    /// ```
    /// use polars_kmeans::{Device, KMeans, PlannedRows};
    ///
    /// let (float64, half, weighted, by_columns, copied) = (false, false, false, true, 0);
    /// let rows = PlannedRows { rows: 1_000_000, features: 8, float64, half, weighted, by_columns, copied };
    /// let plan = KMeans::new(16).device(Device::Cpu).plan(rows)?;
    /// assert_eq!(plan.choice.place.to_string(), "cpu");
    /// assert!(plan.host_bytes > 0 && plan.device_bytes == 0);
    /// assert!(plan.seconds_seeding > 0.0 && plan.seconds_iteration > 0.0);
    /// # Ok::<(), polars_kmeans::KMeansError>(())
    /// ```
    ///
    /// # Errors
    /// Those of a fit that need no values: of the parameters, the number of rows, and devices.
    pub fn plan(&self, rows: PlannedRows) -> Result<FitPlan> {
        let params = self.validate(rows.features)?;
        if rows.rows == 0 {
            return Err(KMeansError::NoRows { skipped: None });
        }
        let fewer = params.output.too_few == TooFew::Fewer;
        let params = match usize::try_from(rows.rows) {
            Ok(n) if n < params.k && fewer => Params { k: n, ..params },
            Ok(n) if n < params.k => return Err(KMeansError::TooFewDistinct { k: params.k, rows: rows.rows }),
            _ => params,
        };
        let shape = Shape {
            job: Job::Fit,
            rows: rows.rows,
            features: rows.features,
            clusters: params.k,
            float64: rows.float64,
            half: rows.half && params.keeps_halves(),
            weighted: rows.weighted,
            candidates: params.seeding.candidates(params.k),
            priced: params.has_sizes(),
        };
        let execution = &params.execution;
        let (device, strategy, limit) = (device_of(&params)?, execution.strategy, execution.device_memory_limit);
        let choice = select::place(DeviceRequest { device, strategy, limit, there: None }, shape)?;
        let plan = of_choice(choice, rows, shape, &params);
        if !params.has_sizes() {
            return Ok(plan);
        }
        Ok(FitPlan { host_bytes: plan.host_bytes.saturating_add(sizes::expected_bytes(rows.rows, params.k)), ..plan })
    }
}

/// The plan of a fit on the devices that were chosen.
fn of_choice(choice: Choice, rows: PlannedRows, shape: Shape, params: &Params<'_>) -> FitPlan {
    let forecast = if rows.float64 { forecast::<f64> } else { forecast::<f32> };
    let Forecast { tries, bytes, bytes_beside_gpu, seconds_seeding, seconds_iteration } = forecast(rows, params);
    if choice.place == Place::Cpu {
        let (method, host_bytes) = (tries.to_string(), bytes.saturating_add(rows.copied));
        return FitPlan { choice, method, host_bytes, device_bytes: 0, seconds_seeding, seconds_iteration };
    }
    let alone = choice.shares.is_empty().then_some((shape.rows, choice.plan));
    let shares = || choice.shares.iter().map(|share| (share.rows, share.plan)).chain(alone);
    // The slowest GPU decides.
    let [iteration, pass] = shares().fold([0.0; 2], |[iteration, pass]: [f64; 2], (rows, plan)| {
        let own = select::seconds_on_gpu(Shape { rows, ..shape }, &plan);
        [iteration.max(own[0]), pass.max(own[1])]
    });
    FitPlan {
        method: choice.plan.strategy.to_string(),
        host_bytes: bytes_beside_gpu.saturating_add(LANES).saturating_add(rows.copied),
        device_bytes: shares().map(|(_, plan)| plan.bytes).fold(0, u64::saturating_add),
        seconds_seeding: seconds_of_seeding(shape, params, pass, seconds_seeding),
        seconds_iteration: iteration,
        choice,
    }
}

/// Seconds for the starting centroids of all restarts on GPUs. `pass`: those of a pass over all rows. `on_host`: those of a fit on
/// the CPU.
fn seconds_of_seeding(shape: Shape, params: &Params<'_>, pass: f64, on_host: f64) -> f64 {
    let (seeding, k, rows) = (&params.seeding, params.k as f64, shape.rows as f64);
    let share = seeding.init_sample.map_or(1.0, |most| (most as f64 / rows).min(1.0));
    let of_restart = match seeding.init {
        Init::Given(_) | Init::Random => GPU_STEP,
        Init::KMeansParallel => {
            let rounds = f64::from(seeding.rounds);
            let candidates = seeding.oversampling * k * rounds;
            rounds * pass + share * rows * shape.features as f64 * candidates / GPU_CANDIDATES
        }
        Init::KMeansPlusPlus => k * (GPU_STEP + share * pass),
        // The host finds these.
        Init::AfkMc2 | Init::Optimal => return on_host,
    };
    f64::from(params.restarts) * of_restart
}

fn forecast<T: Float>(rows: PlannedRows, params: &Params<'_>) -> Forecast {
    let lie = if rows.by_columns { MemoryOrder::Columns } else { MemoryOrder::RowByRow };
    let n = usize::try_from(rows.rows).unwrap_or(usize::MAX);
    let layout = SessionLayout::new::<T>([n, rows.features, params.k], lie, rows.features, params.execution.threads);
    Forecast::new::<T>(&layout, params, rows.weighted)
}

#[cfg(all(feature = "tests", feature = "cuda"))]
mod tests {
    use super::*;
    use crate::backend::select::{choose, invented_device};
    use crate::base::params::{Device, DrawnCandidates, Restarts};

    const GB: u64 = 1_000_000_000;

    /// A plan for GPUs that have so many bytes each.
    fn planned(device: Device, gpus: &[u64], rows: u64, estimator: &KMeans) -> FitPlan {
        let (features, clusters) = (32, 256);
        let (job, float64, half, weighted, candidates) = (Job::Fit, false, false, false, DrawnCandidates::NONE);
        let shape = Shape { job, rows, features, clusters, float64, half, weighted, candidates, priced: false };
        let rows = PlannedRows { rows, features, float64, half, weighted, by_columns: true, copied: 0 };
        let devices = gpus.iter().enumerate().map(|(ordinal, free)| invented_device(ordinal as u32, *free)).collect();
        let choice = choose(device.into(), shape, &Ok(devices)).unwrap();
        of_choice(choice, rows, shape, &estimator.validate(features).unwrap())
    }

    unit_test!(plans_for_gpus_add_up);
    fn plans_for_gpus_add_up() {
        let estimator = KMeans::new(256);
        let plan = |device, gpus: &[u64]| planned(device, gpus, 10_000_000, &estimator);
        let one = plan(Device::Cuda(None), &[100 * GB]);
        let rows = 10_000_000 * 32 * 4;
        assert!(one.device_bytes > rows && one.device_bytes < 4 * rows, "{one:?}");
        assert_eq!(one.method, one.choice.plan.strategy.to_string());
        // Labels come back, and rows go through a few pieces of memory.
        assert!(one.host_bytes > 40_000_000 && one.host_bytes < 400_000_000, "{one:?}");
        assert!((1e-4..1e-1).contains(&one.seconds_iteration) && (1e-2..1.0).contains(&one.seconds_seeding), "{one:?}");
        let two = plan(Device::AllCuda, &[100 * GB, 100 * GB]);
        assert!(two.device_bytes > rows && two.device_bytes < 2 * one.device_bytes, "{two:?}");
        assert!(two.seconds_iteration < 0.7 * one.seconds_iteration, "{two:?}");
        // In chunks, the bus takes longer than the products.
        let chunks = plan(Device::Cuda(None), &[GB]);
        assert!(chunks.choice.plan.chunking.is_some() && chunks.device_bytes <= GB, "{chunks:?}");
        assert!(chunks.seconds_iteration > 3.0 * one.seconds_iteration, "{chunks:?}");
        assert!(chunks.seconds_seeding > 3.0 * one.seconds_seeding, "{chunks:?}");
    }

    unit_test!(seconds_on_a_gpu_grow_with_the_work);
    fn seconds_on_a_gpu_grow_with_the_work() {
        let estimator = KMeans::new(256);
        let plan = |rows, estimator: &KMeans| planned(Device::Cuda(None), &[100 * GB], rows, estimator);
        let [few, many] = [1_000_000, 10_000_000].map(|rows| plan(rows, &estimator));
        assert!(few.seconds_seeding < many.seconds_seeding && few.seconds_iteration < many.seconds_iteration);
        let restarts = plan(1_000_000, &estimator.clone().n_init(Restarts::Count(3)));
        assert!((restarts.seconds_seeding / few.seconds_seeding - 3.0).abs() < 1e-9, "{restarts:?}");
        assert!(plan(10_000_000, &estimator.clone().init_sample(Some(10_000))).seconds_seeding < many.seconds_seeding);
        assert!(plan(10_000_000, &estimator.clone().init(Init::Random)).seconds_seeding < 1e-2);
    }
}
