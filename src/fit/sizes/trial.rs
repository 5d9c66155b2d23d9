//! What tests change: how samples are taken, and the prices that an assignment starts with. It changes no label.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The costs of a sample, if not 0. Then lists are compared with all distances, too.
pub static COSTS: AtomicUsize = AtomicUsize::new(0);
/// The seed of the prices that an assignment starts with, if not 0.
pub static PRICES: AtomicU64 = AtomicU64::new(0);

pub fn costs() -> Option<usize> {
    Some(COSTS.load(Relaxed)).filter(|costs| *costs > 0)
}

/// Adds random numbers of about this size to prices.
pub fn change(prices: &mut [i128], size: u128) {
    let seed = PRICES.load(Relaxed);
    for (price, state) in prices.iter_mut().zip(seed..).filter(|_| seed > 0) {
        *price += (i128::from(super::random::splitmix(state) as i64) >> 31) * (size as i128 >> 31);
    }
}
