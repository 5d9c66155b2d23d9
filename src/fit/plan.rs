//! What a fit is expected to take, before there are rows: see [`KMeans::plan`].

use crate::backend::cpu::{Forecast, Layout, Lie};
use crate::backend::select::{self, Choice, Job, Place, Request, Shape};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::params::{KMeans, Params, TooFew};

/// Bytes of memory that carry rows to a GPU.
const LANES: u64 = 64 << 20;

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
    /// What the fit tries to find labels by: see [`Method::tries`](crate::Method). On a GPU, its kernel.
    pub method: String,
    /// The most bytes of the host's memory, without the rows that are given.
    pub host_bytes: u64,
    /// Bytes of all GPUs.
    pub device_bytes: u64,
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
        };
        let execution = &params.execution;
        let (device, strategy, limit) = (execution.device, execution.strategy, execution.device_memory_limit);
        let choice = select::place(Request { device, strategy, limit, there: None }, shape)?;
        let forecast = if rows.float64 { forecast::<f64> } else { forecast::<f32> };
        let Forecast { tries, bytes, bytes_beside_gpu } = forecast(rows, &params);
        let host = if choice.place == Place::Cpu { bytes } else { bytes_beside_gpu + LANES };
        let plan = FitPlan { method: tries.to_string(), host_bytes: host.saturating_add(rows.copied), device_bytes: 0, choice };
        Ok(if plan.choice.place == Place::Cpu { plan } else { on_gpus(plan) })
    }
}

fn forecast<T: Float>(rows: PlannedRows, params: &Params<'_>) -> Forecast {
    let lie = if rows.by_columns { Lie::Columns } else { Lie::RowByRow };
    let n = usize::try_from(rows.rows).unwrap_or(usize::MAX);
    let layout = Layout::new::<T>([n, rows.features, params.k], lie, rows.features, params.execution.threads);
    Forecast::new::<T>(&layout, params, rows.weighted)
}

/// The plan of a fit that would take as much on the CPU, for the GPUs that were chosen.
fn on_gpus(plan: FitPlan) -> FitPlan {
    let choice = &plan.choice;
    let alone = choice.shares.is_empty().then_some(choice.plan.bytes);
    let shares = choice.shares.iter().map(|share| share.plan.bytes);
    FitPlan { method: choice.plan.strategy.to_string(), device_bytes: shares.chain(alone).fold(0, u64::saturating_add), ..plan }
}
