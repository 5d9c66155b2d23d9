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
use crate::params::{Init, Params};
use crate::prepare::Prepared;

/// Powers of two by which copies are scaled: of values and of their squares, none leaves float32.
const SCALE_EXPONENTS: std::ops::RangeInclusive<i32> = -126..=126;

impl<'a, T: Float + Plain> CudaSession<'a, T> {
    /// A session over rows whose weights were rounded.
    pub fn new(rows: Chunks<'a, T>, prepared: &'a Prepared, params: &Params) -> Result<Self> {
        let (queue, d, n, k) = (rows.queue().clone(), rows.d(), rows.longest(), params.k);
        let starting = if let Init::Given(centroids) = &params.init { &centroids[..] } else { &[] };
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
        let shift: Vec<T> = prepared.centre.iter().map(|&m| T::from_f64(-(m * scale))).collect();
        let terms = ExpandedTerms::new(d, plan.strategy.chains(), exponent).into();

        // Padding: no copy is nearest whose half square is infinite.
        let (copies, half_squares) = match plan.strategy {
            Strategy::Registers { dimensions, .. } => {
                let mut copies = vec![0.0f32; plan.k_padded * plan.copy_width];
                copies.iter_mut().skip(dimensions).step_by(plan.copy_width).for_each(|half| *half = f32::INFINITY);
                (copies, vec![0.0])
            }
            Strategy::Tiled(_) => (vec![0.0f32; d * plan.k_padded], vec![f32::INFINITY; plan.k_padded]),
            Strategy::Rows(_) => (vec![0.0f32; plan.copy_width * plan.k_padded], vec![f32::INFINITY; plan.k_padded]),
        };
        let weight_exponent = prepared.weights.map_or(0, |scale| scale.exponent - 53);
        let mean_exponents: Vec<i32> = prepared.scales.iter().map(|scale| scale.quantum_exponent() - weight_exponent).collect();
        let factors: Vec<Factors> = prepared.scales.iter().map(Factors::from).collect();
        let mut one_limb: Vec<u8> = prepared.scales.iter().map(|scale| u8::from(has_one_limb(scale))).collect();
        one_limb.resize(columns, 0);
        let typed = |values: &[f64]| -> Vec<T> { values.iter().map(|&v| T::from_f64(v)).collect() };
        let arrays = if plan.rest.is_some() || running.is_some() { 2 } else { 1 };
        let mut session = Self {
            labels: (0..arrays).map(|_| queue.alloc(rows.padded() * plan.label_bytes)).collect::<Result<_>>()?,
            current: 0,
            columns,
            limbs,
            pending: queue.zeros(k * columns * limbs * 2)?,
            pending_rows: queue.zeros(k)?,
            sums: queue.zeros(k * columns)?,
            cluster_rows: queue.zeros(k)?,
            one_limb: queue.upload(&one_limb)?,
            factors: queue.upload(&factors)?,
            mean_exponents: queue.upload(&mean_exponents)?,
            lows: queue.upload(&typed(&prepared.lows))?,
            highs: queue.upload(&typed(&prepared.highs))?,
            shift: queue.upload(&shift)?,
            scale: T::from_f64(scale),
            terms,
            centroids: queue.zeros(k * d)?,
            previous: queue.zeros(k * d)?,
            column_centroids: queue.alloc(k * d)?,
            copies: queue.upload(&copies)?,
            half_squares: queue.upload(&half_squares)?,
            bound: queue.zeros(1)?,
            control: queue.zeros(1)?,
            records: queue.zeros(LONGEST_BATCH as usize)?,
            parts: queue.alloc(plan.update.blocks.max(plan.start.blocks) as usize)?,
            distances: queue.alloc(k)?,
            contested: queue.alloc(if plan.rest.is_some() || running.is_some() { n } else { 0 })?,
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
