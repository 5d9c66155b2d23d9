//! `init="random"`: k different rows of positive weight, each equally likely (Forgy 1965).

use super::sample::ranks;
use crate::backend::{DrawBy, Seeder};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::params::Params;
use crate::exact::rng::Stream;

pub fn seed<T: Float>(session: &mut dyn Seeder<T>, params: &Params, restart: u32) -> Result<Vec<T>> {
    let n = session.positive_rows();
    let ranks = ranks(params.seeding.seed, Stream::Random, restart, n, (params.k as u64).min(n))?;
    Ok(session.pick(DrawBy::Positive, &ranks)?.values)
}
