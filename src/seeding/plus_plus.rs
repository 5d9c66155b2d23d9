//! `init="k-means++"`: greedy k-means++.
//!
//! D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, with the greedy variant of their
//! section 5. Each step draws `2 + floor(ln k)` candidate rows. The probability of a row is proportional to the squared distance
//! to the nearest centroid so far. The step takes the candidate that lowers the potential most. Ties go to the earlier candidate.
//!
//! ```text
//! potential = precise sum of the integer distances to the nearest centroid              src/exact/distances.rs
//! per step:   by the session alone, if it can (backend/seeder.rs: plus_plus_steps); otherwise:
//!             draw the candidates by the integers of the potential
//!             potential of each candidate = potential - gain, summed again if it is not precise
//!             take the candidate with the least potential
//! ```

use crate::backend::{Draw, DrawBy, Picked, PlusPlus, Seeder, trials};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Params;
use crate::exact::distances::{DistanceScale, DistanceSum};
use crate::exact::rng::{DrawPurpose, below, draw_u64};

impl PlusPlus {
    /// The steps of a restart.
    pub fn of(params: &Params, restart: u32) -> Self {
        let (seed, k) = (params.seeding.seed, params.k);
        Self { seed, stream: DrawPurpose::PlusPlus, restart, k, trials: trials(k) }
    }

    /// What a step draws.
    fn target(&self, total: u128, step: usize, trial: u32) -> u128 {
        below(draw_u64(self.seed, self.stream, self.restart, step as u32, trial), total)
    }
}

/// The starting centroids: `asked.k` of them, or as many as there are distinct rows. `base` is the scale of the first distances.
pub fn seed<T: Float>(session: &mut dyn Seeder<T>, asked: &PlusPlus, base: DistanceScale) -> Result<Vec<T>> {
    let mut centroids = first(session, asked)?.values;
    if asked.k > 1 {
        let potential = take(session, &centroids, base)?;
        let d = centroids.len();
        go_on(session, asked, potential, &mut centroids, d)?;
    }
    Ok(centroids)
}

/// The first centroid.
pub struct First<T> {
    pub row: u64,
    pub values: Vec<T>,
    /// The total weight of the rows, as an integer.
    pub weight: u128,
}

/// Starts the draws of a session and draws the first centroid, by the weights of the rows.
pub fn first<T: Float>(session: &mut dyn Seeder<T>, asked: &PlusPlus) -> Result<First<T>> {
    let weight = session.weigh()?;
    let target = asked.target(weight, 0, 0);
    let Picked { rows, values, .. } = session.pick(&Draw::Totals(DrawBy::Weight, vec![target]))?;
    Ok(First { row: rows[0], values, weight })
}

/// Takes centroids. Returns the potential, which starts from the scale `base`.
pub fn take<T: Float>(session: &mut dyn Seeder<T>, centroids: &[T], base: DistanceScale) -> Result<DistanceSum> {
    let total = session.lower(centroids, base)?;
    let rows = session.positive_rows();
    DistanceSum { total, scale: base }.precise(rows, |finer| session.lower(&[], finer))
}

/// Appends centroids until there are `asked.k`, or as many as there are distinct rows. There must be one already.
pub fn complete<T: Float>(
    session: &mut dyn Seeder<T>,
    asked: &PlusPlus,
    base: DistanceScale,
    centroids: &mut Vec<T>,
    d: usize,
) -> Result<()> {
    if centroids.len() < asked.k.saturating_mul(d) {
        session.weigh()?;
        let potential = take(session, centroids, base)?;
        go_on(session, asked, potential, centroids, d)?;
    }
    Ok(())
}

/// As [`complete`], for a session that has taken these centroids and no others. `potential` is precise.
pub fn go_on<T: Float>(
    session: &mut dyn Seeder<T>,
    asked: &PlusPlus,
    mut potential: DistanceSum,
    centroids: &mut Vec<T>,
    d: usize,
) -> Result<()> {
    let rows = session.positive_rows();
    memory::reserve(centroids, d.saturating_mul(asked.k).saturating_sub(centroids.len()), super::CENTROIDS)?;
    loop {
        session.plus_plus_steps(asked, &mut potential, centroids)?;
        let step = centroids.len() / d;
        if step == asked.k || potential.total == 0 {
            return Ok(());
        }
        let targets = (0..asked.trials).map(|trial| asked.target(potential.total, step, trial)).collect();
        let candidates = session.pick(&Draw::Totals(DrawBy::Distance, targets))?.values;
        let gains = session.gains(&candidates)?;
        let mut best: Option<(DistanceSum, &[T])> = None;
        for (candidate, gain) in candidates.chunks_exact(d).zip(gains) {
            let left = DistanceSum { total: potential.total - gain, scale: potential.scale };
            // In the finer scale, a distance beyond the range is clamped to it, both before and after. So the difference is
            // exact.
            let left = left.precise(rows, |finer| {
                let before = session.lower(&[], finer)?;
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
        if step + 1 < asked.k {
            potential.total = session.lower(chosen, left.scale)?;
        }
    }
}
