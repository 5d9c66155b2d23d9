//! `init="k-means++"`: greedy k-means++.
//!
//! D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, with the greedy variant of their
//! section 5. Each step draws `2 + floor(ln k)` candidate rows. The probability of a row is proportional to the squared distance
//! to the nearest centroid so far. The step takes the candidate that lowers the potential most. Ties go to the earlier candidate.
//!
//! ```text
//! potential = precise sum of the integer distances to the nearest centroid              src/distances.rs
//! per step:   by the session alone, if it can (backend/draws.rs: plus_plus_steps); otherwise:
//!             draw the candidates by the integers of the potential
//!             potential of each candidate = potential - gain, summed again if it is not precise
//!             take the candidate with the least potential
//! ```

use crate::backend::{Draws, PlusPlus};
use crate::distances::{DistanceScale, DistanceSum};
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::memory;
use crate::params::Params;
use crate::rng::{Stream, below, draw_u64};

/// The number of candidates of a step.
pub fn trials(k: usize) -> u32 {
    2 + (k as f64).ln().floor() as u32
}

/// The starting centroids of a restart; `base` is the scale of the first distances.
pub fn seed<T: Float>(session: &mut dyn Draws<T>, params: &Params, base: DistanceScale, restart: u32) -> Result<Vec<T>> {
    let target = |total: u128, step: usize, trial: u32| {
        below(draw_u64(params.seeding.seed, Stream::PlusPlus, restart, step as u32, trial), total)
    };
    let trials = trials(params.k);
    let rows = session.positive_rows();
    let total = session.start_draws()?;
    let mut centroids = session.row(session.draw(target(total, 0, 0))?)?;
    if params.k == 1 {
        return Ok(centroids);
    }
    let d = centroids.len();
    memory::reserve(&mut centroids, d.saturating_mul(params.k - 1), super::CENTROIDS)?;
    let total = session.take_seeds(&centroids, base)?;
    let mut potential = DistanceSum { total, scale: base }.precise(rows, |finer| session.take_seeds(&[], finer))?;
    let asked = PlusPlus { seed: params.seeding.seed, restart, k: params.k, trials };
    loop {
        session.plus_plus_steps(&asked, &mut potential, &mut centroids)?;
        let step = centroids.len() / d;
        if step == params.k {
            return Ok(centroids);
        }
        if potential.total == 0 {
            return Err(KMeansError::TooFewDistinct { k: params.k, rows });
        }
        let targets: Vec<u128> = (0..trials).map(|trial| target(potential.total, step, trial)).collect();
        let (candidates, gains) = session.trials(&targets)?;
        let mut best: Option<(DistanceSum, &[T])> = None;
        for (candidate, gain) in candidates.chunks_exact(d).zip(gains) {
            let left = DistanceSum { total: potential.total - gain, scale: potential.scale };
            // In the finer scale, a distance beyond the range is clamped to it, both before and after. So the difference is
            // exact.
            let left = left.precise(rows, |finer| {
                let before = session.take_seeds(&[], finer)?;
                Ok(before - session.gains(candidate)?[0])
            })?;
            if best.as_ref().is_none_or(|(least, _)| left.exact() < least.exact()) {
                best = Some((left, candidate));
            }
        }
        let Some((left, chosen)) = best else { unreachable!("there are at least two trials") };
        centroids.extend_from_slice(chosen);
        potential = left;
        // The last centroid needs no distances. It only matters that there was a candidate to take.
        if step + 1 < params.k {
            potential.total = session.take_seeds(chosen, left.scale)?;
        }
    }
}
