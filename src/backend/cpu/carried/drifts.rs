//! How far the centroids moved since the last assign.

use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::simd::{InstructionSet, Task, Vector};
use crate::certify::carry::Carry;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::partial::UNASSIGNED;

/// How far each centroid moved since the last assign.
pub struct Drifts {
    pub each: Vec<f32>,
    /// The centroid that moved farthest, how far, and how far the others moved at most.
    pub farthest: u32,
    pub most: f32,
    pub next: f32,
}

impl Drifts {
    pub fn new<T: Float>(
        carry: &Carry,
        before: &CentroidTable<T>,
        table: &CentroidTable<T>,
        set: InstructionSet,
    ) -> Result<Self> {
        let mut each = memory::zeroed(table.k, "how far the centroids moved")?;
        set.run(Measure { carry, before, table, each: &mut each });
        let (mut farthest, mut most, mut next) = (UNASSIGNED, 0.0f32, 0.0f32);
        for (j, &drift) in (0u32..).zip(&each) {
            if drift > most {
                (farthest, most, next) = (j, drift, most);
            } else {
                next = next.max(drift);
            }
        }
        Ok(Self { each, farthest, most, next })
    }
}

/// Measures how far each centroid moved.
struct Measure<'p, T> {
    carry: &'p Carry,
    before: &'p CentroidTable<T>,
    table: &'p CentroidTable<T>,
    each: &'p mut [f32],
}

impl<T: Float> Task for Measure<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (j, drift) in self.each.iter_mut().enumerate() {
            let (old, new) = (self.before.row(j), self.table.row(j));
            *drift = if old == new { 0.0 } else { self.carry.drift(chain(old, new)) };
        }
    }
}

/// The reference distance. It is part of its caller, so its fused operations are instructions.
#[inline(always)]
pub fn chain<X: Float, C: Float>(x: &[X], c: &[C]) -> f64 {
    x.iter().zip(c).fold(0.0, |s: f64, (x, c)| {
        let t = x.to_f64() - c.to_f64();
        t.mul_add(t, s)
    })
}
