//! A few rows as a session of their own: candidates, or a sample.

use std::sync::Arc;

use crate::backend::Seeder;
use crate::backend::cpu::CpuSession;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Params;
use crate::exact::distances::DistanceScale;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, WeightScale};
use crate::simd::InstructionSet;
use crate::statistics::Statistics;

/// Some rows of a fit, with weights of their own.
pub struct Table<T> {
    values: Vec<T>,
    weights: Option<Vec<f64>>,
    pub statistics: Arc<Statistics>,
}

impl<T: Float> Table<T> {
    /// `values`: `(rows, d)`, row-major. `distances` and the scale of the weights are for integers of these rows. `all`: what is
    /// known of all rows of the fit.
    pub fn new(
        values: Vec<T>,
        weights: Option<(Vec<f64>, WeightScale)>,
        distances: DistanceScale,
        all: &Statistics,
    ) -> Result<Self> {
        const WHAT: &str = "the columns' extents";
        let rows = (values.len() / all.lows.len()) as u64;
        let statistics = Statistics {
            n: rows,
            n_positive: rows,
            lows: memory::copied(&all.lows, WHAT)?,
            highs: memory::copied(&all.highs, WHAT)?,
            // Seeding adds up no features.
            scales: Vec::new(),
            distances,
            shifts: DistanceScale::NONE,
            variance: 0.0,
            metric: all.metric,
            ties: None,
            weights: weights.as_ref().map(|(_, scale)| *scale),
        };
        let weights = weights.map(|(weights, _)| weights);
        Ok(Self { values, weights, statistics: Arc::new(statistics) })
    }

    /// Calls `work` with a session over the rows: where those of `near` are, or on the CPU.
    pub fn with_session<R>(
        &self,
        near: &dyn Seeder<T>,
        params: &Params,
        work: impl Fn(&mut dyn Seeder<T>) -> Result<R>,
    ) -> Result<R> {
        let features = Features::from_rows(&self.values, self.statistics.lows.len())?;
        let part = RowBlock::new(features, self.weights.as_ref().map(|weights| Column::from_slice(weights)));
        if let Some(mut session) = near.other_rows(&part, &self.statistics, params.k) {
            match work(session.as_mut()) {
                // The plan of a device does not count these rows.
                Err(KMeansError::NoMemory { .. }) => {}
                result => return result,
            }
        }
        let threads = params.execution.threads;
        work(&mut CpuSession::new(part, &self.statistics, params.k, threads, InstructionSet::detect())?)
    }
}
