//! What a session allocates and uploads before its first iteration.

use super::{CudaSession, LONGEST_BATCH, system};
use crate::backend::Session;
use crate::backend::cuda::arguments::{Factors, has_one_limb};
use crate::backend::cuda::chunks::Chunks;
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::plan::{Plan, Strategy};
use crate::certify::ExpandedTerms;
use crate::error::Result;
use crate::fixed::{Limbs, frexp, power_of_two};
use crate::float::Float;
use crate::memory;
use crate::params::{Init, Params};
use crate::prepare::Prepared;

/// Names of the allocations in errors.
const COLUMNS: &str = "the quanta and extents of the columns";
const SUMS: &str = "the sums of the clusters";
const CENTROIDS: &str = "the centroids";
const COPIES: &str = "copies of the centroids";
const LOOP: &str = "the state of the loop";

/// The exponents of two by which copies may be scaled. Within these limits, neither the copies nor their squares leave the
/// range of float32.
const SCALE_EXPONENTS: std::ops::RangeInclusive<i32> = -126..=126;

impl<'a, T: Float + Plain> CudaSession<'a, T> {
    /// A session for rows whose weights are rounded already.
    pub fn new(rows: Chunks<'a, T>, prepared: &'a Prepared, params: &Params) -> Result<Self> {
        let (queue, d, n, k) = (rows.queue().clone(), rows.d(), rows.longest(), params.k);
        let starting = if let Init::Given(centroids) = &params.seeding.init { &centroids[..] } else { &[] };
        let columns = d + usize::from(prepared.weights.is_some());
        let two = prepared.weights.is_some() || prepared.scales.iter().any(|scale| scale.limbs == Limbs::Two);
        let limbs = 1 + usize::from(two);
        let (strategy, running) = system::set_up::<T>(&rows, params, k, columns, limbs)?;
        let plan = Plan::new::<T>(&queue.gpu, strategy, [n, d, k], columns, limbs)?;

        let offset = |f: usize, x: f64| (x - prepared.centre[f]).abs();
        let largest = (0..d).fold(0.0f64, |m, f| m.max(offset(f, prepared.lows[f])).max(offset(f, prepared.highs[f])));
        let largest = starting.iter().enumerate().fold(largest, |m, (i, &x)| m.max(offset(i % d, x)));
        let exponent = if largest > 0.0 && largest.is_finite() { -frexp(largest).1 } else { 0 };
        let exponent = if T::IS_F32 { exponent.clamp(*SCALE_EXPONENTS.start(), *SCALE_EXPONENTS.end()) } else { exponent };
        let scale = power_of_two(exponent);
        let shift: Vec<T> = memory::collected(prepared.centre.iter().map(|&m| T::from_f64(-(m * scale))), COLUMNS)?;
        let terms = ExpandedTerms::new(d, plan.strategy.chains(), exponent).into();

        // The half squares of the padding are infinite, so it is never nearest.
        let padded = |width: usize| {
            let copies = memory::zeroed(width.saturating_mul(plan.k_padded), COPIES)?;
            memory::filled(plan.k_padded, f32::INFINITY, COPIES).map(|half_squares| (copies, half_squares))
        };
        let (copies, half_squares) = match plan.strategy {
            Strategy::Registers { dimensions, .. } => {
                let mut copies = memory::zeroed::<f32>(plan.k_padded * plan.copy_width, COPIES)?;
                copies.iter_mut().skip(dimensions).step_by(plan.copy_width).for_each(|half| *half = f32::INFINITY);
                (copies, memory::zeroed(1, COPIES)?)
            }
            Strategy::Tiled(_) => padded(d)?,
            Strategy::Rows(_) => padded(plan.copy_width)?,
        };
        let weight_exponent = prepared.weights.map_or(0, |scale| scale.exponent - 53);
        let scales = prepared.scales.iter();
        let mean_exponents =
            memory::collected(scales.clone().map(|scale| scale.quantum_exponent() - weight_exponent), COLUMNS)?;
        let factors = memory::collected(scales.clone().map(Factors::from), COLUMNS)?;
        let one_limb = scales.map(|scale| u8::from(has_one_limb(scale))).chain(std::iter::repeat(0)).take(columns);
        let one_limb = memory::collected(one_limb, COLUMNS)?;
        let typed = |values: &[f64]| memory::collected(values.iter().map(|&v| T::from_f64(v)), COLUMNS);
        let arrays = if plan.rest.is_some() || running.is_some() { 2 } else { 1 };
        let mut session = Self {
            labels: (0..arrays).map(|_| queue.alloc(rows.padded() * plan.label_bytes, "the labels")).collect::<Result<_>>()?,
            current: 0,
            columns,
            limbs,
            pending: queue.zeros(k.saturating_mul(columns * limbs * 2), SUMS)?,
            pending_rows: queue.zeros(k, SUMS)?,
            sums: queue.zeros(k * columns, SUMS)?,
            cluster_rows: queue.zeros(k, SUMS)?,
            one_limb: queue.upload(&one_limb, COLUMNS)?,
            factors: queue.upload(&factors, COLUMNS)?,
            mean_exponents: queue.upload(&mean_exponents, COLUMNS)?,
            lows: queue.upload(&typed(&prepared.lows)?, COLUMNS)?,
            highs: queue.upload(&typed(&prepared.highs)?, COLUMNS)?,
            shift: queue.upload(&shift, COLUMNS)?,
            scale: T::from_f64(scale),
            terms,
            centroids: queue.zeros(k * d, CENTROIDS)?,
            previous: queue.zeros(k * d, CENTROIDS)?,
            column_centroids: queue.alloc(k * d, CENTROIDS)?,
            copies: queue.upload(&copies, COPIES)?,
            half_squares: queue.upload(&half_squares, COPIES)?,
            bound: queue.zeros(1, COPIES)?,
            control: queue.zeros(1, LOOP)?,
            records: queue.zeros(LONGEST_BATCH as usize, LOOP)?,
            parts: queue.alloc(plan.update.blocks.max(plan.start.blocks) as usize, LOOP)?,
            distances: queue.alloc(k, LOOP)?,
            contested: queue.alloc(if plan.rest.is_some() || running.is_some() { n } else { 0 }, "the rows in doubt")?,
            seeds: None,
            partial: None,
            running,
            rows,
            prepared,
            plan,
            k,
            d,
            queue,
        };
        session.reset()?;
        Ok(session)
    }
}
