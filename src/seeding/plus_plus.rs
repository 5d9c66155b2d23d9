//! `init="k-means++"`: greedy k-means++.
//!
//! D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, with the greedy variant of their
//! section 5: each step draws `2 + floor(ln k)` candidate rows with probability proportional to the squared distance to the
//! nearest centroid so far, and takes the one that lowers the potential most (then the earlier).

use crate::backend::Session;
use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::memory;
use crate::params::Params;
use crate::rng::{Stream, below, draw_u64};

pub fn seed<T: Float>(session: &mut dyn Session<T>, params: &Params, restart: u32) -> Result<Vec<T>> {
    let target = |total: u128, step: usize, trial: u32| {
        below(draw_u64(params.seed, Stream::PlusPlus, restart, step as u32, trial), total)
    };
    let trials = 2 + (params.k as f64).ln().floor() as u32;
    let total = session.start_draws()?;
    let mut centroids = session.row(session.draw(target(total, 0, 0))?)?;
    if params.k == 1 {
        return Ok(centroids);
    }
    let d = centroids.len();
    memory::reserve(&mut centroids, d.saturating_mul(params.k - 1), super::CENTROIDS)?;
    let mut total = session.take_seed(&centroids)?;
    for step in 1..params.k {
        if total == 0 {
            return Err(KMeansError::TooFewDistinct { k: params.k, rows: session.positive_rows() });
        }
        let targets: Vec<u128> = (0..trials).map(|trial| target(total, step, trial)).collect();
        let (candidates, gains) = session.trials(&targets)?;
        let best = gains.iter().enumerate().fold(0, |best, (i, gain)| if *gain > gains[best] { i } else { best });
        let chosen = &candidates[best * d..][..d];
        centroids.extend_from_slice(chosen);
        // The last centroid needs no distances: only whether there was one to take.
        if step + 1 < params.k {
            total = session.take_seed(chosen)?;
        }
    }
    Ok(centroids)
}
