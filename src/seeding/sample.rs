//! Different rows of positive weight, each equally likely: `init_sample`, and `init="random"`.

use super::without_replacement::WithoutReplacement;
use crate::backend::{DrawBy, Picked, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::Params;
use crate::exact::rng::{DrawPurpose, below, draw_u64};

/// `init="random"`: k rows (Forgy 1965).
pub fn seed<T: Float>(session: &mut dyn Seeder<T>, params: &Params, restart: u32) -> Result<Vec<T>> {
    let n = session.positive_rows();
    let ranks = ranks(params.seeding.seed, DrawPurpose::Random, restart, n, (params.k as u64).min(n))?;
    Ok(session.pick(DrawBy::Positive, &ranks)?.values)
}

/// A sample of the rows, in row order.
pub fn draw<T: Float>(session: &mut dyn Seeder<T>, params: &Params, restart: u32, rows: u64) -> Result<Picked<T>> {
    let mut ranks = ranks(params.seeding.seed, DrawPurpose::Sample, restart, session.positive_rows(), rows)?;
    ranks.sort_unstable();
    session.pick(DrawBy::Positive, &ranks)
}

/// Draws `count` of `n` ranks without replacement, in the order of the draws.
fn ranks(seed: u64, stream: DrawPurpose, restart: u32, n: u64, count: u64) -> Result<Vec<u128>> {
    let mut left = WithoutReplacement::new(n, count)?;
    let mut ranks = memory::with_room(count as usize, super::ROWS)?;
    for step in 0..count {
        let u = draw_u64(seed, stream, restart, step as u32, 0);
        let target = below(u, u128::from(n - step)) as u64;
        ranks.push(u128::from(left.take(target)?));
    }
    Ok(ranks)
}
